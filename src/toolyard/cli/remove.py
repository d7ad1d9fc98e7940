"""`toolyard remove`: takes an upstream out of 'toolyard.toml', and the secrets that were kept for it."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from toolyard.cli.exits import CommandError
from toolyard.cli.own_file import OwnFile, read_own_file, write_own_file
from toolyard.cli.parser import Options
from toolyard.cli.parsing import did_you_mean
from toolyard.cli.terminal import Terminal
from toolyard.clients.toml_text import EditError, remove_table
from toolyard.config.upstreams import UPSTREAMS

__all__ = ["run"]

_FILE: Final = re.compile(r"secretref:file:([^{}\"]+)")


def run(options: Options, terminal: Terminal) -> int:
    """Remove it, and tell what is left to do."""
    own = read_own_file(options.config)
    name = options.name
    if name not in own.upstreams:
        raise CommandError(f"There is no upstream '{name}' in '{own.path}'.{did_you_mean(name, list(own.upstreams))}")
    try:
        text = remove_table(own.text, [UPSTREAMS, name])
    except EditError as error:
        raise CommandError(f"Remove '{name}' from '{own.path}' by hand: {error}.") from error
    write_own_file(own, text, secrets={}, keeping="file")
    for file in _secrets_of(own, name, text):
        with suppress(OSError):
            file.unlink()
    terminal.write(name)
    if not terminal.quiet:
        terminal.say(f"'{name}' is no longer in '{own.path}'. A server that runs lets it go by itself.")
    return 0


def _secrets_of(own: OwnFile, name: str, text: str) -> Iterator[Path]:
    """Return the files that were made for secrets of this upstream and that nothing else refers to."""
    for found in _FILE.findall(str(own.upstreams[name])):
        path = Path(found.rstrip("'"))
        if path.parent == own.secrets and path.name.startswith(f"{name}.") and str(path) not in text:
            yield path
