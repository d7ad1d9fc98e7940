"""The page of the command line in docs/reference, from its parsers and the codes."""

from argparse import Action
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from callyard.cli.commands import TAKE_PROGRAM
from callyard.cli.parser import Parser, help_of, make_parsers
from callyard.launch.errors import STATUSES
from callyard.model.errors import CODES
from callyard.probe import PROBE_CODES

__all__ = ["command_line"]


_HEAD: Final = """\
# Command line

<!-- Written by scripts/generate.py; change the code, then run `make generate`. -->

    callyard [options] COMMAND …

Data goes to stdout and everything else to stderr, including what a module or a tool prints. Results are printed for
people, and with `--json` for programs. Options cannot be abbreviated; unknown ones are refused."""
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

The module is loaded and the yard opened. When the command ends, also by Ctrl-C or SIGTERM, the yard is closed and its
sessions end. A failure is one sentence with the file, the line and the cause; `-vv` adds the traceback."""
_OPTIONS: Final = """\
## Options

These go before a command or, except `--version`, after it."""
_ARGUMENTS: Final = """\
### Arguments of a call

Arguments have one of three forms, which cannot be mixed:

    callyard call bank.py transfer source=current target=savings cents=2500
    callyard call bank.py transfer '{"source": "current", "target": "savings", "cents": 2500}'
    echo '{"source": "current", "target": "savings", "cents": 2500}' | callyard call bank.py transfer -

The tool's input schema decides how the value of a pair is parsed. Where it allows a string, the value stays text.
Elsewhere it is parsed as JSON; a value that is not JSON stays text, and the dispatcher then refuses or corrects it. A
`null` where a string is allowed needs the second form.

Progress and log lines of the tool go to stderr. Images and other content blocks are only listed; `--output` writes
them to files named by the id of the call and their number."""
_SERVE: Final = """\
### Where settings come from

A flag overrides an environment variable, that overrides `callyard.toml`, and that overrides the default. The file is
the one that `--config` names, or else `CALLYARD_CONFIG`, or else `callyard.toml` in the current folder.
[Settings](settings.md) has every key and variable; `callyard config` prints the values in effect.
`--allow-eval=page,tab` publishes only the tools that run code
in these [targets](../guides/packs.md#let-its-tools-run-code).

Over stdio, stdout belongs to the client. If stderr is a terminal, a hint shows where the server listens and how to
connect clients; otherwise stderr gets the log line `serving …`. Over HTTP a second line, `console …`, names the file
with the address of the console. When a client on stdio disconnects, the server ends with status 0."""
_EVAL: Final = """\
### Labelled tools and queries

A tool is a line with `id`, `name` and optional `namespace`, `description`, `tags` and `input_schema`. A query is a
line with `query` and `relevant`, the ids of the tools that answer it. [Search tools](../guides/search.md) explains
the numbers. Times are CPU times."""
_ENVIRONMENT: Final = """\
## Environment

- Colours are used where stdout is a terminal, `NO_COLOR` is unset or empty, and `TERM` is not `dumb`.
- `callyard list` prints a table as wide as the terminal, or tab-separated lines without titles if stdout is not a
  terminal; `callyard search` prints paragraphs, or tab-separated lines with name, signature and reason.
- Control characters in the text of tools are escaped.
- Log lines are `<ISO time> <LEVEL> <logger> <message>`; the message is an event and then `key=value` facts. Warnings
  are shown by default, information with `-v`, everything with `-vv`, only errors with `--quiet`."""
_STATUS_HEAD: Final = """\
## Exit statuses

Every code has an exit status, with which a failed call exits."""
_MORE: Final = {"call": _ARGUMENTS, "eval": _EVAL, "serve": _SERVE}


def command_line() -> str:
    """Return the page of the command line."""
    program, commands = make_parsers()
    blocks = [
        _HEAD,
        _TARGET.format(commands=_with_target(commands)),
        _OPTIONS,
        _table(("option", "meaning"), _rows(program.actions)),
    ]
    for name, parser in commands.items():
        blocks += _command(name, parser, shared=program)
        blocks += [_MORE[name]] if name in _MORE else []
    return "\n\n".join([*blocks, _ENVIRONMENT, _STATUS_HEAD, _table(("status", "code", "meaning"), _statuses())]) + "\n"


def _with_target(commands: Mapping[str, Parser]) -> str:
    """Return the names of the commands that take a TARGET, as an argument or as an option."""
    names = sorted(
        name for name, parser in commands.items() if any(action.metavar == "TARGET" for action in parser.actions)
    )
    return ", ".join(f"`{name}`" for name in names)


def _command(name: str, parser: Parser, *, shared: Parser) -> Iterator[str]:
    shared_options = {option for action in shared.actions for option in action.option_strings}
    own = [action for action in parser.actions if not shared_options.intersection(action.option_strings)]
    positional = [action for action in own if not action.option_strings]
    ending = ["[options]", "[-- COMMAND …]"] if name in TAKE_PROGRAM else ["[options]"]
    usage = " ".join(["callyard", name, *(_in_usage(action) for action in positional), *ending])
    yield f"## callyard {name}"
    yield f"    {usage}"
    yield str(parser.description)
    yield _table(("argument or option", "meaning"), _rows(own))


def _rows(actions: Sequence[Action]) -> list[tuple[str, str]]:
    return [(_as_typed(action), help_of(action)) for action in actions]


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
    probes = {code.exit: (f"`{name}`", f"A probe: {code.meaning}") for name, code in PROBE_CODES.items()}
    return [(f"`{status}`", name, meaning) for status, (name, meaning) in sorted({**codes, **probes, **others}.items())]


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table; the cells are Markdown already."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))
