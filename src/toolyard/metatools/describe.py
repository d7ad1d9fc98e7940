"""Describing: `describe_tool` and `list_tool_examples`, which tell of one tool as much as is asked for."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from toolyard.dispatch.call import Call, Caller, Handler
from toolyard.dispatch.outcome import room_for_data
from toolyard.dispatch.tool import Tool
from toolyard.metatools.catalogue import OTHER_NAME, Catalogue
from toolyard.metatools.metatool import TEXT, fields, make, outcome
from toolyard.model.envelope import encode
from toolyard.model.errors import CODES
from toolyard.model.limits import Limits
from toolyard.model.signature import signature
from toolyard.model.spec import Example, ToolSpec

__all__ = ["Learnt", "make_describe", "make_examples"]

Learnt = Callable[[str, Caller], dict[str, Any] | None]
"""Takes the name of a tool and who asks; returns what was learnt of its results, if anything."""

_WHOLE: Final = 5
_LINE: Final = 10_000
_OBJECT: Final[dict[str, Any]] = {"type": "object"}
_OBJECTS: Final[dict[str, Any]] = {"type": "array", "items": _OBJECT}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_COUNT: Final[dict[str, Any]] = {"type": "integer", "minimum": 0, "maximum": _WHOLE}
_TAKES: Final = fields(
    "tool_id",
    tool_id=TEXT,
    detail_level={"enum": ["summary", "schema", "full"], "default": "schema"},
    examples_max={**_COUNT, "description": "'full' shows all unless told."},
)
_ANSWERS: Final = outcome(
    "tool_id signature description operation namespace",
    tool_id=TEXT,
    title=TEXT,
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
)


def make_describe(catalogue: Catalogue, learnt: Learnt, *, limits: Limits) -> list[Tool]:
    """Return the tool `describe_tool`, and the same under the name that some agents know."""

    async def describe(call: Call) -> dict[str, Any]:
        spec = _find(catalogue, call)
        level = call.arguments["detail_level"]
        told = _summary(spec)
        if level != "summary":
            told |= _schemas(spec)
        if level == "full":
            told |= _facts(spec)
        count = call.arguments.get("examples_max", _WHOLE if level == "full" else 0)
        if count:
            told["examples"] = _shown(spec.examples[:count])
        shape = learnt(spec.name, call.caller) if "input_schema" in told and spec.output_schema is None else None
        most = limits.result_characters if call.channel.result_characters is None else room_for_data(call, call.channel.result_characters)
        whole = told if shape is None else {**told, "learnt_output": shape}
        return whole if shape is None or len(encode(whole)) <= most else told  # what is declared is not given up for it

    return [_describe("describe_tool", describe, listed=True), _describe("get_tool_schema", describe, tags=(OTHER_NAME,))]


def _describe(name: str, handler: Handler, *, listed: bool = False, tags: tuple[str, ...] = ()) -> Tool:
    text = "Show one tool: its schemas, or with 'full' also notes, examples and error codes."
    return make(name, text, handler, takes=_TAKES, answers=_ANSWERS, listed=listed, tags=tags)


def make_examples(catalogue: Catalogue) -> Tool:
    """Return the tool `list_tool_examples`."""

    async def examples(call: Call) -> dict[str, Any]:
        spec = _find(catalogue, call)
        return {"tool_id": spec.name, "examples": _shown(spec.examples[: call.arguments["max"]])}

    return make(
        "list_tool_examples",
        "Show examples of good calls of one tool.",
        examples,
        takes=fields("tool_id", tool_id=TEXT, max={**_COUNT, "default": _WHOLE}),
        answers=outcome("tool_id examples", tool_id=TEXT, examples=_OBJECTS),
    )


def _find(catalogue: Catalogue, call: Call) -> ToolSpec:
    again = call.spec.name + "(tool_id={!r})"
    return catalogue.registry.find(call.arguments["tool_id"], call.profile, again=again).spec


def _summary(spec: ToolSpec) -> dict[str, Any]:
    title = {} if spec.title is None else {"title": spec.title}
    return {
        "tool_id": spec.name,
        **title,
        "signature": signature(spec, characters=_LINE),
        "description": spec.description,
        "operation": str(spec.operation),
        "namespace": spec.source,
    }


def _schemas(spec: ToolSpec) -> dict[str, Any]:
    output = {} if spec.output_schema is None else {"output_schema": spec.output_schema}
    return {"input_schema": spec.input_schema, **output}


def _facts(spec: ToolSpec) -> dict[str, Any]:
    """Return what is beyond the schemas: notes, codes, reasons, tags and annotations."""
    return {
        "tags": list(spec.tags),
        "notes": _notes(spec),
        "codes": {code: CODES[code].meaning for code in spec.codes()},
        "reasons": {name: msgspec.to_builtins(reason) for name, reason in spec.reasons.items()},
        "annotations": msgspec.to_builtins(spec.hints()),
    }


def _notes(spec: ToolSpec) -> list[str]:
    known: dict[str, object] = {
        f"It is deprecated. {spec.deprecated}": spec.deprecated,
        "Nobody said what kind of tool it is, so it is taken for a command, which may change something.": spec.operation_assumed,
        "It needs a session: pass 'session_id'.": spec.session == "required",
        "It may have a session: pass 'session_id'.": spec.session == "optional",
        "It asks a person before it runs.": spec.confirmation,
        "One call at a time runs in a session.": spec.serial,
        f"It may take {spec.timeout or 0:g} seconds.": spec.timeout,
        spec.timeout_hint or "": spec.timeout_hint,
        "Calling it twice does no harm.": spec.safe,
        f"It is also known as {', '.join(spec.aliases)}.": spec.aliases,
    }
    return [note for note, holds in known.items() if holds]


def _shown(examples: tuple[Example, ...]) -> list[Any]:
    return [msgspec.to_builtins(example) for example in examples]
