"""The rules of the house that no other tool checks."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import toolyard
from toolyard.model.errors import CODES, CodeName

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "toolyard").rglob("*.py"))
FILE_LINES = 600
FUNCTION_LINES = 50
MODULES = [pytest.param(path, id=str(path.relative_to(ROOT / "src" / "toolyard"))) for path in SOURCES]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _targets(node: ast.Assign | ast.AnnAssign) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return [getattr(target, "id", "") for target in targets]


@pytest.mark.parametrize("path", MODULES)
def test_a_file_is_short_enough_to_be_one_thing(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= FILE_LINES


@pytest.mark.parametrize("path", MODULES)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert lines <= FUNCTION_LINES, f"{path.name}: '{node.name}' has {lines} lines."


@pytest.mark.parametrize("path", MODULES)
def test_a_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree), f"{path.name} does not say what it is."
    targets = [target for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign) for target in _targets(node)]
    assert "__all__" in targets, f"{path.name} has no '__all__'."


@pytest.mark.parametrize("path", [path for path in SOURCES if "cli" not in path.parts], ids=str)
def test_nothing_prints_outside_the_command_line(path: Path) -> None:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    assert not [call for call in calls if getattr(call.func, "id", "") == "print"]


def codes_in(tree: ast.Module) -> set[str]:
    """Return the codes that a module writes down: in failures, reasons, stops and keywords."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "id", getattr(node.func, "attr", ""))
        named = [word.value for word in node.keywords if word.arg == "code"]
        if called in {"ToolError", "Reason", "stop"} and node.args:
            named.append(node.args[0])
        found |= {value.value for value in named if isinstance(value, ast.Constant) and isinstance(value.value, str)}
    return found


@pytest.mark.parametrize("path", MODULES)
def test_every_code_that_is_written_down_is_registered(path: Path) -> None:
    assert codes_in(tree_of(path)) <= set(CODES)


@pytest.mark.parametrize(
    "line",
    [
        'raise ToolError("made_up", "No.")',
        'raise errors.ToolError("made_up", "No.")',
        'Reason("made_up")',
        'call.stop("made_up")',
        'f(code="made_up")',
    ],
)
def test_a_code_that_is_not_registered_would_be_seen(line: str) -> None:
    assert codes_in(ast.parse(line)) == {"made_up"}


def test_a_failure_of_a_code_that_is_not_registered_cannot_be_made() -> None:
    with pytest.raises(ValueError, match="made_up"):
        toolyard.ToolError("made_up", "No.")  # pyright: ignore[reportArgumentType] - that is the point


def test_the_type_of_codes_and_the_table_of_codes_agree() -> None:
    assert list(CodeName.__args__) == list(CODES)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name != "pydantic.py"], ids=str)
def test_pydantic_itself_is_imported_in_one_place_only(path: Path) -> None:
    found = [
        name
        for node in ast.walk(tree_of(path))
        for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", None) or ""])
        if isinstance(node, ast.Import | ast.ImportFrom) and name.split(".")[0] == "pydantic"
    ]
    assert not found


def test_the_public_names_are_sorted_loaded_when_used_and_there() -> None:
    for name in toolyard.__all__:
        assert getattr(toolyard, name) is not None
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        toolyard.nothing_of_ours  # noqa: B018 - that it is not there
    assert dir(toolyard) == sorted(toolyard.__all__)


def imported_by(code: str) -> set[str]:
    script = f"{code}\nimport sys\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)  # noqa: S603 - our own code
    return {name.split(".")[0] for name in done.stdout.split()}


def test_importing_the_package_imports_nothing_heavy() -> None:
    heavy = {"mcp", "starlette", "uvicorn", "click", "rich", "redis", "pydantic", "msgspec", "jsonschema_rs", "asyncio"}
    assert not heavy & imported_by("import toolyard")


def test_a_yard_of_plain_functions_does_not_import_pydantic() -> None:
    code = """
import asyncio
from toolyard import Yard
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


TEXTS = [
    path for pattern in ("*.md", "docs/**/*.md", "src/**/*.py", "scripts/*", "Makefile", "pyproject.toml") for path in ROOT.glob(pattern)
]


@pytest.mark.parametrize("path", TEXTS, ids=[str(path.relative_to(ROOT)) for path in TEXTS])
def test_nothing_in_the_repository_needs_what_is_outside_it(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"/(root|home/\w+)/|index-url *=|https?://[^ ]*/simple", text)
