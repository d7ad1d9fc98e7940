"""From settings to a transport that serves."""

import asyncio
import gc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from callyard import Serving, Yard
from callyard.launch.serve import make_transport, serve_forever
from callyard.transports import Address, Transport


class Pigeon:
    """A transport that a package brings along."""

    name = "pigeon"
    made: tuple[Serving, Any] | None = None

    def __init__(self, serving: Serving, authenticator: Any) -> None:
        type(self).made = (serving, authenticator)
        self.seen: list[str] = []

    def info(self) -> Address:
        return Address(self.name, "roof")

    async def serve(self, yard: Yard) -> None:
        self.seen.append(f"served {yard.name} with {len(yard.list())} tools")

    async def close(self) -> None:
        self.seen.append("closed")


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one package bring a transport along."""
    point = EntryPoint("pigeon", f"{__name__}:Pigeon", "callyard.transports")

    def load(_: EntryPoint) -> type[Pigeon]:
        return Pigeon

    def points(group: str) -> list[EntryPoint]:
        return [point] if group == "callyard.transports" else []

    monkeypatch.setattr(EntryPoint, "load", load)
    monkeypatch.setattr(metadata, "entry_points", points)


@pytest.mark.parametrize("name", ["stdio", "http", "sse"])
async def test_our_own_transports_are_known_by_name(name: str) -> None:
    transport = make_transport(Serving(transport=name, port=0))

    assert transport.name == transport.info().name == name
    await transport.close()


def test_an_unknown_transport_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"^There is no transport 'carrier'. Known: http, pigeon, sse, stdio.$"):
        make_transport(Serving(transport="carrier"))


def test_a_transport_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: EntryPoint) -> None:
        raise ModuleNotFoundError("No module named 'nosuchmod'")

    monkeypatch.setattr(EntryPoint, "load", load)

    with pytest.raises(
        ValueError,
        match=r"^The transport 'pigeon' cannot be loaded: ModuleNotFoundError: No module named 'nosuchmod'\.$",
    ):
        make_transport(Serving(transport="pigeon"))


async def test_a_package_may_bring_a_transport_along() -> None:
    serving = Serving(transport="pigeon")
    ready: list[Transport] = []

    await serve_forever(Yard("loft"), serving, ready=ready.append)

    assert Pigeon.made == (serving, None)
    assert ready[0].info().address == "roof"
    assert isinstance(ready[0], Pigeon)
    assert ready[0].seen == ["served loft with 0 tools", "closed"]


async def test_the_ready_callback_is_optional() -> None:
    await serve_forever(Yard("loft"), Serving(transport="pigeon"), "guard")  # pyright: ignore[reportArgumentType] - handed on as it is

    assert Pigeon.made is not None
    assert Pigeon.made[1] == "guard"


@pytest.mark.parametrize(("before", "while_serving"), [(700, 5000), (50_000, 50_000), (0, 0)])
async def test_a_server_collects_garbage_less_often_and_gives_the_setting_back(before: int, while_serving: int) -> None:
    own = gc.get_threshold()
    seen: list[int] = []
    try:
        gc.set_threshold(before, *own[1:])
        await serve_forever(
            Yard("loft"), Serving(transport="pigeon"), ready=lambda _: seen.append(gc.get_threshold()[0])
        )
        after = gc.get_threshold()[0]
    finally:
        gc.set_threshold(*own)

    assert (seen, after) == ([while_serving], before)


async def test_a_yard_that_cannot_open_leaves_no_socket_behind(tmp_path: Path) -> None:
    @asynccontextmanager
    async def broken(yard: Yard) -> AsyncGenerator[None]:
        raise ValueError("The database is away.")
        yield

    path = tmp_path / "yard.sock"
    ready: list[Transport] = []

    with pytest.raises(ValueError, match="The database is away"):
        await serve_forever(Yard(lifespan=broken), Serving(transport="http", socket=str(path)), ready=ready.append)

    assert ready == []
    assert not path.exists()


async def test_ready_is_called_when_the_yard_is_open_and_clients_can_connect() -> None:
    opened: list[str] = []

    @asynccontextmanager
    async def lifespan(yard: Yard) -> AsyncGenerator[None]:
        opened.append("open")
        yield
        opened.append("closed")

    started = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(
        serve_forever(Yard(lifespan=lifespan), Serving(transport="http", port=0), ready=started.set_result)
    )
    address = (await started).info().address
    _, writer = await asyncio.open_connection("127.0.0.1", int(address.split(":")[2].split("/")[0]))
    seen = list(opened)
    writer.close()
    task.cancel()
    await asyncio.wait({task})

    assert (seen, opened) == (["open"], ["open", "closed"])
