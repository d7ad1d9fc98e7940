"""`callyard settle`, and what `add` and `import` ask: what tools do whose upstreams give no hints.

Only a person at a terminal settles it, with one answer for each upstream.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from callyard.cli.parser import Options
from callyard.cli.targets import config_from, project_dir_of
from callyard.cli.terminal import Painted, Style, Terminal, pad, width_of
from callyard.cli.upstreams import check_upstreams, stored_upstreams
from callyard.config import Config, read_config
from callyard.launch.build import resolve_upstreams
from callyard.launch.errors import DEFECT, DIFFERENT, LaunchError
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.providers.upstream.catalogue import Catalogue, folder_of, load, tools_of
from callyard.providers.upstream.health import Status
from callyard.providers.upstream.pins import Definition, Key, LockError, Pins, Settled, find_lock, settle
from callyard.providers.upstream.provider import make_upstream
from callyard.providers.upstream.scan import visible
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.unsettled import SETTLED, UnsettledTool, in_words, unsettled_tools

__all__ = ["ask_after_change", "run_settle"]

_READ_S: Final = 60.0
"""How long reading the tools of upstreams may take: programs that are downloaded first need a while."""
_LONGEST: Final = 10_000
"""The longest published name, which nobody sees here."""
_STYLES: Final[Mapping[Settled, Style]] = {"query": "good", "command": "bold", "destroy": "bad"}


class _Question(NamedTuple):
    """What a person is asked about one upstream."""

    name: str
    settings: UpstreamSettings
    tools: Sequence[tuple[UnsettledTool, Settled]]
    """The tools, and the operations that the person may accept."""
    definitions: Mapping[Key, Definition]


def run_settle(options: Options, terminal: Terminal) -> int:
    """Show what tools without hints seem to do, ask once for each upstream, and store what the person accepts."""
    config = config_from(options, terminal)
    state = project_dir_of(config)
    lock = find_lock(config.path, state)
    names = [options.name] if options.name else stored_upstreams(config, state)
    pins = Pins(lock, state=state)
    _read_unknown(config, [name for name in names if name in config.upstreams], state, pins, terminal)
    questions = [
        question
        for name in names
        if (question := _question(config, name, options.arguments, state, pins, settled=options.settled_as)) is not None
    ]
    if options.json:
        rows = [
            {"upstream": question.name, "tool": tool.name, "operation": operation}
            for question in questions
            for tool, operation in question.tools
        ]
        terminal.write_json(encode(rows))
    left = [question for question in questions if options.json or not _settle(question, lock, terminal)]
    if not questions:
        terminal.inform("There is nothing to settle: all tools have hints, or somebody said what they do.")
    return DIFFERENT if left else 0


def ask_after_change(path: Path, names: Sequence[str], terminal: Terminal) -> None:
    """Ask a person at a terminal what the tools of new upstreams do that have no hints; this starts the upstreams."""
    if not terminal.can_ask:
        return
    config = read_config(path=str(path))
    state = project_dir_of(config)
    lock = find_lock(config.path, state)
    pins = Pins(lock, state=state)
    used = [name for name in names if name in config.upstreams and config.upstreams[name].settings.enabled]
    _read_unknown(config, used, state, pins, terminal)
    for name in used:
        if load(folder_of(state, name)) is None:
            continue
        question = _question(config, name, (), state, pins)
        if question is not None:
            _settle(question, lock, terminal)


def _read_unknown(config: Config, names: Sequence[str], state: Path, pins: Pins, terminal: Terminal) -> None:
    """Read the tools of upstreams that were never read; say which cannot be read now."""
    unknown = [name for name in names if load(folder_of(state, name), config.upstreams[name].settings) is None]
    if not unknown:
        return
    resolved = resolve_upstreams(config, terminal)
    upstreams = [
        make_upstream(name, resolved[name].settings, state=state, pins=pins)
        for name in unknown
        if name in resolved and not resolved[name].problem
    ]
    statuses: Mapping[str, Status] = run(check_upstreams(upstreams, terminal, seconds=_READ_S)) if upstreams else {}
    for name in unknown:
        if load(folder_of(state, name)) is None:
            why = f" {statuses[name].reason}" if name in statuses else ""
            terminal.inform(f"The tools of '{name}' cannot be read now.{why} Later, 'callyard settle {name}' asks.")


def _question(
    config: Config,
    name: str,
    chosen: Sequence[str],
    state: Path,
    pins: Pins,
    *,
    settled: Settled | None = None,
) -> _Question | None:
    """Return the question about the tools of an upstream, or about the chosen ones; None if nothing is to be settled.

    Raises:
        LaunchError: There is no such upstream or tool, or the lock is invalid.
    """
    entry = config.upstreams.get(name)
    if entry is None and name not in stored_upstreams(config, state):
        raise LaunchError(f"There is no upstream '{name}'.{did_you_mean(name, stored_upstreams(config, state))}")
    catalogue = load(folder_of(state, name))
    if catalogue is None:
        return None
    settings = UpstreamSettings(command=name) if entry is None else entry.settings
    tools = _unsettled(name, settings, catalogue, pins)
    known = [tool.name for tool in tools]
    for one in chosen:
        if one not in known:
            hint = did_you_mean(one, known)
            raise LaunchError(f"There is no unsettled tool '{visible(one)}' in '{name}'.{hint}")
    said: list[tuple[UnsettledTool, Settled]]
    said = [(tool, settled or tool.proposal) for tool in tools if not chosen or tool.name in chosen]
    return _Question(name, settings, said, pins.definitions_of(name, catalogue)) if said else None


def _unsettled(name: str, settings: UpstreamSettings, catalogue: Catalogue, pins: Pins) -> list[UnsettledTool]:
    """Return the unsettled tools whose definitions are accepted.

    Raises:
        LaunchError: The lock is invalid.
    """
    check = pins.check(name, catalogue, settings)
    try:
        pins.accepted(name)
    except LockError as error:
        raise LaunchError(str(error)) from error
    tools = tools_of(name, catalogue, settings, longest=_LONGEST, settled=pins.settled(name, catalogue))
    differs = {**check.withheld, **check.warned}
    accepted = [tool for tool in tools if Key("tool", tool.upstream_name) not in differs]
    return unsettled_tools(accepted, pins.definitions_of(name, catalogue))


def _settle(question: _Question, lock: Path, terminal: Terminal) -> bool:
    """Show the tools, ask, and store what the person accepts; return whether it is settled.

    Raises:
        LaunchError: The lock cannot be written.
    """
    name = question.name
    width = max(width_of(visible(tool.name)) for tool, _ in question.tools)
    for tool, operation in question.tools:
        if terminal.interactive:
            does = Painted(f"{SETTLED[operation]:<8}", _STYLES[operation])
            terminal.write(f"{name}  ", pad(visible(tool.name), width), "  ", does)
        else:
            terminal.write(f"{name}\t{visible(tool.name)}\t{operation}")
    counts = in_words([operation for _, operation in question.tools])
    if not terminal.can_ask:
        way_out = f"Run 'callyard settle {name}' in a terminal, or write 'operation' in '[upstreams.{name}.reshape]'."
        terminal.say(f"'{name}': {counts}, by their names alone. Nothing is settled. {way_out}")
        return False
    if not terminal.ask(f"'{name}': {counts}: accept? [y/N] "):
        one = f"'callyard settle {name} TOOL --as query', 'command' or 'destroy'"
        terminal.say(f"Nothing of '{name}' is settled, so its calls wait for a person. {one} settles one.")
        return False
    said: list[tuple[Definition, Settled]]
    said = [(question.definitions[Key("tool", tool.name)], operation) for tool, operation in question.tools]
    try:
        settle(lock, name, said, unpinned=question.settings.pin == "off")
    except (LockError, OSError) as error:
        raise LaunchError(f"'{lock}' cannot be written: {error}", status=DEFECT) from error
    terminal.inform(f"Settled in '{lock}': {len(said)}. A running server uses it within a second.")
    return True
