import asyncio
import threading
from collections.abc import Sequence
from functools import partial

import pytest

from toolyard import Caller, Limits, Profile, ToolError, Toolset, Yard, prompt, resource
from toolyard.model.errors import CodeName

CITIES = ("Berlin", "Bern", "Rome")
DENIED = Caller(profile=Profile(name="p", toolsets=(Toolset(name="t", deny=("*",)),)))


def cities(value: str, settled: dict[str, str]) -> list[str]:
    return [city for city in CITIES if city.startswith(value) and settled.get("country", "") in ("", city)]


async def many(value: str, settled: dict[str, str]) -> Sequence[str]:
    return [f"{value}{number}" for number in range(500)]


async def for_ever(value: str, settled: dict[str, str]) -> Sequence[str]:
    await asyncio.Event().wait()
    raise AssertionError


def burst(value: str, settled: dict[str, str]) -> Sequence[str]:
    raise ZeroDivisionError


def refuse(value: str, settled: dict[str, str]) -> Sequence[str]:
    raise ToolError("upstream_unavailable", "No.")


@resource("w://{country}/{city}", complete={"city": cities})
def weather(country: str, city: str) -> str:
    """Return the weather."""
    raise AssertionError


@prompt(complete={"many": many, "for_ever": for_ever, "burst": burst, "refuse": refuse})
def travel(many: str, for_ever: str, burst: str, refuse: str, free: str) -> str:
    """Plan a journey."""
    raise AssertionError


def yard(**given: object) -> Yard:
    return Yard(resources=[weather], prompts=[travel], **given)  # pyright: ignore[reportArgumentType] - limits alone


async def test_a_variable_is_completed_with_what_is_settled_already() -> None:
    async with yard() as open_yard:
        free = await open_yard.complete("resource", "w://{country}/{city}", argument="city", value="Ber")
        settled = await open_yard.complete("resource", "w://{country}/{city}", argument="city", value="Ber", arguments={"country": "Bern"})

    assert (free, settled) == (["Berlin", "Bern"], ["Bern"])


async def test_at_most_a_hundred_are_returned_and_none_where_nothing_completes() -> None:
    async with yard() as open_yard:
        found = await open_yard.complete("prompt", "travel", argument="many", value="x")
        none = await open_yard.complete("prompt", "travel", argument="free", value="x")

    assert (len(found), found[99], none) == (100, "x99", [])


async def test_a_function_that_blocks_runs_in_a_thread() -> None:
    threads: list[str] = []

    def note(value: str, settled: dict[str, str]) -> list[str]:
        threads.append(threading.current_thread().name)
        return []

    @prompt(complete={"x": note})
    def say(x: str) -> str:
        raise AssertionError

    async with Yard(prompts=[say]) as open_yard:
        await open_yard.complete("prompt", "say", argument="x", value="")

    assert threads[0].startswith("toolyard-")


async def test_a_function_may_return_something_to_wait_for() -> None:
    @prompt(complete={"x": partial(many)})
    def say(x: str) -> str:
        raise AssertionError

    async with Yard(prompts=[say]) as open_yard:
        assert len(await open_yard.complete("prompt", "say", argument="x", value="")) == 100


@pytest.mark.parametrize(
    ("kind", "name", "argument", "code"),
    [
        ("prompt", "no_such", "many", "not_found"),
        ("prompt", "travel", "no_such", "not_found"),
        ("resource", "w://{x}", "x", "not_found"),
        ("resource", "w://{country}/{city}", "x", "not_found"),
        ("prompt", "travel", "burst", "internal_error"),
        ("prompt", "travel", "refuse", "upstream_unavailable"),
        ("prompt", "travel", "for_ever", "timeout"),
    ],
)
async def test_what_cannot_be_completed_fails_with_a_code(kind: str, name: str, argument: str, code: CodeName) -> None:
    async with yard(limits=Limits(timeout=0.01)) as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete(kind, name, argument=argument, value="x")  # pyright: ignore[reportArgumentType] - one of the two

    assert caught.value.code == code


@pytest.mark.parametrize(("kind", "name"), [("prompt", "travel"), ("resource", "w://{country}/{city}")])
async def test_what_a_profile_denies_is_not_completed(kind: str, name: str) -> None:
    async with yard() as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete(kind, name, argument="city", value="", caller=DENIED)  # pyright: ignore[reportArgumentType] - one of the two

    assert caught.value.code == "not_found"


async def test_a_yard_in_a_yard_completes() -> None:
    async with Yard("outer", providers=[yard(name="inner")]) as open_yard:
        found = await open_yard.complete("resource", "w://{country}/{city}", argument="city", value="R")

    assert found == ["Rome"]


async def test_half_a_character_is_a_defect_of_what_completes() -> None:
    def halve(value: str, settled: dict[str, str]) -> list[str]:
        return [f"{value}\ud800"]

    @prompt(complete={"half": halve})
    def words(half: str) -> str:
        """Return words."""
        raise AssertionError(half)

    async with Yard(prompts=[words]) as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete("prompt", "words", argument="half", value="a")

    assert (caught.value.code, caught.value.blame) == ("internal_error", "tool")
    assert str(caught.value.details["call_id"]).startswith("c_")
