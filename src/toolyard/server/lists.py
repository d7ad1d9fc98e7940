"""Lists: what clients are shown, encoded once for each profile and version and kept until it changes."""

from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import msgspec

from toolyard._internal.signed_tokens import Cursors, SignatureError, Signer
from toolyard.config.settings import Serving
from toolyard.model.envelope import fingerprint
from toolyard.model.profile import Profile
from toolyard.wire.messages import INVALID_PARAMS, Fault
from toolyard.wire.results import ResultEncoder, prompt_item, resource_item, template_item, tool_item
from toolyard.wire.versions import LATEST, Version
from toolyard.yard import Yard

__all__ = ["Kind", "Lists"]

Kind = Literal["tools", "resources", "templates", "prompts"]

_KEYS: Final[dict[Kind, str]] = {
    "tools": "tools",
    "resources": "resources",
    "templates": "resourceTemplates",
    "prompts": "prompts",
}
_ITEMS: Final[dict[Kind, Callable[[Any, Version], bytes]]] = {
    "resources": resource_item,
    "templates": template_item,
    "prompts": prompt_item,
}
_PURPOSE: Final = "page of a list"
_REMEMBERED: Final = 1024


class _Encoded(msgspec.Struct):
    """One list for one version: how it looked and its pages, each made when first wanted."""

    registry_version: int
    fingerprint: str
    specs: Sequence[Any]
    pages: dict[int, bytes]


class Lists:
    """Every list of a yard."""

    def __init__(self, yard: Yard, serving: Serving, seal: Signer) -> None:
        self._yard = yard
        self._serving = serving
        self._cursors = Cursors(seal, _PURPOSE)
        self._kept: dict[tuple[Kind, Profile, str], _Encoded] = {}
        self._prints: dict[tuple[Kind, Profile], tuple[int, str]] = {}
        self._specs: dict[Kind, Callable[[Profile], Sequence[Any]]] = {
            "tools": yard.registry.list,
            "resources": yard.registry.list_resources,
            "templates": yard.registry.list_templates,
            "prompts": yard.registry.list_prompts,
        }

    def page(self, kind: Kind, profile: Profile, answers: ResultEncoder, cursor: str | None) -> bytes:
        """Return one page as a whole result.

        Raises:
            Fault: The cursor is none of ours, or of a list that has changed since.
        """
        kept = self._list(kind, profile, answers.version)
        start = 0 if cursor is None else self._start(kind, kept, cursor)
        page = kept.pages.get(start)
        if page is None:
            page = kept.pages[start] = self._encode(kind, kept, answers, start)
        return page

    def fingerprint(self, kind: Kind, profile: Profile) -> str:
        """Return what changes exactly when a list does."""
        version = self._yard.registry.version
        known = self._prints.get((kind, profile))
        if known is None or known[0] != version:
            items = (msgspec.Raw(self._item(kind, spec, LATEST)) for spec in self._specs[kind](profile))  # no older version shows more
            if len(self._prints) > _REMEMBERED:
                self._prints.clear()
            known = self._prints[kind, profile] = (version, fingerprint(*items)[:24])
        return known[1]

    def any(self, kind: Kind, profile: Profile) -> bool:
        """Return whether there is anything to show."""
        return bool(self._specs[kind](profile))

    def _list(self, kind: Kind, profile: Profile, version: Version) -> _Encoded:
        registry_version = self._yard.registry.version
        kept = self._kept.get((kind, profile, version.name))
        if kept is not None and kept.registry_version == registry_version:
            return kept
        current = self.fingerprint(kind, profile)
        if kept is not None and kept.fingerprint == current:
            kept.registry_version = registry_version
            return kept
        if len(self._kept) > _REMEMBERED:
            self._kept.clear()
        kept = _Encoded(registry_version, current, self._specs[kind](profile), {})
        self._kept[kind, profile, version.name] = kept
        return kept

    def _encode(self, kind: Kind, kept: _Encoded, answers: ResultEncoder, start: int) -> bytes:
        end = start + self._serving.page_size
        items = [self._item(kind, spec, answers.version) for spec in kept.specs[start:end]]
        more = end < len(kept.specs)
        cursor = self._cursors.sign(self._bound_to(kind, kept), end) if more else None
        return answers.listed(_KEYS[kind], items, cursor)

    def _item(self, kind: Kind, spec: Any, version: Version) -> bytes:
        """Return one thing as a list of a version shows it."""
        return tool_item(spec, version, schemas=self._serving.output_schemas) if kind == "tools" else _ITEMS[kind](spec, version)

    def _start(self, kind: Kind, kept: _Encoded, cursor: str) -> int:
        try:
            start = self._cursors.verify(self._bound_to(kind, kept), cursor)
        except SignatureError:
            raise Fault(INVALID_PARAMS, "The cursor is none that was given out here.") from None
        if start is None:
            raise Fault(INVALID_PARAMS, "The cursor is of a list that has changed since, or of another one. Start from the first page.")
        return start

    def _bound_to(self, kind: Kind, kept: _Encoded) -> str:
        """Return what a cursor is valid for: one state of one list, in pages of one size."""
        return f"{kind} {kept.fingerprint} {self._serving.page_size}"
