"""The providers of an open yard: each can be added and removed while the yard is open.

A yard mounted in another yard is one of them; every call passes both dispatchers.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Literal, TypeGuard, TypeVar, cast

import msgspec

from callyard.dispatch.arguments import BoundArguments
from callyard.dispatch.call import REFS_RESOLVED, Arguments, Call, Caller, CallRequest, current_call
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.registry import Registry
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import Tool, decode_arguments
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile
from callyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from callyard.providers import Provider, Publish

__all__ = ["Mount", "ProviderSet", "StaticProvider", "all_providers", "own_provider"]


T = TypeVar("T")
_INSTRUCTIONS_CHARACTERS: Final = 1000
_ALL_INSTRUCTIONS_CHARACTERS: Final = 4000


class ProviderSet:
    """The open providers by name, in the order they were added."""

    def __init__(
        self,
        registry: Registry,
        *,
        notify: Callable[[str], None],
        prepare: Callable[[Provider], None] = lambda _: None,
    ) -> None:
        self._registry = registry
        self._notify = notify
        self._prepare = prepare
        self._open: dict[str, tuple[Provider, AsyncExitStack]] = {}
        self._opening: set[str] = set()
        self.forwarding: dict[str, Any] = {}

    def get(self, name: str) -> Provider | None:
        """Return the open provider of that name, if there is one."""
        return self._open[name][0] if name in self._open else None

    def __iter__(self) -> Iterator[Provider]:
        return iter([provider for provider, _ in self._open.values()])

    async def ask_yard(self, source: str, call: Call, name: str, arguments: Mapping[str, Any]) -> Envelope:
        """Call a metatool of an upstream that is a yard, as a part of a call.

        Raises:
            ToolError: `not_found` if there is no such upstream any more, or it is disabled.
        """
        found = dict(self._with_method("ask_yard")).get(source)
        if found is None or self._registry.is_disabled(source):
            message = f"There is no upstream '{source}' here, or it is disabled."
            raise ToolError("not_found", message, reason="unknown_upstream", may_have_run=False)
        return cast("Envelope", await found(call, name, arguments))

    @property
    def forward_headers(self) -> Sequence[str]:
        """Return the request headers that the providers pass on; read per request, because upstreams come and go."""
        return [header for provider in self.forwarding.values() for header in provider.forward_headers]

    def forwards(self, source: str) -> bool:
        """Return whether a provider passes request headers on, which may be credentials."""
        return source in self.forwarding and bool(self.forwarding[source].forward_headers)

    async def add(self, provider: Provider, *, gives_way: bool = False) -> None:
        """Open a provider, which then publishes.

        Raises:
            ValueError: A provider of that name is open.
        """
        name = provider.name
        if name in self._open or name in self._opening:
            raise ValueError(f"Two providers are named '{name}': give one of them another name.")
        self._opening.add(name)
        try:
            self._prepare(provider)
            async with AsyncExitStack() as stack:
                publish = Publish(self._registry, name, gives_way=gives_way, notify=self._notify)
                stack.callback(self._registry.withdraw, name)
                await stack.enter_async_context(provider.open(publish))
                self._open[name] = (provider, stack.pop_all())
                # a mounted yard forwards the headers of its own providers
                forwarding = getattr(provider, "providers", provider)
                if hasattr(forwarding, "forward_headers"):
                    self.forwarding[name] = forwarding
        finally:
            self._opening.discard(name)

    async def remove(self, name: str) -> None:
        """Close a provider, if it is open, and withdraw what it published."""
        self.forwarding.pop(name, None)
        entry = self._open.pop(name, None)
        if entry is not None:
            await entry[1].aclose()

    async def remove_all(self) -> None:
        """Close all providers, the last first, even if some fail; `disconnect` those that can be together before."""
        disconnects = [disconnect() for _, disconnect in self._with_method("disconnect")]
        await asyncio.gather(*disconnects, return_exceptions=True)
        async with AsyncExitStack() as stack:
            for name in self._open:
                stack.push_async_callback(self.remove, name)

    async def wait_ready(
        self,
        seconds: float,
        *,
        unless_known: bool = False,
        enough: Callable[[], bool] = lambda: False,
        tell: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Wait, at most for these seconds, until every provider has published or cannot for now.

        With `unless_known` it does not wait if some provider is ready already, because then there is something to list.
        It ends early once `enough` returns true, and calls `tell` with the names still missing after every change.
        """
        waits = {asyncio.ensure_future(wait_ready()): name for name, wait_ready in self._with_method("wait_ready")}
        await asyncio.sleep(0)  # lets the tasks of ready providers finish
        late = {wait for wait in waits if not wait.done()}
        deadline = asyncio.get_running_loop().time() + seconds
        if unless_known and len(late) < len(waits):
            seconds = 0
        while late and seconds > 0 and not enough():
            tell([waits[wait] for wait in waits if wait in late])
            _, late = await asyncio.wait(late, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            seconds = deadline - asyncio.get_running_loop().time()
        for wait in late:
            wait.cancel()

    def instructions(self) -> str:
        """Return the providers' instructions for clients, each with the provider's name, cut to a bounded length."""
        enabled = [provider for provider in self if not self._registry.is_disabled(provider.name)]
        texts = {provider.name: str(getattr(provider, "instructions", "")).strip() for provider in enabled}
        parts = [f"About '{name}': {text[:_INSTRUCTIONS_CHARACTERS]}" for name, text in texts.items() if text]
        return "\n\n".join(parts)[:_ALL_INSTRUCTIONS_CHARACTERS]

    def _with_method(self, method: str) -> list[tuple[str, Callable[..., Any]]]:
        """Return the name and the method of every provider that has this optional method."""
        return [(provider.name, bound) for provider in self if (bound := getattr(provider, method, None)) is not None]


class StaticProvider:
    """Publishes a fixed set of tools, resources and prompts."""

    def __init__(
        self, name: str, tools: Sequence[Tool], *, resources: Sequence[Resource], prompts: Sequence[Prompt]
    ) -> None:
        self.name = name
        self._tools = tools
        self._resources = resources
        self._prompts = prompts

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the set."""
        publish(self._tools, resources=self._resources, prompts=self._prompts)
        yield


def all_providers(own: Provider | None, providers: Iterable[Provider], *, others: Sequence[str]) -> list[Provider]:
    """Return a yard's providers, its own functions first; `others` are names that are taken already.

    Raises:
        ValueError: Two have the same name.
    """
    found: list[Provider] = [*([] if own is None else [own]), *providers]
    names = [METATOOLS, *others, *(provider.name for provider in found)]
    for known in names:
        if names.count(known) > 1:
            raise ValueError(f"Two providers are named '{known}': give one of them another name.")
    return found


def own_provider(name: str, tools: object, *, resources: object, prompts: object) -> Provider | None:
    """Return the provider of the yard's own tools, resources and prompts, if it has any.

    A yard of ready-made tools does not load the reading of function signatures, and starts sooner.
    """
    if _are(tools, Tool) and _are(resources, Resource) and _are(prompts, Prompt):
        return (
            StaticProvider(name, tools, resources=resources, prompts=prompts) if tools or resources or prompts else None
        )
    from callyard.providers.functions import Functions  # noqa: PLC0415 - see above

    return Functions(name, tools, resources=resources, prompts=prompts)


def _are(things: object, kind: type[T]) -> TypeGuard[Sequence[T]]:
    if not isinstance(things, list | tuple):
        return False
    return all(isinstance(thing, kind) for thing in cast("Sequence[object]", things))


class Mount:
    """Publishes the tools, resources and prompts of the inner yard to the outer one."""

    def __init__(self, name: str, registry: Registry, dispatcher: Dispatcher, *, profile: Profile) -> None:
        self._name = name
        self._registry = registry
        self._dispatcher = dispatcher
        self._profile = profile
        self._subscribed: Mapping[str, str] = {}

    @contextmanager
    def shown(self, publish: Publish) -> Generator[None]:
        """Publish the inner yard, and its changes, while open."""
        self._publish_all(publish, foreign=self._registry.has_foreign)
        stops = [
            # one invalid tool must not block the others now
            self._registry.watch(lambda _: self._publish_all(publish, foreign=True)),
            self._registry.watch_updates(publish.updated),
            publish.watch_subscriptions(self._subscribe),
        ]
        try:
            yield
        finally:
            for stop in stops:
                stop()
            self._subscribe(frozenset())

    def _subscribe(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Subscribe in the inner yard to the resources that clients of the outer yard are subscribed to."""
        current = {uri: source for uri, source in self._subscribed.items() if uri in uris}
        gone = {uri: source for uri, source in self._subscribed.items() if uri not in uris}
        self._registry.subscriptions.remove(gone)
        subscribed = self._registry.subscribe(uris - current.keys(), self._profile)
        self._subscribed = {**current, **subscribed.sources}
        return cast("asyncio.Future[None]", asyncio.gather(*subscribed.ready)) if subscribed.ready else None

    def _publish_all(self, publish: Publish, *, foreign: bool) -> None:
        registry, profile = self._registry, self._profile
        publish(
            [self._tool(spec) for spec in registry.visible(profile) if spec.source != METATOOLS],
            resources=[
                self._resource(spec) for spec in (*registry.list_resources(profile), *registry.list_templates(profile))
            ],
            prompts=[self._prompt(spec) for spec in registry.list_prompts(profile)],
            foreign=foreign,
        )

    def _tool(self, spec: ToolSpec) -> Tool:
        inner = self._registry.find(spec.name, self._profile)

        def check(text: bytes) -> Arguments:
            inner.check(text)
            return decode_arguments(text)

        async def handler(call: Call) -> Envelope:
            run = run_of(call)
            run.is_proxy = True
            request = CallRequest(spec.name, call.arguments, self._caller(call))
            return await self._dispatcher.dispatch(request, channel=call.channel, parent=run, options=REFS_RESOLVED)

        def bind(text: bytes) -> BoundArguments:
            bound = inner.bind(text)
            return msgspec.structs.replace(bound, parse=decode_arguments, inner=bound.inner or bound.parse)

        # the inner yard asks by itself where the upstream's settings say so
        unsettled = None if spec.unsettled == "ask" else spec.unsettled
        outer = msgspec.structs.replace(spec, source=self._name, session="none", serial=False, unsettled=unsettled)
        marks = inner.marks_secrets
        return Tool(spec=outer, handler=handler, check=check, binder=bind, marks_secrets=marks, may_return_none=True)

    def _resource(self, spec: ResourceSpec) -> Resource:
        inner = self._registry.find_template(spec.uri, self._profile)

        async def handler(call: Call) -> Envelope:
            request = CallRequest(call.name, None, self._caller(call), "resource")
            return await self._dispatcher.dispatch(request, channel=call.channel, parent=run_of(call))

        complete = {name: partial(self._complete, "resource", spec.uri, name) for name in inner.complete}
        return Resource.of(
            spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=complete
        )

    def _prompt(self, spec: PromptSpec) -> Prompt:
        inner = self._registry.find_prompt(spec.name, self._profile)

        async def handler(call: Call) -> Envelope:
            request = CallRequest(spec.name, call.arguments, self._caller(call), "prompt")
            return await self._dispatcher.dispatch(request, channel=call.channel, parent=run_of(call))

        complete = {name: partial(self._complete, "prompt", spec.name, name) for name in inner.complete}
        return Prompt.of(
            spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=complete
        )

    async def _complete(
        self, kind: Literal["resource", "prompt"], name: str, argument: str, value: str, settled: dict[str, str]
    ) -> Sequence[str]:
        """Complete an argument in the inner yard, whose rules may refuse it."""
        caller = self._caller(current_call())
        return await self._dispatcher.complete(
            kind, name, argument=argument, value=value, settled=settled, caller=caller
        )

    def _caller(self, call: Call) -> Caller:
        return msgspec.structs.replace(call.caller, profile=self._profile)
