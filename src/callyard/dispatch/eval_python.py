"""The rules for Python code of an eval tool, checked in its syntax tree.

Names of the application are unknown here, so names and attributes are open; the builtins, the modules and every way from a text
to an attribute are closed: only what is listed here may be used.
"""

import ast
import builtins
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from string import Formatter
from types import ModuleType
from typing import Any, Final

from callyard.model.names import words_in

__all__ = ["IMPORTS", "python_refusal"]

_SAFE_BUILTINS: Final = words_in(
    "abs aiter all anext any ascii bin bool bytearray bytes callable chr classmethod complex dict divmod enumerate filter float "
    "format frozenset hash hex id int isinstance issubclass iter len list map max memoryview min next object oct ord pow print "
    "property range repr reversed round set slice sorted staticmethod str sum super tuple zip Ellipsis NotImplemented __name__"
)
_STOPS: Final = frozenset({"SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException", "BaseExceptionGroup"})
"""Exceptions that end a program, or that catch one that does."""
_REFLECTION: Final = frozenset({"getattr", "setattr", "delattr", "hasattr"})
_SITE_NAMES: Final = words_in("exit quit help copyright credits license get_ipython execfile reload file")
_MODULE_NAMES: Final = words_in(
    "os sys posix nt subprocess builtins importlib imp ctypes shutil pty gc inspect pickle marshal pathlib tempfile runpy "
    "linecache codecs multiprocessing socket"
)
"""Modules that are attributes of harmless ones; these names rarely mean anything else."""
_BLOCKED_ATTRIBUTES: Final = words_in(
    "format format_map mro with_traceback eval exec execfile popen modules meta_path path_hooks f_back f_builtins f_code "
    "f_generator f_globals f_lasti f_lineno f_locals f_trace f_trace_lines f_trace_opcodes func_closure func_code func_defaults "
    "func_globals im_class im_func im_self co_code co_consts co_names co_varnames co_freevars co_cellvars co_filename co_name "
    "co_lines co_positions co_flags co_argcount read_pickle startfile execv execve spawnv"
)
_BLOCKED_PREFIXES: Final = ("gi_", "cr_", "ag_", "tb_")
_ENUMS: Final = words_in("Enum Flag IntEnum IntFlag StrEnum")
"""Classes that make another class of computed names when they are called; one with members no longer does."""
_TUPLE_METHODS: Final = frozenset({"_asdict", "_fields", "_make", "_replace"})
_DUNDERS: Final = frozenset(
    f"__{name}__"
    for name in words_in(
        "init post_init str repr len iter next call getitem setitem delitem contains enter exit aenter aexit aiter anext await hash "
        "bool eq ne lt le gt ge add radd iadd sub rsub isub mul rmul imul truediv rtruediv itruediv floordiv rfloordiv ifloordiv mod "
        "rmod imod pow rpow ipow matmul rmatmul imatmul and rand iand or ror ior xor rxor ixor lshift rlshift ilshift rshift rrshift "
        "irshift neg pos abs invert int float complex index round floor ceil trunc divmod rdivmod reversed missing bytes"
    )
)
"""Methods in double underscores that code may define and call."""
_READABLE: Final = _DUNDERS | {"__name__", "__doc__"}

IMPORTS: Final[dict[str, str]] = {
    "__future__": "annotations",
    "abc": "ABC abstractmethod",
    "base64": "",
    "binascii": "",
    "bisect": "",
    "calendar": "",
    "cmath": "",
    "collections": "",
    "collections.abc": "",
    "colorsys": "",
    "contextlib": "ExitStack closing contextmanager nullcontext suppress",
    "copy": "copy deepcopy",
    "csv": "",
    "dataclasses": "FrozenInstanceError KW_ONLY asdict astuple dataclass is_dataclass replace",  # 'exec' trusts the names in a 'Field'
    "datetime": "",
    "decimal": "",
    "difflib": "",
    "enum": "Enum Flag IntEnum IntFlag StrEnum auto unique",
    "fractions": "",
    "functools": "cache cached_property cmp_to_key lru_cache partial reduce total_ordering",  # others read attributes by name
    "graphlib": "",
    "hashlib": "",
    "heapq": "",
    "html": "",
    "io": "BytesIO StringIO",
    "itertools": "",
    "json": "",
    "math": "",
    "numbers": "",
    "operator": "-attrgetter -methodcaller",
    "pprint": "",
    "random": "",
    "re": "",
    "secrets": "",
    "statistics": "",
    "string": "-Formatter",
    "struct": "",
    "textwrap": "",
    "time": "-clock_settime -clock_settime_ns -sleep -tzset",
    "types": "MappingProxyType SimpleNamespace",
    "typing": (  # others evaluate texts
        "Any Optional Union List Dict Tuple Set FrozenSet Callable Iterable Iterator Sequence Mapping MutableMapping Literal TypeVar "
        "Generic NamedTuple TypedDict Final ClassVar cast Generator Type Protocol Self Annotated TypeAlias Hashable Collection Deque "
        "DefaultDict Counter OrderedDict TYPE_CHECKING"
    ),
    "unicodedata": "",
    "urllib.parse": "",
    "uuid": "UUID uuid3 uuid4 uuid5 NAMESPACE_DNS NAMESPACE_URL NAMESPACE_OID NAMESPACE_X500",
    "zlib": "",
    "zoneinfo": "ZoneInfo ZoneInfoNotFoundError available_timezones",
}
"""Modules that may be imported, each with the names that may be used: those listed, or the public ones without those marked '-'."""

_MATCHED_WHOLE: Final = frozenset({"bool", "bytearray", "bytes", "dict", "float", "frozenset", "int", "list", "set", "str", "tuple"})
"""Types whose pattern takes the value itself; other types name the attributes that a pattern reads."""
_CODING: Final = re.compile(r"[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
_LINE: Final = re.compile(r"\r\n|\r|\n")
_CODINGS: Final = frozenset({"utf-8", "utf8", "utf_8", "ascii", "us-ascii"})
_DUNDER_TEXT: Final = re.compile(r"(?<![A-Za-z0-9])__|__(?![A-Za-z0-9])|__[a-z]+__")
_UNDERSCORES: Final = frozenset({"_", "__", b"_", b"__"})
_IDENTIFIERS: Final[dict[type[ast.AST], tuple[str, ...]]] = {
    ast.FunctionDef: ("name",),
    ast.AsyncFunctionDef: ("name",),
    ast.ClassDef: ("name",),
    ast.arg: ("arg",),
    ast.keyword: ("arg",),
    ast.ExceptHandler: ("name",),
    ast.Global: ("names",),
    ast.Nonlocal: ("names",),
    ast.MatchAs: ("name",),
    ast.MatchStar: ("name",),
    ast.MatchMapping: ("rest",),
}


def python_refusal(text: str, imports: tuple[str, ...] = ()) -> str | None:
    """Return the rule that Python code breaks, in words that never repeat the code; none if it keeps to all.

    `imports` are modules of the application that the code may import as well.
    """
    for line in _LINE.split(text, maxsplit=2)[:2]:
        coding = _CODING.match(line)
        if coding is not None and coding[1].lower() not in _CODINGS:
            return "another encoding"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "code that does not parse"
    return next(_Program(tree, imports).refusals(), None)


@cache
def _public_names(module: str) -> frozenset[str]:
    """Return the names of an allowed module that code may use."""
    rule = IMPORTS[module].split()
    listed = frozenset(name for name in rule if not name.startswith("-"))
    if listed:
        return listed
    loaded = import_module(module)
    public = frozenset(_star_names(loaded)) - {name.removeprefix("-") for name in rule}
    return frozenset(name for name in public if not isinstance(getattr(loaded, name, None), ModuleType))


def _star_names(loaded: ModuleType) -> list[str]:
    return list(getattr(loaded, "__all__", [name for name in dir(loaded) if not name.startswith("_")]))


@cache
def _blocked_builtins() -> frozenset[str]:
    known = {name for name in dir(builtins) if name not in _SAFE_BUILTINS}
    errors = {name for name in known if isinstance(getattr(builtins, name), type) and issubclass(getattr(builtins, name), BaseException)}
    return frozenset((known - errors) | _STOPS | _SITE_NAMES) - {"True", "False", "None"}


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


class _Program:
    """One program: its tree, the modules that it imports, and the checks of its nodes."""

    def __init__(self, tree: ast.Module, imports: tuple[str, ...]) -> None:
        self._nodes = list(ast.walk(tree))
        self._own = frozenset(imports)
        self._parents: dict[int, ast.AST] = {}
        self._modules: dict[str, str] = {}
        """Names that are bound to an allowed module."""
        self._enums: dict[str, str] = {}
        """Names that are bound to a part of the module `enum`."""
        self._bound: frozenset[str] | None = None
        self._stored: frozenset[str] | None = None
        self._checks: dict[type[ast.AST], Callable[[Any], str | None]] = {
            ast.Import: self._import,
            ast.ImportFrom: self._import_from,
            ast.Name: self._name,
            ast.Attribute: self._attribute,
            ast.Call: self._call,
            ast.Constant: self._constant,
            ast.BinOp: self._operation,
            ast.MatchClass: self._pattern,
            ast.ClassDef: self._class,
        }

    def refusals(self) -> Iterator[str]:
        """Yield the rules that the program breaks."""
        for node in self._nodes:
            for child in ast.iter_child_nodes(node):
                self._parents[id(child)] = node
            if isinstance(node, ast.Import | ast.ImportFrom):
                refusal = self._checks[type(node)](node)
                if refusal is not None:
                    yield refusal
        for node in self._nodes:
            check = self._checks.get(type(node))
            refusal = check(node) if check is not None else None
            if refusal is None and type(node) in _IDENTIFIERS:
                refusal = self._identifiers(node)
            if refusal is not None:
                yield refusal

    def _identifiers(self, node: ast.AST) -> str | None:
        allowed: frozenset[str] = _DUNDERS if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else frozenset()
        for field in _IDENTIFIERS[type(node)]:
            value: str | list[str] | None = getattr(node, field)
            for name in value if isinstance(value, list) else [value or ""]:
                if _is_dunder(name) and name not in allowed:
                    return "a name in double underscores"
                if name in self._modules and not isinstance(node, ast.keyword):
                    return "a module under another name"
        return None

    def _import(self, node: ast.Import) -> str | None:
        for alias in node.names:
            bound = alias.asname or alias.name.partition(".")[0]
            if not self._is_own(alias.name):
                if alias.name not in IMPORTS:
                    return "an import that is not allowed"
                module = alias.name if alias.asname else bound
                if self._modules.setdefault(bound, module) != module:
                    return "a module under another name"
            if bound.startswith("_") and bound != "_":
                return "a module under another name"
        return None

    def _import_from(self, node: ast.ImportFrom) -> str | None:
        module = node.module or ""
        if node.level or not (self._is_own(module) or module in IMPORTS):
            return "an import that is not allowed"
        for alias in node.names:
            if module == "enum":
                self._enums[alias.asname or alias.name] = alias.name
            if _is_dunder(alias.asname or "") or (alias.asname or alias.name) in self._modules:
                return "a module under another name"
            if self._is_own(module):
                refusal = self._attribute_name(alias.name, on_self=False)
            elif alias.name == "*":
                loaded = import_module(module)
                refusal = None if _public_names(module).issuperset(_star_names(loaded)) else "an import of everything"
            else:
                refusal = None if alias.name in _public_names(module) else "an import that is not allowed"
            if refusal is not None:
                return refusal
        return None

    def _is_own(self, module: str) -> bool:
        return module in self._own or any(module.startswith(f"{own}.") for own in self._own)

    def _name(self, node: ast.Name) -> str | None:  # noqa: PLR0911 - one for each rule
        name = node.id
        if name in self._modules:
            parent = self._parents[id(node)]
            return None if isinstance(parent, ast.Attribute) and isinstance(node.ctx, ast.Load) else "a module as a value"
        if self._enum_of(node) in _ENUMS or name == "_ignore_":
            return self._enum(node)
        if name in _REFLECTION:
            parent = self._parents[id(node)]
            is_called = isinstance(parent, ast.Call) and parent.func is node
            return None if is_called else f"'{name}' under another name"
        if name == "type":
            return self._type(node)
        if name in _blocked_builtins():
            return f"'{name}'"
        if name in _MODULE_NAMES and name not in self._own:
            return f"the module '{name}'"
        return "a name in double underscores" if _is_dunder(name) and name != "__name__" else None

    def _type(self, node: ast.Name) -> str | None:
        """Check that the type of a value is only compared or named."""
        call = self._parents[id(node)]
        match call:
            case ast.Call(func=func, args=[argument], keywords=[]) if func is node and not isinstance(argument, ast.Starred):
                match self._parents[id(call)]:
                    case ast.Attribute(attr="__name__") | ast.Compare():
                        return None
                    case _:
                        pass
            case _:
                pass
        return "'type' as a value"

    def _attribute(self, node: ast.Attribute) -> str | None:  # noqa: PLR0911 - one for each rule
        if node.attr in {"format", "format_map"} and self._is_harmless_format(node):
            return None
        if _is_dunder(node.attr) and not isinstance(node.ctx, ast.Load):
            return "a name in double underscores"
        on_self = isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}
        refusal = self._attribute_name(node.attr, on_self=on_self)
        module = self._module_of(node.value)
        if refusal is not None or module is None:
            return refusal
        if not isinstance(node.ctx, ast.Load):
            return "a change of a module"
        if f"{module}.{node.attr}" in IMPORTS:
            return None if isinstance(self._parents[id(node)], ast.Attribute) else "a module as a value"
        if module not in IMPORTS or node.attr not in _public_names(module):
            return "a part of a module that is not allowed"
        return self._enum(node) if self._enum_of(node) in _ENUMS else None

    def _enum_of(self, node: ast.expr) -> str | None:
        """Return which part of the module `enum` an expression is."""
        if isinstance(node, ast.Attribute):
            return node.attr if self._module_of(node.value) == "enum" else None
        return self._enums.get(node.id) if isinstance(node, ast.Name) else None

    def _enum(self, node: ast.expr) -> str | None:
        parent = self._parents[id(node)]
        return None if isinstance(parent, ast.ClassDef) and node in parent.bases else "an enumeration as a value"

    def _class(self, node: ast.ClassDef) -> str | None:
        """Check that an enumeration has a member."""
        if not any(self._enum_of(base) in _ENUMS for base in node.bases):
            return None
        if node.keywords or not any(map(self._is_member, node.body)):
            return "an enumeration without members"
        return None

    def _is_member(self, statement: ast.stmt) -> bool:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant()):
                return not name.startswith("_")
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Name(id=auto) as func, args=[])):
                return not name.startswith("_") and self._enum_of(func) == "auto" and auto not in self._stored_names()
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=ast.Attribute() as func, args=[])):
                return not name.startswith("_") and self._enum_of(func) == "auto"
            case _:
                return False

    def _module_of(self, node: ast.expr) -> str | None:
        """Return the module that an expression is."""
        if isinstance(node, ast.Name):
            return self._modules.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):  # no allowed module is deeper
            name = f"{self._modules.get(node.value.id)}.{node.attr}"
            return name if name in IMPORTS else None
        return None

    @staticmethod
    def _attribute_name(name: str, *, on_self: bool) -> str | None:
        if _is_dunder(name):
            return None if name in _READABLE else "a name in double underscores"
        if name in _BLOCKED_ATTRIBUTES or name.startswith(_BLOCKED_PREFIXES):
            return f"'{name}'" if name in _BLOCKED_ATTRIBUTES else "a frame or code of a generator or traceback"
        if name.lstrip("_") in _MODULE_NAMES:
            return f"the module '{name.lstrip('_')}'"
        if name.startswith("_") and not on_self and name not in _TUPLE_METHODS and name != "_":
            return "a private attribute"
        return None

    def _is_harmless_format(self, node: ast.Attribute) -> bool:
        """Return whether this is the call of `format` of a literal text that reads no attributes."""
        parent = self._parents[id(node)]
        is_called = isinstance(parent, ast.Call) and parent.func is node
        match node.value:
            case ast.Constant(value=str(text)) if is_called and node.attr == "format":
                return _reads_no_attribute(text)
            case _:
                return False

    def _call(self, node: ast.Call) -> str | None:
        """Check that an attribute that is named by a text is one that code may name."""
        if not isinstance(node.func, ast.Name) or node.func.id not in _REFLECTION:
            return None
        match node.args:
            case [ast.Starred(), *_]:
                pass
            case [ast.Name(id=target), ast.Constant(value=str(name)), *_] if target not in self._modules:
                if _is_dunder(name) and node.func.id in {"setattr", "delattr"}:
                    return "a name in double underscores"
                return self._attribute_name(name, on_self=target in {"self", "cls"})
            case [_, ast.Constant(value=str(name)), *_]:
                return "a name in double underscores" if _is_dunder(name) else self._attribute_name(name, on_self=False)
            case _:
                pass
        return f"'{node.func.id}' with a computed name"

    def _constant(self, node: ast.Constant) -> str | None:
        value = node.value
        if isinstance(value, bytes):
            value = value.decode("latin-1")
        if not isinstance(value, str) or "__" not in value or value == "__main__":
            return None
        if not value.strip("_"):
            return "a text in double underscores" if isinstance(self._parents[id(node)], ast.JoinedStr) else None
        found = _DUNDER_TEXT.search(value) or _DUNDER_TEXT.search(value[::-1])
        return "a text in double underscores" if found else None

    @staticmethod
    def _operation(node: ast.BinOp) -> str | None:
        """Check that no text of one or two underscores is added or doubled."""
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if isinstance(side, ast.Constant) and side.value in _UNDERSCORES:
                doubled = isinstance(node.op, ast.Mult) and isinstance(other, ast.Constant) and other.value in {1, 2}
                if doubled or (isinstance(node.op, ast.Add) and side.value in {"__", b"__"}):
                    return "a text in double underscores"
        return None

    def _pattern(self, node: ast.MatchClass) -> str | None:
        for name in node.kwd_attrs:
            refusal = "a name in double underscores" if _is_dunder(name) else self._attribute_name(name, on_self=False)
            if refusal is not None:
                return refusal
        if not node.patterns or (isinstance(node.cls, ast.Name) and node.cls.id in _MATCHED_WHOLE and not self._binds(node.cls.id)):
            return None
        return "a pattern of a class with positions"

    def _binds(self, name: str) -> bool:
        """Return whether the program gives a name another meaning."""
        if self._bound is None:
            imported = {node.asname or node.name for node in self._nodes if isinstance(node, ast.alias)}
            self._bound = self._stored_names() | imported
        return name in self._bound

    def _stored_names(self) -> frozenset[str]:
        """Return the names that get a value other than by an import."""
        if self._stored is None:
            stored = {node.id for node in self._nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
            others = {str(getattr(node, field)) for node in self._nodes for field in _IDENTIFIERS.get(type(node), ())}
            self._stored = frozenset(stored | others)
        return self._stored


def _reads_no_attribute(text: str) -> bool:
    try:
        parts = list(Formatter().parse(text))
    except ValueError:
        return False
    for _, field, spec, _ in parts:
        if field is not None and ("." in field or "[" in field):
            return False
        if spec and not _reads_no_attribute(spec):
            return False
    return True


if sys.version_info >= (3, 12):
    _IDENTIFIERS.update({ast.TypeVar: ("name",), ast.ParamSpec: ("name",), ast.TypeVarTuple: ("name",)})
