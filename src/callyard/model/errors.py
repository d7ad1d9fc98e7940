"""The closed set of error codes, and `ToolError`, the exception that carries one.

It must not know tools, calls or envelopes.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

__all__ = [
    "CODES",
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

_SHORTENED_CHARACTERS: Final = 200

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
    """One reason for a failed call, and what a caller may conclude from it."""

    name: CodeName
    exit: int
    """Exit status of the command line; 1 and 2 are left to Python and to wrong usage."""
    http: int
    retryable: bool
    recoverable: bool
    common: bool
    """Whether any call may fail with it, so that descriptions of tools leave it out."""
    blame: Blame
    may_have_run: MayHaveRun
    meaning: str
    hint: str


# A header, then three lines for each code: its facts, its meaning, its hint.
_TABLE: Final = """\
name                 exit http retryable recoverable common blame    may_have_run
invalid_input        10   400  no        yes         yes    caller   no
  The arguments do not fit the schema, or fit it and make no sense.
  Correct the arguments named in 'issues' and call again.
eval_blocked         11   400  no        yes         no     caller   no
  The payload of an eval tool uses a blocked word or construct.
  Remove what 'details' names, or use a tool made for the purpose.
unauthenticated      12   401  no        yes         yes    caller   no
  Credentials are missing or wrong, the caller's or those for an upstream.
  Sign in as 'next_actions' says, then call again.
permission_denied    13   403  no        no          yes    policy   no
  The profile or a policy forbids the call.
  Do not try again: ask the operator of the yard.
approval_denied      14   403  no        no          yes    policy   no
  A person said no, or the approval expired.
  Do not try again: tell the person what you wanted to do and why.
tool_not_found       15   404  no        yes         yes    caller   no
  The caller has no such tool, or it is not available now and the answer says why.
  Use one of the names in 'similar', or list the tools.
not_found            16   404  no        yes         no     caller   maybe
  The tool ran, and what it was asked for does not exist.
  Look up what exists, then call again with that.
not_running          17   409  no        yes         no     caller   no
  No live session of this caller matches.
  Start a session, or pass one of 'available_sessions'.
state_error          18   409  no        yes         no     caller   maybe
  The target is not in a state that allows this.
  Look at the state first, then do what it allows.
too_large            19   413  no        yes         yes    caller   no
  The arguments or the result are over a limit and cannot become a handle.
  Ask for less, or pass less at a time.
code_error           20   422  no        yes         no     caller   maybe
  The code to run raised an error.
  Correct the code at the line named and run it again.
limit_exceeded       21   422  no        yes         yes    caller   maybe
  A limit of time, memory, output, depth or calls inside a run was reached.
  Do less in one run.
chain_step_failed    22   424  no        yes         no     caller   maybe
  A chain stopped at a step that failed.
  Correct the step that 'step_index' names; the steps before it have run.
rate_limited         23   429  yes       yes         yes    policy   no
  The caller calls more often than it may.
  Wait for 'retry_after_ms', then call again.
budget_exceeded      24   429  no        no          yes    policy   no
  A budget of tokens or calls is used up.
  Finish with what you have, or ask the operator of the yard for more.
cancelled            25   499  no        yes         yes    caller   maybe
  The caller went away or cancelled the call.
  Look at the state before you start over.
internal_error       26   500  no        no          yes    yard     maybe
  A defect; its traceback is in the log.
  Do not try again: report it with the 'call_id' in 'details'.
invalid_output       27   500  no        no          yes    tool     yes
  The tool returned nothing, or a value that its own schema forbids.
  Do not try again: report it with the 'call_id' in 'details'.
not_supported        28   501  no        yes         yes    caller   no
  The request is understood but not supported here.
  Call again without what is not supported.
not_implemented      29   501  no        no          no     tool     no
  The tool is not written yet.
  Use another tool; 'details' say what is missing.
upstream_error       30   502  no        yes         no     upstream maybe
  A service that the tool depends on answered with an error.
  Read the upstream's own message in 'details'.
upstream_unavailable 31   503  yes       yes         no     upstream no
  A service that the tool depends on cannot be reached now.
  Wait for 'retry_after_ms', then call again.
overloaded           32   503  yes       yes         yes    yard     no
  The yard has no room for another call now.
  Wait a moment, then call again.
runtime_unavailable  33   503  no        no          no     yard     no
  The requested runtime is not installed.
  Ask the operator of the yard to install it.
timeout              34   504  yes       yes         yes    tool     yes
  The deadline passed and the work was cancelled.
  Ask for less, or look at the state and call again.
"""


def _read_table() -> Iterator[Code]:
    _, *lines = _TABLE.splitlines()
    for facts, meaning, hint in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, exit_status, http, *flags, blame, may_have_run = facts.split()
        retryable, recoverable, common = (flag == "yes" for flag in flags)
        yield Code(
            name=cast("CodeName", name),
            exit=int(exit_status),
            http=int(http),
            retryable=retryable,
            recoverable=recoverable,
            common=common,
            blame=cast("Blame", blame),
            may_have_run=cast("MayHaveRun", may_have_run),
            meaning=meaning.strip(),
            hint=hint.strip(),
        )


CODES: Final[Mapping[CodeName, Code]] = {code.name: code for code in _read_table()}


class ToolError(Exception):
    """A failed call: a code of the closed set and a message; further keywords become its details."""

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


def refused(code: CodeName, message: str, **details: Any) -> ToolError:
    """Return a failure that came before anything ran."""
    return ToolError(code, message, may_have_run=False, **details)


def invalid_input(message: str, *, field: str, **details: Any) -> ToolError:
    """Return the failure of one argument that fits its schema but makes no sense."""
    return ToolError(
        "invalid_input", message, issues=[{"field": field, "code": "value_error", "message": message}], **details
    )


def not_found(kind: str, name: object, **details: Any) -> ToolError:
    """Return the failure to find something of a kind by its name."""
    return ToolError("not_found", f"There is no {kind} '{shortened(str(name))}'.", kind=kind, **details)


def not_implemented(missing: str, **details: Any) -> ToolError:
    """Return the failure of a tool that is not written yet."""
    return ToolError("not_implemented", f"{missing} is not written yet.", missing=missing, **details)


def shortened(text: str) -> str:
    """Return a text of the caller for use in a message, cut to a readable length."""
    return text if len(text) <= _SHORTENED_CHARACTERS else f"{text[:_SHORTENED_CHARACTERS]}…"
