"""Parsing: a parser that takes options in full alone and fails with one sentence, and how settings are noted."""

import sys
from argparse import Action, ArgumentParser, BooleanOptionalAction, HelpFormatter, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from toolyard.cli.exits import CommandError
from toolyard.cli.terminal import columns_of

__all__ = ["CONFIG", "Collect", "Commands", "Give", "Parser", "Switch", "did_you_mean"]

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
            CommandError: Always.
        """
        ending = "" if message.endswith((".", "?")) else "."
        sentence = f"{message[:1].upper()}{message[1:]}{ending}"
        raise CommandError(f"{sentence} See '{self.prog} --help'.")

    def refuse_unknown(self, extras: Sequence[str]) -> None:
        """Refuse what no argument and no option took, an option first.

        Raises:
            CommandError: There is something left.
        """
        for extra in sorted(extras, key=lambda extra: not extra.startswith("-")):
            option = extra.partition("=")[0]
            if not option.startswith("-"):
                self.error(f"'{extra}' is one argument too many")
            known = [name for action in self.actions for name in action.option_strings]
            self.error(f"There is no option '{option}'.{did_you_mean(option, known)}")


Commands = Mapping[str, tuple[str, Callable[[Parser], None]]]
"""Commands by name: what each does, and what adds its arguments to its parser."""


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return the question whether a known name was meant, if one is near."""
    from difflib import get_close_matches  # noqa: PLC0415 - most names are right

    near = get_close_matches(name, known, n=1)
    return f" Did you mean '{near[0]}'?" if near else ""
