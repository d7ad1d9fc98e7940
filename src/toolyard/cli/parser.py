"""The parsers: which commands, arguments and options there are.

They import no command, so that `--help` and `version` cost next to nothing.
"""

import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, HelpFormatter, Namespace
from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from toolyard._version import VERSION
from toolyard.cli.terminal import columns_of
from toolyard.launch.errors import LaunchError
from toolyard.model.names import did_you_mean

__all__ = [
    "CONFIG",
    "JOINING",
    "ONE_UPSTREAM",
    "Collect",
    "Commands",
    "Give",
    "Options",
    "Parser",
    "Parsers",
    "Switch",
    "make_parsers",
    "read_options",
]


CONFIG: Final = "the file to read settings from (default: 'toolyard.toml', if it is there)"
"""What the option of that name is for."""


class Give(Action):
    """Notes the text that a setting is given, by its key."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's shape
        """Note it."""
        namespace.given = {**namespace.given, self.dest: values}


class Collect(Action):
    """Notes every value of an option that may be given again."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's shape
        """Note it."""
        setattr(namespace, self.dest, (*getattr(namespace, self.dest), values))


class Switch(BooleanOptionalAction):
    """Notes whether a setting is switched on or off, by its key."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's shape
        """Note it."""
        namespace.given = {**namespace.given, self.dest: not str(option_string).startswith("--no-")}


class _Page(HelpFormatter):
    """Help as wide as the terminal; argparse itself loads much to find out how wide that is, and for every command."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"width": columns_of(sys.__stdout__) - 2, **settings})


class Parser(ArgumentParser):
    """A parser that takes options in full alone, remembers what was added to it, and fails with one sentence."""

    def __init__(self, **settings: Any) -> None:
        self.actions: list[Action] = []
        self.takes_program = False
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=_Page, **settings)
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument or an option."""
        action = super().add_argument(*names, **settings)
        self.actions.append(action)
        return action

    def without_program(self, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Return what is for this parser, and the command behind '--', whose options are its own, if one may stand there."""
        if not self.takes_program or "--" not in arguments:
            return arguments, ()
        place = list(arguments).index("--")
        return arguments[:place], arguments[place + 1 :]

    def error(self, message: str) -> NoReturn:
        """Refuse what was given.

        Raises:
            LaunchError: Always.
        """
        ending = "" if message.endswith((".", "?")) else "."
        sentence = f"{message[:1].upper()}{message[1:]}{ending}"
        raise LaunchError(f"{sentence} See '{self.prog} --help'.")

    def refuse_unknown(self, extras: Sequence[str]) -> None:
        """Refuse what no argument and no option took, an option first.

        Raises:
            LaunchError: There is something left.
        """
        for extra in sorted(extras, key=lambda extra: not extra.startswith("-")):
            option = extra.partition("=")[0]
            if not option.startswith("-"):
                self.error(f"'{extra}' is one argument too many")
            known = [name for action in self.actions for name in action.option_strings]
            self.error(f"There is no option '{option}'.{did_you_mean(option, known)}")


Commands = Mapping[str, tuple[str, Callable[[Parser], None]]]
"""Commands by name: what each does, and what adds its arguments to its parser."""


_CLIENTS = "'claude-code', 'claude-desktop', 'cursor', 'vscode', 'codex', 'gemini' and so on"
_FILE = "the file to change (default: 'toolyard.toml', which is made if it is not there)"
_SECRETS = "where secrets go: 'file' (default) is a private file for each, 'env' a variable that you set, 'keep' leaves them as they are"


def _add_import(parser: Parser) -> None:
    parser.add_argument("arguments", metavar="NAME", nargs="*", default=[], help="only servers of these names (default: all)")
    parser.add_argument(
        "--from",
        dest="clients",
        metavar="CLIENT",
        action=Collect,
        default=(),
        help=f"only servers of this client: {_CLIENTS}; again for more",
    )
    parser.add_argument("--file", metavar="PATH", help="read this file instead of those that clients usually have")
    parser.add_argument("--to", dest="config", metavar="FILE", help=_FILE)
    _add_secrets(parser)
    _add_dry_run(parser)
    parser.add_argument("--json", action="store_true", help="print an object")


def _add_connect(parser: Parser) -> None:
    parser.add_argument("client", metavar="CLIENT", help=f"the client: {_CLIENTS}")
    parser.add_argument(
        "target",
        metavar="TARGET",
        nargs="?",
        default="",
        help="what 'toolyard serve' is given (default: 'toolyard.toml')",
    )
    parser.add_argument("--url", metavar="URL", help="let the client call a server that runs at this address, instead of starting one")
    parser.add_argument("--name", dest="called", metavar="NAME", help="what the client calls it (default: 'toolyard')")
    parser.add_argument("--project", action="store_true", help="write the client's file of this folder, and not that of the user")
    parser.add_argument("--undo", action="store_true", help="undo what 'connect' wrote last")
    _add_dry_run(parser)


def _add_add(parser: Parser) -> None:
    parser.takes_program = True
    parser.add_argument("name", metavar="NAME", help="what the upstream is called: small letters, digits, '-' and '_'")
    parser.add_argument("--url", metavar="URL", help="the address of a server that runs; without it the command to run stands behind '--'")
    parser.add_argument("--env", metavar="NAME=VALUE", action=Collect, default=(), help="a variable for the command; again for more")
    parser.add_argument("--header", metavar="NAME:VALUE", action=Collect, default=(), help="a header for the address; again for more")
    _add_secrets(parser)
    parser.add_argument("--config", metavar="FILE", help=_FILE)


def _add_remove(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the upstream")
    parser.add_argument("--config", metavar="FILE", help="the file to change (default: 'toolyard.toml')")


def _add_secrets(parser: Parser) -> None:
    parser.add_argument("--secrets", metavar="WHERE", choices=("file", "env", "keep"), default="file", help=_SECRETS)


def _add_dry_run(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")


JOINING: Final[Commands] = MappingProxyType(
    {
        "import": ("bring the servers of MCP clients into 'toolyard.toml', without starting any", _add_import),
        "connect": ("write Toolyard into the configuration of an MCP client", _add_connect),
        "add": ("add an upstream to 'toolyard.toml', without starting it", _add_add),
        "remove": ("take an upstream out of 'toolyard.toml'", _add_remove),
    }
)
"""The commands that bring servers in, and Toolyard into clients."""


def _add_upstream(parser: Parser, text: str = "the upstream") -> None:
    parser.add_argument("name", metavar="NAME", help=text)
    parser.add_argument("--config", metavar="FILE", help=CONFIG)


def _add_logs(parser: Parser) -> None:
    _add_upstream(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes, until it is interrupted")
    parser.add_argument("-n", "--lines", metavar="NUMBER", type=_number, help="how many of the last lines (default: 100)")


def _add_login(parser: Parser) -> None:
    _add_logout(parser)
    parser.add_argument("--no-browser", action="store_true", help="open no browser, only print the address")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=300.0, help="how long to wait (default: 300)")


def _add_logout(parser: Parser) -> None:
    _add_upstream(parser, "the upstream, or its address")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a number of lines.")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds.")
    return seconds


ONE_UPSTREAM: Final[Commands] = MappingProxyType(
    {
        "restart": ("start an upstream of a running yard anew", _add_upstream),
        "logs": ("print what an upstream that is a program said on stderr", _add_logs),
        "login": ("sign in at an upstream, in a browser", _add_login),
        "logout": ("forget a login at an upstream, and have it revoked", _add_logout),
    }
)
"""The commands about one upstream."""

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
        LaunchError: It cannot be understood.
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
