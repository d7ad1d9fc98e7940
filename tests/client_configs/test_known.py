"""Clients that are known, and where their files are."""

import re
from pathlib import Path

import pytest

from toolyard.client_configs.known import CLIENTS, Surroundings, find_files, path_for


def test_every_client_has_a_file_of_the_user_inside_the_home(surroundings: Surroundings) -> None:
    for client in CLIENTS.values():
        assert client.user
        for pattern in client.user:
            assert surroundings.path(pattern).is_relative_to(surroundings.home)


def test_every_file_of_a_project_is_inside_it(surroundings: Surroundings) -> None:
    for client in CLIENTS.values():
        for pattern in client.project:
            assert surroundings.path(pattern).is_relative_to(surroundings.folder)


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("linux", ".config/Code/User/mcp.json"),
        ("darwin", "Library/Application Support/Code/User/mcp.json"),
        ("win32", "AppData/Roaming/Code/User/mcp.json"),
    ],
)
def test_each_system_has_its_own_place_for_settings(surroundings: Surroundings, platform: str, place: str) -> None:
    found = path_for(CLIENTS["vscode"], surroundings._replace(platform=platform), "user")

    assert found == surroundings.home / place


@pytest.mark.parametrize(
    ("client", "platform", "variable", "place"),
    [
        ("claude-code", "linux", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "linux", "CODEX_HOME", "config.toml"),
        ("amp", "darwin", "XDG_CONFIG_HOME", "amp/settings.json"),
        ("claude-desktop", "linux", "XDG_CONFIG_HOME", "Claude/claude_desktop_config.json"),
        ("claude-desktop", "win32", "APPDATA", "Claude/claude_desktop_config.json"),
        ("zed", "win32", "APPDATA", "Zed/settings.json"),
        ("goose", "win32", "APPDATA", "Block/goose/config/config.yaml"),
        ("opencode", "linux", "OPENCODE_CONFIG", ""),
    ],
)
def test_a_variable_moves_a_file(surroundings: Surroundings, client: str, platform: str, variable: str, place: str) -> None:
    moved = surroundings._replace(platform=platform, variables={variable: "/elsewhere"})

    assert path_for(CLIENTS[client], moved, "user") == Path("/elsewhere") / place


def test_only_files_that_are_there_are_found_and_each_once(surroundings: Surroundings) -> None:
    assert find_files(CLIENTS["cursor"], surroundings) == []
    for folder in (surroundings.home, surroundings.folder):
        (folder / ".cursor").mkdir()
        (folder / ".cursor" / "mcp.json").write_text("{}")

    assert [file.scope for file in find_files(CLIENTS["cursor"], surroundings)] == ["user", "project"]
    assert [file.scope for file in find_files(CLIENTS["cursor"], surroundings._replace(folder=surroundings.home))] == ["user"]


def test_the_file_that_is_there_is_written_rather_than_the_usual_one(surroundings: Surroundings) -> None:
    old = surroundings.home / ".cache" / "lm-studio" / "mcp.json"
    assert path_for(CLIENTS["lmstudio"], surroundings, "user") == surroundings.home / ".lmstudio" / "mcp.json"

    old.parent.mkdir(parents=True)
    old.write_text("{}")

    assert path_for(CLIENTS["lmstudio"], surroundings, "user") == old


def test_the_guide_tells_of_every_client() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "import.md").read_text()
    told = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (yes)? ?\|$", guide, re.MULTILINE)

    assert told == [(client.name, client.title, "yes" if client.project else "") for client in CLIENTS.values()]


def test_some_clients_have_no_file_for_a_project(surroundings: Surroundings) -> None:
    assert path_for(CLIENTS["windsurf"], surroundings, "project") is None
