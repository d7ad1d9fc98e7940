"""The front: what all conversations of a yard share, whatever way in they came by."""

import asyncio
from collections.abc import Mapping
from itertools import count
from typing import Any, Final, cast

from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE, Caller, Channel
from toolyard.model.profile import EVERYTHING, Profile
from toolyard.server.input_required import InputRequired
from toolyard.server.lists import Lists
from toolyard.server.notifications import ChangeNotifier
from toolyard.wire.headers import param_names
from toolyard.wire.results import ResultEncoder, Server
from toolyard.wire.versions import VERSIONS, Version
from toolyard.yard import Yard

__all__ = ["ServerContext"]

WantedHeaders = dict[tuple[str, ...], tuple[str, str]]

_CALLERS: Final = 4096
_NAME: Final = 100
_TICK: Final = 0.02
_numbers: Final = count(1)


class ServerContext:
    """Lists, parked calls and notices of one open yard, for one way in."""

    def __init__(self, yard: Yard, serving: Serving, *, channel: str) -> None:
        self.yard = yard
        self.serving = serving
        self.channel = channel
        self.dispatch = yard.dispatcher.dispatch
        self.number = next(_numbers)
        """What its calls are told by from those of others."""
        self.silent_door = Channel(name=channel, front=self.number)
        self.stateless_door = Channel(name=channel, front=self.number, stateless=True)
        self.lists = Lists(yard, serving, yard.signer)
        self.parking = InputRequired(yard.signer, serving.ask_seconds)
        self.changes = ChangeNotifier(yard, self.lists)
        self.closing = asyncio.Event()
        """Set when the server ends, so that those who only listen are told."""
        server = Server(yard.name, yard.version)
        ttl = int(serving.list_seconds * 1000)
        self._answers = {name: ResultEncoder(version, server, ttl_ms=ttl) for name, version in VERSIONS.items()}
        self._local: dict[str, Caller] = {}
        self._callers: dict[tuple[str, str, str], Caller] = {}
        self._wanted: dict[str, WantedHeaders] = {}
        """By tool which arguments it wants as headers, too."""
        self._params_version = -1
        self._shown = tuple(name.lower() for name in serving.request_headers)

    def answers(self, version: Version) -> ResultEncoder:
        """Return how clients of a version are answered."""
        return self._answers[version.name]  # by name, because the hash of a version is made anew each time

    def capabilities(self, profile: Profile, *, notifies: bool = True) -> dict[str, Any]:
        """Return what a client is told that it can do here; changes and a log only if something is kept of what it wants to hear."""
        changes = {"listChanged": True} if self.serving.notify_changes and notifies else {}
        told: dict[str, Any] = {"tools": changes, **({"logging": {}} if notifies else {})}
        prompts = self.lists.any("prompts", profile)
        resources = self.lists.any("resources", profile) or self.lists.any("templates", profile)
        if prompts:
            told["prompts"] = changes
        if resources:
            told["resources"] = {**changes, "subscribe": True} if notifies else changes
        if prompts or resources:
            told["completions"] = {}
        return told

    def caller(self, base: Caller, client: object) -> Caller:
        """Return the caller, with the name that its client gives itself."""
        name = cast("dict[str, Any]", client).get("name") if isinstance(client, dict) else None
        if not isinstance(name, str) or not name:
            return base
        if base is ANYONE:  # the everyday case of a server on this machine
            known = self._local.get(name)
            if known is not None:
                return known
        name = name[:_NAME]
        key = (base.owner, base.profile.name if base.profile is not None else "", name)
        known = self._callers.get(key)
        if known is None or known.claims is not base.claims or known.profile is not base.profile:
            if len(self._callers) >= _CALLERS:
                self._callers.clear()
            known = self._callers[key] = Caller(
                identity=base.identity, scope=base.scope, claims=base.claims, profile=base.profile, client=name
            )
        if base is ANYONE and len(self._local) < _CALLERS:
            self._local[name] = known
        return known

    def profile_of(self, caller: Caller) -> Profile:
        """Return the profile that holds for a caller."""
        return caller.profile or self.yard.profile

    def shown(self, headers: Mapping[str, str]) -> Mapping[str, str]:
        """Return those headers that handlers may see."""
        return {name: headers[name] for name in self._shown if name in headers}

    def wanted_headers(self, name: str, caller: Caller) -> WantedHeaders | None:
        """Return which arguments a tool that exists for the caller wants as headers, too, whichever of its names it is called by."""
        registry = self.yard.registry
        if self._params_version != registry.version:
            specs = registry.visible(EVERYTHING)
            self._wanted = {spec.name: names for spec in specs if (names := param_names(spec.input_schema))}
            self._params_version = registry.version
        if not self._wanted:
            return None
        tool = registry.get(name) or registry.resolve(name)
        wanted = None if tool is None else self._wanted.get(tool.spec.name)
        return wanted if tool is not None and self.profile_of(caller).allows(tool.spec) else None

    def instructions(self, profile: Profile) -> str:
        """Return what a client is told about the yard as a whole."""
        return self.yard.instructions_for(profile)

    def end_listeners(self) -> None:
        """Let those who listen go: they are answered now; what waits for an answer that cannot come is interrupted."""
        self.closing.set()
        self.parking.cancel_all()

    async def finish(self, seconds: float) -> None:
        """Let the calls that came in here finish for so long, then interrupt them, so that each is answered, and begin no more."""
        calls = self.yard.dispatcher.in_flight
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while loop.time() < deadline and any(call.channel.front == self.number for call in calls.values()):  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(_TICK)  # nobody tells when the last is done, and this is once, at the end
        await self.interrupt()

    async def interrupt(self) -> None:
        """Interrupt the calls that came in here and no others, wait until each is answered, and begin no more."""
        await self.yard.dispatcher.close(self.number)

    def close(self) -> None:
        """Tell nobody of changes any more."""
        self.closing.set()
        self.changes.close()
