"""What is counted of calls, under which labels, and how much memory that may take."""

import logging
import os
import tracemalloc
from random import Random
from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard import Call, Caller, Envelope, ToolError, Yard, tool
from callyard.dispatch.outcome import Record
from callyard.monitor import Label, Metrics, Ring, log_sink
from callyard.monitor.metrics import BOUNDS_MS, OTHER, UNKNOWN, Durations

RECORDS = int(os.environ.get("CI_RECORDS", "200000"))
NAMES = 50_000
FLAT_BYTES = 200_000


def record(**fields: Any) -> Record:
    usual: dict[str, Any] = {
        "call_id": "c_1",
        "tool": "add",
        "started": 1000.0,
        "elapsed_ms": 1.0,
        "source": "shop",
        "identity": "ada",
    }
    return Record(**{**usual, **fields})


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    if a < 0:
        raise ToolError("state_error", "No.")
    return a + b


@tool
async def outer(call: Call) -> int:
    """Add by another tool."""
    return (await call.invoke("add", {"a": "1", "b": 2})).data


@tool(operation="destroy")
def wipe() -> None:
    """Wipe everything."""
    raise AssertionError


async def ask(call: Call) -> Envelope | None:
    if call.name == "outer" and call.caller.identity == "eve":
        raise ToolError("permission_denied", "No.")
    return Envelope.ok({"status": "approval_required"}) if call.name == "wipe" else None


async def test_every_call_is_counted_by_tool_and_source_with_its_failures_repairs_and_held_calls() -> None:
    metrics = Metrics()
    async with Yard("shop", tools=[add, outer, wipe], sinks=[metrics], policies=[ask]) as yard:
        await yard.call("add", {"a": 1, "b": 2}, caller=Caller(identity="ada"))
        await yard.call("add", {"a": -1, "b": 2}, caller=Caller(identity="eve"))
        await yard.call("outer", caller=Caller(identity="ada"))
        await yard.call("outer", caller=Caller(identity="eve"))
        await yard.call("run_tool", {"tool_id": "wipe"}, caller=Caller(identity="ada"))

    counted = {name: metrics.tools["shop", name] for name in ("add", "outer", "wipe")}  # pyright: ignore[reportArgumentType] - a label is a tuple
    assert {name: stats.calls for name, stats in counted.items()} == {"add": 3, "outer": 2, "wipe": 1}
    assert counted["add"].errors == {("state_error", "caller"): 1}
    assert counted["outer"].errors == {("permission_denied", "policy"): 1}
    assert counted["add"].coerced == 1
    assert {label.tool: stats.held for label, stats in metrics.tools.items() if stats.held} == {"wipe": 1}
    assert counted["add"].bytes == 2
    assert counted["add"].estimated_tokens > 0
    assert sum(counted["add"].buckets) == 3
    assert counted["add"].quantile_ms(0.5) > 0
    assert {name: (stats.calls, stats.errors) for name, stats in metrics.callers.items()} == {
        "ada": (5, 0),
        "eve": (2, 2),
    }


async def test_names_that_callers_invent_are_counted_under_one_label() -> None:
    metrics = Metrics()
    async with Yard("shop", tools=[add], sinks=[metrics]) as yard:
        for number in range(10):
            await yard.call(f"no_such_tool_{number}")
        await yard.read("no://such/resource")
        await yard.prompt("no_such_prompt")

    assert list(metrics.tools) == [Label("", UNKNOWN)]
    assert metrics.tools[Label("", UNKNOWN)].calls == 12


async def test_calls_in_flight_are_counted_and_those_that_wait_for_a_policy_apart() -> None:
    metrics = Metrics()
    seen: list[tuple[Any, Any]] = []

    async def look(call: Call) -> None:
        seen.append(metrics.count_running(yard.dispatcher.in_flight.values()))

    @tool
    async def work() -> int:
        """Look while it runs."""
        seen.append(metrics.count_running(yard.dispatcher.in_flight.values()))
        return 1

    async with Yard("shop", tools=[work], sinks=[metrics], policies=[look]) as yard:
        await yard.call("work")

    label = Label("shop", "work")
    assert [(running[label], queued[label]) for running, queued in seen] == [(1, 1), (1, 0)]


@pytest.mark.parametrize("share", [0.5, 0.95, 0.99])
def test_a_quantile_is_within_the_bucket_of_the_true_one(share: float) -> None:
    random = Random(7)  # noqa: S311 - no secret
    durations = sorted(random.lognormvariate(3, 1.5) for _ in range(10_000))
    metrics = Metrics()
    for duration in durations:
        metrics(record(elapsed_ms=duration))

    found = metrics.tools[Label("shop", "add")].quantile_ms(share)

    true = durations[int(share * len(durations))]
    edges = (0.0, *BOUNDS_MS)
    low = max(bound for bound in edges if bound <= true)
    assert low <= found <= min(bound for bound in edges if bound >= true)


def test_without_calls_a_quantile_is_zero_and_none_is_longer_than_the_longest_call() -> None:
    empty = [0] * (len(BOUNDS_MS) + 1)
    assert Durations(buckets=empty).quantile_ms(0.95) == 0.0
    long = Durations(longest_ms=400_000.0, buckets=[*empty[:-1], 3])
    assert BOUNDS_MS[-1] < long.quantile_ms(0.95) < 400_000.0


@every_row("duration", [0.03, 50.0, 52.0, 10_090.0, 500_000.0])
def test_calls_that_take_equally_long_have_quantiles_near_that(duration: float) -> None:
    metrics = Metrics()
    for _ in range(30):
        metrics(record(elapsed_ms=duration))

    quantiles = [metrics.tools[Label("shop", "add")].quantile_ms(share) for share in (0.5, 0.95, 0.99)]

    assert all(0.49 * duration <= found <= duration for found in quantiles), quantiles


def test_the_wait_for_a_person_makes_no_tool_slow() -> None:
    metrics = Metrics()
    metrics(record(elapsed_ms=58_000.0, waited_ms=57_990.0))

    assert metrics.tools[Label("shop", "add")].quantile_ms(0.95) <= 10.0
    assert metrics.tools[Label("shop", "add")].waited_ms == 57_990.0


async def test_a_job_is_one_call_and_its_start_was_asked_of_nobody() -> None:
    @tool(job="always")
    async def build() -> str:
        """Build something in the background."""
        return "built"

    metrics, records = Metrics(), list[Record]()
    async with Yard("shop", tools=[build], sinks=[metrics, records.append]) as yard:
        started = await yard.call("build")
        await yard.call("wait_job", {"job_id": started.data["job_id"]})

    assert metrics.tools[Label("shop", "build")].calls == 1
    assert [one.decision for one in records if one.tool == "build"] == ["allow"]


def test_tools_and_callers_beyond_the_maximum_are_counted_as_other_and_sources_stay_apart() -> None:
    metrics = Metrics()
    for number in range(5000):
        metrics(record(tool=f"tool_{number}", source=f"upstream_{number % 10}", identity=f"caller_{number}"))

    tools = metrics.tools
    by_source = {
        source: sum(stats.calls for label, stats in tools.items() if label.source == source)
        for source in {label.source for label in tools}
    }

    assert by_source == {f"upstream_{number}": 500 for number in range(10)}
    assert tools[Label("upstream_3", OTHER)].calls > 300
    assert metrics.callers[OTHER].calls == 4000
    assert len(tools) <= 1300
    assert len(metrics.callers) <= 1001


def test_sources_beyond_the_maximum_are_counted_as_other() -> None:
    metrics = Metrics()
    for number in range(5000):
        metrics(record(source=f"upstream_{number}"))

    assert sum(stats.calls for stats in metrics.tools.values()) == 5000
    assert metrics.tools[Label(OTHER, OTHER)].calls > 3000
    assert len(metrics.tools) <= 1300


def test_records_and_names_without_end_leave_its_memory_flat() -> None:
    metrics = Metrics()
    example = record(code="timeout", blame="tool")

    def feed(count: int, first: int) -> None:
        for number in range(first, first + count):
            name = str(number % NAMES)
            metrics(
                msgspec.structs.replace(
                    example, tool=name, identity=name, source=f"s{number % 500}", started=number / 100
                )
            )

    feed(2 * NAMES, 0)
    metrics.rates.last(600, now=0)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        feed(RECORDS, 2 * NAMES)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()

    assert sum(stats.calls for stats in metrics.tools.values()) == RECORDS + 2 * NAMES
    # the ring of rates holds as many seconds as before, in objects that tracemalloc sees for the first time
    assert grown < FLAT_BYTES + _ring_bytes()


def _ring_bytes() -> int:
    """Return what a full ring of rates takes."""
    tracemalloc.start()
    try:
        metrics = Metrics()
        for second in range(1000):
            metrics(record(started=float(second), code="timeout", blame="tool"))
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_rates_are_by_second_and_only_of_calls_from_outside() -> None:
    metrics = Metrics()
    for started, fields in (
        (1000.0, {}),
        (1000.2, {"code": "timeout", "blame": "tool"}),
        (1001.9, {"elapsed_ms": 200.0}),
        (1000.0, {"depth": 1}),
    ):
        metrics(record(started=started, **fields))

    seconds = metrics.rates.last(4, now=1002.5)

    assert [(second.second, second.calls, second.errors) for second in seconds] == [
        (999, 0, {}),
        (1000, 2, {"timeout": 1}),
        (1001, 0, {}),
        (1002, 1, {}),
    ]
    assert [second.quantile_ms(0.95) > 100 for second in seconds] == [False, False, False, True]


def test_rates_are_kept_for_15_minutes() -> None:
    metrics = Metrics()
    for second in range(2000):
        metrics(record(started=float(second), elapsed_ms=0.0))

    seconds = metrics.rates.last(10_000, now=1999)

    assert [second.second for second in seconds] == list(range(1100, 2000))
    assert all(second.calls == 1 for second in seconds)
    assert sum(second.calls for second in metrics.rates.last(600, now=2300)) == 299


def test_rates_can_be_added_up_to_spans_whose_borders_stay_while_time_passes() -> None:
    metrics = Metrics()
    for second in range(900):
        metrics(record(started=float(second), elapsed_ms=0.01, code="timeout" if second % 10 == 0 else None))

    spans = metrics.rates.last(900, now=899.5, step=15)
    later = metrics.rates.last(900, now=901.0, step=15)

    assert [(span.second, span.calls) for span in spans] == [(second, 15) for second in range(0, 900, 15)]
    assert [span.errors["timeout"] for span in spans[:2]] == [2, 1]
    assert 0 < spans[0].quantile_ms(0.95) <= 0.01
    assert [span.second for span in later] == list(range(15, 915, 15))
    assert later[:-1] == spans[1:]


def test_each_tool_has_a_trend_of_15_minutes_with_the_failures_that_were_not_the_callers() -> None:
    metrics = Metrics()
    failures: list[dict[str, Any]] = [
        {"code": "timeout", "blame": "tool"},
        {"code": "invalid_input", "blame": "caller"},
    ]
    for second in range(1995):
        metrics(record(started=float(second), elapsed_ms=0.0, **(failures[second % 15] if second % 15 < 2 else {})))

    trend = metrics.tools[Label("shop", "add")].trend

    assert [step.second for step in trend.last(now=1994.0)] == list(range(1095, 1995, 15))
    assert {(step.calls, step.failed) for step in trend.last(now=1994.0)} == {(15, 1)}
    assert {step.calls for step in trend.last(now=9999.0)} == {0}


def test_the_counters_of_a_source_are_those_of_its_tools_together() -> None:
    metrics = Metrics()
    for fields in (
        {},
        {"tool": "list", "code": "timeout", "blame": "tool"},
        {"tool": "list", "code": "timeout", "blame": "tool"},
    ):
        metrics(
            record(elapsed_ms=10.0, bytes=5, estimated_tokens=2, waited_ms=1.0, coerced=1, decision="ask", **fields)
        )
    metrics(record(source="mail"))
    metrics.count_approval("asked", "a_1", source="shop", tool="add")
    metrics.count_approval("asked", "a_2", source="shop", tool="list")

    shop = metrics.sources()["shop"]

    assert (shop.calls, shop.run_ms, shop.longest_ms, shop.bytes, shop.estimated_tokens, shop.waited_ms) == (
        3,
        27.0,
        9.0,
        15,
        6,
        3.0,
    )
    assert (shop.coerced, shop.held, shop.errors, shop.approvals) == (3, 3, {("timeout", "tool"): 2}, {"asked": 2})
    assert 5 < shop.quantile_ms(0.5) <= 10
    assert metrics.sources()["mail"].calls == 1


def test_approvals_without_end_leave_its_memory_bounded() -> None:
    metrics = Metrics()
    for number in range(5000):
        metrics.count_approval("asked", f"a_{number}", source="shop", tool="wipe")
    metrics.count_approval("denied", "a_4999")
    metrics.count_approval("approved", "a_of_another_process", source="shop", tool="wipe")

    assert metrics.tools[Label("shop", "wipe")].approvals == {"asked": 5000, "denied": 1, "approved": 1}
    assert len(metrics.open_approvals) == 999


async def test_the_ring_keeps_the_last_records() -> None:
    ring = Ring(2)
    async with Yard(tools=[add], sinks=[ring]) as yard:
        ids = [(await yard.call("add", {"a": 1, "b": 2})).meta.call_id for _ in range(3)]

    assert [record.call_id for record in ring.records] == ids[1:]


@pytest.mark.parametrize(("level", "count"), [(logging.INFO, 1), (logging.WARNING, 0)])
async def test_a_call_is_one_line_of_the_log_if_the_log_wants_it(
    caplog: pytest.LogCaptureFixture, level: int, count: int
) -> None:
    caplog.set_level(level, logger="callyard.calls")
    async with Yard(tools=[add], sinks=[log_sink]) as yard:
        await yard.call("add", {"a": 1, "b": 2})

    lines = [record.message for record in caplog.records if record.name == "callyard.calls"]
    assert [line.startswith("call tool=add code=ok ") for line in lines] == [True] * count
