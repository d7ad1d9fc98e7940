"""Servers of every client, read as upstreams from files as those clients write them."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard.client_configs.clients import CLIENTS, Client, ClientFile, Environment
from callyard.client_configs.read import Server, decode, parse, read_bytes, read_servers, runs_callyard
from callyard.config import ConfigError
from callyard.config.upstreams import from_file

NPX = {"command": "npx", "args": ["-y", "x"]}


def read(client: str, text: str, environment: Environment, *, project: bool = False) -> dict[str, Server]:
    known = CLIENTS[client]
    path = environment.path((known.project if project else known.user)[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    servers = read_servers(ClientFile(known, "project" if project else "user", path), environment)
    return {server.original_name: server for server in servers}


def one(client: str, entry: dict[str, Any], environment: Environment) -> dict[str, Any]:
    (section,) = CLIENTS[client].section
    (server,) = read(client, json.dumps({section: {"git": entry}}), environment).values()
    assert not server.reason
    from_file({"upstreams": {server.name: server.table}}, Path("callyard.toml"))
    return server.table


JSON_CLIENTS = [name for name, client in CLIENTS.items() if client.user[0].endswith(".json") or name == "opencode"]


@pytest.mark.parametrize("client", JSON_CLIENTS)
def test_every_client_with_json_is_read(client: str, environment: Environment) -> None:
    assert one(client, NPX, environment) == NPX
    assert one(client, {"url": "https://a/mcp"}, environment) == {"url": "https://a/mcp"}


def test_codex_names_variables_headers_tools_and_times_in_its_own_way(environment: Environment) -> None:
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
    servers = read("codex", text, environment)

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


def test_opencode_has_one_list_for_a_command_and_braces_for_variables_and_files(environment: Environment) -> None:
    local = {
        "type": "local",
        "command": ["bun", "x"],
        "environment": {"A": "{env:B}", "C": "{file:~/c}"},
        "enabled": False,
    }

    assert one("opencode", local, environment) == {
        "command": "bun",
        "args": ["x"],
        "env": {"A": "${B}", "C": "${secretref:file:~/c}"},
        "enabled": False,
    }
    assert one("opencode", {"type": "remote", "url": "https://a"}, environment) == {
        "url": "https://a",
        "transport": "http",
    }


def test_goose_has_extensions_some_of_which_are_no_servers(environment: Environment) -> None:
    text = """
    extensions:
      developer: {type: builtin, enabled: true}
      git: {type: stdio, cmd: npx, args: [x], envs: {A: b}, env_keys: [TOKEN]}
      web: {type: streamable_http, uri: "https://a"}
    """
    servers = read("goose", text, environment)

    assert "builtin" in servers["developer"].reason
    assert servers["git"].table == {"command": "npx", "args": ["x"], "env": {"TOKEN": "${TOKEN}", "A": "b"}}
    assert servers["web"].table == {"url": "https://a", "transport": "http"}


def test_continue_has_a_list_of_servers_with_names(environment: Environment) -> None:
    text = """
    mcpServers:
      - {name: Git, command: npx, args: [x]}
      - {name: web, type: sse, url: "https://a", requestOptions: {headers: {A: b}}}
      - {command: nameless}
      - 5
    """
    servers = read("continue", text, environment)

    assert list(servers) == ["Git", "web"]
    assert servers["Git"].name == "git"
    assert servers["web"].table == {"url": "https://a", "transport": "sse", "headers": {"A": "b"}}


def test_gemini_writes_variables_without_braces_and_filters_tools(environment: Environment) -> None:
    entry = {
        "httpUrl": "https://a",
        "headers": {"A": "$B and $${C}"},
        "includeTools": ["a"],
        "excludeTools": ["b"],
        "trust": True,
    }

    assert one("gemini", entry, environment) == {
        "url": "https://a",
        "headers": {"A": "${B} and $${C}"},
        "tools": ["a"],
        "without": ["b"],
    }


def test_inputs_of_vscode_become_variables_and_folders_are_filled_in(environment: Environment) -> None:
    entry = {
        "command": "${userHome}/x",
        "args": ["${workspaceFolder}"],
        "env": {"A": "${input:api-key}", "B": "${env:C}"},
    }

    assert one("vscode", entry, environment) == {
        "command": f"{environment.home}/x",
        "args": [str(environment.folder)],
        "env": {"A": "${API_KEY}", "B": "${env:C}"},
    }


def test_the_tool_filter_of_copilot_is_kept_and_that_of_others_ignored(environment: Environment) -> None:
    assert one("copilot", {**NPX, "tools": ["a"]}, environment) == {**NPX, "tools": ["a"]}
    assert one("cursor", {**NPX, "tools": ["a"], "disabled_tools": [5]}, environment) == NPX


def test_our_own_settings_beat_those_of_the_client(environment: Environment) -> None:
    entry = {**NPX, "includeTools": ["a"], "callyard": {"tools": ["b"], "pin": "off"}}

    assert one("gemini", entry, environment) == {**NPX, "tools": ["b"], "pin": "off"}


def test_claude_code_keeps_servers_for_one_folder_too(environment: Environment) -> None:
    document = {
        "mcpServers": {"a": NPX},
        "projects": {str(environment.folder): {"mcpServers": {"b": NPX}}, "/other": {"mcpServers": {"c": NPX}}},
    }

    assert list(read("claude-code", json.dumps(document), environment)) == ["a", "b"]
    assert list(read("claude-code", '{"mcpServers": {}, "projects": 5}', environment)) == []


def test_a_program_of_a_project_runs_in_its_folder(environment: Environment) -> None:
    text = json.dumps({"mcpServers": {"a": NPX, "b": {**NPX, "cwd": "sub"}, "c": {"url": "https://a"}}})
    servers = read("cursor", text, environment, project=True)

    assert servers["a"].table["cwd"] == str(environment.folder)
    assert servers["b"].table["cwd"] == str(environment.folder / "sub")
    assert "cwd" not in servers["c"].table


def test_an_unusable_server_does_not_affect_the_others(environment: Environment) -> None:
    wrong: dict[str, Any] = {
        "a": 5,
        "b": {"command": 5},
        "c": {"type": "smoke", "url": "x"},
        "d": {**NPX, "callyard": {"tols": []}},
        "e": {"command": ["x"], "args": 5},
    }
    servers = read("cursor", json.dumps({"mcpServers": {**wrong, "f": NPX}}), environment)

    assert servers.pop("f").table == NPX
    assert all(server.reason.endswith((".", "?")) and not server.table for server in servers.values())
    assert "'mcpServers.b.command'" in servers["b"].reason
    assert "'mcpServers.d.callyard.tols'" in servers["d"].reason


@pytest.mark.parametrize("text", ["5", "[]", "null"])
def test_a_file_without_an_object_has_no_servers(text: str, environment: Environment) -> None:
    with pytest.raises(ConfigError, match="no servers"):
        read("cursor", text, environment)


def test_a_missing_file_is_named(environment: Environment) -> None:
    with pytest.raises(ConfigError, match=r"no file '.*mcp\.json'"):
        read_servers(ClientFile(CLIENTS["cursor"], "user", environment.home / "mcp.json"), environment)


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
def test_a_file_of_an_unknown_client_is_searched_for_servers(
    document: dict[str, Any], environment: Environment
) -> None:
    path = environment.home / "some.json"
    path.write_text(json.dumps(document))

    (server,) = read_servers(ClientFile(Client("file", "File", (), section=()), "user", path), environment)

    assert (server.name, server.table) == ("git", NPX)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/venv/bin/python", "args": ["-m", "callyard", "serve", "/x/callyard.toml"]},
        {"command": "/venv/bin/callyard", "args": ["serve"]},
        {"command": "C:\\venv\\callyard.exe", "args": ["serve"]},
        {"command": ["uvx", "callyard", "serve"]},
    ],
)
def test_callyard_itself_is_never_imported(entry: dict[str, Any], environment: Environment) -> None:
    (server,) = read("cursor", json.dumps({"mcpServers": {"mine": entry}}), environment).values()

    assert runs_callyard(entry)
    assert "Callyard itself" in server.reason


@every_row(
    "entry",
    [{"command": "callyard"}, {"command": "x", "args": ["callyard", "list"]}, {"url": "https://a"}, {"args": [5]}],
)
def test_others_are_not_taken_for_callyard(entry: dict[str, Any]) -> None:
    assert not runs_callyard(entry)


def test_an_entry_of_our_name_is_ours_even_with_a_url(environment: Environment) -> None:
    (server,) = read(
        "cursor", '{"mcpServers": {"callyard": {"url": "http://127.0.0.1:8321/mcp"}}}', environment
    ).values()

    assert server.reason


def refusal(text: str, name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, Path(name))
    return str(refused.value)


@every_row(
    ("name", "text"),
    [
        ("a.json", '\ufeff{"a": {"b": 1}, /* c */ }'),
        ("a.toml", "[a]\nb = 1"),
        ("a.yaml", "a:\n  b: 1"),
        ("a.yml", "{a: {b: 1}}"),
    ],
)
def test_a_document_is_parsed_by_its_suffix(name: str, text: str) -> None:
    assert parse(text, Path(name)) == {"a": {"b": 1}}


def test_an_empty_json_file_is_an_empty_document() -> None:
    assert parse(" \n", Path("a.json")) == {}


@every_row(
    ("name", "text", "place"),
    [
        ("a.json", '{\n "a": 1,\n "b" 2}', "line 3"),
        ("a.json", '{\n // one\n "a": [1,', "line 3"),
        ("a.toml", "a = 1\nb\n", "line 2"),
        ("a.yaml", "a: 1\nb: [", "line 2"),
    ],
)
def test_a_malformed_document_is_reported_with_its_file_and_line(name: str, text: str, place: str) -> None:
    said = refusal(text, name)

    assert f"'{name}'" in said
    assert place in said
    assert said.count(".") == 2  # that of the name, and the end of the one sentence


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    assert "deep" in refusal("[" * 100_000, "a.json")
    assert "TOML" in refusal("a = " + "[" * 100_000, "a.toml")
    assert "YAML" in refusal("[" * 10_000, "a.yaml")


def test_yaml_needs_a_parser_and_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert "pip install pyyaml" in refusal("a: 1", "a.yaml")


def test_a_missing_file_is_none_and_an_unreadable_one_is_named(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "a.json") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bytes(tmp_path)
    with pytest.raises(ConfigError, match="UTF-8"):
        decode(b"\xff", tmp_path / "a.json")
