"""The catalogue: what the tools of the demo are and how they answer, as data in a file.

The file can be measured, too: `toolyard eval search --tools` takes it.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from toolyard.spec import Example, Operation, Reason, ToolSpec

__all__ = ["FILE", "Canned", "Entry", "Refusal", "read_catalogue"]

FILE: Final = Path(__file__).with_name("catalogue.jsonl")
"""The tools, one JSON object a line."""


class Refusal(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of the tool's own: one of its reasons, a sentence, and facts."""

    reason: str
    message: str
    details: dict[str, Any]


class Canned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is answered when certain arguments are given, in place of what would be made up."""

    when: dict[str, Any]
    data: dict[str, Any] = {}
    fails: Refusal | None = None

    def fits(self, arguments: dict[str, Any]) -> bool:
        """Return whether these are the arguments."""
        return all(arguments.get(name) == value for name, value in self.when.items())


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of the catalogue."""

    id: str
    name: str
    namespace: str
    operation: Operation
    description: str
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None = None
    tags: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    reasons: dict[str, Reason] = {}
    canned: tuple[Canned, ...] = ()
    rows: int = 3
    """How many things it lists, if it lists things."""

    def spec(self) -> ToolSpec:
        """Return it as a tool is published."""
        return ToolSpec(
            name=self.id,
            source=self.namespace,
            operation=self.operation,
            description=self.description,
            input_schema=self.input_schema,
            output_schema=self.output_schema,
            tags=self.tags,
            examples=self.examples,
            reasons=self.reasons,
        )


def read_catalogue() -> list[Entry]:
    """Return every tool of the demo."""
    return msgspec.json.Decoder(Entry).decode_lines(FILE.read_bytes())
