"""The documents are true: their examples run, they cover every public name, and their links exist."""

import ast
import asyncio
import inspect
import io
import json
import logging
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Generator, Iterator
from contextlib import chdir, contextmanager, redirect_stdout
from enum import EnumType
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from msgspec.structs import fields
from table_tests import every_row

import callyard
from callyard import CODES, Limits, Rule, Toolset
from callyard.cli.parser import make_parsers
from callyard.config import known_settings
from callyard.config.probes import Canary, ProbeTable
from callyard.config.read import ProfileTable
from callyard.providers.functions.provider import ToolOptions
from callyard.providers.openapi.settings import ApiSettings, Override
from callyard.providers.upstream.settings import Identity, Login, Reshape, UpstreamSettings

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
OURS = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(page for page in DOCS.rglob("*.md") if "adr" not in page.parts),
]
ALL = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "bench").glob("*.md"))]

_FENCE = re.compile(r"^(?P<marks>```+)(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=marks)[ ]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_WORD = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)
_EVENT = re.compile(r'(?:_(?:log|audit)\.\w+\(|log_exception\(\s*_log,)\s*"(\w+)')
_RUN = ("callyard ", "python examples/")
_VOLATILE = (
    (re.compile(r"\bc_[0-9a-f]{4,}\b"), "c_0"),
    (re.compile(r"\bs_[0-9a-f]{4,}\b"), "s_0"),
    (re.compile(r'("?(?:elapsed_)?ms"?[:=] ?)[0-9.]+'), r"\g<1>0"),
    (re.compile(r"\b[0-9]+ ms\b"), "0 ms"),
)


class Block(NamedTuple):
    """A fenced block of a page, its first line, and the `text` block that directly follows it: the shown output."""

    info: str
    text: str
    line: int
    shown: str | None


def _blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    return [
        Block(match["info"], match["text"], text.count("\n", 0, match.start()) + 2, _shown(text, match, follower))
        for match, follower in zip_longest(found, found[1:])
    ]


def _shown(text: str, match: re.Match[str], follower: re.Match[str] | None) -> str | None:
    if follower is None or follower["info"] != "text" or text[match.end() : follower.start()].strip():
        return None
    return follower["text"]


def _commands(page: Path) -> Iterator[tuple[str, str]]:
    """Return every command of the page's shell blocks with its shown output."""
    for block in _blocks(page):
        if block.info == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                yield command, output


def _matches(shown: str, output: str) -> bool:
    """Return whether an output is what a page shows; '…' matches anything, and ids and times match any others."""
    for pattern, replacement in _VOLATILE:
        shown, output = pattern.sub(replacement, shown), pattern.sub(replacement, output)
    expected = ".*?".join(re.escape(part) for part in shown.strip().split("…"))
    return re.fullmatch(expected, output.strip(), re.DOTALL) is not None


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _python_pages() -> list[Path]:
    return [page for page in OURS if any(block.info.startswith("python") for block in _blocks(page))]


def _shell_commands() -> list[tuple[Path, str, str]]:
    found = [(page, command, output) for page in OURS for command, output in _commands(page)]
    return [(page, command, output) for page, command, output in found if command.startswith(_RUN)]


@every_row("page", _python_pages(), ids=_name)
def test_the_python_of_a_page_runs_and_prints_what_is_shown(page: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "page"}
    with asyncio.Runner() as runner, chdir(ROOT), _log_levels_restored():
        for block in _blocks(page):
            if block.info.startswith("python"):
                assert block.info == "python", f"line {block.line}: every block of Python runs"
                output = _run(block, page, namespace, runner)
                assert block.shown is None or _matches(block.shown, output), f"line {block.line} prints:\n{output}"


@contextmanager
def _log_levels_restored() -> Generator[None]:
    """Restore the levels of the loggers, which pages may change."""
    names = [name for name in logging.root.manager.loggerDict if name.startswith("callyard")]
    before = [(logger, logger.level) for logger in (logging.root, *map(logging.getLogger, names))]
    try:
        yield
    finally:
        for logger, level in before:
            logger.setLevel(level)


def _run(block: Block, page: Path, namespace: dict[str, Any], runner: asyncio.Runner) -> str:
    source = "\n" * (block.line - 1) + block.text
    code = compile(source, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with redirect_stdout(io.StringIO()) as output:
        result = eval(code, namespace)  # noqa: S307 - our own pages
        if code.co_flags & inspect.CO_COROUTINE:
            runner.run(result)
    return output.getvalue()


@every_row(("page", "command", "shown"), _shell_commands(), ids=[command for _, command, _ in _shell_commands()])
def test_a_command_of_a_page_prints_what_is_shown(page: Path, command: str, shown: str) -> None:
    """A page marks a command that does not exit with 0, as in `callyard call …  # exits 10`."""
    program, *arguments = shlex.split(command, comments=True)
    path = sys.executable if program == "python" else str(Path(sys.executable).parent / program)

    ran = subprocess.run([path, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own pages

    exits = re.search(r"# exits (\d+)", command)
    assert ran.returncode == (int(exits[1]) if exits else 0), ran.stderr
    assert not shown.strip() or _matches(shown, ran.stdout + ran.stderr), (
        f"{_name(page)}: it prints:\n{ran.stdout}{ran.stderr}"
    )


def test_the_example_of_the_readme_is_the_first_example() -> None:
    block = next(block for block in _blocks(ROOT / "README.md") if block.info == "python")
    example = (ROOT / "examples" / "first.py").read_text(encoding="utf-8")

    assert ast.dump(_bare(block.text)) == ast.dump(_bare(example))


def _bare(source: str) -> ast.Module:
    """Return a program without its docstrings, which the README leaves out."""
    tree = ast.parse(source)
    tree.body = [
        node for node in tree.body if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant)
    ]
    for node in tree.body:
        if isinstance(node, ast.AsyncFunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return tree


def test_the_mistake_in_the_readme_is_what_the_first_example_answers() -> None:
    shown = json.loads(next(block.text for block in _blocks(ROOT / "README.md") if block.info == "json"))
    path = [sys.executable, "examples/first.py"]
    ran = subprocess.run(path, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)  # noqa: S603 - our own program

    assert _is_part(shown, json.loads(ran.stdout.splitlines()[-1]))


def _is_part(part: object, whole: object) -> bool:
    if isinstance(part, dict) and isinstance(whole, dict):
        inner = cast("dict[str, object]", whole)
        return all(
            key in inner and _is_part(value, inner[key]) for key, value in cast("dict[str, object]", part).items()
        )
    return part == whole


@every_row(
    ("page", "names"),
    [
        ("reference/codes.md", list(CODES)),
        ("reference/settings.md", list(Limits.__struct_fields__)),
        ("reference/api.md", list(callyard.__all__)),
        ("guides/write-a-tool.md", list(ToolOptions.__struct_fields__)),
    ],
    ids=["codes", "settings", "public names", "options of @tool"],
)
def test_a_page_has_a_row_for_each_name(page: str, names: list[str]) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")

    assert [name for name in names if f"| `{name}`" not in text] == []


def _cells(page: str) -> dict[str, list[str]]:
    """Return the rows of the tables of a page by their first name."""
    rows = re.finditer(r"^\| `(\w+)`.*\|$", page, re.MULTILINE)
    return {row[1]: row[0].split("|") for row in rows}


def _section(page: Path, anchor: str) -> str:
    """Return the text below the heading of an anchor, up to the next heading."""
    parts = re.split(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return next((text for title, text in zip(parts[1::2], parts[2::2], strict=True) if _anchor(title) == anchor), "")


def _parameters(public: Any) -> list[str]:
    """Return the parameter names of a class or function; types, protocols, enums and objects of the yard have none."""
    if (
        public in (callyard.Call, callyard.Session)
        or getattr(public, "_is_protocol", False)
        or isinstance(public, EnumType)
    ):
        return []
    try:
        parameters = inspect.signature(public).parameters.values()
    except (TypeError, ValueError):
        return []
    return [
        parameter.name
        for parameter in parameters
        if parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]


@every_row("name", callyard.__all__)
def test_the_page_of_public_names_has_every_parameter(name: str) -> None:
    page = DOCS / "reference" / "api.md"
    taken = _cells(page.read_text(encoding="utf-8"))[name][3]
    links = [link.partition("#") for link in _LINK.findall(taken)]
    linked = [_section((page.parent / path) if path else page, anchor) for path, _, anchor in links]
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`\n]+)`", " ".join([taken, *linked])))))

    assert [parameter for parameter in _parameters(getattr(callyard, name)) if parameter not in words] == []


def test_the_page_of_public_names_calls_a_yard_as_the_code_does() -> None:
    text = (DOCS / "reference" / "api.md").read_text(encoding="utf-8")
    shown = {
        name: re.findall(r"\w+", arguments)
        for name, arguments in re.findall(r"^\| `(?:await )?yard\.(\w+)\((.*)\)` \|", text, re.MULTILINE)
    }
    written_for_programs = {"configure", "use_rules", "open"}
    methods = dict(inspect.getmembers(callyard.Yard, inspect.isfunction))

    expected = {
        name: list(inspect.signature(method).parameters)[1:]
        for name, method in methods.items()
        if not name.startswith("_")
    }
    assert shown == {name: parameters for name, parameters in expected.items() if name not in written_for_programs}


def test_the_settings_page_gives_every_setting_a_meaning() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| \S+ \| \S.*\.? \|$",
        (DOCS / "reference" / "settings.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )

    tables = (Limits, UpstreamSettings, Reshape, Login, Identity, ApiSettings, Override)
    tables += (ProbeTable, Canary, ProfileTable, Toolset, Rule)
    assert rows == [field.name for table in tables for field in fields(table) if not field.required]


def test_the_settings_page_has_the_key_and_the_variable_of_every_setting() -> None:
    text = (DOCS / "reference" / "settings.md").read_text(encoding="utf-8")
    keys = [
        f"`{setting.name if setting.section == 'limits' else setting.key}`" for setting in known_settings().values()
    ]
    variables = [f"`{setting.variable}`" for setting in known_settings().values() if setting.section != "limits"]

    assert [name for name in (*keys, *variables) if name not in text] == []


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md"])
def test_the_number_of_codes_is_right(page: str) -> None:
    assert re.findall(r"(\d+) codes", (ROOT / page).read_text(encoding="utf-8")) == [str(len(CODES))]


def test_the_extras_that_pages_name_exist_and_install_what_their_examples_import() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    named = {name for page in pages for name in re.findall(r"callyard\[([\w-]+)\]", page.read_text(encoding="utf-8"))}

    assert named <= set(extras)
    assert any(re.match(r"langchain\b(?!-)", requirement) for requirement in extras["langchain"])


def test_every_command_is_documented() -> None:
    text = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")

    assert [name for name in make_parsers()[1] if f"## callyard {name}\n" not in text] == []


def _events_by_logger() -> dict[str, set[str]]:
    """Return the events that the source logs, by the name of their logger."""
    source = ROOT / "src"
    events: dict[str, set[str]] = {}
    for path in (source / "callyard").rglob("*.py"):
        if "cli" in path.parts:
            continue
        text = path.read_text(encoding="utf-8")
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        names = re.findall(r'^_(?:log|audit) = logging\.getLogger\((?:"([\w.]+)"|__name__)\)', text, re.MULTILINE)
        if names:
            events[names[0] or module] = set(_EVENT.findall(text))
    return events


def test_the_table_of_loggers_has_every_event_in_the_row_of_its_logger() -> None:
    rows = [
        row
        for row in (DOCS / "guides" / "logging-and-records.md").read_text(encoding="utf-8").splitlines()
        if "| `callyard." in row
    ]
    events = _events_by_logger()
    missing = [
        f"{logger}: {event}"
        for logger, names in events.items()
        for event in names
        if not any(f"`{logger}`" in row.split("|")[1] and f"`{event}`" in row.split("|")[2] for row in rows)
    ]
    unknown = [name for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[1]) if name not in events]

    assert {"slow", "defect"} <= events["callyard.dispatch.outcome"]
    assert (sorted(missing), sorted(unknown)) == ([], [])


def test_the_layers_of_the_architecture_page_are_those_that_are_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers: list[str] = contracts[0]["layers"]
    picture = next(block.text for block in _blocks(DOCS / "architecture.md") if block.info == "text")

    assert [line.partition("  ")[0] for line in picture.splitlines()] == layers


def test_the_architecture_page_lists_every_folder_and_only_files_that_exist() -> None:
    text = (DOCS / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "callyard"
    paths = [path.relative_to(source).as_posix() for path in source.rglob("*.py")]
    tree = re.findall(r"^      ([\w.]+)(?:/| ) ", text, re.MULTILINE)
    top = [path.name for path in source.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    files = re.findall(r"`([\w/]+\.py)`", text)

    assert sorted(tree) == sorted(top)
    assert [
        file
        for file in files
        if not any(f"/{path}".endswith(f"/{file}") for path in paths) and not (ROOT / file).exists()
    ] == []


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    pages = [str(page.relative_to(DOCS)) for page in OURS if DOCS in page.parents and page.parent.name != "reference"]

    assert [page for page in pages if page != "README.md" and f"]({page})" not in index] == []


@every_row("page", ALL, ids=_name)
def test_every_link_exists(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    links = [link for link in _LINK.findall(text) if not re.match(r"[a-z]+:", link)]

    assert [link for link in links if not _exists(page, link)] == []


def _exists(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {_anchor(title) for title in titles}


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def test_the_glossary_is_short_and_sorted_and_has_each_word_once() -> None:
    words = _WORD.findall((DOCS / "glossary.md").read_text(encoding="utf-8"))

    assert 0 < len(words) <= 45  # a reader must be able to learn them
    assert len(words) == len(set(words))
    assert words == sorted(words)


def test_the_generated_pages_are_fresh() -> None:
    program = [sys.executable, "scripts/generate.py", "--check"]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)  # noqa: S603 - our own program

    assert (ran.returncode, ran.stdout) == (0, "")
