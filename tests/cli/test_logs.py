"""`toolyard logs`: the last lines of an upstream's log, and those that come."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from toolyard.providers.upstream.process_log import ProcessLog, path_of_log

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a state directory that has logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TOOLYARD_STATE_DIR", str(tmp_path / "state"))
    for name in ("files", "notes"):
        log = ProcessLog(path_of_log(tmp_path / "state", name))
        log.feed(b"".join(b"%s %d\n" % (name.encode(), number) for number in range(150)))
        log.close()
    return tmp_path / "state"


@pytest.mark.usefixtures("state")
def test_the_last_lines_are_printed(toolyard: Run) -> None:
    status, out, err = toolyard("logs", "files")
    assert (status, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines()] == [str(number) for number in range(50, 150)]

    _, out, _ = toolyard("logs", "notes", "-n", "2")
    assert [line.partition(" ")[2] for line in out.splitlines()] == ["stderr notes 148", "stderr notes 149"]


def test_what_moves_the_cursor_is_shown_and_not_sent(state: Path, toolyard: Run) -> None:
    log = ProcessLog(path_of_log(state, "files"))
    log.feed(b"\x1b[2Jcleared\n")
    log.close()

    assert toolyard("logs", "files", "-n", "1")[1].endswith(" stderr \\x1b[2Jcleared\n")


def test_the_state_directory_of_the_file_is_looked_into(state: Path, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLYARD_STATE_DIR")
    (state.parent / "other.toml").write_text(f'state_dir = "{state}"\n')

    assert toolyard("logs", "files", "--config", "other.toml", "-n", "1")[0] == 0


@pytest.mark.usefixtures("state")
def test_a_name_without_a_log_is_refused_with_those_that_have_one(toolyard: Run) -> None:
    assert toolyard("logs", "flies") == (2, "", "toolyard: There is no log of 'flies'. Did you mean 'files'?\n")
    assert toolyard("logs", "x") == (2, "", "toolyard: There is no log of 'x'. There are logs of 'files', 'notes'.\n")


def test_where_nothing_was_started_there_are_no_logs(tmp_path: Path, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLYARD_STATE_DIR", str(tmp_path / "none"))

    status, _, err = toolyard("logs", "files")
    assert status == 2
    assert "once it was started" in err


def test_a_state_directory_that_cannot_be_found_is_said_to_be(toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> Path:
        raise OSError(2, "There is no home directory")

    monkeypatch.setattr("toolyard.cli.upstreams.find_state_dir", fail)

    assert toolyard("logs", "files")[::2] == (2, "toolyard: The state directory cannot be read: There is no home directory.\n")


@pytest.mark.parametrize("number", ["-1", "x"])
def test_a_number_of_lines_is_one(number: str, toolyard: Run) -> None:
    assert toolyard("logs", "files", "-n", number)[0] == 2


def test_lines_that_come_are_printed_until_it_is_interrupted(state: Path) -> None:
    program = [sys.executable, "-c", "import sys; from toolyard.cli import main; sys.exit(main())", "logs", "files", "-f", "-n", "1"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, env=os.environ.copy()) as following:  # noqa: S603 - our own
        assert following.stdout is not None
        assert following.stdout.readline().endswith(b" stderr files 149\n")
        log = ProcessLog(path_of_log(state, "files"))
        log.feed(b"one more\n")
        assert following.stdout.readline().endswith(b" stderr one more\n")
        log.close()
        following.send_signal(signal.SIGINT)

    assert following.returncode == 130
