"""Fixtures of the transports: a yard to serve, a real server on the loopback address, and a client on a bare socket."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import suppress
from typing import Any, cast

import pytest
from shared_fixtures import TIMEOUT

from callyard import Call, Operation, Profile, Record, Serving, ToolError, Toolset, Yard, tool
from callyard.launch.serve import serve_forever
from callyard.providers import Publish
from callyard.transports import Transport

MODERN = "2026-07-28"
BOTH = "application/json, text/event-stream"
META = "io.modelcontextprotocol/"


class Gates:
    """What the tools of the tests wait for, so that no test has to guess how long something takes."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.steps: asyncio.Queue[None] = asyncio.Queue()
        self.running = 0


class Stubborn:
    """A tool that goes on whatever is said, until it is let go."""

    def __init__(self) -> None:
        self.is_running = False
        self.end = asyncio.Event()

    @tool
    async def stubborn(self) -> str:
        """Go on whatever is said."""
        self.is_running = True
        while not self.end.is_set():
            with suppress(asyncio.CancelledError):
                await self.end.wait()
        return "at last"


class Reply:
    """A response: its status, its headers in small letters, and its body once it was read."""

    def __init__(self, status: int, headers: list[tuple[str, str]]) -> None:
        self.status = status
        self.pairs = headers
        self.headers = dict(headers)
        self.body = b""

    @property
    def json(self) -> Any:
        """Return what the body says."""
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        """Return the code of the JSON-RPC error."""
        return self.json["error"]["code"]

    @property
    def data(self) -> Any:
        """Return the data of the envelope of a tool call."""
        return self.json["result"]["structuredContent"]["data"]

    @property
    def is_stream(self) -> bool:
        """Return whether events follow."""
        return self.headers.get("content-type") == "text/event-stream"


class Wire:
    """One connection, spoken to in bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._chunked = False
        self._text = b""

    async def send(self, method: str, path: str, headers: Mapping[str, str | None], body: bytes | None = None) -> None:
        """Send a request; a header that is none is left out."""
        lines = [f"{method} {path} HTTP/1.1"]
        length = {} if body is None else {"Content-Length": str(len(body))}
        lines += [f"{name}: {value}" for name, value in {**length, **headers}.items() if value is not None]
        await self.write("\r\n".join([*lines, "", ""]).encode() + (body or b""))

    async def write(self, raw: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(raw)
        async with asyncio.timeout(TIMEOUT):
            await self.writer.drain()

    async def head(self) -> Reply:
        """Return the next response without its body."""
        async with asyncio.timeout(TIMEOUT):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *rest = raw.decode("latin-1").rstrip().split("\r\n")
        reply = Reply(
            int(first.split(" ")[1]),
            [(name.lower(), value) for name, _, value in (line.partition(": ") for line in rest)],
        )
        self._chunked = reply.headers.get("transfer-encoding") == "chunked"
        return reply

    async def reply(self) -> Reply:
        """Return the next response, whole."""
        reply = await self.head()
        async with asyncio.timeout(TIMEOUT):
            if self._chunked:
                while piece := await self._chunk():
                    reply.body += piece
            else:
                reply.body = await self.reader.readexactly(int(reply.headers.get("content-length", "0")))
        return reply

    async def event(self) -> dict[str, str] | None:
        """Return the next event by its fields, a comment under '', or nothing at the end of the stream."""
        async with asyncio.timeout(TIMEOUT):
            while b"\r\n\r\n" not in self._text:
                piece = await self._chunk()
                if not piece:
                    return None
                self._text += piece
        block, _, self._text = self._text.partition(b"\r\n\r\n")
        fields = (line.partition(":") for line in block.decode().split("\r\n"))
        return {name: value.removeprefix(" ") for name, _, value in fields}

    async def message(self) -> Any:
        """Return what the next event that holds a message says, or nothing at the end of the stream."""
        async with asyncio.timeout(TIMEOUT):
            while (event := await self.event()) is not None:
                if event.get("data"):
                    return json.loads(event["data"])
        return None

    async def messages(self) -> list[Any]:
        """Return all messages until the end of the stream."""
        found: list[Any] = []
        while (message := await self.message()) is not None:
            found.append(message)
        return found

    async def ends(self) -> bytes:
        """Wait until the server closes, and return what it still said."""
        async with asyncio.timeout(TIMEOUT):
            with suppress(ConnectionError):
                return await self.reader.read()
        return b""

    async def close(self) -> None:
        """Go away."""
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()

    async def _chunk(self) -> bytes:
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        piece = await self.reader.readexactly(size + 2)
        return piece[:-2]


class Session:
    """An older client that has shaken hands."""

    def __init__(self, server: "Server", reply: Reply, version: str, headers: Mapping[str, str], *, path: str) -> None:
        self._server = server
        self._path = path
        self.greeting = reply
        self.id = reply.headers["mcp-session-id"]
        self.headers: dict[str, str | None] = {"Mcp-Session-Id": self.id, "MCP-Protocol-Version": version, **headers}

    async def ask(self, method: str, params: object = None, *, id: object = 1, **headers: str | None) -> Reply:  # noqa: A002 - its name on the wire
        """Return the whole response to a request."""
        return await (await self.begin(method, params, id=id, **headers)).reply()

    async def begin(self, method: str, params: object = None, *, id: object = 1, **headers: str | None) -> Wire:  # noqa: A002 - its name on the wire
        """Send a request on a connection of its own, and return that."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        return await self._server.send("POST", self._path, {**self.headers, **headers}, message)

    async def note(self, method: str, params: object = None) -> Reply:
        """Send a notification."""
        message: dict[str, Any] = {"jsonrpc": "2.0", "method": method, "params": params or {}}
        return await (await self._server.send("POST", self._path, self.headers, message)).reply()

    async def call(
        self,
        name: str,
        arguments: object = None,
        *,
        id: object = 1,  # noqa: A002 - its name on the wire
        token: object = None,
        **headers: str | None,
    ) -> Wire:
        """Call a tool on a connection of its own, and return that."""
        meta = {} if token is None else {"_meta": {"progressToken": token}}
        return await self.begin("tools/call", {"name": name, "arguments": arguments or {}, **meta}, id=id, **headers)

    async def stream(self, after: str | None = None) -> Wire:
        """Open the stream that belongs to no request, or go on after an event."""
        headers = {**self.headers, "Accept": "text/event-stream", "Last-Event-ID": after, "Content-Type": None}
        return await self._server.send("GET", self._path, headers)


class Server:
    """A server that runs in this process, on a port of its own."""

    def __init__(self, yard: Yard, records: list[Record]) -> None:
        self.yard = yard
        self.records = records
        self.transport = cast("Transport", None)
        self.task: asyncio.Task[None] | None = None
        self._wires: list[Wire] = []

    @property
    def address(self) -> str:
        """Return where it says that it listens."""
        return self.transport.info().address

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return int(self.address.rpartition(":")[2].partition("/")[0])

    @property
    def host(self) -> str:
        """Return what a client on this machine calls it."""
        return f"127.0.0.1:{self.port}"

    async def connect(self, **options: Any) -> Wire:
        """Connect, as told or where it listens."""
        if "path" in options:
            reader, writer = await asyncio.open_unix_connection(options["path"])
        else:
            chosen: dict[str, Any] = {"host": "127.0.0.1", "port": self.port, **options}
            reader, writer = await asyncio.open_connection(**chosen)
        wire = Wire(reader, writer)
        self._wires.append(wire)
        return wire

    async def send(self, method: str, path: str, headers: Mapping[str, str | None], message: object = None) -> Wire:
        """Send a request on a connection of its own, and return that; a message that is bytes is sent as it is."""
        body = message if isinstance(message, bytes) or message is None else json.dumps(message).encode()
        wire = await self.connect()
        usual = {"Host": self.host, "Accept": BOTH, "Content-Type": "application/json"}
        await wire.send(method, path, {**usual, **headers}, body)
        return wire

    async def request(self, method: str, path: str, message: object = None, **headers: str | None) -> Reply:
        """Return the whole response to a request; in the names of headers '_' stands for '-'."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await (await self.send(method, path, named, message)).reply()

    async def modern(self, method: str, params: Any = None, **options: Any) -> Wire:
        """Send a request of the newer era, whole with its headers; a header of that name replaces ours."""
        params, meta, headers = dict(params or {}), dict(options.pop("meta", {})), dict(options.pop("headers", {}))
        said = {
            f"{META}protocolVersion": MODERN,
            f"{META}clientCapabilities": {},
            f"{META}clientInfo": {"name": "t", "version": "1"},
        }
        params["_meta"] = {**said, **meta}
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": options.pop("id", 1), "method": method, "params": params}
        name = params.get("name", params.get("uri"))
        return await self.send(
            "POST",
            options.pop("path", "/mcp"),
            {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, "Mcp-Name": name, **headers},
            message,
        )

    async def call(self, name: str, arguments: object = None, *, token: object = None, **options: Any) -> Wire:
        """Call a tool in the newer era."""
        meta = {**options.pop("meta", {}), **({} if token is None else {"progressToken": token})}
        return await self.modern("tools/call", {"name": name, "arguments": arguments or {}}, meta=meta, **options)

    async def ask(self, name: str, arguments: object = None, **options: Any) -> Reply:
        """Call a tool in the newer era, and return the whole response."""
        return await (await self.call(name, arguments, **options)).reply()

    async def greet(
        self, version: str = "2025-11-25", *, path: str = "/mcp", capabilities: object = None, **headers: str
    ) -> Session:
        """Shake hands as an older client, and say that it is done."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        params = {
            "protocolVersion": version,
            "capabilities": capabilities or {},
            "clientInfo": {"name": "t", "version": "1"},
        }
        message: dict[str, Any] = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        session = Session(
            self, await (await self.send("POST", path, named, message)).reply(), version, named, path=path
        )
        assert (await session.note("notifications/initialized")).status == 202
        return session

    async def stop(self) -> None:
        """End the server, as a signal would, while its clients are still there."""
        if self.task is not None:
            self.task.cancel()
            with suppress(asyncio.CancelledError):
                await self.task

    async def leave(self) -> None:
        """Close every connection."""
        for wire in self._wires:
            await wire.close()


@pytest.fixture
async def wire_of() -> AsyncGenerator[Callable[..., Any]]:
    """Return how a connection is made to a port of this machine."""
    wires: list[Wire] = []

    async def connect(port: int) -> Wire:
        wires.append(Wire(*await asyncio.open_connection("127.0.0.1", port)))
        return wires[-1]

    yield connect
    for wire in wires:
        await wire.close()


@pytest.fixture
def spy(monkeypatch: pytest.MonkeyPatch) -> Callable[[type, str], list[Any]]:
    """Return how a method is watched: the list of all that it was called on, or with."""

    def watch(owner: type, name: str) -> list[Any]:
        seen: list[Any] = []
        method = getattr(owner, name)

        def noted(self: Any, *arguments: Any) -> Any:
            seen.append(arguments[0] if arguments else self)
            return method(self, *arguments)

        monkeypatch.setattr(owner, name, noted)
        return seen

    return watch


@pytest.fixture(name="memory")
def make_memory() -> Generator[Callable[[], int]]:
    """Return a function for the peak of traced bytes; the memory of the process would hide the bytes that it reuses."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


@pytest.fixture
async def stubborn() -> AsyncGenerator[Stubborn]:
    """Return a tool that does not listen to its interruption; in the end it is let go."""
    made = Stubborn()
    yield made
    made.end.set()


@pytest.fixture
async def gates() -> Gates:
    """Return what tools wait for."""
    return Gates()


class Extra:
    """A provider that publishes more tools when it is told to."""

    name = "extra"

    def __init__(self) -> None:
        self.publish = cast("Publish", None)

    def open(self, publish: Publish) -> "Extra":
        """Keep how tools are published."""
        self.publish = publish
        return self

    def show(self, *functions: Any) -> None:
        """Publish these tools, and no others of ours."""
        from callyard.providers.functions.provider import tool_from  # noqa: PLC0415 - an inner name, needed here alone

        self.publish([tool_from(function, source=self.name) for function in functions])

    async def __aenter__(self) -> None:
        """Do nothing."""

    async def __aexit__(self, *exc: object) -> None:
        """Do nothing."""


@pytest.fixture
def extra() -> Extra:
    """Return a provider that publishes later."""
    return Extra()


@pytest.fixture
def talkative(gates: Gates) -> list[Any]:
    """Return tools that say a lot."""

    @tool
    async def chatter(call: Call, count: int = 3, size: int = 1) -> str:
        """Talk, and then answer at once."""
        gates.running += 1
        for number in range(count):
            call.progress(number + 1, count, "x" * size)
            await asyncio.sleep(0)  # a turn of the loop, so that it is sent alone
        gates.running -= 1
        return "said"

    @tool
    async def tell(call: Call, count: int, size: int = 1) -> str:
        """Tell something, wait until it is let go, and tell a lot."""
        call.log("info", "begun")
        gates.running += 1
        try:
            await gates.go.wait()
            for number in range(count):
                call.log("info", "x" * size, n=number)
                await asyncio.sleep(0)  # a turn of the loop, so that it is sent alone
        finally:
            gates.running -= 1
        return "told"

    return [chatter, tell]


@pytest.fixture
def tools(gates: Gates, talkative: list[Any]) -> list[Any]:
    """Return tools that do what clients complain about."""

    @tool(operation="query")
    async def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    @tool
    async def wait(call: Call, fails: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument on the wire
        """Wait until it is let go."""
        gates.running += 1
        try:
            await gates.go.wait()
        finally:
            gates.running -= 1
        if fails:
            raise ToolError("state_error", "No.")
        return "done"

    @tool
    async def step(call: Call, count: int = 3, size: int = 1) -> str:
        """Say how far it is, one step for each time it is let go on."""
        for number in range(count):
            await gates.steps.get()
            call.progress(number + 1, count, "x" * size)
        await gates.steps.get()
        return "stepped"

    return [add, wait, step, *talkative]


CONSTANTS = {
    "event_count": ("callyard.transports.http.sessions._MAX_EVENTS",),
    "event_seconds": ("callyard.transports.http.sessions._EVENT_SECONDS",),
    "head_seconds": ("callyard.transports.http.server._HEAD_SECONDS",),
    "hold_back": ("callyard.transports.http.response.HOLD_BACK_S", "callyard.transports.http.handshake.HOLD_BACK_S"),
    "in_flight": ("callyard.server.stream.MAX_IN_FLIGHT",),
    "cleanup": ("callyard.dispatch.execution.CLEANUP_S",),
}
"""Constants that tests change, so that something happens soon."""


@pytest.fixture
def set_constant(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, float], None]:
    """Return what changes one of `CONSTANTS` for the rest of a test."""

    def change(name: str, value: float) -> None:
        for place in CONSTANTS[name]:
            monkeypatch.setattr(place, value)

    return change


@pytest.fixture
async def serve(
    tools: list[Any], extra: Extra, set_constant: Callable[[str, float], None]
) -> AsyncGenerator[Callable[..., Any]]:
    """Return how a yard is served: by default one with the tools of the tests, over HTTP on a free port.

    Keywords are settings, or the name of one of `CONSTANTS` with the value that it has in the test.
    """
    servers: list[Server] = []

    async def start(yard: Yard | None = None, authenticator: Any = None, **settings: Any) -> Server:
        records: list[Record] = []
        readers = Profile(name="readers", toolsets=(Toolset(name="queries", operations=(Operation.QUERY,)),))
        if yard is None:
            yard = Yard("yard", tools=tools, providers=[extra], profiles=[readers])
        yard.add_sink(records.append)
        server = Server(yard, records)
        ready = asyncio.get_running_loop().create_future()
        for name in CONSTANTS.keys() & settings.keys():
            set_constant(name, settings.pop(name))
        chosen: dict[str, Any] = {"transport": "http", "port": 0, **settings}
        serving = Serving(**chosen)

        def note(transport: Transport) -> None:
            server.transport = transport
            ready.set_result(None)

        server.task = asyncio.create_task(serve_forever(yard, serving, authenticator, ready=note))
        await asyncio.wait({server.task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            server.task.result()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.leave()
        await server.stop()
