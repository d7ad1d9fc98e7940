"""The settings of one upstream: its endpoint, what of it is published, and its limits.

It is data only: the configuration reads it, and nothing here connects.
"""

from typing import Any, Final, Literal

import msgspec

from callyard._internal.mask import is_secret_name, mask_arguments, secrets_in

__all__ = ["Carrier", "Identity", "Login", "Reshape", "ResolvedUpstream", "UpstreamSettings"]

Carrier = Literal["stdio", "http", "sse"]

_SECONDS: Final = ("connect_seconds", "list_seconds", "call_seconds", "idle_seconds", "catalogue_seconds")


class Reshape(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one tool of an upstream is published and run, where that differs from its definition."""

    rename: str | None = None
    """The published name, instead of its own; the prefix stays in front."""
    title: str | None = None
    """The published title."""
    description: str | None = None
    """The published description."""
    fixed: dict[str, Any] = {}
    """Arguments with a fixed value; they are not part of the published schema."""
    hidden: tuple[str, ...] = ()
    """Arguments that are not part of the published schema; the upstream uses its defaults."""
    operation: Literal["query", "command", "destroy", "eval"] | None = None
    """What kind of thing it does; one that runs code is published only where that is allowed."""
    code: str | None = None
    """The argument with the code, for the operation 'eval'."""
    language: str | None = None
    """The language of that code; 'python' by default."""
    idempotent: bool | None = None
    """Whether it is safe to run it twice."""
    timeout: float | None = None
    """The timeout in seconds."""
    pinned: bool = False
    """Whether it is listed even where most tools are not."""

    def __post_init__(self) -> None:
        if (self.operation == "eval") is (self.code is None):
            raise ValueError(
                "The operation 'eval' goes with 'code', the name of the argument that holds the code, and no "
                "other does."
            )


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The identity provider for the grant 'identity_assertion'."""

    issuer: str
    """The URL of its issuer."""
    client_id: str
    """The id of the client that is registered there for us."""
    client_secret: str | None = None
    """The client's secret, if it has one."""
    id_token: str | None = None
    """The id token of somebody who is signed in there already; without it a person signs in."""

    def __repr__(self) -> str:
        return f"<Identity of {self.issuer}>"


class Login(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to sign in at an upstream that requires it."""

    client_id: str | None = None
    """The id of the client that is registered there for us; without it we register one."""
    client_secret: str | None = None
    """The client's secret, if it has one."""
    private_key: str | None = None
    """The client's private key in PEM, if it authenticates with one."""
    client_metadata_url: str | None = None
    """The URL of a client id metadata document that describes us."""
    scopes: tuple[str, ...] = ()
    """The scopes to request, instead of those that the upstream names."""
    issuer: str | None = None
    """The only authorization server that gets these credentials; by default, the first that the upstream names."""
    token_url: str | None = None
    """The token endpoint of an authorization server that publishes no metadata, which is then not asked for any."""
    authorization_url: str | None = None
    """The authorization endpoint of that server."""
    grant: Literal["authorization_code", "client_credentials", "identity_assertion"] = "authorization_code"
    """Whether a person signs in, the client itself does, or an identity provider vouches for somebody."""
    identity: Identity | None = None
    """The identity provider of the grant 'identity_assertion'."""
    redirect_port: int = 0
    """The loopback port to which the browser returns; 0 is any."""

    def __post_init__(self) -> None:
        if (self.grant == "identity_assertion") is (self.identity is None):
            raise ValueError("The grant 'identity_assertion' goes with a table 'identity', and no other does.")

    def __repr__(self) -> str:
        return f"<Login {self.grant}>"


class UpstreamSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One upstream: a command to run, or a URL to call."""

    command: str | None = None
    """The program to run, which then speaks MCP on its standard input and output."""
    args: tuple[str, ...] = ()
    """Its arguments."""
    env: dict[str, str] = {}
    """Its environment variables, in addition to the few that every program needs."""
    cwd: str | None = None
    """Its working directory."""
    url: str | None = None
    """The URL of a running server."""
    headers: dict[str, str] = {}
    """Headers of every request to it."""
    transport: Carrier | None = None
    """The transport; by default 'stdio' for a command and 'http' for a URL."""
    forward_headers: tuple[str, ...] = ()
    """Headers of the caller's request that are passed on; none by default, because they may be credentials."""
    forward_meta: tuple[str, ...] = ()
    """Patterns of the keys in the caller's `_meta` that are passed on, such as 'baggage'; the trace always is."""
    forward_roots: bool = False
    """Whether it may ask clients for the folders that they work in."""
    login: Login | None = None
    """How to sign in there."""
    era: Literal["auto", "2025", "2026"] = "auto"
    """The era of the protocol that it speaks; by default that is detected once and remembered."""
    enabled: bool = True
    """Whether it is used at all."""
    prefix: str | None = None
    """What stands in front of its tools' names, before two underscores; its name by default, nothing if empty."""
    tools: tuple[str, ...] = ("*",)
    """Patterns of the names of its tools that are published."""
    without: tuple[str, ...] = ()
    """Patterns of the names of its tools that are not published."""
    reshape: dict[str, Reshape] = {}
    """Changes to the definitions of tools, by the tool's own name or a pattern."""
    pin: Literal["block", "warn", "off"] = "block"
    """What happens to a definition that differs from the accepted one."""
    first: Literal["trust", "ask"] = "trust"
    """Whether a definition that is seen for the first time is accepted."""
    unannotated: Literal["ask", "allow"] | None = None
    """Whether calls of tools without hints need an approval; by default where calls of the operation `destroy` do."""
    marks_secrets: bool = False
    """Whether its schemas may mark arguments as secrets, which approvals then do not show."""
    outputs: Literal["warn", "off"] = "warn"
    """Whether an answer that does not fit its own schema is reported."""
    in_flight: int = 64
    """The number of concurrent calls; further ones wait."""
    connect_seconds: float = 30.0
    """Timeout for its start and the handshake; more than 0."""
    list_seconds: float = 30.0
    """Timeout for listing what it has."""
    call_seconds: float = 120.0
    """Timeout for one call."""
    idle_seconds: float = 600.0
    """Seconds without a call after which it is stopped; 0 is never."""
    catalogue_seconds: float = 86400.0
    """Seconds after which its lists are fetched again."""
    message_bytes: int = 16 * 1024 * 1024
    """The largest message that is accepted from it, in bytes."""

    def __post_init__(self) -> None:
        if (self.command is None) is (self.url is None):
            raise ValueError("An upstream has either a 'command' or a 'url'.")
        if self.transport is not None and (self.transport == "stdio") is not (self.command is not None):
            raise ValueError("The transport 'stdio' goes with a 'command', and 'http' and 'sse' with a 'url'.")
        for name in _SECONDS:
            if not getattr(self, name) >= 0:
                raise ValueError(f"The setting '{name}' must not be negative.")
        if not self.connect_seconds:
            raise ValueError("The setting 'connect_seconds' must be more than 0; use a large number to wait longer.")
        if self.in_flight < 1:
            raise ValueError("The setting 'in_flight' must be at least 1.")

    def __repr__(self) -> str:
        return f"<UpstreamSettings {self.carrier}>"

    @property
    def carrier(self) -> Carrier:
        """Return the transport, with its default."""
        return self.transport or ("http" if self.command is None else "stdio")

    def secrets(self) -> set[str]:
        """Return the values that no log may show: of variables, headers, arguments, the URL and the login."""
        named = {**self.env, **{f"secret header {name}": value for name, value in self.headers.items()}}
        pairs = [pair for change in self.reshape.values() for pair in change.fixed.items()]
        fixed = {name: value for name, value in pairs if isinstance(value, str)}
        login = self.login and {name: getattr(self.login, name) or "" for name in ("client_secret", "private_key")}
        vouching = self.login and self.login.identity
        identity = vouching and {name: getattr(vouching, name) or "" for name in ("client_secret", "id_token")}
        hidden = {value for value, mask in zip(self.args, mask_arguments(self.args), strict=True) if value != mask}
        hidden |= {value.partition("=")[2] for value in hidden if value.startswith("-")}
        return hidden.union(
            *(secrets_in(one) for one in (named, {"url": self.url or ""}, fixed, login or {}, identity or {}))
        ) - {""}

    def configured_secrets(self) -> set[str]:
        """Return the secrets of the configuration, by their names: nobody who approves a call may read them."""
        named: dict[str, Any] = {**self.env, **self.headers}
        for change in self.reshape.values():
            named |= change.fixed
        found = {value for name, value in named.items() if is_secret_name(name) and isinstance(value, str)}
        login = self.login and {self.login.client_secret or "", self.login.private_key or ""}
        return (found | (login or set())) - {""}

    @property
    def authorizes(self) -> bool:
        """Return whether the headers already have an 'Authorization', so that nobody signs in."""
        return any(header.lower() == "authorization" for header in self.headers)


class ResolvedUpstream(msgspec.Struct, frozen=True):
    """The settings of an upstream with variables and secrets filled in, or the problem if one is missing."""

    settings: UpstreamSettings
    problem: str = ""
