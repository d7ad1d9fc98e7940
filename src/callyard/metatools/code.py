"""The metatool `execute_code`: runs a program of an agent in a runtime. Each tool that the program calls passes the whole funnel."""

import asyncio
import keyword
import re
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, cast

import msgspec

from callyard._internal.logfmt import is_identifier
from callyard.dispatch.call import ANYONE, DEFAULT_OPTIONS, Call, InvokeOptions, names_around
from callyard.dispatch.progress import Progress
from callyard.dispatch.sessions import SHARED_OWNER, Session
from callyard.dispatch.tool import Tool, check_by_schema
from callyard.jobs.service import Jobs
from callyard.metatools.chain_run import is_stopped
from callyard.metatools.metatool import TEXT, YardParts, object_schema
from callyard.metatools.run import DelayedProgress, is_pending
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Envelope, encode
from callyard.model.errors import ToolError, invalid_input
from callyard.model.names import closest_name
from callyard.model.profile import METATOOLS, Profile
from callyard.model.spec import Annotations, EvalRule, Metatool, Operation, ToolSpec, with_codes
from callyard.model.stub import identifier, stub_path
from callyard.runtimes.runtime import CallFailedError, GuestCall, Hooks, Probe, RunFailure, RunLimits, RunResult
from callyard.runtimes.selection import Runtimes

__all__ = ["EXECUTE_CODE", "OutputListener", "code_metatool"]

EXECUTE_CODE: Final = "execute_code"
OutputListener = Callable[[str, str], None]
_MOST_MS: Final = 60_000
_MOST_CALLS: Final = 1000
_PROFILES: Final = 64
_ADVISED: Final = 3
_SESSION_KIND: Final = "code"
_SESSIONS_EACH: Final = 8
"""Sessions of programs that one caller may have; those of all callers are bounded by the runtime."""
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
_LIMITS: Final = {
    "timeout": "timeout_ms",
    "calls": "max_tool_calls",
    "memory": "memory",
    "cpu": "cpu",
    "output": "output",
    "value_size": "value",
}
"""The name of each limit in the failure `limit_exceeded`."""
_HINTS: Final = {
    "timeout": "Do less in one program, or raise 'timeout_ms' (at most 60000).",
    "calls": "Make fewer calls, or raise 'max_tool_calls' (at most 1000).",
    "memory": "Keep less in memory: work on one part after another.",
    "cpu": "Compute less. The programs of a session count together.",
    "output": "Print less.",
    "value_size": "Return only what you need.",
    "value": "Return what JSON can hold: turn sets into lists and dates into text, and await every call.",
    "overloaded": "Wait until some of these approvals are decided. The calls in 'data' have run: do not make them again.",
    "unawaited": "Write 'await' in front of it. The calls in 'data' have run: do not make them again.",
    "crashed": "The program ended its own interpreter. Run it without native code.",
    "protocol": "The program broke the connection to its host. Leave its file descriptors alone.",
}


_KEYWORD: Final = re.compile(r"\btools(?:\.\w+)*\.(" + "|".join(keyword.kwlist) + r")\b")
"""A tool whose name is a keyword, spelled without the '_'."""


def code_metatool(yard: YardParts, runtimes: Runtimes, *, needs_flag: bool) -> Tool:
    """Return the metatool `execute_code`; with a runtime that is no sandbox it needs the eval flag."""
    paths = _Paths(yard)

    async def execute(call: Call) -> object:
        if call.memo is not None:  # middleware ran the handler twice
            return cast("_Program", call.memo).previous_outcome()
        _check(call)
        program = call.memo = _Program(call, paths)
        if yard.gate is not None and yard.jobs.can_attach(call) and paths.may_ask(call.profile):
            return await program.noted(program.attach(yard.jobs))
        return await program.noted(program.run(runtimes))

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
    if EXECUTE_CODE in names_around(call):  # also as a job: programs that start programs would never end
        raise ToolError("not_supported", "A program cannot run another program.", hint="Write both as one program.", may_have_run=False)


class _Known(NamedTuple):
    """What is known of the tools of a profile, until its tools or the rules change."""

    version: tuple[int, int]
    paths: dict[str, str]
    jobs: frozenset[str]
    """The tools that always run as jobs."""
    may_ask: bool


def _forget(names: dict[tuple[str, str], str], key: tuple[str, str]) -> None:
    names.pop(key, None)


class _Paths:
    """What programs name: tools by the path that they spell, and sessions. It also tells whether a rule may ask about a tool."""

    def __init__(self, yard: YardParts) -> None:
        self.session_ids: dict[tuple[str, str], str] = {}
        """The ids of sessions by the owner and the name that the owner chose."""
        self._yard, self._registry = yard, yard.registry
        self._known: dict[Profile, _Known] = {}

    def find(self, path: str, profile: Profile) -> str:
        """Return the id of the tool at a path, or the path itself if there is none."""
        return self._of(profile).paths.get(path, path)

    def advise(self, error: dict[str, Any], path: str, profile: Profile) -> dict[str, Any]:
        """Return the failure of a path that names no tool with the path that was probably meant, as a program spells it."""
        meant = closest_name(path, self._of(profile).paths) if error["code"] == "tool_not_found" else None
        if meant is None:
            return error
        return {**error, "details": {**error["details"], "similar": [f"tools.{meant}"]}, "hint": f"Did you mean 'tools.{meant}'?"}

    def starts_job(self, name: str, profile: Profile) -> bool:
        """Return whether a tool always runs as a job, because it may take longer than any program."""
        return name in self._of(profile).jobs

    def may_ask(self, profile: Profile) -> bool:
        """Return whether a rule may ask about a call that a program makes."""
        return self._of(profile).may_ask

    def _of(self, profile: Profile) -> _Known:
        gate = self._yard.gate
        version = self._registry.versions["tool"], 0 if gate is None else gate.version
        known = self._known.get(profile)
        if known is None or known.version != version:
            if len(self._known) >= _PROFILES:
                self._known.clear()
            known = self._known[profile] = self._read(profile, version)
        return known

    def _read(self, profile: Profile, version: tuple[int, int]) -> _Known:
        gate, paths, jobs, may_ask = self._yard.gate, dict[str, str](), set[str](), False
        for spec in self._registry.visible(profile):
            paths.setdefault(".".join(stub_path(spec)), spec.name)
            paths.setdefault(identifier(spec.name), spec.name)
            if spec.job == "always":
                jobs.update((spec.name, *spec.aliases))
            may_ask = may_ask or (gate is not None and gate.needs_approval(spec, profile.name, ANYONE) is not False)
        return _Known(version, paths, frozenset(jobs), may_ask)


class _Program:
    """One program of one call: its inner calls, its progress and its answer."""

    _outcome: object = None

    def __init__(self, call: Call, paths: _Paths) -> None:
        self._call, self._paths = call, paths
        self._calls: dict[tuple[str, str], list[float]] = {}
        self._earlier: list[dict[str, Any]] = []
        """The inner calls that the job made which ran in place of this call."""
        self._made = self._unknown = 0

    async def noted(self, work: Awaitable[object]) -> object:
        """Return an outcome, and keep it for middleware that runs the handler once more; no program runs twice.

        Raises:
            ToolError: The program failed, or was stopped; then with the calls that it made.
        """
        try:
            self._outcome = outcome = await work
        except ToolError as error:
            self._outcome = error
            raise
        except asyncio.CancelledError:
            if not is_stopped(self._call):
                raise  # nobody waits for the answer
            calls = self._counted()
            self._outcome = ToolError("cancelled", "The program was stopped.", data={"calls": calls} if calls else None)
            raise self._outcome from None
        return outcome

    def previous_outcome(self) -> object:
        """Return the outcome of a program that has run."""
        if self._outcome is None:
            raise ToolError("state_error", "The program is running already, and is not run twice.", may_have_run=True)
        if isinstance(self._outcome, ToolError):
            raise self._outcome
        return self._outcome

    async def attach(self, jobs: Jobs) -> Envelope:
        """Run the program as a job that its caller waits for, because one of its calls may wait for a person."""
        attached = jobs.attach(self._call)
        try:
            return await attached.run(self._call, status="working")
        except asyncio.CancelledError:
            partial = attached.with_partial().partial
            self._earlier = [] if partial is None else partial["calls"]
            raise

    async def run(self, runtimes: Runtimes) -> object:
        """Run it, and return its answer.

        Raises:
            ToolError: `code_error`, `limit_exceeded` or `runtime_unavailable`.
        """
        call, arguments = self._call, self._call.arguments
        limits = RunLimits(seconds=arguments["timeout_ms"] / 1000, calls=arguments["max_tool_calls"])
        session, is_new = await self._session(runtimes, arguments.get("session_id"))
        call.may_have_run = False  # set by the first inner call
        if call.options.job is not None:
            call.options.job.keep_partial(lambda: encode({"calls": self._counted()}))
        with DelayedProgress(call, Progress(0, None, "running")) as progress:
            self._progress = progress
            hooks = Hooks(
                output=_listener(call),
                progress=lambda done, total, text: progress.forward(Progress(done, total, text)),
                watch=lambda pause: call.funnel.watch_pauses(call, pause),
            )
            try:
                result, probe = await runtimes.run(
                    arguments["code"], arguments.get("inputs"), limits, self._invoke, hooks=hooks, owner=call.caller.owner, session=session
                )
            except ToolError:
                if is_new:  # there is no guest, so there is no session
                    await call.end_session()
                raise
            finally:
                if call.session is not None and not call.funnel.sessions.has(call.session.id, call.caller.owner):
                    await runtimes.end_session(session)  # it ended while this program waited, and the program started a guest again
            if progress.is_silent:
                progress.note(Progress(self._made + 1, self._made + 1, "done"))
        if result.failure is not None:
            facts = self._facts(result, probe) if result.value is None else {"value": result.value, **self._facts(result, probe)}
            is_lost = bool(session) and result.is_lost
            raise _error(result.failure, limits, facts, is_lost=is_lost, may_have_run=call.may_have_run)
        return {"value": result.value, **self._facts(result, probe)}

    async def _session(self, runtimes: Runtimes, name: str | None) -> tuple[str, bool]:
        """Return the key of the session's guest, and whether it is new: the session is started when its caller first names it."""
        if name is None:
            return "", False
        call, sessions = self._call, self._call.funnel.sessions
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
            ToolError: `invalid_input` if it is no name, `not_supported` if nothing tells the caller from others, who would share it,
                `overloaded` if all sessions of the caller are in use.
        """
        call, names = self._call, self._paths.session_ids
        owner = call.caller.owner
        if not is_identifier(name):
            raise invalid_input("The id of a session must be of letters, digits and '_.:-'.", field="session_id")
        if owner == SHARED_OWNER:
            message = "Callers without credentials and without an MCP session have no sessions of programs."
            raise ToolError("not_supported", message, hint="Leave 'session_id' out and write one program.", may_have_run=False)
        own = [session for session in call.funnel.sessions.of(owner) if session.kind == _SESSION_KIND]
        idle = min((session for session in own if not session.busy), key=lambda session: session.last_used, default=None)
        if len(own) >= _SESSIONS_EACH and idle is None:
            message = f"All {_SESSIONS_EACH} sessions of programs that a caller may have are in use."
            raise ToolError("overloaded", message, hint="Wait until one of their programs has ended.", may_have_run=False)
        session = call.start_session(kind=_SESSION_KIND)
        names[owner, name] = session.id
        session.on_end(lambda: _forget(names, (owner, name)))
        session.on_end(lambda: runtimes.end_session(f"{owner}/{session.id}"))
        if len(own) >= _SESSIONS_EACH and idle is not None:
            await call.funnel.sessions.end(idle.id)
        return session

    async def _invoke(self, request: GuestCall) -> Any:
        """Answer a call of the program: the dispatcher again, one level deeper."""
        call = self._call
        name = self._paths.find(request.name, call.profile) if request.is_path else request.name
        self._made += 1
        call.may_have_run = True
        if self._progress.is_silent:
            self._progress.note(Progress(self._made, None, f"calling {name[:100]}"))
        began = time.perf_counter()
        options = InvokeOptions(background=True) if self._paths.starts_job(name, call.profile) else DEFAULT_OPTIONS
        answer = await call.invoke(name, cast("Any", request.arguments), options=options)
        code = "ok" if answer.error is None else answer.error.code
        spent = self._calls.setdefault((name[:100], code), [0, 0.0])
        spent[0] += 1
        spent[1] += time.perf_counter() - began
        if answer.error is not None:
            error = {**msgspec.to_builtins(answer.error), "data": answer.data}
            self._unknown += answer.error.code == "tool_not_found"
            is_advised = request.is_path and self._unknown <= _ADVISED  # comparing names takes milliseconds where there are thousands
            raise CallFailedError(self._paths.advise(error, name, call.profile) if is_advised else error)
        if is_pending(answer):  # never taken for the result
            message = f"'{name}' waits for the approval of a person."
            raise CallFailedError(
                {"code": "state_error", "message": message, "details": {"reason": APPROVAL_REQUIRED, **_as_dict(answer.data)}}
            )
        return answer.data

    def _counted(self) -> list[dict[str, Any]]:
        """Return the inner calls so far, by tool and code."""
        return self._earlier or [
            {"tool": tool, "code": code, "count": int(count), "ms": round(seconds * 1000)}
            for (tool, code), (count, seconds) in self._calls.items()
        ]

    def _facts(self, result: RunResult, probe: Probe) -> dict[str, Any]:
        outputs = {name: text for name, text in (("stdout", result.stdout), ("stderr", result.stderr)) if text}
        return {**outputs, "calls": self._counted(), "duration_ms": round(result.seconds * 1000), "runtime": _runtime(probe)}


def _as_dict(data: object) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def _listener(call: Call) -> OutputListener:
    """Return a listener that sends output to the client as log messages, unchanged; it does nothing if the client takes none."""
    if call.channel.log is None:
        return lambda _stream, _text: None
    return lambda stream, text: cast("None", call.log("info" if stream == "out" else "warning", text, stream=stream))


def _runtime(probe: Probe) -> dict[str, Any]:
    isolation = {"backend": probe.backend, "sandboxed": probe.sandboxed, "enforced": list(probe.enforced)}
    return {**isolation, "not_enforced": probe.unenforced} if probe.unenforced else isolation


def _error(failure: RunFailure, limits: RunLimits, facts: dict[str, Any], *, is_lost: bool, may_have_run: bool) -> ToolError:
    """Return the failure of a program, with what it printed and called as data."""
    lost: dict[str, Any] = {"session_lost": True} if is_lost else {}
    hint = _HINTS.get(failure.kind) or _hint(failure)
    if failure.kind in _LIMITS:
        bounds = {"timeout": round(limits.seconds * 1000), "calls": limits.calls, "output": limits.output_bytes, "cpu": limits.cpu_seconds}
        bound = bounds.get(failure.kind, limits.memory_bytes if failure.kind == "memory" else limits.value_bytes)
        message = failure.message or "The program used more memory than it may."
        return ToolError("limit_exceeded", message, hint=hint, data=facts, limit=_LIMITS[failure.kind], bound=bound, **lost)
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
    if failure.type == "ModuleNotFoundError":
        return "Programs have the standard library alone: no other packages."
    if "coroutine" in failure.message:
        return "A call was not awaited: write 'await' in front of it."
    if "asyncio.run() cannot be called" in failure.message:
        return "The program runs in an event loop already: write 'await main()' instead."
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
