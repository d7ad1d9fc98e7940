"""The example of a pack is built, installed into a fresh environment beside Callyard, and used there."""

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "pack"
READ = """
import asyncio, json
from callyard import Yard

async def main():
    async with Yard(packs=["system"]) as yard:
        page = await yard.read("callyard://docs/packs")
        print(json.dumps(page.data["contents"][0]["text"][:7]))

asyncio.run(main())
"""


def run(*command: str | Path, cwd: Path = ROOT, status: int = 0, **environment: str) -> str:
    """Run a program and return what it printed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COVERAGE"))}
    ran = subprocess.run(  # noqa: S603 - our own programs
        [str(part) for part in command],
        cwd=cwd,
        env={**ours, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == status, ran.stdout + ran.stderr
    return ran.stdout


def build(project: Path, wheels: Path) -> Path:
    """Build the wheel of a project, without a network."""
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", wheels, cwd=project)
    return max(wheels.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime_ns)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the wheels of Callyard and of the example."""
    folder = tmp_path_factory.mktemp("wheels")
    return build(ROOT, folder / "callyard"), build(EXAMPLE, folder / "notes")


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory, wheels: tuple[Path, Path]) -> Path:
    """Return the folder of programs of a fresh environment with both; packages come from the cache, if it has them."""
    uv, folder = Path(sys.executable).with_name("uv"), tmp_path_factory.mktemp("environment") / "venv"
    run(uv, "venv", "--quiet", "--offline", "--python", sys.executable, folder)
    pip = (str(uv), "pip", "install", "--quiet", "--python", str(folder / "bin" / "python"), "--no-deps")
    pins = ("--require-hashes", "--requirement", str(ROOT / "requirements" / "runtime.txt"))
    installed = subprocess.run([*pip, *pins], capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - the packages are pinned
    if installed.returncode:
        pytest.skip(f"The packages of a fresh environment cannot be installed: {installed.stderr.strip()[-200:]}")
    run(*pip, "--offline", *wheels)
    return folder / "bin"


def test_the_wheel_has_the_guides(wheels: tuple[Path, Path]) -> None:
    names = ZipFile(wheels[0]).namelist()
    guides = {f"callyard/guides/{path.name}" for path in (ROOT / "docs" / "guides").glob("*.md")}

    assert guides <= set(names)


def test_an_installed_pack_is_listed_named_and_used(environment: Path, tmp_path: Path) -> None:
    callyard = environment / "callyard"
    state = str(tmp_path / "state")
    before = json.loads(run(callyard, "packs", "--json", cwd=tmp_path, CALLYARD_STATE_DIR=state))
    (tmp_path / "callyard.toml").write_text('packs = ["system", "notes"]\n[pack.notes]\nmost = 3\n')
    named = json.loads(run(callyard, "packs", "--json", cwd=tmp_path, CALLYARD_STATE_DIR=state))
    call = (callyard, "call", "callyard.toml")
    run(*call, "notes_write", "title=milk", "text=two bottles", cwd=tmp_path, CALLYARD_STATE_DIR=state)
    read = run(*call, "notes_read", "title=milk", "--json", cwd=tmp_path, CALLYARD_STATE_DIR=state)
    facts = run(*call, "list_packs", "--json", cwd=tmp_path, CALLYARD_STATE_DIR=state)

    assert [(pack["name"], pack["state"]) for pack in before] == [("notes", "installed"), ("system", "installed")]
    assert (named[0]["name"], named[0]["state"], named[0]["package"], named[0]["version"]) == (
        "notes",
        "ready",
        "callyard-notes",
        "0.1.0",
    )
    assert json.loads(read)["data"] == "two bottles"
    assert json.loads(facts)["data"][1]["settings"] == {"most": 3}


def test_a_wrong_key_of_an_installed_pack_is_refused_with_what_was_meant(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "callyard.toml").write_text('packs = ["notes"]\n[pack.notes]\nmst = 3\n')
    ran = subprocess.run(  # noqa: S603 - our own program
        [environment / "callyard", "list", "callyard.toml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1
    assert "'most'" in ran.stderr
    assert "'callyard-notes'" in ran.stderr


def test_the_guides_are_resources_where_callyard_is_installed(environment: Path, tmp_path: Path) -> None:
    assert json.loads(run(environment / "python", "-c", READ, cwd=tmp_path)) == "# Packs"
