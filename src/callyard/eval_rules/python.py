"""The rules for Python code of an eval tool: blocked names, attributes, modules and texts in its syntax tree."""

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Final

from callyard.model.names import words_in

__all__ = ["python_refusal"]

_BLOCKED_NAMES: Final = words_in(
    "__import__ eval exec execfile compile open input breakpoint exit quit help globals locals vars dir get_ipython "
    "SystemExit KeyboardInterrupt GeneratorExit BaseException BaseExceptionGroup"
)
"""Builtins that run code, reach files or names, wait for a person, or end the process."""
_BLOCKED_ATTRIBUTES: Final = words_in(
    "eval exec execfile popen attrgetter methodcaller Formatter make_dataclass get_type_hints ForwardRef FunctionType "
    "CodeType LambdaType chdir redirect_stdout redirect_stderr format_map mro with_traceback modules meta_path "
    "path_hooks read_pickle startfile execv execve spawnv cell_contents"
)
_FRAME: Final = re.compile(
    r"(?:gi|cr|ag|tb)_\w+|f_(?:back|builtins|code|generator|globals|lasti|lineno|locals|trace\w*)"
    r"|im_(?:class|func|self)"
    r"|func_(?:closure|code|defaults|globals)|co_(?:code|consts|names|\w+vars|varnames|filename|name|lines|positions)"
)
"""Attributes of frames, tracebacks, functions and their code."""
_MODULE_ATTRIBUTES: Final = words_in(
    "os sys posix nt subprocess builtins importlib imp ctypes shutil pty gc inspect pickle marshal pathlib tempfile "
    "runpy linecache codecs multiprocessing socket copyreg"
)
"""Modules that are attributes of harmless ones; these names rarely mean anything else."""
_BLOCKED_MODULES: Final = _MODULE_ATTRIBUTES | words_in(
    "signal code codeop pdb shelve glob fileinput mmap resource fcntl webbrowser http ftplib smtplib telnetlib ssl "
    "site socketserver xmlrpc urllib.request io.open io.FileIO pkgutil zipimport concurrent.futures threading asyncio "
    "_thread atexit"
)
_REFLECTION: Final = frozenset({"getattr", "setattr", "delattr", "hasattr"})
_DUNDERS: Final = frozenset(
    f"__{prefix}{name}__"
    for prefix in ("", "r", "i")
    for name in words_in(
        "init post_init str repr len iter next call getitem setitem delitem contains enter exit aenter aexit aiter "
        "anext await hash bool eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and or xor lshift rshift "
        "neg pos abs invert int float complex index round floor ceil trunc divmod reversed missing bytes"
    )
)
"""Methods in double underscores that code may define and call; operators also reflected and in place."""
_PUBLIC: Final = _DUNDERS | {"__name__", "__doc__", "_", "_asdict", "_fields", "_make", "_replace"}
"""Attributes with an underscore that code may read."""
_CODING: Final = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*(?!(?:utf-?8|us-ascii|ascii)\b)[-\w.]", re.IGNORECASE)
_PRIVATE_TEXT: Final = re.compile(
    r"(?<![A-Za-z0-9])__[A-Za-z]|[A-Za-z]__(?![A-Za-z0-9])|__[a-z]+__|__%|%.__|\{[^{}]*[.\[]_"
)
"""A text with a name in double underscores, or a format that reads a private attribute."""
_DUNDER: Final = "a name in double underscores"


def python_refusal(text: str, imports: tuple[str, ...] = ()) -> str | None:
    """Return the rule that Python code breaks, in words that never repeat the code; none if it keeps to all.

    `imports` are modules that the code may import although they are blocked.
    """
    if any(_CODING.match(line) for line in re.split(r"\r\n|\r|\n", text, maxsplit=2)[:2]):
        return "another encoding"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):  # CPython's own depth check
        return "code that does not parse"
    called = {id(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return next((refusal for node in ast.walk(tree) for refusal in _refusals(node, called, imports)), None)


def _refusals(node: ast.AST, called: dict[int, ast.Call], imports: tuple[str, ...]) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from _blocked_modules([alias.name for alias in names], imports)
        case ast.ImportFrom(module=module, names=names, level=level):
            yield from _blocked_modules([f"{'.' * level}{module}.{alias.name}" for alias in names], imports)
            yield from _blocked_attributes([alias.name for alias in names])
        case ast.MatchClass(kwd_attrs=names):
            yield from _blocked_attributes(names)
        case ast.Name(id=name):
            yield from _blocked_name(name, called.get(id(node)), imports)
        case ast.Attribute(value=value, attr=name):
            yield from _blocked_attributes([name], value)
            if isinstance(value, ast.Name) and f"{value.id}.{name}" in _BLOCKED_MODULES:
                yield f"'{value.id}.{name}'"
        case ast.Constant(value=str() | bytes() as text):
            written = text if isinstance(text, str) else text.decode("latin-1")
            if written != "__main__" and _PRIVATE_TEXT.search(written):
                yield "a text in double underscores"
        case ast.BinOp() | ast.JoinedStr() if _adds_underscores(node):
            yield "a text in double underscores"
        case _:
            pass
    yield from _blocked_definitions(node)


def _adds_underscores(node: ast.AST) -> bool:
    """Return whether two underscores are added to a text, or one is doubled."""
    parts = [part.value for part in ast.iter_child_nodes(node) if isinstance(part, ast.Constant)]
    return "__" in parts or b"__" in parts or parts == ["_", 2]


def _blocked_definitions(node: ast.AST) -> Iterator[str]:
    names: list[object] = [getattr(node, field, None) for field in ("name", "arg", "asname", "rest")]
    names += node.names if isinstance(node, ast.Global | ast.Nonlocal) else ()
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        names.append(node.attr)
    allowed = _DUNDERS if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else frozenset[str]()
    if any(isinstance(name, str) and _is_dunder(name) and name not in allowed for name in names):
        yield _DUNDER


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _blocked_modules(names: list[str], imports: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        parts = name.split(".")
        paths = {".".join(parts[: length + 1]) for length in range(len(parts))}
        is_blocked = not paths.isdisjoint(_BLOCKED_MODULES) or not _MODULE_ATTRIBUTES.isdisjoint(parts)
        if name.startswith(".") or (is_blocked and paths.isdisjoint(imports)):
            yield "an import that is blocked"


def _blocked_name(name: str, call: ast.Call | None, imports: tuple[str, ...]) -> Iterator[str]:
    """Check a name; `call` is the call whose function it is."""
    if name in _BLOCKED_NAMES:
        yield f"'{name}'"
    if name in _MODULE_ATTRIBUTES and name not in imports:
        yield f"the module '{name}'"
    if _is_dunder(name) and name != "__name__":
        yield _DUNDER
    if name == "type" and (call is None or len(call.args) != 1 or call.keywords):
        yield "'type' as a value"
    match call:
        case _ if name not in _REFLECTION:
            pass
        case ast.Call(args=[ast.expr() as first, ast.Constant(value=str(attribute)), *_]):
            yield from _blocked_attributes([attribute], first)
            if _is_dunder(attribute) or isinstance(first, ast.Starred):
                yield _DUNDER
        case _:
            yield f"'{name}' with a computed name, or under another name"


def _blocked_attributes(names: list[str], owner: ast.expr | None = None) -> Iterator[str]:
    on_self = isinstance(owner, ast.Name) and owner.id in {"self", "cls"}
    for name in names:
        if name in _BLOCKED_ATTRIBUTES:
            yield f"'{name}'"
        elif _FRAME.fullmatch(name):
            yield "a frame, a traceback or the code of a function"
        elif name.lstrip("_") in _MODULE_ATTRIBUTES:
            yield f"the module '{name.lstrip('_')}'"
        elif name.startswith("_") and name not in _PUBLIC and (not on_self or _is_dunder(name)):
            yield _DUNDER if _is_dunder(name) else "a private attribute"
