"""`toolyard list`: a table for people, lines for programs, JSON for both."""

import json
from collections.abc import Callable
from pathlib import Path

from toolyard.cli.terminal import width_of

Run = Callable[..., tuple[int, str, str]]
Terminal = Callable[..., str]
Write = Callable[..., Path]

NAMES = ["echo", "fail", "list_orders", "paint", "start", "use", "wipe", "work"]


def test_programs_get_a_line_of_columns_for_each_tool(shop: str, toolyard: Run) -> None:
    status, out, _ = toolyard("list", shop)

    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert [name for name, *_ in rows] == NAMES
    assert rows[2] == ["list_orders", "query", "shop", "List the orders, newest first."]


def test_json_is_an_array(shop: str, toolyard: Run) -> None:
    _, out, _ = toolyard("list", shop, "--json")

    tools = json.loads(out)
    assert [tool["name"] for tool in tools] == NAMES
    assert tools[2] == {
        "name": "list_orders",
        "title": None,
        "description": "List the orders, newest first.",
        "operation": "query",
        "source": "shop",
        "tags": ["orders"],
    }


def test_what_is_gated_is_counted_on_stderr(shop: str, toolyard: Run) -> None:
    assert "1 tool is gated: 'evaluate'." in toolyard("list", shop)[2]
    assert toolyard("list", shop, "--quiet")[2] == ""


def test_a_profile_hides_what_it_denies(shop: str, toolyard: Run) -> None:
    status, out, err = toolyard("list", shop, "--profile", "readers")

    assert (status, out.count("\n"), err) == (0, 1, "")
    assert toolyard("list", shop, "--profile", "nobody")[:2] == (2, "")


def test_what_a_surface_does_not_list_is_counted(write: Write, toolyard: Run) -> None:
    write(
        "from toolyard import Profile, Surface, Yard\n"
        "def a() -> int:\n    '''Be\\tone.'''\n    return 1\n"
        "def b() -> int:\n    '''Be two.'''\n    return 2\n"
        "yard = Yard(tools=[a, b], profile=Profile(name='short', surface=Surface.META, pins=('a',)), metatools=False)\n"
    )

    status, out, err = toolyard("list", "app.py")

    assert (status, out) == (0, "a\tcommand\tyard\tBe one.\n")
    assert err.startswith("1 tool is not listed")


def test_a_yard_without_tools_has_an_empty_list(write: Write, toolyard: Run, in_terminal: Terminal) -> None:
    write("from toolyard import Yard\nyard = Yard()\n")

    assert toolyard("list", "app.py") == (0, "", "")
    assert toolyard("list", "app.py", "--json") == (0, "[]\n", "")
    assert "NAME" in in_terminal("list", "app.py")


WIDE = """
from toolyard import Yard, tool

@tool(description="写一个非常长的描述" * 10)
def chinese() -> None: ...

@tool(description="A long description. " * 10)
def english() -> None: ...

yard = Yard("a_source_with_a_long_name", tools=[chinese, english])
"""


def test_a_table_is_as_wide_as_the_terminal(write: Write, in_terminal: Terminal) -> None:
    write(WIDE)

    for columns in (100, 72, 40):
        lines = in_terminal("list", "app.py", columns=columns, NO_COLOR="1").splitlines()

        assert len(lines) == 3
        assert all(columns - 2 <= width_of(line) <= columns for line in lines[1:])
        assert all(line.endswith("…") for line in lines[1:])


def test_a_narrow_table_leaves_out_the_source(write: Write, in_terminal: Terminal) -> None:
    write(WIDE)

    assert "SOURCE" in in_terminal("list", "app.py", columns=100)
    assert "SOURCE" not in in_terminal("list", "app.py", columns=60)


def test_a_terminal_shows_titles_and_colours(shop: str, in_terminal: Terminal) -> None:
    sent = in_terminal("list", shop)

    assert "\x1b[2mNAME " in sent
    assert "\x1b[1mlist_orders\x1b[0m" in sent
