"""`callyard describe`, `callyard list` and `callyard manifest`: the specs of a yard's tools."""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec

from callyard.cli.call import write_envelope
from callyard.cli.parser import Options
from callyard.cli.reference import Argument, arguments_of, document, output_type, reason_text, spec_facts, tool_reference
from callyard.cli.targets import run_in_yard
from callyard.cli.terminal import Line, Painted, Terminal, cut, pad, width_of
from callyard.dispatch.call import Caller
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile
from callyard.model.spec import Example, ToolSpec
from callyard.yard import Yard

__all__ = ["run_describe", "run_list", "run_manifest"]


def run_describe(options: Options, terminal: Terminal) -> int:
    """Print the spec of a tool; an unknown one gets the same answer as a call."""
    return run_in_yard(options, terminal, partial(_describe, options=options, terminal=terminal), tool=options.name)


async def _describe(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    try:
        spec = yard.registry.find(options.name, profile).spec
    except ToolError:  # there is no such tool, so the call runs nothing
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
    for name, text in {**spec_facts(spec), **({"Codes": ", ".join(spec.codes())} if spec.codes() else {})}.items():
        yield (Painted(f"{name:<11}", "faint"), text)
    yield from _section("Arguments", [_argument_text(argument) for argument in arguments])
    yield from _section("Reasons", [f"{name}: {reason_text(spec, name)}" for name in spec.reasons])
    yield from _section("Examples", [_example_text(example) for example in spec.examples])


def _signature(spec: ToolSpec, arguments: list[Argument], width: int) -> str:
    """Return arguments and output of a tool, on one line if it fits."""
    output = output_type(spec)
    parameters = [argument.signature() for argument in arguments]
    short = f"({', '.join(parameters)}) -> {output}"
    if not parameters or len(short) <= width:
        return short
    lines = "".join(f"  {text},\n" for text in parameters)
    return f"(\n{lines}) -> {output}"


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


_TITLES: Final = ("NAME", "OPERATION", "SOURCE", "DESCRIPTION")
_GAP: Final = "  "
_MIN_DESCRIPTION: Final = 20
_MAX_NAMES: Final = 5


def run_list(options: Options, terminal: Terminal) -> int:
    """Print the tools: a table for people, lines of columns for programs, an array with `--json`."""
    return run_in_yard(options, terminal, partial(_list, options=options, terminal=terminal), lists=True)


async def _list(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    specs = yard.list(profile)
    if options.json:
        terminal.write_json(encode([_entry(spec) for spec in specs]))
    elif terminal.interactive:
        _write_table(terminal, [_row(spec) for spec in specs])
    else:
        for spec in specs:
            terminal.write("\t".join(_row(spec)))
    for notice in _notices(yard, profile, listed=sum(spec.source != METATOOLS for spec in specs)):
        terminal.inform(notice)
    return 0


def _entry(spec: ToolSpec) -> dict[str, object]:
    return {
        "name": spec.name,
        "title": spec.title,
        "description": spec.summary,
        "operation": spec.operation,
        "source": spec.source,
        "tags": spec.tags,
    }


def _row(spec: ToolSpec) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in (spec.name, str(spec.operation), spec.source, spec.summary))


def _write_table(terminal: Terminal, rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(3)]
    left = terminal.width - sum(widths) - 3 * len(_GAP)
    if left < _MIN_DESCRIPTION:  # leave the source out; 'describe' shows it
        left += widths[2] + len(_GAP)
        widths[2] = 0
    for number, row in enumerate((_TITLES, *rows)):
        cells = [pad(text, width) for text, width in zip(row, widths, strict=False) if width]
        name, *others = cells
        line = _GAP.join([*others, cut(row[3], left)])
        parts = [Painted(name, "bold"), _GAP, line] if number else [Painted(_GAP.join([name, line]), "faint")]
        terminal.write(*parts)


def _notices(yard: Yard, profile: Profile, *, listed: int) -> list[str]:
    """Return how many tools the list does not show, and why."""
    notices: list[str] = []
    unlisted = sum(spec.source != METATOOLS for spec in yard.registry.visible(profile)) - listed
    if unlisted:
        notices.append(f"{_tools(unlisted)} not listed on this surface, but can be called.")
    unavailable: dict[str, list[str]] = {}
    for tool in yard.registry.unavailable(profile):
        unavailable.setdefault(tool.status, []).append(tool.spec.name)
    for status, names in sorted(unavailable.items()):
        shown = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES]) + (" and others" if len(names) > _MAX_NAMES else "")
        notices.append(f"{_tools(len(names))} {status}: {shown}. 'callyard describe' shows the reason.")
    return notices


def _tools(number: int) -> str:
    return "1 tool is" if number == 1 else f"{number} tools are"


def run_manifest(options: Options, terminal: Terminal) -> int:
    """Print every tool of the profile, metatools only if they are listed, with the hash of the list."""
    return run_in_yard(options, terminal, partial(_manifest, options=options, terminal=terminal), lists=True)


async def _manifest(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    listed = {spec.name for spec in yard.list(profile)}
    specs = [spec for spec in yard.registry.visible(profile) if spec.source != METATOOLS or spec.name in listed]
    if options.markdown:
        terminal.write(tool_reference(yard.name, yard.version, specs))
        return 0
    whole = {
        "name": yard.name,
        "version": yard.version,
        "hash": yard.registry.hash(profile),
        "tools": [document(spec) for spec in specs],
    }
    terminal.write_json(msgspec.json.format(encode(whole), indent=2))
    return 0
