"""Exchanges: one request to an upstream and what comes back for it, as events or whole."""

import asyncio
from collections.abc import Mapping
from typing import Final, Literal, Protocol

from toolyard.providers.upstream.http.connection import TEXT, Connection
from toolyard.providers.upstream.link import LinkError
from toolyard.wire.events import Event, Events
from toolyard.wire.messages import Id

__all__ = ["OTHERS", "Exchange", "Owner"]

OTHERS: Final = 256
"""How many messages that want no answer may be on their way to one upstream."""

_OK: Final = 200
_ERROR_BYTES: Final = 64 * 1024
_NOTHING: Final[Mapping[bytes, bytes]] = {}


class Owner(Protocol):
    """Who began an exchange and is told of it."""

    def begun(self, exchange: "Exchange") -> None:
        """Take note that its head is there."""
        ...

    def heard(self, exchange: "Exchange", event: Event) -> None:
        """Take an event."""
        ...

    def ended(self, exchange: "Exchange") -> None:
        """Take note that the response is whole, whatever its status."""
        ...

    def failed(self, exchange: "Exchange", error: LinkError) -> None:
        """Take note that there is none, or only a part."""
        ...


class _Judge(Protocol):
    """Who looks at a response that is not simply good, before its owner does."""

    name: str
    limit: int

    def judge(self, exchange: "Exchange") -> None:
        """Send the request once more, or tell its owner."""
        ...


class Exchange:
    """One request, which may be sent more than once if the upstream wants it elsewhere or with other credentials."""

    # What most exchanges never touch is said here once, because there is an exchange for every message.
    connection: Connection | None = None
    session: str | None = None
    """The session it was last sent in."""
    shown: Mapping[str, str] | None = None
    """The credentials it was last sent with."""
    target: str | None = None
    """Where it is sent, if not where all are."""
    hops = 0
    challenges: tuple[tuple[int, str], ...] = ()
    answered = False
    """Whether the message it was for has come, though the stream goes on."""
    last_event = ""
    retry = 0
    tries = 0
    timer: asyncio.TimerHandle | None = None
    is_over = False
    status = 0
    replied: Mapping[bytes, bytes] = _NOTHING
    events: Events | None = None
    _body: bytes | bytearray = b""
    _size = 0

    def __init__(
        self,
        owner: Owner,
        judge: _Judge,
        *,
        headers: Mapping[str, str],
        message: bytes = b"",
        request_id: Id | None = None,
        method: Literal["POST", "GET", "DELETE"] = "POST",
    ) -> None:
        self.owner = owner
        self.method = method
        self.message = message
        self.request_id = request_id
        self.headers = headers
        self._judge = judge

    def renew(self) -> None:
        """Forget the response, before the request is sent again."""
        self.connection = None
        self.status = 0
        self.replied = _NOTHING
        self.events = None
        self._body = b""
        self._size = 0

    @property
    def name(self) -> str:
        """Return the name of the upstream."""
        return self._judge.name

    @property
    def body(self) -> bytes:
        """Return the body as far as it is there."""
        return bytes(self._body)

    @property
    def text(self) -> str:
        """Return the beginning of the body, for people."""
        return self.body[: 4 * TEXT].decode("utf-8", "replace")[:TEXT].strip()

    def header(self, name: bytes) -> str:
        """Return a header of the response, or an empty text."""
        return self.replied.get(name, b"").decode("latin-1")

    def end(self) -> None:
        """Be done: its timer is stopped."""
        self.is_over = True
        if self.timer is not None:
            self.timer.cancel()

    def begin(self, status: int, headers: Mapping[bytes, bytes]) -> None:
        """Take the head."""
        self.status = status
        self.replied = headers
        if status == _OK and headers.get(b"content-type", b"").startswith(b"text/event-stream"):
            self.events = Events(max_bytes=self._judge.limit)
        self.owner.begun(self)

    def take(self, piece: bytes) -> None:
        """Take a piece of the body."""
        if self.events is None:
            self._gather(piece)
            return
        try:
            for event in self.events.feed(piece):
                self.owner.heard(self, event)
                if self.is_over:
                    return
        except ValueError:
            self._overflow()

    def _gather(self, piece: bytes) -> None:
        if not self._size:
            self._body = piece
        else:
            self._body = self._body if isinstance(self._body, bytearray) else bytearray(self._body)
            self._body += piece
        self._size += len(piece)
        if self._size > (self._judge.limit if self.status == _OK else _ERROR_BYTES):
            self._overflow()

    def finish(self) -> None:
        """Take note that the response is whole."""
        if self.status == _OK:
            self.owner.ended(self)
        else:
            self._judge.judge(self)

    def fail(self, error: LinkError) -> None:
        """Take note that it will never be."""
        self.owner.failed(self, error)

    def _overflow(self) -> None:
        """Stop reading; an error is told by its beginning."""
        if self.connection is not None:
            self.connection.abort()
        if self.status == _OK:
            sentence = f"'{self.name}' answered with more than {self._judge.limit} bytes."
            self.owner.failed(self, LinkError("refused", sentence, sent=True, status=_OK))
        else:
            self._judge.judge(self)
