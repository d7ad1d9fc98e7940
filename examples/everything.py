"""A yard with every feature of MCP, for the official conformance suite.

Run it without arguments to serve over stdio, or with `--port 8000` to serve over HTTP. The suite defines the names of
the tools. The yard has content of every kind, progress, log lines, questions to the person, the model and the client,
resources, prompts, and a provider that changes its lists while clients are connected.
"""

import argparse
import asyncio
import struct
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

from pydantic import Field

from callyard import (
    Audio,
    Call,
    ClientRequest,
    Confirmation,
    Embedded,
    Functions,
    Image,
    Message,
    Operation,
    Text,
    Tool,
    ToolError,
    ToolSpec,
    Yard,
    prompt,
    resource,
    serve,
    tool,
)
from callyard.dispatch.tool import check_by_schema
from callyard.providers import Publish


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


RED_DOT = b"".join(
    [
        b"\x89PNG\r\n\x1a\n",
        _chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)),
        _chunk(b"IDAT", zlib.compress(b"\x00\xff\x00\x00")),
        _chunk(b"IEND", b""),
    ]
)
SILENCE = (
    b"RIFF"
    + struct.pack("<I", 38)
    + b"WAVEfmt "
    + struct.pack("<IHHIIHH", 16, 1, 1, 8000, 16000, 2, 16)
    + b"data\x02\0\0\0\0\0"
)


def form(**properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a form whose fields must all be filled in."""
    return {"type": "object", "properties": properties, "required": list(properties)}


TEXT = {"type": "string"}
NAME = form(name=TEXT)

plain = tool(operation="query", shape="plain")
"""Marks a function whose answer is sent without an envelope."""


class Content:
    """Tools that return each kind of content."""

    @plain
    async def test_simple_text(self) -> str:
        """Answer with a text."""
        return "Hello from the yard."

    @plain
    async def test_image_content(self) -> Image:
        """Answer with an image."""
        return Image(RED_DOT)

    @plain
    async def test_audio_content(self) -> Audio:
        """Answer with audio."""
        return Audio(SILENCE)

    @plain
    async def test_embedded_resource(self) -> Embedded:
        """Answer with an embedded resource."""
        return Embedded("test://embedded-resource", text="The content of the resource.")

    @plain
    async def test_multiple_content_types(self) -> list[Text | Image | Embedded]:
        """Answer with a text, an image and a resource."""
        mixed = Embedded("test://mixed-content-resource", text='{"answer": 42}', mime_type="application/json")
        return [Text("Three kinds of content:"), Image(RED_DOT), mixed]

    @tool(operation="query")
    async def test_error_handling(self) -> str:
        """Fail always."""
        raise ToolError("state_error", "This tool fails on purpose.")


class Running:
    """Tools that send progress and log lines, or close the connection, while they run."""

    @plain
    async def test_tool_with_progress(self, call: Call) -> str:
        """Send progress three times."""
        for done in (0, 50, 100):
            call.progress(done, 100, f"{done} of 100 are done")
            await asyncio.sleep(0.05)  # the suite needs separate messages
        return "Done."

    @plain
    async def test_tool_with_logging(self, call: Call) -> str:
        """Send three log lines."""
        for text in ("Beginning", "Still at it", "Nearly done"):
            call.log("info", text)
            await asyncio.sleep(0.05)  # the suite needs separate messages
        return "Done."

    @plain
    async def test_logging_tool(self, call: Call) -> str:
        """Send a log line to clients that asked for log lines."""
        call.log("info", "Only clients that asked for log lines get this.")
        return "Done."

    @plain
    async def test_reconnection(self, call: Call) -> str:
        """Close the connection; the client reconnects for the answer."""
        call.hang_up()
        await asyncio.sleep(0.1)  # so that the client has to reconnect
        return "You reconnected."


class Asking:
    """Questions to the person, to the client's model, and to the client itself."""

    @plain
    async def test_sampling(self, prompt: str, call: Call) -> str:
        """Ask the client's model."""
        answers = await call.ask_all({"answer": ClientRequest.model(prompt, max_tokens=100)})
        return f"LLM response: {answers['answer']['content']['text']}"

    @plain
    async def test_elicitation(self, message: str, call: Call) -> str:
        """Ask the person for a name and an address."""
        answer = await call.ask(form(username=TEXT, email=TEXT), message)
        return f"User response: {answer}"

    @plain
    async def test_elicitation_sep1034_defaults(self, call: Call) -> str:
        """Ask the person, with default answers."""
        fields = {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        }
        answer = await call.ask({"type": "object", "properties": fields}, "Check the defaults.")
        return f"Filled in: {answer}"

    @plain
    async def test_elicitation_sep1330_enums(self, call: Call) -> str:
        """Ask the person to choose, with each form of an enumeration."""
        words = ["option1", "option2", "option3"]
        titled = [{"const": f"value{number}", "title": f"Value {number}"} for number in (1, 2, 3)]
        fields = {
            "untitledSingle": {"type": "string", "enum": words},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": ["One", "Two", "Three"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": words}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        }
        answer = await call.ask({"type": "object", "properties": fields}, "Choose.")
        return f"Chosen: {answer}"

    @tool(operation="query", shape="plain", confirmation=Confirmation("What is your name?", NAME, key="user_name"))
    async def test_input_required_result_elicitation(self, call: Call) -> str:
        """Greet the person, whose name is asked before the tool runs."""
        return f"Hello, {call.confirmation['name']}!"

    @tool(operation="query", shape="plain", confirmation=Confirmation("What is your name?", NAME))
    async def test_streaming_elicitation(self, call: Call) -> str:
        """Greet the person, with the default key of the question."""
        return f"Hello, {call.confirmation['name']}!"

    @plain
    async def test_input_required_result_sampling(self, call: Call) -> str:
        """Ask the client's model for a capital."""
        key = "capital_question"
        answers = await call.ask_all({key: ClientRequest.model("Which city is the capital of France?", max_tokens=100)})
        return str(answers[key]["content"]["text"])

    @plain
    async def test_input_required_result_list_roots(self, call: Call) -> str:
        """Ask the client which folders it works in."""
        answers = await call.ask_all({"client_roots": ClientRequest.roots()})
        return "\n".join(root["uri"] for root in answers["client_roots"]["roots"])

    @plain
    async def test_input_required_result_request_state(self, call: Call) -> str:
        """Ask for a confirmation; the call goes on only if the client returns the request state."""
        answer = await call.ask(form(ok={"type": "boolean"}), "Confirm.", key="confirm")
        return f"state-ok: {answer['ok']}"

    @plain
    async def test_input_required_result_tampered_state(self, call: Call) -> str:
        """Ask for a confirmation; a changed request state is refused."""
        answer = await call.ask(form(ok={"type": "boolean"}), "Confirm.", key="confirm")
        return f"Confirmed: {answer['ok']}"

    @plain
    async def test_input_required_result_multiple_inputs(self, call: Call) -> str:
        """Ask the person, the model and the client at once."""
        answers = await call.ask_all(
            {
                "user_name": ClientRequest.person("What is your name?", NAME),
                "greeting": ClientRequest.model("Greet somebody in one sentence.", max_tokens=50),
                "client_roots": ClientRequest.roots(),
            }
        )
        return f"{answers['greeting']['content']['text']} {len(answers['client_roots']['roots'])} folders."

    @plain
    async def test_input_required_result_multi_round(self, call: Call) -> str:
        """Ask two questions, one after the other."""
        first = await call.ask(NAME, "First: what is your name?", key="step1")
        second = await call.ask(form(color=TEXT), "And then: which colour do you like best?", key="step2")
        return f"{first['name']} likes {second['color']}."

    @plain
    async def test_input_required_result_capabilities(self, call: Call) -> str:
        """Ask only for what the client has a capability for."""
        asks: dict[str, ClientRequest] = {}
        if call.can_ask("sampling"):
            asks["greeting"] = ClientRequest.model("Greet somebody in one sentence.", max_tokens=50)
        if call.can_ask("elicitation"):
            asks["user_name"] = ClientRequest.person("What is your name?", NAME)
        answers: Mapping[str, Any] = await call.ask_all(asks) if asks else {}
        return f"{len(answers)} answers."

    @plain
    async def test_missing_capability(self, call: Call) -> str:
        """Ask the client's model; clients without the capability get a fault."""
        answers = await call.ask_all({"answer": ClientRequest.model("Say yes.", max_tokens=10)})
        return str(answers["answer"]["content"]["text"])


@plain
async def run_in_region(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    """Return the region, which a gateway reads from the header 'Mcp-Param-Region'."""
    return region


CONTACT: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"$anchor": "address", "type": "object", "properties": {"street": TEXT, "city": TEXT}}},
    "properties": {
        "name": TEXT,
        "address": {"$ref": "#/$defs/address"},
        "prefers": {"type": "string", "enum": ["phone", "email"]},
        "phone": TEXT,
        "email": TEXT,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"prefers": {"const": "phone"}}, "required": ["prefers"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


async def _return_contact(call: Call) -> dict[str, Any]:
    return call.arguments


contact = Tool(
    spec=ToolSpec(
        name="json_schema_2020_12_tool",
        description="Note how somebody can be reached, and repeat it.",
        input_schema=CONTACT,
        operation=Operation.QUERY,
    ),
    handler=_return_contact,
    check=check_by_schema(CONTACT),
)


class Documents:
    """Resources of each kind."""

    @resource("test://static-text", mime_type="text/plain")
    async def static_text(self) -> str:
        """A text."""
        return "A text that never changes."

    @resource("test://static-binary", mime_type="image/png")
    async def static_binary(self) -> bytes:
        """An image."""
        return RED_DOT

    @resource("test://template/{id}/data", mime_type="application/json", complete={"id": lambda _, __: ["123", "456"]})
    async def template_data(self, id: str) -> dict[str, Any]:  # noqa: A002 - the suite names the variable
        """One document of a template."""
        return {"id": id, "templateTest": True, "data": f"The data of {id}."}

    @resource("test://watched-resource", mime_type="text/plain")
    async def watched_resource(self) -> str:
        """A text that clients may subscribe to."""
        return "A text that may change."


class Prompts:
    """Prompts of each kind."""

    @prompt
    async def test_simple_prompt(self) -> str:
        """Return one message."""
        return "Say hello."

    @prompt(
        complete={
            "arg1": lambda written, _: [word for word in ("paris", "park", "party", "test") if word.startswith(written)]
        }
    )
    async def test_prompt_with_arguments(self, arg1: str, arg2: str) -> str:
        """Return a message with two arguments."""
        return f"Compare {arg1} with {arg2}."

    @prompt
    async def test_prompt_with_embedded_resource(self, resourceUri: str) -> list[Message]:  # noqa: N803 - the suite names the argument
        """Return a message with an embedded resource."""
        embedded = Embedded(resourceUri, text="The content of the resource.")
        return [Message("user", embedded), Message("user", "Sum up the resource.")]

    @prompt
    async def test_prompt_with_image(self) -> list[Message]:
        """Return a message with an image."""
        return [Message("user", Image(RED_DOT)), Message("user", "Describe the image.")]

    @prompt
    async def test_input_required_result_prompt(self, call: Call) -> str:
        """Ask the person for a topic and return a message about it."""
        answer = await call.ask(form(context=TEXT), "What is it about?", key="user_context")
        return f"Write something about {answer['context']}."


@tool(operation="query", shape="plain")
async def greet(name: str) -> str:
    """Greet somebody, at once."""
    return f"Hello, {name}!"


@tool(operation="query", shape="plain", job="optional")
async def slow_compute(call: Call, seconds: float = 0, label: str = "") -> str:
    """Compute for so many seconds, as a task where the client takes tasks."""
    await call.progress(0, seconds, f"computing {label}")
    await asyncio.sleep(seconds)
    return f"Computed {label} in {seconds} s."


@tool(operation="command", job="required")
async def failing_job() -> None:
    """Fail after a second, only ever as a task."""
    await asyncio.sleep(1)
    raise ToolError("state_error", "This tool always fails.")


@tool(operation="command", job="optional")
async def protocol_error_job() -> None:
    """Fail as with a defect, which makes a task fail."""
    raise ToolError("internal_error", "This tool always breaks.")


@tool(operation="command", shape="plain", job="optional")
async def confirm_delete(call: Call, filename: str = "") -> str:
    """Ask whether to delete a file, and pretend to."""
    answer = await call.ask(form(confirm={"type": "boolean"}), f"Delete '{filename}'?", key="confirm")
    return f"Deleted '{filename}'." if answer.get("confirm") else "Nothing was deleted."


@tool(operation="query", shape="plain", job="optional")
async def multi_input(call: Call) -> str:
    """Ask two things at the same time."""
    first, second = await asyncio.gather(
        call.ask(form(name=TEXT), "Who are you?", key="name"), call.ask(form(city=TEXT), "Where are you?", key="city")
    )
    return f"{first} and {second}"


@tool(
    operation="command",
    shape="plain",
    job="required",
    confirmation=Confirmation("What is your name?", form(name=TEXT), "user_name"),
)
async def test_tool_with_task(call: Call) -> str:
    """Ask for a name first, and greet it in a task."""
    return f"Hello, {call.confirmation['name']}!"


@tool(operation="query")
async def now_and_then() -> str:
    """Exist every other time."""
    return "Here."


@prompt
async def on_and_off() -> str:
    """Exist every other time."""
    return "Here."


class Changing:
    """Publishes a tool and a prompt that come and go, and a tool that changes each."""

    name = "changing"

    def __init__(self) -> None:
        self._shown: set[str] = set()
        self._publish: Publish | None = None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the first lists."""
        self._publish = publish
        self._change()
        yield

    @tool(operation="command", shape="plain")
    async def test_trigger_tool_change(self) -> str:
        """Change the list of tools."""
        return self._change("tool")

    @tool(operation="command", shape="plain")
    async def test_trigger_prompt_change(self) -> str:
        """Change the list of prompts."""
        return self._change("prompt")

    def _change(self, *kinds: str) -> str:
        assert self._publish is not None  # noqa: S101 - its tools exist only while it is open
        self._shown ^= set(kinds)
        tools = [now_and_then] if "tool" in self._shown else []
        prompts = [on_and_off] if "prompt" in self._shown else []
        functions = Functions(self.name, [self, *tools], prompts=prompts)
        self._publish(functions.tools(), prompts=functions.prompts())
        return "Changed."


TASKS = [greet, slow_compute, failing_job, protocol_error_job, confirm_delete, multi_input, test_tool_with_task]

yard = Yard(
    "everything",
    tools=[Content(), Running(), Asking(), run_in_region, contact, *TASKS],
    resources=[Documents()],
    prompts=[Prompts()],
    providers=[Changing()],
)


def main() -> None:
    """Serve the yard on stdio, or over HTTP if there is a port."""
    parser = argparse.ArgumentParser(description="Serve a yard with every feature of MCP.")
    parser.add_argument("--port", type=int, help="serve over HTTP on this port of 127.0.0.1 instead of stdio")
    port = parser.parse_args().port
    if port is None:
        serve(yard)
    else:
        serve(yard, transport="http", port=port)


if __name__ == "__main__":
    main()
