"""Where a server listens: a port, a unix socket, with TLS, and where it must not."""

import asyncio
import socket
import ssl
import stat
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard import Serving
from callyard.transports.auth import ApiKey, ApiKeys, digest_of
from callyard.transports.http import Http
from callyard.transports.http.admission import AccessCheck
from callyard.transports.http.request import RefusedError


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


@every_row("host", ["0.0.0.0", "::", "192.0.2.1", "yard.example"])  # noqa: S104 - that is the point
def test_nobody_serves_the_network_without_a_guard(host: str) -> None:
    with pytest.raises(
        ValueError,
        match=rf"^'{host}' can be reached from other machines, and without authentication it is not served: ",
    ):
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
    server = await serve(tls_cert=certificate[0], tls_key=certificate[1], head_seconds=0.1)
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


async def test_an_invalid_certificate_fails_before_the_server_is_ready(serve: Any, tmp_path: Path) -> None:
    with pytest.raises((OSError, ValueError), match=r"."):
        await serve(tls_cert=str(tmp_path / "none.pem"), tls_key=str(tmp_path / "none.key"))


async def test_closing_a_transport_ends_what_it_serves(serve: Any) -> None:
    server = await serve()
    port = server.port
    assert (await server.ask("add", {"a": 1, "b": 2})).data == 3

    await server.transport.close()
    await server.transport.close()

    async with asyncio.timeout(60):
        await server.task
    with pytest.raises(OSError, match=r"."):
        await asyncio.open_connection("127.0.0.1", port)


ARGUMENTS = {"a": 1, "b": 2}


async def statuses(server: Any, header: str, *values: str | None, **headers: str) -> dict[str | None, int]:
    """Return the status for each value of a header."""
    return {value: (await server.ask("add", ARGUMENTS, headers={**headers, header: value})).status for value in values}


async def test_a_server_on_this_machine_is_known_by_this_machines_names(serve: Any) -> None:
    server = await serve()
    known = ("localhost", "LOCALHOST:1", "127.0.0.1", f"127.0.0.1:{server.port}", "[::1]", "[::1]:80")

    assert await statuses(server, "Host", *known) == dict.fromkeys(known, 200)


async def test_a_server_on_this_machine_is_not_known_by_another_name(serve: Any) -> None:
    server = await serve()
    unknown = (
        "evil.example",
        "localhost.evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost:x@evil.example",
        "localhost:80:80",
        "[::1]evil.example",
        "[::1]:x",
        "[::2]",
        "[",
        "",
        "0.0.0.0",  # noqa: S104 - a name that is asked for
    )

    assert await statuses(server, "Host", *unknown) == dict.fromkeys(unknown, 421)
    assert not server.records


async def test_a_request_without_a_host_or_with_two_is_refused(serve: Any) -> None:
    server = await serve()

    for hosts in ("", "Host: localhost\r\nHost: evil.example\r\n", "Host: evil.example\r\nHost: localhost\r\n"):
        wire = await server.connect()
        await wire.write(f"GET /mcp HTTP/1.1\r\n{hosts}Accept: text/event-stream\r\n\r\n".encode())
        reply = await wire.reply()
        assert (hosts, reply.status) in {(hosts, 400), (hosts, 421)}
        assert b"Session" not in reply.body


async def test_names_can_be_allowed_with_and_without_a_port(serve: Any) -> None:
    server = await serve(allowed_hosts=["yard.example", "other.example:8080", "[2001:db8::1]"])
    good = ("yard.example", "Yard.Example:9", "other.example:8080", "[2001:db8::1]:5", "localhost")
    bad = ("other.example", "other.example:81", "evil.example", "[2001:db8::2]")

    assert await statuses(server, "Host", *good) == dict.fromkeys(good, 200)
    assert await statuses(server, "Host", *bad) == dict.fromkeys(bad, 421)


async def test_every_name_can_be_allowed(serve: Any) -> None:
    server = await serve(allowed_hosts=["*"])

    assert await statuses(server, "Host", "anything.example:5") == {"anything.example:5": 200}


async def test_only_a_page_of_the_server_itself_may_use_it(serve: Any) -> None:
    server = await serve()
    own = f"http://localhost:{server.port}"
    good = (None, own)
    bad = (
        "http://localhost:3000",
        "http://localhost",
        "http://127.0.0.1",
        f"https://localhost:{server.port}",
        f"http://127.0.0.1:{server.port}",
        f"http://[::1]:{server.port}",
        f"{own}/path",
        f"http://x@localhost:{server.port}",
        "http://evil.example",
        f"http://localhost.evil.example:{server.port}",
        "null",
        "",
        "file://",
        "http://[::1",
        "http://localhost:x@evil.example",
        "http://",
        "evil",
    )
    host = {"Host": f"localhost:{server.port}"}

    assert await statuses(server, "Origin", *good, **host) == dict.fromkeys(good, 200)
    assert await statuses(server, "Origin", *bad, **host) == dict.fromkeys(bad, 403)
    assert len(server.records) == len(good)


async def test_the_host_of_the_public_url_is_the_servers_own(serve: Any) -> None:
    for url, good in {
        "https://Tools.example:8443/yard": ("tools.example", "Tools.example:8443", "localhost"),
        "https://[2001:db8::1]/": ("[2001:db8::1]", "[2001:db8::1]:443"),
    }.items():
        server = await serve(public_url=url)
        bad = ("evil.example", "evil.tools.example", "tools.example.evil", "[2001:db8::2]", "")

        assert await statuses(server, "Host", *good) == dict.fromkeys(good, 200)
        assert await statuses(server, "Host", *bad) == dict.fromkeys(bad, 421)


async def test_with_a_public_url_only_its_pages_are_the_servers_own(serve: Any) -> None:
    server = await serve(public_url="https://Tools.example:443/yard")
    host = {"Host": "tools.example"}
    origins = ("https://tools.example", "http://tools.example", "https://tools.example:444", "null")

    assert [*(await statuses(server, "Origin", *origins, **host)).values()] == [200, 403, 403, 403]
    assert await statuses(server, "Origin", f"http://localhost:{server.port}") == {
        f"http://localhost:{server.port}": 403
    }


async def test_pages_can_be_allowed(serve: Any) -> None:
    server = await serve(
        allowed_origins=["https://App.example/", "http://app.example:81", "null"], allowed_hosts=["host.example"]
    )
    good = ("https://app.example", "https://APP.example", "http://app.example:81", "null")
    bad = ("http://app.example", "https://app.example:444", "https://app.example.evil", "https://host.example")

    assert await statuses(server, "Origin", *good) == dict.fromkeys(good, 200)
    assert await statuses(server, "Origin", *bad) == dict.fromkeys(bad, 403)


async def test_every_page_with_an_address_can_be_allowed_and_none_without(serve: Any) -> None:
    server = await serve(allowed_origins=["*"])
    bad = ("null", "file://", "file://host", "", "http://")

    assert await statuses(server, "Origin", "https://evil.example") == {"https://evil.example": 200}
    assert await statuses(server, "Origin", *bad) == dict.fromkeys(bad, 403)


async def test_a_refused_page_and_one_log_line_name_the_line_that_would_allow_it(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = await serve(allowed_origins=["https://app.example"])
    texts: list[str] = []
    for _ in range(2):
        wire = await server.connect()
        await wire.send("GET", "/mcp", {"Host": "localhost", "Origin": "http://localhost:3000"})
        reply = await wire.reply()
        texts.append(reply.body.decode())
        assert (reply.status, "access-control-allow-origin" in reply.headers) == (403, False)

    line = 'allowed_origins = ["https://app.example","http://localhost:3000"]'
    logged = [record.getMessage() for record in caplog.records if "origin_refused" in record.getMessage()]
    assert all(line in text for text in texts)
    assert [line in text for text in logged] == [True]
    assert (await serve(allowed_origins=tomllib.loads(line)["allowed_origins"])).port


async def test_a_refused_origin_is_refused_again_and_an_allowed_one_passes_again(serve: Any) -> None:
    server = await serve()

    for _ in range(2):
        assert await statuses(server, "Origin", "http://evil.example", "http://localhost", Host="localhost") == {
            "http://evil.example": 403,
            "http://localhost": 200,
        }


async def test_a_server_on_one_loopback_address_answers_on_both(serve: Any) -> None:
    for host, other in (("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("localhost", "::1")):
        server = await serve(host=host)
        wire = await server.connect(host=other)
        await wire.send("GET", "/healthz", {"Host": "localhost"})
        assert (host, (await wire.reply()).status) == (host, 200)
        await server.stop()
        with pytest.raises(ConnectionRefusedError):
            await server.connect(host=other)


async def test_a_server_warns_if_another_program_has_its_port_on_the_other_loopback_address(
    serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket(socket.AF_INET6) as other:
        other.bind(("::1", 0))
        other.listen()
        port = other.getsockname()[1]
        server = await serve(port=port)

    assert server.port == port
    assert [record.levelname for record in caplog.records if f"port_shared address=::1 port={port}" in record.message]


async def test_a_server_for_others_is_known_by_any_name_unless_some_are_allowed(serve: Any) -> None:
    authenticator = ApiKeys([ApiKey("ci", digest_of("cy_k"))])
    free = await serve(authenticator=authenticator, host="0.0.0.0")  # noqa: S104 - that is the point
    strict = await serve(authenticator=authenticator, host="0.0.0.0", allowed_hosts=["yard.example"])  # noqa: S104 - it is guarded, and ends with the test

    assert await statuses(free, "Host", "any.example", "10.0.0.1:5", **{"X-API-Key": "cy_k"}) == {
        "any.example": 200,
        "10.0.0.1:5": 200,
    }
    assert await statuses(strict, "Host", "any.example", "yard.example", **{"X-API-Key": "cy_k"}) == {
        "any.example": 421,
        "yard.example": 200,
    }


async def test_a_page_may_use_the_public_server_it_came_from(serve: Any) -> None:
    server = await serve(authenticator=ApiKeys([ApiKey("ci", digest_of("cy_k"))]), host="0.0.0.0")  # noqa: S104 - that is the point
    headers = {"Host": "yard.example:8", "X-API-Key": "cy_k"}

    assert await statuses(server, "Origin", "http://yard.example:8", "https://yard.example:8", **headers) == {
        "http://yard.example:8": 200,
        "https://yard.example:8": 403,
    }


def test_a_gate_remembers_only_so_many_names() -> None:
    access_check = AccessCheck(Serving(allowed_hosts=("*",)), None, host="127.0.0.1")

    for number in range(3000):
        access_check.check({b"host": b"h%d" % number})

    assert len(access_check._checked) == 1000  # pyright: ignore[reportPrivateUsage] - what it keeps cannot be seen from outside
    with pytest.raises(RefusedError):
        access_check.check({b"host": b"h5000", b"origin": b"http://evil.example"})


def test_an_encrypted_key_is_refused_at_once_and_asks_nobody_for_a_pass_phrase(
    certificate: tuple[str, str], tmp_path: Path
) -> None:
    encrypted = str(tmp_path / "encrypted.pem")
    subprocess.run(  # noqa: S603 - our own arguments
        ["openssl", "pkey", "-in", certificate[1], "-aes256", "-passout", "pass:secret", "-out", encrypted],  # noqa: S607 - wherever it is
        check=True,
        capture_output=True,
    )

    with pytest.raises(OSError, match="encrypted"):
        Http(Serving(transport="http", port=0, tls_cert=certificate[0], tls_key=encrypted))
