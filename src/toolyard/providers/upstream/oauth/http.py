"""Asking: what is sent to authorization servers, only where it is safe, and with bounds on what they may answer.

It brings an HTTP client and an OAuth library with it, so only whoever signs in or renews imports it.
"""

import re
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from importlib import import_module
from ipaddress import ip_address
from typing import Any, Final, TypeVar, cast
from urllib.parse import quote, urlsplit

import httpx2
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, RSAKey

from toolyard.providers.upstream.http.client import tls_context
from toolyard.providers.upstream.oauth.metadata import Client, LoginError

__all__ = ["OAuthHttp", "is_local", "open_http"]


T = TypeVar("T")

# Asked for by name, because the library has no types.
_OAuthClient: Final[Any] = import_module("authlib.integrations.httpx_client").AsyncOAuth2Client
_PrivateKeyJWT: Final[Any] = import_module("authlib.oauth2.rfc7523").PrivateKeyJWT
_prepare_grant_uri: Final[Any] = import_module("authlib.oauth2.rfc6749.parameters").prepare_grant_uri
_create_s256_code_challenge: Final[Any] = import_module("authlib.oauth2.rfc7636").create_s256_code_challenge
_BYTES: Final = 1024 * 1024
_SECONDS: Final = 30.0
_OK: Final = 200
_SERVER_ERROR: Final = 500
_TOO_MANY: Final = 429
_FINAL: Final = re.compile(
    r"(?:invalid|incorrect|expired|unauthorized|unsupported)\w*|bad_refresh_token|bad_verification_code|access_denied|\w+_required",
    re.IGNORECASE,
)
"""Codes of OAuth, and some that are found besides, which say that it will not work without other credentials or a person."""
_HEADERS: Final = {"Accept-Encoding": "identity", "Accept": "application/json"}
_FORM: Final = {**_HEADERS, "Content-Type": "application/x-www-form-urlencoded"}
_KEYS: Final = ((RSAKey, "RS256"), (ECKey, "ES256"))


class _TooLongError(httpx2.TransportError):
    """More was answered than is read."""


class _Bounded(httpx2.AsyncByteStream):
    """A body of which no more than so much is read."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            size += len(piece)
            if size > _BYTES:
                raise _TooLongError("It answers with more than is read.")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Transport(httpx2.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if "content-encoding" in response.headers:
            await response.aclose()  # a small body could become a large one
            raise _TooLongError("It answers with what was not asked for.")
        response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response


class OAuthHttp:
    """Whoever asks authorization servers on behalf of one upstream."""

    def __init__(self, name: str, session: httpx2.AsyncClient, *, local: bool) -> None:
        self.name = name
        self._session = session
        self._local = local

    def check(self, url: str) -> str:
        """Return an address if it is one to which secrets may go: over TLS, or on this machine if the upstream is there, too.

        Raises:
            LoginError: It is not.
        """
        try:
            parts = urlsplit(url)
            fits = parts.scheme == "https" or (parts.scheme == "http" and self._local and is_local(url))
            fits = fits and bool(parts.hostname) and "@" not in parts.netloc and url.isprintable() and " " not in url
        except ValueError:
            fits = False
        if not fits:
            raise LoginError(f"'{self.name}' wants a login at '{_shown(url)}', which is not safe: only 'https' addresses are.")
        return url

    async def challenge_of(self, url: str, headers: Mapping[str, str], *, method: str) -> tuple[int, str]:
        """Return the status and the challenge with which the upstream refuses a stranger.

        Raises:
            LoginError: It cannot be reached.
        """
        body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}' if method == "POST" else None
        shown = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json", **headers}
        try:
            async with self._session.stream(method, url, headers=shown, content=body) as response:
                return response.status_code, ", ".join(response.headers.get_list("www-authenticate"))
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            raise self._failure(url, error) from error

    async def paper(self, url: str, kind: type[T]) -> T | None:
        """Return what is published at an address, or nothing if that is not there.

        Raises:
            LoginError: The server is out of order, or the address not safe.
        """
        response = await self._send("GET", url)
        _in_order(response)
        if response.status_code != _OK:
            return None
        try:
            return msgspec.json.decode(response.content, type=kind, strict=False)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    async def register(self, url: str, wish: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a server says to our wish to be registered.

        Raises:
            LoginError: It refuses.
        """
        response = await self._send("POST", url, json=dict(wish))
        try:
            answer: Any = msgspec.json.decode(response.content)
        except (msgspec.DecodeError, RecursionError):
            answer = None
        if response.status_code not in {200, 201} or not isinstance(answer, dict):
            said = cast("dict[str, Any]", answer).get("error_description") if isinstance(answer, dict) else None
            why = f": {str(said)[:200].removesuffix('.')}" if said else ""
            raise LoginError(f"'{_shown(url)}' did not register us, but answered with status {response.status_code}{why}.")
        return cast("dict[str, Any]", answer)

    async def token(self, url: str, client: Client, *, key: str | None = None, **fields: str) -> Mapping[str, Any]:
        """Return what a token endpoint answers to a request with these fields.

        Raises:
            LoginError: It refuses.
        """
        async with self._library(client, key) as library:
            return await self._called(url, library.fetch_token(self.check(url), headers=_FORM, **fields))

    async def revoke(self, url: str, client: Client, token: str) -> None:
        """Have a token revoked.

        Raises:
            LoginError: It is not.
        """
        async with self._library(client, None) as library:
            response = await self._called(url, library.revoke_token(self.check(url), token=token, headers=_FORM))
        if response.status_code != _OK:
            raise LoginError(f"'{_shown(url)}' did not revoke the token, but answered with status {response.status_code}.")

    def address(self, url: str, client: Client, *, verifier: str, **fields: str) -> str:
        """Return the address at which a person signs in.

        Raises:
            LoginError: It is not safe.
        """
        challenge: str = _create_s256_code_challenge(verifier)
        proof = {"code_challenge": challenge, "code_challenge_method": "S256"}
        address: str = _prepare_grant_uri(self.check(url), client.client_id, "code", **proof, **fields)
        return address

    @asynccontextmanager
    async def _library(self, client: Client, key: str | None) -> AsyncGenerator[Any]:
        """Return the library's client, with our ways of proving who we are."""
        library: Any = _OAuthClient(
            client_id=client.client_id,
            client_secret=_imported(key)[0] if key else client.client_secret,
            token_endpoint_auth_method=client.method,
            revocation_endpoint_auth_method=client.method,
            transport=_Transport(verify=tls_context()),
            timeout=_SECONDS,
            trust_env=False,
        )
        library.register_client_auth_method(("client_secret_basic", _show_basic))
        library.register_compliance_hook("access_token_response", _in_order)
        if key:
            library.register_client_auth_method(_PrivateKeyJWT(client.issuer, alg=_imported(key)[1]))
        async with library:
            yield library

    async def _called(self, url: str, work: Any) -> Any:
        try:
            return await work
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise LoginError(self._failure(url, error).message, passing=True) from error
        except LoginError:
            raise
        except Exception as error:
            code = str(getattr(error, "error", "") or "no reason")[:80]
            said = str(getattr(error, "description", "") or "")[:200].removesuffix(".")
            words = f"{code}: {said}" if said else code
            raise LoginError(f"'{_shown(url)}' gave no token ({words}).", passing=_FINAL.fullmatch(code) is None) from error

    async def _send(self, method: str, url: str, **more: Any) -> httpx2.Response:
        try:
            return await self._session.request(method, self.check(url), **more)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._failure(url, error) from error

    def _failure(self, url: str, error: Exception) -> LoginError:
        if isinstance(error, _TooLongError):
            return LoginError(f"'{_shown(url)}' cannot be understood. {error}")
        return LoginError(f"'{_shown(url)}' cannot be asked: {type(error).__name__}.", passing=True)


@asynccontextmanager
async def open_http(name: str, url: str) -> AsyncGenerator[OAuthHttp]:
    """Open an asker for the upstream at an address."""
    transport = _Transport(verify=tls_context())
    async with httpx2.AsyncClient(headers=_HEADERS, transport=transport, timeout=_SECONDS, trust_env=False) as session:
        yield OAuthHttp(name, session, local=is_local(url))


def is_local(url: str) -> bool:
    """Return whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _shown(url: str) -> str:
    """Return an address as people may see it, without what may be secret."""
    return url.partition("?")[0][:200]


def _in_order(response: httpx2.Response) -> httpx2.Response:
    """Return a response unless it says that the server is out of order, whatever else it says."""
    status = response.status_code
    if status >= _SERVER_ERROR or status == _TOO_MANY:
        raise LoginError(f"'{_shown(str(response.url))}' answered with status {status}.", passing=True)
    return response


def _imported(key: str) -> tuple[Any, str]:
    """Return a private key, and what it signs with."""
    for kind, algorithm in _KEYS:
        try:
            return kind.import_key(key), algorithm
        except (JoseError, ValueError):
            continue
    raise LoginError("The 'private_key' of the login is no key that is known here; it is written in PEM.")


def _show_basic(client: Any, _method: str, uri: str, headers: Any, body: Any) -> tuple[str, Any, Any]:
    """Show id and secret in a header; the standard wants both escaped first, which the library leaves out."""
    pair = f"{quote(client.client_id, safe='')}:{quote(client.client_secret or '', safe='')}"
    headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
    return uri, headers, body
