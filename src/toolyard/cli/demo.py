"""`toolyard demo`: a tour without a network or a model, of what an agent sees of a yard with hundreds of tools."""

import json
import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from textwrap import wrap
from typing import Final

import msgspec

from toolyard._internal.signed_tokens import Signer
from toolyard.cli.parser import Options
from toolyard.cli.targets import opened
from toolyard.cli.terminal import Line, Painted, Terminal, outline
from toolyard.demo.story import Bill, Lists, Move, Scene, bill_of, lists_of, tell
from toolyard.demo.tools import make_yard
from toolyard.launch.signals import run as run_until_told
from toolyard.model.signature import one_line
from toolyard.search.settings import PREFIX
from toolyard.yard import Yard

__all__ = ["run_demo"]

_SECRET_BYTES: Final = 32
_WIDEST: Final = 96
_NARROWEST: Final = 72
_LONGEST: Final = 19
_MARGIN: Final = "   "
_INNER: Final = "     "


def run_demo(options: Options, terminal: Terminal) -> int:
    """Tell the story, each scene when it has happened."""
    with _usual_search():
        return run_until_told(_show(terminal, max(min(terminal.width, _WIDEST), _NARROWEST), logged=options.verbose > 0))


@contextmanager
def _usual_search() -> Generator[None]:
    """Hide meanwhile what the environment says of search: the words of the story are about what is found without."""
    hidden = {name: os.environ.pop(name) for name in tuple(os.environ) if name.startswith(PREFIX)}
    try:
        yield
    finally:
        os.environ.update(hidden)


async def _show(terminal: Terminal, width: int, *, logged: bool) -> int:
    began = time.perf_counter()
    yard = make_yard()
    yard.signer = Signer(lambda: os.urandom(_SECRET_BYTES))  # the usual one would leave a file behind, or warn that it cannot
    async with opened(yard, logged=logged):
        lists = lists_of(yard)
        _write(terminal, _opening(lists, yard, width))
        scenes: list[Scene] = []
        async for scene in tell(yard):
            scenes.append(scene)
            _write(terminal, _scene(len(scenes) + 1, scene, width))
        _write(terminal, _closing(lists, bill_of(scenes), time.perf_counter() - began, width=width))
    return 0


def _write(terminal: Terminal, lines: Iterator[Line]) -> None:
    for line in lines:
        terminal.write(*line)
    terminal.flush()


def _opening(lists: Lists, yard: Yard, width: int) -> Iterator[Line]:
    yield from _title("Toolyard", "every tool an agent uses, behind one dispatcher")
    yield from _text(
        f"Ada Moreau was charged twice; the second payment is 'ch_1042'. An agent that has {lists.tools} tools is to help her. "
        "There is no network here and no model: what the agent asks was written down before, and a real yard answers it now. "
        "Its tools are invented. Calls and answers are JSON, laid out to be read.",
        width,
    )
    yield from _title("1", "What the agent is shown")
    yield from _text(f"Five tools in place of {lists.tools}, and how to use them: {lists.shown:,} tokens.", width)
    yield ("",)
    for spec in yard.list():
        yield (_INNER, Painted(f"{spec.name:<15}", "bold"), one_line(spec.description, width - len(_INNER) - 15))


def _title(mark: str, text: str) -> Iterator[Line]:
    yield ("",)
    yield (Painted(f"{mark}  ", "good"), Painted(text, "bold"))


def _text(text: str, width: int) -> Iterator[Line]:
    yield from ((_MARGIN, line) for line in wrap(text, width - len(_MARGIN), break_on_hyphens=False))


def _scene(number: int, scene: Scene, width: int) -> Iterator[Line]:
    yield from _title(str(number), scene.title)
    yield from _text(scene.words, width)
    for move in scene.moves:
        yield ("",)
        yield from _call(move, width)
        yield from _answer(move, width)


def _call(move: Move, width: int) -> Iterator[Line]:
    head: Line = (_MARGIN, Painted("→ ", "good"), Painted(move.tool, "bold"))
    written = json.dumps(move.arguments, ensure_ascii=False)
    if len(_INNER) + len(move.tool) + 1 + len(written) <= width:
        yield (*head, f" {written}")
        return
    yield head
    yield from ((_INNER, *line) for line in outline(move.arguments, width - len(_INNER)))


def _answer(move: Move, width: int) -> Iterator[Line]:
    answer, meta = move.answer, move.answer.meta
    mark = Painted("← ", "good" if answer.success else "bad")
    put_right = f", put right: {', '.join(meta.coerced)}" if meta.coerced else ""
    yield (_MARGIN, mark, Painted(f"{meta.estimated_tokens:,} tokens{put_right}", "faint"))
    told = answer.data if answer.error is None else {"error": msgspec.to_builtins(answer.error)}
    lines = list(outline(told, width - len(_INNER)))
    yield from ((_INNER, *line) for line in lines[:_LONGEST])
    if len(lines) > _LONGEST:
        yield (_INNER, Painted(f"… and {len(lines) - _LONGEST} lines more", "faint"))


def _closing(lists: Lists, bill: Bill, seconds: float, *, width: int) -> Iterator[Line]:
    yield from _title("8", "What it cost, in tokens")
    yield ("",)
    yield (_INNER, Painted(f"{'':<30}{'here':>8}{'without':>10}", "faint"))
    for what, here, without in (
        ("to find the tool", lists.shown + bill.finding, lists.everything),
        ("to search a month of payments", bill.looking, bill.large),
    ):
        yield (_INNER, f"{what:<30}{here:>8,}{without:>10,}", Painted(f"{without / here:>6.0f} times less", "good"))
    yield ("",)
    yield from _text(
        "'Here' is the short list with the search and the description, and the three answers about the large result. 'Without' is "
        f"the list of all {lists.tools} tools, and the whole result. Four characters count as a token.",
        width,
    )
    yield ("",)
    yield (_MARGIN, f"Told in {seconds:.1f} seconds. The same yard is yours to try:")
    yield ("",)
    yield (_INNER, "toolyard search 'book a room' toolyard.demo:yard")
    yield (_INNER, "toolyard serve toolyard.demo:yard --transport http")
