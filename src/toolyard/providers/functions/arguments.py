"""Arguments of a function: their schema and their check, from its signature.

Arguments are JSON, whatever the door: they are checked strictly as JSON text, so that a date is a string everywhere.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

import msgspec

from toolyard.call import Arguments
from toolyard.envelope import encode
from toolyard.plain_schema import plainly_fits
from toolyard.providers.functions.issues import issues_of
from toolyard.providers.functions.plain import Plain, plain
from toolyard.providers.functions.signature import REQUIRED, Built, Factory, Parameter
from toolyard.spec import PublishError
from toolyard.tools import Check, InvalidArgumentsError

if TYPE_CHECKING:
    from pydantic_core import CoreSchema, ValidationError

__all__ = ["Taken", "arguments_of"]

Validate = Callable[..., Arguments]

_IMMUTABLE: Final = (str, int, float, bool, bytes, type(None), Enum)
_SESSION_ID: Final = Parameter("session_id", str | None, None)
_SESSION_TEXT: Final = "The session to use; may be left out when there is only one."


class Taken(NamedTuple):
    """What a function takes: as JSON Schema, and as a check."""

    schema: dict[str, Any]
    check: Check


def arguments_of(what: str, parameters: tuple[Parameter, ...], texts: Mapping[str, str], *, session: bool) -> Taken:
    """Return the schema and the check of a function's arguments.

    Raises:
        PublishError: An annotation cannot become a schema, or a default does not fit it.
    """
    if session and all(parameter.name != _SESSION_ID.name for parameter in parameters):
        parameters = (*parameters, _SESSION_ID)
        texts = {_SESSION_ID.name: _SESSION_TEXT, **texts}
    plains = [plain(parameter.annotation) for parameter in parameters]
    if all(plains) and not any(_is_field(parameter.default) for parameter in parameters):
        built = _light(parameters, cast("list[Plain]", plains))
    else:
        # pydantic costs as much to import as the rest of a small yard, so only signatures that need it pay for it
        from toolyard.providers.functions.rich import rich_arguments  # noqa: PLC0415 - as said above

        built = rich_arguments(what, parameters)
    for name, key in built.keys.items():
        if texts.get(name):
            built.schema["properties"][key].setdefault("description", texts[name])
    _fill_defaults(what, built)
    return Taken(built.schema, _checking(built))


def _is_field(default: object) -> bool:
    return type(default).__name__ == "FieldInfo"


def _light(parameters: tuple[Parameter, ...], plains: list[Plain]) -> Built:
    fields: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter, known in zip(parameters, plains, strict=True):
        needed = parameter.default is REQUIRED
        fields[parameter.name] = {"type": "typed-dict-field", "schema": known.core, "required": needed}
        properties[parameter.name] = dict(known.schema)
        if needed:
            required.append(parameter.name)
    schema = _object(properties, required)
    defaults = {parameter.name: parameter.default for parameter in parameters if parameter.default is not REQUIRED}
    return Built(schema, partial(_validator_of, fields), defaults, {name: name for name in properties}, is_plain=True)


def _validator_of(fields: dict[str, Any]) -> Validate:
    from pydantic_core import SchemaValidator  # noqa: PLC0415 - dear to load, and no list of tools needs it

    core = {"type": "typed-dict", "fields": fields, "extra_behavior": "forbid"}
    return cast("Validate", SchemaValidator(cast("CoreSchema", core)).validate_json)


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    if required:
        schema["required"] = required
    return schema


def _fill_defaults(what: str, built: Built) -> None:
    """Write the defaults into the schema, having checked that each fits."""
    for name, default in built.defaults.items():
        if isinstance(default, Factory):
            continue
        key = built.keys[name]
        try:
            text = encode({key: default})
        except TypeError as error:
            raise PublishError(f"{what} has a default for '{name}' that cannot be written as JSON.") from error
        told = msgspec.json.decode(text)[key]
        property_schema = built.schema["properties"][key]
        if not (built.is_plain and plainly_fits(property_schema, told)):
            _check_default(what, name, built, text)
        if default is not None:
            property_schema["default"] = told


def _check_default(what: str, name: str, built: Built, text: bytes) -> None:
    try:
        built.make_validate()(text, strict=True)
    except ValueError as error:
        faults = cast("ValidationError", error).errors(include_url=False)
        if any(str(fault["loc"][0]) == built.keys[name] for fault in faults if fault["loc"]):
            raise PublishError(f"{what} has a default for '{name}' that does not fit its annotation.") from error


def _checking(built: Built) -> Check:
    schema, defaults = built.schema, built.defaults
    validate: Validate | None = None
    made_anew = {name: _maker(default) for name, default in defaults.items() if not isinstance(default, _IMMUTABLE)}

    def check(text: bytes) -> Arguments:
        nonlocal validate
        if validate is None:
            validate = built.make_validate()
        try:
            checked = validate(text, strict=True)
        except ValueError as error:
            raise InvalidArgumentsError(issues_of(cast("ValidationError", error), schema, _seen(text))) from None
        if not defaults:
            return checked
        fresh = {name: make() for name, make in made_anew.items() if name not in checked}
        return {**defaults, **fresh, **checked}

    return check


def _seen(text: bytes) -> object:
    """Return arguments that are wrong as plain data, even with a number in them that none can be."""
    import json  # noqa: PLC0415 - what is right is read without it

    try:
        return json.loads(text)
    except ValueError:
        return None  # an integer of some thousand digits


def _maker(default: object) -> Callable[[], object]:
    return default.make if isinstance(default, Factory) else partial(deepcopy, default)
