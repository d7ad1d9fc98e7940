"""What tests need from elsewhere: installed once, whoever wants it first, and kept for the next run."""

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import mkdtemp

__all__ = ["kept"]


def kept(name: str, version: str, install: Callable[[Path], None]) -> Path:
    """Return a folder with what is installed; that is done beside its place and then moved there, so that half of it is never found."""
    cache = Path(os.environ.get("TOOLYARD_TEST_CACHE") or Path.home() / ".cache" / "toolyard-tests")
    cache.mkdir(parents=True, exist_ok=True)
    home = cache / f"{name}-{version}"
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers may want it at once; it is let go with the file
        if home.exists():
            return home
        beside = Path(mkdtemp(prefix=f"{home.name}-", dir=cache))
        try:
            install(beside)
            beside.rename(home)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    return home
