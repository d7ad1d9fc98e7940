"""Steps: what `run_chain` takes and answers, as schemas for everybody and as structs for itself."""

from typing import Annotated, Any, Final

import msgspec

from toolyard.call import Arguments
from toolyard.metatools.making import TEXT, fields, outcome
from toolyard.tools import Check, check_by_schema

__all__ = ["ANSWERS", "TAKES", "Step", "make_check"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]

_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_STEP: Final = fields(
    "tool_id",
    id=TEXT,
    tool_id=TEXT,
    args={"type": "object", "description": 'A value {"$from": step id or index, "path": JSON pointer} takes an earlier result.'},
    use_previous={**_FLAG, "description": "Passes the result before it as 'previous'."},
    parallel={**TEXT, "description": "Neighbours of the same group run side by side."},
    timeout_s=_SECONDS,
)
TAKES: Final = fields(
    "steps",
    steps={"type": "array", "minItems": 1, "maxItems": _STEPS, "items": _STEP},
    timeout_s={**_SECONDS, "description": "For the whole chain."},
    final_only={**_FLAG, "description": "Answers only with the last result."},
    dry_run={**_FLAG, "description": "Only checks, and shows the plan."},
)
_RESULT: Final = outcome("step tool_id data", step=_INTEGER, id=TEXT, tool_id=TEXT, data={}, coerced=_TEXTS, warnings=_TEXTS)
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
ANSWERS: Final = outcome(
    "",
    results={"type": "array", "items": _RESULT},
    final={},
    plan={"type": "array", "items": _PLANNED},
    status=TEXT,
    step_index=_INTEGER,
    pending={},
    also_pending={"type": "array", "items": outcome("step_index pending", step_index=_INTEGER, pending={})},
    partial={"type": "array", "items": outcome("step data", step=_INTEGER, data={})},
)


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a chain, as it was asked for."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


class _Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments, as they are read in one go where nothing is wrong with them."""

    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=_STEPS)]
    timeout_s: Seconds = 0.0
    final_only: bool = False
    dry_run: bool = False


def make_check() -> Check:
    """Return the check that the schema says, which reads steps as what they are; the schema itself tells what is wrong."""
    decode = msgspec.json.Decoder(_Given).decode
    by_schema = check_by_schema(TAKES)

    def check(text: bytes) -> Arguments:
        try:
            given = decode(text)
        except msgspec.ValidationError:
            return msgspec.structs.asdict(msgspec.convert(by_schema(text), _Given))
        return msgspec.structs.asdict(given)

    return check
