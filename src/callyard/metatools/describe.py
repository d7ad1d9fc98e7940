"""The metatools `describe_tool`, with its alias, and `list_tool_examples`."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call, Caller
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import Tool
from callyard.metatools.catalogue import Catalogue
from callyard.metatools.metatool import TEXT, YardParts, build_metatool, build_with_alias, object_schema, room
from callyard.model.envelope import encode
from callyard.model.errors import CODES
from callyard.model.signature import signature, stub
from callyard.model.spec import ToolSpec

__all__ = ["LearnedOutput", "describe_metatools", "examples_metatool", "full_description"]

LearnedOutput = Callable[[ToolSpec, Caller], dict[str, Any] | None]
"""Takes a tool and the caller; returns the output schema that was learned, if any."""

_EXAMPLES: Final = 5
_SIGNATURE_CHARACTERS: Final = 10_000
_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_OBJECTS: Final[dict[str, Any]] = {"type": "array", "items": _OBJECT}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": _EXAMPLES}
_INPUT_SCHEMA: Final = object_schema(
    "tool_id",
    tool_id=TEXT,
    detail_level={"enum": ["summary", "stub", "schema", "full"], "default": "schema"},
    examples_max={**_COUNT, "description": "'full' shows all unless told."},
)
_OUTPUT_SCHEMA: Final = object_schema(
    "tool_id",
    tool_id=TEXT,
    title=TEXT,
    stub=TEXT,
    signature=TEXT,
    description=TEXT,
    operation=TEXT,
    namespace=TEXT,
    input_schema=_OBJECT,
    output_schema=_OBJECT,
    learnt_output=_OBJECT,
    tags=_TEXTS,
    notes=_TEXTS,
    codes={"type": "object", "additionalProperties": TEXT},
    reasons={"type": "object", "additionalProperties": _OBJECT},
    annotations=_OBJECT,
    examples=_OBJECTS,
    needs_approval={"type": ["boolean", "null"]},
)


def describe_metatools(catalogue: Catalogue, learned: LearnedOutput, *, yard: YardParts) -> list[Tool]:
    """Return the metatool `describe_tool` and its alias `get_tool_schema`."""

    async def describe(call: Call) -> dict[str, Any]:
        spec = _find(catalogue, call)
        level = call.arguments["detail_level"]
        gate, asks = yard.gate, run_of(call).asks_before_destroy
        needs = gate is not None and gate.needs_approval(spec, call.profile.name, call.caller, asks=asks)
        approval = {} if needs is False else {"needs_approval": needs}  # None: it depends on the arguments
        if level == "stub":
            return {"tool_id": spec.name, "stub": stub(spec), **approval}
        described = _summary(spec) | approval
        if level != "summary":
            described |= _schemas(spec)
        if level == "full":
            described |= _facts(spec)
        count = call.arguments.get("examples_max", _EXAMPLES if level == "full" else 0)
        if count:
            described["examples"] = msgspec.to_builtins(spec.examples[:count])
        output = (
            learned(spec, call.caller) if "input_schema" in described and "output_schema" not in described else None
        )
        if output is None:
            return described
        with_output = {**described, "learnt_output": output}
        # a guess must not turn the rest into a handle
        return with_output if len(encode(with_output)) <= room(yard, call) else described

    return build_with_alias(
        "describe_tool",
        "Show one tool: its schemas, or with 'full' also notes, examples and error codes.",
        describe,
        alias="get_tool_schema",
        input_schema=_INPUT_SCHEMA,
        output_schema=_OUTPUT_SCHEMA,
    )


def examples_metatool(catalogue: Catalogue) -> Tool:
    """Return the metatool `list_tool_examples`."""

    async def examples(call: Call) -> dict[str, Any]:
        spec = _find(catalogue, call)
        return {"tool_id": spec.name, "examples": msgspec.to_builtins(spec.examples[: call.arguments["max"]])}

    return build_metatool(
        "list_tool_examples",
        "Show examples of good calls of one tool.",
        examples,
        input_schema=object_schema("tool_id", tool_id=TEXT, max={**_COUNT, "default": _EXAMPLES}),
        output_schema=object_schema("tool_id examples", tool_id=TEXT, examples=_OBJECTS),
    )


def full_description(spec: ToolSpec) -> dict[str, Any]:
    """Return everything about a tool except its examples."""
    return _summary(spec) | _schemas(spec) | _facts(spec)


def _find(catalogue: Catalogue, call: Call) -> ToolSpec:
    suggestion = call.spec.name + "(tool_id={!r})"
    return catalogue.registry.find(call.arguments["tool_id"], call.profile, suggestion=suggestion).spec


def _summary(spec: ToolSpec) -> dict[str, Any]:
    return {
        "tool_id": spec.name,
        **({} if spec.title is None else {"title": spec.title}),
        "signature": signature(spec, characters=_SIGNATURE_CHARACTERS),
        "description": spec.description,
        "operation": str(spec.operation),
        "namespace": spec.source,
    }


def _schemas(spec: ToolSpec) -> dict[str, Any]:
    output = spec.described_output
    return {"input_schema": spec.input_schema, **({} if output is None else {"output_schema": output})}


def _facts(spec: ToolSpec) -> dict[str, Any]:
    return {
        "tags": list(spec.tags),
        "notes": _notes(spec),
        "codes": {code: CODES[code].meaning for code in spec.codes()},
        "reasons": {name: msgspec.to_builtins(reason) for name, reason in spec.reasons.items()},
        "annotations": msgspec.to_builtins(spec.hints()),
    }


def _notes(spec: ToolSpec) -> list[str]:
    notes: dict[str, object] = {
        f"It is deprecated. {spec.deprecated}": spec.deprecated,
        "Nobody said what kind of tool it is, so it is taken for a command, which may change "
        "something.": spec.operation_assumed,
        "It needs a session: pass 'session_id'.": spec.session == "required",
        "It may have a session: pass 'session_id'.": spec.session == "optional",
        "It asks a person before it runs.": spec.confirmation,
        "One call at a time runs in a session.": spec.serial,
        f"It may take {spec.timeout or 0:g} seconds.": spec.timeout,
        spec.timeout_hint or "": spec.timeout_hint,
        "Calling it twice does no harm.": spec.safe,
        f"It is also known as {', '.join(spec.aliases)}.": spec.aliases,
    }
    return [note for note, applies in notes.items() if applies]
