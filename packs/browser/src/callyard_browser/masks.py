"""Values that no answer may hold: of password fields and of secrets, masked in everything that leaves the pack."""

import html
import json
from collections.abc import Iterable
from typing import Any, Final, cast
from urllib.parse import quote, quote_plus

__all__ = ["MASK", "WATCH", "Masks"]

MASK: Final = "***"
_SHORTEST: Final = 4
"""A shorter value is masked where it is the whole text: it is found in every other word."""
_MOST: Final = 2000
_LONGEST: Final = 4000

WATCH: Final = """(() => {
  const push = window.__callyardHeld;
  const known = new Set();
  const note = (field) => {
    for (const value of [field.value, field.defaultValue])
      if (value && !known.has(value) && typeof push === 'function') { known.add(value); push(value); }
  };
  const isPassword = (node) => node instanceof HTMLInputElement && node.type === 'password';
  const noteAll = (root) => {
    if (isPassword(root)) note(root);
    if (root.querySelectorAll) for (const field of root.querySelectorAll('input')) if (isPassword(field)) note(field);
  };
  const observer = new MutationObserver((records) => {
    for (const record of records) {
      if (record.type === 'attributes' && record.target instanceof HTMLInputElement)
        if (isPassword(record.target) || (record.oldValue || '').toLowerCase() === 'password') note(record.target);
      for (const node of record.addedNodes) noteAll(node);
    }
  });
  const watched = { subtree: true, childList: true, attributes: true, attributeOldValue: true };
  const watch = (root) => observer.observe(root, { ...watched, attributeFilter: ['type', 'value'] });
  watch(document);
  const attach = Element.prototype.attachShadow;
  Element.prototype.attachShadow = function (options) {
    const root = attach.call(this, options);
    watch(root);
    return root;
  };
  for (const kind of ['input', 'change', 'focusin', 'focusout', 'keydown'])
    window.addEventListener(kind, (event) => {
      const field = event.composedPath()[0];
      if (isPassword(field)) note(field);
    }, true);
  for (const kind of ['click', 'submit', 'pagehide']) window.addEventListener(kind, () => noteAll(document), true);
})()"""
"""Runs in every page before its own scripts, and reports each value that a password field holds."""


class Masks:
    """The values of one browser session; none is ever forgotten, because a page could make that happen."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._values = {secret for secret in secrets if secret}
        self._variants = _variants(self._values)
        self._is_full = False

    def hold(self, values: Iterable[object]) -> None:
        """Mask values from now on; a page that had too many of them gets every text masked."""
        fresh = {value for value in values if isinstance(value, str) and 0 < len(value) <= _LONGEST} - self._values
        if fresh and not self._is_full:
            self._values |= fresh
            self._variants = _variants(self._values)
            self._is_full = len(self._values) > _MOST

    def masked(self, value: Any) -> Any:
        """Return a value of JSON with all of them masked."""
        if self._is_full:
            return _all_masked(value)
        return _masked(value, self._values, self._variants) if self._values else value


def _variants(values: Iterable[str]) -> list[str]:
    """Return the ways in which a long value is written in texts, addresses, forms, HTML and JSON; longest first."""
    written: set[str] = set()
    for value in values:
        if len(value) >= _SHORTEST:
            spaced = " ".join(value.split())
            for plain in (value, spaced):
                quoted = json.dumps(plain)[1:-1], json.dumps(plain, ensure_ascii=False)[1:-1]
                written |= {plain, quote(plain), quote(plain, safe=""), quote_plus(plain), html.escape(plain), *quoted}
                written |= {quote(plain, safe="").lower(), html.escape(plain, quote=False)}
    return sorted((text for text in written if len(text) >= _SHORTEST), key=len, reverse=True)


def _all_masked(value: Any) -> Any:
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {key: _all_masked(item) for key, item in items}
    if isinstance(value, list | tuple):
        return [_all_masked(item) for item in cast("list[Any]", value)]
    return MASK if isinstance(value, str) else value


def _masked(value: Any, values: set[str], variants: list[str]) -> Any:
    if isinstance(value, str):
        if value in values:
            return MASK
        for text in variants:
            if text in value:
                value = value.replace(text, MASK)
        return value
    if isinstance(value, dict):
        items = cast("dict[str, Any]", value).items()
        return {_masked(key, values, variants): _masked(item, values, variants) for key, item in items}
    if isinstance(value, list | tuple):
        return [_masked(item, values, variants) for item in cast("list[Any]", value)]
    return value
