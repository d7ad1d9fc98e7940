"""The parsers of the commands that bring servers in, and Toolyard into clients."""

from types import MappingProxyType
from typing import Final

from toolyard.cli.parsing import Collect, Commands, Parser

__all__ = ["JOINING"]

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
