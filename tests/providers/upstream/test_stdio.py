import asyncio
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from wired import SERVER, RecordingListener, Wired, children, descriptors, is_alive, until

from callyard._internal import programs
from callyard.providers.upstream import process_log, stdio
from callyard.providers.upstream.intake import Share
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.process_log import ProcessLog
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.stdio import Stderr, StrayLines, environment_of
from callyard.transports import fastest_loop

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


async def test_a_program_that_closes_its_output_is_lost_even_if_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stdio, "_GRACE_SECONDS", 0.01)
    async with Wired(tmp_path, "closes_stdout") as wired:
        assert (await wired.end()).message == "'bad' closed its pipes."


async def test_a_program_that_closes_its_input_is_lost_even_if_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        await until(lambda: wired.pipe._grace is not None)  # pyright: ignore[reportPrivateUsage] - that the end has been seen
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
        await until(
            lambda: "bytes are missing here" in "".join(path.read_text() for path in wired.log.parent.iterdir())
        )

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


async def test_stderr_is_read_on_during_a_flood(pipe: tuple[int, int], log: ProcessLog) -> None:
    source, sink = pipe
    stderr = Stderr(source, log, Share(), on_end=lambda: None)
    for number in range(3):
        os.write(sink, b"x" * 2000 + b"%d\n" % number)
        await until(lambda number=number: log.tail.endswith(str(number)))
    stderr.close()
    log.close()


async def test_closing_reads_the_rest_of_stderr_during_a_pause(pipe: tuple[int, int], log: ProcessLog) -> None:
    share = Share()
    share.charge(3600)
    source, sink = pipe
    stderr = Stderr(source, log, share, on_end=lambda: None)
    os.write(sink, b"x" * 2000)
    await until(lambda: log.is_flooded)
    os.write(sink, b"\nthe last words")
    stderr.close()
    os.write(sink, b"too late")
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    log.close()

    assert log.tail.endswith("\nthe last words")


@pytest.mark.parametrize("line", ["y", "", '{"jsonrpc": "1.0"}', "[]"])
async def test_a_program_that_floods_stdout_with_lines_that_are_no_messages_is_ended(tmp_path: Path, line: str) -> None:
    async with Wired(tmp_path, command="yes", args=(line,)) as wired:
        wired.listener.invalid = True
        wired.send("initialize")
        error = await wired.end()
        assert "1000 lines" in error.message
        assert len(wired.listener.ends) == 1
        pid = wired.pipe.pid

    assert pid is not None
    assert not is_alive(pid)


async def test_a_thousand_stray_lines_end_a_program_only_in_a_row_and_within_ten_seconds() -> None:
    now = [0.0]
    quick, slow, mixed = (StrayLines(lambda: now[0]) for _ in range(3))
    assert [quick.add() for _ in range(1000)].index(True) == 999
    for _ in range(5000):
        now[0] += 0.011
        assert not slow.add()
    for _ in range(10):
        assert not any(mixed.add() for _ in range(999))
        mixed.end_row()


CHILD_SUBREAPER = 36
CYCLES = 200


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give programs little time to end by themselves."""
    monkeypatch.setattr(programs, "_EOF_SECONDS", 0.05)
    monkeypatch.setattr(programs, "_TERM_SECONDS", 0.05)


@pytest.fixture
def first_process() -> Generator[None]:
    """Be the parent of whatever loses its own, as the first process of a container is."""
    libc = ctypes.CDLL(None)
    libc.prctl(CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(CHILD_SUBREAPER, 0, 0, 0, 0)


def test_a_program_inherits_few_variables_and_gets_all_of_its_own() -> None:
    ours = {
        "PATH": "/bin",
        "HOME": "/h",
        "LC_ALL": "C",
        "XDG_CACHE_HOME": "/c",
        "CALLYARD_API_KEYS": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "OPENAI_API_KEY": "secret",
        "PYTHONPATH": "/ours",
    }
    settings = UpstreamSettings(command="x", env={"HOME": "/theirs", "TOKEN": "t"})

    assert environment_of(settings, ours) == {
        "PATH": "/bin",
        "HOME": "/theirs",
        "LC_ALL": "C",
        "XDG_CACHE_HOME": "/c",
        "TOKEN": "t",
    }


async def test_a_program_does_not_inherit_our_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("SOME_API_KEY", "secret")
    async with Wired(tmp_path, env={"GIVEN": "1"}) as wired:
        names = (await wired.call("environment")).split()

    assert {"GIVEN", "PATH"} <= set(names)
    assert not {"CALLYARD_STATE_DIR", "SOME_API_KEY"} & set(names)


async def test_a_program_runs_in_its_folder_and_is_found_from_there(tmp_path: Path) -> None:
    program = tmp_path / "where"
    program.write_text('#!/bin/sh\necho "{\\"in\\":\\"$PWD\\"}"\n')
    program.chmod(0o755)
    async with Wired(tmp_path, command="./where", args=(), cwd=str(tmp_path)) as wired:
        await until(lambda: bool(wired.listener.messages))

    assert wired.listener.messages == [f'{{"in":"{tmp_path}"}}'.encode()]


async def test_a_program_is_searched_in_its_own_path(tmp_path: Path) -> None:
    program = tmp_path / "only-here"
    program.write_text("#!/bin/sh\necho '{}'\n")
    program.chmod(0o755)
    path = f"/nowhere:{tmp_path}:/bin"
    async with Wired(tmp_path, command="only-here", args=(), env={"PATH": path}) as wired:
        await until(lambda: bool(wired.listener.messages))


async def test_a_tilde_is_expanded_in_programs_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "cat").symlink_to("/bin/cat")
    async with Wired(tmp_path, command="~/cat", args=(), cwd="~") as wired:
        await wired.ask("ping")


async def refused(tmp_path: Path, **settings: object) -> str:
    with pytest.raises(LinkError) as caught:
        await Wired(tmp_path, **settings).pipe.open(RecordingListener())
    assert caught.value.kind == "unavailable"
    assert caught.value.message == "'bad' cannot be started."
    return caught.value.private


async def test_a_program_that_cannot_be_run_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    others = set(children())
    (tmp_path / "text").write_text("not a program")
    (tmp_path / "broken").write_bytes(b"\x00\x01 not a program")
    (tmp_path / "broken").chmod(0o755)

    assert await refused(tmp_path, command="npxx") == "There is no program 'npxx'. Install it, or give its full path."
    assert "There is no program" in await refused(tmp_path, command=str(tmp_path / "text"))
    assert "There is no program" in await refused(tmp_path, command=str(tmp_path))
    assert (
        await refused(tmp_path, command="cat", cwd="/no/such/folder")
        == "There is no folder '/no/such/folder' to run it in."
    )
    assert "cannot be run: Exec format error." in await refused(tmp_path, command=str(tmp_path / "broken"))
    assert "cannot be run: embedded null byte." in await refused(tmp_path, command="cat", args=("\0",))
    assert set(children()) <= others


@pytest.mark.usefixtures("impatient")
async def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    async with Wired(tmp_path, "ignores_sigterm") as wired:
        pid = int(await wired.call("pid"))

    assert not is_alive(pid)
    assert " callyard 'bad' was ended by SIGKILL.\n" in wired.logged


@pytest.mark.usefixtures("impatient")
async def test_a_program_gets_sigterm_before_sigkill(tmp_path: Path) -> None:
    async with Wired(tmp_path, "never_reads") as wired:
        wired.send("ping")

    assert " callyard 'bad' was ended by SIGTERM.\n" in wired.logged


@pytest.mark.usefixtures("impatient", "first_process")
async def test_descendants_end_with_their_program_and_are_reaped(tmp_path: Path) -> None:
    others = set(children())
    async with Wired(tmp_path, "spawns_grandchild") as wired:
        grandchild = int(await wired.call("grandchild"))
        assert is_alive(grandchild)

    assert not is_alive(grandchild)
    assert set(children()) <= others


@pytest.mark.usefixtures("impatient")
async def test_a_server_behind_a_shell_ends_with_it(tmp_path: Path) -> None:
    script = f"{sys.executable} -I -S {SERVER} ignores_sigterm; true"
    async with Wired(tmp_path, command="sh", args=("-c", script)) as wired:
        pid = int(await wired.call("pid"))

    assert not is_alive(pid)


OURS = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from wired import Wired
async def main():
    async with Wired(Path(sys.argv[2]), sys.argv[3]) as wired:
        print(await wired.call("pid"), await wired.call("grandchild"), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.parametrize("mode", ["well", "ignores_sigterm", "spawns_grandchild"])
def test_when_this_process_is_killed_nothing_is_left(tmp_path: Path, mode: str) -> None:
    command = [sys.executable, "-c", OURS, str(Path(__file__).parent), str(tmp_path), mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as ours:  # noqa: S603 - our own code
        assert ours.stdout is not None
        pids = [int(word) for word in ours.stdout.readline().split() if word != b"0"]
        guards = children(ours.pid)
        assert all(is_alive(pid) for pid in pids)
        ours.kill()
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in [*pids, *guards])))


def test_a_loop_that_ends_while_a_program_is_closed_ends_it_at_once(tmp_path: Path) -> None:
    wired = Wired(tmp_path, "ignores_sigterm")

    async def leave() -> int:
        await wired.pipe.open(wired.listener)
        pid = int(await wired.call("pid"))
        waiting = asyncio.ensure_future(wired.pipe.close())
        for _ in range(10):
            await asyncio.sleep(0)  # a turn of the loop, not a wait
        waiting.cancel()
        return pid

    assert not is_alive(asyncio.run(leave()))


async def test_an_interrupted_close_may_be_repeated(tmp_path: Path) -> None:
    async with Wired(tmp_path, "ignores_sigterm") as wired:
        pid = int(await wired.call("pid"))
        waiting = asyncio.ensure_future(wired.pipe.close())
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        closing = wired.pipe._closing  # pyright: ignore[reportPrivateUsage] - cancelled as a loop does that ends
        assert closing is not None
        await asyncio.sleep(0)  # the same
        closing.cancel()
        await waiting
        assert not is_alive(pid)


def test_it_works_on_uvloop(tmp_path: Path) -> None:
    async def use() -> None:
        before = descriptors()
        for mode in ("well", "dies_midcall"):
            async with Wired(tmp_path, mode) as wired:
                await wired.ask("initialize")
                wired.send("tools/call", {"name": "die"})
                assert (await wired.end()).message == "'bad' ended with exit code 3."
        assert descriptors() <= before

    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(use())


async def test_a_program_that_is_killed_is_reported_with_its_signal(tmp_path: Path) -> None:
    async with Wired(tmp_path) as wired:
        os.kill(int(await wired.call("pid")), signal.SIGKILL)
        assert (await wired.end()).message == "'bad' was ended by SIGKILL."


async def test_without_a_shell_programs_run_without_a_guard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(programs, "_SHELL", "/no/such/shell")
    async with Wired(tmp_path) as wired:
        assert await wired.call("echo", text="hello") == "hello"

    assert "keeper_missing" in caplog.text


def is_guard(pid: int) -> bool:
    return b"callyard-guard" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.usefixtures("first_process")
async def test_after_many_starts_and_ends_nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stdio, "_GRACE_SECONDS", 0.01)
    commands = (("cat", ()), ("sh", ("-c", "sleep 60 >/dev/null 2>&1 & exec cat")), ("sh", ("-c", "cat; true")))
    others, opened, tasks = set(children()), descriptors(), len(asyncio.all_tasks())
    for cycle in range(CYCLES):
        command, args = commands[cycle % 3]
        async with Wired(tmp_path, command=command, args=args) as wired:
            await wired.ask("ping")
            if cycle % 2:
                os.kill(next(pid for pid in children() if pid not in others and not is_guard(pid)), signal.SIGKILL)
                await wired.end()

    assert descriptors() <= opened
    assert len(asyncio.all_tasks()) == tasks
    assert set(children()) <= others
