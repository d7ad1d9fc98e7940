"""The page 'Tools': finds tools as an agent does, describes one, and runs it from a form."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, Final, cast, get_args
from urllib.parse import parse_qsl

import msgspec

from callyard.console.form import make_form, read_answer
from callyard.console.page import FRESH, Done, Page, Parts, View, page_of, pretty, url
from callyard.console.runs import Action, Run
from callyard.metatools.catalogue import Catalogue
from callyard.metatools.describe import full_description
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile, cost
from callyard.model.signature import one_line
from callyard.model.spec import Operation, ToolSpec
from callyard.model.stub import stub
from callyard.monitor.metrics import CallStats, Label
from callyard.transports.http.response import JSON, ResponseWriter

__all__ = ["Tools", "next_step", "shown", "shown_envelope"]

_ROWS: Final = 50
_SUMMARY: Final = 160
_QUERY: Final = 500
_LISTINGS: Final = 64
_NAMES: Final = 8
_ORDER_S: Final = 10.0
"""How long a list in the order of calls stays as it is."""
_AT_ONCE: Final = 200
_TEXT_CHARACTERS: Final = 6000
_JSON_CHARACTERS: Final = 20_000
_SHOWN_CHARACTERS: Final = 40_000
_EXAMPLE_CHARACTERS: Final = 8000
_NO_CALLS: Final = CallStats()


class Row(msgspec.Struct, frozen=True):
    """One tool in the list."""

    spec: ToolSpec
    summary: str
    tokens: int
    why: str = ""
    """Why search found it."""


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """One page of the list."""

    rows: Sequence[Row]
    number: int
    pages: int
    total: int | None
    """How many tools there are in all; None if search does not say."""
    closest: Sequence[str] = ()


class Tools(Page):
    """Every tool, and the form that runs it."""

    name: ClassVar[str] = "tools"
    title: ClassVar[str] = "Tools"
    template: ClassVar[str] = "tools"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._catalogue: Catalogue | None = None
        self._listings: dict[tuple[Any, ...], Listing] = {}
        self._costs: dict[str, tuple[ToolSpec, int]] = {}
        self._totals: dict[Profile, tuple[int, dict[str, Any]]] = {}

    def live_pause(self, view: View) -> float:
        """Return a short pause while a run is shown that is not over."""
        run = self._run_of(view)
        return 0.25 if run is not None and not run.is_over else self.live_seconds

    async def context(self, view: View) -> dict[str, Any]:
        """Return the list, the opened tool and its run."""
        query = {key: value[:_QUERY] for key, value in view.query.items()}
        profile = self.profile_of(view)
        spec = self._opened(query.get("open", ""), profile)
        run = self._run_of(view)
        return {
            "listing": await self._listing(query, profile),
            "totals": await self._count_all(profile),
            "operations": [str(operation) for operation in Operation],
            "chosen": {key: query.get(key, "") for key in ("q", "source", "operation", "sort")},
            "stats": self._stats,
            "cost": self._cost,
            "failed": _failed,
            "recent": _recent,
            "missing": query.get("open", "") if spec is None else "",
            "opened": spec,
            "describe": lambda: self._describe(cast("ToolSpec", spec), view),
            "form": lambda: make_form(cast("ToolSpec", spec).input_schema),
            "run": run,
            "arguments": "{}" if run is None else run.arguments,
            "approval": None if run is None else await self._approval_of(run),
            "shown_envelope": shown_envelope,
            "next_step": next_step,
            "back": url("tools", {key: value for key, value in query.items() if key not in {"run", "notice", "bad"}}),
        }

    async def answer(self, view: View, writer: ResponseWriter) -> bool:
        """Answer with JSON: names of tools, a whole definition, a whole answer, or what came of a script's request."""
        request = view.request
        if request is None or request.method == "POST":
            return await self.answer_script(view, writer)
        if not view.path:
            return False
        body = self._document(view)
        await writer.respond(200, body, (JSON, FRESH))
        return True

    async def act(self, view: View) -> Done:
        """Run a tool, cancel a run, or answer its question."""
        form, back = view.form, _own(view.form.get("back", ""))
        if view.path == ("run",):
            run = await self.parts.runs.start(view.person, form.get("tool", ""), form.get("arguments", "").strip())
            return Done(to=_with(back, run=run.id, open=run.tool))
        match view.path:
            case ("runs", run_id, "cancel"):
                run = self.parts.runs.get(run_id, view.person)
                run.cancel()
            case ("runs", run_id, "answer"):
                run = self.parts.runs.get(run_id, view.person)
                run.answer(form.get("question", ""), _action(form), read_answer(form.get("content", "")))
            case _:
                raise LookupError
        await asyncio.sleep(0)
        return Done(to=_with(back, run=run.id, open=run.tool))

    def _document(self, view: View) -> bytes:
        match view.path:
            case ("names",):
                words = view.query.get("q", "").lower()
                names = (spec.name for spec in self._find_catalogue().tools(self.profile_of(view)) if words in spec.name.lower())
                return encode([*islice(names, _NAMES)])
            case ("describe", name):
                spec = self._opened(name, self.profile_of(view))
                if spec is None:
                    raise LookupError(name)
                return pretty(full_description(spec)).encode()
            case ("runs", run_id, "envelope"):
                return pretty(msgspec.Raw(self.parts.runs.get(run_id, view.person).text or "null")).encode()
            case ("runs", run_id, "arguments"):
                return self.parts.runs.get(run_id, view.person).arguments.encode() or b"{}"
            case _:
                raise LookupError

    def _opened(self, name: str, profile: Profile) -> ToolSpec | None:
        if not name:
            return None
        try:
            return self.yard.registry.find(name, profile).spec
        except ToolError:
            return None

    def _run_of(self, view: View) -> Run | None:
        """Return the run that the URL names; nothing if it is gone or of another login."""
        try:
            return self.parts.runs.get(view.query.get("run", ""), view.person)
        except LookupError:
            return None

    async def _approval_of(self, run: Run) -> Any:
        """Return the approval that a run waits for, if others must decide."""
        gate = self.yard.gate
        if gate is None or run.is_over or run.questions or not run.is_waiting:
            return None
        owner = run.caller.owner
        return next((one for one in await gate.approvals.pending() if one.binding.owner == owner and one.card.tool == run.tool), None)

    def _stats(self, spec: ToolSpec) -> CallStats:
        return self.parts.metrics.tools.get(Label(spec.source, spec.name)) or _NO_CALLS

    def _find_catalogue(self) -> Catalogue:
        """Return the catalogue that agents search, or one of our own in a yard without metatools."""
        found: list[Catalogue] = [one for provider in self.yard.providers if (one := getattr(provider, "catalogue", None)) is not None]
        if found:
            return found[0]
        if self._catalogue is None:
            self._catalogue = Catalogue(self.yard.registry, self.yard.search)
        return self._catalogue

    async def _listing(self, query: Mapping[str, str], profile: Profile) -> Listing:
        """Return one page of the list; it is kept, because an open page asks for it every second."""
        chosen = tuple(query.get(key, "") for key in ("q", "source", "operation", "sort", "page"))
        order = int(time.monotonic() / _ORDER_S) if query.get("sort") == "calls" else 0
        key = (*chosen, self.yard.registry.versions["tool"], profile, order)
        found = self._listings.get(key)
        if found is None:
            found = await (self._search if query.get("q", "").strip() else self._list)(query, profile)
            if len(self._listings) >= _LISTINGS:
                self._listings.clear()
            self._listings[key] = found
        return found

    async def _search(self, query: Mapping[str, str], profile: Profile) -> Listing:
        number = int(query["page"]) if query.get("page", "").isdecimal() else 1
        found = await self._find_catalogue().search(
            query["q"],
            profile,
            namespace=query.get("source") or None,
            operation=_operation(query.get("operation", "")),
            offset=(number - 1) * _ROWS,
            limit=_ROWS,
        )
        rows = [self._row(hit.spec, hit.why) for hit in found.hits]
        closest = [source for source in found.closest if source != METATOOLS]
        return Listing(rows=rows, number=number, pages=number + found.more, total=found.total, closest=closest)

    async def _list(self, query: Mapping[str, str], profile: Profile) -> Listing:
        operation = _operation(query.get("operation", ""))
        specs = self._find_catalogue().tools(profile, namespace=query.get("source") or None, operation=operation)
        if query.get("sort") == "tokens":
            await self._count_all(profile)
            specs = sorted(specs, key=lambda spec: (-self._cost(spec), spec.name))
        elif query.get("sort") == "calls":
            specs = sorted(specs, key=lambda spec: (-self._stats(spec).calls, spec.name))
        shown, number, pages = page_of(specs, query.get("page", ""), _ROWS)
        return Listing(rows=[self._row(spec) for spec in shown], number=number, pages=pages, total=len(specs))

    def _row(self, spec: ToolSpec, why: str = "") -> Row:
        return Row(spec, one_line(spec.description, _SUMMARY), self._cost(spec), why)

    def _cost(self, spec: ToolSpec) -> int:
        found = self._costs.get(spec.name)
        if found is None or found[0] is not spec:
            found = self._costs[spec.name] = (spec, cost([spec]))
        return found[1]

    async def _count_all(self, profile: Profile) -> dict[str, Any]:
        """Return how many tools there are, what they would cost in a list, and what agents see instead; counted once a version."""
        version = self.yard.registry.versions["tool"]
        known, totals = self._totals.get(profile, (-1, {}))
        if known == version:
            return totals
        specs = self.yard.registry.visible(profile)
        if len(self._costs) > 2 * len(self.yard.registry):
            self._costs.clear()
        sources: dict[str, int] = {}
        tokens = 0
        for number, spec in enumerate(specs):
            sources[spec.source] = sources.get(spec.source, 0) + 1
            tokens += 0 if spec.source == METATOOLS else self._cost(spec)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # other calls run in between
        own = len(specs) - sources.get(METATOOLS, 0)
        listed = self.yard.list(profile)
        totals = {
            "tools": own,
            "tokens": tokens,
            "sources": dict(sorted(sources.items())),
            "listed": len(listed),
            "listed_tokens": cost(listed),
        }
        if len(self._totals) >= _LISTINGS:
            self._totals.clear()
        self._totals[profile] = (version, totals)
        return totals

    def _describe(self, spec: ToolSpec, view: View) -> dict[str, Any]:
        """Return what the drawer shows of a tool."""
        gate = self.yard.gate
        needs = False if gate is None else gate.needs_approval(spec, self.profile_of(view).name, view.person.caller)
        described = full_description(spec)
        examples = [example for example in spec.examples if len(encode(example)) <= _EXAMPLE_CHARACTERS]
        return {
            **described,
            "description": spec.description[:_TEXT_CHARACTERS],
            "stub": stub(spec)[:_TEXT_CHARACTERS],
            "is_cut": len(spec.description) > _TEXT_CHARACTERS or len(examples) < len(spec.examples),
            "schemas": [(title, shown(schema)) for title, schema in _schemas(spec)],
            "examples": [(example.title, encode(example.arguments).decode(), example.result) for example in examples],
            "needs_approval": needs,
            "runs": self.parts.runs.of_person(view.person, spec.name)[:5],
        }


def shown_envelope(run: Run) -> dict[str, Any]:
    """Return the answer of a run as a page shows it: whole, or its beginning as text if it is too long."""
    assert run.envelope is not None  # noqa: S101 - the run is over
    return {"value": shown(msgspec.Raw(run.text)), "tokens": run.envelope.meta.estimated_tokens, "blocks": run.envelope.content}


def next_step(run: Run) -> dict[str, str] | None:
    """Return the link to the approval or the job of a call that has no result yet, or None."""
    data: object = None if run.envelope is None else run.envelope.data
    facts = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if facts.get("status") == APPROVAL_REQUIRED:
        to = url("approvals", open=str(facts.get("approval_id", "")))
        return {"text": "Another person must approve this call. Run it again afterwards.", "to": to, "label": "Approvals"}
    if facts.get("status") == "working" and facts.get("job_id"):
        return {"text": "The call goes on in the background.", "to": url("jobs", open=str(facts["job_id"])), "label": "The job"}
    return None


def _schemas(spec: ToolSpec) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("Input schema", spec.input_schema), ("Output schema", spec.output_schema)]
    return [(title, schema) for title, schema in found if schema is not None]


def shown(value: Any) -> dict[str, Any]:
    """Return a value as indented JSON, or a text as it is, cut where it would make the page heavy."""
    text = value if isinstance(value, str) else pretty(value)
    most = _SHOWN_CHARACTERS if isinstance(value, msgspec.Raw) else _JSON_CHARACTERS
    return {"text": text[:most], "is_cut": len(text) > most, "characters": len(text)}


def _failed(stats: CallStats) -> int:
    return sum(stats.errors.values())


def _recent(stats: CallStats) -> list[float]:
    """Return the calls of the last 15 minutes, by 15 seconds."""
    return [float(step.calls) for step in stats.trend.last(now=time.time())]


def _operation(name: str) -> Operation | None:
    return Operation(name) if name in frozenset(map(str, Operation)) else None


def _action(form: Mapping[str, str]) -> Action:
    action = form.get("action", "")
    if action not in get_args(Action):
        raise ToolError("invalid_input", "Choose an answer.", may_have_run=False)
    return cast("Action", action)


def _own(back: str) -> str:
    return back if back == url("tools") or back.startswith(f"{url('tools')}?") else url("tools")


def _with(target: str, **changes: str) -> str:
    path, _, query = target.partition("?")
    return url(path.removeprefix("/console/"), dict(parse_qsl(query)), **changes)
