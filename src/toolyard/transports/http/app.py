"""The ASGI application: which request goes where, and what is refused before it is read."""

from typing import Any, Final

from toolyard.caller import ANYONE
from toolyard.conversation import Front
from toolyard.envelope import encode
from toolyard.serving import Serving
from toolyard.transports.auth import Guard
from toolyard.transports.http.asgi import Headers, Receive, Scope, Send, answer, answer_text
from toolyard.transports.http.endpoint import Endpoint
from toolyard.transports.http.gate import Gate, RefusedError, check_once
from toolyard.transports.http.request import Request
from toolyard.yard import Yard

__all__ = ["App", "asgi"]

_PATH: Final = "/mcp"
_WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
_OPEN: Final = frozenset({"/healthz", "/readyz"})


class App:
    """Serves one yard to any ASGI server."""

    def __init__(self, yard: Yard, serving: Serving, guard: Guard | None = None, *, host: str | None = None) -> None:
        self.yard = yard
        self.serving = serving
        self.is_ready = True
        self._gate = Gate(serving, guard, host=host)
        self._anyone = ANYONE if guard is None else None
        self._endpoint: Endpoint | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or live as long as the server does."""
        if scope["type"] == "http":
            try:
                await self._answer(scope, receive, send)
            except RefusedError as refused:
                await answer_text(send, refused.status, refused.message, refused.headers)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    def close(self) -> None:
        """End every session and whoever only listens."""
        self.is_ready = False
        if self._endpoint is not None:
            self._endpoint.close()

    def end_listeners(self) -> None:
        """Let go of whoever only listens, so that a server can end."""
        self.is_ready = False
        if self._endpoint is not None:
            self._endpoint.end_listeners()

    async def _live(self, receive: Receive, send: Send) -> None:
        """Open the yard while the server runs."""
        await receive()
        try:
            async with self.yard:
                await send({"type": "lifespan.startup.complete"})
                await receive()
                self.close()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        root: str = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            path = path[len(root) :]
        pairs: list[tuple[bytes, bytes]] = scope["headers"]
        headers: Headers = dict(pairs)
        if len(headers) != len(pairs):
            check_once(pairs)
        if path in _OPEN:
            await self._tell_health(path, send)
            return
        self._gate.check(headers)
        if path == _PATH or path.startswith(f"{_PATH}/"):
            profile = path[len(_PATH) + 1 :] or None
            caller = self._anyone
            if profile is not None or caller is None:
                caller = await self._gate.caller(self.yard, headers, profile, _resource(scope, headers))
            request = Request(scope["method"], headers, pairs, caller, receive, send)
            await (self._endpoint or self._open_endpoint()).serve(request)
        elif path.startswith(_WELL_KNOWN) and scope["method"] == "GET":
            await self._tell_resource(scope, headers, path, send)
        else:
            await answer_text(send, 404, "There is nothing here. The endpoint is '/mcp'.")

    def _open_endpoint(self) -> Endpoint:
        _ = self.yard.dispatcher  # raises unless the yard is open
        self._endpoint = Endpoint(Front(self.yard, self.serving, door="http"), self.serving)
        return self._endpoint

    async def _tell_health(self, path: str, send: Send) -> None:
        good = path == "/healthz" or self.is_ready
        await answer(send, 200 if good else 503, encode({"status": "ok" if good else "ending"}))

    async def _tell_resource(self, scope: Scope, headers: Headers, path: str, send: Send) -> None:
        known = self._gate.protected_resource(_resource(scope, headers, path[len(_WELL_KNOWN) :] or _PATH))
        if known is None:
            raise RefusedError(404, "There is nothing here.")
        await answer(send, 200, encode(known))


def asgi(yard: Yard, *, guard: Guard | None = None, **settings: Any) -> App:
    """Return a yard as an ASGI application, to be served or mounted; it opens the yard if the server tells it of its life."""
    return App(yard, Serving(transport="http", **settings), guard)


def _resource(scope: Scope, headers: Headers, path: str | None = None) -> str:
    """Return the address that a client knows this endpoint by."""
    host = headers.get(b"host", b"localhost").decode("latin-1")
    root = scope.get("root_path", "")
    place = scope["path"] if path is None else f"{root}{path}"
    return f"{scope.get('scheme', 'http')}://{host}{place if place.startswith(f'{root}/') else root + place}"
