"""The lock: what it says, how it is written, and that nobody's lines get lost."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolyard.providers.upstream import pins as lock
from toolyard.providers.upstream.pins import Definition, Locked, LockError, change_lock, find_lock, parse_lock, pin_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolyard.lock"


def locked(*names: str, upstream: str = "shop", description: str = "It does.") -> Locked:
    pins = (pin_of(upstream, Definition("tool", name, {"description": description})) for name in names)
    return {upstream: {pin.key: pin for pin in pins}}


def test_the_lock_is_beside_the_configuration_or_else_with_the_state(tmp_path: Path) -> None:
    assert find_lock(tmp_path / "a" / "toolyard.toml", tmp_path) == tmp_path / "a" / "toolyard.lock"
    assert find_lock(None, tmp_path) == tmp_path / "toolyard.lock"


def test_what_is_written_is_read_again(path: Path) -> None:
    wanted = {**locked("b", "a", "ü\u202e\n"), **locked("c", upstream="bank")}

    assert change_lock(path, lambda _: wanted) == wanted
    assert parse_lock(path, path.read_bytes()) == wanted


def test_there_is_one_line_for_each_definition_in_one_order(path: Path) -> None:
    change_lock(path, lambda _: {**locked("b", "a"), **locked("c", upstream="bank")})
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]

    assert [line.partition(', "hash"')[0] for line in lines] == [
        '{"upstream": "bank", "kind": "tool", "name": "c"',
        '{"upstream": "shop", "kind": "tool", "name": "a"',
        '{"upstream": "shop", "kind": "tool", "name": "b"',
    ]


def test_no_character_of_a_name_can_hide(path: Path) -> None:
    change_lock(path, lambda _: locked("pay\u200b\u202e\U000e0041"))

    assert path.read_bytes().isascii()
    assert "\\u200b\\u202e" in path.read_text()


def test_everybody_may_read_it(path: Path) -> None:
    before = os.umask(0o022)
    try:
        change_lock(path, lambda _: locked("a"))
    finally:
        os.umask(before)

    assert path.stat().st_mode & 0o777 == 0o644


def test_it_is_not_written_if_nothing_changed(path: Path) -> None:
    change_lock(path, lambda _: locked("a"))
    before = path.stat()
    change_lock(path, dict)

    assert os.path.samestat(path.stat(), before)


def test_a_link_to_it_stays_a_link(path: Path, tmp_path: Path) -> None:
    real = tmp_path / "real" / "toolyard.lock"
    path.symlink_to(real)
    change_lock(path, lambda _: locked("a"))

    assert path.is_symlink()
    assert parse_lock(real, real.read_bytes()) == locked("a")


@pytest.mark.parametrize(
    "line",
    [
        "<<<<<<< HEAD",
        "{}",
        "5",
        '{"upstream": "shop", "kind": "tool", "name": "a", "hash": "0", "fields": {}, "more": 1}',
        '{"upstream": "shop", "kind": "made up", "name": "a", "hash": "0", "fields": {}}',
        '{"upstream": "\\ud800", "kind": "tool", "name": "a", "hash": "0", "fields": {}}',
    ],
)
def test_a_line_that_cannot_be_understood_is_named_and_nothing_is_overwritten(path: Path, line: str) -> None:
    path.write_text(f"# About\n\n{line}\n")
    with pytest.raises(LockError, match=r"Line 3 of '.*' cannot be read"):
        change_lock(path, lambda _: locked("a"))

    assert path.read_text() == f"# About\n\n{line}\n"


def test_bytes_that_are_no_text_are_named_too(path: Path) -> None:
    with pytest.raises(LockError, match="Line 1"):
        parse_lock(path, b'{"upstream": "\xff"}')


def test_two_lines_may_say_the_same_and_must_not_contradict_each_other(path: Path) -> None:
    change_lock(path, lambda _: locked("a"))
    line = path.read_bytes().splitlines(keepends=True)[-1]

    assert parse_lock(path, line + line) == locked("a")
    with pytest.raises(LockError, match=r"Line 2 of '.*' contradicts another about the tool 'a' of 'shop'"):
        parse_lock(path, line + line.replace(b'"hash": "', b'"hash": "0'))


def test_who_finds_it_kept_by_another_for_too_long_says_so(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_TRIES", 2)
    monkeypatch.setattr(lock, "_PAUSE", 0)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match="Another process"):
            change_lock(path, lambda _: locked("a"))

    assert path.read_text() == ""


def test_who_had_the_old_file_open_takes_the_new_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening and taking the file another process replaces it, and a third removes it."""
    flock = fcntl.flock
    meanwhile = [path.unlink, lambda: _replace(path)]

    def late(file: int, operation: int) -> None:
        if meanwhile:
            meanwhile.pop()()
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    monkeypatch.setattr(lock, "_PAUSE", 0)
    change_lock(path, lambda now: {**now, **locked("a")})

    assert meanwhile == []
    assert parse_lock(path, path.read_bytes()) == locked("a")


def _replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_text("")
    other.replace(path)


WRITER = """
import sys
from pathlib import Path
from toolyard.providers.upstream.pins import Definition
from toolyard.providers.upstream.pins import change_lock, pin_of

path, who = Path(sys.argv[1]), sys.argv[2]
sys.stdin.readline()
for number in range(15):
    pin = pin_of(who, Definition("tool", str(number), {}))
    change_lock(path, lambda now: {**now, who: {**now.get(who, {}), pin.key: pin}})
"""


def test_processes_that_write_at_the_same_time_lose_no_lines(path: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(path), who], stdin=subprocess.PIPE)  # noqa: S603 - our own code
        for who in ("a", "b", "c")
    ]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write(b"\n")
        writer.stdin.close()
    assert [writer.wait() for writer in writers] == [0, 0, 0]

    found = parse_lock(path, path.read_bytes())
    assert {who: len(pins) for who, pins in found.items()} == {"a": 15, "b": 15, "c": 15}
    assert list(path.parent.iterdir()) == [path]
