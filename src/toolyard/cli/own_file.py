"""The file of this yard, as commands change it: 'toolyard.toml' as text, its upstreams, and where secrets of theirs are kept."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.clients.documents import decode, parse, read_bytes
from toolyard.clients.files import rewrite
from toolyard.clients.secrets import Keeping, store_secrets
from toolyard.config import ConfigError, read_config
from toolyard.config.fitting import Table
from toolyard.config.reading import FILE, VARIABLE
from toolyard.config.upstreams import UPSTREAMS
from toolyard.state_dir import find_state_dir

__all__ = ["OwnFile", "read_own_file", "write_own_file"]


class OwnFile(NamedTuple):
    """The file, its text, the upstreams in it and the folder of their secrets."""

    path: Path
    text: str
    upstreams: Mapping[str, Table]
    secrets: Path


def read_own_file(named: str | None) -> OwnFile:
    """Read the file that is named, or the usual one; it need not be there.

    Raises:
        CommandError: It is wrong.
    """
    path = Path(named or os.environ.get(VARIABLE) or FILE)
    if path.suffix != ".toml":
        raise CommandError(f"'{path}' is no '.toml' file.")
    try:
        content = read_bytes(path)
        state = find_state_dir(None if content is None else read_config(path=str(path)).settings.state_dir)
        text = decode(content or b"", path)
        document = cast("dict[str, Any]", parse(text, path))
    except ConfigError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"There is no place to keep secrets: {error.strerror}. Name one with 'state_dir'.") from error
    return OwnFile(path, text, document.get(UPSTREAMS, {}), state / "secrets")


def write_own_file(own: OwnFile, text: str, *, secrets: dict[str, str], keeping: Keeping) -> None:
    """Write the file, and secrets to files of their own if they are kept so; a file that has secrets in it becomes private.

    Raises:
        CommandError: Something cannot be written.
    """
    try:
        if keeping == "file":
            store_secrets(secrets)
        rewrite(own.path, text.encode(), private=keeping == "keep" and bool(secrets))
    except OSError as error:
        raise CommandError(f"'{error.filename or own.path}' cannot be written: {error.strerror}.", status=DEFECT) from error
