"""Listings: the tools of an index by name and by namespace, for questions that words cannot answer.

Every strategy has one; it ranks nothing.
"""

from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

import msgspec

from toolyard.spec import ToolSpec

__all__ = ["Allows", "Found", "Hit", "Listing", "page"]

_CLOSEST: Final = 5
_PROBES: Final = 2000

Allows = Callable[[ToolSpec], bool]
"""Whether a tool exists for whoever asks."""


class Hit(msgspec.Struct, frozen=True):
    """One tool that was found, how well it fits, and briefly why."""

    spec: ToolSpec
    score: float
    why: str


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One page of hits; the closest namespaces are named when nothing fits."""

    hits: list[Hit]
    total: int | None = None
    """How many fit in all, where that is known."""
    more: bool = False
    """Whether another page follows."""
    closest: list[str] = []


def page(ordered: Iterable[Hit], *, offset: int, limit: int) -> Found:
    """Return one page of hits that come in their order; the total is known if they end with it."""
    offset, limit = max(offset, 0), max(limit, 0)
    seen = list(islice(ordered, offset + limit + 1))
    more = len(seen) > offset + limit
    return Found(hits=seen[offset : offset + limit], total=None if more else len(seen), more=more)


class Listing:
    """The tools of an index, by name."""

    def __init__(self) -> None:
        self._specs: dict[str, ToolSpec] = {}
        self._lower: dict[str, str] = {}
        self._namespaces: dict[str, dict[str, None]] = {}
        self._names: list[str] | None = None

    def add(self, spec: ToolSpec) -> None:
        """Take a tool in, in place of one of the same name."""
        self.remove(spec.name)
        self._specs[spec.name] = spec
        self._lower[spec.name.lower()] = spec.name
        self._namespaces.setdefault(spec.source, {})[spec.name] = None
        self._names = None

    def remove(self, name: str) -> None:
        """Forget a tool, if it is there."""
        spec = self._specs.pop(name, None)
        if spec is None:
            return
        self._lower.pop(name.lower(), None)
        names = self._namespaces[spec.source]
        del names[name]
        if not names:
            del self._namespaces[spec.source]
        self._names = None

    def named(self, query: str, admits: Allows) -> ToolSpec | None:
        """Return the tool that has the query for its name, whatever its capitals."""
        spec = self._specs.get(self._lower.get(query.strip().lower(), ""))
        return spec if spec is not None and admits(spec) else None

    def by_name(self, query: str, admits: Allows) -> Iterable[Hit]:
        """Return the tools whose names hold the query, all if it is empty, by name."""
        if self._names is None:
            self._names = sorted(self._specs)
        wanted = query.strip().lower()
        why = f"'{wanted}' in name" if wanted else "all tools by name"
        specs = (self._specs[name] for name in self._names if wanted in name.lower())
        return (Hit(spec, 0.0, why) for spec in specs if admits(spec))

    def closest(self, specs: Iterable[tuple[ToolSpec, float]], admits: Allows) -> list[str]:
        """Return the namespaces that have the most of these tools, or else of all; only such as hold something allowed."""
        sums: dict[str, float] = {}
        for spec, score in specs:
            sums[spec.source] = sums.get(spec.source, 0.0) + score
        sums.pop("", None)
        if sums:
            return sorted(sums, key=lambda source: (-sums[source], source))[:_CLOSEST]
        return self._largest(admits)

    def _largest(self, admits: Allows) -> list[str]:
        probes = _PROBES
        found: list[str] = []
        for source in sorted(
            (source for source in self._namespaces if source), key=lambda source: (-len(self._namespaces[source]), source)
        ):
            for name in islice(self._namespaces[source], probes):
                probes -= 1
                if admits(self._specs[name]):
                    found.append(source)
                    break
            if len(found) == _CLOSEST or not probes:
                break
        return found
