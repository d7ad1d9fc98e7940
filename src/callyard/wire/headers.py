"""HTTP headers that repeat parts of a stateless request's body: checks that both agree, and encodes them.

Proxies route by the headers, so a request whose headers and body differ could be admitted as one thing and run as
another.
"""

import base64
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, cast

from callyard._internal.converted import as_object
from callyard.wire.messages import HEADER_MISMATCH, Fault

__all__ = [
    "PARAM",
    "ROUTING",
    "check_params",
    "check_routing",
    "decode_value",
    "encode_value",
    "has_invalid_param_headers",
    "param_headers",
    "param_names",
]

PARAM: Final = b"mcp-param-"
ROUTING: Final = frozenset({b"mcp-protocol-version", b"mcp-method", b"mcp-name"})

_NAME_FIELDS: Final = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"} | dict.fromkeys(
    ("tasks/cancel", "tasks/get", "tasks/update"), "taskId"
)
_ENCODED: Final = re.compile(r"=\?base64\?(.*)\?=")
_UNENCODED: Final = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?|")
_HEADER_NAME: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_DECIMAL: Final = r"(-?[0-9]+)(?:\.(0+))?"
_TYPES: Final[Mapping[str, tuple[type, ...]]] = {"string": (str,), "integer": (int, float), "boolean": (bool,)}
_HANDLE_KEYS: Final = frozenset({"$ref", "path"})
_MAX_DEPTH: Final = 32


def check_routing(headers: Mapping[bytes, bytes], method: str, version: str, name: str | None) -> None:
    """Check that the headers have the version, the method and the name or URI of the body.

    Raises:
        Fault: They do not.
    """
    if headers.get(b"mcp-protocol-version", b"").strip() != version.encode():
        raise Fault(HEADER_MISMATCH, "The header 'MCP-Protocol-Version' is not the version in the body.")
    if headers.get(b"mcp-method", b"").strip() != method.encode():
        raise Fault(HEADER_MISMATCH, "The header 'Mcp-Method' is not the method in the body.")
    if method in _NAME_FIELDS and name is not None:
        header = headers.get(b"mcp-name", b"").strip()
        if header != name.encode("utf-8", "replace") and decode_value(header.decode("latin-1")) != name:
            raise Fault(HEADER_MISMATCH, f"The header 'Mcp-Name' is not the '{_NAME_FIELDS[method]}' in the body.")


def encode_value(value: str) -> str:
    """Return a value for a header, in base64 if a header cannot carry it as it is."""
    if _UNENCODED.fullmatch(value) and not _ENCODED.fullmatch(value):
        return value
    return f"=?base64?{base64.b64encode(value.encode()).decode()}?="


def decode_value(value: str) -> str | None:
    """Return the decoded value of a header, or None if its base64 is invalid."""
    encoded = _ENCODED.fullmatch(value)
    if encoded is None:
        return value
    try:
        raw = base64.b64decode(encoded[1], validate=True)
        return raw.decode() if base64.b64encode(raw).decode() == encoded[1] else None
    except ValueError:  # invalid base64, or text that is not ASCII or UTF-8
        return None


def param_names(schema: Mapping[str, Any]) -> dict[tuple[str, ...], tuple[str, str]]:
    """Return the path, the header's last part and the type of each argument that is repeated as a header.

    The result is empty if the declarations are invalid: a bad or repeated header name, or an argument that is not a
    scalar.
    """
    declared = dict(_declared(schema, ()))
    names = [name.lower() for name, _ in declared.values()]
    valid = len(set(names)) == len(names) and all(
        re.fullmatch(_HEADER_NAME, name) and kind in _TYPES for name, kind in declared.values()
    )
    return declared if valid else {}


def has_invalid_param_headers(schema: Mapping[str, Any]) -> bool:
    """Return whether a tool declares headers for arguments, but invalidly."""
    return any(_declared(schema, ())) and not param_names(schema)


def _declared(schema: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], tuple[str, str]]]:
    """Yield the path, the header name and the type of every argument with `x-mcp-header`.

    The schema of an upstream may be anything.
    """
    if len(path) > _MAX_DEPTH:
        return
    for key, argument in as_object(as_object(schema).get("properties")).items():
        if "x-mcp-header" in as_object(argument):
            yield (*path, key), (str(argument["x-mcp-header"]), str(argument.get("type")))
        yield from _declared(argument, (*path, key))


def param_headers(names: Mapping[tuple[str, ...], tuple[str, str]], arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that a client must send with these arguments."""
    values = {f"Mcp-Param-{name}": _to_text(_at(arguments, path)) for path, (name, _) in names.items()}
    return {header: encode_value(value) for header, value in values.items() if value is not None}


def check_params(
    names: Mapping[tuple[str, ...], tuple[str, str]], arguments: object, headers: Mapping[bytes, bytes]
) -> None:
    """Check that the arguments which must be repeated as headers are the same there.

    Raises:
        Fault: One differs, is missing in one place, or is a handle, which would be replaced by another value.
    """
    for path, (name, kind) in names.items():
        header, argument = f"Mcp-Param-{name}", ".".join(path)
        sent = headers.get(header.lower().encode())
        if not _is_literal(arguments, path, _TYPES[kind]):
            message = f"The argument '{argument}' goes with the header '{header}', so it must be as its schema says."
            raise Fault(HEADER_MISMATCH, message)
        expected = _to_text(_at(arguments, path))
        if expected is None and sent is None:
            continue
        if expected is None or sent is None:
            missing = "argument" if expected is None else "header"
            message = f"The header '{header}' goes with the argument '{argument}'; the {missing} is missing."
            raise Fault(HEADER_MISMATCH, message)
        value = decode_value(sent.strip().decode("latin-1"))
        if value is None or not _is_same(value, expected, kind):
            raise Fault(HEADER_MISMATCH, f"The header '{header}' is not the argument '{argument}'.")


def _at(arguments: object, path: tuple[str, ...]) -> object:
    for key in path:
        arguments = as_object(arguments).get(key)
    return arguments


def _is_literal(arguments: object, path: tuple[str, ...], types: tuple[type, ...]) -> bool:
    """Return whether an argument is absent or has its declared type, and no handle will be resolved on its path."""
    for key in path:
        if arguments is None:
            return True
        if not isinstance(arguments, dict):
            return False
        pairs = cast("dict[str, object]", arguments)
        if "$ref" in pairs and pairs.keys() <= _HANDLE_KEYS:
            return False
        arguments = pairs.get(key)
    return arguments is None or type(arguments) in types


def _to_text(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value) if isinstance(value, str | int | float) else None


def _is_same(value: str, expected: str, kind: str) -> bool:
    number = re.fullmatch(_DECIMAL, value) if kind == "integer" else None
    return (number[1] if number else value) == expected
