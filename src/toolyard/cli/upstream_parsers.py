"""The parsers of the commands about one upstream: start it anew, read its log, sign in and out."""

from argparse import ArgumentTypeError
from math import inf
from types import MappingProxyType
from typing import Final

from toolyard.cli.parsing import CONFIG, Commands, Parser

__all__ = ["ONE_UPSTREAM"]


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
