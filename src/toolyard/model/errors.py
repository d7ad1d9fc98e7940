"""The closed set of reasons a call can fail with, and the one exception that carries one.

It knows nothing of tools, calls or envelopes: a code is a row of facts.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CODES",
    "COMMON_CODES",
    "Blame",
    "Code",
    "CodeName",
    "MayHaveRun",
    "ToolError",
    "invalid_input",
    "not_found",
    "not_implemented",
    "shortened",
]

_REPEATED: Final = 200

Blame = Literal["caller", "policy", "upstream", "tool", "yard"]
MayHaveRun = Literal["no", "maybe", "yes"]
CodeName = Literal[
    "invalid_input",
    "eval_blocked",
    "unauthenticated",
    "permission_denied",
    "approval_denied",
    "tool_not_found",
    "not_found",
    "not_running",
    "state_error",
    "too_large",
    "code_error",
    "limit_exceeded",
    "chain_step_failed",
    "rate_limited",
    "budget_exceeded",
    "cancelled",
    "internal_error",
    "invalid_output",
    "not_supported",
    "not_implemented",
    "upstream_error",
    "upstream_unavailable",
    "overloaded",
    "runtime_unavailable",
    "timeout",
]


class Code(NamedTuple):
    """One reason a call can fail with, and what a caller may conclude from it."""

    name: CodeName
    exit: int
    """What the command line exits with; 1 and 2 are left to Python and to wrong usage."""
    http: int
    retryable: bool
    recoverable: bool
    blame: Blame
    may_have_run: MayHaveRun
    meaning: str
    hint: str


_ROWS: Final = (
    Code(
        "invalid_input", 10, 400, False, True, "caller", "no",
        "The arguments do not fit the schema, or fit it and make no sense.",
        "Correct the arguments named in 'issues' and call again.",
    ),
    Code(
        "eval_blocked", 11, 400, False, True, "caller", "no",
        "The payload of an eval tool uses a blocked word or construct.",
        "Remove what 'details' names, or use a tool made for the purpose.",
    ),
    Code(
        "unauthenticated", 12, 401, False, True, "caller", "no",
        "There are no credentials or bad ones, ours or an upstream's.",
        "Sign in as 'next_actions' says, then call again.",
    ),
    Code(
        "permission_denied", 13, 403, False, False, "policy", "no",
        "The profile or a policy forbids the call.",
        "Do not try again: ask whoever runs the yard.",
    ),
    Code(
        "approval_denied", 14, 403, False, False, "policy", "no",
        "A person said no, or the approval expired.",
        "Do not try again: tell the person what you wanted to do and why.",
    ),
    Code(
        "tool_not_found", 15, 404, False, True, "caller", "no",
        "There is no such tool for this caller, or it is not available now and the answer says why.",
        "Use one of the names in 'similar', or list the tools.",
    ),
    Code(
        "not_found", 16, 404, False, True, "caller", "maybe",
        "The tool ran, and what it was asked for does not exist.",
        "Look up what exists, then call again with that.",
    ),
    Code(
        "not_running", 17, 409, False, True, "caller", "no",
        "No live session of this caller matches.",
        "Start a session, or pass one of 'available_sessions'.",
    ),
    Code(
        "state_error", 18, 409, False, True, "caller", "maybe",
        "The thing is not in a state that allows this.",
        "Look at the state first, then do what it allows.",
    ),
    Code(
        "too_large", 19, 413, False, True, "caller", "no",
        "The arguments or the result are over a limit and cannot become a handle.",
        "Ask for less, or pass less at a time.",
    ),
    Code(
        "code_error", 20, 422, False, True, "caller", "maybe",
        "Code given to be run raised an error.",
        "Correct the code at the line named and run it again.",
    ),
    Code(
        "limit_exceeded", 21, 422, False, True, "caller", "maybe",
        "A limit of time, memory, output, depth or calls inside a run was reached.",
        "Do less in one run.",
    ),
    Code(
        "chain_step_failed", 22, 424, False, True, "caller", "maybe",
        "A chain stopped at a step that failed.",
        "Mend the step that 'step_index' names; the steps before it have run.",
    ),
    Code(
        "rate_limited", 23, 429, True, True, "policy", "no",
        "The caller calls more often than it may.",
        "Wait for 'retry_after_ms', then call again.",
    ),
    Code(
        "budget_exceeded", 24, 429, False, False, "policy", "no",
        "A budget of tokens or calls is used up.",
        "Finish with what you have, or ask whoever runs the yard for more.",
    ),
    Code(
        "cancelled", 25, 499, False, True, "caller", "maybe",
        "The caller went away or cancelled the call.",
        "Look at the state before you start over.",
    ),
    Code(
        "internal_error", 26, 500, False, False, "yard", "maybe",
        "A defect; its traceback is in the log.",
        "Do not try again: report it with the 'call_id' in 'details'.",
    ),
    Code(
        "invalid_output", 27, 500, False, False, "tool", "yes",
        "The tool answered nothing, or what its own schema forbids.",
        "Do not try again: report it with the 'call_id' in 'details'.",
    ),
    Code(
        "not_supported", 28, 501, False, True, "caller", "no",
        "The request is understood and not offered here.",
        "Call again without what is not supported.",
    ),
    Code(
        "not_implemented", 29, 501, False, False, "tool", "no",
        "The tool is not written yet.",
        "Use another tool; 'details' say what is missing.",
    ),
    Code(
        "upstream_error", 30, 502, False, True, "upstream", "maybe",
        "What the tool depends on answered with an error.",
        "Read the upstream's own words in 'details'.",
    ),
    Code(
        "upstream_unavailable", 31, 503, True, True, "upstream", "no",
        "What the tool depends on cannot be reached now.",
        "Wait for 'retry_after_ms', then call again.",
    ),
    Code(
        "overloaded", 32, 503, True, True, "yard", "no",
        "The yard has no room for another call now.",
        "Wait a moment, then call again.",
    ),
    Code(
        "runtime_unavailable", 33, 503, False, False, "yard", "no",
        "The runtime that was asked for is not there.",
        "Ask whoever runs the yard to install it.",
    ),
    Code(
        "timeout", 34, 504, True, True, "tool", "yes",
        "The deadline passed and the work was cancelled.",
        "Ask for less, or look at the state and call again.",
    ),
)  # fmt: skip

CODES: Final[Mapping[CodeName, Code]] = {row.name: row for row in _ROWS}

COMMON_CODES: Final[frozenset[CodeName]] = frozenset(
    {
        "invalid_input",
        "unauthenticated",
        "permission_denied",
        "approval_denied",
        "tool_not_found",
        "too_large",
        "limit_exceeded",
        "rate_limited",
        "budget_exceeded",
        "cancelled",
        "internal_error",
        "invalid_output",
        "not_supported",
        "overloaded",
        "timeout",
    }
)
"""What any call may answer with, and so what no description repeats."""


class ToolError(Exception):
    """A failure with a code of the closed set; the other keywords become its details."""

    def __init__(
        self,
        code: CodeName,
        message: str,
        *,
        reason: str | None = None,
        hint: str | None = None,
        next_actions: Sequence[str] = (),
        blame: Blame | None = None,
        may_have_run: bool | None = None,
        data: object = None,
        **details: object,
    ) -> None:
        super().__init__(message)
        if code not in CODES:
            raise ValueError(f"'{code}' is not a code.")
        self.code: CodeName = code
        self.message = message
        self.hint = hint
        self.next_actions = tuple(next_actions)
        self.blame: Blame | None = blame
        self.may_have_run = may_have_run
        self.data = data
        self.details: dict[str, object] = details if reason is None else {"reason": reason, **details}


def invalid_input(message: str, *, field: str, **details: Any) -> ToolError:
    """Return the failure of one argument that fits its schema and makes no sense."""
    return ToolError("invalid_input", message, issues=[{"field": field, "code": "value_error", "message": message}], **details)


def not_found(kind: str, name: object, **details: Any) -> ToolError:
    """Return the failure to find one thing of a kind."""
    return ToolError("not_found", f"There is no {kind} '{shortened(str(name))}'.", kind=kind, **details)


def not_implemented(missing: str, **details: Any) -> ToolError:
    """Return the failure of a stub, saying what is missing."""
    return ToolError("not_implemented", f"{missing} is not written yet.", missing=missing, **details)


def shortened(text: str) -> str:
    """Return what a caller wrote as an answer may repeat it: cut where it is longer than anybody would read."""
    return text if len(text) <= _REPEATED else f"{text[:_REPEATED]}…"
