"""`toolyard describe`: one tool, as its spec tells it."""

from collections.abc import Iterator
from functools import partial

from toolyard.caller import Caller
from toolyard.cli.call import write_envelope
from toolyard.cli.opening import work_in_yard
from toolyard.cli.parser import Options
from toolyard.cli.schemas import Argument, arguments_of, type_text
from toolyard.cli.specs import document, operation_text, reason_text
from toolyard.cli.terminal import Painted, Part, Terminal
from toolyard.envelope import encode
from toolyard.errors import ToolError
from toolyard.profile import Profile
from toolyard.spec import Example, ToolSpec
from toolyard.yard import Yard

__all__ = ["run"]

Line = tuple[Part, ...]


def run(options: Options, terminal: Terminal) -> int:
    """Print the spec of a tool; one that is not there is answered as a call of it is."""
    return work_in_yard(options, terminal, partial(_describe, options=options, terminal=terminal), tool=options.name)


async def _describe(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    try:
        spec = yard.registry.find(options.name, profile).spec
    except ToolError:  # nothing can run: there is no such tool
        return write_envelope(options, terminal, await yard.call(options.name, caller=Caller(profile=profile)))
    if options.json:
        terminal.write_json(encode(document(spec)))
        return 0
    for line in _lines(spec, terminal.width):
        terminal.write(*line)
    return 0


def _lines(spec: ToolSpec, width: int) -> Iterator[Line]:
    arguments = arguments_of(spec.input_schema)
    yield (Painted(spec.name, "bold"), _signature(spec, arguments, width - len(spec.name)))
    yield ("",)
    yield (spec.description,)
    yield ("",)
    for name, text in _facts(spec):
        yield (Painted(f"{name:<11}", "faint"), text)
    yield from _section("Arguments", [_argument_text(argument) for argument in arguments])
    yield from _section("Reasons", [f"{name}: {reason_text(spec, name)}" for name in spec.reasons])
    yield from _section("Examples", [_example_text(example) for example in spec.examples])


def _signature(spec: ToolSpec, arguments: list[Argument], width: int) -> str:
    """Return what the tool takes and answers, on one line if there is room."""
    output = "any" if spec.output_schema is None else type_text(spec.output_schema, spec.output_schema)
    written = [argument.signature() for argument in arguments]
    short = f"({', '.join(written)}) -> {output}"
    if not written or len(short) <= width:
        return short
    lines = "".join(f"  {text},\n" for text in written)
    return f"(\n{lines}) -> {output}"


def _facts(spec: ToolSpec) -> Iterator[tuple[str, str]]:
    facts = {
        "Title": spec.title,
        "Operation": operation_text(spec),
        "Session": spec.session,
        "Source": spec.source,
        "Tags": ", ".join(spec.tags),
        "Timeout": None if spec.timeout is None else f"{spec.timeout:g} s" if spec.timeout else "none",
        "Aliases": ", ".join(spec.aliases),
        "Deprecated": spec.deprecated,
        "Codes": ", ".join(spec.codes()),
    }
    yield from ((name, text) for name, text in facts.items() if text)


def _section(title: str, lines: list[str]) -> Iterator[Line]:
    if lines:
        yield ("",)
        yield (Painted(title, "bold"),)
        yield from ((f"  {line}",) for line in lines)


def _argument_text(argument: Argument) -> str:
    need = "required" if argument.required else "optional" if argument.default is None else f"default {argument.default}"
    facts = ", ".join(text for text in (argument.type, argument.rules, need) if text)
    about = f": {' '.join(argument.description.split())}" if argument.description else ""
    return f"{argument.name} ({facts}){about}"


def _example_text(example: Example) -> str:
    result = "" if example.result is None else f" -> {encode(example.result).decode()}"
    title = f"  # {example.title}" if example.title else ""
    return f"{encode(example.arguments).decode()}{result}{title}"
