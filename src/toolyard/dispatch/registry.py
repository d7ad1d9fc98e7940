"""The registry: one table each of tools, resources and prompts, with versions that grow.

It publishes, withdraws, finds and tells who watches. It runs nothing.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import Final, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from toolyard.dispatch.resource import Prompt, Resource, check_prompt, check_resource
from toolyard.dispatch.table import NOTHING_WITHHELD, ChangeKind, Status, Table, Withheld, WithheldReasons
from toolyard.dispatch.tool import Tool, check_tool
from toolyard.model.envelope import fingerprint
from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.profile import METATOOLS, Profile, listed
from toolyard.model.spec import Kind, PromptSpec, ResourceSpec, ToolSpec
from toolyard.model.uri_template import UriTemplate

__all__ = [
    "Change",
    "ChangeKind",
    "FoundResource",
    "Registry",
    "Status",
    "Subscribed",
    "Subscriptions",
    "Watcher",
    "Withheld",
    "available_actions",
    "tool_not_found",
]


def available_actions(tools: Mapping[str, Tool], profile: Profile, *actions: str) -> list[str]:
    """Return those of the actions whose metatools there are for the profile, so that nobody is sent to one that is not."""
    there = {action: tools.get(action.partition("(")[0]) for action in actions}
    return [action for action, tool in there.items() if tool is not None and tool.spec.source == METATOOLS and profile.allows(tool.spec)]


def tool_not_found(table: Table[Tool], name: str, profile: Profile, *, suggestion: str) -> ToolError:
    """Return the failure to find a tool for the profile; `suggestion` formats the name that was probably meant."""
    held = table.held(name, profile)
    if held is not None:
        return ToolError(
            "tool_not_found",
            f"'{name}' is {held.status}. {held.reason}",
            hint="Use another tool, or ask whoever runs the yard.",
            status=held.status,
            similar=[],
        )
    near = table.near(name, profile)
    similar = [one for one in near if table.things[one].spec.source != METATOOLS] or near
    actions, hint = [suggestion.format(closest) for closest in similar[:1]], None
    if not similar:
        actions = available_actions(table.things, profile, "search_tools(query=…)")
        hint = "Search for what you want to do." if actions else "Look through the list of tools: none has a name like it."
    return ToolError("tool_not_found", "There is no tool of that name.", hint=hint, next_actions=actions, similar=similar[:5])


Watcher = Callable[[AbstractSet[str]], "asyncio.Future[None] | None"]
"""Takes the URIs that somebody is subscribed to now; what it returns, if anything, is done once nothing goes untold any more."""


class Subscribed(NamedTuple):
    """What somebody is subscribed to: by URI the source of each resource, and what is done once all of it holds."""

    sources: Mapping[str, str]
    held: "tuple[asyncio.Future[None], ...]"


class Subscriptions:
    """By source the resources that are subscribed to, and who is told when those are others."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._watchers: defaultdict[str, list[Watcher]] = defaultdict(list)

    def add(self, sources: Mapping[str, str]) -> Subscribed:
        """Count one more who wants to hear of these resources, by URI the source of each."""
        others: set[str] = set()
        for uri, source in sources.items():
            counts = self._counts[source]
            counts[uri] += 1
            if counts[uri] == 1:
                others.add(source)
        return Subscribed(sources, self._tell(others))

    def remove(self, sources: Mapping[str, str]) -> None:
        """Count one less for each of them."""
        others: set[str] = set()
        for uri, source in sources.items():
            counts = self._counts[source]
            counts[uri] -= 1
            if not counts[uri]:
                del counts[uri]
                others.add(source)
        self._tell(others)

    def watch(self, source: str, watcher: Watcher) -> Callable[[], None]:
        """Tell the watcher what is subscribed to of that source, now and whenever it changes; return what stops that."""
        watchers = self._watchers[source]
        watchers.append(watcher)
        watcher(frozenset(self._counts[source]))
        return lambda: watchers.remove(watcher) if watcher in watchers else None

    def _tell(self, sources: AbstractSet[str]) -> "tuple[asyncio.Future[None], ...]":
        """Tell each watcher of these sources once, however many resources it is about: each time it takes them all."""
        held = [watcher(frozenset(self._counts[source])) for source in sorted(sources) for watcher in tuple(self._watchers[source])]
        return tuple(one for one in held if one is not None)


T = TypeVar("T")
_PROFILES: Final = 256
_GATED: Final = "It runs code; open the yard with '--allow-eval' (or 'allow_eval=True')."
_log = logging.getLogger(__name__)


class Change(msgspec.Struct, frozen=True):
    """One thing that happened to the registry; a resource is named by its URI."""

    kind: ChangeKind
    name: str
    version: int
    what: Kind = "tool"


class FoundResource(NamedTuple):
    """A resource, and what the URI it was found by gives its variables."""

    resource: Resource
    variables: dict[str, str]


class Registry:
    """Names to tools and prompts, URIs to resources."""

    def __init__(self, limits: Limits, *, allow_eval: bool = False) -> None:
        self.version = 0
        self.versions: dict[Kind, int] = {"tool": 0, "resource": 0, "prompt": 0}
        """How often each kind changed."""
        self._limits = limits
        self.allow_eval = allow_eval
        """Whether tools that run code are published; read when they are."""
        self.has_foreign = False
        """Whether a foreign source has published, so that not all of this keeps to the rules for our own."""
        self._tools: Table[Tool] = Table(
            "tool", check=lambda tool, foreign: check_tool(tool, limits, foreign=foreign), announce=self._announce, gate=self._gate
        )
        self._resources: Table[Resource] = Table(
            "resource", check=lambda resource, foreign: check_resource(resource, limits, foreign=foreign), announce=self._announce
        )
        self._prompts: Table[Prompt] = Table(
            "prompt", check=lambda prompt, foreign: check_prompt(prompt, limits, foreign=foreign), announce=self._announce
        )
        self._by_name = self._tools.things
        self.named: Callable[[str], Tool | None] = self._by_name.get
        """Returns the tool that is published under exactly this name, whoever may see it."""
        self._templates: tuple[int, list[tuple[UriTemplate, Resource]]] = (0, [])
        self.subscriptions = Subscriptions()
        self._watchers: list[Callable[[Change], None]] = []
        self._update_watchers: list[Callable[[str], None]] = []
        self._lists: dict[Profile, tuple[int, list[ToolSpec], bool]] = {}

    def __len__(self) -> int:
        return len(self._by_name)

    def publish(
        self,
        source: str,
        tools: Iterable[Tool] = (),
        *,
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        withheld: WithheldReasons = NOTHING_WITHHELD,
        foreign: bool = False,
        gives_way: bool = False,
    ) -> None:
        """Make these the tools, resources and prompts of a source, all or none; what it published before and does not now is withdrawn.

        A wrong one of a foreign source is quarantined and the rest are published. Those that give way are left out, with a
        warning, where another source has the name. What is withheld, by kind and key, is known with its reason and cannot be used.

        Raises:
            PublishError: One of our own is wrong or its name is taken.
        """
        self.has_foreign = self.has_foreign or foreign
        planned_tools = self._tools.plan(source, tools, withheld=withheld, foreign=foreign, gives_way=gives_way)
        planned_resources = self._resources.plan(source, resources, withheld=withheld, foreign=foreign, gives_way=gives_way)
        planned_prompts = self._prompts.plan(source, prompts, withheld=withheld, foreign=foreign, gives_way=gives_way)
        self._tools.apply(planned_tools)
        self._resources.apply(planned_resources)
        self._prompts.apply(planned_prompts)

    def withdraw(self, source: str) -> None:
        """Withdraw everything of a source; what gave way to it is back."""
        self.publish(source)

    def find(self, name: str, profile: Profile, *, suggestion: str = "{}(…)") -> Tool:
        """Return the tool of that name for callers of this profile, in time that does not grow with the number of tools.

        If there is none, `suggestion` formats the next action with the name that was probably meant.

        Raises:
            ToolError: `tool_not_found`; a tool that the profile denies looks like none.
        """
        tool = self._by_name.get(name)
        if tool is None:
            tool = self._tools.owner_of(name)
        if tool is None or (profile.toolsets and not profile.allows(tool.spec)):
            raise tool_not_found(self._tools, name, profile, suggestion=suggestion)
        return tool

    def available_actions(self, profile: Profile, *actions: str) -> list[str]:
        """Return those of the actions whose metatools there are for the profile, so that nobody is sent to one that is not."""
        return available_actions(self._by_name, profile, *actions)

    def look_up(self, tool: Tool, profile: Profile) -> list[str]:
        """Return how a caller of the profile learns of a tool, if there is a way."""
        return self.available_actions(profile, f"describe_tool(tool_id={tool.spec.name!r})")

    def known_as(self, name: str) -> Tool | None:
        """Return the tool that a name finds, be it a former one, whoever may see it."""
        return self._tools.owner_of(name)

    def find_resource(self, uri: str, profile: Profile) -> FoundResource:
        """Return the resource of that URI, or else the most exact template that fits it, for callers of this profile.

        The rules of the profile hold for the URI that is asked for, too, as it is written and decoded.

        Raises:
            ToolError: `not_found`; a resource that the profile denies looks like none.
        """
        resource = self._resources.things.get(uri)
        if resource is not None and not resource.spec.is_template and profile.allows(resource.spec):
            return FoundResource(resource, {})
        held = self._resources.held(uri, profile)
        if held is not None and held.status == "withheld":  # no template may stand in for it
            message = f"'{uri}' is withheld. {held.reason}"
            raise ToolError("not_found", message, reason="unknown_uri", may_have_run=False, uri=uri, status=held.status)
        for template, candidate in self._ready_templates():
            variables = template.match(uri)
            if variables is not None and _allows_as(profile, candidate.spec, uri):
                return FoundResource(candidate, variables)
        raise ToolError("not_found", "There is no resource of that URI.", reason="unknown_uri", may_have_run=False, uri=uri)

    def find_template(self, uri: str, profile: Profile) -> Resource:
        """Return the template, or the resource, that is listed with exactly this URI.

        Raises:
            ToolError: `not_found`.
        """
        resource = self._resources.things.get(uri)
        if resource is None or not profile.allows(resource.spec):
            raise ToolError("not_found", "There is no resource of that URI.", reason="unknown_uri", may_have_run=False, uri=uri)
        return resource

    def find_prompt(self, name: str, profile: Profile) -> Prompt:
        """Return the prompt of that name for callers of this profile.

        Raises:
            ToolError: `not_found`; a prompt that the profile denies looks like none.
        """
        prompt = self._prompts.things.get(name)
        if prompt is not None and profile.allows(prompt.spec):
            return prompt
        held = self._prompts.held(name, profile)
        message = "There is no prompt of that name." if held is None else f"'{name}' is {held.status}. {held.reason}"
        similar = self._prompts.near(name, profile)[:5] if held is None else []
        raise ToolError("not_found", message, reason="unknown_prompt", may_have_run=False, name=name, similar=similar)

    def visible(self, profile: Profile) -> list[ToolSpec]:
        """Return every tool that exists for the profile, by name."""
        return [tool.spec for tool in self._tools.visible(profile)]

    def list(self, profile: Profile) -> Sequence[ToolSpec]:
        """Return the tools that the profile lists, in one order: a function of the profile and the tools alone."""
        version = self.versions["tool"]
        cached = self._lists.get(profile)
        if cached is not None and cached[0] == version:
            return cached[1]
        was_meta = None if cached is None else cached[2]
        if cached is None and len(self._lists) >= _PROFILES:
            self._lists.clear()
        specs, meta = listed(profile, self.visible(profile), budget=self._limits.listed_tokens, was_meta=was_meta)
        self._lists[profile] = (version, specs, meta)
        return specs

    def is_short(self, profile: Profile) -> bool:
        """Return whether the profile lists metatools in place of what they find."""
        self.list(profile)
        return self._lists[profile][2]

    def list_resources(self, profile: Profile) -> Sequence[ResourceSpec]:
        """Return the resources that exist for the profile, by URI, without the templates."""
        return [resource.spec for resource in self._resources.visible(profile) if not resource.spec.is_template]

    def list_templates(self, profile: Profile) -> Sequence[ResourceSpec]:
        """Return the templates that exist for the profile, by URI."""
        return [resource.spec for resource in self._resources.visible(profile) if resource.spec.is_template]

    def list_prompts(self, profile: Profile) -> Sequence[PromptSpec]:
        """Return the prompts that exist for the profile, by name."""
        return [prompt.spec for prompt in self._prompts.visible(profile)]

    def hash(self, profile: Profile) -> str:
        """Return a stable hash of the tools that the profile lists."""
        return fingerprint(*self.list(profile))

    def withheld(self, profile: Profile, kind: Kind = "tool") -> Sequence[Withheld]:
        """Return what the profile would have of a kind and cannot use now."""
        tables: dict[Kind, Table[Tool] | Table[Resource] | Table[Prompt]]
        tables = {"tool": self._tools, "resource": self._resources, "prompt": self._prompts}
        return tables[kind].withheld(profile)

    def watch(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Tell the watcher of every change of what is published; return what stops that."""
        return _joined(self._watchers, watcher)

    def watch_updates(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Tell the watcher the URI of every resource whose content changed; return what stops that."""
        return _joined(self._update_watchers, watcher)

    def subscribe(self, uris: Iterable[str], profile: Profile) -> Subscribed:
        """Let whoever publishes these resources know that somebody wants to hear of them, as far as they exist for him."""
        sources: dict[str, str] = {}
        for uri in uris:
            with suppress(ToolError):
                sources[uri] = self.find_resource(uri, profile).resource.spec.source
        return self.subscriptions.add(sources)

    def updated(self, uri: str) -> None:
        """Tell who watches that the content of a resource changed."""
        _tell(self._update_watchers, uri)

    def _ready_templates(self) -> "list[tuple[UriTemplate, Resource]]":
        """Return the templates taken apart, the one with the most text of its own first."""
        version = self.versions["resource"]
        if self._templates[0] != version:
            ready = [(UriTemplate(uri), resource) for uri, resource in self._resources.things.items() if resource.spec.is_template]
            ready.sort(key=lambda pair: (-pair[0].literal_characters, pair[1].spec.uri))
            self._templates = (version, ready)
        return self._templates[1]

    def _gate(self, tool: Tool) -> str | None:
        return _GATED if tool.spec.requires_eval and not self.allow_eval else None

    def _announce(self, kind: ChangeKind, what: Kind, name: str) -> None:
        self.version += 1
        self.versions[what] += 1
        _tell(self._watchers, Change(kind, name, self.version, what))


def _allows_as(profile: Profile, spec: ResourceSpec, uri: str) -> bool:
    """Return whether the profile allows a template, and what it stands for here."""
    forms = dict.fromkeys((spec.uri, uri, unquote(uri)))
    return all(profile.allows(msgspec.structs.replace(spec, uri=form)) for form in forms)


def _joined(watchers: list[T], watcher: T) -> Callable[[], None]:
    watchers.append(watcher)
    return lambda: watchers.remove(watcher) if watcher in watchers else None


def _tell(watchers: "list[Callable[[T], None]]", what: T) -> None:
    for watcher in tuple(watchers):
        try:
            watcher(what)
        except Exception:  # noqa: BLE001 - a watcher may raise anything, and must not stop the others
            _log.exception("watcher_failed kind=%s", type(what).__name__)
