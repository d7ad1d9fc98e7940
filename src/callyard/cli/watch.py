"""`callyard watch`: probe upstreams again and again, alert, and serve a status page."""

from callyard.cli.parser import Options
from callyard.cli.targets import config_from
from callyard.cli.terminal import Terminal
from callyard.config import CLIENT_FILES
from callyard.launch.errors import LaunchError
from callyard.launch.watch import run_watch_server

__all__ = ["run_watch"]


def run_watch(options: Options, terminal: Terminal) -> int:
    """Watch the upstreams of a file until Ctrl-C or SIGTERM."""
    if options.target and not options.target.endswith((".toml", *CLIENT_FILES)):
        raise LaunchError(f"'{options.target}' is no file with upstreams, such as 'callyard.toml'.")
    run_watch_server(config_from(options, terminal), terminal)
    return 0
