"""`callyard probe`: targets, exit statuses and what is printed."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

Run = Callable[..., tuple[int, str, str]]
PROGRAM: Final = str(Path(__file__).parent.parent / "probe" / "failing_server.py")
PYTHON: Final = (sys.executable, "-I", "-S", PROGRAM)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def upstream(name: str, mode: str) -> str:
    return f"[upstreams.{name}]\ncommand = {json.dumps(PYTHON[0])}\nargs = {json.dumps([*PYTHON[1:], mode, '2026'])}\n"


@pytest.mark.usefixtures("folder")
def test_a_program_is_probed_and_its_code_is_the_exit_status(callyard: Run) -> None:
    status, out, err = callyard("probe", "--", *PYTHON, "well", "2026")
    assert (status, err.count("Traceback")) == (0, 0)
    assert "program: ok" in out
    status, out, _ = callyard("probe", "--seconds", "60", "--", *PYTHON, "exits", "2025")
    assert status == 46
    assert "There is no key." in out


def test_the_upstreams_of_the_file_are_probed_and_the_first_failure_counts(callyard: Run, folder: Path) -> None:
    canary = '[probe.bad]\nslow_seconds = 60\n[[probe.bad.canaries]]\ntool = "needed"\n'
    (folder / "callyard.toml").write_text(upstream("bad", "fails") + upstream("good", "well") + canary)
    status, out, _ = callyard("probe", "--json", "--junit", "found.xml")
    reports = json.loads(out)
    assert (status, [(one["target"], one["code"]) for one in reports]) == (60, [("bad", "tool_error"), ("good", None)])
    assert (folder / "found.xml").read_text().count("<testsuite ") == 2
    assert callyard("probe", "good")[0] == 0
    status, out, _ = callyard("probe", "bad")
    assert (status, "'needed': " in out) == (60, True)


def test_a_lock_can_be_named_and_must_have_the_definitions(callyard: Run, folder: Path) -> None:
    (folder / "callyard.toml").write_text(upstream("up", "well"))
    (folder / "none.lock").write_text("")
    assert callyard("probe", "up", "--pin", "none.lock")[0] == 2
    assert callyard("probe", "up", "--pin", "missing.lock")[0] == 2
    pin: dict[str, object] = {"upstream": "other", "kind": "tool", "name": "gone", "hash": "h", "fields": {}}
    (folder / "one.lock").write_text(json.dumps(pin) + "\n")
    status, out, _ = callyard("probe", "up", "--pin", "one.lock", "--json")
    [report] = json.loads(out)
    assert (status, report["failures"][0]["tool"]) == (57, "gone")
    assert callyard("probe", "--pin", "one.lock", "--", *PYTHON, "well", "2026")[0] == 57


def test_a_yard_is_started_and_probed(callyard: Run, folder: Path) -> None:
    (folder / "yard.py").write_text("from callyard import Yard\nyard = Yard()\n")
    status, out, _ = callyard("probe", "yard.py", "--json", "--seconds", "120")
    assert (status in {0, 62}, json.loads(out)[0]["version"]) == (True, "2026-07-28")


def test_a_wrong_target_is_refused(callyard: Run, folder: Path) -> None:
    assert callyard("probe")[0] == 2
    (folder / "callyard.toml").write_text(upstream("up", "well"))
    assert callyard("probe", "nothing")[0] == 2
    assert callyard("probe", "up", "--", *PYTHON)[0] == 2
    (folder / "callyard.toml").write_text(upstream("up", "well") + "[probe.other]\n")
    assert callyard("probe")[0] == 2
    (folder / "callyard.toml").write_text(upstream("up", "well") + "[probe.up]\nseconds = 0\n")
    assert callyard("probe")[0] == 2
    (folder / "callyard.toml").write_text(upstream("up", "well") + '[[probe.up.canaries]]\ntool = "x"\nseconds = 0\n')
    assert callyard("probe")[0] == 2


def test_a_state_directory_that_everybody_can_change_is_refused(callyard: Run, folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state").chmod(0o777)
    assert callyard("probe", "--", *PYTHON, "well", "2026")[0] == 2
