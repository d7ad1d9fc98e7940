"""The URL of a Redis store: one server, a cluster or Sentinels, with or without TLS."""

from collections.abc import Mapping
from typing import Final, Literal
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

__all__ = ["SCHEMES", "RedisUrl", "hide_password", "parse_redis_url"]

Kind = Literal["server", "cluster", "sentinel"]
SCHEMES: Final[Mapping[str, tuple[Kind, bool]]] = {
    "redis": ("server", False),
    "rediss": ("server", True),
    "redis+cluster": ("cluster", False),
    "rediss+cluster": ("cluster", True),
    "redis+sentinel": ("sentinel", False),
    "rediss+sentinel": ("sentinel", True),
}
"""For each scheme what it connects to, and whether by TLS."""
_TLS: Final = ("ca_certs", "certfile", "keyfile", "password", "check_hostname")
_OPTIONS: Final = frozenset({"prefix", "sentinel_username", "sentinel_password", *(f"ssl_{name}" for name in _TLS)})
_PORT: Final = 6379
_SENTINEL_PORT: Final = 26379
_BOOLEANS: Final = {"true": True, "false": False}


class RedisUrl(msgspec.Struct, frozen=True, kw_only=True):
    """What a URL says; `name` is the URL without user, password and options, for logs."""

    name: str
    kind: Kind
    tls: bool
    hosts: tuple[tuple[str, int], ...]
    username: str | None = None
    password: str | None = None
    db: int = 0
    service: str = ""
    """The name of the master that Sentinels watch."""
    prefix: str = "callyard"
    """What all keys begin with, so that several yards can share a Redis."""
    ssl: dict[str, str | bool] = {}
    sentinel_username: str | None = None
    sentinel_password: str | None = None


def hide_password(url: str) -> str:
    """Return a URL without user, password and options."""
    scheme, separator, rest = url.partition("://")
    return scheme + separator + rest.partition("?")[0].rpartition("@")[2]


def parse_redis_url(url: str) -> RedisUrl:
    """Return what a URL says.

    Raises:
        ValueError: It is no URL of a Redis store.
    """
    name = hide_password(url)
    kind, tls = SCHEMES.get(url.partition("://")[0], ("server", False))
    parts = urlsplit(url)
    user, _, hosts = parts.netloc.rpartition("@")
    username, _, password = user.partition(":")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown or parts.fragment or parts.scheme not in SCHEMES:
        what = f"the option '{unknown[0]}'" if unknown else "this form"
        raise ValueError(f"The store '{name}' is no URL that is known: {what} is not.")
    service, db = _path(name, kind, parts.path)
    port = _SENTINEL_PORT if kind == "sentinel" else _PORT
    prefix = options.get("prefix", "callyard")
    if not prefix or "{" in prefix or "}" in prefix:
        raise ValueError(f"The prefix of the store '{name}' must not be empty, and has no braces.")
    return RedisUrl(
        name=name,
        kind=kind,
        tls=tls,
        hosts=tuple(_host(name, host, port) for host in hosts.split(",")),
        username=unquote(username) or None,
        password=unquote(password) or None,
        db=db,
        service=service,
        prefix=prefix,
        ssl={key: _BOOLEANS.get(value, value) for key, value in options.items() if key.startswith("ssl_")},
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
    )


def _path(name: str, kind: Kind, path: str) -> tuple[str, int]:
    """Return the service and the number of the database."""
    first, _, rest = path.strip("/").partition("/")
    service = unquote(first) if kind == "sentinel" else ""
    number = rest if kind == "sentinel" else path.strip("/")
    if kind == "sentinel" and not service:
        raise ValueError(f"The store '{name}' names no master: write 'redis+sentinel://HOST:PORT,HOST:PORT/MASTER'.")
    if number and (not number.isdecimal() or kind == "cluster"):
        what = "A cluster has no numbered databases" if kind == "cluster" else "The path must be a database's number"
        raise ValueError(f"The store '{name}' cannot be used: {what}.")
    return service, int(number or 0)


def _host(name: str, text: str, port: int) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{text}")
        host, given = parts.hostname, parts.port
    except ValueError:
        host, given = None, None
    if not host:
        raise ValueError(f"The store '{name}' names no host: write 'redis://HOST:PORT'.")
    return host, given or port
