"""Naming: what the things of an upstream are called here, and back.

A name depends on the upstream and the thing alone, so it never changes because another one joined.
"""

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final, cast

__all__ = ["foreign_uri", "name_all", "our_uri", "with_our_uris"]

_OUTSIDE: Final = re.compile(r"[^A-Za-z0-9_-]")
_TAIL: Final = 6


def name_all(prefix: str, own: Sequence[str], *, longest: int) -> dict[str, str]:
    """Return what each name becomes; one that was cut, or that is no longer the only one, gets a tail made of what it was."""
    wanted = {name: _joined(prefix, _OUTSIDE.sub("_", name)) for name in own}
    often = Counter(wanted.values())
    named: dict[str, str] = {}
    for name, published in wanted.items():
        changed = _joined(prefix, name) != published
        if len(published) > longest or (changed and often[published] > 1) or not published:
            tail = sha256(name.encode("utf-8", "replace")).hexdigest()[:_TAIL]
            published = f"{published[: longest - _TAIL - 1]}_{tail}"  # noqa: PLW2901 - the same name, made to fit
        named[name] = published
    return named


def _joined(prefix: str, name: str) -> str:
    return f"{prefix}__{name}" if prefix else name


def our_uri(prefix: str, uri: str) -> str:
    """Return the URI that an upstream's resource has here: its scheme says whose it is."""
    return f"{_scheme(prefix)}+{uri}" if prefix else uri


def foreign_uri(prefix: str, uri: str) -> str:
    """Return the URI that the upstream knows a resource by."""
    return uri.removeprefix(f"{_scheme(prefix)}+") if prefix else uri


def _scheme(prefix: str) -> str:
    """Return a prefix as a scheme may have it: underscores are no part of one, and dots no part of a prefix."""
    scheme = _OUTSIDE.sub("-", prefix).replace("_", ".")
    return scheme if scheme[:1].isalpha() else f"x{scheme}"


def with_our_uris(prefix: str, told: Any) -> Any:
    """Return what an upstream says with every URI of a resource in it made one of ours."""
    if isinstance(told, list):
        return [with_our_uris(prefix, part) for part in cast("list[Any]", told)]
    if not isinstance(told, dict):
        return told
    said = cast("dict[str, Any]", told)
    changed = {key: with_our_uris(prefix, said[key]) for key in ("content", "contents", "resource", "messages") if key in said}
    uri = said.get("uri")
    return {**said, **changed, **({"uri": our_uri(prefix, uri)} if isinstance(uri, str) else {})}
