"""A fixture for client configurations: an empty home and an empty project."""

from pathlib import Path

import pytest

from callyard.client_configs.clients import Environment


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    """Return the environment of a user in a project."""
    home, project = tmp_path / "home", tmp_path / "project"
    home.mkdir()
    project.mkdir()
    return Environment("linux", {}, home, project)
