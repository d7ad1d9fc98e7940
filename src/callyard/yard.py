"""The yard: assembles registry, providers, sessions, store and dispatcher, and opens and closes them."""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from callyard._internal.project import find_project
from callyard._internal.signed_tokens import default_signer
from callyard._internal.tasks import background_task
from callyard._version import VERSION
from callyard.config.packs import PackTable, pack_tables_of_code
from callyard.dispatch.call import ANYONE, LIBRARY, Caller, CallRequest, Channel, Limiter, Middleware, Policy
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.outcome import RecordSinks, Sink
from callyard.dispatch.progress import on_loop
from callyard.dispatch.registry import Registry
from callyard.dispatch.results import Results
from callyard.dispatch.sessions import Sessions
from callyard.dispatch.tracing import Tracing
from callyard.jobs.service import Jobs
from callyard.metatools import SUGGESTIONS, metatool_instructions, metatools_setting, select_metatools
from callyard.metatools.provider import Metatools
from callyard.model.envelope import Envelope
from callyard.model.limits import Limits
from callyard.model.profile import EVERYTHING, METATOOLS, Profile, Profiles, Shape
from callyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from callyard.packs.pack import Pack
from callyard.packs.pack_set import PackSet
from callyard.policy.approvals import Audit
from callyard.policy.gate import DecisionPoint, Gate, Webhook
from callyard.policy.queue import CallLimiter
from callyard.policy.settings import BudgetSettings, LoadSettings, QueueSettings, RateSettings, Rule
from callyard.policy.switches import Switches
from callyard.providers import Provider, Publish
from callyard.providers.provider_set import Mount, ProviderSet, all_providers, own_provider
from callyard.providers.upstream import make_upstreams
from callyard.runtimes.runtime import RuntimeSettings
from callyard.search.settings import SearchSettings, read_environment
from callyard.state.memory import MemoryStore
from callyard.state.replicas import Replica, share_secret
from callyard.state.store import Clock, Store, check_store

if TYPE_CHECKING:
    from callyard.providers.upstream.settings import ResolvedUpstream  # most yards have no upstream

__all__ = ["Lifespan", "Yard", "YardOverrides", "background_task"]


class YardOverrides(TypedDict, total=False):
    """What configuration may change in a yard before it opens, besides its limits."""

    profile: str | None
    profiles: Iterable[Profile]
    """More profiles; one of the same name replaces the yard's."""
    allow_eval: bool | Iterable[str]
    metatools: bool | tuple[str, ...]
    packs: Iterable[str]
    pack_tables: Mapping[str, PackTable]
    """The tables of packs by name."""
    project: str
    """The project whose state folder packs use."""
    providers: Iterable[Provider]
    """More providers; the same holds for packs."""
    search: Mapping[str, Any]
    runtime: Mapping[str, Any]
    queue: Mapping[str, Any]
    rates: Mapping[str, Any]
    budgets: Mapping[str, Any]
    shape: Shape
    state_dir: str | None
    store: Store
    default_store: Store
    """A store for a yard that has none; if it cannot be used, the yard opens nevertheless."""
    rules: Iterable[Rule]
    """More rules, which come before the yard's own."""
    operators: Iterable[str]
    approval_store: Store
    """Where approvals are kept, if not in the yard's own store."""
    webhook: Webhook
    decision_point: DecisionPoint
    switch_store: Store
    """Where to read what is disabled, if not in the yard's own store."""


def _resolve(upstreams: Mapping[str, Mapping[str, Any]]) -> "dict[str, ResolvedUpstream]":
    if not upstreams:
        return {}
    from callyard.config.upstreams import from_code  # noqa: PLC0415 - the feature is off without upstreams

    return from_code(upstreams, partial(_log.warning, "upstream_warning reason=%r"))


T = TypeVar("T")
_COMPLETIONS: Final = 100
_READY_S: Final = 2.0  # how long opening waits for slow providers: clients wait three seconds for their first answer
_log = logging.getLogger(__name__)
Lifespan = Callable[["Yard"], AbstractAsyncContextManager[Any]]


class Yard:
    """Tools from everywhere, behind one dispatcher, while it is open."""

    def __init__(
        self,
        name: str = "yard",
        *,
        tools: Iterable[object] = (),
        resources: Iterable[object] = (),
        prompts: Iterable[object] = (),
        providers: Iterable[Provider] = (),
        upstreams: Mapping[str, Mapping[str, Any]] | None = None,
        packs: Iterable[str | Pack] = (),
        pack_settings: Mapping[str, Mapping[str, Any]] | None = None,
        metatools: bool | Iterable[str] = True,
        search: SearchSettings | None = None,
        profile: Profile = EVERYTHING,
        profiles: Iterable[Profile] = (),
        shape: Shape = "envelope",
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        sinks: Iterable[Sink] = (),
        policies: Sequence[Policy] = (),
        rules: Iterable[Rule] = (),
        limiters: Sequence[Limiter] = (),
        queue: QueueSettings | None = None,
        rates: RateSettings | None = None,
        budgets: BudgetSettings | None = None,
        store: Store | None = None,
        limits: Limits | None = None,
        runtime: RuntimeSettings | None = None,
        state_dir: str | None = None,
        allow_eval: bool | Iterable[str] = False,
        version: str = VERSION,
        instructions: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.version = version
        self.instructions = instructions
        self._profiles = Profiles(profile, profiles, shape=shape)
        self.profile = self._profiles.find(None)
        self.limits = msgspec.structs.replace(limits or Limits())
        self.search = read_environment({}, search)  # the strategy in lower case
        self.runtime = runtime or RuntimeSettings()
        self.origins: dict[str, str] = {}
        """The origins of settings that do not come from code."""
        self.state_dir = state_dir
        self.address: str | None = None  # where clients reach the yard, while it is served
        self._clock = clock
        check_store(store)
        self._own_store = store
        self._store_is_optional = False
        self._equip(allow_eval=allow_eval)
        self.packs = PackSet(packs, pack_tables_of_code(pack_settings or {}))
        self._metatools = select_metatools(metatools)
        own = own_provider(name, tools, resources=resources, prompts=prompts)
        self._upstreams = _resolve(upstreams or {})
        self._providers = all_providers(own, providers, others=[*self.packs.names, *self._upstreams])
        self._lifespan = lifespan
        self._middleware = tuple(middleware)
        self._records = RecordSinks(sinks)
        self._policies = tuple(policies)
        self._rules = tuple(rules)
        self._asks_before_destroy, self._always_asks, self._asks_unannotated = False, False, False
        self._policy_options: YardOverrides = {}
        self.replica: Replica | None = None
        """This process among those that serve the yard on one store, while it is open."""
        self.configuration: str | None = None
        """The hash of a server's settings; set before it opens, this is a replica if its store spans machines."""
        self.gate: Gate | None = None
        """The policy of rules and approvals, if the yard is open and has any."""
        self.audit: Audit | None = None  # gets a line for each decision about an approval; set before the yard opens
        self.tracing: Tracing | None = None  # makes spans of requests and calls; set before the yard opens
        self.examine: Callable[[], Awaitable[Any]] | None = None
        """Checks the served yard, for operators; set before the yard opens."""
        self._limiters = tuple(limiters)
        self._load = LoadSettings(queue or QueueSettings(), rates or RateSettings(), budgets or BudgetSettings())
        self._limiter: CallLimiter | None = None
        self._dispatcher: Dispatcher | None = None
        self._jobs: Jobs | None = None
        self._switches: Switches | None = None
        self._open: AsyncExitStack | None = None

    def configure(
        self, *, origins: Mapping[str, str], limits: Mapping[str, Any], **overrides: Unpack[YardOverrides]
    ) -> None:
        """Apply settings before the yard opens; what they leave out stays as the code has it.

        Raises:
            KeyError: There is no profile of that name.
            ValueError: A setting is invalid, or two providers have the same name.
            RuntimeError: The yard is open.
        """
        if self._dispatcher is not None:
            raise RuntimeError(f"The yard '{self.name}' is open: it can be configured only before.")
        self._profiles.shape = cast("Shape", overrides.get("shape", self._profiles.shape))
        self.adopt(overrides.get("profiles", ()), profile=overrides.get("profile"))
        self.packs.configure(
            overrides.get("packs", ()), overrides.get("pack_tables", {}), project=overrides.get("project")
        )
        providers = [*self._providers, *overrides.get("providers", ())]
        self._providers = all_providers(None, providers, others=[*self.packs.names, *self._upstreams])
        self.limits = Limits(**{**self.limits.as_dict(), **limits})
        self.search = read_environment({}, msgspec.structs.replace(self.search, **overrides.get("search", {})))
        self.runtime = msgspec.structs.replace(self.runtime, **overrides.get("runtime", {}))
        self._load = self._load.replaced(overrides)
        self._metatools = select_metatools(overrides.get("metatools", self._metatools))
        self.origins = dict(origins)
        self.state_dir = overrides.get("state_dir") or self.state_dir
        if self._own_store is None or "store" in overrides:
            self._store_is_optional = "store" not in overrides
            self._own_store = overrides.get("store") or overrides.get("default_store")
        self._equip(allow_eval=overrides.get("allow_eval", self.registry.allow_eval))
        self._rules = (*overrides.get("rules", ()), *self._rules)
        self._policy_options = overrides

    def adopt(self, profiles: Iterable[Profile], *, profile: str | None = None) -> None:
        """Add or replace profiles, and select the yard's own by name; also while the yard is open."""
        self._profiles.adopt(profiles, own=profile)
        self._complete_profiles()

    def _complete_profiles(self) -> None:
        """Give profiles the toolsets of packs that have opened."""
        self.profile = self._profiles.complete(self.packs.toolsets)
        if self._dispatcher is not None:
            self._dispatcher.profile = self.profile

    def ask_before_destroy(self, *, always: bool = True) -> None:
        """Ask for an approval before tools of the operation `destroy`, unless a rule decides.

        Otherwise than `always`, only in calls whose channel says so, and in everything inside them: so do servers and
        conversations, which leave the program's own calls as they are.
        """
        # every conversation asks for it, and to compile 100 rules anew takes 0.4 ms
        if self._asks_before_destroy and always <= self._always_asks:
            return
        self._asks_before_destroy, self._always_asks = True, always or self._always_asks
        if self._dispatcher is not None:
            self._apply_policy(self._dispatcher)

    def use_rules(self, rules: Iterable[Rule], *, instead_of: Sequence[Rule] = ()) -> None:
        """Replace the rules that came from settings, also while the yard is open; the yard's own stay behind them."""
        self._rules = (*rules, *self._rules[len(instead_of) :])
        if self._dispatcher is not None:
            self._apply_policy(self._dispatcher)

    async def __aenter__(self) -> Self:
        if self._dispatcher is not None:
            raise RuntimeError(f"The yard '{self.name}' is open already.")
        async with AsyncExitStack() as stack:
            dispatcher = self._dispatcher = self._make_dispatcher()
            stack.callback(setattr, self, "_dispatcher", None)
            try:
                await self._assemble(stack, dispatcher)
            except BaseException:
                await dispatcher.close()
                await self.sessions.end_all()
                raise
            self._open = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        stack, self._open = self._open, None
        if stack is not None:
            await stack.aclose()

    def _opened(self, part: T | None) -> T:
        if part is None:
            raise RuntimeError(f"The yard '{self.name}' is not open: use 'async with'.")
        return part

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the dispatcher.

        Raises:
            RuntimeError: The yard is not open.
        """
        if self._dispatcher is None:
            raise RuntimeError(f"The yard '{self.name}' is not open: use 'async with'.")
        return self._dispatcher

    @property
    def jobs(self) -> Jobs:
        """Return the jobs.

        Raises:
            RuntimeError: The yard is not open.
        """
        return self._opened(self._jobs)

    @property
    def switches(self) -> Switches:
        """Return what is disabled, and what disables and enables.

        Raises:
            RuntimeError: The yard is not open.
        """
        return self._opened(self._switches)

    @property
    def has_store(self) -> bool:
        """Return whether the yard was given a store, so that its state may outlive the process."""
        return self._own_store is not None

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads still run past their deadlines."""
        return self.dispatcher.threads.abandoned

    @property
    def calls_in_flight(self) -> int:
        """Return how many calls are running."""
        return len(self.dispatcher.in_flight)

    def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | msgspec.Raw | None = None,
        *,
        session: str | None = None,
        caller: Caller | None = None,
        channel: Channel = LIBRARY,
    ) -> Coroutine[Any, Any, Envelope]:
        """Call a tool, with arguments as data or as JSON; the answer is always an envelope."""
        if session is not None and isinstance(cast("object", arguments or {}), Mapping):
            arguments = {**cast("Mapping[str, Any]", arguments or {}), "session_id": session}
        request = CallRequest(name, arguments, caller or ANYONE)
        if self.gate is not None:
            channel = self._channel_here(channel)
        return (self._dispatcher or self.dispatcher).dispatch(request, channel=channel)

    def read(
        self, uri: str, *, caller: Caller | None = None, channel: Channel = LIBRARY
    ) -> Coroutine[Any, Any, Envelope]:
        """Read a resource; the data of the envelope are its contents."""
        request = CallRequest(uri, None, caller or ANYONE, "resource")
        return self.dispatcher.dispatch(request, channel=self._channel_here(channel))

    def prompt(
        self,
        name: str,
        arguments: Mapping[str, Any] | msgspec.Raw | None = None,
        *,
        caller: Caller | None = None,
        channel: Channel = LIBRARY,
    ) -> Coroutine[Any, Any, Envelope]:
        """Ask for a prompt; the data of the envelope are its messages."""
        request = CallRequest(name, arguments, caller or ANYONE, "prompt")
        return self.dispatcher.dispatch(request, channel=self._channel_here(channel))

    async def complete(
        self,
        kind: Literal["resource", "prompt"],
        name: str,
        *,
        argument: str,
        value: str,
        arguments: Mapping[str, str] | None = None,
        caller: Caller | None = None,
    ) -> Sequence[str]:
        """Return completions for an argument of a prompt, or for a variable of a resource template.

        Raises:
            ToolError: `not_found` if there is no such prompt, template or argument.
        """
        completions = self.dispatcher.complete(
            kind, name, argument=argument, value=value, settled=arguments or {}, caller=caller or ANYONE
        )
        return (await completions)[:_COMPLETIONS]

    def notify_updated(self, uri: str) -> None:
        """Notify subscribers that the content of a resource changed. Thread-safe."""
        loop = self.dispatcher.loop
        if on_loop(loop):
            self.registry.updated(uri)
        else:
            loop.call_soon_threadsafe(self.registry.updated, uri)

    def list(self, profile: Profile | str | None = None) -> Sequence[ToolSpec]:
        """Return the specs of the tools that a profile lists, by default the yard's own."""
        return self.registry.list(self.profile_of(profile))

    def list_resources(self, profile: Profile | str | None = None) -> Sequence[ResourceSpec]:
        """Return the resources that exist for a profile, by URI, without the templates."""
        return self.registry.list_resources(self.profile_of(profile))

    def list_templates(self, profile: Profile | str | None = None) -> Sequence[ResourceSpec]:
        """Return the templates that exist for a profile, by URI."""
        return self.registry.list_templates(self.profile_of(profile))

    def list_prompts(self, profile: Profile | str | None = None) -> Sequence[PromptSpec]:
        """Return the prompts that exist for a profile, by name."""
        return self.registry.list_prompts(self.profile_of(profile))

    def instructions_for(self, profile: Profile, *, whole: bool = False) -> str:
        """Return the instructions for clients: the yard's own, how to find unlisted tools, and those of upstreams.

        `whole` are those of a handshake: they say how to work here where all tools are listed, too.
        """
        seen: list[str] = []
        if self.registry.uses_meta_surface(profile):
            seen = [spec.name for spec in self.list(profile) if spec.source == METATOOLS]
        how = metatool_instructions(seen) if seen or (whole and self.list(profile)) else ""
        parts = (self.instructions, how, self.providers.instructions())
        return "\n\n".join(part for part in parts if part)

    def profile_of(self, profile: Profile | str | None) -> Profile:
        """Return a profile of the yard by its name, its own by default.

        Raises:
            KeyError: There is no profile of that name.
        """
        return self._profiles.find(profile)

    @property
    def profiles(self) -> Sequence[Profile]:
        """Return the profiles, the yard's own first."""
        return self._profiles.known

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every setting with its value and origin; one without an origin is from code if it is no default."""
        values = {
            "name": self.name,
            "version": self.version,
            "profile": self.profile.name,
            "packs": self.packs.names,
            "metatools": metatools_setting(self._metatools),
            "search.strategy": self.search.strategy,
            "state_dir": self.state_dir,
            "shape": self._profiles.shape,
            **self._load.as_dict(),
            "allow_eval": self.registry.allow_eval,
            **self.limits.as_dict(),
        }
        defaults: dict[str, Any] = {"name": "yard", "version": VERSION, "profile": EVERYTHING.name, "packs": []}
        defaults |= {"allow_eval": False, "state_dir": None, "shape": "envelope", "metatools": True}
        defaults |= {"search.strategy": SearchSettings().strategy, **LoadSettings().as_dict(), **Limits().as_dict()}
        return {
            key: {"value": value, "from": self.origins.get(key, "default" if value == defaults[key] else "code")}
            for key, value in values.items()
        }

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Send records to one more sink; return a function that removes it."""
        sinks = self._records.sinks
        sinks.append(sink)
        if self._dispatcher is not None:
            self._dispatcher.observe(self._records)
        return lambda: sinks.remove(sink) if sink in sinks else None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Act as a provider of another yard: every call passes both dispatchers."""
        async with self:
            with Mount(self.name, self.registry, self.dispatcher, profile=self.profile).shown(publish):
                yield

    def _equip(self, *, allow_eval: bool | Iterable[str]) -> None:
        self.signer = default_signer(self.state_dir)
        targets = (allow_eval,) if isinstance(allow_eval, str) else allow_eval
        allowed = targets if isinstance(targets, bool) else tuple(targets)
        self.registry = Registry(self.limits, allow_eval=allowed, suggestions=SUGGESTIONS)
        self.providers = ProviderSet(self.registry, notify=self.notify_updated, prepare=self._judge_unannotated)
        self.sessions = Sessions(self.limits, clock=self._clock, store=self._own_store)
        self.sessions.is_disabled = self.registry.is_disabled
        self.store: Store = self._own_store or MemoryStore(max_bytes=self.limits.store_bytes, clock=self._clock)

    def _make_dispatcher(self) -> Dispatcher:
        self._limiter = None
        if self._load.is_set:
            load, store = self._load, self.store
            self._limiter = CallLimiter(load, self.limits, store=store, registry=self.registry, clock=self._clock)
        dispatcher = Dispatcher(
            self.registry,
            profile=self.profile,
            limits=self.limits,
            sessions=self.sessions,
            results=Results(self.store, self.limits, suggest_read=self.registry.suggest_read),
            middleware=self._middleware,
            policies=self._policies,
            limiters=self._limiters if self._limiter is None else (self._limiter, *self._limiters),
        )
        dispatcher.admission.serial_locks.store = self.store if self.store.is_shared else None
        dispatcher.tracing = self.tracing
        if self._records.sinks:
            dispatcher.observe(self._records)
        if self._limiter is not None:
            self._limiter.observe(dispatcher)
        return dispatcher

    def _channel_here(self, channel: Channel) -> Channel:
        """Return the channel of a call that is made here, which may ask before `destroy` because of the thread.

        Code of a call is told apart from the program's own by its context, which tasks and `asyncio.to_thread` inherit.
        A thread of `threading.Thread` has none, so while a call asks before `destroy`, it may be part of that.
        """
        dispatcher = self._dispatcher or self.dispatcher
        if on_loop(dispatcher.loop) or len(copy_context()) or not dispatcher.may_be_asker():
            return channel
        return msgspec.structs.replace(channel, asks_before_destroy=True)

    def _apply_policy(self, dispatcher: Dispatcher) -> None:
        """Let the gate judge calls, if there are rules."""
        options = self._policy_options
        if self.gate is None:
            asks = self._asks_before_destroy or self._asks_unannotated
            if not self._rules and not asks and "decision_point" not in options:
                return
            self.gate = Gate(self.store, self.limits, options, audit=self.audit, rechecks=bool(self._middleware))
        dispatcher.admission.gate = self.gate
        self.gate.use(self._rules, always_asks=self._always_asks)

    def _judge_unannotated(self, provider: Provider) -> None:
        """Make a gate before an upstream publishes tools without hints, if its settings ask for approvals of them."""
        settings = getattr(provider, "settings", None)
        if getattr(settings, "unannotated", None) == "ask" and not self._asks_unannotated:
            self._asks_unannotated = True
            if self.gate is None and self._dispatcher is not None:
                self._apply_policy(self._dispatcher)

    async def _close_gate(self) -> None:
        gate, self.gate = self.gate, None
        if gate is not None:
            await gate.close()

    async def _open_switches(self, stack: AsyncExitStack) -> None:
        other = self._policy_options.get("switch_store")
        if other is not None:
            stack.push_async_callback(other.close)
        self._switches = Switches(
            other or self.store,
            self.registry,
            self.sessions,
            approvals=lambda: None if self.gate is None else self.gate.approvals,
            is_shared=other is not None or self.has_store,
            audit=self.audit,
        )
        stack.callback(setattr, self, "_switches", None)
        await stack.enter_async_context(self._switches.open(must_read=other is None and not self._store_is_optional))

    async def _assemble(self, stack: AsyncExitStack, dispatcher: Dispatcher) -> None:
        if self._own_store is not None:
            stack.push_async_callback(self._own_store.close)
            await share_secret(self.store, self.signer, name=self.name, is_optional=self._store_is_optional)
        if self.configuration is not None and self.store.is_shared:
            replica = Replica(self.store, self.version, self.configuration, lambda: len(dispatcher.in_flight))
            self.replica = await stack.enter_async_context(replica.open())
            self.sessions.replica = self.replica
            stack.callback(setattr, self, "replica", None)
        if self._limiter is not None:
            await stack.enter_async_context(self._limiter.open())
        self._jobs = Jobs(
            self.store,
            dispatcher,
            self.registry,
            limits=self.limits,
            find_profile=self.profile_of,
            needs_credentials=self.providers.forwards,
        )
        stack.push_async_callback(self._close_gate)
        self._apply_policy(dispatcher)
        await self._open_switches(stack)  # before anything is published
        await stack.enter_async_context(background_task(self.sessions.sweep_forever()))
        if self._lifespan is not None:
            dispatcher.state = await stack.enter_async_context(self._lifespan(self))
        stack.push_async_callback(self.providers.remove_all)
        upstreams: Sequence[Provider] = ()
        if self._upstreams:
            longest, project = self.limits.name_characters, find_project()
            upstreams = make_upstreams(self._upstreams, state_dir=self.state_dir, project=project, longest=longest)
        for provider in (*self._providers, *upstreams):
            await self.providers.add(provider)
        await self.packs.open_all(self)
        self._complete_profiles()
        self.packs.check_profiles(self.profiles)
        if self._metatools or self.runtime.enabled:
            await self.providers.add(Metatools(self, self._metatools), gives_way=True)
        await self.providers.wait_ready(_READY_S, unless_known=True)
        stack.push_async_callback(self.sessions.end_all)
        stack.push_async_callback(dispatcher.close)
        await stack.enter_async_context(self.jobs.open())
