"""`callyard serve`: serve a yard to MCP clients."""

import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callyard._internal.project import file_of
from callyard.cli.targets import config_from, load_yard
from callyard.cli.terminal import Terminal
from callyard.config import Config, known_settings
from callyard.launch.errors import LaunchError
from callyard.launch.reload import read_start
from callyard.launch.serve import is_supervisor, run_supervisor, serve_configured
from callyard.monitor import log_sink

if TYPE_CHECKING:
    from callyard.cli.parser import Options

__all__ = ["run_serve"]


_HTTP_ONLY: Final = ("stateless", "json_response", "session_timeout", "workers")
_IGNORED: Final = {"stdio": ("host", "port", "socket", "tls", "tls_cert", "tls_key", *_HTTP_ONLY), "sse": _HTTP_ONLY}
"""The settings that a transport ignores."""
_MOUNTED: Final = ("monitor.metrics", "monitor.access_log", "agents.enabled")
"""The settings of what only 'http' mounts or logs."""


def run_serve(options: "Options", terminal: Terminal) -> int:
    """Serve the yard of the target until its input ends, or until Ctrl-C or SIGTERM."""
    start = read_start()
    config = config_from(options, terminal)
    _check_flags(options, config)
    if is_supervisor(config, start):
        run_supervisor(_folder_of(config), config, terminal)
        return 0
    with redirect_stdout(sys.stderr), load_yard(config) as yard:
        if options.verbose:
            yard.add_sink(log_sink)
        read = partial(config_from, options, terminal)
        serve_configured(yard, config, terminal, command=partial(_command, options), start=start, read=read)
    return 0


def _check_flags(options: "Options", config: Config) -> None:
    """Refuse flags that the transport ignores, because their user expects another transport."""
    transport = config.settings.serve.transport
    ignored = [f"serve.{name}" for name in _IGNORED.get(transport, ())]
    for key in (*ignored, *(_MOUNTED if transport != "http" else ())):
        if options.settings.get(key, False) is not False:
            flag = known_settings()[key].flag
            raise LaunchError(f"'{flag}' needs '--transport http': '{transport}' ignores it.")


def _folder_of(config: Config) -> Path:
    """Return the folder of the yard, whose files are watched."""
    file = file_of(config.settings.target or "") or config.path
    return Path.cwd() if file is None else file.resolve().parent


def _command(options: "Options") -> list[str]:
    """Return a command that starts this server from any folder, as a client needs it."""
    import shutil  # noqa: PLC0415 - only the hint shows the command

    program = ["callyard"] if shutil.which("callyard") else [sys.executable, "-m", "callyard"]
    flags: list[str] = []
    for key, value in options.settings.items():
        flag = known_settings()[key].flag
        flags += [flag, value] if isinstance(value, str) else [flag if value else f"--no-{flag.removeprefix('--')}"]
    config = ["--config", str(Path(options.config).resolve())] if options.config else []
    return [*program, "serve", *_absolute(options.target), *config, *flags]


def _absolute(target: str) -> list[str]:
    file = file_of(target)
    if file is None:
        return [target] if target else ["--config", str(Path("callyard.toml").resolve())]
    return [str(file.resolve()) + target[len(str(file)) :]]
