"""The console's token: kept over restarts in a private file, or given by the environment; agents need it, too."""

import asyncio
import stat
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import httpx2
import pytest

from callyard import Serving, Yard, tool
from callyard._internal.project import project_dir
from callyard.config import read_config
from callyard.dispatch.call import Caller
from callyard.launch.errors import LaunchError
from callyard.launch.mounts import VARIABLE, load_token, need_token
from callyard.launch.serve import serve_forever
from callyard.policy.approvals import local_user
from callyard.transports.http.app import Mount
from callyard.transports.http.request import Request
from callyard.transports.http.response import ResponseWriter

TOKEN = "a-token-of-the-test"  # noqa: S105 - no real one


def config_of(folder: Path) -> Any:
    path = folder / "callyard.toml"
    path.write_text(f"state_dir = '{folder / 'state'}'\n")
    return read_config({}, path=str(path), environment={})


def test_the_token_survives_restarts_in_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    first, second = load_token(config), load_token(config)
    file = project_dir(tmp_path / "state", config.project) / "console-token"

    assert first == second == file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_environment_gives_the_token_and_no_file_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, TOKEN)

    assert load_token(config_of(tmp_path)) == TOKEN
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("token", ["short", "with a blank in its middle", "é" * 20, "line\nline\nline\nline"])
def test_a_token_that_is_short_or_no_header_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv(VARIABLE, token)

    with pytest.raises(LaunchError, match=VARIABLE):
        load_token(config_of(tmp_path))


@pytest.mark.parametrize("fault", ["readable", "short", "no folder"])
def test_a_file_that_cannot_be_trusted_is_not_used_and_the_log_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: str
) -> None:
    config = config_of(tmp_path)
    file = project_dir(tmp_path / "state", config.project) / "console-token"
    if fault == "no folder":
        (tmp_path / "state").write_text("")
    else:
        file.parent.mkdir(parents=True)
        file.write_text(TOKEN if fault == "readable" else "x")
        file.chmod(0o644 if fault == "readable" else 0o600)

    assert load_token(config) != load_token(config)
    assert "console_token_not_kept" in caplog.text


class Part:
    """A part of a server that answers with who asks."""

    def __init__(self) -> None:
        self.callers: list[Caller] = []

    async def _answer(self, request: Request, writer: ResponseWriter) -> None:
        self.callers.append(request.caller)
        await writer.respond(200, b"{}")

    @property
    def mounts(self) -> dict[str, Mount]:
        paths = ("/api/sessions", "/api/interactions", "/api/openapi.json")
        return need_token({path: Mount(handle=self._answer, has_subpaths=True) for path in paths}, TOKEN)

    def open(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()


@asynccontextmanager
async def served(part: Part) -> AsyncGenerator[httpx2.AsyncClient]:
    @tool(operation="query")
    async def echo(text: str) -> str:
        """Answer with the text."""
        return text

    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    serving = Serving(transport="http", port=0)
    server = asyncio.ensure_future(
        serve_forever(
            Yard("shop", tools=[echo]),
            serving,
            mounted=[part],
            ready=lambda transport: ready.set_result(transport.info().address.removesuffix("/mcp")),
        )
    )
    try:
        async with httpx2.AsyncClient(base_url=await ready, trust_env=False) as client:
            yield client
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


async def test_a_caller_without_the_token_decides_nothing() -> None:
    part = Part()
    paths = ("/api/sessions", "/api/sessions/x/messages", "/api/interactions/x/approve")
    nothing: dict[str, str] = {}
    wrong = (nothing, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}, {"X-API-Key": TOKEN})
    async with served(part) as client:
        refused = [await client.post(path, headers=headers) for path in paths for headers in wrong]
        right = [await client.post(path, headers={"Authorization": f"bearer {TOKEN}"}) for path in paths]
        described = await client.get("/api/openapi.json")
        listed = await client.post(
            "/mcp",
            json={"jsonrpc": "2.0", "id": 1, "method": "ping"},
            headers={"Accept": "application/json, text/event-stream"},
        )

    assert {response.status_code for response in refused} == {401}
    assert {response.headers["www-authenticate"] for response in refused} == {"Bearer"}
    assert {response.status_code for response in right} == {200}
    assert {caller.identity for caller in part.callers[:3]} == {local_user()}
    assert described.status_code == 200
    assert listed.status_code != 401
