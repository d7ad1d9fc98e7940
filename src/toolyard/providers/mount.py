"""Mounts: what a yard shows to another yard that holds it; every call then passes both funnels."""

import asyncio
from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import cast

import msgspec

from toolyard.dispatch.call import REFS_RESOLVED, Arguments, Call, Caller, CallRequest
from toolyard.dispatch.dispatcher import Dispatcher
from toolyard.dispatch.registry import Registry
from toolyard.dispatch.resource import Prompt, Resource
from toolyard.dispatch.tool import Tool, decode_arguments
from toolyard.model.envelope import Envelope
from toolyard.model.profile import METATOOLS, Profile
from toolyard.model.spec import PromptSpec, ResourceSpec, ToolSpec
from toolyard.providers import Publish

__all__ = ["Mount"]


class Mount:
    """One yard, as the yard that holds it sees it."""

    def __init__(self, name: str, registry: Registry, dispatcher: Dispatcher, *, profile: Profile) -> None:
        self._name = name
        self._registry = registry
        self._dispatcher = dispatcher
        self._profile = profile
        self._followed: Mapping[str, str] = {}

    @contextmanager
    def shown(self, publish: Publish) -> Generator[None]:
        """Publish what there is, and what changes, meanwhile."""
        self._project(publish, foreign=self._registry.has_foreign)
        stops = [
            self._registry.watch(lambda _: self._project(publish, foreign=True)),  # by then one wrong tool must not keep the others away
            self._registry.watch_updates(publish.updated),
            publish.watch_subscriptions(self._follow),
        ]
        try:
            yield
        finally:
            for stop in stops:
                stop()
            self._follow(frozenset())

    def _follow(self, uris: AbstractSet[str]) -> "asyncio.Future[None] | None":
        """Be subscribed in there to what somebody out there is subscribed to, as far as it is not gone by now."""
        kept = {uri: source for uri, source in self._followed.items() if uri in uris}
        self._registry.subscriptions.remove({uri: source for uri, source in self._followed.items() if uri not in uris})
        subscribed = self._registry.subscribe(uris - kept.keys(), self._profile)
        self._followed = {**kept, **subscribed.sources}
        return cast("asyncio.Future[None]", asyncio.gather(*subscribed.ready)) if subscribed.ready else None

    def _project(self, publish: Publish, *, foreign: bool) -> None:
        publish(self._tools(), resources=self._resources(), prompts=self._prompts(), foreign=foreign)

    def _tools(self) -> list[Tool]:
        return [self._tool(spec) for spec in self._registry.visible(self._profile) if spec.source != METATOOLS]

    def _resources(self) -> list[Resource]:
        registry, profile = self._registry, self._profile
        return [self._resource(spec) for spec in (*registry.list_resources(profile), *registry.list_templates(profile))]

    def _prompts(self) -> list[Prompt]:
        return [self._prompt(spec) for spec in self._registry.list_prompts(self._profile)]

    def _tool(self, spec: ToolSpec) -> Tool:
        inner = self._registry.find(spec.name, self._profile)

        def check(text: bytes) -> Arguments:
            inner.check(text)
            return decode_arguments(text)

        async def handler(call: Call) -> Envelope:
            call.is_proxy = True
            request = CallRequest(spec.name, call.arguments, self._inside(call))
            return await self._dispatcher.dispatch(request, channel=call.channel, parent=call, options=REFS_RESOLVED)

        outside = msgspec.structs.replace(spec, source=self._name, session="none", serial=False)
        return Tool(spec=outside, handler=handler, check=check, may_return_none=True)

    def _resource(self, spec: ResourceSpec) -> Resource:
        inner = self._registry.find_template(spec.uri, self._profile)

        async def handler(call: Call) -> Envelope:
            return await self._dispatcher.read(call.name, caller=self._inside(call), channel=call.channel, parent=call)

        return Resource.of(spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=inner.complete)

    def _prompt(self, spec: PromptSpec) -> Prompt:
        inner = self._registry.find_prompt(spec.name, self._profile)

        async def handler(call: Call) -> Envelope:
            return await self._dispatcher.prompt(spec.name, call.arguments, caller=self._inside(call), channel=call.channel, parent=call)

        return Prompt.of(spec, handler, schema=inner.query.spec.input_schema, check=msgspec.json.decode, complete=inner.complete)

    def _inside(self, call: Call) -> Caller:
        return msgspec.structs.replace(call.caller, profile=self._profile)
