"""The rules for JavaScript code of an eval tool: blocked words and constructs outside of its strings and comments."""

import re
from typing import Final

from callyard.model.names import words_in

__all__ = ["javascript_refusal"]

_BLOCKED: Final = words_in(
    "eval Function GeneratorFunction AsyncFunction AsyncGeneratorFunction Reflect Proxy WebAssembly Worker require "
    "SharedWorker serviceWorker ServiceWorker importScripts execScript globalThis global process module exports "
    "child_process mainModule getBuiltinModule Deno Bun callee caller getPrototypeOf setPrototypeOf constructor "
    "getOwnPropertyDescriptor getOwnPropertyDescriptors getOwnPropertyNames getOwnPropertySymbols ownKeys prototype "
    "defineProperty defineProperties ShadowRealm Compartment prepareStackTrace captureStackTrace getThis getFunction "
    "insertAdjacentHTML createContextualFragment setHTMLUnsafe parseHTMLUnsafe srcdoc debugger import export with "
    "runInThisContext runInNewContext runInContext createRequire dlopen setImmediate createAttribute createAttributeNS "
    "setAttributeNode setAttributeNodeNS setNamedItem setNamedItemNS execCommand parseFromString addModule globalEval "
    "getScript executeScript compileFunction evalFile doScript callSystem navigation write writeln"
)
_BLOCKED_STRINGS: Final = (_BLOCKED - words_in("module global import export with debugger exports")) | words_in(
    "setTimeout setInterval innerHTML outerHTML"
)
"""Strings that may not stand alone, because they are a property's name."""
_SCRIPT: Final = re.compile("javascript:|<script|srcdoc", re.IGNORECASE)
_MARK: Final = re.compile(r"['\"`/{}]")
_TEXT: Final = re.compile(
    r"//[^\n\r\u2028\u2029]*|/\*[\s\S]*?\*/|'(?:\\[\s\S]|[^'\\\n\r])*'|\"(?:\\[\s\S]|[^\"\\\n\r])*\""
)
_TEMPLATE: Final = re.compile(r"(?:\\[\s\S]|[^\\`$]|\$(?!\{))*")
_PATTERN: Final = re.compile(r"/(?:\\.|\[(?:\\.|[^\]\\\n\r]){0,200}\]|[^/\\\[\n\r])+/\w*")
_BEFORE_PATTERN: Final = re.compile(
    r"(?:^|(?<!\+)\+|(?<!-)-|[(,=:\[!&|?{;*%~^<>]|(?<![.\w$])(?:return|typeof|case|do|else|in|of|new|throw|void))\s*$"
)
"""Code after which a '/' begins a pattern."""
_UNCLEAR: Final = re.compile(r"(?:[)}]|\+\+|--|\b(?:yield|await|let|async|get|set|static))\s*$")
"""Code after which a '/' may divide or begin a pattern."""
_ESCAPE: Final = re.compile(
    r"\\(?:u\{([\da-fA-F]{1,6})\}|u([\da-fA-F]{4})|x([\da-fA-F]{2})|([0-7]{1,3})|(\r\n|[\s\S]))"
)
_METHOD: Final = re.compile(r"(?<=[{};])\s*constructor\s*\([^()]*\)\s*\{")
_BORROWED: Final = re.compile(r"\.\s*prototype\s*\.\s*\w+\s*\.\s*(?:call|apply)\b")
_NAMED: Final = re.compile(r'(?<=[\w$)\]])\s*(?:\?\.\s*)?\[\s*"([A-Za-z]\w*)"\s*\]')
_LITERAL: Final = r'\s*"[^"]*"\s*(?:[;,)}\n\r]|$)'
_WINDOW: Final = r"(?:window|self|frames|this)\b"
_CONSTRUCTS: Final = {
    r"\\|<!--|-->|#!": "a character that is not allowed",
    r'(?:\[|\b(?:createElement|setAttribute)(?:NS)?\s*\()\s*(?:"[^"]*"\s*\+|``)': "a name that is put together",
    r"(?<![\w$.])(?:window|self|frames)\s*(?:\?\.\s*)?\[\s*(?!\"[^\"]*\"\s*\])": "a computed property of the window",
    r"\b(?:inner|outer)HTML\s*(?:[-+*/%&|^?]*=(?!=))": "a change of the page's HTML",
    r"\bset(?:Timeout|Interval)\b(?!\s*\()|\bset(?:Timeout|Interval)\s*\(\s*(?:\"|``)": "a timer without a function",
    rf"(?:\.\s*(?:href|src|action|formAction)|(?<![\w$])location)\s*=(?!=)(?!{_LITERAL})": "a computed address",
    rf"\blocation\s*\.\s*(?:assign|replace)\b(?!\s*\({_LITERAL})": "a computed address",
    rf'(?:(?<![\w$."])|\bwindow\s*\.\s*)open\b(?!\s*\({_LITERAL})': "a computed address",
    rf'\bsetAttribute(?:NS)?\s*\(\s*"(?i:xlink:href|href|src|(?:form)?action)"(?!\s*,{_LITERAL})': "a computed address",
    r'\bsetAttribute(?:NS)?\s*\(\s*"(?i:on)': "an attribute that runs code",
    r'\bcreateElement(?:NS)?\s*\((?:\s*"[^"]*"\s*,)?\s*"(?i:(?:svg:)?script|i?frame|object|embed)"': "a script element",
    rf"(?:\.\.\.|\bin\b|\b(?:values|entries|keys|assign)\s*\()\s*{_WINDOW}(?!\s*\.)": "the window as a value",
    rf"\}}\s*=\s*(?:{_WINDOW}|document\b|location\b)(?!\s*\.)": "the window as a value",
}
"""Constructs by their pattern; strings have quotation marks there, and two backticks are a template with code."""
_PATTERNS: Final = [(re.compile(pattern), what) for pattern, what in _CONSTRUCTS.items()]
_MAX_DEPTH: Final = 50
_BROKEN: Final = "code that does not parse"


class _RefusedError(Exception):
    """The code breaks a rule, which is the message."""


def javascript_refusal(text: str) -> str | None:
    """Return the rule that JavaScript code breaks, in words that never repeat the code; none if it keeps to all."""
    scanner = _Scanner(text)
    try:
        code, _ = scanner.scan(0)
    except _RefusedError as error:
        return str(error)
    code = re.sub(r'"\s*\+\s*"', "", "\n;".join([code, *scanner.inner]))
    code = _NAMED.sub(r".\1", _BORROWED.sub(".", _METHOD.sub("{", code)))
    for string in re.findall('"([^"]*)"', code):
        if string in _BLOCKED_STRINGS or _SCRIPT.search(string) or re.match("__+[^_]", string):
            return "a string that names a blocked property, or a script"
    words = set(re.findall(r"[@\w$]+", re.sub('"[^"]*"', " ", code)))
    if any(word.startswith(("__", "@")) for word in words):
        return "a name in double underscores"
    for word in sorted(words & _BLOCKED):
        return f"'{word}'"
    if any(code.count(opening) != code.count(closing) for opening, closing in ("()", "[]", "{}")):
        return _BROKEN
    return next((what for pattern, what in _PATTERNS if pattern.search(code)), None)


class _Scanner:
    """Takes comments and patterns out of code, and all marks out of its strings."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.inner: list[str] = []

    def scan(self, place: int, depth: int = 0) -> tuple[str, int]:
        """Return the code up to the end, or up to the end of a part of a template, and the place after it."""
        parts: list[str] = []
        before, braces = "", 0
        while (found := _MARK.search(self._text, place)) is not None:
            mark, plain = found[0], self._text[place : found.start()]
            before = _last(before, plain)
            if mark == "}" and depth and not braces:
                return "".join([*parts, plain]), found.end()
            braces += {"{": 1, "}": -1}.get(mark, 0)
            piece, place = self._take(mark, found.start(), before, depth)
            before = _last(before, piece)
            parts += [plain, piece]
        if depth:
            raise _RefusedError(_BROKEN)
        return "".join([*parts, self._text[place:]]), len(self._text)

    def _take(self, mark: str, place: int, before: str, depth: int) -> tuple[str, int]:
        """Return the code in place of a text that begins here, and the place after it."""
        if mark == "`":
            return self._template(place + 1, depth + 1)
        text, pattern = _TEXT.match(self._text, place), _PATTERN.match(self._text, place)
        if text is not None:
            return " " if mark == "/" else _string(text[0][1:-1]), text.end()
        begins = mark == "/" and _BEFORE_PATTERN.search(before) is not None
        if mark in "'\"" or self._text.startswith("/*", place) or (begins and pattern is None):
            raise _RefusedError(_BROKEN)
        if pattern is not None and begins:
            return "``", pattern.end()
        if pattern is not None and _UNCLEAR.search(before) and re.search(r"['\"`]", pattern[0]):
            raise _RefusedError("a '/' that could be two things")
        return mark, place + 1

    def _template(self, place: int, depth: int) -> tuple[str, int]:
        if depth > _MAX_DEPTH:
            raise _RefusedError("templates that are nested too deep")
        texts: list[str] = []
        while (found := _TEMPLATE.match(self._text, place)) is not None and found.end() < len(self._text):
            texts.append(found[0])
            if self._text[found.end()] == "`":
                return _string(texts[0]) if len(texts) == 1 else "``", found.end() + 1
            code, place = self.scan(found.end() + 2, depth)
            self.inner.append(code)
        raise _RefusedError(_BROKEN)


def _last(before: str, piece: str) -> str:
    """Return the last characters of code, with at most one space after them."""
    return (before + piece)[-12:] if piece.strip() else f"{before.rstrip()} "


def _string(written: str) -> str:
    """Return a string in quotation marks, without escapes and control characters, and with a dot for each mark."""
    value = re.sub(r"[\x00-\x1f]", "", _ESCAPE.sub(_unescape, written))
    return '"' + re.sub(r"[^\w:<-]", "·", value) + '"'


def _unescape(escape: re.Match[str]) -> str:
    digits = escape[1] or escape[2] or escape[3]
    if digits:
        return chr(min(int(digits, 16), 0x10FFFF))
    if escape[4]:
        return chr(int(escape[4], 8))
    return "" if escape[5][0] in "\n\rntbfv" else escape[5]
