"""Messages: from bytes to JSON-RPC and back, the same for a server and a client.

A message is looked at in two steps: here its frame, in `params` what its method takes. What is inside stays bytes until then.
"""

import re
from array import array
from itertools import accumulate
from typing import Any, Final, cast

import msgspec

__all__ = [
    "BLANK",
    "HEADER_MISMATCH",
    "HTTP_STATUS",
    "INTERNAL",
    "INVALID_PARAMS",
    "INVALID_REQUEST",
    "METHOD_NOT_FOUND",
    "MISSING_CAPABILITY",
    "PARSE",
    "UNSUPPORTED_VERSION",
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
UNSUPPORTED_VERSION: Final = -32022
HTTP_STATUS: Final[dict[int, int]] = {
    PARSE: 400,
    INVALID_REQUEST: 400,
    METHOD_NOT_FOUND: 404,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    MISSING_CAPABILITY: 400,
    UNSUPPORTED_VERSION: 400,
}


class Fault(Exception):  # noqa: N818 - an error is what a call answers; this is none
    """A message cannot be answered as what it claims to be."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data

    @property
    def http(self) -> int:
        """Return the status that says the same in HTTP, in the era that says it there, too."""
        return HTTP_STATUS.get(self.code, 200)


Id = int | str
BLANK: Final = b" \t\r\n"
"""What JSON takes for space; Python takes more."""
_NOTHING: Final = msgspec.Raw(b"")
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
_OTHERS: Final = bytes(set(range(256)) - set(b"[]{}"))
_TEXTS: Final = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\Z)', re.DOTALL)
_ESCAPES: Final = re.compile(rb"\\(?:(u[dD][89abAB]HH)(\\u[dD][c-fC-F]HH)?|(u[dD][c-fC-F]HH)|.)".replace(b"H", b"[0-9a-fA-F]"), re.DOTALL)
"""What stands for a character; the first and the second half of a pair are told apart from all others."""
_BATCH: Final = 100
_DEPTH: Final = 128
_LARGE: Final = 64 * 1024
_OBJECT: Final = ord("{")
_UNKNOWN: Final = "\ufffd"


class Message(msgspec.Struct, gc=False):
    """The frame of a request (method and id), a notification (method alone) or a response (id and result or error)."""

    method: str | None = None
    id: Id | msgspec.UnsetType | None = msgspec.UNSET
    jsonrpc: str | None = None
    params: msgspec.Raw = _NOTHING
    result: msgspec.Raw = _NOTHING
    error: msgspec.Raw = _NOTHING

    @property
    def is_request(self) -> bool:
        """Return whether an answer is owed."""
        return self.method is not None and self.id is not msgspec.UNSET


_decode_message: Final = msgspec.json.Decoder(Message).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_decode_loose: Final = msgspec.json.Decoder().decode
_encode: Final = msgspec.json.encode


def decode(data: bytes, *, depth: int = _DEPTH) -> Message:
    """Return one message.

    Raises:
        Fault: It is no JSON, too deep, or no message; the fault says which.
    """
    if not data.isascii():
        _check_text(data)
    check_depth(data, depth)
    try:
        message = _decode_message(data)
    except msgspec.ValidationError as error:
        raise Fault(INVALID_REQUEST, "The message is no JSON-RPC request, notification or response.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _unreadable(data) from error
    params = message.params
    if message.jsonrpc != "2.0" or message.id is None or message.method is None or (params and memoryview(params)[0] != _OBJECT):
        _check_frame(message)
    return message


def _check_frame(message: Message) -> None:
    """Look closely at a frame that is not an everyday request or notification."""
    if message.jsonrpc != "2.0":
        raise Fault(INVALID_REQUEST, "The message does not say that it is JSON-RPC 2.0.")
    if message.id is None:
        raise Fault(INVALID_REQUEST, "The id of a request must be a string or an integer.")
    if message.method is None:
        if message.id is msgspec.UNSET or (not message.result and not message.error):
            raise Fault(INVALID_REQUEST, "The message is no request, notification or response.")
    elif message.params and bytes(message.params) == b"null":  # some clients write it for nothing
        message.params = _NOTHING
    elif message.params and memoryview(message.params)[0] != _OBJECT:
        raise Fault(INVALID_REQUEST, "The params of a message must be an object.")


def decode_batch(data: bytes, *, depth: int = _DEPTH) -> list[bytes] | None:
    """Return the messages of an array, each as bytes, or nothing if it is no array.

    Raises:
        Fault: It is an array that is no JSON, too deep, or empty.
    """
    if data[:1] != b"[" and not data.lstrip(BLANK).startswith(b"["):
        return None
    _check_text(data)
    _check_depth(data, depth)
    whole = _whole(data)
    try:
        items = _decode_items(whole)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Fault(PARSE, "The message is no JSON.") from error
    if not 0 < len(items) <= _BATCH:
        raise Fault(INVALID_REQUEST, f"A batch has at least one message and at most {_BATCH}.")
    return _cut(data, whole, items)


def _cut(data: bytes, whole: bytes, items: list[msgspec.Raw]) -> list[bytes]:
    """Return the items of an array as they stand in it, half characters and all, so that each is refused for itself alone."""
    found: list[bytes] = []
    place = data.index(b"[") + 1
    for item in items:
        place = whole.index(item, place)  # between two items there is nothing that one could begin with
        found.append(data[place : place + len(item)])
        place += len(item)
    return found


def id_of(data: bytes) -> Id | None:
    """Return the id of a message that is wrong otherwise, if it has one that can be answered."""
    whole = _whole(data)
    try:
        loose = _decode_loose(whole)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    found = cast("dict[str, object]", loose).get("id") if isinstance(loose, dict) else None
    is_doubtful = isinstance(found, str) and whole != data and _UNKNOWN in found
    return found if isinstance(found, Id) and not isinstance(found, bool) and not is_doubtful else None


def _unreadable(data: bytes) -> Fault:
    """Return what is wrong with a message that cannot be read: some programs cut texts in the middle of a character."""
    try:
        _decode_loose(_whole(data))
    except (msgspec.DecodeError, RecursionError):
        return Fault(PARSE, "The message is no JSON.")
    return Fault(INVALID_REQUEST, "A text in the message has half a character: a surrogate without the other one of its pair.")


def _whole(data: bytes) -> bytes:
    """Return JSON of the same length in which no character is half a one."""
    return _ESCAPES.sub(_replaced, data) if b"\\ud" in data or b"\\uD" in data else data


def _replaced(found: re.Match[bytes]) -> bytes:
    first, second, lone = found.groups()
    return rb"\ufffd" if lone or (first and not second) else found[0]


def encode_result(request_id: Id, result: bytes) -> bytes:
    """Return a good answer, whose result is JSON already."""
    return b"".join((b'{"jsonrpc":"2.0","id":', _encode(request_id), b',"result":', result, b"}"))  # '%' is many times slower for long ones


def encode_fault(request_id: Id | None, fault: Fault) -> bytes:
    """Return a fault as the answer to the message with that id, or to one whose id is not known."""
    error: dict[str, Any] = {"code": fault.code, "message": fault.message}
    if fault.data is not None:
        error["data"] = fault.data
    return _encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def encode_notification(method: str, params: Any = None) -> bytes:
    """Return a message that wants no answer."""
    return _encode({"jsonrpc": "2.0", "method": method} if params is None else {"jsonrpc": "2.0", "method": method, "params": params})


def encode_request(request_id: Id, method: str, params: Any = None) -> bytes:
    """Return a message that wants an answer."""
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": request_id, "method": method}
    if params is not None:
        message["params"] = params
    return _encode(message)


def check_depth(data: bytes, depth: int = _DEPTH) -> None:
    """Refuse JSON that is nested too deep, before a recursive parser sees it.

    Raises:
        Fault: It is.
    """
    # a level takes two bytes, and five if it is an object: what is shorter is not too deep, or no JSON
    if len(data) > 2 * depth and (len(data) > 5 * depth or data.find(b"[") >= 0) and _may_be_deep(data, depth):
        _check_depth(data, depth)


def _check_text(data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise Fault(PARSE, "The message is no UTF-8.") from error


def _may_be_deep(data: bytes, depth: int) -> bool:
    """Return whether there are more brackets than levels; in a large message looking for them one by one is quicker than counting."""
    if len(data) < _LARGE:
        return data.count(b"[") + data.count(b"{") > depth
    found = 0
    for bracket in (b"[", b"{"):
        place = data.find(bracket)
        while place >= 0:
            found += 1
            if found > depth:
                return True
            place = data.find(bracket, place + 1)
    return False


def _check_depth(data: bytes, depth: int) -> None:
    """Refuse what is nested too deep: every bracket is a step up or down."""
    brackets = _TEXTS.sub(b"", data).translate(_STEPS, _OTHERS)
    if brackets and max(accumulate(array("b", brackets))) > depth:
        raise Fault(PARSE, f"The message is nested deeper than {depth} levels.")
