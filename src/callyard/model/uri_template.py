"""URI templates: matches a URI against a template and returns the values of its variables.

Of RFC 6570 it supports `{x}`, which ends at the next '/', and `{+x}` and `{x*}`, which may contain '/'.
"""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

__all__ = ["UriTemplate", "check_uri", "variables_of"]

_URI: Final = r"[A-Za-z][A-Za-z0-9+.-]*:[^\s\x00-\x1f\x7f]+\Z"
_EXPRESSION: Final = r"\{([^{}]*)\}"
_VARIABLE: Final = r"(\+?)([A-Za-z_][A-Za-z0-9_]*)(\*?)\Z"
_SEPARATORS: Final = frozenset("/?#")
_MAX_CHARACTERS: Final = 8192


def check_uri(uri: str) -> None:
    """Check that this is a URI or a URI template that can be served.

    Raises:
        ValueError: It is not; the message is the end of a sentence that says why.
    """
    if len(uri) > _MAX_CHARACTERS:
        raise ValueError(f"it has {len(uri)} characters; at most {_MAX_CHARACTERS} are published")
    if not re.match(_URI, uri):
        raise ValueError("it must begin with a scheme such as 'notes://' and hold no blanks")
    if "{" in uri or "}" in uri:
        UriTemplate(uri)


def variables_of(uri: str) -> list[str]:
    """Return the names of the variables in a URI, in order, without those that are invalid."""
    return [match[2] for inner in re.findall(_EXPRESSION, uri) if (match := re.match(_VARIABLE, inner))]


class UriTemplate:
    """A URI with variables, parsed once and matched in time linear in the length of the URI.

    One variable is the middle: the one that may contain '/', else the last. A variable before it ends at the first
    occurrence of the literal that follows it. A variable after it starts at the last occurrence of the literal before
    it. The middle takes the rest.

    Raises:
        ValueError: The template uses an unsupported expression, or its variables are ambiguous.
    """

    def __init__(self, uri: str) -> None:
        parts = re.split(_EXPRESSION, uri)
        literals, variables = parts[::2], [_variable(inner) for inner in parts[1::2]]
        self._names = [name for name, _ in variables]
        _check_unambiguous(literals, self._names)
        wide = [number for number, (_, is_wide) in enumerate(variables) if is_wide]
        if len(wide) > 1:
            raise ValueError("at most one variable may contain '/'")
        middle = wide[0] if wide else len(variables) - 1
        self._narrow = [name for name, is_wide in variables if not is_wide]
        self._first, self._last = literals[0], literals[-1]
        self._left = list(zip(self._names[:middle], literals[1 : middle + 1], strict=True))
        self._middle = self._names[middle]
        self._right = list(zip(self._names[middle + 1 :], literals[middle + 1 : -1], strict=True))
        self.literal_characters = sum(map(len, literals))

    def match(self, uri: str) -> dict[str, str] | None:
        """Return the decoded values of the variables, or None if the URI does not match."""
        start, end = len(self._first), len(uri) - len(self._last)
        if end < start or len(uri) > _MAX_CHARACTERS or not uri.startswith(self._first) or not uri.endswith(self._last):
            return None
        raw: dict[str, str] = {}
        for name, after in self._left:
            found = uri.find(after, start, end)
            if found < 0:
                return None
            raw[name] = uri[start:found]
            start = found + len(after)
        for name, before in reversed(self._right):
            found = uri.rfind(before, start, end)
            if found < 0:
                return None
            raw[name] = uri[found + len(before) : end]
            end = found
        raw[self._middle] = uri[start:end]
        if not all(raw.values()) or any(not _SEPARATORS.isdisjoint(raw[name]) for name in self._narrow):
            return None
        decoded = {name: unquote(raw[name]) for name in self._names}
        # '%2F' is a '/' for the handler, which may use the value as the name of a file
        return None if any("/" in decoded[name] for name in self._narrow) else decoded


def _variable(inner: str) -> tuple[str, bool]:
    """Return the name of a variable and whether it may contain '/'."""
    match = re.match(_VARIABLE, inner)
    if match is None:
        raise ValueError(f"'{{{inner}}}' is not supported; '{{x}}', '{{+x}}' and '{{x*}}' are")
    return match[2], bool(match[1] or match[3])


def _check_unambiguous(literals: Sequence[str], names: Sequence[str]) -> None:
    if any("{" in literal or "}" in literal for literal in literals):
        raise ValueError("a brace in it has no partner")
    if len(set(names)) < len(names):
        raise ValueError("a variable stands in it twice")
    if not all(literals[1:-1]):
        raise ValueError("two variables in it are adjacent and cannot be told apart")
