"""The issuer: where its keys are, and when they are read anew.

It loads PyJWT and an HTTP client, so only those who check tokens import it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from http.client import HTTPException, HTTPResponse
from typing import Any, Final, cast
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from jwt.types import Options

from toolyard._internal.logfmt import log_value
from toolyard.state.store import Clock
from toolyard.transports.auth.authenticator import IssuerUnreachableError, Refusal, UnreadError, check_address, is_loopback

__all__ = ["ALGORITHMS", "MAX_BYTES", "FixedKeys", "Issuer", "KeySet", "Verifier", "claims_of", "fetch_object", "header_of"]


MAX_BYTES: Final = 256 * 1024
_PIECE: Final = 16 * 1024


class _StayHere(HTTPRedirectHandler):
    """Follows nothing: what was configured is what is trusted."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return nothing, which makes a redirect a failure."""


def fetch_object(address: str, *, seconds: float, clock: Clock = time.monotonic) -> dict[str, Any]:
    """Return the JSON object at an address that was checked before.

    Raises:
        UnreadError: There is none, or it is too large or too slow.
    """
    end = clock() + seconds
    request = Request(address, headers={"Accept": "application/json", "User-Agent": "toolyard"})  # noqa: S310 - checked before
    try:
        with cast("HTTPResponse", _opener(address).open(request, timeout=seconds)) as response:
            body = _read(response, end, clock=clock)
    except HTTPError as error:
        error.close()
        raise UnreadError("status", f"it answers with status {error.code}") from None
    except (OSError, HTTPException) as error:
        if isinstance(getattr(error, "reason", error), TimeoutError):
            raise _too_slow() from None
        raise UnreadError("unreachable", "it cannot be reached") from None
    return _parse(body)


def _opener(address: str) -> OpenerDirector:
    # What runs on this machine is never behind the proxy that leads out of it.
    local = is_loopback(urlsplit(address).hostname or "")
    return build_opener(_StayHere, *([ProxyHandler({})] if local else []))


def _read(response: HTTPResponse, end: float, *, clock: Clock) -> bytes:
    body = bytearray()
    while piece := response.read1(_PIECE):
        body += piece
        if len(body) > MAX_BYTES:
            raise UnreadError("too_large", "it answers with too large a document")
        if clock() > end:
            raise _too_slow()
    return bytes(body)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnreadError("malformed", "it answers with something that is no JSON object") from None


def _too_slow() -> UnreadError:
    return UnreadError("timeout", "it takes too long to answer")


_FITS: Final[dict[str, tuple[str, tuple[str | None, ...]]]] = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("RSA", (None,))),
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}
"""The type and curves of the keys that each algorithm takes; all are asymmetric, so that what checks a token cannot make one."""
ALGORITHMS: Final = tuple(_FITS)
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
    """The keys of a JWKS document that can check signatures; the others in it are passed over."""

    def __init__(self, document: object, algorithms: Iterable[str]) -> None:
        entries = cast("dict[str, object]", document).get("keys") if isinstance(document, dict) else None
        if not isinstance(entries, list):
            raise ValueError("A set of keys must be an object with a list of 'keys'.")  # noqa: TRY004 - a wrong document, not a wrong type
        self.entries = cast("list[object]", entries)
        usable = [cast("dict[str, Any]", entry) for entry in self.entries if isinstance(entry, dict)]
        self._keys = [key for entry in usable for algorithm in algorithms for key in _keys_of(entry, algorithm)]

    def __len__(self) -> int:
        """Return how many ways there are to check a signature."""
        return len(self._keys)

    def find(self, algorithm: str, kid: str | None) -> list[jwt.PyJWK]:
        """Return the keys of that algorithm and id; every id will do for a token that names none."""
        return [key for key in self._keys if key.algorithm_name == algorithm and kid in (None, key.key_id)]


def _keys_of(entry: dict[str, Any], algorithm: str) -> list[jwt.PyJWK]:
    """Return the entry as a key of the algorithm, or none if it is not a public key which may be used so."""
    kind, curves = _FITS[algorithm]
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
        found = [jwt.PyJWK(entry, algorithm)] if fits else []
    except (jwt.PyJWTError, ValueError, TypeError):
        return []
    return [key for key in found if not isinstance(key.key, RSAPublicKey) or key.key.key_size >= _RSA_BITS]


def header_of(token: str) -> tuple[object, str | None]:
    """Return the algorithm and the key id that a token names, which nothing has proved yet.

    Raises:
        Refusal: It is no JWT.
    """
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise Refusal(_NO_JWT, error="invalid_token") from None
    return header.get("alg"), header.get("kid")


def claims_of(token: str, keys: Iterable[jwt.PyJWK], *, issuer: str, audience: Sequence[str]) -> dict[str, Any] | None:
    """Return the claims of a token if one of the keys signed it, checked but for what `Expectation` judges.

    Raises:
        Refusal: It is signed, and by or for somebody else.
    """
    for key in keys:
        try:
            return jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name],
                issuer=issuer,
                audience=audience,
                options=_OPTIONS,
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            # What the library says may repeat parts of the token, so it goes no further.
            raise Refusal(_sentence(error), error="invalid_token") from None
    return None


def _sentence(error: jwt.PyJWTError) -> str:
    return next((sentence for kind, sentence in _SENTENCES if isinstance(error, kind)), _NO_JWT)


_log = logging.getLogger(__name__)
_FRESH: Final = 600.0
"""How long keys are used before they are read again."""
_PAUSE: Final = 30.0
"""How long the issuer is left alone after it was asked, whatever tokens come, while there are keys."""
_PAUSE_WITHOUT_KEYS: Final = 5.0
"""The same while there are none, and so nobody can come in."""


class FixedKeys:
    """Keys that were given once and for all."""

    def __init__(self, keys: KeySet) -> None:
        self._keys = keys

    async def keys(self) -> KeySet:
        """Return the keys."""
        return self._keys

    async def newer_than(self, seen: KeySet) -> KeySet | None:  # noqa: ARG002 - the shape of an issuer
        """Return nothing: there are no others."""
        return None


class Issuer:
    """Reads the keys of an issuer when they are needed, and keeps the last ones if it cannot.

    `changed` is called when the issuer publishes other keys than before.
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
        self._read_at = 0.0
        self._asked_at: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._failure = ""

    async def keys(self) -> KeySet:
        """Return the keys, read again if they are old.

        Raises:
            IssuerUnreachableError: They were never read, and cannot be now.
        """
        if self._keys is None or self._clock() - self._read_at >= _FRESH:
            await self._ask()
        if self._keys is None:
            raise IssuerUnreachableError(
                f"The keys of the issuer '{self._name}' cannot be read: {self._failure}.", retry_after=int(self._pause)
            )
        return self._keys

    async def newer_than(self, seen: KeySet) -> KeySet | None:
        """Return the keys that took the place of these, asking the issuer unless it was asked a moment ago."""
        if self._keys is seen:
            await self._ask()
        return None if self._keys is seen else self._keys

    @property
    def _pause(self) -> float:
        return _PAUSE_WITHOUT_KEYS if self._keys is None else _PAUSE

    async def _ask(self) -> None:
        """Read the keys unless that was tried a moment ago; all who want them wait for the same answer."""
        if self._reading is None or self._reading.done():
            if self._asked_at is not None and self._clock() - self._asked_at < self._pause:
                return
            self._asked_at = self._clock()
            self._reading = asyncio.create_task(self._read())
        # Shielded, because one caller who goes away must not take the answer from the others.
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(self._deadline):
                keys = await _in_thread(self._fetch)
        except (UnreadError, TimeoutError) as error:
            failure = error if isinstance(error, UnreadError) else UnreadError("timeout", "it takes too long to answer")
            self._failure = failure.text
            kept = 0 if self._keys is None else len(self._keys)
            _log.warning("issuer_unreachable issuer=%s reason=%s keys_kept=%d", log_value(self._name), failure.reason, kept)
            return
        self._read_at = self._clock()
        if self._keys is None or keys.entries != self._keys.entries:
            self._keys = keys
            self._changed()

    def _fetch(self) -> KeySet:
        end = time.monotonic() + self._deadline
        address = self._jwks or self._discover(end)
        document = fetch_object(address, seconds=_left(end))
        try:
            return KeySet(document, self._algorithms)
        except ValueError:
            raise UnreadError("malformed", "it answers with something that is no set of keys") from None

    def _discover(self, end: float) -> str:
        """Return where the issuer says that its keys are."""
        failure = UnreadError("unreachable", "it cannot be reached")
        for place in _places(self._name):
            try:
                metadata = fetch_object(place, seconds=_left(end))
                return _address_in(metadata, self._name)
            except UnreadError as error:
                failure = error
        raise failure


def _places(issuer: str) -> list[str]:
    """Return where the metadata of an issuer may be: RFC 8414 puts the path behind, others in front."""
    parts = urlsplit(issuer)
    origin, path = f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/")
    server, openid = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"
    return list(dict.fromkeys([f"{origin}{server}{path}", f"{origin}{path}{server}", f"{origin}{path}{openid}"]))


def _address_in(metadata: dict[str, object], issuer: str) -> str:
    if metadata.get("issuer") != issuer:
        raise UnreadError("wrong_issuer", "its metadata names another issuer")
    address = metadata.get("jwks_uri")
    try:
        check_address("jwks_uri", str(address))
    except ValueError:
        raise UnreadError("malformed", "its metadata has no 'jwks_uri' that can be trusted") from None
    return str(address)


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)


async def _in_thread(work: Callable[[], KeySet]) -> KeySet:
    """Return what the work returns, done in a thread that holds up nothing if it never ends."""
    outcome: Future[KeySet] = Future()
    outcome.set_running_or_notify_cancel()  # so that who no longer waits does not make its end an error

    def run() -> None:
        try:
            outcome.set_result(work())
        except Exception as error:  # noqa: BLE001 - who waits gets it, whatever it is
            outcome.set_exception(error)

    threading.Thread(target=run, name="toolyard-issuer", daemon=True).start()
    return await asyncio.wrap_future(outcome)


class Verifier:
    """Checks signature, issuer and audience of tokens; their times and scopes are for others to judge."""

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
        check_address("issuer", issuer)
        self._issuer = issuer
        self._audience = tuple(audience)
        self._algorithms = tuple(algorithms) or ALGORITHMS
        wrong = [name for name in self._algorithms if name not in ALGORITHMS]
        if wrong:
            raise ValueError(f"The algorithm '{wrong[0]}' cannot be used: choose among {', '.join(ALGORITHMS)}.")
        if jwks is None or isinstance(jwks, str):
            if jwks is not None:
                check_address("jwks", jwks)
            self._source = Issuer(issuer, jwks, algorithms=self._algorithms, deadline=deadline, changed=changed, clock=clock)
        else:
            self._source = FixedKeys(_usable(dict(jwks), self._algorithms))

    async def claims(self, token: str) -> dict[str, Any]:
        """Return what the token claims.

        Raises:
            Refusal: It is not signed by the issuer for this audience.
            IssuerUnreachableError: The keys of the issuer cannot be read.
        """
        algorithm, kid = header_of(token)
        if not isinstance(algorithm, str) or algorithm not in self._algorithms:
            raise Refusal("The token is signed with an algorithm that is not allowed.", error="invalid_token")
        keys = await self._source.keys()
        found = self._check(token, keys, algorithm=algorithm, kid=kid)
        if found is None and (kid is None or not keys.find(algorithm, kid)):
            newer = await self._source.newer_than(keys)
            found = None if newer is None else self._check(token, newer, algorithm=algorithm, kid=kid)
        if found is None:
            raise Refusal("The token is not signed with a key of the issuer.", error="invalid_token")
        return found

    def _check(self, token: str, keys: KeySet, *, algorithm: str, kid: str | None) -> dict[str, Any] | None:
        return claims_of(token, keys.find(algorithm, kid), issuer=self._issuer, audience=self._audience)


def _usable(document: dict[str, Any], algorithms: Sequence[str]) -> KeySet:
    keys = KeySet(document, algorithms)
    if not len(keys):
        raise ValueError("The 'jwks' has no public key that fits one of the algorithms.")
    return keys
