"""The keys of an OAuth issuer: where they are, when they are fetched, and the check of signatures with them.

It loads PyJWT, so only servers that check tokens import it.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from typing import Any, Final, cast
from urllib.parse import urlsplit

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from callyard._internal.addresses import is_loopback
from callyard._internal.logfmt import log_value
from callyard.state.store import Clock
from callyard.transports.auth.authenticator import FetchError, IssuerUnreachableError, Refusal, check_url

__all__ = ["ALGORITHMS", "MAX_BYTES", "Issuer", "KeySet", "Verifier", "fetch_object"]


MAX_BYTES: Final = 256 * 1024
_HEADERS: Final = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "callyard"}
_tls_context: Final = cache(ssl.create_default_context)  # reading the certificates takes tens of milliseconds
_log = logging.getLogger(__name__)


async def fetch_object(url: str) -> dict[str, Any]:
    """Return the JSON object at a URL that was checked before; the caller sets the timeout.

    Only what was configured is trusted: redirects are not followed. An issuer on this machine is never behind a proxy.

    Raises:
        FetchError: There is none, or it is too large.
    """
    await asyncio.to_thread(import_module, "httpx2")  # the import takes so long that other requests would have to wait
    import httpx2  # noqa: PLC0415 - the same: it would delay the start of the server

    body = bytearray()
    try:
        async with (
            httpx2.AsyncClient(
                trust_env=not is_loopback(urlsplit(url).hostname or ""), verify=_tls_context(), timeout=None
            ) as client,
            client.stream("GET", url, headers=_HEADERS, follow_redirects=False) as response,
        ):
            if not response.is_success:
                raise FetchError("status", f"it answers with status {response.status_code}")
            async for piece in response.aiter_raw():  # raw, because a small compressed body may become a large one
                body += piece
                if len(body) > MAX_BYTES:
                    raise FetchError("too_large", "it answers with too large a document")
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError):
        raise FetchError("unreachable", "it cannot be reached") from None
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise FetchError("malformed", "it answers with something that is no JSON object") from None


_KEY_TYPES: Final[dict[str, tuple[str, tuple[str | None, ...]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", (None,))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""The key type and curves of each algorithm; all are asymmetric, so that our server cannot issue tokens."""
ALGORITHMS: Final = tuple(_KEY_TYPES)
_RSA_BITS: Final = 2048
_OPTIONS: Final[Options] = {
    "require": ["iss", "aud", "exp"],
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
}
_NO_JWT: Final = "The token is not a signed JWT."
_SENTENCES: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.InvalidIssuerError, "The token comes from another issuer."),
    (jwt.InvalidAudienceError, "The token is meant for another audience."),
    (jwt.MissingRequiredClaimError, "The token lacks one of the claims 'iss', 'aud' and 'exp'."),
)


class KeySet:
    """The keys of a JWKS document that can check signatures; the others in it are ignored."""

    def __init__(self, document: object, algorithms: Iterable[str]) -> None:
        entries = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("A set of keys must be an object with a list of 'keys'.")  # noqa: TRY004 - a wrong document, not a wrong type
        self.entries = cast("list[object]", entries)
        usable = [cast("dict[str, Any]", entry) for entry in self.entries if isinstance(entry, dict)]
        self._keys = [key for entry in usable for algorithm in algorithms for key in _keys_of(entry, algorithm)]

    def __len__(self) -> int:
        """Return the number of pairs of a key and an algorithm."""
        return len(self._keys)

    def find(self, algorithm: str, kid: str | None) -> list[jwt.PyJWK]:
        """Return the keys of an algorithm and an id; without an id, all of the algorithm."""
        return [key for key in self._keys if key.algorithm_name == algorithm and kid in (None, key.key_id)]


def _keys_of(entry: dict[str, Any], algorithm: str) -> list[jwt.PyJWK]:
    """Return the entry as a key of the algorithm; nothing unless it is a public key that may be used so."""
    kind, curves = _KEY_TYPES[algorithm]
    operations: object = entry.get("key_ops")
    fits = (
        entry.get("kty") == kind
        and entry.get("crv") in curves
        and entry.get("alg") in (None, algorithm)
        and entry.get("use") in (None, "sig")
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
        and "d" not in entry
    )
    try:
        keys = [jwt.PyJWK(entry, algorithm)] if fits else []
    except (jwt.PyJWTError, ValueError, TypeError):
        return []
    return [key for key in keys if not isinstance(key.key, RSAPublicKey) or key.key.key_size >= _RSA_BITS]


_MAX_AGE_S: Final = 600.0
"""How long keys are used before they are fetched again."""
_PATIENCE_S: Final = 0.25
"""How long a token waits for newer keys while there are old ones."""
_MIN_INTERVAL_S: Final = 30.0
"""The shortest time between two requests to the issuer while there are keys, whatever tokens come."""
_MIN_INTERVAL_WITHOUT_KEYS_S: Final = 5.0
"""The same while there are none, and so every caller is refused."""


class Issuer:
    """Fetches the keys of an issuer when they are needed, and uses the last ones while it cannot.

    `changed` is called when the issuer publishes other keys.
    """

    def __init__(
        self,
        name: str,
        jwks: str | None,
        *,
        algorithms: Sequence[str],
        deadline: float,
        changed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        self._name = name
        self._jwks = jwks
        self._algorithms = tuple(algorithms)
        self._deadline = deadline
        self._changed = changed
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_at = 0.0
        self._asked_at: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._failure = ""

    async def keys(self) -> KeySet:
        """Return the keys, fetched again if they are old.

        Raises:
            IssuerUnreachableError: They were never fetched, and cannot be now.
        """
        if self._keys is None:
            await self._refresh()
        elif self._clock() - self._fetched_at >= _MAX_AGE_S and not self._is_fetching:
            # Only the first token waits for newer keys, and not for long: an issuer that hangs must not delay the
            # others.
            await asyncio.wait({asyncio.ensure_future(self._refresh())}, timeout=_PATIENCE_S)
        if self._keys is None:
            message = f"The keys of the issuer '{self._name}' cannot be read: {self._failure}."
            raise IssuerUnreachableError(message, retry_after=int(self._min_interval))
        return self._keys

    @property
    def _is_fetching(self) -> bool:
        return self._fetching is not None and not self._fetching.done()

    async def newer_than(self, seen: KeySet) -> KeySet | None:
        """Return newer keys than these, if there are any; the issuer is asked unless that was tried a moment ago."""
        if self._keys is seen:
            await self._refresh()
        return None if self._keys is seen else self._keys

    @property
    def _min_interval(self) -> float:
        return _MIN_INTERVAL_WITHOUT_KEYS_S if self._keys is None else _MIN_INTERVAL_S

    async def _refresh(self) -> None:
        """Fetch the keys unless that was tried a moment ago; concurrent callers share one request."""
        if not self._is_fetching:
            if self._asked_at is not None and self._clock() - self._asked_at < self._min_interval:
                return
            self._asked_at = self._clock()
            self._fetching = asyncio.create_task(self._fetch())
        if self._fetching is not None:
            # Shielded, because a caller that is cancelled must not cancel the request of the others.
            await asyncio.shield(self._fetching)

    async def _fetch(self) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                keys = await self._fetch_keys()
        except (FetchError, TimeoutError) as error:
            failure = error if isinstance(error, FetchError) else FetchError("timeout", "it takes too long to answer")
            self._failure = str(failure)
            facts = log_value(self._name), failure.reason, len(self._keys or ())
            _log.warning("issuer_unreachable issuer=%s reason=%s keys_kept=%d", *facts)
            return
        self._fetched_at = self._clock()
        if self._keys is None or keys.entries != self._keys.entries:
            self._keys = keys
            self._changed()

    async def _fetch_keys(self) -> KeySet:
        document = await fetch_object(self._jwks or await self._discover())
        try:
            return KeySet(document, self._algorithms)
        except ValueError:
            raise FetchError("malformed", "it answers with something that is no set of keys") from None

    async def _discover(self) -> str:
        """Return the URL of the keys from the issuer's metadata."""
        failure = FetchError("unreachable", "it cannot be reached")
        for url in _metadata_urls(self._name):
            try:
                return _jwks_uri(await fetch_object(url), self._name)
            except FetchError as error:
                failure = error
        raise failure


def _metadata_urls(issuer: str) -> list[str]:
    """Return the possible URLs of an issuer's metadata: RFC 8414 puts the path last, OpenID first."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    server, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    return list(dict.fromkeys([f"{origin}{server}{path}", f"{origin}{path}{server}", f"{origin}{path}{openid}"]))


def _jwks_uri(metadata: dict[str, object], issuer: str) -> str:
    if metadata.get("issuer") != issuer:
        raise FetchError("wrong_issuer", "its metadata names another issuer")
    url = metadata.get("jwks_uri")
    try:
        check_url("jwks_uri", str(url))
    except ValueError:
        raise FetchError("malformed", "its metadata has no 'jwks_uri' that can be trusted") from None
    return str(url)


class Verifier:
    """Checks signature, issuer and audience of tokens; `ClaimRules` checks their times and scopes."""

    def __init__(
        self,
        issuer: str,
        audience: Sequence[str],
        *,
        jwks: str | Mapping[str, Any] | None,
        algorithms: Sequence[str],
        deadline: float,
        changed: Callable[[], None],
        clock: Clock = time.monotonic,
    ) -> None:
        check_url("issuer", issuer)
        self._issuer = issuer
        self._audience = tuple(audience)
        self._algorithms = tuple(algorithms) or ALGORITHMS
        unknown = [name for name in self._algorithms if name not in ALGORITHMS]
        if unknown:
            raise ValueError(f"The algorithm '{unknown[0]}' cannot be used: choose among {', '.join(ALGORITHMS)}.")
        if isinstance(jwks, str):
            check_url("jwks", jwks)
        self._fixed_keys: KeySet | None = None
        if jwks is not None and not isinstance(jwks, str):
            self._fixed_keys = KeySet(dict(jwks), self._algorithms)
            if not len(self._fixed_keys):
                raise ValueError("The 'jwks' has no public key that fits one of the algorithms.")
        url = jwks if isinstance(jwks, str) else None
        self._source = Issuer(issuer, url, algorithms=self._algorithms, deadline=deadline, changed=changed, clock=clock)

    async def claims(self, token: str) -> dict[str, Any]:
        """Return the claims of a token.

        Raises:
            Refusal: It is not signed by the issuer for this audience.
            IssuerUnreachableError: The keys of the issuer cannot be fetched.
        """
        try:
            header = jwt.get_unverified_header(token)
        except jwt.PyJWTError:
            raise Refusal(_NO_JWT, error="invalid_token") from None
        algorithm, kid = header.get("alg"), header.get("kid")
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise Refusal("The token is signed with an algorithm that is not allowed.", error="invalid_token")
        keys = self._fixed_keys or await self._source.keys()
        claims = self._check(token, keys, algorithm=algorithm, kid=kid)
        if claims is None and not self._fixed_keys and (kid is None or not keys.find(algorithm, kid)):
            newer = await self._source.newer_than(keys)
            claims = None if newer is None else self._check(token, newer, algorithm=algorithm, kid=kid)
        if claims is None:
            raise Refusal("The token is not signed with a key of the issuer.", error="invalid_token")
        return claims

    def _check(self, token: str, keys: KeySet, *, algorithm: str, kid: str | None) -> dict[str, Any] | None:
        """Return the claims if one of the keys signed the token."""
        for key in keys.find(algorithm, kid):
            try:
                return jwt.decode(
                    token, key, algorithms=[algorithm], issuer=self._issuer, audience=self._audience, options=_OPTIONS
                )
            except jwt.InvalidSignatureError:
                continue
            except jwt.PyJWTError as error:
                # The library's message may repeat parts of the token, so it is dropped.
                sentence = next((text for kind, text in _SENTENCES if isinstance(error, kind)), _NO_JWT)
                raise Refusal(sentence, error="invalid_token") from None
        return None
