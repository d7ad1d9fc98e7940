"""The stores that the tests of jobs use."""

from pathlib import Path

import pytest

from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import Store


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "store.sqlite3")
