"""Rules about the source that no other tool checks: sizes, docstrings, imports, codes, names, side effects."""

import ast
import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from table_tests import every_row

import callyard
from callyard.model.errors import CODES, CodeName

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "callyard").rglob("*.py"))
TOP = ROOT / "src" / "callyard"
FOLDERS = sorted({path.parent for path in SOURCES if path.name != "__init__.py"} - {TOP})
FILE_LINES = 600
FUNCTION_LINES = 50
COLUMNS = 120
INNER_IMPORTS = 50
CALL_FIELDS = 20
POSITIONAL_ARGUMENTS = 5
MODULES = [pytest.param(path, id=str(path.relative_to(ROOT / "src" / "callyard"))) for path in SOURCES]


@functools.cache
def tree_of(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_text())
    except SystemError:  # CPython 3.11 confuses the depths of two threads that parse at the same time
        return ast.parse(path.read_text())


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [getattr(target, "id", "") for target in targets]


@every_row("path", MODULES)
def test_a_file_has_at_most_600_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES


@every_row("path", MODULES)
def test_a_function_has_at_most_50_lines(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= FUNCTION_LINES, f"{path.name}: '{node.name}' has {lines} lines."


def test_no_line_has_more_than_120_columns() -> None:
    """A reason for a check that is switched off does not count, as in ruff, and neither does a pattern in one word."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(re.sub(r"  # (noqa|pyright: ignore).*", "", line)) > COLUMNS and " " in line.strip()
    ]
    assert not long, f"{len(long)} lines have more than {COLUMNS} columns."


def nested_conditionals(tree: ast.Module) -> list[int]:
    """Return the lines of conditional expressions that hold another one."""
    return [
        outer.lineno
        for outer in ast.walk(tree)
        if isinstance(outer, ast.IfExp)
        and any(isinstance(inner, ast.IfExp) for inner in ast.walk(outer) if inner is not outer)
    ]


def test_no_conditional_expression_holds_another_one() -> None:
    nested = [f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in nested_conditionals(tree_of(path))]
    assert not nested, f"{len(nested)} conditional expressions hold another one."


def test_a_nested_conditional_expression_is_found_in_source() -> None:
    assert nested_conditionals(ast.parse("a = 1 if b else 2 if c else 3")) == [1]
    assert nested_conditionals(ast.parse("a = 1 if b else [2 if c else 3 for c in d]")) == [1]
    assert nested_conditionals(ast.parse("a = [1 if b else 2, 3 if c else 4]")) == []


def inner_imports(tree: ast.Module) -> list[int]:
    """Return the lines of imports inside functions, `import_module` included."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {node for function in functions for node in ast.walk(function)}
    return sorted(
        node.lineno
        for node in inner
        if isinstance(node, ast.Import | ast.ImportFrom)
        or (isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "import_module")
    )


def test_few_imports_are_inside_functions() -> None:
    inner = [f"{path.relative_to(ROOT)}:{line}" for path in SOURCES for line in inner_imports(tree_of(path))]
    assert len(inner) <= INNER_IMPORTS, (
        f"{len(inner)} imports are inside functions; {INNER_IMPORTS} are allowed: {inner}"
    )


def test_an_import_inside_a_function_is_found_once_in_source() -> None:
    source = "import a\ndef f():\n  import b\n  def g():\n    return importlib.import_module('c')"
    assert inner_imports(ast.parse(source)) == [3, 5]


@every_row("path", MODULES)
def test_a_module_has_a_docstring_and_a_list_of_public_names(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree), f"{path.name} has no docstring."
    targets = [
        target for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for target in _targets(node)
    ]
    assert "__all__" in targets, f"{path.name} has no '__all__'."


@every_row("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT))
def test_the_docstring_of_a_folder_names_its_files(folder: Path) -> None:
    docstring = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
    listed = re.findall(r"^- `(\w+)`: ", docstring, re.MULTILINE)

    assert listed == sorted(path.stem for path in folder.glob("*.py") if path.name != "__init__.py")


@every_row("path", [path for path in SOURCES if "cli" not in path.parts], ids=str)
def test_nothing_prints_outside_the_command_line(path: Path) -> None:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    assert not [call for call in calls if getattr(call.func, "id", "") == "print"]


def codes_in(tree: ast.Module) -> set[str]:
    """Return the codes in the source of a module: in failures, reasons, stops and keyword arguments."""
    codes: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        function = getattr(node.func, "id", getattr(node.func, "attr", ""))
        values = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        if function in {"ToolError", "Reason", "stop"} and node.args:
            values.append(node.args[0])
        codes |= {value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)}
    return codes


@every_row("path", MODULES)
def test_every_code_in_the_source_is_registered(path: Path) -> None:
    assert codes_in(tree_of(path)) <= set(CODES)


@every_row(
    "line",
    [
        'raise ToolError("made_up", "No.")',
        'raise errors.ToolError("made_up", "No.")',
        'Reason("made_up")',
        'call.stop("made_up")',
        'f(code="made_up")',
    ],
)
def test_an_unregistered_code_is_found_in_source(line: str) -> None:
    assert codes_in(ast.parse(line)) == {"made_up"}


def test_a_failure_needs_a_registered_code() -> None:
    with pytest.raises(ValueError, match="made_up"):
        callyard.ToolError("made_up", "No.")  # pyright: ignore[reportArgumentType] - the wrong code is the test


def test_the_type_and_the_table_of_codes_agree() -> None:
    assert list(CodeName.__args__) == list(CODES)


@every_row("path", [path for path in SOURCES if path.name != "pydantic.py"], ids=str)
def test_only_one_module_imports_pydantic(path: Path) -> None:
    imports = [
        name
        for node in ast.walk(tree_of(path))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [getattr(node, "module", None) or ""]
        )
        if isinstance(node, ast.Import | ast.ImportFrom) and name.split(".")[0] == "pydantic"
    ]
    assert not imports


def test_every_public_name_is_loaded_when_first_used() -> None:
    for name in callyard.__all__:
        assert getattr(callyard, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        callyard.nothing_of_ours  # noqa: B018 # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] - the access raises
    assert dir(callyard) == sorted(callyard.__all__)


@every_row("path", [path for path in SOURCES if path.name == "__init__.py"], ids=str)
def test_a_type_checker_sees_no_getattr_of_a_package(path: Path) -> None:
    names = [
        name
        for node in tree_of(path).body
        for name in (
            [node.name] if isinstance(node, ast.FunctionDef) else _targets(node) if isinstance(node, ast.Assign) else []
        )
    ]
    assert "__getattr__" not in names, "With it every name type-checks: define it under 'if not TYPE_CHECKING:'."


def imported_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    return {name.split(".")[0] for name in ran.stdout.split()}


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"mcp", "starlette", "uvicorn", "click", "rich", "redis", "pydantic", "msgspec", "jsonschema_rs", "asyncio"}
    assert not heavy & imported_by("import callyard")


def test_a_yard_of_plain_functions_does_not_import_pydantic() -> None:
    code = """
import asyncio
from callyard import Yard
async def add(a: int, b: list[str] | None = None) -> dict[str, int]:
    return {"a": a}
async def main():
    async with Yard(tools=[add]) as yard:
        assert (await yard.call("add", {"a": 1})).data == {"a": 1}
        assert not (await yard.call("add", {"a": "x"})).success
asyncio.run(main())
"""
    heavy = {"mcp", "starlette", "uvicorn", "click", "rich", "redis", "pydantic", "argparse"}
    assert not heavy & imported_by(code)


HOST_STATE = """
import asyncio, gc, json, logging, os, signal, sys, warnings

def host_state():
    ours, root = logging.getLogger("callyard"), logging.root
    return {
        "gc enabled": gc.isenabled(),
        "gc threshold": gc.get_threshold(),
        "gc frozen objects": gc.get_freeze_count(),
        "gc callbacks": len(gc.callbacks),
        # 'gc.freeze' and 'gc.unfreeze' move every young object to the oldest generation.
        # With the collector off nothing else does.
        "young object stays young": gc.isenabled() or any(item is young for item in gc.get_objects(generation=0)),
        "event loop policy": repr(asyncio.get_event_loop_policy()),
        "root logger": [root.level, repr(root.handlers), repr(root.filters), root.manager.disable],
        "callyard logger": [ours.level, repr(ours.handlers), repr(ours.filters), ours.propagate, ours.disabled],
        "logger class": repr(logging.getLoggerClass()),
        "signal handlers": {
            number.name: repr(signal.getsignal(number)) for number in signal.valid_signals() if hasattr(number, "name")
        },
        "environment": dict(os.environ),
        "exception hooks": [repr(sys.excepthook), repr(sys.unraisablehook), repr(sys.displayhook)],
        "warning filters": repr(warnings.filters),
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
    }

gc.disable() if COLLECTOR_OFF else gc.enable()
young = [object()]
before = host_state()
import callyard
for name in callyard.__all__:
    getattr(callyard, name)
import callyard.testing
print(json.dumps([before, host_state()]))
"""


@pytest.mark.parametrize("collector_off", [False, True], ids=["collector on", "collector off"])
def test_importing_every_public_name_changes_nothing_in_the_host_process(collector_off: bool) -> None:  # noqa: FBT001 - a parameter of a test
    script = HOST_STATE.replace("COLLECTOR_OFF", str(collector_off))
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    before, after = json.loads(ran.stdout)
    assert after == before


TEXTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "scripts/*", "Makefile", "pyproject.toml")
    for path in ROOT.glob(pattern)
]


@every_row("path", TEXTS, ids=[str(path.relative_to(ROOT)) for path in TEXTS])
def test_no_text_names_a_path_of_a_machine_or_a_package_index(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"/(root|home/\w+)/|index-url *=|https?://[^ ]*/simple", text)


def test_a_call_has_few_enough_fields_to_be_known_by_heart() -> None:
    assert len(callyard.Call.__struct_fields__) <= CALL_FIELDS


VARIADIC = {"_log", "_audit", "terminal"}


def _is_variadic(call: ast.Call) -> bool:
    """Return whether a call takes any number of equal arguments: facts of a log line, parts of a terminal line."""
    return (
        isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in VARIADIC
    )


@every_row("path", MODULES)
def test_no_call_passes_more_than_five_positional_arguments(path: Path) -> None:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call) and not _is_variadic(node)]
    places = [
        f"{path.name}:{call.lineno} passes {len(call.args)}"
        for call in calls
        if len(call.args) > POSITIONAL_ARGUMENTS
        and not any(isinstance(argument, ast.Starred) for argument in call.args)
    ]
    assert not places


@every_row("path", MODULES)
def test_exceptions_are_logged_without_their_messages_except_at_debug(path: Path) -> None:
    """A message may hold the contents of a call: `log_exception` decides what is logged of it."""
    logged = [
        node.func
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and any(word.arg == "exc_info" for word in node.keywords)
    ]
    handed = [node for node in logged if isinstance(node, ast.Attribute) and node.attr not in {"debug", "makeRecord"}]
    called = [
        node
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "_log.exception"
    ]
    assert not [f"{path.name}:{node.lineno}" for node in (*handed, *called)]


RETIRED = {"door", "doors", "life", "paper", "papers", "patience", "told", "wish", "wishes"}
RETIRED_SUBJECTS = {"what", "whatever", "who", "whoever"}
TESTS = sorted(path for folder in (ROOT / "tests", *ROOT.glob("packs/*/tests")) for path in folder.rglob("*.py"))


def retired_names(path: Path, tree: ast.Module) -> list[str]:
    """Return the names of a file, its functions, classes, parameters and variables that use a retired word."""
    names = {path.stem}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add(node.id if isinstance(node, ast.Name) else node.attr)
    return sorted(name for name in names if _is_retired(name))


def _is_retired(name: str) -> bool:
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]
    return bool(RETIRED & {*words}) or (words[:1] == ["test"] and not RETIRED_SUBJECTS.isdisjoint(words[1:2]))


@every_row("path", TESTS, ids=lambda path: path.relative_to(ROOT))
def test_no_name_in_the_tests_uses_a_retired_word(path: Path) -> None:
    assert retired_names(path, tree_of(path)) == []


def test_a_retired_word_is_found_in_every_kind_of_name() -> None:
    source = """
class OpenDoor:
    def is_told(self, wish): self.life = 1
async def test_what_is_hidden(): PATIENCE = 1
def test_a_tool_says_what_it_does(lifespan, indoor): foretold = lifetime = 1
"""
    assert retired_names(Path("papers.py"), ast.parse(source)) == [
        "OpenDoor",
        "PATIENCE",
        "is_told",
        "life",
        "papers",
        "test_what_is_hidden",
        "wish",
    ]


def test_the_package_has_the_marker_of_typed_packages() -> None:
    assert (ROOT / "src" / "callyard" / "py.typed").is_file()


def test_the_old_name_of_the_project_is_only_where_it_is_explained() -> None:
    old = "tool" + "yard"
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()  # noqa: S607 - git of the PATH
    texts = [ROOT / name for name in listed if (ROOT / name).suffix not in {".png", ".ico"} and (ROOT / name).is_file()]
    found = [str(path.relative_to(ROOT)) for path in texts if old in path.read_text(errors="ignore").lower()]
    assert sorted(found) == ["CHANGELOG.md", "docs/adr/0092-rename-the-project-to-callyard.md"]
