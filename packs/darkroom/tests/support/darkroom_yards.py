"""Photographs for tests, and yards with a darkroom on them."""

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import pyvips
from callyard_darkroom import PACK

from callyard import Yard
from callyard.testing import connect

__all__ = ["Answer", "CallTool", "OpenDarkroom", "draw", "names_in", "open_yard"]


class Answer(NamedTuple):
    """What a tool answered: its data, or the code and reason of its failure; and its pictures."""

    data: Any
    code: str = ""
    reason: str = ""
    details: Mapping[str, Any] = MappingProxyType({})
    pictures: tuple[bytes, ...] = ()


class CallTool(Protocol):
    """Calls a tool by its name without the pack's, and waits for its job."""

    async def __call__(self, tool: str, /, **arguments: Any) -> Answer: ...


OpenDarkroom = Callable[..., AbstractAsyncContextManager[CallTool]]


def draw(path: Path, width: int = 300, height: int = 200) -> Path:
    """Draw a picture whose four corners differ, with a brighter square in the middle."""
    place = pyvips.Image.xyz(width, height)
    across, down = place[0] / width, place[1] / height
    square = ((across - 0.5).abs() < 0.15) & ((down - 0.5).abs() < 0.2)
    red, green, blue = across * 130 + 40, down * 110 + 50, (across + down) * 40 + 60
    lit: list[Any] = [square.ifthenelse(band + 60, band) for band in (red, green, blue)]
    lit[0].bandjoin(lit[1:]).cast("uchar").copy(interpretation="srgb").write_to_file(str(path))
    return path


def names_in(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@asynccontextmanager
async def open_yard(photographs: Path, state: Path, **settings: Any) -> AsyncGenerator[CallTool]:
    """Open a yard with a darkroom, and give what calls its tools."""
    table = {"roots": [str(photographs)], **settings}
    yard = Yard(packs=[PACK], pack_settings={"darkroom": table}, state_dir=str(state))
    async with connect(yard) as client:

        async def call(tool: str, /, **arguments: Any) -> Answer:
            envelope = await client.call(f"darkroom_{tool}", **arguments)
            if envelope.error is not None:
                error = envelope.error
                return Answer(None, error.code, str(error.details.get("reason", "")), error.details)
            data: Any = envelope.data
            if isinstance(data, dict) and "job_id" in data:
                job: Any = (await client.call("wait_job", job_id=data["job_id"])).data
                ended: dict[str, Any] = job["result"]["error"] or {}
                details: dict[str, Any] = ended.get("details", {})
                return Answer(job["result"]["data"], ended.get("code", ""), details.get("reason", ""), details)
            pictures = tuple(getattr(block, "data", b"") for block in envelope.content)
            return Answer(data, pictures=pictures)

        yield call
