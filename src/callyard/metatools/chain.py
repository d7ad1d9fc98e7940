"""The metatool `run_chain`, which calls its steps through the dispatcher, each with its own record.

`chain_plan` checks the steps before the first one runs.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Annotated, Any, Final

import msgspec

from callyard.dispatch.call import Arguments, Call, CallRequest, Channel
from callyard.dispatch.progress import Progress
from callyard.dispatch.results import too_large
from callyard.dispatch.run import Run, run_of
from callyard.dispatch.tool import Tool, check_by_schema
from callyard.metatools.chain_plan import PREVIOUS, Plan, PlannedStep, Seconds, Step, resolve_references
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, object_schema, room
from callyard.metatools.run import DelayedProgress, is_pending, is_stopped, once
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Content, Encoded, Envelope, Failure, encode_data, encode_unchecked, encode_uncopied
from callyard.model.errors import ToolError, shortened
from callyard.model.profile import METATOOLS
from callyard.model.spec import Operation, Reason
from callyard.policy.gate import Gate
from callyard.state.store import StoreUnavailableError

__all__ = ["INPUT_SCHEMA", "chain_metatool"]

_Outcome = Envelope | Encoded
_NOTHING: Final[Mapping[str, Any]] = {}
_WORTH_A_HANDLE: Final = 1000
"""Characters from which a handle is shorter than a result."""
_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_STEP: Final = object_schema(
    "tool_id",
    id=TEXT,
    tool_id=TEXT,
    args={
        "type": "object",
        "description": 'A value {"$from": step id or index, "path": JSON pointer} takes an earlier result.',
    },
    use_previous={**_FLAG, "description": "Passes the result before it as 'previous'."},
    parallel={**TEXT, "description": "Neighbours of the same group run side by side."},
    timeout_s=_SECONDS,
)
INPUT_SCHEMA: Final = object_schema(
    "steps",
    steps={"type": "array", "minItems": 1, "maxItems": _STEPS, "items": _STEP},
    timeout_s={**_SECONDS, "description": "For the whole chain."},
    final_only={**_FLAG, "description": "Answers only with the last result."},
    dry_run={**_FLAG, "description": "Only checks, and shows the plan."},
)
_RESULT: Final = object_schema(
    "step tool_id data", step=_INTEGER, id=TEXT, tool_id=TEXT, data={}, coerced=_TEXTS, warnings=_TEXTS
)
_PLANNED: Final = object_schema(
    "step tool_id operation stage needs_approval",
    step=_INTEGER,
    id=TEXT,
    tool_id=TEXT,
    operation=TEXT,
    stage=_INTEGER,
    needs_approval={"type": ["boolean", "null"]},
    waits_for={"type": "array", "items": _INTEGER},
)
OUTPUT_SCHEMA: Final = object_schema(
    "",
    results={"type": "array", "items": _RESULT},
    final={},
    plan={"type": "array", "items": _PLANNED},
    status=TEXT,
    approval_id=TEXT,
    job_id=TEXT,
    poll_after_ms=_INTEGER,
    what_to_do=TEXT,
    step_index=_INTEGER,
    pending={},
    also_pending={"type": "array", "items": object_schema("step_index pending", step_index=_INTEGER, pending={})},
    partial={"type": "array", "items": object_schema("step data", step=_INTEGER, data={})},
)


class _ChainArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=_STEPS)]
    timeout_s: Seconds = 0.0
    final_only: bool = False
    dry_run: bool = False


def chain_metatool(yard: YardParts) -> Tool:
    """Return the metatool `run_chain`."""
    by_schema = check_by_schema(INPUT_SCHEMA)
    return build_metatool(
        "run_chain",
        "Call several tools in turn, passing results on, and stop at the first error.",
        once(partial(_run_chain, yard), busy="The chain is running already, and is not run twice."),
        input_schema=INPUT_SCHEMA,
        output_schema=OUTPUT_SCHEMA,
        listed=True,
        wraps=True,
        outlives_as=APPROVAL_REQUIRED,
        # its steps are structs afterwards
        check=lambda text: msgspec.structs.asdict(msgspec.convert(by_schema(text), _ChainArguments)),
        reasons={"step_failed": Reason("chain_step_failed", ("step_index", "cause_code"))},
    )


def _needs_approval(planned: PlannedStep, call: Call, gate: Gate | None, *, looks: bool) -> bool | None:
    """Return whether a rule asks about a step or a tool that it runs; None if that is not known yet.

    With `looks`, rules look at the arguments of the step.
    """
    if gate is None:
        return False
    profile = call.profile.name
    bind = partial(planned.tool.bind, planned.options.text) if looks and planned.checked is not None else None
    spec = planned.tool.spec
    asks = run_of(call).asks_before_destroy
    own = gate.needs_approval(spec, profile, call.caller, asks=asks, bind=bind)
    inner = [gate.needs_approval(tool.spec, profile, call.caller, asks=asks) for tool in planned.inner]
    if not inner and spec.source == METATOOLS and spec.metatool.use == "call":  # nobody knows yet what it calls
        inner.append(None)
    if own or any(inner):
        return True
    return None if own is None or None in inner else False


def _preview(plan: Plan, call: Call, gate: Gate | None, *, can_hold: bool) -> list[dict[str, Any]]:
    """Return the steps with their stages, dependencies, and whether each needs an approval (None if unknown)."""
    steps: list[dict[str, Any]] = []
    for number, stage in enumerate(plan.stages):
        for planned in stage:
            spec, step = planned.tool.spec, planned.step
            confirms = any(tool.spec.confirmation is not None for tool in (planned.tool, *planned.inner))
            asks = confirms or _needs_approval(planned, call, gate, looks=True)
            waits = {reference.target for reference in planned.references}
            if step.use_previous:
                waits.add(stage[0].index - 1)
            entry: dict[str, Any] = {"step": planned.index, "tool_id": spec.name, "operation": str(spec.operation)}
            entry |= {"stage": number, "needs_approval": asks or (None if can_hold or asks is None else False)}
            if waits:
                entry["waits_for"] = sorted(waits)
            if step.id:
                entry["id"] = step.id
            steps.append(entry)
    return steps


async def _run_chain(yard: YardParts, call: Call) -> object:
    plan, gate = Plan(yard, call), yard.gate
    await plan.read(call.arguments["steps"])
    can_hold = bool(yard.dispatcher.admission.policies)
    if call.arguments["dry_run"]:
        return {"plan": _preview(plan, call, gate, can_hold=can_hold)}
    chain_run = _ChainRun(yard, run_of(call), plan)
    if gate is not None and not can_hold:  # a policy may deny a step, and nobody should be asked in vain
        await chain_run.obtain_approvals(gate)
    with DelayedProgress(call, Progress(0, len(plan.steps), "")) as progress:
        return await chain_run.run(progress)


class _ChainRun:
    def __init__(self, yard: YardParts, run: Run, plan: Plan) -> None:
        self._yard = yard
        self._chain = run
        self._call = run.call
        self._plan = plan
        self._results: list[dict[str, Any]] = []
        """The results of the successful steps, in order."""
        self._content: dict[int, tuple[Content, ...]] = {}
        """Their content blocks, by position in the results."""
        self._timeout_s: float = run.call.arguments["timeout_s"]
        outer_s = run.options.seconds
        if outer_s:  # set by an outer chain
            self._timeout_s = min(outer_s, self._timeout_s or outer_s)
        self._deadline = time.perf_counter() + self._timeout_s - run.paused_s if self._timeout_s else 0.0
        """By `time.perf_counter`, without the time that the call is paused; 0 is none."""

    async def obtain_approvals(self, gate: Gate) -> None:
        """Wait for the approvals of all steps whose arguments are known, before the first one runs.

        Raises:
            ToolError: One is denied.
        """
        asks = False
        for planned in chain.from_iterable(self._plan.stages):
            asks = asks or _needs_approval(planned, self._call, gate, looks=False) is not False
        for stage in self._plan.stages if asks else ():
            for index, planned in enumerate(stage):
                if planned.options.checked is not None and planned.tool.spec.session == "none":
                    options = await gate.obtain(self._call, planned.tool, planned.options)
                    stage[index] = msgspec.structs.replace(planned, options=options)

    def _partial(self) -> bytes:
        """Return the results so far as JSON, without their data if they are too large."""
        text = encode_unchecked({"results": self._results})
        if len(text) <= self._yard.limits.result_characters:
            return text
        return encode_unchecked(
            {"results": [{"step": result["step"], "tool_id": result["tool_id"]} for result in self._results]}
        )

    async def run(self, progress: DelayedProgress) -> _Outcome:
        """Run the stages and return the results.

        Raises:
            ToolError: `chain_step_failed` with the results so far; `cancelled` with them, if the chain is stopped.
        """
        self._chain.keep_partial(self._partial)
        try:
            return await self._run(progress)
        except asyncio.CancelledError:
            if not is_stopped(self._chain):
                raise  # nobody waits for the answer
            done: list[int] = [result["step"] for result in self._results]
            data = self._encoded(_NOTHING, final_only=False) if done else None
            raise ToolError("cancelled", "The chain was stopped.", hint=_not_again(done) or None, data=data) from None

    async def _run(self, progress: DelayedProgress) -> _Outcome:
        total = len(self._plan.steps)
        for stage in self._plan.stages:
            progress.note(Progress(stage[0].index, total, f"running {stage[0].step.tool_id}"))
            pending = await self._finish_stage(stage, await self._run_stage(stage))
            if pending is not None:
                return pending
        progress.note(Progress(total, total, "the chain is done"))
        return await self._encode_results(final_only=self._call.arguments["final_only"])

    async def _run_stage(self, stage: list[PlannedStep]) -> Sequence[Envelope]:
        channel = self._call.channel.inside()
        if len(stage) == 1:
            return [await self._dispatch(stage[0], channel)]
        running = [asyncio.ensure_future(self._dispatch(planned, channel)) for planned in stage]
        try:
            return await asyncio.gather(*running)
        except asyncio.CancelledError:
            for planned, task in zip(stage, running, strict=True):
                if task.done() and not task.cancelled() and task.result().success and not task.result().held:
                    self._add_result(planned, task.result())
            raise

    async def _dispatch(self, planned: PlannedStep, channel: Channel) -> Envelope:
        step, args, options = planned.step, planned.step.args, planned.options
        try:
            if planned.checked is None:
                args = self._arguments(planned)
            if self._deadline:
                options = msgspec.structs.replace(options, seconds=self._time_left(step))
        except ToolError as error:  # the step cannot start
            return Envelope.fail(error, tool_id=step.tool_id)
        request = CallRequest(step.tool_id, args, self._call.caller)
        return await self._chain.dispatch(request, channel=channel, options=options)

    def _arguments(self, planned: PlannedStep) -> Arguments:
        args = planned.step.args
        if planned.references:
            most = max(self._yard.limits.argument_bytes, self._yard.limits.stored_bytes)
            args = resolve_references(args, planned.references, self._results, max_bytes=most)
        return {**args, PREVIOUS: self._results[-1]["data"]} if planned.step.use_previous else args

    def _time_left(self, step: Step) -> float:
        """Return the timeout of a step: its own, or what is left of the chain's."""
        left = self._deadline - time.perf_counter() + self._chain.paused_s
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
            raise await self._failure(failed, pending)
        if not pending:
            return None
        first, *others = pending
        extra = {"status": APPROVAL_REQUIRED, **first, **({"also_pending": others} if others else {})}
        # the answer must not become a handle, and each outer call halves its room
        most = min(self._yard.limits.result_characters, room(self._yard, self._call)) >> self._chain.depth
        encoded = await self._encode_results(extra, most=most)
        answer = Envelope.ok(encoded.data, content=encoded.content)
        answer.held = True
        return answer

    def _add_result(self, planned: PlannedStep, answer: Envelope) -> None:
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

    async def _encode_results(
        self, extra: Mapping[str, Any] = _NOTHING, *, final_only: bool = False, most: int | None = None
    ) -> Encoded:
        """Return the results as JSON; if they are too large to store, or than `most`, large ones become handles."""
        limits = self._yard.limits
        encoded = self._encoded(extra, final_only=final_only)
        for least in (limits.result_characters, _WORTH_A_HANDLE):
            if len(encoded.text) <= limits.stored_bytes and (most is None or encoded.characters <= most):
                break
            shown = self._results[-1:] if final_only else self._results
            await self._store_large([*shown, *extra.get("partial", ())], least)
            encoded = self._encoded(extra, final_only=final_only)
        return encoded

    def _encoded(self, extra: Mapping[str, Any], *, final_only: bool) -> Encoded:
        results, content = self._results, self._content
        final = results[-1]["data"] if results else None
        if final_only:
            return encode_uncopied({"final": final}, content.get(len(results) - 1, ()))
        blocks = tuple(chain.from_iterable(content.values()))
        return encode_uncopied({**extra, "results": results, "final": final}, blocks)

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

    async def _failure(
        self, failed: list[tuple[PlannedStep, Envelope, Failure]], pending: list[dict[str, Any]]
    ) -> ToolError:
        """Return the failure of the chain, with the results of its steps and the partial ones of failed steps."""
        planned, _, cause = failed[0]
        step, index = planned.step, planned.index
        done: list[int] = [result["step"] for result in self._results]
        others = [other.tool.spec for other in self._plan.planned() if other.index in done]
        changed = any(spec.operation is not Operation.QUERY for spec in others)
        partial = [{"step": other.index, "data": answer.data} for other, answer, _ in failed if answer.data is not None]
        for other, answer, _ in failed:
            if answer.content:
                self._content[len(self._plan.steps) + other.index] = answer.content
        label = f"{index} '{shortened(step.id)}'" if step.id else f"{index}"
        not_again = _not_again(done)
        hint = f"{cause.hint} {not_again}"
        if cause.code == "chain_step_failed":
            hint = f"{not_again} In the chain of step {index}: {cause.hint}"
        return ToolError(
            "chain_step_failed",
            f"Step {label} ('{step.tool_id}') failed: {cause.message}",
            hint=hint.strip(),
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


def _not_again(done: list[int]) -> str:
    """Return a sentence with the steps that must not run again."""
    if not done:
        return ""
    if len(done) == 1:
        return f"Step {done[0]} has run: do not run it again."
    return f"Steps {', '.join(map(str, done))} have run: do not run them again."
