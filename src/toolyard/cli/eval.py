"""`toolyard eval`: how well and how fast search finds what labelled questions ask for."""

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from toolyard.cli.cause import failed_search
from toolyard.cli.exits import CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Painted, Terminal
from toolyard.config import Config
from toolyard.envelope import encode
from toolyard.search import StrategyError
from toolyard.search.evaluate import EvaluationError, LabelledQuery, LabelledTool, evaluate, read_queries, read_tools

__all__ = ["run"]

_MEANINGS: Final = {
    "recall@1": "share of the right tools that came first",
    "recall@5": "share of them among the first five",
    "recall@10": "share of them among the first ten",
    "mrr@10": "one over the place of the first right tool, on average",
    "ndcg@10": "how near the best order the first ten are",
    "build_s": "seconds to build the index",
    "p50_ms": "milliseconds of a middling question",
    "p99_ms": "milliseconds of all questions but the slowest hundredth",
    "tools": "tools in the index",
    "queries": "questions asked",
}
_Line = TypeVar("_Line")


def run(options: Options, terminal: Terminal) -> int:
    """Measure search on labelled tools and questions, and print what was measured."""
    config = settings_of_options(options, terminal)
    tools = _read(options.tools, read_tools)
    queries = _read(options.queries, read_queries)
    measured = _measure(tools, queries, config)
    if options.json:
        terminal.write_json(encode(measured))
    else:
        _write(terminal, measured)
    unknown = _unknown(tools, queries)
    if unknown and not options.quiet:
        terminal.say(f"Tools that questions ask for and that are not in '{options.tools}': {unknown}.")
    return 0


def _measure(tools: list[LabelledTool], queries: list[LabelledQuery], config: Config) -> dict[str, float]:
    settings, origin = config.settings.search, config.origin("search.strategy")
    try:
        return msgspec.to_builtins(evaluate(tools, queries, settings))
    except StrategyError as error:
        source = f" It comes from '{origin.name}'." if origin.kind in {"environment", "file"} else ""
        raise CommandError(f"{error}{source}") from error
    except Exception as error:
        raise failed_search(error, settings.strategy) from error


def _read(path: str, read: Callable[[Iterable[bytes]], list[_Line]]) -> list[_Line]:
    """Return what the lines of a file are."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of this shape may be a pipe, as '<(…)' makes one
            found = read(file)
    except OSError as error:
        raise CommandError(f"The file '{path}' cannot be read: {error.strerror}.") from error
    except EvaluationError as error:
        raise CommandError(f"The file '{path}' cannot be used. {error}") from error
    if not found:
        raise CommandError(f"The file '{path}' is empty.")
    return found


def _write(terminal: Terminal, measured: dict[str, float]) -> None:
    for name, value in measured.items():
        if terminal.interactive:
            terminal.write(Painted(f"{name:<10}", "bold"), f"{value:>9}  ", Painted(_MEANINGS[name], "faint"))
        else:
            terminal.write(f"{name}\t{value}")


def _unknown(tools: list[LabelledTool], queries: list[LabelledQuery]) -> int:
    known = {tool.id for tool in tools}
    return len({wanted for query in queries for wanted in query.relevant} - known)
