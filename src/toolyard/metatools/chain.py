"""Chains: `run_chain`, which calls several tools in one go, each through the whole funnel and with its own record."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Any, Final

import msgspec

from toolyard.call import Arguments, Call
from toolyard.envelope import Content, Envelope, Failure, encode_data
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
from toolyard.spec import Operation
from toolyard.tools import Tool

__all__ = ["make_chain"]

Outcome = Envelope | dict[str, Any]

_CHARACTERS: Final = 4  # of a token


def make_chain(subject: Subject, catalogue: Catalogue) -> Tool:
    """Return the tool `run_chain`."""

    async def run(call: Call) -> object:
        filling = None if call.filled else subject.dispatcher.results.filling(call.caller.owner)
        plan = await Plan(catalogue, call.profile, filling=filling, repair=subject.limits.repair).read(call.arguments["steps"])
        if call.arguments.get("dry_run"):
            return {"plan": _shown(plan, can_hold=subject.dispatcher.admission.can_hold)}
        chain = _Chain(call, plan, subject.dispatcher.results, subject.limits)
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
        self._told: list[dict[str, Any]] = []
        """What came of the steps so far, in their order: all those of the stages that are over."""
        self._content: tuple[Content, ...] = ()
        self._tokens = 0
        """How much the steps answered, about."""

    async def run(self, pace: Pace | None = None) -> Outcome:
        """Run stage after stage, and return what came of it.

        Raises:
            ToolError: `chain_step_failed` with what came of the steps before.
        """
        call, timed, total = self._call, self._seconds, len(self._plan.steps)
        invoke = call.funnel.invoke
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
                    self._keep(stage, answer)
                    continue
                pending = await self._settle([stage], [answer])
            if pending is not None:
                return pending
        if pace is not None:
            pace.note(Note(total, total, "the chain is done"))
        return await self._outcome()

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
        args = filled(planned.args, planned.references, self._told) if planned.references else planned.args
        return {**args, PREVIOUS: self._final} if planned.step.use_previous else args

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
        pending: tuple[int, Any] | None = None
        for planned, answer in zip(stage, answers, strict=True):
            if answer.error is not None:
                failed = failed or (planned, answer.error)
                ran = ran or answer.error.may_have_run
            elif is_pending(answer):
                pending = pending or (planned.index, answer.data)
            else:
                self._keep(planned, answer)
        if failed is not None:
            await self._make_room()
            raise self._failure(*failed, ran=ran)
        if pending is not None:
            told = await self._outcome()
            data = told if isinstance(told, dict) else told.data
            return Envelope.ok({"status": PENDING, "step_index": pending[0], "pending": pending[1], **data}).holding()
        return None

    def _keep(self, planned: Planned, answer: Envelope) -> None:
        step, meta = planned.step, answer.meta
        told: dict[str, Any] = {"step": planned.index, "tool_id": step.tool_id, "data": answer.data}
        if step.id:
            told["id"] = step.id
        if meta.coerced:
            told["coerced"] = meta.coerced
        if meta.warnings:
            told["warnings"] = meta.warnings
        if answer.content:
            self._content += answer.content
        self._tokens += meta.estimated_tokens
        self._told.append(told)

    @property
    def _final(self) -> Any:
        return self._told[-1]["data"] if self._told else None

    async def _make_room(self) -> None:
        """Keep large results of steps apart, each by a handle of its own, if they are too large to be kept together."""
        if 2 * _CHARACTERS * self._tokens <= self._limits.stored_bytes:  # twice, because the last one is told twice
            return
        for told in self._told:
            encoded = encode_data(told["data"])
            if encoded.characters > self._limits.result_characters:
                try:
                    told["data"] = await self._results.keep(encoded, self._call.caller.owner)
                except ToolError:
                    told["data"] = too_large(encoded)

    async def _outcome(self) -> Outcome:
        await self._make_room()
        told = {"final": self._final} if self._call.arguments.get("final_only") else {"results": self._told, "final": self._final}
        return Envelope.ok(told, content=self._content) if self._content else told

    def _failure(self, planned: Planned, cause: Failure, *, ran: bool) -> ToolError:
        step, index = planned.step, planned.index
        done: list[int] = sorted(told["step"] for told in self._told)
        changed = ran or any(
            one.tool.spec.operation is not Operation.QUERY for stage in self._plan.stages for one in _steps(stage) if one.index in done
        )
        named = f"{index} '{shortened(step.id)}'" if step.id else f"{index}"
        return ToolError(
            "chain_step_failed",
            f"Step {named} ('{step.tool_id}') failed: {cause.message}",
            hint=f"{cause.hint} {_spare(done)}".strip(),
            next_actions=cause.next_actions or self._plan.look_up(step.tool_id),
            blame=cause.blame,
            may_have_run=changed,
            data={"results": self._told, "final": self._final},
            step_index=index,
            step_id=step.id or None,
            cause_code=cause.code,
            cause=msgspec.to_builtins(cause),
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
    for number, stage in enumerate(plan.stages):
        for planned in _steps(stage):
            spec, step = planned.tool.spec, planned.step
            asks = True if any(one.spec.question is not None for one in (planned.tool, *planned.inner)) else None if can_hold else False
            waits = sorted({reference.target for reference in planned.references})
            one: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
    return told
