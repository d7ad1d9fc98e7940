import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolyard.search.text import find_values

MEANT = re.compile(r"\w+://\S+|\S+@\S+\.\S+|\"[^\"\n]{1,200}\"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`|\S*\d\S*")
"""What a value is, said briefly; to look for it in this way takes a time that grows with the cube of a text."""


def values(text: str) -> list[str]:
    return [text[begin:end] for begin, end in find_values(text)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("send 'two words' to ada@example.org", ["'two words'", "ada@example.org"]),
        ("open https://example.org/a now", ["https://example.org/a"]),
        ("the 3rd of (12) items", ["3rd", "(12)"]),
        ("don't and won't", []),
        ('say "yes"loudly2 or `no`', ['"yes"', "loudly2", "`no`"]),
        ("see(https://x) or 'it'", ["https://x)", "'it'"]),
        ("a@b and @b.c and a@.c", []),
        ("", []),
    ],
)
def test_addresses_quoted_words_and_numbers_are_values(text: str, found: list[str]) -> None:
    assert values(text) == found


@given(st.text(alphabet="ab1@.:/ \n\"'`_é", max_size=24) | st.text(max_size=40))
def test_values_are_what_they_mean_wherever_they_stand(text: str) -> None:
    assert list(find_values(text)) == [found.span() for found in MEANT.finditer(text)]
