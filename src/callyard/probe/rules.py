"""The rules of a watch: what its targets' states say is wrong."""

from collections.abc import Iterator
from math import ceil
from typing import Final

from callyard.monitor.incidents import Problem
from callyard.probe.codes import PROBE_CODES
from callyard.probe.history import TargetState
from callyard.probe.probe import Target

__all__ = ["counts_as_down", "problems_of"]

_NOT_DOWN: Final = frozenset({"changed", "slow"})
"""Failures with rules of their own: the server works."""
_IN_A_ROW: Final = 2
_WINDOW_S: Final = 3600.0
_LEAST: Final = 10
"""Probes in a window below which it says nothing."""
_ERROR_SHARE: Final = 0.2
_P95: Final = 0.95
_CERTIFICATE_DAYS: Final = 14.0
_TOKEN_DAYS: Final = 3.0
_LEAST_CALM_S: Final = 5.0


def counts_as_down(state: TargetState) -> bool:
    """Return whether the last report says that the target cannot be used."""
    report = state.report
    return report is not None and any(one.code not in _NOT_DOWN for one in report.failures)


def problems_of(target: Target, state: TargetState, *, every: float, now: float) -> Iterator[Problem]:
    """Yield what is wrong with a target."""
    report = state.report
    if report is None:
        return
    name, calm = target.name, max(2 * every, _LEAST_CALM_S)
    if state.failures >= (1 if state.held_for else _IN_A_ROW):
        first = next(one for one in report.failures if one.code not in _NOT_DOWN)
        text = f"'{name}' is down ({first.code}): {PROBE_CODES[first.code].meaning}"
        details = {"code": first.code, "step": first.step, "since": state.failing_since}
        yield Problem(rule="down", subject=name, text=text, severity="critical", details=details, calm_s=calm)
    if report.verdict == "breaking":
        names = [change.name or change.kind for change in report.changes if change.verdict == "breaking"]
        text = f"'{name}' changed so that callers break."
        yield Problem(
            rule="changed", subject=name, text=text, severity="critical", details={"names": names[:20]}, calm_s=calm
        )
    yield from _of_window(target, state, now=now, calm=calm)
    for rule, days, most in (
        ("certificate", report.certificate_days, _CERTIFICATE_DAYS),
        ("token", report.token_days, _TOKEN_DAYS),
    ):
        if days is not None and days < most:
            noun = "certificate of" if rule == "certificate" else "credentials for"
            text = f"The {noun} '{name}' {'ends' if rule == 'certificate' else 'end'} soon."
            yield Problem(rule=rule, subject=name, text=text, details={"days": round(days, 1)}, calm_s=calm)


def _of_window(target: Target, state: TargetState, *, now: float, calm: float) -> Iterator[Problem]:
    """Yield what the probes of the last hour say together."""
    samples, name = state.recent(now - _WINDOW_S), target.name
    if len(samples) < _LEAST:
        return
    failed = [False, *(sample.failed for sample in samples), False]
    # failures in a row are an incident of their own
    single = sum(
        now and not (before or after) for before, now, after in zip(failed, failed[1:], failed[2:], strict=False)
    )
    share = single / len(samples)
    if share >= _ERROR_SHARE:
        text = f"{share:.0%} of the probes of '{name}' failed in the last hour."
        yield Problem(rule="errors", subject=name, text=text, details={"share": round(share, 3)}, calm_s=calm)
    times = sorted(sample.ms for sample in samples if not sample.failed)
    p95 = times[ceil(len(times) * _P95) - 1] if len(times) >= _LEAST else 0.0
    if p95 > target.checks.slow_seconds * 1000:
        text = f"The p95 of the probes of '{name}' was {p95 / 1000:.1f} s in the last hour."
        yield Problem(rule="slow", subject=name, text=text, details={"p95_ms": round(p95)}, calm_s=calm)
