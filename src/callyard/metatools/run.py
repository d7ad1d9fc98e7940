"""The metatool `run_tool`, with its alias `call_tool`, which calls one tool through the dispatcher.

Its answer is the answer of that tool.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self, cast

import msgspec

from callyard.dispatch.call import DEFAULT_OPTIONS, REFS_RESOLVED, Arguments, Call, Handler, InvokeOptions
from callyard.dispatch.progress import Progress, SendProgress
from callyard.dispatch.results import REF_KEY, RefResolver
from callyard.dispatch.tool import Check, InvalidArgumentsError, Tool, check_by_schema
from callyard.metatools.catalogue import OTHER_NAME
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, object_schema
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Envelope, encode, encode_unchecked
from callyard.model.errors import ToolError
from callyard.model.schema import has_more_values
from callyard.model.spec import Reason, ToolSpec

__all__ = ["WRAPPERS", "DelayedProgress", "is_pending", "run_metatools", "unwrap_arguments"]


_DELAY_S: Final = 0.1


class DelayedProgress:
    """Reports the progress of a call after a short delay, so that a quick call is answered by a single message."""

    __slots__ = ("_call", "_is_due", "_is_forwarded", "_last", "_timer")

    def __init__(self, call: Call, first: Progress, *, is_forwarded: bool = False) -> None:
        self._call = call
        self._last = first
        self._is_due = False
        self._is_forwarded = is_forwarded
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._call.channel.progress is not None:
            self._timer = self._call.funnel.loop.call_later(_DELAY_S, self._send_due)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, note: Progress) -> None:
        """Report progress now, or once the delay is over."""
        self._last = note
        if self._is_due:
            self._send()

    def forward(self, note: Progress) -> None:
        """Report the progress of an inner call at once; it replaces ours."""
        self._is_forwarded = True
        self._call.progress(note.done, note.total, note.text)

    @property
    def is_silent(self) -> bool:
        """Return whether no inner call reported progress."""
        return not self._is_forwarded

    def _send_due(self) -> None:
        self._is_due = True
        if not self._is_forwarded:
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
    backend_override=TEXT,
)
_NAMES: Final = ("name", "tool", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters", "params", "input")
WRAPPERS: Final = frozenset({"args", *_ARGUMENTS})
"""Names under which agents wrap arguments in one object too many."""
_MAX_UNWRAPPED: Final = 10_000
"""Most values of arguments that are checked in both ways."""
_REASONS: Final = {"argument_not_supported": Reason("not_supported", ("argument",))}
_REPAIRED: Final = "put right"
"""Key under which the check tells the handler what it repaired; no argument has this name."""
_ALREADY_RUNNING: Final = Envelope.fail(ToolError("state_error", "The call has begun already, and is not made twice.", may_have_run=True))


def run_metatools(yard: YardParts) -> list[Tool]:
    """Return the metatool `run_tool` and its alias `call_tool`."""
    repair = yard.limits.repair

    async def run(call: Call) -> object:
        if call.memo is not None:  # middleware ran the handler twice: the inner call is not repeated
            return call.memo
        arguments = call.arguments
        call.coerced += arguments.pop(_REPAIRED, ())
        try:
            tool = yard.registry.find(arguments["tool_id"], call.profile, suggestion=call.spec.name + "(tool_id={!r}, …)")
        except ToolError as error:
            answer = await call.invoke(arguments["tool_id"], arguments["args"])  # so that it is recorded like any unknown tool
            return _with_next_actions(answer, error)
        _check_supported(arguments, tool.spec)
        args, resolved = arguments["args"], call.options.refs_resolved
        if not resolved and not tool.wraps:
            args, resolved = await _resolve_refs(args, tool, yard.dispatcher.results.resolver(call.caller.owner, call.profile)), True
        args, coerced = unwrap_arguments(args, tool, repair=repair)
        if call.memo is not None:  # set by a second run of the handler while stored results were read
            return call.memo
        call.coerced += coerced
        call.memo, call.is_proxy = _ALREADY_RUNNING, True
        options = REFS_RESOLVED if resolved else DEFAULT_OPTIONS
        if call.seconds or arguments.get("background"):
            options = InvokeOptions(seconds=call.seconds, refs_resolved=resolved, background=arguments.get("background", False))
        with DelayedProgress(call, Progress(0, 1, f"running {tool.spec.name}"), is_forwarded=tool.wraps) as progress:
            answer = await call.invoke(arguments["tool_id"], args, progress=_forward(call, progress), options=options)
            if progress.is_silent:
                progress.note(Progress(1, 1, f"{tool.spec.name} is done"))
        include = arguments.get("include")
        call.memo = _with_included(answer, tool.spec, include) if include and answer.success and not _is_unfinished(answer) else answer
        return call.memo

    check = _lenient(check_by_schema(_INPUT_SCHEMA)) if repair else None
    return [_run("run_tool", run, check, alias="call_tool"), _run("call_tool", run, check, alias_of="run_tool")]


def _run(name: str, handler: Handler, check: Check | None, *, alias: str = "", alias_of: str = "") -> Tool:
    text = "Call a tool, listed or not. It answers what the tool answers."
    return build_metatool(
        name,
        text,
        handler,
        input_schema=_INPUT_SCHEMA,
        output_schema={},
        listed=not alias_of,
        wraps=True,
        alias_of=alias_of,
        alias=alias,
        check=check,
        tags=(OTHER_NAME,) if alias_of else (),
        reasons=_REASONS,
    )


def _with_next_actions(answer: Envelope, missing: ToolError) -> Envelope:
    """Return the answer for an unknown tool with next actions that use `run_tool`."""
    error = answer.error
    if error is None or error.code != missing.code:  # such as calls nested too deeply
        return answer
    return Envelope(False, None, msgspec.structs.replace(error, next_actions=missing.next_actions), answer.meta)  # noqa: FBT003 - the field of a struct


async def _resolve_refs(args: Arguments, tool: Tool, resolver: RefResolver) -> Arguments:
    """Return the arguments of an inner call with their references to stored results resolved."""
    return await resolver.resolve(args, tool.spec.input_schema) if REF_KEY in encode_unchecked(args) else args


def unwrap_arguments(args: Arguments, tool: Tool, *, repair: bool) -> tuple[Arguments, tuple[str, ...]]:
    """Return the arguments without an object that wraps them by mistake, and what was repaired; only if that makes them fit."""
    if not repair or not args:
        return args, ()
    inner = next((as_object(args[key]) for key in ("args", *_ARGUMENTS) if key in args and set(args) <= {key, "tool_id"}), None)
    if inner is None or has_more_values(inner, _MAX_UNWRAPPED) or tool.fits(args):
        return args, ()
    if tool.fits(inner):
        return inner, ("args",)
    reading = None if tool.find_reading(args) is not None else tool.find_reading(inner)
    return (args, ()) if reading is None else (reading.value, ("args", *reading.changed))


def is_pending(answer: Envelope) -> bool:
    """Return whether a call waits for the decision of a person."""
    return _held_data(answer).get("status") == APPROVAL_REQUIRED


def _is_unfinished(answer: Envelope) -> bool:
    """Return whether a call waits for the decision of a person, or became a job."""
    return is_pending(answer) or "job_id" in _held_data(answer)


def _held_data(answer: Envelope) -> dict[str, Any]:
    return cast("dict[str, Any]", answer.data) if answer.held and isinstance(answer.data, dict) else {}


def as_object(value: object) -> Arguments | None:
    """Return a value if it is an object, also one written as JSON text."""
    if isinstance(value, str):
        import json  # noqa: PLC0415 - only for invalid arguments

        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return cast("Arguments", value) if isinstance(value, dict) else None


def _lenient(check: Check) -> Check:
    """Return a check that accepts arguments next to the tool's name, and other names for both."""

    def check_leniently(text: bytes) -> Arguments:
        try:
            return check(text)
        except InvalidArgumentsError:
            arguments = msgspec.json.decode(text)
            rearranged = _rearranged(cast("Arguments", arguments)) if isinstance(arguments, dict) else None
            if rearranged is None:
                raise
            return {**check(encode(rearranged)), _REPAIRED: ("args",)}

    return check_leniently


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
        if left or args is None:
            return None
        return {**right, "args": args}
    if len(left) == 1 and (key := next(iter(left))) in _ARGUMENTS and (inner := as_object(left[key])) is not None:
        return {**right, "args": inner}
    return {**right, "args": left}


def _check_supported(arguments: Arguments, spec: ToolSpec) -> None:
    if arguments.get("stream"):
        _refuse("stream", "The result of a tool comes in one piece; what it says on the way comes as progress.")
    if arguments.get("backend_override", spec.source) != spec.source:
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


def _forward(call: Call, progress: DelayedProgress) -> SendProgress | None:
    return None if call.channel.progress is None else progress.forward


def _with_included(answer: Envelope, spec: ToolSpec, include: list[str]) -> Envelope:
    """Return the answer with its data under 'result', and the requested parts next to it."""
    from callyard.model.signature import signature  # noqa: PLC0415 - nobody reads one before the first call

    parts: dict[str, Callable[[], Any]] = {
        "tool": lambda: {"tool_id": spec.name, "signature": signature(spec), "operation": str(spec.operation)},
        "backend": lambda: {"source": spec.source},
        "raw": lambda: msgspec.json.decode(answer.to_json()),
    }
    data = {"result": answer.data, **{part: parts[part]() for part in parts if part in include}}
    included = Envelope(success=True, data=data, meta=answer.meta)
    included.content = answer.content
    return included
