"""A yard mounted in another yard as a provider; every call passes both dispatchers."""

import asyncio
from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import cast

import msgspec

from callyard.dispatch.call import REFS_RESOLVED, Arguments, Call, Caller, CallRequest
from callyard.dispatch.dispatcher import Dispatcher
from callyard.dispatch.registry import Registry
from callyard.dispatch.resource import Prompt, Resource
from callyard.dispatch.tool import Tool, decode_arguments
from callyard.model.envelope import Envelope
from callyard.model.profile import METATOOLS, Profile
from callyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from callyard.providers import Publish

__all__ = ["Mount"]


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
            self._registry.watch(lambda _: self._publish_all(publish, foreign=True)),  # one invalid tool must not block the others now
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
        self._registry.subscriptions.remove({uri: source for uri, source in self._subscribed.items() if uri not in uris})
        subscribed = self._registry.subscribe(uris - current.keys(), self._profile)
        self._subscribed = {**current, **subscribed.sources}
        return cast("asyncio.Future[None]", asyncio.gather(*subscribed.ready)) if subscribed.ready else None

    def _publish_all(self, publish: Publish, *, foreign: bool) -> None:
        registry, profile = self._registry, self._profile
        publish(
            [self._tool(spec) for spec in registry.visible(profile) if spec.source != METATOOLS],
            resources=[self._resource(spec) for spec in (*registry.list_resources(profile), *registry.list_templates(profile))],
            prompts=[self._prompt(spec) for spec in registry.list_prompts(profile)],
            foreign=foreign,
        )

    def _tool(self, spec: ToolSpec) -> Tool:
        inner = self._registry.find(spec.name, self._profile)

        def check(text: bytes) -> Arguments:
            inner.check(text)
            return decode_arguments(text)

        async def handler(call: Call) -> Envelope:
            call.is_proxy = True
            request = CallRequest(spec.name, call.arguments, self._caller(call))
            return await self._dispatcher.dispatch(request, channel=call.channel, parent=call, options=REFS_RESOLVED)

        outer = msgspec.structs.replace(spec, source=self._name, session="none", serial=False)
        return Tool(spec=outer, handler=handler, check=check, may_return_none=True)

    def _resource(self, spec: ResourceSpec) -> Resource:
        inner = self._registry.find_template(spec.uri, self._profile)

        async def handler(call: Call) -> Envelope:
            return await self._dispatcher.read(call.name, caller=self._caller(call), channel=call.channel, parent=call)

        return Resource.of(spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=inner.complete)

    def _prompt(self, spec: PromptSpec) -> Prompt:
        inner = self._registry.find_prompt(spec.name, self._profile)

        async def handler(call: Call) -> Envelope:
            return await self._dispatcher.prompt(spec.name, call.arguments, caller=self._caller(call), channel=call.channel, parent=call)

        return Prompt.of(spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=inner.complete)

    def _caller(self, call: Call) -> Caller:
        return msgspec.structs.replace(call.caller, profile=self._profile)
