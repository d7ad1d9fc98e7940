"""Reloading: a server that is started anew when a file changes, and never outlives the program that watches."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from toolyard.launch.reload import beginning_of, stop

Write = Callable[..., Path]

PROGRAM = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may have it ignored
from toolyard.cli import main
sys.exit(main())
"""
APP = """
from toolyard import Yard
from toolyard.launch.serve import serve
yard = Yard("first")
if __name__ == "__main__":
    serve(yard, reload=True, transport="http", port=0)
"""


@contextmanager
def watched(*program: str) -> "Generator[subprocess.Popen[str]]":
    command = [sys.executable, *(program or ("-c", PROGRAM, "serve", "app.py", "--transport", "http", "--port", "0", "--reload"))]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        try:
            yield process
        finally:
            process.terminate()


def next_line(process: "subprocess.Popen[str]", *, like: str) -> str:
    """Return the next line that holds the text."""
    assert process.stderr is not None
    said: list[str] = []
    for line in process.stderr:
        said.append(line)
        if like in line:
            return line
    raise AssertionError("".join(said))


def is_listening(line: str) -> bool:
    address = urlsplit(line.rpartition("address=")[2].strip())
    with socket.socket() as client:
        return client.connect_ex((address.hostname, address.port)) == 0


@pytest.mark.parametrize("program", [(), ("app.py",)], ids=["command", "program"])
def test_a_change_starts_the_server_anew(program: tuple[str, ...], write: Write) -> None:
    write(APP)
    with watched(*program) as process:
        first = next_line(process, like="serving yard=first")
        write(APP.replace("first", "second"))
        assert "'app.py' changed" in next_line(process, like="changed")
        second = next_line(process, like="serving yard=second")
        assert first.rpartition("address=")[2] == second.rpartition("address=")[2]
        assert is_listening(second)
        process.terminate()
        process.wait()

        assert process.returncode == 143
        assert not is_listening(second)


def test_an_address_that_is_not_this_machines_is_told_by_the_server(write: Write) -> None:
    write(APP)
    with watched("-c", PROGRAM, "serve", "app.py", "--transport", "http", "--port", "0", "--host", "192.0.2.1", "--reload") as process:
        assert "'192.0.2.1' can be reached from other machines" in next_line(process, like="toolyard: ")


def test_files_that_come_and_go_beside_the_yard_count_and_others_do_not(write: Write) -> None:
    write(APP)
    for place in (".hidden", "__pycache__", "environment", "inside"):
        Path(place).mkdir()
    Path("environment/pyvenv.cfg").touch()
    Path("broken.py").symlink_to("nowhere.py")
    with watched() as process:
        next_line(process, like="serving yard=first")
        for path in ("note.txt", ".hidden/a.py", "__pycache__/a.py", "environment/a.py"):
            Path(path).touch()
        Path("inside/settings.toml").touch()
        assert "'inside/settings.toml' changed" in next_line(process, like="changed")
        next_line(process, like="serving yard=first")
        Path("inside/settings.toml").unlink()
        assert "'inside/settings.toml' changed" in next_line(process, like="changed")


def test_a_mistake_is_told_and_mending_it_starts_the_server(write: Write) -> None:
    write("yard = (")
    with watched() as process:
        assert "SyntaxError" in next_line(process, like="cannot be loaded")
        assert "status 2" in next_line(process, like="ended")
        write(APP)
        next_line(process, like="serving yard=first")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_the_server_ends_with_the_program_that_watches(number: signal.Signals, status: int, write: Write) -> None:
    write(APP)
    with watched() as process:
        line = next_line(process, like="serving yard=first")
        process.send_signal(number)
        process.communicate()  # the server has the same stderr, so this ends when both have

        assert process.returncode == status
        assert not is_listening(line)


async def test_a_server_that_does_not_end_is_ended() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); signal.pause()"
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", deaf, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    await server.stdout.readline()

    await stop(server, 0)
    await stop(server, 0)

    assert server.returncode == -signal.SIGKILL


def test_how_a_server_was_started_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TOOLYARD_RELOAD", "again")

    assert (beginning_of(), beginning_of()) == ("again", "")
    assert "_TOOLYARD_RELOAD" not in os.environ
