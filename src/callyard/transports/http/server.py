"""The HTTP transport: a listening socket, its certificate and its application; at shutdown every call is answered."""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from callyard._internal.logfmt import log_value
from callyard._internal.tasks import close_server, run_to_end, task_creator
from callyard.config import Stamp, stamp_of
from callyard.config.settings import Serving
from callyard.monitor.log_files import AccessLine
from callyard.transports import Address
from callyard.transports.auth import Authenticator, check_exposure
from callyard.transports.http.admission import Connections
from callyard.transports.http.app import App, Mount
from callyard.transports.http.protocol import Connection
from callyard.transports.http.sessions import HttpSessions
from callyard.yard import Yard

__all__ = ["Certificate", "Http", "ServerState", "listen_on"]

_LOOP_TURNS: Final = 5
_MAX_BODIES: Final = 64
_POLL_S: Final = 0.01
_HEAD_SECONDS: Final = 10.0
_BODY_SECONDS: Final = 60.0
_IDLE_SECONDS: Final = 75.0
_UNREAD_SECONDS: Final = 30.0
_SETTLE_SECONDS: Final = 1.0
_SWEEP_SECONDS: Final = 0.25
_BACKLOG: Final = 2048
_OTHER_LOOPBACK: Final = {"127.0.0.1": "::1", "localhost": "::1", "::1": "127.0.0.1"}
"""The other address that browsers try for 'localhost'."""
_PORT_TRIES: Final = 20
_CERTIFICATE_POLL_S: Final = 0.5
_WARNING_DAYS: Final = 14
_DAY_S: Final = 24 * 3600.0
_VERSION_TAG: Final = 0xA0
_UTC_TIME_TAG: Final = 0x17
_LONG_LENGTH: Final = 0x80
_log = logging.getLogger(__name__)


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
        self.max_buffered = serving.message_bytes * _MAX_BODIES
        self.seconds = {"head": _HEAD_SECONDS, "body": _BODY_SECONDS, "idle": _IDLE_SECONDS, "unread": _UNREAD_SECONDS}
        """How long a connection may wait for the client, by what it waits for."""

    def make_room(self) -> None:
        """End the connection with the most buffered bytes, so that it does not keep the others out."""
        max(self.connections.all, key=lambda connection: connection.buffered).refuse_body()

    async def watch(self, descriptor: int) -> None:
        """Close connections whose clients are too slow, and log while the process has no file descriptors left."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            self.connections.check_descriptors(descriptor)
            for connection in tuple(self.connections.all):
                connection.check_progress(self.loop.time())

    async def finish(self, seconds: float) -> None:
        """Shut down: let calls finish within a time, then cancel the rest; each is answered."""
        self.is_closing = True
        self.app.end_listeners()
        await self.app.finish(seconds)
        await self._settle()
        self.app.close()
        await _let_loop_turn()  # it sends what is written
        for connection in tuple(self.connections.all):
            connection.abort()
        await _let_loop_turn()  # it reports the ends, also those of connections from the last moment

    async def _settle(self) -> None:
        """Let responses be written for a moment, then answer for the calls that do not end."""
        for connection in tuple(self.connections.all):
            connection.close_when_done()
        deadline = self.loop.time() + _SETTLE_SECONDS
        while self.loop.time() < deadline and self._is_answering():  # noqa: ASYNC110 - no event
            await asyncio.sleep(_POLL_S)  # polling is good enough for something that happens once
        for connection in tuple(self.connections.all):
            response = connection.response
            if response is not None and (answer := self.app.answer_unfinished(response.request)) is not None:
                await response.give_up(answer)

    def _is_answering(self) -> bool:
        """Return whether a client waits for the answer to a message; other streams end with the application."""
        responses = [connection.response for connection in self.connections.all]
        return any(response is not None and response.request.method == "POST" for response in responses)


async def _let_loop_turn() -> None:
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
        listeners: Sequence[socket.socket] = (),
        mounts: Mapping[str, Mount] | None = None,
        access_log: Callable[[AccessLine], None] | None = None,
        certificate: "Certificate | None" = None,
    ) -> None:
        self.host = None if serving.socket is not None else serving.host
        check_exposure(self.host, authenticator)
        self.serving = serving
        self.authenticator = authenticator
        self._mounts = mounts
        self._access_log = access_log
        if certificate is None and serving.certificate is not None:
            certificate = Certificate(*serving.certificate)
        self.certificate = certificate
        """The certificate, which the processes that share an address are forked with."""
        self.listeners = tuple(listeners) or listen_on(serving)
        """The listening sockets: the one of the settings, and the one of the other loopback address."""
        self._owns_socket = not listeners
        self._address = Address(self.name, self._url())
        self._ended = asyncio.Event()  # not bound to a loop until it is waited for
        self._is_serving = False
        self.app: App | None = None
        """The application, while the yard is served."""

    def info(self) -> Address:
        """Return the address with the real port, also after the end."""
        return self._address

    @property
    def sessions(self) -> HttpSessions | None:
        """Return the sessions of clients that began with a handshake, while the yard is served."""
        return None if self.app is None else self.app.sessions

    def make_app(self, yard: Yard) -> App:
        """Return the application."""
        self.app = App(
            yard, self.serving, self.authenticator, host=self.host, mounts=self._mounts, access_log=self._access_log
        )
        return self.app

    def _url(self) -> str:
        if self.serving.socket is not None:
            return f"unix:{self.serving.socket}"
        host, port = self.listeners[0].getsockname()[:2]
        netloc = f"[{host}]" if ":" in host else host
        scheme = "http" if self.serving.certificate is None else "https"
        return f"{scheme}://{netloc}:{port}{self.endpoint}"

    async def serve(self, yard: Yard) -> None:
        """Serve the open yard until `close` is called."""
        self._is_serving = True
        state = ServerState(self.make_app(yard), self.serving, is_secure=self.certificate is not None)
        servers = [
            await state.loop.create_server(
                lambda: Connection(state),
                sock=listener,
                ssl=None if self.certificate is None else self.certificate.context,
                backlog=_BACKLOG,
                ssl_handshake_timeout=None if self.certificate is None else state.seconds["head"],
                start_serving=False,  # starting waits, and may be cancelled: then the server must be closed, too
            )
            for listener in self.listeners
        ]
        watching = [asyncio.ensure_future(state.watch(self.listeners[0].fileno()))]
        if self.certificate is not None:
            watching.append(asyncio.ensure_future(self.certificate.watch()))
        try:
            for server in servers:
                await server.start_serving()
            await self._ended.wait()
        finally:
            for watch in watching:
                watch.cancel()
            # A second cancellation, or that of a task around this one, must not leave sockets open.
            await run_to_end(self._shut_down(servers, state))

    async def _shut_down(self, servers: Sequence[asyncio.Server], state: ServerState) -> None:
        # connections that the kernel has accepted already would be reset when the socket is closed
        await _let_loop_turn()
        for server in servers:
            await close_server(server)
        await state.finish(self.serving.shutdown_seconds)
        self._is_serving = False
        await self.close()

    async def close(self) -> None:
        """Stop; a running `serve` then shuts down and closes the socket."""
        self._ended.set()
        if self._is_serving:
            return
        for listener in self.listeners:
            listener.close()
        if self.serving.socket is not None and self._owns_socket:
            self._owns_socket = False
            Path(self.serving.socket).unlink(missing_ok=True)  # noqa: ASYNC240 - once, at the end


def listen_on(serving: Serving) -> tuple[socket.socket, ...]:
    """Return the listening sockets for the settings.

    'localhost' is two addresses, and whoever has the port on the other one is asked instead, under the same name. So a
    server on one of them listens on both, and logs a warning if somebody else has the other.

    Raises:
        OSError: The address of the settings cannot be listened on.
    """
    if serving.socket is not None:
        _remove_stale(Path(serving.socket))
        return (_listening(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM), serving.socket),)
    listener = _listen_on_port(serving.host, serving.port)
    other = _OTHER_LOOPBACK.get(serving.host)
    if other is None:
        return (listener,)
    for _ in range(_PORT_TRIES):
        try:
            return listener, _listen_on_port(other, listener.getsockname()[1])
        except OSError as error:
            if error.errno != errno.EADDRINUSE:  # this machine has no such address
                return (listener,)
        if serving.port:
            break
        listener.close()  # any port will do, so another one is tried
        listener = _listen_on_port(serving.host, 0)
    why = "Another program has this port for 'localhost', so browsers may ask it instead. Choose another port."
    _log.warning("port_shared address=%s port=%d why=%s", other, listener.getsockname()[1], log_value(why))
    return (listener,)


def _listen_on_port(host: str, port: int) -> socket.socket:
    # With the protocol named, event loops set TCP_NODELAY, which sends small pieces at once.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return _listening(socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP), (host, port))


def _listening(listener: socket.socket, address: str | tuple[str, int]) -> socket.socket:
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if isinstance(address, str):
            Path(address).chmod(0o600)
        listener.listen(_BACKLOG)
        listener.setblocking(False)  # noqa: FBT003 - the socket's own interface
    except BaseException:
        listener.close()
        raise
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


class Certificate:
    """A certificate and its private key; a handshake gets those that were read last."""

    def __init__(self, certificate: str, key: str) -> None:
        self._files = (Path(certificate), Path(key))
        self._stamps = self._before = self._read_stamps()
        self.context = self._current = _new_context(*self._files)
        """The context for the listening socket.

        It is not changed later: OpenSSL keeps a certificate for each type of key, and a client could get the old one.
        """
        self.context.sni_callback = self._choose
        self._expires_at = _end_of(self._files[0])
        self._warn_at = 0.0

    async def watch(self) -> None:
        """Load the files again when they change, and warn before the certificate ends."""
        while True:
            self.warn(time.time())
            await asyncio.sleep(_CERTIFICATE_POLL_S)
            if self._is_written():
                await asyncio.to_thread(self._load)

    def follow(self) -> None:
        """Load the files again if they have changed, in a process that forks those that serve; they log it."""
        if self._is_written():
            self._load(logs=False)

    def _is_written(self) -> bool:
        """Return whether a file was written since it was loaded; one that still changes may be incomplete."""
        now = self._read_stamps()
        is_written = now != self._stamps and now == self._before
        self._before = now
        return is_written

    def _load(self, *, logs: bool = True) -> None:
        """Load the files; if they cannot be used, the certificate stays as it is."""
        self._stamps = self._before
        certificate, key = (log_value(str(file)) for file in self._files)
        try:
            self._current = _new_context(*self._files)
        except (OSError, ValueError) as error:
            if logs:
                reason = log_value(getattr(error, "strerror", None) or str(error))
                _log.error("certificate_unchanged file=%s key=%s reason=%s", certificate, key, reason)
            return
        self._expires_at, self._warn_at = _end_of(self._files[0]), 0.0
        if logs:
            _log.warning("certificate_changed file=%s", certificate)

    def warn(self, now: float) -> None:
        """Log once a day that the certificate ends within two weeks, or has ended."""
        if self._expires_at is None or now < self._warn_at:
            return
        days = (self._expires_at - now) / _DAY_S
        if days > _WARNING_DAYS:
            return
        self._warn_at = now + _DAY_S
        if days > 0:
            _log.warning("certificate_expires file=%s days=%d", log_value(str(self._files[0])), days)
        else:
            _log.error("certificate_expired file=%s days=%d", log_value(str(self._files[0])), days)

    def _choose(self, connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:  # noqa: ARG002 - the interface of `ssl`
        """Give a handshake the current certificate; OpenSSL calls this also for clients that name no server."""
        connection.context = self._current

    def _read_stamps(self) -> tuple[Stamp, ...]:
        return tuple(stamp_of(file) for file in self._files)


def _new_context(certificate: Path, key: Path) -> ssl.SSLContext:
    """Return a TLS context with a certificate.

    Raises:
        OSError: The certificate or its key cannot be used.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key, password=_refuse_pass_phrase)
    return context


def _refuse_pass_phrase() -> str:
    """Fail for an encrypted key: without this function OpenSSL would ask for the pass phrase on the terminal."""
    raise OSError(errno.EACCES, "The key is encrypted. Decrypt it with 'openssl pkey', and close the file to others")


def _end_of(certificate: Path) -> float | None:
    """Return the time at which the first certificate of a file ends, or None if it cannot be read.

    The standard library reads it from the certificates of others only, so the fields before it are skipped here.
    """
    try:
        text = certificate.read_text("ascii", "replace")
        start, end = text.index(ssl.PEM_HEADER), text.index(ssl.PEM_FOOTER) + len(ssl.PEM_FOOTER)
        data = ssl.PEM_cert_to_DER_cert(text[start:end])
        _, at, _ = _element(data, 0)  # the certificate
        _, at, _ = _element(data, at)  # what is signed
        tag, _, after = _element(data, at)
        for _ in range(3 if tag == _VERSION_TAG else 2):  # serial number, algorithm, issuer; the version is optional
            _, _, after = _element(data, after)
        _, at, _ = _element(data, after)  # the validity
        _, _, at = _element(data, at)  # its begin
        tag, at, after = _element(data, at)
        form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME_TAG else "%Y%m%d%H%M%SZ"
        return datetime.strptime(data[at:after].decode("ascii"), form).replace(tzinfo=UTC).timestamp()
    except (OSError, ValueError, IndexError):
        return None


def _element(data: bytes, at: int) -> tuple[int, int, int]:
    """Return the tag of the DER element at a position, and where its content begins and ends."""
    tag, length, start = data[at], data[at + 1], at + 2
    if length & _LONG_LENGTH:
        count = length & ~_LONG_LENGTH
        length = int.from_bytes(data[start : start + count])
        start += count
    return tag, start, start + length
