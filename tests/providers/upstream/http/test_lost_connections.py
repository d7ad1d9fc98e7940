"""Responses however they are cut, and whatever they are: each ends exactly once, and never with an exception."""

import socket
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from toolyard.providers.upstream.http.client import Connection
from toolyard.providers.upstream.link import LinkError

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
    [b"HTTP/1.1 200 OK\r\n", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n", b"3\r\n", b"{}\n", b"0\r\n"]
)


class Plug:
    """A transport that goes nowhere."""

    def __init__(self, plug: socket.socket) -> None:
        self.plug = plug
        self.is_aborted = False

    def get_extra_info(self, _: str) -> socket.socket:
        """Return the socket."""
        return self.plug

    def write(self, data: bytes) -> None:
        """Do nothing."""

    def is_closing(self) -> bool:
        """Return whether it was closed."""
        return self.is_aborted

    def abort(self) -> None:
        """Close."""
        self.is_aborted = True


class Everything:
    """Where connections are kept, and who takes what comes."""

    name = "there"
    connection: Connection | None = None

    def __init__(self) -> None:
        self.released = 0
        self.ends: list[LinkError | None] = []
        self.body = b""
        self.headers: Mapping[bytes, bytes] = {}

    def keep(self, connection: Connection) -> None:
        """Do nothing."""

    def release(self, connection: Connection) -> None:
        """Count."""
        self.released += 1

    def forget(self, connection: Connection) -> None:
        """Do nothing."""

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Keep the headers."""
        assert status >= 200
        self.headers = headers

    def take(self, piece: bytes) -> None:
        """Keep a piece."""
        self.body += piece

    def finish(self) -> None:
        """Keep that it is whole."""
        self.ends.append(None)

    def fail(self, error: LinkError) -> None:
        """Keep that it is not."""
        self.ends.append(error)


def heard(answer: bytes, cuts: list[int]) -> tuple[Everything, Plug]:
    """Return what comes of an answer that arrives in pieces, after which the server closes."""
    with socket.socket() as ours:
        all_of_it, plug = Everything(), Plug(ours)
        connection = Connection(all_of_it)
        connection.connection_made(cast("Any", plug))
        connection.send(all_of_it, b"")
        places = sorted({0, len(answer), *(cut % (len(answer) + 1) for cut in cuts)})
        for start, end in pairwise(places):
            if not plug.is_aborted:
                connection.data_received(answer[start:end])
        connection.connection_lost(None)
    return all_of_it, plug


@given(st.sampled_from(WHOLE), st.lists(st.integers(0, 400), max_size=20))
def test_an_answer_is_the_same_however_it_is_cut(answer: bytes, cuts: list[int]) -> None:
    took, _ = heard(answer, cuts)

    assert (took.ends, took.body, took.headers[b"x-twice"]) == ([None], BODY, b"a, b")


@given(st.lists(st.one_of(PIECES, st.binary(max_size=20)), max_size=30).map(b"".join), st.lists(st.integers(0, 400), max_size=20))
def test_whatever_comes_ends_exactly_once(answer: bytes, cuts: list[int]) -> None:
    took, _ = heard(answer, cuts)

    assert len(took.ends) == 1


@given(st.sampled_from(WHOLE[:3]), st.sampled_from(WHOLE), st.lists(st.integers(0, 800), max_size=20))
def test_more_than_was_asked_for_is_never_handed_on(answer: bytes, more: bytes, cuts: list[int]) -> None:
    took, plug = heard(answer + more, cuts)

    assert (took.ends, took.body) == ([None], BODY)
    assert plug.is_aborted
