"""Publishing: what one provider is handed to publish with, while it is open."""

from collections.abc import Callable, Iterable

from toolyard.prompts import Prompt
from toolyard.registry import Registry
from toolyard.resources import Resource
from toolyard.subscriptions import Watcher
from toolyard.table import NOTHING_WITHHELD, WithheldReasons
from toolyard.tools import Tool

__all__ = ["Publishing"]


class Publishing:
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
        withheld: WithheldReasons = NOTHING_WITHHELD,
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

    def watch_subscriptions(self, watcher: Watcher) -> Callable[[], None]:
        """Tell the watcher which of the provider's resources somebody is subscribed to; return what stops that."""
        return self._registry.subscriptions.watch(self._source, watcher)
