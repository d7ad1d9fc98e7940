"""Serves a yard: from settings to a transport that runs until a signal ends it.

The command line and programs share this module; it does not know the command line.
"""

import asyncio
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from hashlib import sha256
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from callyard._internal.files import find_state_dir, write_atomically
from callyard._internal.logfmt import log_value
from callyard._internal.project import project_dir
from callyard.config import Config, known_settings
from callyard.config.settings import Serving
from callyard.launch.build import apply_settings, make_authenticator, read_settings
from callyard.launch.errors import (
    DEFECT,
    INTERRUPTED,
    LaunchError,
    NotOpenedError,
    explain_cause,
    explain_refusal,
    innermost,
    is_own,
)
from callyard.launch.monitor import Monitor, Mounted
from callyard.launch.notices import UNMASKED, Notices, logging_to
from callyard.launch.reload import Start, read_port, read_start, supervise
from callyard.launch.signals import Terminated, run, terminate_on_close
from callyard.model.names import did_you_mean
from callyard.transports import Address, Transport, fastest_loop
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.console import Console  # stdio starts sooner without
    from callyard.launch.agents import Agents  # most servers run none
    from callyard.transports.auth import Authenticator  # stdio needs none and starts sooner without

__all__ = ["is_supervisor", "make_transport", "run_server", "run_supervisor", "serve", "serve_configured", "serve_forever"]


ReadSettings = Callable[[], Config]
"""Reads the settings again; raises `LaunchError` if they are wrong."""
Command = Callable[[], Sequence[str]]
"""Returns the command that starts this server."""
Ready = Callable[[Transport], None]
"""Called once the transport listens."""
Background = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context manager that is entered in each serving process while its yard is open."""
_KILL_DELAY_S: Final = 10.0
"""How long a supervised server may take to end after its calls had their time."""
_YOUNG_OBJECTS: Final = 5000
"""New objects after which garbage is collected. With Python's 700, calls in flight alone cause collections, which find nothing."""
_KEPT_BYTES: Final = 16 * 1024 * 1024
_GROUP: Final = "callyard.transports"
_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "stdio": ("callyard.transports.stdio", "Stdio"),
    "http": ("callyard.transports.http", "Http"),
    "sse": ("callyard.transports.sse", "Sse"),
}
_log = logging.getLogger(__name__)


def serve_configured(
    yard: Yard,
    config: Config,
    notices: Notices,
    *,
    command: Command,
    start: Start,
    read: ReadSettings,
    authenticator: "Authenticator | None" = None,
) -> None:
    """Apply settings to a yard that is not open yet, and serve it. Output of tools goes to stderr, because a stdio client reads stdout.

    Raises:
        LaunchError: The yard cannot be served with these settings, or serving failed.
    """
    gc.freeze()  # modules live until the end, so collections while the yard opens can skip them
    apply_settings(yard, config, notices, serves=True)
    serving = config.settings.serve
    _check_runtime(yard, serving)
    if authenticator is None and serving.transport != "stdio":
        authenticator = make_authenticator(config)
    if start and not serving.port:
        serving = replace(serving, port=read_port())
    monitor = Monitor(yard, config, is_authenticated=authenticator is not None)
    agents = _make_agents(yard, config)
    monitor.add_console(config, authenticator, None if agents is None else agents.serve)
    mounted = () if agents is None else (agents,)
    listening: list[str] = []

    def announce(transport: Transport) -> None:
        if start:
            terminate_on_close(0)  # the supervisor holds the other end and never writes
        description = transport.info()
        listening.append(description.address)
        _log.info("serving yard=%s transport=%s address=%s", log_value(yard.name), log_value(description.name), description.address)
        if notices.stderr_is_terminal and not notices.quiet:
            console = None if monitor.console is None else monitor.console.address
            _write_hint(notices, yard, config, description, command=command(), console=console, again=start == "again")
        elif monitor.console is not None:
            _log_console(monitor.console, yard, config, description.address)

    def watch() -> AbstractAsyncContextManager[None]:
        from callyard.launch.live_settings import LiveSettings  # noqa: PLC0415 - a server without files starts sooner

        return LiveSettings(yard, config, notices, read=read).watch()

    def explain(error: Exception) -> str:
        return _refusal(error, yard, serving, listening=False).message

    background = watch if config.files and not start else None  # a supervisor restarts the server when a file changes
    try:
        with redirect_stdout(sys.stderr), _success_on_sigterm(), _address_logged(enabled=not (notices.stderr_is_terminal or notices.quiet)):
            run_server(
                yard, serving, authenticator, monitor=monitor, mounted=mounted, ready=announce, background=background, explain=explain
            )
    except Exception as error:
        raise _refusal(error, yard, serving, listening=bool(listening)) from error


def _write_hint(
    notices: Notices,
    yard: Yard,
    config: Config,
    address: Address,
    *,
    command: Sequence[str],
    console: Callable[[str], str] | None,
    again: bool,
) -> None:
    """Tell the person at the terminal where the server is; after a restart only that."""
    from callyard.launch.hint import hint  # noqa: PLC0415 - only a person reads it

    keyed, url = bool(config.settings.auth.api_keys), config.settings.serve.public_url
    lines = hint(yard.name, address.address, transport=address.name, command=command, keyed=keyed, public_url=url, console=console)
    for line in islice(lines, 1 if console is None else 2) if again else lines:
        notices.say(*line)


def _log_console(console: "Console", yard: Yard, config: Config, address: str) -> None:
    """Log where the console is. The log has the token only where everybody who reaches the server may read; else a private file has it."""
    from callyard.launch.hint import console_base  # noqa: PLC0415 - most servers with a terminal, or without a console, need it not

    login = console.address(console_base(address, config.settings.serve.public_url))
    if console.access.is_open:
        _log.info("console address=%s", login, extra=UNMASKED)
        return
    try:
        state = find_state_dir(config.settings.state_dir or yard.state_dir)
        # by the real address, because several servers of a project may run at one time
        place = sha256(address.encode()).hexdigest()[:12] if address.startswith("unix:") else urlsplit(address).port
        path = project_dir(state, config.project) / f"console-{place}.url"
        write_atomically(path, f"{login}\n".encode())
    except OSError as error:
        reason = log_value(error.strerror or str(error))
        _log.warning("console_address_not_written address=%s reason=%s", login.partition("?")[0], reason)
    else:
        _log.info("console address=%s file=%s", login.partition("?")[0], log_value(str(path)))


def _make_agents(yard: Yard, config: Config) -> "Agents | None":
    """Return the agents of the server, if the settings say that it runs any.

    Raises:
        LaunchError: It cannot be.
    """
    if not config.settings.agents.enabled:
        return None
    from callyard.launch.agents import Agents  # noqa: PLC0415 - most servers run none

    return Agents(yard, config)


def _check_runtime(yard: Yard, serving: Serving) -> None:
    """Refuse to let others run programs without a sandbox.

    Raises:
        LaunchError: The runtime profile is `dev`, and this process is root or others can reach its address.
    """
    if not yard.runtime.enabled or yard.runtime.profile != "dev":
        return
    from callyard.runtimes.selection import unsafe_reason  # noqa: PLC0415 - most yards run no programs, and start sooner without

    reason = unsafe_reason(yard.runtime, host=None if serving.transport == "stdio" or serving.socket is not None else serving.host)
    if reason is not None:
        raise LaunchError(f"{reason} Use 'standard', or set 'runtime.allow_unsafe'.")


@contextmanager
def _success_on_sigterm() -> Generator[None]:
    """Exit with 0 after an orderly end: SIGTERM is how a supervisor such as systemd stops a server, and no failure."""
    try:
        yield
    except Terminated:
        raise SystemExit(0) from None


@contextmanager
def _address_logged(*, enabled: bool) -> Generator[None]:
    """Log where the server listens even if only warnings are logged, because nobody reads the hint."""
    before = _log.level
    if enabled:
        _log.setLevel(min(logging.INFO, _log.getEffectiveLevel()))
    try:
        yield
    finally:
        _log.setLevel(before)


def _refusal(failure: Exception, yard: Yard, serving: Serving, *, listening: bool) -> LaunchError:
    _log.debug("serving_failed yard=%s", log_value(yard.name), exc_info=failure)
    error = innermost(failure)
    if isinstance(error, NotOpenedError):
        return LaunchError(str(error))
    if isinstance(error, OSError) and is_own(error):  # certificates may be read after the socket listens
        return LaunchError(_explain_listen_failure(error, serving))
    if listening:
        return LaunchError(f"The server of '{yard.name}' failed: {explain_cause(error)}", status=DEFECT)
    return LaunchError(explain_refusal(error, yard))


def _explain_listen_failure(error: OSError, serving: Serving) -> str:
    """Return why the address cannot be listened on, and what to do about it."""
    if error.errno == errno.EADDRINUSE and serving.socket is None:
        way_out = "Choose another with '--port' or CALLYARD_PORT, or any free one with '--port 0'."
        return f"Port {serving.port} of '{serving.host}' is in use. {way_out}"
    reason = (error.strerror or str(error)).removesuffix(".")
    if error.filename is not None:
        return f"The file '{error.filename}' cannot be used: {reason}."
    if serving.tls_cert is not None and error.errno != errno.EADDRINUSE:
        return f"The certificate '{serving.tls_cert}' and its key '{serving.tls_key}' cannot be used: {reason}."
    place = f"socket '{serving.socket}'" if serving.socket is not None else f"port {serving.port} of '{serving.host}'"
    return f"The {place} cannot be listened on: {reason}."


def make_transport(
    serving: Serving,
    authenticator: "Authenticator | None" = None,
    *,
    listener: socket.socket | None = None,
    http_options: Mapping[str, Any] = MappingProxyType({}),
) -> Transport:
    """Return the transport that the settings name, loaded from Callyard or from an installed package.

    `http_options` are further arguments of `Http`: mounts and the access log.

    Raises:
        ValueError: There is no such transport, or it refuses the settings.
        OSError: The address cannot be listened on.
    """
    if serving.transport in _OWN:
        module, name = _OWN[serving.transport]
        make: Any = getattr(import_module(module), name)
        if serving.transport == "http":
            return make(serving, authenticator, listener=listener, **http_options)
        return make(serving) if serving.transport == "stdio" else make(serving, authenticator, listener=listener)
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and only for transports of other packages

    found = {point.name: point for point in entry_points(group=_GROUP)}
    if serving.transport not in found:
        raise ValueError(f"There is no transport '{serving.transport}'. Known: {', '.join(sorted({*_OWN, *found}))}.")
    try:
        make = found[serving.transport].load()
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).removesuffix('.')}"
        raise ValueError(f"The transport '{serving.transport}' cannot be loaded: {reason}.") from error
    return make(serving, authenticator)


async def serve_forever(
    yard: Yard,
    serving: Serving,
    authenticator: "Authenticator | None" = None,
    *,
    monitor: Monitor | None = None,
    mounted: Sequence[Mounted] = (),
    ready: Ready | None = None,
    background: Background = nullcontext,
    listener: socket.socket | None = None,
) -> None:
    """Open the yard and serve it until cancelled, or until a stdio client disconnects; `ready` is called once it listens.

    Raises:
        ValueError: The transport refuses the settings.
        OSError: The address cannot be listened on.
    """
    http_options = {} if monitor is None else monitor.transport_options
    if mounted:
        paths = {path: mount for part in mounted for path, mount in part.mounts.items()}
        http_options["mounts"] = {**http_options.get("mounts", {}), **paths}
    transport = make_transport(serving, authenticator, listener=listener, http_options=http_options)
    if serving.ask_before_destroy:
        yard.ask_before_destroy()  # before it opens, because jobs of an earlier process may go on then
    thresholds = gc.get_threshold()
    if 0 < thresholds[0] < _YOUNG_OBJECTS:
        gc.set_threshold(_YOUNG_OBJECTS, *thresholds[1:])
    try:
        async with nullcontext() if monitor is None else monitor.open(), yard, background(), AsyncExitStack() as stack:
            for part in mounted:
                await stack.enter_async_context(part.open())
            gc.freeze()  # the objects of an open yard live until the end, so collections can skip them
            _keep_freed_memory()
            yard.address = transport.info().address
            if monitor is not None:
                monitor.attach(transport)
            if ready is not None:
                ready(transport)
            await transport.serve(yard)
    finally:
        gc.set_threshold(*thresholds)
        yard.address = None
        await transport.close()


def _keep_freed_memory() -> None:
    """Make the allocator keep freed memory for the next large message.

    glibc returns freed memory to the system beyond twice the largest block that it ever freed. After one block of this size it keeps
    twice as much, so a message of 1 MB no longer takes a thousand page faults, which were half of its time. The block is never touched,
    so it takes no memory itself.
    """
    bytes(_KEPT_BYTES)


def run_server(
    yard: Yard,
    serving: Serving,
    authenticator: "Authenticator | None" = None,
    *,
    monitor: Monitor | None = None,
    mounted: Sequence[Mounted] = (),
    ready: Ready = lambda _: None,
    background: Background | None = None,
    explain: Callable[[Exception], str] = str,
) -> None:
    """Serve a yard in this process, or in several worker processes, until a signal ends the program.

    With `background`, SIGHUP is for it and is passed on to all workers. `explain` turns the error of a worker that cannot open the
    yard into the one sentence that reaches this process.

    Raises:
        NotOpenedError: No worker could open the yard.
        ValueError: The transport refuses the settings.
        OSError: The address cannot be listened on.
    """
    _open_standard_streams()
    serve_here = partial(
        serve_forever, yard, serving, authenticator, monitor=monitor, mounted=mounted, background=background or nullcontext
    )
    if serving.workers == 1:
        run(serve_here(ready=ready), loop=fastest_loop())
        return
    if serving.transport != "http":
        raise ValueError(f"Only 'http' can be served by several workers, not '{serving.transport}'.")
    from callyard.launch.workers import Parent, run_workers  # noqa: PLC0415 - only several workers need it
    from callyard.transports.http.server import Http  # noqa: PLC0415 - only a server that speaks HTTP needs it

    transport = Http(serving, authenticator)

    def work(parent: Parent) -> None:
        def begin(_: Transport) -> None:
            parent.terminate_with()
            parent.report_opened()

        try:
            run(serve_here(ready=begin, listener=transport.listener), loop=fastest_loop())
        except Exception as error:
            if parent.is_informed:
                raise
            parent.report_failure(explain(error))
            raise SystemExit(1) from None

    try:
        yard.signer.prepare()  # before the fork, because each worker must verify what another one signed
        run_workers(serving.workers, work, partial(ready, transport), forwards_hangup=background is not None)
    finally:
        run(transport.close())


def _open_standard_streams() -> None:
    """Open standard streams that the parent closed, lest a socket gets the number of one and is mistaken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def serve(yard: Yard, *, config: str | None = None, authenticator: "Authenticator | None" = None, **settings: Any) -> None:
    """Serve a yard until a signal ends the program, as `callyard serve` does.

    The settings are those at the top level, in `[serve]` and in `[monitor]`. Others may be in the environment, in 'callyard.toml' or in
    the file `config`. An error is written to stderr and ends the program.

    Raises:
        SystemExit: The yard cannot be served, or a signal ended the program.
    """
    notices = Notices()
    with ExitStack() as stack:
        if not logging.getLogger().handlers:
            stack.enter_context(logging_to(notices, verbose=0, quiet=False))
        try:
            _check_loop()
            start = read_start()
            read = partial(read_settings, _keys(settings), notices, path=config, in_code=True)
            found = read()
            program = Path(sys.argv[0]).resolve()
            if is_supervisor(found, start):
                run_supervisor(program.parent, found, notices)
            else:
                command = [sys.executable, str(program), *sys.argv[1:]]
                serve_configured(yard, found, notices, command=lambda: command, authenticator=authenticator, start=start, read=read)
        except LaunchError as error:
            notices.say(f"callyard: {error.message}")
            raise SystemExit(error.status) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def _check_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise LaunchError("'serve' runs an event loop of its own, so it cannot be called inside one. Serve 'asgi(yard)' there instead.")


def is_supervisor(config: Config, start: Start) -> bool:
    """Return whether this process supervises the server, which runs in another one and restarts when a file changes.

    Raises:
        LaunchError: The settings contradict each other.
    """
    serving = config.settings.serve
    if serving.reload and serving.transport == "stdio":
        raise LaunchError("'--reload' needs '--transport http': over stdio a restart would disconnect the client.")
    if serving.reload and serving.workers > 1:
        raise LaunchError("'--reload' and '--workers' contradict each other: one is for development, the other for production.")
    return serving.reload and not start


def run_supervisor(folder: Path, config: Config, notices: Notices) -> None:
    """Run the server in another process, and restart it after each change to a file of the folder."""
    serving = config.settings.serve
    port = 0 if serving.port or serving.socket is not None else _free_port(serving.host)
    with _success_on_sigterm():
        run(supervise(folder, notices, kill_delay_s=serving.shutdown_seconds + _KILL_DELAY_S, port=port))


def _free_port(host: str) -> int:
    """Return a free port, which stays the same over restarts, or 0 if the address is wrong, which the server reports itself."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
        probe.bind((host, 0))
        return probe.getsockname()[1]
    return 0


def _keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a program by key."""
    known = {setting.name: setting.key for setting in known_settings().values() if setting.section in {"", "serve", "monitor"}}
    del known["target"]  # the program passes the yard itself
    for name in settings:
        if name not in known:
            raise LaunchError(f"There is no setting '{name}'.{did_you_mean(name, list(known))}")
    return {known[name]: value for name, value in settings.items()}
