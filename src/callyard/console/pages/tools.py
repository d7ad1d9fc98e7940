"""The page 'Tools': finds tools as an agent does, describes one, and runs it from a form."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Any, Final, cast, get_args

import msgspec

from callyard.console.form import make_form, read_answer
from callyard.console.page import FRESH, PERIODS, Done, Page, Parts, View, changed, page_of, pretty, url
from callyard.console.runs import Action, Run
from callyard.metatools.catalogue import Catalogue
from callyard.metatools.describe import full_description
from callyard.metatools.provider import Metatools
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile, cost
from callyard.model.signature import one_line, stub
from callyard.model.spec import Operation, ToolSpec
from callyard.model.switch import Switch
from callyard.monitor.metrics import CallStats, Label
from callyard.policy.approvals import Approval
from callyard.transports.http.response import JSON, ResponseWriter

__all__ = ["Tools", "next_step", "shown", "shown_envelope"]

_ROWS: Final = 50
_QUERY: Final = 500
_NAMES: Final = 8
_AT_ONCE: Final = 200
_TEXT_CHARACTERS: Final = 6000
_JSON_CHARACTERS: Final = 20_000
_SHOWN_CHARACTERS: Final = 40_000
_EXAMPLE_CHARACTERS: Final = 8000
_NO_CALLS: Final = CallStats()


class Tools(Page):
    """Every tool, and the form that runs it."""

    name = "tools"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._catalogue: Catalogue | None = None
        self._costs: dict[str, tuple[ToolSpec, int]] = {}
        """What each tool costs in a list: counting ten thousand of them takes a while."""

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
        facts = (
            {}
            if view.is_live
            else {"totals": await self._count_all(profile), "listing": await self._listing(query, profile)}
        )
        return {
            **facts,
            "operations": [str(operation) for operation in Operation],
            "chosen": {key: query.get(key, "") for key in ("q", "source", "operation", "sort")},
            "stats": self._stats,
            "cost": self._cost,
            "one_line": one_line,
            "missing": query.get("open", "") if spec is None else "",
            "switch": self._switch_of(query.get("open", ""), profile) if spec is None else None,
            "periods": PERIODS,
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
        """Answer with JSON: names of tools, a whole definition, or the arguments or the answer of a run."""
        person = view.person
        if not view.path or view.request.method == "POST":
            return False
        match view.path:
            case ("names",):
                words = view.query.get("q", "").lower()
                tools = self._find_catalogue().tools(self.profile_of(view))
                body = encode([*islice((spec.name for spec in tools if words in spec.name.lower()), _NAMES)])
            case ("describe", name) if (spec := self._opened(name, self.profile_of(view))) is not None:
                body = pretty(full_description(spec)).encode()
            case ("runs", run_id, "envelope"):
                body = pretty(msgspec.Raw(self.parts.runs.get(run_id, person).text or "null")).encode()
            case ("runs", run_id, "arguments"):
                body = self.parts.runs.get(run_id, person).arguments.encode() or b"{}"
            case _:
                raise LookupError
        await writer.respond(200, body, (JSON, FRESH))
        return True

    async def act(self, view: View) -> Done:
        """Run a tool, cancel a run, or answer its question."""
        form, runs = view.form, self.parts.runs
        match view.path:
            case ("run",):
                run = await runs.start(view.person, form.get("tool", ""), form.get("arguments", "").strip())
            case ("runs", run_id, "cancel"):
                run = runs.get(run_id, view.person)
                run.cancel()
            case ("runs", run_id, "answer"):
                run, action = runs.get(run_id, view.person), form.get("action", "")
                if action not in get_args(Action):
                    raise ToolError("invalid_input", "Choose an answer.")
                run.answer(form.get("question", ""), cast("Action", action), read_answer(form.get("content", "")))
            case _:
                raise LookupError
        await asyncio.sleep(0)
        return Done(to=changed(self.back(view), run=run.id, open=run.tool))

    def _opened(self, name: str, profile: Profile) -> ToolSpec | None:
        with suppress(ToolError):
            return self.yard.registry.find(name, profile).spec if name else None
        return None

    def _switch_of(self, name: str, profile: Profile) -> Switch | None:
        """Return what disables a tool that the profile allows."""
        spec = self.yard.registry.published(name)
        return None if spec is None or not profile.allows(spec) else self.yard.registry.switch_of(spec)

    def _run_of(self, view: View) -> Run | None:
        """Return the run that the URL names; nothing if it is gone or of another login."""
        with suppress(LookupError):
            return self.parts.runs.get(view.query.get("run", ""), view.person)
        return None

    async def _approval_of(self, run: Run) -> Approval | None:
        """Return the approval that a run waits for, if others must decide."""
        gate = self.yard.gate
        if gate is None or run.is_over or run.questions or not run.is_waiting:
            return None
        own = [one for one in await gate.approvals.pending() if one.binding.owner == run.caller.owner]
        return next((one for one in own if one.card.tool == run.tool), None)

    def _stats(self, spec: ToolSpec) -> CallStats:
        return self.parts.metrics.tools.get(Label(spec.source, spec.name)) or _NO_CALLS

    def _find_catalogue(self) -> Catalogue:
        """Return the catalogue that agents search, or one of our own in a yard without metatools."""
        for provider in self.yard.providers:
            if isinstance(provider, Metatools) and provider.catalogue is not None:
                return provider.catalogue
        if self._catalogue is None:
            self._catalogue = Catalogue(self.yard.registry, self.yard.search)
        return self._catalogue

    async def _listing(self, query: Mapping[str, str], profile: Profile) -> dict[str, Any]:
        """Return one page of the list, each tool with the reason why search found it."""
        operation = query.get("operation", "")
        chosen: dict[str, Any] = {
            "namespace": query.get("source") or None,
            "operation": Operation(operation) if operation in map(str, Operation) else None,
        }
        if query.get("q", "").strip():
            return await self._search(query, profile, chosen)
        specs = self._find_catalogue().tools(profile, **chosen)
        if query.get("sort") == "tokens":
            specs = sorted(specs, key=lambda spec: (-self._cost(spec), spec.name))
        elif query.get("sort") == "calls":
            specs = sorted(specs, key=lambda spec: (-self._stats(spec).calls, spec.name))
        shown, number, pages = page_of(specs, query.get("page", ""), _ROWS)
        return {"rows": [(spec, "") for spec in shown], "number": number, "pages": pages, "closest": ()}

    async def _search(self, query: Mapping[str, str], profile: Profile, chosen: Mapping[str, Any]) -> dict[str, Any]:
        number = int(query["page"]) if query.get("page", "").isdecimal() else 1
        first = (number - 1) * _ROWS
        found = await self._find_catalogue().search(query["q"], profile, offset=first, limit=_ROWS, **chosen)
        rows = [(hit.spec, hit.why) for hit in found.hits]
        closest = [source for source in found.closest if source != METATOOLS]
        return {"rows": rows, "number": number, "pages": number + found.more, "closest": closest}

    def _cost(self, spec: ToolSpec) -> int:
        found = self._costs.get(spec.name)
        if found is None or found[0] is not spec:
            found = self._costs[spec.name] = (spec, cost([spec]))
        return found[1]

    async def _count_all(self, profile: Profile) -> dict[str, Any]:
        """Return how many tools there are, their cost in a list, and what agents see instead."""
        if len(self._costs) > 2 * len(self.yard.registry):
            self._costs.clear()
        sources = Counter[str]()
        tokens = 0
        for number, spec in enumerate(self.yard.registry.visible(profile)):
            sources[spec.source] += 1
            tokens += 0 if spec.source == METATOOLS else self._cost(spec)
            if number % _AT_ONCE == 0:
                await asyncio.sleep(0)  # other calls run in between
        listed = self.yard.list(profile)
        return {
            "tools": sources.total() - sources[METATOOLS],
            "tokens": tokens,
            "sources": dict(sorted(sources.items())),
            "listed": len(listed),
            "listed_tokens": sum(map(self._cost, listed)),
        }

    def _describe(self, spec: ToolSpec, view: View) -> dict[str, Any]:
        gate = self.yard.gate
        asks, caller = self.parts.config.settings.serve.ask_before_destroy, view.person.caller
        needs = gate is not None and gate.needs_approval(spec, self.profile_of(view).name, caller, asks=asks)
        schemas = (("Input schema", spec.input_schema), ("Output schema", spec.output_schema))
        examples = [example for example in spec.examples if len(encode(example)) <= _EXAMPLE_CHARACTERS]
        return {
            **full_description(spec),
            "description": spec.description[:_TEXT_CHARACTERS],
            "stub": stub(spec)[:_TEXT_CHARACTERS],
            "is_cut": len(spec.description) > _TEXT_CHARACTERS or len(examples) < len(spec.examples),
            "schemas": [(title, shown(schema)) for title, schema in schemas if schema is not None],
            "examples": [(example.title, encode(example.arguments).decode(), example.result) for example in examples],
            "needs_approval": needs,
            "runs": self.parts.runs.of_person(view.person, spec.name)[:5],
        }


def shown_envelope(run: Run) -> dict[str, Any]:
    """Return the answer of a run as a page shows it: whole, or its beginning as text if it is too long."""
    assert run.envelope is not None  # noqa: S101 - the run is over
    return {
        "value": shown(msgspec.Raw(run.text)),
        "tokens": run.envelope.meta.estimated_tokens,
        "blocks": run.envelope.content,
    }


def next_step(run: Run) -> dict[str, str] | None:
    """Return the link to the approval or the job of a call that has no result yet, or None."""
    data: object = None if run.envelope is None else run.envelope.data
    facts = cast("dict[str, Any]", data) if isinstance(data, dict) else {}
    if facts.get("status") == APPROVAL_REQUIRED:
        text, label = "Another person must approve this call. Run it again afterwards.", "Approvals"
        return {"text": text, "to": url("approvals", open=str(facts.get("approval_id", ""))), "label": label}
    if facts.get("status") == "working" and facts.get("job_id"):
        text, to = "The call goes on in the background.", url("jobs", open=str(facts["job_id"]))
        return {"text": text, "to": to, "label": "The job"}
    return None


def shown(value: Any) -> dict[str, Any]:
    """Return a value as indented JSON, or a text as it is, cut where it would make the page heavy."""
    text = value if isinstance(value, str) else pretty(value)
    most = _SHOWN_CHARACTERS if isinstance(value, msgspec.Raw) else _JSON_CHARACTERS
    return {"text": text[:most], "is_cut": len(text) > most, "characters": len(text)}
