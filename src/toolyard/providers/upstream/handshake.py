"""Greeting: finding out which era an upstream speaks, and what it says of itself."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from toolyard._version import VERSION
from toolyard.providers.upstream.link import Link, LinkError
from toolyard.providers.upstream.session import ASKED, CallContext, ClientSession
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.messages import UNSUPPORTED_VERSION, Fault, Id
from toolyard.wire.params import SERVER, Client, Requests
from toolyard.wire.versions import HANDSHAKE, LATEST, LATEST_HANDSHAKE, MODERN, VERSIONS, Version

__all__ = ["Connection", "Ended", "Era", "Greeting", "Heard", "SilentError", "connect", "greet"]


Era = Literal["auto", "2025", "2026"]
PROBE_SECONDS: Final = 3.0
"""How long an upstream may take to say that it speaks the newer era; those of the older one may say nothing at all."""
_CLIENT: Final = Client("toolyard", VERSION)
_OLDER: Final = frozenset({"refused", "session_lost"})
_SERVER_ERROR: Final = 500


class SilentError(LinkError):
    """An upstream went away when it was asked for its era: with the handshake of the older one it may stay."""


class Greeting(msgspec.Struct, frozen=True):
    """What an upstream says of itself."""

    version: Version
    server: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    instructions: str


class _Initialized(msgspec.Struct, rename="camel"):
    protocol_version: str
    capabilities: dict[str, Any] = {}
    server_info: dict[str, Any] = {}
    instructions: str | None = None


class _Discovered(msgspec.Struct, rename="camel"):
    supported_versions: list[str]
    capabilities: dict[str, Any] = {}
    server_info: dict[str, Any] = {}
    instructions: str | None = None
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class _Refusal(msgspec.Struct):
    supported: list[str] = []


async def greet(peer: ClientSession, link: Link, era: Era, *, known: str | None = None) -> Greeting:
    """Return what the upstream says of itself; `known` is the version it spoke last time, which spares the question.

    Raises:
        LinkError: It cannot be reached, or speaks no version that we do.
        SilentError: It went away when asked for its era.
    """
    try:
        if era == "2025" or (era == "auto" and known in HANDSHAKE):
            return await _shake_hands(peer, link)
        if era == "2026":
            return await _insist(peer)
        if known not in MODERN:
            return await _find_out(peer, link)
        return await _discover_again(peer) or await _shake_hands(peer, link)
    except Fault as fault:
        said = f"'{peer.name}' refused the greeting: {fault.message.removesuffix('.')} ({fault.code})."
        raise LinkError("unavailable", said, text=fault.message) from fault


async def _find_out(peer: ClientSession, link: Link) -> Greeting:
    """Ask an upstream for its era; one that says nothing for a while gets a handshake, too, and whichever it takes holds.

    It may be of the older era and not know the question, or it has only not started yet.
    """
    loop = asyncio.get_running_loop()
    discovering = loop.create_task(_discover(peer, patient=False))
    shaking: asyncio.Task[msgspec.Raw] | None = None
    try:
        await asyncio.wait({discovering}, timeout=PROBE_SECONDS)
        if discovering.done():
            return discovering.result() or await _shake_hands(peer, link)
        shaking = loop.create_task(_initialize(peer))
        shaking.add_done_callback(_look_at)
        await asyncio.wait({discovering, shaking}, return_when=asyncio.FIRST_COMPLETED)
        if not discovering.done() and shaking.exception() is not None:  # perhaps because it is about to answer the question
            await asyncio.wait({discovering}, timeout=PROBE_SECONDS)
        found = discovering.result() if discovering.done() else None
        if found is not None:
            return found
        discovering.cancel()
        await asyncio.wait({discovering})
        return _shaken(peer, link, await shaking)
    finally:
        discovering.cancel()
        if shaking is not None and peer.requests is None:  # a handshake that is no longer needed must not be cancelled
            shaking.cancel()


def _look_at(task: "asyncio.Task[msgspec.Raw]") -> None:
    """Take note of how it ended, which matters only if somebody waits for it."""
    if not task.cancelled():
        task.exception()


async def _discover(peer: ClientSession, *, patient: bool) -> Greeting | None:
    """Return what an upstream of the newer era says, or nothing if it is none."""
    requests = Requests(LATEST, _CLIENT)
    try:
        told = msgspec.json.decode(await _asked(peer, requests), type=_Discovered)
    except msgspec.DecodeError:
        return None
    except Fault as fault:
        return _from_refusal(fault, peer)
    except LinkError as error:
        if error.trouble == "lost" and not patient:
            raise SilentError(error.trouble, error.message, text=error.text) from error
        if error.trouble in _OLDER and not patient:
            return None
        raise
    if LATEST.name not in told.supported_versions:
        return None
    peer.requests = requests
    said = told.server_info or told.meta.get(SERVER)
    server = cast("dict[str, Any]", said) if isinstance(said, dict) else {}
    return Greeting(LATEST, server, told.capabilities, told.instructions or "")


async def _insist(peer: ClientSession) -> Greeting:
    """Return what an upstream says that must be of the newer era."""
    found = await _discover(peer, patient=True)
    if found is None:
        raise LinkError("unavailable", f"'{peer.name}' does not speak {LATEST.name}.")
    return found


async def _discover_again(peer: ClientSession) -> Greeting | None:
    """Return what an upstream says that was of the newer era last time, or nothing if it went back."""
    try:
        return await _discover(peer, patient=True)
    except LinkError as error:
        if error.trouble in _OLDER and (error.status or 0) < _SERVER_ERROR:
            return None
        raise


async def _asked(peer: ClientSession, requests: Requests) -> msgspec.Raw:
    """Ask for what an upstream is, once more if it refuses our version and names the very same as one that it speaks."""
    try:
        return await peer.request(requests, "server/discover", {})
    except Fault as fault:
        if LATEST.name not in _spoken(fault):
            raise
        return await peer.request(requests, "server/discover", {})


def _from_refusal(fault: Fault, peer: ClientSession) -> None:
    """Take a fault for the older era, unless it says that no version of ours is spoken at all."""
    spoken = _spoken(fault)
    if spoken and not set(spoken) & set(VERSIONS):
        raise LinkError("unavailable", f"'{peer.name}' speaks none of our versions, only {', '.join(spoken)}.")


def _spoken(fault: Fault) -> list[str]:
    """Return the versions that a refusal of ours names."""
    if fault.code != UNSUPPORTED_VERSION:
        return []
    try:
        return msgspec.convert(fault.data, _Refusal).supported
    except msgspec.ValidationError:
        return []


async def _initialize(peer: ClientSession) -> msgspec.Raw:
    return await peer.initialize(Requests(LATEST_HANDSHAKE, _CLIENT), ASKED)


async def _shake_hands(peer: ClientSession, link: Link) -> Greeting:
    return _shaken(peer, link, await _initialize(peer))


def _shaken(peer: ClientSession, link: Link, result: msgspec.Raw) -> Greeting:
    """Return what an upstream answered the handshake with, which is now done."""
    try:
        told = msgspec.json.decode(result, type=_Initialized)
    except msgspec.DecodeError as error:
        raise LinkError("unavailable", f"'{peer.name}' answered the handshake with something else.") from error
    if told.protocol_version not in HANDSHAKE:
        raise LinkError("unavailable", f"'{peer.name}' speaks version '{told.protocol_version}', which we do not.")
    requests = peer.requests = Requests(VERSIONS[told.protocol_version], _CLIENT)
    peer.notify(requests, "notifications/initialized")
    link.listen()
    return Greeting(requests.version, told.server_info, told.capabilities, told.instructions or "")


Heard = Callable[[str, msgspec.Raw], None]
Ended = Callable[[ClientSession, LinkError], None]


class Connection(msgspec.Struct, frozen=True, eq=False):
    """A peer that was greeted."""

    peer: ClientSession
    requests: Requests
    greeting: Greeting

    async def request(
        self, method: str, params: Mapping[str, Any], *, name: str | None, behalf: CallContext, request_id: Id | None = None
    ) -> msgspec.Raw:
        """Send a request and return its result, which stays JSON."""
        return await self.peer.request(self.requests, method, params, name=name, behalf=behalf, request_id=request_id)


async def connect(
    name: str, settings: UpstreamSettings, make_link: Callable[[], Link], *, known: str | None, heard: Heard, ended: Ended
) -> Connection:
    """Return a connection; `known` is the version that was spoken last time.

    Raises:
        LinkError: There is none.
    """

    async def attempt(era: Era) -> Connection:
        link = make_link()
        peer = ClientSession(name, link, http=settings.carrier != "stdio", note=heard, ended=lambda error: ended(peer, error))
        try:
            async with asyncio.timeout(settings.connect_seconds):
                await link.open(peer)
                greeting = await greet(peer, link, era, known=known)
        except TimeoutError:
            await asyncio.shield(peer.close())
            said = f"'{name}' did not greet within {settings.connect_seconds:g} seconds."
            raise LinkError("unavailable", said) from None
        except BaseException:
            await asyncio.shield(peer.close())
            raise
        assert peer.requests is not None  # noqa: S101 - the greeting settled it
        return Connection(peer, peer.requests, greeting)

    try:
        return await attempt(settings.era)
    except SilentError:
        return await attempt("2025")
