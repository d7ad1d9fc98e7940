"""The check of code before an eval tool runs it in this process or in the application that the tool drives.

It is a filter, not a sandbox: it stops accidents and obvious attacks. The audit log gets a hash of the code, never the code.
"""

import ast
import logging
import re
import warnings
from hashlib import sha256
from typing import Final

from toolyard.model.errors import ToolError
from toolyard.model.limits import Limits
from toolyard.model.spec import EvalRule

__all__ = ["BLOCKED_WORDS", "guard"]

_audit = logging.getLogger("toolyard.audit")

_ANY_LANGUAGE: Final = ("rm -rf", "/etc/passwd", "/etc/shadow")
BLOCKED_WORDS: Final[dict[str, tuple[str, ...]]] = {
    "python": (
        *("__import__", "__builtins__", "__subclasses__", "__globals__", "subprocess", "importlib", "ctypes"),
        *("os.system", "os.exec", "pty.spawn"),
    ),
    "javascript": ("process.exit", "child_process", "require(", "eval(", "Function(", "__proto__", "import(", "WebAssembly"),
    "sql": ("drop table", "drop database", "truncate table", "attach database", "copy program", "xp_cmdshell"),
}
"""Texts that code of a language must not contain, in any case; other languages have only the common ones."""

_BLOCKED_NAMES: Final = frozenset(
    {"eval", "exec", "compile", "breakpoint", "exit", "quit", "input", "globals", "locals", "vars", "dir", "open"}
)
_BLOCKED_IMPORTS: Final = frozenset(
    {
        *("os", "posix", "nt", "sys", "subprocess", "importlib", "ctypes", "socket", "shutil", "pty", "signal", "multiprocessing"),
        *("builtins", "runpy", "code", "codeop", "io", "pathlib", "tempfile", "pickle", "marshal", "shelve", "inspect", "gc", "http"),
        *("urllib", "ssl", "asyncio", "threading", "site", "webbrowser", "platform", "resource", "fcntl", "mmap"),
    }
)
_BLOCKED_ATTRIBUTES: Final = frozenset({"os", "sys", "posix", "subprocess", "builtins", "importlib", "ctypes", "shutil", "pty"})
"""Modules that are attributes of harmless modules; these names rarely mean anything else."""
_ALLOWED_DUNDERS: Final = frozenset({"__name__", "__doc__", "__len__", "__str__", "__repr__"})
_REFLECTION: Final = frozenset({"getattr", "setattr", "delattr", "hasattr"})


def guard(payload: object, rule: EvalRule, tool: str, limits: Limits) -> None:
    """Check the code and write a line to the audit log.

    Raises:
        ToolError: `too_large` or `eval_blocked`.
    """
    text = payload if isinstance(payload, str) else str(payload)
    if len(text) > limits.eval_characters:
        message = f"The code has {len(text)} characters; at most {limits.eval_characters} are taken."
        raise ToolError("too_large", message, characters=len(text), limit=limits.eval_characters)
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if rule.rules != "sandbox":
        blocked = _blocked_word(text, rule.language) or (_blocked_construct(text) if rule.language == "python" else None)
        if blocked is not None:
            kind, what = blocked
            _audit.warning(
                "eval_blocked tool=%s language=%s characters=%d hash=%s %s=%r", tool, rule.language, len(text), digest, kind, what
            )
            raise ToolError("eval_blocked", f"The code uses {what!r}, which is blocked.", code_hash=digest, kind=kind, blocked=what)
    _audit.info("eval tool=%s language=%s characters=%d hash=%s", tool, rule.language, len(text), digest)


def _blocked_word(text: str, language: str) -> tuple[str, str] | None:
    folded = re.sub(r"\s+", " ", text.lower())
    for word in (*BLOCKED_WORDS.get(language, ()), *_ANY_LANGUAGE):
        if word.lower() in folded:
            return "word", word
    return None


def _blocked_construct(text: str) -> tuple[str, str] | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "construct", "code that does not parse"
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        what = _blocked_node(node, is_called=id(node) in called)
        if what is not None:
            return "construct", what
    return None


def _blocked_node(node: ast.AST, *, is_called: bool) -> str | None:  # noqa: PLR0911 - one row for each construct
    """Return the rule that a node breaks, in fixed words, so that the code is never repeated."""
    match node:
        case ast.Import(names=names):
            return _blocked_import([name.name for name in names])
        case ast.ImportFrom(module=module, names=names):
            return _blocked_import([module or "", *(name.name for name in names)])
        case ast.Name(id=name) if name in _REFLECTION:
            return None if is_called else f"{name} under another name"
        case ast.Name(id=name):
            return name if name in _BLOCKED_NAMES else _blocked_dunder(name)
        case ast.Attribute(attr=name):
            return _blocked_dunder(name) or (f"the module {name}" if name in _BLOCKED_ATTRIBUTES else None)
        case ast.MatchClass(kwd_attrs=names):
            return next(filter(None, map(_blocked_dunder, names)), None)
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _REFLECTION:
            return None if _has_constant_name(arguments) else f"{name} with a computed name"
        case _:
            return None


def _blocked_import(names: list[str]) -> str | None:
    for part in (part for name in names for part in name.split(".")):
        blocked = f"import {part}" if part in _BLOCKED_IMPORTS else _blocked_dunder(part)
        if blocked is not None:
            return blocked
    return None


def _blocked_dunder(name: str) -> str | None:
    is_dunder = name.startswith("__") and name.endswith("__") and name not in _ALLOWED_DUNDERS
    return "a name in double underscores" if is_dunder else None


def _has_constant_name(arguments: list[ast.expr]) -> bool:
    """Return whether the second argument is a string that is allowed as a name."""
    match arguments:
        case [ast.Starred(), *_]:
            return False
        case [_, ast.Constant(value=str(name)), *_]:
            return _blocked_dunder(name) is None
        case _:
            return False
