"""The reference server as an upstream over each carrier: plain over MCP, and as envelopes in the library."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from fronts import NEW, OLD, in_front, opened, refusal, until
from mcp_types import CreateMessageResult, ElicitResult, PromptReference, TextContent

from callyard.config.settings import Serving
from callyard.providers.upstream.provider import make_upstream
from callyard.yard import Yard

every_carrier = pytest.mark.parametrize("carrier", ["stdio", "http", "sse"])
TOOLS = {"every__echo", "every__get-sum", "every__get-structured-content", "every__trigger-elicitation-request"}
LINK = "every+demo://resource/dynamic/text/1"


async def until_complete(yard: Yard) -> None:
    """Wait until what it adds once it was greeted is there, too."""
    await until(lambda: {spec.name for spec in yard.list()} >= TOOLS)


@every_carrier
async def test_the_library_gets_envelopes(tmp_path: Path, everything: Any, carrier: str) -> None:
    async with opened(tmp_path, every=everything(carrier)) as (yard, upstreams):
        await until_complete(yard)
        summed = await yard.call("every__get-sum", {"a": 2, "b": 3})
        weather: Any = await yard.call("every__get-structured-content", {"location": "Chicago"})
        image: Any = await yard.call("every__get-tiny-image")
        wrong = refusal(await yard.call("every__get-sum", {"a": "two", "b": 3}))
        made: Any = await yard.prompt("every__args-prompt", {"city": "Paris"})
        resource: Any = await yard.read(LINK)
        status = upstreams["every"].status()

        assert (summed.data, set(weather.data)) == (
            "The sum of 2 and 3 is 5.",
            {"temperature", "conditions", "humidity"},
        )
        assert [part["type"] for part in image.data] == ["text", "image", "text"]
        assert [block.describe()["mime_type"] for block in image.content] == ["image/png"]
        assert (wrong.code, wrong.may_have_run) == ("invalid_input", False)
        assert made.data["messages"][0]["content"]["text"] == "What's weather in Paris?"
        assert [part["uri"] for part in resource.data["contents"]] == [LINK]
        assert (status.state, status.server, status.failures) == ("ready", "mcp-servers/everything", 0)
        assert "Everything Server" in yard.instructions_for(yard.profile)


@every_carrier
@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_a_client_gets_the_servers_own_results(tmp_path: Path, everything: Any, carrier: str, mode: str) -> None:
    progressed: list[tuple[float, float | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        progressed.append((progress, total))

    async with opened(tmp_path, every=everything(carrier)) as (yard, _), in_front(yard, mode) as client:
        await until_complete(yard)
        tools = {tool.name for tool in (await client.list_tools()).tools}
        said: Any = await client.call_tool("every__echo", {"message": "hello"})
        weather: Any = await client.call_tool("every__get-structured-content", {"location": "Chicago"})
        image: Any = await client.call_tool("every__get-tiny-image")
        linked: Any = await client.call_tool("every__get-resource-links", {"count": 2})
        steps: Any = await client.call_tool(
            "every__trigger-long-running-operation", {"duration": 0.02, "steps": 2}, progress_callback=hear
        )
        read: Any = await client.read_resource(linked.content[1].uri)
        embedded: Any = await client.get_prompt("every__resource-prompt", {"resourceType": "Text", "resourceId": "1"})
        completed = await client.complete(
            PromptReference(type="ref/prompt", name="every__completable-prompt"),
            {"name": "name", "value": "A"},
            context_arguments={"department": "Engineering"},
        )

    assert tools >= TOOLS
    assert (said.content[0].text, said.structured_content) == ("Echo: hello", None)
    assert json.loads(weather.content[0].text) == weather.structured_content
    assert base64.b64decode(image.content[1].data).startswith(b"\x89PNG")
    assert [part.type for part in linked.content] == ["text", "resource_link", "resource_link"]
    assert str(read.contents[0].uri) == str(linked.content[1].uri)
    assert (steps.is_error, progressed) == (False, [(1, 2), (2, 2)])
    assert str(embedded.messages[1].content.resource.uri) == LINK
    assert completed.completion.values == ["Alice"]


async def test_a_client_validates_results_against_the_servers_schema(tmp_path: Path, everything: Any) -> None:
    serving = Serving(output_schemas=True)
    async with opened(tmp_path, every=everything("http")) as (yard, _), in_front(yard, NEW, serving=serving) as client:
        await until_complete(yard)
        listed = {tool.name: tool.output_schema for tool in (await client.list_tools()).tools}
        weather: Any = await client.call_tool("every__get-structured-content", {"location": "Chicago"})

    assert set((listed["every__get-structured-content"] or {})["properties"]) == set(weather.structured_content)


@every_carrier
@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_elicitation_and_sampling_reach_the_client(
    tmp_path: Path, everything: Any, carrier: str, mode: str
) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        assert "name" in params.requested_schema["properties"]
        return ElicitResult(action="accept", content={"name": "Ada", "check": True})

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(role="assistant", content=TextContent(type="text", text="Tea."), model="none")

    async with (
        opened(tmp_path, every=everything(carrier)) as (yard, _),
        in_front(yard, mode, elicitation_callback=elicit, sampling_callback=sample) as client,
    ):
        await until_complete(yard)
        elicited: Any = await client.call_tool("every__trigger-elicitation-request")
        sampled: Any = await client.call_tool("every__trigger-sampling-request", {"prompt": "Tea or coffee?"})

    assert any("Ada" in part.text for part in elicited.content)
    assert "Tea." in sampled.content[0].text


async def test_a_client_without_elicitation_is_not_the_upstreams_fault(tmp_path: Path, everything: Any) -> None:
    async with opened(tmp_path, every=everything("stdio")) as (yard, _):
        await until_complete(yard)
        error = refusal(await yard.call("every__trigger-elicitation-request"))

    assert (error.code, error.blame) == ("not_supported", "caller")


async def test_its_lists_are_remembered_while_it_is_away(tmp_path: Path, everything: Any) -> None:
    async with opened(tmp_path, every=everything("stdio")) as (yard, _):
        await until_complete(yard)
        listed = yard.list()
    again = make_upstream("every", everything("stdio"), state=tmp_path)
    async with Yard("gate", providers=[again], metatools=False) as yard:
        assert yard.list() == listed
        assert again.status().state == "cold"
