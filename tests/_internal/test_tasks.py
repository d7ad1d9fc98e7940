import asyncio
import gc
import socket
import warnings
from typing import Any

import pytest

from callyard._internal.tasks import close_server, task_creator


async def note(names: list[str]) -> None:
    task = asyncio.current_task()
    assert task is not None
    names.append(task.get_name())


async def test_tasks_run_in_their_loop_under_their_name() -> None:
    names: list[str] = []
    await task_creator(asyncio.get_running_loop(), "a request")(note(names))

    assert names == ["a request"]


async def test_a_task_factory_of_the_loop_is_used() -> None:
    made: list[str] = []
    loop = asyncio.get_running_loop()

    def factory(loop: asyncio.AbstractEventLoop, coroutine: Any, **options: Any) -> "asyncio.Task[Any]":
        made.append(coroutine.__qualname__)
        return asyncio.Task(coroutine, loop=loop, **options)

    names: list[str] = []
    loop.set_task_factory(factory)
    try:
        await task_creator(loop, "a request")(note(names))
    finally:
        loop.set_task_factory(None)

    assert (made, names) == (["note"], ["a request"])


@pytest.mark.parametrize("turns", range(6))
async def test_a_server_that_closes_while_it_accepts_leaves_no_socket_open(turns: int) -> None:
    accepted: list[asyncio.BaseTransport] = []

    class Connection(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

    gc.collect()
    server = await asyncio.get_running_loop().create_server(Connection, "127.0.0.1", 0)
    with warnings.catch_warnings(record=True) as caught, socket.create_connection(server.sockets[0].getsockname()):
        warnings.simplefilter("always")
        for _ in range(turns):
            await asyncio.sleep(0)
        await close_server(server)
        for transport in accepted:
            transport.close()
        for _ in range(2):
            await asyncio.sleep(0)  # the transports are closed
        gc.collect()

    assert [str(warning.message) for warning in caught] == []
