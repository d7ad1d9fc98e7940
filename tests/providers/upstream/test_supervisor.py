"""The supervisor: one start for all callers, no harmful retries, and no waiting for a failing upstream."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
from scripted import HANDSHAKE, MODERN, Script, ScriptedLink
from table_tests import every_row

from callyard.providers.upstream.catalogue import Catalogue
from callyard.providers.upstream.link import NO_CREDENTIALS, Credentials, LinkError
from callyard.providers.upstream.session import NO_CALLER
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.supervisor import RefreshBackoff, Supervisor
from callyard.wire.messages import Fault

TOOLS: Script = {"tools/list": {"tools": [{"name": "add"}]}, "resources/list": {}, "prompts/list": {"prompts": []}}
DEAD = LinkError("lost", "It died.", sent=True)


class Bench:
    """Links that are made one after the other, each with its script, and what the supervisor reported."""

    def __init__(self, *scripts: Script, cannot_open: LinkError | None = None) -> None:
        self.scripts = scripts
        self.links: list[ScriptedLink] = []
        self.fetched: list[Catalogue] = []
        self.updated: list[str] = []
        self.changes = asyncio.Event()
        self.now = 1000.0
        self._cannot_open = cannot_open

    def link(self) -> ScriptedLink:
        """Return the next link; the last script is repeated."""
        script = self.scripts[min(len(self.links), len(self.scripts) - 1)]
        self.links.append(ScriptedLink(script, cannot_open=self._cannot_open))
        return self.links[-1]

    @asynccontextmanager
    async def opened(self, credentials: Credentials = NO_CREDENTIALS, **settings: Any) -> AsyncGenerator[Supervisor]:
        """Return a supervisor, and stop it afterwards."""
        supervisor = Supervisor(
            "up",
            UpstreamSettings(url="http://up.test/mcp", **settings),
            link=self.link,
            credentials=credentials,
            fetched=self._take,
            updated=self.updated.append,
            changed=self.changes.set,
            catalogue=None,
            clock=lambda: self.now,
        )
        try:
            yield supervisor
        finally:
            await supervisor.close()

    async def _take(self, catalogue: Catalogue) -> None:
        self.fetched.append(catalogue)
        self.changes.set()

    async def until(self, done: Callable[[], object]) -> None:
        """Wait until a report of the supervisor makes the condition true."""
        async with asyncio.timeout(60):
            while not done():
                self.changes.clear()
                await self.changes.wait()

    async def until_turn(self, done: Callable[[], object]) -> None:
        """Run other tasks until a condition without an event is true."""
        async with asyncio.timeout(60):
            while not done():  # noqa: ASYNC110 - what is waited for has no event
                await asyncio.sleep(0)  # a turn of the loop, not a wait


async def ask(supervisor: Supervisor, method: str = "tools/call", *, safe: bool = False) -> bytes:
    """Return the answer of the upstream."""
    return bytes(await supervisor.request(method, {}, name=None, context=NO_CALLER, safe=safe))


def failing(*answers: Any) -> Callable[[Mapping[str, Any]], Any]:
    """Return a function that answers with each of these once, and then repeats the last."""
    left = list(answers)
    return lambda _: left.pop(0) if len(left) > 1 else left[0]


async def test_many_callers_start_it_once() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {"n": 1}})
    async with bench.opened() as supervisor:
        answers = await asyncio.gather(*(ask(supervisor) for _ in range(20)))

        assert (answers, len(bench.links)) == ([b'{"n":1}'] * 20, 1)
        assert (supervisor.health.state, supervisor.is_connected) == ("ready", True)


async def test_a_caller_that_gives_up_does_not_cancel_the_start() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        first, second = asyncio.create_task(ask(supervisor)), asyncio.create_task(ask(supervisor))
        await bench.until(lambda: bench.links)
        first.cancel()

        assert await second == b"{}"


async def test_the_catalogue_is_fetched_at_the_start_and_after_change_notifications() -> None:
    bench = Bench({**HANDSHAKE, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        assert supervisor.is_stale
        await ask(supervisor)
        await bench.until(lambda: len(bench.fetched) == 1)
        bench.links[0].notify("notifications/tools/list_changed")
        bench.links[0].notify("notifications/prompts/list_changed")
        bench.links[0].notify("notifications/resources/updated", {"uri": "a://b"})
        bench.links[0].notify("notifications/resources/updated", {})
        await bench.until(lambda: len(bench.fetched) == 2)

        assert [tool["name"] for tool in bench.fetched[1].tools] == ["add"]
        assert bench.updated == ["a://b"]
        assert not supervisor.is_stale


async def test_changes_just_before_the_end_cause_no_refresh() -> None:
    bench = Bench({**HANDSHAKE, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        await ask(supervisor)
        await bench.until(lambda: bench.fetched)
        await asyncio.sleep(0)  # a turn of the loop, in which the look ends
        bench.links[0].notify("notifications/tools/list_changed")

    assert (supervisor.health.state, bench.links[0].is_open) == ("stopped", False)


async def test_a_crash_fails_all_calls_and_the_next_call_starts_it_again() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None}, {**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        asked = [asyncio.create_task(ask(supervisor)) for _ in range(10)]
        await bench.until(lambda: bench.links)
        await bench.links[0].until(lambda: len(bench.links[0].requests("tools/call")) == 10)
        bench.links[0].listener.end(DEAD)
        failures = await asyncio.gather(*asked, return_exceptions=True)

        assert [str(failure) for failure in failures] == ["It died."] * 10
        assert supervisor.health.state == "degraded"
        assert await ask(supervisor) == b"{}"
        assert (len(bench.links), supervisor.health.state) == (2, "ready")


async def test_only_a_safe_request_is_repeated_if_it_may_have_arrived() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": failing(DEAD, {"again": True}, DEAD, {})})
    async with bench.opened() as supervisor:
        assert await ask(supervisor, safe=True) == b'{"again":true}'
        with pytest.raises(LinkError):
            await ask(supervisor)


async def test_a_request_that_surely_did_not_arrive_is_repeated() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": failing(LinkError("lost", "Closed."), {})})
    async with bench.opened() as supervisor:
        assert await ask(supervisor) == b"{}"


async def test_a_lost_session_is_replaced_once() -> None:
    forgotten = LinkError("session_lost", "No such session.", status=404)
    bench = Bench(
        {**HANDSHAKE, **TOOLS, "tools/call": forgotten}, {**HANDSHAKE, **TOOLS, "tools/call": failing({}, forgotten)}
    )
    async with bench.opened() as supervisor:
        assert await ask(supervisor) == b"{}"
        assert len(bench.links) == 2
        with pytest.raises(LinkError, match="No such session"):
            await ask(supervisor)


async def test_three_failures_in_a_row_open_the_breaker_and_one_call_probes() -> None:
    bench = Bench({**MODERN, **TOOLS}, cannot_open=LinkError("unavailable", "Nobody there."))
    async with bench.opened() as supervisor:
        for _ in range(3):
            bench.now += 0.01
            with pytest.raises(LinkError, match="Nobody there"):
                await ask(supervisor)
        with pytest.raises(LinkError, match=r"'up' failed several times and is not called") as caught:
            await ask(supervisor)

        assert caught.value.retry_after
        assert "Nobody there" in caught.value.private
        assert (supervisor.health.state, len(bench.links), supervisor.is_stale) == ("backing_off", 3, False)
        bench.now += 10
        with pytest.raises(LinkError, match="Nobody there"):
            await ask(supervisor)
        assert len(bench.links) == 4


async def test_a_cancelled_call_does_not_block_the_next() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None})
    async with bench.opened() as supervisor:
        asked = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: supervisor.is_connected)
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
        bench.links[0].script["tools/call"] = {}

        assert await ask(supervisor) == b"{}"


async def test_calls_that_time_out_count_as_failures() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        for _ in range(3):
            bench.now += 1
            supervisor.record_timeout(bench.now)

        assert supervisor.health.state == "backing_off"


class Signing(Credentials):
    """Credentials that a person may renew."""

    headers: Mapping[str, str] | None = None

    def ready(self) -> Mapping[str, str] | None:
        """Return what there is."""
        return self.headers

    async def renew(self, challenge: str) -> bool:
        """Do nothing."""
        del challenge
        return False

    async def close(self) -> None:
        """Wait for nothing."""


async def test_refused_credentials_block_calls_until_somebody_signs_in() -> None:
    refused = LinkError("unauthenticated", "Sign in.", status=401)
    bench = Bench({**MODERN, **TOOLS, "tools/call": failing(refused, {})})
    signing = Signing()
    async with bench.opened(signing) as supervisor:
        for _ in range(3):
            with pytest.raises(LinkError, match="Sign in"):
                await ask(supervisor)
        assert (supervisor.health.state, len(bench.links[0].requests("tools/call"))) == ("auth_needed", 1)
        signing.headers = {"Authorization": "Bearer x"}

        assert await ask(supervisor) == b"{}"
        assert supervisor.health.state == "ready"


async def test_an_error_of_the_caller_does_not_count_as_a_failure() -> None:
    bench = Bench(
        {**MODERN, **TOOLS, "tools/call": failing(Fault(-32602, "No."), LinkError("refused", "400.", status=400))}
    )
    async with bench.opened() as supervisor:
        with pytest.raises(Fault):
            await ask(supervisor)
        for _ in range(5):
            with pytest.raises(LinkError):
                await ask(supervisor)

        assert supervisor.health.state == "ready"


async def test_an_idle_upstream_is_stopped_and_started_by_the_next_call() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened(idle_seconds=60) as supervisor:
        await supervisor.stop_if_idle()
        await ask(supervisor)
        await bench.until(lambda: bench.fetched)
        bench.now += 59
        await supervisor.stop_if_idle()
        assert supervisor.is_connected
        bench.now += 2
        await supervisor.stop_if_idle()

        assert (supervisor.is_connected, bench.links[0].is_open, supervisor.health.state) == (False, False, "cold")
        assert await ask(supervisor) == b"{}"


async def test_a_restart_disconnects_and_resets_the_health() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        await ask(supervisor)
        for _ in range(5):
            bench.now += 1
            supervisor.record_timeout(bench.now)
        await supervisor.restart()

        assert (supervisor.health.wait, supervisor.health.state, bench.links[0].is_open) == (0, "cold", False)
        assert await ask(supervisor) == b"{}"


async def test_concurrent_calls_are_limited() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None})
    async with bench.opened(in_flight=2) as supervisor:
        asked = [asyncio.create_task(ask(supervisor)) for _ in range(5)]
        await bench.until(lambda: bench.links)
        link = bench.links[0]
        await link.until(lambda: len(link.requests("tools/call")) == 2)
        link.listener.lose(link.requests("tools/call")[0]["id"], LinkError("refused", "No.", status=400))
        await link.until(lambda: len(link.requests("tools/call")) == 3)
        for task in asked:
            task.cancel()


async def test_a_link_that_is_lost_on_the_discovery_is_opened_again_with_a_handshake() -> None:
    bench = Bench({"server/discover": DEAD}, {**HANDSHAKE, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        assert await ask(supervisor) == b"{}"
        assert (len(bench.links), bench.links[0].is_open) == (2, False)


async def test_a_handshake_that_takes_too_long_makes_the_upstream_unavailable() -> None:
    bench = Bench({"server/discover": None, "initialize": None})
    async with bench.opened(connect_seconds=0.02) as supervisor:
        with pytest.raises(LinkError, match=r"did not complete the handshake within 0\.02 seconds"):
            await ask(supervisor)
        assert not bench.links[0].is_open


@every_row(
    ("listed", "why"),
    [
        (None, "in time"),
        (Fault(-32603, "Broken."), "Broken"),
        (DEAD, "It died"),
        ({"tools": [], "nextCursor": "again"}, "no end"),
        ([1], "no list"),
    ],
)
async def test_a_failed_list_shows_in_the_state(listed: Any, why: str) -> None:
    bench = Bench({**MODERN, "tools/list": listed, "tools/call": {}})
    async with bench.opened(list_seconds=0.05 if listed is None else 10) as supervisor:
        await supervisor.refresh()

        assert why in supervisor.health.reason
        assert bench.fetched == []


async def test_all_pages_are_fetched_and_missing_lists_are_empty() -> None:
    pages = failing({"tools": [{"name": "a"}, "junk"], "nextCursor": "2"}, {"tools": [{"name": "b"}]})
    bench = Bench({**MODERN, "tools/list": pages, "resources/list": {"resources": None}})
    async with bench.opened() as supervisor:
        await supervisor.refresh()

        assert [tool["name"] for tool in bench.fetched[0].tools] == ["a", "b"]
        assert bench.links[0].requests("tools/list")[1]["params"]["cursor"] == "2"
        assert (bench.fetched[0].resources, bench.fetched[0].prompts) == ((), ())


async def test_a_failed_page_fails_the_list() -> None:
    answers = failing({"tools": [], "nextCursor": "2"}, Fault(-32601, "Gone."))
    bench = Bench({**MODERN, "tools/list": answers})
    async with bench.opened() as supervisor:
        await supervisor.refresh()

        assert bench.fetched == []


async def test_a_modern_upstream_is_asked_for_change_notifications() -> None:
    discovered = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {"listChanged": True}, "prompts": "?"}}
    bench = Bench({"server/discover": discovered, **TOOLS, "tools/call": {}, "subscriptions/listen": None})
    async with bench.opened() as supervisor:
        await ask(supervisor)
        link = bench.links[0]
        await link.until(lambda: link.requests("subscriptions/listen"))

        assert link.requests("subscriptions/listen")[0]["params"]["notifications"] == {"toolsListChanged": True}


async def test_a_stopped_start_fails_the_calls_that_wait_for_it() -> None:
    bench = Bench({"server/discover": None, "initialize": None})
    async with bench.opened() as supervisor:
        asked = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: bench.links)
        await supervisor.restart()

        with pytest.raises(LinkError, match="was stopped while it started"):
            await asked


async def test_a_call_that_is_cancelled_in_the_queue_releases_the_probe() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None})
    async with bench.opened(in_flight=1) as supervisor:
        first = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: supervisor.is_connected)
        for _ in range(3):
            bench.now += 1
            supervisor.record_timeout(bench.now)
        bench.now += 100
        second = asyncio.create_task(ask(supervisor))
        await asyncio.sleep(0)  # a turn of the loop, in which it begins to wait
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        bench.links[0].script["tools/call"] = {}

        assert await ask(supervisor) == b"{}"


async def test_a_restart_waits_for_a_refresh_over_the_old_connection() -> None:
    bench = Bench({**MODERN, "tools/list": None}, {**MODERN, **TOOLS})
    async with bench.opened() as supervisor:
        looking = asyncio.create_task(supervisor.refresh())
        await bench.until(lambda: supervisor.is_connected)
        await bench.links[0].until(lambda: bench.links[0].requests("tools/list"))
        await supervisor.restart()
        await supervisor.refresh()
        await looking

        assert len(bench.fetched) == 1


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def look(restraint: RefreshBackoff, clock: Clock, *, seconds: float = 0.0, quiet: float = 0.0) -> float:
    """Return the pause before the next look, after one that took so long and was followed by silence."""
    began = clock.now
    clock.now += seconds
    restraint.record(began)
    clock.now += quiet
    return restraint.next_pause()


def test_a_single_change_is_refreshed_soon() -> None:
    clock = Clock()
    restraint = RefreshBackoff(clock)

    assert restraint.next_pause() == 0.3
    assert [look(restraint, clock, quiet=5) for _ in range(3)] == [0.3, 0.3, 0.3]


def test_the_pause_grows_with_every_further_change_up_to_a_limit() -> None:
    clock = Clock()
    restraint = RefreshBackoff(clock)
    pauses = [look(restraint, clock) for _ in range(12)]

    assert pauses[:4] == [0.3, 0.6, 1.2, 2.4]
    assert pauses[-1] == 30


def test_the_pause_is_short_again_after_a_calm_time() -> None:
    clock = Clock()
    restraint = RefreshBackoff(clock)
    for _ in range(4):
        look(restraint, clock)

    assert look(restraint, clock, quiet=5) == 0.3


def test_a_slow_refresh_makes_the_pause_longer() -> None:
    clock = Clock()
    restraint = RefreshBackoff(clock)

    assert [look(restraint, clock, seconds=20) for _ in range(3)] == [0.3, 80, 80]
    assert look(restraint, clock, quiet=160) == 0.3
