"""`callyard describe`, `list`, `manifest` and `policy explain`: a yard's tools, and which rule decides about a call."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from callyard.cli.call import read_arguments, run_for_tool, write_envelope
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, run_in_yard
from callyard.cli.terminal import Line, Painted, Terminal, cut, pad, width_of
from callyard.dispatch.call import Caller
from callyard.dispatch.tool import InvalidArgumentsError, Tool
from callyard.launch.advice import rule_warnings
from callyard.launch.errors import DIFFERENT, LaunchError, as_launch_error
from callyard.metatools.run import unwrap_arguments
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile
from callyard.model.schema import Schema, resolve
from callyard.model.signature import TypeNames, read_parameters
from callyard.model.spec import Example, ToolSpec
from callyard.policy.gate import views_of
from callyard.policy.rules import ALLOWED, Verdict
from callyard.yard import Yard

__all__ = ["Argument", "arguments_of", "run_describe", "run_list", "run_manifest", "run_policy"]


_RULES: Final = {
    "format": "format {}",
    "minimum": "at least {}",
    "exclusiveMinimum": "more than {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "less than {}",
    "multipleOf": "a multiple of {}",
    "minLength": "at least {} characters",
    "maxLength": "at most {} characters",
    "pattern": "pattern {}",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
}


class Argument(NamedTuple):
    """One argument of a tool, for people; the default is JSON, or nothing if there is none."""

    name: str
    type: str
    required: bool
    default: str | None
    rules: str
    description: str

    def signature(self) -> str:
        """Return the argument as in a signature."""
        if self.required:
            return f"{self.name}: {self.type}"
        return f"{self.name}?: {self.type}" if self.default is None else f"{self.name}: {self.type} = {self.default}"


def arguments_of(schema: Schema) -> list[Argument]:
    """Return the arguments that an input schema declares, in its order."""
    parameters = read_parameters(schema)
    return [
        _argument(name, parameters.properties.get(name, [{}]), schema, required=name in parameters.required)
        for name in dict.fromkeys((*parameters.properties, *parameters.required))
    ]


def _output_type(spec: ToolSpec) -> str:
    """Return the type of a tool's result, with small objects written out."""
    return "any" if spec.output_schema is None else TypeNames(spec.output_schema, expand=True).of(spec.output_schema)


def _argument(name: str, schemas: list[Any], root: Schema, *, required: bool) -> Argument:
    schema = schemas[0]
    facts = {**_as_object(resolve(root, schema)), **_as_object(schema)}  # a default may stand next to a reference
    default = encode(facts["default"]).decode() if "default" in facts else None
    rules = ", ".join(text.format(facts[keyword]) for keyword, text in _RULES.items() if keyword in facts)
    written = TypeNames(root, expand=True).of_any(schemas)
    return Argument(name, written, required, default, rules, description=str(facts.get("description", "")))


def _as_object(schema: object) -> dict[str, Any]:
    return cast("dict[str, Any]", schema) if isinstance(schema, dict) else {}


def _document(spec: ToolSpec) -> dict[str, Any]:
    """Return the whole spec with defaults, effective annotations and the codes it may answer with."""
    fields: dict[str, Any] = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {**fields, "annotations": spec.hints(), "codes": spec.codes()}


def _spec_facts(spec: ToolSpec, *, quote: str = "") -> dict[str, str]:
    """Return the short fields of a spec by title, without those that are not set; aliases are put in quotes."""
    facts = {
        "Title": spec.title,
        "Operation": f"{spec.operation} (assumed)" if spec.operation_assumed else str(spec.operation),
        "Session": spec.session,
        "Source": spec.source,
        "Tags": ", ".join(spec.tags),
        "Timeout": f"{spec.timeout:g} s" if spec.timeout else None,
        "Aliases": ", ".join(f"{quote}{alias}{quote}" for alias in spec.aliases),
        "Deprecated": spec.deprecated,
    }
    if spec.timeout == 0:
        facts["Timeout"] = "none"
    return {title: text for title, text in facts.items() if text}


def _reason_text(spec: ToolSpec, name: str) -> str:
    """Return the code of a reason and the keys of its details."""
    reason = spec.reasons[name]
    return f"{reason.code}, with {', '.join(reason.details)}" if reason.details else reason.code


def run_describe(options: Options, terminal: Terminal) -> int:
    """Print the spec of a tool; an unknown one gets the same answer as a call."""
    return run_for_tool(options, terminal, _describe)


async def _describe(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:
    try:
        spec = yard.registry.find(options.name, profile).spec
    except ToolError:  # there is no such tool, so the call runs nothing
        return write_envelope(options, terminal, await yard.call(options.name, caller=Caller(profile=profile)))
    if options.json:
        terminal.write_json(encode(_document(spec)))
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
    for name, text in {**_spec_facts(spec), "Codes": ", ".join(spec.codes())}.items():
        if text:
            yield (Painted(f"{name:<11}", "faint"), text)
    yield from _section("Arguments", [_argument_text(argument) for argument in arguments])
    yield from _section("Reasons", [f"{name}: {_reason_text(spec, name)}" for name in spec.reasons])
    yield from _section("Examples", [_example_text(example) for example in spec.examples])


def _signature(spec: ToolSpec, arguments: list[Argument], width: int) -> str:
    """Return arguments and output of a tool, on one line if it fits."""
    output = _output_type(spec)
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
    need = "optional" if argument.default is None else f"default {argument.default}"
    if argument.required:
        need = "required"
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
    return run_in_yard(options, terminal, _list, lists=True)


async def _list(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:
    specs = yard.list(profile)
    if options.json:
        entries = [
            {
                "name": spec.name,
                "title": spec.title,
                "description": spec.summary,
                "operation": spec.operation,
                "source": spec.source,
                "tags": spec.tags,
            }
            for spec in specs
        ]
        terminal.write_json(encode(entries))
    elif terminal.interactive:
        _write_table(terminal, [_row(spec) for spec in specs])
    else:
        for spec in specs:
            terminal.write("\t".join(_row(spec)))
    for notice in _notices(yard, profile, listed=sum(spec.source != METATOOLS for spec in specs)):
        terminal.inform(notice)
    return 0


def _row(spec: ToolSpec) -> tuple[str, ...]:
    return tuple(" ".join(text.split()) for text in (spec.name, str(spec.operation), spec.source, spec.summary))


def _write_table(terminal: Terminal, rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(width_of(row[column]) for row in (_TITLES, *rows)) for column in range(3)]
    left = terminal.width - sum(widths) - 3 * len(_GAP)
    if left < _MIN_DESCRIPTION:  # leave the source out; 'describe' shows it
        left += widths[2] + len(_GAP)
        widths[2] = 0
    for number, row in enumerate((_TITLES, *rows)):
        name, *others = [pad(text, width) for text, width in zip(row, widths, strict=False) if width]
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
        shown = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
        more = " and others" if len(names) > _MAX_NAMES else ""
        notices.append(f"{_tools(len(names))} {status}: {shown}{more}. 'callyard describe' shows the reason.")
    return notices


def _tools(number: int) -> str:
    return "1 tool is" if number == 1 else f"{number} tools are"


def run_manifest(options: Options, terminal: Terminal) -> int:
    """Print every tool of the profile, metatools only if they are listed, with the hash of the list."""
    return run_in_yard(options, terminal, _manifest, lists=True)


async def _manifest(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:
    listed = {spec.name for spec in yard.list(profile)}
    specs = [spec for spec in yard.registry.visible(profile) if spec.source != METATOOLS or spec.name in listed]
    if options.markdown:
        terminal.write(_tool_reference(yard.name, yard.version, specs))
        return 0
    whole = {
        "name": yard.name,
        "version": yard.version,
        "hash": yard.registry.hash(profile),
        "tools": [_document(spec) for spec in specs],
    }
    terminal.write_json(msgspec.json.format(encode(whole), indent=2))
    return 0


def run_policy(options: Options, terminal: Terminal) -> int:
    """Print the verdict of a served yard about a call, which is not made; or check the rules themselves.

    Raises:
        LaunchError: No tool is named, or one that is not needed.
    """
    if options.action == "check":
        if options.name:
            raise LaunchError("'callyard policy check' checks all rules. It takes no TOOL.")
        return run_in_yard(options, terminal, _check_rules)
    if not options.name:
        raise LaunchError("Name the tool: 'callyard policy explain TOOL'.")
    return run_in_yard(options, terminal, _explain, tool=options.name)


async def _check_rules(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:  # noqa: ARG001 - the work of a command
    warnings, number = list(rule_warnings(yard)), 0 if yard.gate is None else len(yard.gate.rules)
    if options.json:
        terminal.write_json(encode({"rules": number, "warnings": warnings}))
    else:
        for warning in warnings:
            terminal.write(warning)
        terminal.inform(f"Rules: {number}. Warnings: {len(warnings)}.")
    return DIFFERENT if warnings else 0


async def _explain(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:
    asks = config_from(options, terminal).settings.serve.ask_before_destroy
    if asks:
        yard.ask_before_destroy(always=False)
    caller = Caller(identity=options.caller, profile=profile)
    with as_launch_error(ToolError):
        tool = yard.registry.find(options.name, profile)
        given = read_arguments(options.arguments).parse(tool.spec.input_schema)
        calls = _calls(yard, profile, tool, encode(given))
        judged = [(one, _verdict(yard, one, text, caller, asks=asks)) for one, text in calls]
    tool, verdict = max(
        reversed(judged), key=lambda one: _STRICTEST.index("ask" if one[1] is None else one[1].decision)
    )
    facts: dict[str, Any] = {"decision": "asked", "why": "No rule decides, so the decision point does.", "rule": None}
    if verdict is not None:
        rule = None if verdict.rule is None else str(verdict.rule)
        place = None if verdict is ALLOWED or not verdict.number else verdict.number
        facts = {"decision": verdict.decision, "why": verdict.why, "rule": rule, "number": place}
    if options.json:
        call = {"tool": tool.spec.name, "caller": options.caller, "profile": profile.name}
        terminal.write_json(encode({**call, **facts}))
        return 0
    terminal.write(Painted(str(facts["decision"]), "bold"), f"  {tool.spec.name}")
    terminal.write(f"Why: {facts['why']}")
    if facts["rule"]:
        place = f"Rule {facts['number']}" if facts.get("number") else "The default of a served yard"
        terminal.write(f"{place}: {facts['rule']}")
    return 0


_STRICTEST: Final = ("allow", "ask", "deny")


def _calls(yard: Yard, profile: Profile, tool: Tool, text: bytes) -> Iterator[tuple[Tool, bytes]]:
    """Yield a call as a server would judge it, and the calls that it makes by way of `run_tool` or `run_chain`.

    Raises:
        ToolError: A tool does not exist, or its arguments do not fit.
    """
    try:
        tool.check(text)
    except InvalidArgumentsError as error:  # as a call would put them right
        text = tool.repair(text, error.issues, enabled=yard.limits.repair).text
    yield tool, text
    if not tool.wraps:
        return
    arguments: dict[str, Any] = msgspec.json.decode(text)
    for step in arguments.get("steps", [arguments]):
        inner = yard.registry.find(step["tool_id"], profile)
        args, _ = unwrap_arguments(step.get("args", {}), inner, repair=yard.limits.repair)
        yield from _calls(yard, profile, inner, encode(args))


def _verdict(yard: Yard, tool: Tool, text: bytes, caller: Caller, *, asks: bool) -> Verdict | None:
    if yard.gate is None or caller.profile is None:
        return ALLOWED
    return yard.gate.explain(tool.spec, caller.profile.name, views_of(tool.bind(text)), caller, asks=asks)


def _tool_reference(name: str, version: str, specs: Sequence[ToolSpec]) -> str:
    """Return the reference of a yard's tools, without a line break at its end."""
    blocks = [f"# {name}", f"Version {version}, {len(specs)} {'tool' if len(specs) == 1 else 'tools'}."]
    return "\n\n".join([*blocks, *(block for spec in specs for block in _tool_section(spec))])


def _tool_section(spec: ToolSpec) -> Iterator[str]:
    yield f"## {spec.name}"
    yield spec.description.strip()
    yield "\n".join(f"- {title}: {text}" for title, text in _spec_facts(spec, quote="`").items())
    yield _argument_table(arguments_of(spec.input_schema))
    if spec.output_schema is not None:
        yield f"### Output\n\n{_code(_output_type(spec))}"
    codes = spec.codes()
    if codes:
        yield f"### Codes\n\n{', '.join(f'`{code}`' for code in codes)}"
    if spec.reasons:
        rows = [(f"`{name}`", _cell(_reason_text(spec, name))) for name in spec.reasons]
        yield f"### Reasons\n\n{_table(('reason', 'comes with'), rows)}"
    if spec.examples:
        yield "### Examples"
        yield from (_example_block(example) for example in spec.examples)


def _argument_table(arguments: Sequence[Argument]) -> str:
    if not arguments:
        return "It takes no arguments."
    rows = [
        (
            f"`{argument.name}`",
            _code(argument.type, in_table=True),
            "yes" if argument.required else "no",
            "" if argument.default is None else _code(argument.default, in_table=True),
            _cell(f"{argument.description} ({argument.rules})" if argument.rules else argument.description),
        )
        for argument in arguments
    ]
    return f"### Arguments\n\n{_table(('name', 'type', 'required', 'default', 'description'), rows)}"


def _code(text: str, *, in_table: bool = False) -> str:
    """Return text as inline code; in a table a bar must be escaped even there."""
    fence = "``" if "`" in text else "`"
    padding = " " if "`" in text else ""
    shown = text.replace("|", "\\|") if in_table else text
    return f"{fence}{padding}{shown}{padding}{fence}"


def _example_block(example: Example) -> str:
    title = f"{example.title}:\n\n" if example.title else ""
    result = "" if example.result is None else f"\n\nanswers\n\n{_fenced(example.result)}"
    return f"{title}{_fenced(example.arguments)}{result}"


def _fenced(value: object) -> str:
    return f"```json\n{msgspec.json.format(encode(value), indent=2).decode()}\n```"


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def _cell(text: str) -> str:
    """Return text escaped for a cell of a table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
