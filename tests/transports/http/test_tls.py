"""Certificates: new ones are used at once, wrong ones are not, and the end of one is announced."""

import asyncio
import logging
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callyard.transports.http.server import Certificate

Make = Callable[..., None]
DAY_S = 24 * 3600


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.transports.http.server._CERTIFICATE_POLL_S", 0.002)


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    return str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")


@pytest.fixture
def make(files: tuple[str, str], tmp_path: Path) -> Make:
    """Return a function that replaces the certificate and its key."""

    def make_certificate(name: str, *, days: int = 90, key: tuple[str, ...] = ("rsa:2048",)) -> None:
        new = [tmp_path / "new-cert.pem", tmp_path / "new-key.pem"]
        command = ["openssl", "req", "-x509", "-newkey", *key, "-nodes", "-days", str(days), "-subj", f"/CN={name}"]
        subprocess.run([*command, "-keyout", str(new[1]), "-out", str(new[0])], check=True, capture_output=True)  # noqa: S603 - our own
        for file, old in zip(new, files, strict=True):
            file.replace(old)

    return make_certificate


EC = ("ec", "-pkeyopt", "ec_paramgen_curve:P-256")


async def certificate_of(server: Any, version: ssl.TLSVersion) -> bytes:
    """Return the certificate that a new connection gets, while it answers a request."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.minimum_version = context.maximum_version = version
    wire = await server.connect(ssl=context)
    await wire.send("GET", "/healthz", {"Host": "localhost"})
    assert (await wire.reply()).status == 200
    found = wire.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    await wire.close()
    return found


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_a_renewed_certificate_is_used_for_new_connections_and_open_ones_go_on(
    serve: Any, make: Make, files: tuple[str, str], version: ssl.TLSVersion
) -> None:
    make("old")
    server = await serve(tls_cert=files[0], tls_key=files[1])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    open_before = await server.connect(ssl=context)
    assert b"old" in await certificate_of(server, version)

    make("new", key=EC)  # another type of key, which a client could prefer to the old one
    async with asyncio.timeout(60):
        while b"new" not in await certificate_of(server, version):
            pass

    await open_before.send("GET", "/healthz", {"Host": "localhost"})
    assert (await open_before.reply()).status == 200


async def test_a_certificate_that_cannot_be_used_changes_nothing_and_is_an_error_in_the_log(
    serve: Any, make: Make, files: tuple[str, str], caplog: pytest.LogCaptureFixture, until: Any
) -> None:
    make("old")
    server = await serve(tls_cert=files[0], tls_key=files[1])

    for file, text in ((files[0], "nothing"), (files[1], "")):
        caplog.clear()
        Path(file).write_text(text)  # noqa: ASYNC240 - a few bytes
        await until(lambda: "certificate_unchanged" in caplog.text)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert b"old" in await certificate_of(server, ssl.TLSVersion.TLSv1_3)
    make("new")
    await until(lambda: "certificate_changed" in caplog.text)
    assert b"new" in await certificate_of(server, ssl.TLSVersion.TLSv1_3)


def test_a_process_that_forks_those_that_serve_keeps_the_last_certificate_that_works_and_logs_nothing(
    make: Make, files: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    make("old", days=9)
    certificate = Certificate(*files)
    begin = Path(files[1]).stat().st_mtime

    def days_left_at(day: float) -> int:
        caplog.clear()
        certificate.warn(begin + day * DAY_S)
        return int(caplog.records[0].getMessage().rpartition("=")[2])

    make("new", days=7)
    certificate.follow()
    before = days_left_at(0.5)
    certificate.follow()
    after = days_left_at(0.5)
    Path(files[1]).write_text("nothing")
    caplog.clear()
    certificate.follow()
    certificate.follow()

    assert (before, after, caplog.records) == (8, 6, [])
    assert days_left_at(2.5) == 4


@pytest.mark.parametrize("days", [30, 30 * 365])  # which have two forms of a date
def test_the_end_of_a_certificate_is_announced_two_weeks_before_once_a_day(
    make: Make, files: tuple[str, str], caplog: pytest.LogCaptureFixture, days: int
) -> None:
    make("short", days=days)
    certificate = Certificate(*files)
    begin = Path(files[0]).stat().st_mtime

    def days_logged_at(day: float) -> list[str]:
        caplog.clear()
        certificate.warn(begin + day * DAY_S)
        return [record.getMessage().rpartition(" ")[2] for record in caplog.records]

    assert days_logged_at(days - 14.1) == []
    assert days_logged_at(days - 13.5) == ["days=13"]
    assert days_logged_at(days - 13) == []
    assert days_logged_at(days - 12.4) == ["days=12"]
    assert days_logged_at(days + 1.5) == ["days=-1"]
    assert "certificate_expired" in caplog.text
