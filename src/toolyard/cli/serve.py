"""`toolyard serve`: a yard for MCP clients."""

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from toolyard.cli.targets import chosen, file_of, settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.config import Config, known_settings
from toolyard.launch.errors import LaunchError
from toolyard.launch.reload import beginning_of
from toolyard.launch.serve import is_supervisor, run_supervisor, serve_configured
from toolyard.monitor import log_sink

if TYPE_CHECKING:
    from toolyard.cli.parser import Options

__all__ = ["run_serve"]


_STREAMABLE: Final = ("stateless", "json_response", "session_timeout", "workers")
_UNHEEDED: Final = {"stdio": ("host", "port", "socket", "tls_cert", "tls_key", *_STREAMABLE), "sse": _STREAMABLE}
"""By transport the settings that do nothing there."""


def run_serve(options: "Options", terminal: Terminal) -> int:
    """Serve the yard that the target names until its input ends, or until Ctrl-C or SIGTERM."""
    beginning = beginning_of()
    config = settings_of_options(options, terminal)
    _check_flags(options, config)
    if is_supervisor(config, beginning):
        run_supervisor(_folder_of(config), config, terminal)
        return 0
    with redirect_stdout(sys.stderr), chosen(config) as yard:
        if options.verbose:
            yard.add_sink(log_sink)
        again = partial(settings_of_options, options, terminal)
        serve_configured(yard, config, terminal, command=partial(_command, options), authenticator=None, beginning=beginning, reread=again)
    return 0


def _check_flags(options: "Options", config: Config) -> None:
    """Refuse flags that do nothing over the transport: whoever gave one expects another."""
    transport = config.settings.serve.transport
    for name in _UNHEEDED.get(transport, ()):
        if options.given.get(f"serve.{name}", False) is not False:
            flag = known_settings()[f"serve.{name}"].flag
            raise LaunchError(f"'{flag}' needs '--transport http': it does nothing over '{transport}'.")


def _folder_of(config: Config) -> Path:
    """Return the folder whose files make the yard what it is."""
    file = file_of(config.settings.target or "") or config.path
    return Path.cwd() if file is None else file.resolve().parent


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
