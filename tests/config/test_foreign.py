"""Files of clients: the shapes they have, read as our own tables."""

import json
from pathlib import Path
from typing import Any

import pytest

from toolyard.config import ConfigError
from toolyard.config.upstreams import Foreign, parse_json, read_document, read_foreign


def read(*entries: tuple[str, Any], section: str = "mcpServers") -> Foreign:
    return read_document({section: dict(entries)}, "mcp.json")


def one(entry: dict[str, Any]) -> dict[str, Any]:
    return read(("git", entry)).upstreams["git"]


def refused(document: object) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_document(document, "mcp.json")
    return str(refusal.value)


def test_a_program_keeps_what_it_is_started_with() -> None:
    entry = {"command": "npx", "args": ["-y", "x"], "env": {"TOKEN": "${TOKEN}"}, "cwd": "/tmp"}  # noqa: S108 - a text

    assert one(entry) == entry


def test_an_address_keeps_its_headers() -> None:
    assert one({"url": "https://a/mcp", "headers": {"X": "${Y}"}}) == {"url": "https://a/mcp", "headers": {"X": "${Y}"}}


@pytest.mark.parametrize(
    ("kind", "carrier"),
    [
        ("http", "http"),
        ("streamable-http", "http"),
        ("streamableHttp", "http"),
        ("streamable_http", "http"),
        ("sse", "sse"),
        ("SSE", "sse"),
    ],
)
@pytest.mark.parametrize("key", ["type", "transport"])
def test_every_word_for_a_transport_is_understood(key: str, kind: str, carrier: str) -> None:
    assert one({key: kind, "url": "https://a"}) == {"url": "https://a", "transport": carrier}


@pytest.mark.parametrize("key", ["url", "httpUrl", "serverUrl"])
def test_every_word_for_an_address_is_understood(key: str) -> None:
    assert one({key: "https://a"}) == {"url": "https://a"}


def test_a_server_with_both_a_program_and_an_address_is_what_its_type_says() -> None:
    both = {"command": "npx", "url": "https://a"}

    assert one({**both, "type": "stdio"}) == {"command": "npx"}
    assert one({**both, "type": "http"}) == {"url": "https://a", "transport": "http"}
    assert one(both) == {"url": "https://a"}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "local", "command": ["npx", "-y"], "args": ["x"]},
        {"command": {"path": "npx", "args": ["-y", "x"]}},
        {"command": "npx", "args": ["-y", "x"], "cwd": None},
    ],
)
def test_programs_are_written_in_several_ways(entry: dict[str, Any]) -> None:
    assert one(entry) == {"command": "npx", "args": ["-y", "x"]}


def test_numbers_and_switches_among_variables_become_text() -> None:
    assert one({"command": "a", "env": {"PORT": 1, "RATE": 0.5, "ON": True, "T": "t"}})["env"] == {
        "PORT": "1",
        "RATE": "0.5",
        "ON": "true",
        "T": "t",
    }


@pytest.mark.parametrize("switch", [{"disabled": True}, {"enabled": False}])
def test_a_server_that_is_switched_off_stays_so(switch: dict[str, bool]) -> None:
    assert one({"command": "a", **switch}) == {"command": "a", "enabled": False}


def test_a_server_that_is_switched_on_is_used() -> None:
    assert one({"command": "a", "disabled": False, "enabled": True}) == {"command": "a"}


def test_what_is_theirs_alone_is_passed_over_and_what_is_ours_beats_theirs() -> None:
    entry = {"command": "a", "autoApprove": ["x"], "timeout": 5, "toolyard": {"call_seconds": 3, "enabled": True}, "disabled": True}

    assert one(entry) == {"command": "a", "call_seconds": 3, "enabled": True}


def test_a_setting_of_ours_that_is_not_known_is_refused_with_what_was_meant() -> None:
    said = refused({"mcpServers": {"git": {"command": "a", "toolyard": {"prefx": ""}}}})

    assert said == "'mcpServers.git.toolyard.prefx' in 'mcp.json' is not known. Did you mean 'prefix'?"
    assert "'mcpServers.git.toolyard' in 'mcp.json' must be a table." in refused({"mcpServers": {"git": {"command": "a", "toolyard": 1}}})


@pytest.mark.parametrize(
    ("document", "place"),
    [
        ({"mcpServers": {"git": {"command": "a"}}, "other": 1}, "mcpServers.git"),
        ({"servers": {"git": {"command": "a"}}, "inputs": []}, "servers.git"),
        ({"mcp": {"servers": {"git": {"command": "a"}}}}, "mcp.servers.git"),
        ({"mcp_servers": {"git": {"command": "a"}}, "mcp": 1}, "mcp_servers.git"),
        ({"context_servers": {"git": {"command": "a"}}}, "context_servers.git"),
        ({"git": {"command": "a"}}, "git"),
    ],
)
def test_servers_stand_where_each_client_has_them(document: object, place: str) -> None:
    found = read_document(document, "mcp.json")

    assert found.upstreams == {"git": {"command": "a"}}
    assert str(found.places["git"]) == f"'{place}' in 'mcp.json'"


@pytest.mark.parametrize("document", [[], 1, {}, {"a": 1}, {"a": {"b": 1}}, {"mcpServers": 1}])
def test_a_document_without_servers_is_refused(document: object) -> None:
    assert "'mcp.json'" in refused(document)


def test_a_section_without_servers_is_read() -> None:
    assert read_document({"mcpServers": {}}, "mcp.json") == Foreign({}, {}, ())


@pytest.mark.parametrize("entry", [{"type": "ws", "url": "ws://a"}, {"type": "stdio"}, {}, "text"])
def test_what_cannot_be_used_is_left_out_and_told(entry: object) -> None:
    found = read(("odd", entry), ("git", {"command": "a"}))

    assert list(found.upstreams) == ["git"]
    assert found.warnings[0].startswith("'mcpServers.odd' in 'mcp.json' is left out: ")


@pytest.mark.parametrize(
    ("theirs", "name"),
    [
        ("My Git", "my-git"),
        ("GitHub", "github"),
        ("a__b", "a-b"),
        ("io.github/x_y", "io-github-x_y"),
        ("-x_ ", "x"),
        ("Étude", "etude"),
        ("system", "system-upstream"),
        ("天気", "bc79d8-upstream"),
    ],
)
def test_a_name_that_cannot_be_one_here_becomes_one_and_that_is_told(theirs: str, name: str) -> None:
    found = read((theirs, {"command": "a"}))

    assert list(found.upstreams) == [name]
    assert found.warnings == (f"'mcpServers.{theirs}' in 'mcp.json' is the upstream '{name}' here.",)


@pytest.mark.parametrize(("first", "second"), [("My Git", "my-git"), ("a-b", "a_b"), ("Git", "GIT")])
def test_two_that_would_have_one_name_are_refused_and_both_are_named(first: str, second: str) -> None:
    said = refused({"mcpServers": {first: {"command": "a"}, second: {"command": "a"}}})

    assert f"'mcpServers.{first}'" in said
    assert f"'mcpServers.{second}' in 'mcp.json'" in said


def test_comments_and_trailing_commas_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.jsonc"
    text = """\ufeff// a comment
    {"mcpServers": { /* another,
      one */ "git": {"command": "a//b", "args": ["/*x*/", ",]", "\\\\", "q\\"//",],},},}"""
    file.write_text(text, encoding="utf-8")

    assert read_foreign(file).upstreams == {"git": {"command": "a//b", "args": ["/*x*/", ",]", "\\", 'q"//']}}


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"git": {"url": "https://a//b"}}}))

    assert read_foreign(file).upstreams == {"git": {"url": "https://a//b"}}


@pytest.mark.parametrize(("content", "said"), [(b'{"a', "is no JSON"), (b"\xff", "UTF-8"), (None, "cannot be read")])
def test_a_file_that_cannot_be_understood_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=said) as refusal:
        read_foreign(file)
    assert str(file) in str(refusal.value)


def test_a_long_text_without_an_end_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        parse_json('{"a": "' + '\\"' * 200_000, "mcp.json")
    with pytest.raises(ConfigError):
        parse_json("/*" * 200_000, "mcp.json")
