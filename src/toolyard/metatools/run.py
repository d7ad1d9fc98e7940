"""Running: `run_tool`, which calls one tool by its name, through the whole funnel.

What it answers is what the tool answers. It knows no way around the dispatcher.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, NoReturn, Self, cast

import msgspec

from toolyard.dispatch.call import DEFAULT_OPTIONS, REFS_RESOLVED, Arguments, Call, Handler, InvokeOptions
from toolyard.dispatch.progress import Progress, SendProgress
from toolyard.dispatch.results import REFERENCE, Filling
from toolyard.dispatch.tool import Check, InvalidArgumentsError, Tool, check_by_schema
from toolyard.metatools.catalogue import OTHER_NAME
from toolyard.metatools.metatool import TEXT, Subject, fields, make
from toolyard.model.envelope import Envelope, encode, encode_plain
from toolyard.model.errors import ToolError
from toolyard.model.signature import signature
from toolyard.model.spec import Reason, ToolSpec

__all__ = ["PENDING", "WRAPPERS", "Pace", "is_pending", "make_run", "unwrapped"]


_SECONDS: Final = 0.1


class Pace:
    """Tells how far a call has come, from a tenth of a second on: a quick call stays a single answer."""

    __slots__ = ("_call", "_last", "_ripe", "_timer", "_told")

    def __init__(self, call: Call, first: Progress, *, told: bool = False) -> None:
        self._call = call
        self._last = first
        self._ripe = False
        self._told = told
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Self:
        if self._call.channel.progress is not None:
            self._timer = self._call.funnel.loop.call_later(_SECONDS, self._ripen)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def note(self, note: Progress) -> None:
        """Tell this now, or once it is time."""
        self._last = note
        if self._ripe:
            self._tell()

    def forward(self, note: Progress) -> None:
        """Tell at once what an inner call says of itself, in place of what would have been said of it."""
        self._told = True
        self._call.progress(note.done, note.total, note.text)

    @property
    def heard(self) -> bool:
        """Return whether anybody is told."""
        return self._timer is not None

    @property
    def silent(self) -> bool:
        """Return whether no inner call said anything of its own."""
        return not self._told

    def _ripen(self) -> None:
        self._ripe = True
        if not self._told:
            self._tell()

    def _tell(self) -> None:
        self._call.progress(self._last.done, self._last.total, self._last.text, own=True)


PENDING: Final = "approval_required"
"""What the answer of a policy says that holds a call until a person has decided."""
_TAKES: Final = fields(
    "tool_id",
    tool_id=TEXT,
    args={"type": "object", "default": {}},
    include={
        "type": "array",
        "items": {"enum": ["tool", "backend", "raw"]},
        "description": "Puts the answer under 'result', beside these.",
    },
    stream={"type": "boolean"},
    backend_override=TEXT,
)
_NAMES: Final = ("name", "tool", "tool_name")
_ARGUMENTS: Final = ("arguments", "parameters", "params", "input")
WRAPPERS: Final = frozenset({"args", *_ARGUMENTS})
"""What arguments are called that are one object too deep."""
_REASONS: Final = {"argument_not_supported": Reason("not_supported", ("argument",))}
_PUT_RIGHT: Final = "put right"
"""Where the check leaves word for the handler; no argument can be called so."""
_BEGUN: Final = Envelope.fail(ToolError("state_error", "The call has begun already, and is not made twice.", may_have_run=True))


def make_run(subject: Subject) -> list[Tool]:
    """Return the tool `run_tool`, and the same under the name that some agents know."""
    repair = subject.limits.repair

    async def run(call: Call) -> object:
        if call.memo is not None:  # the inner call has passed whatever wraps this one, too, and so is not made again
            return call.memo
        given = call.arguments
        call.coerced += given.pop(_PUT_RIGHT, ())
        try:
            tool = subject.registry.find(given["tool_id"], call.profile, again=call.spec.name + "(tool_id={!r}, …)")
        except ToolError as error:
            return _led_on(await call.invoke(given["tool_id"], given["args"]), error)  # so that it is recorded as any call of no tool
        _check_supported(given, tool.spec)
        args, filled = given["args"], call.refs_resolved
        if not filled and not tool.wraps:
            args, filled = await _filled(args, tool, subject.dispatcher.results.filling(call.caller.owner, call.profile)), True
        args, moved = unwrapped(args, tool, repair=repair)
        if call.memo is not None:  # by somebody else, while stored results were read
            return call.memo
        call.coerced += moved
        call.memo, call.is_proxy = _BEGUN, True
        options = (
            InvokeOptions(seconds=call.seconds, refs_resolved=filled) if call.seconds else REFS_RESOLVED if filled else DEFAULT_OPTIONS
        )
        with Pace(call, Progress(0, 1, f"running {tool.spec.name}"), told=tool.wraps) as pace:
            answer = await call.invoke(given["tool_id"], args, progress=_forward(call, pace), options=options)
            if pace.silent:
                pace.note(Progress(1, 1, f"{tool.spec.name} is done"))
        included = given.get("include")
        call.memo = _included(answer, tool.spec, included) if included and answer.success and not is_pending(answer) else answer
        return call.memo

    check = _forgiving(check_by_schema(_TAKES)) if repair else None
    return [_run("run_tool", run, check, listed=True), _run("call_tool", run, check, tags=(OTHER_NAME,))]


def _run(name: str, handler: Handler, check: Check | None, *, listed: bool = False, tags: tuple[str, ...] = ()) -> Tool:
    text = "Call a tool, listed or not. It answers what the tool answers."
    return make(name, text, handler, takes=_TAKES, answers={}, listed=listed, wraps=True, check=check, tags=tags, reasons=_REASONS)


def _led_on(answer: Envelope, missing: ToolError) -> Envelope:
    """Return the answer of a call of no tool with what to do next by the tool that made the call."""
    error = answer.error
    if error is None or error.code != missing.code:  # such as one that is too deep
        return answer
    return Envelope(False, None, msgspec.structs.replace(error, next_actions=missing.next_actions), answer.meta)  # noqa: FBT003 - the field of a struct


async def _filled(args: Arguments, tool: Tool, filling: Filling) -> Arguments:
    """Return the arguments of an inner call with stored results in the places that refer to them."""
    return await filling.fill_in(args, tool.spec.input_schema) if REFERENCE in encode_plain(args) else args


def unwrapped(args: Arguments, tool: Tool, *, repair: bool) -> tuple[Arguments, tuple[str, ...]]:
    """Return the arguments of an inner call, taken out of one object too many, and put right, if only so they fit."""
    if not repair or not args or tool.fits(args):
        return args, ()
    inner = next((object_in(args[key]) for key in ("args", *_ARGUMENTS) if key in args and set(args) <= {key, "tool_id"}), None)
    if inner is None:
        return args, ()
    if tool.fits(inner):
        return inner, ("args",)
    reading = None if tool.reading(args) is not None else tool.reading(inner)
    return (args, ()) if reading is None else (reading.value, ("args", *reading.changed))


def is_pending(answer: Envelope) -> bool:
    """Return whether a policy holds a call until a person has decided."""
    return answer.held and isinstance(answer.data, dict) and cast("dict[str, Any]", answer.data).get("status") == PENDING


def object_in(value: object) -> Arguments | None:
    """Return a value that is an object, be it written as text."""
    if isinstance(value, str):
        import json  # noqa: PLC0415 - only for what somebody got wrong

        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    return cast("Arguments", value) if isinstance(value, dict) else None


def _forgiving(check: Check) -> Check:
    """Return the check that also takes the tool's arguments beside its name, and other words for both."""

    def forgive(text: bytes) -> Arguments:
        try:
            return check(text)
        except InvalidArgumentsError:
            given = msgspec.json.decode(text)
            gathered = _gathered(cast("Arguments", given)) if isinstance(given, dict) else None
            if gathered is None:
                raise
            return {**check(encode(gathered)), _PUT_RIGHT: ("args",)}

    return forgive


def _gathered(given: Arguments) -> Arguments | None:
    """Return the arguments in their places, if there is one way to put them there."""
    known = cast("Mapping[str, Any]", _TAKES["properties"])
    named = [name for name in _NAMES if isinstance(given.get(name), str)]
    left = {key: value for key, value in given.items() if key not in known}
    kept = {key: value for key, value in given.items() if key in known}
    if "tool_id" not in kept:
        if len(named) != 1:
            return None
        kept["tool_id"] = left.pop(named[0])
    if "args" in kept:
        args = object_in(kept["args"])
        if left or args is None:
            return None
        return {**kept, "args": args}
    if len(left) == 1 and (key := next(iter(left))) in _ARGUMENTS and (inner := object_in(left[key])) is not None:
        return {**kept, "args": inner}
    return {**kept, "args": left}


def _check_supported(given: Arguments, spec: ToolSpec) -> None:
    if given.get("stream"):
        _refuse("stream", "The result of a tool comes in one piece; what it says on the way comes as progress.")
    if given.get("backend_override", spec.source) != spec.source:
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


def _forward(call: Call, pace: Pace) -> SendProgress | None:
    return None if call.channel.progress is None else pace.forward


def _included(answer: Envelope, spec: ToolSpec, include: list[str]) -> Envelope:
    """Return the answer with its data under 'result', and beside it what else was asked for."""
    parts: dict[str, Callable[[], Any]] = {
        "tool": lambda: {"tool_id": spec.name, "signature": signature(spec), "operation": str(spec.operation)},
        "backend": lambda: {"source": spec.source},
        "raw": lambda: msgspec.json.decode(answer.to_json()),
    }
    data = {"result": answer.data, **{part: parts[part]() for part in parts if part in include}}
    return Envelope(True, data, None, answer.meta).beside(answer.content)  # noqa: FBT003 - the field of a struct
