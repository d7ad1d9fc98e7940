"""Chains: `run_chain`, which calls several tools in one go, each through the whole funnel and with its own record."""

import asyncio
import time
from typing import Any, Final, cast

import msgspec

from toolyard.call import Arguments, Call
from toolyard.caller import Nested
from toolyard.envelope import Envelope, Failure
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.making import TEXT, fields, make, outcome
from toolyard.metatools.pace import Pace
from toolyard.metatools.plan import PREVIOUS, Plan, Step
from toolyard.metatools.references import Reference, filled
from toolyard.metatools.subject import Subject
from toolyard.progress import Note
from toolyard.results import at_pointer
from toolyard.spec import Operation
from toolyard.tools import Tool

__all__ = ["make_chain"]

_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
_FILLED: Final = Nested(filled=True)
_PENDING: Final = "approval_required"
_STEP: Final = fields(
    "tool_id",
    id=TEXT,
    tool_id=TEXT,
    args={"type": "object", "description": 'A value {"$from": step id or index, "path": JSON pointer} takes an earlier result.'},
    use_previous={**_FLAG, "description": "Passes the result before it as 'previous'."},
    parallel={**TEXT, "description": "Neighbours of the same group run side by side."},
    timeout_s=_SECONDS,
)
_TAKES: Final = fields(
    "steps",
    steps={"type": "array", "minItems": 1, "maxItems": _STEPS, "items": _STEP},
    timeout_s={**_SECONDS, "description": "For the whole chain."},
    final_only={**_FLAG, "description": "Answers only with the last result."},
    dry_run={**_FLAG, "description": "Only checks, and shows the plan."},
)
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_RESULT: Final = outcome("step tool_id data", step=_INTEGER, id=TEXT, tool_id=TEXT, data={}, coerced={"type": "array", "items": TEXT})
_PLANNED: Final = outcome(
    "step tool_id operation stage needs_approval",
    step=_INTEGER,
    id=TEXT,
    tool_id=TEXT,
    operation=TEXT,
    stage=_INTEGER,
    needs_approval={"type": ["boolean", "null"]},
    waits_for={"type": "array", "items": _INTEGER},
)
_ANSWERS: Final = outcome(
    "",
    results={"type": "array", "items": _RESULT},
    final={},
    plan={"type": "array", "items": _PLANNED},
    status=TEXT,
    step_index=_INTEGER,
    pending={},
)


def make_chain(subject: Subject, catalogue: Catalogue) -> Tool:
    """Return the tool `run_chain`."""

    async def run(call: Call) -> dict[str, Any]:
        plan = Plan(catalogue, call.profile, repair=subject.limits.repair).read(call.arguments["steps"])
        if call.arguments.get("dry_run"):
            return {"plan": _told(plan, has_policy=subject.dispatcher.admission.has_policy)}
        return await _Chain(call, plan).run()

    return make(
        "run_chain",
        "Call several tools in turn, passing results on, and stop at the first error.",
        run,
        takes=_TAKES,
        answers=_ANSWERS,
        listed=True,
        wraps=True,
    )


class _Chain:
    """One chain while it runs."""

    def __init__(self, call: Call, plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._seconds: float | None = call.arguments.get("timeout_s")
        self._began = time.perf_counter()
        self._aside = call.aside
        self._results: list[Any] = [None] * len(plan.steps)
        self._told: list[dict[str, Any]] = []
        self._final: Any = None
        self._changed = False

    async def run(self) -> dict[str, Any]:
        """Run stage after stage, and return what came of it.

        Raises:
            ToolError: `chain_step_failed` with what came of the steps before.
        """
        total = len(self._plan.steps)
        told = self._call.door.progress is not None
        with Pace(self._call, Note(0, total, "")) as pace:
            for stage in self._plan.stages():
                if told:
                    pace.note(Note(stage[0].index, total, f"running {stage[0].tool_id}"))
                if len(stage) == 1:
                    answers = [await self._run_step(stage[0], self._final)]
                else:
                    answers = await asyncio.gather(*(self._run_step(step, self._final) for step in stage))
                pending = self._settle(stage, answers)
                if pending is not None:
                    return pending
            pace.note(Note(total, total, "the chain is done"))
        return self._outcome()

    async def _run_step(self, step: Step, previous: Any) -> Envelope | ToolError:
        try:
            seconds = self._left(step)
            args = self._filled(step, previous)
        except ToolError as error:
            return error
        how = _FILLED if seconds is None else Nested(seconds=seconds, filled=True)
        return await self._call.funnel.invoke(self._call, step.tool_id, args, how)

    def _left(self, step: Step) -> float | None:
        """Return how long a step may take: no longer than it says, nor than the chain has left."""
        if self._seconds is None:
            return step.seconds
        left = self._seconds - (time.perf_counter() - self._began) + self._call.aside - self._aside
        if left <= 0:
            raise ToolError("timeout", f"The {self._seconds:g} seconds of the chain were over before the step began.", may_have_run=False)
        return left if step.seconds is None else min(left, step.seconds)

    def _filled(self, step: Step, previous: Any) -> Arguments:
        args: Arguments = filled(step.args, step.references, self._follow) if step.references else step.args
        return {**args, PREVIOUS: previous} if step.use_previous else args

    def _follow(self, reference: Reference) -> Any:
        target = cast("int", self._plan.index_of(reference))
        if not reference.pointer:
            return self._results[target]
        try:
            return at_pointer(self._results[target], reference.pointer)
        except LookupError:
            message = f"Step {target} answered nothing at {reference.pointer!r}."
            issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
            raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None

    def _settle(self, stage: list[Step], answers: list[Envelope | ToolError]) -> dict[str, Any] | None:
        """Note what a stage answered; return the chain's answer if a step waits for a person.

        Raises:
            ToolError: `chain_step_failed` if one failed.
        """
        failed: tuple[Step, Failure] | None = None
        pending: tuple[Step, Any] | None = None
        for step, answer in zip(stage, answers, strict=True):
            if isinstance(answer, Envelope) and answer.error is None:
                if _is_pending(answer.data):
                    pending = pending or (step, answer.data)
                else:
                    self._keep(step, answer)
                continue
            failure = answer.error if isinstance(answer, Envelope) else Envelope.fail(answer, tool_id=step.tool_id).error
            assert failure is not None  # noqa: S101 - asked only of failures
            self._changed = self._changed or failure.may_have_run
            failed = failed or (step, failure)
        if failed is not None:
            raise self._failure(*failed)
        if pending is not None:
            return {"status": _PENDING, "step_index": pending[0].index, "pending": pending[1], **self._outcome()}
        return None

    def _keep(self, step: Step, answer: Envelope) -> None:
        self._results[step.index] = self._final = answer.data
        self._changed = self._changed or step.tool.spec.operation is not Operation.QUERY
        told: dict[str, Any] = {"step": step.index, "tool_id": step.tool_id, "data": answer.data}
        coerced = (*step.coerced, *answer.meta.coerced)
        if step.id is not None:
            told["id"] = step.id
        if coerced:
            told["coerced"] = coerced
        self._told.append(told)

    def _outcome(self) -> dict[str, Any]:
        return {"final": self._final} if self._call.arguments.get("final_only") else {"results": self._told, "final": self._final}

    def _failure(self, step: Step, cause: Failure) -> ToolError:
        named = f"{step.index}" if step.id is None else f"{step.index} '{step.id}'"
        return ToolError(
            "chain_step_failed",
            f"Step {named} ('{step.tool_id}') failed: {cause.message}",
            hint=f"{cause.hint} The steps before {step.index} have run: do not run them again.",
            next_actions=cause.next_actions or (f"describe_tool(tool_id={step.tool_id!r})",),
            blame=cause.blame,
            may_have_run=self._changed,
            data={"results": self._told, "final": self._final},
            step_index=step.index,
            step_id=step.id,
            cause_code=cause.code,
            cause=msgspec.to_builtins(cause),
        )


def _is_pending(data: object) -> bool:
    return isinstance(data, dict) and cast("dict[str, Any]", data).get("status") == _PENDING


def _told(plan: Plan, *, has_policy: bool) -> list[dict[str, Any]]:
    """Return the plan as an answer: what would run when, what it waits for, and whether a person is asked first, where that is known."""
    told: list[dict[str, Any]] = []
    for stage, steps in enumerate(plan.stages()):
        for step in steps:
            spec = step.tool.spec
            asks = True if spec.question is not None else None if has_policy else False
            waits = sorted({plan.index_of(reference) or 0 for reference in step.references})
            one: dict[str, Any] = {"step": step.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": stage}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
    return told
