"""Output schemas that are learned from the results of tools without one: names and types, never values.

They are shown and never enforced. A field is shown if at least three results had it, if it does not look like a key of data, and if
the caller or at least three identities have received it: results of some callers must not reveal anything to others.

What was learned goes to the store of the yard now and then, if it was given one, never as part of a call.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from callyard.dispatch.call import Call, Caller
from callyard.dispatch.outcome import Outcome
from callyard.model.envelope import Envelope
from callyard.model.spec import ToolSpec
from callyard.state.store import Store, StoreUnavailableError

if TYPE_CHECKING:
    from callyard.metatools.tool_results import ToolResults  # no tool has a result before the first call, and yards open sooner

__all__ = ["LearnedOutputs"]

_FIRST_RESULTS: Final = 50
"""Results of a tool that are all read; after these one in `_INTERVAL`."""
_INTERVAL: Final = 64
_TOOLS: Final = 5000
_PREFIX: Final = "learned_output/"
_STORED_SECONDS: Final = 30 * 24 * 3600.0
_SAVE_S: Final = 60.0


class LearnedOutputs:
    """Learns output schemas from the first results of each tool that declares none, and then from a sample."""

    only_undeclared = True

    def __init__(self) -> None:
        self._tools: dict[str, ToolResults] = {}
        self._stored: dict[str, bytes] = {}
        """What was read from the store and not used yet."""
        self._changed: set[str] = set()
        """The tools that were learned about since they were stored."""

    @asynccontextmanager
    async def kept_in(self, store: Store) -> AsyncGenerator[None]:
        """Read what was learned before, and store it every minute and at the end."""
        task = asyncio.create_task(self._keep(store))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
            await self._save(store)

    async def _keep(self, store: Store) -> None:
        with suppress(StoreUnavailableError):  # logged by the store, here and below
            await self.load(store)
        while True:
            await asyncio.sleep(_SAVE_S)
            await self._save(store)

    async def load(self, store: Store) -> None:
        """Read what was stored; a tool that was learned about since keeps what is known here."""
        after = ""
        while keys := await store.keys(_PREFIX, after=after):
            after = keys[-1]
            for key in keys[: max(_TOOLS - len(self._stored), 0)]:
                self._stored[key.removeprefix(_PREFIX)] = await store.get(key) or b""

    async def _save(self, store: Store) -> None:
        for name in tuple(self._changed):
            self._changed.discard(name)
            results = self._tools.get(name)
            if results is None:
                continue
            try:
                await store.put(_PREFIX + name, results.encode(), ttl=_STORED_SECONDS)
            except StoreUnavailableError:
                self._changed.add(name)
                return

    def _restored(self, spec: ToolSpec) -> "ToolResults | None":
        """Return what was stored about this version of a tool, if anything."""
        from callyard.metatools.tool_results import ToolResults  # noqa: PLC0415 - no tool has a result before the first call

        stored = self._stored.pop(spec.name, None)
        results = None if stored is None else ToolResults.decode(spec, stored)
        return None if results is None else self._add(results)

    def _add(self, results: "ToolResults") -> "ToolResults":
        if len(self._tools) >= _TOOLS:
            del self._tools[next(iter(self._tools))]
        self._tools[results.spec.name] = results
        return results

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:  # noqa: ARG002 - the shape of an observer
        """Learn from the result of a tool."""
        if result.error is None and call.may_have_run:
            self.learn(call.spec, result.data, call.request.caller)

    def learn(self, spec: ToolSpec, data: object, caller: Caller) -> None:
        """Learn from the result of a call; it never raises."""
        results = self._tools.get(spec.name)
        if results is None or results.spec is not spec:
            from callyard.metatools.tool_results import ToolResults  # noqa: PLC0415 - no tool has a result before the first call

            results = self._restored(spec) or self._add(ToolResults(spec))
        results.calls = calls = results.calls + 1
        if calls <= _FIRST_RESULTS or not calls % _INTERVAL:
            results.learn(data, (caller.identity, caller.scope))
            self._changed.add(spec.name)

    def of(self, spec: ToolSpec, caller: Caller) -> dict[str, Any] | None:
        """Return the schema of a tool's results that a caller may see, or None after too few results."""
        results = self._tools.get(spec.name) or self._restored(spec)
        return None if results is None else results.schema((caller.identity, caller.scope))
