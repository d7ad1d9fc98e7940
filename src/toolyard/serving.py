"""Serving: how a yard is served, each a setting with a default.

It says what is wanted and builds nothing; the transports read it.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

__all__ = ["Serving"]

_PORTS: Final = 65535
_LISTS: Final = ("allowed_hosts", "allowed_origins", "request_headers")
_KINDS: Final[Mapping[Any, tuple[str, Any]]] = {
    int: ("a whole number", int),
    float: ("a number", int | float),
    bool: ("true or false", bool),
}


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a yard is served."""

    transport: str = "stdio"
    """Which way in: 'stdio', 'http', 'sse', or one that a package brings along."""
    host: str = "127.0.0.1"
    """The address to listen on; anything but this machine's own needs authentication."""
    port: int = 8321
    """The port to listen on; 0 is any that is free."""
    socket: str | None = None
    """The path of a unix socket to listen on instead."""
    stateless: bool = False
    """Whether older clients get no session: nothing is kept between requests, so any worker can answer."""
    json_response: bool = False
    """Whether every request is answered with plain JSON, without progress on the way."""
    session_timeout: float = 1800.0
    """Seconds after which an idle session of an older client is ended; 0 is never."""
    sessions: int = 10_000
    """Sessions of older clients at one time."""
    tls_cert: str | None = None
    """The file with the certificate; with it HTTPS is spoken."""
    tls_key: str | None = None
    """The file with the certificate's key."""
    workers: int = 1
    """Processes that serve; more than one needs 'stateless'."""
    reload: bool = False
    """Whether the server starts anew when the yard's files change."""
    public_url: str | None = None
    """The address that clients know the server by, such as 'https://tools.example.com', if a proxy stands before it."""
    allowed_hosts: tuple[str, ...] = ()
    """Names that the server may be addressed by, besides those it listens on; '*' is any."""
    allowed_origins: tuple[str, ...] = ()
    """Web pages that may use the server, such as 'https://example.com'; '*' is any."""
    request_headers: tuple[str, ...] = ()
    """Request headers that handlers may see."""
    message_bytes: int = 4 * 1024 * 1024
    """Size of one message."""
    message_depth: int = 128
    """Levels that a message may be nested."""
    in_flight: int = 1000
    """Requests of one connection that are worked on at one time; the next ones wait."""
    page_size: int = 1000
    """Items on one page of a list."""
    list_seconds: float = 60.0
    """Seconds that clients may take a list for current."""
    output_schemas: bool = False
    """Whether lists show what tools answer, too, which costs an agent tokens."""
    notify_changes: bool = True
    """Whether clients are told that their lists changed."""
    ask_seconds: float = 600.0
    """Seconds that a call waits for the answer to its question."""
    event_count: int = 256
    """Messages kept for a client that lost its connection, for each of its requests."""
    event_seconds: float = 300.0
    """Seconds they are kept."""
    keep_alive: float = 15.0
    """Seconds of silence after which an open stream gets a sign of life."""
    hold_back: float = 2.0
    """Seconds that a response waits for its answer before it becomes a stream."""
    header_seconds: float = 10.0
    """Seconds that a connection may take to send the head of a request."""
    shutdown_seconds: float = 5.0
    """Seconds that calls may take to finish when the server ends."""

    def __post_init__(self) -> None:
        for name in _LISTS:
            if isinstance(getattr(self, name), str):
                raise ValueError(f"The setting '{name}' must be a list of texts, not one text.")  # noqa: TRY004 - a wrong setting like any other
            msgspec.structs.force_setattr(self, name, tuple(getattr(self, name)))
        if self.host.startswith("[") and self.host.endswith("]"):  # as an address of IPv6 is written in a URL
            msgspec.structs.force_setattr(self, "host", self.host[1:-1])
        self._check_kinds()
        for name, value in self.as_dict().items():
            if isinstance(value, int | float) and not value >= 0:
                raise ValueError(f"The setting '{name}' must not be negative.")
        if self.port > _PORTS:
            raise ValueError(f"The setting 'port' must be at most {_PORTS}.")
        if self.workers < 1 or self.in_flight < 1 or self.page_size < 1:
            raise ValueError("The settings 'workers', 'in_flight' and 'page_size' must be at least 1.")
        if self.workers > 1 and not self.stateless:
            raise ValueError("More than one worker needs 'stateless', because each keeps its own sessions.")
        if (self.tls_cert is None) is not (self.tls_key is None):
            raise ValueError("HTTPS needs both 'tls_cert' and 'tls_key'.")

    def _check_kinds(self) -> None:
        for setting in msgspec.structs.fields(self):
            if setting.type in _KINDS:
                kind, types = _KINDS[setting.type]
                value = getattr(self, setting.name)
                if not isinstance(value, types) or isinstance(value, bool) is not (setting.type is bool):
                    raise ValueError(f"The setting '{setting.name}' must be {kind}.")

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by name."""
        return msgspec.structs.asdict(self)
