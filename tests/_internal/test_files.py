import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from callyard._internal.files import find_state_dir, read_private, write_atomically, write_once

STARTS = """
import secrets, sys
from pathlib import Path
from callyard._internal.files import write_once
sys.stdin.read()
print(write_once(Path(sys.argv[1]), secrets.token_bytes(32)).hex())
"""


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_state_directory_is_the_configured_one_that_of_the_environment_or_the_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("CALLYARD_STATE_DIR", raising=False)
    monkeypatch.delenv("XDG_STATE_HOME")
    assert find_state_dir() == Path("/home/somebody/.local/state/callyard")

    monkeypatch.setenv("XDG_STATE_HOME", "relative")  # which the standard says to ignore
    assert find_state_dir() == Path("/home/somebody/.local/state/callyard")

    monkeypatch.setenv("XDG_STATE_HOME", "/states")
    assert find_state_dir() == Path("/states/callyard")

    monkeypatch.setenv("CALLYARD_STATE_DIR", "~/yard")
    assert find_state_dir() == Path("/home/somebody/yard")

    monkeypatch.chdir(tmp_path)
    assert find_state_dir("here") == tmp_path / "here"


def test_new_files_and_folders_are_private(tmp_path: Path) -> None:
    path = tmp_path / "state" / "catalogues" / "a.json"
    write_atomically(path, b"1")

    assert [mode(part) for part in (path, path.parent, path.parent.parent)] == [0o600, 0o700, 0o700]
    assert read_private(path) == b"1"


def test_an_existing_folder_keeps_its_mode(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write_once(tmp_path / "a", b"1")

    assert mode(tmp_path) == 0o755


def test_a_file_is_replaced_as_a_whole_and_nothing_is_left_behind(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    with (tmp_path / "a").open("rb") as reader:
        write_atomically(tmp_path / "a", b"new content")
        assert reader.read() == b"old"

    assert (tmp_path / "a").read_bytes() == b"new content"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_failed_write_leaves_no_files_behind(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(OSError, match="directory"):
        write_atomically(tmp_path / "a", b"1")
    write_atomically(tmp_path / "a" / "b" / "c", b"1")
    with pytest.raises(OSError, match="exists"):
        write_atomically(tmp_path / "a" / "b" / "c" / "d", b"1")

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "c"]


def test_a_file_is_written_once(tmp_path: Path) -> None:
    assert write_once(tmp_path / "a", b"first") == b"first"
    assert write_once(tmp_path / "a", b"second") == b"first"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_processes_that_start_at_once_agree(tmp_path: Path) -> None:
    path = tmp_path / "state" / "secret"
    command = [sys.executable, "-c", STARTS, str(path)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(4)]  # noqa: S603 - our own
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        process.stdin = None  # or 'communicate' would flush it
    printed = {process.communicate(timeout=60)[0] for process in started}

    assert printed == {f"{path.read_bytes().hex()}\n"}


def test_one_who_comes_second_takes_what_the_first_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_once(tmp_path / "a", b"first")
    monkeypatch.setattr(Path, "exists", _is_missing)  # it looked before the first wrote

    assert write_once(tmp_path / "a", b"second") == b"first"


def _is_missing(_: Path) -> bool:
    return False


def test_a_file_that_others_can_read_or_own_is_not_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_atomically(tmp_path / "a", b"1")
    (tmp_path / "a").chmod(0o640)
    with pytest.raises(PermissionError):
        read_private(tmp_path / "a")

    (tmp_path / "a").chmod(0o600)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    with pytest.raises(PermissionError):
        read_private(tmp_path / "a")


def test_a_state_directory_that_everybody_can_change_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state").chmod(0o777)
    with pytest.raises(PermissionError):
        find_state_dir(tmp_path / "state")

    (tmp_path / "state").chmod(0o755)
    assert find_state_dir(tmp_path / "state") == tmp_path / "state"
