from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard._internal.pipes import Lines


class Taken:
    """What came of a stream: its lines, and how often one was too long."""

    def __init__(self, limit: int) -> None:
        self.said: list[bytes | None] = []
        self.lines = Lines(self.said.append, limit=limit, too_long=lambda: self.said.append(None))

    def feed(self, *pieces: bytes) -> list[bytes | None]:
        for piece in pieces:
            self.lines.feed(piece)
        return self.said


@given(st.lists(st.binary(max_size=20), max_size=10), st.lists(st.integers(0, 300), max_size=12), st.integers(3, 15))
def test_lines_come_out_however_the_stream_was_cut(lines: list[bytes], places: list[int], limit: int) -> None:
    lines = [part for line in lines for part in line.split(b"\n")]
    stream = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(stream), *(place % (len(stream) + 1) for place in places)})

    said = Taken(limit).feed(*(stream[start:end] for start, end in pairwise(edges)))

    assert said == [line if len(line) <= limit else None for line in lines if line]


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_what_is_kept_is_bounded(pieces: list[bytes]) -> None:
    taken = Taken(10)
    for piece in pieces:
        taken.feed(piece)
        assert len(taken.lines._buffer) <= 10  # pyright: ignore[reportPrivateUsage] - memory is what is tested


def test_what_came_without_an_end_is_taken_at_the_end() -> None:
    taken = Taken(10)
    taken.feed(b"a\nb")
    assert taken.said == [b"a"]
    taken.lines.end()
    assert taken.said == [b"a", b"b"]
    taken.lines.end()
    assert taken.said == [b"a", b"b"]


def test_the_rest_of_a_line_that_is_too_long_is_no_line() -> None:
    taken = Taken(3)
    taken.feed(b"abcd", b"efgh", b"ij\nok\nx")
    assert taken.said == [None, b"ok"]
    taken.feed(b"yzabc")
    taken.lines.end()
    assert taken.said == [None, b"ok", None]


@pytest.mark.parametrize("pieces", [(b"abc\n",), (b"abc", b"\n"), (b"ab", b"c\n")])
def test_a_line_may_be_exactly_as_long_as_the_limit(pieces: tuple[bytes, ...]) -> None:
    assert Taken(3).feed(*pieces) == [b"abc"]


def test_nobody_need_be_told_of_what_is_too_long() -> None:
    said: list[bytes] = []
    Lines(said.append, limit=3).feed(b"abcdef\nok\n")
    assert said == [b"ok"]
