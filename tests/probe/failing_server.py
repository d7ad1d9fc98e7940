"""An MCP server that fails as it is told: `failing_server.py MODE ERA` on stdio, or `serve` over HTTP.

It imports nothing but the standard library, so that it starts quickly.
"""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

NEEDED: Final[dict[str, Any]] = {
    "name": "needed",
    "description": "What everybody calls.",
    "inputSchema": {"type": "object", "properties": {"number": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True},
}
WRITES: Final[dict[str, Any]] = {"name": "writes", "description": "Writes.", "inputSchema": {"type": "object"}}
CHANGED: Final[dict[str, Any]] = {
    **NEEDED,
    "inputSchema": {
        "type": "object",
        "properties": {"number": {"type": "integer"}, "key": {"type": "string"}},
        "required": ["key"],
    },
}
NARROW: Final[dict[str, Any]] = {**NEEDED, "inputSchema": {"type": "object", "properties": {"number": {"maximum": 0}}}}
EVIL_NAME: Final = "\x1b]0;owned\x07evil\u202e"
GONE: Final = "exit"
"""The answer of a server that ends."""

Message = dict[str, Any]


class Server:
    """Answers messages of one client."""

    def __init__(self, mode: str, era: str) -> None:
        self.mode = mode
        self.era = era
        self.methods: list[str] = []

    def answer(self, message: Message) -> Any:
        """Return the response, None if there is none, or `GONE`."""
        method = message.get("method", "")
        self.methods.append(method)
        if "id" not in message or self.mode == "silent":
            return None
        result = self._result(method, message.get("params") or {})
        if result is None or result == GONE:
            return result
        return {"jsonrpc": "2.0", "id": message["id"], **result}

    def _result(self, method: str, params: Message) -> Any:
        if method in {"initialize", "server/discover"}:
            return self._handshake(method)
        if method == "tools/list":
            return self._tools(params)
        if method == "tools/call":
            return self._call(params)
        return fault(-32601, "There is no such method.")

    def _handshake(self, method: str) -> Any:
        if self.mode == "initialize":
            return fault(-32603, "The database is away.")
        if self.mode == "protocol":
            return {"result": 7}
        modern = self.era == "2026"
        if modern is (method == "initialize"):
            return fault(-32601, "There is no such method.")
        if self.mode == "version":
            return fault(-32022, "Unsupported.", {"supported": ["2031-01-01"]}) if modern else old("1999-01-01")
        if not modern:
            return old("2025-11-25")
        return {
            "result": {
                "supportedVersions": ["2026-07-28"],
                "capabilities": {"tools": {}},
                "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "failing", "version": "1"}},
            }
        }

    def _tools(self, params: Message) -> Any:
        page = int(params.get("cursor", "0"))
        if self.mode == "list":
            return fault(-32603, "The tools are away.")
        if self.mode == "dies":
            return GONE
        if self.mode == "endless":
            return {"result": {"tools": [{**NEEDED, "name": f"tool{page}"}], "nextCursor": str(page + 1)}}
        if self.mode == "circle":
            return {"result": {"tools": [], "nextCursor": "1"}}
        if self.mode == "pages" and page < 3:
            return {"result": {"tools": [{**NEEDED, "name": f"tool{page}"}], "nextCursor": str(page + 1)}}
        first = {"changed": CHANGED, "narrow": NARROW, "missing": {**NEEDED, "name": "other"}}.get(self.mode, NEEDED)
        more = [{**WRITES, "name": EVIL_NAME}] if self.mode == "evil" else []
        return {"result": {"tools": [first, WRITES, *more]}}

    def _call(self, params: Message) -> Any:
        name = params.get("name")
        if self.mode == "rejects":
            return failed(f"Input validation error: Invalid arguments for tool {name}: number is required")
        if self.mode == "rejects_fault":
            return fault(-32602, f"Invalid arguments for tool {name}")
        if self.mode == "unregistered":
            return failed(f"MCP error -32602: Tool {name} not found")
        if self.mode == "fails":
            return failed("The database is locked.")
        if self.mode == "hangs":
            return None
        if self.mode == "slow":
            time.sleep(1.5)  # it is a slow server
        return {"result": {"content": [{"type": "text", "text": "done"}]}}


def fault(code: int, message: str, data: Any = None) -> Message:
    return {"error": {"code": code, "message": message, **({} if data is None else {"data": data})}}


def failed(text: str) -> Message:
    return {"result": {"isError": True, "content": [{"type": "text", "text": text}]}}


def old(version: str) -> Message:
    info = {"name": "failing", "version": "1"}
    return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}


Statuses = dict[str, tuple[int, dict[str, str], bytes]]
RESOURCE: Final = "/.well-known/oauth-protected-resource/mcp"
STATUSES: Final[Statuses] = {
    "html": (200, {"content-type": "text/html"}, b"<!doctype html><title>Welcome</title>"),
    "http_404": (404, {"content-type": "text/html"}, b"<title>Not found</title>"),
    "http_500": (500, {}, b"Oops."),
    "limited": (429, {"retry-after": "7"}, b""),
    "overloaded": (503, {"retry-after": "9"}, b""),
    "redirects": (301, {"location": "http://169.254.169.254/latest"}, b""),
    "redirects_307": (307, {"location": "http://169.254.169.254/latest"}, b""),
    "no_hint": (401, {}, b""),
    "basic": (401, {"www-authenticate": 'Basic realm="x"'}, b""),
    "forbidden": (403, {}, b""),
}
"""What servers answer over HTTP whatever they are sent."""


class HttpServer:
    """The same over HTTP."""

    def __init__(self, mode: str, era: str, url: Callable[[], str]) -> None:
        self.requests: list[str] = []
        self.mcp = Server(mode, era)
        self.mode = mode
        self.url = url
        self.token = "secret"  # noqa: S105 - of the tests

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        if self.mode == "greets":
            writer.write(b"220 mail.example ESMTP\r\n")
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().split("\r\n")
                headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.requests.append(lines[0])
                if not await self._answer(lines[0], headers, body, writer):
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, first: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection goes on."""
        if self.mode == "not_http":
            writer.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
            return False
        if self.mode == "huge":
            await self._flood(writer)
            return False
        method, target, _ = first.split(" ")
        fixed = self._fixed(method, target, headers)
        if fixed is not None:
            return respond(writer, *fixed)
        return await self._answer_message(json.loads(body), writer)

    def _fixed(self, method: str, target: str, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes] | None:
        """Return a response that does not depend on the message, if there is one."""
        if target.startswith("/.well-known"):
            return self._metadata(target)
        if self.mode in STATUSES:
            return STATUSES[self.mode]
        is_refused = (
            self.mode in {"auth", "private_metadata"} and headers.get("authorization") != f"Bearer {self.token}"
        )
        if is_refused:
            place = "http://10.255.255.1/x" if self.mode == "private_metadata" else f"{self.url()}{RESOURCE}"
            return 401, {"www-authenticate": f'Bearer resource_metadata="{place}"'}, b""
        return None if method == "POST" else (200 if method == "DELETE" else 405, {}, b"")

    async def _answer_message(self, message: Message, writer: asyncio.StreamWriter) -> bool:
        answer = self.mcp.answer(message)
        if answer == GONE:
            return False
        if answer is None and "id" in message:
            await asyncio.Event().wait()  # never answers
        session = {} if self.mcp.era == "2026" else {"mcp-session-id": "s1"}
        if answer is None:
            return respond(writer, 202, session, b"")
        text = b'{"jsonrpc": "1.0"}' if self.mode == "protocol" else json.dumps(answer).encode()
        return respond(writer, 200, {"content-type": "application/json", **session}, text)

    def _metadata(self, target: str) -> tuple[int, dict[str, str], bytes]:
        if self.mode == "no_metadata":
            return 404, {}, b""
        if target == RESOURCE:
            document: Any = {"resource": f"{self.url()}/mcp", "authorization_servers": [self.url()]}
        else:
            document = {"issuer": self.url(), "token_endpoint": f"{self.url()}/token"}
        return 200, {"content-type": "application/json"}, json.dumps(document).encode()

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        """Send a gigabyte, unless the client closes the connection."""
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1073741824\r\n\r\n")
        for _ in range(1024):
            writer.write(b" " * 1024 * 1024)
            await writer.drain()


def respond(writer: asyncio.StreamWriter, status: int, headers: dict[str, str], body: bytes) -> bool:
    """Write a response."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {status} X\r\n{lines}content-length: {len(body)}\r\n\r\n".encode() + body)
    return True


@asynccontextmanager
async def serving(mode: str, era: str, **options: Any) -> AsyncGenerator[tuple[str, HttpServer]]:
    """Serve over HTTP at a free port while the context is open; return the URL and the server."""
    scheme = "https" if "ssl" in options else "http"
    handler = HttpServer(mode, era, lambda: f"{scheme}://127.0.0.1:{port}")
    connections: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        task.add_done_callback(connections.discard)
        await handler.serve(reader, writer)

    server = await asyncio.start_server(serve, "127.0.0.1", options.pop("port", 0), **options)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"{handler.url()}/mcp", handler
    finally:
        server.close()
        for task in tuple(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)
        await server.wait_closed()


def main() -> None:
    mode, era = sys.argv[1:3]
    server = Server(mode, era)
    if mode == "exits":
        sys.stderr.write("There is no key.\n")
        raise SystemExit(3)
    if mode == "not_mcp":
        while True:
            sys.stdout.write("Welcome!\n")
            sys.stdout.flush()
    for line in sys.stdin:
        answer = server.answer(json.loads(line))
        if answer == GONE:
            raise SystemExit(4)
        if answer is not None:
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
