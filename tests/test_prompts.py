from typing import Any

import pytest

from toolyard import (
    Call,
    Caller,
    Embedded,
    Envelope,
    Image,
    Limits,
    Message,
    Profile,
    Prompt,
    PromptArgument,
    PromptSpec,
    PublishError,
    ResourceLink,
    Session,
    Text,
    Toolset,
    Yard,
    prompt,
)
from toolyard.testing import FakeSink, connect


@prompt
def greet(who: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        who: Whom to greet.
    """
    return f"Greet {who} {times} times."


async def ask(function: Any, arguments: dict[str, Any] | None = None, **given: Any) -> Envelope:
    async with Yard(prompts=[function], **given) as yard:
        return await yard.prompt("greet" if function is greet else function.__name__, arguments)


def text(role: str, said: str) -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": said}}


@pytest.mark.parametrize(
    ("result", "messages"),
    [
        ("hello", [text("user", "hello")]),
        (Text("hello"), [text("user", "hello")]),
        (Message("assistant", "hello"), [text("assistant", "hello")]),
        (["one", Message("assistant", Text("two"))], [text("user", "one"), text("assistant", "two")]),
        ((), []),
        (Image(b""), [{"role": "user", "content": {"type": "image", "data": "", "mimeType": "image/png"}}]),
        (ResourceLink("a://b", "b"), [{"role": "user", "content": {"type": "resource_link", "uri": "a://b", "name": "b"}}]),
        (
            Embedded("a://b", text="x"),
            [{"role": "user", "content": {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "x"}}}],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_what_a_function_returns_becomes_messages(result: object, messages: list[Any]) -> None:
    @prompt
    async def say() -> Any:
        """Say it."""
        return result

    answer = await ask(say)

    assert answer.data == {"description": "Say it.", "messages": messages}
    assert answer.content == ()


@pytest.mark.parametrize("result", [None, 7, {"role": "user"}, [["nested"]]], ids=str)
async def test_what_is_no_message_is_the_functions_fault(result: object) -> None:
    @prompt
    async def say() -> Any:
        return result

    answer = await ask(say)

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame) == ("invalid_output", "tool")


def test_a_message_is_said_by_somebody_and_holds_something() -> None:
    with pytest.raises(ValueError, match="system"):
        Message("system", "hello")  # pyright: ignore[reportArgumentType] - that is the point
    with pytest.raises(TypeError, match="dict"):
        Message("user", {})  # pyright: ignore[reportArgumentType] - that is the point


async def test_arguments_come_as_texts_and_are_converted() -> None:
    answer = await ask(greet, {"who": "5", "times": "3"}, limits=Limits(repair=False))

    assert answer.data["messages"] == [text("user", "Greet 5 3 times.")]
    assert answer.meta.coerced == ()


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [({}, "who", "missing"), ({"who": "a", "whom": "b"}, "whom", "extra_forbidden"), ({"who": "a", "times": "often"}, "times", "int_type")],
)
async def test_arguments_that_do_not_fit_are_an_invalid_input(arguments: dict[str, Any], field: str, code: str) -> None:
    answer = await ask(greet, arguments)

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert [(issue["field"], issue["code"]) for issue in answer.error.details["issues"]] == [(field, code)]


async def test_a_spec_says_what_the_signature_and_the_docstring_say() -> None:
    @prompt(name="hi", title="Hi", description="Say hi.", tags=["small"])
    def other() -> str:
        raise AssertionError

    async with Yard(prompts=[greet, other]) as yard:
        first, second = yard.list_prompts()

    assert first == PromptSpec(
        name="greet",
        description="Greet somebody.",
        arguments=(PromptArgument("who", "Whom to greet.", required=True), PromptArgument("times")),
        source="yard",
    )
    assert second == PromptSpec(name="hi", title="Hi", description="Say hi.", tags=("small",), source="yard")


async def test_a_plain_function_is_a_prompt_and_the_methods_of_an_object_are() -> None:
    def hello() -> str:
        return "plain"

    class Phrases:
        @prompt
        def bye(self) -> str:
            return "method"

    async with Yard(prompts=[hello, Phrases()]) as yard:
        answers = [await yard.prompt(name) for name in ("hello", "bye")]

    assert [answer.data["messages"][0]["content"]["text"] for answer in answers] == ["plain", "method"]


async def test_an_unknown_prompt_is_not_found_and_the_near_ones_are_named() -> None:
    sink = FakeSink()
    async with Yard(prompts=[greet], sinks=[sink]) as yard:
        answer = await yard.prompt("gret", {"who": "a"})

    assert answer.error is not None
    assert answer.error.code == "not_found"
    assert answer.error.details == {"reason": "unknown_prompt", "name": "gret", "similar": ["greet"]}
    assert [(record.tool, record.kind) for record in sink.records] == [("gret", "prompt")]


async def test_a_prompt_leaves_one_record_of_its_kind() -> None:
    sink = FakeSink()
    await ask(greet, {"who": "secret"}, sinks=[sink])

    [record] = sink.records
    assert (record.kind, record.tool, record.code) == ("prompt", "greet", None)
    assert "secret" not in repr(record)


async def test_what_a_profile_denies_does_not_exist() -> None:
    caller = Caller(profile=Profile(name="p", toolsets=(Toolset(name="t", deny=("gr*",)),)))
    async with Yard(prompts=[greet]) as yard:
        answer = await yard.prompt("greet", {"who": "a"}, caller=caller)
        assert yard.list_prompts(caller.profile) == []

    assert answer.error is not None
    assert answer.error.code == "not_found"
    assert answer.error.details["similar"] == []


async def test_a_prompt_may_take_the_call_and_ask() -> None:
    @prompt
    async def say(call: Call) -> str:
        return (await call.ask({"type": "object", "properties": {}}, "What?"))["what"]

    async with connect(Yard(prompts=[say]), answers=[{"what": "this"}]) as client:
        answer = await client.prompt("say")

    assert answer.data["messages"] == [text("user", "this")]


async def test_a_prompt_that_is_too_long_is_not_cut() -> None:
    @prompt
    async def say() -> str:
        return "x" * 1000

    answer = await ask(say, limits=Limits(result_characters=10))

    assert len(answer.data["messages"][0]["content"]["text"]) == 1000


async def test_a_wrong_prompt_is_refused_when_it_is_published() -> None:
    def talk(session: Session) -> str:
        raise AssertionError

    @prompt(complete={"y": lambda _, __: []})
    def say(x: str) -> str:
        raise AssertionError

    @prompt(name="No Word")
    def no_word() -> str:
        raise AssertionError

    for function, why in ((talk, "session"), (say, "'y'"), (no_word, "small letters"), (lambda: "x", "lambda")):
        with pytest.raises(PublishError, match=why):
            await ask(function)
    with pytest.raises(TypeError, match="'title'"):
        prompt(titel="Hi")  # pyright: ignore[reportCallIssue] - that is the point


async def test_a_prompt_of_a_stranger_is_quarantined_if_it_is_wrong() -> None:
    async def handler(call: Call) -> str:
        return str(call.arguments)

    twice = (PromptArgument("a"), PromptArgument("a"))
    good = PromptSpec(name="Good-one", arguments=(PromptArgument("a", required=True), PromptArgument("b")))
    wrong = PromptSpec(name="wrong", arguments=twice)
    async with Yard() as yard:
        yard.registry.publish("up", prompts=[Prompt.of(good, handler), Prompt.of(wrong, handler)], foreign=True)
        answer = await yard.prompt("Good-one", {"a": "1"})
        missing = await yard.prompt("wrong")

    assert answer.data["messages"] == [text("user", "{'a': '1'}")]
    assert missing.error is not None
    assert missing.error.message.startswith("'wrong' is quarantined.")


async def test_a_yard_in_a_yard_shows_its_prompts() -> None:
    inner = Yard("inner", prompts=[greet])
    async with Yard("outer", providers=[inner]) as yard:
        good = await yard.prompt("greet", {"who": "Ann", "times": "2"})
        wrong = await yard.prompt("greet", {})

    assert good.data["messages"] == [text("user", "Greet Ann 2 times.")]
    assert wrong.error is not None
    assert wrong.error.code == "invalid_input"
