"""Output of a function: what its return annotation promises, as a schema and as a check."""

import types
import typing
from collections.abc import Callable
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec

from toolyard.content import Audio, Blob, Block, Embedded, Image, ResourceLink, Text
from toolyard.envelope import Envelope
from toolyard.providers.functions.plain import plain
from toolyard.providers.functions.signature import REQUIRED
from toolyard.schema import SchemaValidator
from toolyard.spec import PublishError

__all__ = ["Promised", "output_of"]

_NO_SCHEMA: Final = frozenset({Envelope, Block, Image, Audio, Blob, Embedded, ResourceLink, Text, bytes, bytearray, memoryview})
_EXACT: Final = (str, int, bool)
_ANYTHING: Final = (Any, object)
_NEVER: Final = (typing.NoReturn, typing.Never)


class Promised(NamedTuple):
    """What a function returns: as JSON Schema, as a check, and whether nothing is an answer, too."""

    schema: dict[str, Any] | None
    fits: Callable[[object], bool] | None
    may_be_none: bool


def output_of(what: str, annotation: Any) -> Promised:
    """Return what a return annotation promises.

    Raises:
        PublishError: It cannot become a schema.
    """
    if annotation is REQUIRED or annotation in _NEVER:
        return Promised(None, None, may_be_none=False)
    if any(annotation is anything for anything in _ANYTHING):
        return Promised(None, None, may_be_none=True)
    parts = _parts(annotation)
    may_be_none = any(part is None or part is type(None) for part in parts)
    if any(isinstance(part, type) and part in _NO_SCHEMA for part in parts):
        return Promised(None, None, may_be_none)
    schema = _schema(what, annotation)
    fits = SchemaValidator(schema).fits
    return Promised(schema, _quickly(annotation, fits) if annotation in _EXACT else fits, may_be_none)


def _quickly(kind: type, fits: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return the same check, which asks the schema only where the type does not say it all."""
    return lambda value: type(value) is kind or fits(value)


def _parts(annotation: Any) -> list[Any]:
    """Return the types that a union or a container is made of, so that a block in one is seen."""
    origin = get_origin(annotation)
    if origin is typing.Annotated:
        return _parts(get_args(annotation)[0])
    if origin in {typing.Union, types.UnionType}:
        return [part for argument in get_args(annotation) for part in _parts(argument)]
    if origin in {list, tuple, dict}:
        return [annotation, *(part for argument in get_args(annotation) for part in _parts(argument) if part is not type(None))]
    return [annotation]


def _schema(what: str, annotation: Any) -> dict[str, Any]:
    known = plain(annotation)
    if known is not None:
        return known.schema
    from toolyard.providers.functions.rich import rich_schema  # noqa: PLC0415 - as in arguments: pydantic only where needed

    schema = rich_schema(annotation)
    if schema is not None:
        return schema
    try:
        return msgspec.json.schema(annotation)
    except (TypeError, ValueError, RuntimeError) as error:
        raise PublishError(f"{what} has a return annotation that cannot become a schema.") from error
