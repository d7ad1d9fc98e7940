"""The end of a call: its answer is stamped, its one record goes to the sinks, and a slow one is warned of."""

import logging
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from toolyard.call import Call
from toolyard.envelope import WRAPPING, Envelope, Meta, encode, estimate_tokens
from toolyard.fit import Fitted
from toolyard.record import Record, Sink
from toolyard.spec import NOTHING

__all__ = ["end", "room_for_data"]

_DEFECTS: Final = frozenset({"internal_error", "invalid_output"})
"""What is to be reported, by the id that the log has: an answer may go through other calls, which have ids of their own."""
_META: Final = len(',"_meta":')
_LONG_MS: Final = 10**8
"""More milliseconds than a call takes whose answer anybody waits for."""

_log = logging.getLogger(__name__)


def end(call: Call, fitted: Fitted, sinks: Sequence[Sink], *, slow: float) -> Envelope:
    """Return the stamped answer, having recorded the call."""
    elapsed = time.perf_counter() - call.started
    error, encoded = fitted.error, fitted.encoded
    if error is not None and error.code in _DEFECTS:
        error = msgspec.structs.replace(error, details={"call_id": call.id, **error.details})
    tokens = -(-(WRAPPING + encoded.characters) // 4) if encoded is not None and error is None else estimate_tokens(fitted.data, error)
    session_id = call.inner_session_id if call.session is None else call.session.id
    meta = Meta(call.id, int(elapsed * 1000), tokens, session_id, call.coerced, call.warnings)
    answer = Envelope(error is None, fitted.data, error, meta)
    if fitted.content:
        answer.beside(fitted.content)
    if fitted.passed is not None:
        answer.passing(fitted.passed)
    if fitted.held:
        answer.holding()
    if sinks:
        _record(call, answer, elapsed, sinks)
    if elapsed - call.aside > slow:
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
    return characters - WRAPPING - _META - len(encode(meta).decode())


def _record(call: Call, answer: Envelope, elapsed: float, sinks: Sequence[Sink]) -> None:
    spec, caller, parent, error = call.spec, call.caller, call.parent, answer.error
    record = Record(
        call.id,
        spec.name if spec is not NOTHING else call.tool,
        time.time() - elapsed,
        elapsed * 1000,
        None if error is None else error.code,
        spec.source,
        spec.operation if spec is not NOTHING else "",
        None if parent is None else parent.id,
        call.depth,
        answer.meta.session_id,
        caller.identity,
        caller.scope,
        call.profile.name,
        call.door.name,
        call.door.trace_id,
        call.running if error is None else error.may_have_run,
        answer.meta.estimated_tokens,
        spec.kind,
    )
    for sink in sinks:
        try:
            sink(record)
        except BaseException:  # noqa: BLE001 - a sink may raise anything, and must not fail the call
            _log.exception("sink_failed id=%s", call.id)
