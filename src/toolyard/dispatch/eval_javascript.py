"""The rules for JavaScript code of an eval tool, checked in its tokens.

A property that is chosen by a computed text could be any, so computed properties are closed: the key must be a literal, a constant or
provably a number, or the object must be one that the code itself made of plain data.
"""

import re
from typing import Final, NamedTuple

from toolyard.model.names import words_in

__all__ = ["javascript_refusal"]


class _RefusedError(Exception):
    """The code breaks a rule, which is the message."""


class _Token(NamedTuple):
    kind: str
    """`name`, `number`, `string`, `template`, `regex`, `mark` or `end`."""
    text: str
    """The text; of a string or template its value."""
    newline: bool = False
    """Whether a line ends before it."""


_NEWLINES: Final = "\n\r\u2028\u2029"
_NAME: Final = re.compile(r"[#@]?[^\W\d][\w$]*|[#@]?\$[\w$]*")
_NUMBER: Final = re.compile(r"0[xXbBoO][\da-fA-F_]+n?|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?n?")
_MARK: Final = re.compile(
    r">>>=|\.\.\.|===|!==|\*\*=|<<=|>>=|>>>|&&=|\|\|=|\?\?=|=>|==|!=|<=|>=|&&|\|\||\?\?"
    r"|\?\.(?!\d)|\+\+|--|\+=|-=|\*=|/=|%=|&=|\|=|\^=|<<|>>|\*\*|[-+*/%&|^!~<>=?:;,.(){}\[\]]"
)
_KEYWORDS: Final = words_in(
    "break case catch class const continue debugger default delete do else export extends finally for function if import in "
    "instanceof new return switch throw try typeof var void while with let"
)
_EXPRESSION_KEYWORDS: Final = words_in("case delete do else in instanceof new return throw typeof void")
_CONTEXTUAL: Final = words_in("of yield await let async static get set")
_CONDITIONS: Final = words_in("if while for with switch")
_BLOCKED: Final = words_in(
    "eval Function GeneratorFunction AsyncFunction AsyncGeneratorFunction Reflect Proxy WebAssembly Worker SharedWorker "
    "serviceWorker ServiceWorker importScripts execScript globalThis global require process module exports child_process "
    "mainModule getBuiltinModule Deno Bun callee caller getPrototypeOf setPrototypeOf getOwnPropertyDescriptor "
    "getOwnPropertyDescriptors getOwnPropertyNames getOwnPropertySymbols ownKeys defineProperty defineProperties ShadowRealm "
    "Compartment prepareStackTrace captureStackTrace getThis getFunction insertAdjacentHTML createContextualFragment setHTMLUnsafe "
    "parseHTMLUnsafe srcdoc debugger import export with runInThisContext runInNewContext runInContext createRequire dlopen "
    "setImmediate"
)
_BLOCKED_KEYS: Final = (_BLOCKED - {"module", "global", "import", "export", "with", "debugger", "exports", "process"}) | {
    *("constructor", "prototype", "process", "setTimeout", "setInterval"),
    *("innerHTML", "outerHTML", "write", "writeln", "setAttribute", "createElement"),
}
"""Texts that may not stand alone, because they are a property's name."""
_ASSIGNMENTS: Final = words_in("= += -= *= /= %= **= <<= >>= >>>= &= |= ^= &&= ||= ??=")
_NUMERIC_ASSIGNMENTS: Final = words_in("-= *= /= %= **= <<= >>= >>>= &= |= ^=")
_ARITHMETIC: Final = words_in("+ - * / % ** << >> >>> & | ^")
_COERCING: Final = _ARITHMETIC - {"+"}
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}
_DATA_CALLS: Final = frozenset(
    {
        *(("JSON", ".", "parse"), ("Object", ".", "fromEntries"), ("Object", ".", "keys"), ("Object", ".", "values")),
        *(("Object", ".", "entries"), ("Array", ".", "from"), ("Array", ".", "of"), ("structuredClone",)),
        *(("new", "Array"), ("new", "Map"), ("new", "Set"), ("new", "Object"), ("new", "Float64Array"), ("new", "Uint8Array")),
    }
)
"""Calls whose result is plain data."""
_NUMBER_CALLS: Final = frozenset({"Number", "parseInt", "parseFloat"})
_BUILTIN_OBJECTS: Final = frozenset({"JSON", "Object", "Array", "Math", "Number", "parseInt", "parseFloat", "structuredClone", "Promise"})
_BAD_ELEMENTS: Final = frozenset({"script", "iframe", "frame", "object", "embed"})
_SIMPLE_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}
_MAX_DEPTH: Final = 50
_MAX_ROUNDS: Final = 20
_MAX_EXPRESSION: Final = 500
"""Most tokens of an expression that is proved to be a number."""


def javascript_refusal(text: str) -> str | None:
    """Return the rule that JavaScript code breaks, in words that never repeat the code; none if it keeps to all."""
    try:
        scanner = _Scanner(text)
        scanner.scan()
        _Program(scanner.tokens).check()
    except _RefusedError as error:
        return str(error)
    return None


class _Scanner:
    """Cuts code into tokens; what could be read in two ways is refused."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._newline = False
        self._openers: list[bool] = []
        """For each open '(', whether it belongs to a condition, after which a pattern may follow."""
        self._after_condition = False
        self.tokens: list[_Token] = []

    def scan(self, depth: int = 0) -> None:
        """Read tokens to the end, or to the '}' that ends a part of a template."""
        if depth > _MAX_DEPTH:
            raise _RefusedError("templates that are nested too deep")
        braces = 0
        while self._skip_space():
            character = self._text[self._at]
            if character == "}" and depth and not braces:
                return
            braces += {"{": 1, "}": -1}.get(character, 0)
            self._token(character, depth)
        if depth:
            raise _RefusedError("code that does not parse")

    def _add(self, kind: str, text: str) -> None:
        self.tokens.append(_Token(kind, text, self._newline))
        self._newline = False

    def _skip_space(self) -> bool:
        """Skip white space and comments; return whether code follows."""
        text = self._text
        while self._at < len(text):
            character = text[self._at]
            if character in _NEWLINES:
                self._newline = True
                self._at += 1
            elif character in " \t\v\f\u00a0\ufeff":
                self._at += 1
            elif text.startswith("//", self._at):
                self._at = min((place for end in _NEWLINES if (place := text.find(end, self._at)) >= 0), default=len(text))
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at + 2)
                if end < 0:
                    raise _RefusedError("a comment without end")
                self._newline = self._newline or any(mark in text[self._at : end] for mark in _NEWLINES)
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
            raise _RefusedError("a comment of HTML")
        elif character == "/" and self._pattern_may_follow():
            self._regex()
        elif name := _NAME.match(text, self._at):
            self._take("name", name[0])
        elif number := _NUMBER.match(text, self._at):
            self._take("number", number[0])
        elif mark := _MARK.match(text, self._at):
            self._mark(mark[0])
        else:
            raise _RefusedError("a character that is not allowed")

    def _take(self, kind: str, text: str) -> None:
        self._at += len(text)
        self._add(kind, text)

    def _mark(self, mark: str) -> None:
        if mark == "(":
            is_property = len(self.tokens) > 1 and self.tokens[-2].text in {".", "?."}
            before = self.tokens[-1].text if self.tokens else ""
            self._openers.append(before in _CONDITIONS and self.tokens[-1].kind == "name" and not is_property)
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
                raise _RefusedError("a '/' that could be two things")
            return text in _EXPRESSION_KEYWORDS
        if kind != "mark" or text == "]":
            return False
        if text in {"}", "++", "--"}:
            raise _RefusedError("a '/' that could be two things")
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
                flags = re.compile(r"\w*").match(self._text, self._at)
                self._at = flags.end() if flags else self._at
                self._add("regex", self._text[start : self._at])
                return
            in_class = character == "[" or (in_class and character != "]")
        raise _RefusedError("a pattern without end")

    def _string(self, quote: str) -> None:
        value: list[str] = []
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == quote:
                self._add("string", "".join(value))
                return
            if character in "\n\r":
                break
            value.append(self._escape() if character == "\\" else character)
        raise _RefusedError("a text without end")

    def _escape(self) -> str:
        """Return the character of an escape."""
        rest = self._text[self._at : self._at + 10]
        if found := re.match(r"u\{([\da-fA-F]{1,6})\}|u([\da-fA-F]{4})|x([\da-fA-F]{2})|([0-7]{1,3})|\r\n|[\s\S]", rest):
            self._at += found.end()
            digits = found[1] or found[2] or found[3]
            if digits is not None:
                return chr(min(int(digits, 16), 0x10FFFF))
            if found[4] is not None:
                return chr(int(found[4], 8))
            return "" if found[0][0] in _NEWLINES else _SIMPLE_ESCAPES.get(found[0], found[0])
        raise _RefusedError("a text without end")

    def _template(self, depth: int) -> None:
        """Read a template: its text is one token, the code in it follows in parentheses."""
        value: list[str] = []
        parts: list[list[_Token]] = []
        newline = self._newline
        outer, openers = self.tokens, self._openers
        self._at += 1
        while self._at < len(self._text):
            character = self._text[self._at]
            self._at += 1
            if character == "`":
                self.tokens, self._openers = outer, openers
                self.tokens.append(_Token("template", "".join(value) if not parts else "\0", newline))
                for part in parts:  # apart from each other, so that a template is neither called nor a key
                    self.tokens += [_Token("mark", ";"), _Token("mark", "("), *part, _Token("mark", ")")]
                if parts:
                    self.tokens += [_Token("mark", ";"), _Token("template", "\0")]
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
        raise _RefusedError("a text without end")


class _Program:
    """The tokens of one program, with the brackets that belong together."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, *([_Token("end", "", newline=True)] * 4)]
        self._partner: dict[int, int] = {}
        self._inside: list[tuple[int, ...]] = []
        """The open brackets around each token."""
        open_brackets: list[int] = []
        for place, token in enumerate(self._tokens):
            if token.kind == "mark" and token.text in {")", "]", "}"}:
                if not open_brackets or _CLOSING[self._tokens[open_brackets[-1]].text] != token.text:
                    raise _RefusedError("code that does not parse")
                opener = open_brackets.pop()
                self._partner[opener] = place
                self._partner[place] = opener
            self._inside.append(tuple(open_brackets[-_MAX_DEPTH:]))
            if token.kind == "mark" and token.text in _CLOSING:
                open_brackets.append(place)
                if len(open_brackets) >= _MAX_DEPTH:
                    raise _RefusedError("code that is nested too deep")
        if open_brackets:
            raise _RefusedError("code that does not parse")
        self._uses: dict[str, list[int]] = {}
        """The places of each name that is no property."""
        for place, token in enumerate(self._tokens):
            if token.kind == "name" and not self._is_property(place):
                self._uses.setdefault(token.text, []).append(place)
        self._constants: dict[str, bool] = {}
        self._data: dict[str, bool] = {}
        self._functions: dict[str, bool] = {}
        self._numbers = self._numeric_names()

    def check(self) -> None:
        """Check every token."""
        for place, token in enumerate(self._tokens):
            if token.kind == "name":
                self._check_name(place, token.text)
            elif token.kind in {"string", "template"}:
                self._check_text(token.text)
            elif token.text == "[" and token.kind == "mark":
                self._check_key(place)

    def _text(self, place: int) -> str:
        """Return the text of a mark or name; empty for other tokens, whose text is data."""
        token = self._tokens[place] if place >= 0 else self._tokens[-1]
        return token.text if token.kind in {"mark", "name"} else ""

    def _is_property(self, place: int) -> bool:
        return self._text(place - 1) in {".", "?."}

    def _check_name(self, place: int, name: str) -> None:
        if name in _BLOCKED or name.startswith(("__", "@")):
            raise _RefusedError(f"'{name}'" if name in _BLOCKED else "a name in double underscores")
        following = self._text(place + 1)
        if name == "constructor" and not self._is_method(place):
            raise _RefusedError("'constructor'")
        if name == "prototype" and not (following == "." and self._text(place + 3) == "." and self._text(place + 4) in {"call", "apply"}):
            raise _RefusedError("'prototype'")
        if name in {"innerHTML", "outerHTML"} and (following in _ASSIGNMENTS or not self._is_property(place)):
            raise _RefusedError(f"a change of '{name}'")
        if name in {"write", "writeln"} and self._text(place - 2) == "document":
            raise _RefusedError(f"'document.{name}'")
        if name in {"setTimeout", "setInterval"}:
            self._check_timer(place)
        if name in {"createElement", "createElementNS", "setAttribute", "setAttributeNS"}:
            self._check_element(place, name)
        if name in _BUILTIN_OBJECTS and not self._keeps_meaning(place, name):
            raise _RefusedError(f"another meaning of '{name}'")

    def _keeps_meaning(self, place: int, name: str) -> bool:
        """Return whether an object that the checks rely on is only used, never changed or passed on."""
        if name in _NUMBER_CALLS | {"Promise", "structuredClone"}:
            return not self._is_bound_at(place)
        if self._text(place + 1) == ".":
            return self._text(place + 3) not in _ASSIGNMENTS | {"++", "--"}
        return self._text(place - 1) in {"instanceof", "new"} or self._text(place + 1) == "("

    @staticmethod
    def _check_text(text: str) -> None:
        if text in _BLOCKED_KEYS or (text.startswith("__") and text.strip("_")):
            raise _RefusedError("the name of a blocked property")
        folded = re.sub(r"[\x00-\x20]", "", text).lower()
        if "javascript:" in folded or "<script" in folded or "srcdoc" in folded:
            raise _RefusedError("a script in a text")

    def _is_method(self, place: int) -> bool:
        """Return whether this is the constructor in the body of a class."""
        opener = place + 1
        if self._text(opener) != "(" or self._text(self._partner[opener] + 1) != "{" or not self._inside[place]:
            return False
        body = self._inside[place][-1]
        heads = [self._text(before) for before in range(max(0, body - 6), body)]
        return self._text(body) == "{" and "class" in heads and self._text(place - 1) in {"{", "}", ";"}

    def _check_timer(self, place: int) -> None:
        """Check that a timer gets a function, because it would run a text as code."""
        first = place + 2
        if self._text(place + 1) == "(":
            if self._text(first) in {"function", "async"}:
                return
            if self._text(first) == "(" and self._text(self._partner[first] + 1) == "=>":
                return
            if self._tokens[first].kind == "name" and self._text(first + 1) == "=>":
                return
            is_declared = self._is_function(self._text(first)) and self._text(first + 1) in {",", ")"}
            if is_declared or self._is_resolver(place, self._text(first)):
                return
        raise _RefusedError("a timer without a function")

    def _is_resolver(self, place: int, name: str) -> bool:
        """Return whether a name is the parameter of `new Promise(name => setTimeout(name`."""
        before = place - 1 if self._text(place - 1) == "=>" else place - 2 if self._text(place - 2) == "=>" else -1
        if before < 0 or self._text(place - 1) not in {"=>", "{"} or not name:
            return False
        head = before - 1
        if self._text(head) == ")":
            opener = self._partner[head]
            parameter, start = self._text(opener + 1), opener
        else:
            parameter, start = self._text(head), head
        is_promise = [self._text(start - 3), self._text(start - 2), self._text(start - 1)] == ["new", "Promise", "("]
        return is_promise and parameter == name and self._text(place + 3) in {",", ")"}

    def _is_function(self, name: str) -> bool:
        """Return whether a name is that of a function that the code declares, and of nothing else."""
        if name not in self._functions:
            self._functions[name] = self._find_function(name)
        return self._functions[name]

    def _find_function(self, name: str) -> bool:
        declared = [place for place in self._uses.get(name, []) if self._text(place - 1) == "function"]
        return len(declared) == 1 and not any(self._is_bound_at(place) for place in self._uses[name] if place != declared[0])

    def _check_element(self, place: int, name: str) -> None:
        at = place + (2 if not name.endswith("NS") else 4)
        token = self._tokens[min(at, len(self._tokens) - 2)]
        value = token.text.lower()
        if self._text(place + 1) != "(" or token.kind != "string" or self._text(at + 1) not in {",", ")"}:
            raise _RefusedError(f"'{name}' with a computed name")
        if value in _BAD_ELEMENTS if name.startswith("create") else value.startswith(("on", "srcdoc")):
            raise _RefusedError("a script in a page")

    def _check_key(self, place: int) -> None:
        """Check the key of a computed property."""
        end = self._partner[place]
        before = self._tokens[place - 1] if place else self._tokens[-1]
        is_name = before.kind == "name" and (before.text not in _KEYWORDS | {"of", "yield", "await"} or self._is_property(place - 1))
        is_member = is_name or before.kind in {"string", "template", "regex", "number"} or before.text in {")", "]", "}", "?."}
        is_pattern_key = self._text(place - 1) in {"{", ","} and self._text(end + 1) == ":"
        if not is_member and not (is_pattern_key and self._is_binding(place)):
            return
        if self._is_safe_key(place + 1, end):
            return
        if is_name and not self._is_property(place - 1) and self._is_data(before.text) and self._is_harmless_change(end + 1):
            return
        raise _RefusedError("a property with a computed name")

    def _is_harmless_change(self, place: int) -> bool:
        """Return whether no function can become the prototype of an object, which a computed key could set."""
        if self._text(place) not in {"=", "||=", "??=", "&&="}:
            return True
        start, end = place + 1, self._end_of_expression(place + 1)
        first = self._tokens[start]
        if end - start >= _MAX_EXPRESSION:
            return False
        steps = [step for step in range(start, end) if self._inside[step] == self._inside[start]]
        if any(self._text(step) in _ARITHMETIC for step in steps) or self._text(start) in {"true", "false", "null", "undefined"}:
            return True
        choices = [step for step in steps if self._text(step) in {"||", "??"}]
        if choices and self._text(start + 1) == "[" and self._is_data(self._text(start)) and self._partner[start + 1] + 1 == choices[0]:
            start, first = choices[0] + 1, self._tokens[choices[0] + 1]
        last = self._partner.get(start, start) if self._text(start) in {"[", "{"} else start
        return (first.kind in {"string", "number", "template"} or last > start) and last + 1 == end

    def _is_safe_key(self, start: int, end: int) -> bool:
        token = self._tokens[start]
        if end == start + 1:
            if token.kind in {"string", "number"} or (token.kind == "template" and token.text != "\0"):
                return token.text not in _BUILTIN_OBJECTS  # a blocked text is refused wherever it is
            if token.kind == "name" and self._is_constant(token.text):
                return True
        return self._is_numeric(start, end, self._numbers)

    def _is_constant(self, name: str) -> bool:
        """Return whether a name is a constant with a literal text."""
        if name not in self._constants:
            self._constants[name] = self._find_constant(name)
        return self._constants[name]

    def _find_constant(self, name: str) -> bool:
        uses = self._uses.get(name, [])
        declared = [place for place in uses if self._text(place - 1) == "const" and self._text(place + 1) == "="]
        if len(declared) != 1 or any(self._is_bound_at(place) for place in uses if place != declared[0]):
            return False
        value, after = declared[0] + 2, declared[0] + 3
        token = self._tokens[value]
        return token.kind == "string" and token.text not in _BUILTIN_OBJECTS and self._ends_expression(after)

    def _is_data(self, name: str) -> bool:
        """Return whether a name is declared once, as plain data."""
        if name not in self._data:
            self._data[name] = self._find_data(name)
        return self._data[name]

    def _find_data(self, name: str) -> bool:
        uses = self._uses.get(name, [])
        declared = [place for place in uses if self._text(place - 1) in {"const", "let", "var"} and self._text(place + 1) == "="]
        if len(declared) != 1 or any(self._is_bound_at(place) for place in uses if place != declared[0]):
            return False
        start = declared[0] + 2
        if self._text(start) in {"[", "{"}:
            return self._ends_expression(self._partner[start] + 1)
        for length in (3, 2, 1):
            call = tuple(self._text(start + step) for step in range(length))
            if call in _DATA_CALLS and self._text(start + length) == "(":
                return self._ends_expression(self._partner[start + length] + 1)
        return False

    def _ends_expression(self, place: int) -> bool:
        """Return whether an expression is over before this token, in every reading."""
        token = self._tokens[place]
        if token.kind == "end" or (token.kind == "mark" and token.text in {";", ",", "}", ")"}):
            return True
        return token.newline and token.kind == "name" and token.text not in {"in", "instanceof", "of"}

    def _is_bound_at(self, place: int) -> bool:
        """Return whether a name gets a value here: by a declaration, an assignment, a parameter or a pattern."""
        before, after = self._text(place - 1), self._text(place + 1)
        if before in {"const", "let", "var", "function", "class"}:
            return True
        if after in _ASSIGNMENTS or after in {"=>", "++", "--"} or before in {"++", "--"} or after == "of":
            return True
        if before in {",", ";", "(", "{"} and after == "in":
            return True
        return self._is_binding(place)

    def _is_binding(self, place: int) -> bool:
        """Return whether a token is in a pattern or in the parameters of a function."""
        for opener in self._inside[place]:
            end = self._partner.get(opener, opener)
            mark, before, after = self._text(opener), self._text(opener - 1), self._text(end + 1)
            if mark == "(" and after in {"=>", "{"} and before not in _CONDITIONS:
                return True
            if mark in {"[", "{"} and (after in {"=", "of"} or before in {"const", "let", "var"}):
                return True
            if mark in {"[", "{"} and after == "in" and before in {"(", "const", "let", "var"}:
                return True
        return False

    def _numeric_names(self) -> frozenset[str]:
        """Return the names that only ever hold numbers."""
        declaring = {"let", "var", "const", ","}
        candidates = frozenset(
            name
            for name, uses in self._uses.items()
            if any(self._text(place - 1) in declaring and self._text(place + 1) == "=" for place in uses)
        )
        for _ in range(_MAX_ROUNDS):
            uses = self._uses
            numbers = frozenset(name for name in candidates if all(self._keeps_number(place, candidates) for place in uses[name]))
            if numbers == candidates:
                return numbers
            candidates = numbers
        return frozenset()

    def _keeps_number(self, place: int, numbers: frozenset[str]) -> bool:
        before, after = self._text(place - 1), self._text(place + 1)
        if after in {"=", "+="}:
            end = self._end_of_expression(place + 2)
            return end - place < _MAX_EXPRESSION and not self._is_binding(place) and self._is_numeric(place + 2, end, numbers)
        if after in _NUMERIC_ASSIGNMENTS or after in {"++", "--"} or before in {"++", "--"}:
            return not self._is_binding(place)
        return not self._is_bound_at(place)

    def _end_of_expression(self, place: int) -> int:
        """Return the place of the token after an expression, or one within it if it is very long."""
        start = place
        while self._tokens[place].kind != "end" and place - start < _MAX_EXPRESSION:
            text = self._text(place)
            if text in _CLOSING:
                place = self._partner[place]
            elif text in {")", "]", "}", ";", ","} or (
                self._tokens[place].newline and self._tokens[place].kind == "name" and self._text(place - 1) not in _ARITHMETIC | {"="}
            ):
                return place
            place += 1
        return place

    def _is_numeric(self, start: int, end: int, numbers: frozenset[str]) -> bool:
        """Return whether tokens are an expression whose value is certainly a number."""
        place, expects_value = start, True
        while place < end:
            text = self._text(place)
            if not expects_value:
                if text in {"++", "--"}:
                    place += 1
                    continue
                if text not in _ARITHMETIC:
                    return False
                place, expects_value = place + 1, True
                continue
            if text in {"-", "++", "--", "~", "+"}:
                place += 1
                continue
            after = self._after_number(place, end, numbers)
            if after is None:
                return False
            place, expects_value = after, False
        return not expects_value

    def _after_number(self, place: int, end: int, numbers: frozenset[str]) -> int | None:  # noqa: PLR0911 - one for each kind of number
        """Return the place after a value that is certainly a number, or none."""
        token, text = self._tokens[place], self._text(place)
        if token.kind == "number":
            return place + 1
        if text == "(":
            close = self._partner[place]
            return close + 1 if self._is_numeric(place + 1, close, numbers) else None
        if token.kind != "name":
            return None
        if text == "Math" and self._text(place + 1) == "." and self._text(place + 3) == "(":
            return self._partner[place + 3] + 1
        if text in _NUMBER_CALLS and self._text(place + 1) == "(":
            return self._partner[place + 1] + 1
        if text in numbers and self._text(place + 1) not in {".", "?.", "(", "["}:
            return place + 1
        last = place
        while self._text(last + 1) == "." and self._tokens[last + 2].kind == "name" and last + 2 < end:
            last += 2
        is_coerced = (self._text(last + 1) in _COERCING and last + 1 < end) or self._text(place - 1) in _COERCING
        return last + 1 if is_coerced and self._text(last) == "length" else None
