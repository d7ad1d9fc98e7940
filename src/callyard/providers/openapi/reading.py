"""Reads the files of an API document: JSON, or YAML with JSON's types, within bounds.

Nothing here connects, and nothing knows what OpenAPI is.
"""

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, Final, cast

import msgspec

__all__ = ["DocumentError", "external_references", "parse"]

_MAX_NODES: Final = 5_000_000
_MAX_DEPTH: Final = 500
_REFERENCE: Final = re.compile(rb'"\$ref"\s*:\s*"([^"#\\][^"\\]*)"')
_SHOWN: Final = 200


class DocumentError(Exception):
    """A document cannot be used; the message is one sentence that says why."""


def parse(content: bytes, name: str) -> tuple[dict[str, Any], bool]:
    """Return a file as a JSON object, and whether it was YAML.

    Raises:
        DocumentError: It is neither.
    """
    try:
        decoded = msgspec.json.decode(content.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if content.lstrip()[:1] in (b"{", b"["):
            raise DocumentError(f"'{name}' is not JSON: {_reason(error)}.") from None
    except RecursionError:
        raise _too_deep(name) from None
    else:
        return _as_object(decoded, name), False
    if content.lstrip()[:1] == b"<":
        raise DocumentError(f"'{name}' is a page in HTML or XML, and no API document.")
    return _as_object(_parse_yaml(content, name), name), True


def _as_object(decoded: object, name: str) -> dict[str, Any]:
    if not isinstance(decoded, dict):
        raise DocumentError(f"'{name}' is neither JSON nor YAML of an object.")
    return cast("dict[str, Any]", decoded)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).removesuffix(".")[:_SHOWN]


def _too_deep(name: str) -> DocumentError:
    return DocumentError(f"'{name}' is nested too deeply.")


_TAG: Final = "tag:yaml.org,2002:"
_YAML_TYPES: Final = (
    (f"{_TAG}bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    (f"{_TAG}null", r"^(?:~|null|Null|NULL|)$", ("~", "n", "N", "")),
    (f"{_TAG}int", r"^[-+]?(?:0|[1-9][0-9]*)$", "-+0123456789"),
    (
        f"{_TAG}float",
        r"^[-+]?(?:(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)$",
        "-+.0123456789",
    ),
)
"""What a plain scalar may be besides a text: the types of YAML 1.2's core schema that JSON has, too."""


def _parse_yaml(content: bytes, name: str) -> object:
    loader = _yaml_loader()
    try:
        text = content.decode("utf-8-sig")
        made = loader(text)
        try:
            node = made.get_single_data()
        finally:
            made.dispose()
    except UnicodeDecodeError:
        raise DocumentError(f"'{name}' is not UTF-8.") from None
    except RecursionError:
        raise _too_deep(name) from None
    except Exception as error:  # noqa: BLE001 - the library raises errors of its own and, for odd values, many others
        raise DocumentError(f"'{name}' is neither JSON nor YAML: {_reason(error)}.") from None
    _check_size(node, name)
    return node


def _yaml_loader() -> Any:
    """Return a loader with JSON's types: keys stay as they are written, and no value becomes an object.

    Raises:
        DocumentError: The package that it needs is not installed.
    """
    try:
        import yaml  # noqa: PLC0415 - only for documents in YAML
    except ModuleNotFoundError:
        sentence = "Documents in YAML need a package that is not installed: run pip install 'callyard[openapi]'."
        raise DocumentError(sentence) from None
    library = cast("Any", yaml)

    return _loader_class(getattr(library, "CSafeLoader", library.SafeLoader))


@cache
def _loader_class(base: Any) -> Any:
    """Return a loader class that knows JSON's types only."""
    loader: Any = type("Loader", (base,), {"yaml_implicit_resolvers": {}, "construct_mapping": _construct_mapping})
    for tag, pattern, first in _YAML_TYPES:
        loader.add_implicit_resolver(tag, re.compile(pattern), list(first))
    loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])
    for kind, construct in (("int", int), ("float", float), ("timestamp", str), ("binary", str)):
        loader.add_constructor(f"{_TAG}{kind}", partial(_construct_scalar, construct))
    return loader


def _construct_scalar(kind: Callable[[str], object], loader: Any, node: Any) -> object:
    return kind(str(loader.construct_scalar(node)))


def _construct_mapping(loader: Any, node: Any, deep: bool = False) -> dict[str, Any]:  # noqa: FBT001, FBT002 - the library's signature
    """Return a mapping whose keys are as they are written."""
    loader.flatten_mapping(node)
    pairs = cast("list[tuple[Any, Any]]", node.value)
    return {
        key.value if isinstance(key.value, str) else str(loader.construct_object(key, deep=True)): (
            loader.construct_object(value, deep=deep)
        )
        for key, value in pairs
    }


def _check_size(node: object, name: str) -> None:
    """Check how large a document is with every alias written out.

    Raises:
        DocumentError: It is too large, or contains itself.
    """
    sizes: dict[int, int] = {}

    def size_of(value: object, depth: int) -> int:
        if not isinstance(value, dict | list):
            return 1
        inner = cast("dict[str, object] | list[object]", value)
        known = sizes.get(id(inner))
        if known is not None:
            if known < 0:
                raise DocumentError(f"'{name}' contains itself by an alias.")
            return known
        if depth > _MAX_DEPTH:
            raise _too_deep(name)
        sizes[id(inner)] = -1
        parts = inner.values() if isinstance(inner, dict) else inner
        total = 1 + sum(size_of(part, depth + 1) for part in parts)
        if total > _MAX_NODES:
            raise DocumentError(f"'{name}' has more than {_MAX_NODES} values when its aliases are written out.")
        sizes[id(inner)] = total
        return total

    size_of(node, 0)


def external_references(content: bytes) -> set[str]:
    """Return the other files that a file in JSON refers to, without fragments."""
    found = {match.decode("utf-8", "replace").partition("#")[0] for match in _REFERENCE.findall(content)}
    return {reference for reference in found if reference and "\0" not in reference}
