"""Faults: what went wrong with a call, as an answer can carry it."""

import logging
from typing import Any

from toolyard.call import Call
from toolyard.envelope import Envelope, encode_data
from toolyard.errors import ToolError
from toolyard.fit import Fitted

__all__ = ["defect", "failed"]

_log = logging.getLogger(__name__)


def failed(error: ToolError, call: Call) -> Fitted:
    """Return a failure with what is known of the call: whether it ran, and whether running it twice would do harm."""
    reason = error.details.get("reason")
    if reason is not None and call.running and reason not in call.spec.reasons:
        _log.warning("undeclared_reason tool=%s id=%s", call.tool, call.id)
    envelope = Envelope.fail(error, tool_id=call.tool, may_have_run=call.running, safe=call.spec.safe)
    return Fitted(_plain(envelope.data), envelope.error)


def defect(error: BaseException, call: Call) -> ToolError:
    """Log what nobody foresaw, and return the one plain sentence that is said of it."""
    _log.error("defect tool=%s id=%s type=%s", call.tool, call.id, type(error).__name__, exc_info=error)
    if call.running:
        return ToolError("internal_error", "The tool failed in a way it did not foresee.", blame="tool")
    return ToolError("internal_error", "The yard failed in a way it did not foresee.")


def _plain(data: object) -> Any:
    """Return partial results as plain JSON, or nothing if they cannot be."""
    try:
        return None if data is None else encode_data(data).data
    except TypeError:
        return None
