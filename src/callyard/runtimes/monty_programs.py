"""The programs that Monty may run: a check of their syntax, and their text as Monty runs it.

A program passes only if it uses nothing but what gave the same results in CPython and in Monty, for all values of JSON.
`tests/runtimes/test_monty_programs.py` compares them.
"""

import ast
import builtins
import math
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, NamedTuple, cast

import msgspec

__all__ = ["CALLABLES", "Translation", "translate"]

_CHARACTERS: Final = 10_000
_DEPTH: Final = 100
"""How deep expressions may be nested; the parser of Monty allows 200."""
_MODULES: Final = frozenset({"asyncio", "json", "math"})
_LAZY: Final = frozenset({"enumerate", "range", "reversed", "zip"})
"""Functions whose iterators are lists in Monty, or lack methods: a program may only loop over them."""
_BUILTINS: Final = frozenset({"abs", "all", "any", "bool", "len", "list", "max", "min", "print", "round", "sorted", "str", *_LAZY})
"""Not `sum`: since Python 3.12 it adds floats in another way. Not `int` and `float`: Monty reads fewer digits, and NaN equals NaN."""
_POSITIONAL: Final = {"round": 1, "str": 1, "startswith": 1, "endswith": 1, "count": 1, "index": 1, "dumps": 1}
"""How many arguments may be given by position, where Monty has others or treats them in another way."""
_KEYWORDS: Final = {
    "print": {"sep", "end"},
    "sorted": {"reverse"},
    "max": {"default"},
    "min": {"default"},
    "enumerate": {"start"},
    "dumps": {"indent", "sort_keys", "ensure_ascii", "separators"},
}
_MUTATORS: Final = frozenset({"append", "extend"})
_VIEWS: Final = frozenset({"items", "keys", "values"})
"""Methods whose results cannot be compared in Monty: a program may only loop over them, too."""
_METHODS: Final = frozenset(
    {
        *("get", "lower", "upper", "strip", "split", "join"),
        *("startswith", "endswith", "replace", "count", "index"),
        *_MUTATORS,
        *_VIEWS,
    }
)
_MODULE_NAMES: Final = {"asyncio": {"gather"}, "json": {"dumps"}, "math": {"floor", "ceil", "sqrt"}}
_NODES: Final = (
    *(ast.Module, ast.Expr, ast.Assign, ast.AugAssign, ast.If, ast.For, ast.While, ast.Break, ast.Continue, ast.Pass),
    *(ast.Import, ast.alias, ast.Name, ast.Load, ast.Store, ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Subscript, ast.Slice),
    *(ast.Attribute, ast.Call, ast.keyword, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Await),
    *(ast.JoinedStr, ast.FormattedValue, ast.ListComp, ast.DictComp, ast.comprehension, ast.boolop, ast.cmpop),
    *(ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.UAdd, ast.USub, ast.Not),
)
CALLABLES: Final = {"call_tool": None, "search_tools": "query", "describe_tool": "tool_id", "run_chain": "steps", "read_result": "handle"}


class _BeyondError(Exception):
    """A program that uses more of the language than Monty has."""


class _Edit(NamedTuple):
    """A part of a program on one line, and the text in its place."""

    start: tuple[int, int]
    end: tuple[int, int]
    text: str


class Translation(msgspec.Struct, frozen=True):
    """A program as Monty runs it, with the tools behind the names in it."""

    code: str
    tools: dict[str, str]
    is_guarded: bool = True
    """Whether its values and arguments are checked inside the worker."""
    original: str = ""
    edits: tuple[_Edit, ...] = ()

    def place(self, line: int, column: int) -> tuple[int, str]:
        """Return the column and the source line of the original program, for a place in ours."""
        if not self.original:
            return column, ""
        for edit in (edit for edit in self.edits if edit.start[0] == line):
            if column - 1 < edit.start[1] + len(edit.text):
                break
            column -= len(edit.text) - (edit.end[1] - edit.start[1])
        return column, self.original.split("\n")[line - 1] if line <= self.original.count("\n") + 1 else ""


@lru_cache(maxsize=16)  # a program is checked when its backend is chosen, and again when it runs
def translate(code: str) -> Translation | None:
    """Return a program for Monty, or nothing if it must be run by another backend."""
    if len(code) > _CHARACTERS or not code.isascii() or "\r" in code:  # positions in the tree count bytes, and '\r' ends lines
        return None
    try:
        tree = ast.parse(code)
        parents = _parents(tree)
        assigned = _assigned(tree)
        paths = list(_check(tree, parents, assigned))
        compile(tree, "<program>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)  # finds more mistakes than the parser
    except (SyntaxError, ValueError, RecursionError, MemoryError, _BeyondError):
        return None
    if any(node.lineno != node.end_lineno for node, _ in paths):
        return None
    last = tree.body[-1] if tree.body else None
    if "result" in assigned and (isinstance(last, ast.Expr) or not any(map(_sets_result, tree.body))):
        return None  # the value is known only at run time
    tools = {f"_tool_{number}": path for number, (_, path) in enumerate(paths)}
    edits = [_Edit(_start(node), _end(node), name) for name, (node, _) in zip(tools, paths, strict=True)]
    for argument in _arguments(tree):
        edits += [_Edit(_start(argument), _start(argument), "_argument("), _Edit(_end(argument), _end(argument), ")")]
    if isinstance(last, ast.Expr):  # two parentheses, for a tuple without any
        edits += [_Edit(_start(last.value), _start(last.value), "_value(("), _Edit(_end(last.value), _end(last.value), "))")]
    edits.sort()
    changed = _apply(edits, code)
    if not isinstance(last, ast.Expr):
        changed += f"\n_value({'result' if 'result' in assigned else None})"
    return Translation(changed, tools, original=code, edits=tuple(edits))


def _sets_result(statement: ast.stmt) -> bool:
    nodes = (node for target in statement.targets for node in ast.walk(target)) if isinstance(statement, ast.Assign) else ()
    return any(isinstance(node, ast.Name) and node.id == "result" and isinstance(node.ctx, ast.Store) for node in nodes)


def _parents(tree: ast.Module) -> dict[ast.AST, ast.AST]:
    parents, depths = dict[ast.AST, ast.AST](), {cast("ast.AST", tree): 0}
    for node in ast.walk(tree):
        for child in ast.iter_child_nodes(node):
            parents[child], depths[child] = node, depths[node] + 1
    _require(max(depths.values()) <= _DEPTH)
    return parents


def _start(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _end(node: ast.expr) -> tuple[int, int]:
    return node.end_lineno or node.lineno, node.end_col_offset or node.col_offset


def _apply(edits: list[_Edit], code: str) -> str:
    lines = code.split("\n")
    for (number, column), (_, end), text in reversed(edits):  # from the end, so that positions stay right
        lines[number - 1] = f"{lines[number - 1][:column]}{text}{lines[number - 1][end:]}"
    return "\n".join(lines)


def _arguments(tree: ast.Module) -> Iterator[ast.expr]:
    """Yield what a program passes to tools."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_tool(node.func):
            yield from node.args
            yield from (keyword.value for keyword in node.keywords)


def _assigned(tree: ast.Module) -> set[str]:
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    taken = {*dir(builtins), *CALLABLES, *_MODULES, "tools", "inputs"}  # in a comprehension, Monty finds a builtin before a variable
    _require(not names & taken and not any(name.startswith("_") for name in names))
    return names


def _check(tree: ast.Module, parents: dict[ast.AST, ast.AST], assigned: set[str]) -> Iterator[tuple[ast.expr, str]]:
    """Yield each tool that the program calls by its path, with its place.

    Raises:
        _BeyondError: The program uses something that Monty does not have, or may have in another way.
    """
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    counters = _never_lists(tree)
    for node in ast.walk(tree):
        _require(isinstance(node, _NODES))
        match node:
            case ast.alias(name=name, asname=other):
                _require(name in _MODULES and other is None)
            case ast.Name(id="tools"):
                yield _tool_call(node, parents)
            case ast.Name(id=name):
                _check_name(node, parents, known={*assigned, "inputs"}, imported=imported)
            case ast.Attribute(value=ast.Name(id=name), attr=attribute) if name in imported:
                _require(attribute in _MODULE_NAMES[name] and _is_called(node, parents))
            case ast.Attribute(attr=attribute) if not _is_path(node):
                _require(attribute in _METHODS and _is_called(node, parents))
                _require(attribute not in _VIEWS or _loop_around(parents[node], parents) is not None)
            case ast.Call():
                _check_call(node, parents)
            case ast.Await(value=value):
                _require(isinstance(value, ast.Call) and (_is_tool(value.func) or _is_gather(value)))
            case ast.AugAssign(target=target, op=ast.Add() | ast.Sub(), value=value):
                is_counter = isinstance(target, ast.Name) and target.id in counters
                _require(is_counter or isinstance(value, ast.List) or _is_number(value))
            case _:
                _require(not isinstance(node, ast.AugAssign))
                _check_expression(node)


def _require(condition: bool) -> None:  # noqa: FBT001 - it reads as an assertion
    if not condition:
        raise _BeyondError


def _check_expression(node: ast.AST) -> None:
    """Check what the parts of an expression do not tell; they are checked on their own."""
    match node:
        case ast.Constant(value=str() as value):
            _require(not any("\ud800" <= character <= "\udfff" for character in value))
        case ast.Constant(value=value):
            _require(value is None or isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)))
        case ast.Dict(keys=keys):
            _require(all(key is None or _is_text(key) for key in keys))
        case ast.DictComp(key=key):
            _require(_is_text(key))
        case ast.Subscript(ctx=ast.Store(), slice=key):
            _require(_is_text(key) or _is_number(key, int))
        case ast.FormattedValue(format_spec=spec):
            _require(spec is None)
        case ast.BinOp(op=ast.Mod(), left=left):
            _require(not _is_text(left))
        case ast.Compare(ops=operators, comparators=others):
            identities = (other for operator, other in zip(operators, others, strict=True) if isinstance(operator, ast.Is | ast.IsNot))
            _require(all(isinstance(other, ast.Constant) and other.value is None for other in identities))
        case ast.comprehension(is_async=is_async):
            _require(not is_async)
        case _:
            pass


def _is_text(node: ast.expr) -> bool:
    """Return whether an expression is a text for sure. Of two keys that are equal, such as 1 and 1.0, Monty keeps the other one."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, str)
        case ast.Call(func=ast.Name(id="str")) | ast.JoinedStr():
            return True
        case _:
            return False


def _is_number(node: ast.expr, *kinds: type) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (kinds or (int, float))


def _is_tool(function: ast.expr) -> bool:
    return _is_path(function) or (isinstance(function, ast.Name) and function.id in CALLABLES)


def _is_path(node: ast.AST) -> bool:
    """Return whether an expression is a part of `tools.<namespace>.<name>`."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name) and node.id == "tools"


def _is_gather(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "gather"


def _is_called(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> bool:
    call = parents[node]
    return isinstance(call, ast.Call) and call.func is node


def _check_name(node: ast.Name, parents: dict[ast.AST, ast.AST], *, known: set[str], imported: set[str]) -> None:
    """Check that functions are called and modules hold functions: as values they differ."""
    if node.id in CALLABLES:
        _require_await(node, parents)
    elif node.id in _LAZY:
        _require_loop(node, parents)
    elif node.id in imported:
        _require(isinstance(parents[node], ast.Attribute))
    else:
        _require(_is_called(node, parents) if node.id in _BUILTINS else node.id in known)


def _check_call(call: ast.Call, parents: dict[ast.AST, ast.AST]) -> None:
    keywords = {keyword.arg for keyword in call.keywords}
    if _is_gather(call):
        awaited = isinstance(parents[call], ast.Await)
        _require(awaited and not keywords and all(isinstance(one, ast.Call) and _is_tool(one.func) for one in call.args))
    elif _is_tool(call.func):
        least, most = (1, 2) if _name_of(call.func) == "call_tool" else (0, 0 if _is_path(call.func) else 1)
        _require(None not in keywords and least <= len(call.args) <= most)
    else:
        name = _name_of(call.func)
        _require(isinstance(call.func, ast.Attribute) or name in _BUILTINS)
        _require(keywords <= _KEYWORDS.get(name, set()) and len(call.args) <= _POSITIONAL.get(name, len(call.args)))
        orders = (keyword.value for keyword in call.keywords if keyword.arg == "reverse")
        _require(all(isinstance(order, ast.Constant) and isinstance(order.value, bool) for order in orders))


def _name_of(function: ast.expr) -> str:
    return function.id if isinstance(function, ast.Name) else function.attr if isinstance(function, ast.Attribute) else ""


def _tool_call(name: ast.Name, parents: dict[ast.AST, ast.AST]) -> tuple[ast.expr, str]:
    parts: list[str] = []
    node: ast.AST = name
    while isinstance(parent := parents[node], ast.Attribute):
        parts.append(parent.attr)
        node = parent
    _require(bool(parts) and not any(part.startswith("__") for part in parts))
    _require_await(node, parents)
    return cast("ast.expr", node), ".".join(parts)


def _require_await(function: ast.AST, parents: dict[ast.AST, ast.AST]) -> None:
    """Check that a call is awaited at once, or by `asyncio.gather`: a forgotten `await` has another meaning in Monty."""
    _require(_is_called(function, parents))
    call = parents[function]
    _require(isinstance(parents[call], ast.Await) or _is_gather(parents[call]))
    while (node := parents.get(call)) is not None:
        _require(not isinstance(node, ast.JoinedStr))  # its positions are wrong before Python 3.12
        call = node


def _require_loop(function: ast.Name, parents: dict[ast.AST, ast.AST]) -> None:
    """Check that an iterator is used at once, and that nothing changes meanwhile what it walks over: Monty has walked already."""
    _require(_is_called(function, parents))
    loop = _loop_around(parents[function], parents)
    _require(loop is not None and (function.id == "range" or not any(map(_changes, ast.walk(loop)))))


def _loop_around(call: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    """Return what walks over the result of a call: a loop, a comprehension, or a function that makes a list."""
    match parents[call]:
        case ast.For(iter=walked) as loop if walked is call:
            return loop
        case ast.comprehension(iter=walked) as loop if walked is call:
            return parents[loop]
        case ast.Call(func=ast.Name(id="list" | "sorted")) as loop:
            return loop
        case _:
            return None


def _changes(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr=attribute):
            return attribute in _MUTATORS
        case ast.Subscript(ctx=ast.Store()):
            return True
        case ast.AugAssign(value=ast.List()):
            return True
        case _:
            return False


def _never_lists(tree: ast.Module) -> set[str]:
    """Return the variables that begin with a number or a text: Monty adds nothing to a list but lists."""
    stores = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    safe = set[ast.AST]()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign):
            safe.add(node.target)
        elif isinstance(node, ast.Assign) and (_is_number(node.value) or _is_text(node.value)):
            safe.update(node.targets)
    return {node.id for node in stores} - {node.id for node in stores if node not in safe}
