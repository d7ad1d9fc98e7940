"""Packages of npm and Python that tests need: pinned with their hashes, installed once, and cached for later runs.

`npm install --package-lock-only --omit-lockfile-registry-resolved` writes a `package-lock.json` anew. Python packages
that our own environment must not have are named in a file `NAME.in` beside their tests. `uv pip compile --universal
--python-version 3.11
--generate-hashes --no-emit-index-url --no-header --no-annotate NAME.in --output-file NAME.txt` writes their pins anew.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import pytest

__all__ = ["NODE", "installed", "python_with", "run_tests_with"]

NODE = "node_modules/node/bin/node"
"""The pinned Node.js, which is newer than that of many systems."""

_ROOT = Path(__file__).parent.parent.parent
_TESTS_S = 600.0
_FILES = ("package.json", "package-lock.json")
_NPM = (
    "npm",
    "ci",
    "--no-audit",
    "--no-fund",
    "--prefer-offline",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
)


def installed(pins: Path, name: str, *, what: str) -> Path:
    """Return the folder of the npm packages that a folder pins, or skip the test if they cannot be installed."""
    if shutil.which("npm") is None:
        pytest.skip(f"The {what} needs 'npm', which is not installed.")

    def install(folder: Path) -> None:
        for file in _FILES:
            shutil.copy(pins / file, folder)
        _run(_NPM, [folder / NODE, "--version"], folder=folder, what=what)

    return _cached(name, b"".join((pins / file).read_bytes() for file in _FILES), install)


def python_with(pins: Path, *, what: str) -> str:
    """Return the Python of an environment with pinned packages; skip the test if they cannot be installed."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        pytest.skip(f"The {what} needs 'uv', which is not installed.")

    def install(folder: Path) -> None:
        pip = [
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            folder / "bin" / "python",
            "--no-deps",
            "--compile-bytecode",
        ]
        venv = [uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder]
        _run(venv, [*pip, "--require-hashes", "--requirement", pins], folder=folder, what=what)

    return str(_cached(pins.stem, pins.read_bytes() + sys.version.encode(), install) / "bin" / "python")


def _run(*commands: Sequence[str | Path], folder: Path, what: str) -> None:
    try:
        for command in commands:
            subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=True)  # noqa: S603 - the packages are pinned
    except (subprocess.SubprocessError, OSError) as error:
        lines = str(getattr(error, "stderr", "")).strip().splitlines() or [str(error)]
        reason = next((line for line in lines if line.startswith("npm error")), lines[-1].strip())
        pytest.skip(f"The {what} cannot be installed: {reason}")


def _cached(name: str, pins: bytes, install: Callable[[Path], None]) -> Path:
    """Return the folder of an installation; it is renamed once it is complete."""
    cache = Path(os.environ.get("CALLYARD_TEST_CACHE") or Path.home() / ".cache" / "callyard-tests")
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{name}-{sha256(pins).hexdigest()[:12]}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may install at once; closing the file releases it
        if folder.exists():
            return folder
        temporary = Path(mkdtemp(prefix=f"{folder.name}-", dir=cache))
        try:
            install(temporary)
            temporary.rename(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def run_tests_with(pins: Path, files: Sequence[Path], *, sdk: str, state: Path) -> None:
    """Run test files in an environment with an agent SDK, with coverage, and fail if one of them fails."""
    python, folder = python_with(pins, what=f"SDK for '{sdk}'"), files[0].parent
    options = [f"--sdk={sdk}", f"--confcutdir={folder}", "-p", "no:cacheprovider", "-q", "-o", "filterwarnings=ignore"]
    command = [python, "-m", *_coverage(), "pytest", *map(str, files), *options]
    environment = {**os.environ, "PYTHONPATH": str(_ROOT / "src"), "XDG_STATE_HOME": str(state)}
    ran = subprocess.run(  # noqa: S603 - our own tests
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=_TESTS_S, check=False
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr


def _coverage() -> list[str]:
    """Return what measures coverage, if it is measured here."""
    measured = "COVERAGE_RUN" in os.environ or "coverage" in sys.modules
    return (
        ["coverage", "run", f"--rcfile={_ROOT / 'pyproject.toml'}", f"--data-file={_ROOT / '.coverage'}", "-m"]
        if measured
        else []
    )
