"""The base of the console's pages: the request, the answer, and the rendering of templates.

Everything that a template shows is escaped, because names and descriptions of tools come from anywhere.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, cast
from urllib.parse import quote, urlencode

import msgspec
from markupsafe import Markup

from callyard.config import Config
from callyard.console.access import Person
from callyard.console.charts import sparkline
from callyard.console.runs import Runs
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.monitor import Metrics, Ring
from callyard.transports.http.request import Request
from callyard.transports.http.response import JSON, Header, ResponseWriter
from callyard.transports.http.sessions import HttpSessions
from callyard.yard import Yard

if TYPE_CHECKING:
    from jinja2 import Environment, Template

__all__ = ["FRESH", "HTML", "LIVE_BLOCK", "Done", "FindSessions", "Handle", "Page", "Parts", "View", "render", "render_blocks", "url"]

Handle = Callable[[Request, ResponseWriter], Awaitable[None]]
LIVE_BLOCK: Final = "live_"
"""The prefix of template blocks that are sent again when they change."""
HTML: Final[Header] = (b"content-type", b"text/html; charset=utf-8")
FRESH: Final[Header] = (b"cache-control", b"no-store")
_FOLDER: Final = Path(__file__).parent / "templates"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


FindSessions = Callable[[], HttpSessions | None]


class Parts(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of the server that pages show and change."""

    yard: Yard
    config: Config
    metrics: Metrics
    records: Ring
    """The last records."""
    runs: Runs
    find_sessions: FindSessions = lambda: None
    """Returns the sessions of clients over HTTP that began with a handshake, if there are any."""
    agents: Handle | None = None
    """The HTTP API of agents, if the server runs any."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a page: the person, and the parameters of the URL."""

    person: Person
    path: tuple[str, ...] = ()
    """The parts of the path below the page."""
    query: Mapping[str, str] = {}
    form: Mapping[str, str] = {}
    """The fields of a submitted form."""
    request: Request | None = None


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change: the page to show next, and a message for it."""

    to: str
    notice: str = ""
    is_bad: bool = False


class Page(ABC):
    """One page; a subclass for each."""

    name: ClassVar[str]
    """Its place below '/console'."""
    title: ClassVar[str]
    template: ClassVar[str]
    live_seconds: ClassVar[float] = 1.0
    """How often the live blocks of its template are rendered again; 0 is never."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.yard = parts.yard

    @property
    def in_navigation(self) -> bool:
        """Return whether the navigation shows it."""
        return True

    @abstractmethod
    async def context(self, view: View) -> dict[str, Any]:
        """Return the variables of the template."""

    async def act(self, view: View) -> Done:  # noqa: ARG002 - the same
        """Carry out a submitted form; `view.path` names the action.

        Raises:
            ToolError: It cannot be done; the message is shown.
            LookupError: There is no such action.
        """
        raise LookupError

    async def answer(self, view: View, writer: ResponseWriter) -> bool:  # noqa: ARG002 - for pages that do
        """Answer a request itself, such as with JSON or a stream, and return True; False lets the console render the template.

        Raises:
            LookupError: There is nothing at that path.
        """
        if view.path and view.request is not None and view.request.method != "POST":
            raise LookupError
        return False

    async def answer_script(self, view: View, writer: ResponseWriter) -> bool:
        """Carry out a form that a script submits, and answer with JSON where to go, or why it cannot be done; False for other requests."""
        request = view.request
        if request is None or request.method != "POST" or b"application/json" not in request.headers.get(b"accept", b""):
            return False
        try:
            done = await self.act(view)
        except ToolError as error:
            await writer.respond(409, encode({"message": error.message}), (JSON, FRESH))
        else:
            await writer.respond(200, encode({"to": done.to}), (JSON, FRESH))
        return True

    def profile_of(self, view: View) -> Profile:
        """Return the profile of the person's credentials, which decides what tools exist for them; the yard's own by default."""
        return view.person.caller.profile or self.yard.profile

    def live_pause(self, view: View) -> float:  # noqa: ARG002 - for pages whose pace differs
        """Return the seconds until the live blocks are rendered again."""
        return self.live_seconds

    async def count(self) -> int:
        """Return the number that the navigation shows beside the page; 0 shows none."""
        return 0


def url(path: str, query: Mapping[str, Any] | None = None, **changes: Any) -> str:
    """Return the URL of a page of the console with a query, in which empty values are left out."""
    pairs = {key: value for key, value in {**(query or {}), **changes}.items() if value not in {None, "", False}}
    text = "/console" + (f"/{quote(path)}" if path else "")
    return f"{text}?{urlencode(pairs)}" if pairs else text


def render(template: str, context: Mapping[str, Any]) -> bytes:
    """Return a page."""
    return _template(template).render(context).encode()


def render_blocks(template: str, context: Mapping[str, Any]) -> dict[str, str]:
    """Return the live blocks of a template and of the frame by the ids of their elements."""
    found: dict[str, str] = {}
    for name in ("frame.html", template):
        loaded = _template(name)
        values = loaded.new_context(dict(context))
        for block, parts in loaded.blocks.items():
            if block.startswith(LIVE_BLOCK):
                found[block.removeprefix(LIVE_BLOCK)] = "".join(parts(values))
    return found


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - loaded with the first page

    found = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, auto_reload=False)
    found.trim_blocks = found.lstrip_blocks = True
    names: dict[str, Any] = cast("dict[str, Any]", found.globals)
    names.update(
        url=url, sparkline=sparkline, ago=ago, since=since, when=when, moment=moment, duration=duration, number=number, json=pretty
    )
    names["parts"] = found.get_template("parts.html").module
    return found


@cache
def _template(name: str) -> "Template":
    return _environment().get_template(name)


def duration(milliseconds: float) -> str:
    """Return a duration for people, such as '1.2 s'; a dash if there is none."""
    if not milliseconds:
        return "–"  # noqa: RUF001 - a dash is meant
    if milliseconds < 1:
        return f"{milliseconds:.2f} ms"
    if milliseconds < 1000:  # noqa: PLR2004 - a second
        return f"{milliseconds:.3g} ms"
    seconds = milliseconds / 1000
    if seconds < _MINUTE:
        return f"{seconds:.3g} s"
    if seconds < _HOUR:
        return f"{int(seconds // _MINUTE)} min {int(seconds % _MINUTE)} s"
    return f"{int(seconds // _HOUR)} h {int(seconds % _HOUR // _MINUTE)} min"


def number(value: float) -> str:
    """Return a number for people, such as '12,345'."""
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def ago(at: float) -> Markup:
    """Return a time as an element that says how long ago it was, or how far off it is, with the exact time on hover."""
    seconds = time.time() - at
    if abs(seconds) < 1.5:  # noqa: PLR2004 - the moment itself
        return _time(at, "now")
    return _time(at, f"{_span(seconds)} ago" if seconds > 0 else f"in {_span(-seconds)}")


def since(at: float) -> Markup:
    """Return a time as an element that says for how long something is so, with the exact time on hover."""
    return _time(at, f"for {_span(max(time.time() - at, 1))}")


def _span(seconds: float) -> str:
    units = ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"))
    unit, word = next(((unit, word) for most, unit, word in units if seconds < most), (_DAY, "days"))
    return f"{seconds / unit:.0f} {word}"


def _time(at: float, text: str) -> Markup:
    exact = datetime.fromtimestamp(at, UTC)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(exact.isoformat(), exact.strftime("%Y-%m-%d %H:%M:%S UTC"), text)


def when(at: float) -> Markup:
    """Return a time as an element that stays the same in a live block; 'times.js' turns it into how long ago that was."""
    exact = datetime.fromtimestamp(at, UTC)
    text = exact.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time data-ago datetime="{}" title="{}">{}</time>').format(exact.isoformat(), text, text)


def moment(at: float) -> str:
    """Return a time of day in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def pretty(value: Any) -> str:
    """Return a value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def page_of(items: Sequence[Any], number: str, size: int = 50) -> tuple[Sequence[Any], int, int]:
    """Return the items on a page, its number from 1, and the number of pages."""
    pages = max(1, -(-len(items) // size))
    current = min(max(int(number), 1), pages) if number.isdecimal() else 1
    return items[(current - 1) * size : current * size], current, pages
