"""The registry of a yard: its published tools, resources and prompts, who subscribed to them, and version numbers.

It runs nothing and names no metatool: the actions that it suggests are handed in.
"""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar
from urllib.parse import unquote

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.resource import Prompt, Resource, check_prompt, check_resource
from callyard.dispatch.table import NONE_WITHHELD, ChangeKind, Table, Unavailable, WithheldReasons
from callyard.dispatch.tool import Tool, check_tool
from callyard.model.envelope import fingerprint
from callyard.model.errors import ToolError
from callyard.model.limits import Limits
from callyard.model.profile import EVERYTHING, METATOOLS, Profile, listed
from callyard.model.spec import AnySpec, Kind, PromptSpec, ResourceSpec, ToolSpec
from callyard.model.switch import Switch, covering
from callyard.model.uri_template import UriTemplate

__all__ = [
    "AllowEval",
    "Change",
    "Registry",
    "ResourceMatch",
    "Subscription",
    "SubscriptionWatcher",
    "Subscriptions",
    "Suggestions",
    "is_allowed",
]

T = TypeVar("T")
AllowEval = bool | tuple[str, ...]
"""Whether code may run, or the targets that it may run in."""
SubscriptionWatcher = Callable[[AbstractSet[str]], "asyncio.Future[None] | None"]
"""Takes every URI of its source that has a subscriber; may return a future that is done once updates arrive."""

_ParsedTemplate = tuple[UriTemplate, Resource, Unavailable | None]
_MAX_CACHED_LISTS: Final = 256
_MAX_SIMILAR: Final = 5
_GATED: Final = "It runs code; open the yard with '--allow-eval' (or 'allow_eval=True')."
_GATED_TARGET: Final = "It runs code in '{0}'; open the yard with '--allow-eval={0}' (or 'allow_eval=[\"{0}\"]')."
_log = logging.getLogger(__name__)


class Change(msgspec.Struct, frozen=True):
    """One change of the registry; the name of a resource is its URI."""

    kind: ChangeKind
    name: str
    version: int
    what: Kind = "tool"


class ResourceMatch(msgspec.Struct, frozen=True):
    """A resource, and the values of its template variables in the URI that matched."""

    resource: Resource
    variables: dict[str, str]


class Suggestions(msgspec.Struct, frozen=True):
    """Formats of the `next_actions` that use a metatool; an empty one suggests nothing."""

    search: str = ""
    describe: str = ""
    read: str = ""
    """Takes the handle of a stored result."""
    wait: str = ""
    """Takes the id of a job."""
    wait_unlisted: str = ""
    """The same, by way of a metatool that calls others."""


_NO_SUGGESTIONS: Final = Suggestions()


class Subscription(msgspec.Struct, frozen=True):
    """The source of each subscribed resource by URI, and futures that are done once updates arrive."""

    sources: Mapping[str, str]
    ready: "tuple[asyncio.Future[None], ...]"


class Subscriptions:
    """Counts subscribers by source and URI, and notifies the watchers of a source when its set of URIs changes."""

    def __init__(self) -> None:
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._watchers: defaultdict[str, list[SubscriptionWatcher]] = defaultdict(list)

    def add(self, sources: Mapping[str, str]) -> Subscription:
        """Add one subscriber to each of these resources; `sources` maps URIs to sources."""
        return Subscription(sources, self._count(sources, 1))

    def remove(self, sources: Mapping[str, str]) -> None:
        """Remove one subscriber from each of these resources."""
        self._count(sources, -1)

    def watch(self, source: str, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Call the watcher with the subscribed URIs of a source, now and after each change; return what stops it."""
        stop = _add_watcher(self._watchers[source], watcher)
        watcher(frozenset(self._counts[source]))
        return stop

    def _count(self, sources: Mapping[str, str], change: int) -> "tuple[asyncio.Future[None], ...]":
        """Change the counts, then call each watcher of a changed source once, with all of its URIs."""
        changed: set[str] = set()
        for uri, source in sources.items():
            counts = self._counts[source]
            counts[uri] += change
            if counts[uri] == max(change, 0):  # the first subscriber came or the last one left
                changed.add(source)
            if not counts[uri]:
                del counts[uri]
        notified = [(watcher, source) for source in sorted(changed) for watcher in self._watchers[source]]
        futures = [watcher(frozenset(self._counts[source])) for watcher, source in notified]
        return tuple(future for future in futures if future is not None)


class Registry:
    """Tools and prompts by name, resources by URI."""

    def __init__(
        self, limits: Limits, *, allow_eval: AllowEval = False, suggestions: Suggestions = _NO_SUGGESTIONS
    ) -> None:
        self.version = 0
        self.versions: dict[Kind, int] = {"tool": 0, "resource": 0, "prompt": 0}
        self._limits = limits
        self.allow_eval = allow_eval
        """Whether tools that run code are published, or where their code may run; read when they are published."""
        self._suggestions = suggestions
        self.has_foreign = False
        """Whether a foreign source has published, so that some specs may break the rules for our own."""
        self._switches: tuple[Switch, ...] = ()
        common: dict[str, Any] = {"announce": self._announce, "switch_of": self.switch_of}
        self._tools = Table[Tool](
            "tool", check=partial(check_tool, limits=limits), refusal=self._eval_refusal, **common
        )
        self._resources = Table[Resource]("resource", check=partial(check_resource, limits=limits), **common)
        self._prompts = Table[Prompt]("prompt", check=partial(check_prompt, limits=limits), **common)
        self._by_name = self._tools.entries
        # the method of the dictionary itself, because a function around it would be felt by every call
        self.get: Callable[[str], Tool | None] = self._by_name.get
        """Returns the tool of exactly this name, ignoring profiles and former names."""
        self._templates: tuple[int, list[_ParsedTemplate]] = (0, [])
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
        withheld: WithheldReasons = NONE_WITHHELD,
        foreign: bool = False,
        gives_way: bool = False,
    ) -> None:
        """Replace everything that a source published with these tools, resources and prompts, all or none.

        An invalid entry of a foreign source is quarantined; the others are published. Entries that give way are left
        out, with a warning, where another source has their name. Withheld entries cannot be used; callers get the
        reason.

        Raises:
            PublishError: An entry of our own is invalid or its name is taken.
        """
        self.has_foreign = self.has_foreign or foreign
        commits = [
            self._tools.prepare(source, tools, withheld=withheld, foreign=foreign, gives_way=gives_way),
            self._resources.prepare(source, resources, withheld=withheld, foreign=foreign, gives_way=gives_way),
            self._prompts.prepare(source, prompts, withheld=withheld, foreign=foreign, gives_way=gives_way),
        ]
        for commit in commits:  # after the last 'prepare', which may raise
            commit()

    def withdraw(self, source: str) -> None:
        """Withdraw everything of a source; entries that gave way to it are published again."""
        self.publish(source)

    def use_switches(self, switches: Sequence[Switch]) -> None:
        """Disable what these switches cover, and nothing else; what is published later is looked at then."""
        self._switches = tuple(switches)
        self._templates = (-1, [])  # they may be disabled until another time
        for table in (self._tools, self._resources, self._prompts):
            table.switch()

    def switch_of(self, spec: AnySpec) -> Switch | None:
        """Return the switch that disables what has this spec, or None."""
        return covering(self._switches, spec) if self._switches else None

    def is_disabled(self, source: str) -> bool:
        """Return whether everything of a source is disabled."""
        return any(switch.covers_source(source) for switch in self._switches)

    def check_enabled(self, name: str, spec: ToolSpec) -> None:
        """Refuse a call that has waited, if what it calls was disabled meanwhile.

        Raises:
            ToolError: The same as for a call that comes now.
        """
        switch = self.switch_of(spec)
        if switch is not None:
            disabled = Unavailable(spec, "disabled", switch.why, switch.until)
            raise _not_usable(name, disabled) if spec.kind == "tool" else _not_readable(name, spec.kind, disabled)

    def find(self, name: str, profile: Profile, *, suggestion: str = "{}(…)") -> Tool:
        """Return the tool of that current or former name for callers of this profile, in constant time.

        If there is none, `suggestion` is the format of the next action with the most similar name.

        Raises:
            ToolError: `tool_not_found`; also for a tool that the profile denies.
        """
        tool = self._tools.resolve(name)
        if tool is None or (profile.toolsets and not profile.allows(tool.spec)):
            raise self._tool_not_found(name, profile, suggestion)
        return tool

    def resolve(self, name: str) -> Tool | None:
        """Return the tool of that current or former name, ignoring profiles."""
        return self._tools.resolve(name)

    def published(self, name: str) -> ToolSpec | None:
        """Return the spec of the tool of that current or former name, disabled or not, ignoring profiles."""
        tool = self._tools.holder(name)
        return None if tool is None else tool.spec

    def available_actions(self, profile: Profile, *actions: str) -> list[str]:
        """Return the actions whose metatool is published and allowed by the profile."""
        tools = [(action, self._by_name.get(action.partition("(")[0])) for action in actions]
        return [
            action for action, tool in tools if tool and tool.spec.source == METATOOLS and profile.allows(tool.spec)
        ]

    def suggest_describe(self, name: str, profile: Profile) -> list[str]:
        """Return the action that describes a tool, if the profile has one."""
        return self.available_actions(profile, self._suggestions.describe.format(name))

    def suggest_read(self, handle: str, profile: Profile) -> list[str]:
        """Return the action that reads a stored result, if the profile has one."""
        return self.available_actions(profile, self._suggestions.read.format(handle))

    def suggest_wait(self, job_id: str, profile: Profile) -> str:
        """Return the action that waits for a job, as a client writes it that calls only what is listed; empty if none.

        So a metatool that is not listed is called by another one.
        """
        action = self._suggestions.wait.format(job_id)
        if not self.available_actions(profile, action):
            return ""
        by_other = self.available_actions(profile, self._suggestions.wait_unlisted.format(job_id))
        is_listed = any(spec.name == action.partition("(")[0] for spec in self.list(profile))
        return action if is_listed or not by_other else by_other[0]

    def find_resource(self, uri: str, profile: Profile) -> ResourceMatch:
        """Return the resource of that URI, or else the most specific template of this profile that matches it.

        For a template, the profile must also allow the requested URI, both as written and decoded.

        Raises:
            ToolError: `not_found`; also for a resource that the profile denies.
        """
        resource = self._resources.entries.get(uri)
        if resource is not None and not resource.spec.is_template and profile.allows(resource.spec):
            return ResourceMatch(resource, {})
        unavailable = self._resources.find_unavailable(uri, profile)
        if unavailable is not None and unavailable.status in {"disabled", "withheld"}:  # no template may serve it
            raise _not_readable(uri, "resource", unavailable)
        for template, candidate, disabled in self._parsed_templates():
            variables = template.match(uri)
            if variables is not None and _allows_as(profile, candidate.spec, uri):
                if disabled is not None:  # a template of another source is no substitute
                    raise _not_readable(uri, "resource", disabled)
                return ResourceMatch(candidate, variables)
        raise _unknown_uri(uri)

    def find_template(self, uri: str, profile: Profile) -> Resource:
        """Return the template or resource that is listed with exactly this URI.

        Raises:
            ToolError: `not_found`.
        """
        resource = self._resources.entries.get(uri)
        if resource is None or not profile.allows(resource.spec):
            unavailable = self._resources.find_unavailable(uri, profile)
            if unavailable is not None and unavailable.status == "disabled":
                raise _not_readable(uri, "resource", unavailable)
            raise _unknown_uri(uri)
        return resource

    def find_prompt(self, name: str, profile: Profile) -> Prompt:
        """Return the prompt of that name for callers of this profile.

        Raises:
            ToolError: `not_found`; also for a prompt that the profile denies.
        """
        prompt = self._prompts.entries.get(name)
        if prompt is not None and profile.allows(prompt.spec):
            return prompt
        unavailable = self._prompts.find_unavailable(name, profile)
        if unavailable is not None:
            raise _not_readable(name, "prompt", unavailable)
        message, similar = "There is no prompt of that name.", self._prompts.similar(name, profile)[:_MAX_SIMILAR]
        raise ToolError("not_found", message, reason="unknown_prompt", may_have_run=False, name=name, similar=similar)

    def all_specs(self) -> Iterator[ToolSpec]:
        """Yield the specs that rules may match: of all tools, also unavailable ones, and of resources and prompts."""
        yield from (tool.spec for tool in self._tools.visible(EVERYTHING))
        yield from (one.spec for one in self._tools.unavailable(EVERYTHING))
        yield from (resource.query.spec for resource in self._resources.visible(EVERYTHING))
        yield from (prompt.query.spec for prompt in self._prompts.visible(EVERYTHING))

    def visible(self, profile: Profile) -> list[ToolSpec]:
        """Return every tool that the profile allows, sorted by name."""
        return [tool.spec for tool in self._tools.visible(profile)]

    def list(self, profile: Profile) -> Sequence[ToolSpec]:
        """Return the tools that the profile lists, in an order that depends only on the profile and the tools."""
        version = self.versions["tool"]
        cached = self._lists.get(profile)
        if cached is not None and cached[0] == version:
            return cached[1]
        was_meta = None if cached is None else cached[2]
        if cached is None and len(self._lists) >= _MAX_CACHED_LISTS:
            self._lists.clear()
        specs, meta = listed(profile, self.visible(profile), budget=self._limits.listed_tokens, was_meta=was_meta)
        self._lists[profile] = (version, specs, meta)
        return specs

    def uses_meta_surface(self, profile: Profile) -> bool:
        """Return whether the profile lists the metatools instead of all tools."""
        self.list(profile)
        return self._lists[profile][2]

    def list_resources(self, profile: Profile) -> Sequence[ResourceSpec]:
        """Return the resources that the profile allows, sorted by URI, without templates."""
        return [resource.spec for resource in self._resources.visible(profile) if not resource.spec.is_template]

    def list_templates(self, profile: Profile) -> Sequence[ResourceSpec]:
        """Return the resource templates that the profile allows, sorted by URI."""
        return [resource.spec for resource in self._resources.visible(profile) if resource.spec.is_template]

    def list_prompts(self, profile: Profile) -> Sequence[PromptSpec]:
        """Return the prompts that the profile allows, sorted by name."""
        return [prompt.spec for prompt in self._prompts.visible(profile)]

    def hash(self, profile: Profile) -> str:
        """Return a stable hash of the tools that the profile lists."""
        return fingerprint(*self.list(profile))

    def unavailable(self, profile: Profile, kind: Kind = "tool") -> Sequence[Unavailable]:
        """Return the entries of a kind that the profile allows and that cannot be used now."""
        tables: dict[Kind, Table[Tool] | Table[Resource] | Table[Prompt]]
        tables = {"tool": self._tools, "resource": self._resources, "prompt": self._prompts}
        return tables[kind].unavailable(profile)

    def watch(self, watcher: Callable[[Change], None]) -> Callable[[], None]:
        """Call the watcher after every change of the registry; return a function that stops it."""
        return _add_watcher(self._watchers, watcher)

    def watch_updates(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call the watcher with the URI of every resource whose content changes; return a function that stops it."""
        return _add_watcher(self._update_watchers, watcher)

    def subscribe(self, uris: Iterable[str], profile: Profile) -> Subscription:
        """Subscribe to updates of those resources that exist for the profile."""
        sources: dict[str, str] = {}
        for uri in uris:
            with suppress(ToolError):
                sources[uri] = self.find_resource(uri, profile).resource.spec.source
        return self.subscriptions.add(sources)

    def updated(self, uri: str) -> None:
        """Notify the watchers that the content of a resource changed."""
        _notify(self._update_watchers, uri)

    def _tool_not_found(self, name: str, profile: Profile, suggestion: str) -> ToolError:
        unavailable = self._tools.find_unavailable(name, profile)
        if unavailable is not None:
            return _not_usable(name, unavailable)
        every = self._tools.similar(name, profile)
        similar = [other for other in every if self._by_name[other].spec.source != METATOOLS] or every
        actions, hint = [suggestion.format(closest) for closest in similar[:1]], None
        if not similar:
            actions = self.available_actions(profile, self._suggestions.search)
            hint = "Look through the list of tools: none has a name like it."
            hint = "Search for what you want to do." if actions else hint
        message = "There is no tool of that name."
        return ToolError("tool_not_found", message, hint=hint, next_actions=actions, similar=similar[:_MAX_SIMILAR])

    def _parsed_templates(self) -> "list[_ParsedTemplate]":
        """Return the parsed templates, disabled ones too, the one with the most literal characters first."""
        version = self.versions["resource"]
        if self._templates[0] != version:
            parsed = [
                (UriTemplate(resource.spec.uri), resource, disabled)
                for resource, disabled in self._resources.published()
                if resource.spec.is_template
            ]
            parsed.sort(key=lambda pair: (-pair[0].literal_characters, pair[1].spec.uri))
            self._templates = (version, parsed)
        return self._templates[1]

    def _eval_refusal(self, tool: Tool) -> str | None:
        target = tool.spec.eval_target
        if not tool.spec.requires_eval or self.allows_eval(target):
            return None
        return _GATED_TARGET.format(target) if target else _GATED

    def allows_eval(self, target: str) -> bool:
        """Return whether code may run in a target; only a yard that allows all code allows it in its own process."""
        return is_allowed(target, self.allow_eval)

    def _announce(self, kind: ChangeKind, what: Kind, name: str) -> None:
        self.version += 1
        self.versions[what] += 1
        _notify(self._watchers, Change(kind, name, self.version, what))


def is_allowed(target: str, allow_eval: AllowEval) -> bool:
    """Return whether code may run in a target; an empty one is this process."""
    return allow_eval if isinstance(allow_eval, bool) else target in allow_eval


def _unknown_uri(uri: str, message: str = "There is no resource of that URI.", **details: Any) -> ToolError:
    return ToolError("not_found", message, reason="unknown_uri", may_have_run=False, uri=uri, **details)


def _not_usable(name: str, unavailable: Unavailable) -> ToolError:
    """Return the failure of a call of a tool that exists and cannot be used."""
    message = f"'{name}' is {unavailable.status}. {unavailable.reason}"
    hint = "Use another tool, or ask whoever runs the yard."
    return ToolError("tool_not_found", message, hint=hint, similar=[], **unavailable.details)


def _not_readable(name: str, kind: Kind, unavailable: Unavailable) -> ToolError:
    """Return the failure of a request for a resource or prompt that exists and cannot be used."""
    known: dict[str, Any] = {"reason": "unknown_uri", "uri": name}
    if kind == "prompt":
        known = {"reason": "unknown_prompt", "name": name, "similar": []}
    message = f"'{name}' is {unavailable.status}. {unavailable.reason}"
    return ToolError("not_found", message, may_have_run=False, **{**known, **unavailable.details})


def _allows_as(profile: Profile, spec: ResourceSpec, uri: str) -> bool:
    """Return whether the profile allows both a template and the URI that it is used for."""
    forms = dict.fromkeys((spec.uri, uri, unquote(uri)))
    return all(profile.allows(msgspec.structs.replace(spec, uri=form)) for form in forms)


def _add_watcher(watchers: list[T], watcher: T) -> Callable[[], None]:
    watchers.append(watcher)
    return lambda: watchers.remove(watcher) if watcher in watchers else None


def _notify(watchers: "list[Callable[[T], None]]", event: T) -> None:
    for watcher in tuple(watchers):
        try:
            watcher(event)
        except Exception:  # noqa: BLE001 - a watcher may raise anything, and must not stop the others
            log_exception(_log, "watcher_failed kind=%s", type(event).__name__)
