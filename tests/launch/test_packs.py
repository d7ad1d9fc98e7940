"""Packs of a server: applied from settings, changed on a reload, and listed by its API."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from fake_packages import PAGE, Install, install

from callyard import Profile, Serving, Toolset, Yard
from callyard._internal.project import project_dir
from callyard.cli.terminal import Terminal
from callyard.launch.build import apply_settings, read_settings
from callyard.launch.errors import LaunchError, explain_refusal
from callyard.launch.mounts import ServerFacts
from callyard.launch.reload import LiveSettings
from callyard.launch.serve import serve_forever
from callyard.packs.pack import PackError
from callyard.transports.auth import ApiKey, ApiKeys, Authenticator, digest_of, new_key

__all__ = ["install"]

Write = Callable[..., Path]
KEEPING = PAGE.replace("lambda context: Functions", "lambda context: context.folder() and Functions")
TOKEN = "a-token-of-the-test"  # noqa: S105 - no real one


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names(yard: Yard) -> list[str]:
    return [spec.name for spec in yard.list()]


def configured(yard: Yard) -> LiveSettings:
    """Apply the settings of the folder to a yard, and return what reloads them."""
    terminal = Terminal()
    config = read_settings({}, terminal, path=None, in_code=True)
    apply_settings(yard, config, terminal)
    return LiveSettings(yard, config, terminal, read=lambda: read_settings({}, terminal, path=None, in_code=True))


async def test_a_pack_of_the_settings_keeps_its_state_in_the_folder_of_the_project(
    install: Install, write: Write, tmp_path: Path
) -> None:
    install("page", KEEPING)
    write(f'packs = ["page"]\nstate_dir = "{tmp_path / "state"}"\n', "callyard.toml")
    yard = Yard()
    configured(yard)
    async with yard:
        assert names(yard) == ["page_read"]

    assert (project_dir(tmp_path / "state", str(tmp_path)) / "packs" / "page").is_dir()


def test_a_table_of_a_pack_that_is_not_named_is_refused_with_its_file(write: Write) -> None:
    write("[pack.systm]\na = 1\n", "callyard.toml")

    with pytest.raises(LaunchError, match=r"callyard\.toml.*'system'"):
        configured(Yard(packs=["system"]))


async def test_a_toolset_of_a_pack_is_what_a_profile_of_the_settings_names(
    install: Install, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    install(
        "page",
        PAGE.replace("Functions, Pack,", "Functions, Pack, Toolset,").replace(
            'Pack(name="page"', 'Pack(toolsets=Toolset(name="page_all", names=("page_*",)), name="page"'
        ),
    )
    wrong = 'packs = ["system", "page"]\nprofile = "few"\n[profiles.few]\ntoolsets = ["page_al"]\n'
    write('packs = ["system", "page"]\nprofile = "few"\n[profiles.few]\ntoolsets = ["page_all"]\n', "callyard.toml")
    yard = Yard(metatools=False)
    live = configured(yard)
    async with yard:
        before = names(yard)
        assert await live.reload()
        after = names(yard)
        write(wrong, "callyard.toml")
        assert await live.reload()
        nothing = names(yard)

    assert before == after == ["page_read"]
    assert nothing == []
    assert "'page_al'" in capsys.readouterr().err


async def test_a_reload_opens_and_closes_packs_and_only_the_wrong_one_fails(
    install: Install, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    install("page")
    install("bad", "raise OSError('no disk')")
    write('packs = ["system"]', "callyard.toml")
    yard = Yard()
    live = configured(yard)
    async with yard:
        write('packs = ["system", "page", "bad"]', "callyard.toml")
        assert await live.reload()
        first, said = names(yard), capsys.readouterr().err
        write('packs = ["page", "nothing"]', "callyard.toml")
        assert await live.reload()
        unchanged, refused = names(yard), capsys.readouterr().err
        write("packs = []\nshape = 'envelope'\n", "callyard.toml")
        assert await live.reload()
        last = names(yard)

    assert "page_read" in first
    assert "ping" in first
    assert "'callyard-bad'" in said
    assert unchanged == ["page_read"]
    assert "'nothing'" in refused
    assert last == []


async def test_a_yard_that_does_not_open_for_a_pack_says_the_sentence_of_the_pack(install: Install) -> None:
    install("bad", "raise OSError('no disk')")
    yard = Yard(packs=["bad"])
    with pytest.raises(PackError) as caught:
        async with yard:
            raise AssertionError

    assert explain_refusal(caught.value, yard) == str(caught.value)


@asynccontextmanager
async def served(
    yard: Yard, token: str = "", authenticator: Authenticator | None = None
) -> AsyncGenerator[httpx2.AsyncClient]:
    """Serve a yard with the paths beside '/mcp', and yield a client of them."""
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.ensure_future(
        serve_forever(
            yard,
            Serving(transport="http", port=0),
            authenticator,
            mounted=[ServerFacts(yard, token, is_authenticated=authenticator is not None)],
            ready=lambda transport: ready.set_result(transport.info().address.removesuffix("/mcp")),
        )
    )
    try:
        async with httpx2.AsyncClient(base_url=await ready, trust_env=False) as client:
            yield client
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


async def test_everybody_may_read_what_a_server_is_and_nobody_without_the_token_its_packs(install: Install) -> None:
    install("page")
    few = Profile(name="few", toolsets=(Toolset(name="own", sources=("system",)),))
    async with served(Yard("secret-name", packs=["system", "page"], profile=few), TOKEN) as client:
        text = await client.get("/llms.txt")
        posted = await client.post("/llms.txt")
        refused = await client.get("/api/packs")
        packs = await client.get("/api/packs", headers={"Authorization": f"Bearer {TOKEN}"})

    assert (text.status_code, text.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert text.text.startswith("# Callyard")
    assert "secret-name" not in text.text
    assert (posted.status_code, refused.status_code) == (405, 401)
    assert [(pack["name"], pack["state"]) for pack in packs.json()] == [("system", "open"), ("page", "open")]


async def test_a_caller_with_credentials_sees_the_packs_of_its_profile(install: Install) -> None:
    install("page")
    key = new_key()
    few = Profile(name="few", toolsets=(Toolset(name="own", sources=("system",)),))
    keys = ApiKeys([ApiKey("ann", digest_of(key), "few")])
    async with served(Yard(packs=["system", "page"], profiles=[few]), authenticator=keys) as client:
        refused = await client.get("/api/packs")
        packs = await client.get("/api/packs", headers={"Authorization": f"Bearer {key}"})
        text = await client.get("/llms.txt")

    assert refused.status_code == 401
    assert [pack["name"] for pack in packs.json()] == ["system"]
    assert text.status_code == 200


def test_without_token_and_authentication_there_is_no_list_of_packs() -> None:
    assert list(ServerFacts(Yard(), "", is_authenticated=False).mounts) == ["/llms.txt", "/streamz"]
    assert set(ServerFacts(Yard(), TOKEN, is_authenticated=False).mounts) == {"/llms.txt", "/streamz", "/api/packs"}
