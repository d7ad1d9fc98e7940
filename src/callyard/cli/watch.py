"""`callyard watch`: probe upstreams again and again, alert, and serve a status page."""

import time

from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Terminal
from callyard.config import CLIENT_FILES
from callyard.launch.errors import LaunchError
from callyard.launch.signals import run
from callyard.launch.watch import run_watch_server, silence

__all__ = ["run_watch"]


def run_watch(options: Options, terminal: Terminal) -> int:
    """Watch the upstreams of a file until Ctrl-C or SIGTERM."""
    if options.target and not options.target.endswith((".toml", *CLIENT_FILES)):
        raise LaunchError(f"'{options.target}' is no file with upstreams, such as 'callyard.toml'.")
    config = config_from(options, terminal)
    if options.silence is None:
        if options.seconds is not None or options.reason:
            raise LaunchError("'--for' and '--reason' go with '--silence'.")
        run_watch_server(config, terminal)
        return 0
    if options.seconds is None:
        raise LaunchError("A silence has an end: say how long with '--for', such as '--for 1h'.")
    made = run(silence(config, options.silence, seconds=options.seconds, reason=options.reason))
    end = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(made.until))
    terminal.inform(f"Nobody is alerted of '{made.pattern}' until {end}.")
    return 0
