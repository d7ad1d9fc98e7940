import importlib.util
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional

import pytest

from callyard import Call, PublishError, Session, Yard, tool
from callyard.providers.functions.signature import (
    REQUIRED,
    Docstring,
    Parameter,
    Signature,
    read_docstring,
    read_signature,
)


def _load() -> Any:
    path = Path(__file__).with_name("future_tools.py")
    spec = importlib.util.spec_from_file_location("future_tools", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["future_tools"] = module
    spec.loader.exec_module(module)
    return module


FUTURE = _load()


class Node:
    pass


def read(function: Callable[..., Any]) -> Signature:
    return read_signature(function, "Tool 'walk'")


def test_a_signature_says_what_a_function_takes_and_returns() -> None:
    def walk(steps: int, /, pace: str = "slow", *, stops: list[str] | None = None, anything: Any = 3) -> float:
        raise AssertionError

    del walk.__annotations__["anything"]
    signature = read(walk)

    assert signature.parameters == (
        Parameter("steps", int, REQUIRED),
        Parameter("pace", str, "slow"),
        Parameter("stops", list[str] | None, None),
        Parameter("anything", Any, 3),
    )
    assert (signature.returns, signature.session) == (float, "none")


def test_an_injected_argument_is_no_parameter() -> None:
    def one(call: Call, session: Session, n: int) -> int:
        raise AssertionError

    def other(context: Call, browser: Session | None = None) -> int:
        raise AssertionError

    def old(browser: Optional[Session]) -> int:  # noqa: UP045 - as people still write it
        raise AssertionError

    assert [parameter.name for parameter in read(one).parameters] == ["n"]
    assert (read(one).call_parameter, read(one).session_parameter, read(one).session) == ("call", "session", "required")
    assert (read(other).call_parameter, read(other).session_parameter, read(other).session) == (
        "context",
        "browser",
        "optional",
    )
    assert read(old).session == "optional"


def test_a_function_that_returns_something_unsaid_says_so() -> None:
    def walk() -> int:
        raise AssertionError

    del walk.__annotations__["return"]
    assert read(walk).returns is REQUIRED


@pytest.mark.parametrize("name", ["*steps", "**options"])
def test_any_number_of_arguments_cannot_become_a_schema(name: str) -> None:
    def some(*steps: int) -> None:
        raise AssertionError

    def named(**options: int) -> None:
        raise AssertionError

    with pytest.raises(PublishError) as caught:
        read(some if name == "*steps" else named)

    assert f"'{name}'" in str(caught.value)
    assert "'walk'" in str(caught.value)


def test_an_object_without_a_signature_cannot_become_a_tool() -> None:
    def odd() -> None:
        raise AssertionError

    vars(odd)["__signature__"] = 5
    wrong: list[Any] = [odd, 5, dict]
    for function in wrong:
        with pytest.raises(PublishError, match="'walk'"):
            read(function)


def test_names_in_quotes_are_understood_wherever_they_stand() -> None:
    def walk(
        a: "Node", b: list["Node"], c: Optional["Node"], d: "dict[str, Node]", e: typing.Literal["Node"]
    ) -> "list[Node]":
        raise AssertionError

    signature = read(walk)

    assert [parameter.annotation for parameter in signature.parameters] == [
        Node,
        list[Node],
        Optional[Node],  # noqa: UP045 - it is the same
        dict[str, Node],
        typing.Literal["Node"],
    ]
    assert signature.returns == list[Node]


def test_a_name_that_nobody_knows_names_the_tool_and_the_parameter() -> None:
    with pytest.raises(PublishError, match=r"'walk'.*'what'"):
        read(FUTURE.lost)
    with pytest.raises(PublishError, match="'walk'"):
        read(FUTURE.lost_result)


def test_a_name_that_is_closed_over_and_not_there_yet_cannot_be_understood() -> None:
    def walk(what: "Later") -> int:
        return len(str(Later))

    with pytest.raises(PublishError, match="'what'"):
        read(walk)

    class Later:
        pass


def test_a_builtin_has_a_signature_too() -> None:
    assert [parameter.name for parameter in read(sum).parameters] == ["iterable", "start"]


async def test_tools_of_a_module_whose_annotations_are_all_text_work() -> None:
    tools = [
        FUTURE.travel,
        FUTURE.rest,
        FUTURE.Hotel(),
        FUTURE.wrapped,
        FUTURE.fly,
        FUTURE.make_local(),
        tool(name="walker")(FUTURE.Walker()),
    ]
    place = {"city": "Rome"}
    async with Yard(tools=tools) as yard:
        specs = {spec.name: spec for spec in yard.list()}
        travelled = await yard.call("travel", {"place": place, "steps": 2, "mode": "fly", "stops": [place]})
        wrong = await yard.call("travel", {"place": {"town": "x"}, "steps": 0, "mode": "swim"})
        answers = [
            (await yard.call("rest")).data,
            (await yard.call("book", {"place": place})).data,
            (await yard.call("drive", {"place": place})).data,
            (await yard.call("fly", {"place": place})).data,
            (await yard.call("use", {"local": {"n": 5}})).data,
            (await yard.call("walker", {"place": place})).data,
        ]

    assert travelled.data == {"to": "Rome by fly travel 1", "steps": 2}
    assert wrong.error is not None
    assert {issue["field"] for issue in wrong.error.details["issues"]} == {"place.city", "steps", "mode"}
    assert answers == [None, "Rome", "Rome", "Rome 3", 5, "Rome"]
    properties = specs["travel"].input_schema["properties"]
    assert set(properties) == {"place", "steps", "mode", "stops"}
    assert (properties["steps"]["minimum"], properties["steps"]["description"]) == (1, "How many.")
    assert set(specs["rest"].input_schema["properties"]) == {"minutes", "session_id"}


@pytest.mark.parametrize("text", [None, ""])
def test_no_docstring_says_nothing(text: str | None) -> None:
    assert read_docstring(text) == Docstring("", {})


def test_the_description_is_everything_before_the_first_section() -> None:
    text = """Walk.

    Slowly, and with care: the floor is wet.

    Args:
        steps: How many.

    Returns:
        How far.
    """

    assert read_docstring(text).description == "Walk.\n\nSlowly, and with care: the floor is wet."


@pytest.mark.parametrize("heading", ["Args", "Arguments", "Parameters"])
def test_parameters_are_described_in_google_style(heading: str) -> None:
    text = f"""Walk.

    {heading}:
        steps: How many.
        pace (str, optional): How fast;
            slow is healthy,

            they say.
        *stops: Where to rest.
        **options: Anything: really.
        empty:
        later:
            Below its name.

    Returns:
        far: How far.

    Raises:
        ValueError: Never.
    """

    assert read_docstring(text).parameters == {
        "steps": "How many.",
        "pace": "How fast; slow is healthy, they say.",
        "stops": "Where to rest.",
        "options": "Anything: really.",
        "empty": "",
        "later": "Below its name.",
    }


def test_parameters_are_described_in_sphinx_style() -> None:
    text = """Walk.

    :param steps: How many.
    :param str pace: How fast;
        slow is healthy.
    :type pace: str
        or so
    :param dict[str, int] stops: Where to rest.
    :returns: How far.
    """

    assert read_docstring(text) == Docstring(
        "Walk.",
        {"steps": "How many.", "pace": "How fast; slow is healthy.", "stops": "Where to rest."},
    )


def test_sections_that_describe_no_parameters_describe_none() -> None:
    text = """Walk.

    Examples:
        steps: 5

    Attributes:
        pace: Slow.

    Args:
        steps: How many.
    """

    assert read_docstring(text) == Docstring("Walk.", {"steps": "How many."})


def test_a_line_that_is_no_entry_is_part_of_none() -> None:
    text = """Walk.

    Args:
        see the manual
        steps: How many.
    that is all
        and this is nothing
    """

    assert read_docstring(text).parameters == {"steps": "How many."}


def test_a_docstring_of_one_line_is_its_description() -> None:
    assert read_docstring("  Walk.  ") == Docstring("Walk.", {})


def test_a_docstring_may_hold_nothing_but_parameters() -> None:
    assert read_docstring(":param steps: How many.") == Docstring("", {"steps": "How many."})
    assert read_docstring("Args:\n    steps: How many.") == Docstring("", {"steps": "How many."})
