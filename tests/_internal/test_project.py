from pathlib import Path

import pytest

from callyard._internal.project import find_project, project_dir


def test_the_project_is_the_folder_of_the_file_else_of_the_target_else_the_current_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()

    assert find_project() == str(tmp_path)
    assert find_project(Path("callyard.toml")) == str(tmp_path)
    assert find_project(Path("a/callyard.toml"), "b/yard.py") == str(tmp_path / "a")
    assert find_project(None, "a/yard.py:yard") == str(tmp_path / "a")
    assert find_project(None, "a/mcp.json") == str(tmp_path / "a")
    assert find_project(None, "package.module:yard") == str(tmp_path)
    assert find_project(None, "https://a.example/mcp") == "https://a.example/mcp"


def test_a_link_to_a_folder_is_the_same_project(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")

    assert find_project(tmp_path / "link" / "callyard.toml") == find_project(tmp_path / "a" / "callyard.toml")


def test_projects_of_the_same_name_have_folders_of_their_own(tmp_path: Path) -> None:
    here, there = project_dir(tmp_path, "/home/one/My Shop"), project_dir(tmp_path, "/home/two/My Shop")

    assert here != there
    assert here.parent == there.parent == tmp_path / "projects"
    assert here.name.startswith("my-shop-")
    assert project_dir(tmp_path, "https://me:secret@a.example/mcp").name.startswith("a-example-")
    assert project_dir(tmp_path, "/").name.startswith("project-")
