"""Links: what carries messages to an upstream and back, whatever the bytes travel on.

A link knows messages only as bytes. What they mean, and which answer belongs to which request, is its listener's business.
"""

from collections.abc import Mapping
from typing import Final, Literal, Protocol

from toolyard.wire.messages import Id

__all__ = ["OPEN", "Credentials", "Link", "LinkError", "Listener", "Trouble", "lasting"]

Trouble = Literal["unavailable", "lost", "unauthenticated", "rate_limited", "refused", "session_lost"]
"""It cannot be reached; it went away; it wants credentials; we call too often; it answered with an error of HTTP; it forgot our session."""


class LinkError(Exception):
    """A message did not get through, or its answer does not come."""

    def __init__(
        self,
        trouble: Trouble,
        message: str,
        *,
        sent: bool = False,
        status: int | None = None,
        text: str = "",
        challenge: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.trouble: Trouble = trouble
        self.message = message
        self.sent = sent
        """Whether the message had gone out, so that it may have been acted upon."""
        self.status = status
        """The status of HTTP, if there was one."""
        self.text = text
        """The upstream's own words, such as the body of an error or its last lines on stderr."""
        self.challenge = challenge
        """The header 'WWW-Authenticate', if credentials are wanted."""
        self.retry_after = retry_after
        """Seconds it wants to be left alone."""
        self.of_caller = False
        """Whether what was refused are credentials of whoever called, and not our own."""


class Listener(Protocol):
    """Who is told what comes back; always on the event loop, never while `send` is running."""

    def receive(self, data: bytes, about: Id | None) -> None:
        """Take one message; `about` is the request on whose answer it came, where that is known."""
        ...

    def lose(self, request_id: Id, error: LinkError) -> None:
        """Take note that one request will not be answered."""
        ...

    def end(self, error: LinkError) -> None:
        """Take note that the link is gone, and with it all that was not answered."""
        ...


class Link(Protocol):
    """One connection to an upstream; it is opened once and closed once."""

    async def open(self, listener: Listener) -> None:
        """Start the process, or get ready to send.

        Raises:
            LinkError: It cannot be.
        """
        ...

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Send a message, soon; with an id it is a request, whose answer or loss the listener is told.

        The headers are those that HTTP wants beside this message; other carriers leave them away.
        """
        ...

    def drop(self, request_id: Id) -> None:
        """Stop waiting for the answer to a request, and close what it was to come on, if that was for it alone."""
        ...

    def listen(self) -> None:
        """Take what the upstream says on its own, where that needs a request; called once, after the handshake of the older era."""
        ...

    async def close(self) -> None:
        """Let go of everything, within a few seconds; may be called in any state, and more than once."""
        ...


class Credentials(Protocol):
    """What is shown to an upstream that wants to know who calls."""

    def ready(self) -> Mapping[str, str] | None:
        """Return the headers to send, or nothing if they must be renewed first."""
        ...

    async def renew(self, challenge: str) -> bool:
        """Get new ones, after the upstream refused the last with this challenge, or before they run out; return whether there are any.

        Raises:
            LinkError: `unauthenticated`; its message says what a person must do.
        """
        ...

    async def close(self) -> None:
        """Wait, for a few seconds at most, until renewals that are under way are over."""
        ...


class _Open:
    """Shows nothing, because nothing is wanted."""

    def ready(self) -> Mapping[str, str] | None:
        """Return no headers."""
        return {}

    async def renew(self, challenge: str) -> bool:  # noqa: ARG002 - the protocol's name
        """Say that there are no others."""
        return False

    async def close(self) -> None:
        """Wait for nothing."""


OPEN: Final[Credentials] = _Open()
"""For upstreams that let everybody in."""


def lasting(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Return those headers that are about whoever calls, and not about one message: the protocol's own all begin alike."""
    return {name: value for name, value in headers.items() if not name.lower().startswith("mcp-")} if headers else headers
