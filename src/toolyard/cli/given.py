"""What a call is given on the command line: pairs of key and value, one JSON object, or JSON from stdin.

How the text of a pair is read is decided by the tool's input schema; whether it fits is decided by the funnel.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import msgspec

from toolyard.cli.exits import CommandError
from toolyard.schema import Schema, resolve, subschema

__all__ = ["Given", "read_given"]

_FORMS: Final = "Arguments are 'key=value' pairs, or one JSON object, or '-' for JSON from stdin."
_STDIN: Final = "-"
_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments as they were written: a ready object, or pairs whose values are still text."""

    ready: Mapping[str, Any]
    pairs: Mapping[str, str]

    def names(self, key: str) -> bool:
        """Return whether there is a value for the key."""
        return key in self.ready or key in self.pairs

    def arguments(self, schema: Schema) -> dict[str, Any]:
        """Return the arguments, each value read as the schema says: text where it may be a string, otherwise JSON if it is."""
        return {**self.ready, **{key: _value(text, subschema(schema, (key,)), schema) for key, text in self.pairs.items()}}


def read_given(items: Sequence[str]) -> Given:
    """Return what was given.

    Raises:
        CommandError: It is of no known form, or of several.
    """
    whole = [item for item in items if item == _STDIN or item.lstrip().startswith("{")]
    if not whole:
        return Given({}, _pairs(items))
    if len(items) > 1:
        raise CommandError(f"The forms of arguments cannot be mixed. {_FORMS}")
    if whole[0] == _STDIN:
        return Given(_object(_stdin(), "What stdin holds"), {})
    return Given(_object(whole[0].encode("utf-8", "surrogateescape"), "The argument"), {})


def _stdin() -> bytes:
    """Return all that stdin holds; nothing if it is closed."""
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise CommandError(f"'{item}' is no argument. {_FORMS}")
        if key in pairs:
            raise CommandError(f"The argument '{key}' is given twice.")
        pairs[key] = text
    return pairs


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CommandError(f"{what} is no JSON: {str(error).removesuffix('.')}.") from error
    if not isinstance(found, dict):
        raise CommandError(f"{what} is no JSON object.")
    return cast("dict[str, Any]", found)


def _value(text: str, schema: object, root: Schema) -> Any:
    if schema is not None and _may_be_text(schema, root, _DEPTH):
        return text
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def _may_be_text(schema: object, root: Schema, depth: int) -> bool:
    """Return whether a string can fit the schema; one nested too deep to tell counts as if it could."""
    node = resolve(root, schema)
    if not isinstance(node, dict) or depth == 0:
        return node is not False
    facts = cast("dict[str, Any]", node)
    kinds = facts.get("type", "string")
    if "string" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    values = [facts["const"]] if "const" in facts else facts.get("enum", [""])
    if not any(isinstance(value, str) for value in values):
        return False
    choices = [facts[key] for key in ("anyOf", "oneOf") if key in facts]
    return all(any(_may_be_text(choice, root, depth - 1) for choice in several) for several in choices) and all(
        _may_be_text(part, root, depth - 1) for part in facts.get("allOf", ())
    )
