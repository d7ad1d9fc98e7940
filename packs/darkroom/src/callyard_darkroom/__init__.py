"""A darkroom for agents: photographs edited in steps, each of which can be compared and undone.

Its files:

- `darktable`: the engine 'darktable', a program
- `editing`: the tools that edit an image and move between its versions
- `engines`: what every engine offers, and how many render at a time
- `images`: images below the roots, and the workspace beside each
- `pictures`: the tools that take images in, show them and give them out
- `primitives.toml`: the vocabulary that comes with the pack
- `state`: the state of an image as data
- `versions`: the versions of one image as plain files
- `vips`: the engine 'vips', libvips in this process
- `vocabulary`: primitives and looks
- `workspace`: what the tools share
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Literal

from msgspec import Struct

from callyard import Functions, Needs, Pack, PackContext, Publish, Toolset
from callyard_darkroom.darktable import Darktable
from callyard_darkroom.editing import Editing
from callyard_darkroom.engines import Slots
from callyard_darkroom.images import Images
from callyard_darkroom.pictures import Pictures
from callyard_darkroom.vips import Vips
from callyard_darkroom.vocabulary import load_vocabulary
from callyard_darkroom.workspace import REASONS, Darkroom

__all__ = ["PACK", "DarkroomConfig", "DarkroomProvider"]


class DarkroomConfig(Struct, frozen=True, kw_only=True):
    """The table `[pack.darkroom]`."""

    roots: list[str]
    """The folders of photographs; nothing outside is read or written."""
    engine: Literal["vips", "darktable"] = "vips"
    """What renders images that are taken in without naming an engine; raw files always take darktable."""
    darktable: str = "darktable-cli"
    """The program, by name or path."""
    vocabulary: str = ""
    """A folder with further primitives and looks, as `*.toml`; paths are relative to the settings file."""
    max_megapixels: int = 150
    """Larger pictures are refused."""


class DarkroomProvider:
    """Publishes the tools of the darkroom of one yard."""

    name = "darkroom"

    def __init__(self, context: PackContext) -> None:
        self._context = context

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Read the vocabulary, remove what killed processes left, and publish the tools."""
        config: DarkroomConfig = self._context.config
        words = self._context.path(config.vocabulary) if config.vocabulary else None
        vocabulary = await asyncio.to_thread(load_vocabulary, words)
        darktable = Darktable(config.darktable, vocabulary, self._context)
        await asyncio.to_thread(darktable.sweep)
        darkroom = Darkroom(
            images=Images([self._context.path(root) for root in config.roots]),
            vocabulary=vocabulary,
            engines={"vips": Vips(vocabulary), "darktable": darktable},
            slots=Slots(),
            engine=config.engine,
            most_megapixels=config.max_megapixels,
        )
        async with Functions(self.name, [Editing(darkroom), Pictures(darkroom, self._context)]).open(publish):
            yield


PACK = Pack(
    name="darkroom",
    make=DarkroomProvider,
    requires=">=0.1,<1",
    config=DarkroomConfig,
    shown=("engine", "max_megapixels"),
    reasons=dict(REASONS),
    needs=Needs(optional=("darktable-cli",)),
    toolsets=(
        Toolset(
            name="darkroom_looking",
            names=(
                "darkroom_list_images",
                "darkroom_get_state",
                "darkroom_list_vocabulary",
                "darkroom_log",
                "darkroom_diff",
                "darkroom_render_preview",
                "darkroom_compare",
                "darkroom_measure",
            ),
        ),
    ),
)
