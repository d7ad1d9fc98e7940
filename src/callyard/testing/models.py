"""Scripted models: servers on loopback with the APIs of Anthropic and OpenAI, for tests without a key.

A script is the model's side of one conversation, turn by turn. The turn that answers a request follows from the request
alone: it is the number of turns that the request already has. So retries, resumed and parallel conversations need no
state here.
"""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final, Literal, Self

import msgspec

from callyard.testing.model_apis import (
    Api,
    Chat,
    Messages,
    OfferedTool,
    OffScriptError,
    Reply,
    Responses,
    SentConversation,
    ToolResult,
    Use,
    count_tokens,
    encode_event,
    new_id,
)

__all__ = [
    "Fault",
    "OffScriptError",
    "OfferedTool",
    "ScriptedAnthropic",
    "ScriptedModel",
    "ScriptedOpenAI",
    "ToolResult",
    "ToolUse",
    "Turn",
]

_PAUSE_S: Final = 0.01  # between the events of an endless answer, so that it does not fill the memory of its client
_ENDLESS: Final = "And then, "  # one piece
_GARBAGE: Final = b'event: message_start\ndata: {"type": "message_start", "message": {\xff\xfe\n\ndata: 7\n\n'


class ToolUse(msgspec.Struct, frozen=True):
    """A tool call that the model makes."""

    name: str
    arguments: dict[str, Any] | str = {}
    """As data, or as a text that is sent as it is, even if it is no JSON."""
    unlisted: bool = False
    """Whether to call the tool even if the request does not offer it."""


class Fault(msgspec.Struct, frozen=True):
    """A turn in which the model misbehaves, to test that an agent survives it."""

    kind: Literal["garbage", "endless", "silent", "disconnect", "status"]
    """What happens instead of an answer:

    - `garbage`: the answer is `body`, which is neither JSON nor an event of the API;
    - `endless`: the answer begins, and goes on until the client or the model closes the connection;
    - `silent`: not even the head of an answer comes, until then;
    - `disconnect`: the connection ends in the middle of an answer;
    - `status`: the answer is an error with the HTTP status `status`.
    """
    status: int = 500
    body: bytes = _GARBAGE


Turn = str | ToolUse | Fault | Sequence[str | ToolUse]
"""One turn of the model: a text, a tool call, several of both, or a fault."""


class ScriptedModel:
    """A model on loopback that follows a script, and keeps what it was sent."""

    apis: ClassVar[Mapping[str, Api]] = {}
    prefix: ClassVar = ""
    """The part of the path that belongs to the base URL."""

    def __init__(self, script: Iterable[Turn], *, repeat_last: bool = False) -> None:
        """Follow a script; with `repeat_last`, its last turn answers all later requests, too."""
        self._script = list(script)
        self._repeat_last = repeat_last
        self.requests: list[dict[str, Any]] = []
        """The bodies of the requests to the model, in order."""
        self.asides: list[dict[str, Any]] = []
        """The bodies of requests that the client made for itself, such as for a title: no part of the script."""
        self.errors: list[str] = []
        """Why requests were refused, in order: the script has no answer, or they are no requests."""
        self._seen: list[SentConversation] = []
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        self._server = server = _Server(self)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the model.

        Raises:
            OffScriptError: The model refused a request, and nothing else was raised; else the reason is a note of that
            exception.
        """
        server, self._server = self._server, None
        if server is not None:
            server.closing.set()
            server.shutdown()
            server.server_close()
        raised = next((value for value in exc if isinstance(value, BaseException)), None)
        for reason in self.errors:
            if raised is None:
                raise OffScriptError(reason)
            raised.add_note(f"The scripted model refused a request. {reason}")

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
        """Return the script of a request's conversation; override it for several, such as those of sub-agents."""
        return self._script

    def answer(self, path: str, body: dict[str, Any]) -> Reply | Fault:
        """Return the reply of the script to a request.

        Raises:
            OffScriptError: The script has none.
        """
        conversation = self.apis[path].read(body)
        if conversation.aside is not None:
            self.asides.append(body)
            return Reply(str(body.get("model", "scripted")), [conversation.aside])
        self.requests.append(body)
        self._seen.append(conversation)
        script = self.script_for(body)
        if conversation.turns >= len(script) and not (script and self._repeat_last):
            last = next(reversed(conversation.results.values()), None)
            after = f" after the result of '{last.name}'" if last is not None else ""
            raise OffScriptError(
                f"The script ends after {len(script)} turns, and the client asks for another one{after}."
            )
        turn = script[min(conversation.turns, len(script) - 1)]
        if isinstance(turn, Fault):
            return turn
        parts = [turn] if isinstance(turn, str | ToolUse) else turn
        offered = [tool.name for tool in conversation.tools]
        return Reply(str(body.get("model", "scripted")), [self._part(part, offered) for part in parts])

    def _part(self, part: str | ToolUse, offered: Sequence[str]) -> str | Use:
        if isinstance(part, str):
            return part
        if part.name not in offered and not part.unlisted:
            raise OffScriptError(
                f"The script calls '{part.name}', which is not offered. Offered: {', '.join(offered) or 'nothing'}."
            )
        return Use(new_id("call"), part.name, part.arguments)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, model: ScriptedModel) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.model = model
        self.closing = threading.Event()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server  # pyright: ignore[reportIncompatibleVariableOverride] - only such a server has this handler

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name that the base class gives it
        """Log nothing."""

    def do_HEAD(self) -> None:
        self._send(200, {})

    def do_GET(self) -> None:
        if not self.path.split("?")[0].endswith("/models"):
            self._send(404, _error(self.path))
            return
        names = {"id": "scripted", "display_name": "scripted", "owned_by": "callyard"}
        model = {**names, "type": "model", "object": "model", "created": 0}
        self._send(200, {"object": "list", "data": [model], "has_more": False})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = self.path.split("?")[0]
        if path.endswith("/count_tokens"):
            self._send(200, {"input_tokens": count_tokens(raw)})
        elif path not in self.server.model.apis:
            self._send(404, _error(f"There is no '{path}' here, but {', '.join(self.server.model.apis)}."))
        else:
            self._answer(path, raw)

    def _answer(self, path: str, raw: bytes) -> None:
        api = self.server.model.apis[path]
        try:
            body = msgspec.json.decode(raw, type=dict[str, Any])
            streamed = bool(body.get("stream"))
            reply = self.server.model.answer(path, body)
            if isinstance(reply, Fault):
                self._misbehave(reply, api, streamed=streamed)
                return
            whole = None if streamed else api.whole(reply)
        except (OffScriptError, msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            reason = str(error) if isinstance(error, OffScriptError) else f"This is no request to '{path}': {error!r}."
            self.server.model.errors.append(reason)
            self._send(400, _error(reason))
            return
        if whole is None:
            self._stream(map(encode_event, api.events(reply)))
        else:
            self._send(200, whole)

    def _misbehave(self, fault: Fault, api: Api, *, streamed: bool) -> None:
        events = [encode_event(event) for event in api.events(Reply("scripted", [_ENDLESS]))]
        match fault.kind:
            case "garbage":
                self._stream([fault.body], streamed=streamed)
            case "endless":
                self._stream(self._forever(events if streamed else [b" "]), streamed=streamed)
            case "silent":
                self.close_connection = True
                self._wait_for_the_end()
            case "disconnect":
                half = events[: len(events) // 2] if streamed else [b'{"id":']
                self._stream(half, streamed=streamed, length=1_000_000)
            case "status":
                self._send(fault.status, _error("The script says so."))

    def _forever(self, events: Sequence[bytes]) -> Iterator[bytes]:
        """Yield the events up to the first with a piece of text, and repeat that one."""
        begun = next((number for number, event in enumerate(events) if _ENDLESS.encode() in event), 0)
        yield from events[:begun]
        while not self.server.closing.wait(_PAUSE_S):
            yield events[begun]

    def _wait_for_the_end(self) -> None:
        """Wait until the client or the model closes the connection."""
        self.connection.settimeout(_PAUSE_S)
        with suppress(ConnectionError):
            while not self.server.closing.is_set():
                with suppress(TimeoutError):
                    if not self.connection.recv(1):
                        return

    def _stream(self, pieces: Iterable[bytes], *, streamed: bool = True, length: int = 0) -> None:
        self.close_connection = True
        with suppress(ConnectionError):  # a client may go away in the middle
            self.send_response(200)
            self.send_header("content-type", "text/event-stream" if streamed else "application/json")
            self.send_header("connection", "close")
            if length:
                self.send_header("content-length", str(length))
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
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


class ScriptedAnthropic(ScriptedModel):
    """A scripted model behind Anthropic's Messages API; `url` is what `ANTHROPIC_BASE_URL` takes."""

    apis: ClassVar[Mapping[str, Api]] = {"/v1/messages": Messages()}


class ScriptedOpenAI(ScriptedModel):
    """A scripted model behind OpenAI's Responses and Chat Completions APIs; `url` is what `OPENAI_BASE_URL` takes."""

    apis: ClassVar[Mapping[str, Api]] = {"/v1/responses": Responses(), "/v1/chat/completions": Chat()}
    prefix: ClassVar = "/v1"


def _error(message: str) -> dict[str, Any]:
    """Return an error in a form that fits both providers."""
    error = {"type": "invalid_request_error", "message": message, "code": None, "param": None}
    return {"type": "error", "error": error}
