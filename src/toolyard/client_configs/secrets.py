"""Secrets in tables of upstreams: recognised by their names and looks, hidden when shown, and put where few can read them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from toolyard._internal.files import write_atomically
from toolyard.config.convert import Table

__all__ = ["HIDDEN", "REFERENCE", "Keeping", "Kept", "hidden", "hidden_text", "is_secret", "keep_secrets", "store_secrets"]

HIDDEN: Final = "…"
"""What is shown in place of a secret."""

REFERENCE: Final = re.compile(r"\$\{[^{}]*\}|secretref:\S+")
"""What stands in a text for something that is looked up elsewhere."""

Keeping = Literal["file", "env", "keep"]
"""Where secrets go: into files of their own, into variables that somebody sets, or nowhere else."""

_NAMES: Final = re.compile(
    r"token|secret|passw|api[_-]?key|apikey|access[_-]?key|private[_-]?key|credential|auth|cookie|(?:^|[_-])(?:key|pat|pwd|pass|dsn)(?:$|[_-])",
    re.IGNORECASE,
)
_LOOKS: Final = re.compile(
    r"(?:sk|pk|rk)[-_]\w|gh[opsur]_\w|github_pat_|glpat-|xox[a-z]-|ya29\.|AKIA[0-9A-Z]|AIza\w|eyJ[\w-]{8,}\.|hf_\w|npm_\w|pypi-|ntn_|lin_api_|figd_|tvly-"
    r"|(?:Bearer|Basic)\s+\S"
)
_LONG: Final = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[A-Za-z0-9_+/=-]{32,}")
_IN_ADDRESS: Final = re.compile(r"(?<=://)[^/?#@\s]+(?=@)")
_IN_QUERY: Final = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s]+)")
_FLAG: Final = re.compile(r"--?[\w-]+")
_NAMED: Final = re.compile(r"""(?:^|(?<=[\s"',;=]))(?!secretref:)(?P<name>[\w.-]+)\\?["']?\s*[:=](?!//)\s*\\?["']?""")
"""A name in front of a value within a text: `TOKEN=…`, `--env=TOKEN=…`, `Authorization: …`, or a member of an object."""
_QUOTED: Final = re.compile(
    r"""(?P<before>(?:["']?(?P<name>[\w.-]+)["']?\s*[:=]\s*)?)(?P<quote>["'])(?P<text>(?:\\.|(?!(?P=quote)).)*)(?P=quote)"""
)

Hide = Callable[[str, str], str]
"""From a secret and a word for where it stood to what stands there instead."""


class Kept(NamedTuple):
    """A table without its secrets, and those by the words for where they stood."""

    table: Table
    secrets: dict[str, str]


def is_secret(name: str, text: str) -> bool:
    """Return whether a text is probably secret, by its name and its looks; one that refers to a secret is none."""
    if not text or REFERENCE.search(text):
        return False
    return bool(_NAMES.search(name) or _LOOKS.match(text) or _LONG.fullmatch(text))


def hidden(table: Table) -> Table:
    """Return a table as it may be shown, with nothing of variables and headers but their names."""
    shown = _replaced(table, _hide)
    return {**shown, **{field: dict.fromkeys(shown[field], HIDDEN) for field in ("env", "headers") if field in shown}}


def hidden_text(text: str) -> str:
    """Return a piece of a file as it may be shown, with every text in quotes that is probably secret hidden."""
    flag = ""

    def hide(found: re.Match[str]) -> str:
        nonlocal flag
        inner, name, before = found["text"], found["name"], flag
        flag = "" if name else _flag(inner)
        shown = _value(name, inner, word="", hide=_hide) if name else _argument(before, inner, word="", hide=_hide)
        return f"{found['before']}{found['quote']}{shown}{found['quote']}"

    return _QUOTED.sub(hide, text)


def keep_secrets(name: str, table: Table, *, keeping: Keeping, folder: Path, taken: dict[str, str]) -> Kept:
    """Return a table that refers to its secrets; `taken` has the variables that are used already, and gets those that are now."""
    secrets: dict[str, str] = {}

    def refer(text: str, word: str) -> str:
        if keeping == "file":
            file = folder / f"{name}.{_safe(word)}"
            secrets[str(file)] = text
            return f"${{secretref:file:{file}}}"
        variable = _variable(name, word, text, taken)
        secrets[variable] = taken[variable] = text
        return f"${{{variable}}}"

    if keeping == "keep":
        _replaced(table, lambda text, word: secrets.setdefault(word, text))
        return Kept(table, secrets)
    return Kept(_replaced(table, refer), secrets)


def store_secrets(secrets: dict[str, str]) -> None:
    """Write each secret to its file, which its owner alone may read.

    Raises:
        OSError: One cannot be written.
    """
    for file, text in secrets.items():
        write_atomically(Path(file), text.encode())


def _hide(_text: str, _word: str) -> str:
    return HIDDEN


def _replaced(table: Table, hide: Hide) -> Table:
    found = dict(table)
    for field in ("env", "headers"):
        if isinstance(found.get(field), dict):
            texts = cast("dict[str, Any]", found[field])
            found[field] = {key: _value(key, text, word=key, hide=hide) for key, text in texts.items()}
    if isinstance(found.get("args"), list):
        found["args"] = list(_arguments(found["args"], hide))
    if isinstance(found.get("url"), str):
        found["url"] = _without_credentials(found["url"], "url", hide)
    return found


def _arguments(arguments: list[Any], hide: Hide) -> Iterator[Any]:
    before = ""
    for number, argument in enumerate(arguments):
        yield _argument(before, argument, word=f"args-{number}", hide=hide)
        before = _flag(argument)


def _argument(before: str, argument: Any, *, word: str, hide: Hide) -> Any:
    if _flag(argument):
        return argument
    is_option = isinstance(argument, str) and argument.startswith("-")
    return _value("" if is_option else before, argument, word=word, hide=hide)


def _flag(argument: Any) -> str:
    """Return an argument that may name the next one, or nothing if it is none."""
    return argument if isinstance(argument, str) and _FLAG.fullmatch(argument) else ""


def _value(name: str, text: Any, *, word: str, hide: Hide) -> Any:
    """Return a value without what is secret: all of it, or all behind the first name in it that says so, and credentials in addresses."""
    if not isinstance(text, str):
        return text
    if is_secret(name, text):
        return hide(text, word)
    for found in _NAMED.finditer(text):
        secret = text[found.end() :].rstrip()
        if is_secret(found["name"], secret):
            start, rest = text[: found.end()], text[found.end() + len(secret) :]
            return _without_credentials(start, word, hide) + hide(secret, f"{word}-{found['name'].lstrip('-')}") + rest
    return _without_credentials(text, word, hide)


def _without_credentials(text: str, word: str, hide: Hide) -> str:
    """Return an address without the password in front of its host and the secrets behind its '?'."""

    def in_query(found: re.Match[str]) -> str:
        return f"{found[1]}={hide(found[2], f'{word}-{found[1]}')}" if is_secret(found[1], found[2]) else found[0]

    if "://" not in text:
        return text
    plain = _IN_ADDRESS.sub(lambda found: found[0] if REFERENCE.search(found[0]) else hide(found[0], f"{word}-user"), text)
    return _IN_QUERY.sub(in_query, plain)


def _safe(word: str) -> str:
    return re.sub(r"[^\w-]", "_", word)


def _variable(name: str, word: str, text: str, taken: dict[str, str]) -> str:
    plain, whole = (re.sub(r"\W", "_", part).upper() for part in (word, f"{name}_{word}"))
    is_variable = re.fullmatch(r"[A-Za-z_]\w*", word) is not None and taken.get(word, text) == text
    if is_variable and word == plain:
        return word
    return whole if whole[:1].isalpha() else f"_{whole}"
