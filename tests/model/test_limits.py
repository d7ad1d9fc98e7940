import math
from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard import Limits, Yard


@every_row("name", Limits().as_dict())
def test_no_limit_may_be_negative(name: str) -> None:
    wrong: dict[str, Any] = {name: -1}

    with pytest.raises(ValueError, match=f"'{name}'"):
        Limits(**wrong)


@pytest.mark.parametrize("value", [math.nan, "5", None])
def test_a_limit_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="'timeout'"):
        Limits(timeout=value)


def test_there_must_be_a_thread() -> None:
    with pytest.raises(ValueError, match="'threads'"):
        Limits(threads=0)


def test_the_limits_are_by_default_what_the_design_says() -> None:
    limits = Limits()

    assert (limits.timeout, limits.slow, limits.depth) == (120, 1, 4)
    assert limits.result_characters == 50_000
    assert limits.name_characters == 48
    assert limits.listed_tokens == 4000
    assert limits.repair is True


def test_the_limits_can_be_written_as_data() -> None:
    assert Limits(depth=2).as_dict()["depth"] == 2
    assert set(Limits().as_dict()) == {field.name for field in msgspec.structs.fields(Limits)}


def test_a_limit_nobody_knows_is_refused() -> None:
    wrong: dict[str, Any] = {"depht": 2}

    with pytest.raises(TypeError):
        Limits(**wrong)


def test_a_yard_has_limits_of_its_own() -> None:
    limits = Limits(depth=2)
    yard = Yard("own", limits=limits)
    limits.depth = 5

    assert yard.limits.depth == 2


def test_a_limit_of_nothing_means_none() -> None:
    assert Limits(timeout=0, session_idle=0).timeout == 0
