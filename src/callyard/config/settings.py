"""All settings of 'callyard.toml' as one struct whose sections are structs.

Keys, environment variables, checks and the reference pages are derived from the fields; their docstrings are the
descriptions.
"""

import ast
import inspect
from collections.abc import Mapping
from functools import cache, partial
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal

import msgspec

from callyard._internal.converted import Converted, Converters
from callyard.model.limits import Limits
from callyard.model.profile import Shape
from callyard.policy.settings import BudgetSettings, QueueSettings, RateSettings
from callyard.runtimes.runtime import RuntimeSettings
from callyard.search.settings import SearchSettings

__all__ = [
    "PACKS",
    "PREFIX",
    "AgentSettings",
    "AlertSettings",
    "ApprovalSettings",
    "Authentication",
    "Key",
    "MonitorSettings",
    "PermissionMode",
    "PolicySettings",
    "Serving",
    "Setting",
    "Settings",
    "WatchSettings",
    "known_settings",
    "meanings",
    "values_of",
]


PACKS: Final = ("system",)
_TRANSPORT_NAMES: Final = {"streamable": "http", "streamable-http": "http"}
_MAX_PORT: Final = 65535
_AT_LEAST_ONE: Final = (
    "workers",
    "page_size",
    "requests",
    "requests_per_identity",
    "connections",
    "connections_per_identity",
)
_CHECKED_TYPES: Final[Mapping[Any, tuple[str, Any]]] = {
    int: ("a whole number", int),
    float: ("a number", int | float),
    bool: ("true or false", bool),
}


def _texts(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        raise ValueError(f"The setting '{name}' must be a list of texts, not one text.")  # noqa: TRY004 - every wrong setting is a ValueError
    return tuple(value)


def _host(text: str) -> str:
    """Return a host without the brackets that an IPv6 address has in a URL."""
    return text[1:-1] if text.startswith("[") and text.endswith("]") else text


def _transport(name: str) -> str:
    return _TRANSPORT_NAMES.get(name, name)


class Serving(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Converted):
    """How a yard is served."""

    converters: ClassVar[Converters] = {
        **{name: partial(_texts, name) for name in ("allowed_hosts", "allowed_origins", "request_headers")},
        "host": _host,
        "transport": _transport,
    }
    transport: str = "stdio"
    """The transport: 'stdio', 'http' (also 'streamable'), 'sse', or one of an installed package."""
    host: str = "127.0.0.1"
    """The address to listen on; any but a loopback address needs authentication."""
    port: int = 8321
    """The port to listen on; 0 is any free port."""
    socket: str | None = None
    """The path of a Unix socket to listen on instead of host and port."""
    stateless: bool = False
    """Whether clients of the handshake era get no HTTP session, so that any worker can answer each request."""
    json_response: bool = False
    """Whether every response is one JSON document, without progress notifications before it."""
    session_timeout: float = 1800.0
    """Seconds after which an idle HTTP session ends; 0 is never."""
    sessions: int = 10_000
    """Maximum number of HTTP sessions at one time."""
    sessions_per_identity: int = 1000
    """Maximum number of HTTP sessions of one identity, where callers have credentials."""
    requests: int = 2000
    """HTTP requests in work at one time; further ones are answered with 503."""
    requests_per_identity: int = 500
    """HTTP requests in work at one time of one identity, where callers have credentials."""
    connections: int = 4000
    """HTTP connections at one time; one that never had an admitted request makes room for a new one."""
    connections_per_identity: int = 1000
    """HTTP connections at one time of one identity, where callers have credentials."""
    tls: bool | None = None
    """Whether HTTPS is served; by default it is if there is a certificate."""
    tls_cert: str | None = None
    """The file with the certificate, which switches HTTPS on."""
    tls_key: str | None = None
    """The file with the private key of the certificate."""
    workers: int = 1
    """Number of processes that serve; more than one needs 'stateless'."""
    reload: bool = False
    """Whether the server restarts when a file of the yard changes."""
    public_url: str | None = None
    """The URL of the server for clients, such as 'https://tools.example.com', if it is behind a proxy."""
    allowed_hosts: tuple[str, ...] = ()
    """Accepted values of the 'Host' header, besides those of the address and of 'public_url'; '*' is any."""
    allowed_origins: tuple[str, ...] = ()
    """Origins of web pages that may call the server, besides its own, such as 'https://example.com'; '*' is any."""
    request_headers: tuple[str, ...] = ()
    """Request headers that handlers can read."""
    message_bytes: int = 4 * 1024 * 1024
    """Maximum size of one message in bytes."""
    page_size: int = 1000
    """Items on one page of a list."""
    output_schemas: bool = False
    """Whether lists of tools include output schemas, which cost an agent tokens."""
    notify_changes: bool = True
    """Whether clients are notified when their lists change."""
    console: bool = True
    """Whether '/console' shows the yard in a browser, over 'http' with one worker."""
    ask_before_destroy: bool = True
    """Whether a person must approve calls of tools that destroy something, unless a rule decides about them."""
    ask_seconds: float = 600.0
    """Seconds that a call waits for the answer to an elicitation."""
    keep_alive: float = 15.0
    """Seconds of silence after which an open stream gets a keep-alive comment."""
    shutdown_seconds: float = 5.0
    """Seconds that running calls have to finish when the server stops."""

    def __post_init__(self) -> None:
        for setting in msgspec.structs.fields(self):
            value = getattr(self, setting.name)
            if setting.type in _CHECKED_TYPES:
                kind, types = _CHECKED_TYPES[setting.type]
                if not isinstance(value, types) or isinstance(value, bool) is not (setting.type is bool):
                    raise ValueError(f"The setting '{setting.name}' must be {kind}.")
            if isinstance(value, int | float) and not value >= 0:
                raise ValueError(f"The setting '{setting.name}' must not be negative.")
        if self.port > _MAX_PORT:
            raise ValueError(f"The setting 'port' must be at most {_MAX_PORT}.")
        if any(getattr(self, name) < 1 for name in _AT_LEAST_ONE):
            raise ValueError(f"The settings {', '.join(map(repr, _AT_LEAST_ONE))} must be at least 1.")
        if self.workers > 1 and not self.stateless:
            raise ValueError("More than one worker needs 'stateless', because each keeps its own sessions.")
        is_complete = (self.tls_cert is None) is (self.tls_key is None)
        if self.tls is not False and (not is_complete or (self.tls and self.tls_cert is None)):
            raise ValueError("HTTPS, which 'tls' switches on, needs both 'tls_cert' and 'tls_key'.")

    @property
    def certificate(self) -> tuple[str, str] | None:
        """Return the files with the certificate and its key, unless HTTPS is off."""
        if self.tls is False or self.tls_cert is None or self.tls_key is None:
            return None
        return self.tls_cert, self.tls_key


PREFIX: Final = "CALLYARD_"
"""The prefix of every environment variable."""
_SECTION_PREFIXES: Final = {"serve": "", "limits": "LIMIT_"}


class Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key that is accepted."""

    name: str
    """The name of its owner, one word."""
    digest: str
    """The digest of the key, printed by 'callyard key'."""
    profile: str | None = None
    """The profile of its owner; without one, the yard's own."""
    profiles: tuple[str, ...] = ()
    """The other profiles that its owner may choose by the path '/mcp/PROFILE'."""
    operator: bool = False
    """Whether its owner may decide about approvals, apart from those for calls of their own."""


class Authentication(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Authentication over HTTP."""

    api_keys: tuple[Key, ...] = ()
    """The API keys that are accepted."""
    issuer: str | None = None
    """The URL of an OAuth issuer whose tokens are accepted."""
    audience: str | tuple[str, ...] = ()
    """Accepted audiences of tokens; required with 'issuer'."""
    jwks: str | None = None
    """The URL of the issuer's public keys, if its metadata has none."""
    scopes: tuple[str, ...] = ()
    """Scopes that every token must have."""
    identity_claim: str = "sub"
    """The claim with the caller's identity."""
    profile_claim: str | None = None
    """The claim that selects the profile; without it the scopes do."""
    profiles: dict[str, str] = {}
    """The profile for each scope or value of the claim; '*' is for every caller."""


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who decides about approvals, and the URL that new ones are sent to."""

    operators: tuple[str, ...] = ()
    """Identities that may decide, or 'claim:NAME=VALUE' for every caller whose token has that claim."""
    webhook: str | None = None
    """The URL that is sent each new approval; its answer may be the decision."""
    webhook_secret: str | None = None
    """The secret that signs what is sent, or a reference such as 'secretref:env:NAME'; required with 'webhook'."""


class PolicySettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A service that decides about calls."""

    url: str | None = None
    """The URL that decides about each call that no rule decides about."""
    seconds: float = 2.0
    """Seconds that the decision may take; after that the call is denied."""


class MonitorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Metrics and log files of a server."""

    metrics: bool | None = None
    """Whether '/metrics' shows counters for Prometheus (default: over 'http' with one worker)."""
    metrics_keys: tuple[Key, ...] = ()
    """The API keys that may read '/metrics'; required for that if there is an '[auth]' section."""
    otel: bool | None = None
    """Whether spans and counts go to an OpenTelemetry collector (default: if 'OTEL_EXPORTER_OTLP_ENDPOINT' is set)."""
    audit_log: str | None = None
    """The file that gets a line for each call."""
    access_log: str | None = None
    """The file that gets a line for each HTTP request."""
    log_bytes: int = 64 * 1024 * 1024
    """Size in bytes at which one of these files is renamed and a new one begins."""
    log_backups: int = 5
    """Number of renamed files that are kept."""

    def __post_init__(self) -> None:
        if self.log_bytes < 1 or self.log_backups < 0:
            raise ValueError("The setting 'log_bytes' must be at least 1, and 'log_backups' must not be negative.")
        if any(key.profile is not None for key in self.metrics_keys):
            raise ValueError("The keys in 'metrics_keys' have no 'profile': all of them see every tool.")


AlertRule = Literal[
    "hung", "blocked", "rejects", "missing", "errors", "slow", "flapping", "upstream", "waits", "replicas"
]
"""What a server is alerted of."""


class AlertSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What counts as an incident, and who is notified of it."""

    enabled: bool | None = None
    """Whether calls are judged (default: over 'http' and 'sse', and over 'stdio' if this section has anything)."""
    webhook: str | None = None
    """The URL that gets each alert and each recovery."""
    webhook_secret: str | None = None
    """The secret that signs what is sent, or a reference such as 'secretref:env:NAME'; required with 'webhook'."""
    command: tuple[str, ...] = ()
    """The program, and its arguments, that gets each alert and each recovery as JSON on its stdin."""
    off: tuple[AlertRule, ...] = ()
    """Rules that are not judged, such as 'slow'."""
    error_share: float = 0.2
    """The share of a tool's calls in five minutes, and at least five, that fail without a fault of the caller."""
    slow_ms: float | None = None
    """The p95 of five minutes above which a tool is slow (default: a second and three times its usual one)."""
    wait_s: float = 900.0
    """Seconds after which a job or an approval waits for too long."""

    def __post_init__(self) -> None:
        if not 0 < self.error_share <= 1:
            raise ValueError("The setting 'error_share' must be above 0 and at most 1.")
        if (self.slow_ms is not None and self.slow_ms <= 0) or self.wait_s <= 0:
            raise ValueError("The settings 'slow_ms' and 'wait_s' must be above 0.")


PermissionMode = Literal["default", "plan", "dontAsk", "acceptEdits", "auto", "rules", "bypassPermissions"]
"""When an agent SDK asks its person; the yard's own rules hold in every mode."""


_SETTING_SOURCES: Final = ("user", "project", "local")


class AgentSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Agents that the server runs with its tools."""

    enabled: bool = False
    """Whether the server runs agents, at '/api/sessions'."""
    runtime: Literal["claude", "openai"] = "claude"
    """The agent SDK: 'claude' (Claude Agent SDK) or 'openai' (OpenAI Agents SDK)."""
    model: str | None = None
    """The model of messages that name none (default: that of the SDK)."""
    permission_mode: PermissionMode = "default"
    """When a person is asked about a tool call; callers may choose this mode or a stricter one."""
    roots: tuple[str, ...] = ()
    """Folders that agents may work in; the first one is the default (default: the folder that the server starts in)."""
    tools: tuple[str, ...] = ("AskUserQuestion",)
    """Tools of the SDK itself that agents have besides the yard's, such as 'Read'; only 'claude' has any."""
    setting_sources: tuple[str, ...] = ()
    """Files of Claude Code that are read: 'user', 'project' and 'local'; they may allow tools without asking."""
    cli_path: str | None = None
    """The program of Claude Code, 2.1.248 or later (default: the one in the SDK)."""
    countdown_seconds: float = 600.0
    """Seconds that a person has at first; in an unattended turn a call is refused then."""
    park_seconds: float = 14_400.0
    """Seconds after which a call that waits for a person is refused.

    An approval of the yard ends after 'approval_ttl_s' at the latest.
    """
    turn_seconds: float = 3600.0
    """Seconds that a turn may take, apart from the time that a person is asked; 0 is for ever."""
    turns: int = 8
    """Turns that run at one time; further messages are refused.

    An identity with credentials has a quarter of them, at least one.
    """

    def __post_init__(self) -> None:
        if self.countdown_seconds <= 0 or self.park_seconds < self.countdown_seconds:
            raise ValueError(
                "The setting 'countdown_seconds' must be more than 0, and 'park_seconds' at least as much."
            )
        unknown = [source for source in self.setting_sources if source not in _SETTING_SOURCES]
        if unknown:
            raise ValueError(f"The setting 'setting_sources' knows {', '.join(_SETTING_SOURCES)}, not '{unknown[0]}'.")
        if self.turn_seconds < 0 or self.turns < 1:
            raise ValueError("The setting 'turn_seconds' must not be negative, and 'turns' must be at least 1.")


class WatchSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What 'callyard watch' does."""

    name: str = "watch"
    """Watchers of one name on one store alert once: one of them probes, and the others take over."""
    every: float = 60.0
    """Seconds between two probes of a target."""
    control: str | None = None
    """An address 'HOST:PORT' that always answers; if it does not, the watcher's own network is gone."""
    public: bool = False
    """Whether the status page, '/status.json' and the badges need no credentials."""

    def __post_init__(self) -> None:
        if not self.every >= 1:
            raise ValueError("The setting 'every' must be at least 1.")
        host, colon, port = (self.control or "localhost:1").rpartition(":")
        if not (host and colon and port.isdecimal() and 0 < int(port) <= _MAX_PORT):
            raise ValueError("The setting 'control' is written as 'HOST:PORT'.")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of 'callyard.toml'."""

    target: str | None = None
    """The yard to serve: 'module:attr', 'file.py', 'file.py:attr', an MCP client's JSON file, or a server's URL."""
    profile: str | None = None
    """The profile of callers without one of their own."""
    allow_eval: bool | tuple[str, ...] = False
    """Whether tools that run code are published, or the targets that code may run in, such as 'page'."""
    shape: Shape = "envelope"
    """How successes are sent to MCP clients: 'envelope', or 'plain' for the result, with its output schema listed."""
    packs: tuple[str, ...] = ()
    """Packs whose tools are published, such as 'system'."""
    metatools: bool | tuple[str, ...] = True
    """The metatools: true for all, false for none, or their names; 'learning' can be one of the names."""
    state_dir: str | None = None
    """The directory for persistent state (default: 'callyard' in '$XDG_STATE_HOME' or '~/.local/state')."""
    store: str | None = None
    """The store: 'memory', 'sqlite', 'sqlite:PATH' or a URL of Redis (default: a file if served, else 'memory')."""
    store_replicas: int = 0
    """How many replicas of Redis must have a claim, an end of a job or a decision before it counts."""
    serve: Serving = msgspec.field(default_factory=Serving)
    """How the yard is served."""
    limits: Limits = msgspec.field(default_factory=Limits)
    """The limits of calls."""
    search: SearchSettings = msgspec.field(default_factory=SearchSettings)
    """How tools are found."""
    runtime: RuntimeSettings = msgspec.field(default_factory=RuntimeSettings)
    """Where programs of agents run."""
    queue: QueueSettings = msgspec.field(default_factory=QueueSettings)
    """How many calls run at one time, and how many wait."""
    rates: RateSettings = msgspec.field(default_factory=RateSettings)
    """How often calls may come."""
    budgets: BudgetSettings = msgspec.field(default_factory=BudgetSettings)
    """How many calls and tokens sessions and callers have."""
    auth: Authentication = msgspec.field(default_factory=Authentication)
    """Authentication over HTTP."""
    approvals: ApprovalSettings = msgspec.field(default_factory=ApprovalSettings)
    """Who decides about approvals, and the URL that new ones are sent to."""
    policy: PolicySettings = msgspec.field(default_factory=PolicySettings)
    """A service that decides about calls."""
    monitor: MonitorSettings = msgspec.field(default_factory=MonitorSettings)
    """Metrics and log files of a server."""
    alerts: AlertSettings = msgspec.field(default_factory=AlertSettings)
    """What counts as an incident, and who is notified of it."""
    agents: AgentSettings = msgspec.field(default_factory=AgentSettings)
    """Agents that the server runs with its tools."""
    watch: WatchSettings = msgspec.field(default_factory=WatchSettings)
    """What 'callyard watch' does."""


_SECTIONS: Final[Mapping[str, type[msgspec.Struct]]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Settings)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}


class Setting(msgspec.Struct, frozen=True):
    """One setting: its key, type and default, and the names derived from the key."""

    key: str
    type: Any
    default: Any

    @property
    def section(self) -> str:
        """Return its section, empty at the top level."""
        return self.key.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Return its key within its section."""
        return self.key.rpartition(".")[2]

    @property
    def flag(self) -> str:
        """Return the flag of `callyard serve` for it, which not every setting has."""
        if self.key == "agents.enabled":
            return "--agents"
        prefix = f"{self.section}-" if self.section in {"runtime", "agents"} else ""
        return f"--{prefix}{self.name.replace('_', '-')}"

    @property
    def variable(self) -> str:
        """Return the environment variable that sets it."""
        prefix = f"{self.section.upper()}_" if self.section else ""
        return f"{PREFIX}{_SECTION_PREFIXES.get(self.section, prefix)}{self.name.upper()}"

    @property
    def meaning(self) -> str:
        """Return its description, which is the docstring of its field."""
        return meanings(_SECTIONS.get(self.section, Settings))[self.name]


@cache
def meanings(struct: type) -> Mapping[str, str]:
    """Return the docstring of each field of a struct on one line, from its source."""
    body = next(node.body for node in ast.walk(ast.parse(inspect.getsource(struct))) if isinstance(node, ast.ClassDef))
    found: dict[str, str] = {}
    for field, text in pairwise(body):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(meaning))):
                found[name] = " ".join(meaning.split())
            case _:
                continue
    return found


@cache
def known_settings() -> dict[str, Setting]:
    """Return every setting by its key, such as 'serve.port'."""
    types = {field.name: field.type for field in msgspec.structs.fields(Settings)}
    for section, struct in _SECTIONS.items():
        types |= {f"{section}.{field.name}": field.type for field in msgspec.structs.fields(struct)}
    return {key: Setting(key, types[key], default) for key, default in values_of(Settings()).items()}


def values_of(settings: Settings) -> dict[str, Any]:
    """Return the value of every setting by its key."""
    found: dict[str, Any] = {}
    for name, value in msgspec.structs.asdict(settings).items():
        if name in _SECTIONS:
            found |= {f"{name}.{part}": inner for part, inner in msgspec.structs.asdict(value).items()}
        else:
            found[name] = value
    return found
