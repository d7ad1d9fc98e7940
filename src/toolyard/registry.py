"""The registry: the one table of names to tools, with a version that grows.

It publishes, withdraws, finds and tells who watches. It runs nothing.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Final, Literal

import msgspec

from toolyard.envelope import encode_sorted
from toolyard.errors import ToolError
from toolyard.limits import Limits
from toolyard.names import Names
from toolyard.profile import Profile, listed
from toolyard.spec import PublishError, ToolSpec
from toolyard.tools import Tool, check_tool

__all__ = ["Change", "ChangeKind", "Registry", "Status", "Withheld"]

ChangeKind = Literal["registered", "updated", "withdrawn"]
Status = Literal["gated", "quarantined", "withdrawn"]

_REMEMBERED: Final = 1000
_PROFILES: Final = 256
_GATED: Final = "It runs code; open the yard with '--allow-eval' (or 'allow_eval=True')."
_log = logging.getLogger(__name__)


class Change(msgspec.Struct, frozen=True):
    """One thing that happened to the registry."""

    kind: ChangeKind
    name: str
    version: int


class Withheld(msgspec.Struct, frozen=True):
    """A tool that is known and cannot be called now, and why."""

    spec: ToolSpec
    status: Status
    reason: str


class Registry:
    """Names to tools."""

    def __init__(self, limits: Limits, *, allow_eval: bool = False) -> None:
        self.version = 0
        self._limits = limits
        self.allow_eval = allow_eval
        """Whether tools that run code are published; read when they are."""
        self._tools: dict[str, Tool] = {}
        self._aliases: dict[str, str] = {}
        self._by_source: dict[str, dict[str, Tool]] = {}
        self._gives_way: set[str] = set()
        self._aside: dict[str, Tool] = {}
        self._withheld: dict[str, Withheld] = {}
        self._withdrawn: dict[str, Withheld] = {}
        self._names = Names()
        self._watchers: list[Callable[[Change], None]] = []
        self._lists: dict[Profile, tuple[int, list[ToolSpec], bool]] = {}

    def __len__(self) -> int:
        return len(self._tools)

    def publish(self, source: str, tools: Iterable[Tool], *, foreign: bool = False, gives_way: bool = False) -> None:
        """Make these the tools of a source, all or none; what it published before and does not now is withdrawn.

        A wrong tool of a foreign source is quarantined and the rest are published. Tools that give way are left out, with a
        warning, where another source has the name.

        Raises:
            PublishError: A tool of our own is wrong or its name is taken.
        """
        wanted: dict[str, Tool] = {}
        claimed: set[str] = set()
        held: list[Withheld] = []
        aside: list[Tool] = []
        for tool in (_stamped(tool, source) for tool in tools):
            fault = self._fault(tool, source, claimed, foreign=foreign, gives_way=gives_way)
            if fault is not None and not foreign:
                raise fault
            if fault is not None:
                held.append(Withheld(tool.spec, "quarantined", str(fault)))
                continue
            if gives_way and self._taken(tool.spec, source):
                aside.append(tool)
                continue
            claimed.update((tool.spec.name, *tool.spec.aliases))
            if tool.spec.requires_eval and not self.allow_eval:
                held.append(Withheld(tool.spec, "gated", _GATED))
            else:
                wanted[tool.spec.name] = tool
        self._replace(source, wanted, gives_way=gives_way)
        self._forget_withheld(source)
        for tool in aside:
            self._step_aside(tool)
        self._step_back()
        for withheld in held:
            self._withheld[withheld.spec.name] = withheld

    def withdraw(self, source: str) -> None:
        """Withdraw all tools of a source; those that gave way to them are back."""
        self._replace(source, {}, gives_way=False)
        self._forget_withheld(source)
        self._step_back()

    def find(self, name: str, profile: Profile) -> Tool:
        """Return the tool of that name for callers of this profile, in time that does not grow with the number of tools.

        Raises:
            ToolError: `tool_not_found`; a tool that the profile denies looks like none.
        """
        tool = self._owner_of(name)
        if tool is None or (profile.toolsets and not profile.allows(tool.spec)):
            raise self._not_found(name, profile)
        return tool

    def visible(self, profile: Profile) -> list[ToolSpec]:
        """Return every tool that exists for the profile, by name."""
        return [tool.spec for _, tool in sorted(self._tools.items()) if profile.allows(tool.spec)]

    def list(self, profile: Profile) -> Sequence[ToolSpec]:
        """Return what the profile lists, in one order: a function of the profile and the registry alone."""
        cached = self._lists.get(profile)
        if cached is not None and cached[0] == self.version:
            return cached[1]
        was_meta = None if cached is None else cached[2]
        if cached is None and len(self._lists) >= _PROFILES:
            self._lists.clear()
        specs, meta = listed(profile, self.visible(profile), budget=self._limits.listed_tokens, was_meta=was_meta)
        self._lists[profile] = (self.version, specs, meta)
        return specs

    def hash(self, profile: Profile) -> str:
        """Return a stable hash of what the profile lists."""
        digest = sha256()
        for spec in self.list(profile):
            digest.update(encode_sorted(spec))
        return digest.hexdigest()

    def withheld(self, profile: Profile) -> Sequence[Withheld]:
        """Return the tools of the profile that are known and cannot be called now."""
        return [held for _, held in sorted(self._withheld.items()) if profile.allows(held.spec)]

    def watch(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Tell the watcher of every change; return what stops that."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher) if watcher in self._watchers else None

    def _fault(self, tool: Tool, source: str, claimed: set[str], *, foreign: bool, gives_way: bool) -> PublishError | None:
        """Return why a tool cannot be published beside those that claimed their names before it."""
        try:
            check_tool(tool, self._limits, foreign=foreign)
        except PublishError as error:
            return error
        except Exception as error:  # noqa: BLE001 - what another program sends may be wrong in any way
            return PublishError(f"Tool '{tool.spec.name}' cannot be read: {type(error).__name__}.")
        for name in (tool.spec.name, *tool.spec.aliases):
            if name in claimed:
                return PublishError(f"Two tools of '{source}' are named '{name}'.")
            other = self._owner_of(name)
            if other is not None and other.spec.source != source and not gives_way and other.spec.name not in self._gives_way:
                return PublishError(f"Tool '{name}' of '{source}' has the name of a tool of '{other.spec.source}'.")
        return None

    def _owner_of(self, name: str) -> Tool | None:
        return self._tools.get(name) or self._tools.get(self._aliases.get(name, ""))

    def _taken(self, spec: ToolSpec, source: str) -> bool:
        owners = [self._owner_of(name) for name in (spec.name, *spec.aliases)]
        return any(owner is not None and owner.spec.source != source for owner in owners)

    def _replace(self, source: str, wanted: dict[str, Tool], *, gives_way: bool) -> None:
        before = self._by_source.pop(source, {})
        self._aside = {name: tool for name, tool in self._aside.items() if tool.spec.source != source}
        for name, tool in before.items():
            self._remove(tool, "" if name in wanted else "Its source no longer publishes it.")
        for tool in wanted.values():
            self._displace(tool)
            self._add(tool, gives_way=gives_way)
        if wanted:
            self._by_source[source] = wanted
        for name in [name for name in before if name not in wanted]:
            self._announce("withdrawn", name)
        for name, tool in wanted.items():
            if name not in before:
                self._announce("registered", name)
            elif before[name].spec != tool.spec:
                self._announce("updated", name)

    def _displace(self, tool: Tool) -> None:
        """Remove the tools that give way to this one."""
        for name in (tool.spec.name, *tool.spec.aliases):
            other = self._owner_of(name)
            if other is None:
                continue
            self._step_aside(other)
            self._remove(other, "Another source published a tool of its name.")
            self._by_source[other.spec.source].pop(other.spec.name, None)
            self._announce("withdrawn", other.spec.name)

    def _step_aside(self, tool: Tool) -> None:
        _log.warning("gave_way tool=%s source=%s", tool.spec.name, tool.spec.source)
        self._aside[tool.spec.name] = tool

    def _step_back(self) -> None:
        """Publish what gave way and no longer needs to."""
        for name, tool in list(self._aside.items()):
            if all(self._owner_of(one) is None for one in (name, *tool.spec.aliases)):
                del self._aside[name]
                self._add(tool, gives_way=True)
                self._by_source.setdefault(tool.spec.source, {})[name] = tool
                self._announce("registered", name)

    def _add(self, tool: Tool, *, gives_way: bool) -> None:
        spec = tool.spec
        self._tools[spec.name] = tool
        self._names.add(spec.name)
        self._aliases.update(dict.fromkeys(spec.aliases, spec.name))
        self._withheld.pop(spec.name, None)
        self._withdrawn.pop(spec.name, None)
        if gives_way:
            self._gives_way.add(spec.name)

    def _remove(self, tool: Tool, why: str) -> None:
        spec = tool.spec
        del self._tools[spec.name]
        self._names.remove(spec.name)
        for alias in spec.aliases:
            self._aliases.pop(alias, None)
        self._gives_way.discard(spec.name)
        if why:
            self._withdrawn[spec.name] = Withheld(spec, "withdrawn", why)
            if len(self._withdrawn) > _REMEMBERED:
                del self._withdrawn[next(iter(self._withdrawn))]

    def _forget_withheld(self, source: str) -> None:
        stale = [name for name, held in self._withheld.items() if held.spec.source == source]
        for name in stale:
            del self._withheld[name]

    def _announce(self, kind: ChangeKind, name: str) -> None:
        self.version += 1
        change = Change(kind, name, self.version)
        for watcher in tuple(self._watchers):
            try:
                watcher(change)
            except Exception:  # noqa: BLE001 - a watcher may raise anything, and must not stop the others
                _log.exception("watcher_failed kind=%s", kind)

    def _not_found(self, name: str, profile: Profile) -> ToolError:
        held = self._withheld.get(name) or self._withdrawn.get(name)
        if held is not None and profile.allows(held.spec):
            return ToolError(
                "tool_not_found", f"'{name}' is {held.status}. {held.reason}", hint="Use another tool, or ask whoever runs the yard.",
                status=held.status, similar=[],
            )  # fmt: skip
        similar = self._names.near(str(name), lambda near: profile.allows(self._tools[near].spec))
        actions = [f"{near}(…)" for near in similar[:1]]
        return ToolError("tool_not_found", "There is no tool of that name.", next_actions=actions, similar=similar[:5])


def _stamped(tool: Tool, source: str) -> Tool:
    """Return the tool under the source that publishes it."""
    if tool.spec.source == source:
        return tool
    return replace(tool, spec=msgspec.structs.replace(tool.spec, source=source))
