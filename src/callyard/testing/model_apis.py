"""The APIs of models as data: how Anthropic's and OpenAI's write a conversation, a reply and the events of a stream.

It knows no script and no socket.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain, groupby
from typing import Any, Final, Protocol, cast
from uuid import uuid4

import msgspec

from callyard.model.envelope import Envelope

__all__ = [
    "Api",
    "Chat",
    "Event",
    "Messages",
    "OffScriptError",
    "OfferedTool",
    "Reply",
    "Responses",
    "SentConversation",
    "ToolResult",
    "Use",
    "count_tokens",
    "encode_event",
    "new_id",
]

_PIECE: Final = 12  # characters of one delta of a stream: short, so that clients must put texts and arguments together


_CLAUDE_CODE: Final = ("Claude Code", "Claude Agent SDK")
"""What the system prompts of Claude Code say, also those of requests that it makes for itself."""


class ToolResult(msgspec.Struct, frozen=True):
    """The result of a tool call, as the client sent it to the model."""

    name: str
    text: str
    """The texts of the result; other content is in `content` alone."""
    is_error: bool = False
    """Whether the client marked it as an error; OpenAI's APIs have no such mark."""
    content: Any = None

    @property
    def envelope(self) -> Envelope:
        """Return the envelope that the text is.

        Raises:
            ValueError: The text is none: the tool has the shape `plain`, or the client answered in place of the tool.
        """
        try:
            return Envelope.from_json(self.text)
        except msgspec.MsgspecError:
            raise ValueError(f"The result of '{self.name}' is no envelope: {self.text!r}") from None


class OfferedTool(msgspec.Struct, frozen=True):
    """A tool that a request offers to the model."""

    name: str
    description: str
    schema: dict[str, Any]


class SentConversation(msgspec.Struct):
    """What a request says, in the same words for every API."""

    turns: int
    tools: list[OfferedTool]
    results: dict[str, ToolResult]
    aside: str | None = None
    """The answer to a request that a client makes for itself, beside the conversation: such as for a title of it."""


class Use(msgspec.Struct):
    """A tool call with its id."""

    id: str
    name: str
    arguments: dict[str, Any] | str

    @property
    def text(self) -> str:
        """Return the arguments as JSON, or as the script has them."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


class Reply(msgspec.Struct):
    """The model's answer to one request."""

    model: str
    parts: list[str | Use]

    @property
    def text(self) -> str:
        """Return the texts as one."""
        return "".join(part for part in self.parts if isinstance(part, str))

    @property
    def uses(self) -> list[Use]:
        """Return the tool calls."""
        return [part for part in self.parts if isinstance(part, Use)]


class OffScriptError(AssertionError):
    """The script has no answer to a request."""


Event = tuple[str | None, Any]
"""A server-sent event: its type, where the API has one, and its data."""


class Api(Protocol):
    """One API: how it writes conversations and replies."""

    def read(self, body: dict[str, Any]) -> SentConversation:
        """Return what a request says."""
        ...

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        ...

    def events(self, reply: Reply) -> Iterator[Event]:
        """Return the events of a streamed reply."""
        ...


class Messages:
    """Anthropic's Messages API."""

    def read(self, body: dict[str, Any]) -> SentConversation:
        """Return what a request says."""
        names: dict[str, str] = {}
        results: dict[str, ToolResult] = {}
        for block in chain.from_iterable(_blocks(message["content"]) for message in body["messages"]):
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
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        return SentConversation(turns, tools, results, None if tools or turns else self._aside(body))

    def _aside(self, body: dict[str, Any]) -> str | None:
        """Return the answer to a request that Claude Code makes for itself: it wants JSON, and offers no tools."""
        settings: dict[str, Any] = body.get("output_config") or {}
        form: dict[str, Any] = settings.get("format") or {}
        wanted: dict[str, Any] | None = form.get("schema")
        system = _text(body.get("system"))
        if wanted is None or not any(name in system for name in _CLAUDE_CODE):
            return None
        return json.dumps(_example(wanted))

    def whole(self, reply: Reply) -> dict[str, Any]:
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
        return {**self._message(reply), "content": content, "stop_reason": "tool_use" if reply.uses else "end_turn"}

    def events(self, reply: Reply) -> Iterator[Event]:
        """Return the events of a streamed reply; a call without arguments has no deltas, as with the real API."""
        yield _typed("message_start", message=self._message(reply))
        for index, part in enumerate(reply.parts):
            if isinstance(part, str):
                start: dict[str, Any] = {"type": "text", "text": ""}
                deltas = [{"type": "text_delta", "text": piece} for piece in _pieces(part)]
            else:
                start = {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}
                pieces = _pieces(part.text if part.arguments else "")
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
            yield _typed("content_block_start", index=index, content_block=start)
            for delta in deltas:
                yield _typed("content_block_delta", index=index, delta=delta)
            yield _typed("content_block_stop", index=index)
        delta = {"stop_reason": "tool_use" if reply.uses else "end_turn", "stop_sequence": None}
        yield _typed("message_delta", delta=delta, usage={"output_tokens": count_tokens(reply.text)})
        yield _typed("message_stop")

    def _message(self, reply: Reply) -> dict[str, Any]:
        usage = {"input_tokens": 1, "output_tokens": 1, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
        head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": reply.model}
        return {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}


_CHAT_USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


class Chat:
    """OpenAI's Chat Completions API."""

    def read(self, body: dict[str, Any]) -> SentConversation:
        """Return what a request says."""
        names: dict[str, str] = {}
        results: dict[str, ToolResult] = {}
        for message in body["messages"]:
            names.update((use["id"], use["function"]["name"]) for use in message.get("tool_calls") or ())
            if message["role"] == "tool":
                call, content = message["tool_call_id"], message.get("content")
                results[call] = ToolResult(names.get(call, ""), _text(content), content=content)
        functions = [tool["function"] for tool in body.get("tools") or () if tool["type"] == "function"]
        turns = sum(message["role"] == "assistant" for message in body["messages"])
        return SentConversation(turns, _offered(functions), results)

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None, "refusal": None}
        if reply.uses:
            message["tool_calls"] = [self._call(use) for use in reply.uses]
        choice = {
            "index": 0,
            "finish_reason": "tool_calls" if reply.uses else "stop",
            "logprobs": None,
            "message": message,
        }
        return {**self._head(reply, "chat.completion"), "choices": [choice], "usage": _CHAT_USAGE}

    def events(self, reply: Reply) -> Iterator[Event]:
        """Return the events of a streamed reply."""
        head = self._head(reply, "chat.completion.chunk")
        deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
        deltas += [{"content": piece} for piece in _pieces(reply.text)]
        for index, use in enumerate(reply.uses):
            call = self._call(use)
            deltas.append({"tool_calls": [{"index": index, **call, "function": {"name": use.name, "arguments": ""}}]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in _pieces(use.text)
            ]
        for delta in deltas:
            yield None, {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield (
            None,
            {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if reply.uses else "stop"}]},
        )
        yield None, {**head, "choices": [], "usage": _CHAT_USAGE}
        yield None, "[DONE]"

    def _call(self, use: Use) -> dict[str, Any]:
        return {"id": use.id, "type": "function", "function": {"name": use.name, "arguments": use.text}}

    def _head(self, reply: Reply, kind: str) -> dict[str, Any]:
        return {"id": new_id("chatcmpl"), "object": kind, "created": 0, "model": reply.model}


class Responses:
    """OpenAI's Responses API, for clients that send the whole conversation each time."""

    def read(self, body: dict[str, Any]) -> SentConversation:
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
        functions = [tool for tool in body.get("tools") or () if tool["type"] == "function"]
        return SentConversation(turns, _offered(functions), results)

    def whole(self, reply: Reply) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        return self._response(reply, [self._item(part) for part in reply.parts])

    def events(self, reply: Reply) -> Iterator[Event]:
        """Return the events of a streamed reply."""
        response = self.whole(reply)
        started: dict[str, Any] = {**response, "status": "in_progress", "output": []}
        typed = [_typed("response.created", response=started), _typed("response.in_progress", response=started)]
        for index, item in enumerate(response["output"]):
            typed += self._item_events(index, item)
        for number, (kind, data) in enumerate([*typed, _typed("response.completed", response=response)]):
            yield kind, {**data, "sequence_number": number}

    def _item_events(self, index: int, item: dict[str, Any]) -> Iterator[Event]:
        place = {"item_id": item["id"], "output_index": index}
        if item["type"] == "function_call":
            started: dict[str, Any] = {**item, "arguments": "", "status": "in_progress"}
            yield _typed("response.output_item.added", output_index=index, item=started)
            for piece in _pieces(item["arguments"]):
                yield _typed("response.function_call_arguments.delta", **place, delta=piece)
            whole = {"arguments": item["arguments"], "name": item["name"]}
            yield _typed("response.function_call_arguments.done", **place, **whole)
        else:
            part = item["content"][0]
            started = {**item, "content": [], "status": "in_progress"}
            yield _typed("response.output_item.added", output_index=index, item=started)
            yield _typed("response.content_part.added", **place, content_index=0, part={**part, "text": ""})
            for piece in _pieces(part["text"]):
                yield _typed("response.output_text.delta", **place, content_index=0, delta=piece, logprobs=[])
            yield _typed("response.output_text.done", **place, content_index=0, text=part["text"], logprobs=[])
            yield _typed("response.content_part.done", **place, content_index=0, part=part)
        yield _typed("response.output_item.done", output_index=index, item=item)

    def _is_own(self, item: dict[str, Any]) -> bool:
        """Return whether an item of the conversation is the model's own; items of one turn follow each other."""
        return item.get("role") == "assistant" or item.get("type") in {"function_call", "reasoning"}

    def _item(self, part: str | Use) -> dict[str, Any]:
        if isinstance(part, Use):
            call = {"call_id": part.id, "name": part.name, "arguments": part.text}
            return {"type": "function_call", "id": new_id("fc"), "status": "completed", **call}
        content: list[Any] = [{"type": "output_text", "text": part, "annotations": [], "logprobs": []}]
        return {"type": "message", "id": new_id("msg"), "role": "assistant", "status": "completed", "content": content}

    def _response(self, reply: Reply, output: list[dict[str, Any]]) -> dict[str, Any]:
        details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
        usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2, **details}
        head = {
            "id": new_id("resp"),
            "object": "response",
            "created_at": 0,
            "status": "completed",
            "model": reply.model,
        }
        unset: dict[str, Any] = {
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": 1,
            "top_p": 1,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }
        return {**head, "output": output, "usage": usage, **unset}


def _offered(functions: Iterable[dict[str, Any]]) -> list[OfferedTool]:
    return [
        OfferedTool(function["name"], function.get("description", ""), function.get("parameters") or {})
        for function in functions
    ]


def encode_event(event: Event) -> bytes:
    """Return an event as it is on the wire."""
    kind, data = event
    head = f"event: {kind}\n" if kind else ""
    return f"{head}data: {data if isinstance(data, str) else json.dumps(data)}\n\n".encode()


def _typed(kind: str, **data: Any) -> Event:
    return kind, {"type": kind, **data}


def _blocks(content: object) -> list[dict[str, Any]]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else cast("list[dict[str, Any]]", content)


def _example(schema: dict[str, Any]) -> object:
    """Return a value of a simple schema."""
    fields: dict[str, Any] = schema.get("properties", {})
    simple = {"array": list[object](), "boolean": False, "integer": 0, "number": 0}
    if schema.get("type") == "object":
        return {name: _example(field) for name, field in fields.items()}
    return simple.get(schema.get("type", ""), "Scripted")


def _text(content: object) -> str:
    """Return the texts of a result, which is one text or a list of blocks."""
    return "".join(str(block["text"]) for block in _blocks(content or "") if "text" in block)


def _pieces(text: str) -> list[str]:
    return [text[start : start + _PIECE] for start in range(0, len(text), _PIECE)]


def count_tokens(text: str | bytes) -> int:
    """Return an estimate."""
    return len(text) // 4 + 1


def new_id(kind: str) -> str:
    """Return a random id."""
    return f"{kind}_{uuid4().hex[:20]}"
