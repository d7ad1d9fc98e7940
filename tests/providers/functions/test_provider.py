import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, Field
from table_tests import every_row

from callyard import (
    Call,
    Envelope,
    EvalRule,
    Example,
    Functions,
    PublishError,
    Reason,
    Session,
    Tool,
    ToolError,
    Yard,
    tool,
)
from callyard.model.spec import Annotations, Operation
from callyard.providers.functions import tool_from
from callyard.providers.functions.provider import ToolOptions
from callyard.providers.functions.signature import options_of


class Point(BaseModel):
    x: int
    y: int = 0


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    return tool_from(function, source="s").spec.input_schema


def names_of(*items: object) -> list[str]:
    return [made.spec.name for made in Functions("s", items).tools()]


async def answer_of(function: object, name: str, /, **arguments: Any) -> Envelope:
    async with Yard(tools=[function]) as yard:
        return await yard.call(name, arguments)


def test_a_decorated_function_stays_a_function() -> None:
    def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    for decorated in (tool(add), tool(operation="query", timeout=5)(add)):
        assert decorated is add
        assert decorated(1) == 2
        assert (decorated.__name__, decorated.__doc__) == ("add", "Add.")


async def test_a_decorated_coroutine_function_stays_one() -> None:
    @tool
    async def add(a: int) -> int:
        """Add."""
        return a + 1

    assert inspect.iscoroutinefunction(add)
    assert await add(1) == 2


def test_a_function_needs_no_decorator() -> None:
    def walk(steps: int) -> int:
        """Walk."""
        return steps

    spec = tool_from(walk, source="s").spec

    assert (spec.name, spec.description, spec.operation, spec.operation_assumed) == (
        "walk",
        "Walk.",
        Operation.COMMAND,
        True,
    )
    assert (spec.source, spec.session, spec.shape) == ("s", "none", "envelope")


def test_a_function_without_a_docstring_is_described_by_its_name() -> None:
    def close_the_account() -> int:
        raise AssertionError

    assert tool_from(close_the_account, source="s").spec.description == "Close the account."


def test_the_decorator_declares_facts_that_a_signature_cannot() -> None:
    hints = Annotations(read_only_hint=False, destructive_hint=False, idempotent_hint=True, open_world_hint=True)

    @tool(
        name="renamed",
        title="Title",
        description="Otherwise.",
        operation="destroy",
        session="optional",
        tags=["a", "b"],
        examples=[{"n": 1}, Example({"n": 2}, "two")],
        reasons={"closed": Reason("state_error", ("id",)), "gone": ("when",)},
        timeout=5,
        timeout_hint="Wait.",
        serial=True,
        priority="background",
        idempotent=True,
        requires_eval=True,
        aliases=["old"],
        deprecated="Use another.",
        shape="plain",
        annotations=hints,
    )
    def walk(n: int) -> int:
        """Walk."""
        return n

    spec = tool_from(walk, source="s").spec

    assert (spec.name, spec.title, spec.operation, spec.operation_assumed) == (
        "renamed",
        "Title",
        Operation.DESTROY,
        False,
    )
    assert spec.summary == "Otherwise."
    assert (spec.session, spec.tags, spec.examples) == (
        "optional",
        ("a", "b"),
        (Example({"n": 1}), Example({"n": 2}, "two")),
    )
    assert spec.reasons == {"closed": Reason("state_error", ("id",)), "gone": Reason("state_error", ("when",))}
    assert (spec.timeout, spec.timeout_hint, spec.serial, spec.priority) == (5, "Wait.", True, "background")
    assert (spec.idempotent, spec.requires_eval, spec.aliases, spec.deprecated) == (
        True,
        True,
        ("old",),
        "Use another.",
    )
    assert (spec.shape, spec.hints()) == ("plain", hints)


def test_one_name_may_stand_where_several_may() -> None:
    @tool(tags="alone", aliases="old", reasons="closed")
    def walk() -> int:
        """Walk."""
        raise AssertionError

    spec = tool_from(walk, source="s").spec

    assert (spec.tags, spec.aliases, spec.reasons) == (("alone",), ("old",), {"closed": Reason()})


def test_an_option_nobody_knows_fails_where_it_is_written() -> None:
    decorate: Any = tool

    with pytest.raises(TypeError):
        decorate(opperation="query")


def test_an_eval_tool_guards_its_code_and_requires_the_flag() -> None:
    @tool(operation="eval")
    def run(code: str) -> str:
        """Run."""
        return code

    @tool(operation="eval", eval=EvalRule("query", "sql"))
    def ask(query: str) -> str:
        """Ask."""
        return query

    assert (tool_from(run, source="s").spec.eval, tool_from(run, source="s").spec.requires_eval) == (
        EvalRule("code"),
        True,
    )
    assert tool_from(ask, source="s").spec.eval == EvalRule("query", "sql")


def test_the_description_ends_with_the_codes_that_an_agent_would_not_expect() -> None:
    @tool(reasons={"closed": Reason("state_error"), "slow": Reason("timeout")}, session="required")
    def walk() -> int:
        """Walk.

        Slowly.
        """
        raise AssertionError

    *description, last = tool_from(walk, source="s").spec.description.splitlines()

    assert description == ["Walk.", "", "Slowly.", ""]
    assert "not_running, state_error" in last
    assert "timeout" not in last


def test_parameters_are_described_by_their_docstring_unless_they_say_more() -> None:
    def walk(
        steps: int,
        pace: Annotated[str, Field(description="Said here.")] = "slow",
        *,
        point: Point | None = None,
        silent: bool = False,
    ) -> int:
        """Walk.

        Args:
            steps: How many.
            pace: Said in the docstring.
            point (Point): Where to.
            nothing: There is no such parameter.
        """
        raise AssertionError

    properties = schema_of(walk)["properties"]

    assert {name: inner.get("description") for name, inner in properties.items()} == {
        "steps": "How many.",
        "pace": "Said here.",
        "point": "Where to.",
        "silent": None,
    }


def test_the_schema_of_plain_arguments() -> None:
    def walk(steps: int, pace: str = "slow", *, stops: list[str] | None = None, exact: bool = False) -> int:
        """Walk.

        :param steps: How many.
        """
        raise AssertionError

    assert schema_of(walk) == {
        "type": "object",
        "additionalProperties": False,
        "required": ["steps"],
        "properties": {
            "steps": {"type": "integer", "description": "How many."},
            "pace": {"type": "string", "default": "slow"},
            "stops": {"anyOf": [{"items": {"type": "string"}, "type": "array"}, {"type": "null"}]},
            "exact": {"type": "boolean", "default": False},
        },
    }


def test_a_function_without_arguments_takes_an_empty_object() -> None:
    def walk() -> int:
        """Walk."""
        raise AssertionError

    assert schema_of(walk) == {"type": "object", "additionalProperties": False, "properties": {}}


def test_an_argument_without_an_annotation_may_be_anything() -> None:
    def walk(what: Any) -> int:
        """Walk."""
        raise AssertionError

    walk.__annotations__.clear()

    assert schema_of(walk)["properties"] == {"what": {}}


@every_row(
    ("annotation", "default", "fits"),
    [
        (int, "x", False),
        (int, None, False),
        (int, 1.5, False),
        (str, 1, False),
        (list[int], ["a"], False),
        (int | None, "x", False),
        (float, 1, True),
        (int | None, None, True),
        (Any, None, True),
        (Any, object(), False),
        (list[int], [object()], False),
        (str, "\ud800", False),
        (dict, {"a": {1, 2}}, True),
    ],
)
def test_a_default_that_does_not_fit_or_cannot_be_written_names_tool_and_parameter(
    annotation: Any, default: Any, *, fits: bool
) -> None:
    def walk(what: Any, other: int) -> int:
        """Walk."""
        raise AssertionError

    walk.__annotations__["what"] = annotation
    walk.__kwdefaults__ = None
    walk.__defaults__ = (default, 0)

    if fits:
        assert schema_of(walk)
        return
    with pytest.raises(PublishError, match=r"'walk'.*'what'"):
        schema_of(walk)


async def test_a_default_that_was_changed_is_fresh_for_the_next_call() -> None:
    @tool
    async def add(n: int, to: list[int] = [], seen: dict[str, int] = {}) -> list[int]:  # noqa: B006 - that is the point
        """Add."""
        to.append(n)
        seen["n"] = n
        return [*to, len(seen)]

    async with Yard(tools=[add]) as yard:
        answers = [await yard.call("add", {"n": n}) for n in (1, 2)]

    assert [answer.data for answer in answers] == [[1, 1], [2, 1]]


async def test_the_call_and_the_session_are_filled_in_and_stay_out_of_the_schema() -> None:
    @tool
    async def begin(call: Call) -> str:
        """Start."""
        return call.start_session().id

    @tool
    async def both(n: int, call: Call, session: Session) -> list[Any]:
        """Use both."""
        return [n, call.spec.name, session.id]

    @tool
    def threaded(context: Call, n: int, browser: Session | None) -> list[Any]:
        """Use both in a thread."""
        return [n, context.spec.name, browser is not None]

    assert set(schema_of(both)["properties"]) == {"n", "session_id"}
    assert set(schema_of(begin)["properties"]) == set()
    async with Yard(tools=[begin, both, threaded]) as yard:
        none = await yard.call("threaded", {"n": 1})
        session = (await yard.call("begin")).data
        answers = [
            (await yard.call("both", {"n": 1})).data,
            (await yard.call("threaded", {"n": 2, "session_id": session})).data,
        ]

    assert none.data == [1, "threaded", False]
    assert answers == [[1, "both", session], [2, "threaded", True]]


async def test_a_session_tool_takes_the_id_of_its_session_though_its_function_does_not() -> None:
    @tool(session="optional")
    async def walk(n: int) -> int:
        """Walk."""
        return n

    schema = schema_of(walk)
    assert schema["properties"]["session_id"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert schema["properties"]["session_id"]["description"]
    assert schema["required"] == ["n"]
    assert (await answer_of(walk, "walk", n=1)).data == 1
    assert (await answer_of(walk, "walk", n=1, session_id=None)).data == 1


@pytest.mark.parametrize("session", ["none", "optional"])
def test_a_function_that_needs_a_session_cannot_be_said_to_need_none(session: Any) -> None:
    @tool(session=session)
    async def walk(where: Session) -> int:
        """Walk."""
        raise AssertionError

    with pytest.raises(PublishError, match="'walk'"):
        tool_from(walk, source="s")


def test_a_session_that_is_mistyped_names_the_tool() -> None:
    session: Any = "requird"

    @tool(session=session)
    async def walk() -> int:
        """Walk."""
        raise AssertionError

    with pytest.raises(PublishError, match="'walk'"):
        tool_from(walk, source="s")


def test_a_function_that_can_do_without_a_session_may_be_said_to_need_one() -> None:
    @tool(session="required")
    async def walk(where: Session | None) -> int:
        """Walk."""
        raise AssertionError

    assert tool_from(walk, source="s").spec.session == "required"


async def test_a_function_that_takes_the_id_itself_gets_it() -> None:
    @tool(session="optional")
    async def walk(session_id: str | None = None) -> str | None:
        """Walk.

        Args:
            session_id: Said otherwise.
        """
        return session_id

    @tool
    async def begin(call: Call) -> str:
        """Start."""
        return call.start_session(session_id="s_mine").id

    assert schema_of(walk)["properties"]["session_id"]["description"] == "Said otherwise."
    async with Yard(tools=[walk, begin]) as yard:
        await yard.call("begin")
        answer = await yard.call("walk", {"session_id": "s_mine"})

    assert (answer.data, answer.meta.session_id) == ("s_mine", "s_mine")


async def test_arguments_may_be_positional_only() -> None:
    @tool
    def first(a: int, b: int = 2, /, c: int = 3) -> list[int]:
        """Take."""
        return [a, b, c]

    @tool
    async def second(a: int, /, *, b: int) -> list[int]:
        """Take."""
        return [a, b]

    @tool
    async def third(call: Call, a: int, session: Session | None, /, b: int = 2) -> list[Any]:
        """Take."""
        return [call.spec.name, a, session, b]

    assert (await answer_of(first, "first", a=1)).data == [1, 2, 3]
    assert (await answer_of(first, "first", a=1, b=5, c=6)).data == [1, 5, 6]
    assert (await answer_of(second, "second", a=1, b=2)).data == [1, 2]
    assert (await answer_of(third, "third", a=1)).data == ["third", 1, None, 2]


async def test_an_async_function_runs_on_the_loop_and_another_in_a_thread() -> None:
    @tool
    async def here() -> bool:
        """Tell."""
        return threading.current_thread() is threading.main_thread()

    @tool
    def there() -> bool:
        """Tell."""
        return threading.current_thread() is threading.main_thread()

    assert (await answer_of(here, "here")).data is True
    assert (await answer_of(there, "there")).data is False


async def test_a_plain_function_may_return_something_to_await() -> None:
    async def work(n: int) -> int:
        return n + 1

    @tool
    def begin(n: int) -> Any:
        """Begin."""
        return work(n)

    assert (await answer_of(begin, "begin", n=1)).data == 2


class Counter:
    """An object whose methods are tools."""

    def __init__(self) -> None:
        self.count = 0

    @tool(operation="command")
    async def increase(self, by: int = 1) -> int:
        """Count up."""
        self.count += by
        return self.count

    @tool(operation="query")
    def look(self) -> int:
        """Look."""
        return self.count

    @staticmethod
    @tool
    def below() -> str:
        """Be static, marked below."""
        return "below"

    @tool(operation="query")
    @staticmethod
    def above() -> str:
        """Be static, marked above."""
        return "above"

    @classmethod
    @tool
    def of_class(cls) -> str:
        """Be of the class, marked below."""
        return cls.__name__

    @tool(tags=["class"])
    @classmethod
    def of_the_class(cls) -> str:
        """Be of the class, marked above."""
        return cls.__name__

    def helper(self) -> NotImplementedError:
        raise AssertionError

    @property
    def broken(self) -> int:
        raise AssertionError


async def test_the_decorated_methods_of_an_object_are_tools() -> None:
    counter = Counter()
    async with Yard(tools=[counter]) as yard:
        specs = {spec.name: spec for spec in yard.list()}
        await yard.call("increase", {"by": 2})
        answers = [(await yard.call(name)).data for name in sorted(specs) if name != "increase"]

    assert sorted(specs) == ["above", "below", "increase", "look", "of_class", "of_the_class"]
    assert answers == ["above", "below", 2, "Counter", "Counter"]
    assert counter.count == 2
    assert (specs["above"].operation, specs["of_the_class"].tags) == (Operation.QUERY, ("class",))
    assert all("self" not in spec.input_schema["properties"] for spec in specs.values())


async def test_one_method_alone_may_be_a_tool() -> None:
    counter = Counter()

    assert (await answer_of(counter.increase, "increase", by=5)).data == 5


def test_methods_of_a_subclass_are_tools_too() -> None:
    class Better(Counter):
        @tool
        def reset(self) -> int:
            """Reset."""
            raise AssertionError

    assert names_of(Better()) == ["above", "below", "increase", "look", "of_class", "of_the_class", "reset"]


async def test_a_partial_is_a_tool_under_the_name_of_its_function() -> None:
    @tool(operation="query", tags=["math"])
    async def add(a: int, b: int, c: int = 0) -> list[int]:
        """Add."""
        return [a, b, c]

    def multiply(a: int, b: int) -> int:
        """Multiply."""
        return a * b

    spec = tool_from(partial(partial(add, 1), c=5), source="s").spec
    assert (spec.name, spec.description, spec.operation, spec.tags) == ("add", "Add.", Operation.QUERY, ("math",))
    assert spec.input_schema["required"] == ["b"]
    assert (await answer_of(partial(partial(add, 1), c=5), "add", b=2)).data == [1, 2, 5]
    assert (await answer_of(tool(name="double")(partial(multiply, 2)), "double", b=4)).data == 8


async def test_an_object_that_can_be_called_is_a_tool_once_it_is_marked() -> None:
    class Adder:
        """Add things."""

        def __init__(self, by: int) -> None:
            self.by = by

        async def __call__(self, n: int) -> int:
            """Add one thing."""
            return n + self.by

    class Threaded:
        def __call__(self, n: "int") -> int:
            return n + 1

    assert (await answer_of(tool(name="adder")(Adder(5)), "adder", n=1)).data == 6
    assert (await answer_of(tool(name="threaded")(Threaded()), "threaded", n=1)).data == 2
    assert (await answer_of(tool(name="partly")(partial(Threaded())), "partly", n=1)).data == 2


async def test_a_wrapped_function_is_a_tool_with_the_signature_of_what_is_inside() -> None:
    def logged(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @logged
    @tool(operation="query")
    async def add(a: int, b: int = 1) -> int:
        """Add."""
        return a + b

    made = tool_from(add, source="s")
    assert (made.spec.operation, set(made.spec.input_schema["properties"])) == (Operation.QUERY, {"a", "b"})
    assert (await answer_of(add, "add", a=1)).data == 2


def test_a_generator_cannot_become_a_tool() -> None:
    @tool
    def one_by_one() -> Iterator[int]:
        """Give one by one."""
        yield 1

    @tool
    async def one_after_another() -> AsyncIterator[int]:
        """Give one after another."""
        yield 1

    for function in (one_by_one, one_after_another):
        with pytest.raises(PublishError, match=f"'{function.__name__}'"):
            tool_from(function, source="s")


def test_a_lambda_is_a_tool_once_it_has_a_name() -> None:
    with pytest.raises(PublishError):
        names_of(lambda: 1)

    assert names_of(tool(name="one")(lambda: 1)) == ["one"]


def test_a_builtin_may_be_a_tool() -> None:
    assert names_of(len) == ["len"]


def test_a_tool_made_by_hand_is_published_as_it_is() -> None:
    made = tool_from(Counter().look, source="elsewhere")

    assert Functions("s", [made]).tools() == [made]


@every_row("item", [5, "walk", object(), Counter, None, [Counter()]])
def test_an_object_without_tools_fails_with_its_type(item: object) -> None:
    with pytest.raises(PublishError, match=f"'{type(item).__name__}'"):
        names_of(item)


@pytest.mark.parametrize("operation", ["delete", "QUERY", "Query "])
async def test_a_wrong_operation_fails_when_it_is_published(operation: Any) -> None:
    @tool(operation=operation)
    async def walk() -> int:
        """Walk."""
        raise AssertionError

    with pytest.raises(PublishError, match="'walk'"):
        async with Yard(tools=[walk]):
            raise AssertionError


async def test_everything_wrong_with_a_function_fails_when_the_yard_opens_and_names_the_tool() -> None:
    @tool(examples=[{"n": 1}] * 6)
    def too_many_examples(n: int) -> int:
        """Walk."""
        return n

    @tool(examples=[{"n": "many"}])
    def wrong_example(n: int) -> int:
        """Walk."""
        return n

    @tool(operation="eval")
    def eval_without_code(script: str) -> str:
        """Run."""
        return script

    @tool(name="Capital")
    def capital() -> int:
        """Walk."""
        raise AssertionError

    @tool(name="w" * 49)
    def too_long() -> int:
        """Walk."""
        raise AssertionError

    @tool(timeout=-1)
    def negative() -> int:
        """Walk."""
        raise AssertionError

    wrong = [too_many_examples, wrong_example, eval_without_code, capital, too_long, negative]
    for function in wrong:
        options = options_of(ToolOptions, function)
        assert options is not None
        with pytest.raises(PublishError, match=f"'{options.name or function.__name__}'"):
            async with Yard(tools=[function]):
                raise AssertionError


async def test_arguments_arrive_as_their_types_whatever_the_caller_gave() -> None:
    @tool
    async def show(point: Point, when: datetime, which: UUID, points: list[Point]) -> list[str]:
        """Show."""
        return [type(value).__name__ for value in (point, when, which, points[0])]

    async with Yard(tools=[show]) as yard:
        as_json = await yard.call(
            "show", {"point": {"x": 1}, "when": "2026-01-02T00:00:00Z", "which": str(UUID(int=1)), "points": [{"x": 1}]}
        )
        as_objects = await yard.call(
            "show",
            {
                "point": Point(x=1),
                "when": datetime(2026, 1, 2, tzinfo=UTC),
                "which": UUID(int=1),
                "points": (Point(x=1),),
            },
        )

    assert as_json.data == as_objects.data == ["Point", "datetime", "UUID", "Point"]


async def test_a_tool_that_fails_says_so_in_its_own_words() -> None:
    @tool(reasons=["closed"])
    def walk() -> int:
        """Walk."""
        raise ToolError("state_error", "…", reason="closed")

    answer = await answer_of(walk, "walk")

    assert answer.error is not None
    assert (answer.error.code, answer.error.details) == ("state_error", {"reason": "closed"})


async def test_functions_may_come_from_several_places() -> None:
    @tool
    async def walk() -> str:
        """Walk."""
        return "walked"

    async with Yard(providers=[Functions("one", [walk]), Functions("two", [Counter()])]) as yard:
        assert {spec.source for spec in yard.list()} == {"one", "two"}
        assert (await yard.call("walk")).data == "walked"


def test_an_undecorated_function_has_no_options() -> None:
    class Marked:
        __callyard_tool__ = "something else"

    assert options_of(ToolOptions, len) is None
    assert options_of(ToolOptions, Marked()) is None
    assert options_of(ToolOptions, Counter.look) is not None


def test_a_tool_cannot_be_changed() -> None:
    made: Tool = tool_from(Counter().look, source="s")

    with pytest.raises(AttributeError):
        made.spec = made.spec  # pyright: ignore[reportAttributeAccessIssue] - that is the point


async def test_a_number_of_more_digits_than_can_be_read_is_refused() -> None:
    async def half(a: bool) -> bool:  # noqa: FBT001 - a tool's argument
        """Halve."""
        return a

    async with Yard(tools=[half]) as yard:
        answer = await yard.call("half", msgspec.Raw(b'{"a":' + b"1" * 5000 + b"}"))

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
