"""The official conformance suite has nothing to say against the example that offers everything."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.conftest import Suite

TASKS = {
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-lifecycle",
    "tasks-mrtr-composition",
    "tasks-mrtr-input",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-required-task-error",
    "tasks-wire-fields",
}
"""The scenarios of the extension for tasks, which the suite runs and does not score."""
SKIPPED = "tasks-status-notifications"
"""The scenario that the suite itself always skips."""


@pytest.mark.parametrize(
    ("line", "passed"),
    [
        # one more of 2025-11-25 would look into streams, which quick answers are not: they are plain JSON
        ("next 2025-03-26", 3),
        ("next 2025-06-18", 56),
        ("next 2025-11-25", 83),
        ("next 2026-07-28", 152),
        ("stable 2025-06-18", 26),
        ("stable 2025-11-25", 46),
    ],
)
def test_every_check_of_a_version_passes(
    suite: "Suite", everything: str, tmp_path: Path, line: str, passed: int
) -> None:
    name, version = line.split()
    report = suite.judge(name, everything, tmp_path, "--suite", "all", "--spec-version", version)

    assert report.checks("FAILURE") == []
    assert report.checks("WARNING") == []
    assert report.checks("SKIPPED") == []
    assert (report.status, len(report.checks("SUCCESS"))) == (0, passed)


@pytest.mark.parametrize(("version", "scored"), [("2025-11-25", 30), ("2026-07-28", 37)])
def test_everything_that_a_version_requires_is_there(
    suite: "Suite", everything: str, tmp_path: Path, version: str, scored: int
) -> None:
    report = suite.judge("next", everything, tmp_path, "--requirements", version)
    judged = report.without(SKIPPED)

    assert judged.checks("FAILURE") == []
    assert judged.checks("WARNING") == []
    assert judged.checks("SKIPPED") == []
    assert (report.status, len(report.scenarios.keys() - report.unscored)) == (0, scored)
    tasks = {name for name in judged.scenarios if name.startswith("tasks-")}
    assert tasks == (TASKS if version == "2026-07-28" else set())
    assert all(any(check["status"] == "SUCCESS" for check in report.scenarios[name]) for name in tasks)
