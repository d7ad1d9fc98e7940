"""Fields: the texts of a tool that search reads, by what they are."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from toolyard.search.parameters import parameters_of
from toolyard.search.words import plain
from toolyard.spec import ToolSpec

__all__ = ["Fields", "fields_of", "own_name"]

_DESCRIPTION_CHARACTERS: Final = 4000
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
    parameters, parameter_texts, choices = parameters_of(spec.input_schema)
    found = (
        " ".join((own_name(spec), *spec.aliases)) if spec.aliases else own_name(spec),
        spec.title or "",
        spec.source,
        " ".join(spec.tags),
        spec.description[:_DESCRIPTION_CHARACTERS],
        " ".join(parameters),
        " ".join(parameter_texts),
        " ".join(choices),
        " ".join(_examples(spec)) if spec.examples else "",
    )
    return Fields._make(found if all(map(str.isascii, found)) else map(plain, found))


def _examples(spec: ToolSpec) -> Iterator[str]:
    for example in spec.examples:
        yield example.title[:_EXAMPLE_CHARACTERS]
        for name, value in example.arguments.items():
            yield name
            if isinstance(value, str):
                yield value[:_EXAMPLE_CHARACTERS]
