"""Outcome: from what a handler returned or raised to the envelope and the record of its call."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Literal, Protocol, cast

import msgspec

from callyard._internal.logfmt import log_exception
from callyard.dispatch.call import Call
from callyard.dispatch.run import Run, outermost, run_of
from callyard.dispatch.tool import Tool
from callyard.model.content import MAX_BLOCKS, Block, Text, block_from_bytes
from callyard.model.elicitation import OWN_REASONS, STORE_UNAVAILABLE
from callyard.model.envelope import (
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
from callyard.model.errors import CODES, Blame, CodeName, ToolError
from callyard.model.schema import SchemaValidator
from callyard.model.spec import UNKNOWN_TOOL, Kind
from callyard.state.store import RETRY_AFTER_MS, StoreUnavailableError

__all__ = [
    "Decision",
    "Finished",
    "Observer",
    "Outcome",
    "Query",
    "Record",
    "RecordSinks",
    "Sink",
    "defect_from",
    "failure_from",
    "finish",
    "room_for_data",
    "stopped_by",
    "store_unavailable",
    "to_outcome",
    "to_read_outcome",
]


_BLOCK_BYTES: Final = 32 * 1024 * 1024
_READ_BYTES: Final = _BLOCK_BYTES // 3 * 4
"""The most bytes of a resource or prompt: as many as blocks, as base64."""
_PLAIN: Final = frozenset({int, float, str, bool, list, dict, type(None)})
_BYTES: Final = (bytes, bytearray, memoryview)


class Outcome(msgspec.Struct, frozen=True, gc=False):
    """The result of a call before it becomes an envelope."""

    data: Any
    error: Failure | None = None
    content: tuple[Content, ...] = ()
    encoded: Encoded | None = None
    passed: UpstreamResult | None = None
    held: bool = False
    """Whether a policy answered in place of the tool."""
    shortened: bool = False
    """Whether its data were too long and became a handle."""

    def cut(self, instead: dict[str, Any]) -> "Outcome":
        """Return the outcome with something short in place of its data."""
        return Outcome(instead, self.error, self.content, held=self.held, shortened=True)


class Query(msgspec.Struct, frozen=True):
    """A resource or prompt to read: its handler as a tool, the arguments, and how its result becomes MCP's."""

    tool: Tool
    arguments: object
    to_mcp: Callable[[object], dict[str, Any]]


def to_outcome(run: Run, tool: Tool, result: object) -> Outcome:
    """Return the outcome of a handler's result.

    Raises:
        ToolError: `invalid_output` if the result does not fit.
    """
    if type(result) not in _PLAIN:  # checked first: five instance checks cost more than the rest
        if isinstance(result, UpstreamResult):
            encoded = Encoded(result.data, encode(result.data), result.characters, result.content)
            return Outcome(result.data, None, result.content, encoded, result)
        if isinstance(result, Envelope):
            return _from_envelope(run, tool, result)
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
    fits = tool.fits_output
    if fits is not None and not fits(encoded.data):
        raise _misfit(run.call, tool, encoded.data)
    return Outcome(encoded.data, None, encoded.content, encoded)


def to_read_outcome(run: Run, query: Query, result: object) -> Outcome:
    """Return the outcome of reading a resource or prompt.

    Raises:
        ToolError: `invalid_output` if the result does not fit, `too_large` if it is too long.
    """
    if isinstance(result, Envelope):
        return _from_envelope(run, query.tool, result)
    if result is None:
        raise _invalid(query.tool, "answered nothing")
    try:
        data = query.to_mcp(result)
        text = encode(data)
    except TypeError:
        raise _invalid(query.tool, f"answered what no {query.tool.spec.kind} can hold") from None
    if len(text) > _READ_BYTES:
        message = f"The answer has {len(text)} bytes; at most {_READ_BYTES} are sent."
        raise ToolError("too_large", message, may_have_run=True, bytes=len(text), limit=_READ_BYTES)
    return Outcome(data, None, (), Encoded(data, text, len(text) if text.isascii() else len(text.decode())))


def _from_envelope(run: Run, tool: Tool, envelope: Envelope) -> Outcome:
    """Return the outcome of a handler that answered with an envelope, such as that of another yard."""
    call, error = run.call, envelope.error
    if envelope.success is not (error is None) or (error is not None and error.code not in CODES):
        raise _invalid(tool, "answered with an envelope that contradicts itself")
    _encoded(tool, error)
    encoded = _encoded(tool, envelope.data)
    run.inner_session_id = envelope.meta.session_id
    call.coerced = tuple(dict.fromkeys((*call.coerced, *envelope.meta.coerced)))
    call.warnings = tuple(dict.fromkeys((*call.warnings, *envelope.meta.warnings)))
    call.next_page = call.next_page or envelope.meta.next_page
    held = envelope.held or not call.may_have_run
    content = (*envelope.content, *encoded.content)
    return Outcome(encoded.data, error, content, encoded, passed=envelope.passthrough, held=held)


def _encoded(tool: Tool, value: object) -> Encoded:
    try:
        encoded = encode_data(value)
    except TypeError:
        raise _unwritable(tool) from None
    _check_blocks(encoded)
    return encoded


def _check_blocks(encoded: Encoded) -> None:
    if len(encoded.content) > MAX_BLOCKS:
        message = f"The answer has {len(encoded.content)} content blocks; at most {MAX_BLOCKS} are sent."
        raise ToolError("too_large", message, may_have_run=True, limit=MAX_BLOCKS)
    size = sum(len(block.data) for block in encoded.content if isinstance(block, Block))
    if size > _BLOCK_BYTES:
        message = f"The blocks have {size} bytes; at most {_BLOCK_BYTES} are sent."
        raise ToolError("too_large", message, may_have_run=True, limit=_BLOCK_BYTES)


def _misfit(call: Call, tool: Tool, data: object) -> ToolError:
    """Log where a result does not fit its tool's schema, by types and not by contents, and return the failure."""
    schema = tool.spec.output_schema
    found = [] if schema is None else SchemaValidator(schema).mismatches(data)
    issues: list[dict[str, str]] = []
    for one in found:
        message = f"'{one.field}': {one.came} came, not {one.expected}."
        issues.append({"field": one.field, "expected": one.expected, "came": one.came, "message": message})
        facts = (call.tool, call.id, one.field, one.expected, one.came)
        _log.warning("invalid_output tool=%s id=%s field=%s expected=%r came=%s", *facts)
    what = "answered what its own schema forbids" + (f": {issues[0]['message'].removesuffix('.')}" if issues else "")
    return _invalid(tool, what, issues=issues)


def _unwritable(tool: Tool) -> ToolError:
    return _invalid(tool, "answered what cannot be written as JSON")


def _invalid(tool: Tool, what: str, **details: Any) -> ToolError:
    return ToolError("invalid_output", f"'{tool.spec.name}' {what}.", **details)


Decision = Literal["allow", "ask", "deny"]
"""What policies and limiters decided about a call."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One finished call, without arguments and results."""

    call_id: str
    tool: str
    """The name of the tool or prompt, or the URI of the resource."""
    started: float
    """Seconds since the epoch."""
    elapsed_ms: float
    code: CodeName | None = None
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
    blame: Blame | None = None
    coerced: int = 0
    """How many arguments were repaired."""
    waited_ms: float = 0.0
    """How long it waited for policies, limiters and people."""
    bytes: int = 0
    """The size of its data as JSON."""
    held: bool = False
    """Whether a policy answered in place of the tool."""
    decision: Decision | None = None
    """What policies and limiters decided; nothing if the call failed before they were asked."""
    outer: str = ""
    """The name that was called from outside, if another call started this one."""
    client: str = ""
    """The name that the caller's client states."""
    span_id: str | None = None
    """The span of the call, where its yard is traced."""

    @property
    def success(self) -> bool:
        """Return whether the call went well."""
        return self.code is None


Sink = Callable[[Record], None]
"""Takes every record. It must be quick; its failures are logged and go no further."""


class Observer(Protocol):
    """Sees every call begin and end. It must be quick; its failures are logged. Either method may be missing."""

    def started(self, call: Call) -> None:
        """Take a call that has just come in."""
        ...

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:
        """Take a call with its answer, and with its result before a large one became a handle."""
        ...


Finished = Callable[[Call, Envelope, Outcome], None]


class RecordSinks:
    """The observer that hands a record of each call to the sinks."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.sinks = list(sinks)

    def finished(self, call: Call, envelope: Envelope, result: Outcome) -> None:
        """Record a call."""
        if not self.sinks:
            return
        record = _record(run_of(call), envelope, result)
        for sink in self.sinks:
            try:
                sink(record)
            except BaseException:  # noqa: BLE001 - a sink may raise anything, and must not fail the call
                log_exception(_log, "sink_failed id=%s", call.id)


def _record(run: Run, envelope: Envelope, result: Outcome) -> Record:
    call, parent, error, meta = run.call, run.parent, envelope.error, envelope.meta
    spec, caller, channel, span = call.spec, call.caller, call.channel, run.span
    return Record(
        call_id=run.id,
        tool=call.tool,
        started=time.time() - run.elapsed_s,
        elapsed_ms=run.elapsed_s * 1000.0,
        code=None if error is None else error.code,
        source=spec.source,
        operation="" if spec is UNKNOWN_TOOL else spec.operation,
        parent_id=None if parent is None else parent.id,
        depth=run.depth,
        session_id=meta.session_id,
        identity=caller.identity,
        scope=caller.scope,
        profile=call.profile.name,
        channel=channel.name,
        trace_id=channel.trace_id if span is None else span.trace_id,
        may_have_run=call.may_have_run if error is None else error.may_have_run,
        estimated_tokens=meta.estimated_tokens,
        kind=spec.kind,
        blame=None if error is None else error.blame,
        coerced=len(meta.coerced),
        waited_ms=(run.queued_s + run.paused_s) * 1000.0,
        bytes=0 if result.encoded is None else len(result.encoded.text),
        held=envelope.held,
        decision="allow" if call.may_have_run else _decision_on(run, envelope),
        outer="" if parent is None else outermost(parent).name,
        client=caller.client,
        span_id=None if span is None else span.span_id,
    )


_DEFECTS: Final = frozenset({"internal_error", "invalid_output"})
"""Failures whose details carry the call id, so that they can be found in the log after passing through other calls."""
_LARGE_CHARACTERS: Final = 4096
"""Beyond this, encoding the data again takes longer than carrying their text along."""
_META: Final = len(',"_meta":')
_LONG_MS: Final = 10**8
"""An upper bound of `elapsed_ms`, to reserve room for its digits."""
_log = logging.getLogger(__name__)


def finish(
    run: Run, outcome: Outcome, observers: Sequence[Finished], *, slow: float, result: Outcome | None = None
) -> Envelope:
    """Return the answer of a call, stamped with what the call cost, after the observers have seen it.

    `result` is the outcome before large data became a handle.
    """
    run.elapsed_s = time.perf_counter() - run.started
    answer = _stamped(run, outcome)
    if run.elapsed_s - run.paused_s - run.queued_s > slow:
        code = answer.error.code if answer.error is not None else "ok"
        _log.warning("slow tool=%s ms=%d code=%s id=%s", run.call.tool, run.elapsed_s * 1000, code, run.id)
    for finished in observers:
        try:
            finished(run.call, answer, outcome if result is None else result)
        except BaseException:  # noqa: BLE001 - an observer may raise anything, and must not fail the call
            log_exception(_log, "observer_failed id=%s", run.id)
    return answer


def _stamped(run: Run, outcome: Outcome) -> Envelope:
    call, error, encoded = run.call, outcome.error, outcome.encoded
    if error is not None and error.code in _DEFECTS:
        error = msgspec.structs.replace(error, details={"call_id": run.id, **error.details})
    is_plain = error is None and (call.spec.shape == "plain" or call.profile.shape == "plain")
    tokens = _plain_tokens(outcome) if is_plain else _tokens(outcome, error)
    session_id = run.inner_session_id if call.session is None else call.session.id
    meta = Meta(
        run.id,
        int(run.elapsed_s * 1000.0),
        tokens,
        session_id,
        call.coerced,
        warnings=call.warnings,
        next_page=call.next_page,
    )
    answer = Envelope(error is None, outcome.data, error, meta)
    if outcome.content or outcome.passed is not None or outcome.held:  # an attribute makes a dict, which takes time
        answer.content, answer.passthrough, answer.held = outcome.content, outcome.passed, outcome.held
    if encoded is not None and encoded.characters > _LARGE_CHARACTERS:
        answer.encoded_data = encoded.text
    if is_plain:
        answer.has_plain_shape = True
        if outcome.shortened:
            answer.shortened_of = call.spec
    return answer


def _tokens(outcome: Outcome, error: Failure | None) -> int:
    if error is not None or outcome.encoded is None:
        return estimate_tokens(outcome.data, error)
    return -(-(WRAPPER_CHARACTERS + outcome.encoded.characters) // 4)


def _plain_tokens(outcome: Outcome) -> int:
    """Return an estimate of the tokens in a success that is sent without the envelope."""
    texts = [block.text for block in outcome.content if isinstance(block, Text)]
    if texts:
        characters = sum(map(len, texts))
    elif isinstance(outcome.data, str):
        characters = len(outcome.data)
    else:
        characters = len(encode(outcome.data).decode()) if outcome.encoded is None else outcome.encoded.characters
    return -(-characters // 4)


def room_for_data(run: Run, characters: int) -> int:
    """Return how many characters the data may have in an answer of so many characters; negative if nothing fits."""
    call, parent = run.call, run.parent
    coerced, warnings = call.coerced, call.warnings
    while parent is not None:  # this answer may become the answer of its parent
        coerced, warnings = coerced + parent.call.coerced, warnings + parent.call.warnings
        parent = parent.parent
    session_id = run.inner_session_id if call.session is None else call.session.id
    meta = Meta(
        call.id,
        _LONG_MS,
        characters,
        session_id=session_id,
        coerced=coerced,
        warnings=warnings,
        next_page=call.next_page,
    )
    return characters - WRAPPER_CHARACTERS - _META - len(encode(meta).decode())


def _decision_on(run: Run, answer: Envelope) -> Decision | None:
    """Return the decision on a call whose handler did not run, or did nothing."""
    if not run.finished:  # it never got as far as the policies
        return None
    if not run.is_admitted:
        return "deny" if answer.error is not None and answer.error.blame == "policy" else None
    return "ask" if answer.held else "allow"


def failure_from(error: ToolError, run: Run) -> Outcome:
    """Return the outcome of a failure."""
    call = run.call
    _check_reason(error, call)
    envelope = Envelope.fail(error, tool_id=call.tool, may_have_run=call.may_have_run, safe=call.spec.safe)
    try:
        encoded = None if envelope.data is None else encode_data(envelope.data)
    except TypeError:  # partial results that cannot be written are left out
        encoded = None
    if encoded is None:
        return Outcome(None, envelope.error)
    return Outcome(encoded.data, envelope.error, (*envelope.content, *encoded.content), encoded)


def defect_from(error: BaseException, run: Run) -> ToolError:
    """Log an unexpected exception and where it was raised, and return a failure without it.

    A store logs its own failures.
    """
    call = run.call
    if isinstance(error, StoreUnavailableError):
        return store_unavailable(error, may_have_run=call.may_have_run or error.may_have_run)
    facts = (call.tool, call.id, type(error).__name__)
    log_exception(_log, "defect tool=%s id=%s type=%s", *facts, error=error, contents=lambda: _contents(call))
    return ToolError("internal_error", f"The {run.at_fault} failed in a way it did not foresee.", blame=run.at_fault)


def _contents(call: Call) -> Iterator[str]:
    """Yield the texts that came with a call, which may be secrets."""
    yield from (*call.channel.headers.values(), *call.channel.forwarded.values())
    waiting: list[Any] = [call.arguments, msgspec.to_builtins(call.channel.meta)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict | list):
            items = cast("dict[str, Any]", value).values() if isinstance(value, dict) else cast("list[Any]", value)
            waiting.extend(items)


def store_unavailable(error: StoreUnavailableError, *, may_have_run: bool) -> ToolError:
    """Return the failure of a call that needs the store, which cannot be used now, or not before a person mends it."""
    if error.is_lasting:
        return ToolError(
            "state_error",
            "The store of the yard cannot be used.",
            hint="Do not try again: tell the operator of the yard that its log says what is wrong with the store.",
            reason=STORE_UNAVAILABLE,
            blame="yard",
            may_have_run=may_have_run,
        )
    return ToolError(
        "overloaded",
        "The store of the yard cannot be used now.",
        hint=None if may_have_run else "Wait for 'retry_after_ms', then call again.",
        reason=STORE_UNAVAILABLE,
        blame="yard",
        may_have_run=may_have_run,
        retry_after_ms=RETRY_AFTER_MS,
    )


def stopped_by(run: Run, seconds: float, partial: ToolError | None = None) -> ToolError:
    """Return the failure of a call that was stopped: `cancelled`, or `timeout` after so many seconds.

    It keeps the data of the failure that the handler raised when it was stopped, and its hint.
    """
    spec = run.call.spec
    data, hint = (None, None) if partial is None or partial.data is None else (partial.data, partial.hint)
    if run.stopped == "cancelled":
        why = "The yard is closing" if run.stopped_by == "yard" else f"'{spec.name}' was cancelled"
        return ToolError("cancelled", f"{why}.", hint=hint, blame=run.stopped_by, data=data)
    hurried = 0 < run.options.seconds <= seconds
    seconds = run.options.seconds if hurried else seconds
    return ToolError(
        "timeout",
        f"'{spec.name}' did not finish within {seconds:.3g} seconds.",
        hint=hint or _timeout_hint(run, hurried=hurried),
        blame=_late(run, hurried=hurried),
        may_have_run=run.call.may_have_run,
        data=data,
        timeout_ms=round(seconds * 1000),
    )


def _timeout_hint(run: Run, *, hurried: bool) -> str | None:
    """Return what to do about a call that was too slow, for its tool or for its caller."""
    if not hurried:
        return run.call.spec.timeout_hint
    return "Give it more time." if run.call.spec.safe or not run.call.may_have_run else None


def _late(run: Run, *, hurried: bool) -> Blame:
    if hurried:
        return "caller"
    if run.at_fault == "upstream":
        return "upstream"
    return "tool" if run.call.may_have_run else "yard"


def _check_reason(error: ToolError, call: Call) -> None:
    """Log a failure whose reason the tool does not declare."""
    reason = error.details.get("reason")
    if reason is None or not call.may_have_run or reason in OWN_REASONS:
        return
    known = call.spec.reasons.get(str(reason))
    if known is None:
        _log.warning("undeclared_reason tool=%s id=%s", call.tool, call.id)
    elif known.code != error.code or any(key not in error.details for key in known.details):
        _log.warning("reason_differs_from_its_declaration tool=%s id=%s", call.tool, call.id)
