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
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    ExitStack,
    closing,
    contextmanager,
    nullcontext,
    redirect_stdout,
    suppress,
)
from functools import partial
from importlib import import_module
from itertools import islice
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import asdict, replace

from callyard._internal.lazy import installed_entry_points, load
from callyard._internal.logfmt import log_value
from callyard.config import Config, known_settings
from callyard.config.settings import Key, Serving
from callyard.launch.advice import Advice
from callyard.launch.build import apply_settings, hash_configuration, make_authenticator, read_settings
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
from callyard.launch.hangup import Hangup
from callyard.launch.hint import hint, log_console
from callyard.launch.monitor import Monitor, Mounted
from callyard.launch.notices import Notices, logging_to
from callyard.launch.reload import LiveSettings, Start, is_supervisor, read_port, read_start, run_supervisor
from callyard.launch.signals import run, success_on_sigterm, terminate_on_close
from callyard.launch.workers import Parent, run_workers
from callyard.model.profile import Shape
from callyard.transports import Address, Transport, fastest_loop
from callyard.transports.auth import Authenticator, ReplaceableAuthenticator
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.launch.agents import Agents  # most servers run none
    from callyard.transports.http.server import Certificate, Http

__all__ = [
    "check_runtime",
    "make_transport",
    "run_server",
    "serve",
    "serve_configured",
    "serve_forever",
    "serving_failure",
]


Command = Callable[[], Sequence[str]]
"""Returns the command that starts this server."""
Ready = Callable[[Transport], None]
Background = Callable[[], AbstractAsyncContextManager[None]]
"""Returns a context manager that is entered in each serving process while its yard is open."""
_YOUNG_OBJECTS: Final = 5000
"""New objects after which garbage is collected.

With Python's 700, calls in flight alone cause collections, which find nothing.
"""
_KEPT_BYTES: Final = 16 * 1024 * 1024
_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "stdio": ("callyard.transports.stdio", "Stdio"),
    "http": ("callyard.transports.http", "Http"),
    "sse": ("callyard.transports.sse", "Sse"),
}
_CODE_KEYS: Final[Mapping[str, str]] = {
    setting.name: setting.key
    for setting in known_settings().values()
    if setting.section in {"", "serve", "monitor"} and setting.key != "target"  # a program passes the yard itself
}
_log = logging.getLogger(__name__)


def serve_configured(
    yard: Yard,
    config: Config,
    notices: Notices,
    *,
    command: Command,
    start: Start,
    read: Callable[[], Config],
    hangup: Hangup,
    authenticator: Authenticator | None = None,
) -> None:
    """Apply settings to a yard that is not open yet, and serve it.

    Output of tools goes to stderr, because a stdio client reads stdout.

    Raises:
        LaunchError: The yard cannot be served with these settings, or serving failed.
    """
    gc.freeze()  # modules live until the end, so collections while the yard opens can skip them
    apply_settings(yard, config, notices, serves=True)
    serving = config.settings.serve
    yard.configuration = hash_configuration(config) if serving.transport == "http" else None
    check_runtime(yard, serving)
    replaceable: ReplaceableAuthenticator | None = None
    if authenticator is None and serving.transport != "stdio":
        found = make_authenticator(config)
        authenticator = replaceable = None if found is None else ReplaceableAuthenticator(found)
    if start and not serving.port:
        serving = replace(serving, port=read_port())
    monitor = Monitor(yard, config, is_authenticated=authenticator is not None, notices=notices)
    yard.examine, token = partial(_examine, yard, config), _load_token(yard, config)
    agents = _make_agents(yard, config, token if authenticator is None else "")
    monitor.add_console(config, authenticator, None if agents is None else agents.api, token=token)
    listening: list[str] = []

    def announce(transport: Transport) -> None:
        if start:
            terminate_on_close(0)  # the supervisor holds the other end and never writes
        description = transport.info()
        listening.append(description.address)
        facts = log_value(yard.name), log_value(description.name), description.address
        _log.info("serving yard=%s transport=%s address=%s", *facts)
        console = None if monitor.console is None else monitor.console.address
        _show_address(notices, yard, config, description, command=command, console=console, again=start == "again")

    live = LiveSettings(yard, config, notices, read=read, authenticator=replaceable, use_metrics_keys=monitor.use_keys)
    if not config.files:
        hangup.release()
    advice = Advice(yard, config, notices)
    try:
        with redirect_stdout(sys.stderr), success_on_sigterm(), _address_logged(notices), closing(advice):
            run_server(
                yard,
                serving,
                authenticator,
                monitor=monitor,
                mounted=(
                    *_mounted(yard, serving, agents, token=token, is_authenticated=authenticator is not None),
                    advice,
                    *monitor.parts,
                ),
                ready=announce,
                background=partial(live.watch, hangup) if config.files else None,
                follow=live.follow if config.files else None,
                explain=lambda error: serving_failure(error, yard, serving, listening=False).message,
            )
    except Exception as error:
        raise serving_failure(error, yard, serving, listening=bool(listening)) from error


async def _examine(yard: Yard, config: Config) -> list[dict[str, Any]]:
    doctor: Any = load("callyard.launch.doctor")  # only operators who ask load it
    findings = [
        *doctor.check_machine(config),
        *await doctor.check_store(yard.store),
        *await doctor.examine(yard, config),
    ]
    return [asdict(finding) for finding in findings]


def _show_address(
    notices: Notices,
    yard: Yard,
    config: Config,
    address: Address,
    *,
    command: Command,
    console: Callable[[str], str] | None,
    again: bool,
) -> None:
    """Tell the person at the terminal where the server is, after a restart only that; else log where its console is."""
    if not notices.stderr_is_terminal or notices.quiet:
        if console is not None:
            log_console(console, yard, config, address.address)
        return
    lines = hint(
        yard.name,
        address.address,
        transport=address.name,
        command=command(),
        keyed=bool(config.settings.auth.api_keys),
        public_url=config.settings.serve.public_url,
        console=console,
    )
    if again:
        lines = islice(lines, 1 if console is None else 2)
    for line in lines:
        notices.say(*line)


def _make_agents(yard: Yard, config: Config, token: str) -> "Agents | None":
    if not config.settings.agents.enabled:
        return None
    from callyard.launch.agents import Agents  # noqa: PLC0415 - most servers run none

    return Agents(yard, config, token=token)


def _mounted(
    yard: Yard, serving: Serving, agents: "Agents | None", *, token: str, is_authenticated: bool
) -> Sequence[Mounted]:
    """Return the parts of a server over HTTP that have paths of their own, beside the monitor."""
    if serving.transport != "http":
        return ()
    facts = _mounts().ServerFacts(yard, token, is_authenticated=is_authenticated)
    return (facts,) if agents is None else (facts, agents)


def _load_token(yard: Yard, config: Config) -> str:
    """Return the token for the console and for agents, if the server has either.

    Raises:
        LaunchError: The one of the environment cannot be used.
    """
    settings = config.settings
    is_needed = settings.serve.console or settings.agents.enabled
    if settings.serve.transport != "http" or settings.serve.workers > 1 or not is_needed:
        return ""
    return _mounts().load_token(config, yard.state_dir)


def _mounts() -> ModuleType:
    from callyard.launch import mounts  # noqa: PLC0415 - stdio starts sooner without

    return mounts


def check_runtime(yard: Yard, serving: Serving) -> None:
    """Refuse to let others run programs without a sandbox.

    Raises:
        LaunchError: The runtime profile is `dev`, and this process is root or others can reach its address.
    """
    if not yard.runtime.enabled or yard.runtime.profile != "dev":
        return
    from callyard.runtimes.selection import unsafe_reason  # noqa: PLC0415 - most yards run no programs, and start sooner without

    is_local = serving.transport == "stdio" or serving.socket is not None
    reason = unsafe_reason(yard.runtime, host=None if is_local else serving.host)
    if reason is not None:
        raise LaunchError(f"{reason} Use 'standard', or set 'runtime.allow_unsafe'.")


@contextmanager
def _address_logged(notices: Notices) -> Generator[None]:
    """Log where the server listens even if only warnings are logged, because nobody reads the hint."""
    before = _log.level
    if not (notices.stderr_is_terminal or notices.quiet):
        _log.setLevel(min(logging.INFO, _log.getEffectiveLevel()))
    try:
        yield
    finally:
        _log.setLevel(before)


def serving_failure(failure: Exception, yard: Yard, serving: Serving, *, listening: bool) -> LaunchError:
    """Return why a yard cannot be served, or why serving failed."""
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
    if error.errno == errno.EADDRINUSE and serving.socket is None:
        way_out = "Choose another with '--port' or CALLYARD_PORT, or any free one with '--port 0'."
        return f"Port {serving.port} of '{serving.host}' is in use. {way_out}"
    reason = (error.strerror or str(error)).removesuffix(".")
    if error.filename is not None:
        return f"The file '{error.filename}' cannot be used: {reason}."
    if serving.certificate is not None and error.errno != errno.EADDRINUSE:
        return "The certificate '{}' and its key '{}' cannot be used: {}.".format(*serving.certificate, reason)
    place = f"socket '{serving.socket}'" if serving.socket is not None else f"port {serving.port} of '{serving.host}'"
    return f"The {place} cannot be listened on: {reason}."


def make_transport(
    serving: Serving,
    authenticator: Authenticator | None = None,
    *,
    listeners: Sequence[socket.socket] = (),
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
            return make(serving, authenticator, listeners=listeners, **http_options)
        return make(serving) if serving.transport == "stdio" else make(serving, authenticator, listeners=listeners)
    found = {point.name: point for point in installed_entry_points("callyard.transports")}
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
    authenticator: Authenticator | None = None,
    *,
    monitor: Monitor | None = None,
    mounted: Sequence[Mounted] = (),
    ready: Ready | None = None,
    background: Background = nullcontext,
    listeners: Sequence[socket.socket] = (),
    certificate: "Certificate | None" = None,
) -> None:
    """Open the yard and serve it until cancelled, or until a stdio client disconnects.

    `ready` is called once it listens.

    Raises:
        ValueError: The transport refuses the settings.
        OSError: The address cannot be listened on.
    """
    http_options = {} if monitor is None else monitor.transport_options
    if certificate is not None:
        http_options["certificate"] = certificate
    for part in mounted:
        http_options["mounts"] = {**http_options.get("mounts", {}), **part.mounts}
    transport = make_transport(serving, authenticator, listeners=listeners, http_options=http_options)
    if serving.ask_before_destroy:
        yard.ask_before_destroy(always=False)  # before it opens, because jobs of an earlier process may go on then
    if serving.transport == "http":
        yard.configuration = yard.configuration or ""
    thresholds = gc.get_threshold()
    if 0 < thresholds[0] < _YOUNG_OBJECTS:
        gc.set_threshold(_YOUNG_OBJECTS, *thresholds[1:])
    try:
        async with nullcontext() if monitor is None else monitor.open(), yard, background(), AsyncExitStack() as stack:
            for part in mounted:
                await stack.enter_async_context(part.open())
            gc.freeze()  # the objects of an open yard live until the end, so collections can skip them
            # glibc returns freed memory to the system beyond twice the largest block that it ever freed. After a block
            # of this size it keeps it for the next large message, which otherwise took a thousand page faults.
            bytes(_KEPT_BYTES)
            yard.address = transport.info().address
            if monitor is not None and monitor.console is not None:
                monitor.console.attach(transport)
            if ready is not None:
                ready(transport)
            await transport.serve(yard)
    finally:
        gc.set_threshold(*thresholds)
        yard.address = None
        await transport.close()


def run_server(
    yard: Yard,
    serving: Serving,
    authenticator: Authenticator | None = None,
    *,
    monitor: Monitor | None = None,
    mounted: Sequence[Mounted] = (),
    ready: Ready = lambda _: None,
    background: Background | None = None,
    follow: Callable[[], None] | None = None,
    explain: Callable[[Exception], str] = str,
) -> None:
    """Serve a yard in this process, or in several worker processes, until a signal ends the program.

    With `background`, SIGHUP is for it and is passed on to all workers. `follow` is called at short intervals in the
    process that forks them, so that a new worker begins with the settings that hold then. `explain` turns the error of
    a worker that cannot open the yard into the one sentence that reaches this process.

    Raises:
        NotOpenedError: No worker could open the yard.
        ValueError: The transport refuses the settings.
        OSError: The address cannot be listened on.
    """
    _open_standard_streams()
    serve_here = partial(
        serve_forever,
        yard,
        serving,
        authenticator,
        monitor=monitor,
        mounted=mounted,
        background=background or nullcontext,
    )
    if serving.workers == 1:
        run(serve_here(ready=ready), loop=fastest_loop())
        return
    if serving.transport != "http":
        raise ValueError(f"Only 'http' can be served by several workers, not '{serving.transport}'.")
    transport = cast("Http", make_transport(serving, authenticator))

    def work(parent: Parent) -> None:
        def begin(_: Transport) -> None:
            parent.terminate_with()
            parent.report_opened()

        try:
            shared = partial(serve_here, listeners=transport.listeners, certificate=transport.certificate)
            run(shared(ready=begin), loop=fastest_loop())
        except Exception as error:
            if parent.is_informed:
                raise
            parent.report_failure(explain(error))
            raise SystemExit(1) from None

    def follow_files() -> None:
        if follow is not None:
            follow()
        if transport.certificate is not None:
            transport.certificate.follow()

    try:
        yard.signer.prepare()  # before the fork, because each worker must verify what another one signed
        run_workers(
            serving.workers,
            work,
            partial(ready, transport),
            forwards_hangup=background is not None,
            follow=follow_files,
        )
    finally:
        run(transport.close())


def _open_standard_streams() -> None:
    """Open standard streams that the parent closed, lest a socket gets the number of one and is mistaken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one


def serve(
    yard: Yard,
    *,
    config: str | None = None,
    authenticator: Authenticator | None = None,
    profile: str | None = None,
    allow_eval: bool | Sequence[str] | None = None,
    shape: Shape | None = None,
    packs: Sequence[str] | None = None,
    metatools: bool | Sequence[str] | None = None,
    state_dir: str | None = None,
    store: str | None = None,
    store_replicas: int | None = None,
    transport: str | None = None,
    host: str | None = None,
    port: int | None = None,
    socket: str | None = None,
    stateless: bool | None = None,
    json_response: bool | None = None,
    session_timeout: float | None = None,
    sessions: int | None = None,
    sessions_per_identity: int | None = None,
    requests: int | None = None,
    requests_per_identity: int | None = None,
    connections: int | None = None,
    connections_per_identity: int | None = None,
    tls: bool | None = None,
    tls_cert: str | None = None,
    tls_key: str | None = None,
    workers: int | None = None,
    reload: bool | None = None,
    public_url: str | None = None,
    allowed_hosts: Sequence[str] | None = None,
    allowed_origins: Sequence[str] | None = None,
    request_headers: Sequence[str] | None = None,
    message_bytes: int | None = None,
    page_size: int | None = None,
    output_schemas: bool | None = None,
    notify_changes: bool | None = None,
    console: bool | None = None,
    ask_before_destroy: bool | None = None,
    ask_seconds: float | None = None,
    keep_alive: float | None = None,
    shutdown_seconds: float | None = None,
    metrics: bool | None = None,
    metrics_keys: Sequence[Key] | None = None,
    otel: bool | None = None,
    audit_log: str | None = None,
    access_log: str | None = None,
    log_bytes: int | None = None,
    log_backups: int | None = None,
) -> None:
    """Serve a yard until a signal ends the program, as `callyard serve` does.

    The settings are those at the top level, in `[serve]` and in `[monitor]`; None leaves one to the environment, to
    'callyard.toml' or the file `config`, and to its default. A transport that
    'callyard.toml' chooses is named on stderr. An error is written to stderr and ends the program.

    Raises:
        SystemExit: The yard cannot be served, or a signal ended the program.
    """
    settings = {_CODE_KEYS[name]: value for name, value in locals().items() if name in _CODE_KEYS and value is not None}
    notices = Notices()
    with ExitStack() as stack, Hangup() as hangup:
        if not logging.getLogger().handlers:
            stack.enter_context(logging_to(notices, verbose=0, quiet=False))
        try:
            _check_loop()
            start = read_start()
            read = partial(read_settings, settings, notices, path=config, in_code=True)
            found = read()
            if config is None:
                _name_transport(found, notices)
            program = Path(sys.argv[0]).resolve()
            if is_supervisor(found, start):
                run_supervisor(program.parent, found, notices)
            else:
                serve_configured(
                    yard,
                    found,
                    notices,
                    command=lambda: [sys.executable, str(program), *sys.argv[1:]],
                    authenticator=authenticator,
                    start=start,
                    read=read,
                    hangup=hangup,
                )
        except LaunchError as error:
            notices.say(f"callyard: {error.message}")
            raise SystemExit(error.status) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def _name_transport(config: Config, notices: Notices) -> None:
    """Say that a file which the program does not name chose the transport: its client may wait on stdio for ever."""
    transport, origin = config.settings.serve.transport, config.origin("serve.transport")
    if origin.kind == "file" and transport != "stdio":
        way_out = "'serve(yard, transport=…)' decides in code."
        notices.say(f"The transport is '{transport}', because '{origin.name}' says so. {way_out}")


def _check_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        why = "'serve' runs an event loop of its own, so it cannot be called inside one."
        raise LaunchError(f"{why} Serve 'asgi(yard)' there instead.")
