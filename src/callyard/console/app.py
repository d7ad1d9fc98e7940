"""The console as mounts of the HTTP server: finds the page, checks who asks, and renders or streams it."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from callyard.config import Config
from callyard.console.access import CSRF_HEADER, Access, Person
from callyard.console.page import FRESH, HTML, Done, FindSessions, Handle, Page, Parts, View, render, render_blocks, url
from callyard.console.runs import Runs
from callyard.dispatch.call import ANYONE, Caller
from callyard.model.errors import ToolError
from callyard.monitor import Metrics, Ring
from callyard.state.store import StoreUnavailableError
from callyard.transports.auth import Authenticator
from callyard.transports.http.admission import find_profile
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request, TooLargeError, read_body
from callyard.transports.http.response import Header, ResponseWriter
from callyard.wire.sse import KEEP_ALIVE, encode_event
from callyard.yard import Yard

__all__ = ["Console"]

PATH: Final = "/console"
_STATIC: Final = Path(__file__).parent / "static"
_TYPES: Final = {".css": b"text/css; charset=utf-8", ".js": b"text/javascript; charset=utf-8", ".svg": b"image/svg+xml"}
_POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
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
_NOTICE_CHARACTERS: Final = 300
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
        agents: Handle | None = None,
    ) -> None:
        def is_operator(caller: Caller) -> bool:
            return yard.gate is not None and yard.gate.is_operator(caller)

        self._yard = yard
        find = partial(find_profile, yard)
        self.access = Access(config.settings.serve, authenticator, is_operator=is_operator, find_profile=find)
        self.find_sessions: FindSessions = lambda: None
        """Returns the sessions of the HTTP transport; set once there is one."""
        self._parts = Parts(
            yard=yard,
            config=config,
            metrics=metrics,
            records=records,
            runs=Runs(yard),
            agents=agents,
            find_sessions=lambda: self.find_sessions(),  # noqa: PLW0108 - it is set later
        )
        self._pages: dict[str, Page] = {}
        self._streams: set[asyncio.Event] = set()
        """Each is set when its stream must end."""

    @property
    def mounts(self) -> dict[str, Mount]:
        """Return the mounts for the HTTP application."""
        guard = _admit_all  # pages check for themselves, because a login replaces the credentials of the server
        return {
            PATH: Mount(handle=self._serve, has_subpaths=True, authenticate=guard, end=self._end_streams),
            "/": Mount(handle=self._redirect, authenticate=guard),
        }

    def address(self, base: str) -> str:
        """Return the address that logs a person in, for the server at a URL."""
        return f"{base}{PATH}?token={self.access.token}"

    def _end_streams(self) -> None:
        for gone in self._streams:
            gone.set()

    async def _redirect(self, request: Request, writer: ResponseWriter) -> None:
        writer.extra_headers = _SAFETY
        await writer.respond(303, b"", ((b"location", f"{request.root}{PATH}".encode()),))

    async def _serve(self, request: Request, writer: ResponseWriter) -> None:
        # Without the headers of CORS, because no page of another origin may read the console.
        writer.extra_headers = _SAFETY
        try:
            await self._route(request, writer)
        except StoreUnavailableError as error:
            text = f"The store cannot be used: {error} The pages work again once it can."
            await self._respond(writer, "message.html", {"title": "The store does not answer", "text": text}, status=503)
        except RefusedError as refused:
            await self._respond(writer, "message.html", {"title": "This did not work", "text": refused.message}, status=refused.status)

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
        if "token" in query and request.method == "GET":
            await self._log_in_with_token(request, writer, query)
            return
        if request.method in {"POST", "DELETE"}:
            await self._change(request, writer, person, first, tuple(rest))
            return
        if request.method not in {"GET", "HEAD"}:
            raise RefusedError(405, "Only GET and POST are allowed here.", ((b"allow", b"GET, HEAD, POST"),))
        if person is None:
            await self._respond(writer, "login.html", {"takes_credentials": self.access.takes_credentials, "is_wrong": False}, status=401)
            return
        await self._show(request, writer, person, first=first, rest=tuple(rest), query=query)

    async def _show(
        self, request: Request, writer: ResponseWriter, person: Person, *, first: str, rest: tuple[str, ...], query: Mapping[str, str]
    ) -> None:
        is_live = first == "live"
        if is_live:
            first, rest = (rest[0] if rest else ""), rest[1:]
        page = await self._find_page(first)
        view = View(person=person, path=rest, query=query, request=request)
        if is_live:
            await self._stream(writer, page, view)
            return
        try:
            answer = await page.answer(view, writer)
            if not answer:
                await self._respond(writer, f"{page.template}.html", await self._context(page, view))
        except LookupError:
            raise RefusedError(404, "There is nothing of that name.") from None

    async def _find_page(self, name: str) -> Page:
        """Return a page. The first visit loads all of them in a thread, because that takes 40 ms, and most servers are never visited."""
        if not self._pages:
            pages = (await asyncio.to_thread(import_module, "callyard.console.pages")).PAGES
            self._pages = self._pages or {page.name: page(self._parts) for page in pages}
        page = self._pages.get(name)
        if page is None:
            raise RefusedError(404, "There is no such page.")
        return page

    async def _change(self, request: Request, writer: ResponseWriter, person: Person | None, first: str, rest: tuple[str, ...]) -> None:
        person = self.access.check_sender(request, person)
        form = await _form_of(request) if _is_form(request) else {}
        person.check_token(form.pop("csrf", "") or request.text(CSRF_HEADER))
        if first == "logout":
            await writer.respond(303, b"", ((b"location", PATH.encode()), *self.access.log_out(request)))
            return
        page = await self._find_page(first)
        view = View(person=person, path=rest, form=form, request=request)
        try:
            if await page.answer(view, writer):
                return
            done = await page.act(view)
        except LookupError:
            raise RefusedError(404, "There is no such action.") from None
        except ToolError as error:
            back = form.get("back", "")
            done = Done(to=back if _is_own(back) else url(page.name), notice=error.message, is_bad=True)
        mark = {"notice": done.notice[:_NOTICE_CHARACTERS], "bad": "1" if done.is_bad else ""}
        target, _, query = done.to.partition("?")
        pairs = {**dict(parse_qsl(query)), **mark}
        await writer.respond(303, b"", ((b"location", url(target.removeprefix(PATH).strip("/"), pairs).encode()), FRESH))

    async def _log_in(self, request: Request, writer: ResponseWriter) -> None:
        if request.method != "POST":
            context = {"takes_credentials": self.access.takes_credentials, "is_wrong": False}
            await self._respond(writer, "login.html", context)
            return
        self.access.check_origin(request)
        given = (await _form_of(request, _LOGIN_BYTES)).get("credentials", "").strip()
        headers = await self.access.log_in_with_credentials(request, given) or self.access.log_in_with_token(request, given)
        if headers is None:
            context = {"takes_credentials": self.access.takes_credentials, "is_wrong": True}
            await self._respond(writer, "login.html", context, status=403)
            return
        await writer.respond(303, b"", ((b"location", PATH.encode()), *headers))

    async def _log_in_with_token(self, request: Request, writer: ResponseWriter, query: dict[str, str]) -> None:
        headers = self.access.log_in_with_token(request, query.pop("token"))
        if headers is None:
            raise RefusedError(403, "This address is of an earlier start of the server. Open the one that it printed last.")
        page = request.subpath.strip("/")
        await writer.respond(303, b"", ((b"location", url(page, query).encode()), FRESH, *headers))

    async def _context(self, page: Page, view: View) -> dict[str, Any]:
        """Return the variables of a page and of the frame around it."""
        counts = {other.name: await other.count() for other in self._pages.values()}
        return {
            "yard": self._yard.name,
            "version": self._yard.version,
            "state": _state_of(self._yard),
            "pages": [other for other in self._pages.values() if other.in_navigation],
            "page": page,
            "counts": counts,
            "person": view.person,
            "query": view.query,
            "path": "/".join(view.path),
            "notice": view.query.get("notice", ""),
            "notice_is_bad": bool(view.query.get("bad")),
            "static": _static_url,
            **await page.context(view),
        }

    async def _respond(self, writer: ResponseWriter, template: str, context: Mapping[str, Any], *, status: int = 200) -> None:
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
        while not gone.is_set() and self.access.is_current(view.request, view.person):
            try:
                blocks = render_blocks(f"{page.template}.html", await self._context(page, view))
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
            await _sleep(gone, pause)


async def _sleep(gone: asyncio.Event, seconds: float) -> None:
    """Wait for a time, or until the client disconnects."""
    try:
        async with asyncio.timeout(seconds):
            await gone.wait()
    except TimeoutError:
        pass


async def _admit_all(_: Request) -> Caller:
    return ANYONE


def _is_form(request: Request) -> bool:
    return request.text(b"content-type").partition(";")[0].strip().lower() == "application/x-www-form-urlencoded"


def _is_own(target: str) -> bool:
    return target == PATH or target.startswith((f"{PATH}/", f"{PATH}?"))


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
    upstreams: list[Any] = [provider for provider in yard.providers if hasattr(provider, "supervisor")]
    bad = [upstream.name for upstream in upstreams if upstream.status().state in {"degraded", "backing_off", "auth_needed"}]
    if bad:
        return {"kind": "warn", "text": f"{len(bad)} of {len(upstreams)} upstreams need attention"}
    return {"kind": "ok", "text": "Running"}


@cache
def _static_files() -> dict[str, tuple[bytes, bytes]]:
    """Return the static files: the contents and the media type of each."""
    return {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in _STATIC.iterdir() if path.suffix in _TYPES}


@cache
def _static_url(name: str) -> str:
    """Return the URL of a static file, which changes with its contents."""
    return f"{PATH}/static/{name}?v={hashlib.sha256(_static_files()[name][0]).hexdigest()[:12]}"


async def _serve_static(writer: ResponseWriter, name: str) -> None:
    found = _static_files().get(name)
    if found is None:
        raise RefusedError(404, "There is no such file.")
    body, media_type = found
    await writer.respond(200, body, ((b"content-type", media_type), (b"cache-control", b"max-age=31536000, immutable")))
