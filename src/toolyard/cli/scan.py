"""`toolyard scan`: what is hidden in the definitions of upstreams, and which of them give orders to a model."""

from collections.abc import Sequence
from typing import Final

from toolyard.cli.exits import DIFFERENT
from toolyard.cli.parser import Options
from toolyard.cli.stored import read_stored
from toolyard.cli.terminal import Painted, Style, Terminal
from toolyard.envelope import encode
from toolyard.providers.upstream.characters import visible
from toolyard.providers.upstream.definitions import Definitions, Key
from toolyard.providers.upstream.scanning import Finding, scan

__all__ = ["run"]

_STYLES: Final[dict[str, Style]] = {"high": "bad", "medium": "bold", "low": "faint"}


def run(options: Options, terminal: Terminal) -> int:
    """Print what is suspicious, and exit with 1 if something of it is severe."""
    stored = read_stored(options, terminal)
    named = {options.name: stored.offered_by(options.name)} if options.name else {}
    everything = {**stored.offered(terminal), **named}
    chosen = named or everything
    findings = [finding for name in chosen for finding in _scanned(name, everything)]
    if options.json:
        terminal.write_json(encode(findings))
    else:
        _write(terminal, findings, number=sum(map(len, chosen.values())))
    return DIFFERENT if any(one.severity == "high" for one in findings) else 0


def _scanned(name: str, everything: dict[str, Definitions]) -> list[Finding]:
    others = [key.name for other, found in everything.items() if other != name for key in found if key.kind == "tool"]
    return scan(name, everything[name].values(), others=others)


def _write(terminal: Terminal, findings: Sequence[Finding], *, number: int) -> None:
    for one in findings:
        place = f"{one.upstream}: {visible(str(Key(one.kind, one.name)))}, {one.field}"
        if terminal.interactive:
            terminal.write(Painted(f"{one.severity:<8}", _STYLES[one.severity]), f"{one.rule}  {place}")
            terminal.write(f"        {one.excerpt}")
        else:
            terminal.write(f"{one.severity}\t{one.rule}\t{place}\t{one.excerpt}")
    if not terminal.quiet:
        terminal.say(f"{'1 finding' if len(findings) == 1 else f'{len(findings)} findings'} in {number} definitions.")
