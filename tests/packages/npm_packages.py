"""Packages of npm that tests need: pinned with their hashes, installed once, and kept for the next run.

`npm install --package-lock-only --omit-lockfile-registry-resolved` writes a `package-lock.json` anew.
"""

import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

import pytest
from kept import kept

NODE = "node_modules/node/bin/node"
"""The pinned Node.js, which is newer than many systems'."""

_FILES = ("package.json", "package-lock.json")
_NPM = ("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", "--fetch-retry-mintimeout=1000")


def installed(pins: Path, name: str, *, what: str) -> Path:
    """Return where the packages that a folder pins are, or skip the test and say that there is no way to have them."""
    if shutil.which("npm") is None:
        pytest.skip(f"The {what} needs 'npm', which is not installed.")

    def install(folder: Path) -> None:
        for file in _FILES:
            shutil.copy(pins / file, folder)
        try:
            subprocess.run(_NPM, cwd=folder, capture_output=True, text=True, timeout=300, check=True)  # noqa: S603 - the packages are pinned
            subprocess.run([folder / NODE, "--version"], capture_output=True, check=True)  # noqa: S603 - the same
        except (subprocess.SubprocessError, OSError) as error:
            said = [line for line in str(getattr(error, "stderr", "")).splitlines() if line.startswith("npm error")]
            pytest.skip(f"The {what} cannot be installed: {said[0] if said else error}")

    version = sha256(b"".join((pins / file).read_bytes() for file in _FILES)).hexdigest()[:12]
    return kept(name, version, install)
