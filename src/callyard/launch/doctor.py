"""The doctor: checks what a server with these settings needs, and says of each fault how to mend it.

It opens the real yard with a store in memory, so that no job of a running server is taken over, and closes it again.
"""

import asyncio
import logging
import os
import re
import shlex
import stat
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
from packaging.requirements import Requirement

from callyard._internal.files import file_system_of, find_state_dir, is_network
from callyard._internal.mask import is_secret_name
from callyard._internal.project import project_dir
from callyard.config import Config
from callyard.launch.advice import rule_warnings, unsettled_line
from callyard.launch.build import apply_settings, make_authenticator, make_store
from callyard.launch.errors import LaunchError, explain_refusal
from callyard.launch.monitor import Monitor
from callyard.launch.mounts import serve_test_stream
from callyard.launch.notices import Notices, Part
from callyard.launch.probe import probe_targets
from callyard.launch.proxy import STREAM_PATH, is_callyard, stream_problem
from callyard.launch.serve import check_runtime, make_transport
from callyard.model.errors import ToolError
from callyard.model.profile import cost
from callyard.probe import PROBE_CODES, Report, probe
from callyard.providers.upstream.health import supervised
from callyard.runtimes.selection import Runtimes
from callyard.state.redis import RedisStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import Store, StoreUnavailableError
from callyard.transports import Transport
from callyard.transports.http.app import Mount
from callyard.transports.http.server import Certificate
from callyard.yard import Yard

__all__ = [
    "FINDINGS",
    "Finding",
    "Kind",
    "Status",
    "check_machine",
    "check_packages",
    "check_store",
    "diagnose",
    "examine",
]

Status = Literal["failed", "warning"]


class Kind(NamedTuple):
    """A kind of finding: its status, what it means, and what usually mends it."""

    status: Status
    meaning: str
    mend: str


FINDINGS: Final[Mapping[str, Kind]] = {
    "version.package": Kind("failed", "A package is missing or too old.", "pip install -U callyard"),
    "version.extra": Kind("failed", "A setting needs an extra.", "pip install 'callyard[all]'"),
    "config.invalid": Kind("failed", "The settings cannot be read.", "callyard config"),
    "config.ignored": Kind("warning", "A part of the settings has no effect.", "callyard config"),
    "config.refused": Kind("failed", "The settings can be read, and no server starts with them.", "callyard config"),
    "target.unusable": Kind("failed", "The target has no yard, or cannot be loaded.", "callyard list TARGET"),
    "yard.refused": Kind("failed", "The yard cannot be opened.", "callyard list TARGET"),
    "secret.missing": Kind("failed", "A variable or secret is not there.", "export NAME=VALUE"),
    "secret.exposed": Kind("failed", "Others can read a file with secrets.", "chmod 600 FILE"),
    "source.unusable": Kind("failed", "An API or pack cannot be used.", "callyard upstreams --check"),
    **{
        f"upstream.{code}": Kind("failed", f"Upstream: {found.meaning}", found.advice)
        for code, found in PROBE_CODES.items()
    },
    "upstream.warning": Kind("warning", "A probe of an upstream has a warning.", "callyard probe NAME"),
    "runtime.missing": Kind("failed", "Programs cannot run: no backend is there.", "callyard runtime list"),
    "runtime.unsafe": Kind("failed", "Programs would run without a sandbox.", "Set 'runtime.profile' to 'standard'."),
    "store.unusable": Kind("failed", "The store cannot be read or written.", "callyard doctor"),
    "store.slow": Kind("warning", "The store takes more than 50 ms.", "Bring the store nearer to the server."),
    "store.evicts": Kind(
        "failed", "Redis may drop entries when it is full.", "redis-cli CONFIG SET maxmemory-policy noeviction"
    ),
    "store.replicas": Kind("failed", "Redis has fewer replicas than 'store_replicas'.", "redis-cli INFO replication"),
    "store.clock": Kind("failed", "The clock of the store and ours differ by more than 2 s.", "timedatectl set-ntp on"),
    "store.network": Kind("failed", "The SQLite file is on a network file system.", "Set 'store' to a local file."),
    "port.in_use": Kind("failed", "Another program has the port.", "Choose another with '--port'."),
    "port.refused": Kind("failed", "The address cannot be listened on.", "Correct 'host', 'port' or 'socket'."),
    "port.shared": Kind("warning", "Another program has the port for 'localhost'.", "Choose another with '--port'."),
    "certificate.unusable": Kind("failed", "The certificate or its key cannot be used.", "openssl x509 -in FILE"),
    "certificate.expired": Kind("failed", "The certificate has ended.", "Renew the certificate."),
    "certificate.ends": Kind("warning", "The certificate ends within 14 days.", "Renew the certificate."),
    "file.state": Kind("failed", "The state directory cannot be used.", "Set another with 'state_dir'."),
    "file.exposed": Kind("failed", "Others can read the state directory.", "chmod 700 FOLDER"),
    "file.log": Kind("failed", "A log file cannot be written.", "Correct 'audit_log' or 'access_log'."),
    "proxy.unreachable": Kind(
        "failed", "Nothing answers at 'public_url'.", "Correct 'public_url', or start the proxy."
    ),
    "proxy.refuses": Kind("failed", "The proxy or the server refuses requests at 'public_url'.", "curl -i PUBLIC_URL"),
    "proxy.buffers": Kind("failed", "The proxy holds streams back.", "proxy_buffering off;"),
    "name.long": Kind("warning", "Clients cut or refuse the name of a tool.", "Set 'name_characters' lower."),
    "tokens.many": Kind("warning", "The list of tools is over its budget of tokens.", "Set 'surface' to 'auto'."),
    "rule.unmatched": Kind("warning", "A rule matches no known tool.", "callyard policy check"),
    "tool.unsettled": Kind("warning", "Nobody has said what tools do, so they wait for people.", "callyard settle"),
    "otel.off": Kind("warning", "OpenTelemetry is asked for and cannot be used.", "pip install 'callyard[otel]'"),
}
"""Every finding by its id. None is ever renamed."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a check found."""

    id: str
    status: Status
    cause: str
    """One sentence."""
    command: str
    """What mends it: a command, or what to do."""

    @classmethod
    def of(cls, kind: str, cause: str, command: str = "") -> "Finding":
        """Return a finding with the status of its kind, and by default the usual way to mend it.

        A cause that names an extra to install is `version.extra`.
        """
        extra = re.search(_EXTRA, cause)
        if extra is not None:
            kind, command = "version.extra", extra[0]
        found = FINDINGS[kind]
        return cls(id=kind, status=found.status, cause=cause, command=command or found.mend)


_SLOW_S: Final = 0.05
_CLOCK_S: Final = 2.0
_OPEN_S: Final = 30.0
_READY_S: Final = 3.0
_PROBE_S: Final = 10.0
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
_CLIENT_CHARACTERS: Final = 64
"""The longest name of a tool that the models' APIs take, the client's prefix included."""
_PREFIX: Final = "mcp__callyard__"
_EVENTS: Final[Mapping[str, str]] = {
    "store_evicts": "store.evicts",
    "store_lacks_replicas": "store.replicas",
    "port_shared": "port.shared",
    "certificate_expires": "certificate.ends",
    "certificate_expired": "certificate.expired",
    "otel_off": "otel.off",
}
"""Findings that the parts of a server log, by their event."""
_EXTRA: Final = r"pip install '?callyard\[[\w,-]+\]'?"
"""What the messages of missing extras say."""
Findings = list[Finding]


class _Collected(Notices):
    """Keeps notices instead of writing them."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, *parts: Part) -> None:
        self.lines.append("".join(part if isinstance(part, str) else part.text for part in parts))


class _Events(logging.Handler):
    """Turns log events into findings."""

    def __init__(self, findings: Findings) -> None:
        super().__init__(logging.WARNING)
        self._findings = findings

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        kind = _EVENTS.get(text.partition(" ")[0])
        if kind is not None and all(one.cause != text for one in self._findings):
            self._findings.append(Finding.of(kind, text))


@contextmanager
def _events_kept(findings: Findings) -> Generator[None]:
    handler, log = _Events(findings), logging.getLogger("callyard")
    level, propagates = log.level, log.propagate
    if not log.isEnabledFor(logging.WARNING):  # 'quiet': the events are needed all the same, but not shown
        log.propagate = False
        log.setLevel(logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        log.propagate = propagates


async def diagnose(yard: Yard, config: Config) -> Findings:
    """Check the settings, open the yard with them, check what it needs, and close it."""
    findings: Findings = []
    with _events_kept(findings):
        findings += check_machine(config)
        findings += await _examine_store(config)
        found, transport = await asyncio.to_thread(_check_serving, config)
        findings += found
        try:
            findings += await _open_and_examine(yard, config, transport)
        finally:
            if transport is not None:
                await transport.close()
    return _once(findings)


def _once(findings: Sequence[Finding]) -> Findings:
    """Return the findings without repetitions, what failed first."""
    return sorted(dict.fromkeys(findings), key=lambda one: (one.status != "failed", list(FINDINGS).index(one.id)))


def check_machine(config: Config) -> Findings:
    """Check the installed packages, the files of the settings and the state, and the log files."""
    findings: Findings = []
    findings += check_packages(requires("callyard") or ())
    findings += _check_files(config)
    findings += _check_state(config)
    monitor = config.settings.monitor
    for key, path in (("audit_log", monitor.audit_log), ("access_log", monitor.access_log)):
        if path is not None and not _is_writable(Path(path).expanduser()):
            findings.append(Finding.of("file.log", f"'{path}' of 'monitor.{key}' cannot be written."))
    return findings


def check_packages(requirements: Sequence[str]) -> Iterator[Finding]:
    """Yield a finding for each requirement, extras apart, that no installed package meets."""
    for text in requirements:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate({"extra": ""}):
            continue
        try:
            found = version(wanted.name)
        except PackageNotFoundError:
            cause = f"The package '{wanted.name}' is not installed."
            yield Finding.of("version.package", cause, f"pip install '{text}'")
            continue
        if not wanted.specifier.contains(found, prereleases=True):
            cause = f"'{wanted.name}' is {found}, and Callyard needs {wanted.specifier}."
            yield Finding.of("version.package", cause, f"pip install '{wanted.name}{wanted.specifier}'")


def _is_writable(path: Path) -> bool:
    return os.access(path if path.exists() else path.parent, os.W_OK) and not path.is_dir()


def _check_files(config: Config) -> Iterator[Finding]:
    """Yield a finding for each file with a secret that others can read."""
    for path in config.files:
        if not _is_exposed(path, stat.S_IROTH):
            continue
        entries = [entry for entry in config.upstreams.values() if entry.location.file == str(path)]
        named = [pair for entry in entries for pair in (*entry.settings.env.items(), *entry.settings.headers.items())]
        if any(is_secret_name(name) and not _is_reference(value) for name, value in named):
            yield Finding.of("secret.exposed", f"Others can read '{path}', which has secrets.", _chmod("600", path))
    for entry in config.upstreams.values():
        for value in (*entry.settings.env.values(), *entry.settings.headers.values()):
            file = Path(value.removeprefix("secretref:file:")).expanduser()
            if value.startswith("secretref:file:") and _is_exposed(file, _OTHERS):
                yield Finding.of("secret.exposed", f"Others can read the secret '{file}'.", _chmod("600", file))


def _is_reference(value: str) -> bool:
    return value.startswith("secretref:") or "${" in value


def _is_exposed(path: Path, bits: int) -> bool:
    with suppress(OSError):
        return bool(path.stat().st_mode & bits)
    return False


def _chmod(mode: str, path: Path) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"


def _check_state(config: Config) -> Iterator[Finding]:
    try:
        folder = project_dir(find_state_dir(config.settings.state_dir), config.project)
    except OSError as error:
        yield Finding.of("file.state", f"The state directory cannot be used: {error.strerror}.")
        return
    place = next(place for place in (folder, *folder.parents) if place.exists())
    if not place.is_dir():
        yield Finding.of("file.state", f"'{place}' is no folder.")
        return
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        yield Finding.of("file.state", f"'{place}' cannot be written.", _chmod("700", place))
    for file in (place for place in folder.rglob("*") if place.is_file()):
        if _is_exposed(file, _OTHERS):
            yield Finding.of("file.exposed", f"Others can read '{file}'.", _chmod("600", file))


async def _examine_store(config: Config) -> Findings:
    """Check the store that a server would use, without making its file."""
    try:
        store = make_store(config)
    except LaunchError as error:
        return [Finding.of("store.unusable", error.message, "callyard config")]
    try:
        return await check_store(store)
    finally:
        await store.close()


async def check_store(store: Store) -> Findings:
    """Check that a store can be read and written, how long that takes, and its clock."""
    if isinstance(store, SqliteStore):
        if not store.path.exists():
            return []
        kind = file_system_of(store.path)
        if is_network(kind):
            return [Finding.of("store.network", f"'{store.path}' is on '{kind}'.")]
    key, began = f"doctor/{os.urandom(8).hex()}", time.perf_counter()
    try:
        await store.put(key, b"1", ttl=60)
        await store.get(key)
        seconds = (time.perf_counter() - began) / 2
        lease = await store.acquire(key, ttl=1)
        now = time.time()
        await store.delete(key)
        if lease is not None:
            await store.release(lease)
    except StoreUnavailableError as error:
        return [Finding.of("store.unusable", str(error), _mend_store(store))]
    findings: Findings = []
    if seconds > _SLOW_S:
        findings.append(Finding.of("store.slow", f"One operation of the store takes {seconds * 1000:.0f} ms."))
    if isinstance(store, RedisStore) and lease is not None and abs(lease.token / 1e6 - now) > _CLOCK_S:
        findings.append(Finding.of("store.clock", f"The clocks differ by {abs(lease.token / 1e6 - now):.0f} s."))
    return findings


def _mend_store(store: Store) -> str:
    if isinstance(store, SqliteStore):
        return _chmod("u+rw", store.path)
    return "redis-cli -u URL PING" if isinstance(store, RedisStore) else ""


def _check_serving(config: Config) -> tuple[Findings, Transport | None]:
    """Check the address and the certificate; return the transport that listens there, if the server uses one."""
    serving = config.settings.serve
    if serving.transport not in {"http", "sse"}:
        return [], None
    try:
        authenticator = make_authenticator(config)
    except LaunchError as error:
        return [Finding.of("config.refused", error.message)], None
    mounts = {STREAM_PATH: Mount(handle=serve_test_stream, needs_authentication=False)}
    options: Any = {"http_options": {"mounts": mounts}} if serving.transport == "http" else {}
    try:
        if serving.certificate is not None:
            Certificate(*serving.certificate).warn(time.time())
        return [], make_transport(serving, authenticator, **options)
    except ValueError as error:
        return [Finding.of("config.refused", str(error))], None
    except OSError as error:
        return _explain_listening(error, config), None


def _explain_listening(error: OSError, config: Config) -> Findings:
    serving = config.settings.serve
    reason = (error.strerror or str(error)).removesuffix(".")
    if error.errno == 98:  # noqa: PLR2004 - EADDRINUSE
        if is_callyard(serving):
            return []  # the server itself runs
        place = serving.socket or f"{serving.host}:{serving.port}"
        return [Finding.of("port.in_use", f"Another program listens at '{place}'.", _free_port(serving.port))]
    if error.filename is not None or (serving.certificate is not None and error.errno != 13):  # noqa: PLR2004 - EACCES
        files = " ".join(shlex.quote(file) for file in serving.certificate or ())
        return [Finding.of("certificate.unusable", f"{reason}: {files}.", f"openssl x509 -noout -enddate -in {files}")]
    place = serving.socket or f"{serving.host}:{serving.port}"
    return [Finding.of("port.refused", f"'{place}' cannot be listened on: {reason}.")]


def _free_port(port: int) -> str:
    return f"callyard serve --port {port + 1}"


async def _open_and_examine(yard: Yard, config: Config, transport: Transport | None) -> Findings:
    """Open the yard as a server does, and examine it."""
    findings, notices = Findings(), _Collected()
    alone = msgspec.structs.replace(config, settings=msgspec.structs.replace(config.settings, store="memory"))
    try:
        apply_settings(yard, alone, notices, serves=True, logins=config)
        Monitor(yard, config, is_authenticated=bool(config.explicit("auth")))  # refuses what cannot be served
    except LaunchError as error:
        return [Finding.of("config.refused", error.message)]
    try:
        check_runtime(yard, config.settings.serve)
    except LaunchError as error:
        findings.append(Finding.of("runtime.unsafe", error.message))
    findings += [
        Finding.of("secret.missing" if _is_missing(line) else "config.ignored", line) for line in notices.lines
    ]
    findings += [Finding.of("config.ignored", line) for line in config.warnings]
    try:
        async with asyncio.timeout(_OPEN_S) as limit, yard:
            limit.reschedule(None)
            findings += await examine(yard, config)
            findings += await _examine_proxy(yard, config, transport)
    except TimeoutError:
        findings.append(Finding.of("yard.refused", f"The yard did not open within {_OPEN_S:.0f} seconds."))
    except Exception as error:  # noqa: BLE001 - a yard may raise anything
        findings.append(Finding.of("yard.refused", explain_refusal(error, yard)))
    return findings


def _is_missing(line: str) -> bool:
    return "cannot be used" in line or "is not set" in line


async def examine(yard: Yard, config: Config) -> Findings:
    """Check an open yard: its upstreams, other sources, runtimes, names, tokens and rules."""
    findings: Findings = []
    probes = asyncio.gather(_probe_upstreams(config))
    await yard.providers.wait_ready(_READY_S)
    findings += _check_sources(yard, config)
    if yard.runtime.enabled:
        findings += await _check_runtimes(yard)
    findings += _check_surface(yard)
    findings += [Finding.of("rule.unmatched", line) for line in rule_warnings(yard)]
    unsettled = unsettled_line(yard, config)
    if unsettled:
        findings.append(Finding.of("tool.unsettled", unsettled))
    (found,) = await probes
    return findings + found


async def _probe_upstreams(config: Config) -> Findings:
    if not any(one.settings.enabled for one in config.upstreams.values()):
        return []
    try:
        targets = probe_targets(config, _Collected())
    except LaunchError as error:
        return [Finding.of("config.refused", error.message)]
    usable = [target for target in targets if not target.problem]  # the others are named already
    limited = [
        msgspec.structs.replace(
            one, checks=msgspec.structs.replace(one.checks, seconds=min(_PROBE_S, one.checks.seconds))
        )
        for one in usable
    ]
    reports = await asyncio.gather(*map(probe, limited))
    return [finding for report in reports for finding in _findings_of(report)]


def _findings_of(report: Report) -> Iterator[Finding]:
    command = f"callyard probe {shlex.quote(report.target)}"
    for failure in report.failures:
        mend = {"auth": f"callyard login {report.target}", "changed": f"callyard diff {report.target}"}
        advice = mend.get(failure.code, f"{PROBE_CODES[failure.code].advice} Then: {command}")
        yield Finding.of(f"upstream.{failure.code}", f"'{report.target}': {failure.message}", advice)
    for warning in report.warnings:
        yield Finding.of("upstream.warning", f"'{report.target}': {warning}", command)


def _check_sources(yard: Yard, config: Config) -> Iterator[Finding]:
    """Yield the APIs that are not ready; upstreams are probed."""
    for provider in supervised(yard.providers):
        status = provider.status()
        if status.name not in config.upstreams and status.last_error:
            yield Finding.of("source.unusable", f"'{status.name}': {status.last_error}")


async def _check_runtimes(yard: Yard) -> Findings:
    async with Runtimes(yard.runtime, state_dir=yard.state_dir).open() as runtimes:
        try:
            await runtimes.selected()
        except ToolError as error:
            return [Finding.of("runtime.missing", error.message)]
    return []


def _check_surface(yard: Yard) -> Iterator[Finding]:
    """Yield names that clients cannot take, and a list that costs more than its budget."""
    listed = yard.list()
    for spec in listed:
        if len(_PREFIX) + len(spec.name) > _CLIENT_CHARACTERS:
            yield Finding.of("name.long", f"'{_PREFIX}{spec.name}' has more than {_CLIENT_CHARACTERS} characters.")
    tokens, budget = cost(listed), yard.limits.listed_tokens
    if tokens > budget:
        cause = f"The list of tools costs about {tokens} tokens; its budget is {budget}."
        yield Finding.of("tokens.many", cause, "Set 'surface = \"auto\"' in the profile, or raise 'listed_tokens'.")


async def _examine_proxy(yard: Yard, config: Config, transport: Transport | None) -> Findings:
    """Check what arrives at 'public_url', from a running server or from this yard, which is served meanwhile."""
    url = config.settings.serve.public_url
    if url is None or config.settings.serve.transport != "http":
        return []
    async with _served(yard, transport):
        found = await stream_problem(url)
    return [] if found is None else [Finding.of(f"proxy.{found[0]}", found[1], found[2])]


@asynccontextmanager
async def _served(yard: Yard, transport: Transport | None) -> AsyncGenerator[None]:
    if transport is None:  # somebody else listens there
        yield
        return
    serving = asyncio.ensure_future(transport.serve(yard))
    try:
        yield
    finally:
        serving.cancel()
        await asyncio.wait({serving})
