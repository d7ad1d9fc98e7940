"""Fitting a result: from whatever a handler returned to plain data that an answer can carry."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.dispatch.call import Call
from toolyard.dispatch.tool import Tool
from toolyard.model.content import Block, Text, block_from_bytes
from toolyard.model.elicitation import OWN_REASONS
from toolyard.model.envelope import (
    WRAPPER_CHARACTERS,
    Content,
    Encoded,
    Envelope,
    Failure,
    Meta,
    UpstreamResult,
    encode,
    encode_data,
    estimate_tokens,
)
from toolyard.model.errors import CODES, CodeName, ToolError
from toolyard.model.spec import UNKNOWN_TOOL, Kind

__all__ = [
    "Outcome",
    "Query",
    "Record",
    "Sink",
    "defect_from",
    "failure_from",
    "finish",
    "room_for_data",
    "stopped_by",
    "to_outcome",
    "to_read_outcome",
]


_BLOCK_BYTES: Final = 32 * 1024 * 1024
_TOLD_BYTES: Final = _BLOCK_BYTES // 3 * 4
"""The same, once it is written as base64."""
_BYTES: Final = (bytes, bytearray, memoryview)
_PLAIN: Final = frozenset({int, float, str, bool, list, dict, type(None)})


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """What an envelope will say, and the text of its data where there is one."""

    data: Any
    error: Failure | None = None
    content: tuple[Content, ...] = ()
    encoded: Encoded | None = None
    passed: UpstreamResult | None = None
    """What another server answered, where that is what it is."""
    held: bool = False
    """Whether a policy answered."""

    def cut(self, instead: dict[str, Any]) -> "Outcome":
        """Return the same with something short in place of its data."""
        return Outcome(instead, self.error, self.content, held=self.held)


class Query(NamedTuple):
    """What reads a resource or makes a prompt, what it is given, and how its result is told."""

    tool: Tool
    arguments: object
    tell: Callable[[object], dict[str, Any]]


def to_outcome(call: Call, tool: Tool, result: object) -> Outcome:
    """Return a result as an answer can carry it.

    Raises:
        ToolError: `invalid_output` if it cannot.
    """
    if type(result) not in _PLAIN:  # asked first because asking for an envelope costs more than the rest
        if isinstance(result, UpstreamResult):
            encoded = Encoded(result.data, encode(result.data), result.characters, result.content)
            return Outcome(result.data, None, result.content, encoded, result)
        if isinstance(result, Envelope):
            return _kept(call, tool, result)
        if isinstance(result, Encoded):
            return Outcome(result.data, None, result.content, result)
        if isinstance(result, _BYTES):
            result = block_from_bytes(bytes(cast("bytes", result)))
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
    return Outcome(encoded.data, None, encoded.content, encoded)


def to_read_outcome(call: Call, query: Query, result: object) -> Outcome:
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
    return Outcome(data, None, (), Encoded(data, text, len(text) if text.isascii() else len(text.decode())))


def _kept(call: Call, tool: Tool, envelope: Envelope) -> Outcome:
    """Return a ready envelope as it is, once it is sure that it can be sent, with what it says of another yard's call."""
    error = envelope.error
    if envelope.success is not (error is None) or (error is not None and error.code not in CODES):
        raise _invalid(tool, "answered with an envelope that contradicts itself")
    _encoded(tool, error)
    encoded = _encoded(tool, envelope.data)
    call.inner_session_id = envelope.meta.session_id
    call.coerced = tuple(dict.fromkeys((*call.coerced, *envelope.meta.coerced)))
    call.warnings = tuple(dict.fromkeys((*call.warnings, *envelope.meta.warnings)))
    held = envelope.held or not call.may_have_run
    return Outcome(encoded.data, error, (*envelope.content, *encoded.content), encoded, envelope.passthrough, held)


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


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One finished call: never an argument, never a result."""

    call_id: str
    tool: str
    """The name of what was called: a tool, a resource or a prompt."""
    started: float
    """Seconds since the epoch."""
    elapsed_ms: float
    code: CodeName | None = None
    """Why it failed, if it did."""
    source: str = ""
    operation: str = ""
    parent_id: str | None = None
    depth: int = 0
    session_id: str | None = None
    identity: str = ""
    scope: str = ""
    profile: str = ""
    channel: str = ""
    trace_id: str | None = None
    may_have_run: bool = False
    estimated_tokens: int = 0
    kind: Kind = "tool"
    """What was called."""

    @property
    def success(self) -> bool:
        """Return whether the call went well."""
        return self.code is None


Sink = Callable[[Record], None]
"""Takes every record; it must be quick, and its failures are logged and go no further."""

_DEFECTS: Final = frozenset({"internal_error", "invalid_output"})
"""What is to be reported, by the id that the log has: an answer may go through other calls, which have ids of their own."""
_META: Final = len(',"_meta":')
_LONG_MS: Final = 10**8
"""More milliseconds than a call takes whose answer anybody waits for."""
_log = logging.getLogger(__name__)


def finish(call: Call, fitted: Outcome, sinks: Sequence[Sink], *, slow: float) -> Envelope:
    """Return the stamped answer, having recorded the call."""
    elapsed = time.perf_counter() - call.started
    error, encoded = fitted.error, fitted.encoded
    if error is not None and error.code in _DEFECTS:
        error = msgspec.structs.replace(error, details={"call_id": call.id, **error.details})
    tokens = (
        -(-(WRAPPER_CHARACTERS + encoded.characters) // 4) if encoded is not None and error is None else estimate_tokens(fitted.data, error)
    )
    session_id = call.inner_session_id if call.session is None else call.session.id
    meta = Meta(call.id, int(elapsed * 1000), tokens, session_id, call.coerced, call.warnings)
    answer = Envelope(error is None, fitted.data, error, meta)
    if fitted.content:
        answer.content = fitted.content
    if fitted.passed is not None:
        answer.passthrough = fitted.passed
    if fitted.held:
        answer.held = True
    if sinks:
        _record(call, answer, elapsed, sinks)
    if elapsed - call.paused_s > slow:
        code = error.code if error is not None else "ok"
        _log.warning("slow tool=%s ms=%d code=%s id=%s", call.tool, elapsed * 1000, code, call.id)
    return answer


def room_for_data(call: Call, characters: int) -> int:
    """Return how many characters of a good answer its data may be, where the whole may have so many; less than none if nothing fits."""
    coerced, warnings, one = call.coerced, call.warnings, call
    while one.parent is not None:  # whose answer this one may become
        one = one.parent
        coerced, warnings = coerced + one.coerced, warnings + one.warnings
    session_id = call.inner_session_id if call.session is None else call.session.id
    meta = Meta(call.id, _LONG_MS, characters, session_id, coerced, warnings)
    return characters - WRAPPER_CHARACTERS - _META - len(encode(meta).decode())


def _record(call: Call, answer: Envelope, elapsed: float, sinks: Sequence[Sink]) -> None:
    spec, caller, parent, error = call.spec, call.caller, call.parent, answer.error
    record = Record(
        call.id,
        spec.name if spec is not UNKNOWN_TOOL else call.tool,
        time.time() - elapsed,
        elapsed * 1000,
        None if error is None else error.code,
        spec.source,
        spec.operation if spec is not UNKNOWN_TOOL else "",
        None if parent is None else parent.id,
        call.depth,
        answer.meta.session_id,
        caller.identity,
        caller.scope,
        call.profile.name,
        call.channel.name,
        call.channel.trace_id,
        call.may_have_run if error is None else error.may_have_run,
        answer.meta.estimated_tokens,
        spec.kind,
    )
    for sink in sinks:
        try:
            sink(record)
        except BaseException:  # noqa: BLE001 - a sink may raise anything, and must not fail the call
            _log.exception("sink_failed id=%s", call.id)


def failure_from(error: ToolError, call: Call) -> Outcome:
    """Return a failure with what is known of the call: whether it ran, and whether running it twice would do harm."""
    _check_reason(error, call)
    envelope = Envelope.fail(error, tool_id=call.tool, may_have_run=call.may_have_run, safe=call.spec.safe)
    encoded = _encoded_partial(envelope.data)
    if encoded is None:
        return Outcome(None, envelope.error)
    return Outcome(encoded.data, envelope.error, (*envelope.content, *encoded.content), encoded)


def defect_from(error: BaseException, call: Call) -> ToolError:
    """Log what nobody foresaw, and return the one plain sentence that is said of it."""
    _log.error("defect tool=%s id=%s type=%s", call.tool, call.id, type(error).__name__, exc_info=error)
    return ToolError("internal_error", f"The {call.at_fault} failed in a way it did not foresee.", blame=call.at_fault)


def stopped_by(call: Call, seconds: float) -> ToolError:
    """Return the failure that the interruption of a call stands for; the seconds are those it had."""
    spec = call.spec
    if call.stopped == "cancelled":
        why = "The yard is closing" if call.stopped_by == "yard" else f"'{spec.name}' was cancelled"
        return ToolError("cancelled", f"{why}.", blame=call.stopped_by)
    hurried = 0 < call.seconds <= seconds
    seconds = call.seconds if hurried else seconds
    return ToolError(
        "timeout",
        f"'{spec.name}' did not finish within {seconds:.3g} seconds.",
        hint=spec.timeout_hint if not hurried else "Give it more time." if spec.safe or not call.may_have_run else None,
        blame="caller" if hurried else "upstream" if call.at_fault == "upstream" else "tool" if call.may_have_run else "yard",
        may_have_run=call.may_have_run,
        timeout_ms=round(seconds * 1000),
    )


def _check_reason(error: ToolError, call: Call) -> None:
    """Warn of a failure that does not keep to what the tool declared."""
    reason = error.details.get("reason")
    if reason is None or not call.may_have_run or reason in OWN_REASONS:
        return
    known = call.spec.reasons.get(str(reason))
    if known is None:
        _log.warning("undeclared_reason tool=%s id=%s", call.tool, call.id)
    elif known.code != error.code or any(key not in error.details for key in known.details):
        _log.warning("reason_differs_from_its_declaration tool=%s id=%s", call.tool, call.id)


def _encoded_partial(data: object) -> Encoded | None:
    """Return partial results as JSON, or nothing if they cannot be."""
    try:
        return None if data is None else encode_data(data)
    except TypeError:
        return None
