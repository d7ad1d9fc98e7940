"""Providers: the sources of tools, resources and prompts.

Its files:

- `provider_set`: the providers of an open yard: each can be added and removed while the yard is open
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from callyard.dispatch.registry import Registry, SubscriptionWatcher
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.dispatch.tool import Tool

__all__ = ["Provider", "Publish"]


class Publish:
    """Replaces what one provider has published under its name: its tools, resources and prompts."""

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
        """Publish these in place of what was published before.

        An invalid item fails the whole call, unless `foreign`: then it is quarantined and the others are published.
        Items in `withheld`, by kind and by name or URI, cannot be used; a caller that asks for one gets the reason.
        """
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
        """Notify subscribers that the content of a resource changed."""
        self._notify(uri)

    def watch_subscriptions(self, watcher: SubscriptionWatcher) -> Callable[[], None]:
        """Call the watcher with the subscribed resources, now and after each change; return what stops it."""
        return self._registry.subscriptions.watch(self._source, watcher)


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
