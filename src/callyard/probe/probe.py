"""One probe: a pass over all that a client needs of an MCP server, each step timed, with one deadline for all.

It calls no tool but the canaries of its target, and ends its session, connection and program.
"""

import asyncio
import base64
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from callyard._internal.mask import is_secret_name
from callyard._version import VERSION
from callyard.config.probes import ProbeTable
from callyard.probe.canaries import by_name, check_canary
from callyard.probe.codes import ProbeCodeName
from callyard.probe.network import (
    NetworkError,
    ask_anonymously,
    connect,
    find_sign_in,
    refuses,
    resolve_host,
    start_tls,
)
from callyard.probe.report import Failure, Report, Step, shown
from callyard.providers.upstream import handshake
from callyard.providers.upstream.catalogue import Catalogue, Item, fetch_list
from callyard.providers.upstream.diff import differences
from callyard.providers.upstream.http.client import Address, parse_address
from callyard.providers.upstream.link import Link, LinkError, Listener
from callyard.providers.upstream.oauth.credentials import open_vault
from callyard.providers.upstream.oauth.vault import LoginError, Vaults
from callyard.providers.upstream.pins import (
    LockError,
    Pin,
    accepted_definition,
    definitions_of,
    parse_lock,
    read_accepted,
)
from callyard.providers.upstream.provider import make_credentials, make_link
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.providers.upstream.verdict import Change, change_of, worst
from callyard.wire.messages import Fault, Id
from callyard.wire.params import Client, Requests
from callyard.wire.versions import LATEST

__all__ = ["Target", "probe"]

_CERTIFICATE_DAYS: Final = 14.0
_TOKEN_DAYS: Final = 3.0
_DAY: Final = 86400.0
_ANONYMOUS_SECONDS: Final = 5.0
_METADATA_REQUESTS: Final = 2
"""With them a probe sends at most 8 requests, apart from further pages and canaries."""
_REDIRECTS: Final = range(300, 400)
_ERRORS: Final = range(400, 600)
_BEARER: Final = "bearer "
_LATE: Final[Mapping[str, ProbeCodeName]] = {"name": "dns", "connection": "unreachable", "canaries": "hung"}
"""The code of the deadline by step; in any other it is `timeout`."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server to probe."""

    name: str
    settings: UpstreamSettings
    folder: Path
    """Where its login, its accepted definitions and the log of its program are."""
    checks: ProbeTable = ProbeTable()
    lock: Path | None = None
    """The file with the accepted definitions."""
    pinned_as: str = ""
    """The upstream of the lock whose definitions are compared; its own name by default."""
    problem: str = ""
    """What is missing in its settings, so that it cannot be probed."""
    vaults: Vaults | None = None
    """Where its login is, if it is not in its folder."""


async def probe(target: Target, *, last_version: str | None = None) -> Report:
    """Probe a server once; `last_version` is the version that it spoke the last time, which saves a question."""
    run = _Pass(target, last_version)
    try:
        async with asyncio.timeout(target.checks.seconds):
            await run.take()
    except TimeoutError:
        run.fail_late()
    except NetworkError as error:
        run.fail(error.code, error.message, retry_after=error.retry_after)
    except LinkError as error:
        run.fail_link(error)
    finally:
        await run.close()
    return run.report()


def _ignore(_: object, __: object) -> None:
    """Do nothing: a probe needs no notifications, and each step notices a lost connection."""


class _ObservedLink(Link):
    """A link that counts its messages, tells when it is open, and opens no stream: a probe expects no notifications."""

    def __init__(self, link: Link, run: "_Pass") -> None:
        self._link = link
        self._run = run

    async def open(self, listener: Listener) -> None:
        await self._link.open(listener)
        self.pid = self._link.pid
        self._run.opened()

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        self._run.sent += 1
        self._link.send(message, request_id, headers)

    def drop(self, request_id: Id) -> None:
        self._link.drop(request_id)

    async def close(self) -> None:
        await self._link.close()


class _Pass:
    """The state of one probe."""

    def __init__(self, target: Target, last_version: str | None) -> None:
        self.sent = 0
        self._target = target
        self._settings = msgspec.structs.replace(target.settings, connect_seconds=target.checks.seconds)
        self._last_version = last_version
        self._credentials = make_credentials(target.name, target.settings, target.folder, target.vaults)
        self._connection: handshake.Connection | None = None
        self._at = time.time()
        self._began = time.monotonic()
        self._step = ""
        self._since = 0.0
        self._sent_before = 0
        self._steps: list[Step] = []
        self._failures: list[Failure] = []
        self._warnings: list[str] = []
        self._changes: list[Change] = []
        self._facts: dict[str, Any] = {}

    def begin(self, name: str) -> None:
        """End the step that is taken, and begin another."""
        self.end()
        self._step, self._since, self._sent_before = name, time.monotonic(), self.sent

    def end(self, note: str = "") -> None:
        """End the step that is taken, if there is one."""
        if not self._step:
            return
        seconds = time.monotonic() - self._since
        self._steps.append(Step(self._step, round(seconds * 1000, 3), note))
        is_timed = self._step not in {"canaries", "goodbye"} and all(one.step != self._step for one in self._failures)
        if is_timed and seconds > self._target.checks.slow_seconds:
            self.fail("slow", f"It took {seconds:.1f} seconds.")
        self._step = ""

    def opened(self) -> None:
        """Note that the program has started."""
        if self._step == "start":
            self.begin("handshake")

    def fail(
        self,
        code: ProbeCodeName,
        message: str,
        *,
        tool: str = "",
        detail: str = "",
        retry_after: float | None = None,
    ) -> None:
        """Note a failure of the step that is taken."""
        self._failures.append(Failure(self._step, code, shown(message), tool, detail))
        if retry_after is not None:
            self._facts["retry_after"] = retry_after

    def fail_link(self, error: LinkError) -> None:
        """Note a failure of the connection."""
        code, message = code_of(error)
        self.fail(code, message, detail=error.private, retry_after=error.retry_after)

    def fail_late(self) -> None:
        """Note that the deadline passed."""
        code: ProbeCodeName = _LATE.get(self._step, "timeout")
        if self._step == "list" and self.sent > self._sent_before + 1:
            code = "list"
        self.fail(code, f"The probe took more than {self._target.checks.seconds:g} seconds.")

    async def take(self) -> None:
        """Take all steps; the first that fails ends them, but for those about tools."""
        if self._target.problem:
            self.begin("settings")
            raise NetworkError("auth", self._target.problem)
        if self._settings.url is None:
            self.begin("start")
        else:
            await self._reach(self._settings.url)
            self.begin("handshake")
        try:
            self._connection = connection = await self._shake_hands()
        except LinkError as error:
            self.fail_link(error)
            await self._explain_sign_in(error.challenge, is_refused=error.kind == "unauthenticated")
            return
        tools = await self._list(connection)
        self.begin("change")
        await asyncio.to_thread(self._compare, connection, tools)
        await self._call_canaries(connection, by_name(tools))

    async def _reach(self, url: str) -> None:
        """Take the steps before MCP."""
        address = parse_address(self._target.name, url)
        self.begin("name")
        addresses = await resolve_host(address.host, address.port)
        self.begin("connection")
        writer = await connect(addresses, address.port)
        try:
            if address.scheme == "https":
                self.begin("tls")
                await self._check_certificate(writer, address)
        finally:
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()
        if await self._has_credentials():
            self.begin("anonymous")
            await self._ask_anonymously(url)

    async def _check_certificate(self, writer: asyncio.StreamWriter, address: Address) -> None:
        days = self._facts["certificate_days"] = await start_tls(writer, address.host)
        if days is not None and days < _CERTIFICATE_DAYS:
            self._warnings.append(f"The certificate ends in {days:.1f} days.")

    async def _has_credentials(self) -> bool:
        """Return whether there are credentials, and note when they end."""
        headers = self._settings.headers
        ends = [_token_end(value) for name, value in headers.items() if name.lower() == "authorization"]
        found = any(is_secret_name(name) for name in headers) or bool(ends)
        if not found:
            target = self._target
            vault = open_vault(target.vaults, target.name, self._settings, target.folder)
            with suppress(LoginError):
                login = None if vault.is_empty else (await vault.load())[0]
                token = login and login.token
                found = token is not None
                if token is not None and token.refresh_token is None:
                    ends = [token.expires]
            await vault.close()
        days = [(end - time.time()) / _DAY for end in ends if end is not None]
        if days:
            self._facts["token_days"] = days[0]
        if days and days[0] < _TOKEN_DAYS:
            self._warnings.append(f"The credentials end in {max(days[0], 0.0):.1f} days.")
        return found

    async def _ask_anonymously(self, url: str) -> None:
        """Send a request without credentials: a refusal must say how to sign in."""
        requests = Requests(LATEST, Client("callyard", VERSION))
        message = requests.encode(1, "server/discover", {})
        try:
            async with asyncio.timeout(_ANONYMOUS_SECONDS):
                response = await ask_anonymously(url, message, requests.headers("server/discover", None))
        except (TimeoutError, LinkError):
            return  # servers of the 2025 era need not answer; the handshake tells what is wrong
        if refuses(response):
            await self._explain_sign_in(response.header(b"www-authenticate"), is_refused=True)

    async def _explain_sign_in(self, challenge: str, *, is_refused: bool) -> None:
        url = self._settings.url
        if url is None or not is_refused:
            return
        self.begin("metadata")
        address = parse_address(self._target.name, url)
        found = await find_sign_in(address, url, challenge, most=_METADATA_REQUESTS)
        self._warnings += found.problems
        self.end(found.issuer)

    async def _shake_hands(self) -> handshake.Connection:
        target = self._target
        found = await handshake.connect(
            target.name,
            self._settings,
            lambda: _ObservedLink(make_link(target.name, self._settings, target.folder, self._credentials), self),
            last_version=self._last_version,
            on_notification=_ignore,
            on_end=_ignore,
        )
        server = found.handshake.server
        self._facts["server"] = shown(f"{server.get('name', '')} {server.get('version', '')}".strip())
        self._facts["version"] = found.handshake.version.name
        self.end(found.handshake.version.name)
        return found

    async def _list(self, connection: handshake.Connection) -> tuple[Item, ...]:
        self.begin("list")
        capabilities = connection.handshake.capabilities
        tools: tuple[Item, ...] = ()
        if "tools" in capabilities or not capabilities:
            try:
                tools = await fetch_list(connection, "tools/list", "tools")
            except Fault as fault:
                raise NetworkError("list", f"'tools/list' answered with an error: {fault.message}") from None
        names = by_name(tools)
        self._facts["tools"] = len(tools)
        for name in self._target.checks.tools:
            if name not in names:
                self.fail("missing_tool", f"There is no tool '{name}'.", tool=name)
        return tools

    def _compare(self, connection: handshake.Connection, tools: tuple[Item, ...]) -> None:
        """Compare the definitions of tools, and the instructions, with the accepted ones."""
        target = self._target
        pins = self._pins()
        if not pins:
            return
        spoken = connection.handshake
        catalogue = Catalogue(
            endpoint_hash="", seen=0.0, version=spoken.version.name, instructions=spoken.instructions, tools=tools
        )
        definitions = {key: one for key, one in definitions_of(catalogue).items() if key in pins or key.kind == "tool"}
        stored = read_accepted(target.folder)
        missing = {one.tool for one in self._failures if one.code == "missing_tool"}
        for difference in differences(definitions, pins, stored):
            key = difference.key
            pin = pins.get(key)
            before = None if pin is None else accepted_definition(stored, pin.hash)
            change = change_of(difference, before, definitions.get(key))
            self._changes.append(change)
            reasons = " ".join(change.reasons)
            if difference.what == "vanished" and key.kind == "tool":
                if key.name not in missing:
                    self.fail("missing_tool", f"There is no tool '{key.name}' any more.", tool=key.name)
            elif change.verdict == "breaking":
                self.fail("changed", f"The {key} changed. {reasons}", tool=key.name)
            elif difference.what == "changed":
                self._warnings.append(shown(f"The {key} changed ({change.verdict}). {reasons}"))

    def _pins(self) -> dict[Any, Pin]:
        target = self._target
        if target.lock is None or target.settings.pin == "off":
            return {}
        try:
            locked = parse_lock(target.lock, target.lock.read_bytes())
        except FileNotFoundError:
            return {}
        except (LockError, OSError) as error:
            self._warnings.append(f"The accepted definitions cannot be read: {error}")
            return {}
        pins = locked.get(target.pinned_as or target.name, {})
        return {key: pin for key, pin in pins.items() if key.kind in {"tool", "instructions"}}

    async def _call_canaries(self, connection: handshake.Connection, tools: Mapping[str, Item]) -> None:
        if not self._target.checks.canaries:
            return
        self.begin("canaries")
        check = partial(
            check_canary, connection, tools=tools, slow_seconds=self._target.checks.slow_seconds, of_link=code_of
        )
        for canary in self._target.checks.canaries:
            failures, warnings = await check(canary)
            known = {(one.code, one.tool) for one in self._failures}
            self._failures += [one for one in failures if (one.code, one.tool) not in known]
            self._warnings += warnings
            if connection.session.link_error is not None:
                return

    async def close(self) -> None:
        """End the session, and with it the connection or the program."""
        if self._connection is not None:
            self.begin("goodbye")
            await self._connection.session.close()
        self.end()
        await self._credentials.close()

    def report(self) -> Report:
        """Return what was found."""
        order = [step.name for step in self._steps]
        return Report(
            target=self._target.name,
            at=self._at,
            ms=round((time.monotonic() - self._began) * 1000, 3),
            steps=tuple(self._steps),
            failures=tuple(sorted(self._failures, key=lambda one: order.index(one.step))),
            warnings=tuple(self._warnings),
            changes=tuple(self._changes),
            verdict=worst(self._changes),
            **self._facts,
        )


def code_of(error: LinkError) -> tuple[ProbeCodeName, str]:
    """Return the code of a link error, and its message."""
    status = error.status
    if error.kind == "unauthenticated" or status in {401, 403}:
        return "auth", error.message
    if error.kind == "rate_limited" or status in {429, 503}:
        return "overloaded", error.message
    if error.reason:
        return error.reason, error.message
    if status is not None and status in _REDIRECTS:
        return "redirected", error.message
    if error.kind == "session_lost" or (status is not None and status in _ERRORS):
        return "http_error", error.message
    return ("unreachable" if error.kind == "unavailable" and status is None else "protocol"), error.message


class _Claims(msgspec.Struct):
    exp: float | None = None


def _token_end(value: str) -> float | None:
    """Return when a bearer token ends, as a Unix time, if it is a JWT that says so; it is not verified."""
    parts = value.strip().split(".")
    if not value.lower().startswith(_BEARER) or len(parts) != 3:  # noqa: PLR2004 - header, claims, signature
        return None
    try:
        claims = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return msgspec.json.decode(claims, type=_Claims).exp
    except ValueError:
        return None
