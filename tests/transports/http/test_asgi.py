"""The yard as an ASGI application: under a server of somebody else's, and mounted inside another application."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
import uvicorn
from table_tests import every_row

from callyard import Yard, asgi, tool
from callyard.transports.auth import Admitted, Refusal
from callyard.transports.http.request import TooLargeError, read_body

if TYPE_CHECKING:
    from tests.transports.conftest import Gates


MESSAGE: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "add",
        "arguments": {"a": 1, "b": 2},
        "_meta": {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        },
    },
}
HEADERS = {
    "Host": "localhost",
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "add",
}


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


class Lifespan:
    """Notes when a yard opens and closes."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    @asynccontextmanager
    async def __call__(self, yard: Yard) -> AsyncGenerator[None]:
        self.seen.append("opened")
        yield
        self.seen.append("closed")


@pytest.fixture
async def run() -> AsyncGenerator[Callable[..., Any]]:
    """Return a function that serves an application with plain uvicorn and returns its port and a stop function."""
    running: list[tuple[uvicorn.Server, asyncio.Task[None]]] = []

    async def start(app: Any, **settings: Any) -> tuple[int, Callable[[], Any]]:
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, **settings))
        task = asyncio.create_task(server.serve())
        running.append((server, task))
        async with asyncio.timeout(60):
            while not server.started:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.002)  # not a wait for so long, but a look so often

        async def stop() -> None:
            server.should_exit = True
            await task

        return server.servers[0].sockets[0].getsockname()[1], stop

    yield start
    for server, task in running:
        server.should_exit = True
        await asyncio.wait({task})


async def begin(
    port: int, path: str, wire_of: Any, method: str = "POST", message: object = MESSAGE, **headers: str
) -> Any:
    wire = await wire_of(port)
    await wire.send(method, path, {**HEADERS, **headers}, None if method == "GET" else json.dumps(message).encode())
    return wire


async def ask(port: int, path: str, wire_of: Any, method: str = "POST") -> Any:
    return await (await begin(port, path, wire_of, method)).reply()


async def call(port: int, wire_of: Any, name: str, **headers: str) -> Any:
    message: dict[str, Any] = {**MESSAGE, "params": {**MESSAGE["params"], "name": name, "arguments": {}}}
    return await begin(port, "/mcp", wire_of, message=message, **{"Mcp-Name": name, **headers})


async def test_a_bare_uvicorn_serves_it_and_opens_and_closes_the_yard(run: Any, wire_of: Any) -> None:
    lifespan = Lifespan()
    port, stop = await run(asgi(Yard(tools=[add], lifespan=lifespan)))

    reply = await ask(port, "/mcp", wire_of)
    opened = list(lifespan.seen)
    await stop()

    assert (reply.status, reply.data) == (200, 3)
    assert (opened, lifespan.seen) == (["opened"], ["opened", "closed"])


async def test_a_yard_that_cannot_open_fails_the_server_and_says_why() -> None:
    @asynccontextmanager
    async def broken(yard: Yard) -> AsyncGenerator[None]:
        raise ValueError("The database is away.")
        yield

    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    with suppress(ValueError):
        await asgi(Yard(tools=[add], lifespan=broken))({"type": "lifespan"}, receive, send)

    assert [event["type"] for event in sent] == ["lifespan.startup.failed"]
    assert "The database is away." in sent[0]["message"]


async def test_settings_hold_there_as_well(run: Any, wire_of: Any) -> None:
    port, _ = await run(asgi(Yard(tools=[add]), stateless=True, allowed_hosts=["only.example"], message_bytes=100))

    assert (await ask(port, "/mcp", wire_of)).status == 413
    assert (await ask(port, "/mcp", wire_of, "GET")).status == 405


async def test_a_request_may_have_256_headers_there_as_well(run: Any, wire_of: Any) -> None:
    port, _ = await run(asgi(Yard(tools=[add])), h11_max_incomplete_event_size=1_000_000)
    many = {f"X-{number}": "1" for number in range(300)}

    assert (await (await begin(port, "/mcp", wire_of, **many)).reply()).status == 431


def mounted(app: Any, root: str, *, keeps_path: bool) -> Any:
    """Return a tiny application that has another one under a path, as frameworks mount it."""

    async def outer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or not scope["path"].startswith(f"{root}/"):
            await app(scope, receive, send)
            return
        path = scope["path"] if keeps_path else scope["path"].removeprefix(root)
        await app({**scope, "root_path": root, "path": path}, receive, send)

    return outer


@pytest.mark.parametrize("keeps_path", [True, False])
async def test_it_can_be_mounted_under_a_path(run: Any, wire_of: Any, *, keeps_path: bool) -> None:
    yard = Yard(tools=[add])
    port, _ = await run(mounted(asgi(yard), "/tools", keeps_path=keeps_path))

    assert (await ask(port, "/tools/mcp", wire_of)).data == 3
    assert (await ask(port, "/tools/mcp/everything", wire_of)).data == 3
    assert (await ask(port, "/tools/healthz", wire_of, "GET")).status == 200
    assert (await ask(port, "/toolsmcp", wire_of)).status == 404


@pytest.mark.parametrize("keeps_path", [True, False])
async def test_a_mounted_server_names_its_resource_by_the_whole_address(
    run: Any, wire_of: Any, *, keeps_path: bool
) -> None:
    class Fake:
        async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
            raise Refusal("No.")

        def protected_resource(self, resource: str) -> dict[str, Any]:
            return {"resource": resource}

    port, _ = await run(mounted(asgi(Yard(tools=[add]), authenticator=Fake()), "/tools", keeps_path=keeps_path))

    refused = await ask(port, "/tools/mcp", wire_of)
    wire = await wire_of(port)
    await wire.send("GET", "/tools/.well-known/oauth-protected-resource/mcp", {"Host": "localhost"})

    assert refused.status == 401
    assert (
        'resource_metadata="http://localhost/tools/.well-known/oauth-protected-resource/mcp"'
        in refused.headers["www-authenticate"]
    )
    assert (await wire.reply()).json == {"resource": "http://localhost/tools/mcp"}


async def test_it_stops_being_ready_when_it_is_closed() -> None:
    app = asgi(Yard(tools=[add]))
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        return {"type": "http.request"}

    app.close()
    for path in ("/readyz", "/healthz"):
        await app({"type": "http", "method": "GET", "path": path, "headers": []}, receive, send)

    assert [event["status"] for event in sent if "status" in event] == [503, 200]


async def test_a_scope_that_is_neither_http_nor_lifespan_is_ignored() -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError

    await asgi(Yard(tools=[add]))({"type": "websocket", "path": "/mcp"}, never, never)


async def test_a_yard_that_its_owner_opened_is_served_without_a_lifespan(run: Any, wire_of: Any) -> None:
    async with Yard(tools=[add]) as yard:
        port, stop = await run(asgi(yard), lifespan="off")
        reply = await ask(port, "/mcp", wire_of)
        await stop()

    assert reply.data == 3


async def test_a_longer_call_becomes_a_stream(
    run: Any, wire_of: Any, tools: list[Any], gates: "Gates", set_constant: Any
) -> None:
    set_constant("hold_back", 0.1)
    port, _ = await run(asgi(Yard(tools=tools), keep_alive=0.05))
    wire = await call(port, wire_of, "wait")

    head = await wire.head()
    alive = await wire.event()
    gates.go.set()

    assert head.is_stream
    assert alive == {"": "alive"}
    assert (await wire.message())["result"]["structuredContent"]["data"] == "done"
    assert await wire.message() is None


@pytest.mark.parametrize("settings", [{}, {"json_response": True}])
async def test_a_client_that_goes_cancels_its_call(
    run: Any,
    wire_of: Any,
    tools: list[Any],
    gates: "Gates",
    *,
    until: Any,
    settings: Any,
    set_constant: Any,
) -> None:
    if not settings:
        set_constant("hold_back", 0.0)
    codes: list[str | None] = []
    yard = Yard(tools=tools, sinks=[lambda record: codes.append(record.code)])
    port, _ = await run(asgi(yard, **settings))
    wire = await call(port, wire_of, "wait")
    await until(lambda: gates.running)

    await wire.close()
    await until(lambda: codes)

    assert (codes, gates.running) == (["cancelled"], 0)


async def test_a_longer_call_is_json_for_a_client_that_takes_no_stream(
    run: Any, wire_of: Any, tools: list[Any], gates: "Gates", set_constant: Any
) -> None:
    set_constant("hold_back", 0.0)
    port, _ = await run(asgi(Yard(tools=tools)))
    wire = await call(port, wire_of, "wait", Accept="application/json")
    asyncio.get_running_loop().call_later(0.1, gates.go.set)

    reply = await wire.reply()

    assert (reply.is_stream, reply.data) == (False, "done")


def pieces(*events: dict[str, Any]) -> Any:
    """Return what hands these events out, one by one."""
    left = list(events)

    async def receive() -> Any:
        return left.pop(0)

    return receive


GONE = {"type": "http.disconnect"}


def part(body: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": body, "more_body": more}


@every_row(
    ("events", "body"),
    [
        ([part(b"ab", more=False)], b"ab"),
        ([{"type": "http.request"}], b""),
        ([part(b"a", more=True), part(b"b", more=True), part(b"", more=False)], b"ab"),
        ([part(b"a", more=True), GONE], None),
        ([GONE], None),
    ],
)
async def test_a_body_is_read_to_its_end(events: list[dict[str, Any]], body: bytes | None) -> None:
    assert await read_body(pieces(*events), {}, 4) == body


@pytest.mark.parametrize(
    "events", [[], [part(b"abcde", more=False)], [part(b"abc", more=True), part(b"de", more=True)]]
)
async def test_no_more_of_a_body_is_read_than_the_limit(events: list[dict[str, Any]]) -> None:
    headers = {} if events else {b"content-length": b"5"}

    with pytest.raises(TooLargeError):
        await read_body(pieces(*events), headers, 4)


PAGE = "http://localhost:3000"


async def test_an_allowed_page_gets_the_allowed_methods_and_headers(serve: Any) -> None:
    server = await serve(allowed_origins=[PAGE])

    reply = await server.request("OPTIONS", "/mcp", Origin=PAGE)

    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == PAGE
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert "authorization" in reply.headers["access-control-allow-headers"]


async def test_an_answer_may_be_seen_by_the_page_it_is_for(serve: Any) -> None:
    server = await serve(allowed_origins=[PAGE])

    whole = await server.ask("add", {"a": 1, "b": 2}, headers={"Origin": PAGE})
    stream = await server.call("chatter", token=1, headers={"Origin": PAGE})
    streamed = await stream.head()
    greeted = await server.greet(Origin=PAGE)

    assert (whole.data, whole.headers["access-control-allow-origin"]) == (3, PAGE)
    assert streamed.is_stream
    assert streamed.headers["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in greeted.greeting.headers["access-control-expose-headers"]


async def test_a_denied_page_gets_no_cors_headers(serve: Any) -> None:
    server = await serve()

    for method in ("OPTIONS", "POST"):
        reply = await server.request(method, "/mcp", {}, Origin="https://evil.example")
        assert reply.status == 403
        assert "access-control-allow-origin" not in reply.headers


async def test_a_request_without_an_origin_gets_no_cors_headers(serve: Any) -> None:
    server = await serve()

    reply = await server.ask("add", {"a": 1, "b": 2})

    assert "access-control-allow-origin" not in reply.headers


async def test_a_call_of_a_page_is_cancelled_when_the_page_goes(serve: Any, gates: Any, until: Any) -> None:
    server = await serve(allowed_origins=[PAGE])

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
        await asgi(yard, stateless=True, allowed_origins=[PAGE])(scope, receive, send)
    return sent


async def test_pages_get_the_same_headers_from_another_server() -> None:
    sent = await exchange(origin=PAGE)

    assert (b"access-control-allow-origin", PAGE.encode()) in sent[0]["headers"]


async def test_a_client_that_takes_events_alone_gets_one_from_another_server_too() -> None:
    head, body = await exchange(origin=PAGE, accept="text/event-stream")

    assert head["headers"][0] == (b"content-type", b"text/event-stream")
    assert (b"access-control-allow-origin", PAGE.encode()) in head["headers"]
    assert not {b"content-length", b"application/json"} & {text for pair in head["headers"] for text in pair}
    assert body["body"].startswith(b"event: message\r\ndata: {")


async def test_a_wrong_message_is_answered_in_json_by_another_server_too() -> None:
    head, body = await exchange(b"{", accept="text/event-stream")

    assert (head["status"], head["headers"][0]) == (400, (b"content-type", b"application/json"))
    assert b"-32700" in body["body"]
