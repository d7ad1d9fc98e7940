"""Chains: `run_chain`, which calls several tools in one go, each through the whole funnel and with its own record."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.call import Arguments, Call
from toolyard.envelope import Content, Encoded, Envelope, Failure, encode_data, encode_own
from toolyard.errors import ToolError, shortened
from toolyard.limits import Limits
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.making import make
from toolyard.metatools.pace import Pace
from toolyard.metatools.plan import PREVIOUS, Plan, Planned
from toolyard.metatools.references import filled
from toolyard.metatools.running import PENDING, is_pending
from toolyard.metatools.steps import ANSWERS, TAKES, Step, make_check
from toolyard.metatools.subject import Subject
from toolyard.progress import Note
from toolyard.results import Results, too_large
from toolyard.spec import Operation, Reason
from toolyard.tools import Tool

__all__ = ["make_chain"]

Outcome = Envelope | Encoded

_CHARACTERS: Final = 4  # of a token


def make_chain(subject: Subject, catalogue: Catalogue) -> Tool:
    """Return the tool `run_chain`."""

    async def run(call: Call) -> object:
        if call.begun is not None:
            return cast("_Chain", call.begun).tell_again()
        fill = None if call.filled else lambda: subject.dispatcher.results.filling(call.caller.owner, call.profile)
        plan = await Plan(catalogue, call.profile, fill=fill, repair=subject.limits.repair).read(call.arguments["steps"])
        if call.arguments.get("dry_run"):
            return {"plan": _shown(plan, can_hold=subject.dispatcher.admission.can_hold)}
        chain = call.begun = _Chain(call, plan, subject.dispatcher.results, subject.limits)
        if call.door.progress is None:
            return await chain.run()
        with Pace(call, Note(0, len(plan.steps), "")) as pace:
            return await chain.run(pace)

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

    def __init__(self, call: Call, plan: Plan, results: Results, limits: Limits) -> None:
        self._call = call
        self._plan = plan
        self._results = results
        self._limits = limits
        self._seconds: float = call.arguments.get("timeout_s", 0.0)
        self._began = time.perf_counter()
        self._aside = call.aside
        self._kept: list[Planned] = []
        """The steps that went well so far, in their order: all those of the stages that are over."""
        self._answers: list[Envelope] = []
        """What those answered."""
        self._outcome: Outcome | ToolError | None = None

    async def run(self, pace: Pace | None = None) -> Outcome:
        """Run stage after stage, and return what came of it.

        Raises:
            ToolError: `chain_step_failed` with what came of the steps before.
        """
        call, timed, total = self._call, self._seconds, len(self._plan.steps)
        kept, answers, invoke = self._kept, self._answers, call.funnel.invoke
        for stage in self._plan.stages:
            if pace is not None:
                first = _steps(stage)[0]
                pace.note(Note(first.index, total, f"running {first.step.tool_id}"))
            if isinstance(stage, list):
                pending = await self._settle(stage, await asyncio.gather(*map(self._begin, stage)))
            else:
                step = stage.step
                everyday = stage.checked is not None and not timed and not step.timeout_s
                answer = await (invoke(call, step.tool_id, stage.args, stage) if everyday else self._begin(stage))
                if answer.error is None and not answer.held:
                    kept.append(stage)
                    answers.append(answer)
                    continue
                pending = await self._settle([stage], [answer])
            if pending is not None:
                return pending
        if pace is not None:
            pace.note(Note(total, total, "the chain is done"))
        told, content = await self._tell()
        if self._call.arguments.get("final_only"):
            told = {"final": told["final"]}
        self._outcome = encode_own(told, content)
        return self._outcome

    def tell_again(self) -> Outcome:
        """Return what came of the chain, for whoever would run it once more: no step does."""
        if self._outcome is None:
            raise ToolError("state_error", "The chain has begun already, and does not begin again.", may_have_run=True)
        if isinstance(self._outcome, ToolError):
            raise self._outcome
        return self._outcome

    def _begin(self, planned: Planned) -> Awaitable[Envelope]:
        step, args = planned.step, planned.args
        try:
            if planned.checked is None:
                args = self._filled(planned)
            if self._seconds or step.timeout_s:
                planned = msgspec.structs.replace(planned, seconds=self._left(step))
        except ToolError as error:
            return _refused(error, step.tool_id)
        return self._call.funnel.invoke(self._call, step.tool_id, args, planned)

    def _filled(self, planned: Planned) -> Arguments:
        """Return the arguments of a step with what the steps before answered."""
        args = filled(planned.args, planned.references, self._answers) if planned.references else planned.args
        return {**args, PREVIOUS: self._answers[-1].data} if planned.step.use_previous else args

    def _left(self, step: Step) -> float:
        """Return how long a step may take: no longer than it says, nor than the chain has left."""
        if not self._seconds:
            return step.timeout_s
        left = self._seconds - (time.perf_counter() - self._began) + self._call.aside - self._aside
        if left <= 0:
            raise ToolError("timeout", f"The {self._seconds:g} seconds of the chain were over before the step began.", may_have_run=False)
        return min(left, step.timeout_s) if step.timeout_s else left

    async def _settle(self, stage: list[Planned], answers: Sequence[Envelope]) -> Outcome | None:
        """Note what a stage answered; return the chain's answer if a step waits for a person.

        Raises:
            ToolError: `chain_step_failed` if one failed.
        """
        ran = False
        failed: tuple[Planned, Failure] | None = None
        pending: list[dict[str, Any]] = []
        for planned, answer in zip(stage, answers, strict=True):
            if answer.error is not None:
                failed = failed or (planned, answer.error)
                ran = ran or answer.error.may_have_run
            elif is_pending(answer):
                pending.append({"step_index": planned.index, "pending": answer.data})
            else:
                self._kept.append(planned)
                self._answers.append(answer)
        if failed is None and not pending:
            return None
        told, _ = await self._tell()
        if failed is not None:
            self._outcome = self._failure(*failed, told=told, ran=ran, pending=pending)
            raise self._outcome
        self._outcome = Envelope.ok({"status": PENDING, **pending[0], **told}).holding()
        return self._outcome

    async def _tell(self) -> tuple[dict[str, Any], tuple[Content, ...]]:
        """Return what came of the steps, and the blocks that belong to it."""
        results: list[dict[str, Any]] = []
        content: tuple[Content, ...] = ()
        tokens = 0
        for planned, answer in zip(self._kept, self._answers, strict=True):
            step, meta = planned.step, answer.meta
            told: dict[str, Any] = {"step": planned.index, "tool_id": step.tool_id, "data": answer.data}
            if step.id:
                told["id"] = step.id
            if meta.coerced:
                told["coerced"] = list(meta.coerced)
            if meta.warnings:
                told["warnings"] = list(meta.warnings)
            if answer.content:
                content += answer.content
            tokens += meta.estimated_tokens
            results.append(told)
        if 2 * _CHARACTERS * tokens > self._limits.stored_bytes:  # twice, because the last one is told twice
            await self._make_room(results)
        return {"results": results, "final": results[-1]["data"] if results else None}, content

    async def _make_room(self, results: list[dict[str, Any]]) -> None:
        """Keep large results of steps apart, each by a handle of its own, because they are too large to be kept together."""
        for told in results:
            encoded = encode_data(told["data"])
            if encoded.characters > self._limits.result_characters:
                try:
                    told["data"] = await self._results.keep(encoded, self._call.caller.owner, self._call.profile)
                except ToolError:
                    told["data"] = too_large(encoded)

    def _failure(self, planned: Planned, cause: Failure, *, told: dict[str, Any], ran: bool, pending: list[dict[str, Any]]) -> ToolError:
        step, index = planned.step, planned.index
        done = [one.index for one in self._kept]
        changed = ran or any(one.tool.spec.operation is not Operation.QUERY for one in self._kept)
        named = f"{index} '{shortened(step.id)}'" if step.id else f"{index}"
        return ToolError(
            "chain_step_failed",
            f"Step {named} ('{step.tool_id}') failed: {cause.message}",
            hint=f"{cause.hint} {_spare(done)}".strip(),
            next_actions=cause.next_actions or self._plan.look_up(step.tool_id),
            reason="step_failed",
            blame=cause.blame,
            may_have_run=changed,
            data=told,
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


def _steps(stage: Planned | list[Planned]) -> list[Planned]:
    return stage if isinstance(stage, list) else [stage]


def _shown(plan: Plan, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return the plan as an answer: what would run when, what it waits for, and whether a person is asked first, where that is known."""
    told: list[dict[str, Any]] = []
    last = 0
    for number, stage in enumerate(plan.stages):
        for planned in _steps(stage):
            spec, step = planned.tool.spec, planned.step
            asks = True if any(one.spec.question is not None for one in (planned.tool, *planned.inner)) else None if can_hold else False
            waits = sorted({reference.target for reference in planned.references} | ({last} if step.use_previous else set[int]()))
            one: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
        last = told[-1]["step"]
    return told
