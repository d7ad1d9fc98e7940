"""The rules for JavaScript code of an eval tool, checked in its tokens.

A property that is chosen by a computed text could be any, so computed properties are closed: the key must be a literal, a constant or
provably a number, or the object must be one that the code itself made of plain data.
"""

import re
from typing import Final

from callyard.dispatch.eval_javascript_tokens import CONDITIONS, MAX_DEPTH, RefusedError, Token, javascript_tokens
from callyard.model.names import words_in

__all__ = ["javascript_refusal"]


_KEYWORDS: Final = words_in(
    "break case catch class const continue debugger default delete do else export extends finally for function if import in "
    "instanceof new return switch throw try typeof var void while with let"
)
_BLOCKED: Final = words_in(
    "eval Function GeneratorFunction AsyncFunction AsyncGeneratorFunction Reflect Proxy WebAssembly Worker SharedWorker "
    "serviceWorker ServiceWorker importScripts execScript globalThis global require process module exports child_process "
    "mainModule getBuiltinModule Deno Bun callee caller getPrototypeOf setPrototypeOf getOwnPropertyDescriptor "
    "getOwnPropertyDescriptors getOwnPropertyNames getOwnPropertySymbols ownKeys defineProperty defineProperties ShadowRealm "
    "Compartment prepareStackTrace captureStackTrace getThis getFunction insertAdjacentHTML createContextualFragment setHTMLUnsafe "
    "parseHTMLUnsafe srcdoc debugger import export with runInThisContext runInNewContext runInContext createRequire dlopen "
    "setImmediate createAttribute createAttributeNS setAttributeNode setAttributeNodeNS setNamedItem setNamedItemNS execCommand "
    "parseFromString addModule globalEval getScript executeScript compileFunction evalFile doScript callSystem navigation write writeln"
)
_BLOCKED_KEYS: Final = (_BLOCKED - {"module", "global", "import", "export", "with", "debugger", "exports", "process"}) | {
    *("constructor", "prototype", "process", "setTimeout", "setInterval"),
    *("innerHTML", "outerHTML", "setAttribute", "createElement"),
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
_WINDOWS: Final = frozenset({"window", "self", "top", "parent", "frames", "defaultView", "contentWindow"})
"""Names of the global object of a page, which has every function."""
_ADDRESSES: Final = frozenset({"href", "src", "action", "formAction", "location"})
"""Properties that run a text as code if it begins with 'javascript:'."""
_CONTEXTUAL: Final = frozenset({"await", "of", "yield", "let"})
_CONVERSIONS: Final = frozenset({"toString", "valueOf", "toPrimitive", "join", "Symbol", "get", "fromEntries"})
"""Names by which an object could give another key each time that it is used as one."""
_CHOICES: Final = _ASSIGNMENTS | {"=>", "?", "&&", "||", "??", "yield", "function", "class"}
_MAX_EXPRESSION: Final = 500
"""Most tokens of an expression that is proved to be a number."""


def javascript_refusal(text: str) -> str | None:
    """Return the rule that JavaScript code breaks, in words that never repeat the code; none if it keeps to all."""
    try:
        _Program(javascript_tokens(text)).check()
    except RefusedError as error:
        return str(error)
    return None


class _Program:
    """The tokens of one program, with the brackets that belong together."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = [*tokens, *([Token("end", "", newline=True)] * 4)]
        self._partner: dict[int, int] = {}
        self._around: list[int] = []
        """The innermost open bracket around each token, or -1."""
        open_brackets: list[int] = []
        for place, token in enumerate(self._tokens):
            if token.kind == "mark" and token.text in {")", "]", "}"}:
                if not open_brackets or _CLOSING[self._tokens[open_brackets[-1]].text] != token.text:
                    raise RefusedError("code that does not parse")
                opener = open_brackets.pop()
                self._partner[opener] = place
                self._partner[place] = opener
            self._around.append(open_brackets[-1] if open_brackets else -1)
            if token.kind == "mark" and token.text in _CLOSING:
                open_brackets.append(place)
                if len(open_brackets) >= MAX_DEPTH:
                    raise RefusedError("code that is nested too deep")
        if open_brackets:
            raise RefusedError("code that does not parse")
        self._uses: dict[str, list[int]] = {}
        """The places of each name that is no property."""
        for place, token in enumerate(self._tokens):
            if token.kind == "name" and not self._is_property(place):
                self._uses.setdefault(token.text, []).append(place)
        self._words = {token.text for token in self._tokens if token.kind == "name"}
        self._patterns = {-1: False}
        """Whether a bracket, or one around it, is a pattern or the parameters of a function."""
        for opener in sorted(place for place, partner in self._partner.items() if place < partner):
            self._patterns[opener] = self._patterns[self._around[opener]] or self._is_pattern(opener)
        self._properties = {
            token.text
            for place, token in enumerate(self._tokens)
            if token.kind == "string" or (token.kind == "name" and self._is_property(place) and self._is_bound_at(place))
        }
        """Names that are given a value as a property, perhaps of the window, or that are a text."""
        self._bound: dict[str, bool] = {}
        self._constants: dict[str, bool] = {}
        self._conversions: bool | None = None
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
            raise RefusedError(f"'{name}'" if name in _BLOCKED else "a name in double underscores")
        following = self._text(place + 1)
        if name == "constructor" and not self._is_method(place):
            raise RefusedError("'constructor'")
        if name == "prototype" and not (following == "." and self._text(place + 3) == "." and self._text(place + 4) in {"call", "apply"}):
            raise RefusedError("'prototype'")
        if name in {"innerHTML", "outerHTML"} and (following in _ASSIGNMENTS or not self._is_property(place)):
            raise RefusedError(f"a change of '{name}'")
        if name in {"setTimeout", "setInterval"}:
            self._check_timer(place)
        if name in {"createElement", "createElementNS", "setAttribute", "setAttributeNS"}:
            self._check_element(place, name)
        if name in _WINDOWS | _ADDRESSES | {"open", "assign", "replace", "this"}:
            self._check_window(place, name)
        if name in _CONTEXTUAL and self._is_identifier(place):
            raise RefusedError(f"a variable '{name}'")
        if name in _BUILTIN_OBJECTS and not self._keeps_meaning(place, name):
            raise RefusedError(f"another meaning of '{name}'")

    def _keeps_meaning(self, place: int, name: str) -> bool:
        """Return whether an object that the checks rely on is only used, never changed or passed on."""
        if self._is_bound_at(place):
            return False
        if name in _NUMBER_CALLS | {"Promise", "structuredClone"}:
            return True
        if self._text(place + 1) == ".":
            return self._text(place + 3) not in _ASSIGNMENTS | {"++", "--"}
        return self._text(place - 1) in {"instanceof", "new"} or self._text(place + 1) == "("

    def _check_window(self, place: int, name: str) -> None:
        """Check that the window is no value, whose functions could be found without a name, and that addresses are literal."""
        owner, following = self._text(place - 2) if self._is_property(place) else "", self._text(place + 1)
        if name == "this":
            self._check_this(place)
        if name in _ADDRESSES:
            self._check_address(place, name)
        is_own = not self._is_property(place) and name != "window" and self._is_bound(name)
        is_global = not is_own and (
            not self._is_property(place) or owner in _WINDOWS | {"document"} or name in _WINDOWS - {"top", "parent"}
        )
        if name in {"assign", "replace"}:
            if owner == "location" and not (following == "(" and self._is_literal(place + 2)):
                raise RefusedError("a computed address")
        elif name == "open":
            if is_global and not (following == "(" and self._is_literal(place + 2)):
                raise RefusedError("a computed address")
        elif name in _WINDOWS | {"location"} and is_global and following not in {".", "?.", "[", ":", *_ASSIGNMENTS}:
            is_tested = self._text(place - 1) == "typeof" or following in {"===", "!==", "==", "!="}
            if not is_tested:
                raise RefusedError(f"'{name}' as a value")

    def _is_bound(self, name: str) -> bool:
        """Return whether the code gives a name a value anywhere."""
        if name not in self._bound:
            self._bound[name] = any(map(self._is_bound_at, self._uses[name]))
        return self._bound[name]

    def _check_address(self, place: int, name: str) -> None:
        """Check that an address gets a literal text only, also by a pattern or by 'Object.assign'."""
        before, following = self._text(place - 1), self._text(place + 1)
        is_changed = following in _ASSIGNMENTS or (self._is_property(place) and self._is_bound_at(place))
        is_member = "assign" in self._words and before in {"{", ","} and following in {":", ",", "}"}
        if (is_changed or is_member) and not (following in {"=", ":"} and self._is_literal(place + 2)):
            raise RefusedError(f"a computed '{name}'")

    def _check_this(self, place: int) -> None:
        """Check that the window is not listed by the name 'this'."""
        before, following = self._text(place - 1), self._text(place + 1)
        is_listed = before in {"...", "in"} or (before == "(" and self._text(place - 2) in {"values", "entries", "assign"})
        if is_listed or (self._around[place] < 0 and following not in {".", "?.", "["}):
            raise RefusedError("'this' as a value")

    def _is_literal(self, place: int) -> bool:
        """Return whether an expression is one literal text."""
        return self._tokens[place].kind == "string" and self._ends_expression(place + 1)

    def _is_identifier(self, place: int) -> bool:
        """Return whether a word that is also a keyword is the name of a variable here."""
        before, after = self._text(place - 1), self._text(place + 1)
        if before in {"var", "let", "const", "function", "class"} or after in _ASSIGNMENTS | {"=>"}:
            return not self._is_property(place)
        return before in {"(", ",", "{", "["} and after in {")", ",", "}", "]"}

    @staticmethod
    def _check_text(text: str) -> None:
        if text in _BLOCKED_KEYS or (text.startswith("__") and text.strip("_")):
            raise RefusedError("the name of a blocked property")
        folded = re.sub(r"[\x00-\x20]", "", text).lower()
        if "javascript:" in folded or "<script" in folded or "srcdoc" in folded:
            raise RefusedError("a script in a text")

    def _is_method(self, place: int) -> bool:
        """Return whether this is the constructor in the body of a class."""
        opener = place + 1
        if self._text(opener) != "(" or self._text(self._partner[opener] + 1) != "{" or self._around[place] < 0:
            return False
        body = self._around[place]
        heads = [self._text(before) for before in range(max(0, body - 6), body)]
        return self._text(body) == "{" and "class" in heads and self._text(place - 1) in {"{", "}", ";"}

    def _check_timer(self, place: int) -> None:
        """Check that a timer gets a function, because it would run a text as code."""
        first = place + 2
        if self._text(place + 1) == "(":
            if self._text(first) == "async" and not self._tokens[first + 1].newline:
                first += 1
            if self._text(first) == "function" and self._ends_function(first):
                return
            if self._text(first) == "(" and self._text(self._partner[first] + 1) == "=>":
                return
            if self._tokens[first].kind == "name" and self._text(first + 1) == "=>":
                return
            is_declared = self._is_function(self._text(first)) and self._text(first + 1) in {",", ")"}
            if is_declared or self._is_resolver(place, self._text(first)):
                return
        raise RefusedError("a timer without a function")

    def _ends_function(self, place: int) -> bool:
        """Return whether a function that begins here is the whole argument."""
        while self._text(place) not in {"(", "", ")"}:
            place += 1
        body = self._partner.get(place, place) + 1
        return self._text(body) == "{" and self._text(self._partner[body] + 1) in {",", ")"}

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
        return (
            len(declared) == 1
            and not self._may_be_changed(name)
            and not any(self._is_bound_at(place) for place in self._uses[name] if place != declared[0])
        )

    def _check_element(self, place: int, name: str) -> None:
        at = place + (2 if not name.endswith("NS") else 4)
        token = self._tokens[min(at, len(self._tokens) - 2)]
        value = token.text.lower().rpartition(":")[2]
        if self._text(place + 1) != "(" or token.kind != "string" or self._text(at + 1) not in {",", ")"}:
            raise RefusedError(f"'{name}' with a computed name")
        if value in _BAD_ELEMENTS if name.startswith("create") else value.startswith(("on", "srcdoc")):
            raise RefusedError("a script in a page")
        if name.startswith("set") and value in {*_ADDRESSES, "formaction"} and not self._is_literal(at + 2):
            raise RefusedError(f"a computed '{value}'")

    def _check_key(self, place: int) -> None:
        """Check the key of a computed property."""
        end = self._partner[place]
        before = self._tokens[place - 1] if place else self._tokens[-1]
        is_name = self._is_object_name(place - 1)
        is_member = self._is_member(place) or before.text == "}"
        is_pattern_key = self._text(place - 1) in {"{", ","} and self._text(end + 1) == ":"
        if not is_member and not (is_pattern_key and self._is_binding(place)):
            return
        if self._is_safe_key(place + 1, end):
            return
        if is_name and not self._is_property(place - 1) and self._is_data(before.text) and self._is_harmless_change(end + 1):
            return
        raise RefusedError("a property with a computed name")

    def _is_object_name(self, place: int) -> bool:
        token = self._tokens[place]
        return token.kind == "name" and (token.text not in _KEYWORDS | {"of", "yield", "await"} or self._is_property(place))

    def _is_member(self, place: int) -> bool:
        """Return whether a '[' follows an object, and is no list."""
        before = self._tokens[place - 1]
        return (
            self._is_object_name(place - 1) or before.kind in {"string", "template", "regex", "number"} or before.text in {")", "]", "?."}
        )

    def _is_harmless_change(self, place: int) -> bool:
        """Return whether no function can become the prototype of an object, which a computed key could set."""
        if self._text(place) not in {"=", "||=", "??=", "&&="}:
            return True
        start, end = place + 1, self._end_of_expression(place + 1)
        if end - start >= _MAX_EXPRESSION:
            return False
        words = self._outer_words(start, end)
        if not words & _CHOICES and (words & _ARITHMETIC or (end == start + 1 and words & {"true", "false", "null"})):
            return True
        key = self._partner[place - 1]
        same = start + place - (key - 1)
        if (
            self._text(same) in {"||", "??"}
            and self._is_kept_key(key, place - 1)
            and self._tokens[start:same] == self._tokens[key - 1 : place]
        ):
            start = same + 1
        first = self._tokens[start]
        last = self._partner.get(start, start) if self._text(start) in {"[", "{"} else start
        is_text = first.kind in {"string", "number"} or (first.kind == "template" and first.text != "\0")
        return (is_text or last > start) and last + 1 == end

    def _outer_words(self, start: int, end: int) -> set[str]:
        """Return the names and marks of an expression that are in no bracket of it."""
        words: set[str] = set()
        while start < end:
            words.add(self._text(start))
            start = self._partner.get(start, start) + 1
        return words

    def _is_kept_key(self, opener: int, end: int) -> bool:
        """Return whether a key is the same text each time: names, in a program that defines no conversion."""
        if self._conversions is None:
            computed = any(
                self._text(opener) == "[" and self._text(end + 1) in {":", "(", "="} and not self._is_member(opener)
                for opener, end in self._partner.items()
            )
            names = {token.text for token in self._tokens if token.kind in {"name", "string", "template"}}
            self._conversions = computed or bool(names & _CONVERSIONS)
        return not self._conversions and all(
            self._tokens[place].kind == "name" or self._text(place) == "." for place in range(opener + 1, end)
        )

    def _is_safe_key(self, start: int, end: int) -> bool:
        token = self._tokens[start]
        if end == start + 1:
            if token.kind in {"string", "number"} or (token.kind == "template" and token.text != "\0"):
                return token.text not in _BUILTIN_OBJECTS | _WINDOWS | _ADDRESSES | {
                    "open",
                    "assign",
                    "replace",
                }  # a blocked text is refused wherever it is
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
        if len(declared) != 1 or any(self._is_bound_at(place) for place in uses if place != declared[0]) or self._may_be_changed(name):
            return False
        start = declared[0] + 2
        if self._text(start) in {"[", "{"}:
            return self._ends_expression(self._partner[start] + 1)
        for length in (3, 2, 1):
            call = tuple(self._text(start + step) for step in range(length))
            if call in _DATA_CALLS and self._text(start + length) == "(":
                return self._ends_expression(self._partner[start + length] + 1)
        return False

    def _may_be_changed(self, name: str) -> bool:
        """Return whether a variable may be a property of the window that gets another value."""
        is_global = any(self._text(place - 1) in {"var", "function"} or self._text(place - 1) == "," for place in self._uses[name])
        return is_global and (name in self._properties or "assign" in self._words)

    def _ends_expression(self, place: int) -> bool:
        """Return whether an expression is over before this token, in every reading."""
        token = self._tokens[place]
        if token.kind == "end" or (token.kind == "mark" and token.text in {";", ",", "}", ")"}):
            return True
        return token.newline and token.kind == "name" and token.text not in {"in", "instanceof", "of"}

    def _is_bound_at(self, place: int) -> bool:
        """Return whether a name gets a value here: by a declaration, an assignment, a parameter or a pattern."""
        before, after = self._text(place - 1), self._text(place + 1)
        if before in {"const", "let", "var", "function", "class"} or (before == "*" and self._text(place - 2) == "function"):
            return True
        if after in _ASSIGNMENTS or after in {"=>", "++", "--"} or before in {"++", "--"} or after == "of":
            return True
        if before in {",", ";", "(", "{"} and after == "in":
            return True
        return self._is_binding(place)

    def _is_binding(self, place: int) -> bool:
        """Return whether a token is in a pattern or in the parameters of a function."""
        return self._patterns[self._around[place]]

    def _is_pattern(self, opener: int) -> bool:
        mark, before, after = self._text(opener), self._text(opener - 1), self._text(self._partner[opener] + 1)
        if mark == "(":
            if after in {"=>", "{"}:
                return before not in CONDITIONS
            return after in _ASSIGNMENTS or after in {"of", "in", "++", "--"} or before in {"++", "--"}
        if after in {"=", "of"} or before in {"const", "let", "var"}:
            return mark == "{" or not self._is_member(opener)
        return after == "in" and before == "("

    def _numeric_names(self) -> frozenset[str]:
        """Return the names that only ever hold numbers."""
        declaring = {"let", "var", "const", ","}
        candidates = frozenset(
            name
            for name, uses in self._uses.items()
            if any(self._text(place - 1) in declaring and self._text(place + 1) == "=" for place in uses) and not self._may_be_changed(name)
        )
        users: dict[str, list[str]] = {}
        pending: list[str] = []
        for name in candidates:
            read: set[str] = set()
            if not all(self._keeps_number(place, candidates, read) for place in self._uses[name]):
                pending.append(name)
            for other in read:
                users.setdefault(other, []).append(name)
        others = set(pending)
        while pending:  # a name that may hold no number takes those along that are computed from it
            for name in users.get(pending.pop(), []):
                if name not in others:
                    others.add(name)
                    pending.append(name)
        return candidates - others

    def _keeps_number(self, place: int, numbers: frozenset[str], read: set[str]) -> bool:
        """Return whether a use of a name leaves it a number, if the names that are added to `read` are numbers."""
        before, after = self._text(place - 1), self._text(place + 1)
        if after in {"=", "+="}:
            end = self._end_of_expression(place + 2, _ASSIGNMENTS)
            if end - place >= _MAX_EXPRESSION or self._is_binding(place):
                return False
            read.update(self._text(step) for step in range(place + 2, end) if self._text(step) in numbers)
            return self._is_numeric(place + 2, end, numbers)
        if after in _NUMERIC_ASSIGNMENTS or after in {"++", "--"} or before in {"++", "--"}:
            return not self._is_binding(place)
        return not self._is_bound_at(place)

    def _end_of_expression(self, place: int, ends: frozenset[str] = frozenset()) -> int:
        """Return the place of the token after an expression, or one within it if it is very long; `ends` end it as well."""
        start = place
        while self._tokens[place].kind != "end" and place - start < _MAX_EXPRESSION:
            text = self._text(place)
            if text in _CLOSING:
                place = self._partner[place]
            elif (
                text in {")", "]", "}", ";", ","}
                or text in ends
                or (self._tokens[place].newline and self._tokens[place].kind == "name" and self._text(place - 1) not in _ARITHMETIC | {"="})
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
