"""Streamable HTTP: one MCP endpoint for both protocol eras, on our own server or any ASGI server.

Its files:

- `admission`: what a request must pass before it is read: the host and the origin, the credentials, and how much is
  open already
- `app`: a table of mounts, and the MCP endpoint, which serves both eras
- `handshake`: requests of the handshake era over HTTP: in a session, where a call outlives its connection, or without
  one
- `protocol`: our HTTP/1.1 server side: a connection from bytes to requests and back, one request at a time
- `request`: HTTP requests, whichever server received them: our own or any ASGI server
- `response`: JSON if the answer is quick and alone, and an event stream otherwise
- `server`: the HTTP transport: a listening socket, its certificate and its application; at shutdown every call is
  answered
- `sessions`: HTTP sessions of the handshake era, with stored streams for clients that reconnect
- `shared`: HTTP sessions that all replicas serve
"""

from collections.abc import Sequence
from typing import Final

from callyard.config.settings import Serving
from callyard.transports.auth import Authenticator
from callyard.transports.http.app import App
from callyard.transports.http.server import Http
from callyard.yard import Yard

__all__ = ["App", "Http", "asgi"]

_DEFAULTS: Final = Serving()


def asgi(
    yard: Yard,
    *,
    authenticator: Authenticator | None = None,
    public_url: str | None = None,
    allowed_hosts: Sequence[str] = (),
    allowed_origins: Sequence[str] = (),
    request_headers: Sequence[str] = (),
    stateless: bool = _DEFAULTS.stateless,
    json_response: bool = _DEFAULTS.json_response,
    session_timeout: float = _DEFAULTS.session_timeout,
    sessions: int = _DEFAULTS.sessions,
    sessions_per_identity: int = _DEFAULTS.sessions_per_identity,
    requests: int = _DEFAULTS.requests,
    requests_per_identity: int = _DEFAULTS.requests_per_identity,
    message_bytes: int = _DEFAULTS.message_bytes,
    page_size: int = _DEFAULTS.page_size,
    output_schemas: bool = _DEFAULTS.output_schemas,
    notify_changes: bool = _DEFAULTS.notify_changes,
    ask_before_destroy: bool = _DEFAULTS.ask_before_destroy,
    ask_seconds: float = _DEFAULTS.ask_seconds,
    keep_alive: float = _DEFAULTS.keep_alive,
) -> App:
    """Return a yard as an ASGI application, to be served or mounted; it opens the yard if the server has a lifespan.

    Raises:
        ValueError: It runs programs without a sandbox and may be served to anybody, or a setting is wrong.
    """
    if yard.runtime.enabled and yard.runtime.profile == "dev" and not yard.runtime.allow_unsafe:
        raise ValueError(
            "The runtime profile 'dev' is not served by 'asgi', which others may reach, unless 'allow_unsafe' is set."
        )
    settings = {name: value for name, value in locals().items() if name not in {"yard", "authenticator"}}
    return App(yard, Serving(transport="http", **settings), authenticator)
