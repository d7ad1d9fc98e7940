"""Tests of a whole table: one claim, one collected test, and every failing row in its message."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

__all__ = ["every_row"]

FAILURES = (Exception, asyncio.CancelledError, pytest.fail.Exception, pytest.skip.Exception)
LABEL_LENGTH = 200
_ParameterSet = type(pytest.param())

Row = Sequence[object] | object
Ids = Callable[[Any], object] | Iterable[object] | None


def every_row(
    names: str | Sequence[str], table: Iterable[Row], *, ids: Ids = None
) -> Callable[[Callable[..., object]], Callable[..., None]]:
    """Run a test for every row of a table, and fail at the end with all rows that failed.

    It takes the arguments of `pytest.mark.parametrize`, and can be stacked like it. The rows share the fixtures of the
    test. Each row of an async test has an event loop of its own. A row that skips counts as failed: nobody would see
    that it skipped.

    Raises:
        ValueError: The table has no rows, or a row has marks or another number of values than there are names.
    """
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(table)
    rows = [_values(row, is_single=isinstance(names, str) and len(columns) == 1) for row in table]
    names_of_rows = ids if ids is None or callable(ids) else list(ids)
    if not rows or any(len(values) != len(columns) for values in rows):
        raise ValueError(f"The table needs rows of {len(columns)} values.")

    def wrap(test: Callable[..., object]) -> Callable[..., None]:
        @functools.wraps(test)
        def run_every_row(**others: object) -> None:
            failed: list[str] = []
            first: BaseException | None = None
            for number, values in enumerate(rows):
                try:
                    _run(test, dict(zip(columns, values, strict=True)) | others)
                except FAILURES as error:
                    first = first or error
                    label = _label(number, table[number], values, names_of_rows)
                    failed.append(f"row {label}: {type(error).__name__}: {error}")
            if failed:
                raise AssertionError("\n".join([f"{len(failed)} of {len(rows)} rows failed:", *failed])) from first

        signature = inspect.signature(test)
        fixtures = [parameter for name, parameter in signature.parameters.items() if name not in columns]
        run_every_row.__dict__["__signature__"] = signature.replace(parameters=fixtures)
        return run_every_row

    return wrap


def _values(row: object, *, is_single: bool) -> tuple[Any, ...]:
    if isinstance(row, _ParameterSet):
        if row.marks:
            raise ValueError("A row has no marks: give it a test of its own.")
        return tuple(row.values)
    if is_single:
        return (row,)
    return tuple(row)  # pyright: ignore[reportArgumentType, reportUnknownVariableType] - several names need a sequence


def _label(
    number: int, row: object, values: tuple[Any, ...], ids: Callable[[Any], object] | list[object] | None
) -> str:
    if callable(ids):
        label = [ids(value) for value in values]
    elif ids is not None:
        label = ids[number]
    else:
        label = (row.id if isinstance(row, _ParameterSet) else None) or values
    try:
        return str(label)[:LABEL_LENGTH]
    except ValueError:  # Python writes no number of more than 4,300 digits.
        return f"number {number}"


def _run(test: Callable[..., object], arguments: dict[str, Any]) -> None:
    if inspect.iscoroutinefunction(test):
        asyncio.run(test(**arguments))
    else:
        test(**arguments)
