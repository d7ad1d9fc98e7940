"""The ASGI application: which request goes where, and what is refused before it is read."""

from typing import Any, Final

from toolyard.config.settings import Serving
from toolyard.dispatch.call import ANYONE
from toolyard.model.envelope import encode
from toolyard.server import ServerContext
from toolyard.transports.auth import Authenticator
from toolyard.transports.http.asgi import PREFLIGHT, Foreign, Headers, Receive, Request, Scope, Send, Target, respond, respond_text, share
from toolyard.transports.http.endpoint import Endpoint
from toolyard.transports.http.host_check import HostCheck, RefusedError, check_once, endpoint_asked_about, endpoint_url_of
from toolyard.yard import Yard

__all__ = ["App", "asgi"]

_PATH: Final = "/mcp"
_OPEN: Final = frozenset({"/healthz", "/readyz"})


class App:
    """Serves one yard to any ASGI server."""

    def __init__(self, yard: Yard, serving: Serving, authenticator: Authenticator | None = None, *, host: str | None = None) -> None:
        self.yard = yard
        self.serving = serving
        self.is_ready = True
        self._gate = HostCheck(serving, authenticator, host=host)
        self._anyone = ANYONE if authenticator is None else None
        self._endpoint: Endpoint | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of another server, or live as long as it does."""
        if scope["type"] == "http":
            await self.respond(Foreign(scope), receive, send)
        elif scope["type"] == "lifespan":
            await self._live(receive, send)

    async def respond(self, target: Target, receive: Receive, send: Send) -> None:
        """Answer one request."""
        headers: Headers = target.headers
        try:
            path = target.path
            if len(headers) != len(target.pairs):
                check_once(target.pairs)
            if path in _OPEN:
                await self._tell_health(path, send)
                return
            self._gate.check(headers)
            if b"origin" in headers:
                send = share(send, headers[b"origin"])
                if target.method == "OPTIONS":
                    await respond(send, 200, b"", PREFLIGHT)
                    return
            if path == _PATH and self._anyone is not None:
                caller = self._anyone
            elif path == _PATH or path.startswith(f"{_PATH}/"):
                profile = path[len(_PATH) + 1 :] or None
                caller = await self._gate.caller(self.yard, headers, profile, endpoint_url_of(target, path, self.serving))
            else:
                await self._tell_other(target, send)
                return
            request = Request(target.method, headers, target.pairs, caller, receive, send, target.body)
            await (self._endpoint or self._open_endpoint()).serve(request)
        except RefusedError as refused:
            await respond_text(send, refused.status, refused.message, refused.headers)

    def close(self) -> None:
        """End every visit and whoever only listens."""
        self.is_ready = False
        if self._endpoint is not None:
            self._endpoint.close()

    def end_listeners(self) -> None:
        """Let go of whoever only listens, so that a server can end."""
        self.is_ready = False
        if self._endpoint is not None:
            self._endpoint.end_listeners()

    async def finish(self, seconds: float) -> None:
        """Let calls finish for so long, then interrupt them, so that each is answered."""
        if self._endpoint is not None:
            await self._endpoint.finish(seconds)

    def answer_unended(self, target: Target) -> bytes | None:
        """Return what a call is answered with that does not end although the server does, if that is what the request asked for."""
        return None if self._endpoint is None else self._endpoint.answer_unended(target)

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

    def _open_endpoint(self) -> Endpoint:
        _ = self.yard.dispatcher  # raises unless the yard is open
        self._endpoint = Endpoint(ServerContext(self.yard, self.serving, channel="http"), self.serving)
        return self._endpoint

    async def _tell_health(self, path: str, send: Send) -> None:
        good = path == "/healthz" or self.is_ready
        await respond(send, 200 if good else 503, encode({"status": "ok" if good else "ending"}))

    async def _tell_other(self, target: Target, send: Send) -> None:
        """Tell how to get credentials, where that is asked of an endpoint there is, or that there is nothing."""
        asked = endpoint_asked_about(target, _PATH)
        known = None
        if asked is not None and self._is_endpoint(asked):
            known = self._gate.protected_resource(endpoint_url_of(target, asked, self.serving))
        if known is None:
            raise RefusedError(404, "There is nothing here. The endpoint is '/mcp'.")
        await respond(send, 200, encode(known))

    def _is_endpoint(self, path: str) -> bool:
        if path == _PATH or not path.startswith(f"{_PATH}/"):
            return path == _PATH
        try:
            self.yard.profile_of(path[len(_PATH) + 1 :])
        except KeyError:
            return False
        return True


def asgi(yard: Yard, *, authenticator: Authenticator | None = None, **settings: Any) -> App:
    """Return a yard as an ASGI application, to be served or mounted; it opens the yard if the server tells it of its life."""
    return App(yard, Serving(transport="http", **settings), authenticator)
