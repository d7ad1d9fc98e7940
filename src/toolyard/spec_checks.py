"""Checks of specs: everything that can be wrong with what is published, before anything runs."""

import re
from typing import Final, cast

import msgspec

from toolyard.asks import check_form
from toolyard.envelope import encode
from toolyard.limits import Limits
from toolyard.schema import SchemaError, check_schema
from toolyard.spec import Kind, Operation, PromptSpec, PublishError, ResourceSpec, ToolSpec
from toolyard.uri_template import check_uri

__all__ = ["check_prompt_spec", "check_resource_spec", "check_spec"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_FOREIGN_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_EXAMPLES: Final = 5
_OPERATIONS: Final = frozenset(Operation)


def check_spec(spec: ToolSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a spec that can be wrong before the first call.

    Raises:
        PublishError: Something is.
    """
    if spec.operation not in _OPERATIONS:
        known = ", ".join(f"'{operation}'" for operation in Operation)
        raise PublishError(f"Tool '{spec.name}' has the operation '{spec.operation}', which is none of {known}.")
    _check_schemas(spec, limits, foreign=foreign)
    _check_types(spec, "tool")
    if spec.kind != "tool":
        raise PublishError(f"Tool '{spec.name}' says that it is a {spec.kind}.")
    for name in spec.known_as:
        _check_name("tool", name, limits, foreign=foreign)
    if not spec.description.strip():
        raise PublishError(f"Tool '{spec.name}' has no description.")
    _check_eval(spec)
    _check_question(spec, limits)
    if len(spec.examples) > _EXAMPLES:
        raise PublishError(f"Tool '{spec.name}' has {len(spec.examples)} examples; at most {_EXAMPLES} are shown.")
    if spec.timeout is not None and not 0 <= spec.timeout < float("inf"):
        raise PublishError(f"Tool '{spec.name}' has the timeout {spec.timeout}, which is no number of seconds.")


def check_resource_spec(spec: ResourceSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a resource or template that can be wrong before it is read.

    Raises:
        PublishError: Something is.
    """
    _check_types(spec, "resource")
    try:
        check_uri(spec.uri)
    except ValueError as error:
        raise PublishError(f"Resource '{spec.name}' has the URI '{spec.uri}', which cannot be served: {error}.") from error
    if not spec.name.strip():
        raise PublishError(f"The resource '{spec.uri}' has no name.")
    if not foreign:  # others name theirs as they like: it is the URI that finds them
        _check_name("resource", spec.name, limits, foreign=False)


def check_prompt_spec(spec: PromptSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a prompt that can be wrong before it is asked for.

    Raises:
        PublishError: Something is.
    """
    _check_types(spec, "prompt")
    _check_name("prompt", spec.name, limits, foreign=foreign)
    names = [argument.name for argument in spec.arguments]
    if len(set(names)) < len(names):
        raise PublishError(f"Prompt '{spec.name}' has two arguments of one name.")


def _check_types(spec: ToolSpec | ResourceSpec | PromptSpec, kind: Kind) -> None:
    """Check every field against its type, which building a spec in Python does not."""
    try:
        text = encode(spec)
    except TypeError as error:
        raise PublishError(f"{kind.capitalize()} '{spec.name}' cannot be written as JSON: {error}") from error
    try:
        msgspec.json.decode(text, type=type(spec))
    except msgspec.ValidationError as error:
        raise PublishError(f"{kind.capitalize()} '{spec.name}' has a wrong spec: {str(error).rstrip('.')}.") from error


def _check_name(kind: Kind, name: str, limits: Limits, *, foreign: bool) -> None:
    if not (_FOREIGN_NAME if foreign else _NAME).match(name):
        raise PublishError(f"{kind.capitalize()} '{name}' must be named with small letters, digits and '_', a letter first.")
    if len(name) > limits.name_characters:
        message = f"{kind.capitalize()} '{name}' has a name of {len(name)} characters; at most {limits.name_characters} are published."
        raise PublishError(message)


def _check_schemas(spec: ToolSpec, limits: Limits, *, foreign: bool) -> None:
    if not isinstance(cast("object", spec.input_schema), dict):
        raise PublishError(f"Tool '{spec.name}' has an input schema that is no object.")
    named = (("input", spec.input_schema), ("output", spec.output_schema))
    for which, schema in named:
        if schema is None:
            continue
        try:
            check_schema(schema, max_bytes=limits.schema_bytes, max_depth=limits.schema_depth)
        except SchemaError as error:
            raise PublishError(f"Tool '{spec.name}' has a wrong {which} schema: {error}.") from error
    if spec.input_schema.get("type") != "object":
        raise PublishError(f"Tool '{spec.name}' has an input schema that is not of type 'object'.")
    if not foreign and spec.input_schema.get("additionalProperties") is not False:
        raise PublishError(f"Tool '{spec.name}' has an input schema that does not say 'additionalProperties: false'.")


def _check_question(spec: ToolSpec, limits: Limits) -> None:
    try:
        if spec.question is not None:
            check_form(spec.question.schema, limits)
    except SchemaError as error:
        raise PublishError(f"Tool '{spec.name}' has a question that cannot be asked: {error}.") from error


def _check_eval(spec: ToolSpec) -> None:
    if spec.operation is not Operation.EVAL:
        if spec.eval is not None:
            raise PublishError(f"Tool '{spec.name}' has an eval rule, so its operation must be 'eval'.")
        return
    if spec.eval is None:
        raise PublishError(f"Tool '{spec.name}' has the operation 'eval' and must name the argument that holds the code.")
    if not spec.requires_eval:
        raise PublishError(f"Tool '{spec.name}' has the operation 'eval', so it must require the flag for it.")
    guarded = spec.input_schema.get("properties", {}).get(spec.eval.argument)
    if guarded is None or guarded.get("type") != "string":
        raise PublishError(f"Tool '{spec.name}' has no argument '{spec.eval.argument}' of type 'string' to guard.")
