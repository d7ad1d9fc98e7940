"""The official Python client gets along with a yard, in both eras and at every door."""

import json
from typing import Any

import pytest
from mcp import MCPError
from mcp_types import (
    BlobResourceContents,
    EmbeddedResource,
    ImageContent,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)

CHANNELS = ["stdio", "memory", "http", "http-json", "http-stateless"]
ERAS = ["legacy", "2026-07-28"]
OLD, NEW = "2025-11-25", "2026-07-28"

every_channel = pytest.mark.parametrize("channel", CHANNELS)
two_channels = pytest.mark.parametrize("channel", ["stdio", "http"])
both_eras = pytest.mark.parametrize("mode", ERAS)

TOOLS = {
    "add",
    "consult",
    "crash",
    "echo",
    "fail",
    "go_on",
    "greet",
    "greet_first",
    "hang_up",
    "learn",
    "paint",
    "plain",
    "step",
    "touch",
    "wait_for_ever",
    "was_started",
    "was_stopped",
}


def envelope_of(result: Any) -> dict[str, Any]:
    """Return the envelope, which is there twice."""
    answered: dict[str, Any] = result.structured_content
    assert json.loads(result.content[0].text) == answered
    assert result.is_error is not answered["success"]
    return answered


@every_channel
@pytest.mark.parametrize(("mode", "version"), [("legacy", OLD), ("auto", NEW), (NEW, NEW)])
async def test_a_client_connects_lists_and_calls(connect: Any, channel: str, mode: str, version: str) -> None:
    async with connect(channel, mode) as client:
        listed = await client.list_tools()
        answer = await client.call_tool("add", {"a": 2, "b": 3})

        assert client.protocol_version == version
        assert {tool.name for tool in listed.tools} >= TOOLS
        assert envelope_of(answer)["data"] == 5


@every_channel
@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_client_gets_the_name_and_version_of_the_server(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        assert (client.server_info.name, client.server_info.version) == ("shed", "1.2.3")
        assert str(client.instructions).startswith("Use 'add' to add.\n\nCall each tool by its name.")
        capabilities = client.server_capabilities
        assert None not in [capabilities.tools, capabilities.prompts, capabilities.resources, capabilities.completions]
        assert (capabilities.logging is None) == (
            (channel, mode) == ("http-stateless", "legacy")
        )  # where nothing keeps the level


@two_channels
@both_eras
async def test_the_whole_definition_of_a_tool_arrives(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        (add,) = [tool for tool in (await client.list_tools()).tools if tool.name == "add"]

    assert (add.title, add.description) == ("Add two numbers", "Add two integers.")
    assert add.input_schema["required"] == ["a"]
    assert add.input_schema["additionalProperties"] is False
    hints = add.annotations
    assert (hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint) == (True, False, True)


@every_channel
@both_eras
async def test_a_failure_is_an_answer(connect: Any, channel: str, mode: str) -> None:
    wrong: list[tuple[str, dict[str, Any] | None, str]] = [
        ("add", {"a": "two"}, "invalid_input"),
        ("add", {}, "invalid_input"),
        ("add", None, "invalid_input"),
        ("add", {"a": 1, "c": 1}, "invalid_input"),
        ("ad", {"a": 1}, "tool_not_found"),
        ("fail", {"code": "state_error"}, "state_error"),
        ("crash", {}, "internal_error"),
    ]
    async with connect(channel, mode) as client:
        answered = [envelope_of(await client.call_tool(name, arguments)) for name, arguments, _ in wrong]

    assert [one["error"]["code"] for one in answered] == [code for _, _, code in wrong]


@two_channels
@both_eras
async def test_a_plain_tool_answers_as_it_is(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        answer = await client.call_tool("plain", {"text": "Häuser 🏠"})

    assert [block.text for block in answer.content] == ["Häuser 🏠"]
    assert (answer.structured_content, answer.is_error) == (None, False)


@every_channel
@both_eras
async def test_pictures_links_and_pages_arrive(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        answer = await client.call_tool("paint")

    assert envelope_of(answer)["data"] == "painted"
    image, text, link, page = answer.content[1:]
    assert isinstance(image, ImageContent)
    assert image.mime_type == "image/png"
    assert isinstance(text, TextContent)
    assert isinstance(link, ResourceLink)
    assert str(link.uri) == "notes://all"
    assert isinstance(page, EmbeddedResource)
    assert isinstance(page.resource, TextResourceContents)


@two_channels
@both_eras
async def test_resources_are_listed_and_read(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        listed = {str(one.uri): one for one in (await client.list_resources()).resources}
        templates = (await client.list_resource_templates()).resource_templates
        (text,) = (await client.read_resource("notes://all")).contents
        (blob,) = (await client.read_resource("notes://pixel")).contents
        (one,) = (await client.read_resource("notes://days/monday")).contents

    assert listed["notes://all"].mime_type == "text/markdown"
    assert [one.uri_template for one in templates] == ["notes://days/{day}"]
    assert isinstance(text, TextResourceContents)
    assert (str(text.uri), text.mime_type) == ("notes://all", "text/markdown")
    assert isinstance(blob, BlobResourceContents)
    assert blob.mime_type == "image/png"
    assert one.text == "Water the plants."


@two_channels
@both_eras
async def test_an_unknown_uri_is_a_fault_that_names_it(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        with pytest.raises(MCPError) as caught:
            await client.read_resource("notes://nothing")

    assert caught.value.code == -32602
    assert caught.value.data["uri"] == "notes://nothing"


@two_channels
@both_eras
async def test_prompts_are_listed_and_filled_in(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        listed = {one.name: one for one in (await client.list_prompts()).prompts}
        filled = await client.get_prompt("review", {"text": "It rained.", "tone": "keen"})

    assert listed["review"].title == "Review a text"
    assert [(one.name, bool(one.required)) for one in listed["review"].arguments] == [("text", True), ("tone", False)]
    assert [one.role for one in filled.messages] == ["user", "user", "assistant"]
    assert filled.messages[0].content.text == "Be keen: It rained."
    assert isinstance(filled.messages[1].content, ImageContent)


@two_channels
@both_eras
async def test_a_wrong_prompt_is_a_fault(connect: Any, channel: str, mode: str) -> None:
    wrong: list[tuple[str, dict[str, str]]] = [("revue", {}), ("review", {}), ("review", {"text": "a", "colour": "b"})]
    async with connect(channel, mode) as client:
        for name, arguments in wrong:
            with pytest.raises(MCPError) as caught:
                await client.get_prompt(name, arguments)
            assert caught.value.code == -32602


@two_channels
@both_eras
async def test_a_typed_prefix_is_completed(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode) as client:
        tones = await client.complete(PromptReference(type="ref/prompt", name="review"), {"name": "tone", "value": "k"})
        template = ResourceTemplateReference(type="ref/resource", uri="notes://days/{day}")
        days = await client.complete(template, {"name": "day", "value": "t"})
        with pytest.raises(MCPError) as caught:
            await client.complete(PromptReference(type="ref/prompt", name="revue"), {"name": "tone", "value": "k"})

    assert (tones.completion.values, tones.completion.has_more) == (["kind", "keen"], False)
    assert days.completion.values == ["tuesday"]
    assert caught.value.code == -32602


@two_channels
@both_eras
async def test_a_long_list_comes_in_pages(connect: Any, channel: str, mode: str) -> None:
    async with connect(channel, mode, settings={"page_size": 3}) as client:
        names: list[str] = []
        cursor: str | None = None
        while True:
            page = await client.list_tools(cursor=cursor)
            assert len(page.tools) <= 3
            names += [tool.name for tool in page.tools]
            cursor = page.next_cursor
            if cursor is None:
                break
        with pytest.raises(MCPError) as caught:
            await client.list_tools(cursor="page two")

    assert len(names) == len(set(names))
    assert set(names) >= TOOLS
    assert caught.value.code == -32602


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")  # what only the older era has
@every_channel
async def test_an_older_client_can_ping(connect: Any, channel: str) -> None:
    async with connect(channel, "legacy") as client:
        answer = await client.send_ping()

    assert answer.model_dump(exclude_none=True) == {}


@two_channels
async def test_a_newer_client_may_keep_a_list_and_only_for_itself(connect: Any, channel: str) -> None:
    async with connect(channel, NEW) as client:
        lists = [
            await client.list_tools(),
            await client.list_prompts(),
            await client.list_resources(),
            await client.list_resource_templates(),
            await client.read_resource("notes://all"),
        ]

    assert {(one.ttl_ms, one.cache_scope) for one in lists} == {(60_000, "private")}
