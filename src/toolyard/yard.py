"""The yard: everything assembled and alive, from its first provider to its last session."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypedDict, Unpack, cast

import msgspec

from toolyard._internal.files import find_state_dir
from toolyard._internal.lazy import PausedCollection
from toolyard._internal.signed_tokens import own_signer
from toolyard._version import VERSION
from toolyard.dispatch.call import ANYONE, LIBRARY, Caller, Channel, Limit, Middleware, Policy
from toolyard.dispatch.dispatcher import Dispatcher
from toolyard.dispatch.outcome import Sink
from toolyard.dispatch.progress import on_loop
from toolyard.dispatch.registry import Registry
from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.results import Results
from toolyard.dispatch.sessions import Sessions
from toolyard.dispatch.tool import Tool
from toolyard.metatools import metatool_instructions, metatools_setting, select_metatools
from toolyard.model.envelope import Envelope
from toolyard.model.limits import Limits
from toolyard.model.profile import EVERYTHING, METATOOLS, Profile, Profiles
from toolyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from toolyard.packs import make_pack
from toolyard.providers import Provider, Publish
from toolyard.providers.mount import Mount
from toolyard.providers.provider_set import ProviderSet, StaticProvider
from toolyard.search.settings import SearchSettings
from toolyard.state.store import Clock, MemoryStore, Store

if TYPE_CHECKING:
    from toolyard.providers.upstream.settings import UpstreamSettings  # see below

__all__ = [
    "LOCK",
    "Lifespan",
    "Yard",
    "YardOverrides",
    "all_providers",
    "background_task",
    "known_packs",
    "own_provider",
    "told",
    "upstream_providers",
]


LOCK: Final = "toolyard.lock"
"""The name of the file that says which definitions were accepted."""


class YardOverrides(TypedDict, total=False):
    """What may be settled of a yard after its code, besides its limits."""

    profile: str | None
    profiles: Iterable[Profile]
    """Profiles besides those it has, or in their place."""
    allow_eval: bool
    metatools: bool | tuple[str, ...]
    packs: Iterable[str]
    """Packs besides those it has."""
    providers: Iterable[Provider]
    """Providers besides those it has."""
    search: Mapping[str, Any]
    state_dir: str | None


def own_provider(name: str, tools: object, *, resources: object, prompts: object) -> Provider | None:
    """Return who publishes what a yard is given, if it is given anything.

    What is ready-made needs no reading of functions, so a yard without functions starts sooner.
    """
    if _are(tools, Tool) and _are(resources, Resource) and _are(prompts, Prompt):
        given = StaticProvider(name, _listed(tools), resources=_listed(resources), prompts=_listed(prompts))
        return given if any((tools, resources, prompts)) else None
    from toolyard.providers.functions import Functions  # noqa: PLC0415 - ready-made things need no reading of functions

    return Functions(name, tools, resources=resources, prompts=prompts)


def _are(given: object, kind: type) -> bool:
    return isinstance(given, list | tuple) and all(isinstance(one, kind) for one in cast("Sequence[object]", given))


def _listed(given: object) -> list[Any]:
    return list(cast("Sequence[Any]", given))


def all_providers(own: Provider | None, providers: Iterable[Provider], *, packs: Sequence[str]) -> list[Provider]:
    """Return a yard's providers, its own functions first.

    Raises:
        ValueError: Two have the same name.
    """
    found: list[Provider] = [*([] if own is None else [own]), *providers]
    names = [METATOOLS, *packs, *(provider.name for provider in found)]
    for known in names:
        if names.count(known) > 1:
            raise ValueError(f"Two providers are named '{known}': give one of them another name.")
    return found


def known_packs(packs: Iterable[str]) -> list[str]:
    """Return the packs that were named.

    Raises:
        ValueError: There is none of that name.
    """
    named = [packs] if isinstance(packs, str) else list(packs)
    if not named:
        return named
    from toolyard.config.settings import PACKS  # noqa: PLC0415 - a yard without packs starts sooner

    for pack in named:
        if pack not in PACKS:
            raise ValueError(f"There is no pack '{pack}'. Known: {', '.join(sorted(PACKS))}.")
    return named


def upstream_providers(
    upstreams: Mapping[str, "UpstreamSettings"], *, state_dir: str | None, lock: Path | None, longest: int
) -> list[Provider]:
    """Return who publishes what other servers offer; `lock` is the file that says what of it was accepted.

    Raises:
        OSError: There is no place to keep what must last.
    """
    if not upstreams:
        return []
    from toolyard.providers.upstream.pins import Pins  # noqa: PLC0415 - the same
    from toolyard.providers.upstream.provider import make_upstream  # noqa: PLC0415 - a yard without upstreams starts sooner

    state = find_state_dir(state_dir)
    pins = Pins(lock or state / LOCK, state=state)
    return [make_upstream(name, settings, state=state, pins=pins, longest=longest) for name, settings in upstreams.items()]


@asynccontextmanager
async def background_task(work: Any) -> AsyncGenerator[None]:
    """Let something run meanwhile."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def told(values: Mapping[str, Any], origins: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return a yard's settings; one without an origin is from code where it differs from the default."""
    plain = {"name": "yard", "version": VERSION, "profile": EVERYTHING.name, "packs": list[str](), "allow_eval": False, "state_dir": None}
    defaults = {**plain, "search.strategy": SearchSettings().strategy, "metatools": True, **Limits().as_dict()}
    return {
        key: {"value": value, "from": origins.get(key, "default" if value == defaults[key] else "code")} for key, value in values.items()
    }


_SUGGESTED: Final = 100
_SETTLED: Final = 2.0  # seconds that opening waits for who publishes later: clients wait three for their first answer
Lifespan = Callable[["Yard"], AbstractAsyncContextManager[Any]]
Completed = Literal["resource", "prompt"]
Settled = Mapping[str, str] | None


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
        packs: Iterable[str] = (),
        metatools: bool | Iterable[str] = True,
        search: SearchSettings | None = None,
        profile: Profile = EVERYTHING,
        profiles: Iterable[Profile] = (),
        lifespan: Lifespan | None = None,
        middleware: Sequence[Middleware] = (),
        sinks: Iterable[Sink] = (),
        decide: Policy | None = None,
        turn: Limit | None = None,
        store: Store | None = None,
        limits: Limits | None = None,
        state_dir: str | None = None,
        allow_eval: bool = False,
        version: str = VERSION,
        instructions: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        self.name = name
        self.version = version
        self.instructions = instructions
        self.profile = profile
        self.limits = msgspec.structs.replace(limits or Limits())
        self.search = search or SearchSettings()
        self.origins: dict[str, str] = {}
        """Where settings came from that were not given in code."""
        self.state_dir = state_dir
        """Where what must outlive the yard is kept, if not in the usual place."""
        self._clock = clock
        self._given_store = store
        self._equip(allow_eval=allow_eval)
        self._profiles = Profiles(profile, profiles)
        self._packs = known_packs(packs)
        self._metatools = select_metatools(metatools)
        own = own_provider(name, tools, resources=resources, prompts=prompts)
        self._given = all_providers(own, providers, packs=self._packs)
        self._lifespan = lifespan
        self._middleware = tuple(middleware)
        self._sinks = list(sinks)
        self._policy = (decide, turn)
        self._dispatcher: Dispatcher | None = None
        self._open: AsyncExitStack | None = None

    def configure(self, *, origins: Mapping[str, str], limits: Mapping[str, Any], **given: Unpack[YardOverrides]) -> None:
        """Settle before opening what was left open in code: some limits, the yard's own profile, whether code may run and so on.

        Raises:
            KeyError: There is no profile of that name.
            ValueError: A limit or another setting makes no sense, or two providers have the same name.
            RuntimeError: The yard is open.
        """
        if self._dispatcher is not None:
            raise RuntimeError(f"The yard '{self.name}' is open: it can be configured only before.")
        self.adopt(given.get("profiles", ()), profile=given.get("profile"))
        self._packs = known_packs(dict.fromkeys([*self._packs, *given.get("packs", ())]))
        self._given = all_providers(None, [*self._given, *given.get("providers", ())], packs=self._packs)
        self.limits = Limits(**{**self.limits.as_dict(), **limits})
        self.search = msgspec.structs.replace(self.search, **given.get("search", {}))
        self._metatools = select_metatools(given.get("metatools", self._metatools))
        self.origins = dict(origins)
        self.state_dir = given.get("state_dir") or self.state_dir
        self._equip(allow_eval=given.get("allow_eval", self.registry.allow_eval))

    def adopt(self, profiles: Iterable[Profile], *, profile: str | None = None) -> None:
        """Know these profiles beside those of the code, before those of the same names, and take one as the yard's own; at any time."""
        self.profile = self._profiles.adopt(profiles, own=profile)
        if self._dispatcher is not None:
            self._dispatcher.profile = self.profile

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

    @property
    def dispatcher(self) -> Dispatcher:
        """Return the funnel that every call passes.

        Raises:
            RuntimeError: The yard is not open.
        """
        if self._dispatcher is None:
            raise RuntimeError(f"The yard '{self.name}' is not open: use 'async with'.")
        return self._dispatcher

    @property
    def abandoned_threads(self) -> int:
        """Return how many threads run on past their deadlines."""
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
        """Call a tool, with arguments as data or as JSON; what is awaited is always an envelope."""
        given: object = arguments
        if session is not None and isinstance(cast("object", arguments or {}), Mapping):
            given = {**cast("Mapping[str, Any]", arguments or {}), "session_id": session}
        return (self._dispatcher or self.dispatcher).dispatch(name, given, caller=caller or ANYONE, channel=channel)

    def read(self, uri: str, *, caller: Caller | None = None, channel: Channel = LIBRARY) -> Coroutine[Any, Any, Envelope]:
        """Read a resource; the data of the envelope are its contents."""
        return self.dispatcher.read(uri, caller=caller or ANYONE, channel=channel)

    def prompt(
        self,
        name: str,
        arguments: Mapping[str, Any] | msgspec.Raw | None = None,
        *,
        caller: Caller | None = None,
        channel: Channel = LIBRARY,
    ) -> Coroutine[Any, Any, Envelope]:
        """Ask for a prompt; the data of the envelope are its messages."""
        return self.dispatcher.prompt(name, arguments, caller=caller or ANYONE, channel=channel)

    async def complete(
        self, kind: Completed, name: str, *, argument: str, value: str, arguments: Settled = None, caller: Caller | None = None
    ) -> Sequence[str]:
        """Return what a value may become: of an argument of the prompt of that name, or of a variable of the template of that URI.

        Raises:
            ToolError: `not_found` if there is no such prompt, template or argument.
        """
        asked = self.dispatcher.complete(kind, name, argument=argument, value=value, settled=arguments or {}, caller=caller or ANYONE)
        return (await asked)[:_SUGGESTED]

    def notify_updated(self, uri: str) -> None:
        """Tell who watches that the content of a resource changed; works from a thread, too."""
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

    def instructions_for(self, profile: Profile) -> str:
        """Return what a client is told of the yard: its own words, and where most tools are not listed how to find them."""
        seen = [spec.name for spec in self.list(profile) if spec.source == METATOOLS] if self.registry.is_short(profile) else []
        return "\n\n".join(part for part in (self.instructions, metatool_instructions(seen), self.providers.instructions()) if part)

    def profile_of(self, profile: Profile | str | None) -> Profile:
        """Return a profile of the yard by its name, its own by default.

        Raises:
            KeyError: There is no profile of that name.
        """
        return self._profiles.find(profile)

    @property
    def profiles(self) -> Sequence[Profile]:
        """Return the profiles that the yard knows by name, its own first."""
        return self._profiles.known

    def settings(self) -> dict[str, dict[str, Any]]:
        """Return every setting with its value and where it came from: 'code' where it differs from the default."""
        own: dict[str, Any] = {"name": self.name, "version": self.version, "profile": self.profile.name, "packs": self._packs}
        own |= {"metatools": metatools_setting(self._metatools), "search.strategy": self.search.strategy, "state_dir": self.state_dir}
        return told({**own, "allow_eval": self.registry.allow_eval, **self.limits.as_dict()}, self.origins)

    def add_sink(self, sink: Sink) -> Callable[[], None]:
        """Send records to the sink, too; return what stops that."""
        self._sinks.append(sink)
        return lambda: self._sinks.remove(sink) if sink in self._sinks else None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Be a provider of another yard: every call passes both funnels."""
        async with self:
            with Mount(self.name, self.registry, self.dispatcher, profile=self.profile).shown(publish):
                yield

    def _equip(self, *, allow_eval: bool) -> None:
        self.signer = own_signer(self.state_dir)
        self.registry = Registry(self.limits, allow_eval=allow_eval)
        self.providers = ProviderSet(self.registry, notify=self.notify_updated)
        self.sessions = Sessions(self.limits, clock=self._clock)
        self._store = self._given_store or MemoryStore(max_bytes=self.limits.store_bytes, clock=self._clock)

    def _make_dispatcher(self) -> Dispatcher:
        decide, turn = self._policy
        return Dispatcher(
            self.registry,
            profile=self.profile,
            limits=self.limits,
            sessions=self.sessions,
            results=Results(
                self._store, self.limits, reads=lambda profile: bool(self.registry.available_actions(profile, "read_result(…)"))
            ),
            sinks=self._sinks,
            middleware=self._middleware,
            decide=decide,
            turn=turn,
        )

    async def _assemble(self, stack: AsyncExitStack, dispatcher: Dispatcher) -> None:
        await stack.enter_async_context(background_task(self.sessions.sweep_forever()))
        if self._lifespan is not None:
            dispatcher.state = await stack.enter_async_context(self._lifespan(self))
        stack.push_async_callback(self.providers.remove_all)
        with PausedCollection():
            for provider in self._given:
                await self.providers.add(provider)
            for pack in self._packs:
                await self.providers.add(make_pack(pack, self), gives_way=True)
            if self._metatools:
                from toolyard.metatools.provider import Metatools  # noqa: PLC0415 - only a yard that opens with them needs them

                await self.providers.add(Metatools(self, self._metatools), gives_way=True)
        await self.providers.settled(_SETTLED, unless_known=True)
        stack.push_async_callback(self.sessions.end_all)
        stack.push_async_callback(dispatcher.close)
