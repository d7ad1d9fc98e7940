"""Settings of one upstream: how it is reached, what of it is shown and under which bounds.

It says what is wanted and connects nothing; the configuration reads it.
"""

from typing import Any, Final, Literal

import msgspec

__all__ = ["Carrier", "Identity", "Login", "Reshape", "UpstreamSettings"]

Carrier = Literal["stdio", "http", "sse"]

_SECONDS: Final = ("connect_seconds", "list_seconds", "call_seconds", "idle_seconds", "catalogue_seconds")


class Reshape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one tool of an upstream is shown and run, where that differs from what the upstream says."""

    rename: str | None = None
    """The name it is published by, instead of its own; the prefix stays in front."""
    title: str | None = None
    """The title that is shown."""
    description: str | None = None
    """The description that is shown."""
    fixed: dict[str, Any] = {}
    """Arguments that are always these; nobody sees or sets them."""
    hidden: tuple[str, ...] = ()
    """Arguments that nobody sees or sets; the upstream fills in what it likes."""
    operation: Literal["query", "command", "destroy"] | None = None
    """What kind of thing it does."""
    idempotent: bool | None = None
    """Whether running it twice does no harm."""
    timeout: float | None = None
    """Seconds that it may take."""
    pinned: bool = False
    """Whether it is listed even where most tools are not."""


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity provider that says who we are, to upstreams that take its word."""

    issuer: str
    """Its address."""
    client_id: str
    """The client that was registered there for us."""
    client_secret: str | None = None
    """Its secret, if it has one."""
    id_token: str | None = None
    """The id token of whoever is signed in there already; without it a person signs in."""

    def __repr__(self) -> str:
        """Return where somebody signs in, without what may be secret."""
        return f"<Identity of {self.issuer}>"


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to sign in at an upstream that wants it."""

    client_id: str | None = None
    """The client that was registered there for us; without it we register ourselves."""
    client_secret: str | None = None
    """Its secret, if it has one."""
    private_key: str | None = None
    """Its private key in PEM, if it proves with that who it is."""
    client_metadata_url: str | None = None
    """The address of a client id metadata document that stands for us."""
    scopes: tuple[str, ...] = ()
    """The scopes to ask for, instead of those that the upstream names."""
    issuer: str | None = None
    """The only authorization server that is shown what stands here; without it, whichever the upstream names."""
    grant: Literal["authorization_code", "client_credentials", "identity_assertion"] = "authorization_code"
    """Whether a person signs in, or the client itself, or an identity provider says who it is."""
    identity: Identity | None = None
    """That identity provider."""
    redirect_port: int = 0
    """The loopback port that the browser is sent back to; 0 is any."""

    def __post_init__(self) -> None:
        if (self.grant == "identity_assertion") is (self.identity is None):
            raise ValueError("The grant 'identity_assertion' goes with a table 'identity', and no other does.")

    def __repr__(self) -> str:
        """Return how somebody signs in, without what may be secret."""
        return f"<Login {self.grant}>"


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One upstream: a command to run, or an address to call."""

    command: str | None = None
    """The program to run, which then speaks MCP on its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, str] = {}
    """Variables it gets, besides the few that every program needs."""
    cwd: str | None = None
    """The folder it runs in."""
    url: str | None = None
    """The address of a server that is running already."""
    headers: dict[str, str] = {}
    """Headers that every request to it has."""
    transport: Carrier | None = None
    """How it is spoken to; without it 'stdio' for a command and 'http' for an address."""
    forward_headers: tuple[str, ...] = ()
    """Headers of whoever calls us that are passed on to it; none by default, because they may be credentials."""
    login: Login | None = None
    """How to sign in there."""
    era: Literal["auto", "2025", "2026"] = "auto"
    """Which era of the protocol it speaks; by default it is asked once, and remembered."""
    enabled: bool = True
    """Whether it is used at all."""
    prefix: str | None = None
    """What stands in front of its tools' names, before two underscores; its name by default, nothing if empty."""
    tools: tuple[str, ...] = ("*",)
    """Patterns of the names of its tools that are published."""
    without: tuple[str, ...] = ()
    """Patterns of the names of its tools that are not."""
    reshape: dict[str, Reshape] = {}
    """How single tools differ from what it says of them, by the tool's own name or a pattern."""
    pin: Literal["block", "warn", "off"] = "block"
    """What happens to a definition that is not the one that was accepted."""
    first: Literal["trust", "ask"] = "trust"
    """Whether what is seen for the first time is accepted."""
    outputs: Literal["warn", "off"] = "warn"
    """Whether an answer that does not fit its own schema is reported."""
    in_flight: int = 64
    """Calls that it works on at one time; the next ones wait."""
    connect_seconds: float = 30.0
    """Seconds that it may take to start and to greet; more than 0."""
    list_seconds: float = 30.0
    """Seconds that it may take to list what it has."""
    call_seconds: float = 120.0
    """Seconds that one call may take."""
    idle_seconds: float = 600.0
    """Seconds without a call after which it is stopped; 0 is never."""
    catalogue_seconds: float = 86400.0
    """Seconds after which what it lists is looked at anew."""
    message_bytes: int = 16 * 1024 * 1024
    """Size of one message from it."""

    def __post_init__(self) -> None:
        if (self.command is None) is (self.url is None):
            raise ValueError("An upstream has either a 'command' or a 'url'.")
        if self.transport is not None and (self.transport == "stdio") is not (self.command is not None):
            raise ValueError("The transport 'stdio' goes with a 'command', and 'http' and 'sse' with a 'url'.")
        for name in _SECONDS:
            if not getattr(self, name) >= 0:
                raise ValueError(f"The setting '{name}' must not be negative.")
        if not self.connect_seconds:
            raise ValueError("The setting 'connect_seconds' must be more than 0: to be patient, name a large number.")
        if self.in_flight < 1:
            raise ValueError("The setting 'in_flight' must be at least 1.")

    def __repr__(self) -> str:
        """Return how it is reached, without what may be secret."""
        return f"<UpstreamSettings {self.carrier}>"

    @property
    def carrier(self) -> Carrier:
        """Return how it is spoken to."""
        return self.transport or ("http" if self.command is None else "stdio")

    @property
    def authorizes(self) -> bool:
        """Return whether its headers say already who calls, so that nobody signs in."""
        return any(header.lower() == "authorization" for header in self.headers)
