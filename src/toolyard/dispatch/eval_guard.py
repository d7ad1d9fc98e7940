"""What a payload of an eval tool must pass before it may run in this process or in the application a tool drives.

It is a filter, not a sandbox: it stops accidents and the obvious, and leaves a trace by hash. It never repeats the payload.
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
        "__import__",
        "__builtins__",
        "__subclasses__",
        "__globals__",
        "subprocess",
        "importlib",
        "ctypes",
        "os.system",
        "os.exec",
        "pty.spawn",
    ),
    "javascript": ("process.exit", "child_process", "require(", "eval(", "Function(", "__proto__", "import(", "WebAssembly"),
    "sql": ("drop table", "drop database", "truncate table", "attach database", "copy program", "xp_cmdshell"),
}
"""What a payload of each language must not contain, in whatever case; other languages have only the common words."""

_NAMES: Final = frozenset({"eval", "exec", "compile", "breakpoint", "exit", "quit", "input", "globals", "locals", "vars", "dir", "open"})
_MODULES: Final = frozenset(
    {
        *("os", "posix", "nt", "sys", "subprocess", "importlib", "ctypes", "socket", "shutil", "pty", "signal", "multiprocessing"),
        *("builtins", "runpy", "code", "codeop", "io", "pathlib", "tempfile", "pickle", "marshal", "shelve", "inspect", "gc", "http"),
        *("urllib", "ssl", "asyncio", "threading", "site", "webbrowser", "platform", "resource", "fcntl", "mmap"),
    }
)
_REACHED: Final = frozenset({"os", "sys", "posix", "subprocess", "builtins", "importlib", "ctypes", "shutil", "pty"})
"""Modules that others import, and that are hardly ever the name of anything else."""
_HARMLESS: Final = frozenset({"__name__", "__doc__", "__len__", "__str__", "__repr__"})
_REFLECTION: Final = frozenset({"getattr", "setattr", "delattr", "hasattr"})


def guard(payload: object, rule: EvalRule, tool: str, limits: Limits) -> None:
    """Let the payload pass and leave a line in the audit log, or refuse it.

    Raises:
        ToolError: `too_large` or `eval_blocked`.
    """
    text = payload if isinstance(payload, str) else str(payload)
    if len(text) > limits.eval_characters:
        message = f"The code has {len(text)} characters; at most {limits.eval_characters} are taken."
        raise ToolError("too_large", message, characters=len(text), limit=limits.eval_characters)
    digest = sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    if rule.rules != "sandbox":
        found = _blocked_word(text, rule.language) or (_blocked_construct(text) if rule.language == "python" else None)
        if found is not None:
            kind, what = found
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
        what = _refused(node, is_called=id(node) in called)
        if what is not None:
            return "construct", what
    return None


def _refused(node: ast.AST, *, is_called: bool) -> str | None:  # noqa: PLR0911 - one row for each construct
    """Return which rule a node breaks, in words of ours: those of the payload are never repeated."""
    match node:
        case ast.Import(names=names):
            return _refused_import([name.name for name in names])
        case ast.ImportFrom(module=module, names=names):
            return _refused_import([module or "", *(name.name for name in names)])
        case ast.Name(id=name) if name in _REFLECTION:
            return None if is_called else f"{name} under another name"
        case ast.Name(id=name):
            return name if name in _NAMES else _refused_name(name)
        case ast.Attribute(attr=name):
            return _refused_name(name) or (f"the module {name}" if name in _REACHED else None)
        case ast.MatchClass(kwd_attrs=names):
            return next((found for name in names if (found := _refused_name(name))), None)
        case ast.Call(func=ast.Name(id=name), args=arguments) if name in _REFLECTION:
            return None if _names_plainly(arguments) else f"{name} with a computed name"
        case _:
            return None


def _refused_import(names: list[str]) -> str | None:
    for part in (part for name in names for part in name.split(".")):
        if part in _MODULES:
            return f"import {part}"
        if _is_dunder(part):
            return "a name in double underscores"
    return None


def _refused_name(name: str) -> str | None:
    return "a name in double underscores" if _is_dunder(name) else None


def _names_plainly(arguments: list[ast.expr]) -> bool:
    match arguments:
        case [ast.Starred(), *_]:
            return False
        case [_, ast.Constant(value=str(name)), *_]:
            return not _is_dunder(name)
        case _:
            return False


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__") and name not in _HARMLESS
