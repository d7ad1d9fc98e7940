"""A folder of photographs, and yards with a darkroom on it."""

import shutil
from functools import partial
from pathlib import Path

import pytest
from darkroom_yards import OpenDarkroom, draw, open_yard


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    folder = tmp_path / "photographs"
    folder.mkdir()
    draw(folder / "a.tif")
    draw(folder / "b.jpg")
    return folder


@pytest.fixture
def open_darkroom(tmp_path: Path, photographs: Path) -> OpenDarkroom:
    return partial(open_yard, photographs, tmp_path / "state")


@pytest.fixture
def darktable() -> str:
    """Return the program darktable, or skip the test."""
    program = shutil.which("darktable-cli")
    if program is None:
        pytest.skip("darktable is not installed")
    return program
