"""`callyard call`: the envelope, for people and for programs, and the status it exits with."""

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard import CODES, Envelope
from callyard.cli.call import read_arguments
from callyard.launch.errors import STATUSES, LaunchError

Run = Callable[..., tuple[int, str, str]]
Terminal = Callable[..., str]


@every_row("code", CODES)
def test_a_failed_call_exits_with_the_status_of_its_code(code: str, shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "fail", f"code={code}", "--json")

    assert status == {row.name: row.exit for row in CODES.values()}[code]  # pyright: ignore[reportArgumentType] - a name of the table
    assert json.loads(out)["error"]["code"] == code


def test_no_two_codes_share_a_status_and_none_has_one_of_the_others() -> None:
    statuses = [row.exit for row in CODES.values()]

    assert len(set(statuses)) == len(CODES)
    assert set(statuses).isdisjoint(STATUSES)
    assert all(2 < status < 126 for status in statuses)


def test_json_is_the_envelope_on_one_line(shop: str, callyard: Run) -> None:
    status, out, err = callyard("call", shop, "list_orders", "limit=3", "--json")

    envelope = Envelope.from_json(out)
    assert status == 0
    assert envelope.data == [0, 1, 2]
    assert out.encode() == envelope.to_json() + b"\n"
    assert err == "a print of the tool\n"


def test_people_see_how_it_went_and_then_the_data(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "list_orders", "limit=2")

    first, *rest = out.splitlines()
    assert status == 0
    assert first.startswith("ok  list_orders  ")
    assert first.endswith(" tokens")
    assert rest == ["[", "  0,", "  1", "]"]


def test_people_see_why_it_failed_and_what_to_do(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "fail", "code=rate_limited")

    lines = out.splitlines()
    assert status == 23
    assert lines[0].startswith("failed  fail  ")
    assert lines[1] == "rate_limited: No."
    assert lines[2] == 'Details: {"wanted":"rate_limited"}'
    assert lines[3] == "Hint: Wait a moment, then call again."
    assert lines[4] == "Next: echo(text=…)"


def test_people_see_every_issue(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "echo", "number=x", "txt=a")

    issues = [line for line in out.splitlines() if line.startswith("  - ")]
    assert status == 10
    assert len(issues) == 3
    assert all(any(name in issue for issue in issues) for name in ("'number'", "'text'", "'txt'"))


def test_a_single_issue_is_said_once(shop: str, callyard: Run) -> None:
    _, out, _ = callyard("call", shop, "echo")

    assert "  - " not in out


def test_people_see_what_was_put_right_and_what_is_deprecated(shop: str, callyard: Run) -> None:
    assert "Corrected: " in callyard("call", shop, "echo", '{"text": "a", "number": "5"}')[1]
    assert "Warning: " in callyard("call", shop, "erase", "name=a")[1]


def test_pairs_are_read_as_the_schema_says(shop: str, callyard: Run) -> None:
    _, out, _ = callyard("call", shop, "echo", "text=5", "number=5", "flag=true", "items=[1,2]", "either=5", "--json")

    envelope = json.loads(out)
    assert envelope["data"] == {"text": "5", "number": 5, "flag": True, "items": [1, 2], "either": "5"}
    assert "coerced" not in envelope["_meta"]


def test_an_unknown_tool_is_an_envelope(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "list_order", "limit=5", "--json")

    assert status == 15
    assert json.loads(out)["error"]["details"]["similar"] == ["list_orders"]


def test_a_tool_that_the_profile_hides_does_not_exist(shop: str, callyard: Run) -> None:
    assert callyard("call", shop, "echo", "text=a", "--profile", "readers")[0] == 15
    assert callyard("call", shop, "list_orders", "--profile", "readers")[0] == 0


def test_an_unknown_profile_names_the_known_ones(shop: str, callyard: Run) -> None:
    status, out, err = callyard("call", shop, "echo", "text=a", "--profile", "writers")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'everything', 'readers'." in err


def test_a_session_is_passed_on(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", shop, "use", "--session", "s_none", "--json")

    assert status == 17
    assert json.loads(out)["error"]["code"] == "not_running"


def test_a_session_is_given_once(shop: str, callyard: Run) -> None:
    assert callyard("call", shop, "use", "session_id=s_1", "--session", "s_1")[:2] == (2, "")
    assert callyard("call", shop, "use", '{"session_id": "s_1"}', "--session", "s_1")[:2] == (2, "")


def test_the_session_of_a_call_is_shown(shop: str, callyard: Run) -> None:
    _, out, _ = callyard("call", shop, "start")

    first, session = out.splitlines()
    assert first.endswith(f", session {session}")


def test_progress_and_log_lines_go_to_stderr(shop: str, callyard: Run) -> None:
    _, out, err = callyard("call", shop, "work")

    assert err.splitlines() == ["1/2 half", "info: large n=2", "error: wrong n=3"]
    assert "large" not in out


def test_quiet_leaves_errors_alone(shop: str, callyard: Run) -> None:
    assert callyard("call", shop, "work", "--quiet")[2].splitlines() == ["error: wrong n=3"]


def test_verbose_shows_what_tools_say_to_their_authors(shop: str, callyard: Run) -> None:
    assert "debug: small n=1" in callyard("call", shop, "work", "-v")[2].splitlines()


def test_a_tool_cannot_move_the_cursor(shop: str, callyard: Run) -> None:
    assert callyard("call", shop, "work")[1].splitlines()[1] == "\\x1b[2Jdone\\x9b"

    _, out, _ = callyard("call", shop, "work", "--json")
    assert "\x9b" not in out
    assert json.loads(out)["data"] == "\x1b[2Jdone\x9b"


def test_blocks_are_mentioned(shop: str, callyard: Run) -> None:
    _, out, err = callyard("call", shop, "paint")

    assert out.splitlines()[1] == "painted"
    assert out.splitlines()[2:] == [
        "Block 1: image (image/png), 5 bytes",
        "Block 2: text, 9 characters",
        "Block 3: link to a://b",
    ]
    assert err == ""


def test_blocks_are_written_to_files(shop: str, callyard: Run) -> None:
    status, out, err = callyard("call", shop, "paint", "--output", "new/folder", "--json")

    call_id = json.loads(out)["_meta"]["call_id"]
    assert status == 0
    assert (Path("new/folder") / f"{call_id}-1.png").read_bytes() == b"12345"
    assert (Path("new/folder") / f"{call_id}-2.txt").read_text() == "a picture"
    assert err.splitlines() == [f"Wrote 'new/folder/{call_id}-{name}'." for name in ("1.png", "2.txt")]


def test_a_call_is_not_run_if_its_blocks_cannot_be_kept(shop: str, callyard: Run) -> None:
    assert callyard("call", shop, "paint", "--output", shop)[:2] == (2, "")


def test_a_block_that_cannot_be_written_comes_after_the_answer(shop: str, callyard: Run) -> None:
    status, out, err = callyard("call", shop, "paint", "--output", "/proc/self")

    assert status == 1
    assert "painted" in out.splitlines()
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("mime_type", "ending"),
    [("image/jpeg", "jpg"), ("audio/ogg", "ogg"), ("text/html; charset=utf-8", "html"), ("x/unheard-of", "bin")],
)
def test_the_ending_of_a_file_follows_from_its_type(
    mime_type: str, ending: str, write: Callable[..., Path], callyard: Run
) -> None:
    write(
        "from callyard import Blob, Yard\n"
        f"def give() -> Blob:\n    '''Give.'''\n    return Blob(b'1', {mime_type!r})\n"
        "yard = Yard(tools=[give])\n"
    )

    callyard("call", "app.py", "give", "--output", "out", "--quiet")

    assert [path.suffix for path in Path("out").iterdir()] == [f".{ending}"]


def test_partial_results_of_a_failure_are_shown(write: Callable[..., Path], callyard: Run) -> None:
    write(
        "from callyard import ToolError, Yard\n"
        "def chain() -> None:\n    '''Fail.'''\n    raise ToolError('chain_step_failed', 'No.', data={'done': 1})\n"
        "yard = Yard(tools=[chain])\n"
    )

    assert callyard("call", "app.py", "chain")[1].splitlines()[-3:] == ["{", '  "done": 1', "}"]


def test_a_terminal_shows_colours_and_progress_in_place(shop: str, in_terminal: Terminal) -> None:
    sent = in_terminal("call", shop, "work")

    assert "\r1/2 half\x1b[K\r\x1b[K" in sent
    assert "\x1b[32mok\x1b[0m" in sent
    assert "\x1b[2J" not in sent


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_colours_can_be_switched_off(environment: dict[str, str], shop: str, in_terminal: Terminal) -> None:
    assert "\x1b[3" not in in_terminal("call", shop, "paint", **environment)


def test_an_empty_no_color_switches_nothing_off(shop: str, in_terminal: Terminal) -> None:
    assert "\x1b[32mok\x1b[0m" in in_terminal("call", shop, "paint", NO_COLOR="")


def read(schema: object, text: str) -> Any:
    whole = {
        "type": "object",
        "properties": {"x": schema},
        "$defs": {"number": {"type": "number"}, "loop": {"anyOf": [{"$ref": "#/$defs/loop"}]}},
    }
    return read_arguments([f"x={text}"]).parse(whole)["x"]


@every_row(
    "schema",
    [
        {"type": "string"},
        {"type": ["string", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
        {"enum": ["5", "6"]},
        {"const": "5"},
        {"allOf": [{"type": "string"}, {"minLength": 1}]},
        {},
    ],
)
def test_a_value_that_may_be_a_string_is_kept_as_text(schema: object) -> None:
    assert read(schema, "5") == "5"


@every_row(
    "schema",
    [
        {"type": "integer"},
        {"type": ["number", "null"]},
        {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        {"$ref": "#/$defs/number"},
        {"enum": [5, 6]},
        {"const": 5},
        {"allOf": [{"type": ["string", "number"]}, {"type": "number"}]},
    ],
)
def test_a_value_that_cannot_be_a_string_is_read_as_json(schema: object) -> None:
    assert read(schema, "5") == 5


@every_row(
    ("text", "value"),
    [
        ("true", True),
        ("null", None),
        ("[1, 2]", [1, 2]),
        ('{"a": "b"}', {"a": "b"}),
        ("yes", "yes"),
        ("NaN", "NaN"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_text_that_is_not_json_stays_text(text: str, value: object) -> None:
    assert read({"type": "object"}, text) == value


def test_a_key_that_the_schema_does_not_know_is_read_as_json_if_it_is() -> None:
    assert read_arguments(["y=5", "z=five"]).parse({"type": "object", "properties": {}}) == {"y": 5, "z": "five"}


def test_a_schema_that_refers_to_itself_is_read_in_the_end() -> None:
    assert read({"$ref": "#/$defs/loop"}, "5") in {5, "5"}


def test_an_object_is_taken_as_it_is() -> None:
    arguments = read_arguments(['{"x": "5"}'])

    assert arguments.parse({"properties": {"x": {"type": "integer"}}}) == {"x": "5"}
    assert "x" in arguments
    assert "y" not in arguments


@every_row(
    "items",
    [
        ["x"],
        ["=5"],
        ["x=1", "x=1"],
        ["x=1", "{}"],
        ["{}", "{}"],
        ["-", "x=1"],
        ["-", "-"],
        ["{"],
        ['{"x": NaN}'],
        ["{}{}"],
        ["[1]"],
        ["{" + '"a":{' * 100_000],
        ['{"x": "\udcff"}'],
    ],
)
def test_arguments_of_no_form_or_of_several_are_refused(items: list[str]) -> None:
    with pytest.raises(LaunchError) as refused:
        read_arguments(items)

    assert refused.value.status == 2


def feed(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


def test_json_is_read_from_stdin(shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, b'{"text": "null", "items": [1]}\n')

    status, out, _ = callyard("call", shop, "echo", "-", "--json")

    assert status == 0
    assert json.loads(out)["data"] == {"text": "null", "number": 0, "flag": False, "items": [1], "either": 0}


@pytest.mark.parametrize("text", [b"", b"nothing", b"[]", b"5", b'{"x": "\xff"}'])
def test_stdin_must_hold_one_object(text: bytes, shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    feed(monkeypatch, text)

    assert callyard("call", shop, "echo", "-")[:2] == (2, "")


def test_a_closed_stdin_holds_nothing(shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", None)

    assert callyard("call", shop, "echo", "-")[:2] == (2, "")
