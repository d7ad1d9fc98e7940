"""`callyard demo`: a tour of what an agent sees of a yard with hundreds of tools, without a network or a model."""

import json
import logging
import os
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Any, Final, cast

import msgspec

from callyard._internal.signed_tokens import Signer
from callyard.cli.parser import Options
from callyard.cli.targets import open_yard
from callyard.cli.terminal import Line, Painted, Part, Terminal
from callyard.demo.story import CallCosts, DemoCall, ListCosts, Step, call_costs, list_costs, run_story
from callyard.demo.tools import make_yard
from callyard.launch.signals import run
from callyard.model.signature import one_line
from callyard.search.settings import PREFIX
from callyard.yard import Yard

__all__ = ["outline", "run_demo"]

_WIDEST: Final = 96
_NARROWEST: Final = 72
_ANSWER_LINES: Final = 19
_MARGIN: Final = "   "
_INNER: Final = "     "
_SHORT: Final = 36
_GAP: Final = "   "


def run_demo(options: Options, terminal: Terminal) -> int:
    """Print the scenes of the tour as they happen."""
    with _quiet_defaults(verbose=options.verbose):
        return run(_show(terminal, max(min(terminal.width, _WIDEST), _NARROWEST), logged=options.verbose > 0))


@contextmanager
def _quiet_defaults(*, verbose: int) -> Generator[None]:
    """Keep warnings of the yard out of the story, and search settings of the environment: it tells default results."""
    logger = logging.getLogger("callyard")
    before = logger.level
    if not verbose:
        logger.setLevel(logging.ERROR)
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith(PREFIX)}
    try:
        yield
    finally:
        os.environ.update(hidden)
        logger.setLevel(before)


async def _show(terminal: Terminal, width: int, *, logged: bool) -> int:
    began = time.perf_counter()
    yard = make_yard(programs=True)
    yard.signer = Signer(lambda: os.urandom(32))  # the default signer writes a file
    async with open_yard(yard, logged=logged):
        lists = list_costs(yard)
        _write(terminal, _opening(lists, yard, width))
        scenes: list[Step] = []
        async for scene in run_story(yard):
            scenes.append(scene)
            _write(terminal, _scene(len(scenes) + 1, scene, width))
        _write(terminal, _closing(lists, call_costs(scenes), time.perf_counter() - began, width=width))
    return 0


def _write(terminal: Terminal, lines: Iterator[Line]) -> None:
    for line in lines:
        terminal.write(*line)
    terminal.flush()


def _opening(lists: ListCosts, yard: Yard, width: int) -> Iterator[Line]:
    yield from _title("Callyard", "every tool an agent uses, behind one dispatcher")
    yield from _text(
        f"Ada Moreau was charged twice; the second payment is 'ch_1042'. An agent that has {lists.tools} tools "
        "is to help her. There is no network here and no model: what the agent asks was written down before, and a "
        "real yard answers it now. Its tools are invented. Calls and answers are JSON, laid out to be read.",
        width,
    )
    yield from _title("1", "What the agent is shown")
    yield from _text(f"Six tools in place of {lists.tools}, and how to use them: {lists.shown:,} tokens.", width)
    yield ("",)
    for spec in yard.list():
        yield (_INNER, Painted(f"{spec.name:<15}", "bold"), one_line(spec.description, width - len(_INNER) - 15))


def _title(mark: str, text: str) -> Iterator[Line]:
    yield ("",)
    yield (Painted(f"{mark}  ", "good"), Painted(text, "bold"))


def _text(text: str, width: int) -> Iterator[Line]:
    yield from ((_MARGIN, line) for line in wrap(text, width - len(_MARGIN), break_on_hyphens=False))


def _scene(number: int, scene: Step, width: int) -> Iterator[Line]:
    yield from _title(str(number), scene.title)
    yield from _text(scene.text, width)
    for move in scene.calls:
        yield ("",)
        yield from _call(move, width)
        yield from _answer(move, width)


def _call(move: DemoCall, width: int) -> Iterator[Line]:
    head: Line = (_MARGIN, Painted("→ ", "good"), Painted(move.tool, "bold"))
    arguments = json.dumps(move.arguments, ensure_ascii=False)
    if len(_INNER) + len(move.tool) + 1 + len(arguments) <= width:
        yield (*head, f" {arguments}")
        return
    yield head
    yield from ((_INNER, *line) for line in outline(move.arguments, width - len(_INNER)))


def _answer(move: DemoCall, width: int) -> Iterator[Line]:
    answer, meta = move.answer, move.answer.meta
    mark = Painted("← ", "good" if answer.success else "bad")
    coerced = f", corrected: {', '.join(meta.coerced)}" if meta.coerced else ""
    yield (_MARGIN, mark, Painted(f"{meta.estimated_tokens:,} tokens{coerced}", "faint"))
    payload = answer.data if answer.error is None else {"error": msgspec.to_builtins(answer.error)}
    lines = list(outline(payload, width - len(_INNER)))
    yield from ((_INNER, *line) for line in lines[:_ANSWER_LINES])
    if len(lines) > _ANSWER_LINES:
        yield (_INNER, Painted(f"… and {len(lines) - _ANSWER_LINES} lines more", "faint"))


def _closing(lists: ListCosts, bill: CallCosts, seconds: float, *, width: int) -> Iterator[Line]:
    yield from _title("9", "What it cost, in tokens")
    yield ("",)
    yield (_INNER, Painted(f"{'':<30}{'here':>8}{'without':>10}", "faint"))
    rows = [
        ("to find the tool", lists.shown + bill.search, lists.everything),
        ("to search a month of payments", bill.excerpts, bill.full_result),
        *([("to ask about 100 customers", bill.program, bill.inner)] if bill.inner else []),
    ]
    for what, here, without in rows:
        yield (_INNER, f"{what:<30}{here:>8,}{without:>10,}", Painted(f"{without / here:>6.0f} times less", "good"))
    yield ("",)
    here = "'Here' is the short list with the search and the description"
    without = f"'Without' is the list of all {lists.tools} tools"
    if bill.inner:
        here += ", the three answers about the large result, and the program with its answer."
        without += ", the whole result, and the answers to a hundred calls, one by one."
    else:
        here += ", and the three answers about the large result."
        without += ", and the whole result."
    yield from _text(f"{here} {without} Four characters count as a token.", width)
    yield ("",)
    yield (_MARGIN, f"Told in {seconds:.1f} seconds. The same yard is yours to try:")
    yield ("",)
    yield (_INNER, "callyard search 'book a room' callyard.demo:yard")
    yield (_INNER, "callyard serve callyard.demo:yard --transport http")


def outline(value: Any, width: int) -> Iterator[Line]:
    """Yield a JSON value as indented lines for people."""
    if isinstance(value, dict) and value:
        yield from _pairs(cast("dict[str, Any]", value), width)
    elif isinstance(value, list) and _is_nested(value):
        for item in cast("list[Any]", value):
            mark: Part = Painted("- ", "faint")
            for line in outline(item, width - 2):
                yield (mark, *line)
                mark = "  "
    else:
        yield from ((text,) for text in _wrapped(_flat(value), width))


def _pairs(pairs: dict[str, Any], width: int) -> Iterator[Line]:
    """Yield the lines of an object; short fields that follow one another share a line."""
    shared: list[Part] = []
    used = 0
    for key, value in pairs.items():
        text = f"{key}: {_flat(value)}"
        if len(text) <= min(_SHORT, width):
            if shared and used + len(_GAP) + len(text) > width:
                yield tuple(shared)
                shared, used = [], 0
            used += len(text) + (len(_GAP) if shared else 0)
            shared += [*([_GAP] if shared else []), Painted(f"{key}: ", "faint"), _flat(value)]
            continue
        if shared:
            yield tuple(shared)
            shared, used = [], 0
        yield from _pair(key, value, width)
    if shared:
        yield tuple(shared)


def _pair(key: str, value: Any, width: int) -> Iterator[Line]:
    """Yield the lines of one field: wrapped if it is flat, indented below its name if it is nested and too long."""
    flat = _flat(value)
    below: Iterable[Line] = ()
    if isinstance(value, str) and "\n" in value:
        below = [(line,) for line in value.splitlines()]
    elif len(key) + 2 + len(flat) > width and _is_nested(value):
        below = outline(value, width - 2)
    if below:
        yield (Painted(f"{key}:", "faint"),)
        yield from (("  ", *line) for line in below)
        return
    first, *rest = _wrapped(flat, width - len(key) - 2)
    yield (Painted(f"{key}: ", "faint"), first)
    yield from ((" " * (len(key) + 2), text) for text in rest)


def _is_nested(value: Any) -> bool:
    """Return whether a value is an object, or a list of objects or lists."""
    return isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(item, dict | list) for item in cast("list[Any]", value))
    )


def _flat(value: Any) -> str:
    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _wrapped(text: str, width: int) -> list[str]:
    return wrap(text, max(width, 12), break_on_hyphens=False)
