import asyncio
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest
from wired import RecordingListener, Wired, is_alive, until

from callyard.providers.upstream import process_log, stdio
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.process_log import ProcessLog
from callyard.providers.upstream.stdio import Stderr

CALL = {"name": "echo", "arguments": {"text": "x"}}


async def test_a_program_is_asked_and_answers(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        assert (await wired.ask("initialize"))["result"]["serverInfo"]["name"] == "bad"
        assert (await wired.ask("server/discover"))["result"]["supportedVersions"] == ["2026-07-28"]
        assert await wired.call("echo", text="hello") == "hello"

    assert not wired.listener.ends
    assert not wired.listener.losses


async def test_many_messages_of_one_turn_are_all_answered_one_by_one(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        asked = [wired.send("tools/call", CALL) for _ in range(500)]
        await until(lambda: len(wired.listener.messages) == len(asked))

    assert list(wired.answers) == asked


async def test_a_message_that_comes_byte_by_byte_is_one(tmp_path: Path) -> None:
    async with Wired(tmp_path, "drips") as wired:
        assert await wired.call("echo", text="slowly") == "slowly"


async def test_a_long_message_goes_both_ways(tmp_path: Path) -> None:
    long = "x" * 2_000_000
    async with Wired(tmp_path) as wired:
        assert await wired.call("echo", text=long) == long


async def test_a_message_that_is_too_long_ends_the_link_once(tmp_path: Path) -> None:
    async with Wired(tmp_path, "huge_line", "both", "300000", message_bytes=100_000) as wired:
        await wired.ask("initialize")
        wired.send("tools/call", CALL)
        error = await wired.end()

    assert (error.kind, error.sent) == ("lost", True)
    assert "100000 bytes" in error.message
    assert len(wired.listener.ends) == 1


async def test_output_that_is_no_message_is_skipped_and_logged(tmp_path: Path) -> None:
    async with Wired(tmp_path, "stray_prints") as wired:
        assert await wired.call("echo", text="hello") == "hello"

    assert len(wired.listener.messages) == 1
    for line in ("Welcome to the bad server!", "About to answer 1.", "{not json}"):
        assert f" stdout {line}\n" in wired.logged


async def test_garbage_on_stdout_is_never_delivered(tmp_path: Path) -> None:
    async with Wired(tmp_path, "garbage") as wired:
        wired.send("initialize")
        await until(lambda: "{'jsonrpc': '2.0'}" in wired.logged)
        assert not wired.listener.messages
        assert not wired.listener.ends


async def test_a_message_that_is_nested_too_deeply_is_delivered_so_that_its_request_can_fail(tmp_path: Path) -> None:
    deep = b'{"a":' * 200_000 + b"1" + b"}" * 200_000
    async with Wired(tmp_path, command="cat", args=()) as wired:
        wired.pipe.send(deep, 1, {})
        wired.pipe.send(b' {"b":1}', 2, {})
        await until(lambda: len(wired.listener.messages) > 1)

    assert wired.listener.messages == [deep, b' {"b":1}']


async def test_the_end_of_a_program_is_reported_once_with_its_last_lines(tmp_path: Path) -> None:
    async with Wired(tmp_path, "dies_midcall") as wired:
        await wired.ask("initialize")
        for _ in range(10):
            wired.send("tools/call", CALL)
        error = await wired.end()

    assert (error.kind, error.sent, error.message) == ("lost", True, "'bad' ended with exit code 3.")
    assert error.text == ""
    assert error.private == "RuntimeError: The bad server was told to die."
    assert len(wired.listener.ends) == 1
    assert " stderr RuntimeError: The bad server was told to die.\n" in wired.logged
    assert " callyard 'bad' ended with exit code 3.\n" in wired.logged


async def test_a_program_that_ends_before_its_first_message_is_unavailable(tmp_path: Path) -> None:
    async with Wired(tmp_path, "exits_at_once") as wired:
        error = await wired.end()

    assert (error.kind, error.sent) == ("unavailable", False)
    assert error.private == "There is no key in 'API_KEY'."


async def test_the_end_of_a_killed_program_names_the_signal(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        os.kill(int(await wired.call("pid")), signal.SIGKILL)
        assert (await wired.end()).message == "'bad' was ended by SIGKILL."


async def test_a_signal_without_a_name_is_named_by_its_number(tmp_path: Path) -> None:
    number = signal.SIGRTMIN + 3
    async with Wired(tmp_path) as wired:
        os.kill(int(await wired.call("pid")), number)
        assert (await wired.end()).message == f"'bad' was ended by signal {int(number)}."


async def test_half_a_message_is_skipped(tmp_path: Path) -> None:
    async with Wired(tmp_path, "half_line") as wired:
        await wired.ask("initialize")
        wired.send("tools/call", CALL)
        assert (await wired.end()).message == "'bad' ended with exit code 0."

    assert len(wired.listener.messages) == 1
    assert ' stdout {"jsonrpc"' in wired.logged


async def test_a_whole_message_without_a_line_break_counts_at_the_end(tmp_path: Path) -> None:
    async with Wired(tmp_path, command="printf", args=('{"a":1}',)) as wired:
        await wired.end()

    assert wired.listener.messages == [b'{"a":1}']


async def test_a_program_that_closes_its_output_is_lost_even_if_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_GRACE_SECONDS", 0.01)
    async with Wired(tmp_path, "closes_stdout") as wired:
        assert (await wired.end()).message == "'bad' closed its pipes."


async def test_a_program_that_closes_its_input_is_lost_even_if_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_GRACE_SECONDS", 0.01)
    async with Wired(tmp_path, command="sh", args=("-c", "exec 0<&-; echo '{}'; exec sleep 60")) as wired:
        await until(lambda: bool(wired.listener.messages))
        wired.send("tools/call", CALL)
        assert (await wired.end()).message == "'bad' closed its pipes."


async def test_a_program_is_lost_when_it_ends_even_if_a_descendant_holds_its_pipes(tmp_path: Path) -> None:
    async with Wired(tmp_path, command="sh", args=("-c", "echo '{\"a\":1}'; sleep 60 & exit 4")) as wired:
        assert (await wired.end()).message == "'bad' ended with exit code 4."


async def test_requests_to_an_upstream_that_does_not_read_are_lost_beyond_a_bound(tmp_path: Path) -> None:
    piece = b'{"a":"' + b"x" * 1_000_000 + b'"}'
    async with Wired(tmp_path, "never_reads") as wired:
        for number in range(10):
            wired.pipe.send(piece, number, {})
        wired.pipe.send(piece, None, {})
        assert not wired.listener.losses, "The listener was told while 'send' was running."
        await until(lambda: bool(wired.listener.losses))

    assert [request_id for request_id, _ in wired.listener.losses] == [5, 6, 7, 8, 9]
    error = wired.listener.losses[0][1]
    assert (error.kind, error.sent, error.message) == ("lost", False, "'bad' does not read what it is sent.")


async def test_an_upstream_that_reads_again_is_sent_more(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    piece = b'{"a":"' + b"x" * 1_000_000 + b'"}'
    async with Wired(tmp_path, command="sh", args=("-c", f"read -r _ < {gate}; exec cat")) as wired:
        for number in range(6):
            wired.pipe.send(piece, number, {})
        await until(lambda: bool(wired.listener.losses))
        await asyncio.to_thread(gate.write_text, "go\n")
        await until(lambda: len(wired.listener.messages) == 5)
        await wired.ask("ping")

    assert [request_id for request_id, _ in wired.listener.losses] == [5]


async def test_a_request_after_the_end_is_lost(tmp_path: Path) -> None:
    async with Wired(tmp_path, "exits_at_once") as wired:
        await wired.end()
        request_id = wired.send("tools/call", CALL)
        await until(lambda: bool(wired.listener.losses))

    assert wired.listener.losses[0][0] == request_id
    assert wired.listener.losses[0][1].message == "'bad' has ended."


async def test_a_link_that_was_never_opened_can_be_used_and_closed(tmp_path: Path) -> None:
    wired = Wired(tmp_path)
    wired.send("ping")
    wired.pipe.drop(1)
    wired.pipe.listen()
    await wired.pipe.close()
    assert not wired.log.exists()


async def test_closing_reports_no_end_and_may_be_repeated(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        pid = int(await wired.call("pid"))
        await asyncio.gather(wired.pipe.close(), wired.pipe.close())
        assert not is_alive(pid)

    assert not wired.listener.ends


async def test_closing_continues_when_its_caller_is_cancelled(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        pid = int(await wired.call("pid"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await wired.pipe.close()
        await until(lambda: not is_alive(pid))


async def test_closing_during_the_grace_period_reports_no_end(tmp_path: Path) -> None:
    async with Wired(tmp_path, command="sh", args=("-c", "exec 1>&-; read _")) as wired:
        running = wired.pipe._program  # pyright: ignore[reportPrivateUsage] - that the end has been seen
        assert running is not None
        await until(lambda: running._grace is not None)  # pyright: ignore[reportPrivateUsage] - the same
    assert not wired.listener.ends


async def test_output_is_read_while_the_program_is_closed(tmp_path: Path) -> None:
    script = "echo '{}'; cat >/dev/null; head -c 1000000 /dev/zero; echo bye >&2"
    async with Wired(tmp_path, command="sh", args=("-c", script)) as wired:
        await until(lambda: bool(wired.listener.messages))

    assert " stderr bye\n" in wired.logged
    assert " callyard 'bad' ended with exit code 0.\n" in wired.logged


async def test_the_last_lines_contain_no_secrets(tmp_path: Path) -> None:
    script = 'echo "wrong: $API_KEY in $PLACE" >&2'
    env = {"API_KEY": "sk-123", "PLACE": "here", "EMPTY_TOKEN": ""}
    async with Wired(tmp_path, command="sh", args=("-c", script), env=env) as wired:
        assert (await wired.end()).private == "wrong: *** in here"


async def test_a_flood_on_stderr_neither_stops_the_program_nor_fills_the_disk(tmp_path: Path) -> None:
    async with Wired(tmp_path, "floods_stderr") as wired:
        for _ in range(20):
            assert await wired.call("echo", text="hello") == "hello"
        await until(lambda: "bytes are missing here" in "".join(path.read_text() for path in wired.log.parent.iterdir()))

    assert sum(path.stat().st_size for path in wired.log.parent.iterdir()) < 3 * 1024 * 1024
    assert len(list(wired.log.parent.iterdir())) <= 2


async def test_a_program_that_is_not_there_is_unavailable_and_its_log_says_why(tmp_path: Path) -> None:
    wired = Wired(tmp_path, command="no-such-program")
    with pytest.raises(LinkError) as caught:
        await wired.pipe.open(RecordingListener())
    await wired.pipe.close()

    assert (caught.value.kind, caught.value.sent) == ("unavailable", False)
    assert "There is no program 'no-such-program'" in caught.value.private
    assert "There is no program 'no-such-program'" in wired.log.read_text()


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    source, sink = os.pipe()
    yield source, sink
    for descriptor in (source, sink):
        os.close(descriptor)


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessLog:
    """Return a log that is soon flooded."""
    monkeypatch.setattr(process_log, "_SECOND_BYTES", 1000)
    return ProcessLog(tmp_path / "stderr.log")


async def test_stderr_is_read_after_a_pause_during_a_flood(pipe: tuple[int, int], log: ProcessLog) -> None:
    source, sink = pipe
    stderr = Stderr(source, log, on_end=lambda: None)
    for number in range(3):
        os.write(sink, b"x" * 2000 + b"%d\n" % number)
        await until(lambda number=number: log.tail.endswith(str(number)))
    stderr.close()
    log.close()


async def test_closing_reads_the_rest_of_stderr_during_a_pause(
    pipe: tuple[int, int], log: ProcessLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_FLOOD_PAUSE_SECONDS", 3600)
    source, sink = pipe
    stderr = Stderr(source, log, on_end=lambda: None)
    os.write(sink, b"x" * 2000)
    await until(lambda: log.is_flooded)
    os.write(sink, b"\nthe last words")
    stderr.close()
    os.write(sink, b"too late")
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    log.close()

    assert log.tail.endswith("\nthe last words")
