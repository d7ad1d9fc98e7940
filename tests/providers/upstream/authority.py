"""A local MCP endpoint with its own authorization server, which misbehaves on demand."""

import base64
import hashlib
import json
import secrets
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, parse_qsl, unquote, urlencode, urlsplit
from urllib.request import urlopen

from callyard.providers.upstream.oauth.vault import StoredLogin

SignIn = Callable[..., Coroutine[Any, Any, StoredLogin]]
"""How somebody signs in, who does whatever the page says."""
TOOL = {
    "name": "greet",
    "description": "Greet.",
    "inputSchema": {"type": "object"},
    "annotations": {"readOnlyHint": True},
}


class Authority:
    """What the server knows, what it was asked, and in which ways it misbehaves."""

    def __init__(self, port: int) -> None:
        self.origin = f"http://127.0.0.1:{port}"
        self.url = f"{self.origin}/mcp"
        self.seen: list[tuple[str, dict[str, str]]] = []
        """Every request: its method and path, and the fields it came with."""
        self.clients: dict[str, str | None] = {}
        self.codes: dict[str, dict[str, str]] = {}
        self.tokens: dict[str, str] = {}
        """Tokens that are good, and the scopes each has."""
        self.refresh_tokens: dict[str, str] = {}
        self.metadata: dict[str, Any] = {
            "/.well-known/oauth-protected-resource/mcp": {"resource": self.url, "authorization_servers": [self.origin]},
            "/.well-known/oauth-authorization-server": self.server_metadata(),
        }
        """What is published, by path; bytes are sent as they are, and a number is a status."""
        self.challenge = (
            f'Bearer resource_metadata="{self.origin}/.well-known/oauth-protected-resource/mcp", scope="read"'
        )
        self.wanted = {"read"}
        """Scopes that a token needs for calls."""
        self.redirected: dict[str, str] = {}
        """What the browser brings besides; an empty text takes a field away."""
        self.given: dict[str, Any] = {}
        """What a token answer says besides."""
        self.registered: dict[str, Any] = {}
        """What the answer to a registration says besides."""
        self.statuses: dict[str, int] = {}
        """Statuses that paths answer with, whatever they are asked."""
        self.shown: list[tuple[str, str]] = []
        """Every message of MCP: its method, and the token that it came with."""
        self.id_tokens: set[str] = set()
        """Id tokens that are good for an assertion."""
        self.exchanged: dict[str, Any] = {}
        """What the answer with an assertion says besides."""
        self.results: dict[str, Any] = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "a", "version": "1"},
            },
            "tools/list": {"tools": [TOOL]},
            "tools/call": {"content": [{"type": "text", "text": "hello"}]},
        }
        """What methods of MCP are answered with."""
        self.encoding = ""
        """How papers say that they are packed."""
        self.release = threading.Event()
        self.release.set()

    def server_metadata(self, **more: Any) -> dict[str, Any]:
        """Return what the authorization server says of itself."""
        return {
            "issuer": self.origin,
            "authorization_endpoint": f"{self.origin}/authorize",
            "token_endpoint": f"{self.origin}/token",
            "registration_endpoint": f"{self.origin}/register",
            "revocation_endpoint": f"{self.origin}/revoke",
            "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"],
            **more,
        }

    def publish(self, **more: Any) -> None:
        """Change what the authorization server says of itself."""
        self.metadata["/.well-known/oauth-authorization-server"] = self.server_metadata(**more)

    def vouch(self, *id_tokens: str, **more: Any) -> str:
        """Be an identity provider, too, that takes these id tokens, and return the issuer that it is then."""
        issuer = f"{self.origin}/identity"
        endpoints = {"authorization_endpoint": f"{issuer}/authorize", "token_endpoint": f"{issuer}/token"}
        proof = {"code_challenge_methods_supported": ["S256"]}
        self.metadata["/identity/.well-known/openid-configuration"] = {"issuer": issuer, **endpoints, **proof, **more}
        self.id_tokens = set(id_tokens)
        return issuer

    def asked(self, path: str) -> list[dict[str, str]]:
        """Return the fields of every request to a path."""
        return [fields for place, fields in self.seen if place.partition(" ")[2] == path]

    def grant(self, scope: str = "read", **more: Any) -> dict[str, Any]:
        """Return a new token, as the token endpoint does."""
        access, refresh = secrets.token_hex(8), secrets.token_hex(8)
        self.tokens[access] = scope
        self.refresh_tokens[refresh] = scope
        answer = {
            "access_token": access,
            "token_type": "Bearer",
            "refresh_token": refresh,
            "scope": scope,
            "expires_in": 3600,
        }
        return {name: value for name, value in {**answer, **self.given, **more}.items() if value is not None}

    def authorize(self, fields: dict[str, str]) -> str:
        """Return where the browser is sent."""
        code = secrets.token_hex(8)
        self.codes[code] = fields
        brought = {"code": code, "state": fields["state"], **self.redirected}
        return f"{fields['redirect_uri']}?{urlencode({name: value for name, value in brought.items() if value})}"

    def token(self, fields: dict[str, str]) -> tuple[int, Any]:
        """Answer at the token endpoint."""
        kind = fields.get("grant_type")
        if kind == "authorization_code":
            asked = self.codes.pop(fields.get("code", ""), None)
            proof = (
                base64.urlsafe_b64encode(hashlib.sha256(fields.get("code_verifier", "").encode()).digest())
                .decode()
                .rstrip("=")
            )
            if asked is None or asked["code_challenge"] != proof or asked["redirect_uri"] != fields.get("redirect_uri"):
                return 400, {"error": "invalid_grant", "error_description": "The code is not good."}
            return 200, self.grant(asked.get("scope", ""))
        if kind == "refresh_token":
            self.release.wait(10)
            scope = self.refresh_tokens.pop(fields.get("refresh_token", ""), None)  # each is good once
            return (400, {"error": "invalid_grant"}) if scope is None else (200, self.grant(scope))
        if kind == "urn:ietf:params:oauth:grant-type:token-exchange":
            if fields["subject_token"] not in self.id_tokens:
                return 400, {"error": "invalid_grant", "error_description": "The id token is not good."}
            types = {"issued_token_type": "urn:ietf:params:oauth:token-type:id-jag", "token_type": "N_A"}
            return 200, {"access_token": f"assertion for {fields['audience']}", **types, **self.exchanged}
        return 200, self.grant(fields.get("scope", ""), refresh_token=None)

    def answer(self, message: Any) -> Any:
        """Answer a message of MCP."""
        method, results = message.get("method"), self.results
        head = {"jsonrpc": "2.0", "id": message.get("id")}
        if method in results:
            return {**head, "result": results[method]}
        return {**head, "error": {"code": -32601, "message": "There is no such method."}}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    authority: Authority

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name that the library gives it
        """Say nothing."""

    def do_GET(self) -> None:
        self._serve(b"")

    def do_DELETE(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        authority, parts = self.authority, urlsplit(self.path)
        is_json = "json" in self.headers.get("Content-Type", "")
        fields: Any = json.loads(body or b"{}") if is_json else dict(parse_qsl(body.decode() or parts.query))
        basic = self.headers.get("Authorization", "")
        if basic.startswith("Basic "):
            names = base64.b64decode(basic.removeprefix("Basic ")).decode().split(":")
            fields |= {"basic_id": unquote(names[0]), "basic_secret": unquote(names[1])}
        authority.seen.append((f"{self.command} {parts.path}", fields))
        if parts.path in authority.statuses:
            self._send(authority.statuses[parts.path], {})
        elif parts.path == "/mcp":
            self._serve_mcp(fields)
        elif parts.path in authority.metadata:
            self._send(
                200,
                authority.metadata[parts.path],
                **({"Content-Encoding": authority.encoding} if authority.encoding else {}),
            )
        elif parts.path.endswith("/authorize"):
            self._send(302, {}, Location=authority.authorize(fields))
        elif parts.path.endswith("/token"):
            self._send(*authority.token(fields))
        elif parts.path == "/register":
            self._send(201, {"client_id": f"client-{len(authority.asked('/register'))}", **authority.registered})
        elif parts.path == "/revoke":
            authority.tokens.clear()
            self._send(200, {})
        else:
            self._send(404, {})

    def _serve_mcp(self, message: Any) -> None:
        authority = self.authority
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        authority.shown.append((message.get("method", ""), token))
        scope = authority.tokens.get(token)
        if scope is None:
            self._send(
                401,
                {"error": "invalid_token"},
                **({"WWW-Authenticate": authority.challenge} if authority.challenge else {}),
            )
        elif self.command != "POST":
            self._send(405, {})
        elif message.get("method") == "tools/call" and not authority.wanted <= set(scope.split()):
            more = f'Bearer error="insufficient_scope", scope="{" ".join(sorted(authority.wanted))}"'
            self._send(403, {}, **{"WWW-Authenticate": more})
        elif "id" not in message:
            self._send(202, {})
        else:
            self._send(200, authority.answer(message))

    def _send(self, status: int, content: Any, **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        with suppress(OSError):  # whoever asked may have heard enough
            self.wfile.write(body)


@contextmanager
def serving_authority() -> Generator[Authority]:
    """Serve one, in threads."""

    class Handler(_Handler):
        pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """Say nothing of clients that went away."""

    with Server(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        Handler.authority = Authority(server.server_address[1])
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield Handler.authority
        finally:
            Handler.authority.release.set()
            server.shutdown()
            thread.join()


def browse(address: str) -> threading.Thread:
    """Open an address as a browser does, in a thread, and go wherever it leads."""

    def go() -> None:
        with suppress(OSError):  # an answer that is no page is an OSError, too
            urlopen(address, timeout=60).close()  # noqa: S310 - our own server

    thread = threading.Thread(target=go)
    thread.start()
    return thread


def query_of(address: str) -> dict[str, str]:
    """Return the fields of an address."""
    return {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}


def id_token(claims: object) -> str:
    """Return what says who somebody is, as far as we read it."""
    return f"x.{base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip('=')}.x"
