"""Connecting: our entry in every client's file, and every file as it was afterwards."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard._internal.files import rewrite
from toolyard.client_configs.connect import carry_out, connected, disconnected
from toolyard.client_configs.known import CLIENTS, Found, Surroundings, entry_of_address, entry_of_command, path_for
from toolyard.client_configs.read import read_servers
from toolyard.config import ConfigError

COMMAND = ["/venv/bin/python", "-m", "toolyard", "serve", "/x/toolyard.toml"]
CURSOR, CODEX = CLIENTS["cursor"], CLIENTS["codex"]
ENTRY = entry_of_command(CURSOR, COMMAND, name="toolyard")
WRITABLE = [client for client in CLIENTS.values() if not client.user[0].endswith(".yaml")]


def connect(path: Path, *, client: str = "cursor", name: str = "toolyard", entry: dict[str, Any] = ENTRY) -> Path | None:
    return carry_out(connected(CLIENTS[client], path, name=name, entry=entry), keep=True)


def undo(path: Path, *, client: str = "cursor", name: str = "toolyard") -> None:
    carry_out(disconnected(CLIENTS[client], path, name=name), keep=False)


@pytest.mark.parametrize("client", WRITABLE, ids=lambda client: client.name)
def test_every_client_gets_an_entry_that_it_understands_and_that_is_never_imported(client: Any, surroundings: Surroundings) -> None:
    path = path_for(client, surroundings, "user")
    assert path is not None
    connect(path, client=client.name, name="mine", entry=entry_of_command(client, COMMAND, name="mine"))

    (server,) = read_servers(Found(client, "user", path), surroundings)

    assert server.theirs == "mine"
    assert "Toolyard itself" in server.why


@pytest.mark.parametrize("client", [client for client in WRITABLE if client.name != "claude-desktop"], ids=lambda client: client.name)
def test_an_address_is_written_as_the_client_wants_it(client: Any, surroundings: Surroundings) -> None:
    path = path_for(client, surroundings, "user")
    entry = entry_of_address(client, "http://127.0.0.1:8321/mcp", name="mine")
    assert path is not None
    assert entry is not None
    connect(path, client=client.name, name="mine", entry=entry)

    (server,) = read_servers(Found(client, "user", path), surroundings)

    assert server.table["url"] == "http://127.0.0.1:8321/mcp"
    assert server.table.get("transport", "http") == "http"


def test_a_client_that_only_starts_programs_takes_no_address() -> None:
    assert entry_of_address(CLIENTS["claude-desktop"], "https://a", name="x") is None


def test_goose_is_told_more_than_others() -> None:
    goose = CLIENTS["goose"]

    assert entry_of_command(goose, COMMAND, name="mine")["cmd"] == COMMAND[0]
    assert entry_of_address(goose, "https://a", name="mine") == {
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
            b'{"mcpServers": {"toolyard": {"command": "toolyard", "args": ["serve"]}}, "z": 1}',
        ]
    ),
    st.builds(
        written,
        st.dictionaries(
            st.sampled_from(["a", "b", "mcpServers"]), st.dictionaries(st.text(max_size=4), st.integers(0, 9), max_size=3), max_size=3
        ),
        st.sampled_from([None, " ", "    ", "\t"]),
        st.sampled_from(["", "\n", "  \n\n"]),
    ),
)


@given(content=CONTENTS)
def test_undo_gives_the_very_same_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
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
        [b"", b"a = 1", b"# c\r\na = 1\r\n", b"[mcp_servers.x]\ncommand = 'y'\n\n\n", b"[mcp_servers.toolyard]\nurl='z'\n[b]\n"]
    )
)
def test_undo_gives_the_very_same_bytes_of_toml(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("client") / "config.toml"
    path.write_bytes(content)

    connect(path, client="codex")
    assert tomllib.loads(path.read_bytes().decode())["mcp_servers"]["toolyard"] == ENTRY
    undo(path, client="codex")

    assert path.read_bytes() == content


def test_a_file_that_was_made_is_gone_after_undo(tmp_path: Path) -> None:
    path = tmp_path / "new" / "mcp.json"

    assert connect(path) is None
    assert path.stat().st_mode & 0o077 == 0
    undo(path)

    assert not path.exists()


def test_to_connect_twice_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    connect(path)
    again = connected(CURSOR, path, name="toolyard", entry=ENTRY)

    assert again.before == again.after


def test_what_was_changed_since_stays_when_it_is_undone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"a": 1}')
    connect(path)
    path.write_text(path.read_text().replace('"a": 1', '"a": 2'))

    undo(path)

    assert json.loads(path.read_text()) == {"a": 2, "mcpServers": {}}


def test_what_was_changed_since_stays_in_toml_too(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    connect(path, client="codex")
    path.write_text("# mine\n" + path.read_text())

    undo(path, client="codex")

    assert path.read_text() == "# mine\n"


def test_a_backup_that_became_unreadable_does_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text("{}")
    backup = connect(path)
    assert backup is not None
    backup.write_text("{")

    undo(path)

    assert json.loads(path.read_text()) == {"mcpServers": {}}


def test_the_server_of_somebody_else_is_neither_overwritten_nor_undone(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"git": {"command": "npx"}}}')

    with pytest.raises(ConfigError, match="another server 'git'"):
        connected(CURSOR, path, name="git", entry=ENTRY)
    with pytest.raises(ConfigError, match="nothing to undo"):
        disconnected(CURSOR, path, name="git")
    with pytest.raises(ConfigError, match="nothing to undo"):
        disconnected(CURSOR, path, name="other")


def test_an_address_under_a_name_of_ones_own_can_be_undone(tmp_path: Path) -> None:
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
        connected(CODEX if path.suffix == ".toml" else CURSOR, path, name="toolyard", entry=ENTRY)


def test_an_entry_that_cannot_be_taken_out_safely_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text('{"mcpServers": {"toolyard": {} /* , */, "a": 1}}')

    with pytest.raises(ConfigError, match="cannot be changed"):
        disconnected(CURSOR, path, name="toolyard")


def test_a_link_stays_a_link_and_a_mode_stays_a_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "dotfiles.json", tmp_path / "mcp.json"
    real.write_text("{}")
    real.chmod(0o664)
    link.symlink_to(real)

    backup = connect(link)

    assert link.is_symlink()
    assert "toolyard" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o664
    assert backup is not None
    assert backup.read_text() == "{}"
    assert backup.stat().st_mode & 0o777 == 0o600
    undo(link)
    assert real.read_text() == "{}"


def test_a_new_file_is_as_open_as_the_user_wants_new_files_to_be(tmp_path: Path) -> None:
    rewrite(tmp_path / "a", b"")
    (tmp_path / "b").touch()

    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode
