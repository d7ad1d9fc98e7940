"""The alerts of a served yard: what is wrong reaches the webhook, and the settings say when and how."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row
from webhook_receivers import Receiver

from callyard import Call, Caller, Limits, ToolError, Yard, tool
from callyard.config import Config, read_config
from callyard.launch.alerts import Alerts
from callyard.launch.errors import LaunchError
from callyard.launch.monitor import Monitor
from callyard.launch.notices import Notices
from callyard.monitor.metrics import Metrics
from callyard.policy.settings import Rule
from callyard.state.store import StoreUnavailableError

Until = Callable[[Callable[[], object]], Awaitable[None]]
SHORTER = 'off = ["slow"]\nwait_s = 0.001\n'


@tool(operation="query", timeout=0.05)
async def hanging() -> str:
    """Hang."""
    await asyncio.Event().wait()
    return "never"


@tool(operation="query")
async def failing() -> str:
    """Fail."""
    raise ToolError("upstream_error", "No.")


@tool(operation="destroy")
async def wipe(call: Call) -> str:
    """Wipe."""
    return call.id


def config_of(folder: Path, text: str, **overrides: str) -> Config:
    path = folder / "callyard.toml"
    path.write_text(text)
    return read_config(overrides, path=str(path), environment={})


def metrics_of(alerts: Alerts) -> set[tuple[str, str]]:
    problems, notices = alerts.incidents.counts()
    return {key for key, count in {**problems, **notices}.items() if count}


def keys_of(receiver: Receiver) -> set[str]:
    return {json.loads(body)["incident"]["key"] for _, body in receiver.requests}


async def test_an_incident_reaches_the_webhook_with_its_calls(tmp_path: Path, until: Until) -> None:
    yard = Yard("shop", tools=[hanging, failing])
    async with Receiver(204).open() as receiver:
        text = f'[alerts]\nwebhook = "{receiver.url}"\nwebhook_secret = "s3cret"\n{SHORTER}'
        metrics = Metrics()
        alerts = Alerts(yard, config_of(tmp_path, text), Notices(), metrics)
        async with yard, alerts.open():
            yard.add_sink(metrics)
            await yard.call("hanging", {})
            for _ in range(5):
                await yard.call("failing", {})
            await until(lambda: keys_of(receiver) >= {"hung/hanging", "errors/failing"})
            assert metrics_of(alerts) >= {("errors", "warning"), ("webhook", "sent")}
    bodies = {json.loads(body)["incident"]["key"]: json.loads(body) for _, body in receiver.requests}

    assert {body["origin"] for body in bodies.values()} == {"shop"}
    assert len(bodies["errors/failing"]["incident"]["calls"]) == 5
    assert bodies["hung/hanging"]["incident"]["details"]["line"].endswith(" in hanging")


async def test_an_approval_that_nobody_decides_is_an_incident(tmp_path: Path, until: Until) -> None:
    rule, limits = Rule(decision="ask", tools=("wipe",)), Limits(approval_hold_s=0)
    yard = Yard("shop", tools=[wipe], rules=[rule], limits=limits)
    alerts = Alerts(yard, config_of(tmp_path, f"[alerts]\n{SHORTER}"), Notices(), Metrics())
    async with yard:
        answer = await yard.call("wipe", {})
        async with alerts.open():
            await until(lambda: "waits/approval/wipe" in alerts.incidents.problems)

    assert answer.data["status"] == "approval_required"


async def test_jobs_that_run_are_found_behind_many_that_ended() -> None:
    @tool(operation="query", job="always")
    async def count_to(number: int) -> int:
        """Count; never to 0."""
        if not number:
            await asyncio.Event().wait()
        return number

    async with Yard("shop", tools=[count_to]) as yard:
        waiting = (await yard.call("count_to", {"number": 0})).data["job_id"]
        for number in range(1, 4):
            ended = (await yard.call("count_to", {"number": number})).data["job_id"]
            await yard.call("wait_job", {"job_id": ended})
        found = await yard.jobs.unfinished(limit=2)

    assert [job.id for job in found] == [waiting]


async def test_names_that_were_there_before_are_named(tmp_path: Path, until: Until) -> None:
    yard = Yard("shop", tools=[failing])
    alerts = Alerts(yard, config_of(tmp_path, "[alerts]\n"), Notices(), Metrics())
    async with yard, alerts.open():
        for name in ("ada", "ben"):
            await yard.call("nobody_has_it", {}, caller=Caller(identity=name))
        await until(lambda: "missing/nobody_has_it" in alerts.incidents.problems)
        yard.registry.withdraw("shop")
        await yard.call("failing", {})
        await until(lambda: "missing/failing" in alerts.incidents.problems)


async def test_judging_goes_on_after_a_defect_or_without_the_store(
    tmp_path: Path, until: Until, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    yard = Yard("shop", tools=[failing])
    alerts = Alerts(yard, config_of(tmp_path, "[alerts]\n"), Notices(), Metrics())
    failures: list[Exception] = [RuntimeError(), StoreUnavailableError("No.", reason="full")]
    seen = threading.Event()

    def all_specs() -> Any:
        if failures:
            raise failures.pop()
        seen.set()
        return iter(())

    monkeypatch.setattr(yard.registry, "all_specs", all_specs)
    async with yard, alerts.open():
        await until(lambda: yard.registry.version)
        await until(seen.is_set)

    assert [line for line in caplog.messages if line.startswith("rules_failed")]


@every_row(
    ("text", "transport", "expected"),
    [
        ("", "stdio", False),
        ("", "http", True),
        ("", "sse", True),
        ('[alerts]\noff = ["slow"]\n', "stdio", True),
        ("[alerts]\nenabled = true\n", "stdio", True),
        ("[alerts]\nenabled = false\n", "http", False),
    ],
)
def test_alerts_are_on_where_a_server_is_shared_or_the_file_says_so(
    text: str, transport: str, *, expected: bool, tmp_path: Path
) -> None:
    config = config_of(tmp_path, text, **{"serve.transport": transport})
    monitor = Monitor(Yard("shop"), config, is_authenticated=False)

    assert (monitor.alerts is not None) is expected
    assert (monitor.alerts in monitor.parts) is expected


@every_row(
    "text",
    [
        '[alerts]\nwebhook = "https://example.com"\n',
        '[alerts]\nwebhook = "ftp://example.com"\nwebhook_secret = "x"\n',
    ],
)
def test_a_webhook_that_cannot_be_used_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(LaunchError):
        Alerts(Yard("shop"), config_of(tmp_path, text), Notices(), Metrics())
