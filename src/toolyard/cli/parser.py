"""The parsers: which commands, arguments and options there are.

They import no command, so that `--help` and `version` cost next to nothing.
"""

from argparse import SUPPRESS, ArgumentTypeError, Namespace
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from toolyard._version import VERSION
from toolyard.cli.joining import JOINING
from toolyard.cli.parsing import CONFIG, Commands, Give, Parser, Switch, did_you_mean
from toolyard.cli.upstream_parsers import ONE_UPSTREAM

__all__ = ["Options", "Parsers", "make_parsers", "read_options"]

_TARGET: Final = "the yard: 'module:attr', 'file.py', 'file.py:attr', a 'toolyard.toml', a client's 'file.json', or an address"
_NOTHING: Final[Mapping[str, str | bool]] = MappingProxyType({})
_SETTINGS: Final = (
    ("serve.transport", "NAME", "the way in: 'stdio' (default), 'http' or 'sse'"),
    ("serve.host", "ADDRESS", "the address to listen on (default: 127.0.0.1); any that others can reach needs authentication"),
    ("serve.port", "PORT", "the port to listen on (default: 8321); 0 is any that is free"),
    ("serve.socket", "PATH", "listen on this unix socket instead"),
    ("serve.stateless", "", "keep nothing between the requests of older clients"),
    ("serve.json_response", "", "answer every request with plain JSON, without progress on the way"),
    ("serve.session_timeout", "SECONDS", "end an idle session of an older client after so long (default: 1800); 0 is never"),
    ("serve.tls_cert", "FILE", "the certificate; with it HTTPS is spoken"),
    ("serve.tls_key", "FILE", "the certificate's key"),
    ("serve.workers", "NUMBER", "serve with so many processes (default: 1); more than one needs '--stateless'"),
    ("serve.reload", "", "start anew when a '.py' or '.toml' file beside the yard changes"),
    ("profile", "NAME", "the profile of callers that have no other (default: the yard's own)"),
    ("allow_eval", "", "publish the tools that run code, too"),
)
_OPERATIONS: Final = ("query", "command", "destroy", "eval")
_MOST: Final = 100
_PROFILE: Final = "see the yard as callers of this profile do (default: the yard's own)"


class Options(Namespace):
    """What was asked for; what a command does not take keeps its default."""

    command: str = ""
    target: str = ""
    name: str = ""
    arguments: Sequence[str] = ()
    session: str | None = None
    profile: str | None = None
    allow_eval: bool = False
    output: str | None = None
    json: bool = False
    markdown: bool = False
    all: bool = False
    seen: str | None = None
    words: str = ""
    namespace: str | None = None
    operation: str | None = None
    limit: int = 5
    tools: str = ""
    queries: str = ""
    given: Mapping[str, str | bool] = _NOTHING
    config: str | None = None
    check: bool = False
    follow: bool = False
    lines: int = 100
    client: str = ""
    called: str = "toolyard"
    clients: Sequence[str] = ()
    file: str | None = None
    dry_run: bool = False
    undo: bool = False
    project: bool = False
    url: str | None = None
    env: Sequence[str] = ()
    header: Sequence[str] = ()
    program: Sequence[str] = ()
    secrets: Literal["file", "env", "keep"] = "file"
    no_browser: bool = False
    timeout: float = 300.0
    verbose: int = 0
    quiet: bool = False


class Parsers(NamedTuple):
    """The parser of the program, and those of its commands by name."""

    program: Parser
    commands: Mapping[str, Parser]


def make_parsers(command: str = "") -> Parsers:
    """Return the parser of the program and those of all commands, or of the one that was asked for."""
    program = Parser(prog="toolyard", description="Every tool an agent uses, behind one dispatcher.")
    program.add_argument("--version", action="version", version=f"toolyard {VERSION}", help="show the version and exit")
    _add_volume(program)
    commands = program.add_subparsers(title="commands", metavar="COMMAND", prog=program.prog)
    added: dict[str, Parser] = {}
    for name in [command] if command else _COMMANDS:
        text, fill = _COMMANDS[name]
        parser = added[name] = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        fill(parser)
        _add_volume(parser)
    return Parsers(program, added)


def read_options(arguments: Sequence[str]) -> Options:
    """Return what was asked for; the command is empty if there is none.

    Raises:
        CommandError: It cannot be understood.
        SystemExit: Help or the version was asked for, and has been printed.
    """
    program, commands = make_parsers(arguments[0] if arguments and arguments[0] in _COMMANDS else "")
    place = next((number for number, text in enumerate(arguments) if not text.startswith("-")), len(arguments))
    options, extras = program.parse_known_args(arguments[:place], Options())
    program.refuse_unknown(extras)
    if place == len(arguments):
        return options
    options.command = arguments[place]
    parser = commands.get(options.command)
    if parser is None:
        program.error(f"There is no command '{options.command}'.{did_you_mean(options.command, list(commands))}")
    given, options.program = parser.without_program(arguments[place + 1 :])
    options, extras = parser.parse_known_intermixed_args(given, options)
    parser.refuse_unknown(extras)
    _refuse_contradictions(parser, options)
    return options


def _refuse_contradictions(parser: Parser, options: Options) -> None:
    if options.quiet and options.verbose:
        parser.error("'--quiet' and '--verbose' contradict each other")
    if options.json and options.markdown:
        parser.error("'--json' and '--markdown' contradict each other")


def _add_nothing(_: Parser) -> None:
    """Leave a command without arguments of its own."""


def _add_view(parser: Parser) -> None:
    parser.add_argument("--config", metavar="FILE", help=CONFIG)
    parser.add_argument("--profile", metavar="NAME", help=_PROFILE)
    parser.add_argument("--allow-eval", action="store_true", help="publish the tools that run code, too")


def _add_target(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", default="", help=f"{_TARGET} (default: what 'toolyard.toml' names)")


def _add_settings(parser: Parser) -> None:
    _add_target(parser)
    parser.add_argument("--config", metavar="FILE", help=CONFIG)
    for key, value, text in _SETTINGS:
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        if value:
            parser.add_argument(option, dest=key, action=Give, default=SUPPRESS, metavar=value, help=text)
        else:
            parser.add_argument(option, dest=key, action=Switch, default=SUPPRESS, help=text)


def _add_volume(parser: Parser) -> None:
    parser.add_argument("-v", "--verbose", action="count", help="log more to stderr: once information, twice everything")
    parser.add_argument("-q", "--quiet", action="store_true", help="say nothing on stderr but errors")


def _add_config(parser: Parser) -> None:
    _add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print an object")


def _add_key(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="whose key it is, as one word")
    parser.add_argument("--profile", metavar="NAME", help="the profile that its owner gets (default: that of the yard)")
    parser.add_argument("--json", action="store_true", help="print an object")


def _add_upstreams(parser: Parser) -> None:
    _add_target(parser)
    parser.add_argument("--check", action="store_true", help="start or call each of them now, and see")
    parser.add_argument("--json", action="store_true", help="print an array of objects")


def _add_list(parser: Parser) -> None:
    _add_target(parser)
    _add_view(parser)
    parser.add_argument("--json", action="store_true", help="print an array of objects")


def _add_call(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", help=_TARGET)
    parser.add_argument("name", metavar="NAME", help="the tool to call")
    parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs="*", default=[], help="'key=value' for each, or one JSON object, or '-' for JSON from stdin"
    )
    parser.add_argument("--session", metavar="ID", help="the session that the call belongs to")
    _add_view(parser)
    parser.add_argument("--output", metavar="DIR", help="write images and other content blocks to files in this folder")
    parser.add_argument("--json", action="store_true", help="print the envelope as one line of JSON")


def _add_describe(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", help=_TARGET)
    parser.add_argument("name", metavar="NAME", help="the tool to describe")
    _add_view(parser)
    parser.add_argument("--json", action="store_true", help="print the whole spec as one line of JSON")


def _add_manifest(parser: Parser) -> None:
    _add_target(parser)
    _add_view(parser)
    parser.add_argument("--json", action="store_true", help="print JSON (default)")
    parser.add_argument("--markdown", action="store_true", help="print a tool reference to read")


def _add_search(parser: Parser) -> None:
    parser.add_argument("words", metavar="WORDS", help="what the tool should do, in quotes if there are several words")
    _add_target(parser)
    parser.add_argument("--namespace", metavar="NAME", help="only tools of this namespace")
    parser.add_argument("--operation", choices=_OPERATIONS, metavar="NAME", help=f"only tools of this operation: {', '.join(_OPERATIONS)}")
    parser.add_argument("--limit", type=_count, metavar="NUMBER", default=5, help="how many tools, from 1 to 100 (default: 5)")
    _add_view(parser)
    parser.add_argument("--json", action="store_true", help="print an object")


def _add_eval(parser: Parser) -> None:
    parser.add_argument("name", metavar="WHAT", choices=("search",), help="what to measure: 'search'")
    parser.add_argument("--tools", metavar="FILE", required=True, help="the tools, one JSON object a line")
    parser.add_argument("--queries", metavar="FILE", required=True, help="the questions and their right tools, one JSON object a line")
    parser.add_argument(
        "--strategy",
        dest="search.strategy",
        action=Give,
        default=SUPPRESS,
        metavar="NAME",
        help="how to rank: 'lexical' (default), 'bm25', 'hybrid' or an installed one",
    )
    parser.add_argument("--config", metavar="FILE", help=CONFIG)
    parser.add_argument("--json", action="store_true", help="print an object")


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MOST:
        raise ArgumentTypeError(f"'{text}' is no number from 1 to {_MOST}")
    return int(text)


def _add_stored(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the upstream (default: all)")
    parser.add_argument("--config", metavar="FILE", help=CONFIG)
    parser.add_argument("--json", action="store_true", help="print an array of objects")


def _add_accept(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the upstream")
    parser.add_argument(
        "arguments", metavar="TOOL", nargs="*", default=[], help="what is accepted: a tool, a prompt, a URI or 'instructions'"
    )
    parser.add_argument("--all", action="store_true", help="accept everything that differs, also what is no longer offered")
    parser.add_argument(
        "--seen", metavar="DIGEST", help="accept only if what differs is still what 'toolyard diff' showed with this digest"
    )
    parser.add_argument("--config", metavar="FILE", help=CONFIG)
    parser.add_argument("--json", action="store_true", help="print an array of objects")


def _add_version(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="print an object with the version of Python, too")


_COMMANDS: Final[Commands] = MappingProxyType(
    {
        "demo": ("show what an agent sees of a yard with hundreds of tools", _add_nothing),
        "serve": ("serve a yard to MCP clients, over stdio or HTTP", _add_settings),
        "config": ("print every setting with its value and where it came from", _add_config),
        "key": ("make an API key and print what 'toolyard.toml' keeps of it", _add_key),
        "upstreams": ("list the upstreams: how each is, what it offers and what went wrong last", _add_upstreams),
        **ONE_UPSTREAM,
        "list": ("list the tools of a yard", _add_list),
        "call": ("call a tool and print what it answers", _add_call),
        "describe": ("describe a tool: what it takes, does and answers", _add_describe),
        "manifest": ("print every tool of a yard, as JSON or as a page to read", _add_manifest),
        "search": ("find tools of a yard by what they do", _add_search),
        "eval": ("measure how well search finds the right tools", _add_eval),
        "diff": ("show what upstreams changed since it was accepted", _add_stored),
        "accept": ("accept what an upstream offers now", _add_accept),
        "scan": ("look for hidden characters and orders to a model in what upstreams say", _add_stored),
        **JOINING,
        "version": ("print the version of Toolyard", _add_version),
    }
)
