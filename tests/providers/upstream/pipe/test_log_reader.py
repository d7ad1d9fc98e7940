from pathlib import Path

import pytest

from toolyard.providers.upstream.process_log import LogReader, older


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "stderr.log"


def append(path: Path, text: bytes) -> None:
    with path.open("ab") as file:
        file.write(text)


def test_the_last_lines_are_read_and_then_what_comes(path: Path) -> None:
    append(path, b"one\ntwo\nthree\n")
    with LogReader(path) as reader:
        assert reader.read_last(2) == ["two", "three"]
        assert reader.read_on() == []
        append(path, b"four\nfi")
        assert reader.read_on() == ["four"]
        append(path, b"ve\xff\n")
        assert reader.read_on() == ["five\N{REPLACEMENT CHARACTER}"]


def test_the_older_file_is_read_if_there_are_too_few(path: Path) -> None:
    append(older(path), b"one\ntwo\n")
    append(path, b"three\n")
    for count, lines in ((0, []), (1, ["three"]), (2, ["two", "three"]), (9, ["one", "two", "three"])):
        with LogReader(path) as reader:
            assert reader.read_last(count) == lines


def test_what_comes_is_read_when_the_file_is_begun_anew(path: Path) -> None:
    append(path, b"one\n")
    with LogReader(path) as reader:
        assert reader.read_last(5) == ["one"]
        append(path, b"two\n")
        path.replace(older(path))
        assert reader.read_on() == ["two"]
        append(path, b"three\n")
        assert reader.read_on() == ["three"]


def test_a_log_that_is_not_there_yet_has_no_lines(path: Path) -> None:
    with LogReader(path) as reader:
        assert reader.read_last(5) == []
    with LogReader(path) as reader:
        assert reader.read_on() == []
        append(path, b"one\n")
        assert reader.read_on() == ["one"]
