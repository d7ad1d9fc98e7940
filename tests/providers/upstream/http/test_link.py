"""Messages over streamable HTTP: how they are sent, and how answers come back."""

import asyncio
import json
from typing import Any

import pytest
from raw_servers import Connect, Request, Serve, answers, notification, request_message, result_message

from callyard.providers.upstream.http import HttpLink
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.settings import UpstreamSettings

MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "add"}


async def test_a_message_is_posted_with_its_headers_and_its_answer_comes_back(serve: Serve, connect: Connect) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url, headers={"X-Team": "blue"})

    link.send(request_message(7), 7, MODERN)
    message = await listener.message(about=7)

    request = server.requests[0]
    assert message == {"jsonrpc": "2.0", "id": 7, "result": {"value": "done"}}
    assert (request.method, request.target, request.body) == ("POST", "/mcp", request_message(7))
    assert dict(request.pairs) == {
        "host": server.url.split("/")[2],
        "user-agent": "callyard/0.1.0",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-team": "blue",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "add",
        "content-length": str(len(request_message(7))),
    }
    assert len(request.pairs) == len(request.headers)


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_is_nested_too_deep_comes_back_so_that_its_request_can_fail(
    serve: Serve, connect: Connect, *, streamed: bool
) -> None:
    deep = b'{"jsonrpc":"2.0","id":7,"result":' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001

    async def respond(request: Request) -> None:
        if streamed:
            await request.stream()
            await request.event(deep)
        else:
            await request.reply(200, deep)

    server = await serve(respond)
    link, listener = await connect(server.url)
    link.send(request_message(7), 7, MODERN)

    assert await listener.message(about=7) == deep


async def test_one_connection_serves_many_messages(serve: Serve, connect: Connect) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)

    for number in range(5):
        link.send(request_message(number), number, MODERN)
        await listener.message(about=number)

    assert server.connections == 1


async def test_concurrent_requests_have_a_connection_each_up_to_the_limit(serve: Serve, connect: Connect) -> None:
    go = asyncio.Event()

    async def hold(request: Request) -> None:
        await go.wait()
        await request.reply(200, result_message(request.id))

    server = await serve(hold)
    link, listener = await connect(server.url, in_flight=2)
    for number in range(20):
        link.send(request_message(number), number, MODERN)
    link.send(notification(), None, {})
    go.set()

    answered = {(await listener.next())[2] for _ in range(20)}

    assert answered == set(range(20))
    assert server.connections <= 11


async def test_the_messages_of_a_response_stream_belong_to_the_request(serve: Serve, connect: Connect) -> None:
    async def talk(request: Request) -> None:
        await request.stream()
        await request.write(b"9\r\n: hello\n\n\r\n")
        await request.event(notification("notifications/progress", progress=1))
        await request.event(result_message(request.id))
        await request.end()

    server = await serve(talk)
    link, listener = await connect(server.url)
    for number in (1, 2):
        link.send(request_message(number), number, {})

        assert (await listener.message(about=number))["method"] == "notifications/progress"
        assert (await listener.message(about=number))["id"] == number

    assert server.connections == 1


async def test_a_stream_that_goes_on_after_its_response_is_closed(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.providers.upstream.http.link._LINGER_SECONDS", 0.0)

    async def talk(request: Request) -> None:
        await request.stream()
        await request.event(result_message(request.id))
        await request.event(result_message(request.id, "again"))
        await request.gone()

    server = await serve(talk)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    assert (await listener.message(about=1))["result"] == {"value": "done"}
    await server.left()
    assert listener.calls.empty()


@pytest.mark.parametrize("as_stream", [False, True])
async def test_the_messages_of_a_batch_are_delivered_one_by_one(
    serve: Serve, connect: Connect, *, as_stream: bool
) -> None:
    async def batch(request: Request) -> None:
        both = b"[%b,%b]" % (notification(), result_message(request.id))
        if as_stream:
            await request.stream()
            await request.event(both)
            await request.end()
        else:
            await request.reply(200, both)

    server = await serve(batch)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})

    assert "method" in await listener.message(about=1)
    assert (await listener.message(about=1))["id"] == 1


async def test_chunked_bodies_and_bodies_without_a_length_are_read_whole(serve: Serve, connect: Connect) -> None:
    async def pieces(request: Request) -> None:
        body = result_message(request.id, "x" * 100)
        await request.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        await request.write(b"\r\n")
        for place in range(0, len(body), 30):
            await request.write(body[place : place + 30])
        request.hang_up()

    server = await serve(pieces)
    link, listener = await connect(server.url)
    for number in (1, 2):
        link.send(request_message(number), number, {})

        assert (await listener.message(about=number))["result"] == {"value": "x" * 100}


async def test_the_session_of_the_first_response_is_sent_from_then_on_and_deleted_at_the_end(
    serve: Serve, connect: Connect
) -> None:
    sessions = iter(["one", "two", "three", "four"])

    async def greet(request: Request) -> None:
        await request.reply(200, result_message(1) if request.method == "POST" else b"", mcp_session_id=next(sessions))

    server = await serve(greet)
    link, listener = await connect(server.url)
    for _ in range(3):
        link.send(request_message(1), 1, {"MCP-Protocol-Version": "2025-11-25"})
        await listener.message(about=1)

    await link.close()

    assert [request.headers.get("mcp-session-id") for request in server.requests] == [None, "one", "one", "one"]
    assert (server.requests[-1].method, server.requests[-1].headers["mcp-protocol-version"]) == ("DELETE", "2025-11-25")


async def test_an_unanswered_delete_does_not_delay_closing(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.providers.upstream.http.link._GOODBYE_SECONDS", 0.0)

    async def greet(request: Request) -> None:
        if request.method == "POST":
            await request.reply(200, result_message(1), mcp_session_id="one")

    server = await serve(greet)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)

    await link.close()
    await link.close()


async def test_nothing_overtakes_notifications_initialized(serve: Serve, connect: Connect) -> None:
    go, seen = asyncio.Event(), asyncio.Event()

    async def slow(request: Request) -> None:
        if b"initialized" in request.body:
            seen.set()
            await go.wait()
            await request.reply(202)
        else:
            await request.reply(200, result_message(request.id))

    server = await serve(slow)
    link, listener = await connect(server.url)
    link.send(notification("notifications/initialized"), None, {})
    link.send(request_message(1), 1, {})
    link.send(request_message(2), 2, {})
    link.drop(2)
    await seen.wait()
    count = len(server.requests)
    go.set()

    assert (await listener.message(about=1))["id"] == 1
    assert (count, len(server.requests)) == (1, 2)


async def test_a_notification_without_an_answer_expires(serve: Serve, connect: Connect) -> None:
    async def mute(request: Request) -> None:
        if request.id is not None:
            await request.reply(200, result_message(request.id))

    server = await serve(mute)
    link, listener = await connect(server.url, connect_seconds=0.05)
    link.send(notification("notifications/initialized"), None, {})
    link.send(request_message(1), 1, {})

    assert (await listener.message(about=1))["id"] == 1


@pytest.mark.parametrize("status", [200, 202, 204, 400, 500])
async def test_the_listener_hears_nothing_of_a_notification(serve: Serve, connect: Connect, status: int) -> None:
    async def answer(request: Request) -> None:
        if request.id is None:
            await request.write(b"HTTP/1.1 %d Whatever\r\ncontent-length: 0\r\n\r\n" % status)
        else:
            await request.reply(200, result_message(request.id))

    server = await serve(answer)
    link, listener = await connect(server.url)
    link.send(notification("notifications/initialized"), None, {})
    link.send(request_message(1), 1, {})

    assert (await listener.message(about=1))["id"] == 1


async def test_notifications_in_flight_are_bounded(serve: Serve, connect: Connect) -> None:
    async def never(request: Request) -> None:
        await request.gone()

    server = await serve(never)
    link, _ = await connect(server.url)
    for _ in range(300):
        link.send(notification(), None, {})

    assert len(link._one_way) == 256


async def test_dropping_a_request_closes_its_connection_silently(serve: Serve, connect: Connect) -> None:
    arrived = asyncio.Event()

    async def hold(request: Request) -> None:
        arrived.set()
        await request.gone()

    server = await serve(hold)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await arrived.wait()

    link.drop(1)
    link.drop(1)
    await server.left()

    assert listener.calls.empty()


async def test_a_request_dropped_while_queued_is_never_sent(serve: Serve, connect: Connect) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    link.send(request_message(2), 2, {})
    link.drop(1)

    await listener.message(about=2)

    assert [request.id for request in server.requests] == [2]


async def test_a_request_dropped_during_its_first_message_delivers_no_more(serve: Serve, connect: Connect) -> None:
    async def talk(request: Request) -> None:
        await request.stream()
        await request.write(
            b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in [b"data: %b\n\n" % notification()] * 3)
        )
        await request.gone()

    server = await serve(talk)
    link, listener = await connect(server.url)
    receive = listener.receive

    def take(data: bytes, about: Any) -> None:
        receive(data, about)
        link.drop(1)

    listener.receive = take  # pyright: ignore[reportAttributeAccessIssue] - a listener that does something
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    link.send(request_message(2), 2, {})
    await listener.message(about=2)

    assert listener.calls.qsize() == 2


async def test_a_closed_link_sends_nothing(serve: Serve, connect: Connect) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)
    await link.close()

    link.send(request_message(1), 1, {})
    link.send(notification(), None, {})

    error = await listener.loss(1)
    assert (error.kind, error.sent) == ("lost", False)
    assert not server.requests


async def test_closing_ends_everything_in_flight(serve: Serve, connect: Connect) -> None:
    arrived = asyncio.Event()

    async def hold(request: Request) -> None:
        arrived.set()
        await request.gone()

    server = await serve(hold)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await arrived.wait()
    link.send(request_message(2), 2, {})

    await link.close()
    await server.left()

    assert listener.calls.empty()
    assert len(asyncio.all_tasks()) <= 1 + len(server.ends)


async def test_a_cancelled_close_can_be_repeated(serve: Serve, connect: Connect) -> None:
    parting = asyncio.Event()

    async def greet(request: Request) -> None:
        if request.method == "POST":
            await request.reply(200, result_message(1), mcp_session_id="one")
        else:
            parting.set()
            await request.gone()

    server = await serve(greet)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    closing = asyncio.ensure_future(link.close())
    await parting.wait()
    closing.cancel()

    await link.close()

    await server.left()
    assert [request.method for request in server.requests] == ["POST", "DELETE"]


async def test_a_link_that_was_never_opened_can_be_closed() -> None:
    await HttpLink("there", UpstreamSettings(url="http://127.0.0.1/")).close()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://x/",
        "http://",
        "http://a b/",
        "http://x:port/",
        "http://me:secret@x/",
        "http://[::1/",
        "http://\u00fc..x/",
    ],
)
async def test_an_invalid_url_is_refused_when_the_link_is_opened(connect: Connect, url: str) -> None:
    with pytest.raises(LinkError) as caught:
        await connect(url)

    assert caught.value.kind == "unavailable"
    assert "secret" not in str(caught.value)


async def test_headers_of_a_message_replace_those_of_the_settings_but_never_reserved_ones(
    serve: Serve, connect: Connect
) -> None:
    server = await serve(answers())
    own = {"X-One": "1", "X-Two": "2", "Content-Length": "9", "Host": "elsewhere.example", "User-Agent": "me"}
    link, listener = await connect(server.url, headers=own)

    link.send(request_message(1), 1, {"x-two": "two", "Accept": "text/html", "host": "evil.example", "x-three": "3"})
    await listener.message(about=1)
    link.send(request_message(2), 2, {})
    await listener.message(about=2)

    first, second = server.requests
    assert [first.headers[name] for name in ("x-one", "x-two", "x-three", "host")] == [
        "1",
        "two",
        "3",
        "elsewhere.example",
    ]
    assert (first.headers["accept"], first.headers["user-agent"]) == ("application/json, text/event-stream", "me")
    assert [second.headers.get(name) for name in ("x-one", "x-two", "x-three")] == ["1", "2", None]
    for request in server.requests:
        assert len(request.pairs) == len(request.headers)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b", "\ud800"])
async def test_a_header_that_would_break_the_request_is_not_sent(serve: Serve, connect: Connect, value: str) -> None:
    server = await serve(answers())
    link, listener = await connect(server.url)

    link.send(request_message(1), 1, {"X-Name": value})

    error = await listener.loss(1)
    assert (error.kind, error.sent, server.requests) == ("refused", False, [])


async def test_a_json_rpc_error_is_a_response_with_any_status(serve: Serve, connect: Connect) -> None:
    answers = iter([{"id": 1}, {"id": None}, {}])

    async def fault(request: Request) -> None:
        body = {"jsonrpc": "2.0", **next(answers), "error": {"code": -32601, "message": "No.", "data": {"a": 1}}}
        await request.reply(404, json.dumps(body).encode())

    server = await serve(fault)
    link, listener = await connect(server.url)
    for number in (1, 2, 3):
        link.send(request_message(number), number, MODERN)

        message = await listener.message(about=number)

        assert message == {
            "jsonrpc": "2.0",
            "id": number,
            "error": {"code": -32601, "message": "No.", "data": {"a": 1}},
        }
