"""Failures: what went wrong with a call, as an answer can carry it."""

import logging

from toolyard.asks import OWN_REASONS
from toolyard.call import Call
from toolyard.envelope import Encoded, Envelope, encode_data
from toolyard.errors import ToolError
from toolyard.fit import Fitted

__all__ = ["defect", "failed", "stopped"]

_log = logging.getLogger(__name__)


def failed(error: ToolError, call: Call) -> Fitted:
    """Return a failure with what is known of the call: whether it ran, and whether running it twice would do harm."""
    _check_reason(error, call)
    envelope = Envelope.fail(error, tool_id=call.tool, may_have_run=call.running, safe=call.spec.safe)
    encoded = _encoded(envelope.data)
    if encoded is None:
        return Fitted(None, envelope.error)
    return Fitted(encoded.data, envelope.error, (*envelope.content, *encoded.content), encoded)


def defect(error: BaseException, call: Call) -> ToolError:
    """Log what nobody foresaw, and return the one plain sentence that is said of it."""
    _log.error("defect tool=%s id=%s type=%s", call.tool, call.id, type(error).__name__, exc_info=error)
    return ToolError("internal_error", f"The {call.at_fault} failed in a way it did not foresee.", blame=call.at_fault)


def stopped(call: Call, seconds: float) -> ToolError:
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
        hint=spec.timeout_hint if not hurried else "Give it more time." if spec.safe or not call.running else None,
        blame="caller" if hurried else "upstream" if call.at_fault == "upstream" else "tool" if call.running else "yard",
        may_have_run=call.running,
        timeout_ms=round(seconds * 1000),
    )


def _check_reason(error: ToolError, call: Call) -> None:
    """Warn of a failure that does not keep to what the tool declared."""
    reason = error.details.get("reason")
    if reason is None or not call.running or reason in OWN_REASONS:
        return
    known = call.spec.reasons.get(str(reason))
    if known is None:
        _log.warning("undeclared_reason tool=%s id=%s", call.tool, call.id)
    elif known.code != error.code or any(key not in error.details for key in known.details):
        _log.warning("reason_differs_from_its_declaration tool=%s id=%s", call.tool, call.id)


def _encoded(data: object) -> Encoded | None:
    """Return partial results as JSON, or nothing if they cannot be."""
    try:
        return None if data is None else encode_data(data)
    except TypeError:
        return None
