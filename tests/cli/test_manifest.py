"""`toolyard manifest`: every tool as one document, the same every time."""

import json
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]


def test_json_is_the_default_and_holds_whole_specs(shop: str, toolyard: Run) -> None:
    status, out, _ = toolyard("manifest", shop)

    manifest = json.loads(out)
    tools = {tool["name"]: tool for tool in manifest["tools"]}
    assert status == 0
    assert list(manifest) == ["name", "version", "hash", "tools"]
    assert (manifest["name"], manifest["version"], len(manifest["hash"])) == ("shop", "1.2.3", 64)
    assert list(tools) == sorted(tools)
    assert tools["echo"]["operation_assumed"] is True
    assert tools["list_orders"]["operation_assumed"] is False
    assert tools["list_orders"]["annotations"]["readOnlyHint"] is True
    assert toolyard("manifest", shop, "--json")[1] == out


def test_the_same_yard_gives_the_same_document(shop: str, toolyard: Run) -> None:
    assert toolyard("manifest", shop)[1] == toolyard("manifest", shop)[1]
    assert toolyard("manifest", shop, "--markdown")[1] == toolyard("manifest", shop, "--markdown")[1]


def test_a_profile_narrows_it(shop: str, toolyard: Run) -> None:
    whole, narrow = (json.loads(toolyard("manifest", shop, *options)[1]) for options in ((), ("--profile", "readers")))

    assert [tool["name"] for tool in narrow["tools"]] == ["list_orders"]
    assert narrow["hash"] != whole["hash"]


def test_the_page_has_a_section_for_each_tool(shop: str, toolyard: Run) -> None:
    status, out, _ = toolyard("manifest", shop, "--markdown")

    headings = [line.removeprefix("## ") for line in out.splitlines() if line.startswith("## ")]
    assert status == 0
    assert out.startswith("# shop\n")
    assert headings == ["echo", "fail", "list_orders", "paint", "start", "use", "wipe", "work"]


def test_a_section_tells_what_the_spec_says(shop: str, toolyard: Run) -> None:
    sections = dict(section.split("\n", 1) for section in toolyard("manifest", shop, "--markdown")[1].split("\n## ")[1:])

    assert "- Operation: query\n- Session: none\n" in sections["list_orders"]
    assert "| `limit` | `integer` | no | `10` | How many. |" in sections["list_orders"]
    assert '| `kind` | `"open" \\| "closed"` | no | `"open"` | Which. |' in sections["list_orders"]
    assert "### Output\n\n`integer[]`" in sections["list_orders"]
    assert '```json\n{\n  "limit": 2\n}\n```' in sections["list_orders"]
    assert "- Operation: command (assumed)" in sections["echo"]
    assert "- Session: required" in sections["use"]
    assert "| `busy` | state_error, with who |" in sections["wipe"]
    assert "### Codes\n\n`state_error`" in sections["wipe"]
    assert "- Timeout: 3 s" in sections["wipe"]
    assert "- Aliases: `erase`" in sections["wipe"]
    assert "It takes no arguments." in sections["paint"]


def test_a_page_stays_one_whatever_authors_write(write: Write, toolyard: Run) -> None:
    write(
        "from typing import Annotated, Literal\n"
        "from pydantic import Field\n"
        "from toolyard import Example, Yard, tool\n"
        "@tool(title='T', tags=('a', 'b'), timeout=0, deprecated='Soon.', examples=[Example({'x': 'a`b'}, 'Once', 1)])\n"
        "def odd(x: Annotated[Literal['a`b', 'c|d'], Field(description='One | two\\nthree \\\\\\\\ four')], "
        "n: Annotated[int, Field(ge=1)] = 1) -> int:\n"
        "    '''Be odd.'''\n    return 1\n"
        "yard = Yard(tools=[odd])\n"
    )

    _, out, _ = toolyard("manifest", "app.py", "--markdown")

    assert '| `x` | `` "a`b" \\| "c\\|d" `` | yes |  | One \\| two three \\\\\\\\ four |' in out
    assert "| `n` | `integer` | no | `1` | (at least 1) |" in out
    assert all(f"- {fact}" in out for fact in ("Title: T", "Tags: a, b", "Timeout: none", "Deprecated: Soon."))
    assert "Once:\n\n```json" in out
    assert "answers\n\n```json\n1\n```" in out
