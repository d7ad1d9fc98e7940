"""`toolyard describe`: one tool, for people and for programs."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]


def test_the_first_line_is_a_signature(shop: str, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    status, out, _ = toolyard("describe", shop, "list_orders")

    assert status == 0
    assert out.splitlines()[0] == 'list_orders(limit: integer = 10, kind: "open" | "closed" = "open") -> integer[]'


def test_a_long_signature_has_a_line_for_each_argument(shop: str, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    _, out, _ = toolyard("describe", shop, "list_orders")

    assert out.splitlines()[:4] == ["list_orders(", "  limit: integer = 10,", '  kind: "open" | "closed" = "open",', ") -> integer[]"]


def test_people_see_what_the_spec_says(shop: str, toolyard: Run) -> None:
    _, orders, _ = toolyard("describe", shop, "list_orders")
    _, wipe, _ = toolyard("describe", shop, "wipe")
    _, echo, _ = toolyard("describe", shop, "echo")
    _, use, _ = toolyard("describe", shop, "use")

    assert "Operation  query\n" in orders
    assert "Tags       orders\n" in orders
    assert "  limit (integer, default 10): How many.\n" in orders
    assert '  {"limit":2}\n' in orders
    assert "Timeout    3 s\n" in wipe
    assert "Aliases    erase\n" in wipe
    assert "Codes      state_error\n" in wipe
    assert "  busy: state_error, with who\n" in wipe
    assert "Operation  command (assumed)\n" in echo
    assert "Session    none\n" in echo
    assert "Session    required\n" in use


def test_json_is_the_whole_spec(shop: str, toolyard: Run) -> None:
    status, out, _ = toolyard("describe", shop, "wipe", "--json")

    spec = json.loads(out)
    assert (status, out.count("\n")) == (0, 1)
    assert spec["input_schema"]["required"] == ["name"]
    assert spec["operation_assumed"] is False
    assert spec["annotations"] == {"readOnlyHint": False, "destructiveHint": True, "idempotentHint": False, "openWorldHint": False}
    assert spec["reasons"] == {"busy": {"code": "state_error", "details": ["who"]}}
    assert spec["codes"] == ["state_error"]
    assert spec["session"] == "none"


def test_an_alias_describes_the_tool_it_stands_for(shop: str, toolyard: Run) -> None:
    assert json.loads(toolyard("describe", shop, "erase", "--json")[1])["name"] == "wipe"


@pytest.mark.parametrize("name", ["list_order", "evaluate"])
def test_a_tool_that_is_not_there_is_answered_as_a_call_is(name: str, shop: str, toolyard: Run) -> None:
    described, called = toolyard("describe", shop, name, "--json"), toolyard("call", shop, name, "--json")

    assert described[0] == called[0] == 15
    assert json.loads(described[1])["error"] == json.loads(called[1])["error"]
    assert toolyard("describe", shop, name)[1].startswith(f"failed  {name}  ")


def test_a_tool_that_the_profile_hides_does_not_exist(shop: str, toolyard: Run) -> None:
    assert toolyard("describe", shop, "wipe", "--profile", "readers")[0] == 15


def test_describing_runs_nothing(write: Write, toolyard: Run) -> None:
    write(
        "from toolyard import Yard, tool\n"
        "@tool(title='Boom', timeout=0, deprecated='Use none.')\n"
        "def boom() -> None:\n    '''Run.'''\n    open('ran', 'w').close()\n"
        "yard = Yard(tools=[boom])\n"
    )

    status, out, _ = toolyard("describe", "app.py", "boom")

    assert status == 0
    assert all(line in out for line in ("Title      Boom\n", "Timeout    none\n", "Deprecated Use none.\n"))
    assert not Path("ran").exists()
