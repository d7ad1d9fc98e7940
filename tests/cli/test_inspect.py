"""`callyard manifest`: every tool as one document, the same every time."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard.cli.terminal import width_of

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]


def test_json_is_the_default_and_holds_whole_specs(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("manifest", shop)

    manifest = json.loads(out)
    tools = {tool["name"]: tool for tool in manifest["tools"]}
    assert status == 0
    assert list(manifest) == ["name", "version", "hash", "tools"]
    assert (manifest["name"], manifest["version"], len(manifest["hash"])) == ("shop", "1.2.3", 64)
    assert list(tools) == sorted(tools)
    assert tools["echo"]["operation_assumed"] is True
    assert tools["list_orders"]["operation_assumed"] is False
    assert tools["list_orders"]["annotations"]["readOnlyHint"] is True
    assert callyard("manifest", shop, "--json")[1] == out


def test_the_same_yard_gives_the_same_document(shop: str, callyard: Run) -> None:
    assert callyard("manifest", shop)[1] == callyard("manifest", shop)[1]
    assert callyard("manifest", shop, "--markdown")[1] == callyard("manifest", shop, "--markdown")[1]


def test_a_profile_narrows_it(shop: str, callyard: Run) -> None:
    whole, narrow = (json.loads(callyard("manifest", shop, *options)[1]) for options in ((), ("--profile", "readers")))

    assert [tool["name"] for tool in narrow["tools"]] == ["list_orders"]
    assert narrow["hash"] != whole["hash"]


def test_the_page_has_a_section_for_each_tool(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("manifest", shop, "--markdown")

    headings = [line.removeprefix("## ") for line in out.splitlines() if line.startswith("## ")]
    assert status == 0
    assert out.startswith("# shop\n")
    assert headings == ["echo", "fail", "list_orders", "paint", "start", "use", "wipe", "work"]


def test_a_section_tells_what_the_spec_says(shop: str, callyard: Run) -> None:
    sections = dict(
        section.split("\n", 1) for section in callyard("manifest", shop, "--markdown")[1].split("\n## ")[1:]
    )

    assert "- Operation: query\n- Session: none\n" in sections["list_orders"]
    assert "| `limit` | `int` | no | `10` | How many. |" in sections["list_orders"]
    assert "| `kind` | `'open'\\|'closed'` | no | `\"open\"` | Which. |" in sections["list_orders"]
    assert "### Output\n\n`list[int]`" in sections["list_orders"]
    assert '```json\n{\n  "limit": 2\n}\n```' in sections["list_orders"]
    assert "- Operation: command (assumed)" in sections["echo"]
    assert "- Session: required" in sections["use"]
    assert "| `busy` | state_error, with who |" in sections["wipe"]
    assert "### Codes\n\n`state_error`" in sections["wipe"]
    assert "- Timeout: 3 s" in sections["wipe"]
    assert "- Aliases: `erase`" in sections["wipe"]
    assert "It takes no arguments." in sections["paint"]


def test_a_page_stays_one_whatever_authors_write(write: Write, callyard: Run) -> None:
    write(
        "from typing import Annotated, Literal\n"
        "from pydantic import Field\n"
        "from callyard import Example, Yard, tool\n"
        "@tool(title='T', tags=('a', 'b'), timeout=0, deprecated='Soon.', examples=[Example({'x': 'a`b'}, "
        "'Once', 1)])\n"
        "def odd(x: Annotated[Literal['a`b', 'c|d'], Field(description='One | two\\nthree \\\\\\\\ four')], "
        "n: Annotated[int, Field(ge=1)] = 1) -> int:\n"
        "    '''Be odd.'''\n    return 1\n"
        "yard = Yard(tools=[odd])\n"
    )

    _, out, _ = callyard("manifest", "app.py", "--markdown")

    assert "| `x` | `` 'a`b'\\|'c\\|d' `` | yes |  | One \\| two three \\\\\\\\ four |" in out
    assert "| `n` | `int` | no | `1` | (at least 1) |" in out
    assert all(f"- {fact}" in out for fact in ("Title: T", "Tags: a, b", "Timeout: none", "Deprecated: Soon."))
    assert "Once:\n\n```json" in out
    assert "answers\n\n```json\n1\n```" in out


def test_the_first_line_is_a_signature(shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    status, out, _ = callyard("describe", shop, "list_orders")

    assert status == 0
    assert out.splitlines()[0] == "list_orders(limit: int = 10, kind: 'open'|'closed' = \"open\") -> list[int]"


def test_a_long_signature_has_a_line_for_each_argument(
    shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    _, out, _ = callyard("describe", shop, "list_orders")

    assert out.splitlines()[:4] == [
        "list_orders(",
        "  limit: int = 10,",
        "  kind: 'open'|'closed' = \"open\",",
        ") -> list[int]",
    ]


def test_people_see_what_the_spec_says(shop: str, callyard: Run) -> None:
    _, orders, _ = callyard("describe", shop, "list_orders")
    _, wipe, _ = callyard("describe", shop, "wipe")
    _, echo, _ = callyard("describe", shop, "echo")
    _, use, _ = callyard("describe", shop, "use")

    assert "Operation  query\n" in orders
    assert "Tags       orders\n" in orders
    assert "  limit (int, default 10): How many.\n" in orders
    assert '  {"limit":2}\n' in orders
    assert "Timeout    3 s\n" in wipe
    assert "Aliases    erase\n" in wipe
    assert "Codes      state_error\n" in wipe
    assert "  busy: state_error, with who\n" in wipe
    assert "Operation  command (assumed)\n" in echo
    assert "Session    none\n" in echo
    assert "Session    required\n" in use


def test_json_is_the_whole_spec(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("describe", shop, "wipe", "--json")

    spec = json.loads(out)
    assert (status, out.count("\n")) == (0, 1)
    assert spec["input_schema"]["required"] == ["name"]
    assert spec["operation_assumed"] is False
    assert spec["annotations"] == {
        "readOnlyHint": False,
        "destructiveHint": True,
        "idempotentHint": False,
        "openWorldHint": False,
    }
    assert spec["reasons"] == {"busy": {"code": "state_error", "details": ["who"]}}
    assert spec["codes"] == ["state_error"]
    assert spec["session"] == "none"


def test_an_alias_describes_the_tool_it_stands_for(shop: str, callyard: Run) -> None:
    assert json.loads(callyard("describe", shop, "erase", "--json")[1])["name"] == "wipe"


@pytest.mark.parametrize("name", ["list_order", "evaluate"])
def test_a_tool_that_is_not_there_is_answered_as_a_call_is(name: str, shop: str, callyard: Run) -> None:
    described, called = callyard("describe", shop, name, "--json"), callyard("call", shop, name, "--json")

    assert described[0] == called[0] == 15
    assert json.loads(described[1])["error"] == json.loads(called[1])["error"]
    assert callyard("describe", shop, name)[1].startswith(f"failed  {name}  ")


def test_a_tool_that_the_profile_hides_does_not_exist(shop: str, callyard: Run) -> None:
    assert callyard("describe", shop, "wipe", "--profile", "readers")[0] == 15


def test_describing_runs_nothing(write: Write, callyard: Run) -> None:
    write(
        "from callyard import Yard, tool\n"
        "@tool(title='Boom', timeout=0, deprecated='Use none.')\n"
        "def boom() -> None:\n    '''Run.'''\n    open('ran', 'w').close()\n"
        "yard = Yard(tools=[boom])\n"
    )

    status, out, _ = callyard("describe", "app.py", "boom")

    assert status == 0
    assert all(line in out for line in ("Title      Boom\n", "Timeout    none\n", "Deprecated Use none.\n"))
    assert not Path("ran").exists()


Terminal = Callable[..., str]
NAMES = ["echo", "fail", "list_orders", "paint", "start", "use", "wipe", "work"]


def test_programs_get_a_line_of_columns_for_each_tool(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("list", shop)

    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0
    assert [name for name, *_ in rows] == NAMES
    assert rows[2] == ["list_orders", "query", "shop", "List the orders, newest first."]


def test_json_is_an_array(shop: str, callyard: Run) -> None:
    _, out, _ = callyard("list", shop, "--json")

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


def test_gated_tools_are_counted_on_stderr(shop: str, callyard: Run) -> None:
    assert "1 tool is gated: 'evaluate'." in callyard("list", shop)[2]
    assert callyard("list", shop, "--quiet")[2] == ""


def test_a_profile_hides_what_it_denies(shop: str, callyard: Run) -> None:
    status, out, err = callyard("list", shop, "--profile", "readers")

    assert (status, out.count("\n"), err) == (0, 1, "")
    assert callyard("list", shop, "--profile", "nobody")[:2] == (2, "")


def test_tools_that_a_surface_does_not_list_are_counted(write: Write, callyard: Run) -> None:
    write(
        "from callyard import Profile, Surface, Yard\n"
        "def a() -> int:\n    '''Be\\tone.'''\n    return 1\n"
        "def b() -> int:\n    '''Be two.'''\n    return 2\n"
        "yard = Yard(tools=[a, b], profile=Profile(name='short', surface=Surface.META, pins=('a',)), metatools=False)\n"
    )

    status, out, err = callyard("list", "app.py")

    assert (status, out) == (0, "a\tcommand\tyard\tBe one.\n")
    assert err.startswith("1 tool is not listed")


def test_a_yard_without_tools_has_an_empty_list(write: Write, callyard: Run, in_terminal: Terminal) -> None:
    write("from callyard import Yard\nyard = Yard()\n")

    assert callyard("list", "app.py") == (0, "", "")
    assert callyard("list", "app.py", "--json") == (0, "[]\n", "")
    assert "NAME" in in_terminal("list", "app.py")


WIDE = """
from callyard import Yard, tool

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
