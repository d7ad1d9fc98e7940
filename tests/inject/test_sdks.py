"""The tests of each agent SDK, in an environment that has it."""

from pathlib import Path

import pytest
from pinned_packages import run_tests_with

HERE = Path(__file__).parent
EVERY = ("test_every_sdk.py",)
RUNS = {
    "claude": ("agents", (*EVERY, "test_claude.py")),
    "openai": ("agents", EVERY),
    "pydantic-ai": ("agents", (*EVERY, "test_pydantic_ai.py")),
    "langchain": ("agents", (*EVERY, "test_langchain.py")),
    "function-calling": ("agents", EVERY),
    "guide": ("agents", ("test_guide.py",)),
    "google-adk": ("google_adk", (*EVERY, "test_guide.py")),
}
"""By the beginning of a driver's name in `sdks/drivers.py`: the file that pins what it needs, and the tests."""


@pytest.mark.parametrize("sdk", RUNS)
def test_the_tests_of_an_sdk_pass_with_the_real_sdk(sdk: str, tmp_path: Path) -> None:
    environment, tests = RUNS[sdk]
    run_tests_with(HERE / f"{environment}.txt", [HERE / "sdks" / name for name in tests], sdk=sdk, state=tmp_path)
