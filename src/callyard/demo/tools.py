"""The tools of the demo, from a catalogue: fixed, computed or invented answers that fit their schemas.

The same arguments give the same answer. Arguments are repeated in the answer where it has fields of their names.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast
from zlib import crc32

import msgspec

from callyard.dispatch.call import Call, Handler
from callyard.dispatch.tool import Tool
from callyard.model.envelope import encode_sorted
from callyard.model.errors import ToolError, invalid_input
from callyard.model.limits import Limits
from callyard.model.spec import Example, Operation, Reason, ToolSpec
from callyard.providers.provider_set import StaticProvider
from callyard.runtimes.runtime import RuntimeSettings
from callyard.yard import Yard

__all__ = [
    "COMPUTED",
    "FILE",
    "Entry",
    "Failure",
    "FixedAnswer",
    "list_charges",
    "make_value",
    "make_yard",
    "read_catalogue",
]

FILE: Final = Path(__file__).with_name("catalogue.jsonl")
"""The tools, one JSON object a line."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A failure of a tool: one of its reasons, a message and details."""

    reason: str
    message: str
    details: dict[str, Any]


class FixedAnswer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The answer to certain arguments, in place of an invented one."""

    when: dict[str, Any]
    data: dict[str, Any] = {}
    fails: Failure | None = None

    def matches(self, arguments: dict[str, Any]) -> bool:
        """Return whether it answers these arguments."""
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
    fixed_answers: tuple[FixedAnswer, ...] = ()
    rows: int = 3
    """The length of the list that it answers with, if it does."""

    def spec(self) -> ToolSpec:
        """Return the spec of the tool."""
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
    """Return all entries of the catalogue."""
    return msgspec.json.Decoder(Entry).decode_lines(FILE.read_bytes())


_FIRST_DATE: Final = datetime(2026, 2, 2, 8, tzinfo=UTC)
_PEOPLE: Final = ("ada", "mika", "noor", "jonas", "lucia", "tomek", "yuki", "sam")
_TITLES: Final = (
    "Weekly planning",
    "The printer on the second floor",
    "A table by the window",
    "Spring release",
    "Letters from the lake",
    "Orders that wait",
)
_SENTENCES: Final = (
    "It works again since this morning.",
    "We looked into it and found nothing unusual.",
    "Two of three are done; the last one waits for an answer.",
    "Somebody should look at this before Friday.",
)
_PLACES: Final = ("Lyon", "Annecy", "Lisbon", "Ghent", "Bergen")
_WORDS: Final = ("blue", "north", "oak", "river", "small")
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("artist", "assignee", "author", "lead", "manager", "name", "owner"), _PEOPLE),
    **dict.fromkeys(("goal", "message", "snippet", "text"), _SENTENCES),
    **dict.fromkeys(("subject", "title"), _TITLES),
    **dict.fromkeys(("address", "place", "region", "room"), _PLACES),
    "company": ("Moreau & Daughters", "Bakery Nord", "Lakeside Print"),
    "currency": ("EUR",),
    "version": ("2.14.0", "2.13.2"),
}
Schema = dict[str, Any]


def make_value(schema: Schema, arguments: dict[str, Any], *, rows: int, seed: int = 0, name: str = "") -> Any:
    """Return an invented value that fits a schema; a list has `rows` items, or fewer if the arguments have a limit."""
    kind = schema["type"]
    if kind == "object":
        found: dict[str, Any] = {}
        for key, part in cast("dict[str, Schema]", schema.get("properties", {})).items():
            argument = arguments.get(key)
            is_repeated = argument and isinstance(argument, str) and part["type"] == "string"
            found[key] = argument if is_repeated else make_value(part, arguments, rows=1, seed=seed, name=key)
        return found
    if kind == "array":
        count = min(rows, cast("int", arguments.get("limit", rows)))
        return [
            make_value(schema["items"], arguments, rows=rows, seed=seed + index, name=name) for index in range(count)
        ]
    number = crc32(f"{name} {seed}".encode())
    if kind == "string":
        return _make_text(schema, name, number=number, seed=seed)
    if kind == "integer":
        return 100 * (number % 900 + 1) if name.endswith("_cents") else number % 90 + 1
    return number % 2 == 0 if kind == "boolean" else number % 400 / 10


def _make_text(schema: Schema, name: str, *, number: int, seed: int) -> str:
    if "enum" in schema:
        return str(_pick(schema["enum"], number))
    moment = _FIRST_DATE + timedelta(days=seed % 400, minutes=number % 600)
    formats = {
        "date": moment.date().isoformat(),
        "date-time": moment.isoformat().replace("+00:00", "Z"),
        "email": f"{_pick(_PEOPLE, number)}@example.org",
        "uri": f"https://example.org/{name}/{number % 1000}",
    }
    if "format" in schema:
        return formats[schema["format"]]
    if name in _CHOICES:
        return str(_pick(_CHOICES[name], number))
    is_code = name.endswith("id") or name in {"flight", "key", "sha", "sku", "tracking"}
    return f"{name[:2]}_{number % 10_000}" if is_code else f"{_pick(_WORDS, number)} {number % 100}"


def _pick(choices: Any, number: int) -> Any:
    return choices[number % len(choices)]


_FIRST: Final = 400
_CHARGES: Final = 1200
_MINUTES: Final = 33
_DUPLICATES: Final = (733, 1042, 1377)
"""Numbers of payments that repeat the one before."""
_ADA: Final = {"customer_id": "cu_88", "amount_cents": 4900}
Arguments = dict[str, Any]
Rows = list[dict[str, Any]]


def list_charges(arguments: Arguments) -> Rows:
    """Return every payment of a month.

    Raises:
        ToolError: `invalid_input` if there is no such month.
    """
    try:
        begins = datetime.strptime(arguments["month"], "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise invalid_input(f"There is no month '{arguments['month']}'.", field="month") from None
    return [
        _make_charge(number, begins, arguments.get("currency", "EUR")) for number in range(_FIRST, _FIRST + _CHARGES)
    ]


def _make_charge(number: int, begins: datetime, currency: str) -> dict[str, Any]:
    copied = number - 1 if number in _DUPLICATES else number
    paid = {"customer_id": f"cu_{1000 + copied * 37 % 811}", "amount_cents": 100 * (copied * 53 % 190 + 9)}
    return {
        "charge_id": f"ch_{number}",
        **(_ADA if copied == _DUPLICATES[1] - 1 else paid),
        "currency": currency,
        "status": "paid",
        "method": ("card", "card", "transfer", "wallet")[copied % 4],
        "created_at": (begins + timedelta(minutes=_MINUTES * (copied - _FIRST))).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _duplicates(arguments: Arguments) -> dict[str, Any]:
    rows, columns = arguments["rows"], arguments["columns"]
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(repr(row.get(column)) for column in columns), []).append(row)
    repeated = [group for group in groups.values() if len(group) > 1]
    largest = repeated[: arguments["max_groups"]]
    shown = [{**{column: group[0].get(column) for column in columns}, "rows": len(group)} for group in largest]
    return {"rows": len(rows), "groups": len(repeated), "duplicates": shown}


def _sum(arguments: Arguments) -> dict[str, Any]:
    rows, column = arguments["rows"], arguments["column"]
    numbers = [row.get(column) for row in rows]
    if not all(isinstance(number, int | float) for number in numbers):
        raise invalid_input(f"Not every row has a number as '{column}'.", field="column")
    return {"rows": len(rows), "sum": sum(numbers)}


def _counts(arguments: Arguments) -> Rows:
    counts = Counter(str(row.get(arguments["column"])) for row in arguments["rows"])
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"value": value, "count": count} for value, count in ordered]


def _filtered(arguments: Arguments) -> Rows:
    return [row for row in arguments["rows"] if str(row.get(arguments["column"])) == arguments["equals"]]


COMPUTED: Final[dict[str, Callable[[Arguments], Any]]] = {
    "payments__export_charges": list_charges,
    "tables__count_by": _counts,
    "tables__filter_rows": _filtered,
    "tables__find_duplicates": _duplicates,
    "tables__sum_column": _sum,
}
"""Tools whose answers are computed from their arguments, by name."""

_TEXT: Final = {"type": "string"}
_ANY_LIST: Final = {
    "type": "array",
    "items": {"type": "object", "properties": {"id": _TEXT, "title": _TEXT, "text": _TEXT}},
}
_ANY_OBJECT: Final = {"type": "object", "properties": {"id": _TEXT, "text": _TEXT}}
"""Schemas for tools without an output schema."""


def make_yard(*, programs: bool = False) -> Yard:
    """Return the yard of the demo, one provider for each namespace; with `programs`, agents may run programs in it."""
    tools: dict[str, list[Tool]] = {}
    for entry in read_catalogue():
        tools.setdefault(entry.namespace, []).append(Tool.of(entry.spec(), _handler(entry)))
    providers = [StaticProvider(name, group, resources=(), prompts=()) for name, group in tools.items()]
    # the sandboxes that start soon and write nothing
    runtime = RuntimeSettings(enabled=True, order=("bubblewrap", "container")) if programs else RuntimeSettings()
    # the first search on a busy machine must not log a warning into the story
    return Yard("demo", providers=providers, limits=Limits(slow=10.0), runtime=runtime)


def _handler(entry: Entry) -> Handler:
    computed = COMPUTED.get(entry.id)
    schema = entry.output_schema or (_ANY_LIST if entry.operation is Operation.QUERY else _ANY_OBJECT)

    async def answer(call: Call) -> Any:
        arguments = call.arguments
        if computed is not None:
            return computed(arguments)
        invented = make_value(schema, arguments, rows=entry.rows, seed=crc32(encode_sorted(arguments)) % 40)
        fixed = next((fixed for fixed in entry.fixed_answers if fixed.matches(arguments)), None)
        if fixed is None:
            return invented
        if (failure := fixed.fails) is not None:
            code = entry.reasons[failure.reason].code
            raise ToolError(code, failure.message, reason=failure.reason, may_have_run=False, **failure.details)
        return {**invented, **fixed.data, **{name: arguments[name] for name in invented if name in arguments}}

    return answer
