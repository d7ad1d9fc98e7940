"""The catalogue: the tools of a yard as metatools look at them, with an index that is made when somebody first searches."""

import asyncio
import os
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from toolyard._internal.signed_tokens import SignatureError, Signer
from toolyard.dispatch.registry import Change, Registry
from toolyard.model.envelope import encode_sorted
from toolyard.model.errors import ToolError, shortened
from toolyard.model.names import closest_name
from toolyard.model.profile import EVERYTHING, METATOOLS, UNLISTED, Profile
from toolyard.model.spec import Operation, ToolSpec
from toolyard.search.settings import SearchSettings, read_environment

if TYPE_CHECKING:
    from toolyard.search import Found, Index

__all__ = ["OTHER_NAME", "Catalogue", "Cursors"]


OTHER_NAME: Final = "other_name"
"""The tag of a metatool that is another under a name that agents know from elsewhere."""
_PROFILES: Final = 256
_DIGITS: Final = 24
_AT_ONCE: Final = 16
"""Tools that are read before others get their turn: about two thousandths of a second of work."""
_DIGESTS_AT_ONCE: Final = 256
_NAMED: Final = 8


class Catalogue:
    """The tools of one yard, to be searched and paged through."""

    def __init__(self, registry: Registry, settings: SearchSettings) -> None:
        self.registry = registry
        self.settings = settings
        self._digests: dict[str, tuple[ToolSpec, bytes]] = {}
        self._prints: dict[Profile, tuple[int, str]] = {}
        self._stop: Callable[[], None] = _nothing
        self._building: asyncio.Task[Index] | None = None

    def open(self) -> None:
        """Settle how tools are found, by what the environment says and else as was given.

        Raises:
            ValueError: It cannot be had.
        """
        self.settings = read_environment(os.environ, self.settings)
        if self.settings.strategy != SearchSettings().strategy:  # the usual one is always there, and need not be loaded to know that
            _make_index(self.settings)

    def close(self) -> None:
        """Watch the registry no more, and forget the index."""
        self._stop()
        self._stop = _nothing
        if self._building is not None:
            self._building.cancel()
            self._building = None

    def ranking(self) -> str:
        """Return what changes exactly when the settings do by which tools are ranked."""
        return sha256(encode_sorted(self.settings)).hexdigest()[:_DIGITS]

    async def search(
        self, query: str, profile: Profile, *, namespace: str | None, operation: Operation | None, offset: int, limit: int
    ) -> "Found":
        """Return the tools that fit best, of those that exist for the profile."""
        index = await self._index()
        return index.search(query, allows=profile.allows, namespace=namespace, operation=operation, offset=offset, limit=limit)

    async def _index(self) -> "Index":
        """Return the index, which whoever searches first begins to make and all who come meanwhile wait for."""
        if self._building is None or (self._building.done() and self._building.exception() is not None):
            self._building = asyncio.create_task(self._build())
        return await asyncio.shield(self._building)

    async def _build(self) -> "Index":
        """Make the index a few tools at a time, so that other calls are answered in between; what changes meanwhile is followed."""
        index = await asyncio.to_thread(_make_index, self.settings)
        self._stop()
        self._stop = self.registry.watch(lambda change: self._follow(index, change))
        specs = self.registry.visible(EVERYTHING)
        for start in range(0, len(specs), _AT_ONCE):
            for spec in specs[start : start + _AT_ONCE]:
                tool = self.registry.named(spec.name)
                if tool is not None and tool.spec is spec and _is_found(spec):  # else it changed, and was followed
                    index.add(spec)
            index.prepare()
            await asyncio.sleep(0)  # others have their turn
        return index

    def tools(self, profile: Profile, *, namespace: str | None = None, operation: Operation | None = None) -> Sequence[ToolSpec]:
        """Return the tools of the profile by name; metatools only where their namespace is asked for."""
        return [
            spec
            for spec in self.registry.visible(profile)
            if (OTHER_NAME not in spec.tags if namespace == METATOOLS else spec.source != METATOOLS)
            and (namespace is None or spec.source == namespace)
            and (operation is None or spec.operation == operation)
        ]

    def check_namespace(self, namespace: str | None, profile: Profile) -> None:
        """Check that the profile has tools of a namespace, if one is named.

        Raises:
            ToolError: `invalid_input` if it has not.
        """
        if namespace is None or namespace == METATOOLS:
            return
        known = self.namespaces(profile)
        if namespace in known:
            return
        meant = closest_name(namespace, known)
        message = f"There is no namespace '{shortened(namespace)}'." + (f" Did you mean '{meant}'?" if meant else _some(list(known)))
        issue = {"field": "namespace", "code": "unknown_namespace", "message": message, "did_you_mean": meant}
        raise ToolError("invalid_input", message, next_actions=self.available_actions(profile, "list_namespaces()"), issues=[issue])

    def available_actions(self, profile: Profile, *actions: str) -> list[str]:
        """Return those of the actions whose metatools there are for the profile, so that nobody is sent to one that is not."""
        return self.registry.available_actions(profile, *actions)

    def namespaces(self, profile: Profile) -> dict[str, int]:
        """Return how many tools of the profile each namespace has, by name, without the metatools."""
        counts: dict[str, int] = {}
        for spec in self.tools(profile):
            counts[spec.source] = counts.get(spec.source, 0) + 1
        return dict(sorted(counts.items()))

    async def fingerprint(self, profile: Profile) -> str:
        """Return what changes exactly when the tools of the profile do, and is the same in every process that has them."""
        version = self.registry.versions["tool"]
        known = self._prints.get(profile)
        if known is None or known[0] != version:
            digest = sha256()
            for number, spec in enumerate(self.registry.visible(profile), start=1):
                digest.update(self._digest(spec))
                if number % _DIGESTS_AT_ONCE == 0:
                    await asyncio.sleep(0)  # others have their turn
            if len(self._prints) >= _PROFILES:
                self._prints.clear()
            known = self._prints[profile] = (version, digest.hexdigest()[:_DIGITS])
        return known[1]

    def _digest(self, spec: ToolSpec) -> bytes:
        known = self._digests.get(spec.name)
        if known is None or known[0] is not spec:
            if len(self._digests) > 2 * len(self.registry):
                self._digests.clear()
            known = self._digests[spec.name] = (spec, sha256(encode_sorted(spec)).digest())
        return known[1]

    def _follow(self, index: "Index", change: Change) -> None:
        if change.what != "tool":
            return
        tool = None if change.kind == "withdrawn" else self.registry.named(change.name)
        if tool is not None and _is_found(tool.spec):
            index.add(tool.spec)
        else:
            index.remove(change.name)


def _make_index(settings: SearchSettings) -> "Index":
    """Return an empty index that is ready for its first tool, having loaded what that takes."""
    from toolyard.search import make_index  # noqa: PLC0415 - most yards are never searched, and it takes a while to load

    index = make_index(settings)
    index.prepare()
    return index


def _some(namespaces: Sequence[str]) -> str:
    """Return a sentence that names the first of the namespaces, if there are any."""
    if not namespaces:
        return ""
    more = len(namespaces) - _NAMED
    named = ", ".join(f"'{name}'" for name in namespaces[:_NAMED])
    return f" Known: {named} and {more} more." if more > 0 else f" Known: {named}."


def _nothing() -> None:
    """Watch nothing."""


def _is_found(spec: ToolSpec) -> bool:
    """Return whether a search may find it: metatools that lists show need not be found, nor those that are others."""
    return spec.source != METATOOLS or (UNLISTED in spec.tags and OTHER_NAME not in spec.tags)


_PURPOSE: Final = "page of a metatool"
_CURSOR_DIGITS: Final = 16


class Cursors:
    """Makes and reads cursors with one secret."""

    def __init__(self, seal: Signer) -> None:
        self._seal = seal

    def close(self, question: list[Any], end: int) -> str:
        """Return the cursor of the page that follows; the question is everything that decides what is on it."""
        return self._seal.sign(_PURPOSE, [_digest(question), end])

    def open(self, question: list[Any], cursor: str | None, *, again: str) -> int:
        """Return where the page begins; without a cursor it is the first.

        Raises:
            ToolError: `invalid_input` if it is none of ours, of another question, or of tools or a ranking that changed since.
        """
        if cursor is None:
            return 0
        try:
            digest, end = self._seal.verify(_PURPOSE, cursor)
        except SignatureError:
            raise _refusal("unknown_cursor", "The cursor is none that was given out here.", again) from None
        if digest != _digest(question):
            raise _refusal(
                "stale_cursor", "The cursor is of another question, or the tools or how they are ranked have changed since.", again
            )
        return int(end)


def _digest(question: list[Any]) -> str:
    return sha256(encode_sorted(question)).hexdigest()[:_CURSOR_DIGITS]


def _refusal(code: str, message: str, again: str) -> ToolError:
    return ToolError(
        "invalid_input",
        message,
        hint="Start from the first page: call again without 'cursor', and with the same arguments for every page.",
        next_actions=[again],
        issues=[{"field": "cursor", "code": code, "message": message}],
    )
