"""The base of the console's pages: the request, the answer, and the rendering of templates, times and charts.

Everything that a template shows is escaped, because names and descriptions of tools come from anywhere.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, cast
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from markupsafe import Markup

from callyard.config import Config
from callyard.console.access import Person
from callyard.console.runs import Runs
from callyard.model.profile import Profile
from callyard.monitor import Metrics, Ring
from callyard.monitor.incidents import Incidents
from callyard.policy.cards import printable
from callyard.transports.http.request import Request
from callyard.transports.http.response import Header, ResponseWriter
from callyard.transports.http.sessions import HttpSessions
from callyard.yard import Yard

if TYPE_CHECKING:
    from jinja2 import Environment

__all__ = [
    "BASE",
    "FRESH",
    "HTML",
    "PERIODS",
    "Done",
    "Page",
    "Parts",
    "View",
    "changed",
    "page_of",
    "pretty",
    "render",
    "render_live",
    "timeline",
    "url",
    "visible",
]

BASE: Final[ContextVar[str]] = ContextVar("console_base", default="")
"""The path below which a proxy serves the console, for the request that is answered."""
_LIVE_BLOCK: Final = "live_"
"""The prefix of template blocks that are sent again when they change."""
PERIODS: Final = {900: "15 minutes", 3600: "1 hour", 8 * 3600: "8 hours", 86_400: "1 day", 7 * 86_400: "7 days"}
"""The times for which something can be allowed or disabled, in seconds."""
HTML: Final[Header] = (b"content-type", b"text/html; charset=utf-8")
FRESH: Final[Header] = (b"cache-control", b"no-store")
_FOLDER: Final = Path(__file__).parent / "templates"
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_WIDTH, _HEIGHT = 240.0, 48.0
_POINTS: Final = 90
_LEAST: Final = 0.005
"""The least share of a bar that can be seen."""


class AgentHost(Protocol):
    """What pages need of the agents that the server runs, which `launch` hands in."""

    async def serve(self, request: Request, writer: ResponseWriter) -> None:
        """Serve one request to the HTTP API, whose caller is known already."""
        ...

    def waiting(self) -> list[dict[str, Any]]:
        """Return what agents wait for besides approvals of the yard, the oldest first, as the API shows it."""
        ...

    def decide(self, interaction_id: str, *, approve: bool, by: str, reason: str) -> None:
        """Approve or deny a tool call, or decline a question.

        Raises:
            ToolError: `not_found` if it does not wait any longer.
        """
        ...


class Parts(msgspec.Struct, kw_only=True):
    """The parts of the server that pages show and change."""

    yard: Yard
    config: Config
    metrics: Metrics
    records: Ring
    runs: Runs
    find_sessions: Callable[[], HttpSessions | None] = lambda: None
    """Returns the sessions of clients over HTTP that began with a handshake, if there are any."""
    agents: AgentHost | None = None
    incidents: Incidents | None = None
    """Those of this server, if it judges its calls."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """One request for a page: the person, and the parameters of the URL."""

    request: Request
    person: Person
    path: tuple[str, ...] = ()
    """The parts of the path below the page."""
    query: Mapping[str, str] = {}
    form: Mapping[str, str] = {}
    is_live: bool = False


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change: the page to show next, and a message for it."""

    to: str
    notice: str = ""
    is_bad: bool = False


class Page(ABC):
    """One page; a subclass for each."""

    name: ClassVar[str]
    """Its place below '/console'."""
    live_seconds: ClassVar[float] = 1.0
    """How often the live blocks of its template are rendered again; 0 is never."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.yard = parts.yard

    @property
    def title(self) -> str:
        """Return its name in the navigation."""
        return self.name.capitalize() or "Overview"

    @property
    def template(self) -> str:
        """Return the file of its template."""
        return f"{self.title.lower()}.html"

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
        """Answer a request without the template, such as with JSON or a stream; False renders the template.

        Raises:
            LookupError: There is nothing at that path.
        """
        if view.path and view.request.method != "POST":
            raise LookupError
        return False

    def back(self, view: View) -> str:
        """Return the address that a form names to go on with, if that is in the console, by default the page's own."""
        back, base = view.form.get("back", ""), url("")
        return back if back == base or back.startswith((f"{base}/", f"{base}?")) else url(self.name)

    def profile_of(self, view: View) -> Profile:
        """Return the profile of the person's credentials, by default the profile of the yard."""
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
    text = f"{BASE.get()}/console" + (f"/{quote(path)}" if path else "")
    return f"{text}?{urlencode(pairs)}" if pairs else text


def changed(target: str, **changes: str) -> str:
    """Return a URL of the console with changes to its query; one of another site becomes a path of ours."""
    path, _, query = target.partition("?")
    return url(path.removeprefix(url("")).strip("/"), dict(parse_qsl(query)), **changes)


def render(template: str, context: Mapping[str, Any]) -> bytes:
    """Return a page."""
    return _environment().get_template(template).render(context).encode()


def render_live(template: str, context: Mapping[str, Any]) -> dict[str, str]:
    """Return the live blocks of a template and of the frame by the ids of their elements."""
    found: dict[str, str] = {}
    for name in ("frame.html", template):
        loaded = _environment().get_template(name)
        values = loaded.new_context(dict(context))
        for block, parts in loaded.blocks.items():
            if block.startswith(_LIVE_BLOCK):
                found[block.removeprefix(_LIVE_BLOCK)] = "".join(parts(values))
    return found


@cache
def _environment() -> "Environment":
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - loaded with the first page

    found = Environment(loader=FileSystemLoader(_FOLDER), autoescape=True, undefined=StrictUndefined, auto_reload=False)
    found.trim_blocks = found.lstrip_blocks = True
    names = cast("dict[str, Any]", found.globals)
    for function in (url, sparkline, ago, since, when, moment, duration, number):
        names[function.__name__] = function
    names["json"] = pretty
    names["parts"] = found.get_template("parts.html").module
    return found


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
    """Return a time as an element that says how long ago it was, or how far off it is."""
    seconds = time.time() - at
    if abs(seconds) < 1.5:  # noqa: PLR2004 - the moment itself
        return when(at, "now")
    return when(at, f"{_span(seconds)} ago" if seconds > 0 else f"in {_span(-seconds)}")


def since(at: float) -> Markup:
    """Return a time as an element that says for how long something is so."""
    return when(at, f"for {_span(max(time.time() - at, 1))}")


def _span(seconds: float) -> str:
    units = ((_MINUTE, 1, "s"), (_HOUR, _MINUTE, "min"), (_DAY, _HOUR, "h"))
    unit, word = next(((unit, word) for most, unit, word in units if seconds < most), (_DAY, "days"))
    return f"{seconds / unit:.0f} {word}"


def when(at: float, text: str = "") -> Markup:
    """Return a time as an element with the exact time on hover.

    One without a text stays the same in a live block; 'times.js' shows its age.
    """
    date = datetime.fromtimestamp(at, UTC)
    exact, mark = f"{date:%Y-%m-%d %H:%M:%S UTC}", "" if text else "data-ago "
    return Markup('<time {}datetime="{}" title="{}">{}</time>').format(mark, date.isoformat(), exact, text or exact)


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


def sparkline(values: Sequence[float], *, label: str, kind: str = "accent", most: float = 0.0) -> Markup:
    """Return a small line chart with its area filled; `label` describes it for screen readers."""
    size = max(1, -(-len(values) // _POINTS))  # a point is the greatest of its group
    points = [max(values[start : start + size]) for start in range(0, len(values), size)]
    top = max(*points, most, 1e-9) if points else 1.0
    step = _WIDTH / max(len(points) - 1, 1)
    line = " ".join(
        f"{index * step:.1f},{_HEIGHT - 2 - value / top * (_HEIGHT - 6):.1f}" for index, value in enumerate(points)
    )
    return Markup(
        '<svg class="chart {kind}" viewBox="0 0 {width:.0f} {height:.0f}" preserveAspectRatio="none" role="img" '
        'aria-label="{label}">'
        '<polygon points="0,{height:.0f} {line} {width:.0f},{height:.0f}"/><polyline points="{line}"/></svg>'
    ).format(kind=kind, width=_WIDTH, height=_HEIGHT, label=label, line=line)


def timeline(start: float, length: float, *, waited: float = 0.0, kind: str, label: str) -> Markup:
    """Return a bar for a part of a span of time, given as shares of it; the part that was waited has another colour."""
    left = min(max(start, 0.0), 1.0 - _LEAST)
    width = min(max(length, _LEAST), 1.0 - left)
    lighter = min(max(waited, 0.0), width)
    wait = f'<rect class="waited" x="{left:.1%}" width="{lighter:.1%}" height="8" y="2"/>' if lighter >= _LEAST else ""
    rail = "" if width == 1 else '<rect class="rail" width="100%" height="4" y="4"/>'
    rest = (
        f'<rect class="{kind}" x="{left + lighter:.1%}" width="{max(width - lighter, _LEAST):.1%}" height="8" y="2"/>'
    )
    return Markup('<svg class="timeline" role="img"><title>{}</title>{}</svg>').format(
        label,
        Markup(rail + wait + rest),  # noqa: S704 - numbers and names of ours
    )


def visible(text: str) -> str:
    """Return a text in which nothing can hide; the template escapes what is markup."""
    return printable(text, markup=frozenset())
