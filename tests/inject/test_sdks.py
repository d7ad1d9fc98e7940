"""The tests of each agent SDK, in an environment that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pinned_packages import python_with

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATIENCE = 600.0
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
    python = python_with(HERE / f"{environment}.txt", what=f"SDK for '{sdk}'")
    files = [HERE / "sdks" / name for name in tests]
    options = [f"--sdk={sdk}", f"--confcutdir={HERE / 'sdks'}", "-p", "no:cacheprovider", "-q", "-o", "filterwarnings=ignore"]

    command = [python, "-m", *_coverage(), "pytest", *map(str, files), *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - our own tests

    assert ran.returncode == 0, ran.stdout + ran.stderr


def _coverage() -> list[str]:
    """Return what measures coverage there, too, if it is measured here."""
    measured = "COVERAGE_RUN" in os.environ or "coverage" in sys.modules
    return ["coverage", "run", f"--rcfile={ROOT / 'pyproject.toml'}", f"--data-file={ROOT / '.coverage'}", "-m"] if measured else []
