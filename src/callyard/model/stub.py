"""Python stubs: a tool as a typed async function, as programs of agents call it, and how its name is spelled in Python."""

import keyword
import re
from collections.abc import Iterable
from typing import Any, Final, cast

from callyard.model.schema import Schema, resolve
from callyard.model.signature import one_line, read_parameters
from callyard.model.spec import ToolSpec

__all__ = ["identifier", "stub", "stub_path"]

_TYPES: Final = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_ANY: Final = "Any"
_DEPTH: Final = 4
_CHOICES: Final = 12
_DESCRIPTION: Final = 200
_NO_LETTER: Final = r"(?a)\W"


def identifier(name: str) -> str:
    """Return a name as a Python identifier: '_' for what none may contain, before a digit, and after a keyword."""
    spelled = re.sub(_NO_LETTER, "_", name) or "_"
    if spelled[0].isdigit():
        spelled = f"_{spelled}"
    return f"{spelled}_" if keyword.iskeyword(spelled) else spelled


def stub_path(spec: ToolSpec) -> tuple[str, str]:
    """Return namespace and name of a tool as a program spells them: `tools.<namespace>.<name>`."""
    source = spec.source.replace("-", "_")
    return identifier(spec.source), identifier(spec.name.removeprefix(f"{source}__"))


def stub(spec: ToolSpec) -> str:
    """Return a tool as an async function with its types and the first sentence of its description."""
    namespace, name = stub_path(spec)
    returns = _type(spec.output_schema, spec.output_schema) if spec.output_schema is not None else _ANY
    head = f"async def {name}({', '.join(_parameters(spec))}) -> {returns}:"
    text = one_line(spec.description, _DESCRIPTION).replace("\\", "\\\\").replace('"', "'")
    return f'# tools.{namespace}\n{head}\n    """{text}"""'


def _parameters(spec: ToolSpec) -> Iterable[str]:
    """Yield the parameters, those without a default first; a name that is no identifier can be given in a dict only."""
    found = read_parameters(spec.input_schema)
    named = [name for name in found.properties if name.isidentifier() and not keyword.iskeyword(name)]
    if named:
        yield "*"
    for name in sorted(named, key=lambda name: name not in found.required):
        written = f"{name}: {_union(_type(part, spec.input_schema) for part in found.properties[name])}"
        yield written if name in found.required else f"{written} = {_default(found.properties[name])}"
    if len(named) < len(found.properties) or found.is_partial:
        yield "**more: Any"


def _default(parts: list[Any]) -> str:
    for part in parts:
        if isinstance(part, dict) and "default" in part:
            written = repr(cast("dict[str, Any]", part)["default"])
            return written if len(written) <= _DESCRIPTION else "..."
    return "..."


def _type(node: object, root: Schema, depth: int = _DEPTH) -> str:
    """Return a part of a schema as a Python type."""
    here = resolve(root, node)
    if not isinstance(here, dict) or not here or not depth:
        return _ANY
    schema = cast("dict[str, Any]", here)
    choices: list[Any] = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if choices:
        return f"Literal[{', '.join(map(repr, choices))}]" if len(choices) <= _CHOICES else _union(type(c).__name__ for c in choices)
    branches: list[Any] = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if branches:
        return _union(_type(branch, root, depth - 1) for branch in branches[:_CHOICES])
    kinds: Any = schema.get("type", "object" if "properties" in schema else None)
    return _union(_of_kind(kind, schema, root, depth) for kind in (cast("list[Any]", kinds) if isinstance(kinds, list) else [kinds]))


def _of_kind(kind: Any, schema: dict[str, Any], root: Schema, depth: int) -> str:
    if kind == "array":
        return f"list[{_type(schema.get('items'), root, depth - 1)}]"
    if kind == "object":
        values = schema.get("additionalProperties")
        is_map = isinstance(values, dict) and not schema.get("properties")
        return f"dict[str, {_type(cast('object', values), root, depth - 1) if is_map else _ANY}]"
    return _TYPES.get(kind, _ANY)


def _union(types: Iterable[str]) -> str:
    found = list(dict.fromkeys(types))
    return _ANY if _ANY in found or not found else " | ".join(found)
