"""`toolyard serve`: a yard for MCP clients, and the same for programs that serve a yard of their own."""

import asyncio
import logging
import sys
from contextlib import ExitStack, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from toolyard.cli.exits import INTERRUPTED, CommandError
from toolyard.cli.log_lines import logging_to
from toolyard.cli.reload import Beginning, beginning_of, supervise
from toolyard.cli.server import Command, serve_yard
from toolyard.cli.settings import apply_settings, settings_of_code, settings_of_options
from toolyard.cli.target import chosen, file_of
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, known_settings
from toolyard.monitor import log_sink
from toolyard.schema import near_miss
from toolyard.signals import run as run_until_told
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.live import Reread  # only a server with a file needs it
    from toolyard.cli.parser import Options
    from toolyard.transports.auth import Guard  # a server on stdio has none, and starts sooner without

__all__ = ["run", "serve"]

_PATIENCE: Final = 10.0
_STREAMABLE: Final = ("stateless", "json_response", "session_timeout", "workers")
_UNHEEDED: Final = {"stdio": ("host", "port", "socket", "tls_cert", "tls_key", *_STREAMABLE), "sse": _STREAMABLE}
"""By transport the settings that do nothing there."""


def run(options: "Options", terminal: Terminal) -> int:
    """Serve the yard that the target names until its input ends, or until Ctrl-C or SIGTERM."""
    beginning = beginning_of()
    config = settings_of_options(options, terminal)
    _check_flags(options, config)
    if _is_supervisor(config, beginning):
        _supervise(_folder_of(config), config, terminal)
        return 0
    with redirect_stdout(sys.stderr), chosen(config) as yard:
        if options.verbose:
            yard.add_sink(log_sink)
        again = partial(settings_of_options, options, terminal)
        _serve(yard, config, terminal, command=partial(_command, options), guard=None, beginning=beginning, reread=again)
    return 0


def serve(yard: Yard, *, config: str | None = None, guard: "Guard | None" = None, **settings: Any) -> None:
    """Serve a yard until the program is told to end, as `toolyard serve` does.

    The settings are those of `Serving`, and `profile` and `allow_eval`. What is not given may be in the environment or in
    'toolyard.toml', or in the file `config`. What is wrong is said on stderr and ends the program.

    Raises:
        SystemExit: The yard cannot be served, or the program was told to end.
    """
    terminal = Terminal()
    with ExitStack() as stack:
        if not logging.getLogger().handlers:
            stack.enter_context(logging_to(terminal, verbose=0, quiet=False))
        try:
            _serve_program(yard, partial(settings_of_code, _keys(settings), terminal, config), terminal, guard=guard)
        except CommandError as error:
            terminal.say(f"toolyard: {error.message}")
            raise SystemExit(error.status) from None
        except KeyboardInterrupt:
            raise SystemExit(INTERRUPTED) from None


def _serve_program(yard: Yard, read: "Reread", terminal: Terminal, *, guard: "Guard | None") -> None:
    _check_loop()
    beginning = beginning_of()
    config = read()
    program = Path(sys.argv[0]).resolve()
    if _is_supervisor(config, beginning):
        _supervise(program.parent, config, terminal)
    else:
        command = [sys.executable, str(program), *sys.argv[1:]]
        _serve(yard, config, terminal, command=lambda: command, guard=guard, beginning=beginning, reread=read)


def _check_loop() -> None:
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise CommandError("'serve' runs an event loop of its own, so it cannot be called inside one. Serve 'asgi(yard)' there instead.")


def _serve(
    yard: Yard, config: Config, terminal: Terminal, *, command: Command, guard: "Guard | None", beginning: Beginning, reread: "Reread"
) -> None:
    apply_settings(yard, config, terminal)
    if guard is None and config.settings.serve.transport != "stdio":
        from toolyard.cli.guards import make_guard  # noqa: PLC0415 - the same

        guard = make_guard(config)
    serve_yard(yard, config, terminal, command=command, guard=guard, beginning=beginning, reread=reread)


def _check_flags(options: "Options", config: Config) -> None:
    """Refuse flags that do nothing over the transport: whoever gave one expects another."""
    transport = config.settings.serve.transport
    for name in _UNHEEDED.get(transport, ()):
        if options.given.get(f"serve.{name}", False) is not False:
            flag = known_settings()[f"serve.{name}"].flag
            raise CommandError(f"'{flag}' needs '--transport http': it does nothing over '{transport}'.")


def _is_supervisor(config: Config, beginning: Beginning) -> bool:
    serving = config.settings.serve
    if serving.reload and serving.transport == "stdio":
        raise CommandError("'--reload' needs '--transport http': over stdio the client itself starts the server, and would lose it.")
    if serving.reload and serving.workers > 1:
        raise CommandError("'--reload' and '--workers' do not go together: one is for writing a yard, the other for many callers.")
    return serving.reload and not beginning


def _folder_of(config: Config) -> Path:
    """Return the folder whose files make the yard what it is."""
    file = file_of(config.settings.target or "") or config.path
    return Path.cwd() if file is None else file.resolve().parent


def _supervise(folder: Path, config: Config, terminal: Terminal) -> None:
    serving = config.settings.serve
    port = 0 if serving.port or serving.socket is not None else _free_port(serving.host)
    run_until_told(supervise(folder, terminal, patience=serving.shutdown_seconds + _PATIENCE, port=port))


def _free_port(host: str) -> int:
    """Return a port that is free now, or 0 if the address cannot be listened on, which the server then says itself."""
    import socket  # noqa: PLC0415 - only whoever watches needs it

    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe, suppress(OSError):
        probe.bind((host, 0))
        return probe.getsockname()[1]
    return 0


def _command(options: "Options") -> list[str]:
    """Return the command that serves the same from anywhere, as a client must start it."""
    import shutil  # noqa: PLC0415 - only a person is told the command

    program = ["toolyard"] if shutil.which("toolyard") else [sys.executable, "-m", "toolyard"]
    flags: list[str] = []
    for key, value in options.given.items():
        flag = known_settings()[key].flag
        flags += [flag, value] if isinstance(value, str) else [flag if value else f"--no-{flag.removeprefix('--')}"]
    config = ["--config", str(Path(options.config).resolve())] if options.config else []
    return [*program, "serve", *_everywhere(options.target), *config, *flags]


def _everywhere(target: str) -> list[str]:
    file = file_of(target)
    if file is None:
        return [target] if target else ["--config", str(Path("toolyard.toml").resolve())]
    return [str(file.resolve()) + target[len(str(file)) :]]


def _keys(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings that a program names by their keys."""
    known = {setting.name: setting.key for setting in known_settings().values() if setting.section in {"", "serve"}}
    del known["target"]  # the yard is at hand
    for name in settings:
        if name not in known:
            near = near_miss(name, list(known))
            raise CommandError(f"There is no setting '{name}'." + (f" Did you mean '{near}'?" if near else ""))
    return {known[name]: value for name, value in settings.items()}
