"""`toolyard restart`: asks the yard that uses an upstream to start it anew."""

from toolyard.cli.exits import CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.status import ask_for_restart, read_status
from toolyard.schema import near_miss
from toolyard.state_dir import find_state_dir

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Leave word that the upstream is to be restarted, if there is a yard that will find it."""
    config = settings_of_options(options, terminal)
    if options.name not in config.upstreams:
        near = near_miss(options.name, sorted(config.upstreams))
        meant = f" Did you mean '{near}'?" if near else ""
        raise CommandError(f"There is no upstream '{options.name}'.{meant}")
    try:
        folder = folder_of(find_state_dir(config.settings.state_dir), options.name)
        status = read_status(folder)
        if status is None:
            raise CommandError(f"No yard uses '{options.name}' now, so there is nothing to restart.")
        ask_for_restart(folder)
    except OSError as error:
        raise CommandError(f"The state directory cannot be used: {error.strerror}.") from error
    if not terminal.quiet:
        terminal.say(f"The yard with the process id {status.pid} restarts '{options.name}' within a second.")
    return 0
