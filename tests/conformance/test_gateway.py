"""A yard in front of a server changes nothing that works: the official suite has the same results without it."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.conformance.conftest import Suite

NOT_OFFERED = "tasks-"
LOST_BETWEEN_ERAS = {
    "input-required-result-basic-elicitation": "an upstream of the older era asks without naming the key of its "
    "question",
    "input-required-result-basic-list-roots": "folders are one caller's, and a connection of the older era is "
    "everybody's",
    "input-required-result-multiple-input-requests": "an upstream of the older era asks one thing after the other",
}
"""Scenarios of the newer era that nobody can pass in front of a server of the older one, and why."""

ASKED_OVER_A_PIPE = {
    "input-required-result-": "there an upstream does not say whom it asks, and the suite leaves calls of its "
    "other clients waiting"
}
"""Scenarios that a yard fails on purpose, because it never guesses between two callers, and why."""


@pytest.mark.parametrize("version", ["2025-11-25", "2026-07-28"])
def test_nothing_is_lost_on_the_way_through_a_yard(
    suite: "Suite", gate: tuple[str, str], tmp_path: Path, version: str
) -> None:
    upstream, url = gate
    judged = suite.judge("next", url, tmp_path, "--requirements", version).without(NOT_OFFERED)
    excused: tuple[str, ...] = ()
    if version == "2026-07-28" and upstream.startswith("2025"):
        excused = (*LOST_BETWEEN_ERAS, *(ASKED_OVER_A_PIPE if upstream == "2025 stdio" else ()))

    assert [check for check in judged.checks("FAILURE") if not check.startswith(excused)] == []
    assert len(judged.checks("SUCCESS")) >= 75
