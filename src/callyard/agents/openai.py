"""The runtime of the OpenAI Agents SDK, with the same events and permissions.

The SDK runs in this process and keeps no conversation, so the items of each are in the yard's store.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from copy import copy
from json import JSONDecodeError
from typing import Any, Final, cast

import msgspec

from callyard.agents.events import StreamEvent, TextDelta, ToolCallDelta, ToolCallEnd, ToolCallStart, ToolResult
from callyard.agents.turn import TurnRequest
from callyard.inject.openai import openai_tools
from callyard.inject.plain import import_sdk
from callyard.model.envelope import Envelope, encode_unchecked
from callyard.model.errors import CodeName, ToolError, refused, shortened
from callyard.state.store import Store

__all__ = ["OpenAIRuntime", "StoredItems", "explain_error"]

_MAX_STEPS: Final = 200
_HINT: Final = "Send the message again, or another one."
_KEY_HINT: Final = "Set OPENAI_API_KEY in the environment of the server."
_LENGTH_HINT: Final = "Send a shorter message, or begin another session."
_HTTP_CLIENTS: Final = ("httpx", "httpx2", "httpcore", "httpcore2")


class OpenAIRuntime:
    """Runs turns with the OpenAI Agents SDK."""

    name = "openai"
    has_folder = False

    def __init__(self, model: Any = None) -> None:
        """Take the model that agents use if a message names none: a name, or a model object of the SDK."""
        self._model = model

    def check(self) -> None:
        """Check that the SDK is there.

        Raises:
            ImportError: It is not installed.
        """
        import_sdk("agents", extra="openai")

    def check_servers(self, names: Iterable[str]) -> None:
        """Refuse MCP servers: the SDK would run their tools without asking.

        Raises:
            ValueError: There are any.
        """
        if list(names):
            raise ValueError(
                "The runtime 'openai' takes no MCP servers of the host. Add them to the yard as upstreams."
            )

    async def forget(self, sdk_session_id: str) -> None:
        """Do nothing: the conversation is in the yard's store alone."""

    async def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        """Run one turn, and yield what happens.

        Raises:
            ToolError: The turn failed.
        """
        sdk, errors = import_sdk("agents", extra="openai"), import_sdk("openai", extra="openai")
        tools = [_permitted(tool, request) for tool in openai_tools(request.conversation)]
        instructions = request.conversation.instructions()
        name = request.conversation.yard.name
        agent = sdk.Agent(name=name, instructions=instructions, tools=tools, model=request.model or self._model)
        config = sdk.RunConfig(tracing_disabled=True)  # nothing leaves the machine unasked
        items = StoredItems(request.store, request.store_key)
        run = sdk.Runner.run_streamed(agent, request.content, session=items, run_config=config, max_turns=_MAX_STEPS)
        reader = _Events()
        try:
            async for event in run.stream_events():
                for found in reader.read(event):
                    yield found
        except Exception as error:
            raise explain_error(error, sdk, errors) from error
        finally:
            run.cancel()
            if run.run_loop_task is not None:
                await asyncio.wait({run.run_loop_task})  # its tool calls end with it


def _permitted(tool: Any, request: TurnRequest) -> Any:
    """Return a tool that asks the person before it runs, as the permission mode says."""
    invoke: Callable[[Any, str], Awaitable[Any]] = tool.on_invoke_tool

    async def ask_first(context: Any, arguments: str) -> Any:
        given, call_id = _arguments(arguments), context.tool_call_id
        decision = await request.permit(tool.name, given, tool_call_id=call_id, source="yard")
        if decision.is_yes:
            return await invoke(context, arguments)
        refusal = refused("approval_denied", decision.sentence(), reason=decision.outcome)
        return encode_unchecked(Envelope.fail(refusal, tool_id=tool.name)).decode()

    asking = copy(tool)
    asking.on_invoke_tool = ask_first
    return asking


def _arguments(text: str) -> dict[str, Any]:
    """Return the arguments of a model as data; what is no object is shown as it is."""
    try:
        return msgspec.json.decode(text or "{}", type=dict[str, Any])
    except msgspec.DecodeError:
        return {"": text}


def explain_error(error: Exception, sdk: Any, errors: Any) -> Exception:
    """Return what a person reads of a failure of the SDK or the model, or the error itself if it is a defect."""
    account = "Look at the account of the model's provider."
    known: list[tuple[Any, str, CodeName, str, str]] = [
        (errors.APIError, "insufficient_quota", "budget_exceeded", "The account is used up", account),
        (errors.APIError, "context_length_exceeded", "too_large", "The conversation is too long", _LENGTH_HINT),
        (sdk.MaxTurnsExceeded, "", "limit_exceeded", "The agent took too many steps", _HINT),
        (errors.AuthenticationError, "", "unauthenticated", "The model refuses the key", _KEY_HINT),
        (errors.RateLimitError, "", "rate_limited", "The model is asked too often", "Send the message again later."),
        (errors.APIConnectionError, "", "upstream_unavailable", "The model cannot be reached", _HINT),
        ((sdk.AgentsException, errors.OpenAIError), "", "upstream_error", "The model failed", _HINT),
    ]
    if type(error) is errors.OpenAIError:  # there is no key
        known = [(errors.OpenAIError, "", "unauthenticated", "There is no key for the model", _KEY_HINT)]
    for kind, word, code, sentence, hint in known:
        if isinstance(error, kind) and word in {"", getattr(error, "code", None)}:
            message = f"{sentence}: {shortened(str(error))}"
            return ToolError(code, message, hint=hint, blame="upstream", may_have_run=True)
    is_cut_off = type(error).__module__.partition(".")[0] in _HTTP_CLIENTS
    if is_cut_off or isinstance(error, JSONDecodeError | UnicodeDecodeError):  # the SDK passes these on
        message = "The model's answer broke off, or is no JSON."
        return ToolError("upstream_error", message, hint=_HINT, may_have_run=True)
    return error


class StoredItems:
    """The items of a conversation in the store, as the SDK's `Session` protocol wants them."""

    session_settings: Any = None

    def __init__(self, store: Store, key: str) -> None:
        self._store = store
        self._key = key
        self.session_id = key

    async def get_items(self, limit: int | None = None) -> list[Any]:
        """Return the items, or the last ones; the SDK leaves out calls that were never answered."""
        items = await self._read()
        return items if limit is None else items[-limit:]

    async def add_items(self, items: list[Any]) -> None:
        """Add items."""
        await self._write([*await self._read(), *items])

    async def pop_item(self) -> Any:
        """Remove the last item and return it."""
        items = await self._read()
        last = items.pop() if items else None
        await self._write(items)
        return last

    async def clear_session(self) -> None:
        """Remove every item."""
        await self._store.delete(self._key)

    async def _read(self) -> list[dict[str, Any]]:
        data = await self._store.get(self._key)
        return [] if data is None else msgspec.json.decode(data, type=list[dict[str, Any]])

    async def _write(self, items: list[Any]) -> None:
        await self._store.put(self._key, msgspec.json.encode(items))


class _Events:
    """Reads the SDK's events as ours: each text, call and result once."""

    def __init__(self) -> None:
        self._items: dict[str, str] = {}
        """The id of the call of each item that is streamed."""
        self._tools: dict[str, str] = {}

    def read(self, event: Any) -> Iterator[StreamEvent]:
        """Yield our events of one of theirs."""
        if event.type == "raw_response_event":
            yield from self._read_raw(event.data)
        elif event.type == "run_item_stream_event":
            yield from self._read_item(event.name, event.item)

    def _read_raw(self, data: Any) -> Iterator[StreamEvent]:
        if data.type == "response.output_text.delta":
            yield TextDelta(text=data.delta)
        elif data.type == "response.output_item.added" and data.item.type == "function_call":
            self._items[data.item.id or ""] = data.item.call_id
            yield from self._start(data.item)
        elif data.type == "response.function_call_arguments.delta" and data.item_id in self._items:
            yield ToolCallDelta(tool_call_id=self._items[data.item_id], arguments=data.delta)
        elif data.type == "response.output_item.done" and data.item.type == "function_call":
            yield from self._start(data.item)
            yield ToolCallEnd(tool_call_id=data.item.call_id, arguments=_arguments(data.item.arguments))

    def _start(self, item: Any) -> Iterator[StreamEvent]:
        if item.call_id not in self._tools:
            self._tools[item.call_id] = item.name
            yield ToolCallStart(tool_call_id=item.call_id, tool=item.name)

    def _read_item(self, name: str, item: Any) -> Iterator[StreamEvent]:
        if name == "tool_output":
            raw = item.raw_item
            call_id: str = cast("dict[str, Any]", raw)["call_id"] if isinstance(raw, dict) else raw.call_id
            text = _text(item.output)
            tool = self._tools.get(call_id, "")
            yield ToolResult(tool_call_id=call_id, tool=tool, text=text, is_error='"success":false' in text[:20])


def _text(output: object) -> str:
    parts = cast("list[Any]", output) if isinstance(output, list) else [output]
    return "\n".join(
        part if isinstance(part, str) else str(getattr(part, "text", f"[{getattr(part, 'type', 'data')}]"))
        for part in parts
    )
