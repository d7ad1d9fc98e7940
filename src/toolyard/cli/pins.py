"""`toolyard diff`: what upstreams changed since it was accepted."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Part, Style, Terminal
from toolyard.cli.upstreams import Stored, read_stored
from toolyard.launch.errors import DEFECT, DIFFERENT, LaunchError
from toolyard.model.envelope import encode
from toolyard.model.names import did_you_mean
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.diff import Difference, FieldChange, differences, seen_of
from toolyard.providers.upstream.pins import Definitions, Key, LockError, accept, keep_accepted, read_accepted
from toolyard.providers.upstream.scan import Finding, scan, visible

__all__ = ["run_accept", "run_diff", "run_scan"]


def run_accept(options: Options, terminal: Terminal) -> int:
    """Accept what is named, or all, and print what that was."""
    stored = read_stored(options, terminal)
    name = options.name
    definitions = stored.offered_by(name)
    folder = folder_of(stored.state, name)
    found = differences(definitions, stored.locked.get(name, {}), read_accepted(folder))
    if options.seen is not None and options.seen != seen_of(found, definitions):
        raise LaunchError(f"'{name}' offers something else now than what was seen. Look again with 'toolyard diff {name}'.")
    wanted = found if options.all else _named(options.arguments, found, definitions, upstream=name)
    _accept(stored, name, definitions=definitions, keys=[one.key for one in wanted])
    if options.json:
        terminal.write_json(encode([{"kind": one.kind, "name": one.name, "what": one.what} for one in wanted]))
        return 0
    for one in wanted:
        terminal.write(f"{one.what}\t{one.kind}\t{visible(one.name)}")
    if not terminal.quiet:
        terminal.say(f"{len(wanted)} accepted in '{stored.lock}'." if wanted else f"'{name}' offers what was accepted.")
    return 0


def _accept(stored: Stored, name: str, *, definitions: Definitions, keys: Iterable[Key]) -> None:
    keys = list(keys)
    try:
        accept(stored.lock, name, definitions=definitions, keys=keys)
        keep_accepted(folder_of(stored.state, name), [definitions[key] for key in keys if key in definitions])
    except (LockError, OSError) as error:
        raise LaunchError(f"'{stored.lock}' cannot be written: {error}", status=DEFECT) from error


def _named(names: Sequence[str], found: Sequence[Difference], definitions: Definitions, *, upstream: str) -> list[Difference]:
    """Return the differences of the names.

    Raises:
        LaunchError: None is named, or there is nothing of a name.
    """
    if not names:
        listed = ", ".join(f"'{visible(_name(one.key))}'" for one in found)
        differing = f"These differ: {listed}." if found else "Nothing differs."
        raise LaunchError(f"Name what of '{upstream}' is to be accepted, or '--all'. {differing}")
    known = {_name(key) for key in definitions} | {_name(one.key) for one in found}
    for name in names:
        if name not in known:
            raise LaunchError(f"There is no '{name}' in '{upstream}'.{did_you_mean(name, known)}")
    return [one for one in found if _name(one.key) in names]


def _name(key: Key) -> str:
    return key.name or key.kind


_SIGNS: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


class _Compared(msgspec.Struct, frozen=True):
    """An upstream, what differs, and the short hash by which that is accepted as it was seen."""

    upstream: str
    seen: str
    differences: list[Difference]


def run_diff(options: Options, terminal: Terminal) -> int:
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
                _write_differences(terminal, one)
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


def _write_differences(terminal: Terminal, compared: _Compared) -> None:
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


_STYLES: Final[dict[str, Style]] = {"high": "bad", "medium": "bold", "low": "faint"}


def run_scan(options: Options, terminal: Terminal) -> int:
    """Print what is suspicious, and exit with 1 if something of it is severe."""
    stored = read_stored(options, terminal)
    named = {options.name: stored.offered_by(options.name)} if options.name else {}
    everything = {**stored.offered(terminal), **named}
    chosen = named or everything
    findings = [finding for name in chosen for finding in _scanned(name, everything)]
    if options.json:
        terminal.write_json(encode(findings))
    else:
        _write_findings(terminal, findings, number=sum(map(len, chosen.values())))
    return DIFFERENT if any(one.severity == "high" for one in findings) else 0


def _scanned(name: str, everything: dict[str, Definitions]) -> list[Finding]:
    others = [key.name for other, found in everything.items() if other != name for key in found if key.kind == "tool"]
    return scan(name, everything[name].values(), others=others)


def _write_findings(terminal: Terminal, findings: Sequence[Finding], *, number: int) -> None:
    for one in findings:
        place = f"{one.upstream}: {visible(str(Key(one.kind, one.name)))}, {one.field}"
        if terminal.interactive:
            terminal.write(Painted(f"{one.severity:<8}", _STYLES[one.severity]), f"{one.rule}  {place}")
            terminal.write(f"        {one.excerpt}")
        else:
            terminal.write(f"{one.severity}\t{one.rule}\t{place}\t{one.excerpt}")
    if not terminal.quiet:
        terminal.say(f"{'1 finding' if len(findings) == 1 else f'{len(findings)} findings'} in {number} definitions.")
