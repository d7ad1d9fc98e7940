"""References in Markdown: of the command line, from its parsers, and of the tools of a yard, from their specs."""

from argparse import Action
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from callyard.cli.parser import Parser, make_parsers
from callyard.launch.errors import STATUSES
from callyard.model.envelope import encode
from callyard.model.errors import CODES
from callyard.model.schema import Schema, resolve
from callyard.model.signature import TypeNames, read_parameters
from callyard.model.spec import Example, ToolSpec

__all__ = ["Argument", "arguments_of", "document", "output_type", "reason_text", "reference", "spec_facts", "tool_reference"]


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
    names = dict.fromkeys((*parameters.properties, *parameters.required))
    return [_argument(name, parameters.properties.get(name, [{}]), schema, required=name in parameters.required) for name in names]


def output_type(spec: ToolSpec) -> str:
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


def document(spec: ToolSpec) -> dict[str, Any]:
    """Return the whole spec with defaults, effective annotations and the codes it may answer with."""
    fields: dict[str, Any] = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {**fields, "annotations": spec.hints(), "codes": spec.codes()}


def spec_facts(spec: ToolSpec, *, quote: str = "") -> dict[str, str]:
    """Return the short fields of a spec by title, without those that are not set; aliases are put in quotes."""
    facts = {
        "Title": spec.title,
        "Operation": f"{spec.operation} (assumed)" if spec.operation_assumed else str(spec.operation),
        "Session": spec.session,
        "Source": spec.source,
        "Tags": ", ".join(spec.tags),
        "Timeout": None if spec.timeout is None else f"{spec.timeout:g} s" if spec.timeout else "none",
        "Aliases": ", ".join(f"{quote}{alias}{quote}" for alias in spec.aliases),
        "Deprecated": spec.deprecated,
    }
    return {title: text for title, text in facts.items() if text}


def reason_text(spec: ToolSpec, name: str) -> str:
    """Return the code of a reason and the keys of its details."""
    reason = spec.reasons[name]
    return f"{reason.code}, with {', '.join(reason.details)}" if reason.details else reason.code


def tool_reference(name: str, version: str, specs: Sequence[ToolSpec]) -> str:
    """Return the reference of a yard's tools, without a line break at its end."""
    blocks = [f"# {name}", f"Version {version}, {len(specs)} {'tool' if len(specs) == 1 else 'tools'}."]
    return "\n\n".join([*blocks, *(block for spec in specs for block in _section(spec))])


def _section(spec: ToolSpec) -> Iterator[str]:
    yield f"## {spec.name}"
    yield spec.description.strip()
    yield "\n".join(f"- {title}: {text}" for title, text in spec_facts(spec, quote="`").items())
    yield from _arguments(arguments_of(spec.input_schema))
    if spec.output_schema is not None:
        yield f"### Output\n\n{_code(output_type(spec))}"
    codes = spec.codes()
    if codes:
        yield f"### Codes\n\n{', '.join(f'`{code}`' for code in codes)}"
    if spec.reasons:
        rows = [(f"`{name}`", _cell(reason_text(spec, name))) for name in spec.reasons]
        yield f"### Reasons\n\n{_table(('reason', 'comes with'), rows)}"
    if spec.examples:
        yield "### Examples"
        yield from (_example(example) for example in spec.examples)


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
            _cell(_about(argument)),
        )
        for argument in arguments
    ]
    yield f"### Arguments\n\n{_table(('name', 'type', 'required', 'default', 'description'), rows)}"


def _about(argument: Argument) -> str:
    rules = f"({argument.rules})" if argument.rules else ""
    return f"{argument.description} {rules}".strip()


def _code(text: str, *, in_table: bool = False) -> str:
    """Return text as inline code; in a table a bar must be escaped even there."""
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


_HEAD: Final = """\
<!-- Generated from the parsers and the codes by `callyard.cli.reference()`. Do not edit. -->

# Command line

    callyard [options] COMMAND …

Data goes to stdout and everything else to stderr, including what a module or a tool prints. Results are printed for people, and
with `--json` for programs. Options cannot be abbreviated; unknown ones are refused."""
_TARGET: Final = """\
## TARGET

These commands take a TARGET, which names a yard: {commands}.

| TARGET | is |
|---|---|
| `module:attr` | an attribute of a module that can be imported from the current folder |
| `file.py` | the only yard at the top level of a file |
| `file.py:attr` | an attribute of a file that has several yards |
| `callyard.toml` | the `target`, upstreams and packs of a configuration |
| `file.json` | the servers of an MCP client's configuration |
| `https://…` | the MCP server at a URL |

`callyard.demo:yard` is a built-in yard with invented tools, to try commands on.

The module is loaded and the yard opened. When the command ends, also by Ctrl-C or SIGTERM, the yard is closed and its sessions end.
A failure is one sentence with the file, the line and the cause; `-vv` adds the traceback."""
_OPTIONS: Final = """\
## Options

These go before a command or, except `--version`, after it."""
_ARGUMENTS: Final = """\
### Arguments of a call

Arguments have one of three forms, which cannot be mixed:

    callyard call bank.py transfer source=current target=savings cents=2500
    callyard call bank.py transfer '{"source": "current", "target": "savings", "cents": 2500}'
    echo '{"source": "current", "target": "savings", "cents": 2500}' | callyard call bank.py transfer -

The tool's input schema decides how the value of a pair is parsed. Where it allows a string, the value stays text. Elsewhere it is
parsed as JSON; a value that is not JSON stays text, and the dispatcher then refuses or corrects it. A `null` where a string is
allowed needs the second form.

Progress and log lines of the tool go to stderr. Images and other content blocks are only listed; `--output` writes them to files
named by the id of the call and their number."""
_SERVE: Final = """\
### Where settings come from

A flag overrides an environment variable, that overrides `callyard.toml`, and that overrides the default. The file is the one that
`--config` names, or else `CALLYARD_CONFIG`, or else `callyard.toml` in the current folder. [Settings](settings.md) has every key and
variable; `callyard config` prints the values in effect.

Over stdio, stdout belongs to the client. If stderr is a terminal, a hint shows where the server listens and how to connect clients;
otherwise stderr gets the log line `serving …`. Over HTTP on loopback without authentication a second line, `console …`, has the
address of the console. When a client on stdio disconnects, the server ends with status 0."""
_EVAL: Final = """\
### Labelled tools and queries

A tool is a line with `id`, `name` and optional `namespace`, `description`, `tags` and `input_schema`. A query is a line with `query`
and `relevant`, the ids of the tools that answer it. [Search tools](../guides/search.md) explains the numbers. Times are CPU times."""
_ENVIRONMENT: Final = """\
## Environment

- Colours are used where stdout is a terminal, `NO_COLOR` is unset or empty, and `TERM` is not `dumb`.
- `callyard list` prints a table as wide as the terminal, or tab-separated lines without titles if stdout is not a terminal;
  `callyard search` prints paragraphs, or tab-separated lines with name, signature and reason.
- Control characters in the text of tools are escaped.
- Log lines are `<ISO time> <LEVEL> <logger> <message>`; the message is an event and then `key=value` facts. Warnings are
  shown by default, information with `-v`, everything with `-vv`, only errors with `--quiet`."""
_STATUS_HEAD: Final = """\
## Exit statuses

Every code has an exit status, with which a failed call exits."""
_MORE: Final = {"call": _ARGUMENTS, "eval": _EVAL, "serve": _SERVE}


def reference() -> str:
    """Return the reference of the command line, in Markdown."""
    program, commands = make_parsers()
    blocks = [_HEAD, _TARGET.format(commands=_with_target(commands)), _OPTIONS, _table(("option", "meaning"), _rows(program.actions))]
    for name, parser in commands.items():
        blocks += _command(name, parser, shared=program)
        blocks += [_MORE[name]] if name in _MORE else []
    return "\n\n".join([*blocks, _ENVIRONMENT, _STATUS_HEAD, _table(("status", "code", "meaning"), _statuses())]) + "\n"


def _with_target(commands: Mapping[str, Parser]) -> str:
    """Return the names of the commands that take a TARGET, as an argument or as an option."""
    names = sorted(name for name, parser in commands.items() if any(action.metavar == "TARGET" for action in parser.actions))
    return ", ".join(f"`{name}`" for name in names)


def _command(name: str, parser: Parser, *, shared: Parser) -> Iterator[str]:
    shared_options = {option for action in shared.actions for option in action.option_strings}
    own = [action for action in parser.actions if not shared_options.intersection(action.option_strings)]
    positional = [action for action in own if not action.option_strings]
    ending = ["[options]", "[-- COMMAND …]"] if parser.takes_program else ["[options]"]
    usage = " ".join(["callyard", name, *(_in_usage(action) for action in positional), *ending])
    yield f"## callyard {name}"
    yield f"    {usage}"
    yield str(parser.description)
    yield _table(("argument or option", "meaning"), _rows(own))


def _rows(actions: Sequence[Action]) -> list[tuple[str, str]]:
    return [(_as_typed(action), str(action.help)) for action in actions]


def _in_usage(action: Action) -> str:
    return {"*": f"[{action.metavar} …]", "?": f"[{action.metavar}]"}.get(str(action.nargs), str(action.metavar))


def _as_typed(action: Action) -> str:
    """Return an argument or an option as people type it."""
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = f" {action.metavar}" if action.metavar else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _statuses() -> list[tuple[str, str, str]]:
    codes = {code.exit: (f"`{code.name}`", code.meaning) for code in CODES.values()}
    others = {status: ("", meaning) for status, meaning in STATUSES.items()}
    return [(f"`{status}`", name, meaning) for status, (name, meaning) in sorted({**codes, **others}.items())]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown already."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def _cell(text: str) -> str:
    """Return text escaped for a cell of a table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
