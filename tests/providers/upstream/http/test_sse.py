"""The legacy transport from the client's side: a stream that says where to post, and every answer on it."""

import asyncio

import pytest
from raw_servers import Asked, Connect, Serve, note, request, result

from toolyard.providers.upstream.http import SseLink
from toolyard.providers.upstream.http.exchange import OTHERS
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings


def event(kind: str, data: bytes) -> bytes:
    """Return an event as a chunk."""
    block = b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
    return b"%x\r\n%b\r\n" % (len(block), block)


class Old:
    """A server of the legacy kind."""

    def __init__(self, place: str = "/messages?session=1", *, status: int = 202) -> None:
        self.place = place
        self.status = status
        self.stream: Asked | None = None

    async def __call__(self, asked: Asked) -> None:
        """Answer one request."""
        if asked.method == "GET":
            self.stream = asked
            await asked.stream()
            await asked.write(event("hello", b"{}") + event("endpoint", self.place.encode()))
            await asked.gone()
        else:
            await asked.reply(self.status, b"Accepted")
            if self.stream is not None and self.status == 202 and asked.id is not None:
                await self.stream.write(event("message", result(asked.id)) + event("other", b"{}") + event("message", b""))


@pytest.mark.parametrize("place", ["/messages?session=1", "messages?session=1", "{here}/messages?session=1"])
async def test_messages_are_posted_where_the_stream_says_and_answered_on_it(raw: Serve, link: Connect, place: str) -> None:
    old = Old(place)
    server = await raw(old)
    old.place = place.format(here=server.url.removesuffix("/mcp"))
    sender, told = await link(server.url, kind=SseLink, transport="sse", headers={"X-Key": "k"})
    sender.listen()

    sender.send(request(1), 1, {"MCP-Protocol-Version": "2024-11-05"})
    answer = await told.message()
    sender.send(note("notifications/initialized"), None, {})
    sender.send(request(2), 2, {})
    await told.message()
    sender.drop(2)

    got, first, second, third = server.asked
    assert answer["id"] == 1
    assert (got.method, got.target, got.headers["accept"]) == ("GET", "/mcp", "text/event-stream")
    assert (first.method, first.target, first.body) == ("POST", "/messages?session=1", request(1))
    assert [asked.headers["x-key"] for asked in server.asked] == ["k"] * 4
    assert b"initialized" in second.body
    assert third.id == 2
    await sender.close()
    await sender.close()
    await server.left()
    assert told.told.empty()


@pytest.mark.parametrize("place", ["http://evil.example/messages", "//evil.example/", "https://127.0.0.1/messages", "http://["])
async def test_messages_are_never_posted_to_another_server(raw: Serve, link: Connect, place: str) -> None:
    server = await raw(Old(place))

    with pytest.raises(LinkError) as caught:
        await link(server.url, kind=SseLink, transport="sse")

    assert (caught.value.kind, caught.value.text) == ("refused", place)
    await server.left()


@pytest.mark.parametrize(
    ("status", "trouble"), [(401, "unauthenticated"), (404, "refused"), (405, "refused"), (503, "unavailable"), (200, "refused")]
)
async def test_a_stream_that_is_refused_cannot_be_opened(raw: Serve, link: Connect, status: int, trouble: str) -> None:
    async def refuse(asked: Asked) -> None:
        await asked.reply(status, b"No.")

    server = await raw(refuse)

    with pytest.raises(LinkError) as caught:
        await link(server.url, kind=SseLink, transport="sse")

    assert (caught.value.kind, caught.value.status) == (trouble, status)


async def test_a_stream_that_never_says_where_to_post_is_given_up(raw: Serve, link: Connect) -> None:
    async def mute(asked: Asked) -> None:
        await asked.stream()
        await asked.gone()

    server = await raw(mute)

    with pytest.raises(LinkError) as caught:
        await link(server.url, kind=SseLink, transport="sse", connect_seconds=0.05)

    assert caught.value.kind == "unavailable"
    await server.left()


async def test_messages_that_want_no_answer_do_not_pile_up(raw: Serve, link: Connect) -> None:
    class Deaf(Old):
        """Takes no message."""

        async def __call__(self, asked: Asked) -> None:
            """Answer only what opens the stream."""
            if asked.method == "GET":
                await super().__call__(asked)
            else:
                await asked.gone()

    server = await raw(Deaf())
    sender, _ = await link(server.url, kind=SseLink, transport="sse")
    for _ in range(2000):
        sender.send(note("notifications/progress"), None, {})
    sender.send(request(1), 1, {})

    assert len(sender._posts) == OTHERS + 1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - what is held shows nowhere else
    await sender.close()


async def test_a_stream_that_ends_at_once_cannot_be_opened(raw: Serve, link: Connect) -> None:
    async def brief(asked: Asked) -> None:
        await asked.stream()
        await asked.end()

    server = await raw(brief)

    with pytest.raises(LinkError) as caught:
        await link(server.url, kind=SseLink, transport="sse")

    assert caught.value.kind == "lost"


@pytest.mark.parametrize("politely", [False, True])
async def test_the_end_of_the_stream_is_the_end_of_the_link_and_told_once(raw: Serve, link: Connect, *, politely: bool) -> None:
    old = Old()
    server = await raw(old)
    sender, told = await link(server.url, kind=SseLink, transport="sse")
    assert old.stream is not None
    if politely:
        await old.stream.end()
    old.stream.hang_up()

    kind, error, _ = await told.next()
    sender.send(request(1), 1, {})
    sender.send(note(), None, {})

    assert (kind, error.kind, error.sent) == ("ended", "lost", True)
    assert (await told.loss(1)).kind == "lost"
    assert told.told.empty()


@pytest.mark.parametrize(("status", "trouble"), [(404, "refused"), (429, "rate_limited"), (500, "refused")])
async def test_a_message_that_is_refused_is_lost(raw: Serve, link: Connect, status: int, trouble: str) -> None:
    server = await raw(Old(status=status))
    sender, told = await link(server.url, kind=SseLink, transport="sse")
    sender.send(note(), None, {})
    sender.send(request(1), 1, {})

    error = await told.loss(1)

    assert (error.kind, error.status) == (trouble, status)


async def test_a_message_that_is_not_taken_in_time_is_lost(raw: Serve, link: Connect) -> None:
    old = Old()

    async def slow(asked: Asked) -> None:
        if asked.method == "GET":
            await old(asked)
        elif asked.id == 2:
            asked.hang_up()

    server = await raw(slow)
    sender, told = await link(server.url, kind=SseLink, transport="sse", connect_seconds=0.5)
    sender.send(request(1), 1, {})
    sender.send(request(2), 2, {})

    assert ((second := await told.loss(2)).kind, second.sent) == ("lost", True)
    assert ((first := await told.loss(1)).kind, first.sent) == ("unavailable", True)


async def test_closing_drops_what_was_being_posted(raw: Serve, link: Connect) -> None:
    old, arrived = Old(), asyncio.Event()

    async def hold(asked: Asked) -> None:
        if asked.method == "GET":
            await old(asked)
        else:
            arrived.set()
            await asked.gone()

    server = await raw(hold)
    sender, told = await link(server.url, kind=SseLink, transport="sse")
    sender.send(request(1), 1, {})
    await arrived.wait()

    await sender.close()

    await server.left()
    assert told.told.empty()


async def test_a_legacy_link_that_was_never_opened_can_be_closed() -> None:
    await SseLink("there", UpstreamSettings(url="http://127.0.0.1/", transport="sse")).close()
