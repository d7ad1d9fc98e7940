"""Ends, restarts and changes at the wrong moment."""

import asyncio
from typing import Any

import pytest
from scripted import HANDSHAKE, MODERN, ScriptedLink
from test_supervisor import TOOLS, Bench, ask

from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import CallContext

GONE = LinkError("lost", "It died.", sent=True)


async def test_nothing_is_started_once_it_is_closed() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None})
    async with bench.opened(in_flight=1) as supervisor:
        asked = [asyncio.create_task(ask(supervisor, safe=True)) for _ in range(3)]
        await bench.until(lambda: bench.links)
        await bench.links[0].until(lambda: bench.links[0].requests("tools/call"))
        await supervisor.close()
        failures = await asyncio.gather(*asked, return_exceptions=True)

        assert all(isinstance(failure, LinkError) for failure in failures)
        assert (len(bench.links), supervisor.health.state) == (1, "stopped")


async def test_an_upstream_that_dies_right_after_the_handshake_is_not_ready() -> None:
    bench = Bench({**HANDSHAKE, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        asked = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: bench.links)
        link = bench.links[0]

        def answer_and_die(_: Any) -> Any:
            asyncio.get_running_loop().call_soon(link.listener.end, GONE)
            return HANDSHAKE["initialize"]

        link.script["initialize"] = answer_and_die
        with pytest.raises(LinkError, match="It died"):
            await asked
        assert (supervisor.is_connected, link.is_open, supervisor.health.state) == (False, False, "degraded")
        assert await ask(supervisor) == b"{}"


async def test_a_restart_during_a_start_that_hangs_starts_it_anew() -> None:
    bench = Bench({"server/discover": None, "initialize": None}, {**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        asked = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: bench.links)
        await supervisor.restart()
        assert supervisor.health.state == "cold"
        await supervisor.refresh()
        await asyncio.gather(asked, return_exceptions=True)

        assert (len(bench.fetched), supervisor.health.state, supervisor.health.last_error) == (1, "ready", "")


async def test_calls_that_a_restart_ends_do_not_count_as_failures() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": None})
    async with bench.opened() as supervisor:
        asked = asyncio.create_task(ask(supervisor))
        await bench.until(lambda: bench.links)
        await bench.links[0].until(lambda: bench.links[0].requests("tools/call"))
        await bench.until(lambda: bench.fetched)
        await supervisor.restart()
        with pytest.raises(LinkError, match="was stopped") as caught:
            await asked

        assert caught.value.sent
        assert (supervisor.health.state, supervisor.health.failures) == ("cold", 0)


async def test_a_change_during_a_refresh_causes_another_refresh() -> None:
    bench = Bench({**HANDSHAKE, **TOOLS, "prompts/list": None})
    async with bench.opened() as supervisor:
        looking = asyncio.create_task(supervisor.refresh())
        await bench.until(lambda: bench.links)
        link = bench.links[0]
        await link.until(lambda: link.requests("prompts/list"))
        link.script.update({"tools/list": {"tools": [{"name": "new"}]}, "prompts/list": {"prompts": []}})
        link.notify("notifications/tools/list_changed")
        link.listener.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % link.requests("prompts/list")[0]["id"], None)
        await looking
        await bench.until(lambda: len(bench.fetched) == 2)

        assert [tool["name"] for tool in bench.fetched[1].tools] == ["new"]


async def test_an_upstream_is_not_idle_during_a_refresh() -> None:
    bench = Bench({**MODERN, "tools/list": None})
    async with bench.opened(idle_seconds=1) as supervisor:
        looking = asyncio.create_task(supervisor.refresh())
        await bench.until(lambda: supervisor.is_connected)
        bench.now += 2
        await supervisor.stop_if_idle()

        assert supervisor.is_connected
        looking.cancel()


@pytest.mark.parametrize("status", [403, 404, 405])
async def test_a_wrong_url_shows_in_the_state_and_is_not_tried_every_second(status: int) -> None:
    refusal = LinkError("refused", f"'up' answered with status {status}.", status=status)
    bench = Bench({"server/discover": refusal, "initialize": refusal})
    async with bench.opened() as supervisor:
        for _ in range(4):
            bench.now += 0.01
            if supervisor.is_stale:
                await supervisor.refresh()

        assert (supervisor.health.state, supervisor.health.reason) == ("backing_off", refusal.message)
        assert (len(bench.links), supervisor.is_stale) == (3, False)


async def test_a_session_that_is_lost_during_a_refresh_is_replaced_by_the_next_one() -> None:
    forgotten = LinkError("session_lost", "No such session.", status=404)
    bench = Bench({**HANDSHAKE, "tools/list": forgotten}, {**HANDSHAKE, **TOOLS})
    async with bench.opened() as supervisor:
        await supervisor.refresh()
        await supervisor.refresh()

        assert (len(bench.fetched), len(bench.links)) == (1, 2)


@pytest.mark.parametrize(("header", "is_sure"), [("Authorization", True), ("X-Key", False)])
async def test_wrong_credentials_of_one_caller_do_not_block_others(header: str, *, is_sure: bool) -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": LinkError("unauthenticated", "Who are you?", status=401)})
    async with bench.opened(forward_headers=(header,)) as supervisor:
        theirs = CallContext(owner="a", headers={header.lower(): "wrong"})
        with pytest.raises(LinkError, match="Who are you") as caught:
            await supervisor.request("tools/call", {}, name=None, context=theirs, safe=False)
        assert caught.value.caller_credentials is is_sure
        bench.links[0].script["tools/call"] = {}

        assert supervisor.health.state == "ready"
        assert await ask(supervisor) == b"{}"


async def test_a_refused_handshake_is_not_blamed_on_the_caller() -> None:
    refusal = LinkError("unauthenticated", "Who are you?", status=401)
    bench = Bench({"server/discover": refusal, "initialize": refusal})
    async with bench.opened(forward_headers=("Authorization",)) as supervisor:
        theirs = CallContext(owner="a", headers={"authorization": "Bearer good"})
        for _ in range(2):  # the second is refused without asking
            with pytest.raises(LinkError, match="Who are you") as caught:
                await supervisor.request("tools/call", {}, name=None, context=theirs, safe=False)
            assert not caught.value.caller_credentials

        assert supervisor.health.state == "auth_needed"
        assert not any(headers for link in bench.links for headers in link.headers if "authorization" in headers)


async def test_refusing_many_calls_does_not_grow() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": LinkError("unauthenticated", "Sign in.", status=401)})
    async with bench.opened() as supervisor:
        depths: list[int] = []
        for _ in range(5):
            with pytest.raises(LinkError) as caught:
                await ask(supervisor)
            depths.append(len(caught.traceback))

        assert depths[1] == depths[-1]


async def test_a_request_that_cannot_be_encoded_releases_the_probe() -> None:
    bench = Bench({**MODERN, **TOOLS, "tools/call": {}})
    async with bench.opened() as supervisor:
        for _ in range(3):
            bench.now += 1
            supervisor.record_timeout(bench.now)
        bench.now += 100
        with pytest.raises(TypeError):
            await supervisor.request("tools/call", {"a": object()}, name=None, context=CallContext(), safe=False)

        assert await ask(supervisor) == b"{}"


async def test_a_restart_negotiates_the_era_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.providers.upstream.handshake.PROBE_SECONDS", 0.01)
    bench = Bench(
        {**MODERN, **TOOLS, "tools/call": {}}, {**HANDSHAKE, **TOOLS, "server/discover": None, "tools/call": {}}
    )
    async with bench.opened() as supervisor:
        await supervisor.refresh()
        await supervisor.restart()

        assert await ask(supervisor) == b"{}"


class SlowToClose(ScriptedLink):
    """A link that takes a while to close, and is closed only if that is not cut short."""

    async def close(self) -> None:
        """Be closed in a while."""
        for _ in range(5):
            await asyncio.sleep(0)  # a turn of the loop
        await super().close()


@pytest.mark.parametrize("gone", [True, False])
async def test_a_link_that_is_discarded_just_before_the_end_is_closed(
    monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    monkeypatch.setattr("test_supervisor.ScriptedLink", SlowToClose)
    bench = Bench({**HANDSHAKE, **TOOLS, "tools/call": LinkError("session_lost", "Who are you?"), "slow": None})
    async with bench.opened() as supervisor:
        await supervisor.refresh()
        link = bench.links[0]
        slow = asyncio.create_task(ask(supervisor, "slow"))
        await link.until(lambda: link.requests("slow"))
        if gone:
            link.listener.end(GONE)
        else:
            with pytest.raises(LinkError):
                await ask(supervisor)
            slow.cancel()
        await supervisor.close()
        await asyncio.gather(slow, return_exceptions=True)

        assert not any(link.is_open for link in bench.links)
