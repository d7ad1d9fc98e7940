"""The parsers of the command line: commands, arguments and options.

No command is imported here, so that `--help` and `version` start fast.
"""

import sys
from argparse import SUPPRESS, Action, ArgumentParser, ArgumentTypeError, BooleanOptionalAction, HelpFormatter, Namespace
from collections.abc import Callable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, NoReturn

from callyard._version import VERSION
from callyard.cli.terminal import columns_of
from callyard.launch.errors import LaunchError
from callyard.model.names import did_you_mean

__all__ = ["Options", "Parser", "Parsers", "make_parsers", "read_options"]


class _SetText(Action):
    """Stores the text of a setting in `Options.settings`, by key."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's signature
        """Store the text."""
        namespace.settings = {**namespace.settings, self.dest: values}


class _SetSwitch(BooleanOptionalAction):
    """Stores whether a setting is on or off in `Options.settings`, by key."""

    def __call__(self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None) -> None:  # noqa: ARG002 - argparse's signature
        """Store the switch."""
        namespace.settings = {**namespace.settings, self.dest: not str(option_string).startswith("--no-")}


class _Page(HelpFormatter):
    """Help as wide as the terminal; argparse would import `shutil` to measure it, once per command."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"width": columns_of(sys.__stdout__) - 2, **settings})


class Parser(ArgumentParser):
    """A parser without abbreviations that remembers its actions and raises `LaunchError`."""

    def __init__(self, **settings: Any) -> None:
        self.actions: list[Action] = []
        self.takes_program = False
        """Whether a program and its arguments may follow '--'."""
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=_Page, **settings)
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def add_argument(self, *names: str, **settings: Any) -> Action:
        """Add an argument or an option."""
        action = super().add_argument(*names, **settings)
        self.actions.append(action)
        return action

    def split_program(self, arguments: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
        """Return the arguments of this parser and the program after '--', if it takes one."""
        if not self.takes_program or "--" not in arguments:
            return arguments, ()
        place = list(arguments).index("--")
        return arguments[:place], arguments[place + 1 :]

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            LaunchError: Always.
        """
        ending = "" if message.endswith((".", "?")) else "."
        sentence = f"{message[:1].upper()}{message[1:]}{ending}"
        raise LaunchError(f"{sentence} See '{self.prog} --help'.")

    def refuse_unknown(self, extras: Sequence[str]) -> None:
        """Refuse arguments that the parser did not consume, options first.

        Raises:
            LaunchError: There are any.
        """
        for extra in sorted(extras, key=lambda extra: not extra.startswith("-")):
            option = extra.partition("=")[0]
            if not option.startswith("-"):
                self.error(f"'{extra}' is one argument too many")
            known = [name for action in self.actions for name in action.option_strings]
            self.error(f"There is no option '{option}'.{did_you_mean(option, known)}")


_TARGET: Final = "the yard: 'module:attr', 'file.py', 'file.py:attr', a 'callyard.toml', a client's 'file.json', or a URL"
_CONFIG: Final = "the file to read settings from (default: 'callyard.toml', if it exists)"
_PROJECT: Final = "the project of the upstream: a 'callyard.toml' (default: the one here), a client's 'file.json' or a URL"
_PROFILE: Final = "show the yard as callers of this profile see it (default: the yard's own)"
_CLIENTS: Final = "'claude-code', 'claude-desktop', 'cursor', 'vscode', 'codex', 'gemini' and so on"
_CHANGED_FILE: Final = "the file to change (default: 'callyard.toml', which is created if it does not exist)"
_SECRETS: Final = (
    "where secrets go: 'file' (default) is a private file for each, 'env' a variable that you set, 'keep' leaves them as they are"
)
_NOTHING: Final[Mapping[str, str | bool]] = MappingProxyType({})
_SETTINGS: Final = (
    ("serve.transport", "NAME", "the transport: 'stdio' (default), 'http' (also 'streamable') or 'sse'"),
    ("serve.host", "ADDRESS", "the address to listen on (default: 127.0.0.1); any but a loopback address needs authentication"),
    ("serve.port", "PORT", "the port to listen on (default: 8321); 0 is any free port"),
    ("serve.socket", "PATH", "listen on this Unix socket instead"),
    ("serve.stateless", "", "give clients of the handshake era no HTTP session"),
    ("serve.json_response", "", "answer every request with one JSON document, without progress notifications"),
    ("serve.session_timeout", "SECONDS", "end an idle HTTP session after this time (default: 1800); 0 is never"),
    ("serve.tls", "", "serve HTTPS, with '--tls-cert' and '--tls-key'"),
    ("serve.tls_cert", "FILE", "the certificate, which switches HTTPS on"),
    ("serve.tls_key", "FILE", "the private key of the certificate"),
    ("serve.workers", "NUMBER", "the number of processes (default: 1); more than one needs '--stateless'"),
    ("serve.reload", "", "restart when a '.py' or '.toml' file in the folder of the yard changes"),
    ("serve.console", "", "show the yard in a browser at '/console' (default: over 'http' with one worker)"),
    ("store", "STORE", "where state is kept: 'memory', 'sqlite' or 'sqlite:PATH' (default: 'sqlite', in a file for each project)"),
    ("monitor.metrics", "", "show counters for Prometheus at '/metrics' (default: over 'http' with one worker)"),
    ("monitor.audit_log", "FILE", "write a line for each call to this file"),
    ("monitor.access_log", "FILE", "write a line for each HTTP request to this file"),
    ("agents.enabled", "", "run agents with the yard's tools, at '/api/sessions'"),
    ("agents.runtime", "NAME", "the SDK of agents: 'claude' (default) or 'openai'"),
    ("agents.model", "NAME", "the model of messages that name none (default: that of the SDK)"),
    ("agents.permission_mode", "MODE", "when a person is asked about a tool call (default: 'default', which is always)"),
    ("agents.roots", "FOLDERS", "the folders that agents may work in, separated by commas (default: this one)"),
    ("profile", "NAME", "the profile of callers without one of their own (default: the yard's own)"),
    ("allow_eval", "", "publish the tools that run code"),
    ("runtime.enabled", "", "let agents run programs with 'execute_code'"),
    ("runtime.profile", "NAME", "where programs run: 'standard' (default), a sandbox, or 'dev', a plain process"),
    ("runtime.backend", "NAME", "the sandbox, if only this one may be used: 'container', 'bubblewrap' or 'wasm'"),
    ("runtime.order", "NAMES", "the sandboxes in the order in which they are tried (default: container,bubblewrap,wasm)"),
    ("runtime.wasm_enabled", "", "use the backend 'wasm' (default: if it is there)"),
    ("runtime.wasm_path", "FILE", "the CPython build for WASI that the backend 'wasm' runs"),
    ("runtime.wasm_sha256", "DIGEST", "the SHA-256 of that file, if it is not a known one"),
    ("runtime.monty", "", "run small programs in Monty, which starts faster"),
    ("runtime.allow_unsafe", "", "allow 'dev' as root, or on an address that others can reach"),
    ("runtime.concurrency", "NUMBER", "the number of programs that run at one time (default: 4)"),
)
_OPERATIONS: Final = ("query", "command", "destroy", "eval")
_MAX_LIMIT: Final = 100


class Options(Namespace):
    """The parsed command line; options that a command does not have keep their defaults."""

    command: str = ""
    target: str = ""
    name: str = ""
    arguments: Sequence[str] = ()
    session: str | None = None
    background: bool = False
    action: str = "list"
    job_id: str = ""
    approval_id: str = ""
    reason: str = ""
    watch: bool = False
    grant: float = 0.0
    any_arguments: bool = False
    caller: str = "local"
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
    settings: Mapping[str, str | bool] = _NOTHING
    """Settings of flags, by key."""
    config: str | None = None
    check: bool = False
    follow: bool = False
    lines: int = 100
    client: str = ""
    server_name: str = "callyard"
    clients: Sequence[str] | None = None
    file: str | None = None
    dry_run: bool = False
    wait: bool = False
    undo: bool = False
    project: bool = False
    url: str | None = None
    env: Sequence[str] | None = None
    header: Sequence[str] | None = None
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
    """Return the parser of the program and those of all commands, or of one."""
    program = Parser(prog="callyard", description="Every tool an agent uses, behind one dispatcher.")
    program.add_argument("--version", action="version", version=f"callyard {VERSION}", help="show the version and exit")
    _add_volume(program)
    commands = program.add_subparsers(title="commands", metavar="COMMAND", prog=program.prog)
    added: dict[str, Parser] = {}
    for name in [command] if command else _COMMANDS:
        text, add_arguments = _COMMANDS[name]
        parser = added[name] = commands.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        add_arguments(parser)
        _add_volume(parser)
    return Parsers(program, added)


def read_options(arguments: Sequence[str]) -> Options:
    """Parse a command line; the command is empty if there is none.

    Raises:
        LaunchError: The command line is wrong.
        SystemExit: Help or the version was printed.
    """
    program, commands = make_parsers(arguments[0] if arguments and arguments[0] in _COMMANDS else "")
    position = next((number for number, text in enumerate(arguments) if not text.startswith("-")), len(arguments))
    options, extras = program.parse_known_args(arguments[:position], Options())
    program.refuse_unknown(extras)
    if position == len(arguments):
        return options
    options.command = arguments[position]
    parser = commands.get(options.command)
    if parser is None:
        program.error(f"There is no command '{options.command}'.{did_you_mean(options.command, list(commands))}")
    own, options.program = parser.split_program(arguments[position + 1 :])
    options, extras = parser.parse_known_intermixed_args(own, options)
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


def _add_config_file(parser: Parser) -> None:
    parser.add_argument("--config", metavar="FILE", help=_CONFIG)


def _add_json(parser: Parser, text: str = "print an object") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def _add_json_array(parser: Parser) -> None:
    _add_json(parser, "print an array of objects")


def _add_volume(parser: Parser) -> None:
    parser.add_argument("-v", "--verbose", action="count", help="log more to stderr: once information, twice everything")
    parser.add_argument("-q", "--quiet", action="store_true", help="write nothing to stderr but errors")


def _add_view(parser: Parser) -> None:
    _add_config_file(parser)
    parser.add_argument("--profile", metavar="NAME", help=_PROFILE)
    parser.add_argument("--allow-eval", action="store_true", help="publish the tools that run code")


def _add_target(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", nargs="?", default="", help=f"{_TARGET} (default: the 'target' of 'callyard.toml')")


def _add_repeated(parser: Parser, *names: str, metavar: str, text: str, **options: Any) -> None:
    parser.add_argument(*names, metavar=metavar, action="append", help=f"{text}; can be repeated", **options)


def _add_settings(parser: Parser) -> None:
    _add_target(parser)
    _add_config_file(parser)
    for key, value, text in _SETTINGS:
        name = "agents" if key == "agents.enabled" else key.removeprefix("serve.").removeprefix("monitor.")
        option = f"--{name.replace('.', '-').replace('_', '-')}"
        if value:
            parser.add_argument(option, dest=key, action=_SetText, default=SUPPRESS, metavar=value, help=text)
        else:
            parser.add_argument(option, dest=key, action=_SetSwitch, default=SUPPRESS, help=text)


def _add_config(parser: Parser) -> None:
    _add_settings(parser)
    _add_json(parser)


def _add_key(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the owner of the key, as one word")
    parser.add_argument("--profile", metavar="NAME", help="the profile of its owner (default: that of the yard)")
    _add_json(parser)


def _add_upstreams(parser: Parser) -> None:
    _add_target(parser)
    parser.add_argument("--check", action="store_true", help="start or call each of them now, for at most 5 seconds")
    _add_wait(parser)
    _add_json_array(parser)


def _add_upstream(parser: Parser, text: str = "the upstream") -> None:
    parser.add_argument("name", metavar="NAME", help=text)
    parser.add_argument("--config", metavar="FILE", help=_PROJECT)


def _add_logs(parser: Parser) -> None:
    _add_upstream(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="print further lines as they come, until interrupted")
    parser.add_argument("-n", "--lines", metavar="NUMBER", type=_number, help="the number of last lines to print (default: 100)")


def _add_login(parser: Parser) -> None:
    _add_logout(parser)
    parser.add_argument("--no-browser", action="store_true", help="print the URL and do not open a browser")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=300.0, help="how long to wait (default: 300)")


def _add_logout(parser: Parser) -> None:
    _add_upstream(parser, "the upstream, or its URL")


def _add_wait(parser: Parser) -> None:
    parser.add_argument("--wait", action="store_true", help="wait until every upstream has answered or failed")


def _add_list(parser: Parser) -> None:
    _add_target(parser)
    _add_wait(parser)
    _add_view(parser)
    _add_json_array(parser)


def _add_call(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", help=_TARGET)
    parser.add_argument("name", metavar="NAME", help="the tool to call")
    text = "'key=value' for each, or one JSON object, or '-' for JSON from stdin"
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", default=[], help=text)
    parser.add_argument("--session", metavar="ID", help="the session of the call")
    parser.add_argument("--background", action="store_true", help="start a job at the server of a URL, and print its id")
    _add_wait(parser)
    _add_view(parser)
    parser.add_argument("--output", metavar="DIR", help="write images and other content blocks to files in this folder")
    _add_json(parser, "print the envelope as one line of JSON")


def _add_code(parser: Parser) -> None:
    parser.add_argument("file", metavar="FILE", help="the program, or '-' for stdin")
    _add_target(parser)
    _add_view(parser)
    for key, value, text in _SETTINGS:
        if key in ("runtime.profile", "runtime.backend"):
            parser.add_argument(f"--{key.replace('.', '-')}", dest=key, action=_SetText, default=SUPPRESS, metavar=value, help=text)
    parser.add_argument(
        "--runtime-allow-unsafe", dest="runtime.allow_unsafe", action=_SetSwitch, default=SUPPRESS, help="allow 'dev' as root"
    )
    _add_json(parser, "print the envelope as one line of JSON")


def _add_runtime(parser: Parser) -> None:
    actions = "'list' shows what can run programs here, 'probe' attacks each backend, 'build' makes the image of the containers"
    parser.add_argument("name", metavar="ACTION", choices=("list", "probe", "build"), help=actions)
    _add_config_file(parser)
    _add_json_array(parser)


def _add_jobs(parser: Parser) -> None:
    actions = ("list", "show", "wait", "cancel")
    text = "'list' (default), 'show', 'wait' or 'cancel'"
    parser.add_argument("action", metavar="ACTION", nargs="?", choices=actions, default="list", help=text)
    parser.add_argument("job_id", metavar="JOB", nargs="?", default="", help="the id of the job")
    parser.add_argument("--limit", metavar="NUMBER", type=_limit, default=50, help="the most jobs to list (default: 50)")
    parser.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=300.0, help="how long to wait (default: 300)")
    _add_config_file(parser)
    _add_json(parser, "print JSON")


def _add_approvals(parser: Parser) -> None:
    actions = ("list", "show", "approve", "deny", "grants", "revoke")
    text = "'list' (default), 'show', 'approve' or 'deny' for approvals; 'grants' or 'revoke' for grants"
    parser.add_argument("action", metavar="ACTION", nargs="?", choices=actions, default="list", help=text)
    parser.add_argument("approval_id", metavar="ID", nargs="?", default="", help="the id of the approval, or of the grant to revoke")
    parser.add_argument("--reason", metavar="TEXT", default="", help="why; the agent gets the reason of a denial")
    text = "approve the same call of the same caller for so long, without asking again"
    parser.add_argument("--grant", metavar="SECONDS", type=_seconds, default=0.0, help=text)
    parser.add_argument("--any-arguments", action="store_true", help="with '--grant': whatever the arguments are")
    parser.add_argument("--watch", action="store_true", help="print further approvals as they come, until interrupted")
    _add_config_file(parser)
    _add_json(parser, "print JSON, with '--watch' one line for each")


def _add_policy(parser: Parser) -> None:
    parser.add_argument("action", metavar="ACTION", choices=("explain",), help="'explain' shows which rule decides about a call, and why")
    parser.add_argument("name", metavar="TOOL", help="the tool")
    text = "'key=value' for each, or one JSON object, or '-' for JSON from stdin"
    parser.add_argument("arguments", metavar="ARGUMENT", nargs="*", default=[], help=text)
    parser.add_argument("--target", metavar="TARGET", default="", help=f"{_TARGET} (default: the 'target' of 'callyard.toml')")
    parser.add_argument("--caller", metavar="NAME", default="local", help="the identity of the caller (default: 'local')")
    _add_view(parser)
    _add_json(parser)


def _add_describe(parser: Parser) -> None:
    parser.add_argument("target", metavar="TARGET", help=_TARGET)
    parser.add_argument("name", metavar="NAME", help="the tool to describe")
    _add_wait(parser)
    _add_view(parser)
    _add_json(parser, "print the whole spec as one line of JSON")


def _add_manifest(parser: Parser) -> None:
    _add_target(parser)
    _add_wait(parser)
    _add_view(parser)
    _add_json(parser, "print JSON (default)")
    parser.add_argument("--markdown", action="store_true", help="print a tool reference in Markdown")


def _add_search(parser: Parser) -> None:
    parser.add_argument("words", metavar="WORDS", help="what the tool should do, in quotes if there are several words")
    _add_target(parser)
    _add_wait(parser)
    parser.add_argument("--namespace", metavar="NAME", help="only tools of this namespace")
    parser.add_argument("--operation", choices=_OPERATIONS, metavar="NAME", help=f"only tools of this operation: {', '.join(_OPERATIONS)}")
    parser.add_argument("--limit", type=_limit, metavar="NUMBER", default=5, help="the number of tools, from 1 to 100 (default: 5)")
    _add_view(parser)
    _add_json(parser)


def _add_eval(parser: Parser) -> None:
    parser.add_argument("name", metavar="WHAT", choices=("search",), help="what to measure: 'search'")
    parser.add_argument("--tools", metavar="FILE", required=True, help="the tools, one JSON object a line")
    parser.add_argument("--queries", metavar="FILE", required=True, help="the queries and their relevant tools, one JSON object a line")
    strategies = "how to rank: 'lexical' (default), 'bm25', 'hybrid' or an installed one"
    parser.add_argument("--strategy", dest="search.strategy", action=_SetText, default=SUPPRESS, metavar="NAME", help=strategies)
    _add_config_file(parser)
    _add_json(parser)


def _add_definitions(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the upstream (default: all)")
    parser.add_argument("--config", metavar="FILE", help=_PROJECT)
    _add_json_array(parser)


def _add_accept(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the upstream")
    text = "what to accept: a tool, a prompt, a URI or 'instructions'"
    parser.add_argument("arguments", metavar="TOOL", nargs="*", default=[], help=text)
    parser.add_argument("--all", action="store_true", help="accept everything that differs, including what is no longer offered")
    text = "accept only if the differences are still those that 'callyard diff' showed with this digest"
    parser.add_argument("--seen", metavar="DIGEST", help=text)
    parser.add_argument("--config", metavar="FILE", help=_PROJECT)
    _add_json_array(parser)


def _add_import(parser: Parser) -> None:
    parser.add_argument("arguments", metavar="NAME", nargs="*", default=[], help="only servers with these names (default: all)")
    _add_repeated(parser, "--from", dest="clients", metavar="CLIENT", text=f"only servers of this client: {_CLIENTS}")
    parser.add_argument("--file", metavar="PATH", help="read this file instead of the clients' usual ones")
    parser.add_argument("--to", dest="config", metavar="FILE", help=_CHANGED_FILE)
    _add_secrets(parser)
    _add_dry_run(parser)
    _add_json(parser)


def _add_connect(parser: Parser) -> None:
    parser.add_argument("client", metavar="CLIENT", help=f"the client: {_CLIENTS}")
    text = "the TARGET of 'callyard serve' (default: 'callyard.toml')"
    parser.add_argument("target", metavar="TARGET", nargs="?", default="", help=text)
    parser.add_argument("--url", metavar="URL", help="let the client call a running server at this URL instead of starting one")
    parser.add_argument("--name", dest="server_name", metavar="NAME", help="the name of the server in the client (default: 'callyard')")
    parser.add_argument("--project", action="store_true", help="change the client's file of this folder instead of the user's")
    parser.add_argument("--undo", action="store_true", help="undo the last change of 'connect'")
    _add_dry_run(parser)


def _add_add(parser: Parser) -> None:
    parser.takes_program = True
    parser.add_argument("name", metavar="NAME", help="the name of the upstream: lower-case letters, digits, '-' and '_'")
    parser.add_argument("--url", metavar="URL", help="the URL of a running server; without it, the command to run follows '--'")
    _add_repeated(parser, "--env", metavar="NAME=VALUE", text="an environment variable for the command")
    _add_repeated(parser, "--header", metavar="NAME:VALUE", text="a header for the URL")
    _add_secrets(parser)
    parser.add_argument("--config", metavar="FILE", help=_CHANGED_FILE)


def _add_remove(parser: Parser) -> None:
    parser.add_argument("name", metavar="NAME", help="the upstream")
    parser.add_argument("--config", metavar="FILE", help="the file to change (default: 'callyard.toml')")


def _add_secrets(parser: Parser) -> None:
    parser.add_argument("--secrets", metavar="WHERE", choices=("file", "env", "keep"), default="file", help=_SECRETS)


def _add_dry_run(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="show what would be written, and write nothing")


def _add_version(parser: Parser) -> None:
    _add_json(parser, "print an object that has the version of Python as well")


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ArgumentTypeError(f"'{text}' is not a number of lines.")
    return int(text)


def _limit(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= _MAX_LIMIT:
        raise ArgumentTypeError(f"'{text}' is not a number from 1 to {_MAX_LIMIT}")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < inf:
        raise ArgumentTypeError(f"'{text}' is not a number of seconds.")
    return seconds


_COMMANDS: Final[Mapping[str, tuple[str, Callable[[Parser], None]]]] = {
    "demo": ("show what an agent sees of a yard with hundreds of tools", _add_nothing),
    "serve": ("serve a yard to MCP clients, over stdio or HTTP", _add_settings),
    "config": ("print every setting with its value and origin", _add_config),
    "key": ("create an API key and print its line for 'callyard.toml'", _add_key),
    "upstreams": ("list the upstreams: state, number of tools and last error", _add_upstreams),
    "restart": ("restart an upstream of a running yard", _add_upstream),
    "logs": ("print what a program that is an upstream wrote to stderr", _add_logs),
    "login": ("sign in at an upstream, in a browser", _add_login),
    "logout": ("revoke and delete a login at an upstream", _add_logout),
    "list": ("list the tools of a yard", _add_list),
    "call": ("call a tool and print its answer", _add_call),
    "code": ("run a program that calls the tools of a yard", _add_code),
    "runtime": ("show, probe or build what runs programs", _add_runtime),
    "jobs": ("list, show, wait for or cancel calls in the background", _add_jobs),
    "approvals": ("list, show, approve or deny calls that wait for a person", _add_approvals),
    "policy": ("explain which rule decides about a call", _add_policy),
    "describe": ("describe a tool: arguments, behaviour and answer", _add_describe),
    "manifest": ("print every tool of a yard, as JSON or Markdown", _add_manifest),
    "search": ("find tools of a yard by what they do", _add_search),
    "eval": ("measure how well search finds the right tools", _add_eval),
    "diff": ("show how the definitions of upstreams differ from the accepted ones", _add_definitions),
    "accept": ("accept the current definitions of an upstream", _add_accept),
    "scan": ("look for hidden characters and instructions to a model in definitions of upstreams", _add_definitions),
    "import": ("add the servers of MCP clients to 'callyard.toml', without starting any", _add_import),
    "connect": ("write Callyard into the configuration of an MCP client", _add_connect),
    "add": ("add an upstream to 'callyard.toml', without starting it", _add_add),
    "remove": ("remove an upstream from 'callyard.toml'", _add_remove),
    "version": ("print the version of Callyard", _add_version),
}
"""What each command does, and the function that adds its arguments."""
