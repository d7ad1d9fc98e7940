"""The metatool `run_chain`: its arguments and results. How it plans and runs the steps is in `chain_plan` and `chain_run`."""

from typing import Annotated, Any, Final

import msgspec

from callyard.dispatch.call import Arguments, Call
from callyard.dispatch.tool import Check, Tool, check_by_schema
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, object_schema
from callyard.model.spec import Reason

__all__ = ["INPUT_SCHEMA", "Step", "chain_metatool"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_STEP: Final = object_schema(
    "tool_id",
    id=TEXT,
    tool_id=TEXT,
    args={"type": "object", "description": 'A value {"$from": step id or index, "path": JSON pointer} takes an earlier result.'},
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
_RESULT: Final = object_schema("step tool_id data", step=_INTEGER, id=TEXT, tool_id=TEXT, data={}, coerced=_TEXTS, warnings=_TEXTS)
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


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a chain, as the caller wrote it."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


class _ChainArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments of `run_chain`."""

    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=_STEPS)]
    timeout_s: Seconds = 0.0
    final_only: bool = False
    dry_run: bool = False


def _chain_check() -> Check:
    """Return the check of `run_chain`, which decodes valid arguments in one go; the schema explains invalid ones."""
    decode = msgspec.json.Decoder(_ChainArguments).decode
    by_schema = check_by_schema(INPUT_SCHEMA)

    def check(text: bytes) -> Arguments:
        try:
            arguments = decode(text)
        except msgspec.ValidationError:
            return msgspec.structs.asdict(msgspec.convert(by_schema(text), _ChainArguments))
        return msgspec.structs.asdict(arguments)

    return check


def chain_metatool(yard: YardParts) -> Tool:
    """Return the metatool `run_chain`."""

    async def run(call: Call) -> object:
        from callyard.metatools.chain_run import run_chain  # noqa: PLC0415 - no chain runs before the first list, and servers start sooner

        return await run_chain(yard, call)

    return build_metatool(
        "run_chain",
        "Call several tools in turn, passing results on, and stop at the first error.",
        run,
        input_schema=INPUT_SCHEMA,
        output_schema=OUTPUT_SCHEMA,
        listed=True,
        wraps=True,
        check=_chain_check(),
        reasons={"step_failed": Reason("chain_step_failed", ("step_index", "cause_code"))},
    )
