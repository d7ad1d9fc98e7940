"""Packages of packs as tests see them: what one lacks, and what it imports of Callyard that is not public."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import callyard

__all__ = ["faults_of", "private_imports"]

_PUBLIC = frozenset({"callyard", "callyard.testing", "callyard.testing.models", "callyard.testing.stores"})
"""The modules that packs may import."""


def faults_of(pack: Path) -> list[str]:
    """Return what is wrong with the package of a first-party pack, in words."""
    project: dict[str, Any] = tomllib.loads((pack / "pyproject.toml").read_text())["project"]
    points = project.get("entry-points", {}).get("callyard.packs", {})
    faults = [] if project["name"] == f"callyard-{pack.name}" else [f"its name is {project['name']}"]
    if list(points) != [pack.name]:
        faults.append(f"its entry points are {list(points)}")
    faults += [] if any((pack / "tests").glob("test_*.py")) else ["it has no tests"]
    faults += [] if (pack / "docs.md").is_file() else ["it has no page 'docs.md'"]
    return [*faults, *private_imports(pack)]


def private_imports(pack: Path) -> list[str]:
    """Return what the source and the tests of a pack use of Callyard that is not public."""
    return [
        f"{path.relative_to(pack)}: {name}"
        for path in sorted(pack.rglob("*.py"))
        for name in _private_names(ast.parse(path.read_text(encoding="utf-8")))
    ]


def _private_names(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names if _is_ours(alias.name) and alias.name not in _PUBLIC)
            case ast.ImportFrom(module=str(module), names=names) if _is_ours(module):
                if module not in _PUBLIC:
                    yield module
                elif module == "callyard":
                    yield from (f"callyard.{alias.name}" for alias in names if not _is_public(alias.name))
            case ast.Attribute(value=ast.Name(id="callyard"), attr=attribute) if not _is_public(attribute):
                yield f"callyard.{attribute}"
            case _:
                continue


def _is_public(name: str) -> bool:
    return name in callyard.__all__ or f"callyard.{name}" in _PUBLIC


def _is_ours(module: str) -> bool:
    return module == "callyard" or module.startswith("callyard.")
