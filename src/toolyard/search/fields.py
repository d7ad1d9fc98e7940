"""Fields: the texts of a tool that search reads, by what they are."""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, cast

from toolyard.search.words import plain
from toolyard.spec import ToolSpec

__all__ = ["Fields", "fields_of", "own_name"]

_DESCRIPTION_CHARACTERS: Final = 4000
_PARAMETERS: Final = 64
_PARAMETER_CHARACTERS: Final = 300
_CHOICES: Final = 32
_DEPTH: Final = 3
_EXAMPLE_CHARACTERS: Final = 1000


class Fields(NamedTuple):
    """The texts of a tool; a field that is absent is empty."""

    name: str
    title: str
    namespace: str
    tags: str
    description: str
    parameters: str
    parameter_texts: str
    choices: str
    examples: str


def own_name(spec: ToolSpec) -> str:
    """Return the name without the namespace that an upstream's tool has in front."""
    prefix = spec.source + "__"
    return spec.name[len(prefix) :] if spec.source and spec.name.startswith(prefix) else spec.name


def fields_of(spec: ToolSpec) -> Fields:
    """Return the texts of a tool, none of them longer than is worth reading."""
    names: list[str] = []
    texts: list[str] = []
    choices: list[str] = []
    for name, schema in _parameters(spec.input_schema, depth=0) if spec.input_schema else ():
        names.append(name)
        text = schema.get("description")
        if isinstance(text, str):
            texts.append(text[:_PARAMETER_CHARACTERS])
        given = schema.get("enum")
        if isinstance(given, list):
            choices.extend(choice for choice in cast("list[Any]", given)[:_CHOICES] if isinstance(choice, str))
        if len(names) >= _PARAMETERS:
            break
    found = (
        " ".join((own_name(spec), *spec.aliases)) if spec.aliases else own_name(spec),
        spec.title or "",
        spec.source,
        " ".join(spec.tags),
        spec.description[:_DESCRIPTION_CHARACTERS],
        " ".join(names),
        " ".join(texts),
        " ".join(choices),
        " ".join(_examples(spec)) if spec.examples else "",
    )
    return Fields._make(found if all(map(str.isascii, found)) else map(plain, found))


def _parameters(schema: Mapping[str, Any], *, depth: int) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Return every parameter, those of objects inside objects and lists too; a schema need not be a correct one."""
    properties: object = schema.get("properties")
    if not isinstance(properties, dict):
        return
    for name, inner in cast("dict[object, object]", properties).items():
        if not isinstance(name, str) or not isinstance(inner, dict):
            continue
        parameter = cast("dict[str, Any]", inner)
        yield name, parameter
        if depth < _DEPTH and ("properties" in parameter or "items" in parameter):
            yield from _parameters(parameter, depth=depth + 1)
            items: object = parameter.get("items")
            if isinstance(items, dict):
                yield from _parameters(cast("dict[str, Any]", items), depth=depth + 1)


def _examples(spec: ToolSpec) -> Iterator[str]:
    for example in spec.examples:
        yield example.title[:_EXAMPLE_CHARACTERS]
        for name, value in example.arguments.items():
            yield name
            if isinstance(value, str):
                yield value[:_EXAMPLE_CHARACTERS]
