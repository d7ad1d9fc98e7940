"""Packages of packs in this repository: each is complete, and imports public names of Callyard only."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from pack_packages import faults_of, private_imports

ROOT = Path(__file__).parent.parent.parent
EXAMPLE = ROOT / "examples" / "pack"
PACKS = sorted(path.parent for path in (ROOT / "packs").glob("*/pyproject.toml"))


def test_every_first_party_pack_is_a_complete_package_with_public_imports_only() -> None:
    assert {pack.name: faults_of(pack) for pack in PACKS if faults_of(pack)} == {}


def test_the_source_of_callyard_names_no_first_party_pack() -> None:
    modules = [f"callyard_{pack.name}" for pack in PACKS]
    sources = (ROOT / "src").rglob("*.py")
    named = [str(path) for path in sources for module in modules if re.search(rf"\b{module}\b", path.read_text())]

    assert named == []


def test_the_example_imports_public_names_only() -> None:
    assert private_imports(EXAMPLE) == []


def test_an_incomplete_package_is_found_with_its_faults(tmp_path: Path) -> None:
    pack = tmp_path / "page"
    (pack / "src" / "callyard_page").mkdir(parents=True)
    (pack / "pyproject.toml").write_text('[project]\nname = "other"\n')
    source = (
        "import callyard\nfrom callyard import Yard, Secret\nfrom callyard.packs.pack import Pack\n"
        "import callyard.yard\nfrom callyard.testing import connect\ncallyard._internal\ncallyard.tool\n"
    )
    (pack / "src" / "callyard_page" / "__init__.py").write_text(source)

    found = private_imports(pack)

    assert [fault.rpartition(": ")[2] for fault in found] == [
        "callyard.Secret",
        "callyard.packs.pack",
        "callyard.yard",
        "callyard._internal",
    ]
    assert len(faults_of(pack)) == len(found) + 4


def test_the_tests_of_the_example_pass_beside_its_source() -> None:
    options = ["-q", "-p", "no:cacheprovider", "-o", f"pythonpath={EXAMPLE / 'src'}", "-o", "asyncio_mode=auto"]
    command = [sys.executable, "-m", "pytest", *options, str(EXAMPLE / "tests")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603 - our own tests

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("file", ["Makefile", "scripts/test", "scripts/lock"])
def test_the_scripts_take_every_folder_of_packs(file: str) -> None:
    assert "packs/*/" in (ROOT / file).read_text()


def test_lint_types_and_coverage_are_for_packs_too() -> None:
    tools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]

    assert "packs" in tools["basedpyright"]["include"]
    assert tools["coverage"]["report"]["fail_under"] == 95
    assert not [path for path in tools["ruff"].get("exclude", []) if "packs" in path]


def test_the_example_is_python_that_parses() -> None:
    assert [ast.parse(path.read_text()) for path in EXAMPLE.rglob("*.py")]
