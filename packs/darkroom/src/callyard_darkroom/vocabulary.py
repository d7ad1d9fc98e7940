"""The words of the darkroom: primitives with their parameters and recipes for each engine, and looks made of them.

It must not know how an engine renders.
"""

import math
import struct
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from callyard import ToolError

__all__ = [
    "MODULES",
    "VIPS_OPERATIONS",
    "DarktableRecipe",
    "Expression",
    "Layer",
    "Look",
    "Parameter",
    "Primitive",
    "Step",
    "Values",
    "Vocabulary",
    "evaluate",
    "load_vocabulary",
    "wrong_value",
]

Layer = Literal["L1", "L2", "L3"]
Values = dict[str, float | str]
Expression = float | str | tuple[str, float, float]
"""A number, the name of a parameter, or a parameter with a factor and an offset."""

MODULES: Final[Mapping[tuple[str, int], str]] = {
    ("bilat", 3): "<I4f",
    ("bloom", 1): "<3f",
    ("colisa", 1): "<3f",
    ("colorcorrection", 1): "<5f",
    ("crop", 1): "<4f2i",
    ("exposure", 5): "<i4f",
    ("flip", 2): "<i",
    ("grain", 2): "<i3f",
    ("highpass", 1): "<2f",
    ("monochrome", 2): "<4f",
    ("sharpen", 1): "<3f",
    ("soften", 1): "<4f",
    ("splittoning", 1): "<6f",
    ("velvia", 2): "<2f",
    ("vibrance", 2): "<f",
}
"""The layout of the parameters of each module of darktable that recipes can use, in its oldest usable version.

darktable does not check the length of parameters, so a recipe with another module would read any memory.
"""
_AMOUNTS: Final = (
    *("black_point", "brightness", "contrast", "saturation", "vibrance", "soften"),
    *("glow", "grain", "clarity", "sharpen", "vignette"),
)
VIPS_OPERATIONS: Final[Mapping[str, frozenset[str]]] = {
    "exposure": frozenset({"ev"}),
    "shift": frozenset({"a", "b"}),
    **dict.fromkeys(_AMOUNTS, frozenset({"amount"})),
}
"""The operations of the engine 'vips', with their arguments."""
_GEOMETRY: Final = frozenset({"crop", "rotate", "mirror"})
_DECIMALS: Final = 6
T = TypeVar("T")


class Parameter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One parameter of a primitive: a number in a range, or one of several words."""

    default: float | str
    text: str = ""
    min: float | None = None
    max: float | None = None
    choices: tuple[str, ...] = ()


class DarktableRecipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A module of darktable, the version of its parameters, and their values in order."""

    module: str
    version: int
    values: tuple[Expression, ...]

    @property
    def layout(self) -> str:
        """Return the layout of the parameters."""
        return MODULES[self.module, self.version]


class Primitive(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of edit."""

    summary: str
    tags: tuple[str, ...] = ()
    parameters: dict[str, Parameter] = {}
    vips: dict[str, Any] | None = None
    darktable: DarktableRecipe | None = None
    geometry: bool = False
    """Whether it changes the frame and not the tones; every engine has it."""
    name: str = ""

    @property
    def engines(self) -> list[str]:
        """Return the engines that have it."""
        recipes = {"darktable": self.darktable, "vips": self.vips}
        return [name for name, recipe in recipes.items() if self.geometry or recipe is not None]

    def complete(self, values: Mapping[str, object]) -> Values:
        """Return values with the defaults filled in, rounded so that equal values are written alike.

        Raises:
            ToolError: `invalid_input` if one is unknown or outside its range.
        """
        for key in values:
            if key not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise wrong_value(key, f"'{self.name}' has no parameter '{key}'. Known: {known}.")
        found = {key: _checked(key, parameter, values.get(key)) for key, parameter in self.parameters.items()}
        if self.name == "crop":
            for start, size in (("x", "width"), ("y", "height")):
                if float(found[start]) + float(found[size]) > 1 + 10**-_DECIMALS:
                    raise wrong_value(size, f"'{start}' and '{size}' together may be at most 1.")
        return found


class Step(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One edit of a look."""

    primitive: str
    values: Values = {}


class Look(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Several edits under one name, for one layer."""

    summary: str
    layer: Literal["L1", "L2"]
    steps: tuple[Step, ...]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    primitive: dict[str, Primitive] = {}
    look: dict[str, Look] = {}


class Vocabulary:
    """All primitives and looks that a yard knows."""

    def __init__(self, primitives: Mapping[str, Primitive], looks: Mapping[str, Look]) -> None:
        self.primitives = primitives
        self.looks = looks

    def primitive(self, name: str) -> Primitive:
        """Return a primitive.

        Raises:
            ToolError: `not_found`, reason `unknown_primitive`.
        """
        if name not in self.primitives:
            similar = [known for known in self.primitives if known.startswith(name[:3])]
            message = f"There is no primitive '{name}'."
            raise ToolError("not_found", message, reason="unknown_primitive", similar=similar, may_have_run=False)
        return self.primitives[name]

    def look(self, name: str, layer: Layer) -> Look:
        """Return a look of a layer.

        Raises:
            ToolError: `not_found`, reason `unknown_look`, or `invalid_input` if it is for another layer.
        """
        if name not in self.looks:
            known = [key for key, look in self.looks.items() if look.layer == layer]
            message = f"There is no look '{name}'."
            raise ToolError("not_found", message, reason="unknown_look", similar=known, may_have_run=False)
        look = self.looks[name]
        if look.layer != layer:
            raise wrong_value(layer.lower(), f"The look '{name}' is for the layer {look.layer}.")
        return look


def load_vocabulary(folder: Path | None = None) -> Vocabulary:
    """Return the vocabulary of the pack, with that of a folder of the user.

    Raises:
        ValueError: A file of the folder is wrong; the message names it.
        OSError: The folder cannot be read.
    """
    primitives: dict[str, Primitive] = {}
    looks: dict[str, Look] = {}
    texts = [("primitives.toml", files("callyard_darkroom").joinpath("primitives.toml").read_text("utf-8"))]
    texts += [(path.name, path.read_text("utf-8")) for path in _user_files(folder)]
    for place, text in texts:
        try:
            read = msgspec.convert(tomllib.loads(text), _File)
            for name, primitive in read.primitive.items():
                primitives[name] = _new(name, _named(name, primitive), primitives)
            for name, look in read.look.items():
                looks[name] = _new(name, _complete_look(look, primitives), looks)
        except (ToolError, ValueError) as error:
            raise ValueError(f"The vocabulary file '{place}' is wrong: {error}") from error
    return Vocabulary(primitives, looks)


def _user_files(folder: Path | None) -> Sequence[Path]:
    if folder is None:
        return ()
    if not folder.is_dir():
        raise ValueError(f"The folder '{folder}' of 'vocabulary' does not exist.")
    return sorted(folder.glob("*.toml"))


def _new(name: str, item: T, known: Mapping[str, T]) -> T:
    if name in known:
        raise ValueError(f"'{name}' is there twice.")
    return item


def _named(name: str, primitive: Primitive) -> Primitive:
    """Return a primitive with its name, if its recipes are ones that its engines can follow."""
    if not name.isidentifier() or not name.islower():
        raise ValueError(f"'{name}' must have small letters, digits and '_'.")
    named = msgspec.structs.replace(primitive, name=name)
    if primitive.geometry and name not in _GEOMETRY:
        raise ValueError(f"'{name}' cannot be geometry.")
    if not named.engines:
        raise ValueError(f"'{name}' has a recipe for no engine.")
    for text in _faults(named):
        raise ValueError(f"'{name}' {text}")
    return named


def _faults(primitive: Primitive) -> Iterator[str]:
    for key, parameter in primitive.parameters.items():
        is_word = isinstance(parameter.default, str)
        if is_word != bool(parameter.choices) or is_word == (parameter.min is not None and parameter.max is not None):
            yield f"needs for '{key}' either 'choices', or 'min' and 'max'."
        else:
            _checked(key, parameter, None)
    values = primitive.complete({})
    recipe = primitive.vips
    if recipe is not None:
        arguments = frozenset(key for key in recipe if key != "operation")
        if arguments != VIPS_OPERATIONS.get(str(recipe.get("operation"))):
            yield "has a recipe for 'vips' with an unknown operation, or without exactly its arguments."
        for key in arguments:
            evaluate(msgspec.convert(recipe[key], Expression), values)
    if (dark := primitive.darktable) is not None:
        if (dark.module, dark.version) not in MODULES:
            known = ", ".join(f"{module} {version}" for module, version in MODULES)
            yield f"names a module or version of darktable that is not one of: {known}."
        elif len(struct.unpack(dark.layout, bytes(struct.calcsize(dark.layout)))) != len(dark.values):
            yield f"has another number of values than '{dark.module}'."
        for expression in dark.values:
            evaluate(expression, values)


def _complete_look(look: Look, primitives: Mapping[str, Primitive]) -> Look:
    for step in look.steps:
        if step.primitive not in primitives:
            raise ValueError(f"A look has the unknown primitive '{step.primitive}'.")
        primitives[step.primitive].complete(step.values)
    return look


def evaluate(expression: Expression, values: Mapping[str, float | str]) -> float:
    """Return the number that an expression stands for.

    Raises:
        ValueError: It names no parameter that is a number.
    """
    name, factor, offset = expression if isinstance(expression, tuple) else (expression, 1.0, 0.0)
    if not isinstance(name, str):
        return float(name)
    value = values.get(name)
    if not isinstance(value, int | float):
        raise ValueError(f"A recipe uses '{name}', which is no parameter with a number.")  # noqa: TRY004 - every wrong vocabulary is a ValueError
    return value * factor + offset


def _checked(key: str, parameter: Parameter, value: object) -> float | str:
    value = parameter.default if value is None else value
    if parameter.choices:
        word = f"{value:g}" if isinstance(value, int | float) else str(value)
        if word not in parameter.choices:
            raise wrong_value(key, f"'{key}' must be one of {', '.join(parameter.choices)}.")
        return word
    low, high = parameter.min or 0.0, parameter.max or 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise wrong_value(key, f"'{key}' must be a number.")
    if not low <= value <= high:
        raise wrong_value(key, f"'{key}' must be between {low:g} and {high:g}.")
    return round(float(value), _DECIMALS) + 0.0  # no -0.0


def wrong_value(field: str, message: str) -> ToolError:
    """Return the failure of a wrong value."""
    issue = {"field": field, "code": "value_error", "message": message}
    return ToolError("invalid_input", message, issues=[issue])
