"""The tokens of JavaScript code: cuts code into them and refuses what could be read in two ways.

It knows no rules about what code may do.
"""

import re
from typing import Final, NamedTuple

from callyard.model.names import words_in

__all__ = ["CONDITIONS", "MAX_DEPTH", "RefusedError", "Token", "javascript_tokens"]


class RefusedError(Exception):
    """The code breaks a rule, which is the message."""


class Token(NamedTuple):
    """A token, with the text of a string or template as the program sees it."""

    kind: str
    """`name`, `number`, `string`, `template`, `regex`, `mark` or `end`."""
    text: str
    """The text; of a string or template its value."""
    newline: bool = False
    """Whether a line ends before it."""


_NEWLINES: Final = "\n\r\u2028\u2029"
_NEWLINE: Final = re.compile("[\n\r\u2028\u2029]")
_SPACES: Final = re.compile("[ \t\v\f\u00a0\ufeff]+")
_FLAGS: Final = re.compile(r"\w*")
_ESCAPE: Final = re.compile(r"u\{([\da-fA-F]{1,6})\}|u([\da-fA-F]{4})|x([\da-fA-F]{2})|([0-7]{1,3})|\r\n|[\s\S]")
_PLAIN: Final = re.compile(r"""[^\\'"`$\n\r]+""")
"""Characters that mean themselves in every kind of text."""
_NAME: Final = re.compile(r"[#@]?[^\W\d][\w$]*|[#@]?\$[\w$]*")
_NUMBER: Final = re.compile(r"0[xXbBoO][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?n?")
_MARK: Final = re.compile(
    r">>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?"
    r"|\?\.(?!\d)|\+\+|--|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\*\*|[-+*/%&|^!~<>=?:;,.(){}\[\]]"
)
_EXPRESSION_KEYWORDS: Final = words_in("case delete do else in instanceof new return throw typeof void")
_CONTEXTUAL: Final = words_in("of yield await let async static get set")
_SIMPLE_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
CONDITIONS: Final = words_in("if while for with switch")
MAX_DEPTH: Final = 50


def javascript_tokens(text: str) -> list[Token]:
    """Return the tokens of code.

    Raises:
        RefusedError: It could be read in two ways, or does not end.
    """
    scanner = _Scanner(text)
    scanner.scan()
    return scanner.tokens


class _Scanner:
    """Cuts code into tokens; what could be read in two ways is refused."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._newline = False
        self._openers: list[bool] = []
        """For each open '(', whether it belongs to a condition, after which a pattern may follow."""
        self._after_condition = False
        self.tokens: list[Token] = []

    def scan(self, depth: int = 0) -> None:
        """Read tokens to the end, or to the '}' that ends a part of a template."""
        if depth > MAX_DEPTH:
            raise RefusedError("templates that are nested too deep")
        braces = 0
        while self._skip_space():
            character = self._text[self._at]
            if character == "}" and depth and not braces:
                return
            braces += {"{": 1, "}": -1}.get(character, 0)
            self._token(character, depth)
        if depth:
            raise RefusedError("code that does not parse")

    def _add(self, kind: str, text: str) -> None:
        self.tokens.append(Token(kind, text, self._newline))
        self._newline = False

    def _skip_space(self) -> bool:
        """Skip white space and comments; return whether code follows."""
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            if character in _NEWLINES:
                self._newline = True
                self._at += 1
            elif spaces := _SPACES.match(text, self._at):
                self._at = spaces.end()
            elif text.startswith("//", self._at):
                newline = _NEWLINE.search(text, self._at)
                self._at = newline.start() if newline else len(text)
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at + 2)
                if end < 0:
                    raise RefusedError("a comment without end")
                self._newline = self._newline or _NEWLINE.search(text, self._at, end) is not None
                self._at = end + 2
            else:
                return True
        return False

    def _token(self, character: str, depth: int) -> None:
        text = self._text
        if character in "\"'":
            self._string(character)
        elif character == "`":
            self._template(depth)
        elif text.startswith(("<!--", "-->", "#!"), self._at):
            raise RefusedError("a comment of HTML")
        elif character == "/" and self._pattern_may_follow():
            self._regex()
        elif name := _NAME.match(text, self._at):
            self._take("name", name[0])
        elif number := _NUMBER.match(text, self._at):
            self._take("number", number[0])
        elif mark := _MARK.match(text, self._at):
            self._mark(mark[0])
        else:
            raise RefusedError("a character that is not allowed")

    def _take(self, kind: str, text: str) -> None:
        self._at += len(text)
        self._add(kind, text)

    def _mark(self, mark: str) -> None:
        if mark == "(":
            is_property = len(self.tokens) > 1 and self.tokens[-2].text in {".", "?."}
            before = self.tokens[-1].text if self.tokens else ""
            self._openers.append(before in CONDITIONS and self.tokens[-1].kind == "name" and not is_property)
        elif mark == ")":
            self._after_condition = bool(self._openers) and self._openers.pop()
        self._take("mark", mark)

    def _pattern_may_follow(self) -> bool:
        """Return whether a '/' begins a pattern here and is no division."""
        if not self.tokens:
            return True
        kind, text, _ = self.tokens[-1]
        if kind == "name":
            if len(self.tokens) > 1 and self.tokens[-2].text in {".", "?."}:
                return False
            if text in _CONTEXTUAL:
                raise RefusedError("a '/' that could be two things")
            return text in _EXPRESSION_KEYWORDS
        if kind != "mark" or text == "]":
            return False
        if text in {"}", "++", "--"}:
            raise RefusedError("a '/' that could be two things")
        return self._after_condition if text == ")" else True

    def _regex(self) -> None:
        start, in_class = self._at, False
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            if character in _NEWLINES:
                break
            self._at += 2 if character == "\\" else 1
            if character == "\\" and self._text[self._at - 1 : self._at] in _NEWLINES:
                break
            if character == "/" and not in_class:
                flags = _FLAGS.match(self._text, self._at)
                self._at = flags.end() if flags else self._at
                self._add("regex", self._text[start : self._at])
                return
            in_class = character == "[" or (in_class and character != "]")
        raise RefusedError("a pattern without end")

    def _string(self, quote: str) -> None:
        value: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            if plain := _PLAIN.match(self._text, self._at):
                value.append(plain[0])
                self._at = plain.end()
                continue
            character = self._text[self._at]
            self._at += 1
            if character == quote:
                self._add("string", "".join(value))
                return
            if character in "\n\r":
                break
            value.append(self._escape() if character == "\\" else character)
        raise RefusedError("a text without end")

    def _escape(self) -> str:
        """Return the character of an escape."""
        if found := _ESCAPE.match(self._text, self._at):
            self._at = found.end()
            digits = found[1] or found[2] or found[3]
            if digits is not None:
                return chr(min(int(digits, 16), 0x10FFFF))
            if found[4] is not None:
                return chr(int(found[4], 8))
            return "" if found[0][0] in _NEWLINES else _SIMPLE_ESCAPES.get(found[0], found[0])
        raise RefusedError("a text without end")

    def _template(self, depth: int) -> None:
        """Read a template: its text is one token, the code in it follows in parentheses."""
        value: list[str] = []
        parts: list[list[Token]] = []
        newline = self._newline
        outer, openers = self.tokens, self._openers
        self._at += 1
        while self._at < len(self._text):
            if plain := _PLAIN.match(self._text, self._at):
                value.append(plain[0])
                self._at = plain.end()
                continue
            character = self._text[self._at]
            self._at += 1
            if character == "`":
                self.tokens, self._openers = outer, openers
                self.tokens.append(Token("template", "".join(value) if not parts else "\0", newline))
                for part in parts:  # apart from each other, so that a template is neither called nor a key
                    self.tokens += [Token("mark", ";"), Token("mark", "("), *part, Token("mark", ")")]
                if parts:
                    self.tokens += [Token("mark", ";"), Token("template", "\0")]
                self._newline = False
                return
            if character == "$" and self._text.startswith("{", self._at):
                self._at += 1
                self.tokens, self._openers = [], []
                self.scan(depth + 1)
                parts.append(self.tokens)
                self._at += 1
                value.append("\0")
            else:
                value.append(self._escape() if character == "\\" else character)
        raise RefusedError("a text without end")
