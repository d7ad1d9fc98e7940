"""Several processes that serve one address: how they begin, die and end."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from callyard import Serving, Yard
from callyard.launch.serve import run_server
from callyard.launch.workers import Parent

SOURCE = """
import asyncio, os, sys
from contextlib import asynccontextmanager
from callyard import Call, Confirmation, Yard, serve, tool

@asynccontextmanager
async def lifespan(yard):
    if "--broken" in sys.argv or os.path.exists(os.path.dirname(sys.argv[1]) + "/away"):
        raise ValueError("The database is away.")
    if "--dying" in sys.argv:
        os._exit(3)
    os.write(2, b"opened %d\\n" % os.getpid())
    yield

@tool
async def nap(seconds: float) -> str:
    "Take a nap."
    os.write(2, b"napping\\n")
    await asyncio.sleep(seconds)  # what the tool is there for
    return "rested"

SURE = Confirmation("Sure?", {"type": "object", "properties": {"yes": {"type": "boolean"}}}, "sure")

@tool(operation="command", confirmation=SURE)
async def wipe(call: Call) -> bool:
    "Wipe it."
    return call.confirmation["yes"]

yard = Yard(tools=[nap, wipe], lifespan=lifespan)
settings = dict(transport="http", socket=sys.argv[1], workers=2, stateless=True, shutdown_seconds=0.4)
serve(yard, **settings)
"""
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return where the server listens."""
    return tmp_path / "yard.sock"


async def opened(running: Any) -> int:
    """Return the process that opened its yard next."""
    return int((await running.said(b"opened")).split()[1])


async def send(
    path: Path, name: str, arguments: dict[str, Any], **params: Any
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(path))
    given: dict[str, Any] = {"name": name, "arguments": arguments, "_meta": META, **params}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": given})
    lines = [
        "POST /mcp HTTP/1.1",
        "Host: localhost",
        "Content-Type: application/json",
        "MCP-Protocol-Version: 2026-07-28",
        "Mcp-Method: tools/call",
        f"Mcp-Name: {name}",
        "Connection: close",
        f"Content-Length: {len(body)}",
    ]
    writer.write("\r\n".join([*lines, "", body]).encode())
    return reader, writer


async def receive(wire: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> Any:
    async with asyncio.timeout(60):
        raw = await wire[0].read()
    wire[1].close()
    return json.loads(raw.partition(b"\r\n\r\n")[2])["result"]


def is_there(path: Path) -> bool:
    return path.exists()


def lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
async def test_they_end_with_the_program_and_answer_what_they_work_on(
    program: Any, path: Path, number: int, status: int
) -> None:
    running = await program(SOURCE, str(path))
    workers = {await opened(running), await opened(running)}
    wires = [await send(path, "nap", {"seconds": 60 if slow else 0.1}) for slow in (True, False)]
    for _ in wires:
        await running.said(b"napping")

    running.process.send_signal(number)
    slow, quick = [(await receive(wire))["structuredContent"] for wire in wires]
    ended, _, err = await running.end()

    assert len(workers | {running.process.pid}) == 3
    assert slow["error"]["code"] == "cancelled"
    assert quick["data"] == "rested"
    assert ended == status
    assert b"Traceback" not in err
    assert b"worker_died" not in err
    assert not any(lives(worker) for worker in workers)
    assert not is_there(path)


async def test_ctrl_c_at_a_terminal_reaches_all_of_them_and_interrupts_nothing_twice(program: Any, path: Path) -> None:
    running = await program(SOURCE, str(path))
    workers = [await opened(running), await opened(running)]
    wire = await send(path, "nap", {"seconds": 0.1})
    await running.said(b"napping")

    for process in (*workers, running.process.pid):
        os.kill(process, signal.SIGINT)
    answer = await receive(wire)
    status, _, err = await running.end()

    assert answer["structuredContent"]["data"] == "rested"
    assert (status, b"Traceback" in err) == (130, False)


@pytest.mark.parametrize("kept", [True, False])
async def test_one_that_is_killed_is_started_anew_and_knows_what_others_sealed(
    program: Any,
    path: Path,
    kept: bool,  # noqa: FBT001 - whether there is a place for the secret
) -> None:
    state = path.with_name("state") if kept else path.with_name("program.py") / "state"
    running = await program(SOURCE, str(path), CALLYARD_STATE_DIR=str(state))
    workers = [await opened(running), await opened(running)]
    asked = await receive(await send(path, "wipe", {}))

    for worker in workers:
        os.kill(worker, signal.SIGKILL)
        reported = await running.said(b"worker_died")
        assert reported.split()[-2:] == [b"pid=%d" % worker, b"status=-9"]
        assert await opened(running) not in workers
    answered = {"sure": {"action": "accept", "content": {"yes": True}}}
    answer = await receive(await send(path, "wipe", {}, requestState=asked["requestState"], inputResponses=answered))
    running.process.send_signal(signal.SIGTERM)

    assert answer["structuredContent"]["data"] is True
    assert ((await running.end())[0], is_there(state / "secret")) == (0, kept)


async def test_they_end_when_the_program_is_killed(program: Any, path: Path, until: Any) -> None:
    running = await program(SOURCE, str(path))
    workers = [await opened(running), await opened(running)]
    await receive(await send(path, "nap", {"seconds": 0}))

    running.process.kill()
    await running.end()
    await until(lambda: not any(lives(worker) for worker in workers))

    assert is_there(path)  # nobody was left to remove it, and the next server does


async def test_a_yard_that_cannot_be_opened_is_said_in_one_sentence(program: Any, path: Path) -> None:
    running = await program(SOURCE, str(path), "--broken")

    status, _, err = await running.end()

    assert status == 2
    assert err.decode().splitlines() == [
        (
            f"callyard: The yard 'yard' cannot be opened: ValueError in '{path.with_name('program.py')}', line 9: "
            "The database is away."
        )
    ]
    assert not is_there(path)


async def test_one_that_can_no_longer_open_the_yard_says_why_and_is_tried_again(program: Any, path: Path) -> None:
    running = await program(SOURCE, str(path))
    worker, other = await opened(running), await opened(running)
    path.with_name("away").touch()
    os.kill(worker, signal.SIGKILL)
    await running.said(b"worker_died")
    reported = await running.said(b"worker_failed")
    await running.said(b"worker_died")
    path.with_name("away").unlink()

    assert await opened(running) not in {worker, other}
    running.process.send_signal(signal.SIGTERM)
    assert (await running.end())[0] == 0
    assert b"The database is away" in reported


async def test_no_worker_is_restarted_after_sigterm(program: Any, path: Path) -> None:
    running = await program(SOURCE, str(path), "--dying")
    await running.said(b"worker_died")

    running.process.send_signal(signal.SIGTERM)
    status, _, err = await running.end()

    assert status == 0
    assert b"worker_died" not in err
    assert not is_there(path)


async def test_if_all_of_them_die_at_once_the_program_gives_up(program: Any, path: Path) -> None:
    running = await program(SOURCE, str(path), "--dying")

    status, _, err = await running.end()

    assert status == 2
    assert b"callyard: The workers end right after they start; the log says why." in err
    assert b"serving" not in err
    assert 1 < err.count(b"worker_died") < 10
    assert not is_there(path)


def test_only_http_has_several() -> None:
    with pytest.raises(ValueError, match=r"^Only 'http' can be served by several workers, not 'stdio'.$"):
        run_server(Yard(), Serving(transport="stdio", workers=2, stateless=True))


async def test_a_worker_tells_its_parent_what_became_of_the_yard_and_ends_with_it() -> None:
    alive, reported = os.pipe(), os.pipe()
    parent = Parent(alive[0], reported[1])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    try:
        parent.report_failure("It is\naway.")
        knew = parent.is_informed
        parent.report_opened()
        parent.terminate_with()
        os.close(alive[1])
        async with asyncio.timeout(60):
            await ended.wait()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)

    assert (knew, parent.is_informed, os.read(reported[0], 100)) == (False, True, b"It is away.\n\n")
    os.close(reported[0])
    parent.report_opened()  # nobody is there to hear it
    os.close(reported[1])
    os.close(alive[0])
