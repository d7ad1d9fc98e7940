"""A server in this process: a yard, served until it is told to end, and what a person is told about it."""

import errno
import logging
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, redirect_stdout
from typing import TYPE_CHECKING

from msgspec.structs import replace

from toolyard.cli.cause import cause_of, innermost, is_own, refusal_of
from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.reload import Beginning, end_with_supervisor, kept_port
from toolyard.cli.terminal import Terminal
from toolyard.config import Config
from toolyard.logline import quoted
from toolyard.serving import Serving
from toolyard.transports import NotOpenedError, Transport, run_server
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.live import Reread  # the same
    from toolyard.transports.auth import Guard  # a server on stdio has none, and starts sooner without

__all__ = ["Command", "serve_yard"]

Command = Callable[[], Sequence[str]]

_log = logging.getLogger(__name__)


def serve_yard(
    yard: Yard, config: Config, terminal: Terminal, *, command: Command, guard: "Guard | None", beginning: Beginning, reread: "Reread"
) -> None:
    """Serve a yard that is not open yet; `command` tells what would start this server, and its settings can be read once more.

    What tools print goes to stderr, because stdout may be the way to the client.

    Raises:
        CommandError: It cannot be served as it was asked for, or failed meanwhile.
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
        if terminal.attended and not terminal.quiet:
            from toolyard.cli.hint import hint  # noqa: PLC0415 - only a person reads it

            keyed = bool(config.settings.auth.api_keys)
            lines = hint(yard.name, about.address, transport=about.name, command=command(), keyed=keyed, public_url=serving.public_url)
            for line in [next(lines)] if beginning == "again" else lines:
                terminal.say(*line)

    def follow() -> AbstractAsyncContextManager[None]:
        from toolyard.cli.live import Live  # noqa: PLC0415 - only a server with a file needs it

        return Live(yard, config, terminal, reread=reread).followed()

    def explain(error: Exception) -> str:
        return _refusal(error, yard, serving, listening=False).message

    lives = bool(config.files) and not beginning  # whoever starts it anew sees to the files, too
    try:
        with redirect_stdout(sys.stderr), _one_line(wanted=not terminal.attended and not terminal.quiet):
            run_server(yard, serving, guard, ready=announce, meanwhile=follow if lives else None, explain=explain)
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


def _refusal(failure: Exception, yard: Yard, serving: Serving, *, listening: bool) -> CommandError:
    _log.debug("serving_failed yard=%s", quoted(yard.name), exc_info=failure)
    error = innermost(failure)
    if isinstance(error, NotOpenedError):
        return CommandError(str(error))
    if isinstance(error, OSError) and is_own(error):  # a certificate may be read only after it listens
        return CommandError(_unreachable(error, serving))
    if listening:
        return CommandError(f"The server of '{yard.name}' failed: {cause_of(error)}", status=DEFECT)
    return CommandError(refusal_of(error, yard))


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
