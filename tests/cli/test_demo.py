"""`callyard demo`: the first thing people see, so it must read well wherever it is read."""

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard.cli.terminal import width_of

Run = Callable[..., tuple[int, str, str]]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., str]


def test_it_tells_the_whole_story_in_a_process_of_its_own(in_process: Process) -> None:
    done = in_process("demo", PYTHONWARNINGS="error")

    assert (done.returncode, done.stderr) == (0, "")
    assert re.findall(r"^(\d)  \S", done.stdout, re.MULTILINE) == list("123456789")
    for expected in (
        "payments__refund_charge(",
        "code: invalid_input",
        "corrected: amount_cents",
        "handle: r_1",
        '{"$ref": "r_1"}',
    ):
        assert expected in done.stdout


def test_its_sums_are_those_of_its_parts(callyard: Run) -> None:
    _, out, _ = callyard("demo")

    spent = [int(number.replace(",", "")) for number in re.findall(r"← ([\d,]+) tokens", out)]
    shown = int(re.findall(r"how to use them: ([\d,]+) tokens", out)[0].replace(",", ""))
    rows = re.findall(r"([\d,]+) +([\d,]+) +(\d+) times less", out)
    (finding, everything, fewer), (looking, large, much_fewer), *more = [
        [int(cell.replace(",", "")) for cell in row] for row in rows
    ]
    assert finding == shown + sum(spent[:2])
    assert looking == sum(spent[-4:-1])
    assert (fewer, much_fewer) == (round(everything / finding), round(large / looking))
    assert all(
        programmed > spent[-1] and less == round(one_by_one / programmed) for programmed, one_by_one, less in more
    )


def test_without_a_sandbox_it_shows_the_program_and_says_what_to_install(in_process: Process) -> None:
    done = in_process("demo", PATH="/nowhere")

    assert (done.returncode, done.stderr) == (0, "")
    for expected in (
        "await tools.crm.get_contact(contact_id=who)",
        "code: runtime_unavailable",
        "apt install bubblewrap",
    ):
        assert expected in done.stdout
    assert done.stdout.count("times less") == 2


@pytest.mark.parametrize("columns", [72, 80, 100, 200])
def test_no_line_is_wider_than_the_terminal(columns: int, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))

    _, out, _ = callyard("demo")

    assert [line for line in out.splitlines() if width_of(line) > min(columns, 96)] == []


def test_it_leaves_nothing_behind(callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.delenv("CALLYARD_SECRET", raising=False)

    callyard("demo")

    assert list(tmp_path.iterdir()) == []


def test_it_needs_no_place_to_write(in_process: Process) -> None:
    assert in_process("demo", CALLYARD_STATE_DIR="/dev/null/nowhere", HOME="/dev/null").stderr == ""


def test_a_cut_text_says_how_many_lines_are_missing(callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert re.search(r"… and \d+ lines more", callyard("demo")[1])


def test_colours_are_for_terminals_that_want_them(in_terminal: Terminal, callyard: Run) -> None:
    assert "\x1b[1mIt searches\x1b[0m" in in_terminal("demo", columns=90)
    assert "\x1b" not in in_terminal("demo", columns=90, NO_COLOR="1")
    assert "\x1b" not in callyard("demo")[1]


@pytest.mark.parametrize("setting", ["STRATEGY=guessing", "BM25_QUERY_WORDS=0", "NAME_WEIGTH=5"])
def test_it_is_the_same_tour_whatever_is_set_for_search(setting: str, in_process: Process) -> None:
    name, _, value = setting.partition("=")
    done = in_process("demo", **{f"CALLYARD_SEARCH_{name}": value})

    assert (done.returncode, done.stderr) == (0, "")
    assert "payments__refund_charge" in done.stdout
    assert "hits: []" not in done.stdout


def test_settings_of_search_are_the_same_after_the_tour(callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SEARCH_BM25_QUERY_WORDS", "1")

    assert callyard("demo")[0] == 0
    assert os.environ["CALLYARD_SEARCH_BM25_QUERY_WORDS"] == "1"


def test_calls_are_logged_if_asked(in_process: Process) -> None:
    assert in_process("demo", "-v").stderr.count(" tool=payments__refund_charge ") == 2
