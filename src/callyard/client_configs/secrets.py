"""Secrets in upstream tables: recognised by name and form, masked for display, and moved out of the table."""

import errno
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from callyard._internal.files import write_once
from callyard._internal.mask import FORMS, is_secret_name
from callyard.config.convert import Table

__all__ = [
    "MASK",
    "REFERENCE",
    "Extracted",
    "SecretStorage",
    "extract_secrets",
    "is_secret",
    "mask_excerpt",
    "mask_table",
    "store_secrets",
]

MASK: Final = "…"

REFERENCE: Final = re.compile(r"\$\{[^{}]*\}|secretref:\S+")
"""A reference to a variable or a secret elsewhere."""

SecretStorage = Literal["file", "env", "keep"]
"""Where secrets go: into files of their own, into environment variables, or nowhere else."""

_LONG: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+/=-]{32,}")
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")
_IN_QUERY: Final = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s]+)")
_FLAG: Final = re.compile(r"--?[\w-]+")
_NAMED: Final = re.compile(r"""(?:^|(?<=[\s"',;=]))(?!secretref:)(?P<name>[\w.-]+)\\?["']?\s*[:=](?!//)\s*\\?["']?""")
"""A name before a value: `TOKEN=…`, `--env=TOKEN=…`, `Authorization: …`, or a member of an object."""
_QUOTED: Final = re.compile(
    r"""(?P<before>(?:["']?(?P<name>[\w.-]+)["']?\s*[:=]\s*)?)(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"""
)

Replace = Callable[[str, str], str]
"""Returns the replacement of a secret; the second argument names its position."""


class Extracted(NamedTuple):
    """A table that refers to its secrets, and the secrets by file, variable or position."""

    table: Table
    secrets: dict[str, str]


def is_secret(name: str, text: str) -> bool:
    """Return whether a text is probably a secret, by its name and form; a reference to one is not."""
    if not text or REFERENCE.search(text):
        return False
    return bool(is_secret_name(name) or re.match(FORMS, text) or _LONG.fullmatch(text))


def mask_table(table: Table) -> Table:
    """Return a table for display, with all values of variables and headers masked."""
    shown = _replaced(table, _mask)
    return {**shown, **{field: dict.fromkeys(shown[field], MASK) for field in ("env", "headers") if field in shown}}


def mask_excerpt(text: str) -> str:
    """Return a piece of a file for display, with every quoted string that is probably a secret masked."""
    flag = ""

    def mask(match: re.Match[str]) -> str:
        nonlocal flag
        inner, name, before = match["text"], match["name"], flag
        flag = "" if name else _flag(inner)
        if name:
            shown = _value(name, inner, position="", replace=_mask)
        else:
            shown = _argument(before, inner, position="", replace=_mask)
        return f"{match['before']}{match['quote']}{shown}{match['quote']}"

    return _QUOTED.sub(mask, text)


def extract_secrets(
    name: str, table: Table, *, storage: SecretStorage, folder: Path, variables: dict[str, str]
) -> Extracted:
    """Move the secrets out of a table; `variables` holds the variables used so far, and gets the new ones."""
    secrets: dict[str, str] = {}

    def refer(text: str, position: str) -> str:
        if storage == "file":
            file = _free_file(folder / (f"{name}." + re.sub(r"[^\w-]", "_", position)), text, secrets)
            secrets[str(file)] = text
            return f"${{secretref:file:{_from_home(file)}}}"
        variable = _variable(name, position, text, variables)
        secrets[variable] = variables[variable] = text
        return f"${{{variable}}}"

    if storage == "keep":
        _replaced(table, lambda text, position: secrets.setdefault(position, text))
        return Extracted(table, secrets)
    return Extracted(_replaced(table, refer), secrets)


def store_secrets(secrets: dict[str, str]) -> None:
    """Write each secret to its private file; a file with another secret is never replaced.

    Raises:
        OSError: One cannot be written.
    """
    for file, text in secrets.items():
        if write_once(Path(file), text.encode()) != text.encode():
            raise FileExistsError(errno.EEXIST, "It holds another secret", file)


def _free_file(file: Path, text: str, secrets: Mapping[str, str]) -> Path:
    """Return the file, or one with a number behind its name if it holds another secret."""
    for path in (file, *(file.with_name(f"{file.name}-{number}") for number in range(2, 1000))):
        try:
            known = secrets.get(str(path)) or path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return path
        except (OSError, UnicodeDecodeError):
            continue
        if known == text:
            return path
    return file  # writing it is refused


def _from_home(file: Path) -> str:
    """Return a path below the home directory with '~', so that it says nothing about the machine."""
    with suppress(RuntimeError, ValueError):
        return str("~" / file.relative_to(Path.home()))
    return str(file)


def _mask(_text: str, _position: str) -> str:
    return MASK


def _replaced(table: Table, replace: Replace) -> Table:
    replaced = dict(table)
    for field in ("env", "headers"):
        if isinstance(replaced.get(field), dict):
            texts = cast("dict[str, Any]", replaced[field])
            replaced[field] = {key: _value(key, text, position=key, replace=replace) for key, text in texts.items()}
    if isinstance(replaced.get("args"), list):
        flags = ["", *map(_flag, replaced["args"])]
        replaced["args"] = [
            _argument(flags[number], argument, position=f"args-{number}", replace=replace)
            for number, argument in enumerate(replaced["args"])
        ]
    if isinstance(replaced.get("url"), str):
        replaced["url"] = _without_credentials(replaced["url"], "url", replace)
    return replaced


def _argument(before: str, argument: Any, *, position: str, replace: Replace) -> Any:
    if _flag(argument):
        return argument
    is_option = isinstance(argument, str) and argument.startswith("-")
    return _value("" if is_option else before, argument, position=position, replace=replace)


def _flag(argument: Any) -> str:
    """Return an argument if it is a flag, which may name the next argument."""
    return argument if isinstance(argument, str) and _FLAG.fullmatch(argument) else ""


def _value(name: str, text: Any, *, position: str, replace: Replace) -> Any:
    """Return a value without secrets: all of it, the part after a secret's name, or credentials in URLs."""
    if not isinstance(text, str):
        return text
    if is_secret(name, text):
        return replace(text, position)
    for match in _NAMED.finditer(text):
        secret = text[match.end() :].rstrip()
        if is_secret(match["name"], secret):
            start, rest = text[: match.end()], text[match.end() + len(secret) :]
            masked = replace(secret, f"{position}-{match['name'].lstrip('-')}")
            return f"{_without_credentials(start, position, replace)}{masked}{rest}"
    return _without_credentials(text, position, replace)


def _without_credentials(text: str, position: str, replace: Replace) -> str:
    """Return a URL without the user information and the secrets in its query."""

    def in_query(match: re.Match[str]) -> str:
        name, secret = match[1], match[2]
        return f"{name}={replace(secret, f'{position}-{name}')}" if is_secret(name, secret) else match[0]

    if "://" not in text:
        return text
    without_user = _IN_ADDRESS.sub(
        lambda match: match[0] if REFERENCE.search(match[0]) else replace(match[0], f"{position}-user"), text
    )
    return _IN_QUERY.sub(in_query, without_user)


def _variable(name: str, position: str, text: str, variables: dict[str, str]) -> str:
    short, full = (re.sub(r"\W", "_", part).upper() for part in (position, f"{name}_{position}"))
    is_variable = re.fullmatch(r"[A-Za-z_]\w*", position) is not None and variables.get(position, text) == text
    if is_variable and position == short:
        return position
    return full if full[:1].isalpha() else f"_{full}"
