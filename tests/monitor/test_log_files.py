"""The audit log: its lines, its rotation, and a disk that is slow or full."""

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callyard import Call, Caller, Envelope, ToolError, Yard, tool
from callyard.dispatch.outcome import Record
from callyard.monitor import AuditLog
from callyard.monitor import log_files as module


def record(number: int) -> Record:
    return Record(call_id=f"c_{number}", tool="add", started=1000.0, elapsed_ms=1.0)


def lines_of(*paths: Path) -> list[Any]:
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


@tool(operation="query")
async def inner(secret: str) -> str:
    """Answer with the argument."""
    return secret


@tool(operation="destroy")
def wipe() -> None:
    """Wipe everything."""
    raise AssertionError


async def decide(call: Call) -> Envelope | None:
    if call.name == "wipe":
        if call.caller.identity == "eve":
            raise ToolError("permission_denied", "No.")
        return Envelope.ok({"status": "approval_required"})
    return None


async def test_a_line_says_who_called_what_from_where_and_how_it_ended(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "audit.jsonl"
    ada, eve = Caller(identity="ada"), Caller(identity="eve")
    with AuditLog(path) as audit:
        async with Yard("shop", tools=[inner, wipe], sinks=[audit], policies=[decide]) as yard:
            await yard.call("run_tool", {"tool_id": "inner", "args": {"secret": "hunter2"}}, caller=ada)
            await yard.call("wipe", caller=ada)
            await yard.call("wipe", caller=eve)
            await yard.call("inner", {"wrong": "hunter2"}, caller=eve)

    nested, whole, held, denied, wrong = lines_of(path)
    assert (nested["identity"], nested["tool"], nested["outer"], nested["depth"]) == ("ada", "inner", "run_tool", 1)
    assert nested["parent_id"] == whole["call_id"]
    assert (nested["decision"], nested.get("code")) == ("allow", None)
    assert ("outer" in whole, whole["tool"], whole["decision"]) == (False, "run_tool", "allow")
    assert (held["tool"], held["decision"], held.get("code")) == ("wipe", "ask", None)
    assert (denied["identity"], denied["decision"], denied["code"], denied["blame"]) == (
        "eve",
        "deny",
        "permission_denied",
        "policy",
    )
    assert (wrong.get("decision"), wrong["code"]) == (None, "invalid_input")
    assert all(line["elapsed_ms"] >= 0 for line in lines_of(path))
    assert "hunter2" not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0


async def test_a_call_that_ends_while_it_waits_for_a_policy_was_not_allowed(tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def never(call: Call) -> None:
        waiting.set()
        await asyncio.Event().wait()

    path = tmp_path / "audit.jsonl"
    with AuditLog(path) as audit:
        async with Yard(tools=[wipe], sinks=[audit], policies=[never]) as yard:
            call = asyncio.ensure_future(yard.call("wipe"))
            await waiting.wait()
            yard.dispatcher.cancel(next(iter(yard.dispatcher.in_flight)))
            await call

    assert [(line.get("decision"), line["code"]) for line in lines_of(path)] == [(None, "cancelled")]


def test_a_full_file_is_renamed_and_the_oldest_is_deleted(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for start in range(0, 100, 10):
        with AuditLog(path, max_bytes=1000, backups=2) as audit:
            for number in range(start, start + 10):
                audit(record(number))

    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert all(file.stat().st_size <= 1000 for file in files)
    newest_last = [line["call_id"] for line in lines_of(*reversed(files))]
    assert newest_last == [f"c_{number}" for number in range(100 - len(newest_last), 100)]


def test_without_backups_a_full_file_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(3):
        with AuditLog(path, max_bytes=10, backups=0) as audit:
            audit(record(number))

    assert [line["call_id"] for line in lines_of(path)] == ["c_2"]
    assert os.listdir(tmp_path) == ["audit.jsonl"]  # noqa: PTH208 - names are the point


WRITER = """
import sys
from callyard.dispatch.outcome import Record
from callyard.monitor import AuditLog

for start in range(0, 200, 10):
    with AuditLog(sys.argv[1], max_bytes=2000, backups=100) as audit:
        for number in range(start, start + 10):
            audit(Record(call_id=f"{sys.argv[2]}_{number}", tool="add", started=1000.0, elapsed_ms=1.0))
"""


def test_several_processes_lose_no_line_when_they_rotate_one_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in ("a", "b")]  # noqa: S603 - our own
    assert [writer.wait() for writer in writers] == [0, 0]

    files = list(tmp_path.iterdir())
    assert len(files) > 2
    assert {line["call_id"] for line in lines_of(*files)} == {
        f"{name}_{number}" for name in ("a", "b") for number in range(200)
    }


async def test_a_disk_that_does_not_answer_delays_no_call_and_what_does_not_fit_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MAX_WAITING", 2000)
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe that nobody reads is a disk that does not answer
    received: list[bytes] = []

    def read_all() -> None:
        os.set_blocking(reader, True)
        while piece := os.read(reader, 1 << 20):
            received.append(piece)

    reading = threading.Thread(target=read_all)
    try:
        with AuditLog(path) as audit:
            async with Yard(tools=[inner], sinks=[audit]) as yard:
                answers = [await yard.call("inner", {"secret": "x"}) for _ in range(10_000)]
            reading.start()
        reading.join()
    finally:
        os.close(reader)

    lines = [json.loads(line) for line in b"".join(received).splitlines()]
    lost = [line["lost_lines"] for line in lines if "lost_lines" in line]
    assert all(answer.success for answer in answers)
    assert lost
    assert len(lines) - len(lost) + sum(lost) == 10_000


def test_lines_lost_to_a_full_disk_are_logged_once_and_counted_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.01)
    path = tmp_path / "audit.jsonl"
    path.symlink_to("/dev/full")  # the kernel's own full disk
    with caplog.at_level(logging.ERROR), AuditLog(path) as audit:
        audit(record(1))
        _until(lambda: bool(caplog.records))
        path.unlink()
        audit(record(2))

    assert {line.get("call_id", line.get("lost_lines")) for line in lines_of(path)} == {1, "c_2"}
    assert [entry.message.partition(" ")[0] for entry in caplog.records] == ["log_file_lost"]


def _until(is_so: Callable[[], bool]) -> None:
    """Wait for another thread."""
    pause = threading.Event()
    for _ in range(1000):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError


def test_a_file_that_cannot_be_opened_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError), AuditLog(tmp_path / "file" / "audit.jsonl"):  # noqa: PT011 - which one depends on the system
        raise AssertionError
