"""Gathered providers: those of an open yard, each of which can come and go without the others."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from toolyard.dispatch.registry import Registry, SubscriptionWatcher
from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from toolyard.dispatch.tool import Tool
from toolyard.providers import Forwarding, Parting, Provider, Publish, Settling

__all__ = ["ProviderSet", "Publisher", "StaticProvider"]


class Publisher:
    """Puts what a provider publishes into the registry, under its name."""

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
        """Make these the tools, resources and prompts of the provider."""
        self._registry.publish(
            self._source,
            tools,
            resources=resources,
            prompts=prompts,
            withheld=withheld,
            foreign=foreign,
            gives_way=self._gives_way,
        )

    def updated(self, uri: str) -> None:
        """Tell who watches that the content of a resource changed."""
        self._notify(uri)

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Tell the watcher which of the provider's resources somebody is subscribed to; return what stops that."""
        return self._registry.subscriptions.watch(self._source, watcher)


_CHARACTERS: Final = 1000
_ALL_CHARACTERS: Final = 4000


class ProviderSet:
    """The providers that are open now, by name, in the order they came."""

    def __init__(self, registry: Registry, *, notify: Callable[[str], None]) -> None:
        self._registry = registry
        self._notify = notify
        self._open: dict[str, tuple[Provider, AsyncExitStack]] = {}
        self._opening: set[str] = set()
        self._forwarding: dict[str, Forwarding] = {}

    def get(self, name: str) -> Provider | None:
        """Return the provider of that name, if it is open."""
        found = self._open.get(name)
        return None if found is None else found[0]

    def __iter__(self) -> Iterator[Provider]:
        return iter([provider for provider, _ in self._open.values()])

    @property
    def forward_headers(self) -> Sequence[str]:
        """Return the request headers that some of them pass on; each request asks for them, because upstreams come and go."""
        return [header for one in self._forwarding.values() for header in one.forward_headers] if self._forwarding else ()

    async def add(self, provider: Provider, *, gives_way: bool = False) -> None:
        """Open a provider, which then publishes.

        Raises:
            ValueError: One of that name is open.
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
                forwarding = getattr(provider, "providers", provider)  # in a yard it is those that it holds
                if isinstance(forwarding, Forwarding):
                    self._forwarding[name] = forwarding
        finally:
            self._opening.discard(name)

    async def remove(self, name: str) -> None:
        """Close a provider, if it is open; what it published is withdrawn."""
        self._forwarding.pop(name, None)
        found = self._open.pop(name, None)
        if found is not None:
            await found[1].aclose()

    async def remove_all(self) -> None:
        """Close all of them, the last one first, even if some fail; those that take a while disconnect at the same time."""
        await asyncio.gather(*(provider.part() for provider in self if isinstance(provider, Parting)), return_exceptions=True)
        async with AsyncExitStack() as stack:
            for name in self._open:
                stack.push_async_callback(self.remove, name)

    async def settled(
        self,
        seconds: float,
        *,
        unless_known: bool = False,
        enough: Callable[[], bool] = lambda: False,
        tell: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """Wait until each that publishes later has done so, or it is clear that it cannot for now; but no longer than that.

        A server that starts has something to list as soon as one of them is known: then nobody need wait for the others. Nor is
        there more to wait for once it is enough. Who is still waited for is told whenever that changes.
        """
        waits = {asyncio.ensure_future(one.settled()): one.name for one in self if isinstance(one, Settling)}
        await asyncio.sleep(0)  # each looks whether it published already
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
        """Return what the providers want clients to be told, each with its name, and none without end."""
        said = {provider.name: str(getattr(provider, "instructions", "")).strip() for provider in self}
        parts = [f"About '{name}': {text[:_CHARACTERS]}" for name, text in said.items() if text]
        return "\n\n".join(parts)[:_ALL_CHARACTERS]


class StaticProvider:
    """Publishes what it is given."""

    def __init__(self, name: str, tools: Sequence[Tool], *, resources: Sequence[Resource], prompts: Sequence[Prompt]) -> None:
        self.name = name
        self._tools = tools
        self._resources = resources
        self._prompts = prompts

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish it all."""
        publish(self._tools, resources=self._resources, prompts=self._prompts)
        yield
