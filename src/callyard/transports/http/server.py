"""The HTTP transport: a listening socket, the application on it, and a shutdown in which every call is answered."""

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callyard._internal.tasks import task_creator
from callyard.config.settings import Serving
from callyard.monitor.log_files import AccessLine
from callyard.transports import Address
from callyard.transports.auth import Authenticator, check_exposure
from callyard.transports.http.admission import Connections
from callyard.transports.http.app import App, Mount
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.transports.http.protocol import Connection

__all__ = ["Http", "ServerState", "listen_on"]


_LOOP_TURNS: Final = 5
_MAX_BODIES: Final = 64
_POLL_S: Final = 0.01
_BODY_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 75.0
_UNREAD_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 1.0
_DESCRIPTOR_SECONDS: Final = 2.0
_BACKLOG: Final = 2048


class ServerState:
    """The application, the settings and the connections of one server."""

    def __init__(self, app: App, serving: Serving, *, is_secure: bool) -> None:
        self.app = app
        self.serving = serving
        self.scheme = "https" if is_secure else "http"
        self.is_closing = False
        self.loop = asyncio.get_running_loop()
        self.create_task = task_creator(self.loop, "callyard request")
        self.connections = Connections(serving)
        self.buffered = 0
        """Bytes of bodies that are incomplete or queued."""
        self.max_buffered = serving.message_bytes * _MAX_BODIES
        self.unread_seconds = _UNREAD_SECONDS
        self.head_seconds = serving.header_seconds or _IDLE_SECONDS

    def seconds_for(self, state: str) -> float:
        """Return how long a connection may stay in a state: 'head', 'body' or 'idle'."""
        if state == "head":
            return self.head_seconds
        return _BODY_SECONDS if state == "body" else _IDLE_SECONDS

    def make_room(self) -> None:
        """End the connection with the most buffered bytes, so that it does not keep the others out."""
        max(self.connections.all, key=lambda connection: connection.buffered).refuse_body()

    async def watch_descriptors(self, descriptor: int) -> None:
        """Log while the process has no file descriptors left."""
        while True:
            await asyncio.sleep(_DESCRIPTOR_SECONDS)
            self.connections.check_descriptors(descriptor)

    async def finish(self, seconds: float) -> None:
        """Shut down: let calls finish within a time, then cancel the rest; each is answered."""
        self.is_closing = True
        self.app.end_listeners()
        await self.app.finish(seconds)
        await self._settle()
        self.app.close()
        await self._close()

    async def _settle(self) -> None:
        """Let responses be written for a moment, then answer for the calls that do not end."""
        for connection in tuple(self.connections.all):
            connection.close_when_done()
        deadline = self.loop.time() + _SETTLE_SECONDS
        while any(map(_is_answering, self.connections.all)) and self.loop.time() < deadline:  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_S)  # polling is good enough for something that happens once
        for connection in tuple(self.connections.all):
            response = connection.response
            if response is not None and (answer := self.app.answer_unfinished(response.request)) is not None:
                await response.give_up(answer)

    async def _close(self) -> None:
        """Close every connection after what is written has gone out."""
        for _ in range(_LOOP_TURNS):
            await asyncio.sleep(0)  # the loop sends what is written
        for connection in tuple(self.connections.all):
            connection.abort()
        for _ in range(_LOOP_TURNS):
            await asyncio.sleep(0)  # the loop reports the ends, also those of connections from the last moment


def _is_answering(connection: "Connection") -> bool:
    """Return whether a client waits for the answer to a message; other streams end with the application."""
    return connection.response is not None and connection.response.request.method == "POST"


async def _accept_waiting() -> None:
    """Let the loop accept the connections that the kernel has accepted already, and reset when the socket is closed."""
    for _ in range(_LOOP_TURNS):
        await asyncio.sleep(0)


class Http:
    """Streamable HTTP on one address."""

    name = "http"
    endpoint = "/mcp"

    def __init__(
        self,
        serving: Serving,
        authenticator: Authenticator | None = None,
        *,
        listener: socket.socket | None = None,
        mounts: Mapping[str, Mount] | None = None,
        access_log: Callable[[AccessLine], None] | None = None,
    ) -> None:
        check_exposure(None if serving.socket is not None else serving.host, authenticator)
        self.serving = serving
        self.authenticator = authenticator
        self._mounts = mounts
        self._access_log = access_log
        self._ssl = _tls_context(serving)
        self.listener = listener or listen_on(serving)
        """The listening socket."""
        self._owns_socket = listener is None
        self._address = Address(self.name, self._url())
        self._ended: asyncio.Event | None = None
        self._is_over = False
        self.app: App | None = None
        """The application, while the yard is served."""

    def info(self) -> Address:
        """Return the address with the real port, also after the end."""
        return self._address

    @property
    def host(self) -> str | None:
        """Return the host of the settings, or None on a Unix socket."""
        return None if self.serving.socket is not None else self.serving.host

    def make_app(self, yard: Yard) -> App:
        """Return the application."""
        self.app = App(yard, self.serving, self.authenticator, host=self.host, mounts=self._mounts, access_log=self._access_log)
        return self.app

    def _url(self) -> str:
        if self.serving.socket is not None:
            return f"unix:{self.serving.socket}"
        host, port = self.listener.getsockname()[:2]
        netloc = f"[{host}]" if ":" in host else host
        scheme = "http" if self.serving.tls_cert is None else "https"
        return f"{scheme}://{netloc}:{port}{self.endpoint}"

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until `close` is called."""
        from callyard.transports.http.protocol import Connection  # noqa: PLC0415 - only our own server needs the parser

        self._ended = asyncio.Event()
        if self._is_over:
            self._ended.set()
        state = ServerState(self.make_app(yard), self.serving, is_secure=self._ssl is not None)
        server = await state.loop.create_server(
            lambda: Connection(state),
            sock=self.listener,
            ssl=self._ssl,
            backlog=_BACKLOG,
            ssl_handshake_timeout=None if self._ssl is None else state.head_seconds,
            start_serving=False,  # starting waits, and may be cancelled: then the server must be closed, too
        )
        watching = asyncio.ensure_future(state.watch_descriptors(self.listener.fileno()))
        try:
            await server.start_serving()
            await self._ended.wait()
        finally:
            watching.cancel()
            await asyncio.shield(_accept_waiting())
            server.close()
            await asyncio.shield(state.finish(self.serving.shutdown_seconds))
            self._ended = None
            await self.close()

    async def close(self) -> None:
        """Stop; a running `serve` then shuts down and closes the socket."""
        self._is_over = True
        if self._ended is not None:
            self._ended.set()
            return
        self.listener.close()
        if self.serving.socket is not None and self._owns_socket:
            self._owns_socket = False
            Path(self.serving.socket).unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the end


def listen_on(serving: Serving) -> socket.socket:
    """Return a listening socket for the settings.

    Raises:
        OSError: The address cannot be listened on.
    """
    if serving.socket is not None:
        address: Any = serving.socket
        _remove_stale(Path(serving.socket))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    else:
        address = (serving.host, serving.port)
        # With the protocol named, event loops set TCP_NODELAY, which sends small pieces at once.
        listener = socket.socket(socket.AF_INET6 if ":" in serving.host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        if serving.socket is not None:
            Path(serving.socket).chmod(0o600)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    listener.setblocking(False)  # noqa: FBT003 - the socket's own interface
    return listener


def _remove_stale(path: Path) -> None:
    """Remove a Unix socket that no process listens on.

    Raises:
        OSError: A process does.
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


def _tls_context(serving: Serving) -> Any:
    """Return the TLS context of the settings, or None without TLS.

    Raises:
        OSError: The certificate or its key cannot be used.
    """
    if serving.tls_cert is None:
        return None
    import ssl  # noqa: PLC0415 - only servers with TLS need it

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(serving.tls_cert, serving.tls_key, password=_refuse_pass_phrase)
    return context


def _refuse_pass_phrase() -> str:
    """Fail for an encrypted key: without this function OpenSSL would ask for the pass phrase on the terminal, and wait."""
    raise OSError(errno.EACCES, "The key is encrypted. Decrypt it with 'openssl pkey', and close the file to others")
