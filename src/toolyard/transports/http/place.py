"""Places: an endpoint as clients know it, and where they are told whom to ask for credentials."""

from typing import Final

import msgspec

from toolyard.serving import Serving
from toolyard.transports.http.asgi import Target

__all__ = ["Place", "endpoint_asked_about", "place_of"]

_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"


class Place(msgspec.Struct, frozen=True):
    """The address of an endpoint: where the server is known, and the path there."""

    base: str
    path: str

    @property
    def resource(self) -> str:
        """Return the whole address."""
        return self.base + self.path

    @property
    def metadata(self) -> str:
        """Return where the endpoint's metadata lie: below the server's own address, because what is beside it may be another's."""
        return f"{self.base}{_WELL_KNOWN}{self.path}"


def place_of(target: Target, path: str, serving: Serving) -> Place:
    """Return the endpoint at a path, as whoever sent the request knows it."""
    if serving.public_url is not None:
        return Place(serving.public_url.rstrip("/"), path)
    host = target.headers.get(b"host", b"localhost").decode("latin-1")
    return Place(f"{target.scheme}://{host}{target.root}", path)


def endpoint_asked_about(target: Target, default: str) -> str | None:
    """Return the path of the endpoint whose metadata are asked for, or nothing if something else is."""
    path = target.path
    if target.method != "GET" or (path != _WELL_KNOWN and not path.startswith(f"{_WELL_KNOWN}/")):
        return None
    return path[len(_WELL_KNOWN) :] or default
