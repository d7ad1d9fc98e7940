"""The stdio transport as a client sees it: a process, its pipes, and how it ends."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

SOURCE = """
import asyncio, os, subprocess, sys, threading
print("printed before it is served")
from callyard import Call, Yard, tool, serve

@tool
async def add(a: int, b: int) -> int:
    "Add two numbers."
    return a + b

@tool
async def nap(seconds: float) -> str:
    "Take a nap."
    print("napping", file=sys.stderr, flush=True)
    await asyncio.sleep(seconds)  # what the tool is there for
    return "rested"

@tool
def shout() -> str:
    "Print in every way there is."
    print("stray print")
    sys.__stdout__.write("through the original\\n")
    os.write(1, b"raw write\\n")
    subprocess.run([sys.executable, "-c", "print('of a child')"], check=True)
    thread = threading.Thread(target=print, args=("of a thread",))
    thread.start()
    thread.join()
    return "shouted"

@tool
def hear() -> str:
    "Read stdin, here and in a child."
    command = [sys.executable, "-c", "import sys; print(repr(sys.stdin.read()))"]
    child = subprocess.run(command, check=True, capture_output=True, text=True)
    return repr(sys.stdin.read()) + repr(os.read(0, 10)) + child.stdout.strip()

@tool
async def chatter(call: Call) -> str:
    "Say how far it is."
    call.progress(1, 2)
    return "said"

seconds = float(os.environ.get("SECONDS_LEFT", "5"))
serve(Yard(tools=[add, nap, shout, hear, chatter]), shutdown_seconds=seconds, message_bytes=100_000)
print("printed after the end", file=sys.stderr)
"""
HELLO: dict[str, Any] = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}
INITIALIZE: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": HELLO}
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


def call(number: object, name: str, arguments: object = None, **meta: object) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": arguments or {}, "_meta": {**META, **meta}}
    return {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}


def data(line: bytes | dict[str, Any]) -> Any:
    answer = line if isinstance(line, dict) else json.loads(line)
    return answer["result"]["structuredContent"]["data"]


def messages(out: bytes) -> list[dict[str, Any]]:
    """Return all messages of a stdout that must hold nothing else."""
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let programs buffer what they print, as they do for everybody else."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


async def test_both_eras_are_spoken_on_one_pipe(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(INITIALIZE, {"jsonrpc": "2.0", "method": "notifications/initialized"})
    greeting = json.loads(await running.line())
    await running.write(
        {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add", "arguments": {"a": 1, "b": 2}}}
    )
    older = await running.line()
    await running.write(call(2, "add", {"a": 3, "b": 4}))
    newer = await running.line()

    assert greeting["result"]["protocolVersion"] == "2025-11-25"
    assert (data(older), data(newer)) == (3, 7)


async def test_the_end_of_stdin_ends_it_with_0_when_everything_is_answered(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(*(call(number, "nap", {"seconds": 0.1}) for number in range(20)))
    status, out, err = await running.end()

    assert status == 0
    assert sorted(answer["id"] for answer in messages(out)) == list(range(20))
    assert {data(answer) for answer in messages(out)} == {"rested"}
    assert b"Traceback" not in err


async def test_at_the_end_of_stdin_what_takes_too_long_is_interrupted_and_answered(program: Any) -> None:
    running = await program(SOURCE, SECONDS_LEFT="0.1")

    await running.write(call(1, "nap", {"seconds": 60}))
    await running.said(b"napping")
    status, out, _ = await running.end()

    (answer,) = messages(out)
    error = answer["result"]["structuredContent"]["error"]
    assert (status, error["code"], error["blame"]) == (0, "cancelled", "yard")


async def test_sigterm_during_a_hundred_calls_answers_every_one(program: Any) -> None:
    running = await program(SOURCE, SECONDS_LEFT="0.4")
    await running.write(*(call(number, "nap", {"seconds": 0.1 if number % 2 else 60}) for number in range(100)))
    for _ in range(100):
        await running.said(b"napping")

    running.process.send_signal(signal.SIGTERM)
    answers: dict[int, Any] = {}
    while line := await running.line():
        answer = json.loads(line)
        answers[answer["id"]] = answer["result"]["structuredContent"]
    status, _, err = await running.end()

    assert sorted(answers) == list(range(100))
    assert {answers[number]["data"] for number in range(1, 100, 2)} == {"rested"}
    assert {(answers[number]["error"]["code"], answers[number]["error"]["blame"]) for number in range(0, 100, 2)} == {
        ("cancelled", "yard")
    }
    assert (status, b"Traceback" in err) == (0, False)


async def test_nothing_but_the_protocol_reaches_stdout(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(call(1, "shout"))
    line = await running.line()
    status, rest, err = await running.end()

    assert (data(line), rest, status) == ("shouted", b"", 0)
    for text in (
        b"printed before it is served",
        b"stray print",
        b"through the original",
        b"raw write",
        b"of a child",
        b"of a thread",
    ):
        assert text in err


async def test_a_tool_that_reads_stdin_finds_its_end(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(call(1, "hear"), call(2, "add", {"a": 1, "b": 1}))
    answers = {json.loads(line)["id"]: line for line in [await running.line(), await running.line()]}

    assert data(answers[1]) == "''b''''"
    assert data(answers[2]) == 2


async def test_stdin_may_be_a_file(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    path.write_text("\n".join(json.dumps(call(number, "add", {"a": number, "b": 1})) for number in range(1000)))
    with path.open() as file:
        running = await program(SOURCE, stdin=file)
        status, out, _ = await running.end()

    assert status == 0
    assert {answer["id"]: data(answer) for answer in messages(out)} == {number: number + 1 for number in range(1000)}


async def test_stdin_may_be_nothing(program: Any) -> None:
    running = await program(SOURCE, stdin=asyncio.subprocess.DEVNULL)

    status, out, err = await running.end()

    assert (status, out) == (0, b"")
    assert b"Traceback" not in err


async def test_a_wrong_line_is_answered_and_the_next_line_is_read(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(
        b"{",
        b"\xff",
        b"[" * 10_000,
        b'"' + b"x" * 200_000 + b'"',
        b"",
        b"[]",
        b'{"jsonrpc":"2.0","id":1}',
        call(3, "add", {"a": "\ud800", "b": 2}),
        call(2, "add", {"a": 1, "b": 2}),
    )
    status, out, _ = await running.end()
    answers = messages(out)

    codes = [answer["error"]["code"] for answer in answers if "error" in answer]
    assert codes == [-32700, -32700, -32700, -32600, -32600, -32600, -32600]
    assert [answer["id"] for answer in answers if "error" in answer][-2:] == [1, 3]
    assert [data(answer) for answer in answers if "result" in answer] == [3]
    assert status == 0


async def test_a_last_line_without_an_end_is_answered(program: Any) -> None:
    running = await program(SOURCE)

    running.process.stdin.write(json.dumps(call(1, "add", {"a": 1, "b": 2})).encode())
    _, out, _ = await running.end()

    assert [data(answer) for answer in messages(out)] == [3]


async def test_progress_comes_before_its_answer(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(call(1, "chatter", progressToken="t"))
    first, second = json.loads(await running.line()), json.loads(await running.line())

    assert (first["method"], first["params"]["progressToken"]) == ("notifications/progress", "t")
    assert (second["id"], data(second)) == (1, "said")


async def test_a_client_that_stops_reading_and_goes_leaves_no_process_behind(program: Any) -> None:
    running = await program(SOURCE, SECONDS_LEFT="0.1")
    await running.write(*(call("x" * 1000 + str(number), "add", {"a": 1, "b": 1}) for number in range(50)))
    running.process._transport.get_pipe_transport(1).close()
    running.process.stdin.close()

    async with asyncio.timeout(60):
        status = await running.process.wait()
    err = await running.process.stderr.read()

    assert status == 0
    assert b"Traceback" not in err


async def test_answers_wait_for_a_slow_reader_and_requests_for_answers(program: Any) -> None:
    running = await program(SOURCE)
    count = 2000
    requests = [call(f"{number:0>500}", "add", {"a": number, "b": 0}) for number in range(count)]
    writing = asyncio.create_task(running.write(*requests))
    first = await running.line()
    assert not writing.done()

    rest = [await running.line() for _ in range(count - 1)]
    await writing

    assert [data(line) for line in (first, *rest)] == list(range(count))


async def test_a_request_can_be_cancelled(program: Any) -> None:
    running = await program(SOURCE)
    await running.write(INITIALIZE, call(7, "nap", {"seconds": 60}))
    await running.said(b"napping")

    await running.write({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
    status, out, _ = await running.end()

    assert [answer["id"] for answer in messages(out)] == [0]
    assert status == 0


async def test_a_request_id_in_flight_is_not_run_twice(program: Any) -> None:
    running = await program(SOURCE)

    await running.write(call(7, "nap", {"seconds": 0.2}), call(7, "add", {"a": 1, "b": 2}))
    status, out, _ = await running.end()
    refused, answered = messages(out)

    assert (refused["id"], refused["error"]["code"]) == (None, -32600)
    assert (answered["id"], data(answered), status) == (7, "rested", 0)


async def test_a_yard_lives_on_when_its_client_is_gone(program: Any) -> None:
    running = await program(
        SOURCE.partition("serve(Yard")[0]
        + """
from callyard import Serving
from callyard.launch.serve import make_transport

async def main():
    async with Yard(tools=[add, nap]) as yard:
        own = asyncio.create_task(yard.call("nap", {"seconds": 0.5}))
        await make_transport(Serving(shutdown_seconds=0.1)).serve(yard)
        print((await own).data, (await yard.call("add", {"a": 1, "b": 2})).data, file=sys.stderr)

asyncio.run(main())
"""
    )
    await running.write(call(1, "nap", {"seconds": 60}))
    for _ in range(2):
        await running.said(b"napping")

    status, out, err = await running.end()

    assert messages(out)[0]["result"]["structuredContent"]["error"]["blame"] == "yard"
    assert (status, b"rested 3" in err) == (0, True)


async def test_the_end_of_stdin_is_noticed_while_too_much_waits(program: Any) -> None:
    fewer = "import callyard.server.stream\ncallyard.server.stream.MAX_IN_FLIGHT = 2\n"
    running = await program(fewer + SOURCE, SECONDS_LEFT="0.1")

    await running.write(*(call(number, "nap", {"seconds": 60}) for number in range(20)))
    status, out, _ = await running.end()
    errors = [answer["result"]["structuredContent"]["error"] for answer in messages(out)]

    assert (status, len(errors)) == (0, 20)
    assert {(error["code"], error["blame"]) for error in errors} == {("cancelled", "yard"), ("overloaded", "yard")}
