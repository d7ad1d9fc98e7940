"""Providers: the sources of tools, resources and prompts."""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from callyard.dispatch.registry import SubscriptionWatcher
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.dispatch.tool import Tool

__all__ = ["Provider", "Publish"]


class Publish(Protocol):
    """Replaces what a provider has published: its tools, resources and prompts."""

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
        """Publish these in place of what was published before.

        An invalid item fails the whole call, unless `foreign`: then it is quarantined and the others are published.
        Items in `withheld`, by kind and by name or URI, cannot be used; a caller that asks for one gets the reason.
        """
        ...

    def updated(self, uri: str) -> None:
        """Notify subscribers that the content of a resource changed."""
        ...

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Call the watcher with the provider's subscribed resources, now and after every change; return a function that stops it."""
        ...


class Provider(Protocol):
    """A name and one context manager, which publishes while it is open.

    A provider may also have these attributes; a yard looks for each where it needs it:

    - `async def wait_ready()`: wait for the first publication, or until it is clear that there is none for now.
    - `async def disconnect()`: disconnect before the provider is closed; a yard disconnects its providers concurrently.
    - `def unavailable_reason() -> str | None`: why nothing is published, or None if something is.
    - `forward_headers: Sequence[str]`: request headers, in lower case, that its calls pass on.
    - `instructions: str`: a text about its tools for clients.
    """

    @property
    def name(self) -> str:
        """Return the source under which its tools are shown."""
        ...

    def open(self, publish: Publish) -> AbstractAsyncContextManager[None]:
        """Connect and publish; disconnect on exit."""
        ...
