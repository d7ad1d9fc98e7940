"""The HTTP server: a socket, the application on it, and an end in which every call is answered."""

import asyncio
import socket
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Final

from toolyard.serving import Serving
from toolyard.transports.address import Address
from toolyard.transports.auth import Guard, check_exposure
from toolyard.transports.http.app import App
from toolyard.yard import Yard

__all__ = ["Http", "listen_on"]

_BACKLOG: Final = 2048
_TICK: Final = 0.02
_IDLE_SECONDS: Final = 75


class Http:
    """Streamable HTTP on one address."""

    name = "http"

    def __init__(self, serving: Serving, guard: Guard | None = None, *, listener: socket.socket | None = None) -> None:
        check_exposure(None if serving.socket is not None else serving.host, guard)
        self._serving = serving
        self._guard = guard
        self._listener = listener or listen_on(serving)
        self._server: Any = None
        self._ended = asyncio.Event()

    def info(self) -> Address:
        """Return where it listens, as it really is."""
        if self._serving.socket is not None:
            return Address(self.name, f"unix:{self._serving.socket}")
        host, port = self._listener.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        scheme = "http" if self._serving.tls_cert is None else "https"
        return Address(self.name, f"{scheme}://{place}:{port}{self._endpoint}")

    @property
    def _endpoint(self) -> str:
        return "/mcp"

    def _make_app(self, yard: Yard) -> Any:
        return App(yard, self._serving, self._guard, host=None if self._serving.socket is not None else self._serving.host)

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until the server is closed."""
        app = self._make_app(yard)
        self._server = server = _make_server(app, self._serving)
        running = asyncio.ensure_future(server.serve(sockets=[self._listener]))
        try:
            ended = asyncio.ensure_future(self._ended.wait())
            await asyncio.wait({running, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        finally:
            await _finish(server, running, app, yard, self._serving.shutdown_seconds)
            if self._serving.socket is not None:
                Path(self._serving.socket).unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the end

    async def close(self) -> None:
        """End."""
        self._ended.set()
        self._listener.close()


async def _finish(server: Any, running: "asyncio.Future[None]", app: Any, yard: Yard, seconds: float) -> None:
    """Take no more, let calls finish, then interrupt them, so that each is answered."""
    for one in getattr(server, "servers", ()):
        one.close()
    app.end_listeners()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    with suppress(asyncio.CancelledError):
        while yard.calls_in_flight and loop.time() < deadline:  # noqa: ASYNC110 - once, at the end
            await asyncio.sleep(_TICK)
    with suppress(asyncio.CancelledError):
        await yard.dispatcher.close()
    server.should_exit = True
    with suppress(asyncio.CancelledError):
        await asyncio.shield(running)
    app.close()


def listen_on(serving: Serving) -> socket.socket:
    """Return the socket that the settings name, listening.

    Raises:
        OSError: It cannot be listened on.
    """
    if serving.socket is not None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path = Path(serving.socket)
        if path.is_socket():
            path.unlink()
        listener.bind(serving.socket)
        path.chmod(0o600)
    else:
        family = socket.AF_INET6 if ":" in serving.host else socket.AF_INET
        listener = socket.create_server((serving.host, serving.port), family=family, backlog=_BACKLOG)
    listener.listen(_BACKLOG)
    listener.setblocking(False)  # noqa: FBT003 - the socket's own interface
    return listener


def _make_server(app: App, serving: Serving) -> Any:
    import uvicorn  # noqa: PLC0415 - only a server that speaks HTTP needs it

    from toolyard.transports.http.protocol import protocol_of  # noqa: PLC0415

    class Server(uvicorn.Server):
        """A server that leaves the signals to us."""

        def capture_signals(self) -> Any:
            """Do nothing."""
            return nullcontext()

    config = uvicorn.Config(
        app,  # pyright: ignore[reportArgumentType] - its types are narrower than ASGI's
        http=protocol_of(serving.header_seconds),
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=1,
        ssl_certfile=serving.tls_cert,
        ssl_keyfile=serving.tls_key,
    )
    config.load()
    if config.ssl is not None:
        import ssl  # noqa: PLC0415 - only where TLS is spoken

        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return Server(config)
