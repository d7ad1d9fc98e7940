"""Clients that are known, and where their files are."""

import re
from pathlib import Path

import pytest

from callyard.client_configs.clients import CLIENTS, Environment, find_files, path_to_write


def test_every_client_has_a_file_of_the_user_inside_the_home(environment: Environment) -> None:
    for client in CLIENTS.values():
        assert client.user
        for pattern in client.user:
            assert environment.path(pattern).is_relative_to(environment.home)


def test_every_project_file_is_inside_the_project(environment: Environment) -> None:
    for client in CLIENTS.values():
        for pattern in client.project:
            assert environment.path(pattern).is_relative_to(environment.folder)


@pytest.mark.parametrize(
    ("platform", "place"),
    [
        ("linux", ".config/Code/User/mcp.json"),
        ("darwin", "Library/Application Support/Code/User/mcp.json"),
        ("win32", "AppData/Roaming/Code/User/mcp.json"),
    ],
)
def test_each_platform_has_its_own_settings_folder(environment: Environment, platform: str, place: str) -> None:
    found = path_to_write(CLIENTS["vscode"], environment._replace(platform=platform), "user")

    assert found == environment.home / place


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
def test_a_variable_moves_a_file(
    environment: Environment, client: str, platform: str, variable: str, place: str
) -> None:
    moved = environment._replace(platform=platform, variables={variable: "/elsewhere"})

    assert path_to_write(CLIENTS[client], moved, "user") == Path("/elsewhere") / place


def test_existing_files_are_found_once(environment: Environment) -> None:
    assert find_files(CLIENTS["cursor"], environment) == []
    for folder in (environment.home, environment.folder):
        (folder / ".cursor").mkdir()
        (folder / ".cursor" / "mcp.json").write_text("{}")

    assert [file.scope for file in find_files(CLIENTS["cursor"], environment)] == ["user", "project"]
    assert [file.scope for file in find_files(CLIENTS["cursor"], environment._replace(folder=environment.home))] == [
        "user"
    ]


def test_an_existing_file_is_written_rather_than_the_default_one(environment: Environment) -> None:
    old = environment.home / ".cache" / "lm-studio" / "mcp.json"
    assert path_to_write(CLIENTS["lmstudio"], environment, "user") == environment.home / ".lmstudio" / "mcp.json"

    old.parent.mkdir(parents=True)
    old.write_text("{}")

    assert path_to_write(CLIENTS["lmstudio"], environment, "user") == old


def test_the_guide_lists_every_client() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "import.md").read_text()
    documented = re.findall(r"^\| `([\w-]+)` \| ([^|]+) \| (yes)? ?\|$", guide, re.MULTILINE)

    assert documented == [(client.name, client.title, "yes" if client.project else "") for client in CLIENTS.values()]


def test_some_clients_have_no_file_for_a_project(environment: Environment) -> None:
    assert path_to_write(CLIENTS["windsurf"], environment, "project") is None
