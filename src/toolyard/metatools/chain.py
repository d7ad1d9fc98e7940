"""Chains: `run_chain`, which calls several tools in one go, each through the whole funnel and with its own record."""

import asyncio
import time
from collections.abc import Awaitable, Mapping, Sequence
from itertools import chain
from typing import Any, Final, cast

import msgspec

from toolyard.dispatch.call import Arguments, Call, CallRequest, Channel
from toolyard.dispatch.outcome import room_for_data
from toolyard.dispatch.progress import Progress
from toolyard.dispatch.results import too_large
from toolyard.dispatch.tool import Tool
from toolyard.metatools.chain_plan import ANSWERS, PREVIOUS, TAKES, Plan, Planned, Step, filled, make_check
from toolyard.metatools.metatool import Subject, make
from toolyard.metatools.run import PENDING, Pace, is_pending
from toolyard.model.envelope import Content, Encoded, Envelope, Failure, encode_data, encode_uncopied
from toolyard.model.errors import ToolError, shortened
from toolyard.model.spec import Operation, Reason

__all__ = ["make_chain", "preview"]


def preview(plan: Plan, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return what would run when, what it waits for, and whether a person is asked first, where that is known."""
    told: list[dict[str, Any]] = []
    number = last = 0
    for stage in plan.stages:
        for planned in stage.steps:
            spec, step = planned.tool.spec, planned.step
            asks = True if any(one.spec.confirmation is not None for one in (planned.tool, *planned.inner)) else None if can_hold else False
            waits = sorted({reference.target for reference in planned.references} | ({last} if step.use_previous else set[int]()))
            one: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
            if not stage.together:
                number, last = number + 1, planned.index
        if stage.together:
            number, last = number + 1, told[-1]["step"]
    return told


Outcome = Envelope | Encoded
_NOTHING: Final[Mapping[str, Any]] = {}
_SMALL: Final = 1000
"""Characters that a result has at least for which a handle is shorter."""


def make_chain(subject: Subject) -> Tool:
    """Return the tool `run_chain`."""

    async def run(call: Call) -> object:
        if call.memo is not None:
            return cast("_Chain", call.memo).tell_again()
        given = call.arguments
        plan = Plan(subject, call)
        await plan.read(given["steps"])
        if given["dry_run"]:
            return {"plan": preview(plan, can_hold=bool(subject.dispatcher.admission.policies))}
        if call.memo is not None:  # by somebody else, while stored results were read
            return cast("_Chain", call.memo).tell_again()
        begun = call.memo = _Chain(subject, call, plan)
        if call.channel.progress is None:
            return await begun.run()
        with Pace(call, Progress(0, len(plan.steps), "")) as pace:
            return await begun.run(pace)

    return make(
        "run_chain",
        "Call several tools in turn, passing results on, and stop at the first error.",
        run,
        takes=TAKES,
        answers=ANSWERS,
        listed=True,
        wraps=True,
        check=make_check(),
        reasons={"step_failed": Reason("chain_step_failed", ("step_index", "cause_code"))},
    )


class _Chain:
    """One chain while it runs."""

    _ends: float = 0.0  # seconds of 'time.perf_counter', without those that the call waits for somebody outside; 0 is never
    _outcome: Outcome | ToolError | None = None

    def __init__(self, subject: Subject, call: Call, plan: Plan) -> None:
        self._subject = subject
        self._call = call
        self._plan = plan
        self._told: list[dict[str, Any]] = []
        """What came of the steps that went well so far, in their order: all those of the stages that are over."""
        self._content: dict[int, tuple[Content, ...]] = {}
        """The blocks that belong to it, by its place."""
        self._seconds: float = call.arguments["timeout_s"]
        if call.seconds:  # of a chain that this one is a step of
            self._seconds = min(call.seconds, self._seconds or call.seconds)
        if self._seconds:
            self._ends = time.perf_counter() + self._seconds - call.paused_s

    async def run(self, pace: Pace | None = None) -> Outcome:
        """Run stage after stage, and return what came of it.

        Raises:
            ToolError: `chain_step_failed` with what came of the steps before.
        """
        plan = self._plan
        for stage in plan.stages:
            pending = await (self._run_together(stage.steps, pace) if stage.together else self._run_in_turn(stage.steps, pace))
            if pending is not None:
                return pending
        if pace is not None:
            pace.note(Progress(len(plan.steps), len(plan.steps), "the chain is done"))
        self._outcome = outcome = await self._tell(final_only=self._call.arguments["final_only"])
        return outcome

    async def _run_in_turn(self, steps: list[Planned], pace: Pace | None) -> Outcome | None:
        """Run one step after the other; return the chain's answer if one waits for a person."""
        call, told, timed = self._call, self._told, self._ends
        dispatch, caller, channel = call.funnel.dispatch, call.caller, call.channel.inside()
        for planned in steps:
            step = planned.step
            if pace is not None:
                self._note(planned, pace)
            if planned.checked is None or timed:
                answer = await self._begin(planned, channel)
            else:
                answer = await dispatch(CallRequest(step.tool_id, step.args, caller), channel=channel, parent=call, options=planned)
            if answer.error is not None or answer.held:
                pending = await self._settle([planned], [answer])
                if pending is not None:
                    return pending
            elif step.id or answer.meta.coerced or answer.meta.warnings or answer.content:
                self._keep(planned, answer)
            else:  # as '_keep' would, in fewer words: nearly every step is such a one
                told.append({"step": planned.index, "tool_id": step.tool_id, "data": answer.data})
        return None

    async def _run_together(self, steps: list[Planned], pace: Pace | None) -> Outcome | None:
        """Run steps side by side; return the chain's answer if one waits for a person."""
        if pace is not None:
            self._note(steps[0], pace)
        channel = self._call.channel.inside()
        return await self._settle(steps, await asyncio.gather(*(self._begin(planned, channel) for planned in steps)))

    def _note(self, planned: Planned, pace: Pace) -> None:
        pace.note(Progress(planned.index, len(self._plan.steps), f"running {planned.step.tool_id}"))

    def tell_again(self) -> Outcome:
        """Return what came of the chain, for whoever would run it once more: no step does."""
        if self._outcome is None:
            raise ToolError("state_error", "The chain has begun already, and does not begin again.", may_have_run=True)
        if isinstance(self._outcome, ToolError):
            raise self._outcome
        return self._outcome

    def _begin(self, planned: Planned, channel: Channel) -> Awaitable[Envelope]:
        call, step, args = self._call, planned.step, planned.step.args
        try:
            if planned.checked is None:
                args = self._filled(planned)
            if self._ends:
                planned = msgspec.structs.replace(planned, seconds=self._left(step))
        except ToolError as error:
            return _refused(error, step.tool_id)
        return call.funnel.dispatch(CallRequest(step.tool_id, args, call.caller), channel=channel, parent=call, options=planned)

    def _filled(self, planned: Planned) -> Arguments:
        """Return the arguments of a step with what the steps before answered."""
        args = planned.step.args
        if planned.references:
            args = filled(args, planned.references, self._told)
        return {**args, PREVIOUS: self._told[-1]["data"]} if planned.step.use_previous else args

    def _left(self, step: Step) -> float:
        """Return how long a step may take: no longer than it says, nor than the chain has left."""
        left = self._ends - time.perf_counter() + self._call.paused_s
        if left <= 0:
            message = f"The {self._seconds:g} seconds of the chain were over before the step began."
            raise ToolError("timeout", message, hint="Give the chain more time.", blame="caller", may_have_run=False)
        return min(left, step.timeout_s) if step.timeout_s else left

    async def _settle(self, stage: list[Planned], answers: Sequence[Envelope]) -> Outcome | None:
        """Note what a stage answered; return the chain's answer if a step waits for a person.

        Raises:
            ToolError: `chain_step_failed` if one failed.
        """
        failed: list[tuple[Planned, Envelope, Failure]] = []
        pending: list[dict[str, Any]] = []
        for planned, answer in zip(stage, answers, strict=True):
            if answer.error is not None:
                failed.append((planned, answer, answer.error))
            elif is_pending(answer):
                pending.append({"step_index": planned.index, "pending": answer.data})
            else:
                self._keep(planned, answer)
        if failed:
            self._outcome = await self._failure(failed, pending)
            raise self._outcome
        if not pending:
            return None
        first, *others = pending
        held = {"status": PENDING, **first, **({"also_pending": others} if others else {})}
        told = await self._tell(held, most=self._room())
        self._outcome = Envelope.ok(told.data, content=told.content)
        self._outcome.held = True
        return self._outcome

    def _keep(self, planned: Planned, answer: Envelope) -> None:
        """Note what came of a step that went well."""
        step, meta = planned.step, answer.meta
        told: dict[str, Any] = {"step": planned.index, "tool_id": step.tool_id, "data": answer.data}
        if step.id:
            told["id"] = step.id
        if meta.coerced:
            told["coerced"] = list(meta.coerced)
        if meta.warnings:
            told["warnings"] = list(meta.warnings)
        if answer.content:
            self._content[len(self._told)] = answer.content
        self._told.append(told)

    def _room(self) -> int:
        """Return how long an answer may be that must not become a handle; one inside another leaves room for that."""
        most, channel = self._subject.limits.result_characters, self._call.channel.result_characters
        return (most if channel is None else min(most, room_for_data(self._call, channel))) >> self._call.depth

    async def _tell(self, beside: Mapping[str, Any] = _NOTHING, *, final_only: bool = False, most: int | None = None) -> Encoded:
        """Return what came of the steps so far; if that is more than can be kept, or than `most`, large results are kept by themselves."""
        limits = self._subject.limits
        encoded = self._encoded(beside, final_only=final_only)
        for least in (limits.result_characters, _SMALL):
            if len(encoded.text) <= limits.stored_bytes and (most is None or encoded.characters <= most):
                break
            await self._make_room([*(self._told[-1:] if final_only else self._told), *beside.get("partial", ())], least)
            encoded = self._encoded(beside, final_only=final_only)
        return encoded

    def _encoded(self, beside: Mapping[str, Any], *, final_only: bool) -> Encoded:
        told, content = self._told, self._content
        final = told[-1]["data"] if told else None
        if final_only:
            return encode_uncopied({"final": final}, content.get(len(told) - 1, ()))
        return encode_uncopied({**beside, "results": told, "final": final}, tuple(chain.from_iterable(content.values())) if content else ())

    async def _make_room(self, results: Sequence[dict[str, Any]], least: int) -> None:
        """Keep results of steps that have more characters than that apart, each by a handle of its own."""
        store, owner, profile = self._subject.dispatcher.results, self._call.caller.owner, self._call.profile
        for told in results:
            encoded = encode_data(told["data"])
            if encoded.characters > least:
                try:
                    told["data"] = await store.store(encoded, owner, profile)
                except ToolError:
                    told["data"] = too_large(encoded)

    async def _failure(self, failed: list[tuple[Planned, Envelope, Failure]], pending: list[dict[str, Any]]) -> ToolError:
        """Return why the chain stopped, with what came of its steps, also of those that failed."""
        planned, _, cause = failed[0]
        step, index = planned.step, planned.index
        done: list[int] = [one["step"] for one in self._told]
        changed = any(one.tool.spec.operation is not Operation.QUERY for one in self._plan.planned() if one.index in done)
        partial = [{"step": one.index, "data": answer.data} for one, answer, _ in failed if answer.data is not None]
        for one, answer, _ in failed:
            if answer.content:
                self._content[len(self._plan.steps) + one.index] = answer.content
        named = f"{index} '{shortened(step.id)}'" if step.id else f"{index}"
        spare, inside = _spare(done), cause.code == "chain_step_failed"
        return ToolError(
            "chain_step_failed",
            f"Step {named} ('{step.tool_id}') failed: {cause.message}",
            hint=(f"{spare} In the chain of step {index}: {cause.hint}" if inside else f"{cause.hint} {spare}").strip(),
            next_actions=cause.next_actions or self._plan.look_up(step.tool_id),
            reason="step_failed",
            blame=cause.blame,
            may_have_run=changed or any(error.may_have_run for _, _, error in failed),
            data=await self._tell({"partial": partial} if partial else _NOTHING),
            step_index=index,
            step_id=step.id or None,
            cause_code=cause.code,
            cause=msgspec.to_builtins(cause),
            pending=pending or None,
        )


def _spare(done: list[int]) -> str:
    """Return which steps need not run again, in a sentence."""
    if not done:
        return ""
    named = ", ".join(map(str, done))
    return f"Step {named} has run: do not run it again." if len(done) == 1 else f"Steps {named} have run: do not run them again."


async def _refused(error: ToolError, tool_id: str) -> Envelope:
    """Return the answer of a step that cannot begin."""
    return Envelope.fail(error, tool_id=tool_id)
