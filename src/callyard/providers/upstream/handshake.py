"""The handshake with an upstream: finds out which protocol era and version it speaks, and what it offers.

An upstream of the 2026 era answers `server/discover`; one of the 2025 era wants `initialize` and may ignore anything
else.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import msgspec

from callyard._version import VERSION
from callyard.providers.upstream.link import Link, LinkError
from callyard.providers.upstream.session import NO_CALLER, CallContext, ClientSession
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import UNSUPPORTED_VERSION, Fault, Id
from callyard.wire.params import SERVER, Client, Requests
from callyard.wire.versions import HANDSHAKE, LATEST, LATEST_HANDSHAKE, MODERN, VERSIONS, Version

__all__ = ["Connection", "Era", "Handshake", "ProbeLostError", "connect", "negotiate"]

Era = Literal["auto", "2025", "2026"]
PROBE_SECONDS: Final = 3.0
"""How long to wait for `server/discover` alone; an upstream of the 2025 era may never answer it."""
_CLIENT: Final = Client("callyard", VERSION)
_NO_DISCOVERY: Final = frozenset({"refused", "session_lost"})
"""Errors by which upstreams of the 2025 era answer `server/discover`."""
_SERVER_ERROR: Final = 500


class ProbeLostError(LinkError):
    """The upstream closed the link on `server/discover`; a new link that begins with `initialize` may work."""


class Handshake(msgspec.Struct, frozen=True):
    """The negotiated version and the upstream's description of itself."""

    version: Version
    server: Mapping[str, Any]
    capabilities: Mapping[str, Any]
    instructions: str


class _ServerDescription(msgspec.Struct, rename="camel", kw_only=True):
    capabilities: dict[str, Any] = {}
    server_info: dict[str, Any] = {}
    instructions: str | None = None


class _Initialized(_ServerDescription, rename="camel", kw_only=True):
    protocol_version: str


class _Discovered(_ServerDescription, rename="camel", kw_only=True):
    supported_versions: list[str]
    meta: dict[str, Any] = msgspec.field(default_factory=dict[str, Any], name="_meta")


class _UnsupportedVersionData(msgspec.Struct):
    supported: list[str] = []


async def negotiate(session: ClientSession, link: Link, era: Era, *, last_version: str | None = None) -> Handshake:
    """Agree on a version; `last_version` is the one spoken last time, which saves the probe.

    Raises:
        LinkError: The upstream cannot be reached, or speaks none of our versions.
        ProbeLostError: It closed the link on the probe.
    """
    try:
        if era == "2025" or (era == "auto" and last_version in HANDSHAKE):
            return await _initialize(session, link)
        if era == "auto" and last_version not in MODERN:
            return await _probe(session, link)
        try:
            found = await _discover(session, strict=True)
        except LinkError as error:
            if era != "auto" or error.kind not in _NO_DISCOVERY or (error.status or 0) >= _SERVER_ERROR:
                raise
            found = None
        if found is None and era == "2026":
            raise LinkError("unavailable", f"'{session.name}' does not speak {LATEST.name}.", reason="version")
        return found or await _initialize(session, link)
    except Fault as fault:
        sentence = f"'{session.name}' refused the handshake ({fault.code})."
        raise LinkError("unavailable", sentence, private=fault.message, reason="initialize") from fault


async def _probe(session: ClientSession, link: Link) -> Handshake:
    """Send `server/discover`; without an answer for a while send `initialize`, too, and use whichever succeeds.

    The upstream may be of the 2025 era and ignore the unknown method, or it may only start slowly.
    """
    loop = asyncio.get_running_loop()
    discovering = loop.create_task(_discover(session, strict=False))
    initializing: asyncio.Task[msgspec.Raw] | None = None
    try:
        await asyncio.wait({discovering}, timeout=PROBE_SECONDS)
        if discovering.done():
            return discovering.result() or await _initialize(session, link)
        initializing = loop.create_task(session.initialize(Requests(LATEST_HANDSHAKE, _CLIENT)))
        # retrieves the exception, lest asyncio logs it when nobody awaits the task
        initializing.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.wait({discovering, initializing}, return_when=asyncio.FIRST_COMPLETED)
        if not discovering.done() and initializing.exception() is not None:
            # perhaps it is about to answer the other request
            await asyncio.wait({discovering}, timeout=PROBE_SECONDS)
        found = discovering.result() if discovering.done() else None
        if found is not None:
            return found
        discovering.cancel()
        await asyncio.wait({discovering})
        return _finish_initialize(session, link, await initializing)
    finally:
        discovering.cancel()
        # else it would send a cancellation, which the protocol forbids here
        if initializing is not None and session.requests is None:
            initializing.cancel()


async def _discover(session: ClientSession, *, strict: bool) -> Handshake | None:
    """Return the answer to `server/discover`, or None if the upstream is older; `strict` raises link errors."""
    requests = Requests(LATEST, _CLIENT)
    try:
        answer = msgspec.json.decode(await _request_discovery(session, requests), type=_Discovered)
    except msgspec.DecodeError:
        return None
    except Fault as fault:
        supported = _supported_versions(fault)
        if supported and not set(supported) & set(VERSIONS):
            sentence = f"'{session.name}' speaks none of our versions, only {', '.join(supported)}."
            raise LinkError("unavailable", sentence, reason="version") from fault
        return None
    except LinkError as error:
        if error.kind == "lost" and not strict:
            raise ProbeLostError(
                error.kind, error.message, text=error.text, private=error.private, reason=error.reason
            ) from error
        if error.kind in _NO_DISCOVERY and not strict:
            return None
        raise
    if LATEST.name not in answer.supported_versions:
        return None
    session.requests = requests
    server = answer.server_info or answer.meta.get(SERVER)
    server = cast("dict[str, Any]", server) if isinstance(server, dict) else {}
    return Handshake(LATEST, server, answer.capabilities, answer.instructions or "")


async def _request_discovery(session: ClientSession, requests: Requests) -> msgspec.Raw:
    """Send `server/discover`, and repeat it once if the upstream refuses our version while listing it as supported."""
    try:
        return await session.request(requests, "server/discover", {})
    except Fault as fault:
        if LATEST.name not in _supported_versions(fault):
            raise
        return await session.request(requests, "server/discover", {})


def _supported_versions(fault: Fault) -> list[str]:
    if fault.code != UNSUPPORTED_VERSION:
        return []
    try:
        return msgspec.convert(fault.data, _UnsupportedVersionData).supported
    except msgspec.ValidationError:
        return []


async def _initialize(session: ClientSession, link: Link) -> Handshake:
    return _finish_initialize(session, link, await session.initialize(Requests(LATEST_HANDSHAKE, _CLIENT)))


def _finish_initialize(session: ClientSession, link: Link, result: msgspec.Raw) -> Handshake:
    """Confirm the result of `initialize`, and open the stream for server-initiated messages."""
    try:
        answer = msgspec.json.decode(result, type=_Initialized)
    except msgspec.DecodeError as error:
        sentence = f"'{session.name}' answered the handshake with something else."
        raise LinkError("unavailable", sentence, reason="protocol") from error
    if answer.protocol_version not in HANDSHAKE:
        sentence = f"'{session.name}' speaks version '{answer.protocol_version}', which we do not."
        raise LinkError("unavailable", sentence, reason="version")
    requests = session.requests = Requests(VERSIONS[answer.protocol_version], _CLIENT)
    session.notify(requests, "notifications/initialized")
    link.listen()
    return Handshake(requests.version, answer.server_info, answer.capabilities, answer.instructions or "")


class Connection(msgspec.Struct, frozen=True, eq=False):
    """A session after its handshake."""

    session: ClientSession
    requests: Requests
    handshake: Handshake

    async def request(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        name: str | None = None,
        context: CallContext = NO_CALLER,
        request_id: Id | None = None,
    ) -> msgspec.Raw:
        """Send a request and return its result as JSON."""
        return await self.session.request(
            self.requests, method, params, name=name, context=context, request_id=request_id
        )


async def connect(
    name: str,
    settings: UpstreamSettings,
    make_link: Callable[[], Link],
    *,
    last_version: str | None,
    on_notification: Callable[[str, msgspec.Raw], None],
    on_end: Callable[[ClientSession, LinkError], None],
) -> Connection:
    """Open a link and shake hands; `last_version` is the version spoken last time.

    Raises:
        LinkError: There is no connection.
    """

    async def attempt(era: Era) -> Connection:
        link = make_link()
        session = ClientSession(
            name,
            link,
            http=settings.carrier != "stdio",
            on_notification=on_notification,
            on_end=lambda error: on_end(session, error),
        )
        try:
            async with asyncio.timeout(settings.connect_seconds):
                await link.open(session)
                handshake = await negotiate(session, link, era, last_version=last_version)
        except BaseException as error:
            await asyncio.shield(session.close())
            if isinstance(error, TimeoutError):
                text = f"'{name}' did not complete the handshake within {settings.connect_seconds:g} seconds."
                raise LinkError("unavailable", text, reason="timeout") from None
            raise
        assert session.requests is not None  # noqa: S101 - the handshake set it
        return Connection(session, session.requests, handshake)

    try:
        return await attempt(settings.era)
    except ProbeLostError:
        return await attempt("2025")
