"""`toolyard search`: the tools of a yard that fit some words, as an agent would find them."""

from collections.abc import Callable, Iterable
from functools import partial
from textwrap import wrap
from typing import Final, TypeVar

import msgspec

from toolyard.cli.parser import Options
from toolyard.cli.targets import settings_of_options, work_in_yard
from toolyard.cli.terminal import Painted, Terminal, cut
from toolyard.config import Config
from toolyard.launch.errors import LaunchError, failed_search, refusal_of
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.search import check_query
from toolyard.model.envelope import encode
from toolyard.model.errors import ToolError, shortened
from toolyard.model.profile import METATOOLS, Profile
from toolyard.model.signature import signature
from toolyard.model.spec import Operation
from toolyard.search import Found, Hit, StrategyError
from toolyard.search.evaluate import EvaluationError, LabelledQuery, LabelledTool, evaluate, read_queries, read_tools
from toolyard.yard import Yard

__all__ = ["run_eval", "run_search"]


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


def run_eval(options: Options, terminal: Terminal) -> int:
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
        raise LaunchError(f"{error}{source}") from error
    except Exception as error:
        raise failed_search(error, settings.strategy) from error


def _read(path: str, read: Callable[[Iterable[bytes]], list[_Line]]) -> list[_Line]:
    """Return what the lines of a file are."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - a path of this shape may be a pipe, as '<(…)' makes one
            found = read(file)
    except OSError as error:
        raise LaunchError(f"The file '{path}' cannot be read: {error.strerror}.") from error
    except EvaluationError as error:
        raise LaunchError(f"The file '{path}' cannot be used. {error}") from error
    if not found:
        raise LaunchError(f"The file '{path}' is empty.")
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


_INDENT: Final = "  "
_NARROWEST: Final = 40


def run_search(options: Options, terminal: Terminal) -> int:
    """Print the tools that fit best: name, signature and why for each."""
    try:
        check_query(options.words)
    except ToolError as error:
        raise LaunchError(error.message) from error
    return work_in_yard(options, terminal, partial(_search, options=options, terminal=terminal))


async def _search(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal) -> int:
    found = await _found(yard, profile, options)
    if options.json:
        terminal.write_json(encode({"hits": [_entry(hit) for hit in found.hits], "more": found.more, "closest": found.closest}))
    elif terminal.interactive:
        _write_hits(terminal, found)
    else:
        for hit in found.hits:
            terminal.write("\t".join((hit.spec.name, signature(hit.spec), hit.why)))
    if not options.quiet:
        _say_what_else(terminal, found, options.words)
    return 0


async def _found(yard: Yard, profile: Profile, options: Options) -> Found:
    catalogue = Catalogue(yard.registry, yard.search)
    operation = None if options.operation is None else Operation(options.operation)
    try:
        catalogue.open()
        catalogue.check_namespace(options.namespace, profile)
    except ToolError as error:
        raise LaunchError(error.message) from error
    except ValueError as error:  # the environment asks for a search that cannot be had
        raise LaunchError(refusal_of(error, yard)) from error
    try:
        found = await catalogue.search(
            options.words, profile, namespace=options.namespace, operation=operation, offset=0, limit=options.limit
        )
        return Found(hits=found.hits, more=found.more, closest=[name for name in found.closest if name != METATOOLS])
    except Exception as error:
        raise failed_search(error, catalogue.settings.strategy) from error
    finally:
        catalogue.close()


def _entry(hit: Hit) -> dict[str, object]:
    spec = hit.spec
    return {
        "name": spec.name,
        "signature": signature(spec),
        "description": spec.summary,
        "operation": spec.operation,
        "source": spec.source,
        "why": hit.why,
    }


def _write_hits(terminal: Terminal, found: Found) -> None:
    """Write each tool as a paragraph, because signatures are longer than a column of a table."""
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


def _say_what_else(terminal: Terminal, found: Found, words: str) -> None:
    if found.more:
        terminal.say("More tools fit; '--limit' shows up to 100.")
    elif not found.hits:
        closest = ", ".join(f"'{name}'" for name in found.closest)
        terminal.say(f"Nothing fits '{shortened(' '.join(words.split()))}'." + (f" The closest namespaces: {closest}." if closest else ""))
