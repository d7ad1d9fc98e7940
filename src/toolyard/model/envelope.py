"""The envelope: what every call answers, from every door.

It turns data into JSON and counts what it costs to read. It knows no call and no tool.
"""

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any, ClassVar, Final, Self, cast

import msgspec

from toolyard.model.content import Block, ResourceLink, Text
from toolyard.model.errors import CODES, Blame, Code, CodeName, ToolError

__all__ = [
    "WRAPPING",
    "Content",
    "Encoded",
    "Envelope",
    "Failure",
    "Meta",
    "Passed",
    "encode",
    "encode_data",
    "encode_own",
    "encode_plain",
    "encode_sorted",
    "estimate_tokens",
    "fingerprint",
]

Content = Block | Text | ResourceLink

_log = logging.getLogger(__name__)
WRAPPING: Final = len('{"success":true,"data":,"error":null}')
"""How many characters of a good answer are not its data."""
_DETAILS_BYTES: Final = 100_000
_SCALARS: Final = frozenset({int, str, bool, type(None)})


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call failed, whose fault it is and what to do next."""

    code: CodeName
    message: str
    details: dict[str, Any]
    recoverable: bool
    retryable: bool
    blame: Blame
    may_have_run: bool
    http: int
    hint: str
    next_actions: tuple[str, ...] = ()
    tool_id: str | None = None


class Meta(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the yard says about the call itself; session, coerced and warnings only where there are any."""

    call_id: str
    elapsed_ms: int
    estimated_tokens: int
    session_id: str | None = None
    coerced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class Passed(msgspec.Struct, frozen=True, gc=False):
    """What another MCP server answered: its result as it came, and what of it an envelope says."""

    data: Any
    said: bytes
    """Content and structured content, as an object in JSON."""
    characters: int
    """How much of it an agent reads."""
    content: tuple[Content, ...] = ()
    meta: dict[str, Any] = {}
    older: bytes = b""
    """The same for clients of the older era, where they would not understand what is structured."""


class Envelope(msgspec.Struct, frozen=True, dict=True):
    """What every call answers: success, data, error and `_meta`, all always present."""

    success: bool
    data: Any = None
    error: Failure | None = None
    meta: Meta = msgspec.field(default=Meta("", 0, 0), name="_meta")
    content: ClassVar[tuple[Content, ...]] = ()
    """The blocks that follow the envelope; they are no part of its JSON, so one that has some keeps them beside its fields."""
    passed: ClassVar[Passed | None] = None
    """What another server answered, if the answer is that and was not cut; kept in the same way."""
    held: ClassVar[bool] = False
    """Whether a policy answered in place of the tool, or of one that this one ran; kept in the same way."""

    @classmethod
    def ok(cls, data: object, *, content: Sequence[Content] = ()) -> Self:
        """Return a good answer for a handler to return."""
        return cls(success=True, data=data).beside(content)

    @classmethod
    def fail(cls, error: ToolError, *, tool_id: str | None = None, may_have_run: bool | None = None, safe: bool = False) -> Self:
        """Return the answer that a failure becomes.

        `may_have_run` says what happened where the code leaves it open; `safe` that running twice does no harm.
        """
        code = CODES[error.code]
        ran = error.may_have_run
        if ran is None:
            ran = code.may_have_run == "yes" or (code.may_have_run == "maybe" and bool(may_have_run))
        retryable = code.retryable and (safe or not ran)
        hint = error.hint or _hint(code, retryable=retryable, ran=ran)
        failure = Failure(
            code=error.code,
            message=_speakable(error.message),
            details=_keep_serialisable(error.details),
            recoverable=code.recoverable,
            retryable=retryable,
            blame=code.blame if error.blame is None else error.blame,
            may_have_run=ran,
            http=code.http,
            hint=_speakable(hint),
            next_actions=tuple(_speakable(action) for action in error.next_actions),
            tool_id=tool_id,
        )
        data = error.data
        if isinstance(data, Encoded):
            return cls(success=False, data=data.data, error=failure).beside(data.content)
        return cls(success=False, data=data, error=failure)

    def passing(self, passed: Passed) -> Self:
        """Return the envelope with what another server answered beside it."""
        vars(self)["passed"] = passed  # pyright: ignore[reportIndexIssue] - a frozen struct still has its dictionary
        return self

    def holding(self) -> Self:
        """Return the envelope as the answer of a policy."""
        vars(self)["held"] = True  # pyright: ignore[reportIndexIssue] - a frozen struct still has its dictionary
        return self

    def beside(self, content: Sequence[Content]) -> Self:
        """Return the envelope with these blocks beside it."""
        if content:
            vars(self)["content"] = tuple(content)  # pyright: ignore[reportIndexIssue] - a frozen struct still has its dictionary
        return self

    def to_json(self) -> bytes:
        """Return the envelope as compact JSON."""
        return encode_plain(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Envelope":
        """Return the envelope that was written as JSON."""
        return msgspec.json.decode(text, type=Envelope)


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A result as JSON: the plain data, its text, its length in characters and the blocks that were in it."""

    data: Any
    text: bytes
    characters: int
    content: tuple[Content, ...] = ()


def encode(value: object) -> bytes:
    """Return a value as compact JSON.

    Raises:
        TypeError: The value, or something in it, cannot become JSON.
    """
    try:
        return _ENCODER.encode(value)
    except TypeError:
        raise
    except Exception as error:  # a property or serialiser of the value may raise anything
        raise _unwritable(value) from error


def encode_sorted(value: object) -> bytes:
    """Return a value that can become JSON as the one text that stands for it, whatever the order of its keys."""
    return _SORTING_ENCODER.encode(value)


def fingerprint(*values: object) -> str:
    """Return a hash in hexadecimal that changes exactly when the values do, whatever the order of their keys."""
    digest = sha256()
    for value in values:
        digest.update(encode_sorted(value))
    return digest.hexdigest()


def encode_data(value: object) -> Encoded:
    """Return a result as JSON, with its blocks taken out and described in their places.

    Raises:
        TypeError: The value, or something in it, cannot become JSON.
    """
    if type(value) in _SCALARS:
        try:
            text = _ENCODER.encode(value)
        except Exception as error:  # a number too large, or half a character
            raise _unwritable(value) from error
        return Encoded(value, text, len(text) if text.isascii() else len(text.decode()))
    content: list[Content] = []
    _found.content = content
    try:
        text = encode(value)
    finally:
        _found.content = None
    characters = len(text) if text.isascii() else len(text.decode())
    return Encoded(msgspec.json.decode(text), text, characters, tuple(content))


def encode_own(data: Any, content: tuple[Content, ...] = ()) -> Encoded:
    """Return plain data as JSON that were made for this answer, so that nobody else holds them and no copy is needed."""
    text = encode_plain(data)
    return Encoded(data, text, len(text) if text.isascii() else len(text.decode()), content)


def estimate_tokens(data: object, error: Failure | None) -> int:
    """Return about how many tokens an agent reads in an envelope without `_meta`."""
    text = encode({"success": error is None, "data": data, "error": error})
    return -(-len(text.decode()) // 4)


class _Found(threading.local):
    """The blocks found so far in the value that this thread is encoding; nowhere to put them if it is no result."""

    content: list[Content] | None = None


def _to_plain(value: object) -> object:
    """Return what msgspec cannot encode as something that it can."""
    if isinstance(value, Block | Text | ResourceLink) and _found.content is not None:
        _found.content.append(value)
        return value.describe()
    serialiser = getattr(type(value), "__pydantic_serializer__", None)
    if serialiser is not None:
        return serialiser.to_python(value, mode="json", by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, complex) or (core := sys.modules.get("pydantic_core")) is None:
        raise _unwritable(value)
    to_jsonable = cast("Callable[[object], object]", core.to_jsonable_python)
    return to_jsonable(value)


def _unwritable(value: object) -> TypeError:
    return TypeError(f"A value of type '{type(value).__name__}' cannot become JSON.")


def _keep_serialisable(details: dict[str, object]) -> dict[str, Any]:
    """Return details as plain JSON, without what cannot become JSON or is too long for an answer."""
    kept: dict[str, Any] = {}
    room = _DETAILS_BYTES
    for key, value in details.items():
        try:
            text = encode(value)
        except TypeError:
            text = b""
        if text and len(text) <= room:
            room -= len(text)
            kept[_speakable(key)] = msgspec.json.decode(text)
        else:
            _log.warning("dropped_detail key=%s type=%s bytes=%d", key, type(value).__name__, len(text))
    return kept


def _hint(code: Code, *, retryable: bool, ran: bool) -> str:
    """Return what to do about a failure that does not say so itself."""
    if code.retryable and not retryable:
        return "Look at the state first: the call may have run."
    return "Nothing was done: call again if it is still wanted." if code.name == "cancelled" and not ran else code.hint


def _speakable(said: object) -> str:
    """Return what is said as text, without the halves of characters that no encoding can carry."""
    text = str(said)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_found = _Found()
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_to_plain)
encode_plain: Final[Callable[[object], bytes]] = _ENCODER.encode
"""Returns what was encoded before, and so cannot fail, as compact JSON again."""
_SORTING_ENCODER: Final = msgspec.json.Encoder(enc_hook=_to_plain, order="deterministic")
