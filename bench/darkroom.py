"""Measures previews and edits of the darkroom pack on a picture of 24 megapixels: medians of the wall time.

It needs the packs of this checkout, and darktable for the second row.
"""

import asyncio
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import pyvips
from callyard_darkroom import PACK

from callyard import Yard
from callyard.testing import Client, connect

ROUNDS = 9


async def measured(client: Client, tool: str, **arguments: object) -> float:
    """Return the median of some calls, in milliseconds."""
    times: list[float] = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        envelope = await client.call(tool, **arguments)
        times.append((time.perf_counter() - start) * 1000)
        if not envelope.success:
            raise SystemExit(f"{tool}: {envelope.error}")
    return statistics.median(times)


async def main(folder: Path) -> None:
    """Print one line for each engine, and one for edits."""
    place = pyvips.Image.xyz(6000, 4000)
    bands = [place[0] / 25, place[1] / 17, (place[0] + place[1]) / 41]
    bands[0].bandjoin([*bands[1:]]).cast("uchar").copy(interpretation="srgb").write_to_file(str(folder / "a.jpg"))
    shutil.copy(folder / "a.jpg", folder / "b.jpg")
    settings = {"darkroom": {"roots": [str(folder)]}}
    async with connect(Yard(packs=[PACK], pack_settings=settings, state_dir=str(folder / "state"))) as client:
        for name, engine in (("a.jpg", "vips"), ("b.jpg", "darktable")):
            if engine == "vips" or shutil.which("darktable-cli"):
                await client.call("darkroom_ingest", path=name, engine=engine)
                await client.call("darkroom_apply_primitive", image=name, primitive="exposure")
                preview = await measured(client, "darkroom_render_preview", image=name)
                print(f"preview at 1,024, {engine}: {preview:.0f} ms")
        edit = await measured(client, "darkroom_apply_primitive", image="a.jpg", primitive="warmth")
        print(f"edit: {edit:.1f} ms")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
