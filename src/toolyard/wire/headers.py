"""Headers: what a request of the newer era says twice, in its body and in HTTP, must be the same.

Intermediaries route by the headers, so a request that contradicts itself could be let in as one thing and run as another.
"""

import base64
import re
from collections.abc import Mapping
from typing import Any, Final, cast

from toolyard.wire.messages import HEADER_MISMATCH, Fault

__all__ = [
    "PARAM",
    "ROUTING",
    "check_params",
    "check_routing",
    "decode_value",
    "encode_value",
    "is_misnamed",
    "param_headers",
    "param_names",
]

PARAM: Final = b"mcp-param-"
ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})

_NAMED: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_SEALED: Final = re.compile(r"=\?base64\?(.*)\?=")
_PLAIN: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_DECIMAL: Final = re.compile(r"(-?[0-9]+)(?:\.(0+))?")
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"string": (str,), "integer": (int, float), "boolean": (bool,)}
_HANDLE: Final = frozenset({"$ref", "path"})
_DEPTH: Final = 32


def check_routing(headers: Mapping[bytes, bytes], method: str, version: str, name: str | None) -> None:
    """Check that the headers name the version, the method and the thing that the body names.

    Raises:
        Fault: They do not.
    """
    if (
        headers.get(b"mcp-name") == (b"" if name is None else name.encode("utf-8", "replace"))
        and headers.get(b"mcp-method") == method.encode()
        and headers.get(b"mcp-protocol-version") == version.encode()
    ):
        return  # the everyday case, word for word
    if headers.get(b"mcp-protocol-version", b"").strip() != version.encode():
        raise Fault(HEADER_MISMATCH, "The header 'MCP-Protocol-Version' is not the version in the body.")
    if headers.get(b"mcp-method", b"").strip() != method.encode():
        raise Fault(HEADER_MISMATCH, "The header 'Mcp-Method' is not the method in the body.")
    if method in _NAMED and name is not None:
        given = headers.get(b"mcp-name", b"").strip()
        if given != name.encode("utf-8", "replace") and decode_value(given.decode("latin-1")) != name:
            raise Fault(HEADER_MISMATCH, f"The header 'Mcp-Name' is not the '{_NAMED[method]}' in the body.")


def encode_value(value: str) -> str:
    """Return a value as a header can carry it: as it is, or wrapped where it would not survive."""
    if _PLAIN.fullmatch(value) and not _SEALED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """Return what a header's value stands for, or nothing if it is wrapped wrongly."""
    sealed = _SEALED.fullmatch(value)
    if sealed is None:
        return value
    try:
        raw = base64.b64decode(sealed[1], validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == sealed[1] else None
    except ValueError:  # no base64, no ASCII or no UTF-8
        return None


def param_names(schema: Mapping[str, Any]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return which arguments a tool wants as headers, too: the path of each, its header's last part and its type.

    A tool that says so wrongly (a name that is none, twice, on something that is no plain value) wants none.
    """
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    _collect(schema, (), found)
    names = [name.lower() for name, _ in found.values()]
    good = len(set(names)) == len(names) and all(_TOKEN.fullmatch(name) and kind in _TYPES for name, kind in found.values())
    return found if good else {}


def is_misnamed(schema: Mapping[str, Any]) -> bool:
    """Return whether a tool wants arguments as headers, too, but says so wrongly."""
    found: dict[tuple[str, ...], tuple[str, str]] = {}
    _collect(schema, (), found)
    return bool(found) and not param_names(schema)


def _collect(schema: Mapping[str, Any], path: tuple[str, ...], found: dict[tuple[str, ...], tuple[str, str]]) -> None:
    properties: object = schema.get("properties") if isinstance(cast("object", schema), Mapping) else None  # others list anything
    if not isinstance(properties, dict) or len(path) > _DEPTH:
        return
    for key, inner in cast("dict[str, Any]", properties).items():
        if not isinstance(inner, dict):
            continue
        one = cast("dict[str, Any]", inner)
        if "x-mcp-header" in one:
            found[*path, key] = (str(one["x-mcp-header"]), str(one.get("type")))
        _collect(one, (*path, key), found)


def param_headers(names: Mapping[tuple[str, ...], tuple[str, str]], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that a client must send with these arguments."""
    written = {f"Mcp-Param-{name}": _written(_at(arguments, path)) for path, (name, _) in names.items()}
    return {header: encode_value(value) for header, value in written.items() if value is not None}


def check_params(names: Mapping[tuple[str, ...], tuple[str, str]], arguments: object, headers: Mapping[bytes, bytes]) -> None:
    """Check that the arguments which a tool wants as headers, too, are the same there.

    Raises:
        Fault: One is not, is in one place alone, or is not written out, so that what the tool gets could be something else.
    """
    for path, (name, kind) in names.items():
        header, argument = f"Mcp-Param-{name}", ".".join(path)
        given = headers.get(header.lower().encode())
        if not _is_written_out(arguments, path, _TYPES[kind]):
            raise Fault(HEADER_MISMATCH, f"The argument '{argument}' goes with the header '{header}', so it must be as its schema says.")
        wanted = _written(_at(arguments, path))
        if wanted is None and given is None:
            continue
        if wanted is None or given is None:
            lacking = "argument" if wanted is None else "header"
            raise Fault(HEADER_MISMATCH, f"The header '{header}' goes with the argument '{argument}'; the {lacking} is missing.")
        said = decode_value(given.strip().decode("latin-1"))
        if said is None or not _same(said, wanted, kind):
            raise Fault(HEADER_MISMATCH, f"The header '{header}' is not the argument '{argument}'.")


def _at(arguments: object, path: tuple[str, ...]) -> object:
    for key in path:
        if not isinstance(arguments, dict):
            return None
        arguments = cast("dict[str, object]", arguments).get(key)
    return arguments


def _is_written_out(arguments: object, path: tuple[str, ...], types: tuple[type, ...]) -> bool:
    """Return whether an argument is left out or of its own type, in objects that are no handles: nothing will be put in its place."""
    for key in path:
        if arguments is None:
            return True
        if not isinstance(arguments, dict):
            return False
        pairs = cast("dict[str, object]", arguments)
        if "$ref" in pairs and pairs.keys() <= _HANDLE:
            return False
        arguments = pairs.get(key)
    return arguments is None or type(arguments) in types


def _written(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def _same(said: str, wanted: str, kind: str) -> bool:
    number = _DECIMAL.fullmatch(said) if kind == "integer" else None
    return (number[1] if number else said) == wanted
