"""Connecting: our entry in every client's file, and every file as it was afterwards."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callyard._internal.files import rewrite
from callyard.client_configs.clients import CLIENTS, ClientFile, Environment, command_entry, path_to_write, url_entry
from callyard.client_configs.connect import (
    ImportedServer,
    apply_change,
    display_target,
    missing_variables,
    plan_connect,
    plan_disconnect,
    plan_import,
)
from callyard.client_configs.read import Server, read_servers
from callyard.config import ConfigError

COMMAND = ["/venv/bin/python", "-m", "callyard", "serve", "/x/callyard.toml"]
CURSOR, CODEX = CLIENTS["cursor"], CLIENTS["codex"]
ENTRY = command_entry(CURSOR, COMMAND, name="callyard")
WRITABLE = [client for client in CLIENTS.values() if not client.user[0].endswith(".yaml")]


def connect(
    path: Path, *, client: str = "cursor", name: str = "callyard", entry: dict[str, Any] = ENTRY
) -> Path | None:
    return apply_change(plan_connect(CLIENTS[client], path, name=name, entry=entry), backup=True)


def undo(path: Path, *, client: str = "cursor", name: str = "callyard") -> None:
    apply_change(plan_disconnect(CLIENTS[client], path, name=name), backup=False)


@pytest.mark.parametrize("client", WRITABLE, ids=lambda client: client.name)
def test_every_client_gets_an_entry_that_it_understands_and_that_is_never_imported(
    client: Any, environment: Environment
) -> None:
    path = path_to_write(client, environment, "user")
    assert path is not None
    connect(path, client=client.name, name="mine", entry=command_entry(client, COMMAND, name="mine"))

    (server,) = read_servers(ClientFile(client, "user", path), environment)

    assert server.original_name == "mine"
    assert "Callyard itself" in server.reason


@pytest.mark.parametrize(
    "client", [client for client in WRITABLE if client.name != "claude-desktop"], ids=lambda client: client.name
)
def test_a_url_is_written_in_the_clients_format(client: Any, environment: Environment) -> None:
    path = path_to_write(client, environment, "user")
    entry = url_entry(client, "http://127.0.0.1:8321/mcp", name="mine")
    assert path is not None
    assert entry is not None
    connect(path, client=client.name, name="mine", entry=entry)

    (server,) = read_servers(ClientFile(client, "user", path), environment)

    assert server.table["url"] == "http://127.0.0.1:8321/mcp"
    assert server.table.get("transport", "http") == "http"


def test_a_client_that_only_starts_commands_gets_no_url() -> None:
    assert url_entry(CLIENTS["claude-desktop"], "https://a", name="x") is None


def test_goose_needs_more_fields_than_others() -> None:
    goose = CLIENTS["goose"]

    assert command_entry(goose, COMMAND, name="mine")["cmd"] == COMMAND[0]
    assert url_entry(goose, "https://a", name="mine") == {
        "name": "mine",
        "enabled": True,
        "type": "streamable_http",
        "uri": "https://a",
        "timeout": 300,
    }


def written(document: dict[str, dict[str, int]], indent: str | None, end: str) -> bytes:
    return (json.dumps(document, indent=indent) + end).encode()


CONTENTS = st.one_of(
    st.sampled_from(
        [
            b"",
            b"{}",
            b"\xef\xbb\xbf{}",
            b'{"mcpServers": {}}',
            b'{ // a\r\n"b": [1,],\r\n}\r\n',
            b'{"mcpServers": {"callyard": {"command": "callyard", "args": ["serve"]}}, "z": 1}',
        ]
    ),
    st.builds(
        written,
        st.dictionaries(
            st.sampled_from(["a", "b", "mcpServers"]),
            st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=3),
            max_size=3,
        ),
        st.sampled_from([None, " ", "    ", "\t"]),
        st.sampled_from(["", "\n", "  \n\n"]),
    ),
)


@given(content=CONTENTS)
def test_undo_restores_the_same_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("client") / "mcp.json"
    path.write_bytes(content)

    connect(path)
    assert path.read_bytes() != content
    connect(path, entry={"url": "http://a/mcp"})
    undo(path)
    undo(path)

    assert path.read_bytes() == content
    assert list(path.parent.iterdir()) == [path]


@given(
    content=st.sampled_from(
        [
            b"",
            b"a = 1",
            b"# c\r\na = 1\r\n",
            b"[mcp_servers.x]\ncommand = 'y'\n\n\n",
            b"[mcp_servers.callyard]\nurl='z'\n[b]\n",
        ]
    )
)
def test_undo_restores_the_same_bytes_of_toml(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("client") / "config.toml"
    path.write_bytes(content)

    connect(path, client="codex")
    assert tomllib.loads(path.read_bytes().decode())["mcp_servers"]["callyard"] == ENTRY
    undo(path, client="codex")

    assert path.read_bytes() == content


def test_undo_removes_a_file_that_connecting_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mcp.json"

    assert connect(path) is None
    assert path.stat().st_mode & 0o077 == 0
    undo(path)

    assert not path.exists()


def test_connecting_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    connect(path)
    again = plan_connect(CURSOR, path, name="callyard", entry=ENTRY)

    assert again.before == again.after


def test_undo_keeps_later_changes(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"a": 1}')
    connect(path)
    path.write_text(path.read_text().replace('"a": 1', '"a": 2'))

    undo(path)

    assert json.loads(path.read_text()) == {"a": 2, "mcpServers": {}}


def test_undo_keeps_later_changes_of_toml(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    connect(path, client="codex")
    path.write_text("# mine\n" + path.read_text())

    undo(path, client="codex")

    assert path.read_text() == "# mine\n"


def test_an_unreadable_backup_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    backup = connect(path)
    assert backup is not None
    backup.write_text("{")

    undo(path)

    assert json.loads(path.read_text()) == {"mcpServers": {}}


def test_another_server_of_that_name_is_neither_overwritten_nor_removed(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"git": {"command": "npx"}}}')

    with pytest.raises(ConfigError, match="another server 'git'"):
        plan_connect(CURSOR, path, name="git", entry=ENTRY)
    with pytest.raises(ConfigError, match="nothing to undo"):
        plan_disconnect(CURSOR, path, name="git")
    with pytest.raises(ConfigError, match="nothing to undo"):
        plan_disconnect(CURSOR, path, name="other")


def test_a_url_under_a_custom_name_can_be_undone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    connect(path, name="mine", entry={"url": "http://a/mcp"})

    undo(path, name="mine")

    assert path.read_text() == "{}"


@pytest.mark.parametrize(("name", "text"), [("mcp.json", '{"mcpServers": []}'), ("config.toml", "mcp_servers = {}\n")])
def test_a_file_that_cannot_be_changed_safely_is_named(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)

    with pytest.raises(ConfigError, match="cannot be changed"):
        plan_connect(CODEX if path.suffix == ".toml" else CURSOR, path, name="callyard", entry=ENTRY)


def test_an_entry_that_cannot_be_removed_safely_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"callyard": {} /* , */, "a": 1}}')

    with pytest.raises(ConfigError, match="cannot be changed"):
        plan_disconnect(CURSOR, path, name="callyard")


def test_links_and_modes_are_preserved(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}")
    real.chmod(0o664)
    link.symlink_to(real)

    backup = connect(link)

    assert link.is_symlink()
    assert "callyard" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o664
    assert backup is not None
    assert backup.read_text() == "{}"
    assert backup.stat().st_mode & 0o777 == 0o600
    undo(link)
    assert real.read_text() == "{}"


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    rewrite(tmp_path / "a", b"")
    (tmp_path / "b").touch()

    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


NPX: dict[str, Any] = {"command": "npx", "args": ["x"]}
UVX: dict[str, Any] = {"command": "uvx", "args": ["x"]}


def server(name: str, table: dict[str, Any], client: str = "cursor") -> Server:
    return Server(client, Path("mcp.json"), name, name, table)


def imported(*servers: Server, existing: dict[str, Any] | None = None) -> list[ImportedServer]:
    return plan_import(servers, existing or {}, storage="file", secrets=Path("/state/secrets"), folder=Path("/work"))


def names(*servers: Server, existing: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    return [(one.name, one.status) for one in imported(*servers, existing=existing)]


def test_the_same_server_under_the_same_name_is_there_already() -> None:
    assert names(server("git", NPX), server("git", NPX, "zed")) == [("git", "added"), ("git", "there already")]
    assert names(server("git", NPX), existing={"git": NPX}) == [("git", "there already")]


def test_another_server_of_the_same_name_gets_its_clients_name_added() -> None:
    found = names(
        server("git", NPX), server("git", UVX), server("git", {"url": "https://a"}), server("git", {"url": "https://b"})
    )

    assert found == [
        ("git", "added"),
        ("git-cursor", "renamed"),
        ("git-cursor-2", "renamed"),
        ("git-cursor-3", "renamed"),
    ]


def test_a_server_that_was_renamed_before_is_recognised() -> None:
    assert names(server("git", UVX), existing={"git": NPX, "git-cursor": UVX}) == [("git-cursor", "there already")]


def test_a_name_that_differs_only_in_dashes_is_not_free() -> None:
    assert names(server("a_b", NPX), existing={"a-b": UVX}) == [("a_b-cursor", "renamed")]


def test_an_extracted_secret_does_not_make_it_another_server() -> None:
    with_secret = {"command": "npx", "args": ["--token", "hunter"], "env": {"A": "b"}}
    (first,) = imported(server("git", with_secret))

    assert "hunter" not in str(first.table)
    assert names(server("git", with_secret), existing={"git": first.table}) == [("git", "there already")]


def test_the_folder_of_the_file_itself_is_not_written() -> None:
    one, two = imported(server("a", {**NPX, "cwd": "/work"}), server("b", {**NPX, "cwd": "/other"}))

    assert "cwd" not in one.table
    assert two.table["cwd"] == "/other"


def test_an_unusable_server_is_left_out_with_the_reason() -> None:
    (one,) = imported(server("git", {})._replace(reason="No."))

    assert (one.status, one.reason, one.table) == ("left out", "No.", {})


def test_unset_variables_are_listed() -> None:
    table = {"command": "${A}", "args": ["${env:B}", "${C:-c}", "$${D}"], "env": {"E": "${E}"}, "in_flight": 5}

    assert missing_variables(table, {"E": "x"}) == ["A", "B"]


def test_the_command_or_url_is_displayed_without_secrets() -> None:
    assert display_target({"command": "npx", "args": ["--token", "hunter"]}) == "npx --token …"
    assert display_target({"url": "https://a/?key=hunter"}) == "https://a/?key=…"
    assert display_target({}) == ""
