"""What a server has beside '/mcp', and who may use it: the page '/metrics', and the token of console and agents.

The token survives restarts, logs people in to the console, and admits them to agents and approvals. Where callers have
credentials, `/api` checks those instead.
"""

import asyncio
import hmac
import logging
import os
import secrets
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from callyard._internal.files import find_state_dir, write_once
from callyard._internal.logfmt import log_value
from callyard._internal.project import project_dir
from callyard.config import Config, Key
from callyard.dispatch.call import ANYONE, Caller
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.proxy import SECOND_EVENT, STREAM_PATH
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.profile import EVERYTHING
from callyard.monitor.incidents import Incidents
from callyard.monitor.metrics import Metrics
from callyard.monitor.prometheus import UpstreamState, render, snapshot_of
from callyard.packs.documents import server_text
from callyard.policy.approvals import local_user
from callyard.providers.upstream.health import supervised
from callyard.state.store import StoreUnavailableError
from callyard.transports.auth import ApiKey, ApiKeys, Refusal
from callyard.transports.http.app import Mount
from callyard.transports.http.request import RefusedError, Request
from callyard.transports.http.response import ResponseWriter
from callyard.yard import Yard

__all__ = ["VARIABLE", "MetricsPage", "ServerFacts", "load_token", "need_token", "serve_test_stream"]

VARIABLE: Final = "CALLYARD_CONSOLE_TOKEN"
_FILE: Final = "console-token"
_SHORTEST: Final = 16
_BYTES: Final = 24
PACKS_PATH: Final = "/api/packs"
_SECOND_EVENT_S: Final = 0.2
_STREAM_S: Final = 3.0
"""Where a running server lists its packs."""
_OPEN: Final = frozenset({"/api/openapi.json"})
"""What needs no token: the description of the API."""
_log = logging.getLogger(__name__)


def load_token(config: Config, state_dir: str | None = None) -> str:
    """Return the token: that of the environment, or else the project's own, which the first start makes.

    Raises:
        LaunchError: The one of the environment is too short, or cannot be in a header.
    """
    given = os.environ.get(VARIABLE, "")
    if given and not _is_usable(given):
        raise LaunchError(f"{VARIABLE} must have at least {_SHORTEST} letters, digits and signs, without blanks.")
    return given or _stored_token(config, state_dir)


def _stored_token(config: Config, state_dir: str | None) -> str:
    fresh = secrets.token_urlsafe(_BYTES)
    path = Path(_FILE)
    try:
        path = project_dir(find_state_dir(config.settings.state_dir or state_dir), config.project) / _FILE
        stored = write_once(path, fresh.encode()).decode("ascii", "replace").strip()
    except OSError as error:
        reason = error.strerror or str(error)
    else:
        if _is_usable(stored):
            return stored
        reason = "It is too short"
    _log.warning("console_token_not_kept file=%s reason=%s", log_value(str(path)), log_value(reason))
    return fresh


def _is_usable(token: str) -> bool:
    return len(token) >= _SHORTEST and token.isascii() and token.isprintable() and " " not in token


def need_token(mounts: Mapping[str, Mount], token: str) -> dict[str, Mount]:
    """Return mounts whose requests must have the token: whoever merely reaches the address decides nothing."""

    async def admit(request: Request) -> Caller:
        scheme, _, given = request.text(b"authorization").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
            message = f"This needs the console's token, as 'Authorization: Bearer TOKEN'. {VARIABLE} can set it."
            raise RefusedError(401, message, ((b"www-authenticate", b"Bearer"),))
        return Caller(identity=local_user())

    return {
        path: mount if path in _OPEN else msgspec.structs.replace(mount, authenticate=admit)
        for path, mount in mounts.items()
    }


class ServerFacts:
    """What a server tells about itself: '/llms.txt' to everybody, and '/api/packs' to callers with credentials."""

    def __init__(self, yard: Yard, token: str, *, is_authenticated: bool) -> None:
        """Let the server check credentials; without an authenticator `/api/packs` needs the token, or is not there.

        Callers of the server see packs as their profile allows; the token belongs to whoever runs the server.
        """
        self._yard = yard
        self._is_authenticated = is_authenticated
        self.mounts: Mapping[str, Mount] = {
            "/llms.txt": Mount(handle=_serve_llms_text, needs_authentication=False),
            STREAM_PATH: Mount(handle=serve_test_stream, needs_authentication=False),
        }
        packs = {PACKS_PATH: Mount(handle=self._serve_packs)}
        if is_authenticated or token:
            self.mounts = {**self.mounts, **(packs if is_authenticated else need_token(packs, token))}

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Do nothing: both need nothing but the open yard."""
        yield

    async def _serve_packs(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        profile = (request.caller.profile or self._yard.profile) if self._is_authenticated else EVERYTHING
        facts = self._yard.packs.describe(self._yard, profile)
        await writer.respond(200, encode(facts))


async def serve_test_stream(request: Request, writer: ResponseWriter) -> None:
    """Send an event, a second one a moment later, and nothing more for a while: a proxy that buffers keeps the second.

    The first may come with the head of the response through any proxy.
    """
    _check_get(request)
    gone = asyncio.Event()
    writer.watch(gone.set)
    try:
        await writer.start_stream()
        for event, seconds in ((b"data: first\n\n", _SECOND_EVENT_S), (SECOND_EVENT, _STREAM_S)):
            await writer.write(event)
            with suppress(TimeoutError):
                await asyncio.wait_for(gone.wait(), seconds)
        await writer.write(b"", last=True)
    finally:
        writer.unwatch()


async def _serve_llms_text(request: Request, writer: ResponseWriter) -> None:
    _check_get(request)
    await writer.respond(200, server_text().encode(), ((b"content-type", b"text/plain; charset=utf-8"),))


def _check_get(request: Request) -> None:
    if request.method not in {"GET", "HEAD"}:
        raise RefusedError(405, "Only GET is allowed here.", ((b"allow", b"GET, HEAD"),))


class MetricsPage:
    """Counts the calls of a yard, and shows the counts to Prometheus."""

    def __init__(self, yard: Yard, keys: Sequence[Key], *, is_authenticated: bool) -> None:
        self.metrics = Metrics()
        self.mount = Mount(handle=self._serve, authenticate=self._authenticate)
        self._yard = yard
        self._is_authenticated = is_authenticated
        self.incidents: Incidents | None = None
        """Those of this server, if it judges its calls."""
        self._keys: ApiKeys | None = None
        self.use_keys(keys)

    def use_keys(self, keys: Sequence[Key]) -> None:
        """Accept these keys from now on, and no others."""
        with as_launch_error(ValueError):
            self._keys = ApiKeys(ApiKey(key.name, key.digest) for key in keys) if keys else None

    async def _authenticate(self, request: Request) -> Caller:
        """Admit a key for metrics; without such keys, only a server without authentication shows them.

        Metrics name every tool and caller, so the credentials of a caller are not enough.
        """
        if self._keys is None:
            if self._is_authenticated:
                raise RefusedError(403, "Metrics need a key of their own. Add 'metrics_keys' to '[monitor]'.")
            return ANYONE
        try:
            admitted = await self._keys.admit(request.text(b"authorization"), request.text(b"x-api-key"))
        except Refusal as refusal:
            challenge = (b"www-authenticate", refusal.challenge().encode("latin-1", "replace"))
            raise RefusedError(refusal.status, refusal.message, (challenge,)) from None
        return Caller(identity=admitted.identity)

    async def _serve(self, request: Request, writer: ResponseWriter) -> None:
        _check_get(request)
        await self.settle_approvals()
        statuses = [provider.status() for provider in supervised(self._yard.providers)]
        upstreams = [UpstreamState(found.name, found.state, is_open=found.retry_at is not None) for found in statuses]
        snapshot = snapshot_of(self.metrics, self._yard.dispatcher.in_flight.values(), upstreams)
        if self.incidents is not None:
            problems, notices = self.incidents.counts()
            snapshot = msgspec.structs.replace(snapshot, problems=problems, notices=notices)
        # in a thread, because a page about a thousand tools takes a while
        page, media_type = await asyncio.to_thread(render, snapshot, request.text(b"accept"))
        await writer.respond(200, page, ((b"content-type", media_type.encode()), (b"cache-control", b"no-store")))

    async def settle_approvals(self) -> None:
        """Count the approvals that ended without this process: they expired, or a command decided."""
        gate, metrics = self._yard.gate, self.metrics
        if gate is None:
            return
        for approval_id in [*metrics.open_approvals]:
            try:
                status = (await gate.approvals.get(approval_id)).status
            except ToolError:  # it expired long ago
                status = "expired"
            except StoreUnavailableError:
                return
            if status != "pending" and approval_id in metrics.open_approvals:
                metrics.count_approval("approved" if status == "spent" else status, approval_id)
