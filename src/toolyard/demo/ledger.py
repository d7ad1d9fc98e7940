"""The ledger: the payments of a month, of which a few were taken twice, and tools that really compute something with rows."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from toolyard.errors import invalid_input

__all__ = ["COMPUTED", "charges_of"]

_FIRST: Final = 400
_CHARGES: Final = 1200
_MINUTES: Final = 33
_TAKEN_TWICE: Final = (733, 1042, 1377)
"""Numbers of payments that are the one before them once more."""
_ADA: Final = {"customer_id": "cu_88", "amount_cents": 4900}

Arguments = dict[str, Any]
Rows = list[dict[str, Any]]


def charges_of(arguments: Arguments) -> Rows:
    """Return every payment of a month.

    Raises:
        ToolError: `invalid_input` if there is no such month.
    """
    try:
        begins = datetime.strptime(arguments["month"], "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise invalid_input(f"There is no month '{arguments['month']}'.", field="month") from None
    return [_charge(number, begins, arguments.get("currency", "EUR")) for number in range(_FIRST, _FIRST + _CHARGES)]


def _charge(number: int, begins: datetime, currency: str) -> dict[str, Any]:
    copied = number - 1 if number in _TAKEN_TWICE else number
    paid = {"customer_id": f"cu_{1000 + copied * 37 % 811}", "amount_cents": 100 * (copied * 53 % 190 + 9)}
    moment = begins + timedelta(minutes=_MINUTES * (copied - _FIRST))
    return {
        "charge_id": f"ch_{number}",
        **(_ADA if copied == _TAKEN_TWICE[1] - 1 else paid),
        "currency": currency,
        "status": "paid",
        "method": ("card", "card", "transfer", "wallet")[copied % 4],
        "created_at": moment.strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _duplicates(arguments: Arguments) -> dict[str, Any]:
    rows, columns = arguments["rows"], arguments["columns"]
    groups: dict[tuple[str, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(repr(row.get(column)) for column in columns), []).append(row)
    several = [group for group in groups.values() if len(group) > 1]
    shown = [{**{column: group[0].get(column) for column in columns}, "rows": len(group)} for group in several[: arguments["max_groups"]]]
    return {"rows": len(rows), "groups": len(several), "duplicates": shown}


def _sum(arguments: Arguments) -> dict[str, Any]:
    rows, column = arguments["rows"], arguments["column"]
    return {"rows": len(rows), "sum": sum(_numbers(rows, column))}


def _numbers(rows: Rows, column: str) -> Iterable[float]:
    for row in rows:
        value = row.get(column)
        if not isinstance(value, int | float):
            raise invalid_input(f"Not every row has a number as '{column}'.", field="column")
        yield value


def _counts(arguments: Arguments) -> Rows:
    counts: dict[str, int] = {}
    for row in arguments["rows"]:
        value = str(row.get(arguments["column"]))
        counts[value] = counts.get(value, 0) + 1
    return [{"value": value, "count": count} for value, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))]


def _filtered(arguments: Arguments) -> Rows:
    return [row for row in arguments["rows"] if str(row.get(arguments["column"])) == arguments["equals"]]


COMPUTED: Final[dict[str, Callable[[Arguments], Any]]] = {
    "payments__export_charges": charges_of,
    "tables__count_by": _counts,
    "tables__filter_rows": _filtered,
    "tables__find_duplicates": _duplicates,
    "tables__sum_column": _sum,
}
"""Tools whose answers are computed from their arguments, by name."""
