"""What every agent SDK accepts: tools as a name, a description, a schema and an async function, for one conversation.

It must not know any SDK; the adapters are built on it.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from secrets import token_hex
from typing import Any, Final, TypedDict, Unpack, cast

import msgspec

from callyard.dispatch.call import ANYONE, AskClient, Caller, Channel
from callyard.dispatch.progress import SendProgress
from callyard.dispatch.questions import Question
from callyard.model.content import to_mcp
from callyard.model.elicitation import ClientRequest, require_support
from callyard.model.envelope import Envelope, encode_unchecked
from callyard.model.errors import ToolError
from callyard.model.profile import METATOOLS, Profile
from callyard.model.spec import ToolSpec
from callyard.wire.results import ResultEncoder, Server
from callyard.wire.versions import LATEST_HANDSHAKE
from callyard.yard import Yard

__all__ = [
    "Answer",
    "Arguments",
    "Conversation",
    "ConversationOptions",
    "Elicit",
    "PlainTool",
    "import_sdk",
    "plain_tools",
]

Arguments = Mapping[str, Any] | str | bytes | None
"""Arguments as a model gives them: as data, or as JSON."""
Elicit = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any] | None]]
"""Shows a text and a form to the person; returns the content of the form, or None if the person declines."""

_ELICITATION: Final = frozenset({"elicitation"})
_PLAIN: Final = ResultEncoder(LATEST_HANDSHAKE, Server("", ""))
_NAMES_SHOWN: Final = 12


class ConversationOptions(TypedDict, total=False):
    """The options of a conversation, which every adapter takes."""

    caller: Caller
    """Who is calling: identity, claims and profile."""
    scope: str
    """The conversation's name among those of its caller; a new one by default. Give the same to resume."""
    profile: Profile | str
    """Which tools exist; by default those of the caller's profile, or of the yard's own."""
    session: str
    """The yard session that tools use if the model names none."""
    elicit: Elicit
    """The host's way to ask the person; without it, tools cannot ask."""
    progress: SendProgress
    log: Callable[[str, str, Mapping[str, object]], None]
    """Gets the log lines of calls: level, text and facts."""
    client: str
    """The name of the program in records, by default that of the SDK."""
    ask_before_destroy: bool
    """Whether a person must approve calls of tools that destroy something, unless a rule decides about them."""


class Conversation:
    """One conversation of an agent with an open yard: whose it is, what it may use, and how its person is asked.

    Sessions and stored results belong to the caller and scope, so two conversations never see each other's.
    """

    def __init__(self, yard: Yard, **options: Unpack[ConversationOptions]) -> None:
        caller = options.get("caller", ANYONE)
        profile = options.get("profile")
        scope = options.get("scope") or caller.scope or f"inject-{token_hex(8)}"
        self.yard = yard
        asks = options.get("ask_before_destroy", True)
        if asks:
            yard.ask_before_destroy(always=False)
        self.caller = msgspec.structs.replace(
            caller,
            scope=scope,
            profile=caller.profile if profile is None else yard.profile_of(profile),
            client=options.get("client") or caller.client,
        )
        elicit = options.get("elicit")
        # What a tool, a confirmation or a policy asks reaches the person here, and so must approvals: as elicitation of
        # the host.
        self.channel = Channel(
            name="inject",
            connection_id=scope,
            progress=options.get("progress"),
            log=options.get("log"),
            ask=None if elicit is None else _ask_with(elicit),
            capabilities=frozenset() if elicit is None else _ELICITATION,
            asks_before_destroy=asks,
        )
        self.progress_of: Callable[[Mapping[str, Any]], SendProgress | None] | None = None
        """Returns where the progress of one call goes, by what the SDK says about the call."""
        self._session = options.get("session")

    @classmethod
    def of(cls, yard: "Yard | Conversation", client: str, options: ConversationOptions) -> "Conversation":
        """Return a conversation for an adapter, which takes a yard with options or a conversation that exists.

        Raises:
            TypeError: Options are given with a conversation.
        """
        if isinstance(yard, Yard):
            return cls(yard, **{"client": client, **options})
        if options:
            raise TypeError("A conversation has its options already: give them where it is made.")
        return yard

    @property
    def profile(self) -> Profile:
        """Return the profile that decides which tools exist."""
        return self.caller.profile or self.yard.profile

    def specs(self) -> Sequence[ToolSpec]:
        """Return the specs of the listed tools."""
        return self.yard.list(self.profile)

    def tools(self) -> "list[PlainTool]":
        """Return the listed tools."""
        return [PlainTool(spec.name, spec.description, spec.input_schema, spec, self) for spec in self.specs()]

    async def call(self, name: str, arguments: Arguments = None, *, meta: Mapping[str, Any] | None = None) -> Envelope:
        """Call a tool, which need not be listed; `meta` is what the SDK says about the call."""
        data: Any = msgspec.Raw(arguments or b"{}") if isinstance(arguments, str | bytes) else arguments
        if self._session is not None:
            data = self._add_session(name, data)
        channel = self.channel if not meta else msgspec.structs.replace(self.channel, meta=meta)
        if meta and self.progress_of is not None:
            channel = msgspec.structs.replace(channel, progress=self.progress_of(meta))
        try:
            return await self.yard.call(name, data, caller=self.caller, channel=channel)
        except RuntimeError:
            error = ToolError(
                "overloaded", "The yard is closed.", hint="Tell the person; a later call may find it open again."
            )
            return Envelope.fail(error, tool_id=name)

    def cancel(self) -> int:
        """Cancel the calls in flight, each of which is answered with `cancelled`; return how many there were."""
        dispatcher, name, owner = self.yard.dispatcher, self.channel.name, self.caller.owner
        calls = [call for call in dispatcher.in_flight.values() if call.parent is None and call.channel.name == name]
        return sum([dispatcher.cancel(call.id) for call in calls if call.caller.owner == owner])

    def instructions(self, name_of: Callable[[str], str] = str) -> str:
        """Return a short text for the system prompt, with tools named as the model must call them."""
        specs = self.specs()
        names = [name_of(spec.name) for spec in specs]
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        offers = f"You have the tools of '{self.yard.name}': {', '.join(names[:_NAMES_SHOWN])}{more}." if names else ""
        failures = "a failure says in 'hint' and 'next_actions' what to do."
        answers = f"Each answers in JSON with 'success', 'data' and 'error'; {failures}"
        own = self.yard.instructions_for(self.profile)
        for metatool in [spec.name for spec in specs if spec.source == METATOOLS]:
            own = re.sub(rf"\b{metatool}\b", name_of(metatool), own)
        return "\n\n".join(part for part in (f"{offers} {answers}" if offers else "", own) if part)

    def _add_session(self, name: str, data: Any) -> Any:
        """Return the arguments with the conversation's session, if the tool has one and the model names none."""
        tool = self.yard.registry.get(name)
        if tool is None or tool.spec.session == "none":
            return data
        try:
            named: object = msgspec.json.decode(data) if isinstance(data, msgspec.Raw) else data or {}
        except msgspec.DecodeError:
            return data  # the check of the arguments says what is wrong
        return {"session_id": self._session, **cast("Mapping[str, Any]", named)} if isinstance(named, Mapping) else data


class PlainTool(msgspec.Struct, frozen=True):
    """A tool as every SDK accepts it; calling it never raises, unless its task is cancelled."""

    name: str
    description: str
    schema: dict[str, Any]
    spec: ToolSpec
    conversation: Conversation

    async def __call__(self, arguments: Arguments = None, *, meta: Mapping[str, Any] | None = None) -> "Answer":
        """Call the tool; `meta` is what the SDK says about the call."""
        return Answer.of(await self.conversation.call(self.name, arguments, meta=meta))


class Answer(msgspec.Struct, frozen=True):
    """What a model reads of an envelope."""

    envelope: Envelope
    text: str
    """The envelope as JSON, or the texts of a successful tool with the shape `plain`."""
    blocks: tuple[dict[str, Any], ...] = ()
    """Images and other content that follows the text, as MCP's content blocks."""

    @classmethod
    def of(cls, envelope: Envelope) -> "Answer":
        """Return what a model reads of an envelope."""
        if envelope.has_plain_shape and envelope.error is None:
            content = msgspec.json.decode(_PLAIN.plain(envelope))["content"]
            texts = [block["text"] for block in content if block["type"] == "text"]
            return cls(envelope, "\n".join(texts), tuple(block for block in content if block["type"] != "text"))
        return cls(envelope, encode_unchecked(envelope).decode(), tuple(map(to_mcp, envelope.content)))

    @property
    def is_error(self) -> bool:
        """Return whether the call failed."""
        return not self.envelope.success

    @property
    def images(self) -> list[tuple[str, str]]:
        """Return the images: the media type and the data in base64 of each."""
        return [(block["mimeType"], block["data"]) for block in self.blocks if block["type"] == "image"]

    @property
    def image_urls(self) -> list[str]:
        """Return the images as data URLs."""
        return [f"data:{media_type};base64,{data}" for media_type, data in self.images]


def plain_tools(yard: Yard | Conversation, **options: Unpack[ConversationOptions]) -> list[PlainTool]:
    """Return the listed tools of a yard for one conversation, for an SDK that has no adapter."""
    return Conversation.of(yard, "", options).tools()


def import_sdk(module: str, *, extra: str) -> Any:
    """Return a module of an agent SDK.

    Raises:
        ImportError: It is not installed.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ImportError(f"This adapter needs '{module.partition('.')[0]}': install 'callyard[{extra}]'.") from error


def _ask_with(elicit: Elicit) -> AskClient:
    """Return the channel's way to ask: each elicitation goes to the host, one after another."""

    async def ask(asks: Mapping[str, ClientRequest], _: Question) -> Mapping[str, Any]:
        require_support(asks, _ELICITATION)
        results: dict[str, Any] = {}
        for key, ask in asks.items():
            content = await elicit(ask.params["message"], ask.params["requestedSchema"])
            results[key] = {"action": "decline"} if content is None else {"action": "accept", "content": dict(content)}
        return results

    return ask
