"""One incident is one alert and one recovery, whatever processes, stores and notifiers do meanwhile."""

import os
import random
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from callyard.model.errors import ToolError
from callyard.monitor.incidents import Incidents, Problem
from callyard.monitor.notifiers import Notice, NotifyError
from callyard.state.memory import MemoryStore
from callyard.state.store import Store, StoreUnavailableError
from callyard.testing import FakeClock

RUNS = int(os.environ.get("INCIDENT_RUNS", "10"))
DOWN = Problem(rule="down", subject="billing", text="It is down.")


class Killed(BaseException):
    """A process ends within an operation."""


class Phone:
    """A notifier that keeps what it is told; it may be away, refuse, or be the last thing that its process does."""

    name = "phone"

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.is_away = False
        self.refuses: Callable[[Notice], bool] = lambda _: False
        self.kills = False

    async def notify(self, notice: Notice) -> None:
        if self.is_away:
            raise NotifyError("no answer")
        if self.refuses(notice):
            raise NotifyError("status 400", is_refused=True)
        self.notices.append(notice)
        if self.kills:
            self.kills = False
            raise Killed

    @property
    def heard(self) -> list[str]:
        """Return the types of the notices, each key once."""
        return [notice.type for notice in {notice.key: notice for notice in self.notices}.values()]


class Shaky:
    """A store that is away when the test says so, and kills its process before or after an operation."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.is_away = False
        self.operations_left: int | None = None

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        async def run(*arguments: Any, **options: Any) -> Any:
            if self.is_away:
                raise StoreUnavailableError("No.", reason="no_connection")
            left = self.operations_left
            if left is not None:
                self.operations_left = left - 1
            if left == 0:
                raise Killed
            result = await method(*arguments, **options)
            if left == 1 and random.random() < 0.5:  # noqa: S311 - no secret
                raise Killed
            return result

        return run


class World:
    """A clock, a store, a phone and the processes that share them."""

    def __init__(self, *, lasting: bool = False) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(clock=self.clock)
        self.phone = Phone()
        self.lasting = lasting

    def start(self) -> tuple[Shaky, Incidents]:
        store = Shaky(self.memory)
        options: Any = {"scope": "shop", "notifiers": [self.phone], "lasting": self.lasting, "clock": self.clock}
        return store, Incidents(cast("Store", store), **options)

    async def turn(self, *processes: Incidents, seconds: float = 1.0) -> None:
        self.clock.advance(seconds)
        for process in processes:
            await process.step()
            await process.deliver()

    async def wait(self, *processes: Incidents, seconds: float) -> None:
        end = self.clock() + seconds
        while self.clock() < end:
            await self.turn(*processes, seconds=min(5.0, seconds))


async def test_one_incident_is_one_alert_and_one_recovery() -> None:
    world = World()
    _, process = world.start()
    process.report(DOWN)
    await world.wait(process, seconds=30)
    assert world.phone.heard == ["alert"]

    process.clear("down", "billing")
    await world.wait(process, seconds=30)
    assert world.phone.heard == ["alert"], "it may come back"
    await world.wait(process, seconds=60)

    assert world.phone.heard == ["alert", "recovery"]
    alert, recovery = world.phone.notices
    assert alert.incident["id"] == recovery.incident["id"]
    assert (alert.incident["key"], alert.origin, alert.incident["recovered"]) == ("down/billing", "shop", None)
    assert recovery.incident["recovered"] > alert.incident["opened"]
    assert not process.leads, "an idle process holds no lease"


async def test_a_problem_that_flaps_is_one_incident() -> None:
    world = World()
    _, process = world.start()
    for _ in range(20):
        process.report(DOWN)
        await world.wait(process, seconds=20)
        process.clear("down", "billing")
        await world.wait(process, seconds=40)
    assert world.phone.heard == ["alert"]
    await world.wait(process, seconds=4000)

    assert world.phone.heard == ["alert", "recovery"]
    assert world.phone.notices[-1].incident["flaps"] == 19


async def test_a_problem_that_comes_back_soon_after_each_recovery_becomes_one_incident() -> None:
    world = World()
    _, process = world.start()
    for _ in range(40):
        process.report(DOWN)
        await world.wait(process, seconds=30)
        process.clear("down", "billing")
        await world.wait(process, seconds=180)

    assert len(world.phone.heard) <= 5


async def test_evidence_is_five_calls_and_the_worst_severity() -> None:
    world = World()
    _, process = world.start()
    for number in range(8):
        severity = "critical" if number == 3 else "warning"
        calls, sessions = (f"c_{number}",), (f"s_{number % 2}",)
        process.report(Problem(rule="hung", subject="a", text="t", severity=severity, calls=calls, sessions=sessions))
        await world.turn(process)
    (incident,) = await process.all()

    assert incident.problem.calls == ("c_0", "c_1", "c_2", "c_3", "c_4")
    assert incident.problem.sessions == ("s_0", "s_1")
    assert incident.problem.severity == "critical"


async def test_the_process_with_the_lease_tells_of_the_problems_of_all() -> None:
    world = World()
    (_, first), (_, second) = world.start(), world.start()
    first.report(DOWN)
    await world.wait(first, second, seconds=10)
    second.report(DOWN)
    second.report(Problem(rule="hung", subject="a", text="t"))
    await world.wait(first, second, seconds=10)
    assert (first.leads, second.leads) == (True, False)
    assert world.phone.heard == ["alert", "alert"]

    first.clear("down", "billing")
    await world.wait(first, second, seconds=100)
    assert world.phone.heard == ["alert", "alert"], "the second one still sees it"

    second.replace([])
    await world.wait(first, second, seconds=100)
    assert world.phone.heard == ["alert", "alert", "recovery", "recovery"]


async def test_the_problem_of_a_killed_process_recovers_in_another_one() -> None:
    world = World()
    (_, first), (_, second) = world.start(), world.start()
    first.report(DOWN)
    await world.wait(first, second, seconds=10)
    await world.wait(second, seconds=120)

    assert world.phone.heard == ["alert", "recovery"]


async def test_a_lasting_problem_survives_a_restart_until_it_is_cleared() -> None:
    world = World(lasting=True)
    _, first = world.start()
    first.report(DOWN)
    await world.wait(first, seconds=10)
    _, second = world.start()
    await world.wait(second, seconds=600)
    assert world.phone.heard == ["alert"]
    assert list(second.problems) == ["down/billing"]

    second.clear("down", "billing")
    await world.wait(second, seconds=100)
    assert world.phone.heard == ["alert", "recovery"]
    assert second.leads, "a watcher always has the lease"


async def test_a_silence_keeps_alerts_back_until_its_end() -> None:
    world = World()
    _, process = world.start()
    await process.silence("down/*", by="ada", seconds=100, reason="Moving.")
    process.report(DOWN)
    process.report(Problem(rule="hung", subject="a", text="t"))
    await world.wait(process, seconds=50)
    assert [notice.incident["rule"] for notice in world.phone.notices] == ["hung"]
    assert [(one.pattern, one.by, one.reason) for one in await process.silences()] == [("down/*", "ada", "Moving.")]

    await world.wait(process, seconds=60)
    assert [notice.incident["rule"] for notice in world.phone.notices] == ["hung", "down"]
    assert await process.silences() == []

    await process.silence("*", by="ada", seconds=500)
    process.replace([])
    await world.wait(process, seconds=100)
    assert world.phone.heard.count("recovery") == 2, "who was alerted hears of the recovery"


async def test_an_incident_within_a_silence_alerts_nobody() -> None:
    world = World()
    _, process = world.start()
    await process.silence("down/billing", by="ada", seconds=1000)
    process.report(DOWN)
    await world.wait(process, seconds=50)
    process.replace([])
    await world.wait(process, seconds=100)
    await process.end_silence("down/billing", by="ada")
    await world.wait(process, seconds=2000)

    assert world.phone.notices == []
    assert [one.closed is not None for one in await process.all()] == [True]


async def test_a_silence_needs_a_pattern_and_an_end() -> None:
    _, process = World().start()
    for pattern, seconds in (("", 10.0), ("a" * 600, 10.0), ("a\nb", 10.0), ("a", 0.0), ("a", 1e9)):
        with pytest.raises(ToolError) as refusal:
            await process.silence(pattern, by="ada", seconds=seconds)
        assert refusal.value.code == "invalid_input"
    for number in range(200):
        await process.silence(f"a{number}", by="ada", seconds=10)
    with pytest.raises(ToolError) as refusal:
        await process.silence("b", by="ada", seconds=10)
    assert refusal.value.code == "overloaded"


async def test_a_notifier_that_is_away_hears_both_in_order_later() -> None:
    world = World()
    _, process = world.start()
    world.phone.is_away = True
    process.report(DOWN)
    await world.wait(process, seconds=600)
    process.replace([])
    await world.wait(process, seconds=3600)
    assert world.phone.notices == []

    world.phone.is_away = False
    await world.wait(process, seconds=1000)
    assert [notice.type for notice in world.phone.notices] == ["alert", "recovery"]


async def test_after_a_day_a_notice_is_lost_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    _, process = world.start()
    world.phone.is_away = True
    process.report(DOWN)
    for _ in range(200):
        await world.turn(process, seconds=500)
    outbox = process.outboxes["phone"]

    assert outbox.counts["lost"] == 1
    assert [line for line in caplog.messages if line.startswith("notice_lost")]
    attempts = outbox.counts["later"]
    assert 50 < attempts < 150, "the waits become longer"


async def test_a_notice_that_is_refused_holds_up_no_other() -> None:
    world = World()
    _, process = world.start()
    world.phone.refuses = lambda notice: notice.incident["rule"] == "down"
    process.report(DOWN)
    await world.wait(process, seconds=10)
    process.report(Problem(rule="hung", subject="a", text="t"))
    await world.wait(process, seconds=10)

    assert [notice.incident["rule"] for notice in world.phone.notices] == ["hung"]


async def test_without_its_store_a_process_goes_on_from_memory() -> None:
    world = World()
    store, process = world.start()
    await world.turn(process)
    store.is_away = True
    process.report(DOWN)
    await world.wait(process, seconds=60)
    assert world.phone.heard == ["alert"]

    store.is_away = False
    await world.wait(process, seconds=10)
    assert [one.id for one in await process.all()] == [world.phone.notices[0].incident["id"]]
    _, second = world.start()
    second.report(DOWN)
    await world.wait(second, seconds=60)
    assert world.phone.heard == ["alert"], "the store has it now"


async def test_a_store_that_lost_its_data_gets_open_incidents_again() -> None:
    world = World()
    store, process = world.start()
    process.report(DOWN)
    await world.wait(process, seconds=10)
    for key in await world.memory.keys(""):
        await world.memory.delete(key)
    process.report(Problem(rule="down", subject="billing", text="It is down.", calls=("c_1",)))
    await world.wait(process, seconds=10)
    _, second = world.start()
    second.report(DOWN)
    await world.wait(second, seconds=60)

    assert store.is_away is False
    assert world.phone.heard == ["alert"]


async def test_a_problem_that_is_gone_before_it_is_judged_is_an_incident() -> None:
    world = World()
    (_, first), (_, second) = world.start(), world.start()
    first.report(DOWN)
    await world.turn(first, second)
    second.report(Problem(rule="hung", subject="a", text="t"))
    second.replace([])
    await world.turn(first, second)
    await world.turn(first, second)

    assert {one.problem.key for one in await first.all()} == {"down/billing", "hung/a"}


async def test_two_processes_that_could_not_see_each_other_end_with_one_open_incident() -> None:
    world = World()
    (store_one, one), (store_two, two) = world.start(), world.start()
    await world.turn(one, two)
    store_one.is_away = store_two.is_away = True
    for process in (one, two):
        process.report(DOWN)
    await world.wait(one, two, seconds=20)
    assert world.phone.heard == ["alert", "alert"], "better twice than never"

    store_two.is_away = False
    await world.wait(two, seconds=20)
    store_one.is_away = False
    await world.turn(one, seconds=20)  # the lease of the other one has ended
    open_now = [incident for incident in await one.all() if incident.closed is None]
    assert len(open_now) == 1
    for process in (one, two):
        process.replace([])
    await world.wait(one, two, seconds=300)
    assert world.phone.heard.count("recovery") == world.phone.heard.count("alert")


async def test_a_process_that_lost_the_lease_without_knowing_changes_nothing() -> None:
    world = World()
    (_, first), (_, second) = world.start(), world.start()
    first.report(DOWN)
    await world.wait(first, seconds=10)
    world.clock.advance(100)  # the first one stands still
    second.report(DOWN)
    second.report(Problem(rule="hung", subject="a", text="t"))
    await world.wait(second, seconds=10)
    for key in await world.memory.keys("incident/"):
        data = await world.memory.get(key)
        assert data is not None
        await world.memory.put(key, data.replace(b"It is down.", b"It was down."))
    second.report(Problem(rule="down", subject="billing", text="t", calls=("c_1",)))
    await world.turn(second)
    assert not second.leads, "somebody else has changed what it has"
    await world.wait(first, second, seconds=30)

    assert sorted(one.problem.key for one in await second.all()) == ["down/billing", "hung/a"]
    assert world.phone.heard == ["alert", "alert"]


async def test_a_store_that_fails_while_incidents_are_read_gives_the_lease_back() -> None:
    world = World()
    store, process = world.start()
    failing = [True]
    keys = world.memory.keys

    async def sometimes(prefix: str, **options: Any) -> list[str]:
        if prefix.startswith("incident/") and failing:
            raise StoreUnavailableError("No.", reason=str(failing.pop()))
        return await keys(prefix, **options)

    world.memory.keys = sometimes
    process.report(DOWN)
    await world.turn(process)
    assert store.operations_left is None
    _, second = world.start()
    second.report(DOWN)
    await world.wait(second, seconds=10)

    assert second.leads


async def test_a_damaged_record_is_left_out() -> None:
    world = World()
    _, process = world.start()
    await process.silence("a", by="ada", seconds=10)
    (key,) = await world.memory.keys("silence/")
    await world.memory.put(key, b"{")

    assert await process.silences() == []


async def test_an_open_process_judges_by_itself_and_gives_its_lease_back(
    until: Callable[[Callable[[], object]], Awaitable[None]], caplog: pytest.LogCaptureFixture
) -> None:
    phone, store = Phone(), MemoryStore()
    process = Incidents(store, scope="shop", notifiers=[phone])
    process.problems = cast("Any", None)  # a defect
    async with process.open():
        await until(lambda: any(line.startswith("incidents_failed") for line in caplog.messages))
        process.problems = {}
        process.report(DOWN)
        await until(lambda: phone.heard)
    following = Incidents(store, scope="shop", notifiers=[phone])
    following.report(DOWN)
    await following.step()

    assert following.leads
    assert phone.heard == ["alert"]


async def test_incidents_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    _, process = world.start()
    for round_number in range(4):
        process.replace(Problem(rule="r", subject=f"{round_number}-{n}", text="t") for n in range(300))
        assert len(process.problems) == 200
        await world.turn(process)
    assert len(await process.all()) == 500
    assert any(line.startswith("incidents_full") for line in caplog.messages)

    process.replace([])
    await world.wait(process, seconds=100)
    process.replace(Problem(rule="r", subject=f"new-{n}", text="t") for n in range(100))
    await world.wait(process, seconds=10)
    assert len(await process.all()) == 500
    assert len(await world.memory.keys("incident/")) == 500


async def _turn_or_die(world: World, processes: list[Any], dice: random.Random) -> None:
    """Let each process take a turn; one that is killed is replaced."""
    for index in dice.sample(range(len(processes)), len(processes)):
        if dice.random() < 0.1:
            continue  # it is slow
        _, process = processes[index]
        try:
            await process.step()
            await process.deliver()
        except Killed:
            processes[index] = world.start()


async def _run_once(seed: int) -> None:
    dice = random.Random(seed)  # noqa: S311 - no secret
    lasting = dice.random() < 0.5
    world = World(lasting=lasting)
    processes = [world.start(), world.start()]
    phases = dice.randint(1, 4)
    for _ in range(phases):
        for turn in range(dice.randint(20, 80)):
            fails = turn % 20 < 14
            world.clock.advance(dice.uniform(0.5, 3))
            world.phone.is_away = dice.random() < 0.2
            world.phone.kills = dice.random() < 0.05
            for store, process in processes:
                if lasting and not process.leads:
                    continue
                process.replace([DOWN] if fails else [])
                if dice.random() < 0.05:
                    store.operations_left = dice.randint(0, 6)
            await _turn_or_die(world, processes, dice)
        world.phone.is_away = world.phone.kills = False
        for _ in range(450):  # longer than the longest calm
            world.clock.advance(10)
            for store, process in processes:
                store.operations_left = None
                if not lasting or process.leads:
                    process.replace([])
            await _turn_or_die(world, processes, dice)
    assert world.phone.heard == ["alert", "recovery"] * phases, f"seed {seed}"


async def test_random_failures_restarts_and_two_processes_give_one_alert_and_one_recovery() -> None:
    for seed in range(RUNS):
        await _run_once(seed)
