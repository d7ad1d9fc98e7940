"""The legacy transport from the client's side: a stream that says where to post, and every answer on it."""

import asyncio

import pytest
from raw_servers import Connect, Request, Serve, notification, request_message, result_message

from callyard.providers.upstream.http import SseLink
from callyard.providers.upstream.http.exchange import MAX_ONE_WAY
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.settings import UpstreamSettings


def event(kind: str, data: bytes) -> bytes:
    """Return an event as a chunk."""
    block = b"event: %b\ndata: %b\n\n" % (kind.encode(), data)
    return b"%x\r\n%b\r\n" % (len(block), block)


class SseServer:
    """A server of the legacy kind."""

    def __init__(self, place: str = "/messages?session=1", *, status: int = 202) -> None:
        self.place = place
        self.status = status
        self.stream: Request | None = None

    async def __call__(self, request: Request) -> None:
        """Answer one request."""
        if request.method == "GET":
            self.stream = request
            await request.stream()
            await request.write(event("hello", b"{}") + event("endpoint", self.place.encode()))
            await request.gone()
        else:
            await request.reply(self.status, b"Accepted")
            if self.stream is not None and self.status == 202 and request.id is not None:
                await self.stream.write(
                    event("message", result_message(request.id)) + event("other", b"{}") + event("message", b"")
                )


@pytest.mark.parametrize("place", ["/messages?session=1", "messages?session=1", "{here}/messages?session=1"])
async def test_messages_are_posted_to_the_endpoint_and_answered_on_the_stream(
    serve: Serve, connect: Connect, place: str
) -> None:
    old = SseServer(place)
    server = await serve(old)
    old.place = place.format(here=server.url.removesuffix("/mcp"))
    link, listener = await connect(server.url, kind=SseLink, transport="sse", headers={"X-Key": "k"})
    link.listen()

    link.send(request_message(1), 1, {"MCP-Protocol-Version": "2024-11-05"})
    answer = await listener.message()
    link.send(notification("notifications/initialized"), None, {})
    link.send(request_message(2), 2, {})
    await listener.message()
    link.drop(2)

    got, first, second, third = server.requests
    assert answer["id"] == 1
    assert (got.method, got.target, got.headers["accept"]) == ("GET", "/mcp", "text/event-stream")
    assert (first.method, first.target, first.body) == ("POST", "/messages?session=1", request_message(1))
    assert [request.headers["x-key"] for request in server.requests] == ["k"] * 4
    assert b"initialized" in second.body
    assert third.id == 2
    await link.close()
    await link.close()
    await server.left()
    assert listener.calls.empty()


@pytest.mark.parametrize(
    "place", ["http://evil.example/messages", "//evil.example/", "https://127.0.0.1/messages", "http://["]
)
async def test_messages_are_never_posted_to_another_server(serve: Serve, connect: Connect, place: str) -> None:
    server = await serve(SseServer(place))

    with pytest.raises(LinkError) as caught:
        await connect(server.url, kind=SseLink, transport="sse")

    assert (caught.value.kind, caught.value.text) == ("refused", place)
    await server.left()


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, "unauthenticated"), (404, "refused"), (405, "refused"), (503, "unavailable"), (200, "refused")],
)
async def test_a_stream_that_is_refused_cannot_be_opened(
    serve: Serve, connect: Connect, status: int, kind: str
) -> None:
    async def refuse(request: Request) -> None:
        await request.reply(status, b"No.")

    server = await serve(refuse)

    with pytest.raises(LinkError) as caught:
        await connect(server.url, kind=SseLink, transport="sse")

    assert (caught.value.kind, caught.value.status) == (kind, status)


async def test_a_stream_without_an_endpoint_times_out(serve: Serve, connect: Connect) -> None:
    async def mute(request: Request) -> None:
        await request.stream()
        await request.gone()

    server = await serve(mute)

    with pytest.raises(LinkError) as caught:
        await connect(server.url, kind=SseLink, transport="sse", connect_seconds=0.05)

    assert caught.value.kind == "unavailable"
    await server.left()


async def test_notifications_in_flight_are_bounded_over_sse(serve: Serve, connect: Connect) -> None:
    class Deaf(SseServer):
        """Takes no message."""

        async def __call__(self, request: Request) -> None:
            """Answer only what opens the stream."""
            if request.method == "GET":
                await super().__call__(request)
            else:
                await request.gone()

    server = await serve(Deaf())
    link, _ = await connect(server.url, kind=SseLink, transport="sse")
    for _ in range(2000):
        link.send(notification("notifications/progress"), None, {})
    link.send(request_message(1), 1, {})

    assert len(link._one_way) + len(link._requests) == MAX_ONE_WAY + 1  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue] - what is held shows nowhere else
    await link.close()


async def test_a_stream_that_ends_at_once_cannot_be_opened(serve: Serve, connect: Connect) -> None:
    async def brief(request: Request) -> None:
        await request.stream()
        await request.end()

    server = await serve(brief)

    with pytest.raises(LinkError) as caught:
        await connect(server.url, kind=SseLink, transport="sse")

    assert caught.value.kind == "lost"


@pytest.mark.parametrize("politely", [False, True])
async def test_the_end_of_the_stream_ends_the_link_once(serve: Serve, connect: Connect, *, politely: bool) -> None:
    old = SseServer()
    server = await serve(old)
    link, listener = await connect(server.url, kind=SseLink, transport="sse")
    assert old.stream is not None
    if politely:
        await old.stream.end()
    old.stream.hang_up()

    kind, error, _ = await listener.next()
    link.send(request_message(1), 1, {})
    link.send(notification(), None, {})

    assert (kind, error.kind, error.sent) == ("ended", "lost", True)
    assert (await listener.loss(1)).kind == "lost"
    assert listener.calls.empty()


@pytest.mark.parametrize(("status", "kind"), [(404, "refused"), (429, "rate_limited"), (500, "refused")])
async def test_a_message_that_is_refused_is_lost(serve: Serve, connect: Connect, status: int, kind: str) -> None:
    server = await serve(SseServer(status=status))
    link, listener = await connect(server.url, kind=SseLink, transport="sse")
    link.send(notification(), None, {})
    link.send(request_message(1), 1, {})

    error = await listener.loss(1)

    assert (error.kind, error.status) == (kind, status)


async def test_a_message_that_is_not_accepted_in_time_is_lost(serve: Serve, connect: Connect) -> None:
    old = SseServer()

    async def slow(request: Request) -> None:
        if request.method == "GET":
            await old(request)
        elif request.id == 2:
            request.hang_up()

    server = await serve(slow)
    link, listener = await connect(server.url, kind=SseLink, transport="sse", connect_seconds=0.5)
    link.send(request_message(1), 1, {})
    link.send(request_message(2), 2, {})

    assert ((second := await listener.loss(2)).kind, second.sent) == ("lost", True)
    assert ((first := await listener.loss(1)).kind, first.sent) == ("unavailable", True)


async def test_closing_drops_messages_in_flight(serve: Serve, connect: Connect) -> None:
    old, arrived = SseServer(), asyncio.Event()

    async def hold(request: Request) -> None:
        if request.method == "GET":
            await old(request)
        else:
            arrived.set()
            await request.gone()

    server = await serve(hold)
    link, listener = await connect(server.url, kind=SseLink, transport="sse")
    link.send(request_message(1), 1, {})
    await arrived.wait()

    await link.close()

    await server.left()
    assert listener.calls.empty()


async def test_a_legacy_link_that_was_never_opened_can_be_closed() -> None:
    await SseLink("there", UpstreamSettings(url="http://127.0.0.1/", transport="sse")).close()
