"""Scripted models: servers on loopback that speak the APIs of Anthropic and OpenAI, so that an agent can be tested without a key.

A script is the model's side of one conversation, turn by turn. The turn that answers a request follows from the request alone:
it is the number of turns that the request already has. So retries, resumed and parallel conversations need no state here.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any, ClassVar, Final, Protocol, Self, cast
from uuid import uuid4

import msgspec

from toolyard.model.envelope import Envelope

__all__ = ["OfferedTool", "ScriptedAnthropic", "ScriptedModel", "ScriptedOpenAI", "ToolResult", "ToolUse", "Turn"]

_PIECE: Final = 12  # characters of one delta of a stream: short, so that clients must put texts and arguments together


class ToolUse(msgspec.Struct, frozen=True):
    """A tool call that the model makes."""

    name: str
    arguments: dict[str, Any] | str = {}
    """As data, or as a text that is sent as it is, even if it is no JSON."""
    unlisted: bool = False
    """Whether to call the tool even if the request does not offer it."""


Turn = str | ToolUse | Sequence[str | ToolUse]
"""One turn of the model: a text, a tool call, or several of both."""


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a tool call, as the client sent it to the model."""

    name: str
    text: str
    """The texts of the result; other content is in `content` alone."""
    is_error: bool = False
    """Whether the client marked it as an error; OpenAI's APIs have no such mark."""
    content: Any = None
    """The result as it came."""

    @property
    def envelope(self) -> Envelope:
        """Return the envelope that the text is."""
        return Envelope.from_json(self.text)


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool that a request offers to the model."""

    name: str
    description: str
    schema: dict[str, Any]


class _Conversation(msgspec.Struct):
    """What a request says, in the same words for every API."""

    turns: int
    tools: list[OfferedTool]
    results: dict[str, ToolResult]
    """By the id of the call, in order."""


class _Use(msgspec.Struct):
    """A tool call with its id."""

    id: str
    name: str
    arguments: dict[str, Any] | str

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class _Reply(msgspec.Struct):
    """The model's answer to one request."""

    model: str
    parts: list[str | _Use]

    @property
    def text(self) -> str:
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def uses(self) -> list[_Use]:
        return [part for part in self.parts if isinstance(part, _Use)]


class OffScriptError(Exception):
    """The script has no answer to a request."""


_Event = tuple[str | None, Any]
"""A server-sent event: its type, where the API has one, and its data."""


class _Api(Protocol):
    """One API: how it writes conversations and replies."""

    def read(self, body: dict[str, Any]) -> _Conversation: ...

    def whole(self, reply: _Reply) -> dict[str, Any]: ...

    def events(self, reply: _Reply) -> Iterator[_Event]: ...


class ScriptedModel:
    """A model on loopback that follows a script, and keeps what it was sent."""

    apis: ClassVar[Mapping[str, _Api]] = {}
    """The APIs by path."""
    prefix: ClassVar = ""
    """The part of the path that belongs to the base URL."""

    def __init__(self, script: Iterable[Turn]) -> None:
        self._script = list(script)
        self.requests: list[dict[str, Any]] = []
        """The bodies of the requests to the model, in order."""
        self._seen: list[_Conversation] = []
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self._server = server = _Server(self)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.server_close()

    @property
    def url(self) -> str:
        """Return the base URL for clients.

        Raises:
            RuntimeError: The model is not running.
        """
        if self._server is None:
            raise RuntimeError("The model is not running: use 'with'.")
        return f"http://127.0.0.1:{self._server.server_address[1]}{self.prefix}"

    @property
    def results(self) -> list[ToolResult]:
        """Return the results of tool calls that came back, in order, each once."""
        results: dict[str, ToolResult] = {}
        for conversation in list(self._seen):
            results.update((key, value) for key, value in conversation.results.items() if key not in results)
        return list(results.values())

    @property
    def tools(self) -> dict[str, OfferedTool]:
        """Return the tools of the last request that offered any, by name."""
        offered = next((seen.tools for seen in reversed(self._seen) if seen.tools), list[OfferedTool]())
        return {tool.name: tool for tool in offered}

    def script_for(self, body: dict[str, Any]) -> Sequence[Turn]:  # noqa: ARG002 - for subclasses
        """Return the script of a request's conversation; override it if there are several, such as those of sub-agents."""
        return self._script

    def answer(self, path: str, body: dict[str, Any]) -> _Reply:
        """Return the reply of the script to a request.

        Raises:
            OffScriptError: The script has none.
        """
        conversation = self.apis[path].read(body)
        self.requests.append(body)
        self._seen.append(conversation)
        script = self.script_for(body)
        if conversation.turns >= len(script):
            raise OffScriptError(f"The script has {len(script)} turns, and the conversation wants one more.")
        turn = script[conversation.turns]
        parts = [turn] if isinstance(turn, str | ToolUse) else turn
        offered = [tool.name for tool in conversation.tools]
        return _Reply(str(body.get("model", "scripted")), [self._part(part, offered) for part in parts])

    def _part(self, part: str | ToolUse, offered: Sequence[str]) -> str | _Use:
        if isinstance(part, str):
            return part
        if part.name not in offered and not part.unlisted:
            raise OffScriptError(f"The script calls '{part.name}', which is not offered. Offered: {', '.join(offered) or 'nothing'}.")
        return _Use(_new_id("call"), part.name, part.arguments)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model


class _Handler(BaseHTTPRequestHandler):
    """Answers the HTTP requests of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - only such a server has this handler

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Log nothing."""

    def do_HEAD(self) -> None:
        """Answer a check of the connection."""
        self._send(200, {})

    def do_GET(self) -> None:
        """Answer the list of models."""
        found = self.path.split("?")[0].endswith("/models")
        model = {"id": "scripted", "type": "model", "object": "model", "display_name": "scripted", "created": 0, "owned_by": "toolyard"}
        self._send(200 if found else 404, {"object": "list", "data": [model], "has_more": False} if found else _error(self.path))

    def do_POST(self) -> None:
        """Answer a request to the model."""
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self._send(200, {"input_tokens": _tokens(raw)})
        elif path not in self.server.model.apis:
            self._send(404, _error(f"There is no '{path}' here."))
        else:
            self._answer(path, raw)

    def _answer(self, path: str, raw: bytes) -> None:
        api = self.server.model.apis[path]
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
            reply = self.server.model.answer(path, body)
            whole = None if body.get("stream") else api.whole(reply)
        except (OffScriptError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            self._send(400, _error(str(error)))
            return
        if whole is None:
            self._stream(api.events(reply))
        else:
            self._send(200, whole)

    def _stream(self, events: Iterable[_Event]) -> None:
        self.close_connection = True
        with suppress(ConnectionError):  # a client may go away in the middle
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for kind, data in events:
                head = f"event: {kind}\n" if kind else ""
                self.wfile.write(f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode())
                self.wfile.flush()

    def _send(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        with suppress(ConnectionError):
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)


class _Messages:
    """Anthropic's Messages API."""

    def read(self, body: dict[str, Any]) -> _Conversation:
        """Return what a request says."""
        names: dict[str, str] = {}
        results: dict[str, ToolResult] = {}
        for block in [block for message in body["messages"] for block in _blocks(message["content"])]:
            if block["type"] == "tool_use":
                names[block["id"]] = block["name"]
            elif block["type"] == "tool_result":
                call, content = block["tool_use_id"], block.get("content")
                results[call] = ToolResult(names.get(call, ""), _text(content), block.get("is_error") is True, content)
        tools = [
            OfferedTool(tool["name"], tool.get("description", ""), tool["input_schema"])
            for tool in body.get("tools") or ()
            if "input_schema" in tool
        ]
        return _Conversation(sum(message["role"] == "assistant" for message in body["messages"]), tools, results)

    def whole(self, reply: _Reply) -> dict[str, Any]:
        """Return a reply that is not streamed.

        Raises:
            OffScriptError: Arguments are a text, which only a stream can have.
        """
        if any(isinstance(use.arguments, str) for use in reply.uses):
            raise OffScriptError("Arguments as a text need a stream in this API.")
        content = [
            {"type": "text", "text": part}
            if isinstance(part, str)
            else {"type": "tool_use", "id": part.id, "name": part.name, "input": part.arguments}
            for part in reply.parts
        ]
        return {**self._message(reply), "content": content, "stop_reason": self._stop_reason(reply)}

    def events(self, reply: _Reply) -> Iterator[_Event]:
        """Return the events of a streamed reply; a call without arguments has no deltas, as with the real API."""
        yield _typed("message_start", message=self._message(reply))
        for index, part in enumerate(reply.parts):
            if isinstance(part, str):
                start: dict[str, Any] = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(part)]
            else:
                start = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in _pieces(part.text if part.arguments else "")]
            yield _typed("content_block_start", index=index, content_block=start)
            for delta in deltas:
                yield _typed("content_block_delta", index=index, delta=delta)
            yield _typed("content_block_stop", index=index)
        delta = {"stop_reason": self._stop_reason(reply), "stop_sequence": None}
        yield _typed("message_delta", delta=delta, usage={"output_tokens": _tokens(reply.text)})
        yield _typed("message_stop")

    def _stop_reason(self, reply: _Reply) -> str:
        return "tool_use" if reply.uses else "end_turn"

    def _message(self, reply: _Reply) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        fixed: dict[str, Any] = {"type": "message", "role": "assistant", "content": [], "stop_reason": None, "stop_sequence": None}
        return {"id": _new_id("msg"), **fixed, "model": reply.model, "usage": usage}


class _Chat:
    """OpenAI's Chat Completions API."""

    def read(self, body: dict[str, Any]) -> _Conversation:
        """Return what a request says."""
        names: dict[str, str] = {}
        results: dict[str, ToolResult] = {}
        for message in body["messages"]:
            names.update((use["id"], use["function"]["name"]) for use in message.get("tool_calls") or ())
            if message["role"] == "tool":
                call, content = message["tool_call_id"], message.get("content")
                results[call] = ToolResult(names.get(call, ""), _text(content), content=content)
        functions = [tool["function"] for tool in body.get("tools") or () if tool["type"] == "function"]
        return _Conversation(sum(message["role"] == "assistant" for message in body["messages"]), _offered(functions), results)

    def whole(self, reply: _Reply) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.uses:
            message["tool_calls"] = [self._call(use) for use in reply.uses]
        choice = {"index": 0, "finish_reason": self._finish(reply), "logprobs": None, "message": message}
        return {**self._head(reply, "chat.completion"), "choices": [choice], "usage": self._usage()}

    def events(self, reply: _Reply) -> Iterator[_Event]:
        """Return the events of a streamed reply."""
        head = self._head(reply, "chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}, *({"content": piece} for piece in _pieces(reply.text))]
        for index, use in enumerate(reply.uses):
            call = self._call(use)
            deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": use.name, "arguments": ""}}]})
            deltas += [{"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(use.text)]
        for delta in deltas:
            yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield None, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": self._finish(reply)}]}
        yield None, {**head, "choices": [], "usage": self._usage()}
        yield None, "[DONE]"

    def _call(self, use: _Use) -> dict[str, Any]:
        return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.text}}

    def _finish(self, reply: _Reply) -> str:
        return "tool_calls" if reply.uses else "stop"

    def _head(self, reply: _Reply, kind: str) -> dict[str, Any]:
        return {"id": _new_id("chatcmpl"), "object": kind, "created": 0, "model": reply.model}

    def _usage(self) -> dict[str, Any]:
        return {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class _Responses:
    """OpenAI's Responses API, for clients that send the whole conversation each time."""

    def read(self, body: dict[str, Any]) -> _Conversation:
        """Return what a request says.

        Raises:
            OffScriptError: The conversation is stored at the server, which this one does not do.
        """
        if body.get("previous_response_id") or body.get("conversation"):
            raise OffScriptError("A scripted model stores no conversation: send all of it as 'input'.")
        given = body["input"]
        items: list[dict[str, Any]] = [{"role": "user", "content": given}] if isinstance(given, str) else given
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        results = {
            item["call_id"]: ToolResult(names.get(item["call_id"], ""), _text(item["output"]), content=item["output"])
            for item in items
            if item.get("type") == "function_call_output"
        }
        turns = sum(own for own, _ in groupby(items, self._is_own))
        return _Conversation(turns, _offered([tool for tool in body.get("tools") or () if tool["type"] == "function"]), results)

    def whole(self, reply: _Reply) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        return self._response(reply, [self._item(part) for part in reply.parts])

    def events(self, reply: _Reply) -> Iterator[_Event]:
        """Return the events of a streamed reply."""
        response = self.whole(reply)
        started: dict[str, Any] = {**response, "status": "in_progress", "output": []}
        typed = [_typed("response.created", response=started), _typed("response.in_progress", response=started)]
        for index, item in enumerate(response["output"]):
            typed += self._item_events(index, item)
        for number, (kind, data) in enumerate([*typed, _typed("response.completed", response=response)]):
            yield kind, {**data, "sequence_number": number}

    def _item_events(self, index: int, item: dict[str, Any]) -> Iterator[_Event]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            yield _typed("response.output_item.added", output_index=index, item={**item, "arguments": "", "status": "in_progress"})
            for piece in _pieces(item["arguments"]):
                yield _typed("response.function_call_arguments.delta", **place, delta=piece)
            yield _typed("response.function_call_arguments.done", **place, arguments=item["arguments"], name=item["name"])
        else:
            part = item["content"][0]
            yield _typed("response.output_item.added", output_index=index, item={**item, "content": [], "status": "in_progress"})
            yield _typed("response.content_part.added", **place, content_index=0, part={**part, "text": ""})
            for piece in _pieces(part["text"]):
                yield _typed("response.output_text.delta", **place, content_index=0, delta=piece, logprobs=[])
            yield _typed("response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[])
            yield _typed("response.content_part.done", **place, content_index=0, part=part)
        yield _typed("response.output_item.done", output_index=index, item=item)

    def _is_own(self, item: dict[str, Any]) -> bool:
        """Return whether an item of the conversation is the model's own; items of one turn follow each other."""
        return item.get("role") == "assistant" or item.get("type") in {"function_call", "reasoning"}

    def _item(self, part: str | _Use) -> dict[str, Any]:
        if isinstance(part, _Use):
            call = {"call_id": part.id, "name": part.name, "arguments": part.text}
            return {"type": "function_call", "id": _new_id("fc"), "status": "completed", **call}
        content: list[Any] = [{"type": "output_text", "text": part, "annotations": [], "logprobs": []}]
        return {"type": "message", "id": _new_id("msg"), "role": "assistant", "status": "completed", "content": content}

    def _response(self, reply: _Reply, output: list[dict[str, Any]]) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        head = {"id": _new_id("resp"), "object": "response", "created_at": 0, "status": "completed", "model": reply.model}
        rest: dict[str, Any] = {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
            "top_p": 1,
        }
        settings: dict[str, Any] = {"parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
        return {**head, "output": output, "usage": {**usage, **details}, **rest, **settings}


class ScriptedAnthropic(ScriptedModel):
    """A scripted model behind Anthropic's Messages API; `url` is what `ANTHROPIC_BASE_URL` takes."""

    apis: ClassVar[Mapping[str, _Api]] = {"/v1/messages": _Messages()}


class ScriptedOpenAI(ScriptedModel):
    """A scripted model behind OpenAI's Responses and Chat Completions APIs; `url` is what `OPENAI_BASE_URL` takes."""

    apis: ClassVar[Mapping[str, _Api]] = {"/v1/responses": _Responses(), "/v1/chat/completions": _Chat()}
    prefix: ClassVar = "/v1"


def _offered(functions: Iterable[dict[str, Any]]) -> list[OfferedTool]:
    return [OfferedTool(function["name"], function.get("description", ""), function.get("parameters") or {}) for function in functions]


def _typed(kind: str, **data: Any) -> _Event:
    return kind, {"type": kind, **data}


def _blocks(content: object) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[dict[str, Any]]", content)


def _text(content: object) -> str:
    """Return the texts of a result, which is one text or a list of blocks."""
    return "".join(str(block["text"]) for block in _blocks(content or "") if "text" in block)


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def _tokens(text: str | bytes) -> int:
    return len(text) // 4 + 1


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid4().hex[:20]}"


def _error(message: str) -> dict[str, Any]:
    """Return an error in a form that fits both providers."""
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message, "code": None, "param": None}}
