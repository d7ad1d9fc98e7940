import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from table_tests import every_row

from callyard import Call, Profile, Toolset, Yard, prompt, resource, tool
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE, Caller
from callyard.metatools import metatool_instructions
from callyard.model.elicitation import ClientRequest
from callyard.server import ServerContext, ServerSession
from callyard.server.session import InFlight
from callyard.testing import FakeProvider
from callyard.wire.messages import INTERNAL, INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, Message
from callyard.wire.versions import HANDSHAKE, LATEST_HANDSHAKE

if TYPE_CHECKING:
    from tests.server.conftest import Meet, Peer

OLD = "2025-11-25"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


@tool
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
async def greet(call: Call) -> str:
    """Greet whoever it is."""
    return f"Hello {(await call.ask(SCHEMA, 'Who?'))['name']}"


@tool
async def say(level: str, call: Call) -> None:
    """Say something at a level."""
    call.log(level, "words", fact=1)


@resource("a://b")
def page() -> str:
    """Return a page."""
    return "text"


@every_row("era", HANDSHAKE)
async def test_a_handshake_ends_with_the_version_that_was_wanted(meet: "Meet", era: str) -> None:
    async with meet(era=era, tools=[add], instructions="Be kind.", version="7") as peer:
        hello = await peer.shake_hands()
        peer.call(1, "add", {"a": 1})
        envelope = await peer.envelope()

    assert hello["protocolVersion"] == era
    assert hello["serverInfo"] == {"name": "met", "version": "7"}
    assert hello["instructions"] == f"Be kind.\n\n{metatool_instructions(())}"
    assert envelope["data"] == 2


async def test_a_handshake_that_wants_what_is_not_spoken_gets_the_newest(meet: "Meet") -> None:
    async with meet(era="1999-01-01") as peer:
        assert (await peer.shake_hands())["protocolVersion"] == LATEST_HANDSHAKE.name


@pytest.mark.parametrize("params", [{}, {"protocolVersion": 5}, {"protocolVersion": OLD, "capabilities": []}])
async def test_a_handshake_that_is_none_is_a_fault(meet: "Meet", params: dict[str, Any]) -> None:
    async with meet(era=OLD) as peer:
        assert (await peer.ask("initialize", params))["error"]["code"] == INVALID_PARAMS


async def test_nothing_but_a_ping_comes_before_the_handshake(meet: "Meet") -> None:
    async with meet(tools=[add]) as peer:
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert (await peer.hear())["result"] == {}
        peer.say({"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
        assert (await peer.hear())["error"]["code"] == INVALID_REQUEST


@every_row("method", ["no/such", "server/discoverer", "", "tools", "subscriptions/none"])
async def test_a_method_that_is_none_is_a_fault(meet: "Meet", method: str) -> None:
    async with meet(era=OLD) as old, meet() as new:
        for peer in (old, new):
            assert (await peer.ask(method))["error"]["code"] == METHOD_NOT_FOUND


async def test_a_method_of_the_other_era_is_none(meet: "Meet") -> None:
    async with meet() as peer:
        for method in ("ping", "logging/setLevel", "resources/subscribe", "initialize"):
            assert (await peer.ask(method, {"level": "info", "uri": "a://b"}))["error"]["code"] == METHOD_NOT_FOUND


async def test_both_eras_can_be_spoken_on_one_line(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[add]) as peer:
        meta: dict[str, Any] = {
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientCapabilities": {},
        }
        modern = await peer.ask("tools/list", meta=meta)
        old = await peer.ask("tools/list")

    assert modern["result"]["resultType"] == "complete"
    assert "resultType" not in old["result"]


async def test_a_defect_of_ours_is_answered_and_the_conversation_goes_on(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> bool:
        raise ZeroDivisionError("hunter2")

    async with meet(era=OLD, tools=[add]) as old, meet(tools=[add]) as new:
        with monkeypatch.context() as patched, caplog.at_level(logging.CRITICAL):
            patched.setattr("callyard.server.lists.Lists.page", fail)
            for peer in (old, new):
                failed = await peer.ask("tools/list")
                assert failed["error"]["code"] == INTERNAL
                assert "hunter2" not in json.dumps(failed)
        for peer in (old, new):
            assert "result" in await peer.ask("tools/list")


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
async def test_the_client_says_from_which_level_on_it_listens(meet: "Meet", capabilities: dict[str, Any]) -> None:
    async with meet(era=OLD, tools=[say], capabilities=capabilities) as peer:
        for level, heard in (("debug", False), ("info", True), ("error", True)):
            peer.call(1, "say", {"level": level})
            await peer.envelope()
            assert bool(peer.notices) is heard
            peer.notices.clear()
        assert (await peer.ask("logging/setLevel", {"level": "error"}))["result"] == {}
        for level, heard in (
            ("info", False),
            ("warning", False),
            ("error", True),
            ("emergency", True),
            ("no such", False),
        ):
            peer.call(1, "say", {"level": level})
            await peer.envelope()
            assert bool(peer.notices) is heard
            peer.notices.clear()


async def test_a_log_line_is_a_notification(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[say]) as peer:
        peer.call(1, "say", {"level": "warning"})
        await peer.envelope()

    assert [notice["method"] for notice in peer.notices] == ["notifications/message"]
    assert peer.notices[0]["params"] == {
        "level": "warning",
        "logger": "callyard",
        "data": {"message": "words", "fact": 1},
    }


@pytest.mark.parametrize("params", [{}, {"level": "loud"}, {"level": 5}])
async def test_a_level_that_is_none_is_a_fault(meet: "Meet", params: dict[str, Any]) -> None:
    async with meet(era=OLD) as peer:
        assert (await peer.ask("logging/setLevel", params))["error"]["code"] == INVALID_PARAMS


async def test_a_client_hears_of_the_resources_it_subscribed_to(meet: "Meet") -> None:
    provider = FakeProvider("p", resources=[page])
    async with meet(era=OLD, providers=[provider]) as peer:
        assert (await peer.ask("resources/unsubscribe", {"uri": "a://b"}))["result"] == {}
        assert (await peer.ask("resources/subscribe", {"uri": "a://b"}))["result"] == {}
        provider.update("a://b")
        heard = await peer.hear()
        await peer.ask("resources/unsubscribe", {"uri": "a://b"})
        provider.update("a://b")
        assert (await peer.ask("ping"))["result"] == {}

    assert (heard["method"], heard["params"]) == ("notifications/resources/updated", {"uri": "a://b"})
    assert peer.notices == []


async def test_a_client_that_subscribes_too_much_is_refused(meet: "Meet") -> None:
    @resource("a://{name}")
    def pages(name: str) -> str:
        """Return some page."""
        return name

    async with meet(era=OLD, resources=[pages]) as peer:
        for number in range(1000):
            assert "result" in await peer.ask("resources/subscribe", {"uri": f"a://{number}"})
        assert (await peer.ask("resources/subscribe", {"uri": "a://more"}))["error"]["code"] == INVALID_PARAMS


async def test_a_client_that_never_said_it_was_ready_can_subscribe(meet: "Meet") -> None:
    provider = FakeProvider("p", resources=[page])
    async with meet(providers=[provider]) as peer:
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": OLD}})
        await peer.hear()
        peer.say({"jsonrpc": "2.0", "id": 2, "method": "resources/unsubscribe", "params": {"uri": "a://b"}})
        assert (await peer.hear())["result"] == {}
        peer.say({"jsonrpc": "2.0", "id": 3, "method": "resources/subscribe", "params": {"uri": "a://b"}})
        assert (await peer.hear())["result"] == {}
        provider.update("a://b")
        assert (await peer.hear())["method"] == "notifications/resources/updated"


async def test_a_client_without_a_stream_cannot_subscribe() -> None:
    async with Yard(resources=[page]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        session = ServerSession(server, caller=ANYONE, send=None, version=LATEST_HANDSHAKE)
        message = Message(method="resources/subscribe", id=1, params=msgspec.Raw(b'{"uri":"a://b"}'))
        session.take(Message(method="notifications/initialized"))
        answer = json.loads(await session.serve(message, notify=None))
        session.close()
        server.close()

    assert answer["error"]["code"] == METHOD_NOT_FOUND


async def test_the_name_of_a_client_is_kept(meet: "Meet") -> None:
    seen: list[str] = []

    @tool
    async def who(call: Call) -> None:
        """Note who calls."""
        seen.append(call.caller.client)

    client = {"io.modelcontextprotocol/clientInfo": {"name": "other"}}
    async with meet(era=OLD, tools=[who]) as old, meet(tools=[who]) as new:
        await old.ask("tools/call", {"name": "who"})
        await new.ask("tools/call", {"name": "who"}, client)
        await new.ask("tools/call", {"name": "who"})

    assert seen == ["peer", "other", ""]


# Asking in the older era


async def asked(peer: "Peer", request_id: object = 1) -> dict[str, Any]:
    """Begin a call that asks, and return the question."""
    peer.call(request_id, "greet")
    return await peer.hear()


def response(question: dict[str, Any], **content: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": question["id"], **content}


async def test_a_question_is_a_request_to_the_client(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        question = await asked(peer)
        peer.say(response(question, result={"action": "accept", "content": {"name": "Ada"}}))
        envelope = await peer.envelope()

    assert question["method"] == "elicitation/create"
    assert question["params"] == {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}
    assert envelope["data"] == "Hello Ada"
    assert peer.sink.codes == [None]


async def test_a_version_without_modes_is_asked_without_one(meet: "Meet") -> None:
    async with meet(era="2025-06-18", tools=[greet]) as peer:
        question = await asked(peer)
        peer.say(response(question, result={"action": "decline"}))
        envelope = await peer.envelope()

    assert "mode" not in question["params"]
    assert envelope["error"]["code"] == "approval_denied"


@every_row(
    "content",
    [
        b'"error":{"code":-1,"message":"No."}',
        b'"result":5',
        b'"result":null',
        b'"result":[1]',
        b'"result":{"action":1e999}',
        b'"result":{"action":"accept","content":{"name":%b}}' % (b"9" * 5000),
    ],
)
async def test_a_client_that_answers_with_an_error_is_to_blame(meet: "Meet", content: bytes) -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        question = await asked(peer)
        peer.say(b'{"jsonrpc":"2.0","id":"%b",%b}' % (question["id"].encode(), content))
        envelope = await peer.envelope()

    assert (envelope["error"]["code"], envelope["error"]["blame"]) == ("upstream_error", "caller")


async def test_an_error_of_the_client_for_a_question_is_kept(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        failures: list[Any] = []
        gone = {"code": -32603, "message": "The window is gone."}
        answers: list[dict[str, Any]] = [{"error": gone}, {"error": 5}, {"result": []}]
        for content in answers:
            peer.say(response(await asked(peer), **content))
            failures.append((await peer.envelope())["error"])

    worded, wordless, odd = failures
    assert worded["details"] == {"client_code": -32603, "text": "The window is gone."}
    assert "The window is gone." in worded["message"]
    assert wordless["details"]["client_code"] is None
    assert "error" not in odd["message"]
    assert all("upstream" not in failure["hint"] for failure in failures)


async def test_an_answer_with_an_error_that_is_null_is_an_answer(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        peer.say(response(await asked(peer), result={"action": "accept", "content": {"name": "Ada"}}, error=None))
        assert (await peer.envelope())["data"] == "Hello Ada"


@pytest.mark.parametrize("era", [OLD, "2026-07-28"])
async def test_nobody_is_asked_what_no_form_can_ask(meet: "Meet", era: str) -> None:
    @tool
    async def ask(call: Call) -> object:
        """Ask for what no form has."""
        return await call.ask({"type": "object", "properties": {"x": {"type": "nonsense"}}}, "What?")

    async with meet(era=era, tools=[ask]) as peer:
        peer.call(1, "ask")
        failure = (await peer.envelope())["error"]

    assert (failure["code"], failure["blame"]) == ("internal_error", "tool")
    assert "'x'" in failure["message"]


async def test_answers_to_nothing_are_dropped(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        question = await asked(peer)
        peer.say({"jsonrpc": "2.0", "id": "ask-99", "result": {"action": "decline"}})
        peer.say({"jsonrpc": "2.0", "id": 1, "result": {"action": "decline"}})
        for name in ("Ada", "Bob"):
            peer.say(response(question, result={"action": "accept", "content": {"name": name}}))
        assert (await peer.envelope())["data"] == "Hello Ada"

    assert peer.left() == []


async def test_a_question_of_a_call_that_is_cancelled_is_taken_back(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet]) as peer:
        question = await asked(peer)
        peer.cancel(1)
        taken_back = await peer.hear()
        peer.say(response(question, result={"action": "accept", "content": {"name": "Ada"}}))
        assert (await peer.ask("ping"))["result"] == {}

    assert taken_back["method"] == "notifications/cancelled"
    assert taken_back["params"]["requestId"] == question["id"]
    assert peer.sink.codes == ["cancelled"]
    assert peer.left() == []


async def test_a_question_that_nobody_answers_ends_by_itself(meet: "Meet") -> None:
    async with meet(era=OLD, tools=[greet], settings={"ask_seconds": 0.01}) as peer:
        await asked(peer)
        envelope = await peer.envelope()

    assert not envelope["success"]
    assert len(peer.sink.records) == 1


async def test_the_deadline_stands_still_while_the_client_is_asked(meet: "Meet") -> None:
    loop = asyncio.get_running_loop()

    @tool(timeout=0.5)
    async def hurry(call: Call) -> str:
        """Ask, in a hurry."""
        return (await call.ask(SCHEMA, "Who?"))["name"]

    async with meet(era=OLD, tools=[hurry]) as peer:
        peer.call(1, "hurry")
        question = await peer.hear()
        later = loop.time() + 0.8
        await peer.until(lambda: loop.time() > later)
        peer.say(response(question, result={"action": "accept", "content": {"name": "Ada"}}))
        assert (await peer.envelope())["data"] == "Ada"


@pytest.mark.parametrize("capabilities", [{}, {"sampling": {}}])
async def test_a_client_that_cannot_be_asked_is_answered_with_an_envelope(
    meet: "Meet", capabilities: dict[str, Any]
) -> None:
    async with meet(era=OLD, tools=[greet], capabilities=capabilities) as peer:
        peer.call(1, "greet")
        envelope = await peer.envelope()

    assert envelope["error"]["code"] == "not_supported"


async def test_several_questions_are_put_at_once(meet: "Meet") -> None:
    @tool
    async def many(call: Call) -> list[Any]:
        """Ask a model and the client."""
        return list(
            (
                await call.ask_all({"b": ClientRequest.model("Think.", max_tokens=5), "c": ClientRequest.roots()})
            ).values()
        )

    async with meet(era=OLD, tools=[many], capabilities={"sampling": {}, "roots": {}}) as peer:
        peer.call(1, "many")
        questions = [await peer.hear(), await peer.hear()]
        for question in reversed(questions):
            peer.say(response(question, result={"to": question["method"]}))
        envelope = await peer.envelope()

    assert envelope["data"] == [{"to": "sampling/createMessage"}, {"to": "roots/list"}]


async def test_one_error_among_several_answers_ends_them_all(meet: "Meet") -> None:
    @tool
    async def many(call: Call) -> list[Any]:
        """Ask a model and the client."""
        return list(
            (
                await call.ask_all({"b": ClientRequest.model("Think.", max_tokens=5), "c": ClientRequest.roots()})
            ).values()
        )

    async with meet(era=OLD, tools=[many], capabilities={"sampling": {}, "roots": {}}) as peer:
        peer.call(1, "many")
        questions = [await peer.hear(), await peer.hear()]
        peer.say(response(questions[0], error={"code": 1, "message": "No."}))
        envelope = await peer.envelope()
        peer.say(response(questions[1], result={}))
        assert (await peer.ask("ping"))["result"] == {}

    assert envelope["error"]["code"] == "upstream_error"


async def test_a_question_ends_with_the_connection() -> None:
    written: list[bytes] = []
    heard = asyncio.Event()

    def write(message: bytes) -> None:
        written.append(message)
        heard.set()

    async with Yard(tools=[greet]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        session = ServerSession(server, caller=ANYONE, send=write, version=LATEST_HANDSHAKE)
        session.capabilities = {"elicitation": {}}
        session.take(Message(method="notifications/initialized"))
        message = Message(method="tools/call", id=1, params=msgspec.Raw(b'{"name":"greet"}'))
        task = asyncio.ensure_future(session.serve(message, notify=write))
        session.in_flight[1] = InFlight(task=task, has_started=True)
        await heard.wait()
        assert session.client_requests
        session.close()
        with pytest.raises(asyncio.CancelledError):
            await task
        server.close()

    assert json.loads(written[0])["method"] == "elicitation/create"


# Profiles and progress


async def test_a_client_sees_what_its_profile_shows(meet: "Meet") -> None:
    caller = Caller(profile=Profile(name="few", toolsets=(Toolset(name="t", names=("add",)),)))
    async with (
        meet(era=OLD, tools=[add, greet], caller=caller, resources=[page]) as old,
        meet(tools=[add, greet], caller=caller) as new,
    ):
        for peer in (old, new):
            assert [item["name"] for item in (await peer.ask("tools/list"))["result"]["tools"]] == ["add"]
            peer.call(1, "greet")
            assert (await peer.envelope())["error"]["code"] == "tool_not_found"
        assert "resources" not in (await old.shake_hands())["capabilities"]


@pytest.mark.parametrize("era", ["2024-11-05", OLD, "2026-07-28"])
async def test_progress_is_sent_to_a_client_with_a_token(meet: "Meet", era: str) -> None:
    @tool
    async def step(call: Call) -> int:
        """Take a step."""
        call.progress(1, 2, "half")
        return 1

    async with meet(era=era, tools=[step]) as peer:
        peer.call(1, "step")
        await peer.envelope()
        assert peer.notices == []
        peer.call(2, "step", progress=0)
        await peer.envelope()

    text = {} if era == "2024-11-05" else {"message": "half"}
    assert [notice["params"] for notice in peer.notices] == [{"progressToken": 0, "progress": 1, "total": 2, **text}]


async def test_a_prompt_and_a_resource_tell_their_progress_too(meet: "Meet") -> None:
    @resource("a://slow")
    async def slow(call: Call) -> str:
        """Take a step."""
        call.progress(1)
        return ""

    @prompt
    async def words(call: Call) -> str:
        """Take a step."""
        call.progress(2)
        return ""

    async with meet(era=OLD, resources=[slow], prompts=[words]) as peer:
        await peer.ask("resources/read", {"uri": "a://slow"}, {"progressToken": "r"})
        await peer.ask("prompts/get", {"name": "words"}, {"progressToken": "p"})

    assert [(notice["params"]["progressToken"], notice["params"]["progress"]) for notice in peer.notices] == [
        ("r", 1),
        ("p", 2),
    ]


async def test_a_missing_or_too_long_uri_cannot_be_subscribed_to(meet: "Meet") -> None:
    @resource("a://{name}")
    def pages(name: str) -> str:
        """Return some page."""
        return name

    async with meet(era=OLD, resources=[pages]) as peer:
        for uri in ("b://nowhere", "a://" + "x" * 8192):
            assert (await peer.ask("resources/subscribe", {"uri": uri}))["error"]["code"] == INVALID_PARAMS
        assert (await peer.ask("resources/subscribe", {"uri": "a://" + "x" * 8000}))["result"] == {}


async def test_of_what_a_client_says_it_can_do_only_what_is_looked_at_is_kept(meet: "Meet") -> None:
    said = {"elicitation": {"form": {"much": "x"}, "more": "x"}, "sampling": "x", "experimental": {"much": "x"}}
    async with meet() as peer:
        server = ServerContext(peer.yard, Serving(), channel="test")
        session = ServerSession(server, caller=ANYONE, send=None)
        params = msgspec.json.encode({"protocolVersion": OLD, "capabilities": said})
        await session.serve(Message(method="initialize", id=1, params=msgspec.Raw(params)), notify=None)
        server.close()

    assert session.capabilities == {"elicitation": {"form": {}}, "sampling": {}}


@every_row(
    ("elicitation", "is_asked"),
    [({}, True), ({"form": {}}, True), ({"form": {}, "url": {}}, True), ({"url": {}}, False)],
)
async def test_a_person_is_asked_with_a_form_only_where_forms_are_offered(
    meet: "Meet",
    elicitation: Any,
    is_asked: bool,  # noqa: FBT001 - a case
) -> None:
    @tool
    async def greet(call: Call) -> dict[str, Any]:
        """Greet."""
        return {"can": call.can_ask(), **await call.ask({"type": "object", "properties": {}}, "Who?")}

    async with meet(era=OLD, tools=[greet], capabilities={"elicitation": elicitation}) as peer:
        peer.call(1, "greet")
        heard = await peer.hear()
        if is_asked:
            peer.say({"jsonrpc": "2.0", "id": heard["id"], "result": {"action": "accept", "content": {}}})
            envelope = await peer.envelope()
            assert envelope["data"] == {"can": True}
        else:
            error = json.loads(heard["result"]["content"][0]["text"])["error"]
            assert (error["code"], error["details"]["capabilities"]) == ("not_supported", ["elicitation.form"])


async def test_a_question_that_is_no_json_fails_its_call_alone(meet: "Meet") -> None:
    @tool
    async def greet(call: Call) -> dict[str, Any]:
        """Greet."""
        return await call.ask({"type": object()}, "Who?")

    async with meet(era=OLD, tools=[greet], capabilities={"elicitation": {}}) as peer:
        peer.call(1, "greet")
        error = (await peer.envelope())["error"]
        assert not peer.left()

    assert (error["code"], error["blame"]) == ("internal_error", "tool")


async def test_a_client_that_cannot_be_asked_during_its_request_gets_the_reason() -> None:
    @tool
    async def greet(call: Call) -> dict[str, Any]:
        """Greet."""
        return await call.ask({"type": "object", "properties": {}}, "Who?")

    async with Yard(tools=[greet]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        session = ServerSession(server, caller=ANYONE, send=None)
        hello = msgspec.json.encode({"protocolVersion": OLD, "capabilities": {"elicitation": {}}})
        await session.serve(Message(method="initialize", id=1, params=msgspec.Raw(hello)), notify=None)
        call = Message(method="tools/call", id=2, params=msgspec.Raw(b'{"name":"greet"}'))
        answer = json.loads(await session.serve(call, notify=None))
        server.close()

    error = answer["result"]["structuredContent"]["error"]
    assert error["code"] == "not_supported"
    assert "capabilities" not in error["details"]
    assert "elicitation" not in error["message"]
