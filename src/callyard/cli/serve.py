"""`callyard serve` and `callyard worker`: serve a yard to MCP clients, and run jobs of servers."""

import shutil
import sys
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Final

from callyard._internal.project import file_of
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, load_yard
from callyard.cli.terminal import Terminal
from callyard.config import Config, known_settings
from callyard.launch.errors import LaunchError
from callyard.launch.job_worker import run_job_worker
from callyard.launch.reload import is_supervisor, read_start, run_supervisor
from callyard.launch.serve import serve_configured
from callyard.monitor import log_sink

__all__ = ["run_serve", "run_worker"]


_HTTP_ONLY: Final = (
    *("serve.stateless", "serve.json_response", "serve.session_timeout", "serve.workers"),
    *("monitor.metrics", "monitor.access_log", "agents.enabled"),
)
_NETWORK: Final = ("serve.host", "serve.port", "serve.socket", "serve.tls", "serve.tls_cert", "serve.tls_key")
_IGNORED: Final = {"stdio": (*_NETWORK, *_HTTP_ONLY), "sse": _HTTP_ONLY}


def run_serve(options: Options, terminal: Terminal) -> int:
    """Serve the yard of the target until its input ends, or until Ctrl-C or SIGTERM."""
    start = read_start()
    config = config_from(options, terminal)
    _check_flags(options, config)
    if is_supervisor(config, start):
        file = file_of(config.settings.target or "") or config.path
        run_supervisor(Path.cwd() if file is None else file.resolve().parent, config, terminal)
        return 0
    with redirect_stdout(sys.stderr), load_yard(config) as yard:
        if options.verbose:
            yard.add_sink(log_sink)
        read = partial(config_from, options, terminal)
        command = partial(_command, options)
        serve_configured(yard, config, terminal, command=command, start=start, read=read, hangup=options.hangup)
    return 0


def run_worker(options: Options, terminal: Terminal) -> int:
    """Run jobs of servers that share the store of the target, until Ctrl-C or SIGTERM."""
    config = config_from(options, terminal)
    with redirect_stdout(sys.stderr), load_yard(config) as yard:
        if options.verbose:
            yard.add_sink(log_sink)
        run_job_worker(yard, config, terminal)
    return 0


def _check_flags(options: Options, config: Config) -> None:
    """Refuse flags that the transport ignores, because their user expects another transport."""
    transport = config.settings.serve.transport
    for key in _IGNORED.get(transport, ()):
        if options.settings.get(key, False) is not False:
            raise LaunchError(f"'{known_settings()[key].flag}' needs '--transport http': '{transport}' ignores it.")


def _command(options: Options) -> list[str]:
    """Return a command that starts this server from any folder, as a client needs it."""
    program = ["callyard"] if shutil.which("callyard") else [sys.executable, "-m", "callyard"]
    flags: list[str] = []
    for key, value in options.settings.items():
        flag = known_settings()[key].flag
        if isinstance(value, str):
            flags += [flag, value]
        else:
            flags.append(flag if value else f"--no-{flag.removeprefix('--')}")
    config = ["--config", str(Path(options.config).resolve())] if options.config else []
    return [*program, "serve", *_absolute(options.target), *config, *flags]


def _absolute(target: str) -> list[str]:
    file = file_of(target)
    if file is None:
        return [target] if target else ["--config", str(Path("callyard.toml").resolve())]
    return [str(file.resolve()) + target[len(str(file)) :]]
