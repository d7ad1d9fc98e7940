"""`callyard search` and `callyard eval search`: find tools as an agent does, and measure how well that works."""

from collections.abc import Callable, Iterable
from textwrap import wrap
from typing import Final, TypeVar

import msgspec

from callyard.cli.parser import Options
from callyard.cli.targets import config_from, os_errors, run_in_yard
from callyard.cli.terminal import Painted, Terminal, cut
from callyard.launch.errors import LaunchError, as_launch_error, explain_refusal, search_failure
from callyard.metatools.catalogue import Catalogue
from callyard.metatools.search import check_query
from callyard.model.envelope import encode
from callyard.model.errors import ToolError, shortened
from callyard.model.profile import METATOOLS, Profile
from callyard.model.signature import signature
from callyard.model.spec import Operation
from callyard.search import Found, StrategyError
from callyard.search.evaluate import EvaluationError, evaluate, read_queries, read_tools
from callyard.yard import Yard

__all__ = ["run_eval", "run_search"]


_MEANINGS: Final = {
    "recall@1": "share of the relevant tools that came first",
    "recall@5": "share of them among the first five",
    "recall@10": "share of them among the first ten",
    "mrr@10": "reciprocal rank of the first relevant tool, on average",
    "ndcg@10": "how close the first ten are to the best order",
    "build_s": "seconds to build the index",
    "p50_ms": "milliseconds of the median query",
    "p99_ms": "milliseconds that 99 % of the queries stay below",
    "tools": "number of tools in the index",
    "queries": "number of queries",
    "learned_recall@1": "recall@1 of the replay, which learns from use",
    "learned_recall@5": "recall@5 of the replay",
    "learned_recall@10": "recall@10 of the replay",
    "learned_mrr@10": "mrr@10 of the replay",
    "learned_ndcg@10": "ndcg@10 of the replay",
}
_Line = TypeVar("_Line")


def run_eval(options: Options, terminal: Terminal) -> int:
    """Measure search on labelled tools and queries, and print the results."""
    config = config_from(options, terminal)
    tools = _read(options.tools, read_tools)
    queries = _read(options.queries, read_queries)
    settings, origin = config.settings.search, config.origin("search.strategy")
    try:
        evaluation = evaluate(tools, queries, settings, split=options.split, replay=options.replay)
        measured: dict[str, float] = msgspec.to_builtins(evaluation)
    except StrategyError as error:
        source = f" It comes from '{origin.name}'." if origin.kind in {"environment", "file"} else ""
        raise LaunchError(f"{error}{source}") from error
    except Exception as error:
        raise search_failure(error, settings.strategy) from error
    if options.json:
        terminal.write_json(encode(measured))
    elif terminal.interactive:
        width = max(10, *map(len, measured))
        for name, value in measured.items():
            terminal.write(Painted(f"{name:<{width}}", "bold"), f"{value:>9}  ", Painted(_MEANINGS[name], "faint"))
    else:
        for name, value in measured.items():
            terminal.write(f"{name}\t{value}")
    unknown = {tool for query in queries for tool in query.relevant} - {tool.id for tool in tools}
    if unknown:
        terminal.inform(f"Relevant tools of queries that are not in '{options.tools}': {len(unknown)}.")
    return 0


def _read(path: str, read: Callable[[Iterable[bytes]], list[_Line]]) -> list[_Line]:
    try:
        with os_errors(f"The file '{path}' cannot be read"), open(path, "rb") as file:  # noqa: PTH123 - may be a pipe
            lines = read(file)
    except EvaluationError as error:
        raise LaunchError(f"The file '{path}' cannot be used. {error}") from error
    if not lines:
        raise LaunchError(f"The file '{path}' is empty.")
    return lines


_INDENT: Final = "  "
_NARROWEST: Final = 40


def run_search(options: Options, terminal: Terminal) -> int:
    """Print the best tools: name, signature and reason of each."""
    with as_launch_error(ToolError):
        check_query(options.words)
    return run_in_yard(options, terminal, _search, lists=True)


async def _search(yard: Yard, profile: Profile, options: Options, terminal: Terminal) -> int:
    found = await _find(yard, profile, options)
    if options.json:
        hits = [
            {
                "name": hit.spec.name,
                "signature": signature(hit.spec),
                "description": hit.spec.summary,
                "operation": hit.spec.operation,
                "source": hit.spec.source,
                "why": hit.why,
            }
            for hit in found.hits
        ]
        terminal.write_json(encode({"hits": hits, "more": found.more, "closest": found.closest}))
    elif terminal.interactive:
        _write_hits(terminal, found)
    else:
        for hit in found.hits:
            terminal.write("\t".join((hit.spec.name, signature(hit.spec), hit.why)))
    if found.more:
        terminal.inform("More tools match; '--limit' shows up to 100.")
    elif not found.hits:
        closest = ", ".join(f"'{name}'" for name in found.closest)
        words = shortened(" ".join(options.words.split()))
        terminal.inform(f"Nothing matches '{words}'." + (f" The closest namespaces: {closest}." if closest else ""))
    return 0


async def _find(yard: Yard, profile: Profile, options: Options) -> Found:
    catalogue = Catalogue(yard.registry, yard.search)
    operation = None if options.operation is None else Operation(options.operation)
    try:
        with as_launch_error(ToolError):
            catalogue.open()
            catalogue.check_namespace(options.namespace, profile)
    except ValueError as error:  # the environment names an unknown strategy
        raise LaunchError(explain_refusal(error, yard)) from error
    try:
        found = await catalogue.search(
            options.words, profile, namespace=options.namespace, operation=operation, offset=0, limit=options.limit
        )
        return Found(hits=found.hits, more=found.more, closest=[name for name in found.closest if name != METATOOLS])
    except Exception as error:
        raise search_failure(error, catalogue.settings.strategy) from error
    finally:
        catalogue.close()


def _write_hits(terminal: Terminal, found: Found) -> None:
    """Write each tool as a paragraph, because signatures are too long for a table."""
    width = max(terminal.width, _NARROWEST)
    for number, hit in enumerate(found.hits):
        name = hit.spec.name
        first, *rest = wrap(signature(hit.spec), width, subsequent_indent=2 * _INDENT, break_on_hyphens=False)
        if number:
            terminal.write("")
        terminal.write(Painted(first[: len(name)], "bold"), first[len(name) :])
        for line in rest:
            terminal.write(line)
        terminal.write(_INDENT, cut(" ".join(hit.spec.summary.split()), width - len(_INDENT)))
        terminal.write(_INDENT, Painted(cut(hit.why, width - len(_INDENT)), "faint"))
