"""Packages of Python that tests need and our own environment must not have: pinned with their hashes, in an environment of their own.

Each is named in a file `NAME.in` beside its tests. `uv pip compile --universal --python-version 3.11 --generate-hashes
--no-emit-index-url --no-header --no-annotate NAME.in --output-file NAME.txt` writes the pins anew.
"""

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from kept import kept

__all__ = ["python_with"]


def python_with(pins: Path, *, what: str) -> str:
    """Return the Python of an environment with what a file pins, or skip the test and say that there is no way to have it."""
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        pytest.skip(f"The {what} needs 'uv', which is not installed.")

    def install(folder: Path) -> None:
        python = str(folder / "bin" / "python")
        pip = [uv, "pip", "install", "--quiet", "--python", python, "--no-deps", "--compile-bytecode", "--require-hashes"]
        try:
            for command in ([uv, "venv", "--quiet", "--allow-existing", "--python", sys.executable, folder], [*pip, "--requirement", pins]):
                subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)  # noqa: S603 - the packages are pinned
        except (subprocess.SubprocessError, OSError) as error:
            said = str(getattr(error, "stderr", "")).strip().splitlines()
            pytest.skip(f"The {what} cannot be installed: {said[-1].strip() if said else error}")

    version = sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:12]
    return str(kept(pins.stem, version, install) / "bin" / "python")
