"""Detached calls by themselves: what no client can bring about."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest

from callyard.dispatch.call import AskClient, Caller, CallRequest, Channel
from callyard.dispatch.detached import DetachedCalls, Questions
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope
from callyard.state.memory import MemoryStore
from callyard.testing import FakeClock

ASKS = {"who": ClientRequest.person("Who?", {"type": "object", "properties": {}})}
REQUEST = CallRequest("greet", {"a": 1})


class FakeClient:
    """A client without a connection."""

    def __init__(self, **responses: Any) -> None:
        self.input_responses: dict[str, Any] = responses
        self.meta: Mapping[str, Any] = {}
        self.continued = 0

    def channel(self, ask: AskClient) -> Channel:
        return Channel(ask=ask)

    def check_asks(self, asks: Mapping[str, ClientRequest]) -> None:
        """Everything can be asked."""

    def continue_as(self, other: Any) -> None:
        self.continued += 1


Start = Callable[[Channel], Awaitable[Envelope]]


def calls_of(start: Start) -> DetachedCalls:
    return DetachedCalls(lambda _, channel: start(channel), 60, store=MemoryStore())


async def asking(channel: Channel) -> Envelope:
    assert channel.ask is not None
    return Envelope.ok(dict(await channel.ask(ASKS, False)))  # noqa: FBT003 - the type is `AskClient`


async def test_a_call_asks_and_goes_on_with_the_answers_of_a_later_request() -> None:
    calls, client = calls_of(asking), FakeClient()
    call = calls.start(REQUEST, client)
    questions = await call.outcome()
    assert isinstance(questions, Questions)
    assert (questions.asks, questions.fingerprint, len(calls)) == (ASKS, REQUEST.fingerprint(), 1)
    assert calls.get(questions.key) is call
    call.resume(FakeClient(who="Ada"))
    answer = await call.outcome()

    assert isinstance(answer, Envelope)
    assert (answer.data, len(calls), client.continued) == ({"who": "Ada"}, 0, 1)


async def test_a_call_that_fails_unexpectedly_fails_its_request() -> None:
    async def start(_: Channel) -> Envelope:
        raise LookupError("a defect")

    with pytest.raises(LookupError, match="a defect"):
        await calls_of(start).start(REQUEST, FakeClient()).outcome()


async def test_a_call_that_is_cancelled_from_inside_cancels_its_request() -> None:
    async def start(_: Channel) -> Envelope:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await calls_of(start).start(REQUEST, FakeClient()).outcome()


async def test_a_call_that_is_over_at_once_is_answered() -> None:
    def start(_: Channel) -> Awaitable[Envelope]:
        done: asyncio.Future[Envelope] = asyncio.get_running_loop().create_future()
        done.set_result(Envelope.ok(1))
        return done

    outcome = await calls_of(start).start(REQUEST, FakeClient()).outcome()
    assert isinstance(outcome, Envelope)
    assert outcome.data == 1


@pytest.mark.parametrize("fails", [True, False])
async def test_a_call_that_ends_when_nobody_waits_does_no_harm(fails: bool) -> None:  # noqa: FBT001 - a parameter of the test
    ended = asyncio.Event()

    async def start(channel: Channel) -> Envelope:
        try:
            return await asking(channel)
        except asyncio.CancelledError:
            ended.set()
            if fails:
                raise LookupError("a defect") from None
            return Envelope.ok(1)

    calls = calls_of(start)
    assert isinstance(await calls.start(REQUEST, FakeClient()).outcome(), Questions)
    calls.cancel_all()
    await ended.wait()
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    assert len(calls) == 0


async def test_an_answer_counts_once_for_as_long_as_a_call_may_wait() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    here, there = (DetachedCalls(lambda _, channel: asking(channel), 60, store=store) for _ in range(2))

    assert [await here.mark_answered("a"), await there.mark_answered("a"), await there.mark_answered("b")] == [True, False, True]
    clock.advance(61)
    assert await store.keys("answered/") == []


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (CallRequest("greet", msgspec.Raw(b'{"b":[2,3],"a":1}')), True),
        (CallRequest("greet", {"a": 1, "b": [2, 3]}, Caller(client="another program")), True),
        (CallRequest("greet", {"a": 1, "b": [3, 2]}), False),
        (CallRequest("greet", {"a": "1", "b": [2, 3]}), False),
        (CallRequest("greets", {"a": 1, "b": [2, 3]}), False),
        (CallRequest("greet", {"a": 1, "b": [2, 3]}, kind="prompt"), False),
        (CallRequest("greet", {"a": 1, "b": [2, 3]}, Caller(identity="bob")), False),
        (CallRequest("greet", {"a": 1, "b": [2, 3]}, Caller(scope="other")), False),
        (CallRequest("greet", msgspec.Raw(b"no json")), False),
    ],
)
def test_the_fingerprint_of_a_request_is_that_of_its_kind_name_arguments_and_owner(other: CallRequest, *, same: bool) -> None:
    request = CallRequest("greet", {"a": 1, "b": [2, 3]})
    assert (other.fingerprint() == request.fingerprint()) is same
