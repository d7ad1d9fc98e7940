"""Links against servers that people have: our own yard in every way it is served, and the official SDK's."""

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from raw_servers import Connect, RecordingListener

from callyard import Call, Serving, Yard, tool
from callyard.launch.serve import serve_forever
from callyard.providers.upstream.http import SseLink, client
from callyard.wire.messages import encode_notification
from callyard.wire.params import Client, Requests
from callyard.wire.versions import VERSIONS

TWIN = Path(__file__).parents[3] / "interop" / "sdk_twin.py"
CLIENT = Client("t", "1")


@tool
async def add(a: int, b: int, call: Call) -> int:
    """Add two numbers, and say so."""
    call.progress(1, 2, "adding")
    return a + b


@pytest.fixture
async def served() -> AsyncGenerator[Callable[..., Awaitable[str]]]:
    """Return how a yard is served; its address is returned."""
    tasks: list[asyncio.Task[None]] = []

    async def start(**settings: Any) -> str:
        ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        chosen: dict[str, Any] = {"transport": "http", "port": 0, **settings}
        serving = Serving(**chosen)
        served = serve_forever(
            Yard(tools=[add]), serving, ready=lambda transport: ready.set_result(transport.info().address)
        )
        tasks.append(asyncio.create_task(served))
        return await asyncio.wait_for(ready, 60)

    yield start
    for task in tasks:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def answer_to(listener: RecordingListener, number: int) -> tuple[Any, list[str]]:
    """Return the answer to a request, and the methods of what was said before."""
    said: list[str] = []
    while True:
        kind, message, _ = await listener.next()
        assert kind == "message", message
        if message.get("id") == number:
            return message, said
        said.append(message["method"])


async def greet(link: Any, listener: RecordingListener, version: str) -> Requests:
    """Shake hands, if that version does."""
    requests = Requests(VERSIONS[version], CLIENT)
    if not requests.version.modern:
        link.send(requests.initialize(0, {}), 0, {})
        answer, _ = await answer_to(listener, 0)
        assert answer["result"]["protocolVersion"] == version
        link.send(encode_notification("notifications/initialized"), None, requests.headers("", None))
        link.listen()
    return requests


async def add_on(
    link: Any, listener: RecordingListener, requests: Requests, *, token: int | None = None
) -> tuple[Any, list[str]]:
    """Add two numbers over there."""
    meta = {} if token is None else {"progressToken": token}
    sent = requests.encode(5, "tools/call", {"name": "add", "arguments": {"a": 2, "b": 3}}, meta=meta)
    link.send(sent, 5, requests.headers("tools/call", "add"))
    return await answer_to(listener, 5)


@pytest.mark.parametrize("json_response", [False, True])
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "2025-03-26"])
async def test_a_yard_is_called_in_every_era_and_answers_as_json_or_on_a_stream(
    served: Any, connect: Connect, version: str, *, json_response: bool
) -> None:
    link, listener = await connect(await served(json_response=json_response))
    requests = await greet(link, listener, version)

    answer, said = await add_on(link, listener, requests, token=5)
    quiet, _ = await add_on(link, listener, requests)

    assert [json.loads(one["result"]["content"][0]["text"])["data"] for one in (answer, quiet)] == [5, 5]
    assert said == ([] if json_response else ["notifications/progress"])


async def test_an_unknown_method_is_answered_with_an_error(served: Any, connect: Connect) -> None:
    link, listener = await connect(await served())
    requests = await greet(link, listener, "2026-07-28")

    link.send(requests.encode(5, "tools/none", {}), 5, requests.headers("tools/none", None))
    answer, _ = await answer_to(listener, 5)

    assert answer["error"]["code"] == -32601


async def test_a_session_that_a_yard_has_ended_is_lost(served: Any, connect: Connect) -> None:
    url = await served()
    link, listener = await connect(url)
    requests = await greet(link, listener, "2025-11-25")
    other, _ = await connect(url)
    other._sender.head.session = link._sender.head.session
    await other.close()

    link.send(requests.encode(5, "tools/list", {}), 5, requests.headers("tools/list", None))

    assert (await listener.loss(5)).kind == "session_lost"


async def test_a_yard_over_the_legacy_transport_is_called(served: Any, connect: Connect) -> None:
    link, listener = await connect(await served(transport="sse"), kind=SseLink, transport="sse")
    requests = await greet(link, listener, "2024-11-05")

    answer, said = await add_on(link, listener, requests, token=5)

    assert json.loads(answer["result"]["content"][0]["text"])["data"] == 5
    assert said == ["notifications/progress"]


@pytest.fixture
async def twin() -> AsyncGenerator[str]:
    """Run the official SDK's server; its address is returned."""
    settings = json.dumps({"transport": "http"})
    process = await asyncio.create_subprocess_exec(sys.executable, str(TWIN), settings, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    yield (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
    process.terminate()
    await process.wait()


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_the_official_server_is_called_in_both_eras(twin: str, connect: Connect, version: str) -> None:
    link, listener = await connect(twin)
    requests = await greet(link, listener, version)

    answer, _ = await add_on(link, listener, requests)
    link.send(requests.encode(6, "tools/list", {}), 6, requests.headers("tools/list", None))
    listed, _ = await answer_to(listener, 6)

    assert answer["result"]["structuredContent"] == {"result": 5}
    assert {entry["name"] for entry in listed["result"]["tools"]} >= {"add", "echo", "fail"}


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[str, str]:
    """Return a certificate for this machine that signs itself, and its key."""
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    made = [
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
        *names,
    ]
    subprocess.run([*made, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True)  # noqa: S603 - our own
    return str(cert), str(key)


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[[str, str], None]]:
    """Return how the environment is changed before whom we trust is read."""
    client.tls_context.cache_clear()
    yield monkeypatch.setenv
    client.tls_context.cache_clear()


async def test_a_server_whose_certificate_is_trusted_is_called(
    served: Any, connect: Connect, certificate: tuple[str, str], forgetful: Any
) -> None:
    forgetful("SSL_CERT_FILE", certificate[0])
    link, listener = await connect(await served(tls_cert=certificate[0], tls_key=certificate[1]))
    requests = await greet(link, listener, "2026-07-28")

    for _ in range(2):
        answer, _ = await add_on(link, listener, requests)

        assert answer["result"]["structuredContent"]["data"] == 5
    assert client.tls_context() is client.tls_context()


async def test_a_server_whose_certificate_is_not_trusted_is_not_called(
    served: Any, connect: Connect, certificate: tuple[str, str], forgetful: Any
) -> None:
    forgetful("SSL_CERT_FILE", "")
    link, listener = await connect(await served(tls_cert=certificate[0], tls_key=certificate[1]))

    link.send(b"{}", 1, {})
    error = await listener.loss(1)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "not trusted" in error.message


async def test_a_server_without_tls_is_not_called_with_it(served: Any, connect: Connect) -> None:
    url = (await served()).replace("http://", "https://")
    link, listener = await connect(url)

    link.send(b"{}", 1, {})
    error = await listener.loss(1)

    assert (error.kind, error.sent) == ("unavailable", False)
    assert "TLS" in error.message


def test_old_versions_of_tls_are_disabled() -> None:
    assert client.tls_context().minimum_version == ssl.TLSVersion.TLSv1_2
