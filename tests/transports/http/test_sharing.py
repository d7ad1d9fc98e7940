"""What a browser is told before it lets a page see an answer."""

from typing import Any

from toolyard import Yard
from toolyard.transports.http import asgi

PAGE = "http://localhost:3000"


async def test_a_page_that_may_use_the_server_is_told_what_it_may_send(serve: Any) -> None:
    server = await serve()

    reply = await server.request("OPTIONS", "/mcp", Origin=PAGE)

    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "authorization" in reply.headers["access-control-allow-headers"]


async def test_an_answer_may_be_seen_by_the_page_it_is_for(serve: Any) -> None:
    server = await serve()

    whole = await server.ask("add", {"a": 1, "b": 2}, headers={"Origin": PAGE})
    stream = await server.call("chatter", token=1, headers={"Origin": PAGE})
    streamed = await stream.head()
    greeted = await server.greet(Origin=PAGE)

    assert (whole.data, whole.headers["access-control-allow-origin"]) == (3, PAGE)
    assert streamed.is_stream
    assert streamed.headers["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in greeted.greeting.headers["access-control-expose-headers"]


async def test_a_page_that_may_not_use_the_server_is_told_nothing(serve: Any) -> None:
    server = await serve()

    for method in ("OPTIONS", "POST"):
        reply = await server.request(method, "/mcp", {}, Origin="https://evil.example")
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers


async def test_what_no_page_asks_for_says_nothing_of_pages(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("add", {"a": 1, "b": 2})

    assert "access-control-allow-origin" not in reply.headers


async def test_a_call_of_a_page_is_cancelled_when_the_page_goes(serve: Any, gates: Any, until: Any) -> None:
    server = await serve()

    wire = await server.call("wait", headers={"Origin": PAGE})
    await until(lambda: gates.running)
    await wire.close()

    await until(lambda: [record.code for record in server.records] == ["cancelled"])


async def exchange(body: bytes = b'{"jsonrpc":"2.0","id":1,"method":"ping"}', **headers: str) -> list[Any]:
    """Return what another server is handed for a message, which is a ping unless told otherwise."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event: Any) -> None:
        sent.append(event)

    pairs = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        *((name.encode(), text.encode()) for name, text in headers.items()),
    ]
    scope = {"type": "http", "method": "POST", "path": "/mcp", "headers": pairs, "query_string": b""}
    async with Yard() as yard:
        await asgi(yard, stateless=True)(scope, receive, send)
    return sent


async def test_pages_are_told_the_same_by_another_server() -> None:
    sent = await exchange(origin=PAGE)

    assert (b"access-control-allow-origin", PAGE.encode()) in sent[0]["headers"]


async def test_who_takes_events_alone_gets_one_from_another_server_too() -> None:
    head, body = await exchange(origin=PAGE, accept="text/event-stream")

    assert head["headers"][0] == (b"content-type", b"text/event-stream")
    assert (b"access-control-allow-origin", PAGE.encode()) in head["headers"]
    assert not {b"content-length", b"application/json"} & {text for pair in head["headers"] for text in pair}
    assert body["body"].startswith(b"event: message\r\ndata: {")


async def test_what_is_wrong_is_told_in_json_by_another_server_too() -> None:
    head, body = await exchange(b"{", accept="text/event-stream")

    assert (head["status"], head["headers"][0]) == (400, (b"content-type", b"application/json"))
    assert b"-32700" in body["body"]
