"""The engine 'vips': libvips in this process, for everything but raw files; edits apply in the order of the state."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec
import pyvips

from callyard import ToolError
from callyard_darkroom.engines import Finish, engine_failed, fit, in_thread
from callyard_darkroom.images import Source
from callyard_darkroom.state import Entry, Region, frame_of
from callyard_darkroom.vocabulary import Expression, Primitive, Values, Vocabulary, evaluate

__all__ = ["Vips", "dimensions", "not_a_picture"]

T = TypeVar("T")
Space = Literal["scrgb", "lab"]
_SIGNATURES: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"II*\0", b"MM\0*", b"RIFF")
"""How JPEG, PNG, TIFF and WebP begin. Other loaders of libvips are never asked: some read other files."""
_LOADERS: Final = ("jpegload", "pngload", "tiffload", "webpload")
_SEED: Final = 20_261_119
_WHITE: Final = 100.0
_MIDDLE: Final = 50.0
_CHROMA: Final = 128.0
_GRAIN: Final = 14.0
_WHOLE: Final = 10_000_000


class _Shot(NamedTuple):
    """A picture on its way, and how its pixels compare to those of the original."""

    image: pyvips.Image
    scale: float

    @property
    def edge(self) -> int:
        return max(self.image.width, self.image.height)


def not_a_picture() -> ToolError:
    """Return the failure of a file that is no picture."""
    message = "The file is no picture that can be read. JPEG, PNG, TIFF, WebP and raw files in TIFF's structure can."
    return ToolError("invalid_input", message, reason="not_a_picture", may_have_run=False)


def dimensions(path: Path) -> tuple[int, int]:
    """Return the width and height of a picture, by its header.

    Raises:
        ToolError: `invalid_input`, reason `not_a_picture`.
    """
    try:
        image = _open(path)
    except pyvips.Error:
        raise not_a_picture() from None
    return image.width, image.height


def _open(path: Path) -> pyvips.Image:
    with path.open("rb") as file:
        if not file.read(16).startswith(_SIGNATURES):
            raise not_a_picture()
    # a source, because a file name would be parsed for options and its picture kept in the cache of libvips
    image = pyvips.Image.new_from_source(pyvips.Source.new_from_file(str(path)), "fail_on=truncated")
    if not str(image.get("vips-loader")).startswith(_LOADERS):
        raise not_a_picture()
    return image


class Vips:
    """Renders with libvips."""

    name = "vips"

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    async def probe(self) -> None:
        """Do nothing: libvips comes with the pack."""

    def lacks(self, primitive: Primitive, *, has_region: bool) -> str:
        """Return what it lacks for an edit."""
        if self.name not in primitive.engines:
            return f"has no '{primitive.name}'"
        return f"has no region for '{primitive.name}'" if has_region and primitive.geometry else ""

    async def render(self, source: Source, entries: Sequence[Entry], size: int | None, finish: Finish[T]) -> T:
        """Render in a thread."""
        return await in_thread(partial(self._render, source, entries, size, finish))

    def _render(self, source: Source, entries: Sequence[Entry], size: int | None, finish: Finish[T]) -> T:
        try:
            shot = _load(source, entries, size)
            for entry in entries:
                shot = shot._replace(image=self._apply(shot, entry))
            return finish(shot.image.colourspace("srgb"))
        except pyvips.Error as error:
            raise engine_failed(self.name, str(error)) from None

    def _apply(self, shot: _Shot, entry: Entry) -> pyvips.Image:
        primitive = self._vocabulary.primitive(entry.primitive)
        if primitive.geometry:
            return _reframe(shot.image, entry)
        recipe = primitive.vips or {}
        arguments = {
            key: evaluate(msgspec.convert(value, Expression), entry.values)
            for key, value in recipe.items()
            if key != "operation"
        }
        space, operation = _OPERATIONS[str(recipe.get("operation"))]
        before = shot.image.colourspace(space)
        after = operation(shot._replace(image=before), arguments).copy(interpretation=space)
        if entry.region is not None:
            mask = _mask(before.width, before.height, entry.region)
            after = (before + (after - before) * mask).copy(interpretation=space)
        return after


def _load(source: Source, entries: Sequence[Entry], size: int | None) -> _Shot:
    header = _open(source.path)
    turned = source.frame
    width, height = (header.height, header.width) if turned.swaps else (header.width, header.height)
    fitted = (_WHOLE, _WHOLE) if size is None else fit(width, height, frame_of(entries), size)
    if header.format == "uchar":
        image = pyvips.Image.thumbnail_source(
            pyvips.Source.new_from_file(str(source.path)),
            fitted[0],
            height=fitted[1],
            size="down",
            output_profile="srgb",
            option_string="fail_on=truncated",
        )
        if image.hasalpha():
            image = image.flatten(background=[255])
        return _Shot(image.colourspace("scrgb"), image.width / width)
    image = _deep(header)
    share = min(1.0, fitted[0] / image.width, fitted[1] / image.height)
    return _Shot(image.resize(share) if share < 1 else image, share)


def _deep(image: pyvips.Image) -> pyvips.Image:
    """Return a picture of 16 bits or more in linear light; a thumbnail would have 8."""
    if image.hasalpha():
        image = image.flatten(background=[65535 if image.format == "ushort" else 1])
    image = image.autorot()
    if "icc-profile-data" in image.get_fields():
        image = image.icc_transform("srgb", embedded=True, depth=16)
    return image.colourspace("scrgb")


def _reframe(image: pyvips.Image, entry: Entry) -> pyvips.Image:
    values: Values = entry.values
    if entry.primitive == "rotate":
        return image.rot(f"d{values['degrees']}")
    if entry.primitive == "mirror":
        return image.flipver() if values["axis"] == "vertical" else image.fliphor()
    x, y, width, height = (float(values[key]) for key in ("x", "y", "width", "height"))
    left = min(round(x * image.width), image.width - 1)
    top = min(round(y * image.height), image.height - 1)
    right = max(left + 1, min(round((x + width) * image.width), image.width))
    bottom = max(top + 1, min(round((y + height) * image.height), image.height))
    return image.crop(left, top, right - left, bottom - top)


def _mask(width: int, height: int, region: Region) -> pyvips.Image:
    """Return how much each pixel belongs to a region: 1 inside, 0 outside, and between over the feather."""
    place = pyvips.Image.xyz(width, height)
    across = (((place[0] + 0.5) / width - region.x) / region.width * 2 - 1).abs()
    down = (((place[1] + 0.5) / height - region.y) / region.height * 2 - 1).abs()
    if region.shape == "ellipse":
        distance = (across * across + down * down) ** 0.5
    else:
        distance = (across > down).ifthenelse(across, down)
    return _clamped((1 - distance) / max(region.feather, 1e-3) + 1, 1.0)


def _clamped(image: pyvips.Image, most: float) -> pyvips.Image:
    low = (image < 0).ifthenelse(0, image)
    return (low > most).ifthenelse(most, low)


def _lightness(shot: _Shot, change: Callable[[pyvips.Image], pyvips.Image]) -> pyvips.Image:
    image = shot.image
    return _clamped(change(image[0]), _WHITE).bandjoin([image[1], image[2]])


def _blurred(image: pyvips.Image, pixels: float) -> pyvips.Image:
    return image.gaussblur(max(pixels, 0.3), precision="float")


def _exposure(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    return shot.image * 2 ** values["ev"]


def _black_point(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    amount = values["amount"]
    return _clamped((shot.image - amount) / (1 - amount), 1e6)


def _brightness(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    power = 2.0 ** -values["amount"]
    return _lightness(shot, lambda light: (_clamped(light, _WHITE) / _WHITE) ** power * _WHITE)


def _contrast(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    return _lightness(shot, lambda light: (light - _MIDDLE) * (1 + values["amount"]) + _MIDDLE)


def _saturation(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    factor = 1 + values["amount"]
    return shot.image * [1, factor, factor]


def _vibrance(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    image = shot.image
    chroma = (image[1] ** 2 + image[2] ** 2) ** 0.5
    factor = _clamped(1 - chroma / _CHROMA, 1.0) * values["amount"] + 1
    return image[0].bandjoin([image[1] * factor, image[2] * factor])


def _shift(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    return shot.image.linear([1], [0, values["a"], values["b"]])


def _soften(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    share = values["amount"] / 2
    return shot.image * (1 - share) + _blurred(shot.image, shot.edge * 0.01) * (1.25 * share)


def _glow(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    bright = shot.image * shot.image
    return shot.image + _blurred(bright, shot.edge * 0.02) * (2 * values["amount"])


def _grain(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    sigma = values["amount"] * _GRAIN
    noise = pyvips.Image.gaussnoise(shot.image.width, shot.image.height, sigma=sigma, mean=0, seed=_SEED)
    return _lightness(shot, lambda light: light + noise)


def _clarity(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    radius = shot.edge * 0.015
    return _lightness(shot, lambda light: light + (light - _blurred(light, radius)) * values["amount"])


def _sharpen(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    radius = 1.5 * shot.scale
    return _lightness(shot, lambda light: light + (light - _blurred(light, radius)) * values["amount"])


def _vignette(shot: _Shot, values: Mapping[str, float]) -> pyvips.Image:
    width, height = shot.image.width, shot.image.height
    place = pyvips.Image.xyz(width, height)
    across, down = place[0] / width * 2 - 1, place[1] / height * 2 - 1
    return shot.image * ((across * across + down * down) * (-0.5 * values["amount"]) + 1)


_Operation = Callable[[_Shot, Mapping[str, float]], pyvips.Image]
_OPERATIONS: Final[Mapping[str, tuple[Space, _Operation]]] = {
    "exposure": ("scrgb", _exposure),
    "black_point": ("scrgb", _black_point),
    "brightness": ("lab", _brightness),
    "contrast": ("lab", _contrast),
    "saturation": ("lab", _saturation),
    "vibrance": ("lab", _vibrance),
    "shift": ("lab", _shift),
    "soften": ("scrgb", _soften),
    "glow": ("scrgb", _glow),
    "grain": ("lab", _grain),
    "clarity": ("lab", _clarity),
    "sharpen": ("lab", _sharpen),
    "vignette": ("scrgb", _vignette),
}
