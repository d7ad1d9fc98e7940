"""The measured environments: pinned peers and this checkout, all made with one Python."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = [
    "BEFORE",
    "FRAMEWORKS",
    "INJECTED",
    "NAMES",
    "OPTIONAL",
    "InstallError",
    "cache",
    "is_ready",
    "node_folder",
    "python_of",
    "set_up",
]

_CHECKOUT: Final = Path(__file__).resolve().parents[1]
_LOCK: Final = _CHECKOUT / "requirements" / "runtime.txt"
_PINS: Final = _CHECKOUT / "tests" / "inject"
_HTTP: Final = ("uvicorn==0.54.0", "uvloop==0.23.0", "httptools==0.9.0")
"""What serves HTTP, the same for all."""
_INSTALLS: Final[dict[str, tuple[tuple[str, ...], ...]]] = {
    "callyard": (("--requirement", str(_LOCK)), ("--no-deps", "--editable", str(_CHECKOUT)), _HTTP),
    "fastmcp": (("fastmcp==4.1.4", *_HTTP),),
    "sdk": (("mcp==2.3.0", *_HTTP),),
    "limits": (("msgspec==0.22.0", *_HTTP),),
    "agents": (("--no-deps", "--requirement", str(_PINS / "agents.txt")), ("--no-deps", "--editable", str(_CHECKOUT))),
    "google_adk": (
        ("--no-deps", "--requirement", str(_PINS / "google_adk.txt")),
        ("--no-deps", "--editable", str(_CHECKOUT)),
    ),
    "tmcp": (("tmcp@1.20.0", "@tmcp/adapter-zod@0.1.7", "@tmcp/transport-stdio@0.5.0", "zod@4.6.7"),),
}
_BEFORE: Final = os.environ.get("CALLYARD_BENCH_BEFORE")
BEFORE: Final = Path(_BEFORE).resolve() if _BEFORE else None
"""Another checkout of Callyard that this one is compared with."""
if BEFORE is not None:
    _INSTALLS["before"] = (
        ("--requirement", str(BEFORE / "requirements" / "runtime.txt")),
        ("--no-deps", "--editable", str(BEFORE)),
        _HTTP,
    )
_OVERRIDE: Final = "certifi"
"""FastMCP asks for a newer one than some package indexes have."""

NAMES: Final = tuple(_INSTALLS)

FRAMEWORKS: Final = ("callyard", *(("before",) if BEFORE is not None else ()), "fastmcp", "sdk")
"""Those with a worker, which are measured in their own process."""

INJECTED: Final = ("agents", "google_adk")
"""Those with agent SDKs."""

OPTIONAL: Final = ("tmcp", *INJECTED)
"""Those that are done without where they cannot be made."""


class InstallError(RuntimeError):
    """An environment could not be made; the installer has printed the reason."""


def cache() -> Path:
    """Return the directory for all output."""
    own = os.environ.get("CALLYARD_BENCH")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "callyard-bench-own"


def python_of(name: str) -> str:
    """Return the Python of an environment."""
    return str(cache() / name / "bin" / "python")


def node_folder() -> Path:
    """Return the folder of the Node packages."""
    return cache() / "tmcp"


def is_ready(name: str) -> bool:
    """Return whether the environment exists with the right pins."""
    mark = _mark(name)
    return mark.is_file() and mark.read_text() == _pins(name)


def set_up(name: str) -> None:
    """Make an environment from scratch.

    Raises:
        InstallError: The installer failed.
    """
    folder = cache() / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    if folder == node_folder():
        folder.mkdir()
        _run(
            [
                "npm",
                "install",
                "--silent",
                "--no-audit",
                "--no-fund",
                "--ignore-scripts",
                "--prefix",
                str(folder),
                *_INSTALLS[name][0],
            ]
        )
    else:
        _install(name, folder)
    _mark(name).write_text(_pins(name))


def _install(name: str, folder: Path) -> None:
    """Make a virtual environment and install its packages."""
    uv = Path(sys.executable).with_name("uv")
    if uv.is_file():
        _run([str(uv), "venv", "--quiet", "--python", sys.executable, str(folder)])
        override = folder / "overrides.txt"
        override.write_text(_OVERRIDE)
        common = ["--quiet", "--compile-bytecode", "--python", python_of(name), "--override", str(override)]
        install = [str(uv), "pip", "install", *common]
    else:
        _run([sys.executable, "-m", "venv", str(folder)])
        install = [python_of(name), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for arguments in _INSTALLS[name]:
        _run([*install, *arguments])


def _mark(name: str) -> Path:
    return cache() / name / "installed.txt"


def _pins(name: str) -> str:
    """Return the dependencies of the environment as one text."""
    wanted = [" ".join(arguments) for arguments in _INSTALLS[name]]
    return "\n".join([sys.version, *wanted, _LOCK.read_text() if name == "callyard" else ""])


def _run(command: Sequence[str]) -> None:
    try:
        subprocess.run(command, check=True)  # noqa: S603 - the command is written above
    except (OSError, subprocess.CalledProcessError):
        raise InstallError(command[0]) from None
