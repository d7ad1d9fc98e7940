"""The settings of one API: its document, its address, its credentials, and what of it is published.

It is data only: the configuration reads it, and nothing here connects.
"""

from typing import Final, Literal

import msgspec

from callyard._internal.mask import is_secret_name
from callyard.providers.upstream.settings import Login

__all__ = ["ApiSettings", "Override", "ResolvedApi"]

_POSITIVE: Final = ("call_seconds", "connect_seconds", "document_bytes", "answer_bytes", "file_bytes", "in_flight")


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How operations are published and run, where that differs from what their method says."""

    operation: Literal["query", "command", "destroy"] | None = None
    """What kind of thing it does, instead of what its method says."""
    idempotent: bool | None = None
    """Whether it is safe to run it twice."""
    timeout: float | None = None
    """The timeout in seconds."""
    pinned: bool = False
    """Whether it is listed even where most tools are not."""


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One HTTP API with a document in OpenAPI 3.0 to 3.2 or Swagger 2.0."""

    document: str
    """The document: a file, or a URL."""
    base_url: str | None = None
    """The URL of the API, instead of the servers that the document names."""
    server_variables: dict[str, str] = {}
    """Values of variables in the URLs of the document's servers."""
    credentials: dict[str, str] = {}
    """The credential for each security scheme of the document, by its name; for 'basic' it is 'USER:PASSWORD'."""
    headers: dict[str, str] = {}
    """Headers of every request to the API."""
    login: Login | None = None
    """How to sign in, for a security scheme with OAuth."""
    forward_headers: tuple[str, ...] = ()
    """Headers of the caller's request that are passed on; none by default, because they may be credentials."""
    include: tuple[str, ...] = ("*",)
    """Operations that are published: patterns of ids, or of 'tag:TAG', '/path', 'METHOD' or 'METHOD /path'."""
    exclude: tuple[str, ...] = ()
    """Operations that are not published, by the same patterns."""
    overrides: dict[str, Override] = {}
    """Changes to operations, by the same patterns."""
    files_root: str | None = None
    """The folder of the files that may be uploaded; without it a call carries the content itself."""
    private_addresses: bool = False
    """Whether host names may lead to private, loopback and link-local addresses."""
    enabled: bool = True
    """Whether it is used at all."""
    pin: Literal["block", "warn", "off"] = "block"
    """What happens to an operation that differs from the accepted one."""
    first: Literal["trust", "ask"] = "trust"
    """Whether an operation that is seen for the first time is accepted."""
    in_flight: int = 64
    """The number of concurrent requests; further ones wait."""
    connect_seconds: float = 30.0
    """Timeout for a connection, and for each file of the document."""
    call_seconds: float = 120.0
    """Timeout for one call."""
    document_seconds: float = 86400.0
    """Seconds after which a document at a URL is fetched again; 0 is never."""
    document_bytes: int = 64 * 1024 * 1024
    """The largest document that is read, with everything it refers to, in bytes."""
    answer_bytes: int = 16 * 1024 * 1024
    """The largest answer that is accepted, also after decompression, in bytes."""
    file_bytes: int = 32 * 1024 * 1024
    """The largest file that is uploaded, in bytes."""

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if not getattr(self, name) > 0:
                raise ValueError(f"The setting '{name}' must be more than 0.")
        if not self.document_seconds >= 0:
            raise ValueError("The setting 'document_seconds' must not be negative.")

    def __repr__(self) -> str:
        return "<ApiSettings>"

    @property
    def carrier(self) -> Literal["http"]:
        """Return how it is reached, in the terms of upstreams."""
        return "http"

    @property
    def is_remote(self) -> bool:
        """Return whether the document is at a URL."""
        return "://" in self.document

    def secrets(self) -> set[str]:
        """Return the credentials of the configuration, which no answer, log, list or error may show."""
        found = set(self.credentials.values()) | {value.partition(":")[2] for value in self.credentials.values()}
        found |= {value for name, value in self.headers.items() if is_secret_name(name)}
        found |= {value.partition(" ")[2] for name, value in self.headers.items() if is_secret_name(name)}
        if self.login is not None:
            found |= {self.login.client_secret or "", self.login.private_key or ""}
        return found - {""}


class ResolvedApi(msgspec.Struct, frozen=True):
    """The settings of an API with variables and secrets filled in, or the problem if one is missing."""

    settings: ApiSettings
    problem: str = ""
