"""A tour of the example yard, which is what `make tour` shows: its tools, and five calls with their answers."""

import asyncio
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from toolyard import Envelope, ToolSpec, Yard

BANK = Path(__file__).parent.parent / "examples" / "bank.py"
WIDTH = 92
BOLD, DIM, RED, GREEN, CYAN = "1", "2", "31", "32", "36"
COLOURS = {"query": GREEN, "command": CYAN, "destroy": RED, "eval": RED}


def main() -> None:
    """Show the yard."""
    began = time.perf_counter()
    asyncio.run(show(load(BANK)))
    seconds = time.perf_counter() - began
    print(f"\n  {paint(f'Opened, called and closed in {seconds:.2f} seconds.', DIM)}")
    print(f"  {paint('Next:', DIM)} docs/start.md, or examples/bank.py, which is all there is to this yard.\n")


def load(path: Path) -> Yard:
    """Return the yard that an example has at its top level."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"'{path}' cannot be loaded.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return cast("Yard", module.yard)


async def show(yard: Yard) -> None:
    """Print the list of tools, then the calls."""
    async with yard:
        specs = yard.list()
        print(f"\n  {paint('Toolyard', BOLD)}: every tool an agent uses, behind one dispatcher.")
        print(f"  This is the yard '{yard.name}' of examples/bank.py, with {len(specs)} tools.\n")
        for spec in sorted(specs, key=lambda spec: (spec.source != yard.name, spec.source, spec.name)):
            print(line(spec))
        await walk(yard)


async def walk(yard: Yard) -> None:
    """Make the five calls, each with what it is meant to show."""
    payment: dict[str, Any] = {"source": "current", "target": "holiday"}
    await step(yard, "1  A good call", "transfer", {**payment, "cents": 2500})
    await step(yard, "2  A mistake, answered so that an agent can mend it", "transfer", {**payment, "cent": 2500})
    await step(yard, "3  The recovery; a number written as text is put right, and said so", "transfer", {**payment, "cents": "2500"})
    await step(yard, "4  A failure of the tool's own, with a reason and what to do", "transfer", {**payment, "cents": 9_000_000})
    stored = await step(yard, "5  A result too large to read becomes a handle …", "get_statement", {"account": "current", "days": 365})
    reference = {"bookings": {"$ref": stored.data["handle"]}}
    await step(yard, "   … which the next call can take", "sum_by_purpose", reference)


async def step(yard: Yard, title: str, name: str, arguments: dict[str, Any]) -> Envelope:
    """Make one call, print it and return its answer."""
    print(f"\n  {paint(title, BOLD)}")
    print(f"     {paint('call', DIM)} {name} {written(arguments)}")
    answer = await yard.call(name, arguments)
    first, *rest = pretty(json.loads(answer.to_json()), WIDTH)
    print(f"  {paint('=>', GREEN if answer.success else RED)} {first}")
    for text in rest:
        print(f"     {text}")
    return answer


def line(spec: ToolSpec) -> str:
    """Return one tool as one line."""
    properties = cast("dict[str, Any]", spec.input_schema.get("properties", {}))
    signature = f"{spec.name}({', '.join(properties)})"
    return f"  {paint(f'{spec.operation:<8}', COLOURS[spec.operation])} {signature:<42} {paint(shortened(spec.summary, 48), DIM)}"


def shortened(text: str, width: int) -> str:
    """Return as much of a text as fits."""
    return text if len(text) <= width else f"{text[: width - 1].rstrip()}…"


def pretty(value: Any, width: int, key: str = "") -> list[str]:
    """Return JSON in lines: an object or a list that is too long for one is broken up."""
    flat = key + written(value)
    if len(flat) <= width or not isinstance(value, dict | list) or not value:
        return [flat]
    pairs, (opening, closing) = members(cast("dict[str, Any] | list[Any]", value))
    lines = [""]
    for number, (name, item) in enumerate(pairs, start=1):
        first, *rest = pretty(item, width - 3, name)
        if lines[-1] and (rest or len(lines[-1]) + len(first) > width - 5):
            lines.append("")
        lines[-1] = f"{lines[-1]} {first}".strip()
        lines += rest
        lines[-1] += "," if number < len(pairs) else ""
        lines += [""] if rest and number < len(pairs) else []
    return [key + opening, *(f"  {text}" for text in lines), closing]


def members(value: dict[str, Any] | list[Any]) -> tuple[Sequence[tuple[str, Any]], str]:
    """Return what is in an object or a list, each with what is written before it, and the brackets around it."""
    if isinstance(value, dict):
        return [(f"{json.dumps(name)}: ", item) for name, item in value.items()], "{}"
    return [("", item) for item in value], "[]"


def written(value: Any) -> str:
    """Return a value as JSON."""
    return json.dumps(value, ensure_ascii=False)


def paint(text: str, colour: str) -> str:
    """Return the text in a colour, on a terminal that wants colours."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{colour}m{text}\x1b[0m"


if __name__ == "__main__":
    main()
