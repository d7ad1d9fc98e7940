"""The catalogue: the tools of a yard as metatools search and page through them.

The index is built by the first search, because most yards are never searched.
"""

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import sha256
from itertools import chain, zip_longest
from typing import Any, Final

from callyard._internal.signed_tokens import Cursors, SignatureError, Signer
from callyard.dispatch.registry import Change, Registry
from callyard.metatools.metatool import OTHER_NAME
from callyard.model.envelope import encode_sorted, fingerprint
from callyard.model.errors import ToolError, shortened
from callyard.model.names import closest_name
from callyard.model.profile import EVERYTHING, METATOOLS, UNLISTED, Profile
from callyard.model.spec import Operation, ToolSpec
from callyard.search import Found, FusedHit, Hit, Index, make_index
from callyard.search.settings import SearchSettings, read_environment

__all__ = ["Catalogue", "PageCursors"]

_PROFILES: Final = 256
_DIGITS: Final = 24
_AT_ONCE: Final = 16
"""Tools indexed before other tasks run: about 2 ms of work."""
_DIGESTS_AT_ONCE: Final = 256
_NAMESPACES_SHOWN: Final = 8
_SIBLINGS: Final = 12
_PURPOSE: Final = "page of a metatool"
Order = Callable[[str, Sequence[Hit]], list[Hit]]
"""Returns the hits of a query in another order."""


class Catalogue:
    """The tools of one yard, to be searched and paged through."""

    def __init__(self, registry: Registry, settings: SearchSettings) -> None:
        self.registry = registry
        self.settings = settings
        self._fingerprints: dict[Profile, tuple[int, str]] = {}
        self._stop: Callable[[], None] = lambda: None
        self._building: asyncio.Task[Index] | None = None

    def open(self) -> None:
        """Apply the settings of the environment, and check that the strategy can be loaded.

        Raises:
            ValueError: A setting is invalid, or the strategy is not installed.
        """
        self.settings = read_environment(os.environ, self.settings)
        if self.settings.strategy != SearchSettings().strategy:  # loading the default would slow the start
            _empty_index(self.settings)

    def close(self) -> None:
        """Stop watching the registry, and drop the index."""
        self._stop()
        self._stop = lambda: None
        if self._building is not None:
            self._building.cancel()
            self._building = None

    async def search(
        self,
        query: str,
        profile: Profile,
        *,
        namespace: str | None,
        operation: Operation | None,
        offset: int,
        limit: int,
        order: Order | None = None,
    ) -> Found:
        """Return the tools that fit best, of those that exist for the profile."""
        where: dict[str, Any] = {"namespace": namespace, "operation": operation}
        return (await self._index()).search(
            query, allows=profile.allows, **where, offset=offset, limit=limit, order=order
        )

    async def search_several(
        self,
        queries: Sequence[str],
        profile: Profile,
        *,
        namespace: str | None,
        operation: Operation | None,
        order: Order | None = None,
    ) -> tuple[list[FusedHit], bool]:
        """Return the tools that fit several queries, of those that exist for the profile, and whether these are all."""
        return (await self._index()).search_several(
            queries, allows=profile.allows, namespace=namespace, operation=operation, order=order
        )

    def siblings(
        self, found: Sequence[ToolSpec], shown: int, profile: Profile, *, operation: Operation | None
    ) -> list[str]:
        """Return names of other tools of the sources that the first tools are from, those that were found too first.

        The sources take turns.
        """
        seen = {spec.name for spec in found[:shown]}
        sources = dict.fromkeys(spec.source for spec in found[:shown] if spec.source not in {"", METATOOLS})
        others: dict[str, dict[str, None]] = {source: {} for source in sources}
        for spec in (*found[shown:], *self.tools(profile, operation=operation)):
            if spec.source in others and spec.name not in seen:
                others[spec.source][spec.name] = None
        turns = chain.from_iterable(zip_longest(*others.values()))
        return [name for name in turns if name is not None][:_SIBLINGS]

    async def _index(self) -> Index:
        """Return the index; concurrent searches wait for the same build, and a failed one is tried again."""
        if self._building is None or (self._building.done() and self._building.exception() is not None):
            self._building = asyncio.create_task(self._build())
        return await asyncio.shield(self._building)

    async def _build(self) -> Index:
        """Build the index a few tools at a time, so that other calls run in between."""
        index = await asyncio.to_thread(_empty_index, self.settings)
        self._stop()
        self._stop = self.registry.watch(lambda change: self._apply(change, index))
        specs = self.registry.visible(EVERYTHING)
        for start in range(0, len(specs), _AT_ONCE):
            for spec in specs[start : start + _AT_ONCE]:
                tool = self.registry.get(spec.name)
                # if it is not current, it changed, and '_apply' saw it
                if tool is not None and tool.spec is spec and _is_searchable(spec):
                    index.add(spec)
            index.prepare()
            await asyncio.sleep(0)
        return index

    def _apply(self, change: Change, index: Index) -> None:
        if change.what != "tool":
            return
        tool = None if change.kind == "withdrawn" else self.registry.get(change.name)
        if tool is not None and _is_searchable(tool.spec):
            index.add(tool.spec)
        else:
            index.remove(change.name)

    def tools(
        self, profile: Profile, *, namespace: str | None = None, operation: Operation | None = None
    ) -> Sequence[ToolSpec]:
        """Return the tools of the profile by name; metatools only if their namespace is asked for."""
        return [
            spec
            for spec in self.registry.visible(profile)
            if (OTHER_NAME not in spec.tags if namespace == METATOOLS else spec.source != METATOOLS)
            and (namespace is None or spec.source == namespace)
            and (operation is None or spec.operation == operation)
        ]

    def check_namespace(self, namespace: str | None, profile: Profile) -> None:
        """Check that the profile has tools of a namespace, if there is one to check.

        Raises:
            ToolError: `invalid_input` if it has none.
        """
        if namespace is None or namespace == METATOOLS:
            return
        namespaces = self.namespaces(profile)
        if namespace in namespaces:
            return
        meant = closest_name(namespace, namespaces)
        hint = f" Did you mean '{meant}'?" if meant else _known(list(namespaces))
        message = f"There is no namespace '{shortened(namespace)}'.{hint}"
        issue = {"field": "namespace", "code": "unknown_namespace", "message": message, "did_you_mean": meant}
        actions = self.registry.available_actions(profile, "list_namespaces()")
        raise ToolError("invalid_input", message, next_actions=actions, issues=[issue])

    def namespaces(self, profile: Profile) -> dict[str, int]:
        """Return the number of tools in each namespace of the profile, sorted, without the metatools."""
        return dict(sorted(Counter(spec.source for spec in self.tools(profile)).items()))

    async def fingerprint(self, profile: Profile) -> str:
        """Return a hash that changes when the tools of the profile do; every process computes the same."""
        version = self.registry.versions["tool"]
        cached = self._fingerprints.get(profile)
        if cached is None or cached[0] != version:
            digest = sha256()  # not 'fingerprint': other tasks run in between
            for number, spec in enumerate(self.registry.visible(profile), start=1):
                digest.update(encode_sorted(spec))
                if number % _DIGESTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            if len(self._fingerprints) >= _PROFILES:
                self._fingerprints.clear()
            cached = self._fingerprints[profile] = (version, digest.hexdigest()[:_DIGITS])
        return cached[1]


class PageCursors:
    """Signs the cursors of metatools; a cursor is valid for one question only."""

    def __init__(self, signer: Signer) -> None:
        self._cursors = Cursors(signer, _PURPOSE)

    def sign(self, question: list[Any], offset: int) -> str:
        """Return the cursor of the page at an offset; `question` holds everything that decides its content."""
        return self._cursors.sign(_bound_to(question), offset)

    def verify(self, question: list[Any], cursor: str | None, *, suggestion: str) -> int:
        """Return the offset of a cursor's page; 0 without a cursor.

        Raises:
            ToolError: `invalid_input` if the cursor is not ours, of another question, or outdated; `suggestion` is what
            to do next.
        """
        if cursor is None:
            return 0
        try:
            offset = self._cursors.verify(_bound_to(question), cursor)
        except SignatureError:
            raise _refusal("unknown_cursor", "The cursor is none that was given out here.", suggestion) from None
        if offset is None:
            message = "The cursor is of another question, or the tools or how they are ranked have changed since."
            raise _refusal("stale_cursor", message, suggestion)
        return offset


def _bound_to(question: list[Any]) -> str:
    return fingerprint(question)[:_DIGITS]


def _refusal(code: str, message: str, suggestion: str) -> ToolError:
    return ToolError(
        "invalid_input",
        message,
        hint="Start from the first page: call again without 'cursor', and with the same arguments for every page.",
        next_actions=[suggestion],
        issues=[{"field": "cursor", "code": code, "message": message}],
    )


def _empty_index(settings: SearchSettings) -> Index:
    """Return an empty index, with everything loaded that its first tool needs."""
    index = make_index(settings)
    index.prepare()
    return index


def _known(namespaces: Sequence[str]) -> str:
    """Return a sentence with the first of the namespaces, if there are any."""
    if not namespaces:
        return ""
    more = len(namespaces) - _NAMESPACES_SHOWN
    shown = ", ".join(f"'{name}'" for name in namespaces[:_NAMESPACES_SHOWN])
    return f" Known: {shown} and {more} more." if more > 0 else f" Known: {shown}."


def _is_searchable(spec: ToolSpec) -> bool:
    """Return whether search may find it: metatools only if no list shows them and they are no alias."""
    return spec.source != METATOOLS or (UNLISTED in spec.tags and OTHER_NAME not in spec.tags)
