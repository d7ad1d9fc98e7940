"""The tools that take images in, show them and give them out."""

import asyncio
import os
from array import array
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar

import msgspec
import pyvips
from pydantic import Field

from callyard import Call, Image, PackContext, ToolError, tool
from callyard_darkroom.engines import Finish
from callyard_darkroom.images import RAW, raw_dimensions, read_source
from callyard_darkroom.images import Image as Photograph
from callyard_darkroom.state import State, add
from callyard_darkroom.versions import file_errors
from callyard_darkroom.vips import dimensions, not_a_picture
from callyard_darkroom.vocabulary import Primitive
from callyard_darkroom.workspace import Darkroom, branch_of, change, declare, summary

__all__ = ["Pictures"]

Answer = dict[str, Any]
Size = Annotated[int, Field(ge=64, le=8192, description="The longest edge in pixels.")]
Share = Annotated[float, Field(ge=0, le=1, description="Of the width or height.")]
_SMALLEST: Final = 64
_EXPORTS: Final = "darkroom-exports"
_MEASURED: Final = 1024
_QUALITY: Final = 85
_BINS: Final = 16
_LEVELS: Final = 256
_GAP: Final = 8
_NO_METADATA: Final = 0
_MILLION: Final = 1_000_000
_SUFFIXES: Final = {"jpeg": ".jpg", "png": ".png", "tiff": ".tif", "webp": ".webp"}
T = TypeVar("T")
EngineName = Literal["vips", "darktable"]
Format = Literal["jpeg", "png", "tiff", "webp"]


class _Encoded(NamedTuple):
    content: bytes
    width: int
    height: int


class Pictures:
    """Takes images in, renders them, and keeps notes of what the vocabulary lacks."""

    def __init__(self, darkroom: Darkroom, context: PackContext) -> None:
        self._darkroom = darkroom
        self._context = context

    @tool(
        name="darkroom_ingest",
        operation="command",
        reasons=declare(
            "open",
            *("disk_full", "engine_failed", "engine_lacks", "engine_missing", "image_exists", "image_gone"),
            *("not_a_picture", "not_writable", "too_many_pixels"),
        ),
    )
    async def ingest(self, path: str, engine: EngineName | None = None, label: str | None = None) -> Answer:
        """Take in a photograph, with the untouched picture as its first version; the file is never changed.

        The path is relative to the folder of photographs. The engine renders it from now on.
        """
        images = self._darkroom.images
        file = await asyncio.to_thread(images.check_new, path)
        is_raw = file.suffix.lower() in RAW
        name = engine or ("darktable" if is_raw else self._darkroom.engine)
        if is_raw and name == "vips":
            message = "The engine 'vips' cannot read raw files. Use 'darktable'."
            raise ToolError("not_supported", message, reason="engine_lacks", engine=name)
        await self._darkroom.engines[name].probe()
        width, height = await asyncio.to_thread(raw_dimensions if is_raw else dimensions, file)
        if width * height > self._darkroom.most_megapixels * _MILLION:
            limit, found = self._darkroom.most_megapixels, round(width * height / _MILLION)
            message = f"The picture has {found} megapixels; at most {limit} are taken in."
            raise ToolError("too_large", message, reason="too_many_pixels", megapixels=found, limit=limit)
        if is_raw:
            await self._check_raw(file)
        work = partial(images.ingest, path, engine=name, width=width, height=height, label=label)
        image = await asyncio.to_thread(work)
        state = summary(image)
        return {
            "image": image.name,
            "engine": name,
            "width": width,
            "height": height,
            "state_after": state,
            "snapshot_hash": state["head_hash"],
        }

    @tool(name="darkroom_list_images", operation="query")
    def list_images(self, after: str = "", limit: Annotated[int, Field(ge=1, le=500)] = 100) -> Answer:
        """List the images that were taken in, by name, after the last one of the answer before."""
        names = sorted(name for name in self._darkroom.images.names() if name > after)
        return {"images": names[:limit], "more": len(names) > limit}

    @tool(name="darkroom_list_vocabulary", operation="query")
    def list_vocabulary(self, tag: str | None = None, engine: EngineName | None = None) -> Answer:
        """List the primitives and their parameters, and the looks."""
        vocabulary = self._darkroom.vocabulary
        chosen = [
            primitive
            for primitive in vocabulary.primitives.values()
            if (tag is None or tag in primitive.tags) and (engine is None or engine in primitive.engines)
        ]
        looks = {name: {"layer": look.layer, "summary": look.summary} for name, look in vocabulary.looks.items()}
        return {"primitives": {primitive.name: _described(primitive) for primitive in chosen}, "looks": looks}

    @tool(name="darkroom_render_preview", operation="query", reasons=declare("render"))
    async def render_preview(self, image: str, ref: str = "HEAD", size: Size = 1024) -> Answer:
        """Show an image as it is at a version."""
        photograph = await self._open(image)
        encoded = await self._render(photograph, ref, size, partial(_encode, form="jpeg", quality=_QUALITY))
        return {
            "picture": Image(encoded.content, "image/jpeg"),
            "width": encoded.width,
            "height": encoded.height,
            "ref": ref,
        }

    @tool(name="darkroom_compare", operation="query", reasons=declare("render"))
    async def compare(self, image: str, a: str, b: str = "HEAD", size: Size = 1024) -> Answer:
        """Show two versions side by side, a on the left, and how much they differ."""
        photograph = await self._open(image)
        left, right = [
            await self._render(photograph, ref, size, lambda picture: picture.copy_memory()) for ref in (a, b)
        ]
        return await asyncio.to_thread(_compared, left, right)

    @tool(name="darkroom_measure", operation="query", reasons=declare("render"))
    async def measure(
        self,
        image: str,
        ref: str = "HEAD",
        x: Share | None = None,
        y: Share | None = None,
        radius: Annotated[
            float, Field(ge=0, le=0.5, description="Of the sample, as a share of the longer edge.")
        ] = 0.01,
    ) -> Answer:
        """Measure an image: mean, histogram and clipping of each channel, and the colour around a point."""
        photograph = await self._open(image)
        point = None if x is None or y is None else (x, y, radius)
        return await self._render(photograph, ref, _MEASURED, partial(_measured, point=point))

    @tool(
        name="darkroom_export_final",
        operation="command",
        idempotent=True,
        job="always",
        local=True,
        timeout=1800,
        reasons=declare("render", "disk_full", "not_writable"),
    )
    async def export_final(
        self,
        image: str,
        ref: str = "HEAD",
        format: Format = "jpeg",  # noqa: A002 - the word of the field
        size: Annotated[int | None, Field(ge=64, le=16384, description="The longest edge in pixels.")] = None,
        quality: Annotated[int, Field(ge=1, le=100)] = 92,
    ) -> Answer:
        """Write an image as a file into the folder 'darkroom-exports' beside it; no file is ever overwritten."""
        photograph = await self._open(image)
        digest = await asyncio.to_thread(photograph.resolve, ref)
        encoded = await self._render(photograph, digest, size, partial(_encode, form=format, quality=quality))
        folder = photograph.source.path.parent / _EXPORTS
        stem = f"{photograph.source.path.stem}-{digest[:12]}"
        path = await asyncio.to_thread(_write_new, folder, stem, _SUFFIXES[format], encoded.content)
        name, _ = self._darkroom.images.locate(str(path))
        return {
            "file": name,
            "hash": digest,
            "width": encoded.width,
            "height": encoded.height,
            "bytes": len(encoded.content),
        }

    @tool(
        name="darkroom_propagate_state",
        operation="command",
        idempotent=True,
        job="always",
        local=True,
        timeout=600,
        reasons=declare("change", "engine_lacks", "engine_missing", "unknown_primitive"),
    )
    def propagate_state(
        self,
        source: str,
        targets: Annotated[list[str], Field(min_length=1, max_length=200)],
        call: Call,
        exclude: list[str] | None = None,
    ) -> Answer:
        """Give up to 200 images the edits of another one: all of them or, if one cannot take them, none.

        Primitives to exclude, such as 'crop', stay as each target has them.
        """
        origin = self._darkroom.images.open(source)
        digest = origin.resolve()
        state = origin.state_of(digest)
        images = {found.name: found for found in map(self._darkroom.images.open, targets)}
        with ExitStack() as stack:
            for name in sorted(images):  # in one order, so that two calls cannot wait for each other
                stack.enter_context(images[name].versions.lock())
            planned = {name: self._planned(image, state, exclude or ()) for name, image in images.items()}
            done: dict[str, str] = {}
            priors = {name: branch_of(image.versions) for name, image in images.items()}
            try:
                for number, (name, image) in enumerate(images.items()):
                    answer = change(image, "propagate_state", lambda _, new=planned[name]: new, source_hash=digest)
                    done[name] = answer["snapshot_hash"]
                    call.progress(number + 1, len(images), name)
            except BaseException:
                for name, now in done.items():
                    _undo(images[name], *priors[name], now)
                raise
        return {"source_hash": digest, "images": done}

    @tool(name="darkroom_log_vocabulary_gap", operation="command", reasons=declare("open", "disk_full"))
    def log_vocabulary_gap(
        self,
        description: str,
        intent: str,
        missing_capability: str,
        *,
        image: str | None = None,
        operations_involved: list[str] | None = None,
        vocabulary_used: list[str] | None = None,
        satisfaction: Annotated[int | None, Field(ge=-1, le=1, description="-1 to 1, with what you reached.")] = None,
    ) -> Answer:
        """Note what you could not say with the vocabulary, for the people who extend it."""
        name = None if image is None else self._darkroom.images.open(image).name
        gap = {
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "image": name,
            "description": description,
            "intent": intent,
            "missing_capability": missing_capability,
            "operations_involved": operations_involved or [],
            "vocabulary_used": vocabulary_used or [],
            "satisfaction": satisfaction,
        }
        with file_errors(), (self._context.folder() / "gaps.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(gap) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        return {"logged": True}

    @tool(name="darkroom_forget_image", operation="destroy", reasons=declare("open", "disk_full", "not_writable"))
    def forget_image(self, image: str) -> Answer:
        """Delete all versions of an image for good; the photograph and its exports stay."""
        return {"forgotten": self._darkroom.images.forget(image)}

    async def _check_raw(self, file: Path) -> None:
        """Check that darktable can read a raw file, because nothing else can tell."""
        source = await asyncio.to_thread(read_source, file)
        engine = self._darkroom.engines["darktable"]
        try:
            await self._darkroom.slots.run(lambda: engine.render(source, [], _SMALLEST, lambda picture: picture.width))
        except ToolError as error:
            if error.code != "upstream_error":
                raise
            raise not_a_picture() from error

    async def _open(self, name: str) -> Photograph:
        return await asyncio.to_thread(self._darkroom.images.open, name)

    async def _render(self, image: Photograph, ref: str, size: int | None, finish: Finish[T]) -> T:
        """Render a version by the engine of the image, as soon as there is a place."""
        engine = self._darkroom.engine_of(image)

        def read() -> State:
            image.check_source()
            return image.state(ref)

        state = await asyncio.to_thread(read)
        return await self._darkroom.slots.run(lambda: engine.render(image.source, state.active, size, finish))

    def _planned(self, image: Photograph, state: State, exclude: Sequence[str]) -> State:
        """Return the state of a target: what it keeps, and what it takes over."""
        branch_of(image.versions)
        kept = [entry for entry in image.state().entries if entry.primitive in exclude]
        planned = State(tuple(entry for entry in state.entries if entry.primitive not in exclude))
        for entry in kept:
            primitive = self._darkroom.vocabulary.primitive(entry.primitive)
            planned = add(planned, primitive, entry.values, layer=entry.layer, region=entry.region)
        for entry in planned.entries:
            self._darkroom.check(image, entry.primitive, entry.region)
        return planned


def _undo(image: Photograph, branch: str, prior: str, now: str) -> None:
    """Lead a branch back to where it was, because the change of another image failed."""
    image.versions.move(branch, prior)
    with suppress(OSError):  # the next change adds the line
        image.versions.record("reset", prior, parent=now, ref=branch, prior_hash=now)


def _described(primitive: Primitive) -> Answer:
    parameters: dict[str, Any] = {}
    for key, parameter in primitive.parameters.items():
        bounds: Any = list(parameter.choices) or [parameter.min, parameter.max]
        parameters[key] = {"range" if not parameter.choices else "choices": bounds, "default": parameter.default}
    return {
        "summary": primitive.summary,
        "tags": primitive.tags,
        "engines": primitive.engines,
        "parameters": parameters,
    }


def _encode(picture: pyvips.Image, *, form: Format, quality: int) -> _Encoded:
    """Return a picture as a file, without metadata, such as the place where it was taken."""
    if form == "jpeg":
        content = picture.jpegsave_buffer(Q=quality, keep=_NO_METADATA)
    elif form == "png":
        content = picture.pngsave_buffer(keep=_NO_METADATA)
    elif form == "webp":
        content = picture.webpsave_buffer(Q=quality, keep=_NO_METADATA)
    else:
        content = picture.tiffsave_buffer(compression="deflate", keep=_NO_METADATA)
    return _Encoded(bytes(content), picture.width, picture.height)


def _write_new(folder: Path, stem: str, suffix: str, content: bytes) -> Path:
    """Write a file under a name that is free, or return the one that has this content."""
    with file_errors():
        folder.mkdir(exist_ok=True)
        scratch = folder / f".{os.urandom(8).hex()}"
        try:
            with scratch.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            for number in count(1):
                path = folder / f"{stem}{suffix if number == 1 else f'-{number}{suffix}'}"
                try:
                    path.hardlink_to(scratch)  # unlike a rename, a link never replaces a file
                except FileExistsError:
                    if path.is_file() and path.read_bytes() == content:
                        return path
                else:
                    return path
        finally:
            scratch.unlink(missing_ok=True)
    raise AssertionError


def _compared(left: pyvips.Image, right: pyvips.Image) -> Answer:
    joined = left.join(right, "horizontal", expand=True, shim=_GAP, background=[255])
    answer: Answer = {
        "picture": Image(_encode(joined, form="jpeg", quality=_QUALITY).content, "image/jpeg"),
        "same_size": (left.width, left.height) == (right.width, right.height),
    }
    if answer["same_size"]:
        change_by_band = [right[band].avg() - left[band].avg() for band in range(3)]
        answer["mean_change"] = [round(value, 2) for value in change_by_band]
        answer["mean_difference"] = round((left.cast("short") - right.cast("short")).abs().avg(), 2)
    return answer


def _measured(picture: pyvips.Image, *, point: tuple[float, float, float] | None) -> Answer:
    memory = picture.copy_memory()
    grey = memory.colourspace("b-w")
    bands = {"red": memory[0], "green": memory[1], "blue": memory[2], "lightness": grey[0]}
    answer: Answer = {name: _channel(band) for name, band in bands.items()}
    if point is not None:
        x, y, radius = point
        reach = round(radius * max(memory.width, memory.height))
        across, down = (min(int(share * edge), edge - 1) for share, edge in ((x, memory.width), (y, memory.height)))
        left, top = max(0, across - reach), max(0, down - reach)
        right, bottom = min(memory.width, across + reach + 1), min(memory.height, down + reach + 1)
        sample = memory.crop(left, top, right - left, bottom - top)
        answer["sample"] = [round(sample[band].avg(), 1) for band in range(3)]
    return answer


def _channel(band: pyvips.Image) -> Answer:
    counts = array("I", bytes(band.hist_find().write_to_memory()))
    total = sum(counts) or 1
    width = _LEVELS // _BINS
    bins = [sum(counts[start : start + width]) / total for start in range(0, _LEVELS, width)]
    return {
        "mean": round(band.avg(), 2),
        "histogram": [round(share, 4) for share in bins],
        "clipped_low": round(counts[0] / total, 5),
        "clipped_high": round(counts[-1] / total, 5),
    }
