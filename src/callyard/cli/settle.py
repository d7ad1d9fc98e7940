"""`callyard settle`, and what `add` and `import` ask: what tools do whose upstreams give no hints.

Only a person at a terminal settles it, with one answer for each upstream.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from callyard._internal.logfmt import is_identifier
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, project_dir_of
from callyard.cli.terminal import Painted, Style, Terminal, pad, width_of
from callyard.cli.upstreams import check_upstreams, with_catalogue
from callyard.config import Config, read_config
from callyard.launch.build import make_vaults, resolve_upstreams
from callyard.launch.errors import DEFECT, DIFFERENT, LaunchError, as_launch_error
from callyard.launch.signals import run
from callyard.model.envelope import encode
from callyard.model.names import did_you_mean
from callyard.providers.upstream.catalogue import Catalogue, folder_of, load, tools_of
from callyard.providers.upstream.health import more_command
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
    tools: Sequence[tuple[UnsettledTool, Settled]]
    """The tools, and the operations that the person may accept."""
    definitions: Mapping[Key, Definition]
    unpinned: bool
    """Whether definitions of the upstream are not compared."""


def run_settle(options: Options, terminal: Terminal) -> int:
    """Show what tools without hints seem to do, ask once for each upstream, and store what the person accepts."""
    project = _Project(config_from(options, terminal), terminal)
    names = [options.name] if options.name else project.names
    project.read_unknown(names)
    asked = [project.question(name, options.arguments, settled=options.settled_as) for name in names]
    questions = [question for question in asked if question is not None]
    if options.json:
        rows = [
            {"upstream": question.name, "tool": tool.name, "operation": operation}
            for question in questions
            for tool, operation in question.tools
        ]
        terminal.write_json(encode(rows))
        return DIFFERENT if rows else 0
    left = [question for question in questions if not project.ask(question)]
    if not questions:
        terminal.inform("There is nothing to settle: all tools have hints, or somebody said what they do.")
    return DIFFERENT if left else 0


def ask_after_change(path: Path, names: Sequence[str], terminal: Terminal) -> None:
    """Ask a person at a terminal what the tools of new upstreams do that have no hints; this starts the upstreams."""
    project = _Project(read_config(path=str(path)), terminal)
    used = [name for name in names if name in project.resolved]
    project.read_unknown(used)
    for question in map(project.question, used):
        if question is not None:
            project.ask(question)


class _Project:
    """The upstreams of a project, what is known of their tools, and the lock."""

    def __init__(self, config: Config, terminal: Terminal) -> None:
        self.resolved = resolve_upstreams(config, terminal)
        """The enabled upstreams of the settings."""
        self._state = project_dir_of(config)
        self._lock = find_lock(config.path, self._state)
        self._pins = Pins(self._lock, state=self._state)
        self._terminal = terminal
        self._vaults = make_vaults(config)

    @property
    def names(self) -> list[str]:
        """Return the upstreams of the settings, or those of a program that were read on this machine."""
        return sorted(self.resolved) or with_catalogue(self._state)

    def read_unknown(self, names: Sequence[str]) -> None:
        """Read the tools of upstreams that were never read, for which they are started; say which cannot be read."""
        unknown = [name for name in names if name in self.resolved and self._catalogue(name) is None]
        upstreams = [
            make_upstream(name, self.resolved[name].settings, state=self._state, pins=self._pins, vaults=self._vaults)
            for name in unknown
            if not self.resolved[name].problem
        ]
        if upstreams:
            run(check_upstreams(upstreams, self._terminal, seconds=_READ_S))
        for name in unknown:
            if self._catalogue(name) is None:
                more = more_command(name, self.resolved[name].settings.carrier)
                later = f"Later, 'callyard settle {name}' asks what they do."
                self._terminal.inform(f"The tools of '{name}' cannot be read now; '{more}' shows more. {later}")

    def question(self, name: str, chosen: Sequence[str] = (), *, settled: Settled | None = None) -> _Question | None:
        """Return the question about the tools of an upstream, or the chosen ones; None if nothing is to be settled.

        Raises:
            LaunchError: There is no such upstream or tool, or the lock is invalid.
        """
        catalogue = self._catalogue(name)
        if catalogue is None:
            if name in self.resolved:
                return None
            raise LaunchError(f"There is no upstream '{name}'.{did_you_mean(name, self.names)}")
        settings = self.resolved[name].settings if name in self.resolved else UpstreamSettings(command=name)
        tools = self._unsettled(name, settings, catalogue)
        known = [tool.name for tool in tools]
        for one in chosen:
            if one not in known:
                hint = did_you_mean(one, known)
                raise LaunchError(f"There is no unsettled tool '{visible(one)}' in '{name}'.{hint}")
        said: list[tuple[UnsettledTool, Settled]]
        said = [(tool, settled or tool.proposal) for tool in tools if not chosen or tool.name in chosen]
        definitions = self._pins.definitions_of(name, catalogue)
        return _Question(name, said, definitions, settings.pin == "off") if said else None

    def ask(self, question: _Question) -> bool:
        """Show the tools, ask, and store what the person accepts; return whether it is settled.

        Raises:
            LaunchError: The lock cannot be written.
        """
        name, terminal = question.name, self._terminal
        counts = in_words([operation for _, operation in question.tools])
        self._show(question)
        if not terminal.can_ask:
            way_out = (
                f"Run 'callyard settle {name}' in a terminal, or set 'operation' below '[upstreams.{name}.reshape]'."
            )
            terminal.say(f"'{name}': {counts}, by their names alone. Nothing is settled. {way_out}")
            return False
        if not terminal.ask(f"'{name}': {counts}: accept? [y/N] "):
            one = f"'callyard settle {name} TOOL --as query', 'command' or 'destroy'"
            terminal.say(f"Nothing of '{name}' is settled, so its calls wait for a person. {one} settles one.")
            return False
        said: list[tuple[Definition, Settled]]
        said = [(question.definitions[Key("tool", tool.name)], operation) for tool, operation in question.tools]
        try:
            settle(self._lock, name, said, unpinned=question.unpinned)
        except (LockError, OSError) as error:
            raise LaunchError(f"'{self._lock}' cannot be written: {error}", status=DEFECT) from error
        terminal.inform(f"Settled in '{self._lock}': {len(said)}. A running server uses it within a second.")
        return True

    def _show(self, question: _Question) -> None:
        terminal = self._terminal
        width = max(width_of(visible(tool.name)) for tool, _ in question.tools)
        for tool, operation in question.tools:
            if terminal.interactive:
                does = Painted(SETTLED[operation], _STYLES[operation])
                terminal.write(f"{question.name}  ", pad(visible(tool.name), width), "  ", does)
            else:
                terminal.write(f"{question.name}\t{visible(tool.name)}\t{operation}")

    def _catalogue(self, name: str) -> Catalogue | None:
        """Return what an upstream listed when it was last read; nothing if that was at another endpoint."""
        is_folder_name = is_identifier(name) and not name.startswith(".")  # it cannot lead out of the folder
        settings = self.resolved[name].settings if name in self.resolved else None
        return load(folder_of(self._state, name), settings) if is_folder_name else None

    def _unsettled(self, name: str, settings: UpstreamSettings, catalogue: Catalogue) -> list[UnsettledTool]:
        """Return the unsettled tools whose definitions are accepted.

        Raises:
            LaunchError: The lock is invalid.
        """
        check = self._pins.check(name, catalogue, settings)
        with as_launch_error(LockError):
            self._pins.accepted(name)
        settled = self._pins.settled(name, catalogue)
        tools = tools_of(name, catalogue, settings, longest=_LONGEST, settled=settled)
        differs = {**check.withheld, **check.warned}
        accepted = [tool for tool in tools if Key("tool", tool.upstream_name) not in differs]
        return unsettled_tools(accepted, self._pins.definitions_of(name, catalogue))
