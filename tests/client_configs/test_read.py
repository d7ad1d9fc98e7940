"""Servers of every client, read as upstreams from files as those clients write them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from toolyard.client_configs.known import CLIENTS, Client, Found, Surroundings
from toolyard.client_configs.read import Server, decode, parse, read_bytes, read_servers, runs_toolyard
from toolyard.config import ConfigError
from toolyard.config.upstreams import from_file

NPX = {"command": "npx", "args": ["-y", "x"]}


def read(client: str, text: str, surroundings: Surroundings, *, project: bool = False) -> dict[str, Server]:
    known = CLIENTS[client]
    path = surroundings.path((known.project if project else known.user)[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    servers = read_servers(Found(known, "project" if project else "user", path), surroundings)
    return {server.theirs: server for server in servers}


def one(client: str, entry: dict[str, Any], surroundings: Surroundings) -> dict[str, Any]:
    (section,) = CLIENTS[client].section
    (server,) = read(client, json.dumps({section: {"git": entry}}), surroundings).values()
    assert not server.why
    from_file({"upstreams": {server.name: server.table}}, Path("toolyard.toml"))
    return server.table


JSON_CLIENTS = [name for name, client in CLIENTS.items() if client.user[0].endswith(".json") or name == "opencode"]


@pytest.mark.parametrize("client", JSON_CLIENTS)
def test_every_client_with_json_is_read(client: str, surroundings: Surroundings) -> None:
    assert one(client, NPX, surroundings) == NPX
    assert one(client, {"url": "https://a/mcp"}, surroundings) == {"url": "https://a/mcp"}


def test_codex_names_variables_headers_tools_and_times_in_its_own_way(surroundings: Surroundings) -> None:
    text = """
    [mcp_servers.git]
    command = "npx"
    args = ["x"]
    env_vars = ["TOKEN", 5]
    env = { A = "b" }
    enabled_tools = ["a"]
    disabled_tools = ["b"]
    startup_timeout_sec = 5
    tool_timeout_sec = 2.5
    [mcp_servers.web]
    url = "https://a/mcp"
    bearer_token_env_var = "KEY"
    http_headers = { X = "y" }
    env_http_headers = { Z = "ZED" }
    """
    servers = read("codex", text, surroundings)

    assert servers["git"].table == {
        "command": "npx",
        "args": ["x"],
        "env": {"TOKEN": "${TOKEN}", "A": "b"},
        "tools": ["a"],
        "without": ["b"],
        "connect_seconds": 5,
        "call_seconds": 2.5,
    }
    assert servers["web"].table == {
        "url": "https://a/mcp",
        "headers": {"X": "y", "Z": "${ZED}", "Authorization": "Bearer ${KEY}"},
    }


def test_opencode_has_one_list_for_a_command_and_braces_for_variables_and_files(surroundings: Surroundings) -> None:
    local = {"type": "local", "command": ["bun", "x"], "environment": {"A": "{env:B}", "C": "{file:~/c}"}, "enabled": False}

    assert one("opencode", local, surroundings) == {
        "command": "bun",
        "args": ["x"],
        "env": {"A": "${B}", "C": "${secretref:file:~/c}"},
        "enabled": False,
    }
    assert one("opencode", {"type": "remote", "url": "https://a"}, surroundings) == {"url": "https://a", "transport": "http"}


def test_goose_has_extensions_some_of_which_are_no_servers(surroundings: Surroundings) -> None:
    text = """
    extensions:
      developer: {type: builtin, enabled: true}
      git: {type: stdio, cmd: npx, args: [x], envs: {A: b}, env_keys: [TOKEN]}
      web: {type: streamable_http, uri: "https://a"}
    """
    servers = read("goose", text, surroundings)

    assert "builtin" in servers["developer"].why
    assert servers["git"].table == {"command": "npx", "args": ["x"], "env": {"TOKEN": "${TOKEN}", "A": "b"}}
    assert servers["web"].table == {"url": "https://a", "transport": "http"}


def test_continue_has_a_list_in_which_each_says_its_name(surroundings: Surroundings) -> None:
    text = """
    mcpServers:
      - {name: Git, command: npx, args: [x]}
      - {name: web, type: sse, url: "https://a", requestOptions: {headers: {A: b}}}
      - {command: nameless}
      - 5
    """
    servers = read("continue", text, surroundings)

    assert list(servers) == ["Git", "web"]
    assert servers["Git"].name == "git"
    assert servers["web"].table == {"url": "https://a", "transport": "sse", "headers": {"A": "b"}}


def test_gemini_writes_variables_without_braces_and_filters_tools(surroundings: Surroundings) -> None:
    entry = {"httpUrl": "https://a", "headers": {"A": "$B and $${C}"}, "includeTools": ["a"], "excludeTools": ["b"], "trust": True}

    assert one("gemini", entry, surroundings) == {
        "url": "https://a",
        "headers": {"A": "${B} and $${C}"},
        "tools": ["a"],
        "without": ["b"],
    }


def test_what_vscode_asks_a_person_for_becomes_a_variable_and_folders_are_filled_in(surroundings: Surroundings) -> None:
    entry = {"command": "${userHome}/x", "args": ["${workspaceFolder}"], "env": {"A": "${input:api-key}", "B": "${env:C}"}}

    assert one("vscode", entry, surroundings) == {
        "command": f"{surroundings.home}/x",
        "args": [str(surroundings.folder)],
        "env": {"A": "${API_KEY}", "B": "${env:C}"},
    }


def test_the_tools_that_copilot_lets_through_are_kept_and_those_of_others_mean_something_else(surroundings: Surroundings) -> None:
    assert one("copilot", {**NPX, "tools": ["a"]}, surroundings) == {**NPX, "tools": ["a"]}
    assert one("cursor", {**NPX, "tools": ["a"], "disabled_tools": [5]}, surroundings) == NPX


def test_what_our_own_object_says_beats_the_words_of_a_client(surroundings: Surroundings) -> None:
    entry = {**NPX, "includeTools": ["a"], "toolyard": {"tools": ["b"], "pin": "off"}}

    assert one("gemini", entry, surroundings) == {**NPX, "tools": ["b"], "pin": "off"}


def test_claude_code_keeps_servers_for_one_folder_too(surroundings: Surroundings) -> None:
    document = {
        "mcpServers": {"a": NPX},
        "projects": {str(surroundings.folder): {"mcpServers": {"b": NPX}}, "/other": {"mcpServers": {"c": NPX}}},
    }

    assert list(read("claude-code", json.dumps(document), surroundings)) == ["a", "b"]
    assert list(read("claude-code", '{"mcpServers": {}, "projects": 5}', surroundings)) == []


def test_a_program_of_a_project_runs_in_its_folder(surroundings: Surroundings) -> None:
    text = json.dumps({"mcpServers": {"a": NPX, "b": {**NPX, "cwd": "sub"}, "c": {"url": "https://a"}}})
    servers = read("cursor", text, surroundings, project=True)

    assert servers["a"].table["cwd"] == str(surroundings.folder)
    assert servers["b"].table["cwd"] == str(surroundings.folder / "sub")
    assert "cwd" not in servers["c"].table


def test_what_is_wrong_with_one_server_is_said_of_that_one(surroundings: Surroundings) -> None:
    wrong: dict[str, Any] = {
        "a": 5,
        "b": {"command": 5},
        "c": {"type": "smoke", "url": "x"},
        "d": {**NPX, "toolyard": {"tols": []}},
        "e": {"command": ["x"], "args": 5},
    }
    servers = read("cursor", json.dumps({"mcpServers": {**wrong, "f": NPX}}), surroundings)

    assert servers.pop("f").table == NPX
    assert all(server.why.endswith((".", "?")) and not server.table for server in servers.values())
    assert "'mcpServers.b.command'" in servers["b"].why
    assert "'mcpServers.d.toolyard.tols'" in servers["d"].why


@pytest.mark.parametrize("text", ["5", "[]", "null"])
def test_a_file_that_is_no_object_has_no_servers(text: str, surroundings: Surroundings) -> None:
    with pytest.raises(ConfigError, match="no servers"):
        read("cursor", text, surroundings)


def test_a_file_that_is_not_there_is_named(surroundings: Surroundings) -> None:
    with pytest.raises(ConfigError, match=r"no file '.*mcp\.json'"):
        read_servers(Found(CLIENTS["cursor"], "user", surroundings.home / "mcp.json"), surroundings)


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"git": NPX}},
        {"servers": {"git": NPX}},
        {"mcp": {"servers": {"git": NPX}}},
        {"mcp": {"git": NPX}},
        {"context_servers": {"git": {"command": {"path": "npx", "args": ["-y", "x"]}}}},
        {"git": NPX},
    ],
)
def test_a_file_of_no_known_client_is_searched_for_servers(document: dict[str, Any], surroundings: Surroundings) -> None:
    path = surroundings.home / "some.json"
    path.write_text(json.dumps(document))

    (server,) = read_servers(Found(Client("file", "File", (), section=()), "user", path), surroundings)

    assert (server.name, server.table) == ("git", NPX)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/venv/bin/python", "args": ["-m", "toolyard", "serve", "/x/toolyard.toml"]},
        {"command": "/venv/bin/toolyard", "args": ["serve"]},
        {"command": "C:\\venv\\toolyard.exe", "args": ["serve"]},
        {"command": ["uvx", "toolyard", "serve"]},
    ],
)
def test_toolyard_itself_is_never_taken_in(entry: dict[str, Any], surroundings: Surroundings) -> None:
    (server,) = read("cursor", json.dumps({"mcpServers": {"mine": entry}}), surroundings).values()

    assert runs_toolyard(entry)
    assert "Toolyard itself" in server.why


@pytest.mark.parametrize(
    "entry", [{"command": "toolyard"}, {"command": "x", "args": ["toolyard", "list"]}, {"url": "https://a"}, {"args": [5]}]
)
def test_others_are_not_taken_for_toolyard(entry: dict[str, Any]) -> None:
    assert not runs_toolyard(entry)


def test_an_entry_of_our_name_is_ours_also_if_it_is_an_address(surroundings: Surroundings) -> None:
    (server,) = read("cursor", '{"mcpServers": {"toolyard": {"url": "http://127.0.0.1:8321/mcp"}}}', surroundings).values()

    assert server.why


def refusal(text: str, name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, Path(name))
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '\ufeff{"a": {"b": 1}, /* c */ }'),
        ("a.toml", "[a]\nb = 1"),
        ("a.yaml", "a:\n  b: 1"),
        ("a.yml", "{a: {b: 1}}"),
    ],
)
def test_a_document_is_read_as_its_name_tells(name: str, text: str) -> None:
    assert parse(text, Path(name)) == {"a": {"b": 1}}


def test_an_empty_file_of_json_says_nothing() -> None:
    assert parse(" \n", Path("a.json")) == {}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.json", '{\n "a": 1,\n "b" 2}', "line 3"),
        ("a.json", '{\n // one\n "a": [1,', "line 3"),
        ("a.toml", "a = 1\nb\n", "line 2"),
        ("a.yaml", "a: 1\nb: [", "line 2"),
    ],
)
def test_what_is_malformed_is_said_with_its_file_and_place(name: str, text: str, place: str) -> None:
    said = refusal(text, name)

    assert f"'{name}'" in said
    assert place in said
    assert said.count(".") == 2  # that of the name, and the end of the one sentence


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    assert "deep" in refusal("[" * 100_000, "a.json")
    assert "TOML" in refusal("a = " + "[" * 100_000, "a.toml")
    assert "YAML" in refusal("[" * 10_000, "a.yaml")


def test_yaml_needs_a_reader_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert "pip install pyyaml" in refusal("a: 1", "a.yaml")


def test_a_file_that_is_not_there_is_nothing_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "a.json") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bytes(tmp_path)
    with pytest.raises(ConfigError, match="UTF-8"):
        decode(b"\xff", tmp_path / "a.json")
