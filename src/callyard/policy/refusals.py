"""Refusals by the queue, the rates and the budgets: one failure and one line in the log for each."""

import logging
from typing import Any, Literal

from callyard.dispatch.call import Call
from callyard.model.errors import CodeName, ToolError

__all__ = ["RefusalReason", "log_refusal", "refuse"]

RefusalReason = Literal[
    "queue_full",
    "not_started",
    "rate_of_all",
    "rate_of_caller",
    "rate_of_tool",
    "session_calls",
    "session_tokens",
    "caller_calls",
    "caller_tokens",
    "store_unavailable",
]
"""Why a call was refused, in `details.reason` and in the log."""
_log = logging.getLogger("callyard.policy")


def refuse(call: Call, code: CodeName, reason: RefusalReason, message: str, **details: Any) -> ToolError:
    """Log a refusal, and return the failure of a call that did not run."""
    log_refusal(call, code, reason)
    return ToolError(code, message, reason=reason, may_have_run=False, **details)


def log_refusal(call: Call, code: CodeName, reason: RefusalReason) -> None:
    """Write the line of a refusal."""
    _log.warning("refused tool=%s code=%s reason=%s depth=%d id=%s", call.tool, code, reason, call.depth, call.id)
