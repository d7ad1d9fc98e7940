import asyncio
import json
import re
import socket
import subprocess
import sys
from datetime import datetime
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from table_tests import every_row

from callyard import Call, Caller, Envelope, Limits, Profile, Serving, Session, ToolError, Yard, tool
from callyard.inject import Conversation
from callyard.launch.serve import serve_forever
from callyard.packs.system import System
from callyard.policy.settings import LoadSettings, Rule
from callyard.testing import FakeClock

ME, YOU = Caller(identity="me"), Caller(identity="you")
NAMES = [
    "describe_session",
    "get_server_info",
    "get_session_count",
    "get_settings",
    "list_packs",
    "list_sessions",
    "ping",
    "status",
]


@tool
async def begin(call: Call, kind: str = "browser") -> str:
    """Start a session."""
    return call.start_session(kind=kind).id


@tool
async def fail(session: Session | None) -> int:
    """Fail."""
    raise ToolError("upstream_error", "…", detail="hunter2")


def code(answer: Envelope) -> str:
    assert answer.error is not None
    return answer.error.code


def names(yard: Yard) -> list[str]:
    return [spec.name for spec in yard.list()]


def test_the_pack_is_off_unless_it_is_named() -> None:
    with pytest.raises(ValueError, match="system"):
        Yard(packs=["systm"])


async def test_a_yard_that_does_not_name_the_pack_has_none_of_its_tools() -> None:
    async with Yard(tools=[begin]) as yard:
        assert names(yard) == ["begin"]


async def test_a_yard_that_names_the_pack_has_its_tools_which_are_queries() -> None:
    async with Yard(packs=["system"]) as yard:
        assert names(yard) == sorted([*NAMES, "diagnose"])
        assert {(spec.operation.value, spec.source, spec.tags) for spec in yard.list()} == {
            ("query", "system", ("system",))
        }


@every_row("name", NAMES)
async def test_every_tool_of_the_pack_fits_its_output_schema(name: str) -> None:
    async with Yard(tools=[begin], packs=["system"]) as yard:
        await yard.call("begin")
        answer = await yard.call(name)

    assert answer.success
    assert answer.data is not None


async def test_ping_answers_with_the_time_and_the_name_of_the_yard() -> None:
    async with Yard("depot", packs=["system"]) as yard:
        answer = await yard.call("ping")

    assert (answer.data["status"], answer.data["server"]) == ("pong", "depot")
    assert datetime.fromisoformat(answer.data["timestamp"]).utcoffset() is not None


async def test_the_server_info_tells_name_and_version_and_the_uptime_where_asked() -> None:
    async with Yard("depot", version="7.1", packs=["system"]) as yard:
        short = await yard.call("get_server_info")
        long = await yard.call("get_server_info", {"include_uptime": True})

    facts = {"name": "depot", "version": "7.1", "transport": "library", "address": None, "port": None}
    assert short.data == facts
    assert {**long.data, "uptime_s": 0} == {**facts, "uptime_s": 0}
    assert long.data["uptime_s"] >= 0


async def test_the_server_info_tells_the_address_and_port_while_the_yard_is_served() -> None:
    yard = Yard(packs=["system"])
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0)
    served = asyncio.create_task(
        serve_forever(yard, serving, ready=lambda transport: listening.set_result(transport.info().address))
    )
    address = await listening
    port = urlsplit(address).port
    answer = await asyncio.to_thread(_call_over_http, port or 0)
    served.cancel()
    with pytest.raises(asyncio.CancelledError):
        await served

    assert (answer["transport"], answer["address"], answer["port"]) == ("http", address, port)
    assert yard.address is None


def _call_over_http(port: int, socket_path: str = "") -> dict[str, Any]:
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    body: dict[str, Any] = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "get_server_info", "_meta": meta},
    }
    headers = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
    headers |= {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "get_server_info"}
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    if socket_path:
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(socket_path)
    connection.request("POST", "/mcp", json.dumps(body), headers)
    answer = json.loads(connection.getresponse().read())
    connection.close()
    return answer["result"]["structuredContent"]["data"]


async def test_the_server_info_of_an_injected_yard_has_the_address_only_while_the_yard_is_served() -> None:
    yard = Yard(packs=["system"])
    async with yard:
        alone = (await Conversation(yard).call("get_server_info")).data
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0)
    served = asyncio.create_task(
        serve_forever(yard, serving, ready=lambda transport: listening.set_result(transport.info().address))
    )
    address = await listening
    beside = (await Conversation(yard).call("get_server_info")).data
    served.cancel()
    await asyncio.gather(served, return_exceptions=True)

    assert (alone["transport"], alone["address"], alone["port"]) == ("inject", None, None)
    assert (beside["transport"], beside["address"], beside["port"]) == ("inject", address, urlsplit(address).port)


@pytest.mark.parametrize(
    "flags", [["--port", "0", "--workers", "2", "--stateless"], ["--socket", "yard.sock"]], ids=["workers", "socket"]
)
def test_the_server_info_has_the_real_address_of_a_server(flags: list[str], tmp_path: Path) -> None:
    (tmp_path / "yard.py").write_text("from callyard import Yard\n\nyard = Yard(packs=['system'])\n")
    program = [sys.executable, "-m", "callyard", "serve", "yard.py", "--transport", "http", *flags]
    with subprocess.Popen(program, cwd=tmp_path, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own
        try:
            assert server.stderr is not None
            address = next(found[1] for line in server.stderr if (found := re.search(r" address=(\S+)", line)))
            port = urlsplit(address).port
            infos = [_call_over_http(port or 0, "" if port else str(tmp_path / "yard.sock")) for _ in range(4)]
        finally:
            server.terminate()

    assert {(info["transport"], info["address"], info["port"]) for info in infos} == {("http", address, port)}
    assert port or address.startswith("unix:")


def test_the_server_info_on_stdio_has_no_port(tmp_path: Path) -> None:
    (tmp_path / "yard.py").write_text("from callyard import Yard\n\nyard = Yard(packs=['system'])\n")
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "get_server_info", "arguments": {}, "_meta": meta},
    }
    program = [sys.executable, "-m", "callyard", "serve", "yard.py", "--quiet"]
    done = subprocess.run(  # noqa: S603 - the same
        program, cwd=tmp_path, input=json.dumps(message) + "\n", capture_output=True, text=True, check=True
    )
    info = json.loads(done.stdout)["result"]["structuredContent"]["data"]

    assert (info["transport"], info["address"], info["port"]) == ("stdio", "stdio", None)


async def test_only_the_callers_own_sessions_are_counted_listed_and_described() -> None:
    clock = FakeClock()
    async with Yard(tools=[begin, fail], packs=["system"], clock=clock) as yard:
        mine = (await yard.call("begin", caller=ME)).data
        theirs = [(await yard.call("begin", caller=YOU)).data for _ in range(2)]
        clock.advance(5)
        await yard.call("fail", caller=ME)
        clock.advance(2)
        counts = [(await yard.call("get_session_count", caller=caller)).data for caller in (ME, YOU, Caller(scope="x"))]
        listed = [(await yard.call("list_sessions", caller=caller)).data for caller in (ME, YOU)]
        described = (await yard.call("describe_session", caller=ME)).data
        named = (await yard.call("describe_session", session=theirs[1], caller=YOU)).data
        stranger = await yard.call("describe_session", session=theirs[0], caller=ME)
        several = await yard.call("describe_session", caller=YOU)
        none = await yard.call("describe_session", caller=Caller(scope="x"))

    assert counts == [1, 2, 0]
    assert [[session["session_id"] for session in sessions] for sessions in listed] == [[mine], theirs]
    [facts] = listed[0]
    assert facts == {
        "session_id": mine,
        "kind": "browser",
        "age_s": 7,
        "idle_s": 2,
        "busy": 0,
        "last_error": "upstream_error",
    }
    assert {**described, "idle_s": 2, "busy": 0} == facts
    assert described["busy"] == 1
    assert named["session_id"] == theirs[1]
    assert [code(stranger), code(several), code(none)] == ["not_running", "invalid_input", "not_running"]


async def test_the_settings_tell_every_value_and_where_it_came_from() -> None:
    async with Yard(packs=["system"], limits=Limits(depth=2), profile=Profile(name="mine"), allow_eval=True) as yard:
        answer = await yard.call("get_settings")

    assert answer.data["depth"] == {"value": 2, "from": "code"}
    assert answer.data["timeout"] == {"value": 120, "from": "default"}
    assert answer.data["name"] == {"value": "yard", "from": "default"}
    assert answer.data["profile"] == {"value": "mine", "from": "code"}
    assert answer.data["packs"] == {"value": ["system"], "from": "code"}
    assert answer.data["allow_eval"] == {"value": True, "from": "code"}
    assert answer.data["search.strategy"] == {"value": "lexical", "from": "default"}
    own = {"name", "version", "profile", "packs", "metatools", "search.strategy", "allow_eval", "shape", "state_dir"}
    assert set(answer.data) == {*own, *LoadSettings().as_dict(), *Limits().as_dict()}


async def test_the_status_tells_how_busy_the_yard_is() -> None:
    entered, leave = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> int:
        """Wait."""
        entered.set()
        await leave.wait()
        return 1

    async with Yard(tools=[wait], packs=["system"]) as yard:
        waiting = asyncio.create_task(yard.call("wait"))
        await entered.wait()
        answer = await yard.call("status")
        leave.set()
        await waiting

    assert answer.data["calls_in_flight"] == 2
    assert answer.data["abandoned_threads"] == 0
    assert answer.data["uptime_s"] >= 0
    assert datetime.fromisoformat(answer.data["started"]).utcoffset() is not None


async def test_the_status_shows_the_callers_own_last_error_and_only_its_code() -> None:
    async with Yard(tools=[begin, fail], packs=["system"]) as yard:
        before = (await yard.call("status", caller=ME)).data
        mine = (await yard.call("begin", caller=ME)).data
        await yard.call("no_such_tool", caller=ME)
        await yard.call("fail", caller=ME)
        await yard.call("no_such_tool", caller=YOU)
        after = (await yard.call("status", caller=ME)).data
        theirs = (await yard.call("status", caller=YOU)).data

    assert (before["last_error"], before["sessions"]) == (None, {})
    assert after["last_error"]["code"] == "upstream_error"
    assert set(after["last_error"]) == {"code", "at"}
    assert after["sessions"] == {mine: "upstream_error"}
    assert (theirs["last_error"]["code"], theirs["sessions"]) == ("tool_not_found", {})
    assert "hunter2" not in str((after, theirs))


async def test_the_number_of_remembered_errors_is_bounded() -> None:
    async with Yard(packs=["system"]) as yard:
        for number in range(1001):
            await yard.call("no_such_tool", caller=Caller(identity=str(number)))
        first = await yard.call("status", caller=Caller(identity="0"))
        last = await yard.call("status", caller=Caller(identity="1000"))

    assert first.data["last_error"] is None
    assert last.data["last_error"]["code"] == "tool_not_found"


async def test_the_pack_gives_way_to_a_tool_of_the_users_own(caplog: pytest.LogCaptureFixture) -> None:
    @tool(operation="query")
    async def ping() -> str:
        """Answer in the user's own way."""
        return "mine"

    async with Yard(tools=[ping], packs=["system"]) as yard:
        answer = await yard.call("ping")
        listed = names(yard)

    assert answer.data == "mine"
    assert listed == sorted([*NAMES, "diagnose"])
    assert [record.args for record in caplog.records if "gave_way" in record.msg] == [("ping", "system")]


async def test_only_operators_diagnose_and_only_a_served_yard() -> None:
    async def examine() -> list[dict[str, str]]:
        return [{"id": "a finding"}]

    yard = Yard(packs=["system"], rules=[Rule(decision="allow")])
    yard.configure(origins={}, limits={}, operators=["me"])
    async with yard:
        denied, too_early = [await yard.call("diagnose", caller=caller) for caller in (YOU, ME)]
        yard.examine = examine
        found = await yard.call("diagnose", caller=ME)
    async with Yard(packs=["system"]) as plain:
        nobody = await plain.call("diagnose", caller=ME)

    assert [code(one) for one in (denied, too_early, nobody)] == [
        *("permission_denied", "not_supported", "permission_denied"),
    ]
    assert found.data == [{"id": "a finding"}]


async def test_the_pack_records_nothing_once_the_yard_is_closed() -> None:
    yard = Yard(packs=["system"])
    for _ in range(2):
        async with yard:
            assert (await yard.call("status")).data["last_error"] is None
            await yard.call("no_such_tool")
        assert vars(yard)["_records"].sinks == []


async def test_the_pack_can_describe_another_yard() -> None:
    yard = Yard("outer", providers=[System(Yard("inner"))])
    async with yard:
        answer: Any = await yard.call("get_server_info")

    assert answer.data["name"] == "inner"
