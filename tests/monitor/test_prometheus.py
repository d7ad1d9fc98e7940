"""Metrics as Prometheus reads them."""

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families as parse_text

from callyard.dispatch.outcome import Record
from callyard.monitor import Metrics, UpstreamState, render, snapshot_of

parse_openmetrics: Any = import_module("prometheus_client.openmetrics.parser").text_string_to_metric_families


def record(**fields: Any) -> Record:
    usual: dict[str, Any] = {
        "call_id": "c_1",
        "tool": "add",
        "started": 1000.0,
        "elapsed_ms": 3.0,
        "source": "shop",
        "identity": "ada",
    }
    return Record(**{**usual, **fields})


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), ("application/openmetrics-text; version=1.0.0", parse_openmetrics)]
)
def test_the_page_has_every_counter_in_the_format_that_was_asked_for(accept: str, parse: Any) -> None:
    metrics = Metrics()
    metrics(record(elapsed_ms=503.0, bytes=10, estimated_tokens=4, waited_ms=500.0))
    metrics(record(code="timeout", blame="tool", elapsed_ms=200.0, coerced=2, decision="ask"))
    metrics.count_approval("asked", "a_1", source="shop", tool="add")
    metrics.count_approval("denied", "a_1")
    upstreams = [UpstreamState("files", "backing_off", is_open=True), UpstreamState("mail", "ready", is_open=False)]

    page, media_type = render(snapshot_of(metrics, upstreams=upstreams), accept)
    samples: dict[str, dict[frozenset[str], float]] = {}
    for sample in (sample for family in parse(page.decode()) for sample in family.samples):
        samples.setdefault(sample.name, {})[frozenset(sample.labels.values())] = sample.value

    add = frozenset({"shop", "add"})
    buckets = samples.pop("callyard_call_seconds_bucket")
    assert media_type.startswith("application/openmetrics-text" if accept else "text/plain")
    assert (buckets[add | {"0.002"}], buckets[add | {"0.005"}], buckets[add | {"+Inf"}]) == (0, 1, 2)
    assert samples == {
        "callyard_calls_total": {add: 2},
        "callyard_call_wait_seconds_total": {add: 0.5},
        "callyard_call_seconds_count": {add: 2},
        "callyard_call_seconds_sum": {add: 0.203},
        "callyard_errors_total": {add | {"timeout", "tool"}: 1},
        "callyard_result_bytes_total": {add: 10},
        "callyard_result_estimated_tokens_total": {add: 4},
        "callyard_repaired_arguments_total": {add: 2},
        "callyard_held_calls_total": {add: 1},
        "callyard_approvals_total": {add | {"asked"}: 1, add | {"denied"}: 1},
        "callyard_caller_calls_total": {frozenset({"ada"}): 2},
        "callyard_caller_errors_total": {frozenset({"ada"}): 1},
        "callyard_upstream_breaker_open": {frozenset({"files"}): 1, frozenset({"mail"}): 0},
        "callyard_upstream_state": {frozenset({"files", "backing_off"}): 1, frozenset({"mail", "ready"}): 1},
    }


def test_a_page_shows_the_moment_of_its_snapshot() -> None:
    metrics = Metrics()
    metrics(record())
    snapshot = snapshot_of(metrics)
    metrics(record(code="timeout", blame="tool"))
    metrics(record(tool="other_tool", identity="eve"))

    page = render(snapshot)[0].decode()

    assert 'callyard_calls_total{source="shop",tool="add"} 1.0' in page
    assert "other_tool" not in page
    assert "eve" not in page
    assert "timeout" not in page


def test_a_name_cannot_break_out_of_its_label() -> None:
    metrics = Metrics()
    metrics(record(tool='x"} 1\nfake_total{a="b', identity='"\n\\'))

    names = {
        sample.name for family in parse_text(render(snapshot_of(metrics))[0].decode()) for sample in family.samples
    }

    assert "fake_total" not in names


def test_prometheus_client_is_loaded_by_the_first_page_and_not_before() -> None:
    code = (
        "import sys; from callyard.monitor import Metrics, render, snapshot_of; import callyard.launch.serve, "
        "callyard.transports.http;"
        "snapshot = snapshot_of(Metrics()); print('prometheus_client' in sys.modules);"
        "render(snapshot); print('prometheus_client' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own

    assert done.stdout.split() == ["False", "True"]


def test_the_page_has_what_the_rules_see_and_the_notices() -> None:
    facts = {"problems": {("hung", "warning"): 2}, "notices": {("webhook", "sent"): 3}}
    page, _ = render(replace(snapshot_of(Metrics()), **facts))

    assert b'callyard_problems{rule="hung",severity="warning"} 2.0' in page
    assert b'callyard_notices_total{notifier="webhook",result="sent"} 3.0' in page
