"""The metatool `execute_code`: runs a program of an agent in a runtime.

Each tool that the program calls passes the whole funnel.
"""

import asyncio
import keyword
import re
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, cast

import msgspec

from callyard._internal.logfmt import is_identifier
from callyard.dispatch.call import DEFAULT_OPTIONS, Call, InvokeOptions
from callyard.dispatch.progress import Progress
from callyard.dispatch.run import Run, names_around, run_of
from callyard.dispatch.sessions import SHARED_OWNER, Session
from callyard.dispatch.tool import Tool, check_by_schema
from callyard.metatools.metatool import TEXT, WRAPS, YardParts, object_schema
from callyard.metatools.run import DelayedProgress, is_pending, is_stopped, once
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import encode
from callyard.model.errors import ToolError, invalid_input
from callyard.model.names import closest_name
from callyard.model.profile import METATOOLS, Profile
from callyard.model.signature import identifier, stub_path
from callyard.model.spec import EvalRule, Metatool, Operation, ToolSpec, with_codes
from callyard.runtimes.runtime import (
    CallFailedError,
    GuestCall,
    Hooks,
    Probe,
    RunFailure,
    RunLimits,
    RunResult,
    RuntimeSettings,
)
from callyard.runtimes.selection import Runtimes

__all__ = ["EXECUTE_CODE", "OutputListener", "open_code_metatool"]

EXECUTE_CODE: Final = "execute_code"
OutputListener = Callable[[str, str], None]
_MOST_MS: Final = 60_000
_MOST_CALLS: Final = 1000
_PROFILES: Final = 64
_ADVISED: Final = 3
_SESSION_KIND: Final = "code"
_SESSIONS_EACH: Final = 8
"""Sessions of programs that one caller may have; those of all callers are bounded by the runtime."""
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
_LIMITS: Final = {
    "timeout": ("timeout_ms", "seconds"),
    "calls": ("max_tool_calls", "calls"),
    "memory": ("memory", "memory_bytes"),
    "cpu": ("cpu", "cpu_seconds"),
    "output": ("output", "output_bytes"),
    "value_size": ("value", "value_bytes"),
}
"""For each kind of failure the name of the limit in `limit_exceeded`, and its field of `RunLimits`."""
_HINTS: Final = {
    "timeout": "Do less in one program, or raise 'timeout_ms' (at most 60000).",
    "calls": "Make fewer calls, or raise 'max_tool_calls' (at most 1000).",
    "memory": "Keep less in memory: work on one part after another.",
    "cpu": "Compute less. The programs of a session count together.",
    "output": "Print less.",
    "value_size": "Return only what you need.",
    "value": "Return what JSON can hold: turn sets into lists and dates into text, and await every call.",
    "overloaded": "Wait until some of these approvals are decided. The calls in 'data' have run: do not make "
    "them again.",
    "unawaited": "Write 'await' in front of it. The calls in 'data' have run: do not make them again.",
    "crashed": "The program ended its own interpreter. Run it without native code.",
    "protocol": "The program broke the connection to its host. Leave its file descriptors alone.",
}


_MISTAKES: Final = {
    "ModuleNotFoundError: ": "Programs have the standard library alone: no other packages.",
    "coroutine": "A call was not awaited: write 'await' in front of it.",
    "asyncio.run() cannot be called": "The program runs in an event loop already: write 'await main()' instead.",
}
"""What a failure says, and the hint for it."""
_KEYWORD: Final = re.compile(r"\btools(?:\.\w+)*\.(" + "|".join(keyword.kwlist) + r")\b")
"""A tool whose name is a keyword, spelled without the '_'."""


@asynccontextmanager
async def open_code_metatool(yard: YardParts, settings: RuntimeSettings) -> AsyncGenerator[Tool]:
    """Yield the metatool `execute_code`; its runtime is open as long as the context."""
    async with Runtimes(settings, state_dir=yard.state_dir).open() as runtimes:
        yield _code_metatool(yard, runtimes, needs_flag=settings.profile == "dev")


def _code_metatool(yard: YardParts, runtimes: Runtimes, *, needs_flag: bool) -> Tool:
    """Return the metatool `execute_code`; with a runtime that is no sandbox it needs the eval flag."""
    paths = _Paths(yard)

    async def execute(call: Call) -> object:
        _check(call)
        run = run_of(call)
        program = _Program(run, paths)
        try:
            return await program.run(runtimes)
        except asyncio.CancelledError:
            if not is_stopped(run):
                raise  # nobody waits for the answer
            calls = program.counted()
            raise ToolError("cancelled", "The program was stopped.", data={"calls": calls} if calls else None) from None

    spec = ToolSpec(
        name=EXECUTE_CODE,
        description=_DESCRIPTION,
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
        operation=Operation.EVAL,
        annotations=WRAPS,
        eval=EvalRule("code", "python", "sandbox"),
        requires_eval=needs_flag,
        timeout=0,  # the runtime has the clock: it stops while a person is asked
        source=METATOOLS,
        metatool=Metatool("call"),
    )
    handler = once(execute, busy="The program is running already, and is not run twice.")
    return Tool(spec=with_codes(spec), handler=handler, check=check_by_schema(_INPUT_SCHEMA), outlives_as="working")


def _check(call: Call) -> None:
    """Refuse an empty program, and one that runs inside another."""
    if not call.arguments["code"].strip():
        raise invalid_input("The program is empty.", field="code")
    if EXECUTE_CODE in names_around(run_of(call)):  # also as a job: programs that start programs would never end
        message = "A program cannot run another program."
        raise ToolError("not_supported", message, hint="Write both as one program.", may_have_run=False)


class _Paths:
    """What programs name: tools by the path that they spell, and sessions."""

    def __init__(self, yard: YardParts) -> None:
        self.session_ids: dict[tuple[str, str], str] = {}
        """The ids of sessions by the owner and the name that the owner chose."""
        self._registry = yard.registry
        self._known: dict[Profile, tuple[int, dict[str, str]]] = {}
        """For each profile the version of the registry, and the ids of its tools by the paths that name them."""

    def find(self, path: str, profile: Profile) -> str:
        """Return the id of the tool at a path, or the path itself if there is none."""
        return self._of(profile).get(path, path)

    def advise(self, error: dict[str, Any], path: str, profile: Profile) -> dict[str, Any]:
        """Return the failure of a path that names no tool, with the nearest path in Python's spelling."""
        meant = closest_name(path, self._of(profile)) if error["code"] == "tool_not_found" else None
        if meant is None:
            return error
        return {
            **error,
            "details": {**error["details"], "similar": [f"tools.{meant}"]},
            "hint": f"Did you mean 'tools.{meant}'?",
        }

    def starts_job(self, name: str) -> bool:
        """Return whether a tool always runs as a job, because it may take longer than any program."""
        tool = self._registry.resolve(name)
        return tool is not None and tool.spec.job == "always"

    def _of(self, profile: Profile) -> dict[str, str]:
        version = self._registry.versions["tool"]
        known = self._known.get(profile)
        if known is not None and known[0] == version:
            return known[1]
        if len(self._known) >= _PROFILES:
            self._known.clear()
        paths: dict[str, str] = {}
        for spec in self._registry.visible(profile):
            paths.setdefault(".".join(stub_path(spec)), spec.name)
            paths.setdefault(identifier(spec.name), spec.name)
        self._known[profile] = version, paths
        return paths


class _Program:
    def __init__(self, run: Run, paths: _Paths) -> None:
        self._run, self._call, self._paths = run, run.call, paths
        self._calls: dict[tuple[str, str], list[float]] = {}
        self._made = self._unknown = self._counted = 0

    async def run(self, runtimes: Runtimes) -> object:
        """Run it, and return its answer.

        Raises:
            ToolError: `code_error`, `limit_exceeded` or `runtime_unavailable`.
        """
        call, arguments = self._call, self._call.arguments
        limits = RunLimits(seconds=arguments["timeout_ms"] / 1000, calls=arguments["max_tool_calls"])
        session, is_new = await self._session(runtimes, arguments.get("session_id"))
        call.may_have_run = False  # set by the first inner call
        self._run.keep_partial(lambda: encode({"calls": self.counted()}))
        self._run.count_inner = partial(self._count_inner, limits.calls)
        with DelayedProgress(call, Progress(0, None, "running")) as progress:
            self._progress = progress
            hooks = Hooks(
                output=_listener(call),
                progress=lambda done, total, text: progress.forward(Progress(done, total, text)),
                watch=lambda pause: self._run.funnel.admission.watch_pauses(self._run, pause),
            )
            try:
                result, probe = await runtimes.run(
                    arguments["code"],
                    arguments.get("inputs"),
                    limits,
                    self._invoke,
                    hooks=hooks,
                    owner=call.caller.owner,
                    session=session,
                )
            except ToolError:
                if is_new:  # there is no guest, so there is no session
                    await call.end_session()
                raise
            finally:
                if call.session is not None and not self._run.funnel.sessions.has(call.session.id, call.caller.owner):
                    # it ended while this program waited, and the program started a guest again
                    await runtimes.end_session(session)
            if progress.is_silent:
                progress.note(Progress(self._made + 1, self._made + 1, "done"))
        facts = {"value": result.value, **self._facts(result, probe)}
        if result.failure is None:
            return facts
        if result.value is None:
            del facts["value"]
        is_lost = bool(session) and result.is_lost
        raise _error(result.failure, limits, facts, is_lost=is_lost, may_have_run=call.may_have_run)

    async def _session(self, runtimes: Runtimes, name: str | None) -> tuple[str, bool]:
        """Return the key of the session's guest, and whether it is new.

        The session starts when its caller first names it.
        """
        if name is None:
            return "", False
        call, sessions = self._call, self._run.funnel.sessions
        owner = call.caller.owner
        session_id = self._paths.session_ids.get((owner, name), name)
        is_new = not sessions.has(session_id, owner)
        if is_new:
            session = await self._start_session(runtimes, name)
        elif (session := sessions.get(session_id, owner)).kind != _SESSION_KIND:
            raise invalid_input("The session is none of programs.", field="session_id")
        else:
            call.session = session
            sessions.enter(session)
        return f"{owner}/{session.id}", is_new

    async def _start_session(self, runtimes: Runtimes, name: str) -> Session:
        """Start a session under the name that its caller chose; another caller may choose the same name.

        A caller has so many at most: one more ends the one that was idle for longest.

        Raises:
            ToolError: `invalid_input` if it is no name, `not_supported` if nothing tells the caller from others, who
            would share it,
                `overloaded` if all sessions of the caller are in use.
        """
        call, names = self._call, self._paths.session_ids
        owner = call.caller.owner
        if not is_identifier(name):
            raise invalid_input("The id of a session must be of letters, digits and '_.:-'.", field="session_id")

        def forget() -> None:
            names.pop((owner, name), None)

        if owner == SHARED_OWNER:
            message = "Callers without credentials and without an MCP session have no sessions of programs."
            hint = "Leave 'session_id' out and write one program."
            raise ToolError("not_supported", message, hint=hint, may_have_run=False)
        own = [session for session in self._run.funnel.sessions.of(owner) if session.kind == _SESSION_KIND]
        unused = [session for session in own if not session.busy]
        idle = min(unused, key=lambda session: session.last_used, default=None)
        if len(own) >= _SESSIONS_EACH and idle is None:
            message = f"All {_SESSIONS_EACH} sessions of programs that a caller may have are in use."
            hint = "Wait until one of their programs has ended."
            raise ToolError("overloaded", message, hint=hint, may_have_run=False)
        session = call.start_session(kind=_SESSION_KIND)
        names[owner, name] = session.id
        session.on_end(forget)
        session.on_end(lambda: runtimes.end_session(f"{owner}/{session.id}"))
        if len(own) >= _SESSIONS_EACH and idle is not None:
            await self._run.funnel.sessions.end(idle.id)
        return session

    def _count_inner(self, most: int) -> None:
        """Count a call of the program, or one that a chain makes for it.

        Raises:
            ToolError: `limit_exceeded` beyond the limit. The guest is ended only if it makes so many calls itself.
        """
        self._counted += 1
        if self._counted > most:
            name, _ = _LIMITS["calls"]
            message = f"The program made more than {most} tool calls, with those inside chains."
            raise ToolError("limit_exceeded", message, hint=_HINTS["calls"], may_have_run=False, limit=name, bound=most)

    async def _invoke(self, request: GuestCall) -> Any:
        """Answer a call of the program: the dispatcher again, one level deeper."""
        call = self._call
        name = self._paths.find(request.name, call.profile) if request.is_path else request.name
        self._made += 1
        call.may_have_run = True
        if self._progress.is_silent:
            self._progress.note(Progress(self._made, None, f"calling {name[:100]}"))
        began = time.perf_counter()
        options = InvokeOptions(background=True) if self._paths.starts_job(name) else DEFAULT_OPTIONS
        answer = await call.invoke(name, cast("Any", request.arguments), options=options)
        code = "ok" if answer.error is None else answer.error.code
        spent = self._calls.setdefault((name[:100], code), [0, 0.0])
        spent[0] += 1
        spent[1] += time.perf_counter() - began
        if answer.error is not None:
            error = {**msgspec.to_builtins(answer.error), "data": answer.data}
            self._unknown += answer.error.code == "tool_not_found"
            # comparing names takes milliseconds where there are thousands
            is_advised = request.is_path and self._unknown <= _ADVISED
            raise CallFailedError(self._paths.advise(error, name, call.profile) if is_advised else error)
        if is_pending(answer):  # never taken for the result
            message = f"'{name}' waits for the approval of a person."
            details = {"reason": APPROVAL_REQUIRED, **answer.data}
            raise CallFailedError({"code": "state_error", "message": message, "details": details})
        return answer.data

    def counted(self) -> list[dict[str, Any]]:
        """Return the inner calls so far, by tool and code."""
        return [
            {"tool": tool, "code": code, "count": int(count), "ms": round(seconds * 1000)}
            for (tool, code), (count, seconds) in self._calls.items()
        ]

    def _facts(self, result: RunResult, probe: Probe) -> dict[str, Any]:
        outputs = {name: text for name, text in (("stdout", result.stdout), ("stderr", result.stderr)) if text}
        milliseconds = round(result.seconds * 1000)
        return {**outputs, "calls": self.counted(), "duration_ms": milliseconds, "runtime": _runtime(probe)}


def _listener(call: Call) -> OutputListener:
    """Return a listener that sends output to the client as log messages, unchanged.

    It does nothing if the client takes none.
    """
    if call.channel.log is None:
        return lambda _stream, _text: None
    return lambda stream, text: cast("None", call.log("info" if stream == "out" else "warning", text, stream=stream))


def _runtime(probe: Probe) -> dict[str, Any]:
    isolation = {"backend": probe.backend, "sandboxed": probe.sandboxed, "enforced": list(probe.enforced)}
    return {**isolation, "not_enforced": probe.unenforced} if probe.unenforced else isolation


def _error(
    failure: RunFailure, limits: RunLimits, facts: dict[str, Any], *, is_lost: bool, may_have_run: bool
) -> ToolError:
    lost: dict[str, Any] = {"session_lost": True} if is_lost else {}
    hint = _HINTS.get(failure.kind) or _hint(failure)
    if failure.kind in _LIMITS:
        name, field = _LIMITS[failure.kind]
        bound: float = getattr(limits, field)
        if field == "seconds":
            bound = round(bound * 1000)
        message = failure.message or "The program used more memory than it may."
        return ToolError("limit_exceeded", message, hint=hint, data=facts, limit=name, bound=bound, **lost)
    if failure.kind in ("cancelled", "overloaded"):
        return ToolError(failure.kind, failure.message, hint=hint, data=facts, may_have_run=may_have_run, **lost)
    place = {"line": failure.line, "column": failure.column, "source": failure.source} if failure.line else {}
    details: dict[str, Any] = {**place, **lost, **({"type": failure.type} if failure.type else {})}
    if failure.traceback:
        details["traceback"] = failure.traceback
    if failure.tool_error is not None:
        details["tool_error"] = failure.tool_error
    message = f"{failure.type}: {failure.message}" if failure.kind in ("exception", "syntax") else failure.message
    return ToolError("code_error", message, hint=hint, data=facts, **details)


def _hint(failure: RunFailure) -> str | None:
    """Return a hint for a mistake that agents often make."""
    if failure.kind == "syntax":
        return _syntax_hint(failure)
    text = f"{failure.type}: {failure.message}"
    for part, hint in _MISTAKES.items():
        if part in text:
            return hint
    if failure.tool_error is not None:
        own = failure.tool_error.get("hint")
        return f"{own[:300] if isinstance(own, str) else 'A tool failed.'} Catch ToolError to go on after a failure."
    return None


def _syntax_hint(failure: RunFailure) -> str:
    if "'return' outside function" in failure.message:
        return "The value of the last expression is the answer: write 'x' instead of 'return x'."
    found = _KEYWORD.search(failure.source)
    spelled = f" A name that is a keyword is spelled with '_' after it: '{found[1]}_'." if found else ""
    return f"Mend the line and run it again.{spelled}"
