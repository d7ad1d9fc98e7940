"""Where tools, resources and prompts come from: a provider connects, publishes them and disconnects."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from toolyard.dispatch.registry import SubscriptionWatcher
from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from toolyard.dispatch.tool import Tool

__all__ = ["Forwarding", "Parting", "Provider", "Publish", "Settling", "Telling"]


class Publish(Protocol):
    """Makes these the tools, resources and prompts of the provider, in place of those it published before."""

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
        """Publish; of what is not our own, a wrong one is quarantined instead of failing all.

        What is withheld, by its kind and its name or URI, is known and cannot be used; whoever asks for it is told the reason.
        """
        ...

    def updated(self, uri: str) -> None:
        """Tell who watches that the content of a resource changed."""
        ...

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Tell the watcher which of its resources somebody is subscribed to, now and whenever it changes; return what stops that."""
        ...


class Provider(Protocol):
    """A name and one context manager, which publishes while it is open."""

    @property
    def name(self) -> str:
        """Return the source that what it publishes is shown under."""
        ...

    def open(self, publish: Publish) -> AbstractAsyncContextManager[None]:
        """Connect, publish, and disconnect on leaving."""
        ...


@runtime_checkable
class Settling(Protocol):
    """A provider that may publish only some time after it was opened."""

    async def settled(self) -> None:
        """Wait until it published, or it is clear that it cannot for now."""
        ...


@runtime_checkable
class Parting(Protocol):
    """A provider that takes a while to disconnect, and can do so before it is closed, while others do the same."""

    async def part(self) -> None:
        """Disconnect, so that closing takes no time any more."""
        ...


@runtime_checkable
class Forwarding(Protocol):
    """A provider whose calls pass on some of the headers that a request came with."""

    @property
    def forward_headers(self) -> Sequence[str]:
        """Return which, in small letters."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A provider that may have nothing to publish, and can tell why."""

    @property
    def name(self) -> str:
        """Return what the provider is called."""
        ...

    def trouble(self) -> str | None:
        """Return why nothing is known of what it offers, or nothing if something is."""
        ...
