"""The limits: read a request and send a prepared answer, without a protocol, checks or tools.

No program that parses JSON in Python and answers over the same pipes and sockets can be much faster.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from contract import parse, serve_asgi

_MEGABYTE: Final = 1_000_000
_READ: Final = 1 << 18
_FIRST: Final = b'"id":10000000'
"""Where a stored reply has the id of the request it once answered."""

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


class _Arguments(msgspec.Struct):
    seconds: float = 0.0


class _Params(msgspec.Struct):
    name: str = ""
    arguments: _Arguments | None = None


class _Request(msgspec.Struct):
    method: str
    id: int | None = None
    params: _Params | None = None


_decode: Final = msgspec.json.Decoder(_Request).decode


class Limit:
    """Prepared answers, except for the id."""

    def __init__(self, reply: str) -> None:
        texts = {"add": "3", "blob": "." * _MEGABYTE, "measure": str(_MEGABYTE), "slow": "awake"}
        self._parts = {name: _split(msgspec.json.encode(_answer(text))) for name, text in texts.items()}
        self._other = _split(Path(reply).read_bytes()) if reply else self._parts["add"]

    def answer(self, body: bytes | bytearray) -> tuple[bytes, float]:
        """Return the answer, or nothing for a notification, and the seconds to wait before it."""
        request = _decode(body)
        if request.id is None:
            return b"", 0.0
        params = request.params
        before, after = self._parts.get(params.name, self._other) if params is not None else self._other
        wait = params.arguments.seconds if params is not None and params.arguments is not None else 0.0
        return b'%b"id":%d%b' % (before, request.id, after), wait

    async def __call__(self, _scope: object, receive: Receive, send: Send) -> None:
        """Answer one ASGI request."""
        event = await receive()
        body: bytes = event["body"]
        if event.get("more_body"):
            parts = [body]
            while event.get("more_body"):
                event = await receive()
                parts.append(event["body"])
            body = b"".join(parts)
        answer, wait = self.answer(body)
        if wait:
            await asyncio.sleep(wait)  # the slow tool of the contract
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200 if answer else 202, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def stdio(self) -> None:
        """Answer the lines of stdin until it ends, with one write for all lines of one read."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        parts: list[bytes] = []

        def read() -> None:
            piece = os.read(0, _READ)
            if not piece:
                ended.set_result(None)
                return
            parts.append(piece)
            if b"\n" not in piece:
                return
            *lines, rest = b"".join(parts).split(b"\n")
            parts[:] = [rest]
            out: list[bytes] = []
            for line in lines:
                answer, wait = self.answer(line)
                if wait:
                    loop.call_later(wait, _write, answer + b"\n")
                elif answer:
                    out.append(answer + b"\n")
            _write(b"".join(out))

        loop.add_reader(0, read)
        await ended


def _answer(text: str) -> dict[str, Any]:
    result = {"content": [{"type": "text", "text": text}], "structuredContent": {"result": text}, "isError": False}
    return {"jsonrpc": "2.0", "id": 10_000_000, "result": result}


def _split(reply: bytes) -> tuple[bytes, bytes]:
    before, _, after = reply.strip().partition(_FIRST)
    return before, after


def _write(answer: bytes) -> None:
    left = memoryview(answer)
    while left:
        left = left[os.write(1, left) :]


def main() -> None:
    start = parse()
    limit = Limit(start.reply)
    if start.stdio:
        import_module("uvloop").run(limit.stdio())
    else:
        serve_asgi(limit, start.port, lifespan="off")


if __name__ == "__main__":
    main()
