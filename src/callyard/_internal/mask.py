"""Masks secrets in what people read: log lines, states of upstreams, cards of approvals, settings.

A secret is recognised by the name in front of it, by its form, or because its value is known. It is a net, not a proof:
what must not be read at all stays out of a text in the first place. Patterns are texts, which `re` compiles when they
are first used: all of them take 8 ms, and most processes mask nothing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

__all__ = [
    "FORMS",
    "MASK",
    "configured_secrets",
    "is_secret_name",
    "mask_arguments",
    "mask_known",
    "mask_text",
    "mask_url",
    "mask_values",
    "remember_secret",
    "secrets_in",
]

MASK: Final = "***"
_NAMES: Final = (
    r"(?i)token(?!s)|secret|passw|passphrase|api[_-]?key|access[_-]?key|private[_-]?key|credential"
    r"|auth(?!or(?!i[sz]))|cookie"
    r"|(?:^|[_-])(?:key|pat|pwd|pass|dsn|pin)(?:$|[_-])"
)
FORMS: Final = (
    r"(?:sk|pk|rk)[-_]\w|gh[opsur]_\w|github_pat_|glpat-|xox[a-z]-|ya29\.|AKIA[0-9A-Z]|AIza\w"
    r"|eyJ[\w-]{8,}\.|hf_\w|npm_\w|pypi-|ntn_|lin_api_|figd_|tvly-"
    r"|(?:Bearer|Basic)\s+\S"
)
"""How the credentials of well-known services begin."""
_KEY: Final = r"-----BEGIN [A-Z ]*PRIVATE KEY-----(?s:.*?)(?:-----END [A-Z ]*-----|\Z)"
_USER: Final = r"(?<=://)[^/?#@\s]+(?=@)"
_SCHEME: Final = r"(?<=\bBearer )\S{6,}|(?<=\bBasic )(?=\S*[\d=])\S{6,}"
_LONG_WORD: Final = r"[\w.+-]{12,}"
_FORM: Final = (
    r"(?:sk|pk|rk)[-_](?=[\w-]*\d)|(?:gh[opsur]_|github_pat_|glpat-|xox[a-z]-|ntn_|lin_api_|figd_|tvly-"
    r"|hf_|npm_|pypi-|cy_)[\w-]{8,}"
    r"|ya29\.|AKIA[0-9A-Z]{8}|AIza[\w-]{8}|eyJ[\w-]{8,}\.|(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)[\w+-]{32,}\Z"
)
"""Words that look like secrets: keys of well-known services, tokens, and long mixes of letters and digits."""
_HINT: Final = r"(?i)tok|sec|pass|key|cred|auth|cook|pat|pwd|dsn|pin"
"""A part of every name of a secret: most texts have none, and need no closer look."""
_NAMED: Final = r"""(?<![\w.-])([\w.-]{1,64})\\?["']?\s{0,3}[:=]\s{0,3}(\\?["']?)(?![/\s])"""
"""A name in front of a value: `TOKEN=…`, `?token=…`, `Authorization: …`, or a member of an object."""
_WORD: Final = r"""[^\s"',;&)}\]\\]+"""
_LINE: Final = r"""[^\r\n"']+"""
_SHORTEST: Final = 4
"""A shorter value hides nothing: it is found in every other word."""
_SHORTEST_UNNAMED: Final = 8
_PLAIN: Final = r"[A-Za-z ]*\Z|[\d.]*\Z|[~./]|[a-z+]+://[^@?]*\Z"
"""Values that are no secrets unless their name says so: words, numbers, paths, and URLs without credentials."""
_MAX_DEPTH: Final = 100
_COMMON: Final = frozenset({"key", "pat", "pin"})
"""Names that say nothing alone: a key may be that of an object, and a pin a mode.

Their values are secrets if they look like one.
"""
_RANDOM: Final = (
    r"(?=[^a-zA-Z]*[a-zA-Z])(?=\D*\d)[\w+=~-]{20,}\Z|(?=[^a-z]*[a-z])(?=[^A-Z]*[A-Z])(?=\D*\d)[A-Za-z\d+/]{32,}={0,2}\Z"
)
_PIN: Final = r"\d{4,}\Z"


_configured: Final[set[str]] = set()


def remember_secret(value: str) -> None:
    """Take note of a secret of the configuration, which nobody who approves a call may read."""
    if len(value) >= _SHORTEST_UNNAMED:
        _configured.add(value)


def configured_secrets() -> frozenset[str]:
    """Return the secrets of the configurations that this process read."""
    return frozenset(_configured)


def is_secret_name(name: str) -> bool:
    """Return whether a field, variable, header or flag of this name probably holds a secret."""
    return re.search(_NAMES, name) is not None


def mask_text(text: str, known: Iterable[str] = ()) -> str:
    """Return a text with secrets masked.

    Masks known values, values with the name of a secret, and words that look like one.
    """
    for value in sorted(known, key=len, reverse=True):
        if len(value) >= _SHORTEST and value in text:
            text = text.replace(value, MASK)
    if ("=" in text or ":" in text) and re.search(_HINT, text) is not None:
        text = _mask_named(text)
    if "PRIVATE KEY" in text:
        text = re.sub(_KEY, MASK, text)
    if "://" in text:
        text = re.sub(_USER, MASK, text)
    if "Bearer " in text or "Basic " in text:
        text = re.sub(_SCHEME, MASK, text)
    return re.sub(_LONG_WORD, _mask_word, text)


def _mask_word(match: re.Match[str]) -> str:
    return MASK if re.match(_FORM, match[0]) else match[0]


def _mask_named(text: str) -> str:
    pieces: list[str] = []
    end = 0
    for match in re.finditer(_NAMED, text):
        start = match.end()
        if start <= end or not is_secret_name(match[1]):
            continue
        is_header = match[1].lower() in {"authorization", "cookie", "set-cookie"}
        value = _value_end(text, start, match[2], is_header=is_header)
        if value > start and _is_secret(match[1], text[start:value]):
            pieces += (text[end:start], MASK)
            end = value
    return "".join((*pieces, text[end:])) if pieces else text


def _is_secret(name: str, value: object) -> bool:
    """Return whether a name says that its value is a secret, or says it together with the value."""
    common = name.lower()
    if common not in _COMMON:
        return is_secret_name(name)
    if isinstance(value, list):
        return any(_is_secret(name, item) for item in cast("list[object]", value))
    return re.match(_PIN if common == "pin" else _RANDOM, str(value)) is not None


def _value_end(text: str, start: int, quote: str, *, is_header: bool) -> int:
    if len(quote) > 1:  # an escaped one, within another text
        closing = text.find(quote, start)
        return len(text) if closing < 0 else closing
    form = _LINE if is_header else _WORD
    if quote:
        form = rf"(?:\\.|[^{quote}\\])*"
    found = re.compile(form).match(text, start)
    return start if found is None else found.end()


def mask_values(value: Any, depth: int = 0) -> Any:
    """Return JSON data with secrets masked, by field name and by form.

    Values below a hundred levels are cut.
    """
    if isinstance(value, dict):
        return {
            key: MASK if item and _is_secret(str(key), item) else mask_values(item, depth + 1)
            for key, item in cast("dict[str, Any]", value).items()
        }
    if isinstance(value, list):
        return "…" if depth >= _MAX_DEPTH else [mask_values(item, depth + 1) for item in cast("list[Any]", value)]
    return mask_text(value) if isinstance(value, str) else value


def mask_known(value: Any, known: Iterable[str]) -> Any:
    """Return JSON data with secrets masked in its texts: known values, and what looks like a secret."""
    if isinstance(value, dict):
        return {key: mask_known(item, known) for key, item in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [mask_known(item, known) for item in cast("list[Any]", value)]
    return mask_text(value, known) if isinstance(value, str) else value


def mask_arguments(arguments: Iterable[str]) -> list[str]:
    """Return the arguments of a program with secrets masked.

    Masks the value after a flag with the name of a secret, the value in `NAME=value`, and words that look like a
    secret.
    """
    shown: list[str] = []
    is_named = False
    for argument in arguments:
        is_flag = argument.startswith("-")
        shown.append(MASK if is_named and not is_flag else mask_text(argument))
        is_named = is_flag and "=" not in argument and is_secret_name(argument.lstrip("-"))
    return shown


def mask_url(url: str, *, keeps_path: bool = True) -> str:
    """Return a URL without user information and without secrets in its query.

    The path is masked on demand, because it may be a secret, too.
    """
    scheme, separator, rest = url.partition("://")
    if not separator or keeps_path:
        return mask_text(url)
    host = re.split(r"[/?#]", rest, maxsplit=1)[0].rpartition("@")[2]
    return f"{scheme}://{host}" + (f"/{MASK}" if len(rest) > len(host) + 1 else "")


def secrets_in(named: Mapping[str, str]) -> set[str]:
    """Return the values of variables or headers that must not be read, with the parts that may be quoted alone."""
    found: set[str] = set()
    for name, value in named.items():
        if is_secret_name(name) or (len(value) >= _SHORTEST_UNNAMED and not re.match(_PLAIN, value)):
            found |= {value, value.rpartition(" ")[2]}  # of 'Bearer x', also the 'x'
            password = re.search(r"://[^/?#@\s]*:([^/?#@\s]+)@", value)
            found |= {password[1]} if password else set()
    return {value for value in found if len(value) >= _SHORTEST}
