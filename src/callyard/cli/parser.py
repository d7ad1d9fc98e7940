"""The parser of the command line.

No command is imported here, so that `--help` and `version` start fast.
"""

import sys
from argparse import (
    Action,
    ArgumentParser,
    HelpFormatter,
    Namespace,
)
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Literal, NoReturn, cast

from callyard._version import VERSION
from callyard.cli.commands import ALLOW_EVAL, ARGUMENTS, COMMANDS, SETTING, TAKE_PROGRAM, VOLUME, Argument
from callyard.cli.terminal import columns_of
from callyard.launch.errors import LaunchError
from callyard.launch.hangup import Hangup
from callyard.model.names import did_you_mean

__all__ = ["Options", "Parser", "help_of", "make_parsers", "read_options"]


_NOTHING: Final[Mapping[str, str | bool]] = MappingProxyType({})


class Options(Namespace):
    """The parsed command line; options that a command does not have keep their defaults."""

    command: str = ""
    target: str = ""
    name: str = ""
    arguments: Sequence[str] = ()
    session: str | None = None
    hangup: Hangup
    background: bool = False
    action: str = "list"
    reason: str = ""
    watch: bool = False
    grant: float = 0.0
    any_arguments: bool = False
    seconds: float | None = None
    pin: str | None = None
    junit: str | None = None
    silence: str | None = None
    caller: str = "local"
    profile: str | None = None
    allow_eval: bool | str = False
    output: str | None = None
    json: bool = False
    markdown: bool = False
    all: bool = False
    seen: str | None = None
    settled_as: Literal["query", "command", "destroy"] | None = None
    words: str = ""
    namespace: str | None = None
    operation: str | None = None
    limit: int = 5
    jobs: int = 50
    tools: str = ""
    queries: str = ""
    split: bool = False
    replay: bool = False
    settings: Mapping[str, str | bool] = _NOTHING
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
    key: str | None = None
    program: Sequence[str] = ()
    secrets: Literal["file", "env", "keep"] = "file"
    no_browser: bool = False
    timeout: float = 300.0
    verbose: int = 0
    quiet: bool = False


class _Page(HelpFormatter):
    """Help as wide as the terminal; argparse would import `shutil` to measure it, once per command."""

    def __init__(self, prog: str, **settings: Any) -> None:
        super().__init__(prog, **{"width": columns_of(sys.__stdout__) - 2, **settings})

    def _get_help_string(self, action: Action) -> str:
        return help_of(action)


class Parser(ArgumentParser):
    """A parser without abbreviations that raises `LaunchError`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(allow_abbrev=False, add_help=False, formatter_class=_Page, **settings)
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    @property
    def actions(self) -> list[Action]:
        """Return its arguments and options, without the choice of a command."""
        return [action for action in self._actions if action.metavar != "COMMAND"]

    def add_all(self, arguments: Sequence[Argument]) -> None:
        """Add arguments and options."""
        for argument in arguments:
            self.add_argument(*argument.names, **argument.settings)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line.

        Raises:
            LaunchError: Always.
        """
        ending = "" if message.endswith((".", "?")) else "."
        raise LaunchError(f"{message[:1].upper()}{message[1:]}{ending} See '{self.prog} --help'.")

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


def make_parsers(command: str = "") -> tuple[Parser, Mapping[str, Parser]]:
    """Return the parser of the program and those of all commands, or of one, by name."""
    program = Parser(prog="callyard", description="Every tool an agent uses, behind one dispatcher.")
    program.add_argument("--version", action="version", version=f"callyard {VERSION}", help="show the version and exit")
    program.add_all(VOLUME)
    subparsers = program.add_subparsers(title="commands", metavar="COMMAND", prog=program.prog)
    commands: dict[str, Parser] = {}
    for name in [command] if command else COMMANDS:
        text = COMMANDS[name].text
        commands[name] = subparsers.add_parser(name, help=text, description=f"{text[:1].upper()}{text[1:]}.")
        commands[name].add_all((*ARGUMENTS.get(name, ()), *VOLUME))
    return program, commands


def read_options(arguments: Sequence[str]) -> Options:
    """Parse a command line; the command is empty if there is none.

    Raises:
        LaunchError: The command line is wrong.
        SystemExit: Help or the version was printed.
    """
    program, commands = make_parsers(arguments[0] if arguments and arguments[0] in COMMANDS else "")
    position = next((number for number, text in enumerate(arguments) if not text.startswith("-")), len(arguments))
    options, extras = program.parse_known_args(arguments[:position], Options())
    program.refuse_unknown(extras)
    if position == len(arguments):
        return options
    options.command = arguments[position]
    parser = commands.get(options.command)
    if parser is None:
        program.error(f"There is no command '{options.command}'.{did_you_mean(options.command, list(commands))}")
    own = list(arguments[position + 1 :])
    if options.command in TAKE_PROGRAM and "--" in own:
        end = own.index("--")
        own, options.program = own[:end], own[end + 1 :]
    switch = next((action for action in parser.actions if ALLOW_EVAL in action.option_strings), None)
    targets = [text for text in own if switch is not None and text.startswith(f"{ALLOW_EVAL}=")]
    options, extras = parser.parse_known_intermixed_args([text for text in own if text not in targets], options)
    parser.refuse_unknown(extras)
    if switch is not None and targets:
        setattr(options, switch.dest, targets[-1].partition("=")[2])
    if options.quiet and options.verbose:
        parser.error("'--quiet' and '--verbose' contradict each other")
    if options.json and options.markdown:
        parser.error("'--json' and '--markdown' contradict each other")
    given = vars(options).items()
    options.settings = {key.removeprefix(SETTING): value for key, value in given if key.startswith(SETTING)}
    return options


def help_of(action: Action) -> str:
    """Return what an argument or option does; that of a setting is its description."""
    if not action.dest.startswith(SETTING):
        return str(action.help)
    from callyard.config.settings import known_settings  # noqa: PLC0415 - 'version' and '--help' start without msgspec

    setting = known_settings()[action.dest.removeprefix(SETTING)]
    meaning = setting.meaning.removesuffix(".")
    if not meaning[:2].isupper():
        meaning = f"{meaning[:1].lower()}{meaning[1:]}"
    if not setting.default or "default" in meaning:
        return meaning
    default = setting.default
    if isinstance(default, tuple):
        default = ",".join(cast("tuple[str, ...]", default))
    elif isinstance(default, float):
        default = f"{default:g}"
    return f"{meaning} (default: {'on' if default is True else default})"
