"""Hints: where a server listens and how clients connect, in a few lines that can be copied."""

import json
import shlex

import pytest
from table_tests import every_row

from callyard.cli.terminal import Painted
from callyard.launch.hint import hint

URL = "http://127.0.0.1:8321/mcp"


def hint_lines(
    name: str = "bank",
    address: str = URL,
    *,
    transport: str = "http",
    keyed: bool = False,
    public_url: str | None = None,
) -> list[str]:
    command = ["callyard", "serve", "/my yards/bank.py"]
    lines = hint(name, address, transport=transport, command=command, keyed=keyed, public_url=public_url)
    return ["".join(part.text if isinstance(part, Painted) else part for part in line) for line in lines]


def way(lines: list[str], client: str) -> str:
    (found,) = [line.strip().removeprefix(client).strip() for line in lines if line.strip().startswith(client)]
    return found


def test_over_http_each_client_gets_the_address() -> None:
    lines = hint_lines()

    assert URL in lines[0]
    assert way(lines, "Claude Code") == f"claude mcp add --transport http bank {URL}"
    assert json.loads(way(lines, "Cursor")) == {"mcpServers": {"bank": {"url": URL}}}
    assert way(lines, "Any MCP client") == URL
    assert len(lines) < 12


def test_the_hint_for_claude_code_over_sse_names_the_transport() -> None:
    assert "--transport sse " in way(hint_lines(transport="sse"), "Claude Code")


def test_where_a_key_is_needed_the_header_is_shown() -> None:
    lines = hint_lines(keyed=True)

    assert shlex.split(way(lines, "Claude Code"))[-2:] == ["--header", "Authorization: Bearer KEY"]
    assert json.loads(way(lines, "Cursor"))["mcpServers"]["bank"]["headers"] == {"Authorization": "Bearer KEY"}


def test_over_stdio_each_client_gets_the_command() -> None:
    lines = hint_lines(address="stdio", transport="stdio")
    command = ["callyard", "serve", "/my yards/bank.py"]

    assert "stdin" in lines[0]
    assert "Ctrl-C" in lines[0]
    assert shlex.split(way(lines, "Claude Code")) == ["claude", "mcp", "add", "bank", "--", *command]
    assert json.loads(way(lines, "Cursor")) == {"mcpServers": {"bank": {"command": "callyard", "args": command[1:]}}}
    assert shlex.split(way(lines, "Any MCP client")) == command


@pytest.mark.parametrize("transport", ["http", "sse"])
def test_the_hint_for_a_unix_socket_is_for_a_proxy_and_for_clients_with_a_public_url(transport: str) -> None:
    lines = hint_lines(address="unix:/run/bank", transport=transport)
    known = hint_lines(address="unix:/run/bank", transport=transport, public_url="https://bank.example/")

    assert "unix:/run/bank" in lines[0]
    assert way(lines, "nginx") == "proxy_pass http://unix:/run/bank;"
    assert way(lines, "Check") == "curl --unix-socket /run/bank http://localhost/healthz"
    assert not [line for line in lines if "Claude" in line]
    assert way(known, "Any MCP client") == f"https://bank.example/{'mcp' if transport == 'http' else 'sse'}"


@every_row(
    ("address", "public_url", "base"),
    [
        (URL, None, "http://127.0.0.1:8321"),
        ("http://0.0.0.0:8321/mcp", None, "http://127.0.0.1:8321"),
        (URL, "https://bank.example/", "https://bank.example"),
        ("unix:/run/bank", "https://bank.example/", "https://bank.example"),
        ("unix:/run/bank", None, "http://localhost"),
    ],
)
def test_the_console_is_where_clients_reach_the_server(address: str, public_url: str | None, base: str) -> None:
    lines = hint(
        "bank",
        address,
        transport="http",
        command=["x"],
        keyed=False,
        public_url=public_url,
        console="{}/console#token=1".format,
    )

    assert f"{base}/console#token=1" in str([*lines][1])


def test_the_hint_for_another_transport_is_only_the_address() -> None:
    assert hint_lines(address="roof", transport="pigeon") == ["Serving 'bank' at roof until Ctrl-C."]


@every_row(
    ("address", "public_url", "given"),
    [
        ("http://0.0.0.0:8321/mcp", None, "http://127.0.0.1:8321/mcp"),
        ("https://[::]:8321/mcp", None, "https://[::1]:8321/mcp"),
        ("http://192.0.2.1:8321/mcp", None, "http://192.0.2.1:8321/mcp"),
        ("http://0.0.0.0:8321/mcp", "https://bank.example/tools/", "https://bank.example/tools/mcp"),
    ],
)
def test_clients_are_given_an_address_that_they_can_reach(address: str, public_url: str | None, given: str) -> None:
    lines = hint_lines(address=address, public_url=public_url)

    assert address in lines[0]
    assert way(lines, "Any MCP client") == given
    assert way(lines, "Claude Code").endswith(given)


@pytest.mark.parametrize(("name", "known_as"), [("my bank; rm", "my-bank-rm"), ("銀行", "yard"), ("a_b-c", "a_b-c")])
def test_a_client_gets_a_name_that_it_can_take(name: str, known_as: str) -> None:
    assert way(hint_lines(name), "Claude Code") == f"claude mcp add --transport http {known_as} {URL}"
