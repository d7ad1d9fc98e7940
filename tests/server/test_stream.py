import asyncio
import json
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from table_tests import every_row

from callyard import Call, Yard, tool
from callyard._internal.pipes import LineSplitter
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE
from callyard.server import ServerContext
from callyard.server import stream as stream_module
from callyard.server.stream import MessageStream
from callyard.testing import FakeSink
from callyard.wire.messages import INTERNAL, INVALID_REQUEST, METHOD_NOT_FOUND, PARSE

if TYPE_CHECKING:
    from tests.server.conftest import Meet

FRAMES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent.parent / "corpus" / "frames.jsonl").read_text().splitlines()
]
OLD = "2025-11-25"
BATCHES = "2025-03-26"
PING = {"jsonrpc": "2.0", "id": "last", "method": "ping"}


@tool
async def hang() -> int:
    """Take for ever."""
    await asyncio.Event().wait()
    return 1


@tool
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


class Gate:
    """A tool that waits until it is let go, and counts who waits."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.entered: list[int] = []
        self.most = 0

    async def wait_here(self, number: int) -> int:
        """Wait until it is let go."""
        self.entered.append(number)
        self.most = max(self.most, len(self.entered))
        try:
            await self.opened.wait()
        finally:
            self.entered.remove(number)
        return number


@every_row("frame", FRAMES, ids=lambda frame: frame["name"])
async def test_a_wrong_line_is_answered_and_the_conversation_goes_on(meet: "Meet", frame: dict[str, Any]) -> None:
    async with meet(era=OLD) as peer:
        peer.say(frame["data"].encode("latin-1"))
        fault = await peer.hear()
        peer.say(PING)
        after = await peer.hear()

    assert fault["error"]["code"] == frame["code"]
    assert fault["id"] in {None, 1}
    assert after == {"jsonrpc": "2.0", "id": "last", "result": {}}
    assert peer.left() == []


@every_row("line", [b"", b"   ", b"\r", b"\t\r"])
async def test_a_blank_line_is_nothing(meet: "Meet", line: bytes) -> None:
    async with meet(era=OLD) as peer:
        peer.say(line)
        peer.say(PING)
        assert (await peer.hear())["id"] == "last"


async def test_a_wrong_request_is_answered_under_its_id(meet: "Meet") -> None:
    async with meet(era=OLD) as peer:
        peer.say({"id": "mine", "method": "ping"})
        assert (await peer.hear())["id"] == "mine"


def written(number: int | str | None, method: str, params: dict[str, Any]) -> bytes:
    """Return a request, or a notification if it has no number."""
    frame = {"jsonrpc": "2.0", "method": method, "params": params}
    return json.dumps(frame if number is None else {**frame, "id": number}).encode()


NOTED: list[dict[str, Any]] = [{}, {"requestId": 9}, {"requestId": None}]
LINES = st.one_of(
    st.sampled_from([frame["data"].encode("latin-1") for frame in FRAMES]),
    st.binary(max_size=60),
    st.builds(
        written,
        st.one_of(st.integers(0, 5), st.sampled_from(["a", "b"])),
        st.sampled_from(
            ["ping", "tools/list", "tools/call", "server/discover", "no/such", "initialize", "resources/read", ""]
        ),
        st.one_of(
            st.just({}),
            st.just({"name": "add", "arguments": {"a": 1}}),
            st.just({"name": "no_such"}),
            st.just({"protocolVersion": BATCHES}),
            st.dictionaries(
                st.sampled_from(["name", "uri", "arguments", "_meta", "cursor"]), st.one_of(st.none(), st.integers())
            ),
        ),
    ),
    st.builds(
        written,
        st.none(),
        st.sampled_from(["notifications/cancelled", "notifications/initialized", "notifications/other"]),
        st.sampled_from(NOTED),
    ),
    st.sampled_from([b'{"jsonrpc":"2.0","id":1,"result":{}}', b'{"jsonrpc":"2.0","id":"ask-1","result":{}}']),
)


def owed(line: bytes) -> bool | None:
    """Return whether a line must be answered, by plain JSON parsing; None where that depends on the version."""
    text = line.strip(b" \t\r\n")
    if not text:
        return False
    if text[:1] == b"[":
        return None
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return True
    if not isinstance(message, dict):
        return True
    said = cast("dict[str, Any]", message)
    is_note = isinstance(said.get("method"), str) and "id" not in said and isinstance(said.get("params", {}), dict)
    is_response = "method" not in said and said.get("id") is not None and ("result" in said or "error" in said)
    return said.get("jsonrpc") != "2.0" or not (is_note or is_response)


@given(st.lists(LINES.filter(lambda line: b"\n" not in line), max_size=12), st.lists(st.integers(0, 3000), max_size=8))
@example([b"\x0b"], []).via("what Python takes for space and JSON does not")
@settings(max_examples=150)
def test_every_line_that_owes_an_answer_gets_one_however_the_stream_was_cut(
    lines: list[bytes], places: list[int]
) -> None:
    lines = [line for line in lines if owed(line) is not None]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})

    answers = asyncio.run(converse([stream[start:flush] for start, flush in pairwise(edges)]))

    assert all("result" in answer or "error" in answer for answer in answers)
    assert len(answers) == sum(map(bool, map(owed, lines)))
    asked = Counter(str(message["id"]) for line in lines if (message := request_in(line)) is not None)
    said = Counter(str(answer["id"]) for answer in answers if answer["id"] is not None)
    assert set(said) <= set(asked)
    assert all(said[number] <= times for number, times in asked.items())


def request_in(line: bytes) -> dict[str, Any] | None:
    try:
        message: Any = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) and "id" in message else None


@contextmanager
def at_most(requests: int) -> Generator[None]:
    """Let each stream that is made meanwhile run so many requests at one time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream_module, "MAX_IN_FLIGHT", requests)
        yield


async def converse(pieces: list[bytes]) -> list[dict[str, Any]]:
    """Return what a server writes that is fed these pieces, and then let finish."""
    written: list[bytes] = []
    async with Yard(tools=[add]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        with at_most(3):
            stream = MessageStream(server, written.append, caller=ANYONE)
        lines = LineSplitter(stream.receive, limit=1_000_000, on_too_long=stream.refuse_length)
        for piece in pieces:
            lines.feed(piece)
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        lines.flush()
        await stream.drain(20)
        stream.close()
        server.close()
    return [json.loads(line) for line in written]


STEPS = st.one_of(
    st.tuples(st.just("call"), st.integers(0, 7), st.sampled_from(["add", "wait_here", "greet"])),
    st.tuples(st.just("cancel"), st.integers(0, 7), st.just("")),
    st.tuples(st.just("answer"), st.just(0), st.just("")),
    st.tuples(st.just("turns"), st.integers(1, 6), st.just("")),
)


class Chaos:
    """A client that does things in any order, and a server that must come out of it whole."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.answers: list[dict[str, Any]] = []
        self.questions: list[str] = []
        self.calls: Counter[int] = Counter()
        self.cancelled: set[int] = set()

    async def greet(self, call: Call) -> str:
        """Ask who it is."""
        return (await call.ask({"type": "object", "properties": {}}, "Who?")).get("name", "")

    def hear(self, message: bytes) -> None:
        """Note an answer or a question."""
        said = json.loads(message)
        if "method" not in said:
            self.answers.append(said)
        elif "id" in said:
            self.questions.append(said["id"])

    def take(self, stream: MessageStream, step: tuple[str, int, str]) -> None:
        """Take one step that needs no time."""
        kind, number, name = step
        if kind == "call":
            self.calls[number] += 1
            given: dict[str, dict[str, int]] = {"add": {"a": 1}, "wait_here": {"number": number}, "greet": {}}
            stream.receive(written(number, "tools/call", {"name": name, "arguments": given[name]}))
        elif kind == "cancel":
            self.cancelled.add(number)
            stream.receive(written(None, "notifications/cancelled", {"requestId": number}))
        elif self.questions:
            result: dict[str, Any] = {"action": "accept", "content": {}}
            stream.receive(json.dumps({"jsonrpc": "2.0", "id": self.questions.pop(0), "result": result}).encode())

    async def run(self, steps: list[tuple[str, int, str]]) -> None:
        """Take the steps, then let everything finish."""
        async with Yard(tools=[add, self.gate.wait_here, self.greet]) as yard:
            server = ServerContext(yard, Serving(), channel="test")
            with at_most(2):
                stream = MessageStream(server, self.hear, caller=ANYONE)
            stream.receive(
                written("hello", "initialize", {"protocolVersion": OLD, "capabilities": {"elicitation": {}}})
            )
            await stream.drain(20)
            for step in steps:
                for _ in range(step[1] if step[0] == "turns" else 0):
                    await asyncio.sleep(0)  # a turn of the loop, not a wait
                if step[0] != "turns":
                    self.take(stream, step)
            self.gate.opened.set()
            draining = asyncio.create_task(stream.drain(20))
            while not draining.done():
                self.take(stream, ("answer", 0, ""))
                await asyncio.sleep(0)  # a turn of the loop, not a wait
            assert stream.session.in_flight == {}
            assert not stream.session.client_requests
            assert not stream.is_full
            stream.close()
            server.close()


@given(st.lists(STEPS, max_size=25))
@settings(max_examples=150)
def test_every_request_is_answered_once_or_cancelled_for_any_client(steps: list[tuple[str, int, str]]) -> None:
    chaos = Chaos()
    asyncio.run(chaos.run(steps))

    assert chaos.gate.entered == []
    said = Counter(answer["id"] for answer in chaos.answers)
    assert said.pop("hello") == 1
    twins = said.pop(None, 0)
    assert sum(said.values()) + twins <= chaos.calls.total()
    for number, count in chaos.calls.items():
        assert said[number] <= count
        if number not in chaos.cancelled:
            assert said[number] >= 1
    if not chaos.cancelled:
        assert sum(said.values()) + twins == chaos.calls.total()


async def test_a_twin_of_a_request_in_flight_is_not_run(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here]) as peer:
        peer.call(7, "wait_here", {"number": 1})
        await peer.until(lambda: gate.entered == [1])
        peer.call(7, "wait_here", {"number": 2})
        twin = await peer.hear()
        gate.opened.set()
        first = await peer.hear()
        peer.call(7, "wait_here", {"number": 3})
        again = await peer.envelope()

    assert (twin["error"]["code"], twin["id"]) == (INVALID_REQUEST, None)
    assert (first["id"], first["result"]["structuredContent"]["data"]) == (7, 1)
    assert again["data"] == 3
    assert peer.sink.codes == [None, None]


async def test_ids_that_look_alike_are_not_the_same(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here]) as peer:
        peer.call(7, "wait_here", {"number": 1})
        peer.call("7", "wait_here", {"number": 2})
        await peer.until(lambda: gate.entered == [1, 2])
        gate.opened.set()
        answers = {
            answer["id"]: answer["result"]["structuredContent"]["data"]
            for answer in [await peer.hear(), await peer.hear()]
        }

    assert answers == {7: 1, "7": 2}


async def test_a_twin_that_waits_keeps_nobody_waiting(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=2) as peer:
        for request_id in (1, 2, 1, 1, 3):
            peer.call(request_id, "wait_here", {"number": request_id})
        await peer.until(lambda: gate.entered == [1, 2])
        peer.cancel(2)
        twins = [await peer.hear(), await peer.hear()]
        await peer.until(lambda: gate.entered[-1] == 3)
        gate.opened.set()
        answers = {answer["id"] for answer in [await peer.hear(), await peer.hear()]}

    assert [twin["error"]["code"] for twin in twins] == [INVALID_REQUEST] * 2
    assert answers == {1, 3}


async def test_a_cancelled_request_is_not_answered(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here]) as peer:
        peer.call(1, "wait_here", {"number": 1})
        await peer.until(lambda: bool(gate.entered))
        peer.cancel(1)
        await peer.until(lambda: bool(peer.sink.records))
        peer.say(PING)
        after = await peer.hear()

    assert after["id"] == "last"
    assert peer.left() == []
    assert peer.sink.codes == ["cancelled"]


async def test_a_cancel_right_behind_its_request_is_not_lost(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[hang, add], in_flight=1) as peer:
        for _ in range(3):
            peer.call(1, "hang")
            peer.cancel(1)
        peer.call(1, "add", {"a": 1})
        envelope = await peer.envelope()

    assert envelope["data"] == 2
    assert peer.left() == []


async def test_a_cancel_of_a_request_that_waits_its_turn_is_not_lost(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=2) as peer:
        for number in (1, 2, 3, 4):
            peer.call(number, "wait_here", {"number": number})
        await peer.until(lambda: gate.entered == [1, 2])
        peer.cancel(3)
        gate.opened.set()
        answers = [(await peer.hear())["id"] for _ in range(3)]
        peer.say(PING)
        answers.append((await peer.hear())["id"])

    assert sorted(answers[:3]) == [1, 2, 4]
    assert answers[3] == "last"
    assert peer.left() == []


@every_row(
    "params", [{"requestId": 99}, {"requestId": "x"}, {"requestId": None}, {}, {"requestId": [1]}, {"requestId": 1.5}]
)
async def test_a_cancel_that_makes_no_sense_does_no_harm(meet: "Meet", params: dict[str, Any]) -> None:
    async with meet(era=OLD) as peer:
        peer.note("cancelled", params)
        peer.say(PING)
        assert (await peer.hear())["id"] == "last"


async def test_no_more_is_worked_on_at_one_time_than_allowed(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=2) as peer:
        for number in range(30):
            peer.call(number, "wait_here", {"number": number})
        await peer.until(lambda: len(gate.entered) == 2)
        gate.opened.set()
        answers = [(await peer.hear())["id"] for _ in range(30)]

    assert sorted(answers) == list(range(30))
    assert gate.most == 2


async def test_more_than_can_wait_is_refused_and_not_lost(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.server.stream._MIN_QUEUE", 5)
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=1) as peer:
        for number in range(200):
            peer.call(number, "wait_here", {"number": number})
        await peer.until(lambda: bool(gate.entered))
        gate.opened.set()
        answers = [await peer.hear() for _ in range(200)]

    assert {answer["id"] for answer in answers} == set(range(200))
    refused = [answer for answer in answers if "error" in answer]
    assert len(peer.sink.records) == 200 - len(refused) > 1
    assert {answer["error"]["code"] for answer in refused} == {INTERNAL}
    assert gate.most == 1


async def test_responses_and_cancels_pass_those_who_wait(meet: "Meet") -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}

    @tool
    async def greet(call: Call) -> str:
        """Ask who it is."""
        return (await call.ask(schema, "Who?"))["name"]

    async with meet(era=OLD, tools=[greet, hang, add], in_flight=2) as peer:
        peer.call(1, "greet")
        peer.call(2, "hang")
        question = await peer.hear()
        for number in range(10, 20):
            peer.call(number, "add", {"a": number})
        peer.say({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {"name": "Ada"}}})
        peer.cancel(2)
        answers = [await peer.hear() for _ in range(11)]

    assert {answer["id"] for answer in answers} == {1, *range(10, 20)}
    assert next(answer for answer in answers if answer["id"] == 1)["result"]["structuredContent"]["data"] == "Ada"


async def test_a_line_says_when_it_is_full_and_when_there_is_room() -> None:
    gate = Gate()
    written: list[bytes] = []
    room: list[bool] = []
    async with Yard(tools=[gate.wait_here]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        with at_most(1):
            stream = MessageStream(server, written.append, caller=ANYONE)
        stream.on_room = lambda: room.append(stream.is_full)
        stream.receive(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}')
        await stream.drain(20)
        number = 0
        while not stream.is_full:
            params = {"name": "wait_here", "arguments": {"number": number}}
            stream.receive(
                json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode()
            )
            number += 1
        gate.opened.set()
        await stream.drain(20)
        stream.close()
        server.close()

    assert number > 1
    assert len(written) == number + 1
    assert room
    assert not any(room)
    assert gate.most == 1


async def test_a_full_line_is_read_again_when_the_client_is_asked_something() -> None:
    may_ask = asyncio.Event()
    room: list[bool] = []
    said: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    @tool
    async def greet(call: Call) -> str:
        """Ask who it is, later."""
        await may_ask.wait()
        return (await call.ask({"type": "object", "properties": {}}, "Who?")).get("name", "")

    async with Yard(tools=[greet, add]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        with at_most(1):
            stream = MessageStream(server, lambda message: said.put_nowait(json.loads(message)), caller=ANYONE)
        stream.on_room = lambda: room.append(stream.is_full)
        stream.receive(written(0, "initialize", {"protocolVersion": OLD, "capabilities": {"elicitation": {}}}))
        await said.get()
        stream.receive(written(1, "tools/call", {"name": "greet"}))
        number = 1
        while not stream.is_full:
            number += 1
            stream.receive(written(number, "tools/call", {"name": "add", "arguments": {"a": 1}}))
        may_ask.set()
        question = await said.get()
        assert room
        assert not any(room)
        stream.receive(
            json.dumps({"jsonrpc": "2.0", "id": question["id"], "result": {"action": "accept", "content": {}}}).encode()
        )
        answers = {(await said.get())["id"] for _ in range(number)}
        stream.close()
        server.close()

    assert answers == set(range(1, number + 1))


async def test_a_message_that_is_too_long_is_answered() -> None:
    written: list[bytes] = []
    async with Yard() as yard:
        server = ServerContext(yard, Serving(), channel="test")
        MessageStream(server, written.append, caller=ANYONE).refuse_length()
        server.close()

    answer = json.loads(written[0])
    assert (answer["id"], answer["error"]["code"]) == (None, INVALID_REQUEST)


async def test_a_batch_is_answered_with_a_batch(meet: "Meet") -> None:
    async with meet(era=BATCHES, tools=[add]) as peer:
        batch: list[Any] = [
            peer.request(1, "tools/call", {"name": "add", "arguments": {"a": 1}}),
            {"jsonrpc": "2.0", "method": "notifications/other"},
            peer.request(2, "no/such"),
            {"jsonrpc": "2.0", "id": "ask-9", "result": {}},
            {"id": 3, "method": "ping"},
            5,
            peer.request(4, "ping"),
        ]
        peer.say(batch)
        answers = await peer.hear()

    assert {answer["id"] for answer in answers} == {1, 2, 3, 4, None}
    assert len(answers) == 5
    codes = {answer["id"]: answer["error"]["code"] for answer in answers if "error" in answer}
    assert codes == {2: METHOD_NOT_FOUND, 3: INVALID_REQUEST, None: INVALID_REQUEST}


async def test_a_batch_that_owes_nothing_is_not_answered(meet: "Meet") -> None:
    async with meet(era=BATCHES) as peer:
        peer.say([{"jsonrpc": "2.0", "method": "notifications/other"}, {"jsonrpc": "2.0", "id": 1, "result": {}}])
        peer.say(PING)
        assert (await peer.hear())["id"] == "last"


async def test_a_batch_is_answered_without_what_was_cancelled(meet: "Meet") -> None:
    async with meet(era=BATCHES, tools=[hang, add]) as peer:
        peer.say(
            [
                peer.request(1, "tools/call", {"name": "hang"}),
                peer.request(2, "tools/call", {"name": "add", "arguments": {"a": 1}}),
            ]
        )
        await peer.until(lambda: len(peer.sink.records) == 1)
        peer.cancel(1)
        answers = await peer.hear()

    assert [answer["id"] for answer in answers] == [2]


async def test_a_batch_that_was_cancelled_as_a_whole_is_not_answered(meet: "Meet") -> None:
    async with meet(era=BATCHES, tools=[hang]) as peer:
        peer.say([peer.request(1, "tools/call", {"name": "hang"}), {"jsonrpc": "2.0", "method": "notifications/other"}])
        peer.cancel(1)
        peer.say(PING)
        assert (await peer.hear())["id"] == "last"


async def test_a_batch_with_a_twin_inside_is_answered(meet: "Meet") -> None:
    async with meet(era=BATCHES, in_flight=1) as peer:
        peer.say([peer.request(1, "ping"), peer.request(1, "ping"), peer.request(2, "ping")])
        answers = await peer.hear()

    assert len(answers) == 3


@pytest.mark.parametrize("era", ["2025-06-18", OLD])
async def test_later_versions_have_no_batches(meet: "Meet", era: str) -> None:
    async with meet(era=era) as peer:
        peer.say([peer.request(1, "ping")])
        refused = await peer.hear()

    assert (refused["id"], refused["error"]["code"]) == (None, INVALID_REQUEST)


async def test_a_request_before_the_end_is_answered(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=1) as peer:
        for number in range(5):
            peer.call(number, "wait_here", {"number": number})
        await peer.until(lambda: bool(gate.entered))
        closing = asyncio.ensure_future(peer.memory.close())
        await closing
        gate.opened.set()

    assert sorted(answer["id"] for answer in peer.left()) == [0, 1, 2, 3, 4]


async def test_a_call_that_takes_too_long_is_interrupted_at_the_end() -> None:
    sink = FakeSink()
    async with Yard(tools=[hang], sinks=[sink]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        stream = MessageStream(server, lambda _: None, caller=ANYONE)
        stream.receive(b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25"}}')
        stream.receive(b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"hang"}}')
        await stream.drain(0.01)
        stream.close()
        await stream.drain(20)
        server.close()

    assert sink.codes == ["cancelled"]


async def test_a_parse_fault_has_no_id(meet: "Meet") -> None:
    async with meet(era=OLD) as peer:
        peer.say(b'{"jsonrpc":"2.0","id":5,"method":"ping"')
        refused = await peer.hear()

    assert (refused["id"], refused["error"]["code"]) == (None, PARSE)


async def test_half_a_character_is_answered_to_the_request_that_has_it(meet: "Meet") -> None:
    bad = rb'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"m","arguments":{"a":"\ud800"}}}'
    async with meet(era="2025-03-26") as peer:
        peer.say(bad)
        alone = await peer.hear()
        peer.say(b"[" + bad + b',{"jsonrpc":"2.0","id":6,"method":"ping"}]')
        batch: Any = await peer.hear()

    assert (alone["id"], alone["error"]["code"]) == (5, INVALID_REQUEST)
    assert "half a character" in alone["error"]["message"]
    assert [(answer["id"], "result" in answer) for answer in batch] == [(5, False), (6, True)]


async def test_the_task_state_of_a_tool_never_reaches_another_call(meet: "Meet") -> None:
    word: ContextVar[str] = ContextVar("word", default="unsaid")
    kept: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()

    @tool
    async def remember(text: str) -> list[str]:
        """Keep a word, and return what was kept before."""
        task = asyncio.current_task()
        assert task is not None
        before = [word.get(), kept.get(task, "unsaid")]
        word.set(text)
        kept[task] = text
        return before

    async with meet(tools=[remember]) as peer:
        for number in range(3):
            peer.call(number, "remember", {"text": f"secret {number}"})
        heard = [(await peer.envelope())["data"] for _ in range(3)]

    assert heard == [["unsaid", "unsaid"]] * 3


async def test_a_twin_of_a_request_that_waits_is_not_run(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=1) as peer:
        for request_id in (1, 2, 2):
            peer.call(request_id, "wait_here", {"number": request_id})
        twin = await peer.hear()
        gate.opened.set()
        answers = [(await peer.hear())["id"], (await peer.hear())["id"]]
        assert (await peer.ask("ping"))["result"] == {}

    assert (twin["error"]["code"], twin["id"]) == (INVALID_REQUEST, None)
    assert answers == [1, 2]
    assert len(peer.sink.records) == 2


async def test_a_twin_of_a_request_in_flight_is_not_run_on_a_full_line_either(meet: "Meet") -> None:
    gate = Gate()
    async with meet(era=OLD, tools=[gate.wait_here], in_flight=1) as peer:
        peer.call(1, "wait_here", {"number": 1})
        peer.call(1, "wait_here", {"number": 1})
        twin = await peer.hear()
        gate.opened.set()
        assert (await peer.hear())["id"] == 1
        assert (await peer.ask("ping"))["result"] == {}

    assert (twin["error"]["code"], twin["id"]) == (INVALID_REQUEST, None)
    assert len(peer.sink.records) == 1


@pytest.mark.parametrize(
    "meta",
    [{}, {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}],
)
async def test_a_call_that_does_not_end_is_answered_when_it_is_given_up(meta: dict[str, Any]) -> None:
    gate = Gate()
    said: list[Any] = []
    async with Yard(tools=[gate.wait_here]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        line = MessageStream(server, lambda message: said.append(json.loads(message)), caller=ANYONE)
        line.receive(
            json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {"protocolVersion": OLD}}).encode()
        )
        await line.drain(20)
        params = {"name": "wait_here", "arguments": {"number": 1, "word": "ä"}, "_meta": meta}
        for text in (
            json.dumps(params),
            json.dumps(params, ensure_ascii=False),
        ):  # what is no ASCII is read another way
            line.receive(f'{{"jsonrpc":"2.0","id":{len(text)},"method":"tools/call","params":{text}}}'.encode())
        line.give_up()
        gate.opened.set()
        line.close()
        await line.drain(20)
        server.close()

    errors = [answer["result"]["structuredContent"]["error"] for answer in said[1:]]
    assert [(error["code"], error["blame"], error["tool_id"]) for error in errors] == [
        ("cancelled", "yard", "wait_here")
    ] * 2
    assert all(error["may_have_run"] for error in errors)
