"""The tests of each agent SDK, in an environment that has it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pinned_packages import python_with

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PATIENCE = 240.0
ENVIRONMENTS = {
    "claude": "agents",
    "openai": "agents",
    "pydantic-ai": "agents",
    "langchain": "agents",
    "function-calling": "agents",
    "google-adk": "google_adk",
}
"""The drivers of `sdks/drivers.py` by the beginning of their name, and the file that pins what each needs."""


@pytest.mark.parametrize(("sdk", "environment"), ENVIRONMENTS.items(), ids=list(ENVIRONMENTS))
def test_the_tests_of_an_sdk_pass_with_the_real_sdk(sdk: str, environment: str, tmp_path: Path) -> None:
    python = python_with(HERE / f"{environment}.txt", what=f"SDK for '{sdk}'")
    own = HERE / "sdks" / f"test_{sdk}.py"
    files = [HERE / "sdks" / "test_every_sdk.py", *([own] if own.exists() else [])]
    options = [f"--sdk={sdk}", f"--confcutdir={HERE / 'sdks'}", "-p", "no:cacheprovider", "-q", "-o", "filterwarnings=ignore"]

    command = [python, "-m", *_coverage(), "pytest", *map(str, files), *options]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "XDG_STATE_HOME": str(tmp_path)}
    ran = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)  # noqa: S603 - our own tests

    assert ran.returncode == 0, ran.stdout + ran.stderr


def _coverage() -> list[str]:
    """Return what measures coverage there, too, if it is measured here."""
    measured = "COVERAGE_RUN" in os.environ or "coverage" in sys.modules
    return ["coverage", "run", f"--rcfile={ROOT / 'pyproject.toml'}", f"--data-file={ROOT / '.coverage'}", "-m"] if measured else []
