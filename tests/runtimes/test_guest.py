"""The guest driver outside of any sandbox: as a plain process, as a zygote, and its pipe."""

import asyncio
import os
import socket
import struct
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from backends import NoProcess, answer

from callyard.runtimes.guest import Pipe
from callyard.runtimes.host import Guest, GuestSettings
from callyard.runtimes.runtime import RunLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it uses system calls of Linux")
START = "from callyard.runtimes.guest import start; start()"
ALLOW_ALL = struct.pack("=HBBI", 6, 0, 0, 0x7FFF0000).hex()
"""A filter of system calls with one instruction: return 'allow'."""


def framed(message: Any) -> bytes:
    body = msgspec.json.encode(message)
    return len(body).to_bytes(4, "big") + body


@asynccontextmanager
async def driver(**settings: Any) -> AsyncGenerator[tuple[socket.socket, asyncio.subprocess.Process]]:
    """Start the driver as a plain process and send its settings."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", START, stdin=theirs.fileno(), stdout=theirs.fileno()
        )
    if settings:
        ours.sendall(framed(GuestSettings(**settings)))
    with ours:
        yield ours, process
    await asyncio.wait_for(process.wait(), 60)


async def greeted(connection: socket.socket) -> Guest:
    connection.setblocking(False)  # noqa: FBT003 - the signature of the standard library
    reader, writer = await asyncio.open_connection(sock=connection)

    guest = Guest(reader, writer, NoProcess())
    await guest.greet()
    return guest


async def test_a_driver_applies_its_settings_and_ends_with_the_host() -> None:
    async with driver(limits={"NOFILE": 40, "CORE": 0}, seccomp=ALLOW_ALL, dies_with_parent=True) as (
        connection,
        process,
    ):
        guest = await greeted(connection)
        code = "import resource\n[resource.getrlimit(resource.RLIMIT_NOFILE)[0], open('/proc/self/status').read()]"
        files, status = (await guest.run(code, None, RunLimits(), answer)).value
        await guest.close()
    assert files == 40
    assert "Seccomp:\t2" in status
    assert "NoNewPrivs:\t1" in status
    assert process.returncode == 0


async def test_a_stray_write_of_the_program_is_no_frame() -> None:
    async with driver(dies_with_parent=False) as (connection, _process):
        guest = await greeted(connection)
        result = await guest.run(
            "import os\n[os.write(n, b'stray') for n in (1, 2)] + [os.read(0, 9).decode()]", None, RunLimits(), answer
        )
        await guest.close()
    assert result.value == [5, 5, ""]


async def test_a_driver_whose_host_is_gone_ends() -> None:
    async with driver() as (_connection, process):
        pass
    assert process.returncode == 0


async def test_a_driver_without_its_filter_does_not_run() -> None:
    async with driver(seccomp="00" * 8) as (_connection, process):
        assert await asyncio.wait_for(process.wait(), 60) == 97


async def test_a_zygote_forks_a_guest_for_each_socket() -> None:
    async with driver(zygote=True, limits={"NOFILE": 40}, seccomp=ALLOW_ALL) as (control, process):
        assert await asyncio.to_thread(control.recv, 1) == b"r"
        values: list[object] = []
        for number in range(3):
            ours, theirs = socket.socketpair()
            with theirs:
                socket.send_fds(control, [b"f"], [theirs.fileno()])
            data, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, control, 1, 1)
            guest = await greeted(ours)
            values.append((await guest.run(f"import os\n[{number}, os.getppid()]", None, RunLimits(), answer)).value)
            await guest.close()
            assert data == b"p"
            os.close(descriptors[0])
    assert values == [[number, process.pid] for number in range(3)]
    assert process.returncode == 0


def test_a_pipe_reads_while_it_waits_to_write() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sent = framed({"from": "host", "x": "y" * 2_000_000})
        host = threading.Thread(target=ours.sendall, args=(sent,))  # it does not read before all is sent
        host.start()
        pipe = Pipe(theirs.fileno(), theirs.fileno())
        received = bytearray()

        def drain() -> None:
            host.join(20)
            while len(received) < 2_000_000:
                received.extend(ours.recv(1 << 16))

        reader = threading.Thread(target=drain)
        reader.start()
        pipe.send({"x": "z" * 2_000_000})
        reader.join(20)
        while not (frames := pipe.frames()):
            pipe.read()
    assert frames[0]["from"] == "host"
    assert len(received) >= 2_000_000


def test_a_pipe_keeps_half_a_frame_until_the_rest_comes() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pipe, whole = Pipe(theirs.fileno(), theirs.fileno()), framed({"t": "run"})
        ours.sendall(whole[:6])
        pipe.read()
        assert pipe.frames() == []
        ours.sendall(whole[6:])
        pipe.read()
        assert pipe.frames() == [{"t": "run"}]


def test_a_host_that_closed_its_end_early_is_the_end_of_the_pipe() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"unread")
        ours.close()  # with unread bytes, which resets the connection
        pipe = Pipe(theirs.fileno(), theirs.fileno())
        pipe.read()
        assert pipe.ended
