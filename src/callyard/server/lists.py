"""The lists of tools, resources, templates and prompts, encoded once for each profile and version."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Literal

import msgspec

from callyard._internal.signed_tokens import Cursors, SignatureError, Signer
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE
from callyard.model.envelope import fingerprint
from callyard.model.profile import Profile
from callyard.model.spec import ToolSpec
from callyard.server.client_schemas import Provider, fitted, providers_for
from callyard.wire.messages import INVALID_PARAMS, Fault
from callyard.wire.results import ResultEncoder, prompt_item, resource_item, tool_item
from callyard.wire.versions import LATEST, Version
from callyard.yard import Yard

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
    "templates": resource_item,
    "prompts": prompt_item,
}
_PURPOSE: Final = "page of a list"
_MAX_CACHED: Final = 1024


class _CachedList(msgspec.Struct):
    """One list for one version; each page is encoded when it is first requested."""

    fingerprint: str
    specs: Sequence[Any]
    pages: dict[int, bytes]


class Lists:
    """The lists of a yard."""

    def __init__(self, yard: Yard, serving: Serving, signer: Signer) -> None:
        self._yard = yard
        self._serving = serving
        self._cursors = Cursors(signer, _PURPOSE)
        self._cache: dict[tuple[Kind, Profile, str, tuple[Provider, ...]], _CachedList] = {}
        self._fingerprints: dict[tuple[Kind, Profile], tuple[int, str]] = {}
        self._sent: dict[tuple[Kind, Profile], set[str]] | None = None
        """Fingerprints of the lists that clients got while a notification is pending."""
        self._specs: dict[Kind, Callable[[Profile], Sequence[Any]]] = {
            "tools": yard.registry.list,
            "resources": yard.registry.list_resources,
            "templates": yard.registry.list_templates,
            "prompts": yard.registry.list_prompts,
        }

    def page(
        self, kind: Kind, profile: Profile, encoder: ResultEncoder, cursor: str | None, *, client: str = ""
    ) -> bytes:
        """Return one page as an encoded result, with schemas that fit the client of this name.

        Raises:
            Fault: The cursor is forged, or of a list that has changed since.
        """
        providers = providers_for(client) if kind == "tools" and client else ()
        cached = self._list(kind, profile, encoder.version, providers)
        if self._sent is not None:
            self._sent.setdefault((kind, profile), set()).add(cached.fingerprint)
        start = 0 if cursor is None else self._start(kind, cached, cursor)
        if start not in cached.pages:
            end = start + self._serving.page_size
            items = [self._item(kind, spec, encoder.version, profile, providers) for spec in cached.specs[start:end]]
            following = self._cursors.sign(self._bound_to(kind, cached), end) if end < len(cached.specs) else None
            cached.pages[start] = encoder.page(_KEYS[kind], items, following)
        return cached.pages[start]

    def fingerprint(self, kind: Kind, profile: Profile) -> str:
        """Return a hash that changes exactly when the list does."""
        version = self._yard.registry.version
        cached = self._fingerprints.get((kind, profile))
        if cached is None or cached[0] != version:
            # No older version shows more than the latest.
            items = (msgspec.Raw(self._item(kind, spec, LATEST, profile)) for spec in self._specs[kind](profile))
            if len(self._fingerprints) > _MAX_CACHED:
                self._fingerprints.clear()
            cached = self._fingerprints[kind, profile] = (version, fingerprint(*items)[:24])
        return cached[1]

    def was_sent(self, kind: Kind, profile: Profile, *, other_than: str) -> bool:
        """Return whether a client got another state of the list since `note_sent`."""
        return bool((self._sent or {}).get((kind, profile), set[str]()) - {other_than})

    def note_sent(self, *, enabled: bool) -> None:
        """Note from now on which lists clients get, or forget it."""
        self._sent = (self._sent or {}) if enabled else None

    def any(self, kind: Kind, profile: Profile) -> bool:
        """Return whether the list has an item."""
        return bool(self._specs[kind](profile))

    def _list(self, kind: Kind, profile: Profile, version: Version, providers: tuple[Provider, ...]) -> _CachedList:
        current = self.fingerprint(kind, profile)
        key = (kind, profile, version.name, providers)
        cached = self._cache.get(key)
        if cached is None or cached.fingerprint != current:
            if len(self._cache) > _MAX_CACHED:
                self._cache.clear()
            cached = self._cache[key] = _CachedList(current, self._specs[kind](profile), {})
        return cached

    def shows_schema(self, spec: ToolSpec, profile: Profile) -> bool:
        """Return whether the list of a profile has the output schema of a tool."""
        is_plain = profile.shape == "plain"
        if not is_plain and spec.shape != "plain":
            return self._serving.output_schemas  # the schema of the envelope allows for every answer
        return (is_plain or self._serving.output_schemas) and not self._may_answer_otherwise(spec, profile)

    def _may_answer_otherwise(self, spec: ToolSpec, profile: Profile) -> bool:
        """Return whether a plain success may be something else than the tool's schema says, which clients would refuse.

        That is a call that is held for a person or becomes a job, and the result of a tool that is not checked against
        its schema.
        """
        gate = self._yard.gate
        asks = self._serving.ask_before_destroy
        is_asked = gate is not None and gate.needs_approval(spec, profile.name, ANYONE, asks=asks) is not False
        if is_asked or spec.confirmation or spec.job or self._yard.dispatcher.admission.policies:
            return True
        tool = self._yard.registry.get(spec.name)
        return spec.shape != "plain" and (tool is None or tool.fits_output is None)

    def _item(
        self, kind: Kind, spec: Any, version: Version, profile: Profile, providers: tuple[Provider, ...] = ()
    ) -> bytes:
        if kind != "tools":
            return _ITEMS[kind](spec, version)
        fit = partial(fitted, providers=providers) if providers else None
        shown = self.shows_schema(spec, profile)
        return tool_item(spec, version, schemas=shown, plain=profile.shape == "plain", fit=fit)

    def _start(self, kind: Kind, cached: _CachedList, cursor: str) -> int:
        try:
            start = self._cursors.verify(self._bound_to(kind, cached), cursor)
        except SignatureError:
            message = "The cursor was not issued by this server. Start from the first page."
            raise Fault(INVALID_PARAMS, message) from None
        if start is None:
            message = "The cursor is of a list that has changed since, or of another one. Start from the first page."
            raise Fault(INVALID_PARAMS, message)
        return start

    def _bound_to(self, kind: Kind, cached: _CachedList) -> str:
        """Return what a cursor is valid for: one state of one list, in pages of one size."""
        return f"{kind} {cached.fingerprint} {self._serving.page_size}"
