import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from table_tests import every_row

from callyard import Call, Confirmation, Yard, prompt, resource, tool
from callyard._internal.signed_tokens import Signer
from callyard.config.settings import Serving
from callyard.dispatch.call import Caller, CallRequest
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.server import RequestContext, ServerContext
from callyard.server.input_required import InputRequired
from callyard.state.memory import MemoryStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeClock
from callyard.wire.messages import INVALID_PARAMS, MISSING_CAPABILITY, Fault
from callyard.wire.versions import LATEST

if TYPE_CHECKING:
    from tests.server.conftest import Meet, Peer

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


def said(name: str = "Ada", key: str = "who") -> dict[str, Any]:
    """Return the answers that a client brings along."""
    return {key: {"action": "accept", "content": {"name": name}}}


@tool
async def greet(call: Call) -> str:
    """Greet whoever it is."""
    return f"Hello {(await call.ask(SCHEMA, 'Who?', key='who'))['name']}"


async def state_of(peer: "Peer", name: str = "greet", **more: Any) -> str:
    """Begin a call that asks, and return the state that it gives out."""
    peer.call("first", name, **more)
    result = (await peer.answer())["result"]
    assert result["resultType"] == "input_required"
    return result["requestState"]


async def test_a_question_is_an_answer_and_the_call_goes_on_with_what_is_brought(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        peer.call(1, "greet")
        asked = (await peer.answer())["result"]
        assert peer.sink.records == []
        peer.call(2, "greet", requestState=asked["requestState"], inputResponses=said())
        envelope = await peer.envelope()

    assert asked["inputRequests"]["who"]["method"] == "elicitation/create"
    assert asked["inputRequests"]["who"]["params"]["requestedSchema"] == SCHEMA
    assert envelope["data"] == "Hello Ada"
    assert peer.sink.codes == [None]


@pytest.mark.parametrize("responses", [{}, {"somebody": {"action": "accept"}}, None])
async def test_an_answer_that_lacks_something_is_asked_for_again(meet: "Meet", responses: Any) -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.call(2, "greet", requestState=state, inputResponses=responses)
        again = (await peer.answer())["result"]
        peer.call(3, "greet", requestState=again["requestState"], inputResponses=said())
        envelope = await peer.envelope()

    assert again["resultType"] == "input_required"
    assert list(again["inputRequests"]) == ["who"]
    assert envelope["data"] == "Hello Ada"
    assert peer.sink.codes == [None]


@every_row(
    ("response", "code"),
    [
        ({"action": "decline"}, "approval_denied"),
        ({"action": "cancel"}, "cancelled"),
        ({}, "cancelled"),
        ({"action": "accept", "content": {"name": 5}}, "invalid_input"),
        ({"action": "accept"}, "invalid_input"),
    ],
)
async def test_an_answer_that_is_none_ends_the_call(meet: "Meet", response: dict[str, Any], code: str) -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.call(2, "greet", requestState=state, inputResponses={"who": response})
        envelope = await peer.envelope()

    assert envelope["error"]["code"] == code
    assert peer.sink.codes == [code]


@every_row("tampered", ["{0:.20}", "{0}A", "A{0}", "{0}=", " {0}", "", "ä", "x"])
async def test_a_state_that_was_tampered_with_is_a_fault(meet: "Meet", tampered: str) -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.call(2, "greet", requestState=tampered.format(state), inputResponses=said())
        refused = await peer.answer()
        peer.call(3, "greet", requestState=state, inputResponses=said())
        envelope = await peer.envelope()

    assert refused["error"]["code"] == INVALID_PARAMS
    assert envelope["data"] == "Hello Ada"


async def test_a_state_is_good_for_the_same_request_alone(meet: "Meet") -> None:
    @tool
    async def other(call: Call, a: int = 1) -> str:
        """Ask, too."""
        return str(await call.ask(SCHEMA, "Who?", key="who"))

    async with meet(tools=[greet, other]) as peer:
        state = await state_of(peer, "other", arguments={"a": 1})
        for name, arguments in (("greet", {}), ("other", {"a": 2}), ("other", {}), ("other", {"a": 1, "b": 1})):
            peer.call(name, name, arguments, requestState=state, inputResponses=said())
            assert (await peer.answer())["error"]["code"] == INVALID_PARAMS
        peer.call(3, "other", {"a": 1}, requestState=state, inputResponses=said())
        assert (await peer.envelope())["success"]


async def test_a_state_is_good_for_the_same_caller_alone(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    async with (
        meet(tools=[greet], caller=Caller(identity="ada")) as ada,
        meet(tools=[greet], caller=Caller(identity="bob")) as bob,
    ):
        state = await state_of(ada)
        bob.call(1, "greet", requestState=state, inputResponses=said())
        refused = await bob.answer()

    assert refused["error"]["code"] == INVALID_PARAMS
    assert bob.sink.records == []


async def test_the_order_of_arguments_does_not_matter_to_a_state(meet: "Meet") -> None:
    @tool
    async def both(a: int, b: int, call: Call) -> int:
        """Ask and add."""
        await call.ask(SCHEMA, "Who?", key="who")
        return a + b

    async with meet(tools=[both]) as peer:
        state = await state_of(peer, "both", arguments={"a": 1, "b": 2})
        peer.call(2, "both", {"b": 2, "a": 1}, requestState=state, inputResponses=said())
        assert (await peer.envelope())["data"] == 3


async def test_a_state_whose_call_is_gone_may_have_run(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
    async with meet(tools=[greet]) as anew:
        anew.call(1, "greet", requestState=state, inputResponses=said())
        envelope = await anew.envelope()

    assert (envelope["error"]["code"], envelope["error"]["may_have_run"]) == ("state_error", True)
    assert envelope["error"]["details"]["reason"] == "call_gone"
    assert anew.sink.codes == ["state_error"]


async def test_a_state_that_was_answered_already_may_have_run(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.call(2, "greet", requestState=state, inputResponses=said())
        assert (await peer.envelope())["success"]
        peer.call(3, "greet", requestState=state, inputResponses=said())
        envelope = await peer.envelope()

    assert (envelope["error"]["code"], envelope["error"]["may_have_run"]) == ("state_error", True)


async def test_a_state_that_is_brought_twice_at_once_is_answered_twice_and_goes_on_once(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.call(2, "greet", requestState=state, inputResponses=said("Ada"))
        peer.call(3, "greet", requestState=state, inputResponses=said("Bob"))
        answers = {
            answer["id"]: answer["result"]["structuredContent"] for answer in [await peer.answer(), await peer.answer()]
        }

    assert answers[2]["data"] == "Hello Ada"
    assert answers[3]["error"]["code"] == "state_error"
    assert sorted(peer.sink.codes, key=str) == [None, "state_error"]


async def test_a_state_of_another_secret_is_a_fault(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    async with meet(tools=[greet]) as one:
        state = await state_of(one)
    monkeypatch.setenv("CALLYARD_SECRET", "another secret")
    async with meet(tools=[greet]) as other:
        other.call(1, "greet", requestState=state, inputResponses=said())
        assert (await other.answer())["error"]["code"] == INVALID_PARAMS


async def test_a_declared_question_can_be_answered_by_another_process(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []

    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def declared(call: Call) -> str:
        """Say what was answered."""
        ran.append(call.confirmation["name"])
        return call.confirmation["name"]

    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    async with meet(tools=[declared]) as one, meet(tools=[declared]) as other:
        state = await state_of(one, "declared")
        assert ran == []
        other.call(1, "declared", requestState=state, inputResponses=said())
        envelope = await other.envelope()

    assert envelope["data"] == "Ada"
    assert ran == ["Ada"]
    assert other.sink.codes == [None]
    assert one.sink.codes == ["cancelled"]


CHARGED: dict[str, Any] = {"steps": [{"tool_id": "charge"}, {"tool_id": "declared"}]}
BEGUN: list[tuple[str, dict[str, Any], list[str]]] = [
    ("run_tool", {"tool_id": "declared"}, ["Ada"]),
    ("run_tool", {"tool_id": "run_tool", "args": {"tool_id": "declared"}}, ["Ada"]),
    ("run_chain", CHARGED, ["charge"]),
    ("run_tool", {"tool_id": "run_chain", "args": CHARGED}, ["charge"]),
    ("charge_and_ask", {}, ["charge"]),
]


@pytest.mark.parametrize(
    ("name", "arguments", "expected"), BEGUN, ids=lambda value: value if isinstance(value, str) else ""
)
async def test_calls_before_a_declared_question_do_not_run_again_for_its_answer(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch, name: str, arguments: dict[str, Any], expected: list[str]
) -> None:
    ran: list[str] = []

    @tool
    async def charge() -> str:
        """Take money."""
        ran.append("charge")
        return "charged"

    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def declared(call: Call) -> str:
        """Say what was answered."""
        ran.append(call.confirmation["name"])
        return call.confirmation["name"]

    @tool
    async def charge_and_ask(call: Call) -> object:
        """Take money, and then ask."""
        await charge()
        return await call.invoke("declared")

    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    tools = [charge, declared, charge_and_ask]
    async with meet(tools=tools) as one, meet(tools=tools) as other:
        state = await state_of(one, name, arguments=arguments)
        other.call(1, name, arguments, requestState=state, inputResponses=said())
        envelope = await other.envelope()

    assert ran == expected
    if expected == ["charge"]:
        error = envelope["error"]
        assert (error["code"], error["details"]["reason"], error["may_have_run"]) == ("state_error", "call_gone", True)


async def test_a_declared_question_is_asked_before_the_handler_runs(meet: "Meet") -> None:
    ran: list[str] = []

    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def declared(call: Call) -> str:
        """Say what was answered."""
        ran.append(call.confirmation["name"])
        return call.confirmation["name"]

    async with meet(tools=[declared]) as peer:
        state = await state_of(peer, "declared")
        peer.call(2, "declared", requestState=state, inputResponses={"who": {"action": "decline"}})
        denied = await peer.envelope()

    assert denied["error"]["code"] == "approval_denied"
    assert denied["error"]["may_have_run"] is False
    assert ran == []


async def test_a_call_may_ask_twice(meet: "Meet") -> None:
    @tool
    async def couple(call: Call) -> str:
        """Ask for two names, one after the other."""
        first = await call.ask(SCHEMA, "Who?", key="who")
        second = await call.ask(SCHEMA, f"Who goes with {first['name']}?", key="whom")
        return f"{first['name']} and {second['name']}"

    async with meet(tools=[couple]) as peer:
        state = await state_of(peer, "couple")
        peer.call(2, "couple", requestState=state, inputResponses=said("Ada"))
        again = (await peer.answer())["result"]
        peer.call(3, "couple", requestState=again["requestState"], inputResponses=said("Bob", "whom"))
        envelope = await peer.envelope()

    assert list(again["inputRequests"]) == ["whom"]
    assert again["requestState"] != state
    assert envelope["data"] == "Ada and Bob"
    assert peer.sink.codes == [None]


async def test_several_things_can_be_asked_at_once(meet: "Meet") -> None:
    @tool
    async def many(call: Call) -> list[Any]:
        """Ask a person, a model and the client."""
        asks = {
            "a": ClientRequest.person("Who?", SCHEMA),
            "b": ClientRequest.model("Think.", max_tokens=5),
            "c": ClientRequest.roots(),
        }
        return list((await call.ask_all(asks)).values())

    async with meet(tools=[many], capabilities={"elicitation": {}, "sampling": {}, "roots": {}}) as peer:
        peer.call(1, "many")
        asked = (await peer.answer())["result"]
        results: dict[str, Any] = {"a": {"action": "accept"}, "b": {"role": "assistant"}, "c": {"roots": []}}
        peer.call(2, "many", requestState=asked["requestState"], inputResponses=results)
        envelope = await peer.envelope()

    assert list(asked["inputRequests"]) == ["a", "b", "c"]
    assert envelope["data"] == list(results.values())


async def test_answers_that_are_brought_along_unasked_are_not_asked_for(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        peer.call(1, "greet", inputResponses=said("Eve"))
        assert (await peer.envelope())["data"] == "Hello Eve"


async def test_a_question_that_the_client_does_not_support_is_a_missing_capability(meet: "Meet") -> None:
    async with (
        meet(tools=[greet], capabilities={"sampling": {}}) as able,
        meet(tools=[greet], capabilities={}) as unable,
    ):
        for peer in (able, unable):
            peer.call(1, "greet")
            refused = await peer.answer()
            assert refused["error"]["code"] == MISSING_CAPABILITY
            assert refused["error"]["data"] == {"requiredCapabilities": {"elicitation": {}}}
            assert peer.sink.codes == ["not_supported"]


async def test_a_call_that_nobody_answers_ends_by_itself(meet: "Meet") -> None:
    async with meet(tools=[greet], settings={"ask_seconds": 0.01}) as peer:
        state = await state_of(peer)
        await peer.until(lambda: bool(peer.sink.records))
        peer.call(2, "greet", requestState=state, inputResponses=said())
        late = await peer.answer()

    assert late["error"]["code"] == INVALID_PARAMS
    assert peer.sink.codes == ["cancelled"]


async def test_a_call_that_waits_is_interrupted_when_the_yard_closes(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        await state_of(peer)

    assert peer.sink.codes == ["cancelled"]


async def test_a_request_that_goes_on_can_be_cancelled(meet: "Meet") -> None:
    reached = asyncio.Event()

    @tool
    async def greet_slowly(call: Call) -> str:
        """Ask, and then take for ever."""
        await call.ask(SCHEMA, "Who?", key="who")
        reached.set()
        await asyncio.Event().wait()
        return ""

    async with meet(tools=[greet_slowly]) as peer:
        state = await state_of(peer, "greet_slowly")
        peer.call(2, "greet_slowly", requestState=state, inputResponses=said())
        await reached.wait()
        peer.cancel(2)
        await peer.until(lambda: bool(peer.sink.records))
        assert "result" in await peer.ask("tools/list")

    assert peer.sink.codes == ["cancelled"]
    assert peer.left() == []


async def test_a_cancel_of_the_request_that_asked_comes_too_late(meet: "Meet") -> None:
    async with meet(tools=[greet]) as peer:
        state = await state_of(peer)
        peer.cancel("first")
        peer.call(2, "greet", requestState=state, inputResponses=said())
        assert (await peer.envelope())["data"] == "Hello Ada"


async def test_the_deadline_stands_still_while_somebody_is_asked(meet: "Meet") -> None:
    loop = asyncio.get_running_loop()

    @tool(timeout=0.5)
    async def hurry(call: Call) -> str:
        """Ask, in a hurry."""
        return (await call.ask(SCHEMA, "Who?", key="who"))["name"]

    @tool(timeout=0.5)
    async def dawdle(call: Call) -> str:
        """Ask, and then take for ever."""
        await call.ask(SCHEMA, "Who?", key="who")
        await asyncio.Event().wait()
        return ""

    async with meet(tools=[hurry, dawdle]) as peer:
        states = [await state_of(peer, "hurry"), await state_of(peer, "dawdle")]
        later = loop.time() + 0.8
        await peer.until(lambda: loop.time() > later)
        assert peer.sink.records == []
        peer.call(2, "hurry", requestState=states[0], inputResponses=said())
        assert (await peer.envelope())["data"] == "Ada"
        peer.call(3, "dawdle", requestState=states[1], inputResponses=said())
        assert (await peer.envelope())["error"]["code"] == "timeout"


async def test_a_serial_turn_is_free_while_somebody_is_asked(meet: "Meet") -> None:
    @tool(serial=True)
    async def one_by_one(call: Call, ask: bool = False) -> str:  # noqa: FBT001, FBT002 - an argument
        """Ask, or not."""
        return (await call.ask(SCHEMA, "Who?", key="who"))["name"] if ask else "nobody"

    async with meet(tools=[one_by_one]) as peer:
        state = await state_of(peer, "one_by_one", arguments={"ask": True})
        peer.call(2, "one_by_one")
        assert (await peer.envelope())["data"] == "nobody"
        peer.call(3, "one_by_one", {"ask": True}, requestState=state, inputResponses=said())
        assert (await peer.envelope())["data"] == "Ada"
        peer.call(4, "one_by_one")
        assert (await peer.envelope())["data"] == "nobody"


async def test_progress_goes_to_the_request_that_is_open(meet: "Meet") -> None:
    @tool
    async def stepwise(call: Call) -> str:
        """Ask between two steps."""
        call.progress(1, 3, "before")
        await call.ask(SCHEMA, "Who?", key="who")
        call.progress(2, 3, "after")
        return "done"

    async with meet(tools=[stepwise]) as peer:
        state = await state_of(peer, "stepwise", progress="old")
        assert [notice["params"]["progressToken"] for notice in peer.notices] == ["old"]
        peer.call(2, "stepwise", requestState=state, inputResponses=said(), progress="new")
        assert (await peer.envelope())["data"] == "done"
        assert {notice["params"]["progressToken"] for notice in peer.notices[1:]} == {"new"}


async def test_progress_reaches_a_request_that_wants_it_though_the_first_did_not(meet: "Meet") -> None:
    @tool
    async def stepwise(call: Call) -> str:
        """Ask, then take a step."""
        await call.ask(SCHEMA, "Who?", key="who")
        call.progress(2, 3, "after")
        return "done"

    async with meet(tools=[stepwise]) as peer:
        state = await state_of(peer, "stepwise")
        peer.call(2, "stepwise", requestState=state, inputResponses=said(), progress="new")
        assert (await peer.envelope())["data"] == "done"
        assert [notice["params"]["progressToken"] for notice in peer.notices] == ["new"]


async def test_a_resource_and_a_prompt_can_ask_too(meet: "Meet") -> None:
    @resource("a://b")
    async def page(call: Call) -> str:
        """Say who reads."""
        return (await call.ask(SCHEMA, "Who?", key="who"))["name"]

    @prompt
    async def words(call: Call) -> str:
        """Say who wants words."""
        return (await call.ask(SCHEMA, "Who?", key="who"))["name"]

    async with meet(resources=[page], prompts=[words]) as peer:
        for method, params in (("resources/read", {"uri": "a://b"}), ("prompts/get", {"name": "words"})):
            asked = (await peer.ask(method, params))["result"]
            assert asked["resultType"] == "input_required"
            answer = await peer.ask(method, {**params, "requestState": asked["requestState"], "inputResponses": said()})
            assert "Ada" in str(answer["result"])
            gone = await peer.ask(method, {**params, "requestState": asked["requestState"], "inputResponses": said()})
            assert gone["error"]["data"]["error"]["code"] == "state_error"


async def test_a_state_whose_key_is_unknown_is_refused_before_anything_begins() -> None:
    request = CallRequest("greet")
    state = Signer(lambda: b"x").sign("state of a request", ["gone", request.fingerprint(), 2**40, False])
    async with Yard(tools=[greet]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        required = InputRequired(yard.dispatcher, Signer(lambda: b"x"), store=yard.store, seconds=60)
        context = RequestContext(
            server=server, id=1, encoder=server.encoders[LATEST.name], caller=Caller(), capabilities={"elicitation": {}}
        )
        with pytest.raises(Fault):
            await required.run(request, context, "no state")
        with pytest.raises(ToolError) as caught:
            await required.run(request, context, state)
        server.close()
    assert caught.value.code == "state_error"


async def test_an_answer_to_a_declared_question_counts_once_for_as_long_as_a_call_may_wait() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    request = CallRequest("sign")
    signer = Signer(lambda: b"x")

    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def sign(call: Call) -> str:
        """Say what was answered."""
        return call.confirmation["name"]

    async with Yard(tools=[sign]) as yard:
        server = ServerContext(yard, Serving(), channel="test")
        codes: list[str | None] = []
        for key in ("a", "a", "b"):  # two servers that share a store, and a second question
            required = InputRequired(yard.dispatcher, signer, store=store, seconds=60)
            context = RequestContext(
                server=server,
                id=1,
                encoder=server.encoders[LATEST.name],
                caller=Caller(),
                capabilities={"elicitation": {}},
                input_responses=said(),
            )
            state = signer.sign("state of a request", [key, request.fingerprint(), 2**40, True])
            try:
                answer = await required.run(request, context, state)
                assert isinstance(answer, Envelope)
                codes.append(None if answer.error is None else answer.error.code)
            except ToolError as error:
                codes.append(error.code)
        server.close()

    assert codes == [None, "state_error", None]
    clock.advance(61)
    assert await store.keys("answered/") == []


async def test_two_questions_at_the_same_time_are_both_answered(meet: "Meet") -> None:
    @tool
    async def couple(call: Call) -> str:
        """Ask for two names at once, without asking for all at once."""
        first, second = await asyncio.gather(call.ask(SCHEMA, "Who?", key="who"), call.ask(SCHEMA, "Whom?", key="whom"))
        return f"{first['name']} and {second['name']}"

    async with meet(tools=[couple]) as peer:
        peer.call(0, "couple")
        rounds = 0
        while (result := (await peer.answer())["result"])["resultType"] == "input_required":
            rounds += 1
            assert rounds <= 2
            answers = {key: said(key.title(), key)[key] for key in result["inputRequests"]}
            peer.call(rounds, "couple", requestState=result["requestState"], inputResponses=answers)

    assert result["structuredContent"]["data"] == "Who and Whom"
    assert peer.sink.codes == [None]


async def test_one_yes_to_a_declared_question_does_one_thing(meet: "Meet") -> None:
    ran: list[str] = []

    @tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
    async def declared(call: Call) -> str:
        """Say what was answered."""
        ran.append(call.confirmation["name"])
        return call.confirmation["name"]

    async with meet(tools=[declared]) as peer:
        state = await state_of(peer, "declared")
        for request_id in (2, 3):
            peer.call(request_id, "declared", requestState=state, inputResponses=said())
        answers = {
            answer["id"]: answer["result"]["structuredContent"] for answer in [await peer.answer(), await peer.answer()]
        }

    assert ran == ["Ada"]
    assert answers[2]["data"] == "Ada"
    assert answers[3]["error"]["code"] == "state_error"


@pytest.mark.parametrize(("limit", "most"), [("_MAX_QUESTIONS_OF_OWNER", 1), ("_MAX_BYTES_OF_OWNER", 5000)])
async def test_one_caller_cannot_take_the_room_of_the_others(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(f"callyard.dispatch.questions.{limit}", most)

    @tool
    async def keep(call: Call, much: str) -> str:
        """Ask, having taken much."""
        return f"{(await call.ask(SCHEMA, 'Who?', key='who'))['name']} {len(much)}"

    async with meet(tools=[keep]) as peer:
        assert await state_of(peer, "keep", arguments={"much": "x" * 3000})
        peer.call(2, "keep", {"much": "x" * 3000})
        refused = await peer.envelope()
        async with meet(tools=[keep], caller=Caller(identity="ben")) as other:
            assert await state_of(other, "keep", arguments={"much": "x" * 3000})

    assert refused["error"]["code"] == "overloaded"


async def test_calls_that_hold_on_to_too_much_together_are_refused(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callyard.dispatch.questions._MAX_BYTES", 5000)

    @tool
    async def keep(call: Call, much: str) -> str:
        """Ask, having taken much."""
        return f"{(await call.ask(SCHEMA, 'Who?', key='who'))['name']} {len(much)}"

    async with meet(tools=[keep]) as peer:
        first = await state_of(peer, "keep", arguments={"much": "x" * 3000})
        peer.call(2, "keep", {"much": "x" * 3000})
        refused = await peer.envelope()
        peer.call(3, "keep", {"much": "x" * 3000}, requestState=first, inputResponses=said())
        answered = await peer.envelope()
        again = await state_of(peer, "keep", arguments={"much": "x" * 3000})

    assert refused["error"]["code"] == "overloaded"
    assert answered["data"] == "Ada 3000"
    assert again


async def test_a_state_that_is_sent_again_lives_no_longer_than_the_call(
    meet: "Meet", monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("callyard.server.input_required.time.time", clock)
    async with meet(tools=[greet], settings={"ask_seconds": 60.0}) as peer:
        state = await state_of(peer)
        clock.advance(50)
        again = await state_of(peer, requestState=state)
        clock.advance(20)
        peer.call(2, "greet", requestState=again, inputResponses=said())
        assert (await peer.answer())["error"]["code"] == INVALID_PARAMS


async def test_a_question_that_is_no_json_is_not_parked(meet: "Meet") -> None:
    @tool
    async def strange(call: Call) -> dict[str, Any]:
        """Ask what nobody can write."""
        return await call.ask({"type": object()}, "Who?")

    async with meet(tools=[strange]) as peer:
        peer.call(1, "strange")
        error = (await peer.envelope())["error"]

    assert (error["code"], error["blame"]) == ("internal_error", "tool")
    assert peer.sink.codes == ["internal_error"]


async def test_a_client_without_forms_gets_the_missing_capability(meet: "Meet") -> None:
    async with meet(tools=[greet], capabilities={"elicitation": {"url": {}}}) as peer:
        peer.call(1, "greet")
        error = (await peer.answer())["error"]

    assert (error["code"], error["data"]) == (
        MISSING_CAPABILITY,
        {"requiredCapabilities": {"elicitation": {"form": {}}}},
    )


@tool(confirmation=Confirmation("Who?", SCHEMA, "who"))
async def confirmed(call: Call) -> str:
    """Say what was answered."""
    return call.confirmation["name"]


class Unsteady(MemoryStore):
    """A store that takes a moment, and fails while it is told to."""

    fails = False

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
    ) -> bool:
        await asyncio.sleep(0)
        if self.fails:
            raise StoreUnavailableError("no room", reason="full")
        return await super().compare_and_set(key, expected, value, ttl=ttl, durable=durable)


@pytest.mark.parametrize("name", ["greet", "confirmed"])
async def test_an_answer_that_comes_twice_at_the_same_moment_runs_the_call_once(meet: "Meet", name: str) -> None:
    ran: list[str] = []

    async def note(call: Call) -> None:
        ran.append(call.id)

    async with meet(tools=[greet, confirmed], store=Unsteady(), policies=[note]) as peer:
        state = await state_of(peer, name)
        for number in (2, 3):
            peer.call(number, name, requestState=state, inputResponses=said())
        answers = [await peer.envelope(), await peer.envelope()]

    assert sorted(answer["success"] for answer in answers) == [False, True]
    refused = next(answer["error"] for answer in answers if answer["error"])
    assert (refused["code"], refused["details"]["reason"]) == ("state_error", "call_gone")
    assert peer.sink.codes.count(None) == 1


async def test_an_answer_that_cannot_be_marked_does_not_continue_a_declared_question(meet: "Meet") -> None:
    store = Unsteady()
    async with meet(tools=[confirmed], store=store) as peer:
        state = await state_of(peer, "confirmed")
        store.fails = True
        peer.call(2, "confirmed", requestState=state, inputResponses=said())
        refused = (await peer.envelope())["error"]
        store.fails = False
        peer.call(3, "confirmed", requestState=state, inputResponses=said())
        envelope = await peer.envelope()

    assert (refused["code"], refused["details"]["reason"], refused["may_have_run"]) == (
        "overloaded",
        "store_unavailable",
        False,
    )
    assert envelope["data"] == "Ada"


async def test_an_answer_counts_once_for_all_servers_of_a_store(meet: "Meet", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "a secret")
    store = MemoryStore()
    async with meet(tools=[confirmed], store=store) as one, meet(tools=[confirmed], store=store) as other:
        state = await state_of(one, "confirmed")
        other.call(1, "confirmed", requestState=state, inputResponses=said())
        first = await other.envelope()
        one.call(2, "confirmed", requestState=state, inputResponses=said())
        second = await one.envelope()

    assert first["data"] == "Ada"
    assert second["error"]["details"]["reason"] == "call_gone"
