"""A watch over many targets, on a fake clock: schedules, rules, politeness, failures of its own, and two watchers."""

# The tests decide when a step is taken, so they look inside.
# pyright: reportPrivateUsage=false

import asyncio
import os
import random
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from failing_server import serving
from table_tests import every_row

from callyard.config.probes import ProbeTable
from callyard.monitor.incidents import Incidents
from callyard.monitor.notifiers import Notice, NotifyError
from callyard.probe import Failure, Report, Step, Target, probe
from callyard.probe.codes import ProbeCodeName
from callyard.probe.history import TargetState
from callyard.probe.pages import badge, probe_metrics, status, status_page, watch_metrics
from callyard.probe.rules import problems_of
from callyard.probe.watch import Watch, control_of
from callyard.providers.upstream.oauth.vault import StoredLogin, Token, Vault
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.verdict import Change
from callyard.state.memory import MemoryStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeClock

RUNS: Final = int(os.environ.get("WATCH_RUNS", "10"))
EVERY: Final = 60.0


class Phone:
    """A notifier that keeps what it gets; it may be away."""

    name = "phone"

    def __init__(self) -> None:
        self.notices: dict[str, Notice] = {}
        self.is_away = False

    async def notify(self, notice: Notice) -> None:
        if self.is_away:
            raise NotifyError("no answer")
        self.notices.setdefault(notice.key, notice)

    @property
    def heard(self) -> list[str]:
        """Return what came, such as 'alert down/a', in order."""
        return [f"{one.type} {one.incident['key']}" for one in self.notices.values()]


class Store(MemoryStore):
    """A store that is away when the test says so."""

    is_away = False

    async def put(self, key: str, value: bytes, *, ttl: float | None = None) -> None:
        self._check()
        await super().put(key, value, ttl=ttl)

    async def get_many(self, keys: Any) -> list[bytes | None]:
        self._check()
        return await super().get_many(keys)

    async def renew(self, lease: Any, *, ttl: float) -> bool:
        self._check()
        return await super().renew(lease, ttl=ttl)

    async def acquire(self, key: str, *, ttl: float) -> Any:
        self._check()
        return await super().acquire(key, ttl=ttl)

    def _check(self) -> None:
        if self.is_away:
            raise StoreUnavailableError("No.", reason="no_connection")


class World:
    """A clock, a store, a phone, and targets whose answers the test sets."""

    def __init__(self, folder: Path, *names: str, **checks: Any) -> None:
        self.clock = FakeClock(1_000_000.0)
        self.monotonic = FakeClock()
        self.store = Store(clock=self.monotonic)
        self.phone = Phone()
        self.codes: dict[str, ProbeCodeName] = {}
        self.facts: dict[str, dict[str, Any]] = {}
        self.probes: list[tuple[str, float]] = []
        self.versions: list[str | None] = []
        self.answers = True
        self.targets = [
            Target(
                name=name,
                settings=UpstreamSettings(url=f"http://{name}.example/mcp"),
                folder=folder / name,
                checks=ProbeTable(**checks),
            )
            for name in names
        ]

    async def probe(self, target: Target, *, last_version: str | None = None) -> Report:
        self.probes.append((target.name, self.monotonic()))
        self.versions.append(last_version)
        code = self.codes.get(target.name)
        failures = () if code is None else (Failure("handshake", code, "It fails."),)
        facts: dict[str, Any] = {"ms": 5.0, "version": "2026-07-28", **self.facts.get(target.name, {})}
        return Report(target=target.name, at=self.clock(), failures=failures, steps=(Step("handshake", 5.0),), **facts)

    def start(self, **more: Any) -> Watch:
        incidents = Incidents(self.store, scope="watch", notifiers=[self.phone], lasting=True, clock=self.clock)
        options: dict[str, Any] = {"prober": self.probe, **more}
        return Watch(
            self.targets,
            incidents,
            self.store,
            name="watch",
            every=EVERY,
            clock=self.clock,
            monotonic=self.monotonic,
            **options,
        )

    async def control(self) -> bool:
        return self.answers

    async def run(self, *watches: Watch, seconds: float, step: int = 1) -> None:
        """Let time pass, with a turn of each watch and its incidents in each step."""
        for _ in range(0, round(seconds), step):
            self.clock.advance(step)
            self.monotonic.advance(step)
            for watch in watches:
                await turn(watch)

    def times(self, name: str) -> list[float]:
        return [at for probed, at in self.probes if probed == name]


async def turn(watch: Watch) -> None:
    await watch.incidents.step()
    await watch.step()
    tasks = [*watch._tasks.values()]
    if tasks:
        await asyncio.wait(tasks)
    await watch.step()
    await watch.incidents.step()
    await watch.incidents.deliver()


async def test_a_healthy_target_is_probed_once_an_interval_with_jitter_and_alerts_nobody(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")
    watch = world.start()
    await world.run(watch, seconds=600)
    gaps = [later - before for before, later in zip(world.times("a"), world.times("a")[1:], strict=False)]
    assert all(EVERY * 0.9 - 1 <= gap <= EVERY + 1 for gap in gaps)
    assert len(set(gaps)) > 1
    assert world.phone.heard == []
    assert world.versions[-1] == "2026-07-28"
    assert watch.targets["a"][1].uptime() == 1.0


async def test_down_is_alerted_within_two_intervals_and_recovers_once(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    watch = world.start()
    await world.run(watch, seconds=300)
    world.codes["a"] = "refused"
    began = world.monotonic()
    while not world.phone.heard:
        await world.run(watch, seconds=1)
    assert world.monotonic() - began <= 2 * EVERY + 5
    await world.run(watch, seconds=600)
    del world.codes["a"]
    await world.run(watch, seconds=2400)
    assert world.phone.heard == ["alert down/a", "recovery down/a"]


async def test_one_failure_alerts_nobody_and_is_confirmed_sooner(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    watch = world.start()
    await world.run(watch, seconds=120)
    world.codes["a"] = "timeout"
    before = len(world.probes)
    while len(world.probes) == before:
        await world.run(watch, seconds=1)
    del world.codes["a"]
    await world.run(watch, seconds=round(EVERY / 2) + 1)
    assert len(world.probes) == before + 2
    assert world.phone.heard == []


async def test_probes_of_a_failing_target_become_rarer(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    world.codes["a"] = "refused"
    await world.run(world.start(), seconds=7200)
    gaps = [later - before for before, later in zip(world.times("a"), world.times("a")[1:], strict=False)]
    assert gaps[-1] > 8 * EVERY
    assert max(gaps) <= 901


async def test_retry_after_is_honoured(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    world.codes["a"], world.facts["a"] = "overloaded", {"retry_after": 500.0}
    watch = world.start()
    await world.run(watch, seconds=499)
    await watch.probe_now("a")
    assert len(world.probes) == 1


async def test_nothing_is_sent_after_refused_credentials_until_a_person_signs_in(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    world.codes["a"] = "auth"
    watch = world.start()
    await world.run(watch, seconds=1200)
    await watch.probe_now("a")
    restarted = world.start()
    await watch.incidents._store.release(watch.incidents._lease)  # pyright: ignore[reportArgumentType] - it leads
    await world.run(restarted, seconds=600)
    assert (len(world.probes), world.phone.heard, restarted.is_held("a")) == (1, ["alert down/a"], True)

    url = world.targets[0].settings.url or ""
    Vault(world.targets[0].folder, url).write(StoredLogin(url=url, token=Token(access_token="new")))  # noqa: S106 - of the test
    del world.codes["a"]
    await world.run(restarted, seconds=600)
    assert len(world.probes) > 5
    assert world.phone.heard == ["alert down/a", "recovery down/a"]


async def test_a_host_gets_one_probe_at_a_time_and_has_a_rest_between_two(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    settings = UpstreamSettings(url="http://a.example/other")
    world.targets.append(msgspec.structs.replace(world.targets[0], name="b", settings=settings))
    release = asyncio.Event()

    async def slow(target: Target, *, last_version: str | None = None) -> Report:
        await release.wait()
        return await world.probe(target, last_version=last_version)

    watch = world.start(prober=slow)
    await watch.incidents.step()
    world.monotonic.advance(1.0)
    world.clock.advance(1.0)
    await watch.step()
    world.monotonic.advance(4.0)
    world.clock.advance(4.0)
    assert (len(watch._tasks), watch.due()) == (1, [])
    release.set()
    await asyncio.wait([*watch._tasks.values()])
    assert watch.due() == []
    world.monotonic.advance(60.0)
    assert len(watch.due()) == 1


async def test_all_targets_that_fail_with_the_control_address_alert_once_for_the_watcher(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b", "c")
    watch = world.start(control=world.control)
    await world.run(watch, seconds=300)
    world.answers = False
    world.codes.update(a="dns", b="unreachable", c="timeout")
    await world.run(watch, seconds=1200)
    assert world.phone.heard == ["alert watcher/network"]
    world.answers = True
    world.codes.clear()
    await world.run(watch, seconds=1200)
    assert world.phone.heard == ["alert watcher/network", "recovery watcher/network"]
    assert watch.targets["a"][1].uptime() == 1.0


async def test_a_target_that_fails_while_the_control_address_answers_is_down(tmp_path: Path) -> None:
    world = World(tmp_path, "a", "b")
    watch = world.start(control=world.control)
    world.codes["a"] = "unreachable"
    await world.run(watch, seconds=300)
    assert world.phone.heard == ["alert down/a"]


@every_row("wall, monotonic", [(7200.0, 0.0), (-7200.0, 0.0), (600.0, 600.0)])
async def test_a_clock_that_jumps_and_a_machine_that_slept_alert_of_no_target(
    wall: float, monotonic: float, tmp_path: Path
) -> None:
    world = World(tmp_path, "a", "b")
    watch = world.start()
    await world.run(watch, seconds=300)

    async def sleeps(target: Target, *, last_version: str | None = None) -> Report:
        world.clock.advance(wall)
        world.monotonic.advance(monotonic)
        report = await world.probe(target, last_version=last_version)
        return msgspec.structs.replace(report, failures=(Failure("handshake", "timeout", "Late."),))

    watch._prober = sleeps
    before = len(world.probes)
    while len(world.probes) == before:
        await world.run(watch, seconds=1)
    watch._prober = world.probe
    await world.run(watch, seconds=1800)
    assert [one for one in world.phone.heard if "watcher/clock" not in one] == []
    assert world.phone.heard[0] == "alert watcher/clock"
    assert len(world.phone.heard) == 2


async def test_without_its_store_a_watch_probes_and_alerts_from_memory(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    watch = world.start()
    await world.run(watch, seconds=120)
    world.store.is_away = True
    world.codes["a"] = "refused"
    await world.run(watch, seconds=300)
    assert world.phone.heard == ["alert down/a"]
    world.store.is_away = False
    await world.run(watch, seconds=600)
    del world.codes["a"]
    await world.run(watch, seconds=2400)
    assert world.phone.heard == ["alert down/a", "recovery down/a"]


async def test_a_watch_that_begins_without_its_store_goes_on_when_it_is_back(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    world.store.is_away = True
    watch = world.start()
    await world.run(watch, seconds=200)
    world.store.is_away = False
    await world.run(watch, seconds=200)
    assert len(world.probes) > 4


async def test_two_watchers_probe_and_alert_once_and_the_second_takes_over(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    first, second = world.start(), world.start()
    world.codes["a"] = "refused"
    await world.run(first, second, seconds=300)
    assert (world.phone.heard, second.targets["a"][1].report) == (["alert down/a"], None)
    assert await second.probe_now("a") is None
    del world.codes["a"]
    await world.run(second, seconds=1800)  # the first one is gone
    assert world.phone.heard == ["alert down/a", "recovery down/a"]
    assert len(second.targets["a"][1].samples) > 5


async def test_one_incident_is_one_alert_and_one_recovery_in_random_runs(tmp_path: Path) -> None:
    for seed in range(RUNS):
        dice = random.Random(seed)  # noqa: S311 - no secret
        world = World(tmp_path / str(seed), "a")
        watches: list[Watch] = [world.start(), world.start()]
        for _ in count():
            world.phone.is_away = dice.random() < 0.1
            world.store.is_away = len(watches) == 1 and dice.random() < 0.1
            if dice.random() < 0.5:
                world.codes["a"] = "refused"
            else:
                world.codes.pop("a", None)
            if not world.store.is_away and dice.random() < 0.4:
                watches = [world.start() for _ in range(dice.choice((1, 2)))]  # killed, and started again
            await world.run(*watches, seconds=dice.randint(1, 200), step=5)
            if len(world.probes) > 50:
                break
        world.phone.is_away = world.store.is_away = False
        world.codes.clear()
        await world.run(*watches, seconds=8000, step=5)
        assert "alert down/a" in world.phone.heard
        for rule in ("down", "errors"):
            notices = [one for one in world.phone.notices.values() if one.incident["rule"] == rule]
            heard = [one.type for one in notices]
            assert heard == ["alert", "recovery"] * (len(heard) // 2), (seed, heard)
            assert len({one.incident["id"] for one in notices}) == len(heard) // 2, seed


def report(at: float = 0.0, *, ms: float = 5.0, **facts: Any) -> Report:
    return Report(target="a", at=at, ms=ms, **facts)


RULES: Final[list[tuple[str, Callable[[TargetState], object]]]] = [
    (
        "changed",
        lambda state: state.add(
            report(verdict="breaking", changes=(Change("tool", "t", "breaking", ()),)), failed=False
        ),
    ),
    ("certificate", lambda state: state.add(report(certificate_days=3.0), failed=False)),
    ("token", lambda state: state.add(report(token_days=1.0), failed=False)),
    ("errors", lambda state: [state.add(report(at), failed=at % 4 == 0) for at in range(1, 20)]),
    ("slow", lambda state: [state.add(report(at, ms=9000.0), failed=False) for at in range(12)]),
]


@every_row("rule, fill", RULES)
def test_each_rule_sees_its_problem(rule: str, fill: Callable[[TargetState], object], tmp_path: Path) -> None:
    state = TargetState()
    fill(state)
    target = World(tmp_path, "a").targets[0]
    assert [one.rule for one in problems_of(target, state, every=EVERY, now=20.0)] == [rule]


def test_a_state_keeps_the_last_buckets_and_samples() -> None:
    state = TargetState()
    for day in range(100):
        state.add(report(day * 86_400.0), failed=False)
    state.add(report(99 * 86_400.0 + 1, ms=7.0), failed=True)
    assert (len(state.days), len(state.hours), len(state.minutes), len(state.samples)) == (90, 72, 60, 101)
    assert msgspec.to_builtins(state.days[-1]) == [99 * 86_400, 2, 1, 12.0, 7.0]
    assert msgspec.json.decode(msgspec.json.encode(state), type=TargetState) == state


async def test_the_pages_show_each_state_and_nothing_that_a_server_wrote(tmp_path: Path) -> None:
    names = ("<b>up</b>", "slow", "down", "new", "held")
    world = World(tmp_path, *names)
    world.codes.update(slow="slow", down="refused", held="auth")
    world.facts["slow"] = {"certificate_days": 3.0, "token_days": 1.0, "tools": 4}
    watch = world.start()
    await world.run(watch, seconds=3)
    before = status(watch, [])
    await world.run(watch, seconds=200)
    watch._watched["new"].state = TargetState()
    incidents = [one.view() for one in await watch.incidents.all()]
    shown = status(watch, incidents)
    assert [one["state"] for one in shown["targets"]] == ["up", "failing", "down", "unknown", "down"]
    assert "unknown" in [one["state"] for one in before["targets"]]
    page = status_page(watch, incidents)
    assert "<b>up</b>" not in page
    assert "It fails." not in page
    assert page.count('class="state ') == len(names)
    assert "Something fails" in page
    assert 'aria-label="MCP: down"' in badge(watch.targets["down"][1])
    text = watch_metrics(watch, "")[0].decode()
    assert 'callyard_probe_success{target="down"} 0.0' in text
    assert 'callyard_probe_failed{code="refused",target="down"} 1.0' in text
    one = probe_metrics(watch.targets["slow"][1].report, "")[0].decode()
    assert "probe_success 0.0" in one
    assert "probe_ssl_earliest_cert_expiry" in one
    assert probe_metrics(None, "")[0].decode().endswith("probe_success 0.0\n")


async def test_a_calm_page_says_that_all_is_well_and_an_offline_one_does_not(tmp_path: Path) -> None:
    world = World(tmp_path, "a")
    watch = world.start()
    await world.run(watch, seconds=2)
    watch._watched["a"].state.days[0].probes = 4
    watch._watched["a"].state.days[0].failed = 3
    assert "All is well" in status_page(watch, [])
    watch.is_offline = True
    assert "All is well" not in status_page(watch, [])
    watch._watched["a"].state.days[0].failed = 1
    assert 'class="failing"' in status_page(watch, [])


async def test_an_open_watch_probes_real_servers_and_a_probe_that_raises_ends_nothing(
    tmp_path: Path, until: Callable[[Callable[[], object]], Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving("well", "2026") as (url, server):
        target = Target(name="a", settings=UpstreamSettings(url=url), folder=tmp_path, checks=ProbeTable(every=1.0))
        broken = msgspec.structs.replace(target, name="b", settings=UpstreamSettings(url="http://127.0.0.1:1/"))

        async def sometimes(target: Target, *, last_version: str | None = None) -> Report:
            if target.name == "b":
                raise RuntimeError("A defect.")
            return await probe(target, last_version=last_version)

        store = MemoryStore()
        watch = Watch(
            [target, broken], Incidents(store, scope="w", lasting=True), store, name="w", every=1, prober=sometimes
        )
        async with watch.open():
            await until(lambda: len(server.requests) > 6)
            assert (await watch.probe_now("a")) is not None
        assert "probe_failed" in caplog.text


async def test_a_control_address_answers_or_does_not() -> None:
    async with serving("well", "2026") as (url, _):
        port = int(url.rpartition(":")[2].removesuffix("/mcp"))
        assert await control_of("127.0.0.1", port)()
    assert not await control_of("127.0.0.1", 1)()
