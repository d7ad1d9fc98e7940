"""Fitting a result: from whatever a handler returned to plain data that an answer can carry."""

from typing import Any, Final, cast

import msgspec

from toolyard.call import Call
from toolyard.content import Text, block_of
from toolyard.envelope import Content, Encoded, Envelope, Failure, encode, encode_data
from toolyard.errors import CODES, ToolError
from toolyard.tools import Tool

__all__ = ["Fitted", "fit"]

_BYTES: Final = (bytes, bytearray, memoryview)


class Fitted(msgspec.Struct, frozen=True, gc=False):
    """What an envelope will say, and the text of its data where there is one."""

    data: Any
    error: Failure | None = None
    content: tuple[Content, ...] = ()
    encoded: Encoded | None = None

    def cut(self, instead: dict[str, Any]) -> "Fitted":
        """Return the same with something short in place of its data."""
        return Fitted(instead, self.error, self.content)


def fit(call: Call, tool: Tool, result: object) -> Fitted:
    """Return a result as an answer can carry it.

    Raises:
        ToolError: `invalid_output` if it cannot.
    """
    if not isinstance(result, Envelope):
        encoded = _encoded(result, tool)
        return Fitted(encoded.data, None, encoded.content, encoded)
    encoded = _kept(result, tool)
    call.inner_session_id = result.meta.session_id
    call.coerced = tuple(dict.fromkeys((*call.coerced, *result.meta.coerced)))
    call.warnings = tuple(dict.fromkeys((*call.warnings, *result.meta.warnings)))
    return Fitted(encoded.data, result.error, (*result.content, *encoded.content), encoded)


def _encoded(result: object, tool: Tool) -> Encoded:
    if result is None and not tool.may_return_none:
        raise _invalid(tool, "answered nothing")
    if isinstance(result, _BYTES):
        result = block_of(bytes(cast("bytes", result)))
    as_text = isinstance(result, str) and tool.spec.shape == "plain"
    try:
        encoded = encode_data(Text(cast("str", result)) if as_text else result)
    except TypeError:
        raise _invalid(tool, "answered what cannot be written as JSON") from None
    if not as_text and tool.fits_output is not None and not tool.fits_output(encoded.data):
        raise _invalid(tool, "answered what its own schema forbids")
    return encoded


def _kept(envelope: Envelope, tool: Tool) -> Encoded:
    """Return the data of a ready envelope as it is, once it is sure that it can be sent."""
    error = envelope.error
    if envelope.success is not (error is None) or (error is not None and error.code not in CODES):
        raise _invalid(tool, "answered with an envelope that contradicts itself")
    try:
        encode(error)
        return encode_data(envelope.data)
    except TypeError:
        raise _invalid(tool, "answered what cannot be written as JSON") from None


def _invalid(tool: Tool, what: str) -> ToolError:
    return ToolError("invalid_output", f"'{tool.spec.name}' {what}.")
