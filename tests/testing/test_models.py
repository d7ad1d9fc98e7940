"""Scripted models: what they answer, stream and keep. The tests of injection use them with the real SDKs."""

import http.client
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import pytest
from table_tests import every_row

from callyard import Envelope
from callyard.testing.models import (
    Fault,
    OfferedTool,
    OffScriptError,
    ScriptedAnthropic,
    ScriptedModel,
    ScriptedOpenAI,
    ToolResult,
    ToolUse,
    Turn,
)

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SCRIPT: list[Turn] = [
    ["Let me see what that is.", ToolUse("add", {"a": 1, "text": "a long argument"}), ToolUse("ping")],
    "Done.",
]
OK = Envelope.ok(1).to_json().decode()


def request(model: ScriptedModel, method: str, path: str, body: object = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(model.url).port or 0, timeout=60)
    data = body if isinstance(body, str) else json.dumps(body)
    connection.request(method, path, None if body is None else data, {"content-type": "application/json"})
    response = connection.getresponse()
    answer = response.status, response.read()
    connection.close()
    return answer


def refused(model: ScriptedModel, path: str, body: object) -> tuple[int, bytes]:
    """Send a request that a model refuses, which raises when the model is closed."""
    answers: list[tuple[int, bytes]] = []
    with pytest.raises(OffScriptError), model:
        answers.append(request(model, "POST", path, body))
    return answers[0]


def events(stream: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in stream.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


class Messages:
    """A client of the Messages API."""

    model = ScriptedAnthropic
    path = "/v1/messages"

    def body(self, *, results: bool, **more: Any) -> dict[str, Any]:
        tools = [{"name": name, "description": "A tool.", "input_schema": SCHEMA} for name in ("add", "ping")]
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        if results:
            uses: list[Any] = [
                {"type": "tool_use", "id": str(number), "name": name, "input": {}}
                for number, name in enumerate(("add", "ping"))
            ]
            blocks: list[Any] = [{"type": "text", "text": OK}, {"type": "image", "source": {}}]
            answered: list[Any] = [
                {"type": "tool_result", "tool_use_id": "0", "content": OK},
                {"type": "tool_result", "tool_use_id": "1", "content": blocks, "is_error": True},
            ]
            messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": answered}]
        return {"model": "m", "messages": messages, "tools": tools, **more}

    def read(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        content = json.loads(answer)["content"]
        texts = [block["text"] for block in content if block["type"] == "text"]
        return "".join(texts), [(block["name"], block["input"]) for block in content if block["type"] == "tool_use"]

    def read_stream(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        text, calls = "", list[list[str]]()
        for event in events(answer):
            if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
                calls.append([event["content_block"]["name"], ""])
            delta = event.get("delta", {})
            text += delta.get("text", "")
            if "partial_json" in delta:
                calls[-1][1] += delta["partial_json"]
        return text, [(name, json.loads(arguments or "{}")) for name, arguments in calls]


class Chat:
    """A client of the Chat Completions API."""

    model = ScriptedOpenAI
    path = "/v1/chat/completions"

    def body(self, *, results: bool, **more: Any) -> dict[str, Any]:
        functions = [{"name": name, "description": "A tool.", "parameters": SCHEMA} for name in ("add", "ping")]
        messages: list[Any] = [{"role": "user", "content": "Go."}]
        if results:
            calls = [{"id": str(number), "function": {"name": name}} for number, name in enumerate(("add", "ping"))]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            messages.append({"role": "tool", "tool_call_id": "0", "content": OK})
            messages.append({"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": OK}]})
        return {
            "model": "m",
            "messages": messages,
            "tools": [{"type": "function", "function": each} for each in functions],
            **more,
        }

    def read(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        message = json.loads(answer)["choices"][0]["message"]
        functions = [call["function"] for call in message.get("tool_calls", ())]
        return message["content"] or "", [
            (function["name"], json.loads(function["arguments"])) for function in functions
        ]

    def read_stream(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        text, calls = "", dict[int, list[str]]()
        for choice in [choice for event in events(answer) for choice in event["choices"]]:
            text += choice["delta"].get("content") or ""
            for call in choice["delta"].get("tool_calls", ()):
                calls.setdefault(call["index"], [call["function"].get("name", ""), ""])[1] += call["function"][
                    "arguments"
                ]
        assert answer.endswith(b"data: [DONE]\n\n")
        return text, [(name, json.loads(arguments)) for name, arguments in calls.values()]


class Responses:
    """A client of the Responses API."""

    model = ScriptedOpenAI
    path = "/v1/responses"

    def body(self, *, results: bool, **more: Any) -> dict[str, Any]:
        tools = [
            {"type": "function", "name": name, "description": "A tool.", "parameters": SCHEMA}
            for name in ("add", "ping")
        ]
        items: Any = "Go."
        if results:
            items = [{"role": "user", "content": "Go."}, {"type": "message", "role": "assistant", "content": []}]
            items += [
                {"type": "function_call", "call_id": str(n), "name": name} for n, name in enumerate(("add", "ping"))
            ]
            items.append({"type": "function_call_output", "call_id": "0", "output": OK})
            items.append(
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": OK}]}
            )
        return {"model": "m", "input": items, "tools": tools, **more}

    def read(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        output = json.loads(answer)["output"]
        texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
        calls = [item for item in output if item["type"] == "function_call"]
        return "".join(texts), [(call["name"], json.loads(call["arguments"])) for call in calls]

    def read_stream(self, answer: bytes) -> tuple[str, list[tuple[str, Any]]]:
        streamed = events(answer)
        assert [event["sequence_number"] for event in streamed] == list(range(len(streamed)))
        text = "".join(event["delta"] for event in streamed if event["type"] == "response.output_text.delta")
        done = [event for event in streamed if event["type"] == "response.function_call_arguments.done"]
        pieces = "".join(
            event["delta"] for event in streamed if event["type"] == "response.function_call_arguments.delta"
        )
        assert pieces == "".join(event["arguments"] for event in done)
        assert self.read(json.dumps(streamed[-1]["response"]).encode())[0] == text
        return text, [(event["name"], json.loads(event["arguments"])) for event in done]


Api = Messages | Chat | Responses
CLIENTS: list[Callable[[], Api]] = [Messages, Chat, Responses]


@pytest.fixture(params=CLIENTS, ids=lambda client: client.__name__)
def api(request: pytest.FixtureRequest) -> Api:
    return request.param()


@every_row("stream", [False, True])
def test_a_turn_is_texts_and_tool_calls(api: Api, stream: bool) -> None:  # noqa: FBT001 - a parameter of a test
    with api.model(SCRIPT) as model:
        status, answer = request(model, "POST", api.path, api.body(results=False, stream=stream))

    assert status == 200
    text, calls = (api.read_stream if stream else api.read)(answer)
    assert text == "Let me see what that is."
    assert calls == [("add", {"a": 1, "text": "a long argument"}), ("ping", {})]


@every_row("stream", [False, True])
def test_the_next_turn_follows_from_the_conversation(api: Api, stream: bool) -> None:  # noqa: FBT001 - the same
    with api.model(SCRIPT) as model:
        answers = [request(model, "POST", api.path, api.body(results=True, stream=stream))[1] for _ in range(2)]

    assert [(api.read_stream if stream else api.read)(answer) for answer in answers] == [("Done.", [])] * 2


def test_a_model_keeps_what_it_was_sent(api: Api) -> None:
    with api.model(SCRIPT) as model:
        bodies = [api.body(results=False), api.body(results=True), api.body(results=True)]
        for body in bodies:
            request(model, "POST", api.path, body)

    assert model.requests == bodies
    assert model.tools == {name: OfferedTool(name, "A tool.", SCHEMA) for name in ("add", "ping")}
    assert [(result.name, result.text) for result in model.results] == [("add", OK), ("ping", OK)]
    assert model.results[0].envelope == Envelope.ok(1)
    assert [result.is_error for result in model.results] == [False, isinstance(api, Messages)]


def test_a_tool_that_is_not_offered_is_an_error_unless_the_script_insists(api: Api) -> None:
    with api.model([ToolUse("hidden", unlisted=True)]) as model:
        _, answer = request(model, "POST", api.path, api.body(results=False))
    status, reason = refused(api.model([ToolUse("hidden")]), api.path, api.body(results=False))

    assert (status, "hidden" in json.loads(reason)["error"]["message"]) == (400, True)
    assert api.read(answer) == ("", [("hidden", {})])


@every_row("stream", [False, True])
def test_arguments_may_be_a_text_that_is_no_json(api: Api, stream: bool) -> None:  # noqa: FBT001 - the same
    script, body = [ToolUse("add", '{"a":')], api.body(results=False, stream=stream)
    if isinstance(api, Messages) and not stream:  # this API has no place for it
        assert refused(api.model(script), api.path, body)[0] == 400
        return
    with api.model(script) as model:
        status, answer = request(model, "POST", api.path, body)

    assert (b'{\\"a\\":' in answer, status) == (True, 200)


def test_a_conversation_longer_than_the_script_is_an_error(api: Api) -> None:
    model = api.model(SCRIPT[:1])
    status, answer = refused(model, api.path, api.body(results=True))

    assert (status, json.loads(answer)["error"]["type"]) == (400, "invalid_request_error")
    assert model.errors == [json.loads(answer)["error"]["message"]]


def test_a_refused_request_is_a_note_of_the_failure_of_a_test(api: Api) -> None:
    model = api.model([])

    def fail() -> None:
        with model:
            raise KeyError(request(model, "POST", api.path, api.body(results=False)))

    with pytest.raises(KeyError) as raised:
        fail()
    assert [model.errors[0] in note for note in raised.value.__notes__] == [True]


def test_a_result_that_is_no_envelope_is_shown() -> None:
    with pytest.raises(ValueError, match=r"'greet'.*Hello"):
        _ = ToolResult("greet", "Hello.").envelope


@every_row("body", ["[]", '{"messages": [{}]}', '{"messages": 1}', '{"input": [1]}', "{}", "{"])
def test_a_request_that_is_none_is_an_error(api: Api, body: str) -> None:
    assert refused(api.model(SCRIPT), api.path, body)[0] == 400


def test_a_stored_conversation_is_refused() -> None:
    assert (
        refused(ScriptedOpenAI(SCRIPT), "/v1/responses", {"input": "Go.", "previous_response_id": "resp_1"})[0] == 400
    )


def test_clients_may_ask_for_models_and_tokens() -> None:
    with ScriptedAnthropic([]) as model:
        assert request(model, "HEAD", "/") == (200, b"")
        assert json.loads(request(model, "GET", "/v1/models")[1])["data"][0]["id"] == "scripted"
        assert request(model, "GET", "/v1/files")[0] == 404
        assert json.loads(request(model, "POST", "/v1/messages/count_tokens", {})[1])["input_tokens"] > 0
        assert request(model, "POST", "/v1/complete", {})[0] == 404


def test_a_model_that_is_not_running_has_no_address() -> None:
    model = ScriptedOpenAI(SCRIPT)
    with model:
        assert model.url.endswith("/v1")
    with pytest.raises(RuntimeError):
        _ = model.url


def test_a_subclass_may_have_several_scripts() -> None:
    class Two(ScriptedAnthropic):
        def script_for(self, body: dict[str, Any]) -> list[Turn]:
            return ["The other."] if body["model"] == "other" else ["The first."]

    with Two([]) as model:
        bodies = [{**Messages().body(results=False), "model": name} for name in ("first", "other")]
        said = [Messages().read(request(model, "POST", "/v1/messages", body)[1])[0] for body in bodies]

    assert said == ["The first.", "The other."]


def open_answer(
    model: ScriptedModel, api: Api, *, stream: bool
) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(model.url).port or 0, timeout=60)
    connection.request("POST", api.path, json.dumps(api.body(results=False, stream=stream)))
    return connection, connection.getresponse()


@every_row("stream", [False, True])
def test_a_model_may_answer_garbage(api: Api, stream: bool) -> None:  # noqa: FBT001 - a parameter of a test
    with api.model([Fault("garbage")]) as model:
        status, answer = request(model, "POST", api.path, api.body(results=False, stream=stream))

    assert status == 200
    with pytest.raises(ValueError):  # noqa: PT011 - of JSON or of Unicode
        (events if stream else json.loads)(answer)


@every_row("stream", [False, True])
def test_a_model_may_answer_without_an_end_until_it_is_closed(api: Api, stream: bool) -> None:  # noqa: FBT001 - the same
    with api.model([Fault("endless")]) as model:
        connection, response = open_answer(model, api, stream=stream)
        begun = b"".join(response.readline() if stream else response.read(1) for _ in range(30))
    rest = response.read()
    connection.close()

    assert (begun.count(b"And then, ") > 2) is stream
    assert stream or not (begun + rest).strip()
    assert b"[DONE]" not in rest


def test_a_model_may_be_silent_until_it_is_closed(api: Api) -> None:
    with api.model([Fault("silent")]) as model:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(model.url).port or 0, timeout=60)
        connection.request("POST", api.path, json.dumps(api.body(results=False)))
        connection.sock.settimeout(0.1)
        with pytest.raises(TimeoutError):
            connection.sock.recv(1)
        connection.sock.settimeout(20)
    with pytest.raises(ConnectionResetError):
        connection.getresponse()
    connection.close()


@every_row("kind", ["endless", "silent"])
def test_a_client_may_leave_a_model_that_never_ends(api: Api, kind: Any) -> None:
    with api.model([Fault(kind), "Done."]) as model:
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(model.url).port or 0, timeout=60)
        connection.request("POST", api.path, json.dumps(api.body(results=False, stream=True)))
        connection.close()
        status, _ = request(model, "POST", api.path, api.body(results=True))

    assert status == 200


@every_row("stream", [False, True])
def test_a_model_may_disconnect_in_the_middle(api: Api, stream: bool) -> None:  # noqa: FBT001 - the same
    with api.model([Fault("disconnect")]) as model:
        connection, response = open_answer(model, api, stream=stream)
        with pytest.raises(http.client.IncompleteRead) as raised:
            response.read()
        connection.close()

    assert raised.value.partial


def test_a_model_may_answer_with_a_status(api: Api) -> None:
    with api.model([Fault("status", status=529)]) as model:
        status, answer = request(model, "POST", api.path, api.body(results=False))

    assert (status, "error" in json.loads(answer)) == (529, True)


def test_the_last_turn_may_be_repeated_without_an_end(api: Api) -> None:
    with api.model([ToolUse("ping")], repeat_last=True) as model:
        answers = [request(model, "POST", api.path, api.body(results=True))[1] for _ in range(2)]

    assert [api.read(answer) for answer in answers] == [("", [("ping", {})])] * 2


TITLE: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 100,
    "system": [{"type": "text", "text": "You are a Claude agent, built on Anthropic's Claude Agent SDK."}],
    "messages": [{"role": "user", "content": "Write the title."}],
    "tools": [],
    "output_config": {
        "format": {
            "type": "json_schema",
            "schema": {
                "type": "object",
                "properties": {"title": {"type": "string"}, "is_new": {"type": "boolean"}, "words": {"type": "array"}},
            },
        }
    },
}


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_claude_code_makes_for_itself_is_answered_beside_the_script(*, stream: bool) -> None:
    with ScriptedAnthropic(["Done."]) as model:
        status, answer = request(model, "POST", "/v1/messages", {**TITLE, "stream": stream})
        said: dict[str, Any] = {**TITLE, "output_config": None}
        _, of_script = request(model, "POST", "/v1/messages", said)

    pieces = [event.get("delta", {}).get("text", "") for event in events(answer)] if stream else []
    text = "".join(pieces) if stream else json.loads(answer)["content"][0]["text"]
    assert (status, json.loads(text)) == (200, {"title": "Scripted", "is_new": False, "words": []})
    assert json.loads(of_script)["content"][0]["text"] == "Done."
    assert (len(model.asides), model.requests, model.errors) == (1, [said], [])


def test_json_that_another_client_asks_for_is_a_turn_of_the_script() -> None:
    with ScriptedAnthropic(["{}"]) as model:
        _, answer = request(model, "POST", "/v1/messages", {**TITLE, "system": "You are my agent."})

    assert json.loads(answer)["content"][0]["text"] == "{}"
    assert model.asides == []
