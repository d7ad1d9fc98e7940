"""Promises of the dispatcher for any input: it answers, records once, leaks nothing and leaves nothing behind."""

import asyncio
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from table_tests import every_row

from callyard import Call, Caller, Envelope, Profile, Session, ToolError, Toolset, Yard, tool
from callyard.model.errors import CODES, CodeName
from callyard.testing import FakeSink

LEAK = "hunter2 /home/ada/path.py"
FAULTS: list[type[BaseException]] = [
    ValueError,
    KeyError,
    OSError,
    RecursionError,
    MemoryError,
    StopIteration,
    StopAsyncIteration,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
    BaseException,
    AssertionError,
    UnicodeError,
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
anything: st.SearchStrategy[Any] = st.one_of(
    json_values,
    st.binary(max_size=20),
    st.builds(object),
    st.just(datetime(2026, 11, 16, tzinfo=UTC)),
    st.just({1, 2}),
    st.just(2**200),
    st.just(1j),
    st.just(iter([1])),
    st.just(lambda: 1),
    st.deferred(lambda: st.builds(_cycle)),
    st.builds(Envelope.ok, json_values),
    st.just(Envelope(success=True, error=Envelope.fail(ToolError("timeout", "x")).error)),
    st.just("x" * 60_000),
)
behaviours: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("return"), anything),
    st.tuples(st.just("raise"), st.sampled_from(FAULTS)),
    st.tuples(st.just("fail"), st.tuples(st.sampled_from(list(CODES)), anything)),
    st.tuples(st.just("hang"), st.booleans()),
    st.tuples(st.just("recurse"), st.integers(0, 9)),
    st.tuples(st.just("invoke"), st.sampled_from(["behave", "behave_in_a_thread", "no_such_tool", ""])),
)


def _cycle() -> dict[str, Any]:
    endless: dict[str, Any] = {}
    endless["again"] = endless
    return endless


def do(kind: str, detail: Any) -> Any:
    """Do what both a coroutine and a thread can do."""
    if kind == "raise":
        raise detail(LEAK)
    if kind == "fail":
        code, extra = detail
        raise ToolError(code, "No.", extra=extra, data=extra)
    if kind == "recurse" and detail:
        return do(kind, detail - 1)
    return detail


class Misbehaving:
    """Two tools that do what they are told."""

    def __init__(self, kind: str, detail: Any) -> None:
        self.plan = (kind, detail)

    @tool(timeout=0.005)
    async def behave(self, value: Any = None, *, call: Call) -> Any:
        """Do what was told."""
        kind, detail = self.plan
        if kind == "hang":
            try:
                await asyncio.Event().wait()
            finally:
                if detail:
                    raise ValueError(LEAK)
        if kind == "invoke":
            return await call.invoke(detail, {"value": value})
        return do(kind, detail)

    @tool(timeout=0.5)
    def behave_in_a_thread(self, value: Any = None, *, call: Call) -> Any:
        """Do what was told."""
        kind, detail = self.plan
        if kind == "invoke":
            return call.wait(call.invoke(detail, {"value": value}))
        return do(kind, detail)


names = st.sampled_from(["behave", "behave_in_a_thread", "gone", ""]) | st.text(max_size=10)


@given(
    behaviour=behaviours, name=names, arguments=st.dictionaries(st.text(max_size=6), anything, max_size=3) | anything
)
def test_the_dispatcher_always_answers_records_once_and_leaks_nothing(
    behaviour: tuple[str, Any], name: str, arguments: Any
) -> None:
    sink = FakeSink()

    async def main() -> Envelope:
        async with Yard(tools=[Misbehaving(*behaviour)], sinks=[sink]) as yard:
            dispatcher = yard.dispatcher
            answer = await yard.call(name, arguments)
        assert not dispatcher.in_flight
        return answer

    answer = asyncio.run(main())
    text = answer.to_json()
    assert Envelope.from_json(text).success is answer.success
    assert answer.success is (answer.error is None)
    assert [record.call_id for record in sink.records].count(answer.meta.call_id) == 1
    assert len({record.call_id for record in sink.records}) == len(sink.records)
    assert b"hunter2" not in text
    assert b"Traceback" not in text
    assert b".py" not in text


patterns = st.sampled_from(["*", "a*", "*_b", "a_b", "b_?", "c_*"])
toolsets = st.builds(
    Toolset,
    name=st.sampled_from(["some", "more"]),
    names=st.lists(patterns, max_size=2).map(tuple),
    deny=st.lists(patterns, max_size=2).map(tuple),
    tags=st.lists(st.sampled_from(["x", "y"]), max_size=1).map(tuple),
    operations=st.lists(st.sampled_from(["query", "destroy"]), max_size=1).map(tuple),
)


@given(chosen=st.lists(toolsets, max_size=2, unique_by=lambda toolset: toolset.name))
@settings(max_examples=100)
def test_a_hidden_tool_is_neither_listed_nor_called_nor_hinted_at(chosen: list[Toolset]) -> None:
    def make(name: str, operation: Any, tag: str) -> Callable[..., Any]:
        async def run(call: Call) -> str:
            """Run."""
            return call.spec.name

        run.__name__ = name
        return tool(operation=operation, tags=(tag,))(run)

    tools = [
        make("a_b", "query", "x"),
        make("a_c", "destroy", "x"),
        make("b_c", "query", "y"),
        make("c_b", "destroy", "y"),
    ]
    profile = Profile(name="some", toolsets=tuple(chosen))

    async def main() -> None:
        async with Yard(tools=tools) as yard:
            specs = yard.registry.visible(yard.profile)
            allowed = {spec.name for spec in specs if profile.allows(spec)}
            assert {spec.name for spec in yard.list(profile)} == {
                spec.name for spec in specs if profile.allows(spec) and spec.source == "yard"
            }
            for name in ("a_b", "a_c", "b_c", "c_b", "a_d"):
                answer = await yard.call(name, caller=Caller(profile=profile))
                assert answer.success is (name in allowed)
                if answer.error is not None:
                    assert answer.error.code == "tool_not_found"
                    assert set(answer.error.details["similar"]) <= allowed

    asyncio.run(main())


async def test_thousands_of_calls_cancelled_at_random_leave_nothing_behind() -> None:  # noqa: C901 - six tools in one test
    luck = random.Random(7)  # noqa: S311 - chance, not a secret

    async def begin(call: Call) -> str:
        """Begin."""
        session = call.start_session()
        return session.id

    async def come_and_go(call: Call) -> bool:
        """Start a session and end it."""
        session = call.start_session()
        try:
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        finally:
            ended = await call.end_session(session.id)
        return ended

    @tool(serial=True)
    async def work(session_id: str, steps: int, session: Session, call: Call) -> int:
        """Work in turns."""
        for step in range(steps):
            await asyncio.sleep(0)  # a turn of the loop, not a wait
            call.progress(step + 1, steps)
        return steps

    @tool(serial=True, timeout=0.02)
    def block(call: Call) -> int:
        """Block in turns, in a thread."""
        for _ in range(100):
            if call.cancelled:
                break
        return 1

    async def nest(session_id: str, steps: int, call: Call) -> int:
        """Call another."""
        return (await call.invoke("work", {"steps": steps, "session_id": session_id})).data or 0

    @tool(timeout=0.01)
    async def linger() -> None:
        """Wait for the deadline."""
        await asyncio.Event().wait()

    sink = FakeSink()
    async with Yard(tools=[begin, come_and_go, work, block, nest, linger], sinks=[sink]) as yard:
        mine = {"session_id": (await yard.call("begin")).data}
        before = asyncio.all_tasks()
        requests: list[tuple[str, dict[str, Any]]] = [
            ("work", {"steps": 1, **mine}),
            ("nest", {"steps": 2, **mine}),
            ("come_and_go", {}),
            ("block", {}),
            ("linger", {}),
        ]
        tasks = [asyncio.create_task(yard.call(*luck.choice(requests))) for _ in range(4_000)]
        for _ in range(20):
            await asyncio.sleep(0)  # a turn of the loop, not a wait
            for task in luck.sample(tasks, 100):
                task.cancel()
        answers = await asyncio.gather(*tasks, return_exceptions=True)
        while yard.abandoned_threads > 0:  # noqa: ASYNC110 - a thread tells nobody else that it ended
            await asyncio.sleep(0)  # a turn of the loop, not a wait

        assert yard.abandoned_threads == 0
        assert asyncio.all_tasks() == before
        assert yard.calls_in_flight == 0
        assert len(yard.dispatcher.admission.serial_locks) == 0
        assert [session.busy for session in yard.sessions.of(Caller().owner)] == [0]
        assert all(isinstance(answer, Envelope | asyncio.CancelledError) for answer in answers)
        known = {answer.meta.call_id for answer in answers if isinstance(answer, Envelope)}
        recorded = [record.call_id for record in sink.records]
        assert known <= set(recorded)
        assert len(set(recorded)) == len(recorded)
    assert len(yard.sessions) == 0


@every_row("code", list(CODES))
def test_an_envelope_never_promises_a_retry_of_what_may_have_run(code: CodeName) -> None:
    for ran in (False, True, None):
        failure = Envelope.fail(ToolError(code, "x", may_have_run=ran), may_have_run=True).error
        assert failure is not None
        assert not (failure.retryable and failure.may_have_run)
