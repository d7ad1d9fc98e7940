import asyncio
import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from table_tests import every_row

from callyard import Call, Envelope, Image, ToolError, Yard, prompt, resource, tool
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE
from callyard.metatools import metatool_instructions
from callyard.server import ServerContext, ServerSession
from callyard.server.methods import NoParams, is_modern, name_of, params_of
from callyard.wire.messages import (
    INTERNAL,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    Fault,
    Message,
)
from callyard.wire.params import CallTool, ReadResource
from callyard.wire.versions import VERSIONS

if TYPE_CHECKING:
    from tests.server.conftest import Meet


OLD = "2025-11-25"
EVERY = pytest.mark.parametrize("era", [OLD, "2026-07-28"])
METHODS = sorted({method for version in VERSIONS.values() for method in version.methods} | {"no/such", ""})


@tool
async def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@tool
async def refuse() -> int:
    """Refuse."""
    raise ToolError("state_error", "No.")


@tool(shape="plain")
async def plain(kind: str) -> Any:
    """Answer plainly."""
    if kind == "error":
        raise ToolError("state_error", "No.")
    return {"text": "words", "object": {"a": 1}, "number": 5}.get(kind)


@tool
async def paint() -> Envelope:
    """Paint a picture."""
    return Envelope.ok("painted", content=[Image(b"12345")])


def suggest(value: str, settled: dict[str, str]) -> list[str]:
    """Return what begins so."""
    return [f"{value}{number}" for number in range(150 if value == "many" else 3)]


@resource("a://b")
def page() -> str:
    """Return a page."""
    return "text"


@resource("a://broken")
def broken() -> str:
    """Break."""
    raise ValueError("hunter2")


@resource("a://asks")
async def asks(call: Call) -> str:
    """Ask."""
    return str(await call.ask({"type": "object", "properties": {}}, "Who?"))


@prompt
def words(topic: str) -> str:
    """Return words."""
    return f"Say something about {topic}."


EVERYTHING: dict[str, Any] = {
    "tools": [add, refuse, plain, paint],
    "resources": [page, broken, asks],
    "prompts": [words],
}


@every_row("method", ["resources/subscribe", "resources/unsubscribe", "logging/setLevel", "initialize"])
async def test_a_method_that_the_2026_era_lacks_is_unknown_whatever_its_params_are(meet: "Meet", method: str) -> None:
    async with meet(**EVERYTHING) as peer:
        answer = await peer.ask(method, {"uri": 5, "level": 5})

    assert answer["error"]["code"] == -32601


@EVERY
async def test_a_plain_tool_that_is_withdrawn_during_its_call_answers_in_its_own_shape(meet: "Meet", era: str) -> None:
    @tool(shape="plain")
    async def vanish(call: Call) -> str:
        """Vanish."""
        yard.registry.withdraw(call.spec.source)
        return "words"

    yard = Yard("met", tools=[vanish])
    async with meet(yard, era=era) as peer:
        result = (await peer.ask("tools/call", {"name": "vanish"}))["result"]

    assert result["content"] == [{"type": "text", "text": "words"}]


@EVERY
async def test_a_tool_is_called(meet: "Meet", era: str) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        good = (await peer.ask("tools/call", {"name": "add", "arguments": {"a": 1}}))["result"]
        painted = (await peer.ask("tools/call", {"name": "paint"}))["result"]

    assert good["structuredContent"]["data"] == 2
    assert good["isError"] is False
    assert json.loads(good["content"][0]["text"]) == good["structuredContent"]
    assert [block["type"] for block in painted["content"]] == ["text", "image"]


@EVERY
@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"name": "refuse"}, "state_error"),
        ({"name": "no_such"}, "tool_not_found"),
        ({"name": ""}, "tool_not_found"),
        ({"name": "add"}, "invalid_input"),
        ({"name": "add", "arguments": None}, "invalid_input"),
        ({"name": "add", "arguments": {"a": {}}}, "invalid_input"),
        ({"name": "add", "arguments": {"a": 1, "c": 1}}, "invalid_input"),
        ({"name": "add", "arguments": []}, "invalid_input"),
        ({"name": "add", "arguments": "{"}, "invalid_input"),
        ({"name": "add", "arguments": 5}, "invalid_input"),
    ],
)
async def test_a_wrong_call_is_answered_with_an_envelope(
    meet: "Meet", era: str, params: dict[str, Any], code: str
) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        result = (await peer.ask("tools/call", params))["result"]

    assert result["isError"] is True
    assert result["structuredContent"]["error"]["code"] == code
    assert peer.sink.codes == [code]


@EVERY
@pytest.mark.parametrize(
    "params", [{}, {"name": None}, {"name": 5}, {"arguments": {}}, {"name": "add", "_meta": 5}, {"name": ["add"]}]
)
async def test_params_that_are_no_call_are_a_fault(meet: "Meet", era: str, params: dict[str, Any]) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        said = {**params, "_meta": params.get("_meta", peer.meta)}
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": said})
        assert (await peer.hear())["error"]["code"] == INVALID_PARAMS

    assert peer.sink.records == []


@EVERY
@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
@pytest.mark.parametrize("token", [{"a": 1}, [], True])
async def test_a_progress_token_is_a_text_or_a_number(
    meet: "Meet", era: str, capabilities: dict[str, Any], token: object
) -> None:
    async with meet(era=era, capabilities=capabilities, **EVERYTHING) as peer:
        called = await peer.ask("tools/call", {"name": "add", "arguments": {"a": 1}}, {"progressToken": token})
        read = await peer.ask("resources/read", {"uri": "a://b"}, {"progressToken": token})

    assert (called["error"]["code"], read["error"]["code"]) == (INVALID_PARAMS, INVALID_PARAMS)
    assert peer.sink.records == []


@EVERY
async def test_arguments_that_no_number_can_hold_are_answered(meet: "Meet", era: str) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        for number in ("1e999", "9" * 5000):
            text = json.dumps(peer.request(1, "tools/call", {"name": "add", "arguments": {"a": 1.25}})).replace(
                "1.25", number
            )
            peer.say(text.encode())
            answer = await peer.hear()
            assert answer["id"] == 1
            assert "error" in answer or answer["result"]["isError"]


@EVERY
@pytest.mark.parametrize("capabilities", [None, 5, ["elicitation"], "elicitation", [5], {"a": 1}])
async def test_not_supported_of_a_tool_itself_is_an_envelope(meet: "Meet", era: str, capabilities: Any) -> None:
    @tool
    async def unable() -> None:
        """Support nothing."""
        details = {} if capabilities is None else {"capabilities": capabilities}
        raise ToolError("not_supported", "No.", **details)

    async with meet(era=era, tools=[unable]) as peer:
        peer.call(1, "unable")
        assert (await peer.envelope())["error"]["code"] == "not_supported"


@EVERY
async def test_a_plain_tool_answers_as_it_is_and_fails_with_an_envelope(meet: "Meet", era: str) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        results = {
            kind: (await peer.ask("tools/call", {"name": "plain", "arguments": {"kind": kind}}))["result"]
            for kind in ("text", "object", "number", "error")
        }

    assert results["text"]["content"] == [{"type": "text", "text": "words"}]
    assert results["object"]["structuredContent"] == {"a": 1}
    assert "structuredContent" not in results["number"]
    assert results["error"]["structuredContent"]["error"]["code"] == "state_error"


@EVERY
async def test_a_resource_is_read(meet: "Meet", era: str) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        read = (await peer.ask("resources/read", {"uri": "a://b"}))["result"]
        missing = (await peer.ask("resources/read", {"uri": "a://none"}))["error"]
        failed = (await peer.ask("resources/read", {"uri": "a://broken"}))["error"]

    assert read["contents"] == [{"uri": "a://b", "mimeType": "text/plain", "text": "text"}]
    assert (missing["code"], missing["data"]["uri"]) == (INVALID_PARAMS, "a://none")
    assert failed["code"] == INTERNAL
    assert failed["data"]["error"]["code"] == "internal_error"
    assert "hunter2" not in json.dumps(failed)


@EVERY
async def test_a_resource_that_a_template_does_not_find_is_an_unknown_uri(meet: "Meet", era: str) -> None:
    @resource("note://{name}")
    async def note(name: str) -> str:
        """Return a note."""
        raise ToolError("not_found", f"There is no note '{name}'.")

    async with meet(era=era, resources=[note]) as peer:
        fault = (await peer.ask("resources/read", {"uri": "note://none"}))["error"]

    assert (fault["code"], fault["data"]["uri"]) == (INVALID_PARAMS, "note://none")
    assert fault["data"]["error"]["code"] == "not_found"


@EVERY
async def test_a_prompt_is_filled_in(meet: "Meet", era: str) -> None:
    async with meet(era=era, **EVERYTHING) as peer:
        filled = (await peer.ask("prompts/get", {"name": "words", "arguments": {"topic": "tea"}}))["result"]
        missing = (await peer.ask("prompts/get", {"name": "none"}))["error"]
        lacking = (await peer.ask("prompts/get", {"name": "words"}))["error"]
        wrong = (await peer.ask("prompts/get", {"name": "words", "arguments": {"topic": 5}}))["error"]

    assert "tea" in filled["messages"][0]["content"]["text"]
    assert {missing["code"], lacking["code"], wrong["code"]} == {INVALID_PARAMS}
    assert missing["data"]["name"] == "none"


@EVERY
async def test_a_question_of_a_resource_that_the_client_cannot_answer_is_a_fault(meet: "Meet", era: str) -> None:
    async with (
        meet(era=era, capabilities={}, **EVERYTHING) as unable,
        meet(era=era, capabilities={"roots": {}}, **EVERYTHING) as other,
    ):
        for peer in (unable, other):
            refused = (await peer.ask("resources/read", {"uri": "a://asks"}))["error"]
            assert refused["code"] == MISSING_CAPABILITY
            assert refused["data"] == {"requiredCapabilities": {"elicitation": {}}}


@EVERY
async def test_a_typed_prefix_is_completed(meet: "Meet", era: str) -> None:
    @prompt(complete={"topic": suggest})
    def topics(topic: str) -> str:
        """Return words."""
        return topic

    async with meet(era=era, prompts=[topics]) as peer:
        ref = {"type": "ref/prompt", "name": "topics"}
        few = await peer.ask("completion/complete", {"ref": ref, "argument": {"name": "topic", "value": "te"}})
        context = {"arguments": {"other": "x"}}
        many = await peer.ask(
            "completion/complete", {"ref": ref, "argument": {"name": "topic", "value": "many"}, "context": context}
        )

    assert few["result"]["completion"] == {"values": ["te0", "te1", "te2"], "total": 3, "hasMore": False}
    assert (len(many["result"]["completion"]["values"]), many["result"]["completion"]["hasMore"]) == (100, True)


@every_row(
    "ref",
    [
        {"type": "ref/prompt"},
        {"type": "ref/resource", "name": "words"},
        {"type": "ref/other", "name": "words"},
        {"type": "ref/prompt", "name": "none"},
        {"type": "ref/resource", "uri": "a://none/{x}"},
        {},
        None,
    ],
)
async def test_a_completion_of_nothing_is_a_fault(meet: "Meet", ref: Any) -> None:
    async with meet(**EVERYTHING) as peer:
        refused = await peer.ask("completion/complete", {"ref": ref, "argument": {"name": "topic", "value": ""}})

    assert refused["error"]["code"] == INVALID_PARAMS


def test_params_are_read_as_their_method_takes_them() -> None:
    assert isinstance(params_of("tools/call", msgspec.Raw(b'{"name":"a"}')), CallTool)
    assert isinstance(params_of("no/such", msgspec.Raw(b'{"name":5}')), NoParams)
    with pytest.raises(Fault):
        params_of("no/such", msgspec.Raw(b'{"_meta":5}'))


def test_a_request_is_about_a_name_or_a_uri() -> None:
    assert name_of(CallTool(name="a")) == "a"
    assert name_of(ReadResource(uri="a://b")) == "a://b"
    assert name_of(NoParams()) is None


KEYS = [
    "name",
    "arguments",
    "uri",
    "cursor",
    "inputResponses",
    "requestState",
    "ref",
    "argument",
    "context",
    "level",
    "type",
    "value",
    "protocolVersion",
    "capabilities",
    "clientInfo",
    "a",
]
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 5),
        st.sampled_from(["add", "a://b", "words", "ref/prompt", "info", "", OLD, "ä"]),
    ),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=8,
)
META: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(METHODS).filter(lambda method: method != "subscriptions/listen"),
            st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4),
            st.one_of(
                st.just(META),
                st.none(),
                st.dictionaries(st.sampled_from(["progressToken", "x", *META]), VALUES, max_size=3),
            ),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=150)
def test_no_request_is_a_defect(requests: list[tuple[str, dict[str, Any], dict[str, Any] | None]]) -> None:
    answers = asyncio.run(converse(requests))

    known = {INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, -32022}
    for answer in answers:
        if "error" in answer:
            assert answer["error"]["code"] in known
        elif answer["result"].get("isError"):
            assert json.loads(answer["result"]["content"][0]["text"])["error"]["code"] != "internal_error"


async def converse(requests: list[tuple[str, dict[str, Any], dict[str, Any] | None]]) -> list[dict[str, Any]]:
    """Return what each of these requests is answered with."""
    answers: list[dict[str, Any]] = []
    async with Yard(tools=[add, plain], resources=[page], prompts=[words]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        session = ServerSession(server, caller=ANYONE, send=lambda _: None)
        for number, (method, params, meta) in enumerate(requests):
            said = msgspec.json.encode(params if meta is None else {**params, "_meta": meta})
            answer = json.loads(
                await session.serve(
                    Message(method=method, id=number, jsonrpc="2.0", params=msgspec.Raw(said)), notify=lambda _: None
                )
            )
            assert answer["id"] == number
            answers.append(answer)
        session.close()
        server.close()
    return answers


@EVERY
async def test_a_result_longer_than_the_client_says_it_takes_becomes_a_handle(meet: "Meet", era: str) -> None:
    @tool
    async def much() -> str:
        """Say much."""
        return "x" * 1000

    async with meet(era=era, tools=[much]) as peer:
        short = await peer.ask("tools/call", {"name": "much"}, {"anthropic/maxResultSizeChars": 500})
        whole = await peer.ask("tools/call", {"name": "much"})

    assert short["result"]["structuredContent"]["data"]["status"] == "stored"
    assert whole["result"]["structuredContent"]["data"] == "x" * 1000


@EVERY
async def test_a_whole_answer_is_at_most_as_long_as_the_client_allows(meet: "Meet", era: str) -> None:
    @tool
    async def much(size: int) -> str:
        """Say much."""
        return "x" * size

    async with meet(era=era, tools=[much]) as peer:
        read: list[int] = []
        for size in range(820, 1000, 6):
            answer = await peer.ask(
                "tools/call", {"name": "much", "arguments": {"size": str(size)}}, {"anthropic/maxResultSizeChars": 1000}
            )
            read.append(len(answer["result"]["content"][0]["text"]))

    assert max(read) <= 1000
    assert max(read) > 950


@EVERY
async def test_a_tool_answers_in_its_shape_whichever_name_it_is_called_by(meet: "Meet", era: str) -> None:
    @tool(shape="plain", aliases=("old_name",))
    async def new_name() -> dict[str, int]:
        """Answer plainly."""
        return {"a": 1}

    async with meet(era=era, tools=[new_name], capabilities={}) as peer:
        results = [(await peer.ask("tools/call", {"name": name}))["result"] for name in ("new_name", "old_name")]

    assert [result["structuredContent"] for result in results] == [{"a": 1}, {"a": 1}]


@pytest.mark.parametrize("capabilities", [{}, {"elicitation": {}}])
@EVERY
async def test_a_number_that_none_can_be_is_an_argument_that_is_wrong(
    meet: "Meet", era: str, capabilities: Any
) -> None:
    @tool
    async def half(a: float) -> float:
        """Halve."""
        return a / 2

    async with meet(era=era, tools=[add, half], capabilities=capabilities) as peer:
        for name in ("add", "half"):
            peer.say(
                json.dumps(peer.request(1, "tools/call", {"name": name, "arguments": {"a": 777}}))
                .replace("777", "1e999")
                .encode()
            )
            error = (await peer.envelope())["error"]
            assert (error["code"], error["details"]["issues"][0]["field"]) == ("invalid_input", "a")


async def test_a_failing_completion_is_a_defect_with_an_id(meet: "Meet") -> None:
    def broken(value: str, settled: dict[str, str]) -> list[str]:
        raise LookupError(value + str(settled))

    @prompt(complete={"topic": broken})
    def topics(topic: str) -> str:
        """Return words."""
        raise LookupError(topic)

    @resource("a://broken")
    def broken_page() -> str:
        """Return no page."""
        raise LookupError

    async with meet(prompts=[topics], resources=[broken_page]) as peer:
        ref = {"type": "ref/prompt", "name": "topics"}
        faults = [
            (await peer.ask("completion/complete", {"ref": ref, "argument": {"name": "topic", "value": "x"}}))["error"],
            (await peer.ask("prompts/get", {"name": "topics", "arguments": {"topic": "x"}}))["error"],
            (await peer.ask("resources/read", {"uri": "a://broken"}))["error"],
        ]

    assert [fault["code"] for fault in faults] == [INTERNAL] * 3
    assert all(fault["data"]["call_id"].startswith("c_") for fault in faults)
    assert [record.call_id for record in peer.sink.records] == [fault["data"]["call_id"] for fault in faults[1:]]


PREFIX = "io.modelcontextprotocol/"
MODERN = "2026-07-28"


@tool
async def say(level: str, call: Call) -> None:
    """Say something at a level."""
    call.log(level, "words")


def test_a_request_is_of_the_newer_era_if_it_says_so() -> None:
    assert is_modern("tools/list", NoParams(meta={PREFIX + "protocolVersion": "?"}))
    assert is_modern("server/discover", NoParams())
    assert is_modern("subscriptions/listen", NoParams(meta={}))
    assert not is_modern("tools/list", NoParams())
    assert not is_modern("tools/list", NoParams(meta={"progressToken": 1}))


async def test_a_discovery_tells_what_there_is(meet: "Meet") -> None:
    async with meet(tools=[say], instructions="Be kind.") as peer:
        result = (await peer.ask("server/discover"))["result"]

    assert result["supportedVersions"] == [MODERN]
    assert result["instructions"] == f"Be kind.\n\n{metatool_instructions(())}"
    assert result["_meta"][PREFIX + "serverInfo"]["name"] == "met"
    assert result["capabilities"]["tools"] == {"listChanged": True}


@every_row(
    ("meta", "code"),
    [
        ({}, INVALID_PARAMS),
        ({"protocolVersion": MODERN}, INVALID_PARAMS),
        ({"clientCapabilities": {}}, INVALID_PARAMS),
        ({"protocolVersion": 1, "clientCapabilities": {}}, INVALID_PARAMS),
        ({"protocolVersion": MODERN, "clientCapabilities": 5}, INVALID_PARAMS),
        ({"protocolVersion": "2025-11-25", "clientCapabilities": {}}, UNSUPPORTED_VERSION),
        ({"protocolVersion": MODERN, "clientCapabilities": {}, "logLevel": "loud"}, INVALID_PARAMS),
        ({"protocolVersion": MODERN, "clientCapabilities": {}, "logLevel": []}, INVALID_PARAMS),
    ],
)
async def test_a_request_must_say_what_a_server_must_know(meet: "Meet", meta: dict[str, Any], code: int) -> None:
    async with meet() as peer:
        said = {PREFIX + key: value for key, value in meta.items()}
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": said}})
        refused = await peer.hear()

    assert (refused["id"], refused["error"]["code"]) == (1, code)


async def test_a_client_that_wants_no_log_hears_none(meet: "Meet") -> None:
    async with meet(tools=[say]) as peer:
        await peer.ask("tools/call", {"name": "say", "arguments": {"level": "error"}})
        assert peer.notices == []
        for level, heard in (("info", False), ("warning", True), ("error", True)):
            peer.notices.clear()
            await peer.ask(
                "tools/call", {"name": "say", "arguments": {"level": level}}, {PREFIX + "logLevel": "warning"}
            )
            assert bool(peer.notices) is heard


async def test_a_client_that_is_named_strangely_is_served_all_the_same(meet: "Meet") -> None:
    async with meet(tools=[say]) as peer:
        for client in (None, 5, {}, {"name": 5}, {"name": ""}, {"name": "x" * 100_000}):
            assert "result" in await peer.ask("tools/list", meta={PREFIX + "clientInfo": client})
