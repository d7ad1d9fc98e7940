"""Names of upstreams: which there are, and what becomes of others."""

import pytest
from hypothesis import given
from hypothesis.strategies import text

from toolyard.config.read import is_name, made_name, twin_of


@pytest.mark.parametrize("name", ["git", "my-git", "my_git", "2fa", "a-b_c"])
def test_small_letters_digits_and_single_joints_are_a_name(name: str) -> None:
    assert is_name(name)
    assert made_name(name) == name


@pytest.mark.parametrize("name", ["", "Git", "a__b", "-a", "a-", "a b", "é", "metatools", "system", "a.b", "a\n"])
def test_anything_else_is_none(name: str) -> None:
    assert not is_name(name)


@given(text())
def test_a_name_can_be_made_of_everything(written: str) -> None:
    assert is_name(made_name(written))
    assert made_name(made_name(written)) == made_name(written)


def test_names_that_differ_in_their_joints_alone_are_twins() -> None:
    assert twin_of("a-b", ["a-b", "c", "a_b"]) == "a_b"
    assert twin_of("a-b", ["a-b", "ab"]) is None
