"""Settings: everything that 'toolyard.toml' may say, as one struct whose sections are structs.

A new section is a new field here; its keys, variables, checks and pages follow from it.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any, Final, NamedTuple

import msgspec

from toolyard.model.limits import Limits
from toolyard.search.settings import SearchSettings

__all__ = ["PACKS", "PREFIX", "Authentication", "Key", "Serving", "Setting", "Settings", "known_settings"]


PACKS: Final = ("system",)
"""The first-party packs that a setting may name."""
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


PREFIX: Final = "TOOLYARD_"
"""What the name of every variable begins with."""
_SECTION_PREFIXES: Final = {"serve": "", "limits": "LIMIT_"}


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key that is let in."""

    name: str
    """Whose it is, as one word."""
    digest: str
    """What is kept of it; 'toolyard key' tells it."""
    profile: str | None = None
    """The profile that its owner gets."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may come in over HTTP."""

    api_keys: tuple[Key, ...] = ()
    """The API keys that are let in."""
    issuer: str | None = None
    """The address of an OAuth issuer whose tokens are let in."""
    audience: str | tuple[str, ...] = ()
    """What tokens must be meant for; needed with 'issuer'."""
    jwks: str | None = None
    """The address of the issuer's public keys, if it does not tell that itself."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have."""
    identity_claim: str = "sub"
    """The claim that says who it is."""
    profile_claim: str | None = None
    """The claim that chooses the profile; without it the scopes do."""
    profiles: dict[str, str] = {}
    """Which scope, or which value of the claim, gives which profile; '*' is everybody."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What 'toolyard.toml' may say."""

    target: str | None = None
    """The yard to serve: 'module:attr', 'file.py' or 'file.py:attr', a client's JSON file, or the address of a server."""
    profile: str | None = None
    """The profile of callers that have no other."""
    allow_eval: bool = False
    """Whether the tools that run code are published, too."""
    packs: tuple[str, ...] = ()
    """Packs whose tools are published, such as 'system'."""
    metatools: bool | tuple[str, ...] = True
    """Which tools about tools there are: true for all, false for none, or their names; 'learning' is named beside them."""
    state_dir: str | None = None
    """The directory for what must outlive the program (default: 'toolyard' in '$XDG_STATE_HOME' or '~/.local/state')."""
    serve: Serving = msgspec.field(default_factory=Serving)
    """How the yard is served."""
    limits: Limits = msgspec.field(default_factory=Limits)
    """The numbers that calls keep to."""
    search: SearchSettings = msgspec.field(default_factory=SearchSettings)
    """How tools are found."""
    auth: Authentication = msgspec.field(default_factory=Authentication)
    """Who may come in over HTTP."""


class Setting(NamedTuple):
    """One thing that can be set: its key, the names it has elsewhere, its type and its default."""

    key: str
    type: Any
    default: Any

    @property
    def section(self) -> str:
        """Return the section it stands in, empty at the top."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Return its key inside its section."""
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str:
        """Return the option of the command line that sets it, if there is one."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return the variable of the environment that sets it."""
        section = self.section
        prefix = _SECTION_PREFIXES.get(section, f"{section.upper()}_") if section else ""
        return f"{PREFIX}{prefix}{self.name.upper()}"


@cache
def known_settings() -> dict[str, Setting]:
    """Return every setting by its key, such as 'serve.port'."""
    found: dict[str, Setting] = {}
    defaults = Settings()
    for field in msgspec.structs.fields(Settings):
        default = getattr(defaults, field.name)
        if isinstance(default, msgspec.Struct):
            inner = [(f"{field.name}.{part.name}", part.type, getattr(default, part.name)) for part in msgspec.structs.fields(default)]
        else:
            inner = [(field.name, field.type, default)]
        found |= {key: Setting(key, kind, value) for key, kind, value in inner}
    return found
