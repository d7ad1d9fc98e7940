"""`callyard upstreams` and `callyard restart`: how upstreams are, with and without a yard that uses them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from callyard._internal.project import find_project, project_dir
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.health import Status, restart_requested_at, write_status
from callyard.providers.upstream.process_log import ProcessLog, log_path
from callyard.providers.upstream.provider import Upstream, make_upstream

Run = Callable[..., tuple[int, str, str]]
BAD: Final = Path(__file__).parent.parent / "providers" / "upstream" / "servers" / "bad_server.py"
NO_HOME: Final = (
    "callyard: The state directory cannot be used: There is no home directory. Set another with 'state_dir'.\n"
)
FILE: Final = f"""
[upstreams.good]
command = {json.dumps(sys.executable)}
args = ["-I", {json.dumps(str(BAD))}, "well"]
[upstreams.lost]
command = "no-such-program-anywhere"
[upstreams.off]
url = "http://127.0.0.1:1/mcp"
enabled = false
"""


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the state directory of a folder whose file names three upstreams."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "callyard.toml").write_text(FILE)
    return tmp_path / "state"


def use(folder: Path, **more: object) -> None:
    """Leave what a yard that uses 'good' would say."""
    known: dict[str, object] = {
        "state": "ready",
        "yard_pid": os.getpid(),
        "tools": 9,
        "latency_ms": 1.25,
        "seen": time.time() - 7200,
        **more,
    }
    write_status(folder_of(project_dir(folder, find_project()), "good"), Status(name="good", **known))  # pyright: ignore[reportArgumentType] - each test says what it needs


@pytest.mark.usefixtures("state")
def test_an_unused_upstream_is_cold_and_a_disabled_one_is_stopped(callyard: Run) -> None:
    status, out, err = callyard("upstreams")

    assert (status, err) == (0, "")
    assert out == (
        "good\tcold\t0\t-\t-\tIt was never started.\n"
        "lost\tcold\t0\t-\t-\tIt was never started.\n"
        "off\tstopped\t0\t-\t-\tIt is switched off.\n"
    )


def test_the_state_of_an_upstream_in_use_is_the_one_that_its_yard_reports(state: Path, callyard: Run) -> None:
    use(state, withheld=2, warned=1)
    assert callyard("upstreams")[1].splitlines()[0] == "good\tready\t9 (2 withheld, 1 changed)\t1.2 ms\t2 h ago\t"

    use(state, last_error="It died.", seen=time.time())
    assert (
        callyard("upstreams")[1].splitlines()[0]
        == "good\tready\t9\t1.2 ms\t0 s ago\tOnce: It died. See 'callyard logs good'."
    )


@pytest.mark.parametrize("change", [{"yard_pid": 2**22 + 1}, {"state": "stopped"}])
def test_the_state_of_a_yard_that_is_gone_does_not_count(state: Path, callyard: Run, change: dict[str, object]) -> None:
    use(state, **change)

    assert callyard("upstreams")[1].startswith("good\tcold")


@pytest.mark.usefixtures("state")
def test_a_check_tries_each_and_says_why_one_cannot_be_had(callyard: Run) -> None:
    status, out, err = callyard("upstreams", "--check", "--json")
    found = {one["name"]: one for one in json.loads(out)}

    assert (status, "Checking 2 upstreams" in err) == (1, True)
    assert (found["good"]["state"], found["good"]["tools"]) == ("ready", 9)
    assert (found["lost"]["state"], "no-such-program-anywhere" in found["lost"]["reason"]) == ("degraded", True)
    assert found["off"]["state"] == "stopped"
    assert callyard("upstreams")[1].splitlines()[0].endswith("No running yard uses it.")
    assert callyard("upstreams", "--check")[1].splitlines()[0].startswith("good\tready")


def test_a_check_counts_what_is_withheld(state: Path, callyard: Run) -> None:
    (state.parent / "callyard.toml").write_text(FILE.partition("[upstreams.lost]")[0] + 'first = "ask"\n')
    [found] = json.loads(callyard("upstreams", "--check", "--json")[1])

    assert found["withheld"] >= 9


def test_a_check_that_finds_nothing_wrong_ends_well(state: Path, callyard: Run) -> None:
    (state.parent / "callyard.toml").write_text(FILE.partition("[upstreams.lost]")[0])

    assert callyard("upstreams", "--check")[0] == 0


def test_a_check_waits_for_one_that_its_yard_starts_meanwhile(
    state: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_hasty(*given: Any, **more: Any) -> Upstream:
        made = make_upstream(*given, **more)
        made._interval = 0.001  # pyright: ignore[reportPrivateUsage] - it looks at what is stale almost at once
        return made

    good = FILE.partition("[upstreams.lost]")[0] + "catalogue_seconds = 0.001\n"
    (state.parent / "callyard.toml").write_text(
        good + good.replace("[upstreams.good]", "[upstreams.slow]").replace('"well"', '"slow_start", "both", "1"')
    )
    assert callyard("upstreams", "--check")[0] == 0
    monkeypatch.setattr("callyard.cli.upstreams.make_upstream", make_hasty)

    assert callyard("upstreams", "--check")[0] == 0


def test_people_get_columns_with_titles(state: Path, in_terminal: Callable[..., str]) -> None:
    use(state)
    lines = in_terminal("upstreams", columns=60, NO_COLOR="1").splitlines()

    assert lines[0].split() == ["NAME", "STATE", "TOOLS", "LATENCY", "SEEN", "WHY"]
    assert lines[1].split()[:3] == ["good", "ready", "9"]
    assert max(map(len, lines)) <= 60


def test_without_upstreams_it_says_how_to_get_some(state: Path, callyard: Run) -> None:
    (state.parent / "callyard.toml").write_text("")
    _, out, err = callyard("upstreams")

    assert (out, "callyard import" in err) == ("", True)


def test_a_restart_leaves_word_for_the_yard_that_uses_it(state: Path, callyard: Run) -> None:
    use(state)
    status, out, err = callyard("restart", "good")

    assert (status, out) == (0, "")
    assert str(os.getpid()) in err
    assert restart_requested_at(folder_of(project_dir(state, find_project()), "good")) > 0
    assert callyard("restart", "good", "-q") == (0, "", "")


@pytest.mark.usefixtures("state")
def test_a_restart_of_what_nobody_uses_or_knows_is_refused(callyard: Run) -> None:
    assert callyard("restart", "good") == (
        2,
        "",
        "callyard: No running yard uses 'good', so there is nothing to restart.\n",
    )
    assert callyard("restart", "goood") == (2, "", "callyard: There is no upstream 'goood'. Did you mean 'good'?\n")
    assert callyard("restart", "xyz") == (2, "", "callyard: There is no upstream 'xyz'.\n")


@pytest.fixture
def state_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state directory that has logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state_logs"))
    for name in ("files", "notes"):
        log = ProcessLog(log_path(project_dir(tmp_path / "state_logs", find_project()), name))
        log.feed(b"".join(b"%s %d\n" % (name.encode(), number) for number in range(150)))
        log.close()
    return tmp_path / "state_logs"


@pytest.mark.usefixtures("state_logs")
def test_the_last_lines_are_printed(callyard: Run) -> None:
    status, out, err = callyard("logs", "files")
    assert (status, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()] == [str(number) for number in range(50, 150)]

    _, out, _ = callyard("logs", "notes", "-n", "2")
    assert [line.partition(" ")[2] for line in out.splitlines()] == ["stderr notes 148", "stderr notes 149"]


def test_control_characters_are_shown_and_not_sent_to_the_terminal(state_logs: Path, callyard: Run) -> None:
    log = ProcessLog(log_path(project_dir(state_logs, find_project()), "files"))
    log.feed(b"\x1b[2Jcleared\n")
    log.close()

    assert callyard("logs", "files", "-n", "1")[1].endswith(" stderr \\x1b[2Jcleared\n")


def test_the_state_directory_of_the_file_is_looked_into(
    state_logs: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CALLYARD_STATE_DIR")
    (state_logs.parent / "other.toml").write_text(f'state_dir = "{state_logs}"\n')

    assert callyard("logs", "files", "--config", "other.toml", "-n", "1")[0] == 0


@pytest.mark.usefixtures("state_logs")
def test_a_name_without_a_log_is_refused_with_those_that_have_one(callyard: Run) -> None:
    assert callyard("logs", "flies") == (2, "", "callyard: There is no log of 'flies'. Did you mean 'files'?\n")
    assert callyard("logs", "x") == (2, "", "callyard: There is no log of 'x'. There are logs of 'files', 'notes'.\n")


def test_where_nothing_was_started_there_are_no_logs(
    tmp_path: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "none"))

    status, _, err = callyard("logs", "files")
    assert status == 2
    assert "once it was started" in err


def test_a_state_directory_that_cannot_be_found_is_said_to_be(callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Path:
        raise OSError(2, "There is no home directory")

    monkeypatch.setattr("callyard.cli.targets.find_state_dir", fail)

    assert callyard("logs", "files")[::2] == (2, NO_HOME)


@pytest.mark.parametrize("number", ["-1", "x"])
def test_a_number_of_lines_is_one(number: str, callyard: Run) -> None:
    assert callyard("logs", "files", "-n", number)[0] == 2


def test_lines_that_come_are_printed_until_it_is_interrupted(state_logs: Path) -> None:
    program = [
        sys.executable,
        "-c",
        "import sys; from callyard.cli import main; sys.exit(main())",
        "logs",
        "files",
        "-f",
        "-n",
        "1",
    ]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ.copy()) as following:  # noqa: S603 - our own
        assert following.stdout is not None
        assert following.stdout.readline().endswith(b" stderr files 149\n")
        log = ProcessLog(log_path(project_dir(state_logs, find_project()), "files"))
        log.feed(b"one more\n")
        assert following.stdout.readline().endswith(b" stderr one more\n")
        log.close()
        following.send_signal(signal.SIGINT)

    assert following.returncode == 130


def test_failures_that_a_check_finds_are_remembered_until_it_succeeds(state: Path, callyard: Run) -> None:
    crash = "[upstreams.good]\ncommand = 'sh'\nargs = ['-c', 'echo Nothing here >&2; exit 3']\n"
    (state.parent / "callyard.toml").write_text(crash)
    assert callyard("upstreams", "--check")[0] == 1

    [line] = callyard("upstreams")[1].splitlines()
    [found] = json.loads(callyard("upstreams", "--json")[1])

    assert found["state"] == "cold"
    assert found["failed"] > time.time() - 60
    assert "exit code 3. Nothing here" in found["last_error"]
    assert line.endswith("'callyard logs good'.")
    assert "Nothing here" in callyard("logs", "good")[1]

    (state.parent / "callyard.toml").write_text(FILE.partition("[upstreams.lost]")[0])
    assert callyard("upstreams", "--check")[0] == 0
    [found] = json.loads(callyard("upstreams", "--json")[1])
    assert (found["failed"], found["reason"]) == (None, "No running yard uses it.")


def test_a_check_does_not_wait_long_for_one_that_hangs(
    state: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.cli.upstreams._CHECK_S", 0.1)
    (state.parent / "callyard.toml").write_text(
        FILE.partition("[upstreams.lost]")[0].replace('"well"', '"never_answers"')
    )
    status, out, _ = callyard("upstreams", "--check", "--json")
    [found] = json.loads(out)

    assert (status, found["state"], "'--wait'" in found["reason"]) == (1, "degraded", True)
    assert json.loads(callyard("upstreams", "--json")[1])[0]["failed"] is not None


def test_a_variable_that_is_not_set_is_the_reason_of_its_upstream_alone(state: Path, callyard: Run) -> None:
    good = FILE.partition("[upstreams.lost]")[0]
    (state.parent / "callyard.toml").write_text(
        f"{good}[upstreams.poor]\ncommand = 'x'\nenv = {{A = '${{NOT_SET_HERE}}'}}\n"
    )

    assert "NOT_SET_HERE" in callyard("upstreams")[1].splitlines()[1]

    status, out, _ = callyard("upstreams", "--check", "--json")
    found = {one["name"]: one for one in json.loads(out)}
    assert (status, found["good"]["state"]) == (1, "ready")
    assert (found["poor"]["state"], "'NOT_SET_HERE'" in found["poor"]["reason"]) == ("degraded", True)


def test_logs_states_and_restarts_of_two_projects_are_separate(
    state: Path, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(state)
    log = ProcessLog(log_path(project_dir(state, find_project()), "good"))
    log.feed(b"here\n")
    log.close()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "callyard.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path / "other")

    assert callyard("upstreams")[1].splitlines()[0] == "good\tcold\t0\t-\t-\tIt was never started."
    assert callyard("restart", "good")[0] == 2
    assert callyard("logs", "good")[0] == 2
    assert callyard("logs", "good", "--config", "../callyard.toml")[1].endswith("here\n")
    assert callyard("restart", "good", "--config", "../callyard.toml")[0] == 0


def test_the_state_of_a_clients_file_is_found_by_its_name(
    state: Path, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state.parent / "callyard.toml").unlink()
    (tmp_path / "client").mkdir()
    (tmp_path / "client" / "mcp.json").write_text(
        json.dumps({"mcpServers": {"good": {"command": "sh", "args": ["-c", "echo hi >&2"]}}})
    )
    assert callyard("upstreams", "client/mcp.json", "--check")[0] == 1

    assert callyard("logs", "good")[0] == 2
    assert "hi" in callyard("logs", "good", "--config", "client/mcp.json")[1]
    monkeypatch.chdir(tmp_path / "client")
    assert "hi" in callyard("logs", "good", "--config", "mcp.json")[1]
