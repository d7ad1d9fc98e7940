"""Any bytes as a response, cut anywhere: each ends exactly once, and never with an exception."""

import socket
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raw_servers import until

from callyard.providers.upstream import intake
from callyard.providers.upstream.http.client import Connection
from callyard.providers.upstream.intake import Share
from callyard.providers.upstream.link import LinkError

BODY = b'{"jsonrpc":"2.0","id":1,"result":{}}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nX-Twice: a\r\nX-Twice: b\r\n"
WHOLE = [
    HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    HEAD
    + b"Transfer-Encoding: chunked\r\n\r\n5\r\n"
    + BODY[:5]
    + b"\r\n%x;x=y\r\n" % len(BODY[5:])
    + BODY[5:]
    + b"\r\n0\r\nX-After: z\r\n\r\n",
    HEAD + b"Connection: close\r\n\r\n" + BODY,
]
PIECES = st.sampled_from(
    [
        b"HTTP/1.1 200 OK\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"3\r\n",
        b"{}\n",
        b"0\r\n",
    ]
)


class FakeTransport:
    """A transport that sends nothing."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.is_aborted = False

    def get_extra_info(self, _: str) -> socket.socket:
        """Return the socket."""
        return self.socket

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_aborted

    def abort(self) -> None:
        """Close."""
        self.is_aborted = True


class FakePool:
    """A pool and a response handler in one, which records what it gets."""

    name = "there"
    connection: Connection | None = None

    def __init__(self) -> None:
        self.share = Share()
        self.released = 0
        self.ends: list[LinkError | None] = []
        self.body = b""
        self.headers: Mapping[bytes, bytes] = {}

    def add(self, connection: Connection) -> None:
        """Do nothing."""

    def release(self, connection: Connection) -> None:
        """Count."""
        self.released += 1

    def remove(self, connection: Connection) -> None:
        """Do nothing."""

    def on_head(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Record the headers."""
        assert status >= 200
        self.headers = headers

    def on_body(self, piece: bytes) -> None:
        """Record a piece."""
        self.body += piece

    def on_complete(self) -> None:
        """Record a complete response."""
        self.ends.append(None)

    def on_error(self, error: LinkError) -> None:
        """Record a failure."""
        self.ends.append(error)


def receive(answer: bytes, cuts: list[int]) -> tuple[FakePool, FakeTransport]:
    """Return the outcome of a response that arrives in pieces, after which the server closes."""
    with socket.socket() as ours:
        pool, transport = FakePool(), FakeTransport(ours)
        connection = Connection(cast("Any", pool))
        connection.connection_made(cast("Any", transport))
        connection.send(pool, b"")
        places = sorted({0, len(answer), *(cut % (len(answer) + 1) for cut in cuts)})
        for start, end in pairwise(places):
            if not transport.is_aborted:
                connection.data_received(answer[start:end])
        connection.connection_lost(None)
    return pool, transport


@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 400), max_size=20))
def test_a_response_does_not_depend_on_how_it_is_cut(answer: bytes, cuts: list[int]) -> None:
    pool, _ = receive(answer, cuts)

    assert (pool.ends, pool.body, pool.headers[b"x-twice"]) == ([None], BODY, b"a, b")


@given(
    st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=30).map(b"".join),
    st.lists(st.integers(0, 400), max_size=20),
)
def test_any_bytes_end_exactly_once(answer: bytes, cuts: list[int]) -> None:
    pool, _ = receive(answer, cuts)

    assert len(pool.ends) == 1


@given(st.sampled_from(WHOLE[:3]), st.sampled_from(WHOLE), st.lists(st.integers(0, 800), max_size=20))
def test_a_second_response_is_never_delivered(answer: bytes, more: bytes, cuts: list[int]) -> None:
    pool, transport = receive(answer + more, cuts)

    assert (pool.ends, pool.body) == ([None], BODY)
    assert transport.is_aborted


class PausedTransport(FakeTransport):
    """A transport that notes whether it is read."""

    is_paused = False

    def pause_reading(self) -> None:
        """Read no more."""
        self.is_paused = True

    def resume_reading(self) -> None:
        """Read again."""
        self.is_paused = False


async def test_a_connection_that_brings_more_than_its_share_is_read_later() -> None:
    share_of = Clock()
    with socket.socket() as ours:
        pool, transport = FakePool(), PausedTransport(ours)
        pool.share = Share(share_of)
        connection = Connection(cast("Any", pool))
        connection.connection_made(cast("Any", transport))
        connection.send(pool, b"")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
        connection.data_received(head)
        assert not transport.is_paused

        pool.share.charge(0.0105)  # 0.01 s are free, and the rest is a fiftieth of 0.025 s
        connection.data_received(b"data: x\n\n")
        assert transport.is_paused
        share_of.now += 60
        await until(lambda: not transport.is_paused)
        connection.data_received(b"data: y\n\n")
        assert not transport.is_paused
        assert pool.body == b"data: x\n\ndata: y\n\n"

        pool.share.charge(3600)
        connection.data_received(b"data: z\n\n")
        connection.abort()
        assert transport.is_aborted


async def test_data_before_the_end_of_a_connection_are_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_FIRST_BYTES", 10)
    with socket.socket() as ours:
        pool, transport = FakePool(), PausedTransport(ours)
        connection = Connection(cast("Any", pool))
        connection.connection_made(cast("Any", transport))
        connection.send(pool, b"")
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello")
        assert transport.is_paused
        connection.connection_lost(None)

    assert pool.body == b"hello"
    assert pool.ends == [None]


class Clock:
    """A clock that a test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now
