"""The metatool `run_tool`, with its alias `call_tool`, which calls one tool through the dispatcher.

Its answer is the answer of that tool.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn, Self, cast

import msgspec

from callyard.dispatch.call import Arguments, Call, Handler, InvokeOptions
from callyard.dispatch.progress import Progress
from callyard.dispatch.results import REF_KEY
from callyard.dispatch.run import Run, run_of
from callyard.dispatch.tool import Tool
from callyard.metatools.metatool import TEXT, YardParts, build_with_alias, object_schema
from callyard.model.coercion import Repair
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Envelope, encode_unchecked
from callyard.model.errors import ToolError
from callyard.model.schema import has_more_values
from callyard.model.signature import signature
from callyard.model.spec import Reason, ToolSpec

__all__ = ["WRAPPERS", "DelayedProgress", "is_pending", "is_stopped", "once", "run_metatools", "unwrap_arguments"]


_DELAY_S: Final = 0.1


class DelayedProgress:
    """Reports the progress of a call after a short delay, so that a quick call is answered by a single message."""

    def __init__(self, call: Call, first: Progress, *, is_forwarded: bool = False) -> None:
        self._call = call
        self._last = first
        self._is_due = False
        self.is_silent = not is_forwarded
        """Whether no inner call reported progress."""
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._call.channel.progress is not None:
            self._timer = asyncio.get_running_loop().call_later(_DELAY_S, self._send_due)
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, note: Progress) -> None:
        """Report progress now, or once the delay is over."""
        self._last = note
        if self._is_due:
            self._send()

    def forward(self, note: Progress) -> None:
        """Report the progress of an inner call at once; it replaces ours."""
        self.is_silent = False
        self._call.progress(note.done, note.total, note.text)

    def _send_due(self) -> None:
        self._is_due = True
        if self.is_silent:
            self._send()

    def _send(self) -> None:
        self._call.progress(self._last.done, self._last.total, self._last.text, own=True)


_INPUT_SCHEMA: Final = object_schema(
    "tool_id",
    tool_id=TEXT,
    args={"type": "object", "default": {}},
    include={
        "type": "array",
        "items": {"enum": ["tool", "backend", "raw"]},
        "description": "Puts the answer under 'result', beside these.",
    },
    background={"type": "boolean", "description": "Answer at once with a 'job_id' for wait_job."},
    stream={"type": "boolean"},
    backend_override={},  # of any form, because no form of it is supported
)
_NAMES: Final = ("name", "tool", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters", "params", "input")
WRAPPERS: Final = frozenset({"args", *_ARGUMENTS})
"""Names under which agents wrap arguments in one object too many."""
_MAX_UNWRAPPED: Final = 10_000
"""Most values of arguments that are checked in both ways."""
_REASONS: Final = {"argument_not_supported": Reason("not_supported", ("argument",))}


def once(handler: Handler, *, busy: str) -> Handler:
    """Return a handler that does its work once: when middleware calls it again, it repeats its outcome.

    `busy` is the message for one that is called again while it works, or after it was cancelled.
    """

    async def run(call: Call) -> object:
        current = run_of(call)
        outcome = current.memo
        if outcome is None:
            outcome = current.memo = asyncio.get_running_loop().create_future()
            try:
                outcome.set_result(await handler(call))
            except ToolError as error:
                outcome.set_exception(error)
        elif not outcome.done():
            raise ToolError("state_error", busy, may_have_run=True)
        return outcome.result()

    return run


def is_stopped(run: Run) -> bool:
    """Return whether a run, or one around it, was cancelled or timed out; then somebody gets its answer."""
    outer: Run | None = run
    while outer is not None and outer.stopped is None:
        outer = outer.parent
    return outer is not None


def run_metatools(yard: YardParts) -> list[Tool]:
    """Return the metatool `run_tool` and its alias `call_tool`."""
    repair = yard.limits.repair

    async def run(call: Call) -> object:
        outer, arguments = run_of(call), call.arguments
        name, args, suggestion = arguments["tool_id"], arguments["args"], call.spec.name + "(tool_id={!r}, …)"
        try:
            tool = yard.registry.find(name, call.profile, suggestion=suggestion)
        except ToolError as error:
            answer = await call.invoke(name, args)  # so that it is recorded like any unknown tool
            return _with_next_actions(answer, error)
        _check_supported(arguments, tool.spec)
        is_resolved = outer.options.refs_resolved or not tool.wraps
        if is_resolved and not outer.options.refs_resolved and REF_KEY in encode_unchecked(args):
            resolver = yard.dispatcher.results.resolver(call.caller.owner, call.profile)
            args = await resolver.resolve(args, tool.spec.input_schema)
        args, coerced = unwrap_arguments(args, tool, repair=repair)
        call.coerced += coerced
        outer.is_proxy = True
        seconds, background = outer.options.seconds, arguments.get("background", False)
        options = InvokeOptions(seconds=seconds, refs_resolved=is_resolved, background=background)
        with DelayedProgress(call, Progress(0, 1, f"running {tool.spec.name}"), is_forwarded=tool.wraps) as progress:
            forward = None if call.channel.progress is None else progress.forward
            answer = await call.invoke(name, args, progress=forward, options=options)
            if progress.is_silent:
                progress.note(Progress(1, 1, f"{tool.spec.name} is done"))
        include = arguments.get("include")
        if include and answer.success and not (is_pending(answer) or "job_id" in _held_data(answer)):
            answer = _with_included(answer, tool.spec, include)
        return answer

    return build_with_alias(
        "run_tool",
        "Call a tool, listed or not. It answers what the tool answers.",
        once(run, busy="The call has begun already, and is not made twice."),
        alias="call_tool",
        input_schema=_INPUT_SCHEMA,
        output_schema={},
        wraps=True,
        reasons=_REASONS,
        make=_RunTool,
    )


class _RunTool(Tool, frozen=True, kw_only=True, eq=False):
    """Reads arguments next to the tool's name, and other names for both, if the exact form does not fit."""

    def find_reading(self, arguments: object) -> Repair | None:
        """Return the arguments under their right names, or else the smallest repair."""
        if isinstance(arguments, dict):
            rearranged = _rearranged(cast("Arguments", arguments))
            if rearranged is not None and self.fits(rearranged):
                return Repair(rearranged, ("args",))
        return super().find_reading(cast("object", arguments))


def _with_next_actions(answer: Envelope, missing: ToolError) -> Envelope:
    """Return the answer for an unknown tool with next actions that use `run_tool`."""
    error = answer.error
    if error is None or error.code != missing.code:  # such as calls nested too deeply
        return answer
    return Envelope(False, None, msgspec.structs.replace(error, next_actions=missing.next_actions), answer.meta)  # noqa: FBT003 - the field of a struct


def unwrap_arguments(args: Arguments, tool: Tool, *, repair: bool) -> tuple[Arguments, tuple[str, ...]]:
    """Return the arguments without an object that wraps them by mistake, and what was repaired.

    Only a change that makes them fit is taken.
    """
    if not repair or not args:
        return args, ()
    inner = next(
        (as_object(args[key]) for key in ("args", *_ARGUMENTS) if key in args and set(args) <= {key, "tool_id"}), None
    )
    if inner is None or has_more_values(inner, _MAX_UNWRAPPED) or tool.fits(args):
        return args, ()
    if tool.fits(inner):
        return inner, ("args",)
    reading = None if tool.find_reading(args) is not None else tool.find_reading(inner)
    return (args, ()) if reading is None else (reading.value, ("args", *reading.changed))


def is_pending(answer: Envelope) -> bool:
    """Return whether a call waits for the decision of a person."""
    return _held_data(answer).get("status") == APPROVAL_REQUIRED


def _held_data(answer: Envelope) -> dict[str, Any]:
    return cast("dict[str, Any]", answer.data) if answer.held and isinstance(answer.data, dict) else {}


def as_object(value: object) -> Arguments | None:
    """Return a value if it is an object, also one written as JSON text."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return cast("Arguments", value) if isinstance(value, dict) else None


def _rearranged(arguments: Arguments) -> Arguments | None:
    """Return the arguments under their right names, if that can be done in one way."""
    known = cast("Mapping[str, Any]", _INPUT_SCHEMA["properties"])
    names = [name for name in _NAMES if isinstance(arguments.get(name), str)]
    left = {key: value for key, value in arguments.items() if key not in known}
    right = {key: value for key, value in arguments.items() if key in known}
    if "tool_id" not in right:
        if len(names) != 1:
            return None
        right["tool_id"] = left.pop(names[0])
    if "args" in right:
        args = as_object(right["args"])
        return None if left or args is None else {**right, "args": args}
    if len(left) == 1 and (key := next(iter(left))) in _ARGUMENTS and (inner := as_object(left[key])) is not None:
        return {**right, "args": inner}
    return {**right, "args": left}


def _check_supported(arguments: Arguments, spec: ToolSpec) -> None:
    if arguments.get("stream"):
        _refuse("stream", "The result of a tool comes in one piece; what it says on the way comes as progress.")
    if arguments.get("backend_override") not in (None, spec.source):
        _refuse("backend_override", f"'{spec.name}' runs at '{spec.source}', and nowhere else.")


def _refuse(argument: str, message: str) -> NoReturn:
    raise ToolError(
        "not_supported",
        message,
        reason="argument_not_supported",
        next_actions=[f"run_tool(…) without '{argument}'"],
        may_have_run=False,
        argument=argument,
    )


def _with_included(answer: Envelope, spec: ToolSpec, include: list[str]) -> Envelope:
    """Return the answer with its data under 'result', and the requested parts next to it."""
    parts: dict[str, Callable[[], Any]] = {
        "tool": lambda: {"tool_id": spec.name, "signature": signature(spec), "operation": str(spec.operation)},
        "backend": lambda: {"source": spec.source},
        "raw": lambda: msgspec.json.decode(answer.to_json()),
    }
    data = {"result": answer.data, **{part: parts[part]() for part in parts if part in include}}
    included = Envelope(success=True, data=data, meta=answer.meta)
    included.content = answer.content
    return included
