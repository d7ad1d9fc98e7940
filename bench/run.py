"""Measure Callyard against its peers, in one run on one machine: `setup` once, then any of the other commands."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Final

from command import Command, Options, Report
from environments import FRAMEWORKS, INJECTED, NAMES, OPTIONAL, InstallError, cache, is_ready, set_up
from peers import PEERS
from protocol import ERAS
from rounds import Measure, Row, Subject, WorkerError, cpu_ms_of, in_rounds, measure_paths
from search import search
from tables import as_table, keep, ratio
from wire import WIRE

_SIZES: Final = (10, 1_000, 100_000)
_PUBLISHED: Final = 100
_OURS: Final = "Yard.call"
_SYNC: Final = "(sync tool)"
_HEAVY: Final = frozenset({"mcp", "starlette", "uvicorn", "click", "rich", "redis"})
_INJECT_US: Final = 20
_BARE: Final = "python -c pass"
_YARD: Final = "from callyard import Yard"
_STARTS: Final = {
    _BARE: ("callyard", "pass"),
    "import callyard": ("callyard", "import callyard"),
    _YARD: ("callyard", _YARD),
    "from fastmcp import FastMCP": ("fastmcp", "from fastmcp import FastMCP"),
    "from mcp.server import MCPServer": ("sdk", "from mcp.server import MCPServer"),
}


def inprocess(options: Options) -> Report:
    """CPU time of one call in the same process, by framework."""
    subjects = {name: Subject(name, "calls") for name in FRAMEWORKS} | {"bare": Subject("callyard", "bare")}
    rows = measure_paths(subjects, options.rounds, options.calls)
    of = {row.path: row.median for row in rows}
    lines = [[row.path, f"{row.median:.2f}", _middle(row), _times_ours(row, of)] for row in rows]
    return Report(
        keep("inprocess", rows, calls=options.calls), as_table(("path", "CPU us", "middle half", "times ours"), lines)
    )


def inject(options: Options) -> Report:
    """CPU time that an adapter of an agent SDK adds to a call; it exits with 1 if that is more than the bar."""
    subjects = {"callyard": Subject("agents", "yard")} | {name: Subject(name, "inject") for name in INJECTED}
    rows = measure_paths(subjects, options.rounds, options.calls)
    ours = next(row.median for row in rows if row.path == _OURS)
    lines = [[row.path, f"{row.median:.2f}", _middle(row), f"{row.median - ours:.2f}"] for row in rows]
    slow = [row.path for row in rows if row.median - ours > _INJECT_US]
    fault = f"'{slow[0]}' adds more than {_INJECT_US} us." if slow else ""
    return Report(
        keep("inject", rows, calls=options.calls),
        as_table(("path", "CPU us", "middle half", f"above {_OURS}"), lines),
        fault,
    )


def growth(options: Options) -> Report:
    """CPU time of one call with few, many and very many tools: finding a tool must cost the same."""
    subjects = {f"{size:,}": Subject("callyard", "growth", size) for size in _SIZES}
    rows = measure_paths(subjects, options.rounds, options.calls)
    of = {(row.path, row.subject): row.median for row in rows}
    least, *_, most = subjects
    lines = [
        [path, *(f"{of[path, size]:.2f}" for size in subjects), ratio(of[path, most], of[path, least])]
        for path in dict.fromkeys(row.path for row in rows)
    ]
    head = ("CPU us a call of", *(f"{size} tools" for size in subjects), "most against least")
    return Report(keep("growth", rows, calls=options.calls), as_table(head, lines))


def publish(options: Options) -> Report:
    """CPU time of publishing one plain function, by framework."""
    rows = measure_paths({name: Subject(name, "publish", _PUBLISHED) for name in FRAMEWORKS}, options.rounds, 1)
    rows = [row.divided(_PUBLISHED) for row in rows]
    lines = [[row.path, f"{row.median:.0f}", _middle(row, digits=0), ratio(row.median, rows[0].median)] for row in rows]
    return Report(
        keep("publish", rows, tools=_PUBLISHED), as_table(("by", "CPU us a tool", "middle half", "times ours"), lines)
    )


def start(options: Options) -> Report:
    """CPU time of importing, minus that of Python itself, and heavy imports."""
    heavy: dict[str, list[str]] = {}

    def measure(name: str, environment: str, code: str) -> Measure:
        def once() -> float:
            cpu, printed = cpu_ms_of(environment, f"{code}; import sys; print(*sys.modules)")
            heavy[name] = sorted(_HEAVY & set(printed.split()))
            return cpu

        once()  # compiles what is not compiled yet
        return once

    rows = in_rounds({(how[0], name): measure(name, *how) for name, how in _STARTS.items()}, options.rounds)
    of = {row.path: row.median for row in rows}
    above = {name: median - of[_BARE] for name, median in of.items()}
    lines = [
        [name, f"{of[name]:.1f}", f"{above[name]:.1f}", ratio(above[name], above[_YARD]), _named(heavy[name])]
        for name in of
    ]
    head = ("code", "CPU ms", "above bare Python", "times ours", "heavy packages")
    guilty = [name for name, found in heavy.items() if "callyard" in name and found]
    fault = f"'{guilty[0]}' imports {_named(heavy[guilty[0]])}." if guilty else ""
    return Report(keep("start", rows, heavy=heavy), as_table(head, lines), fault)


def _middle(row: Row, digits: int = 2) -> str:
    return f"{row.low:.{digits}f} to {row.high:.{digits}f}"


def _times_ours(row: Row, of: dict[str, float]) -> str:
    """Return the ratio to the same path of ours: blocking tools are compared with blocking ones."""
    return ratio(row.median, of[f"{_OURS} {_SYNC}" if row.path.endswith(_SYNC) else _OURS])


def _named(found: Sequence[str]) -> str:
    return ", ".join(found) or "none"


def _set_up() -> int:
    for name in NAMES:
        print(f"{name}: {'ready' if is_ready(name) else 'installing'}", file=sys.stderr)
        try:
            if not is_ready(name):
                set_up(name)
        except InstallError:
            print(f"The environment '{name}' could not be made.", file=sys.stderr)
            if name not in OPTIONAL:
                return 1
    print(f"The environments are in '{cache()}'.", file=sys.stderr)
    return 0


_INSIDE: Final[dict[str, tuple[Command, int]]] = {
    "inprocess": (inprocess, 20),
    "inject": (inject, 20),
    "growth": (growth, 20),
    "publish": (publish, 20),
    "start": (start, 20),
    "search": (search, 100),
}
_COMMANDS: Final = _INSIDE | WIRE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["setup", *_COMMANDS])
    parser.add_argument(
        "--rounds",
        type=int,
        help="how often each is measured; medians are shown (default: 20 in one process, 3 or 5 for servers)",
    )
    parser.add_argument(
        "--calls",
        type=int,
        default=2000,
        help="calls in a batch in one process, fewer if they are slow (default: 2000)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=0.3,
        help="how long a server is kept busy in each cell of a round (default: 0.3)",
    )
    parser.add_argument("--era", choices=list(ERAS), help="measure servers in one era of the protocol only")
    parser.add_argument(
        "--peers", default="", help=f"measure these servers only, with commas between: {', '.join(PEERS)}"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return parser


def _options(parser: argparse.ArgumentParser, given: argparse.Namespace) -> Options:
    """Return the checked options of the command line."""
    peers = tuple(name for name in given.peers.split(",") if name)
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        parser.error(f"There is no server '{unknown[0]}'.")
    rounds = _COMMANDS[given.command][1] if given.rounds is None else given.rounds
    if rounds < 2 or given.calls < 1 or given.seconds <= 0:
        parser.error("'--rounds' must be at least 2, '--calls' at least 1 and '--seconds' more than 0.")
    needed = INJECTED if given.command == "inject" else [name for name in NAMES if name not in OPTIONAL]
    missing = [
        name for name in needed if not is_ready(name) and (name in (*FRAMEWORKS, *INJECTED) or given.command in WIRE)
    ]
    if missing:
        parser.error(f"Not set up: {', '.join(missing)}. Run 'setup' first.")
    return Options(rounds, given.calls, given.seconds, (given.era,) if given.era else tuple(ERAS), peers)


def main() -> int:
    parser = _parser()
    given = parser.parse_args()
    if given.command == "setup":
        return _set_up()
    options = _options(parser, given)
    try:
        report = _COMMANDS[given.command][0](options)
    except WorkerError as error:
        print(f"A worker failed.\n{error}", file=sys.stderr)
        return 1
    print(json.dumps(report.data, indent=1) if given.json else report.table)
    if report.fault:
        print(report.fault, file=sys.stderr)
    return 1 if report.fault else 0


if __name__ == "__main__":
    sys.exit(main())
