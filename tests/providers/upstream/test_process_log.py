from pathlib import Path

import pytest

from callyard.providers.upstream import process_log
from callyard.providers.upstream.process_log import LogReader, ProcessLog, rotated_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "upstreams" / "bad" / "stderr.log"


def written(path: Path) -> list[str]:
    """Return the lines of a log without their times."""
    return [line.partition(" ")[2] for line in path.read_text(errors="replace").splitlines()]


def test_a_line_has_a_time_and_a_source(path: Path) -> None:
    log = ProcessLog(path)
    log.feed(b"one\ntw")
    log.feed(b"o\n\nthree")
    log.add_line("stdout", b"a greeting")
    log.close()

    assert written(path) == ["stderr one", "stderr two", "stdout a greeting", "stderr three"]
    assert path.read_text()[:2] == "20"
    assert path.read_text().split(" ")[0].endswith("+00:00")


def test_the_log_is_private(path: Path) -> None:
    ProcessLog(path).close()

    assert path.stat().st_mode & 0o077 == 0
    assert path.parent.stat().st_mode & 0o077 == 0


def test_a_log_is_appended_to(path: Path) -> None:
    for line in (b"one\n", b"two\n"):
        log = ProcessLog(path)
        log.feed(line)
        log.close()

    assert written(path) == ["stderr one", "stderr two"]


def test_a_full_file_becomes_the_previous_one(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "_FILE_BYTES", 100)
    log = ProcessLog(path)
    for number in range(6):
        log.feed(b"%d %s\n" % (number, b"x" * 20))
    log.close()

    assert [line[:8] for line in written(rotated_path(path))] == ["stderr 4"]
    assert [line[:8] for line in written(path)] == ["stderr 5"]
    assert len(list(path.parent.iterdir())) == 2


def test_two_processes_that_share_a_file_rotate_it_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "_FILE_BYTES", 150)
    one, two = ProcessLog(path), ProcessLog(path)
    two.feed(b"from two " + b"x" * 60 + b"\n")
    one.feed(b"from one " + b"x" * 60 + b"\n")
    one.feed(b"makes room " + b"x" * 60 + b"\n")
    two.feed(b"finds room " + b"x" * 60 + b"\n")
    one.close()
    two.close()

    assert [line.split()[1] for line in written(rotated_path(path))] == ["from", "from"]
    assert [line.split()[1] for line in written(path)] == ["makes", "finds"]


def test_output_beyond_the_rate_limit_is_counted_instead(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(process_log, "_SECOND_BYTES", 1000)
    monkeypatch.setattr("callyard.providers.upstream.process_log.time.monotonic", lambda: now[0])
    log = ProcessLog(path)
    log.feed(b"one\nhalf")
    log.feed(b"x" * 2000 + b"\n")
    log.add_line("stdout", b"y" * 2001)
    assert log.is_flooded
    now[0] += 1
    log.feed(b"two\n")
    assert not log.is_flooded
    log.feed(b"z" * 2000)
    log.close()

    assert written(path) == [
        "stderr one",
        "stderr half",
        "callyard 4002 bytes are missing here, because too many came at a time.",
        "stderr two",
        "callyard 2000 bytes are missing here, because too many came at a time.",
    ]


def test_a_line_over_the_limit_is_left_out(path: Path) -> None:
    log = ProcessLog(path)
    log.feed(b"x" * 20_000)
    log.feed(b"x" * 20_000 + b"\nshort\n")
    log.add_line("stdout", b"y" * 20_000)
    log.close()

    assert written(path)[:2] == ["callyard A line of more than 16384 bytes is missing here.", "stderr short"]
    assert len(written(path)[2]) == len("stdout ") + 16_384


def test_the_tail_is_short_and_has_no_control_sequences(path: Path) -> None:
    log = ProcessLog(path)
    assert log.tail == ""
    log.feed(b"\x1b[31mone\x1b[0m\r\nt\x07wo\n")
    log.add_line("stdout", b"usage: bad")
    log.add_line("callyard", b"not the program's")
    assert log.tail == "one\ntwo\nusage: bad"
    log.feed(b"".join(b"line %d\n" % number for number in range(100)))
    assert log.tail == "\n".join(f"line {number}" for number in range(80, 100))
    log.feed(b"\xff" * 3000 + b"\n" + b"y" * 3000)
    assert log.tail == "y" * 3000
    log.feed(b"z" * 5000)
    assert log.tail == "z" * 4096
    log.close()


def test_without_a_file_only_the_tail_remains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    log = ProcessLog(tmp_path / "file" / "stderr.log")
    log.feed(b"one\n")
    log.close()

    assert log.tail == "one"
    assert "process_log_lost" in caplog.text


def test_a_failed_rotation_does_no_harm(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_log, "_FILE_BYTES", 50)
    log = ProcessLog(path)
    log.feed(b"one " + b"x" * 50 + b"\n")
    path.unlink()
    path.parent.rmdir()
    path.parent.write_text("in the way")
    for _ in range(3):
        log.feed(b"two " + b"x" * 50 + b"\n")
    log.close()

    assert path.parent.read_text() == "in the way"


def test_a_full_disk_does_no_harm() -> None:
    log = ProcessLog(Path("/dev/full"))
    log.feed(b"one\n")
    log.close()

    assert log.tail == "one"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "stderr.log"


def append(log: Path, text: bytes) -> None:
    with log.open("ab") as file:
        file.write(text)


def test_the_last_lines_are_read_and_then_what_comes(log: Path) -> None:
    append(log, b"one\ntwo\nthree\n")
    with LogReader(log) as reader:
        assert reader.read_last(2) == ["two", "three"]
        assert reader.read_new() == []
        append(log, b"four\nfi")
        assert reader.read_new() == ["four"]
        append(log, b"ve\xff\n")
        assert reader.read_new() == ["five\N{REPLACEMENT CHARACTER}"]


def test_the_previous_file_is_read_if_there_are_too_few_lines(log: Path) -> None:
    append(rotated_path(log), b"one\ntwo\n")
    append(log, b"three\n")
    for count, lines in ((0, []), (1, ["three"]), (2, ["two", "three"]), (9, ["one", "two", "three"])):
        with LogReader(log) as reader:
            assert reader.read_last(count) == lines


def test_reading_continues_after_a_rotation(log: Path) -> None:
    append(log, b"one\n")
    with LogReader(log) as reader:
        assert reader.read_last(5) == ["one"]
        append(log, b"two\n")
        log.replace(rotated_path(log))
        assert reader.read_new() == ["two"]
        append(log, b"three\n")
        assert reader.read_new() == ["three"]


def test_a_log_that_is_not_there_yet_has_no_lines(log: Path) -> None:
    with LogReader(log) as reader:
        assert reader.read_last(5) == []
    with LogReader(log) as reader:
        assert reader.read_new() == []
        append(log, b"one\n")
        assert reader.read_new() == ["one"]


def test_secrets_of_the_settings_are_not_written_and_what_looks_like_another_one_is_not_read(path: Path) -> None:
    log = ProcessLog(path, {"hunter2", "hunter2-long"})
    log.feed(b"with hunter2-long and hun")
    log.feed(b"ter2 and password: abc\n")
    log.add_line("stdout", b"hunter2")

    assert log.tail == "with *** and *** and password: ***\n***"
    log.close()
    assert "hunter2" not in path.read_text()
    with LogReader(path) as reader:
        assert [line.partition(" ")[2] for line in reader.read_last(10)] == [
            "stderr with *** and *** and password: ***",
            "stdout ***",
        ]
