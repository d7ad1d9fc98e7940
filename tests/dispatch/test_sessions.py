import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from callyard import Call, Caller, Envelope, Limits, Session, ToolError, Yard, tool
from callyard.dispatch.sessions import Sessions
from callyard.testing import FakeClock

ME = "me"
YOU = "you"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def sessions(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Sessions:
    monkeypatch.setattr("callyard.dispatch.sessions.CLEANUP_S", 0.01)
    return Sessions(Limits(session_idle=60, sessions=5), clock=clock)


def note_end(session: Session, ended: list[str]) -> Session:
    session.on_end(lambda: ended.append(session.id))
    return session


def code_of(run: Callable[[], object]) -> tuple[str, dict[str, Any]]:
    with pytest.raises(ToolError) as caught:
        run()
    return caught.value.code, caught.value.details


def failure(answer: Envelope) -> tuple[str, dict[str, Any]]:
    assert answer.error is not None
    return answer.error.code, answer.error.details


def test_a_session_starts_with_an_id_nobody_can_guess(sessions: Sessions) -> None:
    one, other = sessions.start(ME), sessions.start(ME, kind="browser")

    assert one.id.startswith("s_")
    assert len(one.id) >= 14
    assert one.id != other.id
    assert (one.owner, one.kind, one.state, one.busy, one.last_code) == (ME, "", {}, 0, None)
    assert other.kind == "browser"
    assert len(sessions) == 2


def test_a_session_may_bring_its_own_id_once(sessions: Sessions) -> None:
    assert sessions.start(ME, session_id="mine").id == "mine"

    for owner in (ME, YOU):
        assert code_of(lambda owner=owner: sessions.start(owner, session_id="mine"))[0] == "state_error"
    assert sessions.ids(ME) == ["mine"]


@pytest.mark.parametrize("session_id", ["", " ", "a b", "a\n", "é", "x" * 129])
def test_an_id_that_cannot_be_logged_is_refused(sessions: Sessions, session_id: str) -> None:
    with pytest.raises(ValueError, match="id"):
        sessions.start(ME, session_id=session_id)

    assert len(sessions) == 0


def test_the_number_of_sessions_is_limited_and_a_failure_names_only_the_owners(sessions: Sessions) -> None:
    mine = [sessions.start(ME).id for _ in range(2)]
    for _ in range(3):
        sessions.start(YOU)

    code, details = code_of(lambda: sessions.start(ME))

    assert code == "overloaded"
    assert details["available_sessions"] == mine


async def test_a_session_that_ends_makes_room(sessions: Sessions) -> None:
    started = [sessions.start(ME) for _ in range(5)]
    await sessions.end(started[2].id)

    assert sessions.start(ME)


def test_without_an_id_and_without_a_session_there_is_none_or_a_failure(sessions: Sessions) -> None:
    sessions.start(YOU)

    assert sessions.resolve(None, ME, required=False) is None
    assert code_of(lambda: sessions.resolve(None, ME, required=True)) == ("not_running", {"available_sessions": []})


@pytest.mark.parametrize("required", [True, False])
def test_without_an_id_the_only_session_of_the_owner_is_used(sessions: Sessions, *, required: bool) -> None:
    mine = sessions.start(ME)
    sessions.start(YOU)
    sessions.start(YOU)

    assert sessions.resolve(None, ME, required=required) is mine


@pytest.mark.parametrize("required", [True, False])
def test_without_an_id_several_sessions_of_the_owner_are_an_invalid_input(
    sessions: Sessions, *, required: bool
) -> None:
    mine = [sessions.start(ME).id, sessions.start(ME).id]
    sessions.start(YOU)

    code, details = code_of(lambda: sessions.resolve(None, ME, required=required))

    assert code == "invalid_input"
    assert details["available_sessions"] == mine
    assert [issue["field"] for issue in details["issues"]] == ["session_id"]


@pytest.mark.parametrize("required", [True, False])
def test_a_session_with_an_id_is_used_if_it_is_the_owners(sessions: Sessions, *, required: bool) -> None:
    mine, other, theirs = sessions.start(ME), sessions.start(ME), sessions.start(YOU)

    assert sessions.resolve(mine.id, ME, required=required) is mine
    for wrong in (theirs.id, "s_nothing", ""):
        code, details = code_of(lambda wrong=wrong: sessions.resolve(wrong, ME, required=required))
        assert code == "not_running"
        assert details["available_sessions"] == [mine.id, other.id]


def test_somebody_elses_session_looks_exactly_like_none(sessions: Sessions) -> None:
    theirs = sessions.start(YOU, session_id="s_theirs")

    there = code_of(lambda: sessions.get(theirs.id, ME))
    nowhere = code_of(lambda: sessions.get("s_nowhere", ME))

    assert (there[0], set(there[1])) == (nowhere[0], set(nowhere[1]))
    assert sessions.of(ME) == []


async def test_a_session_idle_for_too_long_is_ended(sessions: Sessions, clock: FakeClock) -> None:
    old = sessions.start(ME)
    clock.advance(30)
    young = sessions.start(ME)
    clock.advance(29)
    await sessions.sweep()
    assert sessions.ids(ME) == [old.id, young.id]

    clock.advance(1)
    await sessions.sweep()
    assert sessions.ids(ME) == [young.id]


async def test_a_busy_session_is_not_idle(sessions: Sessions, clock: FakeClock) -> None:
    session = sessions.start(ME)
    sessions.enter(session)
    sessions.enter(session)
    clock.advance(1000)
    sessions.leave(session, None)
    await sessions.sweep()
    assert sessions.ids(ME) == [session.id]

    sessions.leave(session, "timeout")
    await sessions.sweep()
    assert sessions.ids(ME) == [session.id]
    assert (session.last_code, session.busy) == ("timeout", 0)

    clock.advance(60)
    await sessions.sweep()
    assert sessions.ids(ME) == []


def test_a_session_remembers_its_last_failure_and_not_its_last_success(sessions: Sessions) -> None:
    session = sessions.start(ME)
    for code in ("timeout", None):
        sessions.enter(session)
        sessions.leave(session, code)

    assert session.last_code == "timeout"


async def test_sessions_may_be_idle_for_ever(clock: FakeClock) -> None:
    sessions = Sessions(Limits(session_idle=0), clock=clock)
    session = sessions.start(ME)
    clock.advance(10**9)
    await sessions.sweep()
    await sessions.sweep_forever()

    assert sessions.ids(ME) == [session.id]


async def test_the_sweep_repeats_until_it_is_cancelled(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = Sessions(Limits(session_idle=60), clock=clock)
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.advance(61)
        if len(waits) == 2:
            sessions.start(ME)
        if len(waits) == 4:
            raise asyncio.CancelledError

    sessions.start(ME)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await sessions.sweep_forever()

    assert waits == [6, 6, 6, 6]
    assert len(sessions) == 0


async def test_ending_twice_is_ending_once(sessions: Sessions) -> None:
    session = sessions.start(ME)
    cleaned: list[int] = []
    session.on_end(lambda: cleaned.append(1))

    assert await asyncio.gather(sessions.end(session.id), sessions.end(session.id)) == [True, False]
    assert await sessions.end(session.id) is False
    assert await sessions.end("s_nothing") is False
    assert cleaned == [1]


async def test_a_session_is_gone_before_it_is_cleaned_up(sessions: Sessions) -> None:
    session = sessions.start(ME)
    seen: list[object] = []

    async def cleanup() -> None:
        seen.append((sessions.ids(ME), len(sessions), await sessions.end(session.id)))

    session.on_end(cleanup)
    await sessions.end(session.id)

    assert seen == [([], 0, False)]


async def test_clean_ups_run_in_reverse_even_if_some_fail_or_hang(
    sessions: Sessions, caplog: pytest.LogCaptureFixture
) -> None:
    session = sessions.start(ME)
    done: list[str] = []

    def plain() -> None:
        done.append("plain")

    async def awaited() -> None:
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        done.append("awaited")

    def broken() -> NoReturn:
        done.append("broken")
        raise RuntimeError

    async def hangs() -> None:
        done.append("hangs")
        await asyncio.Event().wait()

    for cleanup in (plain, broken, awaited, hangs, plain):
        session.on_end(cleanup)

    assert await sessions.end(session.id)
    assert done == ["plain", "hangs", "awaited", "broken", "plain"]
    assert caplog.text.count("cleanup_failed") == 2


async def test_a_clean_up_that_waits_for_what_it_cancelled_is_no_cancellation(sessions: Sessions) -> None:
    session = sessions.start(ME)
    done: list[str] = []
    background = asyncio.create_task(asyncio.Event().wait())

    async def cancel_and_wait() -> None:
        background.cancel()
        await background

    session.on_end(lambda: done.append("last"))
    session.on_end(cancel_and_wait)

    assert await sessions.end(session.id)
    assert done == ["last"]


async def test_clean_ups_run_to_the_end_even_if_the_ending_task_is_cancelled(sessions: Sessions) -> None:
    session = sessions.start(ME)
    done: list[str] = []
    inside = asyncio.Event()

    async def slow() -> None:
        inside.set()
        await asyncio.Event().wait()

    async def awaited() -> None:
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        done.append("awaited")

    session.on_end(awaited)
    session.on_end(slow)
    ending = asyncio.create_task(sessions.end(session.id))
    await inside.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    assert done == ["awaited"]
    assert len(sessions) == 0


async def test_all_sessions_are_ended_newest_first(sessions: Sessions) -> None:
    ended: list[str] = []
    ids = [note_end(sessions.start(owner), ended).id for owner in (ME, YOU, ME)]
    await sessions.end_all()
    await sessions.end_all()

    assert ended == ids[::-1]
    assert len(sessions) == 0


async def test_all_sessions_are_ended_even_if_the_ending_task_is_cancelled(sessions: Sessions) -> None:
    done: list[str] = []
    inside = asyncio.Event()

    async def slow() -> None:
        inside.set()
        await asyncio.Event().wait()

    for number in range(3):
        session = sessions.start(ME)
        session.on_end(lambda number=number: done.append(str(number)))
        if number == 1:
            session.on_end(slow)
    ending = asyncio.create_task(sessions.end_all())
    await inside.wait()
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending

    assert done == ["2", "1", "0"]
    assert len(sessions) == 0


async def test_a_session_that_is_started_while_all_are_ended_is_ended_too(sessions: Sessions) -> None:
    session = sessions.start(ME)
    session.on_end(lambda: sessions.start(ME) and None)
    await sessions.end_all()

    assert len(sessions) == 0


@tool
async def begin(call: Call, kind: str = "") -> str:
    """Start a session."""
    session = call.start_session(kind=kind)
    session.state["count"] = 0
    return session.id


@tool
async def count(session: Session) -> int:
    """Count up."""
    session.state["count"] += 1
    return session.state["count"]


@tool
async def peek(session: Session | None) -> str | None:
    """Look."""
    return session.id if session is not None else None


@tool
async def finish(call: Call, which: str | None = None) -> bool:
    """End a session."""
    return await call.end_session(which)


@tool(session="required")
async def close(call: Call) -> bool:
    """End the session of this call."""
    return await call.end_session()


TOOLS = [begin, count, peek, finish, close]


async def test_the_state_of_a_session_outlives_a_call() -> None:
    async with Yard(tools=TOOLS) as yard:
        started = await yard.call("begin")
        first = await yard.call("count")
        second = await yard.call("count", session=started.data)
        third = await yard.call("count", {"session_id": started.data})

    assert started.meta.session_id == first.meta.session_id == started.data
    assert [first.data, second.data, third.data] == [1, 2, 3]


async def test_a_session_is_seen_only_by_its_own_caller() -> None:
    me, other_scope, you = Caller(identity="me"), Caller(identity="me", scope="other"), Caller(identity="you")
    async with Yard(tools=TOOLS) as yard:
        mine = (await yard.call("begin", caller=me)).data
        for stranger in (other_scope, you):
            by_name = await yard.call("count", session=mine, caller=stranger)
            without = await yard.call("count", caller=stranger)
            ended = await yard.call("finish", {"which": mine}, caller=stranger)
            looked = await yard.call("peek", caller=stranger)
            assert failure(by_name) == ("not_running", {"session_id": mine, "available_sessions": []})
            assert failure(without) == ("not_running", {"available_sessions": []})
            assert (ended.data, looked.data) == (False, None)
        still = await yard.call("count", caller=me)

    assert still.data == 1


async def test_callers_whose_identity_and_scope_concatenate_alike_are_distinct() -> None:
    one, other = Caller(identity="a:b", scope="c"), Caller(identity="a", scope="b:c")
    async with Yard(tools=TOOLS) as yard:
        await yard.call("begin", caller=one)
        answer = await yard.call("count", caller=other)

    assert failure(answer)[0] == "not_running"


async def test_a_call_without_a_valid_session_answers_with_the_available_ones() -> None:
    async with Yard(tools=TOOLS) as yard:
        ids = [(await yard.call("begin")).data for _ in range(2)]
        ambiguous, optional = await yard.call("count"), await yard.call("peek")
        unknown = await yard.call("count", session="s_nothing")

    assert [failure(answer)[0] for answer in (ambiguous, optional, unknown)] == [
        "invalid_input",
        "invalid_input",
        "not_running",
    ]
    assert all(failure(answer)[1]["available_sessions"] == ids for answer in (ambiguous, optional, unknown))


async def test_a_call_may_end_its_own_session_and_those_of_its_caller() -> None:
    async with Yard(tools=TOOLS) as yard:
        first = (await yard.call("begin")).data
        closed = await yard.call("close")
        second = (await yard.call("begin")).data
        finished, again = await yard.call("finish", {"which": second}), await yard.call("finish", {"which": second})
        none = await yard.call("finish")
        gone = await yard.call("count", session=first)

    assert [closed.data, finished.data, again.data, none.data] == [True, True, False, False]
    assert failure(gone)[0] == "not_running"


async def test_a_call_that_starts_a_second_session_belongs_to_that_one() -> None:
    @tool
    async def move(call: Call, session: Session) -> list[object]:
        """Go on in a new session."""
        return [session.id, call.start_session().id]

    async with Yard(tools=[*TOOLS, move]) as yard:
        old = (await yard.call("begin")).data
        moved = await yard.call("move")
        busy = [session.busy for session in yard.sessions.of(Caller().owner)]

    assert moved.data[0] == old
    assert moved.meta.session_id == moved.data[1]
    assert busy == [0, 0]


async def test_a_failed_call_is_remembered_by_its_session() -> None:
    @tool
    async def fail(session: Session) -> int:
        """Fail."""
        raise ToolError("upstream_error", "…")

    async with Yard(tools=[*TOOLS, fail]) as yard:
        await yard.call("begin")
        await yard.call("fail")
        [session] = yard.sessions.of(Caller().owner)
        assert (session.last_code, session.busy) == ("upstream_error", 0)


async def test_a_yard_that_closes_ends_its_sessions() -> None:
    ended: list[str] = []
    async with Yard(tools=TOOLS) as yard:
        ids = [(await yard.call("begin")).data for _ in range(2)]
        for session in yard.sessions.all():
            note_end(session, ended)

    assert ended == ids[::-1]


async def test_a_yard_ends_sessions_that_are_idle(clock: FakeClock) -> None:
    ended = asyncio.Event()
    async with Yard(tools=TOOLS, clock=clock, limits=Limits(session_idle=0.5)) as yard:
        await yard.call("begin")
        yard.sessions.all()[0].on_end(ended.set)
        clock.advance(1)
        async with asyncio.timeout(60):
            await ended.wait()


async def test_a_clean_up_that_fails_does_not_stop_the_sweeping(clock: FakeClock) -> None:
    sessions = Sessions(Limits(session_idle=1), clock=clock)
    background = asyncio.create_task(asyncio.Event().wait())

    async def cancel_and_wait() -> None:
        background.cancel()
        await background

    first, second = sessions.start(ME), sessions.start(ME)
    first.on_end(cancel_and_wait)
    clock.advance(2)
    with suppress(asyncio.CancelledError):
        await sessions.sweep()

    assert second.id not in sessions.ids(ME)


async def test_sessions_of_an_owner_that_went_end_once_no_call_uses_them(clock: FakeClock, until: Any) -> None:
    sessions, ended = Sessions(Limits(), clock=clock), list[str]()
    idle, used, kept = sessions.start(ME), sessions.start(ME), sessions.start(ME, outlives_client=True)
    other = sessions.start(YOU)
    for session in (idle, used, kept, other):
        note_end(session, ended)
    sessions.enter(used)

    sessions.release(ME)
    sessions.release(ME)
    await until(lambda: ended)
    assert ended == [idle.id]
    late = note_end(sessions.start(ME), ended)
    await asyncio.to_thread(sessions.leave, used, None)
    for session in (late, kept, other):
        sessions.enter(session)
        sessions.leave(session, None)
    await until(lambda: len(ended) == 3)
    assert ended == [idle.id, used.id, late.id]
    assert sessions.all() == [kept, other]


async def test_the_end_of_all_sessions_waits_for_those_that_end_already(clock: FakeClock) -> None:
    sessions, went, may_end = Sessions(Limits(), clock=clock), asyncio.Event(), asyncio.Event()

    async def clean_up() -> None:
        went.set()
        await may_end.wait()
        ended.append("cleaned up")

    ended: list[str] = []
    sessions.start(ME).on_end(clean_up)
    sessions.release(ME)
    await went.wait()
    end_all = asyncio.create_task(sessions.end_all())
    sessions.start(YOU).on_end(may_end.set)
    await end_all

    assert ended == ["cleaned up"]
