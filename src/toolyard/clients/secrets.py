"""Secrets in tables of upstreams: recognised by their names and looks, hidden when shown, and put where few can read them."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, cast

from toolyard.config.fitting import Table
from toolyard.state_dir import write_atomically

__all__ = ["HIDDEN", "Keeping", "Kept", "hidden", "hidden_text", "is_secret", "keep_secrets", "store_secrets"]

HIDDEN: Final = "…"
"""What is shown in place of a secret."""

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
_FLAG: Final = re.compile(r"(--?[\w-]+)=(.+)", re.DOTALL)
_REFERENCE: Final = re.compile(r"\$\{[^{}]*\}|secretref:\S+")
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
    if not text or _REFERENCE.search(text):
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
        inner, name = found["text"], found["name"] or flag
        flag = inner if inner.startswith("-") else ""
        (shown,) = _arguments([inner], _hide)
        shown = HIDDEN if not flag and is_secret(name, inner) else shown
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
            found[field] = {key: _value(key, text, hide) for key, text in texts.items()}
    if isinstance(found.get("args"), list):
        found["args"] = list(_arguments(found["args"], hide))
    if isinstance(found.get("url"), str):
        found["url"] = _without_credentials(found["url"], "url", hide)
    return found


def _value(name: str, text: Any, hide: Hide) -> Any:
    if not isinstance(text, str):
        return text
    return hide(text, name) if is_secret(name, text) else _without_credentials(text, name, hide)


def _arguments(arguments: list[Any], hide: Hide) -> Iterator[Any]:
    before = ""
    for number, argument in enumerate(arguments):
        word = f"args-{number}"
        flag = _FLAG.fullmatch(argument) if isinstance(argument, str) else None
        if not isinstance(argument, str) or (argument.startswith("-") and flag is None):
            yield argument
        elif flag is not None:
            yield f"{flag[1]}={hide(flag[2], word) if is_secret(flag[1], flag[2]) else flag[2]}"
        else:
            yield hide(argument, word) if is_secret(before, argument) else _without_credentials(argument, word, hide)
        before = argument if isinstance(argument, str) and argument.startswith("-") else ""


def _without_credentials(text: str, word: str, hide: Hide) -> str:
    """Return an address without the password in front of its host and the secrets behind its '?'."""

    def in_query(found: re.Match[str]) -> str:
        return f"{found[1]}={hide(found[2], f'{word}-{found[1]}')}" if is_secret(found[1], found[2]) else found[0]

    if "://" not in text:
        return text
    plain = _IN_ADDRESS.sub(lambda found: found[0] if _REFERENCE.search(found[0]) else hide(found[0], f"{word}-user"), text)
    return _IN_QUERY.sub(in_query, plain)


def _safe(word: str) -> str:
    return re.sub(r"[^\w-]", "_", word)


def _variable(name: str, word: str, text: str, taken: dict[str, str]) -> str:
    plain, whole = (re.sub(r"\W", "_", part).upper() for part in (word, f"{name}_{word}"))
    is_variable = re.fullmatch(r"[A-Za-z_]\w*", word) is not None and taken.get(word, text) == text
    if is_variable and word == plain:
        return word
    return whole if whole[:1].isalpha() else f"_{whole}"
