"""The metatool `execute_code`: runs a program of an agent in a runtime. Each tool that the program calls passes the whole funnel."""

import time
from collections.abc import Callable
from typing import Any, Final, cast

import msgspec

from toolyard.dispatch.call import Call
from toolyard.dispatch.progress import Progress
from toolyard.dispatch.tool import Tool, check_by_schema
from toolyard.metatools.metatool import TEXT, YardParts, object_schema
from toolyard.metatools.run import DelayedProgress, is_pending
from toolyard.model.errors import ToolError, invalid_input
from toolyard.model.profile import METATOOLS, Profile
from toolyard.model.spec import Annotations, EvalRule, Metatool, Operation, ToolSpec, with_codes
from toolyard.model.stub import identifier, stub_path
from toolyard.runtimes.runtime import CallFailedError, GuestCall, Hooks, Probe, RunFailure, RunLimits, RunResult
from toolyard.runtimes.selection import Runtimes

__all__ = ["EXECUTE_CODE", "OutputListener", "code_metatool"]

EXECUTE_CODE: Final = "execute_code"
OutputListener = Callable[[str, str], None]
_MOST_MS: Final = 60_000
_MOST_CALLS: Final = 1000
_PROFILES: Final = 64
_SESSION_KIND: Final = "code"
_WRAPS: Final = Annotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True)
_DESCRIPTION: Final = (
    "Run a Python program that calls tools: await tools.<namespace>.<name>(**args), or await call_tool(id, args). "
    "Use it instead of many single calls: loop, filter, and return only what you need. "
    "The value of the last expression, or of 'result', is the answer. A failed tool raises ToolError with a 'code'. "
    'search_tools(query, detail="stub") shows tools as functions.'
)
_INPUT_SCHEMA: Final = object_schema(
    "code",
    code={**TEXT, "description": "The program. 'await' works at the top level."},
    language={"enum": ["python"], "default": "python"},
    timeout_ms={"type": "integer", "minimum": 1, "maximum": _MOST_MS, "default": 30_000},
    max_tool_calls={"type": "integer", "minimum": 0, "maximum": _MOST_CALLS, "default": _MOST_CALLS},
    inputs={"type": "object", "description": "The variable 'inputs' of the program; may hold handles."},
    session_id={**TEXT, "description": "Programs with the same id share their variables."},
)
_OUTPUT_SCHEMA: Final = object_schema(
    "value calls duration_ms runtime",
    value={},
    stdout=TEXT,
    stderr=TEXT,
    calls={"type": "array", "items": {"type": "object"}},
    duration_ms={"type": "integer"},
    runtime={"type": "object"},
)
_LIMITS: Final = {"timeout": "timeout_ms", "calls": "max_tool_calls", "memory": "memory", "output": "output", "value_size": "value"}
"""The name of each limit in the failure `limit_exceeded`."""
_HINTS: Final = {
    "timeout": "Do less in one program, or raise 'timeout_ms' (at most 60000).",
    "calls": "Make fewer calls, or raise 'max_tool_calls' (at most 1000).",
    "memory": "Keep less in memory: work on one part after another.",
    "output": "Print less.",
    "value_size": "Return only what you need.",
    "value": "Return what JSON can hold: turn sets into lists and dates into text, and await every call.",
    "syntax": "Mend the line and run it again.",
    "crashed": "The program ended its own interpreter. Run it without native code.",
    "protocol": "The program broke the connection to its host. Leave its file descriptors alone.",
}


def code_metatool(yard: YardParts, runtimes: Runtimes, *, needs_flag: bool) -> Tool:
    """Return the metatool `execute_code`; with a runtime that is no sandbox it needs the eval flag."""
    paths = _Paths(yard)

    async def execute(call: Call) -> object:
        _check(call)
        return await _Program(call, paths).run(runtimes)

    spec = ToolSpec(
        name=EXECUTE_CODE,
        description=_DESCRIPTION,
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
        operation=Operation.EVAL,
        annotations=_WRAPS,
        eval=EvalRule("code", "python", "sandbox"),
        requires_eval=needs_flag,
        timeout=0,  # the runtime has the clock: it stops while a person is asked
        source=METATOOLS,
        metatool=Metatool("call"),
    )
    return Tool(spec=with_codes(spec), handler=execute, check=check_by_schema(_INPUT_SCHEMA))


def _check(call: Call) -> None:
    """Refuse an empty program, and one that runs inside another."""
    if not call.arguments["code"].strip():
        raise invalid_input("The program is empty.", field="code")
    parent = call.parent
    while parent is not None:
        if parent.spec.name == EXECUTE_CODE:
            raise ToolError("not_supported", "A program cannot run another program.", hint="Write both as one program.", may_have_run=False)
        parent = parent.parent


class _Paths:
    """The tools of each profile by the path that a program spells."""

    def __init__(self, yard: YardParts) -> None:
        self._registry = yard.registry
        self._paths: dict[Profile, tuple[int, dict[str, str]]] = {}

    def find(self, path: str, profile: Profile) -> str:
        """Return the id of the tool at a path, or the path itself if there is none."""
        version = self._registry.versions["tool"]
        known = self._paths.get(profile)
        if known is None or known[0] != version:
            if len(self._paths) >= _PROFILES:
                self._paths.clear()
            known = self._paths[profile] = version, self._read(profile)
        return known[1].get(path, path)

    def _read(self, profile: Profile) -> dict[str, str]:
        paths: dict[str, str] = {}
        for spec in self._registry.visible(profile):
            paths.setdefault(".".join(stub_path(spec)), spec.name)
            paths.setdefault(identifier(spec.name), spec.name)
        return paths


class _Program:
    """One program of one call: its inner calls, its progress and its answer."""

    def __init__(self, call: Call, paths: _Paths) -> None:
        self._call, self._paths = call, paths
        self._calls: dict[tuple[str, str], list[float]] = {}
        self._made = 0

    async def run(self, runtimes: Runtimes) -> object:
        """Run it, and return its answer.

        Raises:
            ToolError: `code_error`, `limit_exceeded` or `runtime_unavailable`.
        """
        call, arguments = self._call, self._call.arguments
        limits = RunLimits(seconds=arguments["timeout_ms"] / 1000, calls=arguments["max_tool_calls"])
        session = self._session(runtimes, arguments.get("session_id"))
        call.may_have_run = False  # set by the first inner call
        with DelayedProgress(call, Progress(0, None, "running")) as progress:
            self._progress = progress
            hooks = Hooks(
                output=_listener(call),
                progress=lambda done, total, text: progress.forward(Progress(done, total, text)),
                paused=lambda: call.funnel.paused(call),
            )
            await runtimes.for_program(arguments["code"], session)  # a missing runtime is no failure of the program
            result, probe = await runtimes.run(
                arguments["code"], arguments.get("inputs"), limits, self._invoke, hooks=hooks, session=session
            )
            if progress.is_silent:
                progress.note(Progress(self._made + 1, self._made + 1, "done"))
        if result.failure is not None:
            raise _error(result.failure, limits, self._facts(result), session=session)
        return {"value": result.value, **self._facts(result), "runtime": _runtime(probe)}

    def _session(self, runtimes: Runtimes, session_id: str | None) -> str:
        """Return the key of the session's guest; the session is started when it is first named."""
        if session_id is None:
            return ""
        call = self._call
        key = f"{call.caller.owner}/{session_id}"
        sessions = call.funnel.sessions
        if session_id not in sessions.ids(call.caller.owner):
            try:
                session = call.start_session(kind=_SESSION_KIND, session_id=session_id)
            except ValueError as error:
                raise invalid_input(str(error), field="session_id") from None
            session.on_end(lambda: runtimes.end_session(key))
        elif (session := sessions.get(session_id, call.caller.owner)).kind != _SESSION_KIND:
            raise invalid_input("The session is none of programs.", field="session_id")
        else:
            call.session = session
            sessions.enter(session)
        return key

    async def _invoke(self, request: GuestCall) -> Any:
        """Answer a call of the program: the dispatcher again, one level deeper."""
        call = self._call
        name = self._paths.find(request.name, call.profile) if request.is_path else request.name
        self._made += 1
        call.may_have_run = True
        if self._progress.is_silent:
            self._progress.note(Progress(self._made, None, f"calling {name[:100]}"))
        began = time.perf_counter()
        answer = await call.invoke(name, cast("Any", request.arguments))
        code = "ok" if answer.error is None else answer.error.code
        spent = self._calls.setdefault((name[:100], code), [0, 0.0])
        spent[0] += 1
        spent[1] += time.perf_counter() - began
        if answer.error is not None:
            raise CallFailedError({**msgspec.to_builtins(answer.error), "data": answer.data})
        if is_pending(answer):  # never taken for the result
            message = f"'{name}' waits for the approval of a person."
            raise CallFailedError(
                {"code": "state_error", "message": message, "details": {"reason": "approval_required", **_as_dict(answer.data)}}
            )
        return answer.data

    def _facts(self, result: RunResult) -> dict[str, Any]:
        calls = [
            {"tool": tool, "code": code, "count": int(count), "ms": round(seconds * 1000)}
            for (tool, code), (count, seconds) in self._calls.items()
        ]
        outputs = {name: text for name, text in (("stdout", result.stdout), ("stderr", result.stderr)) if text}
        return {**outputs, "calls": calls, "duration_ms": round(result.seconds * 1000)}


def _as_dict(data: object) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _listener(call: Call) -> OutputListener:
    """Return what is told of output while the program runs: log lines, where the client takes them."""
    if call.channel.log is None:
        return lambda _stream, _text: None
    return lambda stream, text: cast("None", call.log("info" if stream == "out" else "warning", text.rstrip("\n"), stream=stream))


def _runtime(probe: Probe) -> dict[str, Any]:
    told = {"backend": probe.backend, "sandboxed": probe.sandboxed, "enforced": list(probe.enforced)}
    return {**told, "not_enforced": probe.unenforced} if probe.unenforced else told


def _error(failure: RunFailure, limits: RunLimits, facts: dict[str, Any], *, session: str) -> ToolError:
    """Return the failure of a program, with what it printed and called as data."""
    lost: dict[str, Any] = {"session_lost": True} if session and failure.kind not in ("exception", "syntax", "value", "value_size") else {}
    hint = _HINTS.get(failure.kind) or _hint(failure)
    if failure.kind in _LIMITS:
        bounds = {"timeout": round(limits.seconds * 1000), "calls": limits.calls, "output": limits.output_bytes}
        bound = bounds.get(failure.kind, limits.memory_bytes if failure.kind == "memory" else limits.value_bytes)
        message = failure.message or "The program used more memory than it may."
        return ToolError("limit_exceeded", message, hint=hint, data=facts, limit=_LIMITS[failure.kind], bound=bound, **lost)
    if failure.kind == "cancelled":
        return ToolError("cancelled", failure.message, data=facts)
    place = {"line": failure.line, "column": failure.column, "source": failure.source} if failure.line else {}
    details: dict[str, Any] = {**place, **lost, **({"type": failure.type} if failure.type else {})}
    if failure.traceback:
        details["traceback"] = failure.traceback
    if failure.tool_error is not None:
        details["tool_error"] = failure.tool_error
    message = f"{failure.type}: {failure.message}" if failure.kind in ("exception", "syntax") else failure.message
    return ToolError("code_error", message, hint=hint, data=facts, **details)


def _hint(failure: RunFailure) -> str | None:
    """Return what mends a mistake that agents make often."""
    if "coroutine" in failure.message:
        return "A call was not awaited: write 'await' in front of it."
    if "asyncio.run() cannot be called" in failure.message:
        return "The program runs in an event loop already: write 'await main()' instead."
    if failure.tool_error is not None:
        return "A tool failed; catch ToolError and look at its 'code'."
    return None
