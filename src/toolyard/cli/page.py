"""The command line as a page: its commands, options and exit statuses, written from the parsers and the codes."""

from argparse import Action
from collections.abc import Iterator
from typing import Final

from toolyard.cli.exits import STATUSES
from toolyard.cli.parser import make_parsers
from toolyard.cli.parsing import Parser
from toolyard.cli.tables import table
from toolyard.errors import CODES

__all__ = ["reference"]

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
