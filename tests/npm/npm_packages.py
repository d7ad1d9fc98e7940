"""Packages of npm that tests need: pinned with their hashes, installed once, and kept for the next run.

`npm install --package-lock-only --omit-lockfile-registry-resolved` writes a `package-lock.json` anew.
"""

import fcntl
import os
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path
from tempfile import mkdtemp

import pytest

NODE = "node_modules/node/bin/node"
"""The pinned Node.js, which is newer than many systems'."""

_FILES = ("package.json", "package-lock.json")
_NPM = ("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


def installed(pins: Path, name: str, *, what: str) -> Path:
    """Return where the packages that a folder pins are, or skip the test and say that there is no way to have them."""
    if shutil.which("npm") is None:
        pytest.skip(f"The {what} needs 'npm', which is not installed.")
    cache = Path(os.environ.get("TOOLYARD_TEST_CACHE") or Path.home() / ".cache" / "toolyard-tests")
    cache.mkdir(parents=True, exist_ok=True)
    version = sha256(b"".join((pins / file).read_bytes() for file in _FILES)).hexdigest()[:12]
    home = cache / f"{name}-{version}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may want them at once; it is let go with the file
        if not home.exists():
            _install(pins, home, what)
    return home


def _install(pins: Path, home: Path, what: str) -> None:
    """Install the packages beside their place and then move them there, so that half of them is never found."""
    beside = Path(mkdtemp(prefix=f"{home.name}-", dir=home.parent))
    try:
        for file in _FILES:
            shutil.copy(pins / file, beside)
        try:
            subprocess.run(_NPM, cwd=beside, capture_output=True, text=True, timeout=300, check=True)  # noqa: S603 - the packages are pinned
            subprocess.run([beside / NODE, "--version"], capture_output=True, check=True)  # noqa: S603 - the same
        except (subprocess.SubprocessError, OSError) as error:
            said = [line for line in str(getattr(error, "stderr", "")).splitlines() if line.startswith("npm error")]
            pytest.skip(f"The {what} cannot be installed: {said[0] if said else error}")
        beside.rename(home)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
