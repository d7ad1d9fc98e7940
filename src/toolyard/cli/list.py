"""`toolyard list`: the tools that a profile lists."""

from collections.abc import Sequence
from functools import partial
from typing import Final

from toolyard.cli.opening import work_in_yard
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Terminal, cut, width_of
from toolyard.envelope import encode
from toolyard.profile import METATOOLS, Profile
from toolyard.spec import ToolSpec
from toolyard.yard import Yard

__all__ = ["run"]

_TITLES: Final = ("NAME", "OPERATION", "SOURCE", "DESCRIPTION")
_GAP: Final = "  "
_NARROWEST: Final = 20
_NAMED: Final = 5


def run(options: Options, terminal: Terminal) -> int:
    """Print the tools: a table for people, lines of columns for programs, an array with `--json`."""
    return work_in_yard(options, terminal, partial(_list, options=options, terminal=terminal))


async def _list(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    specs = yard.list(profile)
    if options.json:
        terminal.write_json(encode([_entry(spec) for spec in specs]))
    elif terminal.interactive:
        _write_table(terminal, [_row(spec) for spec in specs])
    else:
        for spec in specs:
            terminal.write("\t".join(_row(spec)))
    for notice in _notices(yard, profile, listed=sum(spec.source != METATOOLS for spec in specs)):
        if not options.quiet:
            terminal.say(notice)
    return 0


def _entry(spec: ToolSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.summary,
        "operation": spec.operation,
        "source": spec.source,
        "tags": spec.tags,
    }


def _row(spec: ToolSpec) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in (spec.name, str(spec.operation), spec.source, spec.summary))


def _write_table(terminal: Terminal, rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(3)]
    left = terminal.width - sum(widths) - 3 * len(_GAP)
    if left < _NARROWEST:  # there is no room for all: the source is in the name, or in 'describe'
        left += widths[2] + len(_GAP)
        widths[2] = 0
    for number, row in enumerate((_TITLES, *rows)):
        cells = [text + " " * (width - width_of(text)) for text, width in zip(row, widths, strict=False) if width]
        name, *others = cells
        line = _GAP.join([*others, cut(row[3], left)])
        parts = [Painted(name, "bold"), _GAP, line] if number else [Painted(_GAP.join([name, line]), "faint")]
        terminal.write(*parts)


def _notices(yard: Yard, profile: Profile, *, listed: int) -> list[str]:
    """Return what a reader of the list would otherwise wonder about."""
    notices: list[str] = []
    unlisted = sum(spec.source != METATOOLS for spec in yard.registry.visible(profile)) - listed
    if unlisted:
        notices.append(f"{_tools(unlisted)} not listed on this surface and can be called all the same.")
    held: dict[str, list[str]] = {}
    for withheld in yard.registry.withheld(profile):
        held.setdefault(withheld.status, []).append(withheld.spec.name)
    for status, names in sorted(held.items()):
        shown = ", ".join(f"'{name}'" for name in names[:_NAMED]) + (" and others" if len(names) > _NAMED else "")
        notices.append(f"{_tools(len(names))} {status}: {shown}. 'toolyard describe' tells why.")
    return notices


def _tools(number: int) -> str:
    return "1 tool is" if number == 1 else f"{number} tools are"
