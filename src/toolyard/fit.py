"""Fitting a result: from whatever a handler returned to plain data that an answer can carry."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.call import Call
from toolyard.content import Block, Text, block_of
from toolyard.envelope import Content, Encoded, Envelope, Failure, Passed, encode, encode_data
from toolyard.errors import CODES, ToolError
from toolyard.tools import Tool

__all__ = ["Fitted", "Query", "fit", "fit_told"]

_BLOCK_BYTES: Final = 32 * 1024 * 1024
_TOLD_BYTES: Final = _BLOCK_BYTES // 3 * 4
"""The same, once it is written as base64."""
_BYTES: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = frozenset({int, float, str, bool, list, dict, type(None)})


class Fitted(msgspec.Struct, frozen=True, gc=False):
    """What an envelope will say, and the text of its data where there is one."""

    data: Any
    error: Failure | None = None
    content: tuple[Content, ...] = ()
    encoded: Encoded | None = None
    passed: Passed | None = None
    """What another server answered, where that is what it is."""
    held: bool = False
    """Whether a policy answered."""

    def cut(self, instead: dict[str, Any]) -> "Fitted":
        """Return the same with something short in place of its data."""
        return Fitted(instead, self.error, self.content, held=self.held)


class Query(NamedTuple):
    """What reads a resource or makes a prompt, what it is given, and how its result is told."""

    tool: Tool
    arguments: object
    tell: Callable[[object], dict[str, Any]]


def fit(call: Call, tool: Tool, result: object) -> Fitted:
    """Return a result as an answer can carry it.

    Raises:
        ToolError: `invalid_output` if it cannot.
    """
    if type(result) not in _PLAIN:  # asked first because asking for an envelope costs more than the rest
        if isinstance(result, Passed):
            encoded = Encoded(result.data, encode(result.data), result.characters, result.content)
            return Fitted(result.data, None, result.content, encoded, result)
        if isinstance(result, Envelope):
            return _kept(call, tool, result)
        if isinstance(result, Encoded):
            return Fitted(result.data, None, result.content, result)
        if isinstance(result, _BYTES):
            result = block_of(bytes(cast("bytes", result)))
    elif result is None and not tool.may_return_none:
        raise _invalid(tool, "answered nothing")
    as_text = tool.spec.shape == "plain" and isinstance(result, str)
    try:
        encoded = encode_data(Text(cast("str", result)) if as_text else result)
    except TypeError:
        raise _unwritable(tool) from None
    if encoded.content:
        _check_blocks(encoded)
    if tool.fits_output is not None and not tool.fits_output(encoded.data):
        raise _invalid(tool, "answered what its own schema forbids")
    return Fitted(encoded.data, None, encoded.content, encoded)


def fit_told(call: Call, query: Query, result: object) -> Fitted:
    """Return what was read or made as an answer can carry it, told in the words of MCP.

    Raises:
        ToolError: `invalid_output` if it cannot, `too_large` if it is too long.
    """
    if isinstance(result, Envelope):
        return _kept(call, query.tool, result)
    if result is None:
        raise _invalid(query.tool, "answered nothing")
    try:
        data = query.tell(result)
        text = encode(data)
    except TypeError:
        raise _invalid(query.tool, f"answered what no {query.tool.spec.kind} can hold") from None
    if len(text) > _TOLD_BYTES:
        message = f"The answer has {len(text)} bytes; at most {_TOLD_BYTES} are sent."
        raise ToolError("too_large", message, may_have_run=True, bytes=len(text), limit=_TOLD_BYTES)
    return Fitted(data, None, (), Encoded(data, text, len(text) if text.isascii() else len(text.decode())))


def _kept(call: Call, tool: Tool, envelope: Envelope) -> Fitted:
    """Return a ready envelope as it is, once it is sure that it can be sent, with what it says of another yard's call."""
    error = envelope.error
    if envelope.success is not (error is None) or (error is not None and error.code not in CODES):
        raise _invalid(tool, "answered with an envelope that contradicts itself")
    _encoded(tool, error)
    encoded = _encoded(tool, envelope.data)
    call.inner_session_id = envelope.meta.session_id
    call.coerced = tuple(dict.fromkeys((*call.coerced, *envelope.meta.coerced)))
    call.warnings = tuple(dict.fromkeys((*call.warnings, *envelope.meta.warnings)))
    held = envelope.held or not call.running
    return Fitted(encoded.data, error, (*envelope.content, *encoded.content), encoded, envelope.passed, held)


def _encoded(tool: Tool, value: object) -> Encoded:
    try:
        encoded = encode_data(value)
    except TypeError:
        raise _unwritable(tool) from None
    _check_blocks(encoded)
    return encoded


def _check_blocks(encoded: Encoded) -> None:
    size = sum(len(block.data) for block in encoded.content if isinstance(block, Block))
    if size > _BLOCK_BYTES:
        raise ToolError(
            "too_large", f"The blocks have {size} bytes; at most {_BLOCK_BYTES} are sent.", may_have_run=True, limit=_BLOCK_BYTES
        )


def _unwritable(tool: Tool) -> ToolError:
    return _invalid(tool, "answered what cannot be written as JSON")


def _invalid(tool: Tool, what: str) -> ToolError:
    return ToolError("invalid_output", f"'{tool.spec.name}' {what}.")
