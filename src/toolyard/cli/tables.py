"""Tables in Markdown."""

from collections.abc import Iterable, Sequence

__all__ = ["cell", "table"]


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; the cells are Markdown already."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def cell(text: str) -> str:
    """Return text as it can stand in a table."""
    return " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|")
