"""Incidents: what rules see wrong, kept in the store from its beginning to its recovery, with one alert for each.

Rules report problems and clear them. Of the processes of one scope on one store, the one with the lease makes incidents
of the problems of all and notifies. The lease is held only while there is something to do. It knows no rule.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from fnmatch import fnmatchcase
from math import inf
from os import urandom
from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from callyard._internal.logfmt import log_exception, log_value
from callyard._internal.tasks import background_task
from callyard.model.errors import ToolError
from callyard.monitor.notifiers import Notice, NoticeKind, Notifier, Outbox
from callyard.state.store import Clock, Lease, Store, StoreUnavailableError, owner_key

__all__ = ["EVIDENCE", "Incident", "Incidents", "Problem", "Severity", "Silence"]

Severity = Literal["warning", "critical"]
EVIDENCE: Final = 5
"""The most calls and the most sessions that an incident names."""
_TICK_S: Final = 1.0
_LEASE_S: Final = 15.0
_RENEW_S: Final = 5.0
_LOOK_S: Final = 5.0
"""How often a process without the lease looks whether somebody left incidents."""
_SEEN_S: Final = 30.0
"""After so long the problems of a process that was killed no longer count."""
_SEEN_AGAIN_S: Final = 10.0
_CALM_S: Final = 60.0
_LONGEST_CALM_S: Final = 3600.0
_FLAPPING: Final = 4
"""A problem that comes back within so many calm times of its recovery is flapping, too."""
_KEPT_S: Final = 7 * 86_400.0
_OPEN_S: Final = 90 * 86_400.0
_MAX_INCIDENTS: Final = 500
_MAX_PROBLEMS: Final = 200
_MAX_SILENCES: Final = 200
_LONGEST_SILENCE_S: Final = 30 * 86_400.0
_TEXT: Final = 500
_ALERTED, _SETTLED = 1, 2
_log = logging.getLogger(__name__)


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """What a rule sees wrong with something now."""

    rule: str
    subject: str
    """What it is about, such as a tool or a target; with the rule it names the incident."""
    text: str
    """One sentence for people."""
    severity: Severity = "warning"
    details: dict[str, Any] = {}
    calls: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()
    calm_s: float = _CALM_S
    """For how long it must be gone until its incident has recovered; longer for one that flaps."""

    @property
    def key(self) -> str:
        """Return what its incident is called, which silences match."""
        return f"{self.rule}/{self.subject}"


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """A problem from its beginning to its recovery."""

    id: str
    problem: Problem
    """As it was first seen, with the calls and sessions that came later and its worst severity."""
    opened: float
    quiet_since: float | None = None
    """When the problem was gone; none while it is there."""
    closed: float | None = None
    flaps: int = 0
    """How often the problem came back before the incident had recovered, or soon after."""
    notified: dict[str, int] = {}
    """What each notifier knows: nothing yet, the alert (1), or all of it (2)."""

    @property
    def calm_s(self) -> float:
        """Return for how long the problem must be gone until the incident has recovered."""
        seconds = self.problem.calm_s
        return max(seconds, min(seconds * 2.0 ** min(self.flaps, 20), _LONGEST_CALM_S))

    def view(self) -> dict[str, Any]:
        """Return it as JSON for people and notifiers."""
        problem = msgspec.to_builtins(self.problem)
        del problem["calm_s"]
        facts = {"opened": self.opened, "recovered": self.closed, "flaps": self.flaps}
        return {"id": self.id, "key": self.problem.key, **problem, **facts}


class Silence(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody is alerted of the incidents that match a pattern, until its end."""

    pattern: str
    """Matches the key of an incident, such as `hung/report` or `*/billing`."""
    by: str
    at: float
    until: float
    reason: str = ""

    def covers(self, incident: Incident) -> bool:
        """Return whether it matches an incident, as long as it has not ended."""
        key = incident.problem.key  # may have signs of patterns, such as the URI of a resource
        return key == self.pattern or fnmatchcase(key, self.pattern)


class _Incidents:
    """The incidents of one process as data: the latest of each key, and those that are not settled."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self.removed: list[str] = []
        """The ids of those to delete in the store."""
        self.all: dict[str, Incident] = {}
        self.by_key: dict[str, Incident] = {}
        self.dirty: set[str] = set()
        self._is_full = False

    def put(self, incident: Incident, *, dirty: bool = True) -> None:
        """Take an incident in place of what was known of it."""
        self.all[incident.id] = incident
        known = self.by_key.get(incident.problem.key)
        if known is None or known.id == incident.id or _rank(known) <= _rank(incident):
            self.by_key[incident.problem.key] = incident
        (self.dirty.add if dirty else self.dirty.discard)(incident.id)

    def remove(self, incident: Incident) -> None:
        """Forget an incident."""
        del self.all[incident.id]
        self.dirty.discard(incident.id)
        if self.by_key.get(incident.problem.key, incident).id == incident.id:
            self.by_key.pop(incident.problem.key, None)

    def is_settled(self, incident: Incident) -> bool:
        """Return whether nothing more happens to it: it is closed, and everybody knows."""
        is_known = all(incident.notified.get(name, _SETTLED) == _SETTLED for name in self._names)
        return incident.closed is not None and is_known

    def judge(self, problems: Mapping[str, Problem], now: float, silences: Sequence[Silence]) -> None:
        """Open, continue and close incidents as the current problems say."""
        for key, problem in problems.items():
            incident = self.by_key.get(key)
            if incident is None or incident.closed is not None:
                self._open(problem, now, incident)
            else:
                self._continue(incident, problem)
        for key, incident in [*self.by_key.items()]:
            if key in problems or incident.closed is not None:
                continue
            if incident.quiet_since is None:
                self.put(replace(incident, quiet_since=now))
            elif now - incident.quiet_since >= incident.calm_s:
                self.close(incident, now, is_silent=_is_silent(incident, now, silences))

    def _open(self, problem: Problem, now: float, last: Incident | None) -> None:
        if not self._make_room():
            return
        is_flapping = last is not None and now - (last.closed or now) <= _FLAPPING * last.calm_s
        flaps = 0 if last is None or not is_flapping else last.flaps + 1
        incident_id = f"i_{int(now * 1000):011x}{urandom(4).hex()}"
        problem = replace(problem, calls=problem.calls[:EVIDENCE], sessions=problem.sessions[:EVIDENCE])
        notified = dict.fromkeys(self._names, 0)
        self.put(Incident(id=incident_id, problem=problem, opened=round(now, 3), flaps=flaps, notified=notified))
        facts = problem.rule, log_value(problem.subject), problem.severity, incident_id, problem.text
        _log.warning("incident_opened rule=%s subject=%s severity=%s id=%s text=%r", *facts)

    def _continue(self, incident: Incident, problem: Problem) -> None:
        known = incident.problem
        calls = tuple(dict.fromkeys((*known.calls, *problem.calls)))[:EVIDENCE]
        sessions = tuple(dict.fromkeys((*known.sessions, *problem.sessions)))[:EVIDENCE]
        severity = "critical" if "critical" in (known.severity, problem.severity) else "warning"
        flaps = incident.flaps + (incident.quiet_since is not None)
        known = replace(known, calls=calls, sessions=sessions, severity=severity)
        notified = dict.fromkeys(self._names, 0) | incident.notified  # notifiers may be new
        following = replace(incident, problem=known, flaps=flaps, quiet_since=None, notified=notified)
        if following != incident:
            self.put(following)

    def close(self, incident: Incident, now: float, *, is_silent: bool) -> None:
        """Note that an incident has recovered; what nobody was alerted of in a silence stays unknown."""
        notified = {name: _SETTLED if is_silent and not stage else stage for name, stage in incident.notified.items()}
        self.put(replace(incident, closed=round(now, 3), notified=notified))
        facts = incident.problem.rule, log_value(incident.problem.subject), incident.id, now - incident.opened
        _log.warning("incident_recovered rule=%s subject=%s id=%s seconds=%.0f", *facts)

    def close_doubles(self, now: float) -> None:
        """Close what is open twice, because two processes could not see each other."""
        for incident in [*self.all.values()]:
            if incident.closed is None and self.by_key[incident.problem.key].id != incident.id:
                self.close(incident, now, is_silent=False)

    def _make_room(self) -> bool:
        """Forget the oldest settled incident if there are too many; return whether another one may open."""
        if len(self.all) < _MAX_INCIDENTS:
            self._is_full = False
            return True
        oldest = next((one for _, one in sorted(self.all.items()) if self.is_settled(one)), None)
        if oldest is not None:
            self.remove(oldest)
            self.removed.append(oldest.id)
        elif not self._is_full:
            self._is_full = True
            _log.error("incidents_full open=%d", len(self.all))
        return oldest is not None


def _rank(incident: Incident) -> tuple[bool, float]:
    """Return what decides which of two incidents of one key goes on: an open one, and the later one."""
    return incident.closed is None, incident.opened


def _is_silent(incident: Incident, now: float, silences: Sequence[Silence]) -> bool:
    return any(now < one.until and one.covers(incident) for one in silences)


class Incidents:
    """The incidents of one yard or watcher; call `step` and `deliver` again and again, or open it.

    Processes with the same `scope` on one store share them. The problems of a process end with it. With `lasting`, they
    stay until they are cleared by the process that leads then; one process always leads, and only its problems count.
    """

    def __init__(
        self,
        store: Store,
        *,
        scope: str,
        notifiers: Sequence[Notifier] = (),
        lasting: bool = False,
        clock: Clock = time.time,
    ) -> None:
        self.problems: dict[str, Problem] = {}
        """What this process sees wrong now, by key."""
        self.outboxes = {one.name: Outbox(one, clock) for one in notifiers}
        self._has_news = asyncio.Event()
        self._unjudged: dict[str, Problem] = {}
        """What was reported since the last judgement, which may be gone again."""
        self._store = store
        self._scope = scope
        self._lasting = lasting
        self._clock = clock
        self._known = _Incidents([*self.outboxes])
        self._silences: list[Silence] = []
        self._others: dict[str, Problem] = {}
        self._saved: dict[str, bytes] = {}
        """What the store has of each incident."""
        self._lease: Lease | None = None
        self._renewed = self._looked = self._shown = -inf
        self._shown_problems: dict[str, Problem] = {}
        self._is_away = False
        self._follows = False
        """Whether another process had the lease when the store was last there."""
        self._settled: set[str] = set()
        """The incidents in the store that need nothing more."""
        self._lock = asyncio.Lock()
        prefix = owner_key(scope)
        self._lease_key = f"incidents/{prefix}"
        self._incident_prefix = f"incident/{prefix}/"
        self._silence_prefix = f"silence/{prefix}/"
        self._seen_prefix = f"incident_seen/{prefix}/"
        self._seen_key = ""

    @property
    def leads(self) -> bool:
        """Return whether this process makes the incidents and notifies: it has the lease, or the store is away."""
        return self._lease is not None or (self._is_away and not self._follows)

    def report(self, problem: Problem) -> None:
        """Report that something is wrong, until `clear`; to report it again adds evidence."""
        if problem.key in self.problems or len({**self._unjudged, **self.problems}) < _MAX_PROBLEMS:
            if problem.key not in self.problems:
                self._has_news.set()
            self.problems[problem.key] = self._unjudged[problem.key] = problem

    def clear(self, rule: str, subject: str) -> None:
        """Report that it is wrong no longer."""
        self.problems.pop(f"{rule}/{subject}", None)

    def replace(self, problems: Iterable[Problem]) -> None:
        """Report these problems, and that all others of this process are gone."""
        current = {problem.key: problem for problem in problems}
        for key in self.problems.keys() - current.keys():
            del self.problems[key]
        for problem in current.values():
            self.report(problem)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Judge and notify while the context is open."""
        judging, sending = self._repeat(self.step, self._has_news), self._repeat(self.deliver, asyncio.Event())
        try:
            async with background_task(judging), background_task(sending):
                yield
        finally:
            lease, self._lease = self._lease, None
            with suppress(StoreUnavailableError):  # then both end by themselves
                await self._store.delete(self._seen_key)
                if lease is not None:
                    await self._store.release(lease)

    async def _repeat(self, work: Any, wake: asyncio.Event) -> None:
        while True:
            try:
                await work()
            except Exception:  # noqa: BLE001 - a store may raise anything, and what follows must still be judged
                log_exception(_log, "incidents_failed")
            with suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S):
                    await wake.wait()
            wake.clear()

    async def step(self) -> None:
        """Follow the store, judge the problems, and store what changed; without the store it goes on in memory."""
        async with self._lock:
            if not self._seen_key:  # not earlier: workers are forked from one process
                self._seen_key = self._seen_prefix + urandom(8).hex()
            try:
                await self._follow()
                self._is_away = False
            except StoreUnavailableError as error:
                self._note_away(error)
            if not self.leads:
                if self._lasting:
                    self._unjudged.clear()
                return
            now = self._clock()
            self._known.judge({**self._others, **self._unjudged, **self.problems}, now, self._silences)
            self._unjudged.clear()
            await self._save()

    async def deliver(self) -> None:
        """Send what each notifier does not know yet, the alert of an incident before its recovery."""
        await asyncio.gather(*(self._deliver_to(outbox) for outbox in self.outboxes.values()))

    async def all(self) -> list[Incident]:
        """Return the incidents of the last days, the latest first.

        Raises:
            StoreUnavailableError: They are another process's, and the store cannot be read.
        """
        found = [*self._known.all.values()] if self.leads else [one for one, _ in await self._read()]
        return sorted(found, key=lambda one: one.id, reverse=True)

    def counts(self) -> tuple[Mapping[tuple[str, str], int], Mapping[tuple[str, str], int]]:
        """Return what this process sees wrong by rule and severity, and its notices by notifier and result."""
        problems = Counter((one.rule, str(one.severity)) for one in self.problems.values())
        results = ((name, *item) for name, outbox in self.outboxes.items() for item in outbox.counts.items())
        return problems, {(name, str(result)): count for name, result, count in results}

    async def silence(self, pattern: str, *, by: str, seconds: float, reason: str = "") -> Silence:
        """Alert nobody of the incidents whose key matches a pattern, for so long.

        Raises:
            ToolError: `invalid_input` if the pattern or the time cannot be used, `overloaded` if there are too many.
        """
        pattern = pattern.strip()
        if not (0 < len(pattern) <= _TEXT and pattern.isprintable()):
            raise ToolError("invalid_input", f"A pattern has 1 to {_TEXT} characters.", may_have_run=False)
        if not 0 < seconds <= _LONGEST_SILENCE_S:
            message = f"A silence lasts at most {_LONGEST_SILENCE_S / 86_400:g} days."
            raise ToolError("invalid_input", message, may_have_run=False)
        if len(await self._store.keys(self._silence_prefix, limit=_MAX_SILENCES)) >= _MAX_SILENCES:
            raise ToolError("overloaded", "There are too many silences.", hint="Use a pattern.", may_have_run=False)
        now = round(self._clock(), 3)
        silence = Silence(pattern=pattern, by=by, at=now, until=now + seconds, reason=reason.strip()[:_TEXT])
        await self._store.put(self._silence_prefix + pattern, msgspec.json.encode(silence), ttl=seconds)
        self._silences = [*(one for one in self._silences if one.pattern != pattern), silence]
        _log.info("silenced pattern=%s by=%s until=%.0f", log_value(pattern), log_value(by), silence.until)
        return silence

    async def end_silence(self, pattern: str, *, by: str) -> None:
        """End a silence before its time."""
        await self._store.delete(self._silence_prefix + pattern)
        self._silences = [one for one in self._silences if one.pattern != pattern]
        _log.info("silence_ended pattern=%s by=%s", log_value(pattern), log_value(by))

    async def silences(self) -> list[Silence]:
        """Return the silences that have not ended, sorted by pattern."""
        keys = await self._store.keys(self._silence_prefix, limit=_MAX_SILENCES)
        found = _decoded(await self._store.get_many(keys) if keys else (), Silence)
        now = self._clock()
        return [one for one, _ in found if now < one.until]

    async def _follow(self) -> None:
        """Take, hold or end the lease as needed, and read what other processes wrote."""
        now = self._clock()
        if self._lease is None:
            await self._try_to_lead(now)
            if self._lease is None:
                await self._show_problems(now)
                return
        elif now - self._renewed >= _RENEW_S:
            if not await self._store.renew(self._lease, ttl=_LEASE_S):
                self._lease = None
                self._looked = -inf  # another process may have gone on, or nobody
                await self._follow()
                return
            self._renewed = now
        self._others = await self._problems_of_others()
        self._silences = await self.silences()
        is_busy = (
            self.problems
            or self._unjudged
            or self._others
            or not all(map(self._known.is_settled, self._known.all.values()))
        )
        if not (is_busy or self._known.dirty or self._lasting):
            lease, self._lease = self._lease, None
            self._looked = now
            await self._store.release(lease)

    async def _try_to_lead(self, now: float) -> None:
        """Take the lease if there is something to do and nobody holds it, and read what was done."""
        if not (self.problems or self._unjudged or self._known.dirty or self._lasting):
            if now - self._looked < _LOOK_S:
                return
            self._looked = now
            if not await self._is_something_left():
                self._follows = False
                return
        lease = await self._store.acquire(self._lease_key, ttl=_LEASE_S)
        self._follows = lease is None
        if lease is None:
            self._forget()
            return
        try:
            await self._load(now)
        except BaseException:
            with suppress(StoreUnavailableError):
                await self._store.release(lease)
            raise
        self._lease, self._renewed = lease, now
        await self._store.delete(self._seen_key)
        self._shown_problems = {}

    async def _is_something_left(self) -> bool:
        keys = await self._store.keys(self._incident_prefix)
        new = [key for key in keys if key.removeprefix(self._incident_prefix) not in self._settled]
        found = _decoded(await self._store.get_many(new) if new else (), Incident)
        self._settled &= {key.removeprefix(self._incident_prefix) for key in keys}
        self._settled |= {one.id for one, _ in found if self._known.is_settled(one)}
        is_open = any(one.id not in self._settled for one, _ in found)
        return is_open or bool(await self._store.keys(self._seen_prefix, limit=1))

    async def _load(self, now: float) -> None:
        """Read the incidents; what only this process knows, because the store was away, is kept."""
        stored = await self._read()
        for incident, data in stored:
            if self._saved.get(incident.id) != data:
                self._known.put(incident, dirty=False)
            self._saved[incident.id] = data
        ids = {incident.id for incident, _ in stored}
        for incident in [*self._known.all.values()]:
            if incident.id in ids:
                continue
            if incident.id in self._saved and self._known.is_settled(incident):
                self._known.remove(incident)  # its time in the store is over
            else:
                self._saved.pop(incident.id, None)
                self._known.put(incident)
        self._known.close_doubles(now)
        if self._lasting:
            for key, incident in self._known.by_key.items():
                if incident.closed is None and incident.quiet_since is None:
                    self.problems.setdefault(key, incident.problem)

    def _forget(self) -> None:
        """Forget the incidents, which are those of another process now."""
        self._known = _Incidents([*self.outboxes])
        self._saved.clear()
        self._others = {}

    async def _show_problems(self, now: float) -> None:
        """Write the problems of this process for the one with the lease."""
        problems = {**self._unjudged, **self.problems}
        if self._lasting or (not problems and not self._shown_problems):
            return
        if problems != self._shown_problems or now - self._shown >= _SEEN_AGAIN_S:
            if problems:
                await self._store.put(self._seen_key, msgspec.json.encode([*problems.values()]), ttl=_SEEN_S)
            else:
                await self._store.delete(self._seen_key)
            self._shown, self._shown_problems = now, problems
            self._unjudged.clear()

    async def _problems_of_others(self) -> dict[str, Problem]:
        keys = await self._store.keys(self._seen_prefix, limit=_MAX_PROBLEMS)
        found = _decoded(await self._store.get_many(keys) if keys else (), list[Problem])
        return {problem.key: problem for problems, _ in found for problem in problems}

    async def _read(self) -> list[tuple[Incident, bytes]]:
        keys = await self._store.keys(self._incident_prefix)
        return _decoded(await self._store.get_many(keys) if keys else (), Incident)

    async def _save(self) -> None:
        """Store what changed, unless another process has taken over."""
        try:
            while self._known.removed:
                await self._store.delete(self._incident_prefix + self._known.removed[-1])
                self._saved.pop(self._known.removed.pop(), None)
            for incident_id in sorted(self._known.dirty):
                if not await self._save_one(self._known.all[incident_id]):
                    self._lease = None
                    self._forget()
                    return
        except StoreUnavailableError as error:
            self._note_away(error)

    async def _save_one(self, incident: Incident) -> bool:
        key, data = self._incident_prefix + incident.id, msgspec.json.encode(incident)
        ttl = _OPEN_S if incident.closed is None else _KEPT_S
        expected = self._saved.get(incident.id)
        if not await self._store.compare_and_set(key, expected, data, ttl=ttl):
            current = await self._store.get(key)  # an answer may have been lost, or the store its data
            is_lost = current is None and await self._store.compare_and_set(key, None, data, ttl=ttl)
            if current != data and not is_lost:
                return False
        self._saved[incident.id] = data
        if self._known.all.get(incident.id) == incident:
            self._known.dirty.discard(incident.id)
        return True

    async def _deliver_to(self, outbox: Outbox) -> None:
        name = outbox.notifier.name
        for incident_id in sorted(self._known.all):
            while (notice := self._due(incident_id, name)) is not None:
                delivery = await outbox.send(notice)
                if delivery == "later":
                    break
                await self._note_notified(incident_id, name, notice.type)
            if outbox.is_waiting:
                return

    def _due(self, incident_id: str, name: str) -> Notice | None:
        """Return the next notice of an incident for a notifier, if this process may."""
        incident, now = self._known.all.get(incident_id), self._clock()
        if incident is None or not self._may_notify(incident, now):
            return None
        stage = incident.notified.get(name, _SETTLED)
        if not stage and not _is_silent(incident, now, self._silences):
            return self._notice(incident, "alert", incident.opened)
        if stage == _ALERTED and incident.closed is not None:
            return self._notice(incident, "recovery", incident.closed)
        return None

    def _may_notify(self, incident: Incident, now: float) -> bool:
        """Return whether no other process can notify: a lease may have ended while this machine slept.

        The incident must be stored, lest a restart alerts of it under another id; without a store that must do.
        """
        if self._is_away:
            return self.leads
        return self._lease is not None and now - self._renewed < _LEASE_S and incident.id in self._saved

    def _notice(self, incident: Incident, kind: NoticeKind, at: float) -> Notice:
        return Notice(type=kind, key=f"{incident.id}-{kind}", at=at, origin=self._scope, incident=incident.view())

    async def _note_notified(self, incident_id: str, name: str, kind: NoticeKind) -> None:
        """Note that a notifier was notified, or that the notice was lost, which settles it as well."""
        incident = self._known.all.get(incident_id)
        if incident is None:  # another process has taken over
            return
        stage = _ALERTED if kind == "alert" else _SETTLED
        self._known.put(replace(incident, notified={**incident.notified, name: stage}))
        async with self._lock:
            if self._lease is not None:
                await self._save()

    def _note_away(self, error: StoreUnavailableError) -> None:
        if not self._is_away:
            _log.warning("incidents_in_memory reason=%s", error.reason)
        self._is_away = True


def _decoded(texts: Iterable[bytes | None], kind: Any) -> list[tuple[Any, bytes]]:
    """Return what was stored, without what cannot be read."""
    found: list[tuple[Any, bytes]] = []
    for text in texts:
        with suppress(msgspec.DecodeError):
            if text is not None:
                found.append((msgspec.json.decode(text, type=kind), text))
    return found
