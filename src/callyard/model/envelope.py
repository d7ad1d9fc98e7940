"""The envelope that every call answers with, and the JSON encoding of results.

It must not know calls or tools.
"""

import logging
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import PurePath
from typing import Any, Final, Self, cast

import msgspec

from callyard.model.content import Block, ResourceLink, Text
from callyard.model.errors import CODES, Blame, Code, CodeName, ToolError

__all__ = [
    "WRAPPER_CHARACTERS",
    "Content",
    "Digested",
    "Encoded",
    "Envelope",
    "Failure",
    "Meta",
    "UpstreamResult",
    "encode",
    "encode_data",
    "encode_sorted",
    "encode_unchecked",
    "encode_uncopied",
    "estimate_tokens",
    "fingerprint",
]

Content = Block | Text | ResourceLink

_log = logging.getLogger(__name__)
WRAPPER_CHARACTERS: Final = len('{"success":true,"data":,"error":null}')
"""Characters of a successful envelope around its data."""
_MAX_DETAILS_BYTES: Final = 100_000


_FIELDS_IN_HINTS: Final = {
    "available_sessions": (", or pass one of 'available_sessions'", ""),
    "issues": ("the arguments named in 'issues'", "the arguments"),
    "next_actions": ("Sign in as 'next_actions' says", "Sign in"),
    "retry_after_ms": ("Wait for 'retry_after_ms'", "Wait a moment"),
    "similar": ("Use one of the names in 'similar', or list the tools", "List the tools"),
    "step_index": ("the step that 'step_index' names", "the step"),
}
"""What hints say about a field, and what they say instead if it is not there."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a call failed, who is to blame and what to do next."""

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
    """Facts about the call itself; session, coerced and warnings only if there are any."""

    call_id: str
    elapsed_ms: int
    estimated_tokens: int
    session_id: str | None = None
    coerced: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    next_page: dict[str, Any] | None = None
    """The arguments of a call for the next page, if the answer is one page of several."""


class UpstreamResult(msgspec.Struct, frozen=True, gc=False):
    """Result of a tool on another MCP server: as it came, and as an envelope shows it."""

    data: Any
    result: bytes
    """Content and structured content, as a JSON object."""
    characters: int
    """Characters that an agent reads."""
    content: tuple[Content, ...] = ()
    meta: dict[str, Any] = {}
    handshake_result: bytes = b""
    """The same for clients of versions with a handshake, if they cannot read the structured content."""


class Envelope(msgspec.Struct, dict=True):
    """What every call answers: success, data, error and `_meta`, all always present.

    It also carries five attributes that are not fields, so that they are not written as JSON.
    """

    success: bool
    data: Any = None
    error: Failure | None = None
    meta: Meta = msgspec.field(default=Meta("", 0, 0), name="_meta")
    content = cast("tuple[Content, ...]", ())
    passthrough = cast("UpstreamResult | None", None)
    """Result of an upstream that is passed on unchanged."""
    encoded_data = cast("bytes | None", None)
    """Large data as JSON, so that a transport need not encode them again."""
    held = False
    """Whether a policy answered in place of the tool, or in place of a tool that it ran."""
    has_plain_shape = False
    """Whether the spec says `shape="plain"`; a transport needs it even if the tool was withdrawn meanwhile."""

    shortened_of = cast("Any", None)
    """Spec of the plain tool whose result was too long and became a handle."""

    @classmethod
    def ok(cls, data: object, *, content: Sequence[Content] = ()) -> Self:
        """Return a successful answer, for a handler to return."""
        envelope = cls(success=True, data=data)
        if content:
            envelope.content = tuple(content)
        return envelope

    @classmethod
    def fail(
        cls, error: ToolError, *, tool_id: str | None = None, may_have_run: bool | None = None, safe: bool = False
    ) -> Self:
        """Return a failure as an answer.

        `may_have_run` counts where the code leaves it open; `safe` means that running twice does no harm.
        """
        code = CODES[error.code]
        ran = error.may_have_run
        if ran is None:
            ran = code.may_have_run == "yes" or (code.may_have_run == "maybe" and bool(may_have_run))
        retryable = code.retryable and (safe or not ran)
        hint = _to_utf8(error.hint or _hint(code, retryable=retryable, ran=ran))
        given = {*error.details, *(("next_actions",) if error.next_actions else ())}
        for field, (text, instead) in _FIELDS_IN_HINTS.items():
            if field not in given:
                hint = hint.replace(text, instead)
        failure = Failure(
            code=error.code,
            message=_to_utf8(error.message),
            details=_serialisable_details(error.details),
            recoverable=code.recoverable,
            retryable=retryable,
            blame=code.blame if error.blame is None else error.blame,
            may_have_run=ran,
            http=code.http,
            hint=hint,
            next_actions=tuple(_to_utf8(action) for action in error.next_actions),
            tool_id=tool_id,
        )
        if not isinstance(error.data, Encoded):
            return cls(success=False, data=error.data, error=failure)
        envelope = cls(success=False, data=error.data.data, error=failure)
        envelope.content = error.data.content
        return envelope

    def expect_error(self, code: CodeName | None = None) -> Failure:
        """Return the failure, for a test that expects one.

        Raises:
            AssertionError: The call succeeded, or failed with another code.
        """
        if self.error is None:
            raise AssertionError(f"The call succeeded, but '{code or 'a failure'}' was expected.")
        if code is not None and self.error.code != code:
            raise AssertionError(f"The call failed with '{self.error.code}', not with '{code}': {self.error.message}")
        return self.error

    def to_json(self) -> bytes:
        """Return the envelope as compact JSON."""
        return encode_unchecked(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "Envelope":
        """Return the envelope written as JSON."""
        return msgspec.json.decode(text, type=Envelope)


class Encoded(msgspec.Struct, frozen=True, gc=False):
    """A result as JSON: its data, its text, the length in characters and its content blocks."""

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
        raise _unserialisable(value) from error


def fingerprint(*values: object) -> str:
    """Return a hash in hexadecimal that changes exactly when the values do, whatever the order of their keys."""
    digest = sha256()
    for value in values:
        digest.update(encode_sorted(value))
    return digest.hexdigest()


def encode_data(value: object) -> Encoded:
    """Return a result as JSON, with a description in place of each content block.

    Raises:
        TypeError: The value, or something in it, cannot become JSON.
    """
    if type(value) in {str, int, bool}:  # nothing in these can be a content block
        text = encode(value)
        return Encoded(value, text, len(text.decode()))
    content: list[Content] = []
    _collector.content = content
    try:
        text = encode(value)
    finally:
        _collector.content = None
    return Encoded(msgspec.json.decode(text), text, len(text.decode()), tuple(content))


def encode_uncopied(data: Any, content: tuple[Content, ...] = ()) -> Encoded:
    """Return serialisable data as JSON without copying it, for data that nothing else refers to."""
    text = encode_unchecked(data)
    return Encoded(data, text, len(text.decode()), content)


def estimate_tokens(data: object, error: Failure | None) -> int:
    """Return an estimate of the tokens in an envelope without `_meta`."""
    return -(-len(encode({"success": error is None, "data": data, "error": error}).decode()) // 4)


class Digested:
    """A value that JSON shows as its digest, because it would take long to make."""

    __slots__ = ("digest",)

    def __init__(self, digest: str) -> None:
        self.digest = digest
        """A text that changes when the value does."""


class _Collector(threading.local):
    """Collects the content blocks of the result that this thread encodes; None while it encodes something else."""

    content: list[Content] | None = None


def _to_serialisable(value: object) -> object:
    """Return a value that msgspec cannot encode as one that it can."""
    if isinstance(value, Block | Text | ResourceLink) and _collector.content is not None:
        _collector.content.append(value)
        return value.describe()
    serialiser = getattr(type(value), "__pydantic_serializer__", None)
    if serialiser is not None:
        return serialiser.to_python(value, mode="json", by_alias=True)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Digested):
        return value.digest
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    if isinstance(value, complex) or (core := sys.modules.get("pydantic_core")) is None:
        raise _unserialisable(value)
    return cast("Callable[[object], object]", core.to_jsonable_python)(value)


def _unserialisable(value: object) -> TypeError:
    return TypeError(f"A value of type '{type(value).__name__}' cannot become JSON.")


def _serialisable_details(details: dict[str, object]) -> dict[str, Any]:
    """Return details as JSON values, without those that cannot be encoded or are too long for an answer."""
    serialisable: dict[str, Any] = {}
    bytes_left = _MAX_DETAILS_BYTES
    for key, value in details.items():
        try:
            text = encode(value)
        except TypeError:
            text = b""
        if text and len(text) <= bytes_left:
            bytes_left -= len(text)
            serialisable[_to_utf8(key)] = msgspec.json.decode(text)
        else:
            _log.warning("dropped_detail key=%s type=%s bytes=%d", key, type(value).__name__, len(text))
    return serialisable


def _hint(code: Code, *, retryable: bool, ran: bool) -> str:
    """Return the hint for a failure that has none of its own."""
    if code.retryable and not retryable:
        return "Look at the state first: the call may have run."
    return "Nothing was done: call again if it is still needed." if code.name == "cancelled" and not ran else code.hint


def _to_utf8(value: object) -> str:
    """Return a value as text that can be encoded: lone surrogates are replaced."""
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_collector = _Collector()
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_to_serialisable)
encode_unchecked: Final[Callable[[object], bytes]] = _ENCODER.encode
"""Returns a value that is known to be serialisable as compact JSON; one Python call less than `encode`."""
encode_sorted: Final[Callable[[object], bytes]] = msgspec.json.Encoder(
    enc_hook=_to_serialisable, order="deterministic"
).encode
"""Returns a serialisable value as JSON with sorted keys, so that equal values give equal bytes."""
