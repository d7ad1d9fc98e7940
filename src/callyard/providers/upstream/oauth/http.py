"""HTTP requests to authorization servers: only to safe URLs, and with bounded responses.

It imports an HTTP client and an OAuth library, so it is loaded only to sign in or to renew.
"""

import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from callyard._internal.addresses import is_loopback
from callyard.providers.upstream.http.client import tls_context
from callyard.providers.upstream.oauth.metadata import Client, LoginError

__all__ = ["OAuthHttp", "is_local", "open_http"]

T = TypeVar("T")

# Imported by name, because the library has no types.
_OAuthClient: Final[Any] = import_module("authlib.integrations.httpx_client").AsyncOAuth2Client
_PrivateKeyJWT: Final[Any] = import_module("authlib.oauth2.rfc7523").PrivateKeyJWT
_prepare_grant_uri: Final[Any] = import_module("authlib.oauth2.rfc6749.parameters").prepare_grant_uri
_create_s256_code_challenge: Final[Any] = import_module("authlib.oauth2.rfc7636").create_s256_code_challenge
_RESPONSE_BYTES: Final = 1024 * 1024
_TIMEOUT_S: Final = 30.0
_OK: Final = 200
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429
_FINAL: Final = re.compile(
    r"(?:invalid|incorrect|expired|unauthorized|unsupported)\w*|bad_refresh_token|bad_verification_code|access_denied|\w+_required",
    re.IGNORECASE,
)
"""Error codes, of OAuth and of some servers, that no retry with the same credentials can cure."""
_HEADERS: Final = {"Accept-Encoding": "identity", "Accept": "application/json"}
_FORM: Final = {**_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
_KEYS: Final = ((RSAKey, "RS256"), (ECKey, "ES256"))


class _ResponseError(httpx2.TransportError):
    """A response is too long, or compressed although that was not allowed."""


class _Bounded(httpx2.AsyncByteStream):
    """A body with a limit on its length."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > _RESPONSE_BYTES:
                raise _ResponseError(f"Its response is longer than {_RESPONSE_BYTES} bytes.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()  # a small compressed body can become a large one
            raise _ResponseError("Its response is compressed, which was not asked for.")
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response


class OAuthHttp:
    """Sends requests to the authorization servers of one upstream."""

    def __init__(self, name: str, client: httpx2.AsyncClient, *, is_local: bool) -> None:
        self.name = name
        self._client = client
        self._is_local = is_local

    def check(self, url: str) -> str:
        """Return a URL if secrets may be sent there: with TLS, or on this machine if the upstream is there, too.

        Raises:
            LoginError: It is not safe.
        """
        try:
            parts = urlsplit(url)
            is_safe = parts.scheme == "https" or (parts.scheme == "http" and self._is_local and is_local(url))
            is_safe = is_safe and bool(parts.hostname) and "@" not in parts.netloc and url.isprintable() and " " not in url
        except ValueError:
            is_safe = False
        if not is_safe:
            raise LoginError(f"'{self.name}' asks for a login at '{_without_query(url)}', which is not safe: only 'https' URLs are.")
        return url

    async def fetch_challenge(self, url: str, headers: Mapping[str, str], *, method: str) -> tuple[int, str]:
        """Return the status and the challenge of the upstream's response to an anonymous request.

        Raises:
            LoginError: It cannot be reached.
        """
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}' if method == "POST" else None
        sent = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        try:
            async with self._client.stream(method, url, headers=sent, content=body) as response:
                return response.status_code, ", ".join(response.headers.get_list("www-authenticate"))
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise self._failure(url, error) from error

    async def fetch_metadata(self, url: str, kind: type[T]) -> T | None:
        """Return the metadata at a URL, or None if there is none.

        Raises:
            LoginError: The server fails, or the URL is not safe.
        """
        response = await self._send("GET", url)
        _raise_for_failure(response)
        if response.status_code != _OK:
            return None
        try:
            return msgspec.json.decode(response.content, type=kind, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def register(self, url: str, metadata: Mapping[str, Any]) -> Mapping[str, Any]:
        """Register a client, and return the response.

        Raises:
            LoginError: It refuses.
        """
        response = await self._send("POST", url, json=dict(metadata))
        try:
            answer: Any = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, RecursionError):
            answer = None
        if response.status_code not in {200, 201} or not isinstance(answer, dict):
            description = cast("dict[str, Any]", answer).get("error_description") if isinstance(answer, dict) else None
            reason = f": {str(description)[:200].removesuffix('.')}" if description else ""
            raise LoginError(f"'{_without_query(url)}' did not register us: status {response.status_code}{reason}.")
        return cast("dict[str, Any]", answer)

    async def token(self, url: str, client: Client, *, key: str | None = None, **fields: str) -> Mapping[str, Any]:
        """Return the response of a token endpoint to a request with these fields.

        Raises:
            LoginError: It refuses.
        """
        async with self._library(client, key) as library:
            return await self._send_with_library(url, library.fetch_token(self.check(url), headers=_FORM, **fields))

    async def revoke(self, url: str, client: Client, token: str) -> None:
        """Revoke a token.

        Raises:
            LoginError: The server refuses.
        """
        async with self._library(client, None) as library:
            response = await self._send_with_library(url, library.revoke_token(self.check(url), token=token, headers=_FORM))
        if response.status_code != _OK:
            raise LoginError(f"'{_without_query(url)}' did not revoke the token: status {response.status_code}.")

    def authorization_url(self, url: str, client: Client, *, verifier: str, **fields: str) -> str:
        """Return the URL at which a person signs in.

        Raises:
            LoginError: It is not safe.
        """
        pkce = {"code_challenge": _create_s256_code_challenge(verifier), "code_challenge_method": "S256"}
        return cast("str", _prepare_grant_uri(self.check(url), client.client_id, "code", **pkce, **fields))

    @asynccontextmanager
    async def _library(self, client: Client, key: str | None) -> AsyncGenerator[Any]:
        """Open the OAuth library's client, with our authentication methods."""
        library: Any = _OAuthClient(
            client_id=client.client_id,
            client_secret=_import_key(key)[0] if key else client.client_secret,
            token_endpoint_auth_method=client.method,
            revocation_endpoint_auth_method=client.method,
            transport=_Transport(verify=tls_context()),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        library.register_client_auth_method(("client_secret_basic", _authenticate_basic))
        library.register_compliance_hook("access_token_response", _raise_for_failure)
        if key:
            library.register_client_auth_method(_PrivateKeyJWT(client.issuer, alg=_import_key(key)[1]))
        async with library:
            yield library

    async def _send_with_library(self, url: str, work: Any) -> Any:
        try:
            return await work
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LoginError(self._failure(url, error).message, is_transient=True) from error
        except LoginError:
            raise
        except Exception as error:
            code = str(getattr(error, "error", "") or "no reason")[:80]
            description = str(getattr(error, "description", "") or "")[:200].removesuffix(".")
            reason = f"{code}: {description}" if description else code
            raise LoginError(f"'{_without_query(url)}' issued no token ({reason}).", is_transient=_FINAL.fullmatch(code) is None) from error

    async def _send(self, method: str, url: str, **options: Any) -> httpx2.Response:
        try:
            return await self._client.request(method, self.check(url), **options)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._failure(url, error) from error

    def _failure(self, url: str, error: Exception) -> LoginError:
        if isinstance(error, _ResponseError):
            return LoginError(f"'{_without_query(url)}' sent an unusable response. {error}")
        return LoginError(f"'{_without_query(url)}' cannot be reached: {type(error).__name__}.", is_transient=True)


@asynccontextmanager
async def open_http(name: str, url: str) -> AsyncGenerator[OAuthHttp]:
    """Open an HTTP client for the authorization servers of the upstream at a URL."""
    transport = _Transport(verify=tls_context())
    async with httpx2.AsyncClient(headers=_HEADERS, transport=transport, timeout=_TIMEOUT_S, trust_env=False) as client:
        yield OAuthHttp(name, client, is_local=is_local(url))


def is_local(url: str) -> bool:
    """Return whether a URL is on this machine; names below 'localhost' are, too (RFC 6761)."""
    host = urlsplit(url).hostname or ""
    return is_loopback(host) or host.endswith(".localhost")


def _without_query(url: str) -> str:
    """Return a URL for people, without its query, which may be secret."""
    return url.partition("?")[0][:200]


def _raise_for_failure(response: httpx2.Response) -> httpx2.Response:
    """Return a response unless its status says that the server fails or limits us."""
    status = response.status_code
    if status >= _SERVER_ERROR or status == _TOO_MANY:
        raise LoginError(f"'{_without_query(str(response.url))}' answered with status {status}.", is_transient=True)
    return response


def _import_key(key: str) -> tuple[Any, str]:
    """Return a private key in PEM, and the algorithm it signs with."""
    for kind, algorithm in _KEYS:
        try:
            return kind.import_key(key), algorithm
        except (JoseError, ValueError):
            continue
    raise LoginError("The 'private_key' of the login is not an RSA or EC key in PEM.")


def _authenticate_basic(client: Any, _method: str, uri: str, headers: Any, body: Any) -> tuple[str, Any, Any]:
    """Authenticate with `client_secret_basic`; both parts are escaped as RFC 6749 demands, which the library omits."""
    pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret or '', safe='')}"
    headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return uri, headers, body
