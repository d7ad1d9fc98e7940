"""What a client sees at the public URL of a server: whether anything answers there, and whether a stream arrives."""

import asyncio
import http.client
import json
import ssl
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

from callyard.config.settings import Serving

__all__ = ["SECOND_EVENT", "STREAM_PATH", "is_callyard", "stream_problem"]

STREAM_PATH: Final = "/streamz"
"""A path of every server over HTTP that sends two events, so that a client sees whether a proxy holds streams back."""
SECOND_EVENT: Final = b"data: second\n\n"

_SECONDS: Final = 5.0
_STREAM_S: Final = 2.0
_HEALTH_S: Final = 1.0
_OK: Final = 200
_TEXT: Final = 200


def is_callyard(serving: Serving) -> bool:
    """Return whether a server of Callyard answers at the address of the settings; it waits, so use a thread."""
    connection = http.client.HTTPConnection(serving.host, serving.port, timeout=_HEALTH_S)
    try:
        with suppress(OSError, http.client.HTTPException, ValueError):
            connection.request("GET", "/healthz")
            response = connection.getresponse()
            return response.status == _OK and "status" in json.loads(response.read(1000))
    finally:
        connection.close()
    return False


async def stream_problem(url: str) -> tuple[str, str, str] | None:
    """Open a stream at a public URL; return what is wrong: its kind, the cause, and what mends it."""
    parts = urlsplit(url)
    context = ssl.create_default_context() if parts.scheme == "https" else None
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=context)
    except (OSError, TimeoutError) as error:
        reason = str(error) or "no answer in time"
        return "unreachable", f"'{url}' cannot be reached: {reason}.", f"curl -i {url}"
    try:
        path = parts.path.rstrip("/").removesuffix("/mcp")
        host = parts.netloc.rpartition("@")[2]
        writer.write(f"GET {path}{STREAM_PATH} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode("latin-1"))
        await writer.drain()
        return await _second_event(url, reader)
    except OSError as error:
        return "unreachable", f"'{url}' ends the connection: {error}.", f"curl -i {url}"
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


async def _second_event(url: str, reader: asyncio.StreamReader) -> tuple[str, str, str] | None:
    """Read until the second event, which the server sends a moment after the first."""
    received = b""
    with suppress(TimeoutError):
        async with asyncio.timeout(_STREAM_S):
            while SECOND_EVENT not in received:
                piece = await reader.read(65536)
                received += piece
                if not piece:
                    break
    if SECOND_EVENT in received:
        return None
    status = received[9:12].decode("ascii", "replace")
    if received and status != str(_OK):
        line = received.partition(b"\r\n")[0][:_TEXT].decode("latin-1")
        return "refuses", f"'{url}' answers '{line}'.", _mend(status, url)
    cause = f"A stream at '{url}' brings nothing within {_STREAM_S:.0f} seconds, so the proxy holds it back."
    return "buffers", cause, "proxy_buffering off;  # nginx, in the location of the server"


def _mend(status: str, url: str) -> str:
    if status in {"403", "421"}:
        return "Add the host to 'allowed_hosts', or let the proxy send the Host of 'public_url'."
    return f"curl -i {url}{STREAM_PATH}"
