"""The versions of one image as plain files."""

import os
import threading
import time
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from callyard_darkroom import versions as module
from callyard_darkroom.versions import Versions, hash_of

from callyard import ToolError

DAY = 86_400


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


def _versions(folder: Path, clock: Clock) -> Versions:
    versions = Versions(folder, clock=clock)
    folder.mkdir(exist_ok=True)
    return versions


def _commit(versions: Versions, content: bytes, op: str = "edit") -> str:
    with versions.lock():
        parent = versions.head().hash
        digest = versions.write(content)
        versions.move("main", digest)
        versions.record(op, digest, parent=parent, ref="main")
        return digest


def _reason(error: ToolError) -> tuple[str, object]:
    return error.code, error.details.get("reason")


def test_objects_are_named_by_their_sha256_in_folders(tmp_path: Path) -> None:
    versions = _versions(tmp_path / "w", Clock())
    digest = _commit(versions, b"{}")

    assert digest == sha256(b"{}").hexdigest()
    assert (tmp_path / "w" / "objects" / digest[:2] / digest[2:]).read_bytes() == b"{}"
    assert (tmp_path / "w" / "refs" / "heads" / "main").read_text() == f"{digest}\n"


def test_unreachable_objects_go_after_30_days_with_their_history(tmp_path: Path) -> None:
    clock = Clock()
    versions = _versions(tmp_path / "w", clock)
    base = _commit(versions, b"base", "ingest")
    first, second = _commit(versions, b"first"), _commit(versions, b"second")
    with versions.lock():
        versions.create("tags", "kept", _commit_detached(versions, b"tagged"))
    clock.now += 60 * DAY
    with versions.lock():
        versions.move("main", base)
        versions.record("reset", base, parent=second, ref="main")
    clock.now += 29 * DAY
    third = _commit(versions, b"third")
    assert [versions.read(digest) for digest in (first, second)] == [b"first", b"second"]
    clock.now += 2 * DAY
    (tmp_path / "w" / "tmp" / "left-by-a-killed-process").write_bytes(b"")
    fourth = _commit(versions, b"fourth")

    for digest in (first, second):
        with pytest.raises(ToolError) as caught:
            versions.read(digest)
        assert _reason(caught.value) == ("state_error", "damaged_object")
    assert [versions.read(digest) for digest in (base, third, fourth)] == [b"base", b"third", b"fourth"]
    assert versions.read(versions.resolve("kept")) == b"tagged"
    assert list((tmp_path / "w" / "tmp").iterdir()) == []


def _commit_detached(versions: Versions, content: bytes) -> str:
    return versions.write(content)


def test_the_ancestors_of_a_living_version_stay(tmp_path: Path) -> None:
    clock = Clock()
    versions = _versions(tmp_path / "w", clock)
    digests = [_commit(versions, str(number).encode()) for number in range(5)]
    clock.now += 400 * DAY
    with versions.lock():
        removed = versions.collect()

    assert removed == 0
    assert [versions.read(digest) for digest in digests] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_line_that_a_killed_process_began_is_left_out_and_what_it_changed_is_recorded(tmp_path: Path) -> None:
    versions = _versions(tmp_path / "w", Clock())
    first = _commit(versions, b"first")
    unrecorded = versions.write(b"unrecorded")
    versions.move("main", unrecorded)
    with (tmp_path / "w" / "log.jsonl").open("ab") as log:
        log.write(b'{"op":"edit","ha')
    third = _commit(versions, b"third")

    lines = [(line["op"], line["hash"], line["parent"]) for line in versions.log()[::-1]]
    assert lines == [("edit", first, None), ("recovered", unrecorded, first), ("edit", third, unrecorded)]


def test_a_damaged_object_is_reported_and_written_anew(tmp_path: Path) -> None:
    versions = _versions(tmp_path / "w", Clock())
    digest = _commit(versions, b"content")
    path = tmp_path / "w" / "objects" / digest[:2] / digest[2:]
    path.write_bytes(b"cont")
    with pytest.raises(ToolError) as caught:
        versions.read(digest)
    versions.write(b"content")

    assert _reason(caught.value) == ("state_error", "damaged_object")
    assert versions.read(digest) == b"content"


def test_two_contents_with_one_hash_are_a_defect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = _versions(tmp_path / "w", Clock())
    always: Callable[[bytes], str] = lambda _: hash_of(b"")  # noqa: E731 - it needs a type
    monkeypatch.setattr(module, "hash_of", always)
    versions.write(b"one")
    with pytest.raises(ToolError) as caught:
        versions.write(b"two")

    assert caught.value.code == "internal_error"


def test_refs_that_lead_in_a_circle_or_nowhere_are_failures(tmp_path: Path) -> None:
    versions = _versions(tmp_path / "w", Clock())
    heads = tmp_path / "w" / "refs" / "heads"
    _commit(versions, b"x")
    (heads / "one").write_text("ref: refs/heads/two\n")
    (heads / "two").write_text("ref: refs/heads/one\n")
    (heads / "torn").write_text("abc\n")
    for name in ("one", "torn"):
        with pytest.raises(ToolError) as caught:
            versions.resolve(name)
        assert _reason(caught.value) == ("not_found", "unknown_ref")
    for text in ("ref: refs/heads/one", "garbage", "ref: refs/heads/../../x"):
        (tmp_path / "w" / "HEAD").write_text(text)
        assert versions.head().hash is None


def test_one_process_at_a_time_has_the_lock_and_others_give_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    versions, other = _versions(tmp_path / "w", Clock()), _versions(tmp_path / "w", Clock())
    monkeypatch.setattr(module, "_LOCK_S", 0.05)
    with versions.lock(), pytest.raises(ToolError) as caught, other.lock():
        raise AssertionError
    monkeypatch.setattr(module, "_LOCK_S", 60.0)
    inside, order = threading.Event(), list[str]()

    def wait() -> None:
        inside.set()
        with other.lock():
            order.append("second")

    with versions.lock():
        thread = threading.Thread(target=wait)
        thread.start()
        inside.wait()
        order.append("first")
    thread.join()

    assert caught.value.code == "overloaded"
    assert order == ["first", "second"]


def test_a_process_that_waited_for_the_lock_of_a_removed_folder_fails(tmp_path: Path) -> None:
    versions, other = _versions(tmp_path / "w", Clock()), _versions(tmp_path / "w", Clock())
    caught: list[ToolError] = []
    inside = threading.Event()

    def wait() -> None:
        inside.set()
        try:
            with other.lock():
                raise AssertionError
        except ToolError as error:
            caught.append(error)

    with versions.lock():
        thread = threading.Thread(target=wait)
        thread.start()
        inside.wait()
        (tmp_path / "w").rename(tmp_path / "gone")
    thread.join()
    with pytest.raises(ToolError) as after, versions.lock():
        raise AssertionError

    assert [_reason(error) for error in (*caught, after.value)] == [("not_found", "unknown_image")] * 2


def test_a_short_hash_is_enough_if_it_fits_one(tmp_path: Path) -> None:
    versions = _versions(tmp_path / "w", Clock())
    digest = _commit(versions, b"x")
    for text in (digest, digest[:8], digest[:20], "main", "refs/heads/main"):
        assert versions.resolve(text) == digest
    folder = tmp_path / "w" / "objects" / digest[:2]
    (folder / f"{digest[2:8]}{'0' * 56}").write_bytes(os.urandom(4))
    with pytest.raises(ToolError) as caught:
        versions.resolve(digest[:8])

    assert _reason(caught.value) == ("not_found", "unknown_ref")
