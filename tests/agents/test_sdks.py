"""The tests of each agent runtime, in an environment that has its SDK."""

from pathlib import Path

import pytest
from pinned_packages import run_tests_with

HERE = Path(__file__).parent
PINS = HERE.parent / "inject" / "agents.txt"
RUNS = [
    ("claude", "every_runtime"),
    ("claude", "claude"),
    ("claude", "served"),
    ("openai", "every_runtime"),
    ("openai", "openai"),
]
"""The runtimes and their tests, each in a run of its own, because the program of Claude starts for every turn."""


@pytest.mark.parametrize(("sdk", "tests"), RUNS)
def test_the_tests_of_a_runtime_pass_with_the_real_sdk(sdk: str, tests: str, tmp_path: Path) -> None:
    run_tests_with(PINS, [HERE / "sdks" / f"test_{tests}.py"], sdk=sdk, state=tmp_path)
