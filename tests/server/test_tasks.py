"""MCP's extension for tasks: jobs in the words of the protocol."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from callyard import Call, Caller, Confirmation, Limits, Profile, ToolError, Yard, tool
from callyard.config.settings import Serving
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeSink
from callyard.transports.memory import Memory
from callyard.wire.messages import INTERNAL, INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY

if TYPE_CHECKING:
    from pathlib import Path

    from tests.server.conftest import Meet, Peer

EXTENSION = "io.modelcontextprotocol/tasks"
TASKS: dict[str, Any] = {"elicitation": {}, "extensions": {EXTENSION: {}}}
OLD = "2025-11-25"
FORM = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ADA = {"action": "accept", "content": {"name": "Ada"}}


@tool(operation="query", job="optional")
async def double(number: int) -> int:
    """Double a number."""
    return number * 2


@tool(job="required")
async def refuse() -> None:
    """Fail."""
    raise ToolError("state_error", "Not now.", reason="busy")


@tool(job="always")
async def crash() -> None:
    """Crash."""
    raise LookupError("secret")


@tool(job="optional")
async def greet(call: Call) -> str:
    """Ask for a name."""
    return f"Hello {(await call.ask(FORM, 'Who?', key='who'))['name']}"


@tool(job="optional", confirmation=Confirmation("Who?", FORM, "who"))
async def confirmed(call: Call) -> str:
    """Say what was answered."""
    return call.confirmation["name"]


@tool(job="optional", shape="plain")
async def speak() -> str:
    """Say something."""
    return "plain words"


@tool(job="optional")
async def wait() -> None:
    """Wait for ever."""
    await asyncio.Event().wait()


TOOLS = [double, refuse, crash, greet, confirmed, speak, wait]


async def created(peer: "Peer", name: str, arguments: dict[str, Any] | None = None, **more: Any) -> str:
    """Call a tool that becomes a task, and return its id."""
    peer.call("call", name, arguments, **more)
    result = (await peer.answer())["result"]
    assert (result["resultType"], result["status"]) == ("task", "working"), result
    return result["taskId"]


async def settled(peer: "Peer", task_id: str) -> dict[str, Any]:
    """Return a task once it has ended or asks something."""
    await peer.yard.jobs.wait(task_id, None, seconds=20)
    return (await peer.ask("tasks/get", {"taskId": task_id}))["result"]


@pytest.mark.parametrize("era", ["2026-07-28", OLD])
async def test_a_call_of_a_client_that_takes_tasks_becomes_one(meet: "Meet", era: str) -> None:
    async with meet(tools=TOOLS, era=era, capabilities=TASKS) as peer:
        peer.call(1, "double", {"number": 4})
        started = (await peer.answer())["result"]
        task = await settled(peer, started["taskId"])

    assert started["resultType"] == "task"
    assert started["pollIntervalMs"] > 0
    assert started["ttlMs"] == Limits().job_ttl * 1000
    assert started["createdAt"].endswith("+00:00")
    assert started.keys() >= {"taskId", "status", "createdAt", "lastUpdatedAt"}
    assert (task["taskId"], task["status"]) == (started["taskId"], "completed")
    assert task["result"]["structuredContent"]["data"] == 8
    assert task["result"]["isError"] is False


async def test_the_extension_may_be_declared_in_the_meta_of_one_request(meet: "Meet") -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": TASKS}
    async with meet(tools=TOOLS, era=OLD, capabilities={}) as peer:
        params: dict[str, Any] = {"name": "double", "arguments": {"number": 4}}
        without = (await peer.ask("tools/call", params))["result"]
        task_id = (await peer.ask("tools/call", params, meta))["result"]["taskId"]
        refused = (await peer.ask("tasks/get", {"taskId": task_id}))["error"]
        found = (await peer.ask("tasks/get", {"taskId": task_id}, meta))["result"]

    assert without["structuredContent"]["data"] == 8
    assert refused["code"] == MISSING_CAPABILITY
    assert found["taskId"] == task_id


async def test_the_server_offers_the_extension_and_not_the_experimental_tasks(meet: "Meet") -> None:
    methods = ("tasks/result", "tasks/list")
    async with meet(tools=TOOLS, capabilities=TASKS) as modern, meet(tools=TOOLS, era=OLD, capabilities=TASKS) as old:
        offered = (await modern.ask("server/discover"))["result"]["capabilities"]
        answers = [
            (await peer.ask(method, {"taskId": "j_1"}))["error"]["code"] for peer in (modern, old) for method in methods
        ]

    assert (offered["extensions"], "tasks" in offered) == ({EXTENSION: {}}, False)
    assert answers == [METHOD_NOT_FOUND] * 4


@pytest.mark.parametrize(("capabilities", "offered"), [({}, None), (TASKS, {EXTENSION: {}})])
async def test_a_client_with_a_handshake_hears_of_the_extension_if_it_declares_it(
    meet: "Meet", capabilities: dict[str, Any], offered: Any
) -> None:
    params = {"protocolVersion": OLD, "capabilities": capabilities, "clientInfo": {"name": "peer", "version": "1"}}
    async with meet(tools=TOOLS) as peer:
        peer.say({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
        answer = (await peer.answer())["result"]["capabilities"]

    assert (answer.get("extensions"), "tasks" in answer) == (offered, False)


@pytest.mark.parametrize("era", ["2026-07-28", OLD])
async def test_a_tool_that_requires_tasks_refuses_other_clients(meet: "Meet", era: str) -> None:
    async with meet(tools=TOOLS, era=era) as peer:
        peer.call(1, "refuse")
        error = (await peer.answer())["error"]

    assert error["code"] == MISSING_CAPABILITY
    assert error["data"] == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


async def test_other_clients_get_the_answer_of_a_job_or_of_the_tool(meet: "Meet") -> None:
    async with meet(tools=TOOLS) as peer:
        peer.call(1, "crash")
        always = (await peer.envelope())["data"]
        peer.call(2, "double", {"number": 4})
        optional = (await peer.envelope())["data"]

    assert (always["status"], always["job_id"][:2], optional) == ("working", "j_", 8)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_client_without_the_extension_sees_no_task(meet: "Meet", method: str) -> None:
    async with meet(tools=TOOLS) as peer:
        error = (await peer.ask(method, {"taskId": "j_1"}))["error"]

    assert (error["code"], error["data"]) == (
        MISSING_CAPABILITY,
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_a_task_that_does_not_exist_is_a_wrong_parameter(meet: "Meet", method: str) -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        unknown = (await peer.ask(method, {"taskId": "j_1"}))["error"]
        missing = (await peer.ask(method, {}))["error"]

    assert (unknown["code"], unknown["data"]["taskId"], missing["code"]) == (INVALID_PARAMS, "j_1", INVALID_PARAMS)


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_the_task_of_another_identity_does_not_exist(meet: "Meet", method: str) -> None:
    yard = Yard(tools=TOOLS)
    bob = Memory(Serving(), caller=Caller(identity="bob"))
    async with meet(yard, capabilities=TASKS, caller=Caller(identity="ada")) as ada, bob.open(yard):
        task_id = await created(ada, "wait")
        stranger = type(ada)(bob, yard, FakeSink(), era="2026-07-28", capabilities=TASKS)
        error = (await stranger.ask(method, {"taskId": task_id}))["error"]
        task = (await ada.ask("tasks/get", {"taskId": task_id}))["result"]

    assert (error["code"], task["status"]) == (INVALID_PARAMS, "working")


async def test_another_connection_of_the_same_identity_may_read_and_cancel_a_task(meet: "Meet") -> None:
    yard = Yard(tools=TOOLS)
    second = Memory(Serving(), caller=Caller(identity="ada", scope="2"))
    async with meet(yard, capabilities=TASKS, caller=Caller(identity="ada", scope="1")) as one, second.open(yard):
        task_id = await created(one, "wait")
        other = type(one)(second, yard, FakeSink(), era="2026-07-28", capabilities=TASKS)
        assert (await other.ask("tasks/cancel", {"taskId": task_id}))["result"]["resultType"] == "complete"
        task = await settled(one, task_id)

    assert task["status"] == "cancelled"
    assert not {"result", "error"} & task.keys()


async def test_a_failure_is_a_completed_task_with_an_error(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        task = await settled(peer, await created(peer, "refuse"))

    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert task["result"]["structuredContent"]["error"]["code"] == "state_error"


async def test_a_defect_is_a_failed_task_with_a_json_rpc_error(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        task = await settled(peer, await created(peer, "crash"))

    assert (task["status"], "result" in task, task["error"]["code"]) == ("failed", False, INTERNAL)
    assert task["error"]["data"]["code"] == "internal_error"
    assert "secret" not in str(task)


async def test_a_lost_task_failed_and_may_have_run(meet: "Meet", tmp_path: "Path") -> None:
    path = tmp_path / "store.sqlite3"
    begun = asyncio.Event()

    @tool(job="required")
    async def act() -> None:
        """Do something for long."""
        begun.set()
        await asyncio.Event().wait()

    async with meet(tools=[act], capabilities=TASKS, store=SqliteStore(path)) as peer:
        task_id = await created(peer, "act")
        await begun.wait()
    async with meet(tools=[act], capabilities=TASKS, store=SqliteStore(path)) as peer:
        task = await settled(peer, task_id)

    assert (task["status"], task["error"]["code"]) == ("failed", INTERNAL)
    error = task["error"]["data"]
    assert (error["details"]["reason"], error["may_have_run"]) == ("interrupted", True)


async def test_a_question_inside_a_task_waits_as_input_required(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        task_id = await created(peer, "greet")
        asked = await settled(peer, task_id)
        for responses in ({"unknown": ADA}, None):
            await peer.ask("tasks/update", {"taskId": task_id, "inputResponses": responses})
        still = (await peer.ask("tasks/get", {"taskId": task_id}))["result"]
        updated = (await peer.ask("tasks/update", {"taskId": task_id, "inputResponses": {"who": ADA}}))["result"]
        task = await settled(peer, task_id)
        late = (await peer.ask("tasks/update", {"taskId": task_id, "inputResponses": {"who": ADA}}))["result"]

    assert (asked["status"], still["status"]) == ("input_required", "input_required")
    assert asked["inputRequests"]["who"]["method"] == "elicitation/create"
    assert asked["inputRequests"]["who"]["params"]["requestedSchema"] == FORM
    assert (task["status"], task["result"]["structuredContent"]["data"]) == ("completed", "Hello Ada")
    assert updated == late
    assert "inputRequests" not in task


async def test_a_declared_question_is_asked_before_the_task_is_created(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        peer.call(1, "confirmed")
        asked = (await peer.answer())["result"]
        jobs = await peer.yard.jobs.all(limit=10)
        task_id = await created(peer, "confirmed", requestState=asked["requestState"], inputResponses={"who": ADA})
        task = await settled(peer, task_id)

    assert (asked["resultType"], list(asked["inputRequests"]), jobs) == ("input_required", ["who"], [])
    assert task["result"]["structuredContent"]["data"] == "Ada"


async def test_a_client_that_cannot_be_asked_gets_not_supported_in_its_task(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities={"extensions": {EXTENSION: {}}}) as peer:
        task = await settled(peer, await created(peer, "greet"))

    assert task["result"]["structuredContent"]["error"]["code"] == "not_supported"


async def test_a_plain_tool_gives_a_plain_result(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        task = await settled(peer, await created(peer, "speak"))

    assert task["result"]["content"] == [{"type": "text", "text": "plain words"}]


async def test_a_plain_profile_lists_no_schema_that_a_job_would_break(meet: "Meet") -> None:
    @tool(operation="query")
    async def now() -> dict[str, int]:
        """Answer at once."""
        return {"a": 1}

    @tool(operation="query", job="optional")
    async def later() -> dict[str, int]:
        """Answer later."""
        return {"a": 1}

    yard = Yard(tools=[now, later], profile=Profile(name="plain", shape="plain"))
    async with meet(yard, capabilities=TASKS) as peer:
        items = {item["name"]: item for item in (await peer.ask("tools/list"))["result"]["tools"]}

    assert ("outputSchema" in items["now"], "outputSchema" in items["later"]) == (True, False)


async def test_progress_is_the_status_message_while_a_task_works(meet: "Meet") -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    @tool(job="optional")
    async def work(call: Call) -> None:
        """Work."""
        await call.progress(1, 2, "half")
        begun.set()
        await go.wait()

    async with meet(tools=[work], capabilities=TASKS) as peer:
        task_id = await created(peer, "work")
        await begun.wait()
        task = (await peer.ask("tasks/get", {"taskId": task_id}))["result"]
        go.set()
        done = await settled(peer, task_id)

    assert (task["statusMessage"], "statusMessage" in done) == ("half", False)


async def test_any_tool_in_the_background_is_a_task_for_clients_that_take_them(meet: "Meet") -> None:
    @tool(operation="query")
    async def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    async with meet(tools=[add], capabilities=TASKS) as peer:
        task_id = await created(peer, "run_tool", {"tool_id": "add", "args": {"a": 1, "b": 2}, "background": True})
        task = await settled(peer, task_id)

    assert task["result"]["structuredContent"]["data"] == 3


async def test_a_task_that_cannot_be_read_now_is_an_error_that_says_when_to_try_again(meet: "Meet") -> None:
    class Failing(MemoryStore):
        """A store that fails while it is told to."""

        fails = False

        async def get(self, key: str) -> bytes | None:
            if self.fails:
                raise StoreUnavailableError("gone", reason="io_error")
            return await super().get(key)

    store = Failing()
    async with meet(tools=TOOLS, capabilities=TASKS, store=store) as peer:
        task_id = await created(peer, "double", {"number": 4})
        await settled(peer, task_id)
        store.fails = True
        error = (await peer.ask("tasks/get", {"taskId": task_id}))["error"]

    assert error["code"] == INTERNAL
    details = error["data"]["error"]["details"]
    assert (details["reason"], details["retry_after_ms"] > 0) == ("store_unavailable", True)


async def next_notice(peer: "Peer") -> dict[str, Any]:
    message = await peer.hear()
    assert "method" in message, message
    return message


async def test_a_client_is_notified_of_the_tasks_that_it_follows(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        task_id = await created(peer, "greet")
        await peer.yard.jobs.wait(task_id, None, seconds=20)
        wanted = {"notifications": {"taskIds": [task_id, "j_unknown", task_id]}}
        peer.say(peer.request("listen", "subscriptions/listen", wanted))
        acknowledged, asks = await next_notice(peer), await next_notice(peer)
        [name] = asks["params"]["inputRequests"]
        peer.say(peer.request("answer", "tasks/update", {"taskId": task_id, "inputResponses": {name: ADA}}))
        statuses: list[str] = []
        last: dict[str, Any] = {}
        while "completed" not in statuses:
            message = await peer.hear()
            if message.get("method") == "notifications/tasks":
                last = message["params"]
                statuses.append(last["status"])
        peer.cancel("listen")

    assert acknowledged["params"]["notifications"] == {"taskIds": [task_id]}
    assert asks["method"] == "notifications/tasks"
    assert asks["params"]["_meta"] == {"io.modelcontextprotocol/subscriptionId": "listen"}
    assert (asks["params"]["taskId"], asks["params"]["status"]) == (task_id, "input_required")
    assert last["result"]["structuredContent"]["data"] == "Hello Ada"


async def test_tasks_of_another_replica_are_followed_and_answered(meet: "Meet", tmp_path: "Path") -> None:
    path = tmp_path / "state.db"
    async with (
        meet(tools=TOOLS, capabilities=TASKS, store=SqliteStore(path), caller=Caller(identity="ada")) as first,
        meet(tools=TOOLS, capabilities=TASKS, store=SqliteStore(path), caller=Caller(identity="ada")) as second,
    ):
        task_id = await created(first, "greet")
        await first.yard.jobs.wait(task_id, None, seconds=20)
        second.say(second.request("listen", "subscriptions/listen", {"notifications": {"taskIds": [task_id]}}))
        await next_notice(second)
        [name] = (await next_notice(second))["params"]["inputRequests"]
        second.say(second.request("answer", "tasks/update", {"taskId": task_id, "inputResponses": {name: ADA}}))
        last: dict[str, Any] = {}
        while last.get("status") != "completed":
            message = await second.hear()
            last = message["params"] if message.get("method") == "notifications/tasks" else last

    assert last["result"]["structuredContent"]["data"] == "Hello Ada"


async def test_only_a_client_that_takes_tasks_follows_them_and_not_too_many(meet: "Meet") -> None:
    async with meet(tools=TOOLS, capabilities=TASKS) as peer:
        many = await peer.ask("subscriptions/listen", {"notifications": {"taskIds": ["j"] * 101}})
    async with meet(tools=TOOLS, capabilities={}) as peer:
        undeclared = await peer.ask("subscriptions/listen", {"notifications": {"taskIds": ["j"]}})

    assert (many["error"]["code"], undeclared["error"]["code"]) == (INVALID_PARAMS, MISSING_CAPABILITY)
