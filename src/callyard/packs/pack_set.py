"""The packs of a yard: named by code and by settings, opened with it, and changed while it is open."""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
from typing_extensions import TypedDict

from callyard._internal.files import find_state_dir
from callyard._internal.project import find_project, project_dir
from callyard._version import VERSION
from callyard.config.packs import PackTable
from callyard.dispatch.registry import Registry
from callyard.dispatch.sessions import Sessions
from callyard.model.names import did_you_mean
from callyard.model.profile import Profile, Toolset
from callyard.packs.loading import check_version, error_of, find_pack, load_pack
from callyard.packs.pack import SYSTEM, Pack, PackError, check_pack
from callyard.packs.provider import OPEN_S, PackProvider, is_installed
from callyard.providers.provider_set import ProviderSet

__all__ = ["PackChanges", "PackFacts", "PackSet", "ProgramState", "TargetState", "YardParts", "facts_of_needs"]

_log = logging.getLogger(__name__)


class YardParts(Protocol):
    """The parts of a yard that packs use."""

    registry: Registry
    sessions: Sessions
    providers: ProviderSet
    state_dir: str | None


class ToolState(TypedDict):
    """One tool of a pack."""

    name: str
    state: str
    """`available`, or why it cannot be used: `gated`, `withheld`, and so on."""
    reason: str


class ProgramState(TypedDict):
    """One program that a pack uses."""

    name: str
    required: bool
    found: bool


class TargetState(TypedDict):
    """One place where tools of a pack run code."""

    name: str
    allowed: bool


class PackFacts(TypedDict):
    """One pack, as a caller sees it."""

    name: str
    version: str
    state: Literal["open", "failed"]
    tools: list[ToolState]
    reasons: dict[str, str]
    """The code of each reason that its tools may name."""
    programs: list[ProgramState]
    eval_targets: list[TargetState]
    settings: dict[str, Any]
    """The part of its configuration that may be shown."""


class PackChanges(msgspec.Struct):
    """What a change of the settings did to packs."""

    added: list[str]
    restarted: list[str]
    removed: list[str]
    problems: list[str]
    """Sentences about packs that could not be closed or opened."""


class _Member(msgspec.Struct):
    """One named pack."""

    table: PackTable
    pack: Pack | None = None
    provider: PackProvider | None = None
    is_open: bool = False


class PackSet:
    """The named packs, in the order they were named."""

    def __init__(
        self, packs: Iterable[str | Pack], tables: Mapping[str, PackTable], *, project: str | None = None
    ) -> None:
        """Check the names of packs.

        Raises:
            PackError: One is not installed.
        """
        named = [packs] if isinstance(packs, str | Pack) else list(packs)
        self._objects = {pack.name: _checked(pack) for pack in named if isinstance(pack, Pack)}
        self._of_code = [pack.name if isinstance(pack, Pack) else pack for pack in named]
        self._tables_of_code = dict(tables)
        self._tables = self._tables_of_code
        self._members: dict[str, _Member] = {}
        self._project = project
        self.names = self._of_code
        """The names of the packs; one that is named twice by code is refused with all other providers."""
        self._check_installed(self.names)
        self._check_tables(self.names, self._tables)

    def configure(self, names: Iterable[str], tables: Mapping[str, PackTable], *, project: str | None) -> None:
        """Add the packs and tables of settings; a table of the settings replaces that of the code.

        Raises:
            PackError: A pack is not installed, or a table is of none.
        """
        both = {**self._tables_of_code, **tables}
        known = list(dict.fromkeys([*self._of_code, *names]))
        self._check_installed(known)
        self._check_tables(known, both)
        self.names, self._tables, self._project = known, both, project or self._project

    @property
    def toolsets(self) -> dict[str, Toolset]:
        """Return the toolsets of open packs by name."""
        packs = [member.pack for member in self._members.values() if member.is_open and member.pack is not None]
        return {toolset.name: toolset for pack in packs for toolset in pack.toolsets}

    async def open_all(self, yard: YardParts) -> None:
        """Open every pack; the yard closes them with its other providers, also if one fails.

        Raises:
            PackError: A pack cannot be used.
        """
        self._members = {}
        for name in self.names:
            await self._open(name, yard)

    def check_profiles(self, profiles: Iterable[Profile]) -> None:
        """Check that every toolset of a pack that a profile names exists.

        Raises:
            PackError: One does not.
        """
        known = self.toolsets
        for profile in profiles:
            for name in profile.pending:
                meant = did_you_mean(name, known) or f" Known: {', '.join(known) or 'none'}."
                raise PackError(f"The profile '{profile.name}' names the toolset '{name}', which no pack has.{meant}")

    async def change(self, yard: YardParts, names: Iterable[str], tables: Mapping[str, PackTable]) -> PackChanges:
        """Close packs that settings no longer name, open new ones, and restart those whose table or secrets changed.

        What fails is only that pack: it stays closed and the others stay as they are.

        Raises:
            PackError: A table is of no pack; nothing has changed.
        """
        before = list(self._members)
        failed = {name for name, member in self._members.items() if not member.is_open}
        known = list(dict.fromkeys([*self._of_code, *names]))
        self._check_tables(known, tables)
        self.names, self._tables = known, {**self._tables_of_code, **tables}
        added = [name for name in self.names if name not in before]
        removed = [name for name in before if name not in self.names]
        changed = [name for name in self.names if name in before and (name in failed or self._is_changed(name))]
        problems: list[str] = []
        for name in (*removed, *changed):
            try:
                await yard.providers.remove(name)
            except Exception as error:  # noqa: BLE001 - one failure must not stop the other changes
                _log.debug("pack_not_closed pack=%s", name, exc_info=error)
                problems.append(f"The pack '{name}' did not close cleanly: {type(error).__name__}.")
            self._members.pop(name, None)
        for name in (*changed, *added):
            try:
                await self._open(name, yard)
            except Exception as error:  # noqa: BLE001 - the same
                problems.append(str(error))
        is_open = {name for name, member in self._members.items() if member.is_open}
        return PackChanges(
            added=[name for name in self.names if name in is_open and name in {*added, *failed}],
            restarted=[name for name in changed if name in is_open and name not in failed],
            removed=removed,
            problems=problems,
        )

    def describe(self, yard: YardParts, profile: Profile) -> list[PackFacts]:
        """Return the packs of which the profile allows something, with their tools and what they need."""
        facts = [self._facts(name, yard.registry, profile) for name in self.names if name in self._members]
        specs = (
            *yard.registry.list_resources(profile),
            *yard.registry.list_templates(profile),
            *yard.registry.list_prompts(profile),
        )
        sources = {spec.source for spec in specs}
        return [fact for fact in facts if fact["tools"] or fact["name"] in sources or not profile.toolsets]

    async def _open(self, name: str, yard: YardParts) -> None:
        member = self._members[name] = _Member(self._table(name))
        if name == SYSTEM:
            # imported here, because it imports pydantic, which a yard without it does without
            make: Any = import_module("callyard.packs.system").System
            await yard.providers.add(make(yard), gives_way=True)
        else:
            pack = member.pack = self._objects.get(name) or load_pack(find_pack(name))
            member.provider = PackProvider(
                pack,
                member.table,
                sessions=yard.sessions,
                find_folder=partial(self._folder, name, yard.state_dir),
                seconds=OPEN_S,
            )
            await yard.providers.add(member.provider)
        member.is_open = True

    def _is_changed(self, name: str) -> bool:
        """Return whether an open pack has another table now, or a variable or secret of it has another value."""
        member = self._members[name]
        return self._table(name) != member.table or (member.provider is not None and member.provider.is_stale())

    def _folder(self, name: str, state_dir: str | None) -> Path:
        return project_dir(find_state_dir(state_dir), self._project or find_project()) / "packs" / name

    def _table(self, name: str) -> PackTable:
        return self._tables.get(name) or PackTable.empty(name)

    def _check_installed(self, names: Sequence[str]) -> None:
        for name in names:
            if name != SYSTEM and name not in self._objects:
                find_pack(name)

    def _check_tables(self, names: Sequence[str], tables: Mapping[str, PackTable]) -> None:
        for name, table in tables.items():
            if name not in names:
                meant = did_you_mean(name, names) or f" Add it: 'packs = [\"{name}\"]'."
                raise PackError(f"{table.location} configures a pack that 'packs' does not name.{meant}")
        if SYSTEM in tables and tables[SYSTEM].values:
            raise PackError(f"{tables[SYSTEM].location} has keys; the pack 'system' has no configuration.")

    def _facts(self, name: str, registry: Registry, profile: Profile) -> PackFacts:
        member = self._members[name]
        pack = member.pack
        programs, targets = facts_of_needs(pack, registry.allows_eval)
        return {
            "name": name,
            "version": VERSION if name == SYSTEM else getattr(pack, "version", ""),
            "state": "open" if member.is_open else "failed",
            "tools": tool_states(name, registry, profile),
            "reasons": {} if pack is None else {reason: pack.reasons[reason].code for reason in pack.reasons},
            "programs": programs,
            "eval_targets": targets,
            "settings": {} if member.provider is None else member.provider.shown,
        }


def tool_states(source: str, registry: Registry, profile: Profile) -> list[ToolState]:
    """Return the tools of a pack that the profile allows, with their state.

    The registry says why a tool is unavailable. A state that it learns later, such as `disabled`, is shown as it is.
    """
    published = [spec.name for spec in registry.visible(profile) if spec.source == source]
    states = [ToolState(name=name, state="available", reason="") for name in published]
    states += [
        ToolState(name=entry.spec.name, state=entry.status, reason=entry.reason)
        for entry in registry.unavailable(profile)
        if entry.spec.source == source
    ]
    return sorted(states, key=lambda state: state["name"])


def facts_of_needs(
    pack: Pack | None, allows_eval: Callable[[str], bool]
) -> tuple[list[ProgramState], list[TargetState]]:
    """Return the programs of a pack, and where its tools run code; answers have no paths."""
    if pack is None:
        return [], []
    needs = pack.needs
    programs = [
        ProgramState(name=Path(program).name, required=program in needs.programs, found=is_installed(program))
        for program in (*needs.programs, *needs.optional)
    ]
    return programs, [TargetState(name=target, allowed=allows_eval(target)) for target in needs.eval_targets]


def _checked(pack: Pack) -> Pack:
    try:
        check_pack(pack, pack.name)
    except ValueError as error:
        raise error_of(pack, str(error)) from None
    check_version(pack)
    return pack
