"""Programs that end with us: with the context that started them, and with this process however that ends."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from callyard._internal.programs import keep_program

ECHO = [sys.executable, "-u", "-c", "import sys\nfor line in sys.stdin: print(line.upper(), end='')"]
KEEPS = """
import asyncio, sys
from callyard._internal.programs import keep_program

async def main():
    async with keep_program(["sleep", "600"]) as program:
        print(program.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def gone(pid: int) -> bool:
    """Return whether a process ends within a minute."""
    for _ in range(600):
        try:
            os.kill(pid, 0)
            if "\nState:\tZ" in await asyncio.to_thread(Path(f"/proc/{pid}/status").read_text):
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        await asyncio.sleep(0.1)
    return False


async def test_a_kept_program_reads_and_answers_and_ends_with_its_context() -> None:
    async with keep_program(ECHO) as program:
        program.stdin.write(b"hello\n")
        await program.stdin.drain()
        answer = await program.stdout.readline()

    assert answer == b"HELLO\n"
    assert program.exit_code is not None
    assert await gone(program.pid)


async def test_a_kept_program_that_ends_by_itself_has_an_exit_code_and_what_it_wrote_to_stderr() -> None:
    script = "import sys; sys.stderr.write('no disk'); sys.exit(3)"
    async with keep_program([sys.executable, "-c", script]) as program:
        code = await program.wait()
        await program.stdout.read()
        for _ in range(600):
            if program.errors:
                break
            await asyncio.sleep(0.1)

    assert (code, program.exit_code) == (3, 3)
    assert program.errors == b"no disk"


async def test_a_kept_program_ends_although_it_ignores_the_end_of_its_input_and_its_task_is_cancelled() -> None:
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with keep_program(["sleep", "600"]) as program:
            started.set_result(program.pid)
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    pid = await started
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert await gone(pid)


async def test_a_kept_program_ends_with_this_process_also_if_it_is_killed() -> None:
    parent = subprocess.Popen([sys.executable, "-c", KEEPS], stdout=subprocess.PIPE)  # noqa: ASYNC220, S603 - our own program
    assert parent.stdout is not None
    pid = int(await asyncio.to_thread(parent.stdout.readline))
    parent.send_signal(signal.SIGKILL)
    parent.communicate()

    assert await gone(pid)


async def test_a_kept_program_gets_only_the_environment_that_every_program_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OUR_TOKEN", "hunter2")
    script = "import os; print(os.environ.get('OUR_TOKEN'), os.environ['OWN'], os.getcwd())"
    async with keep_program([sys.executable, "-c", script], env={"OWN": "yes"}, cwd=tmp_path) as program:
        output = await program.stdout.read()

    assert output.decode().split() == ["None", "yes", str(tmp_path)]


async def test_a_program_that_does_not_exist_cannot_be_kept() -> None:
    with pytest.raises(FileNotFoundError):
        async with keep_program(["no-such-program-here"]):
            raise AssertionError
