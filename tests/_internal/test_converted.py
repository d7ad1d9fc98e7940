from typing import Any, ClassVar

import msgspec
import pytest
from table_tests import every_row

from callyard._internal.converted import Converted, Converters, as_tuple, has_more


class Part(msgspec.Struct, frozen=True):
    name: str


class Whole(msgspec.Struct, frozen=True, metaclass=Converted):
    converters: ClassVar[Converters] = {"parts": as_tuple}
    name: str
    parts: tuple[Any, ...] = ()


def test_a_converter_gets_a_positional_and_a_named_argument() -> None:
    assert Whole("a", "bc").parts == ("bc",)  # pyright: ignore[reportArgumentType] - other forms of the value are the test
    assert Whole(name="a", parts=["b", "c"]).parts == ("b", "c")  # pyright: ignore[reportArgumentType] - the same
    assert Whole("a", parts=Part("b")).parts == (Part("b"),)  # pyright: ignore[reportArgumentType] - the same
    assert Whole("a").parts == ()


def test_a_converted_struct_is_frozen_and_equal_to_one_that_needed_no_conversion() -> None:
    whole = Whole("a", ["b"])  # pyright: ignore[reportArgumentType] - the same

    assert {whole: 1}[Whole("a", ("b",))] == 1
    with pytest.raises(AttributeError):
        whole.parts = ()  # pyright: ignore[reportAttributeAccessIssue] - the assignment fails


def test_wrong_arguments_of_a_converted_struct_are_refused() -> None:
    with pytest.raises(TypeError):
        Whole("a", (), 1)  # pyright: ignore[reportCallIssue] - one too many
    with pytest.raises(TypeError):
        Whole("a", name="b")  # pyright: ignore[reportCallIssue] - given twice


def test_a_converted_struct_is_decoded_as_others_are() -> None:
    assert msgspec.json.decode(b'{"name": "a", "parts": ["b"]}', type=Whole) == Whole("a", ("b",))


@every_row("size", [0, 20_000])  # a small text is counted at once
def test_a_byte_is_found_more_often_than_a_limit_exactly_when_it_is(size: int) -> None:
    padding = b"x" * size
    for number in (0, 1, 2, 999, 1000, 1001, 1002):
        for most in (0, 1, 999, 1000, 1001):
            assert has_more(padding + b",x" * number + padding, b",", most) is (number > most), (number, most)
