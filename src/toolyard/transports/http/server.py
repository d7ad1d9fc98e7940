"""The HTTP server: a socket, the application on it, and an end in which every call is answered."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolyard.config.settings import Serving
from toolyard.transports import Address
from toolyard.transports.auth import Authenticator, check_exposure
from toolyard.transports.http.app import App
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.transports.http.protocol import Connection

__all__ = ["Http", "ServerState", "listen_on"]


_TURNS: Final = 5
_BODIES: Final = 64
_TICK: Final = 0.01
_BODY_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 75.0
_UNREAD_SECONDS: Final = 30.0


class ServerState:
    """The application, the settings and the connections of one server."""

    def __init__(self, app: Any, serving: Serving, *, is_secure: bool) -> None:
        self.app = app
        self.serving = serving
        self.scheme = "https" if is_secure else "http"
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self.receiving = 0
        """Bytes of bodies that are not whole yet, or wait to be worked on."""
        self.room = serving.message_bytes * _BODIES
        self.unread_seconds = _UNREAD_SECONDS
        self.head_seconds = serving.header_seconds or _IDLE_SECONDS

    def seconds_for(self, state: str) -> float:
        """Return how long a connection may be in a state: sending a head or a body, or idle."""
        if state == "head":
            return self.head_seconds
        return _BODY_SECONDS if state == "body" else _IDLE_SECONDS

    def make_room(self) -> None:
        """End the connection that holds most of what is not worked on yet, so that it does not keep the others out."""
        max(self.connections, key=lambda connection: connection.held).refuse_body()

    async def settle(self, seconds: float) -> None:
        """Let answers be written, for so long, and then answer in the place of calls that do not end."""
        self.is_closing = True
        for connection in tuple(self.connections):
            connection.close_when_done()
        deadline = self.loop.time() + seconds
        while any(map(_is_owed, self.connections)) and self.loop.time() < deadline:  # noqa: ASYNC110 - nobody tells when the last is done
            await asyncio.sleep(_TICK)  # once, at the end
        for connection in tuple(self.connections):
            cycle = connection.cycle
            if cycle is not None and (answer := self.app.answer_unended(cycle)) is not None:
                cycle.give_up(answer)

    async def close(self) -> None:
        """End every connection, once what is written has gone out."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # turns of the loop, in which it goes out
        for connection in tuple(self.connections):
            connection.abort()
        for _ in range(_TURNS):
            await asyncio.sleep(0)  # so that they hear of it, and whoever came in the last moment, too


def _is_owed(connection: "Connection") -> bool:
    """Return whether a client waits for the answer to a message; other streams end when the application does."""
    return connection.cycle is not None and connection.cycle.method == "POST"


_BACKLOG: Final = 2048
_SETTLES: Final = 1.0


class Http:
    """Streamable HTTP on one address."""

    name = "http"
    endpoint = "/mcp"

    def __init__(self, serving: Serving, authenticator: Authenticator | None = None, *, listener: socket.socket | None = None) -> None:
        check_exposure(None if serving.socket is not None else serving.host, authenticator)
        self.serving = serving
        self.authenticator = authenticator
        self._ssl = _tls(serving)
        self.listener = listener or listen_on(serving)
        """The socket, which listens already."""
        self._owns_socket = listener is None
        self._address = Address(self.name, self._place())
        self._ended: asyncio.Event | None = None
        self._is_over = False

    def info(self) -> Address:
        """Return where it listens, as it really is, or where it did."""
        return self._address

    @property
    def host(self) -> str | None:
        """Return the address that it listens on, or nothing on a unix socket."""
        return None if self.serving.socket is not None else self.serving.host

    def make_app(self, yard: Yard) -> Any:
        """Return the application."""
        return App(yard, self.serving, self.authenticator, host=self.host)

    def _place(self) -> str:
        if self.serving.socket is not None:
            return f"unix:{self.serving.socket}"
        host, port = self.listener.getsockname()[:2]
        place = f"[{host}]" if ":" in host else host
        scheme = "http" if self.serving.tls_cert is None else "https"
        return f"{scheme}://{place}:{port}{self.endpoint}"

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until the server is closed."""
        from toolyard.transports.http.protocol import Connection  # noqa: PLC0415 - the parser is loaded by servers alone

        self._ended = asyncio.Event()
        if self._is_over:
            self._ended.set()
        app = self.make_app(yard)
        house = ServerState(app, self.serving, is_secure=self._ssl is not None)
        loop = asyncio.get_running_loop()
        patience = None if self._ssl is None else house.head_seconds
        server = await loop.create_server(
            lambda: Connection(house), sock=self.listener, ssl=self._ssl, backlog=_BACKLOG, ssl_handshake_timeout=patience
        )
        try:
            await self._ended.wait()
        finally:
            server.close()
            await asyncio.shield(_finish(house, app, self.serving.shutdown_seconds))
            self._ended = None
            await self.close()

    async def close(self) -> None:
        """End; what still serves is told to, and cleans up after itself."""
        self._is_over = True
        if self._ended is not None:
            self._ended.set()
            return
        self.listener.close()
        if self.serving.socket is not None and self._owns_socket:
            self._owns_socket = False
            Path(self.serving.socket).unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the end


async def _finish(house: ServerState, app: Any, seconds: float) -> None:
    """Take no more, let calls finish, then interrupt them, so that each is answered."""
    house.is_closing = True
    app.end_listeners()
    await app.finish(seconds)
    await house.settle(_SETTLES)
    app.close()
    await house.close()


def listen_on(serving: Serving) -> socket.socket:
    """Return the socket that the settings name, listening.

    Raises:
        OSError: It cannot be listened on.
    """
    if serving.socket is not None:
        family, place = socket.AF_UNIX, serving.socket
        _remove_stale(Path(serving.socket))
        listener = socket.socket(family, socket.SOCK_STREAM)
    else:
        family, place = (socket.AF_INET6 if ":" in serving.host else socket.AF_INET), (serving.host, serving.port)
        # the protocol is named because loops send small pieces at once only on sockets that say they are TCP
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(place)
        if serving.socket is not None:
            Path(serving.socket).chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003 - the socket's own interface
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on any more.

    Raises:
        OSError: Somebody does.
    """
    if not path.is_socket():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, "Somebody listens there already", str(path))


def _tls(serving: Serving) -> Any:
    """Return what TLS is spoken with, read before anything listens for long, or nothing.

    Raises:
        OSError: The certificate or its key cannot be used.
    """
    if serving.tls_cert is None:
        return None
    import ssl  # noqa: PLC0415 - only where TLS is spoken

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(serving.tls_cert, serving.tls_key)
    return context
