"""The command line as a page: its commands, options and exit statuses, written from the parsers and the codes."""

from argparse import Action
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from toolyard.cli.parser import Parser, make_parsers
from toolyard.cli.terminal import cell, table
from toolyard.launch.errors import STATUSES
from toolyard.model.envelope import encode
from toolyard.model.errors import CODES
from toolyard.model.schema import Schema, resolve
from toolyard.model.signature import TypeNames, read_parameters
from toolyard.model.spec import Example, ToolSpec

__all__ = ["Argument", "arguments_of", "document", "facts_of", "output_type", "reason_text", "reference", "tool_reference"]


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
    """One argument of a tool, as text; the default is JSON, or None."""

    name: str
    type: str
    required: bool
    default: str | None
    rules: str
    description: str

    def signature(self) -> str:
        """Return the argument as a signature has it."""
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
    """Return the whole spec, defaults and all, with the annotations in effect and the codes it may answer with."""
    fields: dict[str, Any] = {name: getattr(spec, name) for name in spec.__struct_fields__}
    return {**fields, "annotations": spec.hints(), "codes": spec.codes()}


def reason_text(spec: ToolSpec, name: str) -> str:
    """Return the code a reason comes with, and the keys its details carry."""
    reason = spec.reasons[name]
    return f"{reason.code}, with {', '.join(reason.details)}" if reason.details else reason.code


def tool_reference(name: str, version: str, specs: Sequence[ToolSpec]) -> str:
    """Return the page of a yard's tools, without a line break at its end."""
    blocks = [f"# {name}", f"Version {version}, {len(specs)} {'tool' if len(specs) == 1 else 'tools'}."]
    return "\n\n".join([*blocks, *(block for spec in specs for block in _section(spec))])


def _section(spec: ToolSpec) -> Iterator[str]:
    yield f"## {spec.name}"
    yield spec.description.strip()
    yield "\n".join(f"- {name}: {text}" for name, text in facts_of(spec, alias="`{}`").items())
    yield from _arguments(arguments_of(spec.input_schema))
    if spec.output_schema is not None:
        yield f"### Output\n\n{_code(output_type(spec))}"
    codes = spec.codes()
    if codes:
        yield f"### Codes\n\n{', '.join(f'`{code}`' for code in codes)}"
    if spec.reasons:
        rows = [(f"`{name}`", cell(reason_text(spec, name))) for name in spec.reasons]
        yield f"### Reasons\n\n{table(('reason', 'comes with'), rows)}"
    if spec.examples:
        yield "### Examples"
        yield from (_example(example) for example in spec.examples)


def facts_of(spec: ToolSpec, *, alias: str = "{}") -> dict[str, str]:
    """Return what a spec says besides its schemas, by title; `alias` is the format of each alias."""
    facts = {
        "Title": spec.title,
        "Operation": f"{spec.operation} (assumed)" if spec.operation_assumed else str(spec.operation),
        "Session": spec.session,
        "Source": spec.source,
        "Tags": ", ".join(spec.tags),
        "Timeout": None if spec.timeout is None else f"{spec.timeout:g} s" if spec.timeout else "none",
        "Aliases": ", ".join(map(alias.format, spec.aliases)),
        "Deprecated": spec.deprecated,
    }
    return {name: text for name, text in facts.items() if text}


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


_HEAD: Final = """\
<!-- Generated from the parsers and the codes by `toolyard.cli.reference()`. Do not edit. -->

# Command line

    toolyard [options] COMMAND …

Data goes to stdout and everything else to stderr, also what a module or a tool prints. Results are printed for people; with
`--json` they are printed for programs. Options are written in full; what is not known is refused."""
_TARGET: Final = """\
## TARGET

Every command but `accept`, `add`, `config`, `connect`, `demo`, `diff`, `eval`, `import`, `key`, `logs`, `remove`, `scan` and
`version` works on a yard:

| TARGET | is |
|---|---|
| `module:attr` | an attribute of a module that can be imported from here |
| `file.py` | the one yard at the top of a file |
| `file.py:attr` | an attribute of a file, where there are several yards in it |

`toolyard.demo:yard` is one that comes along, with invented tools to try commands on.

The module is loaded and the yard opened; when the command ends, and on Ctrl-C and SIGTERM, it is closed and its sessions are
ended. If that fails, one sentence names the file, the line and the cause; `-vv` shows the traceback, too."""
_OPTIONS: Final = """\
## Options

These stand before a command, or, all but `--version`, after it."""
_ARGUMENTS: Final = """\
### Arguments of a call

Arguments have one of three forms, which cannot be mixed:

    toolyard call bank.py transfer source=current target=savings cents=2500
    toolyard call bank.py transfer '{"source": "current", "target": "savings", "cents": 2500}'
    echo '{"source": "current", "target": "savings", "cents": 2500}' | toolyard call bank.py transfer -

The tool's input schema decides how the value of a pair is read. Where it may be a string it is kept as text; otherwise it is
read as JSON, and kept as text if it is none, which the answer then says. A `null` for what may be a string needs the second
form.

Progress and log lines of the tool go to stderr. Images and other content blocks are mentioned; `--output` writes them to
files named by the call's id and their numbers."""
_SERVING: Final = """\
### Where settings come from

A flag beats a variable of the environment, that beats `toolyard.toml`, and that beats the default; a flag wins also if it says what
is the default. The file is the one that `--config` names, or else `TOOLYARD_CONFIG`, or else `toolyard.toml` in the folder where the
command is run. [Settings](settings.md) has every key and variable; `toolyard config` tells those in effect.

Over stdio, stdout belongs to the client. Where stderr is a terminal, it tells where the server listens and how to connect clients;
otherwise it gets one log line, `serving …`. When the client goes the server ends with status 0."""
_EVALUATING: Final = """\
### Labelled tools and questions

A tool is a line with `id`, `name` and, where known, `namespace`, `description`, `tags` and `input_schema`; a question is a line with
`query` and `relevant`, the ids of the tools that answer it. What is printed is told in [Search tools](../guides/search.md). Times are
those of the processor."""
_SURROUNDINGS: Final = """\
## Surroundings

- Colours are used where stdout is a terminal, `NO_COLOR` is unset or empty, and `TERM` is not `dumb`.
- `toolyard list` prints a table as wide as the terminal, or tab-separated lines without titles where stdout is none;
  `toolyard search` paragraphs, or tab-separated lines with name, signature and why.
- Control characters in what tools and their authors wrote are shown and not sent to the terminal.
- Log lines are `<ISO time> <LEVEL> <logger> <message>`; the message is an event and then `key=value` facts. Warnings are
  shown by default, information with `-v`, everything with `-vv`, errors alone with `--quiet`."""
_STATUS_HEAD: Final = """\
## Exit statuses

A failed call exits with the status of its code; every code has one."""
_MORE: Final = {"call": _ARGUMENTS, "eval": _EVALUATING, "serve": _SERVING}


def reference() -> str:
    """Return the reference of the command line, in Markdown."""
    program, commands = make_parsers()
    blocks = [_HEAD, _TARGET, _OPTIONS, table(("option", "does"), _options(program))]
    for name, parser in commands.items():
        blocks += _command(name, parser, known=program)
        blocks += [_MORE[name]] if name in _MORE else []
    return "\n\n".join([*blocks, _SURROUNDINGS, _STATUS_HEAD, table(("status", "code", "meaning"), _statuses())]) + "\n"


def _command(name: str, parser: Parser, *, known: Parser) -> Iterator[str]:
    shared = {option for action in known.actions for option in action.option_strings}
    own = [action for action in parser.actions if not shared.intersection(action.option_strings)]
    positional = [action for action in own if not action.option_strings]
    ending = ["[options]", "[-- COMMAND …]"] if parser.takes_program else ["[options]"]
    usage = " ".join(["toolyard", name, *(_in_usage(action) for action in positional), *ending])
    yield f"## toolyard {name}"
    yield f"    {usage}"
    yield str(parser.description)
    yield table(("argument or option", "is or does"), [(_written(action), str(action.help)) for action in own])


def _options(parser: Parser) -> list[tuple[str, str]]:
    return [(_written(action), str(action.help)) for action in parser.actions]


def _in_usage(action: Action) -> str:
    return {"*": f"[{action.metavar} …]", "?": f"[{action.metavar}]"}.get(str(action.nargs), str(action.metavar))


def _written(action: Action) -> str:
    """Return an argument or an option as it is typed."""
    if not action.option_strings:
        return f"`{action.metavar}`"
    value = f" {action.metavar}" if action.metavar else ""
    return ", ".join(f"`{option}{value}`" for option in action.option_strings)


def _statuses() -> list[tuple[str, str, str]]:
    codes = {code.exit: (f"`{code.name}`", code.meaning) for code in CODES.values()}
    others = {status: ("", meaning) for status, meaning in STATUSES.items()}
    return [(f"`{status}`", name, meaning) for status, (name, meaning) in sorted({**codes, **others}.items())]
