import json
import typing
from typing import Any, Literal, Optional, Union, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from pydantic_core import CoreSchema, SchemaValidator, ValidationError

from toolyard.model.schema import plainly_fits
from toolyard.providers.functions.schema import Plain, plain

SCALARS: list[Any] = [str, int, float, bool, None, type(None), Any, object]
PLAIN: list[Any] = [
    *SCALARS,
    list,
    dict,
    list[int],
    list[Any],
    list[object],
    list[list[str]],
    dict[str, int],
    dict[str, Any],
    dict[str, object],
    dict[str, list[bool | None]],
    int | None,
    str | None,
    bool | None,
    float | None,
    int | str,
    str | int,
    int | float,
    bool | int,
    int | bool | str | None,
    None | int,
    list[int] | None,
    list[int] | list[str],
    list[int] | dict[str, int] | str,
    Optional[int],  # noqa: UP045 - as people still write it
    Union[int, None, str],  # noqa: UP007 - the same
    typing.List[int],  # noqa: UP006 - the same
    typing.List,  # noqa: UP006 - the same
    typing.Dict[str, int],  # noqa: UP006 - the same
    typing.Dict,  # noqa: UP006 - the same
    Literal["a"],
    Literal["a", "b"],
    Literal["a", "b"] | None,
    Literal["a"] | int,
    list[Literal["x", "y"]],
]

NOT_PLAIN: list[Any] = [
    bytes,
    set[int],
    tuple[int, str],
    list[bytes],
    dict[int, str],
    dict[str, bytes],
    int | bytes,
    Any | None,
    Literal[1],
    Literal["a", 1],
    typing.Annotated[int, "x"],
    typing.Annotated[int, {"cannot": "be hashed"}],
    typing.Sequence[int],
    typing.Tuple,  # noqa: UP006 - as people still write it
    "int",
    5,
]

_ANNOTATIONS: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from([str, int, float, bool, type(None), list, dict, Literal["a"], Literal["a", "b"]]),
    lambda inner: st.one_of(
        inner.map(lambda item: list[item]),
        inner.map(lambda value: dict[str, value]),
        st.lists(inner, min_size=2, max_size=4).map(lambda choices: Union[tuple(choices)]),  # noqa: UP007 - made at run time
    ),
    max_leaves=5,
)

_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["a", "b", "c", "1", "1.0", "true", "null", ""])
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=8,
)


def _untitled(schema: Any) -> Any:
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in cast("dict[str, Any]", schema).items() if key != "title"}
    if isinstance(schema, list):
        return [_untitled(item) for item in cast("list[Any]", schema)]
    return schema


def _outcome(validator: Any, value: object) -> tuple[bool, str]:
    """Return whether a value passes in strict JSON mode, and what comes out; `repr` tells 1 from 1.0 and True."""
    try:
        return True, repr(validator.validate_json(json.dumps(value), strict=True))
    except ValidationError as error:
        return False, repr([(fault["type"], fault["loc"]) for fault in error.errors()])


def _validator(known: Plain) -> SchemaValidator:
    return SchemaValidator(cast("CoreSchema", known.core))


@given(_ANNOTATIONS, _VALUES)
def test_a_default_that_plainly_fits_need_not_be_checked(annotation: Any, value: object) -> None:
    known = plain(annotation)
    if known is not None and plainly_fits(known.schema, value):
        assert _outcome(_validator(known), value)[0]


def _same(annotation: Any, value: object) -> None:
    known = plain(annotation)
    assert known is not None
    assert _outcome(_validator(known), value) == _outcome(TypeAdapter(annotation).validator, value)


@pytest.mark.parametrize("annotation", PLAIN, ids=str)
def test_a_plain_annotation_has_the_schema_that_pydantic_gives(annotation: Any) -> None:
    known = plain(annotation)

    assert known is not None
    assert known.schema == _untitled(TypeAdapter(annotation).json_schema())


@pytest.mark.parametrize("annotation", PLAIN, ids=str)
@pytest.mark.parametrize(
    "value",
    [None, True, 0, 1, 2**70, 1.0, 1.5, "", "a", "b", "1", "true", [], [1], ["1"], [None], [[1]], {}, {"a": 1}, {"a": "1"}, {"a": [True]}],
    ids=json.dumps,
)
def test_a_plain_annotation_takes_and_refuses_what_pydantic_does(annotation: Any, value: object) -> None:
    _same(annotation, value)


@given(_ANNOTATIONS, _VALUES)
def test_whatever_the_annotation_and_the_value_the_light_way_and_pydantic_agree(annotation: Any, value: object) -> None:
    known = plain(annotation)

    assert known is not None
    assert known.schema == _untitled(TypeAdapter(annotation).json_schema())
    _same(annotation, value)


@pytest.mark.parametrize("annotation", NOT_PLAIN, ids=str)
def test_everything_else_is_left_to_pydantic(annotation: Any) -> None:
    assert plain(annotation) is None


def test_schemas_are_not_shared() -> None:
    one, other = plain(list[int]), plain(list[int])

    assert one is not None
    assert other is not None
    one.schema["items"]["title"] = "changed"
    assert other.schema == {"items": {"type": "integer"}, "type": "array"}
