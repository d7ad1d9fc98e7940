"""`toolyard logs`: what upstreams that are programs say on stderr; it reads their files, so no server need run."""

import time
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Final

from toolyard.cli.exits import CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.providers.upstream.log_reader import LogReader
from toolyard.providers.upstream.process_log import names_of_logs, path_of_log
from toolyard.state_dir import find_state_dir

__all__ = ["run"]

_PAUSE: Final = 0.2


def run(options: Options, terminal: Terminal) -> int:
    """Print the last lines of an upstream's log, and go on with what comes if that is wanted."""
    try:
        state = find_state_dir(settings_of_options(options, terminal).settings.state_dir)
        names = names_of_logs(state)
    except OSError as error:
        raise CommandError(f"The state directory cannot be read: {error.strerror}.") from error
    if options.name not in names:
        raise CommandError(f"There is no log of '{options.name}'.{_which(options.name, names)}")
    with LogReader(path_of_log(state, options.name)) as reader:
        _write(reader.read_last(options.lines), terminal)
        while options.follow:
            time.sleep(_PAUSE)  # the file is another process's, and nothing tells that it grew
            _write(reader.read_on(), terminal)
    return 0


def _write(lines: Sequence[str], terminal: Terminal) -> None:
    for line in lines:
        terminal.write(line)
    terminal.flush()


def _which(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f" Did you mean '{near[0]}'?"
    if names:
        return " There are logs of " + ", ".join(f"'{known}'" for known in names) + "."
    return " An upstream that is a program has one once it was started."
