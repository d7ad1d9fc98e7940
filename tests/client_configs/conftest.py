"""What the tests of clients share: a home and a project without anything in them."""

from pathlib import Path

import pytest

from toolyard.client_configs.known import Surroundings


@pytest.fixture
def surroundings(tmp_path: Path) -> Surroundings:
    """Return the surroundings of somebody who works in a project."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    return Surroundings("linux", {}, home, project)
