"""The provider of one API: publishes its operations as tools, and calls them."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from callyard._internal.logfmt import log_exception, log_fields
from callyard._internal.mask import remember_secret
from callyard.dispatch.table import NONE_WITHHELD, WithheldReasons
from callyard.providers import Publish
from callyard.providers.openapi.calls import ApiCalls
from callyard.providers.openapi.credentials import ApiCredentials, login_settings
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.http import ApiHttp, is_written_private
from callyard.providers.openapi.loading import Loaded, Stamps, load_cached, load_file, load_url, stamps_of
from callyard.providers.openapi.published import Published, catalogue_of, publish_operations
from callyard.providers.openapi.reading import DocumentError
from callyard.providers.openapi.settings import ApiSettings, ResolvedApi
from callyard.providers.upstream.catalogue import Catalogue, folder_of, save
from callyard.providers.upstream.diff import Comparison, accept_reviewed, compare_catalogue
from callyard.providers.upstream.health import (
    Health,
    Status,
    Supervised,
    read_status,
    restart_requested_at,
    write_status,
)
from callyard.providers.upstream.http.client import parse_address
from callyard.providers.upstream.link import NO_CREDENTIALS, LinkError
from callyard.providers.upstream.pins import Key, PinCheck, Pins
from callyard.providers.upstream.settings import UpstreamSettings

if TYPE_CHECKING:
    from callyard.providers.upstream.oauth.vault import Vaults

__all__ = ["Api", "login_of", "make_api"]

_INTERVAL_S: Final = 1.0
_RETRY_S: Final = 30.0
"""How often a document that could not be loaded is tried again."""
_log = logging.getLogger(__name__)


class Api(Supervised):
    """The provider of one API."""

    instructions = ""

    def __init__(
        self,
        name: str,
        settings: ApiSettings,
        *,
        folder: Path,
        pins: Pins | None = None,
        longest: int = 48,
        interval: float = _INTERVAL_S,
        problem: str = "",
        vaults: "Vaults | None" = None,
    ) -> None:
        self.name = self.prefix = name
        self.settings = settings
        self.problem = problem
        self.forward_headers = tuple(header.lower() for header in settings.forward_headers)
        self._folder = folder
        self._vaults = vaults
        self._pins = pins
        self._longest = longest
        self._interval = interval
        self._loaded: Loaded | None = None
        self._published: Published | None = None
        self._catalogue: Catalogue | None = None
        self._withheld: WithheldReasons = NONE_WITHHELD
        self._warned = 0
        self._tried_stamps: object = None
        """The stamps of the document's files when it was last read, with success or without."""
        self._try_at = 0.0
        self._restarted_at = 0.0
        self._written_status: Status | None = None
        self._settled = asyncio.Event()
        self._maintenance: asyncio.Task[None] | None = None
        for secret in settings.secrets():
            remember_secret(secret)

    @property
    def resolved(self) -> ResolvedApi:
        """Return the settings that it was made of."""
        return ResolvedApi(self.settings, self.problem)

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish the document if it is on this machine, and keep what is published like it until the end."""
        self._publish = publish
        self._is_outdated = False
        self._settled = asyncio.Event()
        self._restarted_at = time.time()
        self._credentials = ApiCredentials(self.name, self.settings)
        self.health = Health(
            self.name, NO_CREDENTIALS, clock=time.monotonic, changed=self._write_status, secrets=self.settings.secrets()
        )
        self._http = _make_http(self.name, self.settings, self.settings.answer_bytes)
        self._calls = ApiCalls(
            self.name, self.settings, http=self._http, credentials=self._credentials, health=self.health
        )
        await self._load_first()
        self._maintenance = asyncio.get_running_loop().create_task(self._maintain())
        try:
            yield
        finally:
            await self.disconnect()

    async def disconnect(self) -> None:
        """Close all connections."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
            self._maintenance = None
        await self._http.close()
        await self._credentials.oauth.close()
        self.health.set_state("stopped", "The yard is closed.")

    @property
    def is_settled(self) -> bool:
        """Return whether `wait_ready` returns at once."""
        return self._settled.is_set()

    async def wait_ready(self) -> None:
        """Wait until something is published, or it is clear that nothing can be for now."""
        await self._settled.wait()

    async def refresh(self) -> None:
        """Load the document anew."""
        await self._load()

    async def restart(self) -> None:
        """Forget all failures, and load the document anew."""
        self.health.reset()
        await self.refresh()

    def unavailable_reason(self) -> str | None:
        """Return why there are no tools, or None if there are."""
        return None if self._published is not None else self.health.reason or None

    def status(self) -> Status:
        """Return the current status."""
        health, catalogue = self.health, self._catalogue
        listed: dict[str, Any] = {}
        if catalogue is not None and self._loaded is not None:
            title = str(catalogue.server.get("name", ""))
            version = f"OpenAPI {catalogue.version}"
            listed = {"tools": len(catalogue.tools), "version": version, "server": title, "seen": self._loaded.seen}
        return Status(
            name=self.name,
            state=health.state,
            reason=health.reason,
            since=health.since,
            withheld=len(self._withheld),
            warned=self._warned,
            calls=health.calls,
            failures=health.failures,
            latency_ms=health.latency_ms,
            last_error=health.last_error,
            failed=health.failed,
            retry_at=time.time() + health.wait if health.wait else None,
            yard_pid=os.getpid(),
            **listed,
        )

    def compare(self) -> Comparison | None:
        """Compare what the document offers with what was accepted; None if nothing is compared.

        Raises:
            LockError: The lock is invalid.
        """
        return compare_catalogue(self.name, self._catalogue, self._pins, self.settings, folder=self._folder)

    async def accept(self, keys: Sequence[Key], *, seen: str) -> list[Key]:
        """Accept and publish differences that a person reviewed, and return them; without keys, all of them.

        Raises:
            ToolError: `state_error` if something else differs now, or the lock cannot be written.
        """
        chosen = accept_reviewed(
            self.name, self._catalogue, self._pins, self.settings, keys=keys, seen=seen, folder=self._folder
        )
        await self._show()
        return chosen

    async def _load_first(self) -> None:
        """Load what is on this machine; a document that must be fetched comes later."""
        if self.problem:
            sentence = f"'{self.name}' cannot be used, because its settings are incomplete."
            self._fail(DocumentError(sentence))
        elif not self.settings.is_remote:
            await self._load()
        else:
            stored = await asyncio.to_thread(load_cached, self._folder, self.settings, fresh=False)
            if stored is not None:
                await self._take(stored)

    async def _load(self) -> None:
        """Load the document and publish it; on a failure what is published stays."""
        try:
            if self.settings.is_remote:
                loaded = await _fetched(self.name, self.settings, self._folder)
            else:
                self._tried_stamps = stamps_of(self._files())
                loaded = await load_file(self._folder, self.settings)
            self.health.set_state("ready", "")
            await self._take(loaded)
        except DocumentError as error:
            self._fail(error)

    def _fail(self, error: DocumentError) -> None:
        self._try_at = time.monotonic() + _RETRY_S
        self.health.last_error, self.health.failed = str(error), time.time()
        self.health.set_state("degraded", str(error))
        _log.warning("api_document_not_loaded%s", log_fields({"api": self.name, "reason": str(error)}))
        self._settled.set()

    async def _take(self, loaded: Loaded) -> None:
        """Publish a document that was loaded.

        Raises:
            DocumentError: Nothing in it can be called.
        """
        if self._loaded is None or loaded.digest != self._loaded.digest:
            published = await asyncio.to_thread(
                publish_operations,
                self.name,
                self.settings,
                loaded.document,
                longest=self._longest,
                fault=self._quarantine,
            )
            self._published = published
            self._catalogue = catalogue_of(self.name, self.settings, loaded, published)
            self._credentials.use(loaded.document)
            self._use_login(loaded.document)
        self._loaded = loaded
        if self._credentials.unknown:
            facts = {"api": self.name, "names": ",".join(self._credentials.unknown)}
            _log.warning("api_credentials_of_no_scheme%s", log_fields(facts))
        await self._show()
        try:
            if self._catalogue is not None:
                await asyncio.to_thread(save, self._folder, self._catalogue)
        except OSError as error:
            _log.warning("catalogue_not_kept%s", log_fields({"api": self.name, "why": error.strerror}))

    def _use_login(self, document: Document) -> None:
        """Use the addresses for a login that the document names."""
        if self.settings.login is not None and not self.problem:
            from callyard.providers.upstream.oauth.credentials import OAuthCredentials, open_vault  # noqa: PLC0415 - few APIs need it

            settings = login_settings(self.name, self.settings, document)
            vault = open_vault(self._vaults, self.name, settings, self._folder)
            self._credentials.oauth = OAuthCredentials(self.name, settings, vault)

    def _quarantine(self, name: str, fault: str) -> None:
        """Publish without an operation whose schema cannot be made, as somebody just found out, in any thread."""
        _log.warning("api_operation_quarantined%s", log_fields({"api": self.name, "tool": name, "reason": fault}))
        self._is_outdated = True

    async def _show(self) -> None:
        """Publish the operations, with those withheld that nobody accepted; scan what is new, in a thread."""
        self._is_outdated = False
        published, catalogue, pins = self._published, self._catalogue, self._pins
        if published is None or catalogue is None:
            return
        if pins is not None:
            unscanned = pins.unscanned(self.name, catalogue, self.settings)
            if unscanned:
                await asyncio.to_thread(pins.scan, self.name, unscanned)
        check = PinCheck() if pins is None else pins.check(self.name, catalogue, self.settings)
        self._warned = len(check.warned)
        self._withheld = {("tool", key.name): reason for key, reason in check.withheld.items() if key.kind == "tool"}
        self._publish(map(self._calls.tool, published.tools), withheld=self._withheld, foreign=True)
        self._settled.set()

    async def _maintain(self) -> None:
        """Load a document that is new, old or changed, and publish what somebody accepted, at short intervals."""
        while True:
            try:
                if self._is_due():
                    await self._load()
                elif self._is_outdated or (self._pins is not None and self._pins.changed(self.name)):
                    await self._show()
            except Exception:  # noqa: BLE001 - one failed round must not end the maintenance
                log_exception(_log, "api_care_failed api=%s", self.name)
                self._settled.set()
            self._write_status()
            await asyncio.sleep(self._interval)  # a poll, because other processes leave requests as files

    def _is_due(self) -> bool:
        """Return whether the document should be loaded now."""
        requested_at = restart_requested_at(self._folder)
        if requested_at > self._restarted_at:
            self._restarted_at = requested_at
            self.health.reset()
            return True
        if self.problem:
            return False
        loaded = self._loaded
        if not self.settings.is_remote:
            stamps = stamps_of(self._files())
            return (loaded is None or stamps != loaded.stamps) and stamps != self._tried_stamps
        if time.monotonic() < self._try_at:
            return False
        limit = self.settings.document_seconds
        return loaded is None or bool(limit and not 0 <= time.time() - loaded.seen <= limit)

    def _files(self) -> Stamps:
        """Return the files of the document, as far as they are known."""
        known = self._loaded.stamps if self._loaded is not None else {}
        return known or {str(Path(self.settings.document).absolute()): (0, 0)}

    def _write_status(self) -> None:
        """Write the status for other processes, if it changed; at the end, do not overwrite that of a running yard."""
        status, stored = self.status(), read_status(self._folder)
        is_foreign = stored is not None and stored.yard_pid != status.yard_pid
        if (status == self._written_status and stored is not None) or (status.state == "stopped" and is_foreign):
            return
        self._written_status = status
        try:
            write_status(self._folder, status)
        except OSError as error:
            _log.debug("status_not_kept%s", log_fields({"api": self.name, "why": error.strerror}))


def _make_http(name: str, settings: ApiSettings, max_bytes: int) -> ApiHttp:
    own: list[str] = []
    for url in (settings.document, settings.base_url or ""):
        with suppress(LinkError):  # a URL that cannot be used is told when it is needed
            if "://" in url and is_written_private(url):
                own.append(parse_address(name, url).host)
    return ApiHttp(
        name,
        limit=settings.in_flight,
        connect_seconds=settings.connect_seconds,
        max_bytes=max_bytes,
        private=settings.private_addresses,
        own=own,
    )


async def _fetched(name: str, settings: ApiSettings, folder: Path) -> Loaded:
    """Return the document at a URL.

    Raises:
        DocumentError: It cannot be fetched.
    """
    http = _make_http(name, settings, settings.document_bytes)
    try:
        return await load_url(folder, settings, http, name=name)
    finally:
        await http.close()


async def login_of(name: str, settings: ApiSettings, folder: Path) -> UpstreamSettings:
    """Return how to sign in at an API, with the addresses that its document names.

    Raises:
        DocumentError: It cannot be loaded.
    """
    loaded = await asyncio.to_thread(load_cached, folder, settings, fresh=False)
    if loaded is None:
        loaded = await (_fetched(name, settings, folder) if settings.is_remote else load_file(folder, settings))
    return login_settings(name, settings, loaded.document)


def make_api(
    name: str,
    settings: ApiSettings,
    *,
    state: Path,
    pins: Pins | None = None,
    longest: int = 48,
    problem: str = "",
    vaults: "Vaults | None" = None,
) -> Api:
    """Return the provider of an API, which keeps its document and state in a folder below `state`."""
    folder = folder_of(state, name)
    return Api(name, settings, folder=folder, pins=pins, longest=longest, problem=problem, vaults=vaults)
