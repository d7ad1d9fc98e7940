"""`toolyard diff`: what upstreams changed since it was accepted."""

from collections.abc import Sequence
from typing import Final

import msgspec

from toolyard.cli.exits import DIFFERENT
from toolyard.cli.parser import Options
from toolyard.cli.stored import Stored, read_stored
from toolyard.cli.terminal import Painted, Part, Style, Terminal
from toolyard.envelope import encode
from toolyard.providers.upstream.accepted import read_accepted
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.characters import visible
from toolyard.providers.upstream.definitions import Definitions
from toolyard.providers.upstream.differing import Difference, FieldChange, differences, seen_of

__all__ = ["run"]

_SIGNS: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


class _Compared(msgspec.Struct, frozen=True):
    """An upstream, what differs, and the short hash by which that is accepted as it was seen."""

    upstream: str
    seen: str
    differences: list[Difference]


def run(options: Options, terminal: Terminal) -> int:
    """Print what differs, and exit with 1 if anything does."""
    stored = read_stored(options, terminal)
    offered = {options.name: stored.offered_by(options.name)} if options.name else stored.offered(terminal)
    compared = [
        _compared(stored, name, definitions) for name, definitions in offered.items() if name not in stored.unpinned or options.name
    ]
    if options.json:
        terminal.write_json(encode(compared))
    else:
        for one in compared:
            if one.differences and not options.name and one.upstream not in stored.locked:
                _write_names(terminal, one)
            else:
                _write(terminal, one)
    return DIFFERENT if any(one.differences for one in compared) else 0


def _compared(stored: Stored, name: str, definitions: Definitions) -> _Compared:
    found = differences(definitions, stored.locked.get(name, {}), read_accepted(folder_of(stored.state, name)))
    return _Compared(name, seen_of(found, definitions), found)


def _write_names(terminal: Terminal, compared: _Compared) -> None:
    """Print of an upstream of which nothing was ever accepted only what there is: all of it differs."""
    name = compared.upstream
    for difference in compared.differences:
        terminal.write(_title(name, difference), " (new)")
    _say(terminal, f"Nothing of '{name}' was accepted yet. 'toolyard diff {name}' shows all of it.")


def _write(terminal: Terminal, compared: _Compared) -> None:
    name = compared.upstream
    if not compared.differences:
        _say(terminal, f"'{name}' offers what was accepted.")
        return
    for number, difference in enumerate(compared.differences):
        if number:
            terminal.write("")
        _write_difference(terminal, name, difference)
    _say(terminal, f"To accept all of '{name}' as it is here: toolyard accept {name} --all --seen {compared.seen}")


def _say(terminal: Terminal, text: str) -> None:
    if not terminal.quiet:
        terminal.say(text)


def _write_difference(terminal: Terminal, upstream: str, difference: Difference) -> None:
    what = "no longer offered" if difference.what == "vanished" else difference.what
    terminal.write(_title(upstream, difference), f" ({what})")
    for change in difference.changes:
        terminal.write(*_heading(change))
        for line in change.lines:
            terminal.write(*_painted(line))


def _title(upstream: str, difference: Difference) -> Painted:
    return Painted(f"{upstream}: {visible(str(difference.key))}", "bold")


def _heading(change: FieldChange) -> Sequence[Part]:
    unknown = "" if change.lines else " changed; what was accepted is not kept on this machine"
    return (f"  {change.field}", Painted(unknown, "faint"))


def _painted(line: str) -> Sequence[Part]:
    style = _SIGNS.get(line[:1])
    return (f"    {line}",) if style is None else ("    ", Painted(line, style))
