"""The replies of a run by themselves: what no client can bring about."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from callyard.dispatch.call import Caller, CallRequest, Channel
from callyard.dispatch.questions import Question
from callyard.dispatch.replies import Replies
from callyard.model.envelope import Envelope

Work = Callable[[Replies], Awaitable[Envelope]]


def start(work: Work, channel: Channel | None = None) -> Replies:
    replies = Replies(channel or Channel())

    async def run() -> Envelope:
        return await work(replies)

    replies.start(run())
    return replies


def question() -> Question:
    return Question(id="q", kind="elicitation", owner="5:local:", call_id="c", tool="greet")


async def test_a_run_sends_interim_replies_and_then_its_answer() -> None:
    goes_on = asyncio.Event()

    async def work(replies: Replies) -> Envelope:
        replies.send(question())
        await goes_on.wait()
        return Envelope.ok(1)

    replies = start(work)
    first = await replies.next()
    goes_on.set()
    last = await replies.next()

    assert isinstance(first, Question)
    assert isinstance(last, Envelope)
    assert last.data == 1


async def test_a_run_that_fails_unexpectedly_fails_its_request() -> None:
    async def work(_: Replies) -> Envelope:
        raise LookupError("a defect")

    with pytest.raises(LookupError, match="a defect"):
        await start(work).next()


async def test_a_run_that_is_cancelled_from_inside_cancels_its_request() -> None:
    async def work(_: Replies) -> Envelope:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await start(work).next()


async def test_a_run_that_is_over_before_anybody_waits_is_answered() -> None:
    async def work(_: Replies) -> Envelope:
        return Envelope.ok(1)

    replies = start(work)
    await asyncio.wait({replies.task})
    reply = await replies.next()
    assert isinstance(reply, Envelope)
    assert reply.data == 1


async def test_cancelling_the_wait_cancels_the_run_and_waits_for_its_end() -> None:
    began, ended = asyncio.Event(), asyncio.Event()

    async def work(_: Replies) -> Envelope:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    waiting = asyncio.create_task(start(work).next())
    await began.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_a_run_that_is_cancelled_before_it_begins_still_begins_so_that_it_is_recorded() -> None:
    seen: list[str] = []

    async def work(_: Replies) -> Envelope:
        seen.append("began")
        await asyncio.sleep(0)  # where the cancellation arrives
        raise AssertionError

    replies = start(work)
    replies.cancel()
    with pytest.raises(asyncio.CancelledError):
        await replies.next()
    assert seen == ["began"]


@pytest.mark.parametrize("fails", [True, False])
async def test_a_run_that_ends_when_nobody_waits_does_no_harm(fails: bool) -> None:  # noqa: FBT001 - a parameter of the test
    ended = asyncio.Event()

    async def work(replies: Replies) -> Envelope:
        replies.send(question())
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.set()
            if fails:
                raise LookupError("a defect") from None
        return Envelope.ok(1)

    replies = start(work)
    assert isinstance(await replies.next(), Question)
    replies.cancel()
    await ended.wait()
    await asyncio.wait({replies.task})
    assert replies.task.done()


async def test_the_channel_of_a_run_keeps_the_credentials_apart_from_those_of_the_request() -> None:
    channel = Channel(server=7, forwarded={"authorization": "secret"}, hang_up=lambda: None)
    replies = Replies(channel)

    assert replies.server == 7
    assert (replies.channel.server, replies.channel.hang_up, replies.channel.ask) == (0, None, None)
    assert replies.channel.forwarded == channel.forwarded
    assert replies.channel.forwarded is not channel.forwarded


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
def test_the_fingerprint_of_a_request_is_that_of_its_kind_name_arguments_and_owner(
    other: CallRequest, *, same: bool
) -> None:
    request = CallRequest("greet", {"a": 1, "b": [2, 3]})
    assert (other.fingerprint() == request.fingerprint()) is same
