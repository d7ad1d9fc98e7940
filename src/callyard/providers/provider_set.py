"""The providers of an open yard: each can be added and removed while the yard is open."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, cast

from callyard.dispatch.registry import Registry, SubscriptionWatcher
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.dispatch.tool import Tool
from callyard.providers import Provider, Publish

__all__ = ["ProviderSet", "Publisher", "StaticProvider", "own_provider"]


class Publisher:
    """Writes what one provider publishes to the registry, under the provider's name."""

    def __init__(self, registry: Registry, source: str, *, gives_way: bool, notify: Callable[[str], None]) -> None:
        self._registry = registry
        self._source = source
        self._gives_way = gives_way
        self._notify = notify

    def __call__(
        self,
        tools: Iterable[Tool] = (),
        /,
        *,
        resources: Iterable[Resource] = (),
        prompts: Iterable[Prompt] = (),
        withheld: WithheldReasons = NONE_WITHHELD,
        foreign: bool = False,
    ) -> None:
        """Replace the tools, resources and prompts of the provider."""
        self._registry.publish(
            self._source, tools, resources=resources, prompts=prompts, withheld=withheld, foreign=foreign, gives_way=self._gives_way
        )

    def updated(self, uri: str) -> None:
        """Notify subscribers that the content of a resource changed."""
        self._notify(uri)

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Call the watcher with the provider's subscribed resources, now and after every change; return a function that stops it."""
        return self._registry.subscriptions.watch(self._source, watcher)


_INSTRUCTIONS_CHARACTERS: Final = 1000
_ALL_INSTRUCTIONS_CHARACTERS: Final = 4000


class ProviderSet:
    """The open providers by name, in the order they were added."""

    def __init__(self, registry: Registry, *, notify: Callable[[str], None]) -> None:
        self._registry = registry
        self._notify = notify
        self._open: dict[str, tuple[Provider, AsyncExitStack]] = {}
        self._opening: set[str] = set()
        self.forwarding: dict[str, Any] = {}

    def get(self, name: str) -> Provider | None:
        """Return the open provider of that name, if there is one."""
        entry = self._open.get(name)
        return None if entry is None else entry[0]

    def __iter__(self) -> Iterator[Provider]:
        return iter([provider for provider, _ in self._open.values()])

    @property
    def forward_headers(self) -> Sequence[str]:
        """Return the request headers that the providers pass on; read per request, because upstreams come and go."""
        return [header for provider in self.forwarding.values() for header in provider.forward_headers] if self.forwarding else ()

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
            async with AsyncExitStack() as stack:
                publish = Publisher(self._registry, name, gives_way=gives_way, notify=self._notify)
                stack.callback(self._registry.withdraw, name)
                await stack.enter_async_context(provider.open(publish))
                self._open[name] = (provider, stack.pop_all())
                forwarding = getattr(provider, "providers", provider)  # a mounted yard forwards the headers of its own providers
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
        """Close all providers, the last first, even if some fail; those with `disconnect` do that concurrently before."""
        await asyncio.gather(*(disconnect() for _, disconnect in self._with_method("disconnect")), return_exceptions=True)
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
        texts = {provider.name: str(getattr(provider, "instructions", "")).strip() for provider in self}
        parts = [f"About '{name}': {text[:_INSTRUCTIONS_CHARACTERS]}" for name, text in texts.items() if text]
        return "\n\n".join(parts)[:_ALL_INSTRUCTIONS_CHARACTERS]

    def _with_method(self, method: str) -> list[tuple[str, Callable[[], Any]]]:
        """Return the name and the method of every provider that has this optional method."""
        return [(provider.name, bound) for provider in self if (bound := getattr(provider, method, None)) is not None]


class StaticProvider:
    """Publishes a fixed set of tools, resources and prompts."""

    def __init__(self, name: str, tools: Sequence[Tool], *, resources: Sequence[Resource], prompts: Sequence[Prompt]) -> None:
        self.name = name
        self._tools = tools
        self._resources = resources
        self._prompts = prompts

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the set."""
        publish(self._tools, resources=self._resources, prompts=self._prompts)
        yield


def own_provider(name: str, tools: object, *, resources: object, prompts: object) -> Provider | None:
    """Return the provider of the yard's own tools, resources and prompts, if it has any.

    A yard of ready-made tools does not load the reading of function signatures, and starts sooner.
    """
    if _are(tools, Tool) and _are(resources, Resource) and _are(prompts, Prompt):
        provider = StaticProvider(name, _listed(tools), resources=_listed(resources), prompts=_listed(prompts))
        return provider if any((tools, resources, prompts)) else None
    from callyard.providers.functions import Functions  # noqa: PLC0415 - see above

    return Functions(name, tools, resources=resources, prompts=prompts)


def _are(things: object, kind: type) -> bool:
    return isinstance(things, list | tuple) and all(isinstance(thing, kind) for thing in cast("Sequence[object]", things))


def _listed(things: object) -> list[Any]:
    return list(cast("Sequence[Any]", things))
