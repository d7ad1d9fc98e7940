"""Links: the transport to an upstream as an interface of bytes, for stdio, HTTP and SSE alike.

A link does not read messages. Its listener decodes them and matches responses with requests.
"""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

from callyard.wire.messages import Id

__all__ = [
    "NO_CREDENTIALS",
    "Credentials",
    "Link",
    "LinkError",
    "LinkErrorKind",
    "LinkErrorReason",
    "Listener",
    "Received",
    "without_mcp_headers",
]

LinkErrorKind = Literal["unavailable", "lost", "unauthenticated", "rate_limited", "refused", "session_lost"]
"""No connection; connection lost; credentials required; rate limit; HTTP error; the upstream forgot our MCP session."""
LinkErrorReason = Literal[
    "", "exited", "initialize", "list", "not_mcp", "not_started", "protocol", "timeout", "version"
]
"""What a probe distinguishes within one kind: the program ended; an error on the handshake; a list without an end; not
MCP; no such program; an invalid answer; none in time; no common version."""
Received = Literal["awaited", "message", "invalid"]
"""The response to a request of ours; another message; no message."""


class LinkError(Exception):
    """A message was not delivered, or its response will not arrive."""

    def __init__(
        self,
        kind: LinkErrorKind,
        message: str,
        *,
        sent: bool = False,
        status: int | None = None,
        text: str = "",
        private: str = "",
        challenge: str = "",
        retry_after: float | None = None,
        reason: LinkErrorReason = "",
    ) -> None:
        super().__init__(message)
        self.kind: LinkErrorKind = kind
        self.message = message
        self.sent = sent
        """Whether the message was sent, so that the upstream may have acted on it."""
        self.status = status
        self.text = text
        """The upstream's own answer to this caller, such as the body of an error."""
        self.private = private
        """What only the operator may read: machine paths, and lines on stderr that may be about other callers."""
        self.challenge = challenge
        """The header 'WWW-Authenticate' of a refusal."""
        self.retry_after = retry_after
        """Seconds to wait before the next attempt, as the upstream asked."""
        self.reason: LinkErrorReason = reason
        self.caller_credentials = False
        """Whether the refused credentials came from the caller and are not our own."""


class Listener(Protocol):
    """Receives what arrives on a link; called on the event loop, never from inside `send`."""

    def receive(self, data: bytes, request_id: Id | None, /) -> Received:
        """Receive one message; `request_id` is the request on whose response it came, if the transport knows."""
        ...

    def lose(self, request_id: Id, error: LinkError, /) -> None:
        """Fail one request, because its response will not arrive."""

    def end(self, error: LinkError, /) -> None:
        """Fail all pending requests, because the link is closed from the other side."""


class Link:
    """One connection to an upstream; it is opened once and closed once."""

    pid: int | None = None
    """The process id of the upstream, if it is a program of this machine that was started."""

    async def open(self, listener: Listener) -> None:
        """Start the process, or prepare the connection.

        Raises:
            LinkError: The link cannot be opened.
        """

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Queue a message; with an id it is a request, and the listener gets its response or its loss.

        The headers accompany the message over HTTP; other transports ignore them.
        """

    def drop(self, request_id: Id) -> None:
        """Stop waiting for a response, and close the connection if it serves that request alone."""

    def listen(self) -> None:
        """Open the stream for server-initiated messages; called once, after a handshake of the 2025 era."""

    async def close(self) -> None:
        """Release everything within a few seconds; safe to call in any state, and more than once."""


class Credentials:
    """The headers that authenticate us to an upstream; here there are none."""

    def ready(self) -> Mapping[str, str] | None:
        """Return the headers to send, or None if they must be renewed first."""
        return {}

    async def renew(self, challenge: str) -> bool:  # noqa: ARG002 - for others
        """Renew expired or refused credentials, given the upstream's challenge; return whether there are any.

        Raises:
            LinkError: `unauthenticated`; its message says what a person must do.
        """
        return False

    async def close(self) -> None:
        """Wait a few seconds at most for running renewals."""


NO_CREDENTIALS: Final = Credentials()
"""Credentials of an upstream that requires none, or whose settings already name an 'Authorization' header."""


def without_mcp_headers(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return the headers about the caller, without the protocol's own `Mcp-*` headers, which belong to one message."""
    return {name: value for name, value in headers.items() if not name.lower().startswith("mcp-")}
