"""Adopting: which servers become upstreams, and what they are called then."""

from pathlib import Path
from typing import Any

from toolyard.client_configs.connect import Adopted, adopt, missing_variables, shown_way
from toolyard.client_configs.read import Server

NPX: dict[str, Any] = {"command": "npx", "args": ["x"]}
UVX: dict[str, Any] = {"command": "uvx", "args": ["x"]}


def server(name: str, table: dict[str, Any], client: str = "cursor") -> Server:
    return Server(client, Path("mcp.json"), name, name, table)


def adopted(*servers: Server, there: dict[str, Any] | None = None) -> list[Adopted]:
    return adopt(servers, there or {}, keeping="file", secrets=Path("/state/secrets"), folder=Path("/work"))


def names(*servers: Server, there: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    return [(one.name, one.status) for one in adopted(*servers, there=there)]


def test_the_same_server_under_the_same_name_is_there_already() -> None:
    assert names(server("git", NPX), server("git", NPX, "zed")) == [("git", "added"), ("git", "there already")]
    assert names(server("git", NPX), there={"git": NPX}) == [("git", "there already")]


def test_another_server_under_the_same_name_gets_that_of_its_client_too() -> None:
    found = names(server("git", NPX), server("git", UVX), server("git", {"url": "https://a"}), server("git", {"url": "https://b"}))

    assert found == [("git", "added"), ("git-cursor", "renamed"), ("git-cursor-2", "renamed"), ("git-cursor-3", "renamed")]


def test_what_was_renamed_before_is_known_again() -> None:
    assert names(server("git", UVX), there={"git": NPX, "git-cursor": UVX}) == [("git-cursor", "there already")]


def test_a_name_that_would_name_tools_alike_is_taken() -> None:
    assert names(server("a_b", NPX), there={"a-b": UVX}) == [("a_b-cursor", "renamed")]


def test_a_secret_that_was_put_elsewhere_does_not_make_it_another_server() -> None:
    with_secret = {"command": "npx", "args": ["--token", "hunter"], "env": {"A": "b"}}
    (first,) = adopted(server("git", with_secret))

    assert "hunter" not in str(first.table)
    assert names(server("git", with_secret), there={"git": first.table}) == [("git", "there already")]


def test_the_folder_of_the_file_itself_is_not_said() -> None:
    one, two = adopted(server("a", {**NPX, "cwd": "/work"}), server("b", {**NPX, "cwd": "/other"}))

    assert "cwd" not in one.table
    assert two.table["cwd"] == "/other"


def test_what_cannot_be_an_upstream_is_left_out_with_the_reason() -> None:
    (one,) = adopted(server("git", {})._replace(why="No."))

    assert (one.status, one.why, one.table) == ("left out", "No.", {})


def test_variables_that_are_not_set_are_named() -> None:
    table = {"command": "${A}", "args": ["${env:B}", "${C:-c}", "$${D}"], "env": {"E": "${E}"}, "in_flight": 5}

    assert missing_variables(table, {"E": "x"}) == ["A", "B"]


def test_how_a_server_is_reached_is_told_without_secrets() -> None:
    assert shown_way({"command": "npx", "args": ["--token", "hunter"]}) == "npx --token …"
    assert shown_way({"url": "https://a/?key=hunter"}) == "https://a/?key=…"
    assert shown_way({}) == ""
