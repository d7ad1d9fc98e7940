"""Opening a way in: from settings to a transport that runs until it is told to end."""

import asyncio
import errno
import gc
import logging
import os
import socket
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from toolyard._internal.logfmt import quoted
from toolyard.config import Config, known_settings
from toolyard.config.settings import Serving
from toolyard.launch.build import apply_settings, settings_of_code
from toolyard.launch.errors import DEFECT, INTERRUPTED, LaunchError, cause_of, innermost, is_own, refusal_of
from toolyard.launch.notices import Notices, logging_to
from toolyard.launch.reload import Beginning, beginning_of, end_with_supervisor, kept_port, supervise
from toolyard.launch.signals import run
from toolyard.model.names import did_you_mean
from toolyard.transports import Transport, fastest_loop
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.launch.reload import Reread  # the same
    from toolyard.transports.auth import (
        Authenticator,  # a server on stdio has none, and starts sooner without  # a server on stdio has none, and starts sooner without
    )

__all__ = [
    "Command",
    "NotOpenedError",
    "is_supervisor",
    "make_transport",
    "run_server",
    "run_supervisor",
    "serve",
    "serve_configured",
    "serve_forever",
    "serve_yard",
]


Command = Callable[[], Sequence[str]]
_log = logging.getLogger(__name__)
_PATIENCE: Final = 10.0


def serve_yard(
    yard: Yard,
    config: Config,
    notices: Notices,
    *,
    command: Command,
    authenticator: "Authenticator | None",
    beginning: Beginning,
    reread: "Reread",
) -> None:
    """Serve a yard that is not open yet; `command` tells what would start this server, and its settings can be read once more.

    What tools print goes to stderr, because stdout may be the way to the client.

    Raises:
        LaunchError: It cannot be served as it was asked for, or failed meanwhile.
    """
    serving = config.settings.serve
    if beginning and not serving.port:
        serving = replace(serving, port=kept_port())
    listening: list[str] = []

    def announce(transport: Transport) -> None:
        if beginning:
            end_with_supervisor()
        about = transport.info()
        listening.append(about.address)
        _log.info("serving yard=%s transport=%s address=%s", quoted(yard.name), quoted(about.name), about.address)
        if notices.attended and not notices.quiet:
            from toolyard.launch.hint import hint  # noqa: PLC0415 - only a person reads it

            keyed = bool(config.settings.auth.api_keys)
            lines = hint(yard.name, about.address, transport=about.name, command=command(), keyed=keyed, public_url=serving.public_url)
            for line in [next(lines)] if beginning == "again" else lines:
                notices.say(*line)

    def follow() -> AbstractAsyncContextManager[None]:
        from toolyard.launch.reload import Live  # noqa: PLC0415 - only a server with a file needs it

        return Live(yard, config, notices, reread=reread).followed()

    def explain(error: Exception) -> str:
        return _refusal(error, yard, serving, listening=False).message

    lives = bool(config.files) and not beginning  # whoever starts it anew sees to the files, too
    try:
        with redirect_stdout(sys.stderr), _one_line(wanted=not notices.attended and not notices.quiet):
            run_server(yard, serving, authenticator, ready=announce, meanwhile=follow if lives else None, explain=explain)
    except Exception as error:
        raise _refusal(error, yard, serving, listening=bool(listening)) from error


@contextmanager
def _one_line(*, wanted: bool) -> Generator[None]:
    """Let the log say where the server listens, also where it tells of nothing but warnings, if no person is told."""
    before = _log.level
    if wanted:
        _log.setLevel(min(logging.INFO, _log.getEffectiveLevel()))
    try:
        yield
    finally:
        _log.setLevel(before)


def _refusal(failure: Exception, yard: Yard, serving: Serving, *, listening: bool) -> LaunchError:
    _log.debug("serving_failed yard=%s", quoted(yard.name), exc_info=failure)
    error = innermost(failure)
    if isinstance(error, NotOpenedError):
        return LaunchError(str(error))
    if isinstance(error, OSError) and is_own(error):  # a certificate may be read only after it listens
        return LaunchError(_unreachable(error, serving))
    if listening:
        return LaunchError(f"The server of '{yard.name}' failed: {cause_of(error)}", status=DEFECT)
    return LaunchError(refusal_of(error, yard))


def _unreachable(error: OSError, serving: Serving) -> str:
    """Return why there is nothing to listen on, and what to do about it."""
    if error.errno == errno.EADDRINUSE and serving.socket is None:
        return f"Port {serving.port} of '{serving.host}' is taken. Choose another with '--port', or any that is free with '--port 0'."
    said = (error.strerror or str(error)).removesuffix(".")
    if error.filename is not None:
        return f"The file '{error.filename}' cannot be used: {said}."
    if serving.tls_cert is not None and error.errno != errno.EADDRINUSE:
        return f"The certificate '{serving.tls_cert}' and its key '{serving.tls_key}' cannot be used: {said}."
    place = f"socket '{serving.socket}'" if serving.socket is not None else f"port {serving.port} of '{serving.host}'"
    return f"The {place} cannot be listened on: {said}."


Ready = Callable[[Transport], None]
Meanwhile = Callable[[], AbstractAsyncContextManager[None]]
"""What goes on beside the serving, in each process, while the yard is open."""
_OWN: Final[Mapping[str, tuple[str, str]]] = {
    "stdio": ("toolyard.transports.stdio", "Stdio"),
    "http": ("toolyard.transports.http", "Http"),
    "sse": ("toolyard.transports.sse", "Sse"),
}
_GROUP: Final = "toolyard.transports"


class NotOpenedError(Exception):
    """None of several processes could open the yard; the sentence says why."""


def make_transport(serving: Serving, authenticator: "Authenticator | None" = None, *, listener: socket.socket | None = None) -> Transport:
    """Return the transport that the settings name: one of ours, or one that a package brings along, loaded now.

    Raises:
        ValueError: There is none of that name, or the settings make no sense for it.
        OSError: The address cannot be listened on.
    """
    if serving.transport in _OWN:
        module, name = _OWN[serving.transport]
        make: Any = getattr(import_module(module), name)
        return make(serving) if serving.transport == "stdio" else make(serving, authenticator, listener=listener)
    from importlib.metadata import entry_points  # noqa: PLC0415 - dear, and for strangers' transports alone

    found = {point.name: point for point in entry_points(group=_GROUP)}
    if serving.transport not in found:
        raise ValueError(f"There is no transport '{serving.transport}'. Known: {', '.join(sorted({*_OWN, *found}))}.")
    try:
        make = found[serving.transport].load()
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).removesuffix('.')}"
        raise ValueError(f"The transport '{serving.transport}' cannot be loaded: {said}.") from error
    return make(serving, authenticator)


async def serve_forever(
    yard: Yard,
    serving: Serving,
    authenticator: "Authenticator | None" = None,
    *,
    ready: Ready | None = None,
    meanwhile: Meanwhile = nullcontext,
    listener: socket.socket | None = None,
) -> None:
    """Open the yard and serve it until it is cancelled or its client goes; `ready` is told once it listens.

    Raises:
        ValueError: The settings make no sense.
        OSError: The address cannot be listened on.
    """
    transport = make_transport(serving, authenticator, listener=listener)
    try:
        async with yard, meanwhile():
            gc.freeze()  # what is there now stays: no collection need look at it again
            if ready is not None:
                ready(transport)
            await transport.serve(yard)
    finally:
        await transport.close()


def run_server(
    yard: Yard,
    serving: Serving,
    authenticator: "Authenticator | None" = None,
    *,
    ready: Ready | None = None,
    meanwhile: Meanwhile | None = None,
    explain: Callable[[Exception], str] = str,
) -> None:
    """Serve a yard in this process, or in as many as the settings say, until the program is told to end.

    With something that goes on meanwhile, SIGHUP is for it, and passed on to all processes. Only one sentence gets from them to this
    one: what explains why the yard cannot be opened.

    Raises:
        NotOpenedError: It cannot be opened by any of several processes.
        ValueError: The settings make no sense.
        OSError: The address cannot be listened on.
    """
    _fill_standard_streams()
    if serving.workers == 1:
        run(serve_forever(yard, serving, authenticator, ready=ready, meanwhile=meanwhile or nullcontext), loop=fastest_loop())
        return
    if serving.transport != "http":
        raise ValueError(f"Only 'http' can be served by several workers, not '{serving.transport}'.")
    from toolyard.launch.workers import Parent, run_workers  # noqa: PLC0415 - only several need it
    from toolyard.transports.http.server import Http  # noqa: PLC0415 - only a server that speaks HTTP needs it

    transport = Http(serving, authenticator)

    def work(parent: Parent) -> None:
        def begin(_: Transport) -> None:
            parent.end_with()
            parent.tell_opened()

        served = serve_forever(yard, serving, authenticator, ready=begin, meanwhile=meanwhile or nullcontext, listener=transport.listener)
        try:
            run(served, loop=fastest_loop())
        except Exception as error:
            if parent.knows:
                raise
            parent.tell_failure(explain(error))
            raise SystemExit(1) from None

    def announce() -> None:
        if ready is not None:
            ready(transport)

    try:
        yard.signer.prepare()  # what one worker seals another must open
        run_workers(serving.workers, work, announce, hangs_up=meanwhile is None)
    finally:
        run(transport.close())


def _fill_standard_streams() -> None:
    """Open what a shell closed, lest something else gets its number and is taken for it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free is this one


def serve(yard: Yard, *, config: str | None = None, authenticator: "Authenticator | None" = None, **settings: Any) -> None:
    """Serve a yard until the program is told to end, as `toolyard serve` does.

    The settings are those of `Serving`, and `profile` and `allow_eval`. What is not given may be in the environment or in
    'toolyard.toml', or in the file `config`. What is wrong is said on stderr and ends the program.

    Raises:
        SystemExit: The yard cannot be served, or the program was told to end.
    """
    notices = Notices()
    with ExitStack() as stack:
        if not logging.getLogger().handlers:
            stack.enter_context(logging_to(notices, verbose=0, quiet=False))
        try:
            _serve_program(yard, partial(settings_of_code, _keys(settings), notices, config), notices, authenticator=authenticator)
        except LaunchError as error:
            notices.say(f"toolyard: {error.message}")
            raise SystemExit(error.status) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def _serve_program(yard: Yard, read: "Reread", notices: Notices, *, authenticator: "Authenticator | None") -> None:
    _check_loop()
    beginning = beginning_of()
    config = read()
    program = Path(sys.argv[0]).resolve()
    if is_supervisor(config, beginning):
        run_supervisor(program.parent, config, notices)
    else:
        command = [sys.executable, str(program), *sys.argv[1:]]
        serve_configured(yard, config, notices, command=lambda: command, authenticator=authenticator, beginning=beginning, reread=read)


def _check_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise LaunchError("'serve' runs an event loop of its own, so it cannot be called inside one. Serve 'asgi(yard)' there instead.")


def serve_configured(
    yard: Yard,
    config: Config,
    notices: Notices,
    *,
    command: Command,
    authenticator: "Authenticator | None",
    beginning: Beginning,
    reread: "Reread",
) -> None:
    """Apply the settings to a yard and serve it.

    Raises:
        LaunchError: It cannot be served as it was asked for, or failed meanwhile.
    """
    apply_settings(yard, config, notices)
    if authenticator is None and config.settings.serve.transport != "stdio":
        from toolyard.launch.build import make_authenticator  # noqa: PLC0415 - the same

        authenticator = make_authenticator(config)
    serve_yard(yard, config, notices, command=command, authenticator=authenticator, beginning=beginning, reread=reread)


def is_supervisor(config: Config, beginning: Beginning) -> bool:
    """Return whether this process is to start the server in another one and watch its files.

    Raises:
        LaunchError: The settings do not go together.
    """
    serving = config.settings.serve
    if serving.reload and serving.transport == "stdio":
        raise LaunchError("'--reload' needs '--transport http': over stdio the client itself starts the server, and would lose it.")
    if serving.reload and serving.workers > 1:
        raise LaunchError("'--reload' and '--workers' do not go together: one is for writing a yard, the other for many callers.")
    return serving.reload and not beginning


def run_supervisor(folder: Path, config: Config, notices: Notices) -> None:
    """Start the server in another process, and anew after each change to a file of the folder."""
    serving = config.settings.serve
    port = 0 if serving.port or serving.socket is not None else _free_port(serving.host)
    run(supervise(folder, notices, patience=serving.shutdown_seconds + _PATIENCE, port=port))


def _free_port(host: str) -> int:
    """Return a port that is free now, or 0 if the address cannot be listened on, which the server then says itself."""
    import socket  # noqa: PLC0415 - only whoever watches needs it

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
        probe.bind((host, 0))
        return probe.getsockname()[1]
    return 0


def _keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that a program names by their keys."""
    known = {setting.name: setting.key for setting in known_settings().values() if setting.section in {"", "serve"}}
    del known["target"]  # the yard is at hand
    for name in settings:
        if name not in known:
            raise LaunchError(f"There is no setting '{name}'.{did_you_mean(name, known)}")
    return {known[name]: value for name, value in settings.items()}
