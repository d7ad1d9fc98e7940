"""The page 'Calls': calls as they happen, as trees with a timeline, and one call in full.

Records have no contents, so arguments and answers are shown only for the runs of the person who looks.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

from markupsafe import Markup

from callyard.console.page import Done, Page, Parts, View, timeline, url
from callyard.console.pages.server import session_key
from callyard.console.pages.tools import next_step, shown, shown_envelope
from callyard.dispatch.call import Call
from callyard.dispatch.outcome import Record
from callyard.dispatch.run import run_of
from callyard.model.errors import CODES, ToolError

__all__ = ["Calls"]

State = Literal["waiting", "running", "finished"]
_KINDS: Final[dict[State, str]] = {"waiting": "waits", "running": "runs", "finished": "done"}
_TREES: Final = 50
_ROWS: Final = 100
"""The most rows of the list: a page is as long at a thousand calls a second as at one."""
_INNER: Final = 6
"""The most inner calls that the list shows of one call; the drawer has more."""
_DRAWER_ROWS: Final = 200
_RUNNING: Final = 20
_LONG_MS: Final = 1000.0
"""Calls in flight are shown after so long, because quicker ones would only flicker."""
_SCANNED: Final = 2000
_KEPT: Final = 200
_NAMES: Final = 100
_TEXT: Final = 200


class Node(NamedTuple):
    """One row: a call, how deep it is in its tree, and its place in the time of the outermost call."""

    record: Record
    state: State
    level: int
    bar: Markup


class Tree(NamedTuple):
    """A call with the calls inside it, the outermost first."""

    nodes: tuple[Node, ...]
    left_out: int

    @property
    def root(self) -> Node:
        """Return the outermost call."""
        return self.nodes[0]


class _Forest:
    """The records of this moment, finished and in flight, by their parents."""

    def __init__(self, finished: Iterable[Record], running: Mapping[str, tuple[Record, State]]) -> None:
        self.records: dict[str, tuple[Record, State]] = {record.call_id: (record, "finished") for record in finished}
        self.records.update(running)
        self.children: dict[str, list[str]] = {}
        for call_id, (record, _) in self.records.items():
            if record.parent_id is not None:
                self.children.setdefault(record.parent_id, []).append(call_id)

    def ids_below(self, call_id: str) -> list[tuple[str, int]]:
        """Return a call and those inside it with their levels, in the order in which they started."""
        found: list[tuple[str, int]] = []
        pending = [(call_id, 0)]
        while pending:
            call_id, level = pending.pop()
            found.append((call_id, level))
            inner = sorted(self.children.get(call_id, ()), key=lambda child: self.records[child][0].started)
            pending += [(child, level + 1) for child in reversed(inner)]
        return found

    def tree(self, call_id: str, most: int, *, with_finished: bool = True) -> Tree:
        """Return the tree of a call with at most so many inner calls, perhaps only with those in flight."""
        root = self.records[call_id][0]
        rows = [(*self.records[one], level) for one, level in self.ids_below(call_id)]
        rows = [row for row in rows if with_finished or row[1] != "finished"]
        nodes = tuple(_node(*row, root) for row in rows[: most + 1])
        return Tree(nodes, len(rows) - len(nodes))


class Calls(Page):
    """The last calls, and those in flight."""

    name = "calls"

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        self._opened: dict[str, Tree] = {}
        """The calls that somebody looked at, which would soon be gone otherwise."""

    async def context(self, view: View) -> dict[str, Any]:
        """Return the trees that fit the filter, and the opened call."""
        chosen = {key: view.query.get(key, "")[:_TEXT] for key in ("tool", "caller", "code")}
        in_flight = islice(self.yard.dispatcher.in_flight.values(), _SCANNED)
        forest = _Forest(self.parts.records.records, {call.id: _in_flight(call) for call in in_flight})
        opened = view.query.get("open", "")[:_TEXT]
        tree = self._open(forest, opened) if opened else None
        run = self.parts.runs.of_call(opened, view.person) if opened else None
        return {
            "running": self._trees(forest, chosen, is_over=False),
            "finished": self._trees(forest, chosen, is_over=True),
            "in_flight": self.yard.calls_in_flight,
            "chosen": chosen,
            "names": _names(forest),
            "codes": ["ok", *CODES],
            "meanings": {name: code.meaning for name, code in CODES.items()},
            "endpoint": self.yard.address or "",
            "opened": opened,
            "tree": tree,
            "run": run,
            "arguments": None if run is None else shown(run.arguments),
            "shown_envelope": shown_envelope,
            "next_step": next_step,
            "session_key": session_key,
            "back": url("calls", chosen, open=opened),
        }

    async def act(self, view: View) -> Done:
        """Cancel a call."""
        if view.path != ("cancel",):
            raise LookupError
        call_id = view.form.get("call", "")
        run = self.parts.runs.of_call(call_id, view.person)
        if run is not None and not run.is_over:
            run.cancel()
        elif not self.yard.dispatcher.cancel(call_id):
            raise ToolError("state_error", "The call is over already.")
        return Done(to=self.back(view), notice="The call is cancelled.")

    def _open(self, forest: _Forest, call_id: str) -> Tree | None:
        """Return the tree of an opened call, as it is or as it was when it was last seen."""
        if call_id in forest.records:
            tree = forest.tree(call_id, _DRAWER_ROWS)
            known = self._opened.pop(call_id, None)
            if known is not None and len(known.nodes) > len(tree.nodes) and known.root.state == tree.root.state:
                tree = known  # inner calls are gone first
            self._opened[call_id] = tree
            if len(self._opened) > _KEPT:
                del self._opened[next(iter(self._opened))]
        return self._opened.get(call_id)

    def _trees(self, forest: _Forest, chosen: Mapping[str, str], *, is_over: bool) -> list[Tree]:
        """Return the newest trees that have a call that fits, up to a number of rows."""
        found: list[Tree] = []
        rows = 0
        for call_id, (record, state) in reversed(forest.records.items()):
            is_shown = is_over or record.elapsed_ms >= _LONG_MS
            if (state == "finished") is not is_over or not is_shown or record.parent_id in forest.records:
                continue
            if not any(_fits(forest.records[one][0], chosen) for one, _ in forest.ids_below(call_id)):
                continue
            tree = forest.tree(call_id, _INNER, with_finished=is_over)
            rows += len(tree.nodes)
            found.append(tree)
            if rows >= _ROWS or len(found) >= (_TREES if is_over else _RUNNING):
                break
        return found


def _fits(record: Record, chosen: Mapping[str, str]) -> bool:
    return (
        chosen["tool"].lower() in record.tool.lower()
        and chosen["caller"].lower() in record.identity.lower()
        and chosen["code"] in {"", record.code or "ok"}
    )


def _names(forest: _Forest) -> dict[str, list[str]]:
    """Return the tools and callers of these calls for the filter, the most frequent first."""
    records = [record for record, _ in forest.records.values()]
    names = {"tools": [record.tool for record in records], "callers": [record.identity for record in records]}
    return {kind: [name for name, _ in Counter(found).most_common(_NAMES)] for kind, found in names.items()}


def _node(record: Record, state: State, level: int, root: Record) -> Node:
    span = max(root.elapsed_ms, 1e-3)
    start, length = (record.started - root.started) * 1000 / span, record.elapsed_ms / span
    kind, label = "bad" if record.code else _KINDS[state], f"{start:.0%} to {start + length:.0%} of the time"
    if not level:  # the outermost call is the scale of the others
        kind, label = f"{kind} whole", "all of the time"
    return Node(record, state, level, timeline(start, length, waited=record.waited_ms / span, kind=kind, label=label))


def _in_flight(call: Call) -> tuple[Record, State]:
    """Return a call that is not over as a record, and whether it runs or waits."""
    elapsed_s = time.perf_counter() - run_of(call).started
    record = Record(
        call_id=call.id,
        tool=call.tool,
        started=time.time() - elapsed_s,
        elapsed_ms=elapsed_s * 1000,
        source=call.spec.source,
        operation=str(call.spec.operation),
        parent_id=None if call.parent is None else call.parent.id,
        depth=call.depth,
        session_id=None if call.session is None else call.session.id,
        identity=call.caller.identity,
        profile=call.profile.name,
        channel=call.channel.name,
        trace_id=call.channel.trace_id,
        kind=call.spec.kind,
        coerced=len(call.coerced),
        client=call.caller.client,
    )
    return record, "running" if call.may_have_run else "waiting"
