"""Messages over streamable HTTP: how they are sent, and how answers come back."""

import asyncio
import json
from typing import Any

import pytest
from raw_servers import Asked, Connect, Serve, note, plain, request, result

from toolyard.providers.upstream.http import HttpLink
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings

MODERN = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "add"}


async def test_a_message_is_posted_with_its_headers_and_its_answer_comes_back(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    sender, told = await link(server.url, headers={"X-Team": "blue"})

    sender.send(request(7), 7, MODERN)
    message = await told.message(about=7)

    asked = server.asked[0]
    assert message == {"jsonrpc": "2.0", "id": 7, "result": {"value": "done"}}
    assert (asked.method, asked.target, asked.body) == ("POST", "/mcp", request(7))
    assert dict(asked.pairs) == {
        "host": server.url.split("/")[2],
        "user-agent": "toolyard/0.1.0",
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "x-team": "blue",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": "add",
        "content-length": str(len(request(7))),
    }
    assert len(asked.pairs) == len(asked.headers)


async def test_one_connection_serves_many_messages(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)

    for number in range(5):
        sender.send(request(number), number, MODERN)
        await told.message(about=number)

    assert server.connections == 1


async def test_messages_that_run_together_have_a_connection_each_up_to_the_bound(raw: Serve, link: Connect) -> None:
    go = asyncio.Event()

    async def hold(asked: Asked) -> None:
        await go.wait()
        await asked.reply(200, result(asked.id))

    server = await raw(hold)
    sender, told = await link(server.url, in_flight=2)
    for number in range(20):
        sender.send(request(number), number, MODERN)
    sender.send(note(), None, {})
    go.set()

    answered = {(await told.next())[2] for _ in range(20)}

    assert answered == set(range(20))
    assert server.connections <= 11


async def test_an_answer_may_be_a_stream_whose_messages_are_about_the_request(raw: Serve, link: Connect) -> None:
    async def talk(asked: Asked) -> None:
        await asked.stream()
        await asked.write(b"9\r\n: hello\n\n\r\n")
        await asked.event(note("notifications/progress", progress=1))
        await asked.event(result(asked.id))
        await asked.end()

    server = await raw(talk)
    sender, told = await link(server.url)
    for number in (1, 2):
        sender.send(request(number), number, {})

        assert (await told.message(about=number))["method"] == "notifications/progress"
        assert (await told.message(about=number))["id"] == number

    assert server.connections == 1


async def test_a_stream_that_does_not_end_after_its_answer_is_closed(raw: Serve, link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolyard.providers.upstream.http.link._LINGER_SECONDS", 0.0)

    async def talk(asked: Asked) -> None:
        await asked.stream()
        await asked.event(result(asked.id))
        await asked.event(result(asked.id, "again"))
        await asked.gone()

    server = await raw(talk)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    assert (await told.message(about=1))["result"] == {"value": "done"}
    await server.left()
    assert told.told.empty()


@pytest.mark.parametrize("as_stream", [False, True])
async def test_the_messages_of_a_batch_are_handed_on_one_by_one(raw: Serve, link: Connect, *, as_stream: bool) -> None:
    async def batch(asked: Asked) -> None:
        both = b"[%b,%b]" % (note(), result(asked.id))
        if as_stream:
            await asked.stream()
            await asked.event(both)
            await asked.end()
        else:
            await asked.reply(200, both)

    server = await raw(batch)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})

    assert "method" in await told.message(about=1)
    assert (await told.message(about=1))["id"] == 1


async def test_a_body_in_pieces_and_one_without_a_length_are_read_whole(raw: Serve, link: Connect) -> None:
    async def pieces(asked: Asked) -> None:
        body = result(asked.id, "x" * 100)
        await asked.write(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        await asked.write(b"\r\n")
        for place in range(0, len(body), 30):
            await asked.write(body[place : place + 30])
        asked.hang_up()

    server = await raw(pieces)
    sender, told = await link(server.url)
    for number in (1, 2):
        sender.send(request(number), number, {})

        assert (await told.message(about=number))["result"] == {"value": "x" * 100}


async def test_the_session_of_the_first_answer_is_named_from_then_on_and_ended_at_the_end(raw: Serve, link: Connect) -> None:
    sessions = iter(["one", "two", "three", "four"])

    async def greet(asked: Asked) -> None:
        await asked.reply(200, result(1) if asked.method == "POST" else b"", mcp_session_id=next(sessions))

    server = await raw(greet)
    sender, told = await link(server.url)
    for _ in range(3):
        sender.send(request(1), 1, {"MCP-Protocol-Version": "2025-11-25"})
        await told.message(about=1)

    await sender.close()

    assert [asked.headers.get("mcp-session-id") for asked in server.asked] == [None, "one", "one", "one"]
    assert (server.asked[-1].method, server.asked[-1].headers["mcp-protocol-version"]) == ("DELETE", "2025-11-25")


async def test_a_goodbye_that_is_not_answered_does_not_hold_up_the_end(raw: Serve, link: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolyard.providers.upstream.http.link._GOODBYE_SECONDS", 0.0)

    async def greet(asked: Asked) -> None:
        if asked.method == "POST":
            await asked.reply(200, result(1), mcp_session_id="one")

    server = await raw(greet)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)

    await sender.close()
    await sender.close()


async def test_nothing_overtakes_the_notice_that_the_handshake_is_done(raw: Serve, link: Connect) -> None:
    go, seen = asyncio.Event(), asyncio.Event()

    async def slow(asked: Asked) -> None:
        if b"initialized" in asked.body:
            seen.set()
            await go.wait()
            await asked.reply(202)
        else:
            await asked.reply(200, result(asked.id))

    server = await raw(slow)
    sender, told = await link(server.url)
    sender.send(note("notifications/initialized"), None, {})
    sender.send(request(1), 1, {})
    sender.send(request(2), 2, {})
    sender.drop(2)
    await seen.wait()
    count = len(server.asked)
    go.set()

    assert (await told.message(about=1))["id"] == 1
    assert (count, len(server.asked)) == (1, 2)


async def test_a_notice_that_gets_no_answer_is_given_up(raw: Serve, link: Connect) -> None:
    async def mute(asked: Asked) -> None:
        if asked.id is not None:
            await asked.reply(200, result(asked.id))

    server = await raw(mute)
    sender, told = await link(server.url, connect_seconds=0.05)
    sender.send(note("notifications/initialized"), None, {})
    sender.send(request(1), 1, {})

    assert (await told.message(about=1))["id"] == 1


@pytest.mark.parametrize("status", [200, 202, 204, 400, 500])
async def test_nobody_is_told_what_became_of_a_notice(raw: Serve, link: Connect, status: int) -> None:
    async def answer(asked: Asked) -> None:
        if asked.id is None:
            await asked.write(b"HTTP/1.1 %d Whatever\r\ncontent-length: 0\r\n\r\n" % status)
        else:
            await asked.reply(200, result(asked.id))

    server = await raw(answer)
    sender, told = await link(server.url)
    sender.send(note("notifications/initialized"), None, {})
    sender.send(request(1), 1, {})

    assert (await told.message(about=1))["id"] == 1


async def test_what_nobody_waits_for_is_not_piled_up_without_end(raw: Serve, link: Connect) -> None:
    async def never(asked: Asked) -> None:
        await asked.gone()

    server = await raw(never)
    sender, _ = await link(server.url)
    for _ in range(300):
        sender.send(note(), None, {})

    assert len(sender._others) == 256


async def test_dropping_a_request_closes_its_connection_and_nothing_is_told(raw: Serve, link: Connect) -> None:
    arrived = asyncio.Event()

    async def hold(asked: Asked) -> None:
        arrived.set()
        await asked.gone()

    server = await raw(hold)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await arrived.wait()

    sender.drop(1)
    sender.drop(1)
    await server.left()

    assert told.told.empty()


async def test_what_is_dropped_while_it_waits_is_never_sent(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    sender.send(request(2), 2, {})
    sender.drop(1)

    await told.message(about=2)

    assert [asked.id for asked in server.asked] == [2]


async def test_what_is_dropped_by_whoever_takes_the_first_message_says_no_more(raw: Serve, link: Connect) -> None:
    async def talk(asked: Asked) -> None:
        await asked.stream()
        await asked.write(b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in [b"data: %b\n\n" % note()] * 3))
        await asked.gone()

    server = await raw(talk)
    sender, told = await link(server.url)
    receive = told.receive

    def take(data: bytes, about: Any) -> None:
        receive(data, about)
        sender.drop(1)

    told.receive = take  # pyright: ignore[reportAttributeAccessIssue] - a listener that does something
    sender.send(request(1), 1, {})
    await told.message(about=1)
    sender.send(request(2), 2, {})
    await told.message(about=2)

    assert told.told.qsize() == 2


async def test_a_closed_link_sends_nothing(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)
    await sender.close()

    sender.send(request(1), 1, {})
    sender.send(note(), None, {})

    error = await told.loss(1)
    assert (error.kind, error.sent) == ("lost", False)
    assert not server.asked


async def test_closing_ends_everything_that_was_going_on(raw: Serve, link: Connect) -> None:
    arrived = asyncio.Event()

    async def hold(asked: Asked) -> None:
        arrived.set()
        await asked.gone()

    server = await raw(hold)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await arrived.wait()
    sender.send(request(2), 2, {})

    await sender.close()
    await server.left()

    assert told.told.empty()
    assert len(asyncio.all_tasks()) <= 1 + len(server.ends)


async def test_a_closing_that_was_cut_short_can_be_done_again(raw: Serve, link: Connect) -> None:
    parting = asyncio.Event()

    async def greet(asked: Asked) -> None:
        if asked.method == "POST":
            await asked.reply(200, result(1), mcp_session_id="one")
        else:
            parting.set()
            await asked.gone()

    server = await raw(greet)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)
    closing = asyncio.ensure_future(sender.close())
    await parting.wait()
    closing.cancel()

    await sender.close()

    await server.left()
    assert [asked.method for asked in server.asked] == ["POST", "DELETE"]


async def test_a_link_that_was_never_opened_can_be_closed() -> None:
    await HttpLink("there", UpstreamSettings(url="http://127.0.0.1/")).close()


@pytest.mark.parametrize(
    "url", ["ftp://x/", "http://", "http://a b/", "http://x:port/", "http://me:secret@x/", "http://[::1/", "http://\u00fc..x/"]
)
async def test_an_address_that_cannot_be_called_is_refused_when_the_link_is_opened(link: Connect, url: str) -> None:
    with pytest.raises(LinkError) as caught:
        await link(url)

    assert caught.value.kind == "unavailable"
    assert "secret" not in str(caught.value)


async def test_headers_of_a_message_stand_for_those_of_the_settings_and_never_for_ours(raw: Serve, link: Connect) -> None:
    server = await raw(plain())
    own = {"X-One": "1", "X-Two": "2", "Content-Length": "9", "Host": "elsewhere.example", "User-Agent": "me"}
    sender, told = await link(server.url, headers=own)

    sender.send(request(1), 1, {"x-two": "two", "Accept": "text/html", "host": "evil.example", "x-three": "3"})
    await told.message(about=1)
    sender.send(request(2), 2, {})
    await told.message(about=2)

    first, second = server.asked
    assert [first.headers[name] for name in ("x-one", "x-two", "x-three", "host")] == ["1", "two", "3", "elsewhere.example"]
    assert (first.headers["accept"], first.headers["user-agent"]) == ("application/json, text/event-stream", "me")
    assert [second.headers.get(name) for name in ("x-one", "x-two", "x-three")] == ["1", "2", None]
    for asked in server.asked:
        assert len(asked.pairs) == len(asked.headers)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\rb", "a\0b", "\ud800"])
async def test_a_header_that_would_break_the_request_is_not_sent(raw: Serve, link: Connect, value: str) -> None:
    server = await raw(plain())
    sender, told = await link(server.url)

    sender.send(request(1), 1, {"X-Name": value})

    error = await told.loss(1)
    assert (error.kind, error.sent, server.asked) == ("refused", False, [])


async def test_an_error_of_json_rpc_is_an_answer_whatever_the_status(raw: Serve, link: Connect) -> None:
    answers = iter([{"id": 1}, {"id": None}, {}])

    async def fault(asked: Asked) -> None:
        body = {"jsonrpc": "2.0", **next(answers), "error": {"code": -32601, "message": "No.", "data": {"a": 1}}}
        await asked.reply(404, json.dumps(body).encode())

    server = await raw(fault)
    sender, told = await link(server.url)
    for number in (1, 2, 3):
        sender.send(request(number), number, MODERN)

        message = await told.message(about=number)

        assert message == {"jsonrpc": "2.0", "id": number, "error": {"code": -32601, "message": "No.", "data": {"a": 1}}}
