"""What is pasted into a file in YAML stands where its neighbours do."""

import pytest
import yaml

from toolyard.client_configs.edit import paste

ENTRY = 'toolyard: {"cmd": "x"}'
ITEM = '- {"name": "toolyard"}'


@pytest.mark.parametrize(
    ("text", "entry", "lines", "place"),
    [
        ("", ENTRY, ("a:", f"  {ENTRY}"), "there"),
        ("b: 1\n", ENTRY, ("a:", f"  {ENTRY}"), "at the end"),
        ("  a: nested\nb: 1\n", ENTRY, ("a:", f"  {ENTRY}"), "at the end"),
        ("b: 1\na:\n  c: 1\n", ENTRY, (f"  {ENTRY}",), "below line 2"),
        ("'a' : # mine\n\n     # more\n     c: 1\n", ENTRY, (f"     {ENTRY}",), "below line 1"),
        ('\ufeff"a":\nb: 1\n', ENTRY, (f"  {ENTRY}",), "below line 1"),
        ("a:\n", ENTRY, (f"  {ENTRY}",), "below line 1"),
        ("a:\n- name: c\n", ITEM, (ITEM,), "below line 1"),
        ("a:\n  - name: c\n", ITEM, (f"  {ITEM}",), "below line 1"),
        ("b: 1\na: {c: 1}\n", ENTRY, ("a:", f"  {ENTRY}"), "in the place of line 2"),
    ],
)
def test_an_entry_is_indented_as_its_neighbours_are(text: str, entry: str, lines: tuple[str, ...], place: str) -> None:
    pasted = paste(text, "a", entry)

    assert (pasted.lines, pasted.place[: len(place)]) == (lines, place)


@pytest.mark.parametrize("entry", [ENTRY, ITEM])
def test_what_is_pasted_into_nothing_is_yaml(entry: str) -> None:
    document = yaml.safe_load("\n".join(paste("", "a", entry).lines))

    assert document == {"a": {"toolyard": {"cmd": "x"}} if entry is ENTRY else [{"name": "toolyard"}]}
