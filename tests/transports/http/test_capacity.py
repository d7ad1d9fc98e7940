"""How much one client, and all together, may have open."""

import asyncio
import os
import resource
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from callyard.config.settings import Serving
from callyard.transports.auth import ApiKey, ApiKeys, digest_of
from callyard.transports.http.admission import Connections, Throttle

if TYPE_CHECKING:
    from tests.transports.conftest import Gates

KEYS = ApiKeys([ApiKey("ada", digest_of("cy_ada")), ApiKey("ben", digest_of("cy_ben"))])
ADA = {"X-API-Key": "cy_ada"}
BEN = {"X-API-Key": "cy_ben"}
ARGUMENTS = {"a": 1, "b": 2}


async def test_too_many_requests_in_work_are_refused_and_others_wait_for_none(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(requests=3)
    wires = [await server.call("wait") for _ in range(3)]
    await until(lambda: gates.running == 3)

    refused = await server.ask("add", ARGUMENTS)
    health = await server.request("GET", "/healthz")
    gates.go.set()
    answered = [(await wire.reply()).status for wire in wires]

    assert (refused.status, refused.headers["retry-after"], health.status) == (503, "1", 200)
    assert answered == [200] * 3
    assert (await server.ask("add", ARGUMENTS)).data == 3


async def test_one_identity_cannot_take_the_requests_of_another(serve: Any, gates: "Gates", until: Any) -> None:
    server = await serve(authenticator=KEYS, requests=10, requests_per_identity=2)
    for _ in range(2):
        await server.call("wait", headers=ADA)
    await until(lambda: gates.running == 2)

    refused = await server.ask("add", ARGUMENTS, headers=ADA)
    other = await server.ask("add", ARGUMENTS, headers=BEN)

    assert (refused.status, refused.headers["retry-after"], other.data) == (503, "1", 3)


async def test_a_call_of_a_session_counts_until_it_ends_although_its_client_is_gone(
    serve: Any, gates: "Gates", until: Any
) -> None:
    server = await serve(requests=2)
    session = await server.greet()
    for number in (1, 2):
        wire = await session.call("wait", id=number)
        await until(lambda number=number: gates.running == number)
        await wire.close()

    refused = await server.ask("add", ARGUMENTS)
    gates.go.set()
    await until(lambda: gates.running == 0)

    assert refused.status == 503
    async with asyncio.timeout(60):
        while (await server.ask("add", ARGUMENTS)).status == 503:
            pass


async def test_one_identity_has_only_so_many_connections(serve: Any) -> None:
    server = await serve(authenticator=KEYS, connections_per_identity=2)
    wires = [await server.call("add", ARGUMENTS, headers=ADA) for _ in range(2)]
    kept = [(await wire.reply()).status for wire in wires]

    refused = await server.ask("add", ARGUMENTS, headers=ADA)
    other = await server.ask("add", ARGUMENTS, headers=BEN)
    await wires[0].close()

    assert (kept, refused.status, refused.headers["retry-after"], other.status) == ([200, 200], 503, "1", 200)
    async with asyncio.timeout(60):
        while (await server.ask("add", ARGUMENTS, headers=ADA)).status == 503:
            pass


async def test_silent_connections_make_room_for_new_ones(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    server = await serve(connections=4)
    silent = [await server.connect() for _ in range(20)]

    assert (await server.ask("add", ARGUMENTS)).data == 3
    ends = await asyncio.gather(*(wire.ends() for wire in silent[:10]))

    assert all(end.startswith(b"HTTP/1.1 503 ") and b"retry-after: 1\r\n" in end for end in ends)
    assert "connections_refused" in caplog.text


async def test_connections_that_had_a_request_are_kept_and_new_ones_refused(serve: Any) -> None:
    server = await serve(connections=2)
    wires = [await server.call("add", ARGUMENTS) for _ in range(2)]
    assert [(await wire.reply()).status for wire in wires] == [200, 200]

    late = await (await server.connect()).reply()
    await wires[0].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (late.status, late.headers["retry-after"]) == (503, "1")
    assert (await wires[0].reply()).status == 200


async def test_a_stranger_takes_no_room_of_those_who_are_known(serve: Any) -> None:
    server = await serve(authenticator=KEYS, connections=3)
    wire = await server.call("add", ARGUMENTS, headers=ADA)
    assert (await wire.reply()).status == 200

    for _ in range(10):
        assert (await server.ask("add", ARGUMENTS, headers={"X-API-Key": "cy_wrong"})).status == 401
    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert (await wire.reply()).status == 200


def test_running_out_of_descriptors_is_logged_once_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    connections = Connections(Serving())
    connections.check_descriptors(2)
    assert caplog.text == ""

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = [os.dup(2)]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(opened) + 10, hard))
        with suppress(OSError):
            while True:
                opened.append(os.dup(2))
        for _ in range(3):
            connections.check_descriptors(2)
    finally:
        for descriptor in opened:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    assert caplog.text.count("descriptors_exhausted") == 1


def test_a_throttle_counts_what_it_holds_back() -> None:
    throttle = Throttle(0.0)
    held = Throttle(60.0)

    assert [throttle.count(), throttle.count()] == [1, 1]
    assert [held.count(), held.count(), held.count()] == [1, 0, 0]
