"""By which name a server may be addressed, and which pages may use it."""

from typing import Any

import pytest

from toolyard import Serving
from toolyard.transports.auth import ApiKey, ApiKeys, digest_of
from toolyard.transports.http.host_check import Gate, RefusedError

ARGUMENTS = {"a": 1, "b": 2}


async def statuses(server: Any, header: str, *values: str | None, **headers: str) -> dict[str | None, int]:
    """Return the status for each value of a header."""
    return {value: (await server.ask("add", ARGUMENTS, headers={**headers, header: value})).status for value in values}


async def test_a_server_on_this_machine_is_known_by_this_machines_names(serve: Any) -> None:
    server = await serve()
    known = ("localhost", "LOCALHOST:1", "127.0.0.1", f"127.0.0.1:{server.port}", "[::1]", "[::1]:80")

    assert await statuses(server, "Host", *known) == dict.fromkeys(known, 200)


async def test_a_server_on_this_machine_is_not_known_by_another_name(serve: Any) -> None:
    server = await serve()
    unknown = (
        "evil.example",
        "localhost.evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost:x@evil.example",
        "localhost:80:80",
        "[::1]evil.example",
        "[::1]:x",
        "[::2]",
        "[",
        "",
        "0.0.0.0",  # noqa: S104 - a name that is asked for
    )

    assert await statuses(server, "Host", *unknown) == dict.fromkeys(unknown, 421)
    assert not server.records


async def test_a_request_without_a_host_or_with_two_is_refused(serve: Any) -> None:
    server = await serve()

    for hosts in ("", "Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nHost: localhost\r\n"):
        wire = await server.connect()
        await wire.write(f"GET /mcp HTTP/1.1\r\n{hosts}Accept: text/event-stream\r\n\r\n".encode())
        reply = await wire.reply()
        assert (hosts, reply.status) in {(hosts, 400), (hosts, 421)}
        assert b"Session" not in reply.body


async def test_names_can_be_allowed_with_and_without_a_port(serve: Any) -> None:
    server = await serve(allowed_hosts=["yard.example", "other.example:8080", "[2001:db8::1]"])
    good = ("yard.example", "Yard.Example:9", "other.example:8080", "[2001:db8::1]:5", "localhost")
    bad = ("other.example", "other.example:81", "evil.example", "[2001:db8::2]")

    assert await statuses(server, "Host", *good) == dict.fromkeys(good, 200)
    assert await statuses(server, "Host", *bad) == dict.fromkeys(bad, 421)


async def test_every_name_can_be_allowed(serve: Any) -> None:
    server = await serve(allowed_hosts=["*"])

    assert await statuses(server, "Host", "anything.example:5") == {"anything.example:5": 200}


async def test_a_page_of_this_machine_may_use_it_and_another_may_not(serve: Any) -> None:
    server = await serve()
    good = (None, "http://localhost:3000", "http://127.0.0.1", "https://localhost", "http://[::1]:5")
    bad = (
        "http://evil.example",
        "http://localhost.evil.example",
        "null",
        "",
        "file://",
        "http://[::1",
        "http://localhost:x@evil.example",
        "http://",
        "evil",
    )

    assert await statuses(server, "Origin", *good) == dict.fromkeys(good, 200)
    assert await statuses(server, "Origin", *bad) == dict.fromkeys(bad, 403)
    assert len(server.records) == len(good)


async def test_pages_can_be_allowed(serve: Any) -> None:
    server = await serve(allowed_origins=["https://App.example/", "http://app.example:81"], allowed_hosts=["host.example"])
    good = ("https://app.example", "https://APP.example", "http://app.example:81", "https://host.example")
    bad = ("http://app.example", "https://app.example:444", "https://app.example.evil")

    assert await statuses(server, "Origin", *good) == dict.fromkeys(good, 200)
    assert await statuses(server, "Origin", *bad) == dict.fromkeys(bad, 403)


async def test_every_page_can_be_allowed(serve: Any) -> None:
    server = await serve(allowed_origins=["*"])

    assert await statuses(server, "Origin", "https://evil.example", "null") == {"https://evil.example": 200, "null": 200}


async def test_what_was_refused_once_is_refused_again_and_what_passed_passes_again(serve: Any) -> None:
    server = await serve()

    for _ in range(2):
        assert await statuses(server, "Origin", "http://evil.example", "http://localhost") == {
            "http://evil.example": 403,
            "http://localhost": 200,
        }


async def test_a_server_for_others_is_known_by_any_name_unless_some_are_allowed(serve: Any) -> None:
    guard = ApiKeys([ApiKey("ci", digest_of("ty_k"))])
    free = await serve(guard=guard, host="0.0.0.0")  # noqa: S104 - that is the point
    strict = await serve(guard=guard, host="0.0.0.0", allowed_hosts=["yard.example"])  # noqa: S104 - it is guarded, and ends with the test

    assert await statuses(free, "Host", "any.example", "10.0.0.1:5", **{"X-API-Key": "ty_k"}) == {"any.example": 200, "10.0.0.1:5": 200}
    assert await statuses(strict, "Host", "any.example", "yard.example", **{"X-API-Key": "ty_k"}) == {
        "any.example": 421,
        "yard.example": 200,
    }


async def test_a_page_may_use_the_public_server_it_came_from(serve: Any) -> None:
    server = await serve(guard=ApiKeys([ApiKey("ci", digest_of("ty_k"))]), host="0.0.0.0")  # noqa: S104 - that is the point
    headers = {"Host": "yard.example:8", "X-API-Key": "ty_k"}

    assert await statuses(server, "Origin", "https://yard.example:8", "https://evil.example", **headers) == {
        "https://yard.example:8": 200,
        "https://evil.example": 403,
    }


def test_a_gate_remembers_only_so_many_names() -> None:
    gate = Gate(Serving(allowed_hosts=("*",)), None, host="127.0.0.1")

    for number in range(3000):
        gate.check({b"host": b"h%d" % number})

    assert len(gate._seen) == 1000  # pyright: ignore[reportPrivateUsage] - what it keeps cannot be seen from outside
    with pytest.raises(RefusedError):
        gate.check({b"host": b"h5000", b"origin": b"http://evil.example"})
