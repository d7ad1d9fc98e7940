"""What a watch shows: a status page, JSON, a badge, and metrics for Prometheus.

It knows no HTTP. Only codes and times are shown, never what a server or a program wrote.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, Literal

import msgspec
from jinja2 import Environment
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from callyard.probe.codes import PROBE_CODES
from callyard.probe.history import Bucket, TargetState
from callyard.probe.report import Report
from callyard.probe.watch import Watch

__all__ = ["badge", "probe_metrics", "status", "status_page", "watch_metrics"]

State = Literal["up", "failing", "down", "unknown"]
_COLOURS: Final[Mapping[State, str]] = {"up": "#2e7d32", "failing": "#b26a00", "down": "#c62828", "unknown": "#616161"}
_DAY: Final = 86_400.0


def _state_of(state: TargetState) -> State:
    if state.report is None:
        return "unknown"
    if state.failures > 1 or state.held_for:
        return "down"
    return "up" if state.report.code is None else "failing"


def status(watch: Watch, incidents: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the state of all targets, their history and the open incidents as JSON."""
    targets = [
        {
            "name": name,
            "state": _state_of(state),
            "held": watch.is_held(name),
            "uptime": state.uptime(),
            **_facts(state.report),
            **{key: msgspec.to_builtins(getattr(state, key)) for key in ("minutes", "hours", "days")},
        }
        for name, (_, state) in watch.targets.items()
    ]
    return {"leads": watch.incidents.leads, "offline": watch.is_offline, "targets": targets, "incidents": incidents}


def _facts(report: Report | None) -> dict[str, Any]:
    if report is None:
        return {"code": None, "at": None, "ms": None}
    names = ("at", "ms", "version", "tools", "verdict", "certificate_days", "token_days")
    return {"code": report.code, **{name: getattr(report, name) for name in names}}


_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="refresh" content="30">
<title>{{ "All is well" if well else "Something fails" }}</title>
<style>
:root { color-scheme: light dark; font: 1rem/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .4rem .8rem .4rem 0; border-bottom: 1px solid #8884; vertical-align: top; }
.name { overflow-wrap: anywhere; }
.state { color: #fff; padding: .1rem .5rem; border-radius: .3rem; }
{% for name, colour in colours.items() %}.{{ name }} { background: {{ colour }}; }
{% endfor %}
.days { display: flex; gap: 1px; height: 1.2rem; }
.days span { width: 4px; }
</style>
</head>
<body>
<h1>{{ "All is well" if well else "Something fails" }}</h1>
{% if offline %}<p>The network of the watcher is gone. Nothing is probed.</p>{% endif %}
<table>
<thead><tr><th scope="col">Target</th><th scope="col">State</th><th scope="col">Last probe</th>
<th scope="col">Uptime</th></tr></thead>
<tbody>
{% for one in targets %}
<tr><th scope="row" class="name">{{ one.name }}</th>
<td><span class="state {{ one.state }}">{{ one.state }}</span>
{% if one.meaning %}<br><code>{{ one.code }}</code> {{ one.meaning }}{% endif %}
{% if one.held %}<br>It is not probed until its credentials change.{% endif %}</td>
<td>{% if one.at %}<time datetime="{{ one.at }}">{{ one.at }}</time><br>{{ "%.0f"|format(one.ms) }} ms{% endif %}</td>
<td>{% if one.uptime is not none %}{{ "%.2f"|format(100 * one.uptime) }} %{% endif %}
<div class="days" aria-hidden="true">{% for day in one.days %}<span class="{{ day.state }}"></span>{% endfor %}</div>
</td></tr>
{% endfor %}
</tbody>
</table>
{% if incidents %}
<h2>Incidents</h2>
<ul>
{% for one in incidents %}<li><time datetime="{{ one.opened }}">{{ one.opened }}</time> {{ one.text }}</li>
{% endfor %}
</ul>
{% endif %}
</body>
</html>
"""


def status_page(watch: Watch, incidents: list[dict[str, Any]]) -> str:
    """Return the status page; all names in it are escaped."""
    targets = [
        {
            "name": name,
            "state": _state_of(state),
            "held": watch.is_held(name),
            "code": state.report and state.report.code,
            "meaning": _meaning(state.report),
            "at": state.report and _time_of(state.report.at),
            "ms": state.report and state.report.ms,
            "uptime": state.uptime(),
            "days": [{"state": _state_of_day(day)} for day in state.days],
        }
        for name, (_, state) in watch.targets.items()
    ]
    shown = [{"text": one["text"], "opened": _time_of(one["opened"])} for one in incidents]
    well = not incidents and not watch.is_offline and all(one["state"] in {"up", "unknown"} for one in targets)
    template = Environment(autoescape=True).from_string(_PAGE)
    return template.render(well=well, targets=targets, incidents=shown, offline=watch.is_offline, colours=_COLOURS)


def _meaning(report: Report | None) -> str:
    return "" if report is None or report.code is None else PROBE_CODES[report.code].meaning


def _state_of_day(bucket: Bucket) -> State:
    if not bucket.failed:
        return "up"
    return "down" if bucket.failed > bucket.probes / 2 else "failing"


def _time_of(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(seconds))


def badge(state: TargetState) -> str:
    """Return the state of a target as a small picture in SVG."""
    word = _state_of(state)
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="96" height="20" role="img" '
        f'aria-label="MCP: {word}"><rect width="36" height="20" fill="#424242"/>'
        f'<rect x="36" width="60" height="20" fill="{_COLOURS[word]}"/>'
        '<g fill="#fff" font-family="Verdana,sans-serif" font-size="11" text-anchor="middle">'
        f'<text x="18" y="14">MCP</text><text x="66" y="14">{word}</text></g></svg>'
    )


def watch_metrics(watch: Watch, accept: str) -> tuple[bytes, str]:
    """Return the last reports of all targets for Prometheus, and the media type."""
    reports = {name: state.report for name, (_, state) in watch.targets.items() if state.report is not None}
    by_name = ("target",)

    def families() -> Iterator[Metric]:
        leads = GaugeMetricFamily(
            "callyard_watch_leads", "1 if this watcher probes and alerts.", value=int(watch.incidents.leads)
        )
        offline = GaugeMetricFamily(
            "callyard_watch_offline", "1 if its own network is gone.", value=int(watch.is_offline)
        )
        yield from (leads, offline)
        for name, text, value in _GAUGES:
            family = GaugeMetricFamily(f"callyard_probe_{name}", text, labels=by_name)
            for target, report in reports.items():
                number = value(report)
                if number is not None:
                    family.add_metric((target,), number)
            yield family
        codes = GaugeMetricFamily(
            "callyard_probe_failed", "1 for each code of the last probe.", labels=(*by_name, "code")
        )
        for target, report in reports.items():
            for code in dict.fromkeys(one.code for one in report.failures):
                codes.add_metric((target, code), 1)
        yield codes

    return _render(families, accept)


def _success(report: Report) -> float:
    return float(report.code is None)


_GAUGES: Final[tuple[tuple[str, str, Callable[[Report], float | None]], ...]] = (
    ("success", "1 if the last probe found nothing wrong.", _success),
    ("seconds", "Duration of the last probe.", lambda report: report.ms / 1000),
    ("timestamp_seconds", "When the last probe began.", attrgetter("at")),
    ("certificate_days", "Days until the certificate ends.", attrgetter("certificate_days")),
    ("token_days", "Days until the credentials end.", attrgetter("token_days")),
    ("tools", "The number of tools.", attrgetter("tools")),
)


def probe_metrics(report: Report | None, accept: str) -> tuple[bytes, str]:
    """Return one report in the form of Prometheus's blackbox exporter, and the media type."""

    def families() -> Iterator[Metric]:
        is_well = report is not None and report.code is None
        yield GaugeMetricFamily("probe_success", "Displays whether or not the probe was a success.", value=int(is_well))
        if report is None:
            return
        yield GaugeMetricFamily(
            "probe_duration_seconds", "Returns how long the probe took to complete in seconds.", value=report.ms / 1000
        )
        phases = GaugeMetricFamily(
            "probe_mcp_duration_seconds", "Duration of each step of the probe.", labels=("phase",)
        )
        for step in report.steps:
            phases.add_metric((step.name,), step.ms / 1000)
        yield phases
        if report.certificate_days is not None:
            end = report.at + report.certificate_days * _DAY
            yield GaugeMetricFamily(
                "probe_ssl_earliest_cert_expiry", "Returns when the certificate ends, in Unix time.", value=end
            )
        failed = GaugeMetricFamily("probe_mcp_failed", "1 for each code of the probe.", labels=("code",))
        for code in dict.fromkeys(one.code for one in report.failures):
            failed.add_metric((code,), 1)
        yield failed

    return _render(families, accept)


def _render(families: Any, accept: str) -> tuple[bytes, str]:
    class Source(Collector):
        def collect(self) -> Iterator[Metric]:
            yield from families()

    encode, media_type = choose_encoder(accept)
    return encode(Source()), media_type
