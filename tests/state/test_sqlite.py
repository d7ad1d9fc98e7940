from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from toolyard import Store
from toolyard.state.sqlite import SqliteStore
from toolyard.testing import FakeClock
from toolyard.testing.stores import StoreTests


class TestSqliteStore(StoreTests):
    clock = FakeClock()

    @asynccontextmanager
    async def connect(self) -> AsyncGenerator[Store]:
        with TemporaryDirectory() as folder:
            store = SqliteStore(Path(folder) / "store.db", clock=self.clock, lease_clock=self.clock)
            try:
                yield store
            finally:
                await store.close()

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
