"""Issues: what pydantic found wrong with arguments, said in the words of every other check."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from toolyard.schema import EXTRA, ISSUES, Issue, Path, Schema, field_name, inlined, subschema, unexpected

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails, ValidationError  # who has an issue has loaded it

__all__ = ["issues_of"]

_EXTRA = frozenset({EXTRA, "unexpected_keyword_argument"})


def issues_of(error: "ValidationError", schema: Schema, arguments: object) -> list[Issue]:
    """Return every issue, one for each field; where several types were tried, what each of them wanted."""
    by_path: dict[Path, list[ErrorDetails]] = {}
    for fault in error.errors(include_url=False, include_input=False):
        names_a_field = fault["type"] == "missing" or fault["type"] in _EXTRA
        path = _path(fault["loc"], arguments, names_a_field=names_a_field)
        if len(by_path) == ISSUES and path not in by_path:
            break
        by_path.setdefault(path, []).append(fault)
    return [_issue(path, faults, schema) for path, faults in by_path.items()]


def _issue(path: Path, faults: "list[ErrorDetails]", schema: Schema) -> Issue:
    field = field_name(path)
    code = faults[0]["type"] if len(faults) == 1 else "union"
    if code in _EXTRA:
        parent = cast("dict[str, Any]", subschema(schema, path[:-1]) or {})
        return unexpected(path, list(parent.get("properties", {})))
    expected = inlined(schema, subschema(schema, path))
    if code == "missing":
        return Issue(field, code, f"'{field}' is required.", expected)
    wanted = " or ".join(dict.fromkeys(_wanted(fault["msg"]) for fault in faults))
    return Issue(field, code, f"'{field}' {wanted}.", expected)


def _wanted(message: str) -> str:
    for opening in ("Input should ", "Value error, ", "Assertion failed, "):
        if message.startswith(opening):
            rest = message.removeprefix(opening)
            return f"should {rest}" if opening == "Input should " else rest
    return f"is wrong: {message[:1].lower()}{message[1:]}"


def _path(location: Sequence[str | int], value: object, *, names_a_field: bool) -> Path:
    """Return the way to the value that is wrong, without the types that pydantic tried on the way.

    Only where a field is missing or not known does the last part name something that is not there, or not a part of the schema.
    """
    path: list[str | int] = []
    for number, part in enumerate(location):
        last = number == len(location) - 1
        if isinstance(value, dict):
            pairs = cast("dict[str, object]", value)
            if part in pairs:
                path.append(part)
                value = pairs[part]
            elif last and names_a_field:
                path.append(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(cast("list[object]", value)):
            path.append(part)
            value = cast("list[object]", value)[part]
    return tuple(path)
