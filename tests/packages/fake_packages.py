"""Packages that are installed for one test: a module on `sys.path` beside the metadata of a distribution."""

import importlib
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from textwrap import dedent

import pytest

__all__ = ["PAGE", "Install", "install", "installing"]

Install = Callable[..., Path]
"""Installs a package: takes the name of its pack and its source, and returns the file of the module."""
PAGE = """
    from contextlib import asynccontextmanager
    from callyard import Functions, Pack, tool

    @tool(name="page_read", operation="query")
    def read() -> str:
        '''Read the page.'''
        return "text"

    PACK = Pack(name="page", make=lambda context: Functions("page", [read]))
"""
"""The source of a pack `page` with the tool `page_read`."""


@pytest.fixture
def install(tmp_path: Path) -> Generator[Install]:
    """Return a function that installs packages for the test."""
    with installing(tmp_path) as found:
        yield found


@contextmanager
def installing(place: Path) -> Generator[Install]:
    """Return a function that installs packages while the context is open."""
    folder = place / "site"
    folder.mkdir()
    sys.path.insert(0, str(folder))
    modules: list[str] = []

    def install_package(
        pack: str, source: str = PAGE, *, package: str = "", version: str = "1.2", entry_point: str = ""
    ) -> Path:
        package = package or f"callyard-{pack}"
        module = package.replace("-", "_")
        modules.append(module)
        file = folder / f"{module}.py"
        file.write_text(dedent(source))
        metadata = folder / f"{module}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
        (metadata / "entry_points.txt").write_text(f"[callyard.packs]\n{pack} = {entry_point or f'{module}:PACK'}\n")
        importlib.invalidate_caches()
        return file

    try:
        yield install_package
    finally:
        sys.path.remove(str(folder))
        for module in modules:
            sys.modules.pop(module, None)
