"""One probe against servers that really have each failure, in both eras, over HTTP and stdio."""

import asyncio
import base64
import datetime as dt
import ipaddress
import json
import os
import socket
import ssl
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from failing_server import EVIL_NAME, NEEDED, serving
from table_tests import every_row

from callyard.config.probes import Canary, ProbeTable
from callyard.probe import PROBE_CODES, Report, Target, probe, to_junit
from callyard.probe.network import find_sign_in
from callyard.providers.upstream.catalogue import Catalogue
from callyard.providers.upstream.http.client import parse_address, tls_context
from callyard.providers.upstream.oauth.vault import StoredLogin, Token, Vault
from callyard.providers.upstream.pins import accept, definitions_of
from callyard.providers.upstream.settings import UpstreamSettings

PROGRAM: Final = Path(__file__).parent / "failing_server.py"
ERAS: Final = ("2025", "2026")
CANARY: Final = (Canary(tool="needed", arguments={"number": 1}, seconds=60),)
PROBES: Final = int(os.environ.get("PROBES", "100"))
PATIENT: Final[dict[str, Any]] = {"seconds": 120.0, "slow_seconds": 60.0}


def target(folder: Path, *, url: str = "", program: tuple[str, ...] = (), **more: Any) -> Target:
    headers = more.pop("headers", {})
    if url:
        settings = UpstreamSettings(url=url, headers=headers)
    else:
        settings = UpstreamSettings(command=sys.executable, args=("-I", "-S", str(PROGRAM), *program))
    lock = more.pop("lock", None)
    return Target(name="up", settings=more.pop("settings", settings), folder=folder, lock=lock, checks=checks(**more))


def checks(**more: Any) -> ProbeTable:
    return ProbeTable(**{**PATIENT, **more})


def pin(folder: Path) -> Path:
    """Accept what the server has when it is well."""
    lock = folder / "callyard.lock"
    definitions = definitions_of(Catalogue(endpoint_hash="", seen=0.0, version="2026-07-28", tools=(NEEDED,)))
    tools = {key: one for key, one in definitions.items() if key.kind == "tool"}
    accept(lock, "up", definitions=tools, keys=[*tools], folder=folder)
    return lock


def codes(report: Report) -> list[str]:
    return [one.code for one in report.failures]


BOTH: Final[list[tuple[str, str, dict[str, Any]]]] = [
    ("initialize", "initialize", {}),
    ("version", "version", {}),
    ("protocol", "protocol", {}),
    ("silent", "timeout", {"seconds": 1.0}),
    ("list", "list", {}),
    ("endless", "list", {}),
    ("circle", "list", {}),
    ("missing", "missing_tool", {"tools": ("needed",)}),
    ("missing", "missing_tool", {"canaries": CANARY}),
    ("missing", "missing_tool", {"pinned": True}),
    ("unregistered", "missing_tool", {"canaries": CANARY}),
    ("changed", "changed", {"pinned": True}),
    ("narrow", "rejects_arguments", {"canaries": CANARY}),
    ("rejects", "rejects_arguments", {"canaries": CANARY}),
    ("rejects_fault", "rejects_arguments", {"canaries": CANARY}),
    ("fails", "tool_error", {"canaries": CANARY}),
    ("well", "tool_error", {"canaries": (Canary(tool="needed", code="not_found", seconds=60),)}),
    ("hangs", "hung", {"canaries": (Canary(tool="needed", seconds=0.2),)}),
    ("hangs", "hung", {"canaries": CANARY, "seconds": 2.0}),
    ("slow", "slow", {"canaries": CANARY, "slow_seconds": 1.0}),
]
"""Modes that fail alike over HTTP and stdio: the code, and what is checked."""


@every_row("mode, code, more", BOTH)
async def test_a_probe_tells_apart_what_fails_in_both_eras_over_http_and_stdio(
    mode: str, code: str, more: dict[str, Any], tmp_path: Path
) -> None:
    more = dict(more)
    lock = pin(tmp_path) if more.pop("pinned", False) else None
    for era in ERAS:
        async with serving(mode, era) as (url, _):
            over_http = await probe(target(tmp_path, url=url, lock=lock, **more))
        over_stdio = await probe(target(tmp_path, program=(mode, era), lock=lock, **more))
        for report in (over_http, over_stdio):
            assert report.code is not None, (era, report)
            assert (report.code, report.exit_status) == (code, PROBE_CODES[report.code].exit), (era, report)


HTTP: Final = [
    ("html", "not_mcp"),
    ("not_http", "not_mcp"),
    ("http_404", "http_error"),
    ("http_500", "http_error"),
    ("limited", "overloaded"),
    ("overloaded", "overloaded"),
    ("redirects", "redirected"),
    ("redirects_307", "redirected"),
    ("auth", "auth"),
    ("no_hint", "auth"),
    ("basic", "auth"),
    ("forbidden", "auth"),
    ("huge", "protocol"),
    ("dies", "protocol"),
]


@every_row("mode, code", HTTP)
async def test_a_probe_tells_apart_what_fails_over_http_only(mode: str, code: str, tmp_path: Path) -> None:
    for era in ERAS:
        async with serving(mode, era) as (url, _):
            report = await probe(target(tmp_path, url=url))
        assert report.code == code, (era, report)


STDIO: Final = [("exits", "exited"), ("dies", "exited"), ("not_mcp", "not_mcp")]


@every_row("mode, code", STDIO)
async def test_a_probe_tells_apart_what_fails_over_stdio_only(mode: str, code: str, tmp_path: Path) -> None:
    for era in ERAS:
        report = await probe(target(tmp_path, program=(mode, era)))
        assert report.code == code, (era, report)


async def test_a_program_that_does_not_exist_is_not_started(tmp_path: Path) -> None:
    settings = UpstreamSettings(command="no-such-program-anywhere")
    report = await probe(target(tmp_path, settings=settings))
    assert codes(report) == ["not_started"]
    assert "no-such-program-anywhere" in report.failures[0].detail


async def test_a_host_without_an_address_is_dns(tmp_path: Path) -> None:
    assert codes(await probe(target(tmp_path, url="http://nowhere.invalid/mcp"))) == ["dns"]


async def test_a_closed_port_is_refused(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, and nobody listens
        port = listener.getsockname()[1]
        assert codes(await probe(target(tmp_path, url=f"http://127.0.0.1:{port}/mcp"))) == ["refused"]


@contextmanager
def black_hole() -> Generator[int]:
    """Return a port that drops what comes, because its queue of connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)  # noqa: FBT003 - the name of the library
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def test_a_black_hole_is_unreachable(tmp_path: Path) -> None:
    with black_hole() as port:
        report = await probe(target(tmp_path, url=f"http://127.0.0.1:{port}/mcp", seconds=1.0))
    assert codes(report) == ["unreachable"]


def certificate(folder: Path, *, days: float, host: str = "127.0.0.1") -> ssl.SSLContext:
    """Return the TLS settings of a server whose certificate is in `folder/cert.pem` and ends in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    end = dt.datetime.now(dt.UTC) + dt.timedelta(days=days)
    alternative = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))])
    built = x509.CertificateBuilder(
        issuer_name=name,
        subject_name=name,
        public_key=key.public_key(),
        serial_number=1,
        not_valid_before=end - dt.timedelta(days=400),
        not_valid_after=end,
    ).add_extension(alternative, critical=False)
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (folder / "cert.pem").write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *private))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return context


@pytest.fixture
def trusting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Trust the certificate of the test, and nothing else."""
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
    tls_context.cache_clear()
    yield
    tls_context.cache_clear()


async def over_tls(folder: Path, context: ssl.SSLContext) -> Report:
    tls_context.cache_clear()
    async with serving("well", "2026", ssl=context) as (url, _):
        return await probe(target(folder, url=url))


@pytest.mark.usefixtures("trusting")
async def test_an_expired_certificate_and_one_for_another_host_differ(tmp_path: Path) -> None:
    assert codes(await over_tls(tmp_path, certificate(tmp_path, days=-1))) == ["tls_expired"]
    assert codes(await over_tls(tmp_path, certificate(tmp_path, days=99, host="192.0.2.7"))) == ["tls_invalid"]


async def test_a_certificate_that_nobody_trusts_is_invalid(tmp_path: Path) -> None:
    assert codes(await over_tls(tmp_path, certificate(tmp_path, days=99))) == ["tls_invalid"]


async def test_a_server_that_speaks_no_tls_is_invalid(tmp_path: Path) -> None:
    async with serving("greets", "2026") as (url, _):
        report = await probe(target(tmp_path, url=url.replace("http:", "https:")))
    assert codes(report) == ["tls_invalid"]


@pytest.mark.usefixtures("trusting")
async def test_a_certificate_near_its_end_is_a_warning(tmp_path: Path) -> None:
    report = await over_tls(tmp_path, certificate(tmp_path, days=3))
    assert report.code is None
    assert report.certificate_days is not None
    assert 2.5 < report.certificate_days < 3.5
    assert len(report.warnings) == 1
    assert "tls" in [step.name for step in report.steps]


async def test_a_healthy_server_is_well_in_both_eras_over_http_and_stdio(tmp_path: Path) -> None:
    lock = pin(tmp_path)
    for era, version in (("2025", "2025-11-25"), ("2026", "2026-07-28")):
        async with serving("well", era) as (url, _):
            reports = [
                await probe(target(tmp_path, url=url, lock=lock, tools=("needed",), canaries=CANARY)),
                await probe(target(tmp_path, program=("well", era), lock=lock, canaries=CANARY)),
            ]
        for report in reports:
            assert (report.code, report.version, report.tools, report.server) == (None, version, 2, "failing 1")
            assert [change.verdict for change in report.changes] == ["compatible"]  # 'writes' is new
            assert report.steps[-1].name == "goodbye"


async def test_a_probe_sends_at_most_eight_requests_and_one_for_each_further_page(tmp_path: Path) -> None:
    for era in ERAS:
        for mode, pages in (("auth", 0), ("pages", 3)):
            async with serving(mode, era) as (url, server):
                headers = {"Authorization": "Bearer secret"}
                report = await probe(target(tmp_path, url=url, headers=headers))
            assert report.code is None, report
            assert len(server.requests) <= 8 + pages, server.requests


async def test_a_session_of_the_2025_era_is_deleted_and_no_stream_is_opened(tmp_path: Path) -> None:
    async with serving("well", "2025") as (url, server):
        await probe(target(tmp_path, url=url))
    assert server.requests[-1].startswith("DELETE ")
    assert not [line for line in server.requests if line.startswith("GET ")]


async def test_nothing_is_called_without_a_canary_and_what_may_write_only_if_allowed(tmp_path: Path) -> None:
    async with serving("well", "2026") as (url, server):
        await probe(target(tmp_path, url=url))
        refused = await probe(target(tmp_path, url=url, canaries=(Canary(tool="writes"),)))
        assert "tools/call" not in server.mcp.methods
        allowed = await probe(target(tmp_path, url=url, canaries=(Canary(tool="writes", allow=True),)))
        assert server.mcp.methods.count("tools/call") == 1
    assert (refused.code, len(refused.warnings)) == (None, 1)
    assert (allowed.code, allowed.warnings) == (None, ())


async def test_a_canary_may_expect_a_failure(tmp_path: Path) -> None:
    canary = Canary(tool="needed", arguments={"number": 1}, code="tool_error", seconds=60)
    async with serving("fails", "2026") as (url, _):
        assert (await probe(target(tmp_path, url=url, canaries=(canary,)))).code is None


async def test_several_failures_are_all_listed_and_the_earliest_step_gives_the_status(tmp_path: Path) -> None:
    lock = pin(tmp_path)
    canaries = (Canary(tool="needed", arguments={"number": 1}), Canary(tool="nowhere"))
    async with serving("changed", "2026") as (url, _):
        report = await probe(target(tmp_path, url=url, lock=lock, tools=("lost",), canaries=canaries))
    assert codes(report) == ["missing_tool", "changed", "rejects_arguments", "missing_tool"]
    assert report.exit_status == PROBE_CODES["missing_tool"].exit
    assert [one.step for one in report.failures] == ["list", "change", "canaries", "canaries"]


async def test_a_refusal_must_say_how_to_sign_in(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        urls = {mode: (await stack.enter_async_context(serving(mode, "2026")))[0] for mode in ("auth", "no_hint")}
        named = await probe(target(tmp_path, url=urls["auth"]))
        silent = await probe(target(tmp_path, url=urls["no_hint"]))
    assert (codes(named), named.warnings) == (["auth"], ())
    assert named.steps[-1].note.startswith("http://127.0.0.1:")
    assert (codes(silent), len(silent.warnings)) == (["auth"], 1)


async def test_wrong_credentials_are_auth_and_an_anonymous_request_comes_first(tmp_path: Path) -> None:
    async with serving("auth", "2026") as (url, _):
        wrong = await probe(target(tmp_path, url=url, headers={"Authorization": "Bearer wrong"}))
        right = await probe(target(tmp_path, url=url, headers={"Authorization": "Bearer secret"}))
    assert codes(wrong) == ["auth"]
    assert right.code is None
    assert [step.name for step in right.steps][2:4] == ["anonymous", "metadata"]


async def test_a_server_may_ask_an_anonymous_request_to_wait(tmp_path: Path) -> None:
    headers = {"Authorization": "Bearer secret"}
    for mode, code in (("limited", "overloaded"), ("redirects", "redirected")):
        async with serving(mode, "2026") as (url, server):
            report = await probe(target(tmp_path, url=url, headers=headers))
        assert codes(report) == [code]
        assert len(server.requests) == 1
    assert (await limited(tmp_path)).retry_after == 7.0


async def limited(folder: Path) -> Report:
    async with serving("limited", "2026") as (url, _):
        return await probe(target(folder, url=url))


async def test_metadata_at_an_address_that_is_more_private_than_the_server_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The names have no server: a request would be refused, and be another problem."""
    addresses = {"public.example": "93.184.215.14", "inside.example": "10.0.0.1", "here.example": "127.0.0.1"}

    async def resolve(host: str, port: int) -> list[str]:
        return [addresses[host]]

    monkeypatch.setattr("callyard.probe.network.resolve_host", resolve)
    url = "http://public.example/mcp"
    for host in ("inside.example", "here.example"):
        challenge = f'Bearer resource_metadata="http://{host}/x"'
        found = await find_sign_in(parse_address("up", url), url, challenge, most=2)
        assert (found.issuer, len(found.problems)) == ("", 1)
        assert "private address" in found.problems[0]


async def test_metadata_that_is_missing_or_useless_is_a_problem() -> None:
    async with serving("no_metadata", "2026") as (url, _):
        found = await find_sign_in(parse_address("up", url), url, "Bearer", most=2)
        basic = await find_sign_in(parse_address("up", url), url, "Basic", most=2)
    async with serving("auth", "2026") as (url, server):
        challenge = f'Bearer resource_metadata="{server.url()}/.well-known/other"'
        own = await find_sign_in(parse_address("up", url), url, challenge, most=2)
        few = await find_sign_in(parse_address("up", url), url, challenge, most=1)
    assert (len(found.problems), len(basic.problems), len(own.problems), len(few.problems)) == (1, 0, 0, 1)


def jwt(**claims: Any) -> str:
    parts = [base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode() for part in ({}, claims)]
    return ".".join([*parts, "x"])


async def test_tokens_that_end_within_three_days_are_a_warning(tmp_path: Path) -> None:
    soon, late = time.time() + 86400, time.time() + 30 * 86400
    tokens = {"soon": jwt(exp=soon), "late": jwt(exp=late), "none": "secret", "broken": "a.b.c"}
    found: dict[str, Report] = {}
    for name, token in tokens.items():
        async with serving("auth", "2026") as (url, server):
            server.token = token
            found[name] = await probe(target(tmp_path, url=url, headers={"Authorization": f"Bearer {token}"}))
    assert {name: (report.code, len(report.warnings)) for name, report in found.items()} == {
        "soon": (None, 1),
        "late": (None, 0),
        "none": (None, 0),
        "broken": (None, 0),
    }


async def test_a_stored_login_is_used_and_its_end_is_a_warning(tmp_path: Path) -> None:
    async with serving("auth", "2026") as (url, _):
        token = Token(access_token="secret", expires=time.time() + 86400, issued=time.time())  # noqa: S106 - of the test
        Vault(tmp_path, url).write(StoredLogin(url=url, token=token))
        report = await probe(target(tmp_path, url=url))
    assert report.code is None
    assert (report.token_days or 0) < 1.1
    assert len(report.warnings) == 1


async def test_names_of_a_hostile_server_are_escaped(tmp_path: Path) -> None:
    async with serving("evil", "2026") as (url, _):
        report = await probe(target(tmp_path, url=url, lock=pin(tmp_path), tools=(EVIL_NAME + "x",)))
    assert codes(report) == ["missing_tool"]
    assert all(letter.isprintable() for letter in report.failures[0].message)
    xml = to_junit([report])
    assert ET.fromstring(xml).find(".//failure") is not None  # noqa: S314 - we wrote it


async def test_missing_settings_are_a_failure_without_a_request(tmp_path: Path) -> None:
    settings = UpstreamSettings(url="http://127.0.0.1:1/mcp")
    one = Target(name="up", settings=settings, folder=tmp_path, problem="The variable 'KEY' is not set.")
    report = await probe(one)
    assert codes(report) == ["auth"]


async def test_an_invalid_lock_is_a_warning(tmp_path: Path) -> None:
    lock = tmp_path / "callyard.lock"
    lock.write_text("nonsense\n")
    async with serving("well", "2026") as (url, _):
        report = await probe(target(tmp_path, url=url, lock=lock))
        without = await probe(target(tmp_path, url=url, lock=tmp_path / "none"))
    assert (report.code, len(report.warnings)) == (None, 1)
    assert (without.code, without.changes) == (None, ())


async def test_junit_has_a_test_for_each_step(tmp_path: Path) -> None:
    async with serving("list", "2026") as (url, _):
        report = await probe(target(tmp_path, url=url))
    suite = ET.fromstring(to_junit([report])).find("testsuite")  # noqa: S314 - we wrote it
    assert suite is not None
    assert [case.get("name") for case in suite.iter("testcase")] == [step.name for step in report.steps]
    assert [(one.get("type")) for one in suite.iter("failure")] == ["list"]


async def test_many_probes_of_a_healthy_server_under_load_raise_no_false_alarm(tmp_path: Path) -> None:
    """A hundred at a tenth of the whole, sixteen at one time, while the loop is kept busy."""
    done = asyncio.Event()

    async def load() -> None:
        while not done.is_set():
            sum(range(20_000))
            await asyncio.sleep(0)  # a turn of the loop

    lock = pin(tmp_path)
    places = asyncio.Semaphore(16)

    async def one(url: str) -> Report:
        async with places:
            return await probe(target(tmp_path, url=url, lock=lock, canaries=CANARY))

    busy = asyncio.create_task(load())
    async with serving("well", "2025") as (old, _), serving("well", "2026") as (new, _):
        reports = await asyncio.gather(*(one(old if number % 2 else new) for number in range(PROBES)))
    done.set()
    await busy
    assert [report for report in reports if report.code is not None] == []
