"""Tools as a page: a reference in Markdown, one section for each tool.

It knows specs and no yard.
"""

from collections.abc import Iterator, Sequence

import msgspec

from toolyard.cli.schemas import Argument, arguments_of, type_text
from toolyard.cli.specs import operation_text, reason_text
from toolyard.cli.tables import cell, table
from toolyard.envelope import encode
from toolyard.spec import Example, ToolSpec

__all__ = ["tool_reference"]


def tool_reference(name: str, version: str, specs: Sequence[ToolSpec]) -> str:
    """Return the page of a yard's tools, without a line break at its end."""
    blocks = [f"# {name}", f"Version {version}, {len(specs)} {'tool' if len(specs) == 1 else 'tools'}."]
    return "\n\n".join([*blocks, *(block for spec in specs for block in _section(spec))])


def _section(spec: ToolSpec) -> Iterator[str]:
    yield f"## {spec.name}"
    yield spec.description.strip()
    yield "\n".join(f"- {fact}" for fact in _facts(spec))
    yield from _arguments(arguments_of(spec.input_schema))
    if spec.output_schema is not None:
        yield f"### Output\n\n{_code(type_text(spec.output_schema, spec.output_schema))}"
    codes = spec.codes()
    if codes:
        yield f"### Codes\n\n{', '.join(f'`{code}`' for code in codes)}"
    if spec.reasons:
        rows = [(f"`{name}`", cell(reason_text(spec, name))) for name in spec.reasons]
        yield f"### Reasons\n\n{table(('reason', 'comes with'), rows)}"
    if spec.examples:
        yield "### Examples"
        yield from (_example(example) for example in spec.examples)


def _facts(spec: ToolSpec) -> Iterator[str]:
    if spec.title:
        yield f"Title: {spec.title}"
    yield f"Operation: {operation_text(spec)}"
    yield f"Session: {spec.session}"
    yield f"Source: {spec.source}"
    if spec.tags:
        yield f"Tags: {', '.join(spec.tags)}"
    if spec.timeout is not None:
        yield f"Timeout: {spec.timeout:g} s" if spec.timeout else "Timeout: none"
    if spec.aliases:
        yield f"Aliases: {', '.join(f'`{alias}`' for alias in spec.aliases)}"
    if spec.deprecated is not None:
        yield f"Deprecated: {spec.deprecated}"


def _arguments(arguments: Sequence[Argument]) -> Iterator[str]:
    if not arguments:
        yield "It takes no arguments."
        return
    rows = [
        (
            f"`{argument.name}`",
            _code(argument.type, in_table=True),
            "yes" if argument.required else "no",
            "" if argument.default is None else _code(argument.default, in_table=True),
            cell(_about(argument)),
        )
        for argument in arguments
    ]
    yield f"### Arguments\n\n{table(('name', 'type', 'required', 'default', 'description'), rows)}"


def _about(argument: Argument) -> str:
    rules = f"({argument.rules})" if argument.rules else ""
    return f"{argument.description} {rules}".strip()


def _code(text: str, *, in_table: bool = False) -> str:
    """Return text as code; in a table a bar has to be escaped even there."""
    fence = "``" if "`" in text else "`"
    padding = " " if "`" in text else ""
    shown = text.replace("|", "\\|") if in_table else text
    return f"{fence}{padding}{shown}{padding}{fence}"


def _example(example: Example) -> str:
    title = f"{example.title}:\n\n" if example.title else ""
    result = "" if example.result is None else f"\n\nanswers\n\n{_fenced(example.result)}"
    return f"{title}{_fenced(example.arguments)}{result}"


def _fenced(value: object) -> str:
    return f"```json\n{msgspec.json.format(encode(value), indent=2).decode()}\n```"
