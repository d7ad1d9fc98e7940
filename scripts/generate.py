"""Writes the generated pages of docs/reference from the code; `--check` only says which of them are stale."""

import ast
import contextlib
import inspect
import io
import re
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

from toolyard import CODES, Limits, cli, limits

ROOT: Final = Path(__file__).parent.parent
REFERENCE: Final = ROOT / "docs" / "reference"
NOTE: Final = "<!-- Written by scripts/generate.py; change the code, then run `make generate`. -->"


def codes() -> str:
    """Return the page of codes."""
    rows = [
        f"| `{code.name}` | {code.meaning} | {code.http} | {code.exit} | {_said(code.retryable)} | {_said(code.recoverable)} "
        f"| {code.blame} | {code.may_have_run} | {code.hint} |"
        for code in CODES.values()
    ]
    return _page(
        "Codes",
        "Every failure has one code of this closed set. None is ever removed. *http* is the nearest status of HTTP, *exit* what the",
        "command line exits with. *retry* says that the same call may succeed later; the answer's own `retryable` is true only if",
        "nothing may have run, or running twice does no harm. *recoverable* says that other arguments or another tool can still reach",
        "the goal. *ran* says whether something may have happened already: where it is `maybe`, the answer knows. A tool's own failures",
        "use one of these codes and a reason: see [Fail well](../guides/fail-well.md). Some codes are for parts that are not there yet,",
        "such as approvals, chains and runtimes; a tool of yours may use any of them.",
        "",
        "| code | fires when | http | exit | retry | recoverable | blame | ran | hint, unless the failure brings its own |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    )


def settings() -> str:
    """Return the page of settings."""
    return _page(
        "Settings",
        "What the funnel keeps to. Each is a field of `Limits`, which a yard is given: `Yard(limits=Limits(timeout=30))`. A setting",
        "that does not exist, or is negative, is refused. The tool `get_settings` of the system pack tells those in effect.",
        "",
        "| setting | default | means |",
        "|---|---|---|",
        *(f"| `{name}` | {_default(name)} | {meaning} |" for name, meaning in meanings()),
    )


def tools() -> str:
    """Return the page of the tools in the example yard and the system pack."""
    return _page(
        "Tools",
        "The tools of [examples/bank.py](../../examples/bank.py) and of the system pack, as `toolyard manifest examples/bank.py",
        "--markdown` tells them. Your own yard has such a page, too.",
        "",
        manifest("examples/bank.py"),
    )


def meanings() -> Iterator[tuple[str, str]]:
    """Return each setting with the sentence that stands below it in the code."""
    tree = ast.parse(inspect.getsource(limits))
    body = next(node.body for node in tree.body if isinstance(node, ast.ClassDef))
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                yield name, meaning
            case _:
                continue


def manifest(target: str) -> str:
    """Return what the command line tells of a yard as Markdown, its headings one level deeper."""
    told = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(told):
        cli.main(["manifest", target, "--markdown"])
    return re.sub("^#", "##", told.getvalue().strip(), flags=re.MULTILINE)


def _default(name: str) -> str:
    value = getattr(Limits(), name)
    return str(value).lower() if isinstance(value, bool) else f"{value:,g}" if isinstance(value, float) else f"{value:,}"


def _said(fact: bool) -> str:  # noqa: FBT001 - it is said in words
    return "yes" if fact else "no"


def _page(title: str, *lines: str) -> str:
    return "\n".join([f"# {title}", "", NOTE, "", *lines, ""])


PAGES: Final[dict[str, Callable[[], str]]] = {
    "codes.md": codes,
    "settings.md": settings,
    "tools.md": tools,
    "cli.md": cli.reference,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    pages = {REFERENCE / name: written() for name, written in PAGES.items()}
    stale = [page for page, text in pages.items() if not page.exists() or page.read_text(encoding="utf-8") != text]
    check = arguments == ["--check"]
    if arguments and not check:
        print("Usage: generate.py [--check]", file=sys.stderr)
        return 2
    for page in stale:
        print(f"{page.relative_to(ROOT)} {'is stale: run `make generate`.' if check else 'written.'}")
        if not check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(pages[page], encoding="utf-8")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
