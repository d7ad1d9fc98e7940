"""Chains: `run_chain`, which calls several tools in one go, each through the whole funnel and with its own record."""

import asyncio
import time
from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Final, cast

import msgspec

from toolyard.call import Arguments, Call
from toolyard.envelope import Envelope, Failure, Plain
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.making import TEXT, fields, make, outcome
from toolyard.metatools.pace import Pace
from toolyard.metatools.plan import PREVIOUS, Plan, Planned, Seconds, Step
from toolyard.metatools.references import filled
from toolyard.metatools.subject import Subject
from toolyard.progress import Note
from toolyard.spec import Operation
from toolyard.tools import Check, Tool, check_by_schema

__all__ = ["make_chain"]

_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
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


class _Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments, as they are read in one go where nothing is wrong with them."""

    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=_STEPS)]
    timeout_s: Seconds = 0.0
    final_only: bool = False
    dry_run: bool = False


def _check() -> Check:
    """Return the check that the schema says, which reads steps as what they are; the schema itself tells what is wrong."""
    decode = msgspec.json.Decoder(_Given).decode
    by_schema = check_by_schema(_TAKES)

    def check(text: bytes) -> Arguments:
        try:
            given = decode(text)
        except msgspec.ValidationError:
            return msgspec.structs.asdict(msgspec.convert(by_schema(text), _Given))
        return msgspec.structs.asdict(given)

    return check


def make_chain(subject: Subject, catalogue: Catalogue) -> Tool:
    """Return the tool `run_chain`."""

    async def run(call: Call) -> Plain:
        plan = Plan(catalogue, call.profile, repair=subject.limits.repair).read(call.arguments["steps"])
        if call.arguments.get("dry_run"):
            return Plain({"plan": _shown(plan, can_hold=subject.dispatcher.admission.can_hold)})
        if call.door.progress is None:
            return await _Chain(call, plan).run()
        with Pace(call, Note(0, len(plan.steps), "")) as pace:
            return await _Chain(call, plan).run(pace)

    return make(
        "run_chain",
        "Call several tools in turn, passing results on, and stop at the first error.",
        run,
        takes=_TAKES,
        answers=_ANSWERS,
        listed=True,
        wraps=True,
        check=_check(),
    )


class _Chain:
    """One chain while it runs."""

    def __init__(self, call: Call, plan: Plan) -> None:
        self._call = call
        self._plan = plan
        self._seconds: float = call.arguments.get("timeout_s", 0.0)
        self._began = time.perf_counter()
        self._aside = call.aside
        self._told: list[dict[str, Any]] = []
        """What came of the steps so far, in their order: all those of the stages that are over."""

    async def run(self, pace: Pace | None = None) -> Plain:
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
                pending = self._settle(stage, await asyncio.gather(*map(self._begin, stage)))
            else:
                step = stage.step
                everyday = stage.checked is not None and not timed and not step.timeout_s
                answer = await (invoke(call, step.tool_id, step.args, stage) if everyday else self._begin(stage))
                if answer.error is None and not _is_pending(answer.data):
                    self._told.append(_told(stage, answer))
                    continue
                pending = self._settle([stage], [answer])
            if pending is not None:
                return pending
        if pace is not None:
            pace.note(Note(total, total, "the chain is done"))
        return self._outcome()

    def _begin(self, planned: Planned) -> Awaitable[Envelope]:
        step, args = planned.step, planned.step.args
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
        step = planned.step
        args = filled(step.args, planned.references, self._told) if planned.references else step.args
        return {**args, PREVIOUS: self._final} if step.use_previous else args

    def _left(self, step: Step) -> float:
        """Return how long a step may take: no longer than it says, nor than the chain has left."""
        if not self._seconds:
            return step.timeout_s
        left = self._seconds - (time.perf_counter() - self._began) + self._call.aside - self._aside
        if left <= 0:
            raise ToolError("timeout", f"The {self._seconds:g} seconds of the chain were over before the step began.", may_have_run=False)
        return min(left, step.timeout_s) if step.timeout_s else left

    def _settle(self, stage: list[Planned], answers: Sequence[Envelope]) -> Plain | None:
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
            elif _is_pending(answer.data):
                pending = pending or (planned.index, answer.data)
            else:
                self._told.append(_told(planned, answer))
        if failed is not None:
            raise self._failure(*failed, ran=ran)
        if pending is not None:
            return self._outcome(status=_PENDING, step_index=pending[0], pending=pending[1])
        return None

    @property
    def _final(self) -> Any:
        return self._told[-1]["data"] if self._told else None

    def _outcome(self, **pending: Any) -> Plain:
        results = {} if self._call.arguments.get("final_only") else {"results": self._told}
        return Plain({**pending, **results, "final": self._final})

    def _failure(self, planned: Planned, cause: Failure, *, ran: bool) -> ToolError:
        step, index = planned.step, planned.index
        done = {told["step"] for told in self._told}
        changed = ran or any(
            one.tool.spec.operation is not Operation.QUERY for stage in self._plan.stages for one in _steps(stage) if one.index in done
        )
        named = f"{index} '{step.id}'" if step.id else f"{index}"
        return ToolError(
            "chain_step_failed",
            f"Step {named} ('{step.tool_id}') failed: {cause.message}",
            hint=f"{cause.hint} The steps before {index} have run: do not run them again.",
            next_actions=cause.next_actions or (f"describe_tool(tool_id={step.tool_id!r})",),
            blame=cause.blame,
            may_have_run=changed,
            data={"results": self._told, "final": self._final},
            step_index=index,
            step_id=step.id or None,
            cause_code=cause.code,
            cause=msgspec.to_builtins(cause),
        )


def _is_pending(data: object) -> bool:
    return type(data) is dict and cast("dict[str, Any]", data).get("status") == _PENDING


async def _refused(error: ToolError, tool_id: str) -> Envelope:
    """Return the answer of a step that cannot begin."""
    return Envelope.fail(error, tool_id=tool_id)


def _steps(stage: Planned | list[Planned]) -> list[Planned]:
    return stage if isinstance(stage, list) else [stage]


def _told(planned: Planned, answer: Envelope) -> dict[str, Any]:
    """Return what came of a step."""
    step = planned.step
    told: dict[str, Any] = {"step": planned.index, "tool_id": step.tool_id, "data": answer.data}
    if step.id:
        told["id"] = step.id
    if answer.meta.coerced:
        told["coerced"] = list(answer.meta.coerced)
    return told


def _shown(plan: Plan, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return the plan as an answer: what would run when, what it waits for, and whether a person is asked first, where that is known."""
    told: list[dict[str, Any]] = []
    for number, stage in enumerate(plan.stages):
        for planned in _steps(stage):
            spec, step = planned.tool.spec, planned.step
            asks = True if spec.question is not None else None if can_hold else False
            waits = sorted({reference.target for reference in planned.references})
            one: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation), "stage": number}
            one |= {"needs_approval": asks, **({"waits_for": waits} if waits else {}), **({"id": step.id} if step.id else {})}
            told.append(one)
    return told
