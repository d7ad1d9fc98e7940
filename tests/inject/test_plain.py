"""Tools as every SDK accepts them, and the conversation that they belong to."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from table_tests import every_row

from callyard import (
    Call,
    Caller,
    ClientRequest,
    Envelope,
    Image,
    Operation,
    Profile,
    Session,
    Surface,
    Text,
    ToolError,
    Toolset,
    Yard,
    current_call,
    tool,
)
from callyard.dispatch.progress import Progress
from callyard.inject import Conversation, plain_tools
from callyard.inject.plain import import_sdk
from callyard.testing import FakeSink


@tool(operation="query")
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@tool(operation="destroy")
def wipe() -> None:
    """Delete everything."""
    raise AssertionError


QUERIES = Profile(name="queries", toolsets=(Toolset(name="queries", operations=(Operation.QUERY,)),))


async def test_a_plain_tool_is_a_name_a_schema_and_an_async_function() -> None:
    async with Yard(tools=[add]) as yard:
        [plain] = plain_tools(yard)
        answer = await plain({"a": 1})

    assert (plain.name, plain.description, plain.schema) == (
        plain.spec.name,
        plain.spec.description,
        plain.spec.input_schema,
    )
    assert (answer.envelope.data, answer.is_error, answer.blocks) == (3, False, ())
    assert Envelope.from_json(answer.text) == answer.envelope


@pytest.mark.parametrize("arguments", [{"a": 1, "b": 2}, '{"a": 1, "b": 2}', b'{"a": 1, "b": 2}'])
async def test_arguments_are_data_or_json(arguments: Any) -> None:
    async with Yard(tools=[add]) as yard:
        answer = await plain_tools(yard)[0](arguments)

    assert answer.envelope.data == 3


@every_row("arguments", ['{"a": ', "[]", "nonsense", {"a": "x"}, "", None])
async def test_wrong_arguments_are_a_result(arguments: Any) -> None:
    async with Yard(tools=[add]) as yard:
        answer = await plain_tools(yard)[0](arguments)

    assert answer.envelope.error is not None
    assert (answer.envelope.error.code, answer.is_error) == ("invalid_input", True)


async def test_a_call_to_a_closed_yard_is_a_result() -> None:
    async with Yard(tools=[add]) as yard:
        [plain] = plain_tools(yard)

    answer = await plain({"a": 1})

    assert answer.envelope.error is not None
    assert (answer.envelope.error.code, answer.envelope.error.may_have_run) == ("overloaded", False)


async def test_a_tool_that_the_profile_hides_is_not_there() -> None:
    async with Yard(tools=[add, wipe], profiles=[QUERIES]) as yard:
        conversation = Conversation(yard, profile="queries")
        envelope = await conversation.call("wipe")

        assert [plain.name for plain in conversation.tools()] == ["add"]
        assert [plain.name for plain in plain_tools(yard, caller=Caller(profile=QUERIES))] == ["add"]
    assert envelope.error is not None
    assert envelope.error.code == "tool_not_found"


async def test_records_say_who_called_and_how() -> None:
    sink = FakeSink()
    async with Yard(tools=[add], sinks=[sink]) as yard:
        await Conversation(yard, caller=Caller(identity="ann"), scope="chat 1", client="my agent").call("add", {"a": 1})

    record = sink.records[0]
    assert (record.identity, record.scope, record.channel) == ("ann", "chat 1", "inject")


async def test_two_conversations_have_scopes_of_their_own_unless_one_is_given() -> None:
    async with Yard(tools=[add]) as yard:
        scopes = [Conversation(yard).caller.scope, Conversation(yard).caller.scope]

        assert len({*scopes, ""}) == 3
        assert Conversation(yard, scope="a").caller == Conversation(yard, scope="a").caller
        assert Conversation(yard, caller=Caller(scope="b")).caller.scope == "b"


async def test_an_adapter_takes_options_or_a_conversation_but_not_both() -> None:
    async with Yard(tools=[add]) as yard:
        conversation = Conversation(yard)

        assert plain_tools(conversation)[0].conversation is conversation
        with pytest.raises(TypeError):
            plain_tools(conversation, scope="other")


async def test_progress_and_log_lines_go_to_the_host() -> None:
    @tool(operation="query")
    async def work(call: Call) -> None:
        """Work, and say so."""
        call.progress(1, 2, "half")
        call.log("info", "begun", number=1)

    notes: list[Progress] = []
    lines: list[tuple[str, str, Mapping[str, object]]] = []
    async with Yard(tools=[work]) as yard:
        await Conversation(
            yard, progress=notes.append, log=lambda level, text, facts: lines.append((level, text, facts))
        ).call("work")

    assert notes == [Progress(1, 2, "half")]
    assert lines == [("info", "begun", {"number": 1})]


async def test_the_metadata_of_the_sdk_reaches_the_handler() -> None:
    @tool(operation="query")
    async def look() -> Any:
        """Return the metadata of the request."""
        return dict(current_call().channel.meta)

    async with Yard(tools=[look]) as yard:
        envelope = await Conversation(yard).call("look", meta={"id": "call 1"})

    assert envelope.data == {"id": "call 1"}


class Counter:
    """Sessions that count."""

    @tool(operation="command")
    async def open_counter(self, call: Call) -> str:
        """Open a counter."""
        session = call.start_session(kind="counter")
        session.state["n"] = 0
        return session.id

    @tool(operation="command", session="required")
    async def count_up(self, session: Session) -> int:
        """Count up."""
        session.state["n"] += 1
        return session.state["n"]


@every_row("arguments", [{}, None, "", "{}"])
async def test_tools_use_the_session_of_the_conversation_if_the_model_names_none(arguments: Any) -> None:
    async with Yard(tools=[Counter(), add]) as yard:
        caller = Caller(scope="chat")
        first, second = [(await Conversation(yard, caller=caller).call("open_counter")).data for _ in range(2)]
        conversation = Conversation(yard, caller=caller, session=first)
        await conversation.call("count_up", arguments)

        assert (await conversation.call("count_up", arguments)).data == 2
        assert (await conversation.call("count_up", {"session_id": second})).data == 1
        assert (await conversation.call("add", {"a": 1})).data == 3
        for wrong in ("{", "[]"):
            error = (await conversation.call("count_up", wrong)).error
            assert error is not None
            assert error.code == "invalid_input"


async def test_the_host_cancels_the_calls_of_one_conversation_alone() -> None:
    begun = asyncio.Barrier(3)

    @tool(operation="query")
    async def wait(call: Call) -> None:
        """Wait for ever."""
        await begun.wait()
        await asyncio.Event().wait()

    async with Yard(tools=[wait]) as yard:
        one, other = (Conversation(yard, caller=Caller(identity=name), scope="chat") for name in ("ann", "bob"))
        calls = [
            asyncio.create_task(conversation.call("wait", meta=meta))
            for conversation, meta in ((one, {"id": 1}), (other, None))
        ]
        await begun.wait()

        assert one.cancel() == 1
        envelope = await calls[0]
        assert envelope.error is not None
        assert envelope.error.code == "cancelled"
        assert not calls[1].done()
        assert (one.cancel(), other.cancel()) == (0, 1)
        await calls[1]


async def test_a_cancelled_task_cancels_its_call() -> None:
    sink, begun = FakeSink(), asyncio.Event()

    @tool(operation="query")
    async def wait() -> None:
        """Wait for ever."""
        begun.set()
        await asyncio.Event().wait()

    async with Yard(tools=[wait], sinks=[sink]) as yard:
        call = asyncio.create_task(plain_tools(yard)[0]())
        await begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    assert sink.codes == ["cancelled"]


FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}


@tool(operation="query")
async def ask_client(method: str, call: Call) -> Any:
    """Ask the client for something."""
    if method == "form":
        return await call.ask(FORM, "Sure?")
    request = (
        ClientRequest.roots()
        if method == "roots"
        else ClientRequest("elicitation/create", {"mode": "url", "message": "x", "url": "https://host.example/y"})
    )
    return await call.ask_all({"answer": request})


async def refuse(_: str, __: Mapping[str, Any]) -> None:
    return None


async def accept(_: str, __: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"sure": True}


async def misunderstand(_: str, __: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"sure": "perhaps"}


@every_row(
    ("elicit", "method", "code"),
    [
        (accept, "form", None),
        (refuse, "form", "approval_denied"),
        (misunderstand, "form", "invalid_input"),
        (None, "form", "not_supported"),
        (accept, "roots", "not_supported"),
        (accept, "url", "state_error"),
    ],
)
async def test_the_host_is_asked_what_a_form_can_ask(elicit: Any, method: str, code: str | None) -> None:
    async with Yard(tools=[ask_client]) as yard:
        conversation = Conversation(yard) if elicit is None else Conversation(yard, elicit=elicit)
        envelope = await conversation.call("ask_client", {"method": method})

    assert (envelope.error.code if envelope.error else None) == code
    assert code or envelope.data == {"sure": True}


async def test_content_follows_the_text() -> None:
    @tool(operation="query")
    def paint() -> Envelope:
        """Paint."""
        return Envelope.ok("painted", content=[Image(b"1"), Text("a dot")])

    async with Yard(tools=[paint]) as yard:
        answer = await plain_tools(yard)[0]()

    assert [block["type"] for block in answer.blocks] == ["image", "text"]
    assert (answer.images, answer.image_urls) == ([("image/png", "MQ==")], ["data:image/png;base64,MQ=="])


async def test_a_plain_tool_shows_its_texts_and_its_failures_are_envelopes() -> None:
    @tool(operation="query", shape="plain")
    def greet(name: str) -> list[Any]:
        """Greet."""
        if name == "nobody":
            raise ToolError("not_found", "There is nobody.")
        return [Text("Hello,"), Text(name), Image(b"1")]

    async with Yard(tools=[greet]) as yard:
        [plain] = plain_tools(yard)
        greeting, failure = await plain({"name": "Ann"}), await plain({"name": "nobody"})

    assert (greeting.text, len(greeting.images)) == ("Hello,\nAnn", 1)
    assert json.loads(failure.text)["error"]["code"] == "not_found"


async def test_the_text_for_the_system_prompt_names_tools_as_the_model_calls_them() -> None:
    def prefixed(name: str) -> str:
        return f"x_{name}"

    many = [tool(operation="query")(_numbered(number)) for number in range(40)]
    async with Yard("shop", tools=[add], instructions="Be kind.") as yard:
        text = Conversation(yard).instructions(prefixed)
        empty = Conversation(
            yard, profile=Profile(name="none", toolsets=(Toolset(name="none", names=("nothing",)),))
        ).instructions()
    async with Yard("mall", tools=many, profile=Profile(name="meta", surface=Surface.META)) as yard:
        meta = Conversation(yard).instructions(prefixed)
    async with Yard("mall", tools=many, profile=Profile(name="direct", surface=Surface.DIRECT)) as yard:
        direct = Conversation(yard).instructions(prefixed)

    assert "'shop': x_add." in text
    assert text.endswith("Be kind.")
    assert empty == "Be kind."
    assert "x_search_tools" in meta
    assert " search_tools" not in meta
    assert "and 28 more" in direct


def _numbered(number: int) -> Any:
    def numbered() -> int:
        return number

    numbered.__name__ = f"tool_{number}"
    numbered.__doc__ = "Return a number."
    return numbered


def test_an_sdk_that_is_missing_is_named_with_its_extra() -> None:
    with pytest.raises(ImportError, match=r"no_such_sdk.*callyard\[none\]"):
        import_sdk("no_such_sdk.tools", extra="none")
