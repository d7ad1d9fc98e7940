"""A pack of notes that agents keep: one file for each, in the state folder of the pack."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from msgspec import Struct

from callyard import Functions, Pack, PackContext, Publish, Reason, ToolError, Toolset, tool

__all__ = ["PACK", "Notes", "NotesConfig"]


class NotesConfig(Struct, frozen=True, kw_only=True):
    """The table `[pack.notes]`."""

    most: int = 100
    """How many notes are kept."""


class Notes:
    """Publishes the tools of the notes of one yard."""

    name = "notes"

    def __init__(self, context: PackContext) -> None:
        self._context = context
        self._most: int = context.config.most
        self._folder = Path()

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the tools; the folder is made when a yard opens, not when it is built."""
        self._folder = self._context.folder()
        async with Functions(self.name, [self]).open(publish):
            yield

    @tool(name="notes_list", operation="query")
    def list_notes(self) -> list[str]:
        """List the titles of all notes."""
        return sorted(file.stem for file in self._folder.glob("*.txt"))

    @tool(name="notes_read", operation="query", reasons={"no_such_note": Reason("not_found")})
    def read_note(self, title: str) -> str:
        """Read a note."""
        file = self._file(title)
        if not file.is_file():
            raise ToolError("not_found", "There is no note of that title.", reason="no_such_note")
        return file.read_text(encoding="utf-8")

    @tool(name="notes_write", operation="command", idempotent=True, reasons=("full",))
    def write_note(self, title: str, text: str) -> int:
        """Write a note, and return how many there are; one of the same title is replaced."""
        file = self._file(title)
        if not file.exists() and len(self.list_notes()) >= self._most:
            raise ToolError("state_error", f"There are {self._most} notes already.", reason="full")
        file.write_text(text, encoding="utf-8")
        return len(self.list_notes())

    def _file(self, title: str) -> Path:
        if not title.replace("-", "").isalnum():
            issue = {"field": "title", "code": "letters", "message": "Use letters, digits and '-'."}
            raise ToolError("invalid_input", "The title has other characters.", issues=[issue])
        return self._folder / f"{title}.txt"


PACK = Pack(
    name="notes",
    make=Notes,
    requires=">=0.1,<1",
    config=NotesConfig,
    shown=("most",),
    reasons={"no_such_note": Reason("not_found"), "full": Reason()},
    toolsets=(Toolset(name="notes_reading", names=("notes_list", "notes_read")),),
)
