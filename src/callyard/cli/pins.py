"""`callyard diff`, `callyard accept` and `callyard scan`: definitions of upstreams against the accepted ones."""

from collections.abc import Sequence
from typing import Final

from callyard.cli.parser import Options
from callyard.cli.terminal import Painted, Part, Style, Terminal
from callyard.cli.upstreams import StoredDefinitions, read_definitions
from callyard.launch.errors import DEFECT, DIFFERENT, LaunchError
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.diff import Comparison, Difference, FieldChange, accept_definitions, compare
from callyard.providers.upstream.pins import Definitions, Key, LockError
from callyard.providers.upstream.scan import Finding, scan, visible

__all__ = ["run_accept", "run_diff", "run_scan"]


def run_accept(options: Options, terminal: Terminal) -> int:
    """Accept definitions by name, or all, and print them."""
    stored = read_definitions(options, terminal)
    name = options.name
    definitions = stored.of(name)
    compared = _compare(stored, name, definitions)
    found = compared.differences
    if options.seen is not None and options.seen != compared.seen:
        raise LaunchError(f"'{name}' has changed since that digest. Look again with 'callyard diff {name}'.")
    accepted = found if options.all else _select(options.arguments, found, definitions, upstream=name)
    _accept(stored, name, definitions=definitions, keys=[difference.key for difference in accepted])
    if options.json:
        terminal.write_json(encode([{"kind": each.kind, "name": each.name, "what": each.what} for each in accepted]))
        return 0
    for difference in accepted:
        terminal.write(f"{difference.what}\t{difference.kind}\t{visible(difference.name)}")
    terminal.inform(f"{len(accepted)} accepted in '{stored.lock}'." if accepted else f"Nothing of '{name}' differs from what was accepted.")
    return 0


def _accept(stored: StoredDefinitions, name: str, *, definitions: Definitions, keys: Sequence[Key]) -> None:
    try:
        accept_definitions(stored.lock, name, definitions=definitions, keys=keys, folder=folder_of(stored.state, name))
    except (LockError, OSError) as error:
        raise LaunchError(f"'{stored.lock}' cannot be written: {error}", status=DEFECT) from error


def _select(names: Sequence[str], found: Sequence[Difference], definitions: Definitions, *, upstream: str) -> list[Difference]:
    """Return the differences with these names; refuse unknown names, and no names at all."""
    differing = {_name(difference.key) for difference in found}
    if not names:
        listed = ", ".join(f"'{visible(_name(difference.key))}'" for difference in found)
        raise LaunchError(f"Name what to accept of '{upstream}', or '--all'. {f'These differ: {listed}.' if found else 'Nothing differs.'}")
    known = differing.union(map(_name, definitions))
    for name in names:
        if name not in known:
            raise LaunchError(f"There is no '{name}' in '{upstream}'.{did_you_mean(name, sorted(known))}")
    return [difference for difference in found if _name(difference.key) in names]


def _name(key: Key) -> str:
    return key.name or key.kind


_SIGNS: Final[dict[str, Style]] = {"+": "good", "-": "bad"}


def run_diff(options: Options, terminal: Terminal) -> int:
    """Print the differences, and exit with 1 if there are any."""
    stored = read_definitions(options, terminal)
    offered = {options.name: stored.of(options.name)} if options.name else stored.of_all(terminal)
    comparisons = [
        _compare(stored, name, definitions) for name, definitions in offered.items() if name not in stored.unpinned or options.name
    ]
    if options.json:
        terminal.write_json(encode(comparisons))
    else:
        for comparison in comparisons:
            if comparison.differences and not options.name and comparison.upstream not in stored.locked:
                _write_names(terminal, comparison)
            else:
                _write_differences(terminal, comparison)
    return DIFFERENT if any(comparison.differences for comparison in comparisons) else 0


def _compare(stored: StoredDefinitions, name: str, definitions: Definitions) -> Comparison:
    return compare(name, definitions, stored.locked.get(name, {}), folder=folder_of(stored.state, name))


def _write_names(terminal: Terminal, comparison: Comparison) -> None:
    """Print only the names of an upstream without accepted definitions, because everything differs."""
    name = comparison.upstream
    for difference in comparison.differences:
        terminal.write(_title(name, difference), " (new)")
    terminal.inform(f"Nothing of '{name}' was accepted yet. 'callyard diff {name}' shows all of it.")


def _write_differences(terminal: Terminal, comparison: Comparison) -> None:
    name = comparison.upstream
    if not comparison.differences:
        terminal.inform(f"Nothing of '{name}' differs from what was accepted.")
        return
    for number, difference in enumerate(comparison.differences):
        if number:
            terminal.write("")
        _write_difference(terminal, name, difference)
    terminal.inform(f"To accept all of '{name}' as shown: callyard accept {name} --all --seen {comparison.seen}")


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
    unknown = "" if change.lines else " changed; the accepted text is not on this machine"
    return (f"  {change.field}", Painted(unknown, "faint"))


def _painted(line: str) -> Sequence[Part]:
    style = _SIGNS.get(line[:1])
    return (f"    {line}",) if style is None else ("    ", Painted(line, style))


_STYLES: Final[dict[str, Style]] = {"high": "bad", "medium": "bold", "low": "faint"}


def run_scan(options: Options, terminal: Terminal) -> int:
    """Print suspicious definitions, and exit with 1 if a finding is severe."""
    stored = read_definitions(options, terminal)
    named = {options.name: stored.of(options.name)} if options.name else {}
    everything = {**stored.of_all(terminal), **named}
    scanned = named or everything
    findings = [finding for name in scanned for finding in _scan(name, everything)]
    if options.json:
        terminal.write_json(encode(findings))
    else:
        _write_findings(terminal, findings, number=sum(map(len, scanned.values())))
    return DIFFERENT if any(finding.severity == "high" for finding in findings) else 0


def _scan(name: str, everything: dict[str, Definitions]) -> list[Finding]:
    others = [key.name for other, found in everything.items() if other != name for key in found if key.kind == "tool"]
    return scan(name, everything[name].values(), others=others)


def _write_findings(terminal: Terminal, findings: Sequence[Finding], *, number: int) -> None:
    for finding in findings:
        place = f"{finding.upstream}: {visible(str(Key(finding.kind, finding.name)))}, {finding.field}"
        if terminal.interactive:
            terminal.write(Painted(f"{finding.severity:<8}", _STYLES[finding.severity]), f"{finding.rule}  {place}")
            terminal.write(f"        {finding.excerpt}")
        else:
            terminal.write(f"{finding.severity}\t{finding.rule}\t{place}\t{finding.excerpt}")
    terminal.inform(f"{'1 finding' if len(findings) == 1 else f'{len(findings)} findings'} in {number} definitions.")
