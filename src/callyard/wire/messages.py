"""JSON-RPC messages: decoding and encoding, the same for servers and clients.

Only the frame of a message is decoded here. Its params stay bytes until `params` decodes them for the method.
"""

import re
from array import array
from itertools import accumulate
from typing import Any, Final

import msgspec

from callyard._internal.converted import as_object, has_more

__all__ = [
    "HEADER_MISMATCH",
    "HTTP_STATUS",
    "INTERNAL",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "MAX_DEPTH",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE",
    "UNSUPPORTED_VERSION",
    "URL_REQUIRED",
    "WHITESPACE",
    "Fault",
    "Id",
    "Message",
    "check_depth",
    "decode",
    "decode_batch",
    "encode_fault",
    "encode_notification",
    "encode_request",
    "encode_result",
    "id_of",
]


PARSE: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
URL_REQUIRED: Final = -32042
"""An upstream of 2025-11-25 refuses a request until a person has opened a page; later versions ask instead."""
UNSUPPORTED_VERSION: Final = -32022
HTTP_STATUS: Final[dict[int, int]] = {
    METHOD_NOT_FOUND: 404,
    **dict.fromkeys(
        (PARSE, INVALID_REQUEST, INVALID_PARAMS, HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION), 400
    ),
}


class Fault(Exception):  # noqa: N818 - 'error' is the answer of a failed call
    """A JSON-RPC error: the message is invalid, or its method is not available."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def http(self) -> int:
        """Return the HTTP status for stateless protocol versions; the others always answer 200."""
        return HTTP_STATUS.get(self.code, 200)


Id = int | str
WHITESPACE: Final = b" \t\r\n"
"""Whitespace of JSON; `bytes.strip` alone would strip more."""
_EMPTY: Final = msgspec.Raw(b"")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))
_STRINGS: Final = rb'(?s)"(?:[^"\\]++|\\.)*+(?:"|\Z)'
_ESCAPES: Final = rb"(?s)\\(?:(u[dD][89abAB]HH)(\\u[dD][c-fC-F]HH)?|(u[dD][c-fC-F]HH)|.)".replace(b"H", b"[0-9a-fA-F]")
"""Matches an escape in a JSON string, with groups for the surrogates of a pair and for a lone low surrogate."""
_MAX_BATCH: Final = 100
MAX_DEPTH: Final = 128
_OBJECT: Final = ord("{")
_REPLACEMENT: Final = "\ufffd"


class Message(msgspec.Struct, gc=False):
    """The frame of a request (method and id), a notification (method alone) or a response (id and result or error)."""

    method: str | None = None
    id: Id | msgspec.UnsetType | None = msgspec.UNSET
    jsonrpc: str | None = None
    params: msgspec.Raw = _EMPTY
    result: msgspec.Raw = _EMPTY
    error: msgspec.Raw = _EMPTY

    @property
    def is_request(self) -> bool:
        """Return whether it needs a response."""
        return self.method is not None and self.id is not msgspec.UNSET


_decode_message: Final = msgspec.json.Decoder(Message).decode
_ID: Final = rb'"id"\s*:\s*(?:(-?[0-9]{1,18})|"([^"\\]{0,200})")\s*'
_JSONRPC: Final = rb'"jsonrpc"\s*:\s*"2\.0"\s*'
_ID_AT_START: Final = rb"\s*\{\s*(?:" + _JSONRPC + rb",\s*)?" + _ID + b","
_ID_AT_END: Final = rb"[\]}]\s*,\s*" + _ID + rb"(?:,\s*" + _JSONRPC + rb")?\}\s*\Z"
_ID_BYTES: Final = 500


def decode(data: bytes, *, depth: int = MAX_DEPTH) -> Message:
    """Return one message.

    Raises:
        Fault: It is not JSON, nested too deep, or not a JSON-RPC message.
    """
    _check_text(data)
    check_depth(data, depth)
    try:
        message = _decode_message(data)
    except msgspec.ValidationError as error:
        raise Fault(INVALID_REQUEST, "The message is not a JSON-RPC request, notification or response.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _undecodable(data) from error
    _check_frame(message)
    return message


def _check_frame(message: Message) -> None:
    if message.jsonrpc != "2.0":
        raise Fault(INVALID_REQUEST, "The message lacks 'jsonrpc: 2.0'.")
    if message.id is None:
        raise Fault(INVALID_REQUEST, "The id of a request must be a string or an integer.")
    if message.method is None:
        if message.id is msgspec.UNSET or (not message.result and not message.error):
            raise Fault(INVALID_REQUEST, "The message is not a request, notification or response.")
    elif message.params and memoryview(message.params)[0] != _OBJECT:
        if bytes(message.params) != b"null":  # some clients send null for no params
            raise Fault(INVALID_REQUEST, "The params of a message must be an object.")
        message.params = _EMPTY


def decode_batch(data: bytes, *, depth: int = MAX_DEPTH) -> list[bytes] | None:
    """Return the messages of a batch, each as bytes, or None if it is not an array.

    Raises:
        Fault: It is an array that is not JSON, nested too deep, empty or too long.
    """
    if data[:1] != b"[" and not data.lstrip(WHITESPACE).startswith(b"["):
        return None
    _check_text(data)
    _check_depth(data, depth)
    repaired = _replace_lone_surrogates(data)
    try:
        items = msgspec.json.decode(repaired, type=list[msgspec.Raw])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(PARSE, "The message is not JSON.") from error
    if not 0 < len(items) <= _MAX_BATCH:
        raise Fault(INVALID_REQUEST, f"A batch has at least one message and at most {_MAX_BATCH}.")
    return _slice(data, repaired, items)


def _slice(data: bytes, repaired: bytes, items: list[msgspec.Raw]) -> list[bytes]:
    """Return the items of a batch as sent, so that only one with a lone surrogate is refused."""
    slices: list[bytes] = []
    start = data.index(b"[") + 1
    for item in items:
        start = repaired.index(item, start)  # between two items there are only a comma and whitespace
        slices.append(data[start : start + len(item)])
        start += len(item)
    return slices


def id_of(data: bytes) -> Id | None:
    """Return the id of an otherwise invalid message, if it has a valid one."""
    repaired = _replace_lone_surrogates(data)
    try:
        message = msgspec.json.decode(repaired)
    except RecursionError:
        return _id_beside(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    found = as_object(message).get("id")
    is_doubtful = isinstance(found, str) and repaired != data and _REPLACEMENT in found
    return found if isinstance(found, Id) and not isinstance(found, bool) and not is_doubtful else None


def _id_beside(data: bytes) -> Id | None:
    """Return the id at the start or the end of a message that is nested too deep to decode."""
    match = re.match(_ID_AT_START, data) or re.search(_ID_AT_END, data[-_ID_BYTES:])
    if match is None:
        return None
    return int(match[1]) if match[1] else match[2].decode("utf-8", "replace")


def _undecodable(data: bytes) -> Fault:
    """Return the fault of a message that cannot be decoded; some programs cut texts inside a surrogate pair."""
    try:
        msgspec.json.decode(_replace_lone_surrogates(data))
    except (msgspec.DecodeError, RecursionError):
        return Fault(PARSE, "The message is not JSON.")
    return Fault(INVALID_REQUEST, "A text in the message has a lone surrogate, which is half a character.")


def _replace_lone_surrogates(data: bytes) -> bytes:
    """Return JSON of the same length with U+FFFD in place of every lone surrogate."""
    return re.sub(_ESCAPES, _replace_escape, data) if b"\\ud" in data or b"\\uD" in data else data


def _replace_escape(match: re.Match[bytes]) -> bytes:
    high, low, lone = match.groups()
    return rb"\ufffd" if lone or (high and not low) else match[0]


def encode_result(request_id: Id, result: bytes) -> bytes:
    """Return a successful response; its result is JSON already."""
    # '%' is far slower for long results.
    return b"".join((b'{"jsonrpc":"2.0","id":', msgspec.json.encode(request_id), b',"result":', result, b"}"))


def encode_fault(request_id: Id | None, fault: Fault) -> bytes:
    """Return a fault as an error response; the id is None if it is unknown."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def encode_notification(method: str, params: Any = None) -> bytes:
    """Return a notification."""
    return msgspec.json.encode({"jsonrpc": "2.0", "method": method, **_params(params)})


def encode_request(request_id: Id, method: str, params: Any = None) -> bytes:
    """Return a request."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "method": method, **_params(params)})


def _params(params: Any) -> dict[str, Any]:
    return {} if params is None else {"params": params}


def check_depth(data: bytes, depth: int = MAX_DEPTH) -> None:
    """Check the nesting of JSON before a recursive parser reads it.

    Raises:
        Fault: It is nested too deep.
    """
    if has_more(data, b"[", depth // 2) or has_more(data, b"{", depth // 2):  # otherwise it cannot be
        _check_depth(data, depth)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Fault(PARSE, "The message is not UTF-8.") from error


def _check_depth(data: bytes, depth: int) -> None:
    """Check the exact nesting: outside strings, every bracket is a step up or down."""
    brackets = re.sub(_STRINGS, b"", data).translate(_STEPS, _NOT_BRACKETS)
    if brackets and max(accumulate(array("b", brackets))) > depth:
        raise Fault(PARSE, f"The message is nested deeper than {depth} levels.")
