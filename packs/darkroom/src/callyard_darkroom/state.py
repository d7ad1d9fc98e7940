"""The state of an image as data: an ordered list of edits, what changes it, and its frame.

It must not know files or engines.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Final, Literal, NamedTuple

import msgspec

from callyard import ToolError
from callyard_darkroom.vocabulary import Layer, Primitive, Values, Vocabulary

__all__ = [
    "EMPTY",
    "Entry",
    "Frame",
    "Region",
    "State",
    "add",
    "bind",
    "decode",
    "diff",
    "encode",
    "frame_of",
    "remove",
]

_MOST: Final = 256
_ID_DIGITS: Final = 6
_DECIMALS: Final = 6
_WHOLE: Final = 1 + 1e-6


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the picture, in shares of its width and height; an edit fades out over the feather."""

    shape: Literal["rectangle", "ellipse"]
    x: float
    y: float
    width: float
    height: float
    feather: float = 0.1

    @property
    def is_inside(self) -> bool:
        """Return whether it lies inside the picture."""
        sides = ((self.x, self.width), (self.y, self.height))
        return 0 <= self.feather <= 1 and all(start >= 0 < size and start + size <= _WHOLE for start, size in sides)

    def rounded(self) -> "Region":
        """Return the region in decimals that are written alike everywhere."""
        sides = [round(side, _DECIMALS) + 0.0 for side in (self.x, self.y, self.width, self.height)]
        return Region(self.shape, *sides, feather=round(self.feather, _DECIMALS) + 0.0)


class Entry(msgspec.Struct, frozen=True):
    """One edit."""

    id: str
    primitive: str
    values: Values
    layer: Layer
    enabled: bool = True
    region: Region | None = None


class State(msgspec.Struct, frozen=True):
    """The edits of an image, in their order: the layers L1, L2 and L3, and inside each the oldest first."""

    entries: tuple[Entry, ...] = ()

    @property
    def active(self) -> list[Entry]:
        """Return the edits that are enabled."""
        return [entry for entry in self.entries if entry.enabled]

    def summary(self, head: str | None) -> dict[str, Any]:
        """Return how many edits there are, in which layers."""
        layers: tuple[Layer, ...] = ("L1", "L2", "L3")
        return {
            "head_hash": head,
            "entry_count": len(self.entries),
            "enabled_count": len(self.active),
            "layers_present": {layer: any(entry.layer == layer for entry in self.entries) for layer in layers},
        }


EMPTY: Final = State()
_encoder: Final = msgspec.json.Encoder(order="sorted")


def encode(state: State) -> bytes:
    """Return a state as canonical JSON: equal states are equal bytes."""
    return _encoder.encode(state)


def decode(content: bytes) -> State:
    """Return the state of canonical JSON.

    Raises:
        msgspec.DecodeError: It is none.
    """
    return msgspec.json.decode(content, type=State)


def add(
    state: State, primitive: Primitive, values: Values, *, layer: Layer = "L3", region: Region | None = None
) -> State:
    """Return the state with one edit more, the last of its layer.

    Raises:
        ToolError: `too_large` if there are too many.
    """
    if len(state.entries) >= _MOST:
        raise ToolError("too_large", f"An image has at most {_MOST} edits.", limit=_MOST, may_have_run=False)
    known = {entry.id for entry in state.entries}
    identity = _encoder.encode([primitive.name, values, layer, region])
    stem = f"{primitive.name}-{sha256(identity).hexdigest()[:_ID_DIGITS]}"
    names = (stem, *(f"{stem}-{number}" for number in range(2, _MOST + 2)))
    entry = Entry(
        id=next(name for name in names if name not in known),
        primitive=primitive.name,
        values=values,
        layer=layer,
        region=region,
    )
    before = [other for other in state.entries if other.layer <= layer]
    return State((*before, entry, *state.entries[len(before) :]))


def remove(state: State, *, entry: str | None, primitive: str | None, disable: bool) -> State:
    """Return the state without one edit, or without all of a primitive; or with them disabled.

    Raises:
        ToolError: `not_found`, reason `unknown_entry`, if there is none.
    """
    chosen = {item.id for item in state.entries if entry == item.id or primitive == item.primitive}
    if not chosen:
        known = [item.id for item in state.entries]
        message = "The state has no such entry."
        raise ToolError("not_found", message, reason="unknown_entry", known=known, may_have_run=False)
    if disable:
        return State(
            tuple(
                msgspec.structs.replace(item, enabled=item.enabled and item.id not in chosen) for item in state.entries
            )
        )
    return State(tuple(item for item in state.entries if item.id not in chosen))


def bind(state: State, vocabulary: Vocabulary, layer: Layer, name: str) -> State:
    """Return the state with the edits of a look in place of those of its layer."""
    bound = State(tuple(entry for entry in state.entries if entry.layer != layer))
    for step in vocabulary.look(name, layer).steps:
        primitive = vocabulary.primitive(step.primitive)
        bound = add(bound, primitive, primitive.complete(step.values), layer=layer)
    return bound


def diff(old: State, new: State) -> dict[str, Any]:
    """Return which entries were added, removed and changed."""
    before, after = ({entry.id: entry for entry in state.entries} for state in (old, new))
    changed = [(before[key], entry) for key, entry in after.items() if key in before and before[key] != entry]
    removed = [entry for key, entry in before.items() if key not in after]
    added: list[Entry] = []
    for entry in (entry for key, entry in after.items() if key not in before):
        place = (entry.primitive, entry.layer, entry.region)
        pair = next((item for item in removed if (item.primitive, item.layer, item.region) == place), None)
        if pair is None:
            added.append(entry)
        else:
            removed.remove(pair)
            changed.append((pair, entry))
    pairs = [{"from": was, "to": now} for was, now in changed]
    shared = [key for key in after if key in before]
    reordered = shared != [key for key in before if key in after]
    return {"added": added, "removed": removed, "changed": pairs, "reordered": reordered}


class Frame(NamedTuple):
    """What geometry does to a picture: mirrors it, then turns it clockwise, then keeps a part."""

    mirrored: bool = False
    quarters: int = 0
    x: float = 0.0
    y: float = 0.0
    width: float = 1.0
    height: float = 1.0

    @property
    def swaps(self) -> bool:
        """Return whether width and height change places."""
        return self.quarters % 2 == 1

    def turned(self, quarters: int) -> "Frame":
        """Return the frame after further quarter turns clockwise."""
        frame = self
        for _ in range(quarters % 4):
            mirrored, turns, x, y, width, height = frame
            frame = Frame(mirrored, (turns + 1) % 4, 1 - y - height, x, height, width)
        return frame

    def flipped(self, *, vertical: bool) -> "Frame":
        """Return the frame after an exchange of left and right, or of above and below."""
        x, y = (self.x, 1 - self.y - self.height) if vertical else (1 - self.x - self.width, self.y)
        turns = -self.quarters + (2 if vertical else 0)
        return Frame(not self.mirrored, turns % 4, x, y, self.width, self.height)

    def cropped(self, x: float, y: float, width: float, height: float) -> "Frame":
        """Return the frame after a crop of what it keeps."""
        return self._replace(
            x=self.x + x * self.width,
            y=self.y + y * self.height,
            width=self.width * width,
            height=self.height * height,
        )


def frame_of(entries: Iterable[Entry], start: Frame | None = None) -> Frame:
    """Return what all crops, rotations and mirrorings do together, in their order."""
    frame = start or Frame()
    for entry in entries:
        values = entry.values
        if entry.primitive == "rotate":
            frame = frame.turned(int(values["degrees"]) // 90)
        elif entry.primitive == "mirror":
            frame = frame.flipped(vertical=values["axis"] == "vertical")
        elif entry.primitive == "crop":
            sides: Sequence[float] = [float(values[key]) for key in ("x", "y", "width", "height")]
            frame = frame.cropped(sides[0], sides[1], sides[2], sides[3])
    return frame
