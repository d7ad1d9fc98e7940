"""One run of a chain: calls its steps through the dispatcher, each with its own record."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import msgspec

from callyard.dispatch.call import Arguments, Call, CallRequest, Channel
from callyard.dispatch.outcome import room_for_data
from callyard.dispatch.progress import Progress
from callyard.dispatch.results import too_large
from callyard.dispatch.tool import Tool
from callyard.metatools.chain import Step
from callyard.metatools.chain_plan import PREVIOUS, Plan, PlannedStep, resolve_references
from callyard.metatools.metatool import YardParts
from callyard.metatools.run import DelayedProgress, is_pending
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Content, Encoded, Envelope, Failure, encode_data, encode_unchecked, encode_uncopied
from callyard.model.errors import ToolError, shortened
from callyard.model.profile import METATOOLS
from callyard.model.spec import Operation
from callyard.policy.gate import Gate
from callyard.state.store import StoreUnavailableError

__all__ = ["is_stopped", "preview", "run_chain"]


def _calls_others(tool: Tool) -> bool:
    """Return whether a tool calls others: `run_tool`, `run_chain` or `execute_code`."""
    return tool.spec.source == METATOOLS and tool.spec.metatool.use == "call"


def may_ask(plan: Plan, call: Call, gate: Gate) -> bool:
    """Return whether a rule may ask about a step, or about a tool that a step runs."""
    return any(
        (_calls_others(planned.tool) and not planned.inner)  # also a program, whose calls nobody knows yet
        or any(gate.needs_approval(tool.spec, call.profile.name, call.caller) is not False for tool in (planned.tool, *planned.inner))
        for planned in plan.planned()
    )


def _needs_approval(planned: PlannedStep, call: Call, gate: Gate | None) -> bool | None:
    """Return whether a rule asks about a step; None if that is not known yet."""
    if gate is None:
        return False
    profile = call.profile.name
    own = gate.needs_approval(planned.tool.spec, profile, call.caller, planned.checked)
    inner = [gate.needs_approval(tool.spec, profile, call.caller) for tool in planned.inner]
    if _calls_others(planned.tool) and not planned.inner:
        inner.append(None)
    return True if own or any(inner) else None if own is None or None in inner else False


def preview(plan: Plan, call: Call, gate: Gate | None, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return the steps with their stages, dependencies, and whether each needs an approval (None if unknown)."""
    steps: list[dict[str, Any]] = []
    number = last = 0
    for stage in plan.stages:
        for planned in stage.steps:
            spec, step = planned.tool.spec, planned.step
            asks = any(tool.spec.confirmation is not None for tool in (planned.tool, *planned.inner)) or _needs_approval(
                planned, call, gate
            )
            waits = sorted({reference.target for reference in planned.references} | ({last} if step.use_previous else set[int]()))
            entry: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            entry |= {"needs_approval": asks or (None if can_hold or asks is None else False)}
            steps.append({**entry, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})})
            if not stage.parallel:
                number, last = number + 1, planned.index
        if stage.parallel:
            number, last = number + 1, steps[-1]["step"]
    return steps


_Outcome = Envelope | Encoded
_NOTHING: Final[Mapping[str, Any]] = {}
_WORTH_A_HANDLE: Final = 1000
"""Characters from which a handle is shorter than a result."""


async def run_chain(yard: YardParts, call: Call) -> object:
    """Run a chain, or only show its plan."""
    if call.memo is not None:
        return cast("_ChainRun", call.memo).previous_outcome()
    plan = Plan(yard, call)
    await plan.read(call.arguments["steps"])
    if call.arguments["dry_run"]:
        return {"plan": preview(plan, call, yard.gate, can_hold=bool(yard.dispatcher.admission.policies))}
    if call.memo is not None:  # set by a second run of the handler while stored results were read
        return cast("_ChainRun", call.memo).previous_outcome()
    chain_run = call.memo = _ChainRun(yard, call, plan)
    if yard.gate is not None and may_ask(plan, call, yard.gate):
        if yard.jobs.can_attach(call):
            return await chain_run.attach()
        if not yard.dispatcher.admission.policies:  # one may deny a step, and nobody should be asked in vain
            await chain_run.obtain_approvals(yard.gate)
    if call.channel.progress is None:
        return await chain_run.run()
    with DelayedProgress(call, Progress(0, len(plan.steps), "")) as progress:
        return await chain_run.run(progress)


class _ChainRun:
    """One run of a chain."""

    _deadline: float = 0.0  # by 'time.perf_counter', without the time that the call is paused; 0 is none
    _outcome: _Outcome | ToolError | None = None

    def __init__(self, yard: YardParts, call: Call, plan: Plan) -> None:
        self._yard = yard
        self._call = call
        self._plan = plan
        self._results: list[dict[str, Any]] = []
        """The results of the successful steps, in order."""
        self._content: dict[int, tuple[Content, ...]] = {}
        """Their content blocks, by position in the results."""
        self._timeout_s: float = call.arguments["timeout_s"]
        if call.seconds:  # set by an outer chain
            self._timeout_s = min(call.seconds, self._timeout_s or call.seconds)
        if self._timeout_s:
            self._deadline = time.perf_counter() + self._timeout_s - call.paused_s

    async def attach(self) -> _Outcome:
        """Run the chain as a job that its caller waits for, because a step may wait for a person."""
        attached = self._yard.jobs.attach(self._call)
        try:
            self._outcome = outcome = await attached.run(self._call)
        except asyncio.CancelledError:
            if not is_stopped(self._call):
                raise  # nobody waits for the answer
            partial = attached.with_partial().partial
            self._results = [] if partial is None else partial["results"]
            self._outcome = self._stopped()
            raise self._outcome from None
        return outcome

    async def obtain_approvals(self, gate: Gate) -> None:
        """Wait for the approvals of all steps whose arguments are known, before the first one runs.

        Raises:
            ToolError: One is denied.
        """
        for planned in self._plan.planned():
            if planned.checked is not None and planned.tool.spec.session == "none":
                await gate.obtain(self._call, planned.tool.spec, planned.checked)

    def _partial(self) -> bytes:
        """Return the results so far as JSON, without their data if they are too large."""
        text = encode_unchecked({"results": self._results})
        if len(text) <= self._yard.limits.result_characters:
            return text
        return encode_unchecked({"results": [{"step": result["step"], "tool_id": result["tool_id"]} for result in self._results]})

    async def run(self, progress: DelayedProgress | None = None) -> _Outcome:
        """Run the stages and return the results.

        Raises:
            ToolError: `chain_step_failed` with the results so far; `cancelled` with them, if the chain is stopped.
        """
        if self._call.options.job is not None:
            self._call.options.job.keep_partial(self._partial)
        try:
            return await self._run(progress)
        except asyncio.CancelledError:
            if not is_stopped(self._call):
                raise  # nobody waits for the answer
            self._outcome = self._stopped()
            raise self._outcome from None

    def _stopped(self) -> ToolError:
        """Return the failure of a chain that is cancelled, with the results so far."""
        done: list[int] = [result["step"] for result in self._results]
        data = self._encoded(_NOTHING, final_only=False) if done else None
        return ToolError("cancelled", "The chain was stopped.", hint=_not_again(done) or None, data=data)

    async def _run(self, progress: DelayedProgress | None) -> _Outcome:
        plan = self._plan
        for stage in plan.stages:
            pending = await (self._run_parallel(stage.steps, progress) if stage.parallel else self._run_in_turn(stage.steps, progress))
            if pending is not None:
                return pending
        if progress is not None:
            progress.note(Progress(len(plan.steps), len(plan.steps), "the chain is done"))
        self._outcome = outcome = await self._encode_results(final_only=self._call.arguments["final_only"])
        return outcome

    async def _run_in_turn(self, steps: list[PlannedStep], progress: DelayedProgress | None) -> _Outcome | None:
        """Run one step after the other; return the chain's answer if one waits for an approval."""
        call, results, has_deadline = self._call, self._results, self._deadline
        dispatch, caller, channel = call.funnel.dispatch, call.caller, call.channel.inside()
        for planned in steps:
            step = planned.step
            if progress is not None:
                self._note(planned, progress)
            if planned.checked is None or has_deadline:
                answer = await self._dispatch(planned, channel)
            else:
                answer = await dispatch(CallRequest(step.tool_id, step.args, caller), channel=channel, parent=call, options=planned)
            if answer.error is not None or answer.held:
                pending = await self._finish_stage([planned], [answer])
                if pending is not None:
                    return pending
            elif step.id or answer.meta.coerced or answer.meta.warnings or answer.content:
                self._add_result(planned, answer)
            else:  # the common case of '_add_result', without a call
                results.append({"step": planned.index, "tool_id": step.tool_id, "data": answer.data})
        return None

    async def _run_parallel(self, steps: list[PlannedStep], progress: DelayedProgress | None) -> _Outcome | None:
        """Run steps in parallel; return the chain's answer if one waits for an approval."""
        if progress is not None:
            self._note(steps[0], progress)
        channel = self._call.channel.inside()
        running = [asyncio.ensure_future(self._dispatch(planned, channel)) for planned in steps]
        try:
            answers = await asyncio.gather(*running)
        except asyncio.CancelledError:
            for planned, task in zip(steps, running, strict=True):
                if task.done() and not task.cancelled() and task.result().success and not task.result().held:
                    self._add_result(planned, task.result())
            raise
        return await self._finish_stage(steps, answers)

    def _note(self, planned: PlannedStep, progress: DelayedProgress) -> None:
        progress.note(Progress(planned.index, len(self._plan.steps), f"running {planned.step.tool_id}"))

    def previous_outcome(self) -> _Outcome:
        """Return the outcome of a handler that middleware runs once more; no step runs again."""
        if self._outcome is None:
            raise ToolError("state_error", "The chain is running already, and is not run twice.", may_have_run=True)
        if isinstance(self._outcome, ToolError):
            raise self._outcome
        return self._outcome

    def _dispatch(self, planned: PlannedStep, channel: Channel) -> Awaitable[Envelope]:
        call, step, args = self._call, planned.step, planned.step.args
        try:
            if planned.checked is None:
                args = self._arguments(planned)
            if self._deadline:
                planned = msgspec.structs.replace(planned, seconds=self._time_left(step))
        except ToolError as error:
            return _failed(error, step.tool_id)
        return call.funnel.dispatch(CallRequest(step.tool_id, args, call.caller), channel=channel, parent=call, options=planned)

    def _arguments(self, planned: PlannedStep) -> Arguments:
        """Return the arguments of a step with the results of earlier steps."""
        args = planned.step.args
        if planned.references:
            limits = self._yard.limits
            args = resolve_references(args, planned.references, self._results, max_bytes=max(limits.argument_bytes, limits.stored_bytes))
        return {**args, PREVIOUS: self._results[-1]["data"]} if planned.step.use_previous else args

    def _time_left(self, step: Step) -> float:
        """Return the timeout of a step: its own, or what is left of the chain's."""
        left = self._deadline - time.perf_counter() + self._call.paused_s
        if left <= 0:
            message = f"The {self._timeout_s:g} seconds of the chain were over before the step began."
            raise ToolError("timeout", message, hint="Give the chain more time.", blame="caller", may_have_run=False)
        return min(left, step.timeout_s) if step.timeout_s else left

    async def _finish_stage(self, stage: list[PlannedStep], answers: Sequence[Envelope]) -> _Outcome | None:
        """Add the results of a stage; return the chain's answer if a step waits for an approval.

        Raises:
            ToolError: `chain_step_failed` if one failed.
        """
        failed: list[tuple[PlannedStep, Envelope, Failure]] = []
        pending: list[dict[str, Any]] = []
        for planned, answer in zip(stage, answers, strict=True):
            if answer.error is not None:
                failed.append((planned, answer, answer.error))
            elif is_pending(answer):
                pending.append({"step_index": planned.index, "pending": answer.data})
            else:
                self._add_result(planned, answer)
        if failed:
            self._outcome = await self._failure(failed, pending)
            raise self._outcome
        if not pending:
            return None
        first, *others = pending
        extra = {"status": APPROVAL_REQUIRED, **first, **({"also_pending": others} if others else {})}
        encoded = await self._encode_results(extra, most=self._room())
        self._outcome = Envelope.ok(encoded.data, content=encoded.content)
        self._outcome.held = True
        return self._outcome

    def _add_result(self, planned: PlannedStep, answer: Envelope) -> None:
        """Add the result of a successful step."""
        step, meta = planned.step, answer.meta
        result: dict[str, Any] = {"step": planned.index, "tool_id": step.tool_id, "data": answer.data}
        if step.id:
            result["id"] = step.id
        if meta.coerced:
            result["coerced"] = list(meta.coerced)
        if meta.warnings:
            result["warnings"] = list(meta.warnings)
        if answer.content:
            self._content[len(self._results)] = answer.content
        self._results.append(result)

    def _room(self) -> int:
        """Return how long an answer may be that must not become a handle; each outer call halves it."""
        most, channel = self._yard.limits.result_characters, self._call.channel.result_characters
        return (most if channel is None else min(most, room_for_data(self._call, channel))) >> self._call.depth

    async def _encode_results(self, extra: Mapping[str, Any] = _NOTHING, *, final_only: bool = False, most: int | None = None) -> Encoded:
        """Return the results as JSON; if they are too large to store, or than `most`, large ones become handles."""
        limits = self._yard.limits
        encoded = self._encoded(extra, final_only=final_only)
        for least in (limits.result_characters, _WORTH_A_HANDLE):
            if len(encoded.text) <= limits.stored_bytes and (most is None or encoded.characters <= most):
                break
            await self._store_large([*(self._results[-1:] if final_only else self._results), *extra.get("partial", ())], least)
            encoded = self._encoded(extra, final_only=final_only)
        return encoded

    def _encoded(self, extra: Mapping[str, Any], *, final_only: bool) -> Encoded:
        results, content = self._results, self._content
        final = results[-1]["data"] if results else None
        if final_only:
            return encode_uncopied({"final": final}, content.get(len(results) - 1, ()))
        return encode_uncopied(
            {**extra, "results": results, "final": final}, tuple(chain.from_iterable(content.values())) if content else ()
        )

    async def _store_large(self, results: Sequence[dict[str, Any]], least: int) -> None:
        """Store each result that has more than `least` characters, and put its handle in its place."""
        store, owner, profile = self._yard.dispatcher.results, self._call.caller.owner, self._call.profile
        for result in results:
            encoded = encode_data(result["data"])
            if encoded.characters > least:
                try:
                    result["data"] = await store.store(encoded, owner, profile)
                except (ToolError, StoreUnavailableError):
                    result["data"] = too_large(encoded)

    async def _failure(self, failed: list[tuple[PlannedStep, Envelope, Failure]], pending: list[dict[str, Any]]) -> ToolError:
        """Return the failure of the chain, with the results of its steps and the partial ones of failed steps."""
        planned, _, cause = failed[0]
        step, index = planned.step, planned.index
        done: list[int] = [result["step"] for result in self._results]
        changed = any(other.tool.spec.operation is not Operation.QUERY for other in self._plan.planned() if other.index in done)
        partial = [{"step": other.index, "data": answer.data} for other, answer, _ in failed if answer.data is not None]
        for other, answer, _ in failed:
            if answer.content:
                self._content[len(self._plan.steps) + other.index] = answer.content
        label = f"{index} '{shortened(step.id)}'" if step.id else f"{index}"
        not_again, inside = _not_again(done), cause.code == "chain_step_failed"
        return ToolError(
            "chain_step_failed",
            f"Step {label} ('{step.tool_id}') failed: {cause.message}",
            hint=(f"{not_again} In the chain of step {index}: {cause.hint}" if inside else f"{cause.hint} {not_again}").strip(),
            next_actions=cause.next_actions or self._plan.suggest_describe(step.tool_id),
            reason="step_failed",
            blame=cause.blame,
            may_have_run=changed or any(error.may_have_run for _, _, error in failed),
            data=await self._encode_results({"partial": partial} if partial else _NOTHING),
            step_index=index,
            step_id=step.id or None,
            cause_code=cause.code,
            cause=msgspec.to_builtins(cause),
            pending=pending or None,
        )


def is_stopped(call: Call) -> bool:
    """Return whether the call, or one that it belongs to, was cancelled or timed out; then somebody gets its answer."""
    parent: Call | None = call
    while parent is not None and parent.stopped is None:
        parent = parent.parent
    return parent is not None


def _not_again(done: list[int]) -> str:
    """Return a sentence with the steps that must not run again."""
    if not done:
        return ""
    steps = ", ".join(map(str, done))
    return f"Step {steps} has run: do not run it again." if len(done) == 1 else f"Steps {steps} have run: do not run them again."


async def _failed(error: ToolError, tool_id: str) -> Envelope:
    """Return the answer of a step that cannot start."""
    return Envelope.fail(error, tool_id=tool_id)
