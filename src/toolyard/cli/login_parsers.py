"""The parsers of the commands that sign in at upstreams, and out again."""

from argparse import ArgumentTypeError
from collections.abc import Callable

from toolyard.cli.parsing import Parser

__all__ = ["add_signing"]

_CONFIG = "the file to read settings from (default: 'toolyard.toml', if it is there)"


def add_signing(add: Callable[[str, str], Parser]) -> None:
    """Add the parsers of `login` and `logout`."""
    login = add("login", "sign in at an upstream, in a browser")
    for parser in (login, add("logout", "forget a login at an upstream, and have it revoked")):
        parser.add_argument("name", metavar="NAME", help="the upstream, or its address")
        parser.add_argument("--config", metavar="FILE", help=_CONFIG)
    login.add_argument("--no-browser", action="store_true", help="open no browser, only print the address")
    login.add_argument("--timeout", metavar="SECONDS", type=_seconds, default=300.0, help="how long to wait (default: 300)")


def _seconds(text: str) -> float:
    if not text.isdecimal() or not int(text):
        raise ArgumentTypeError(f"'{text}' is not a number of seconds.")
    return float(text)
