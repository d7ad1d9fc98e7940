"""What a change of a definition means for those who call: breaking, compatible, or only words.

A keyword of a schema that cannot be judged counts as breaking, so that no verdict promises too much.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.providers.upstream.diff import Difference
from callyard.providers.upstream.pins import Definition

__all__ = ["Change", "Verdict", "change_of", "worst"]

Verdict = Literal["breaking", "compatible", "words"]
_RANKS: Final[tuple[Verdict, ...]] = ("words", "compatible", "breaking")
_WORDS: Final = frozenset({"title", "description", "icons", "text"})
_SCHEMA_WORDS: Final = frozenset({"title", "description", "$comment", "examples", "$id", "$schema", "deprecated"})
_LOWER: Final = frozenset({"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"})
_UPPER: Final = frozenset({"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"})
_HANDLED: Final = frozenset({"type", "enum", "const", "properties", "required", "items", "additionalProperties"})
_DEPTH: Final = 32


class Change(msgspec.Struct, frozen=True):
    """The change of one definition: its verdict, and the reasons for it as short sentences."""

    kind: str
    name: str
    verdict: Verdict
    reasons: tuple[str, ...]


class _Reason(NamedTuple):
    verdict: Verdict
    text: str


def worst(changes: "list[Change]") -> Verdict | None:
    """Return the worst verdict of several changes, or None without any."""
    return _worst([change.verdict for change in changes]) if changes else None


def _worst(verdicts: Sequence[Verdict]) -> Verdict:
    return next(verdict for verdict in reversed(_RANKS) if verdict in verdicts)


def change_of(difference: Difference, before: Definition | None, after: Definition | None) -> Change:
    """Return what a difference means; `before` is the accepted definition, if it is stored on this machine."""
    reasons = list(_reasons(difference, before, after)) or [_Reason("words", "Only words changed.")]
    verdict = _worst([reason.verdict for reason in reasons])
    texts = tuple(dict.fromkeys(reason.text for reason in reasons if reason.verdict == verdict))
    return Change(difference.kind, difference.name, verdict, texts)


def _reasons(difference: Difference, before: Definition | None, after: Definition | None) -> Iterator[_Reason]:
    if difference.what == "vanished":
        yield _Reason("breaking", "It is gone.")
        return
    if difference.what == "new":
        yield _Reason("compatible", "It is new.")
        return
    for change in difference.changes:
        field = change.field
        if field in _WORDS or difference.kind == "instructions":
            yield _Reason("words", f"'{field}' has other words.")
        elif field not in {"inputSchema", "outputSchema", "arguments"}:
            yield _Reason("compatible", f"'{field}' changed.")
        elif before is None or after is None:
            text = f"'{field}' changed, and what was accepted is not stored on this machine to compare it with."
            yield _Reason("breaking", text)
        elif field == "arguments":
            yield from _compare_prompt(before.fields.get(field), after.fields.get(field))
        else:
            old, new = before.fields.get(field), after.fields.get(field)
            yield from (_compare_input if field == "inputSchema" else _compare_output)(old, new)


def _compare_prompt(before: Any, after: Any) -> Iterator[_Reason]:
    old, new = (
        {str(item.get("name")): bool(item.get("required")) for item in map(as_object, as_list(listed))}
        for listed in (before, after)
    )
    yield from (_Reason("breaking", f"The argument '{name}' is gone.") for name in old.keys() - new.keys())
    for name, is_required in new.items():
        if is_required and not old.get(name):
            yield _Reason("breaking", f"The argument '{name}' is now required.")
    yield _Reason("compatible", "Its arguments changed.")


def _compare_input(before: Any, after: Any) -> Iterator[_Reason]:
    """Return why arguments that were accepted may be refused now."""
    yield from _narrower(before, after, "", _DEPTH)


def _compare_output(before: Any, after: Any) -> Iterator[_Reason]:
    """Return why a result may hold now what it could not before: the new schema must not allow more than the old."""
    if before is None or after is None:
        gone = after is None
        yield _Reason("breaking" if gone else "compatible", f"It {'has no' if gone else 'now has an'} output schema.")
        return
    yield from _wider_result(as_object(before), as_object(after), "", _DEPTH)


def _wider_result(old: Mapping[str, Any], new: Mapping[str, Any], path: str, depth: int) -> Iterator[_Reason]:
    """Return why a result may lack what it had, or hold what it could not hold."""
    if old == new or not depth:
        return
    where = f"'{path}'" if path else "the result"
    old_types, new_types = _types(old), _types(new)
    if old_types is not None and (new_types is None or not new_types <= old_types):
        yield _Reason("breaking", f"The type of {where} may be another one.")
    old_values, new_values = _values(old), _values(new)
    if old_values is not None and (new_values is None or any(value not in old_values for value in new_values)):
        yield _Reason("breaking", f"{where[:1].upper()}{where[1:]} may have other values.")
    olds, news = as_object(old.get("properties")), as_object(new.get("properties"))
    for name in sorted(olds.keys() - news.keys()):
        yield _Reason("breaking", f"'{_child(path, name)}' is gone from the result.")
    for name in sorted((_required(old) - _required(new)) & news.keys()):
        yield _Reason("breaking", f"'{_child(path, name)}' is no longer always in the result.")
    for name in sorted(olds.keys() & news.keys()):
        yield from _wider_result(as_object(olds[name]), as_object(news[name]), _child(path, name), depth - 1)
    yield from _wider_result(as_object(old.get("items")), as_object(new.get("items")), f"{path}[]", depth - 1)
    yield _Reason("compatible", f"The schema of {where} changed.")


def _required(schema: Mapping[str, Any]) -> set[str]:
    return {str(name) for name in as_list(schema.get("required"))}


def _narrower(wide: Any, narrow: Any, path: str, depth: int) -> Iterator[_Reason]:
    """Return why a value that fits the first schema may not fit the second."""
    where = f"'{path}'" if path else "the arguments"
    if wide == narrow:
        return
    if narrow is True or narrow == {} or wide is False:
        yield _Reason("compatible", f"More is allowed for {where}.")
        return
    old, new = as_object(wide), as_object(narrow)
    if depth == 0 or not new or not (old or wide in (True, {})):
        yield _Reason("breaking", f"Less is allowed for {where}.")
        return
    yield from _narrower_values(old, new, where)
    yield from _narrower_members(old, new, path, depth)
    for keyword in sorted((old.keys() | new.keys()) - _HANDLED - _LOWER - _UPPER):
        if old.get(keyword) != new.get(keyword):
            yield _keyword_reason(keyword, old, new, where)


def _keyword_reason(keyword: str, old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> _Reason:
    if keyword in _SCHEMA_WORDS:
        return _Reason("words", f"'{keyword}' of {where} has other words.")
    if keyword == "default":
        return _Reason("compatible", f"The default of {where} changed.")
    if keyword not in new and keyword not in {"$defs", "definitions", "$ref"}:
        return _Reason("compatible", f"'{keyword}' no longer limits {where}.")
    return _Reason("breaking", f"'{keyword}' of {where} {'changed' if keyword in old else 'is new'}.")


def _types(schema: Mapping[str, Any]) -> set[str] | None:
    """Return the types that a schema allows, or None for any; a number may be whole."""
    kind = schema.get("type")
    if kind is None:
        return None
    types = {str(one) for one in as_list(kind)} or {str(kind)}
    return types | {"integer"} if "number" in types else types


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    if "const" in schema:
        return [schema["const"]]
    return as_list(schema["enum"]) if isinstance(schema.get("enum"), list) else None


def _narrower_values(old: Mapping[str, Any], new: Mapping[str, Any], where: str) -> Iterator[_Reason]:
    """Compare the types, the listed values and the bounds."""
    old_types, new_types = _types(old), _types(new)
    if new_types is not None and (old_types is None or not old_types <= new_types):
        yield _Reason("breaking", f"The type of {where} allows less.")
    elif old_types != new_types:
        yield _Reason("compatible", f"The type of {where} allows more.")
    old_values, new_values = _values(old), _values(new)
    if new_values is not None and (old_values is None or any(value not in new_values for value in old_values)):
        yield _Reason("breaking", f"Fewer values are allowed for {where}.")
    elif old_values != new_values:
        yield _Reason("compatible", f"More values are allowed for {where}.")
    for keyword in sorted((_LOWER | _UPPER) & (old.keys() | new.keys())):
        before, after = old.get(keyword), new.get(keyword)
        if before == after:
            continue
        is_wider = after is None or _is_wider(keyword, before, after)
        text = f"'{keyword}' of {where} allows {'more' if is_wider else 'less'}."
        yield _Reason("compatible" if is_wider else "breaking", text)


def _is_wider(keyword: str, before: object, after: object) -> bool:
    if not (isinstance(before, int | float) and isinstance(after, int | float)):
        return False
    return after <= before if keyword in _LOWER else after >= before


def _narrower_members(old: Mapping[str, Any], new: Mapping[str, Any], path: str, depth: int) -> Iterator[_Reason]:
    """Compare the properties of objects and the items of lists."""
    olds, news = as_object(old.get("properties")), as_object(new.get("properties"))
    required = _required(new) - _required(old)
    for name in sorted(required):
        yield _Reason("breaking", f"The argument '{_child(path, name)}' is now required.")
    for name in sorted(_required(old) - _required(new)):
        yield _Reason("compatible", f"The argument '{_child(path, name)}' is no longer required.")
    for name in sorted(olds.keys() - news.keys()):
        yield _Reason("breaking", f"The argument '{_child(path, name)}' is gone.")
    for name in sorted(news.keys() - olds.keys()):
        is_closed = old.get("additionalProperties") is False
        if is_closed or name not in required:
            yield _Reason("compatible", f"The argument '{_child(path, name)}' is new.")
    for name in sorted(olds.keys() & news.keys()):
        yield from _narrower(olds[name], news[name], _child(path, name), depth - 1)
    yield from _narrower(old.get("items", True), new.get("items", True), f"{path}[]", depth - 1)
    olds, news = (schema.get("additionalProperties", True) for schema in (old, new))
    yield from _narrower(olds, news, _child(path, "*"), depth - 1)


def _child(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
