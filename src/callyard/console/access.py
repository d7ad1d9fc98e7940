"""Who may use the console: people who read it, and people who may act in it.

On a loopback address without authentication everybody may read lists and figures. Elsewhere that needs the cookie of a
login: with the printed address, or with the credentials of an operator. Browsers send a cookie to every port of a host,
so any program on this machine may get it. Contents and changes need the secret of the login, too. A browser gets it
once, in the answer to the login, and keeps it in `localStorage`, which only pages of this port can read.
"""

import hmac
import logging
import secrets
import time
from collections.abc import Callable
from math import inf
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from callyard._internal.addresses import is_loopback, origin_of
from callyard._internal.logfmt import log_value
from callyard.config.settings import Serving
from callyard.dispatch.call import Caller
from callyard.model.profile import Profile
from callyard.policy.approvals import local_user
from callyard.transports.auth import Authenticator, IssuerUnreachableError, Refusal, ReplaceableAuthenticator
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import Header

__all__ = ["CSRF_HEADER", "SECRET_HEADER", "Access", "LoggedIn", "Person", "is_local"]

CSRF_HEADER: Final = b"x-csrf-token"
SECRET_HEADER: Final = b"x-console-secret"
_LIFETIME_S: Final = 12 * 3600.0
_MAX_LOGINS: Final = 1000
_log = logging.getLogger(__name__)


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who looks at the console."""

    identity: str = ""
    """Who decides and calls; empty for somebody who only reads."""
    login: str = ""
    """The id of the login, which is in the cookie; empty unless the request has its secret, too."""
    csrf_token: str = ""
    """What every change must repeat; another site cannot read it."""
    operator: Caller | None = None
    """Whose credentials were given; nothing for somebody with the printed address, who may do what the commands can."""

    @property
    def can_act(self) -> bool:
        """Return whether the person may see contents, run, approve and change."""
        return bool(self.login)

    @property
    def caller(self) -> Caller:
        """Return the caller of tools that the person runs."""
        caller = self.operator or Caller(identity=self.identity)
        return msgspec.structs.replace(caller, scope=f"console:{self.login[:8]}", client="console")

    def check_token(self, token: str) -> None:
        """Check the token of a change.

        Raises:
            RefusedError: 403. The request may come from a page of another site, or of another login.
        """
        if not hmac.compare_digest(token.encode(), self.csrf_token.encode()):
            raise RefusedError(403, "The page is too old for this. Reload it and try again.")


_READER: Final = Person()


class LoggedIn(NamedTuple):
    """A new login: the headers that set its cookie, and its secret."""

    headers: tuple[Header, ...]
    secret: str


class _Login(msgspec.Struct, frozen=True):
    person: Person
    secret: str
    expires_at: float
    profile: str | None = None
    """The profile of the credentials, looked up for each request, because settings may change it."""
    credentials: str = ""
    """What the person logged in with, to be checked again when the accepted credentials change."""


class Access:
    """The logins of one server."""

    def __init__(
        self,
        serving: Serving,
        authenticator: Authenticator | None,
        *,
        is_operator: Callable[[Caller], bool],
        find_profile: Callable[[str], Profile],
        token: str = "",
    ) -> None:
        self.token = token or secrets.token_urlsafe(24)
        """The token in the address that is printed at the start."""
        self.base = "" if serving.public_url is None else urlsplit(serving.public_url).path.rstrip("/")
        """The path below which a proxy serves the console."""
        self.is_open = is_local(serving) and authenticator is None
        """Whether everybody who reaches the server may read."""
        self.takes_credentials = authenticator is not None
        self._authenticator = authenticator
        self._is_operator = is_operator
        self._find_profile = find_profile
        self._public_origin = "" if serving.public_url is None else origin_of(serving.public_url)
        self._logins: dict[str, _Login] = {}
        if isinstance(authenticator, ReplaceableAuthenticator):
            authenticator.subscribe(self._recheck)

    async def _recheck(self, prefix: str) -> None:
        """End the logins whose credentials are no longer accepted."""
        for login_id, login in tuple(self._logins.items()):
            if not login.credentials or self._authenticator is None or not login.person.identity.startswith(prefix):
                continue
            try:
                await self._authenticator.admit(f"Bearer {login.credentials}", None)
            except (Refusal, IssuerUnreachableError):
                self._logins.pop(login_id, None)

    def person_of(self, request: Request) -> Person | None:
        """Return who sent a request, or None if they may not even read; without the secret they only read."""
        login = self._logins.get(_cookie(request))
        if login is None or time.monotonic() >= login.expires_at:
            return _READER if self.is_open else None
        has_secret = hmac.compare_digest(request.headers.get(SECRET_HEADER, b""), login.secret.encode())
        person = login.person if has_secret else Person(operator=login.person.operator)
        if person.operator is None or login.profile is None:
            return person
        try:
            operator = msgspec.structs.replace(person.operator, profile=self._find_profile(login.profile))
        except RefusedError:  # the settings have the profile no longer
            del self._logins[_cookie(request)]
            return _READER if self.is_open else None
        return msgspec.structs.replace(person, operator=operator)

    def check_sender(self, request: Request, person: Person | None) -> Person:
        """Return the person who may change something, from the headers alone: others do not get their bodies read.

        Raises:
            RefusedError: 403. The request has no login, or it comes from a page of another site.
        """
        if person is None or not person.can_act:
            raise RefusedError(403, "This needs a login. Open the address that the server printed when it started.")
        self.check_origin(request)
        return person

    def check_origin(self, request: Request) -> None:
        """Check that a page of this server sent a request.

        Raises:
            RefusedError: 403.
        """
        origin = request.headers.get(b"origin")
        is_foreign = origin is not None and origin.decode("latin-1") != self._own_origin(request)
        if is_foreign or request.headers.get(b"sec-fetch-site", b"same-origin") != b"same-origin":
            raise RefusedError(403, "A page of another site cannot change anything here.")

    def _own_origin(self, request: Request) -> str:
        """Return the origin of the pages: behind a proxy only the settings know its scheme."""
        return self._public_origin or origin_of(f"{request.scheme}://{request.text(b'host')}")

    def log_in_with_token(self, request: Request, token: str) -> LoggedIn | None:
        """Log a person in, or return None if the token is wrong."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            _log.warning("console_login_refused how=token")
            return None
        return self._log_in(request, local_user())

    async def log_in_with_credentials(self, request: Request, credentials: str) -> LoggedIn | None:
        """Log a person in, or return None if these are not the credentials of an operator.

        Raises:
            RefusedError: 503 if they cannot be checked now.
        """
        if self._authenticator is None or not credentials.isascii() or not credentials.isprintable():
            return None
        try:
            admitted = await self._authenticator.admit(f"Bearer {credentials}", None)
        except Refusal:
            _log.warning("console_login_refused how=credentials")
            return None
        except IssuerUnreachableError as error:
            raise RefusedError(503, error.message) from None
        operator = Caller(identity=admitted.identity, claims=admitted.claims)
        if not self._is_operator(operator):
            identity = log_value(admitted.identity)
            _log.warning("console_login_refused how=credentials identity=%s reason=no_operator", identity)
            return None
        seconds = min(_LIFETIME_S, admitted.claims.get("exp", inf) - time.time())
        return self._log_in(
            request, admitted.identity, operator, profile=admitted.profile, seconds=seconds, credentials=credentials
        )

    def log_out(self, request: Request) -> tuple[Header, ...]:
        """End the login of a request, and return the headers that remove its cookie."""
        self._logins.pop(_cookie(request), None)
        return (self._set_cookie(request, "", 0),)

    def _log_in(
        self,
        request: Request,
        identity: str,
        operator: Caller | None = None,
        *,
        profile: str | None = None,
        seconds: float = _LIFETIME_S,
        credentials: str = "",
    ) -> LoggedIn:
        now = time.monotonic()
        for login_id, login in tuple(self._logins.items()):
            if now >= login.expires_at or len(self._logins) >= _MAX_LOGINS:
                del self._logins[login_id]
        login_id = secrets.token_urlsafe(32)
        person = Person(identity=identity, login=login_id, csrf_token=secrets.token_urlsafe(24), operator=operator)
        secret = secrets.token_urlsafe(32)
        self._logins[login_id] = _Login(person, secret, now + seconds, profile, credentials)
        _log.info("console_login identity=%s", log_value(identity))
        return LoggedIn((self._set_cookie(request, login_id, int(seconds)),), secret)

    def _set_cookie(self, request: Request, value: str, seconds: int) -> Header:
        """Return the header that sets the cookie.

        `Lax`, because a link from a chat or a mail must find the person logged in.
        """
        secure = "; Secure" if self._own_origin(request).startswith("https:") else ""
        path = f"{self.base or request.root}/console"
        text = f"{_cookie_name(request)}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}"
        return (b"set-cookie", text.encode("latin-1"))


def is_local(serving: Serving) -> bool:
    """Return whether only browsers of this machine reach the server."""
    return serving.socket is None and is_loopback(serving.host) and serving.public_url is None


def _cookie_name(request: Request) -> str:
    """Return the name of the cookie, with the port: browsers send cookies to every port of a host."""
    port = request.text(b"host").rpartition(":")[2]
    return f"callyard-{port if port.isdecimal() else 'console'}"


def _cookie(request: Request) -> str:
    """Return the value of our cookie; others may have values that the standard library refuses to parse."""
    pairs = (pair.strip().partition("=") for pair in request.text(b"cookie").split(";"))
    name = _cookie_name(request)
    return next((value for found, _, value in pairs if found == name), "")
