"""The console as mounts of the HTTP server: finds the page, checks who asks, and renders or streams it."""

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

import msgspec

from callyard.config import Config
from callyard.console.access import CSRF_HEADER, Access, Person
from callyard.console.page import (
    BASE,
    FRESH,
    HTML,
    AgentHost,
    Done,
    Page,
    Parts,
    View,
    changed,
    render,
    render_live,
    url,
)
from callyard.console.runs import Runs
from callyard.dispatch.call import ANYONE, Caller
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.monitor import Metrics, Ring
from callyard.monitor.incidents import Incidents
from callyard.providers.upstream.health import supervised
from callyard.state.store import StoreUnavailableError
from callyard.transports import Transport
from callyard.transports.auth import Authenticator
from callyard.transports.http.admission import find_profile
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request, TooLargeError, read_body
from callyard.transports.http.response import JSON, Header, ResponseWriter
from callyard.transports.http.server import Http
from callyard.wire.sse import KEEP_ALIVE, encode_event
from callyard.yard import Yard

__all__ = ["Console"]

PATH: Final = "/console"
_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_SAFETY: Final[tuple[Header, ...]] = (
    (b"content-security-policy", _POLICY),
    (b"x-frame-options", b"DENY"),
    (b"x-content-type-options", b"nosniff"),
    # Not 'no-referrer', with which browsers send 'Origin: null' when a form is submitted without scripts.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
_FORM_BYTES: Final = 4 * 1024 * 1024
_LOGIN_BYTES: Final = 16 * 1024
_FORM_FIELDS: Final = 1000
_MAX_STREAMS: Final = 100
_KEEP_ALIVE_TICKS_S: Final = 15.0
_NOTICES: Final = 200
_log = logging.getLogger(__name__)


class Console:
    """Serves the pages of one yard."""

    def __init__(
        self,
        yard: Yard,
        config: Config,
        metrics: Metrics,
        *,
        records: Ring,
        authenticator: Authenticator | None = None,
        agents: AgentHost | None = None,
        incidents: Incidents | None = None,
        token: str = "",
    ) -> None:
        def is_operator(caller: Caller) -> bool:
            return yard.gate is not None and yard.gate.is_operator(caller)

        self._yard = yard
        serving, find = config.settings.serve, partial(find_profile, yard)
        self.access = Access(serving, authenticator, is_operator=is_operator, find_profile=find, token=token)
        runs = Runs(yard, asks_before_destroy=config.settings.serve.ask_before_destroy)
        self._parts = Parts(
            yard=yard, config=config, metrics=metrics, records=records, runs=runs, agents=agents, incidents=incidents
        )
        self._pages: dict[str, Page] = {}
        self._notices: dict[str, tuple[str, Done]] = {}
        """The last notices by the keys that URLs have, each with the login that it is for."""
        self._streams: set[asyncio.Event] = set()

    @property
    def mounts(self) -> dict[str, Mount]:
        """Return the mounts for the HTTP application."""
        # pages check for themselves, because a login replaces the credentials of the server
        return {
            PATH: Mount(handle=self._serve, has_subpaths=True, authenticate=_admit_all, end=self._end_streams),
            "/": Mount(handle=self._redirect, authenticate=_admit_all),
        }

    def address(self, base: str) -> str:
        """Return the address that logs a person in, for the server at a URL; browsers send a fragment to nobody."""
        return f"{base}{PATH}#token={self.access.token}"

    def attach(self, transport: Transport) -> None:
        """Show the sessions of the clients of a transport, if it has any."""
        if isinstance(transport, Http):
            self._parts.find_sessions = lambda: transport.sessions

    def _end_streams(self) -> None:
        for gone in self._streams:
            gone.set()

    async def _redirect(self, request: Request, writer: ResponseWriter) -> None:
        writer.extra_headers = _SAFETY
        BASE.set(self.access.base or request.root)
        await writer.respond(303, b"", ((b"location", url("").encode()),))

    async def _serve(self, request: Request, writer: ResponseWriter) -> None:
        # Without the headers of CORS, because no page of another origin may read the console.
        writer.extra_headers = _SAFETY
        BASE.set(self.access.base or request.root)
        try:
            await self._route(request, writer)
        except StoreUnavailableError as error:
            text = f"The store cannot be used: {error} The pages work again once it can."
            await self._say(writer, 503, "The store does not answer", text)
        except RefusedError as refused:
            await self._say(writer, refused.status, "This did not work", refused.message)

    async def _route(self, request: Request, writer: ResponseWriter) -> None:
        first, *rest = request.subpath.strip("/").split("/")
        query = dict(parse_qsl(request.query.decode("latin-1")))
        if first == "static" and request.method in {"GET", "HEAD"}:
            await _serve_static(writer, "/".join(rest))
            return
        person = self.access.person_of(request)
        if first == "login":
            await self._log_in(request, writer)
            return
        if request.method in {"POST", "DELETE"}:
            await self._change(request, writer, person, first, tuple(rest))
            return
        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(405, "Only GET and POST are allowed here.", ((b"allow", b"GET, HEAD, POST"),))
        if person is None:
            await self._ask_login(writer, 401)
            return
        is_live = first == "live"
        if is_live:
            first, *rest = rest or [""]
        view = View(request=request, person=person, path=tuple(rest), query=query, is_live=is_live)
        await self._show(writer, self._find_page(first), view)

    async def _show(self, writer: ResponseWriter, page: Page, view: View) -> None:
        try:
            if view.is_live:
                await self._stream(writer, page, view)
            elif not await page.answer(view, writer):
                await self._respond(writer, page.template, await self._context(page, view))
        except LookupError:
            raise RefusedError(404, "There is nothing of that name.") from None

    def _find_page(self, name: str) -> Page:
        """Return a page; the first visit loads all of them, because most servers are never visited."""
        if not self._pages:
            from callyard.console.pages import PAGES  # noqa: PLC0415 - see above

            self._pages = {page.name: page(self._parts) for page in PAGES}
        page = self._pages.get(name)
        if page is None:
            raise RefusedError(404, "There is no such page.")
        return page

    async def _change(
        self, request: Request, writer: ResponseWriter, person: Person | None, first: str, rest: tuple[str, ...]
    ) -> None:
        person = self.access.check_sender(request, person)
        kind = request.text(b"content-type").partition(";")[0].strip().lower()
        form = await _form_of(request) if kind == "application/x-www-form-urlencoded" else {}
        person.check_token(form.pop("csrf", "") or request.text(CSRF_HEADER))
        if first == "logout":
            await writer.respond(303, b"", ((b"location", url("").encode()), *self.access.log_out(request)))
            return
        page = self._find_page(first)
        view = View(request=request, person=person, path=rest, form=form)
        is_script = _wants_json(request)
        try:
            if await page.answer(view, writer):
                return
            done = await page.act(view)
        except LookupError:
            raise RefusedError(404, "There is no such action.") from None
        except ToolError as error:
            if is_script:
                await writer.respond(409, encode({"message": error.message}), (JSON, FRESH))
                return
            done = Done(to=page.back(view), notice=error.message, is_bad=True)
        if is_script:
            await writer.respond(200, encode({"to": done.to}), (JSON, FRESH))
            return
        location = changed(done.to, notice=self._keep_notice(person, done), bad="1" if done.is_bad else "")
        await writer.respond(303, b"", ((b"location", location.encode()), FRESH))

    def _keep_notice(self, person: Person, done: Done) -> str:
        """Keep a notice, and return the key for the URL: a text there could be anybody's, and would look like ours."""
        if not done.notice:
            return ""
        if len(self._notices) >= _NOTICES:
            del self._notices[next(iter(self._notices))]
        key = secrets.token_urlsafe(9)
        self._notices[key] = (person.login, done)
        return key

    async def _log_in(self, request: Request, writer: ResponseWriter) -> None:
        if request.method != "POST":
            await self._ask_login(writer, 200)
            return
        self.access.check_origin(request)
        given = (await _form_of(request, _LOGIN_BYTES)).get("credentials", "").strip()
        access = self.access
        login = await access.log_in_with_credentials(request, given) or access.log_in_with_token(request, given)
        if login is None:
            await self._ask_login(writer, 403, is_wrong=True)
        elif _wants_json(request):
            await writer.respond(200, encode({"secret": login.secret}), (JSON, FRESH, *login.headers))
        else:  # without scripts the secret has no place, so the person only reads
            await writer.respond(303, b"", ((b"location", url("").encode()), *login.headers))

    async def _ask_login(self, writer: ResponseWriter, status: int, *, is_wrong: bool = False) -> None:
        context = {"takes_credentials": self.access.takes_credentials, "is_wrong": is_wrong}
        await self._respond(writer, "login.html", context, status=status)

    async def _say(self, writer: ResponseWriter, status: int, title: str, text: str) -> None:
        await self._respond(writer, "message.html", {"title": title, "text": text}, status=status)

    async def _context(self, page: Page, view: View) -> dict[str, Any]:
        """Return the variables of a page and of the frame around it."""
        counts = {other.name: await other.count() for other in self._pages.values()}
        login, done = self._notices.get(view.query.get("notice", ""), ("", None))
        notice = done if login == view.person.login else None
        return {
            "yard": self._yard.name,
            "state": _state_of(self._yard),
            "pages": [other for other in self._pages.values() if other.in_navigation],
            "page": page,
            "counts": counts,
            "person": view.person,
            "query": view.query,
            "path": "/".join(view.path),
            "notice": "" if notice is None else notice.notice,
            "notice_is_bad": notice is not None and notice.is_bad,
            "static": _static_url,
            **await page.context(view),
        }

    async def _respond(
        self, writer: ResponseWriter, template: str, context: Mapping[str, Any], *, status: int = 200
    ) -> None:
        body = render(template, {"yard": self._yard.name, "static": _static_url, **context})
        await writer.respond(status, body, (HTML, FRESH))

    async def _stream(self, writer: ResponseWriter, page: Page, view: View) -> None:
        """Send the live blocks of a page, each whenever it changed."""
        if not page.live_seconds:
            raise RefusedError(404, "This page does not change by itself.")
        if len(self._streams) >= _MAX_STREAMS:
            raise RefusedError(503, "Too many pages are open.", ((b"retry-after", b"5"),))
        gone = asyncio.Event()
        self._streams.add(gone)
        writer.watch(gone.set)
        try:
            await writer.start_stream()
            await self._send_blocks(writer, page, view, gone)
            await writer.write(b"", last=True)
        finally:
            self._streams.discard(gone)
            writer.unwatch()

    async def _send_blocks(self, writer: ResponseWriter, page: Page, view: View, gone: asyncio.Event) -> None:
        sent: dict[str, str] = {}
        silent = 0.0
        while not gone.is_set() and self.access.person_of(view.request) == view.person:
            try:
                blocks = render_live(page.template, await self._context(page, view))
            except LookupError:  # what the page showed is gone
                return
            except StoreUnavailableError:  # the page stays as it is until the store works again
                blocks = sent
            changed = {name: html for name, html in blocks.items() if sent.get(name) != html}
            if changed:
                await writer.write(encode_event(msgspec.json.encode(changed)))
                sent, silent = blocks, 0.0
            elif silent >= _KEEP_ALIVE_TICKS_S:
                await writer.write(KEEP_ALIVE)
                silent = 0.0
            pause = page.live_pause(view)
            silent += pause
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await gone.wait()


async def _admit_all(_: Request) -> Caller:
    return ANYONE


def _wants_json(request: Request) -> bool:
    """Return whether a script of our pages sent a request: where to go, or why it failed, is for it to show."""
    return b"application/json" in request.headers.get(b"accept", b"")


async def _form_of(request: Request, max_bytes: int = _FORM_BYTES) -> dict[str, str]:
    """Return the fields of a submitted form.

    Raises:
        RefusedError: 413 if it is too large, 400 if it is incomplete.
    """
    too_large = RefusedError(413, "The form is too large.")
    try:
        body = request.body if request.receive is None else await read_body(request.receive, request.headers, max_bytes)
    except TooLargeError:
        raise too_large from None
    if body is None:
        raise RefusedError(400, "The form is incomplete.")
    if len(body) > max_bytes or body.count(b"&") >= _FORM_FIELDS:
        raise too_large
    return dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))


def _state_of(yard: Yard) -> dict[str, str]:
    """Return the state of the yard in words, and how good it is."""
    upstreams = [upstream.status() for upstream in supervised(yard.providers)]
    failing = sum(status.is_failing for status in upstreams)
    if failing:
        return {"kind": "warn", "text": f"{failing} of {len(upstreams)} upstreams need attention"}
    return {"kind": "ok", "text": "Running"}


class _StaticFile(NamedTuple):
    body: bytes
    media_type: bytes
    digest: str


@cache
def _static_files() -> dict[str, _StaticFile]:
    found: dict[str, _StaticFile] = {}
    for path in _STATIC.iterdir():
        body = path.read_bytes()
        found[path.name] = _StaticFile(body, _TYPES[path.suffix], hashlib.sha256(body).hexdigest()[:12])
    return found


def _static_url(name: str) -> str:
    """Return the URL of a static file, which changes with its contents."""
    return url(f"static/{name}", v=_static_files()[name].digest)


async def _serve_static(writer: ResponseWriter, name: str) -> None:
    file = _static_files().get(name)
    if file is None:
        raise RefusedError(404, "There is no such file.")
    kept = (b"cache-control", b"max-age=31536000, immutable")
    await writer.respond(200, file.body, ((b"content-type", file.media_type), kept))
