"""Where a server listens: a port, a unix socket, with TLS, and where it must not."""

import asyncio
import socket
import ssl
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from toolyard import Serving
from toolyard.transports.http import Http


async def test_a_server_on_any_free_port_tells_which(serve: Any) -> None:
    server = await serve(port=0)

    assert server.transport.info().name == "http"
    assert server.address == f"http://127.0.0.1:{server.port}/mcp"
    assert server.port > 0


async def test_a_server_on_ipv6_tells_its_address_so_that_it_can_be_used(serve: Any) -> None:
    server = await serve(host="::1")
    wire = await server.connect(host="::1")

    await wire.send("GET", "/healthz", {"Host": "localhost"})

    assert server.address == f"http://[::1]:{server.port}/mcp"
    assert (await wire.reply()).status == 200


async def test_a_port_that_is_taken_cannot_be_listened_on(serve: Any) -> None:
    server = await serve()

    with pytest.raises(OSError, match="Address already in use"):
        await serve(port=server.port)


async def test_a_port_is_free_again_when_its_server_ended(serve: Any) -> None:
    server = await serve()
    port = server.port
    await server.ask("add", {"a": 1, "b": 2})

    await server.stop()
    again = await serve(port=port)

    assert (await again.ask("add", {"a": 1, "b": 2})).data == 3


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "yard.example"])  # noqa: S104 - that is the point
def test_nobody_serves_the_network_without_a_guard(host: str) -> None:
    with pytest.raises(ValueError, match=rf"^'{host}' can be reached from other machines, and without authentication it is not served: "):
        Http(Serving(transport="http", host=host, port=0))


async def test_a_unix_socket_is_for_its_owner_alone_and_gone_at_the_end(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "yard.sock"
    server = await serve(socket=str(path))
    wire = await server.connect(path=str(path))
    mode = stat.S_IMODE(path.stat().st_mode)

    await wire.send("GET", "/healthz", {"Host": "localhost"})
    reply = await wire.reply()
    await server.stop()

    assert (mode, reply.status, server.address) == (0o600, 200, f"unix:{path}")
    assert not path.exists()


async def test_a_socket_that_a_dead_server_left_is_replaced(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "yard.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
        left.listen()
    server = await serve(socket=str(path))
    wire = await server.connect(path=str(path))

    await wire.send("GET", "/healthz", {"Host": "localhost"})

    assert (await wire.reply()).status == 200


async def test_a_socket_of_a_server_that_lives_is_left_to_it(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "yard.sock"
    server = await serve(socket=str(path))

    with pytest.raises(OSError, match=r"."):
        await serve(socket=str(path))
    wire = await server.connect(path=str(path))
    await wire.send("GET", "/healthz", {"Host": "localhost"})

    assert (await wire.reply()).status == 200


async def test_a_file_that_is_no_socket_is_left_alone(serve: Any, tmp_path: Path) -> None:
    path = tmp_path / "yard.sock"
    path.write_text("precious")

    with pytest.raises(OSError, match=r"."):
        await serve(socket=str(path))

    assert path.read_text() == "precious"


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """Return a certificate that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    subprocess.run([*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)  # noqa: S603 - our own
    return str(cert), str(key)


def client_context(minimum: ssl.TLSVersion, maximum: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.minimum_version, context.maximum_version = minimum, maximum
    return context


async def test_https_is_spoken_with_a_certificate(serve: Any, certificate: tuple[str, str]) -> None:
    server = await serve(tls_cert=certificate[0], tls_key=certificate[1])

    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        wire = await server.connect(ssl=client_context(version, version))
        await wire.send("GET", "/healthz", {"Host": "localhost"})
        assert (await wire.reply()).status == 200
    assert server.address.startswith("https://127.0.0.1:")


async def test_a_handshake_of_tls_has_the_same_deadline_as_a_head(serve: Any, certificate: tuple[str, str]) -> None:
    server = await serve(tls_cert=certificate[0], tls_key=certificate[1], header_seconds=0.1)
    wire = await server.connect()

    await wire.write(b"\x16\x03\x01")

    assert await wire.ends() == b""


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated")
async def test_an_old_tls_is_refused(serve: Any, certificate: tuple[str, str]) -> None:
    server = await serve(tls_cert=certificate[0], tls_key=certificate[1])
    old = client_context(ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_1)
    old.set_ciphers("ALL:@SECLEVEL=0")
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    lax.minimum_version = ssl.TLSVersion.TLSv1_1
    lax.set_ciphers("ALL:@SECLEVEL=0")
    lax.load_cert_chain(*certificate)

    async with await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=lax) as other:
        await server.connect(port=other.sockets[0].getsockname()[1], ssl=old)  # this client can, if it is let
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await server.connect(ssl=old)


async def test_a_client_that_speaks_no_tls_gets_nowhere(serve: Any, certificate: tuple[str, str]) -> None:
    server = await serve(tls_cert=certificate[0], tls_key=certificate[1])
    wire = await server.connect()

    await wire.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")

    assert b"200 OK" not in await wire.ends()


async def test_a_certificate_that_is_none_is_told_before_the_server_is_ready(serve: Any, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match=r"."):
        await serve(tls_cert=str(tmp_path / "none.pem"), tls_key=str(tmp_path / "none.key"))


async def test_closing_a_transport_ends_what_it_serves(serve: Any) -> None:
    server = await serve()
    port = server.port
    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3

    await server.transport.close()
    await server.transport.close()

    async with asyncio.timeout(10):
        await server.task
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", port)
