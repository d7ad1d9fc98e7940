"""The official Python client hears what a call says, answers what it asks, and stops it."""

import json
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CreateMessageResult, ElicitResult, ListRootsResult, Root, TextContent

NEW = "2026-07-28"
every_way = pytest.mark.parametrize(
    ("channel", "mode"),
    [(channel, mode) for channel in ("stdio", "memory", "http", "http-stateless") for mode in ("legacy", NEW)],
)
ways_to_ask = pytest.mark.parametrize(
    ("channel", "mode"),
    [("stdio", "legacy"), ("memory", "legacy"), ("http", "legacy")]
    + [(channel, NEW) for channel in ("stdio", "memory", "http", "http-json", "http-stateless")],
)


def data_of(result: Any) -> Any:
    received = json.loads(result.content[0].text)
    assert received == result.structured_content
    assert received["success"], received
    return received["data"]


class Person:
    """Whoever is asked, and what for."""

    def __init__(self, **answer: Any) -> None:
        self.asked: list[str] = []
        self._answer = answer or {"action": "accept", "content": {"name": "Ada"}}

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        return ElicitResult(**self._answer)


async def sample(context: Any, params: Any) -> CreateMessageResult:
    assert params.max_tokens == 10
    return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Tea."), model="none")


async def list_roots(context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[Root(uri="file:///home/ada")])  # pyright: ignore[reportArgumentType] - a text will do


@every_way
async def test_progress_arrives_in_order_before_the_answer(connect: Any, channel: str, mode: str) -> None:
    received: list[tuple[float, float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append((progress, total, message))

    async with connect(channel, mode) as client:
        answer = await client.call_tool("step", {"count": 3}, progress_callback=hear)

    assert data_of(answer) == "done"
    assert received == [(1, 3, "step 1"), (2, 3, "step 2"), (3, 3, "step 3")]


@pytest.mark.parametrize("mode", ["legacy", NEW])
async def test_a_server_that_answers_with_json_alone_leaves_progress_out(connect: Any, mode: str) -> None:
    async def hear(progress: float, total: float | None, message: str | None) -> None:
        raise AssertionError

    async with connect("http-json", mode) as client:
        assert data_of(await client.call_tool("step", {}, progress_callback=hear)) == "done"


class Log:
    """What a client was told."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    async def __call__(self, params: Any) -> None:
        self.levels.append(params.level)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")  # what only the older era has
@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_an_older_client_sets_the_level_of_what_it_hears(connect: Any, channel: str) -> None:
    log = Log()
    async with connect(channel, "legacy", logging_callback=log) as client:
        await client.set_logging_level("debug")
        await client.call_tool("step", {"count": 1})
        assert log.levels == ["debug", "warning"]

        await client.set_logging_level("error")
        await client.call_tool("step", {"count": 1})
        assert log.levels == ["debug", "warning"]


@pytest.mark.parametrize("channel", ["stdio", "memory", "http", "http-stateless"])
@pytest.mark.parametrize(("level", "levels"), [(None, []), ("debug", ["debug", "warning"]), ("warning", ["warning"])])
async def test_a_newer_client_says_with_each_request_what_it_hears(
    connect: Any, channel: str, level: str, levels: list[str]
) -> None:
    log = Log()
    async with connect(channel, NEW, logging_callback=log, log_level=level) as client:
        await client.call_tool("step", {"count": 1})

    assert log.levels == levels


@ways_to_ask
@pytest.mark.parametrize("name", ["greet", "greet_first"])
async def test_a_person_is_asked_while_a_call_waits(connect: Any, channel: str, mode: str, name: str) -> None:
    person = Person()
    async with connect(channel, mode, elicitation_callback=person) as client:
        assert data_of(await client.call_tool(name)) == "Hello Ada"

    assert person.asked == ["Who is there?"]


@pytest.mark.parametrize(
    ("channel", "mode"), [("memory", "legacy"), ("http", "legacy"), ("memory", NEW), ("http", NEW)]
)
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ({"action": "decline"}, "approval_denied"),
        ({"action": "cancel"}, "cancelled"),
        ({"action": "accept", "content": {"name": 7}}, "invalid_input"),
    ],
)
async def test_a_person_who_does_not_answer_well_is_an_answer(
    connect: Any, channel: str, mode: str, answer: Any, code: str
) -> None:
    async with connect(channel, mode, elicitation_callback=Person(**answer)) as client:
        result = await client.call_tool("greet")

    assert result.is_error
    assert result.structured_content["error"]["code"] == code


@ways_to_ask
async def test_person_model_and_client_are_asked_at_once(connect: Any, channel: str, mode: str) -> None:
    options = {"elicitation_callback": Person(), "sampling_callback": sample, "list_roots_callback": list_roots}
    async with connect(channel, mode, **options) as client:
        received = data_of(await client.call_tool("consult"))

    assert received["who"]["content"] == {"name": "Ada"}
    assert received["what"]["content"]["text"] == "Tea."
    assert [one["uri"] for one in received["where"]["roots"]] == ["file:///home/ada"]


@ways_to_ask
async def test_a_prompt_may_ask_too(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode, elicitation_callback=Person()) as client:
        filled = await client.get_prompt("introduce")

    assert filled.messages[0].content.text == "I am Ada"


@pytest.mark.parametrize("channel", ["stdio", "memory", "http", "http-json", "http-stateless"])
async def test_an_older_client_that_cannot_be_asked_gets_an_answer(connect: Any, channel: str) -> None:
    async with connect(channel, "legacy") as client:
        result = await client.call_tool("greet")

    assert result.structured_content["error"]["code"] == "not_supported"


@pytest.mark.parametrize("channel", ["stdio", "memory", "http"])
async def test_a_newer_client_that_cannot_be_asked_gets_its_missing_capability(connect: Any, channel: str) -> None:
    async with connect(channel, NEW) as client:
        with pytest.raises(MCPError) as caught:
            await client.call_tool("greet")

    assert caught.value.code == -32021
    assert caught.value.data == {"requiredCapabilities": {"elicitation": {}}}


@pytest.mark.parametrize(
    ("channel", "mode"),
    [(channel, mode) for channel in ("stdio", "memory", "http", "http-json") for mode in ("legacy", NEW)]
    + [("http-stateless", NEW)],
)
async def test_a_client_that_waits_no_longer_stops_the_call(connect: Any, channel: str, mode: str) -> None:
    key = uuid4().hex
    async with connect(channel, mode) as client, anyio.create_task_group() as group:

        async def call() -> None:
            with scope:
                await client.call_tool("wait_for_ever", {"key": key})

        scope = anyio.CancelScope()
        group.start_soon(call)
        assert data_of(await client.call_tool("was_started", {"key": key})) is True
        scope.cancel()
        assert data_of(await client.call_tool("was_stopped", {"key": key})) is True


@pytest.mark.parametrize(("channel", "mode"), [("stdio", "legacy"), ("stdio", NEW), ("http", "legacy"), ("http", NEW)])
async def test_a_client_whose_time_is_up_stops_the_call(connect: Any, channel: str, mode: str) -> None:
    key = uuid4().hex
    async with connect(channel, mode) as client:
        await client.list_tools()
        with pytest.raises(MCPError):
            await client.call_tool("wait_for_ever", {"key": key}, read_timeout_seconds=1)
        assert data_of(await client.call_tool("was_stopped", {"key": key})) is True


async def test_a_client_that_lost_its_stream_comes_back_for_the_rest(url_of: Callable[..., str]) -> None:
    key = uuid4().hex
    received: list[str | None] = []
    came_back = anyio.Event()

    async def note(request: httpx2.Request) -> None:
        if "last-event-id" in request.headers:
            came_back.set()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        received.append(message)

    async def go_on(client: Client) -> None:
        await came_back.wait()
        await client.call_tool("go_on", {"key": key})

    with anyio.fail_after(30):
        async with (
            httpx2.AsyncClient(event_hooks={"request": [note]}) as http,
            Client(streamable_http_client(url_of(), http_client=http), mode="legacy") as client,
            anyio.create_task_group() as group,
        ):
            group.start_soon(go_on, client)
            assert data_of(await client.call_tool("hang_up", {"key": key}, progress_callback=hear)) == "done"

    assert received == ["before", "after"]
