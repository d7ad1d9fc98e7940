import asyncio
import contextvars
import inspect

import pytest
from table_tests import every_row


def test_every_failing_row_is_named_with_its_message() -> None:
    seen: list[int] = []

    @every_row(("number", "limit"), [(1, 2), (3, 2), pytest.param(5, 4, id="five"), (0, 0)])
    def small(number: int, limit: int) -> None:
        seen.append(number)
        assert number <= limit, f"{number} is too large"

    with pytest.raises(AssertionError) as failed:
        small()

    assert seen == [1, 3, 5, 0]
    lines = str(failed.value).splitlines()
    assert lines[0] == "2 of 4 rows failed:"
    assert [line for line in lines if line.startswith("row ")] == [
        "row (3, 2): AssertionError: 3 is too large",
        "row five: AssertionError: 5 is too large",
    ]
    assert "3 is too large" in str(failed.value.__cause__)


def test_a_table_whose_rows_all_hold_passes() -> None:
    @every_row("number", [1, 2])
    def positive(number: int) -> None:
        assert number > 0

    positive()


def test_every_way_to_fail_counts() -> None:
    def skip() -> None:
        pytest.skip("not here")

    def cancel() -> None:
        raise asyncio.CancelledError

    def expect_an_error() -> None:
        with pytest.raises(ValueError, match="never"):
            pass

    @every_row("fail", [skip, cancel, expect_an_error, lambda: 1 / 0], ids=["skip", "cancel", "raises", "defect"])
    def run(fail: object) -> None:
        assert callable(fail)
        fail()

    with pytest.raises(AssertionError, match="4 of 4 rows failed") as failed:
        run()
    assert [line.split(":")[0] for line in str(failed.value).splitlines()[1:]] == [
        "row skip",
        "row cancel",
        "row raises",
        "row defect",
    ]


def test_a_row_that_python_does_not_write_is_named_by_its_number() -> None:
    @every_row("number", [1, 10**5000])
    def small(number: int) -> None:
        assert number < 2, "too large"

    with pytest.raises(AssertionError, match="row number 1: AssertionError: too large"):
        small()


def test_an_async_row_has_a_loop_and_a_context_of_its_own() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    loops: list[asyncio.AbstractEventLoop] = []

    @every_row("number", [1, 2, 3])
    async def run(number: int) -> None:
        assert variable.get() == 0
        variable.set(number)
        loops.append(asyncio.get_running_loop())
        await asyncio.sleep(0)
        assert number != 2, "two"

    with pytest.raises(AssertionError, match=r"1 of 3 rows failed:\nrow .*two"):
        run()
    assert len(set(map(id, loops))) == 3


def test_tables_are_stacked_and_the_other_parameters_are_fixtures() -> None:
    seen: list[tuple[str, int, int]] = []

    @every_row("a", [1, 2])
    @every_row("b", [3, 4], ids=str)
    def run(a: int, b: int, fixture: str) -> None:
        seen.append((fixture, a, b))
        assert a + b != 5

    assert list(inspect.signature(run).parameters) == ["fixture"]
    with pytest.raises(AssertionError, match="2 of 2 rows failed"):
        run(fixture="x")
    assert seen == [("x", 1, 3), ("x", 1, 4), ("x", 2, 3), ("x", 2, 4)]


def test_a_table_without_rows_or_with_marks_or_gaps_is_refused() -> None:
    with pytest.raises(ValueError, match="needs rows"):
        every_row("a", [])
    with pytest.raises(ValueError, match="2 values"):
        every_row("a, b", [(1, 2), (3,)])
    with pytest.raises(ValueError, match="marks"):
        every_row("a", [pytest.param(1, marks=pytest.mark.xfail)])
