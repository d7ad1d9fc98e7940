"""`toolyard search`: the tools of a yard that fit some words, as an agent would find them."""

from functools import partial
from textwrap import wrap
from typing import Final

from toolyard.cli.cause import failed_search, refusal_of
from toolyard.cli.exits import CommandError
from toolyard.cli.opening import work_in_yard
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Painted, Terminal, cut
from toolyard.envelope import encode
from toolyard.errors import ToolError, shortened
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.searching import check_query
from toolyard.metatools.signature import signature
from toolyard.profile import METATOOLS, Profile
from toolyard.search import Found, Hit
from toolyard.spec import Operation
from toolyard.yard import Yard

__all__ = ["run"]

_INDENT: Final = "  "
_NARROWEST: Final = 40


def run(options: Options, terminal: Terminal) -> int:
    """Print the tools that fit best: name, signature and why for each."""
    try:
        check_query(options.words)
    except ToolError as error:
        raise CommandError(error.message) from error
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
        raise CommandError(error.message) from error
    except ValueError as error:  # the environment asks for a search that cannot be had
        raise CommandError(refusal_of(error, yard)) from error
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
