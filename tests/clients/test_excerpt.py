"""Excerpts: what a change makes differ, and nothing that is secret."""

import pytest

from toolyard.client_configs.edit import excerpt


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        ("", "a\nb\n", (1, ["+a", "+b"])),
        ("a\nb\n", "", (1, ["-a", "-b"])),
        ("a\nb\n", "a\nx\nb\n", (2, [" a", "+x", " b"])),
        ("a\nb\nc\nd\n", "a\nb\nx\nd\n", (3, [" b", "-c", "+x", " d"])),
        ("a\na\n", "a\na\na\n", (3, [" a", "+a"])),
        ("a\r\nb", "a\r\nb\r\nc", (2, [" a", "-b", "+b", "+c"])),
    ],
)
def test_the_lines_that_differ_are_shown_with_one_around_them(before: str, after: str, shown: tuple[int, list[str]]) -> None:
    assert excerpt(before, after) == shown


def test_a_line_before_the_excerpt_may_tell_that_one_in_it_is_secret() -> None:
    before = '["--token",\n"hunter1"]\n{"TOKEN": "hunter2"}\n'

    assert excerpt(before, before.replace("]\n", "],\nx\n")) == (2, [' ["--token",', '-"…"]', '+"…"],', "+x", ' {"TOKEN": "…"}'])
