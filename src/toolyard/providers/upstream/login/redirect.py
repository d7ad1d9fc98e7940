"""The redirect: where the browser comes back to after somebody signed in, on this machine and for this one login."""

import asyncio
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final
from urllib.parse import parse_qs, urlsplit

from toolyard.providers.upstream.login.troubles import LoginError

__all__ = ["Redirect", "opened_redirect"]

_HOST: Final = "127.0.0.1"
_PATH: Final = "/callback"
_HEAD_BYTES: Final = 16 * 1024
_SECONDS: Final = 10.0
_PAGE: Final = "<!doctype html><meta charset=utf-8><title>Toolyard</title><p>{}</p>"
_DONE: Final = "Toolyard has what it needs. You can close this page and go back to the terminal."
_STRANGE: Final = "This is not what Toolyard waits for."


class Redirect:
    """Waits for a browser that brings the right state."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(32)
        self.uri = ""
        self._came: asyncio.Future[Mapping[str, str]] = asyncio.get_running_loop().create_future()

    async def wait(self, seconds: float) -> Mapping[str, str]:
        """Return what the browser brought.

        Raises:
            LoginError: It did not come in time.
        """
        try:
            async with asyncio.timeout(seconds):
                return await self._came
        except TimeoutError:
            raise LoginError(f"Nobody signed in within {seconds:g} seconds.") from None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request; whatever does not bring the state is sent away, and the wait goes on."""
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                brought = self._read(head)
                status, text = ("200 OK", _DONE) if brought is not None else ("400 Bad Request", _STRANGE)
                writer.write(_response(status, _PAGE.format(text)))
                await writer.drain()
                if brought is not None and not self._came.done():
                    self._came.set_result(brought)
        writer.close()

    def _read(self, head: bytes) -> Mapping[str, str] | None:
        method, _, rest = head.partition(b"\r\n")[0].decode("latin-1").partition(" ")
        target = urlsplit(rest.partition(" ")[0])
        found = parse_qs(target.query, keep_blank_values=True)
        single = {name: values[0] for name, values in found.items() if len(values) == 1}
        if (method, target.path) != ("GET", _PATH) or len(single) != len(found):
            return None
        return single if secrets.compare_digest(single.get("state", "").encode(), self.state.encode()) else None


@asynccontextmanager
async def opened_redirect(port: int, *, kept: str | None) -> AsyncGenerator[Redirect]:
    """Listen on a port, or on any: first on that of an address that was registered already.

    Raises:
        LoginError: The port is taken.
    """
    redirect = Redirect()
    server = await _listening(redirect, port, kept)
    try:
        redirect.uri = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}{_PATH}"
        yield redirect
    finally:
        server.close()
        await server.wait_closed()


async def _listening(redirect: Redirect, port: int, kept: str | None) -> asyncio.Server:
    if not port and kept is not None:
        with suppress(OSError, ValueError):
            return await asyncio.start_server(redirect.serve, _HOST, urlsplit(kept).port, limit=_HEAD_BYTES)
    try:
        return await asyncio.start_server(redirect.serve, _HOST, port, limit=_HEAD_BYTES)
    except OSError as error:
        raise LoginError(f"The port {port}, to which the browser is to come back, cannot be used: {error.strerror}.") from error


def _response(status: str, page: str) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {len(page.encode())}\r\n"
        "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nConnection: close\r\n\r\n"
    )
    return f"{head}{page}".encode()
