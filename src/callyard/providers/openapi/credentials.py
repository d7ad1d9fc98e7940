"""Puts the configured credentials of an API where its document says that they belong."""

from base64 import b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.operations import ApiOperation
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.link import NO_CREDENTIALS, Credentials, LinkError
from callyard.providers.upstream.settings import Login, UpstreamSettings

__all__ = ["ApiCredentials", "Applied", "login_settings"]

_OAUTH: Final = frozenset({"oauth2", "openIdConnect"})
_FLOWS: Final[Mapping[str, tuple[str, ...]]] = {
    "authorization_code": ("authorizationCode", "accessCode"),
    "client_credentials": ("clientCredentials", "application"),
}


class Applied(msgspec.Struct):
    """Credentials of one request: headers, and pairs of the query and of cookies that are written as they are."""

    headers: dict[str, str] = {}
    query: dict[str, str] = {}
    cookies: dict[str, str] = {}


def login_settings(name: str, settings: ApiSettings, document: Document) -> UpstreamSettings:
    """Return how to sign in at an API: as configured, with the addresses that its document names."""
    login = settings.login or Login()
    base_url = settings.base_url or (settings.document if settings.is_remote else f"https://{name}.invalid/")
    if login.token_url is not None or login.identity is not None:
        return UpstreamSettings(url=base_url, login=login)
    for scheme in map(as_object, document.components("securitySchemes").values()):
        flows: dict[str, Any] = as_object(scheme.get("flows")) or {str(scheme.get("flow")): scheme}
        for flow in (as_object(flows.get(name)) for name in _FLOWS.get(login.grant, ())):
            if scheme.get("type") == "oauth2" and isinstance(flow.get("tokenUrl"), str):
                changed = {
                    "token_url": flow["tokenUrl"],
                    "authorization_url": login.authorization_url or flow.get("authorizationUrl"),
                }
                return UpstreamSettings(url=base_url, login=msgspec.structs.replace(login, **changed))
    return UpstreamSettings(url=base_url, login=login)


class ApiCredentials:
    """The credentials of one API, from its configuration only."""

    def __init__(self, name: str, settings: ApiSettings, oauth: Credentials = NO_CREDENTIALS) -> None:
        self._name = name
        self._settings = settings
        self._configured = settings.credentials
        self.oauth = oauth
        self._schemes: Mapping[str, Any] = {}

    def use(self, document: Document) -> None:
        """Take the security schemes of a document."""
        self._schemes = {
            name: scheme for name, scheme in document.components("securitySchemes").items() if isinstance(scheme, dict)
        }

    @property
    def unknown(self) -> list[str]:
        """Return the configured names that the document does not know."""
        return sorted(set(self._configured) - set(self._schemes))

    def hint(self) -> str:
        """Return what an operator can do about missing credentials."""
        if self.oauth is not NO_CREDENTIALS:
            return f"Run 'callyard login {self._name}'."
        names = sorted(self._schemes) or ["NAME"]
        return f"Ask whoever runs the yard to set 'credentials.{names[0]}' in '[apis.{self._name}]'."

    def _has(self, name: str) -> bool:
        is_oauth = as_object(self._schemes.get(name)).get("type") in _OAUTH and self.oauth is not NO_CREDENTIALS
        return name in self._schemes and (name in self._configured or is_oauth)

    def _chosen(self, operation: ApiOperation) -> list[str]:
        """Return the schemes to use: the first alternative whose credentials are all there."""
        alternatives = operation.security()
        if alternatives is None:  # many documents define schemes and forget to require them
            return [name for name in self._schemes if self._has(name)]
        usable = [one for one in alternatives if one and all(self._has(name) for name in one)]
        return list(usable[0]) if usable else []

    async def of(self, operation: ApiOperation) -> Applied:
        """Return the credentials of a request.

        Raises:
            LinkError: A person must sign in first.
        """
        applied = Applied()
        for name in self._chosen(operation):
            scheme, value = as_object(self._schemes[name]), self._configured.get(name)
            if value is None:
                applied.headers |= await self._signed_in()
            else:
                _put(applied, scheme, value)
        return applied

    async def _signed_in(self) -> Mapping[str, str]:
        headers = self.oauth.ready()
        if not headers:
            # a challenge lets it get a first token by itself, where no person is needed
            await self.oauth.renew("" if headers is None else "Bearer")
            headers = self.oauth.ready()
        if not headers:
            raise LinkError("unauthenticated", f"'{self._name}' requires a login. {self.hint()}")
        return headers

    async def refuse(self, challenge: str) -> bool:
        """Renew credentials that were refused; return whether there are others now."""
        if self.oauth is NO_CREDENTIALS:
            return False
        before = self.oauth.ready()
        await self.oauth.renew(challenge or "Bearer")
        return self.oauth.ready() != before


def _put(applied: Applied, scheme: Mapping[str, Any], value: str) -> None:
    kind = scheme.get("type")
    if kind == "apiKey":
        places = {"query": applied.query, "cookie": applied.cookies}
        places.get(str(scheme.get("in")), applied.headers)[str(scheme.get("name") or "Authorization")] = value
        return
    http_scheme = "basic" if kind == "basic" else str(scheme.get("scheme") or "bearer")
    if http_scheme.lower() == "basic":
        applied.headers["Authorization"] = f"Basic {b64encode(value.encode()).decode()}"
    else:
        word = "Bearer" if http_scheme.lower() == "bearer" else http_scheme
        applied.headers["Authorization"] = f"{word} {value}"
