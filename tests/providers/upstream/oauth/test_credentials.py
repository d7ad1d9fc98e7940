"""Whoever signed in once is let in until somebody signs out: tokens are renewed, kept and noticed."""

import asyncio
import logging
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from authority import TOOL, Authority, SignIn
from scripted import until

from toolyard import Yard
from toolyard.dispatch.call import Channel
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.http.link import HttpLink
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.oauth.credentials import SignedIn, load_signing
from toolyard.providers.upstream.oauth.metadata import LoginError, StoredLogin
from toolyard.providers.upstream.oauth.vault import Vault
from toolyard.providers.upstream.provider import Upstream, make_upstream
from toolyard.providers.upstream.settings import Login, UpstreamSettings

CHALLENGE = 'Bearer error="invalid_token"'
MORE = 'Bearer error="insufficient_scope", scope="write"'
CLIENT = Login(grant="client_credentials", client_id="me", client_secret="s")  # noqa: S106 - no secret


def made(authority: Authority, folder: Path, login: Login | None = None, *, beat: float = 1.0) -> SignedIn:
    return SignedIn("shop", UpstreamSettings(url=authority.url, login=login), folder, beat=beat)


def aged(kept: StoredLogin, left: float, *, without_mcp_headers: float = 3600) -> StoredLogin:
    """Return a login whose token runs out in so many seconds."""
    assert kept.token is not None
    expires = time.time() + left
    return msgspec.structs.replace(kept, token=msgspec.structs.replace(kept.token, expires=expires, began=expires - without_mcp_headers))


def token_in(headers: Any) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


async def test_without_a_login_nothing_is_shown_until_somebody_signs_in(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    credentials = made(authority, tmp_path)
    assert credentials.ready() == {}

    with pytest.raises(LinkError, match="toolyard login shop") as caught:
        await credentials.renew(authority.challenge)
    assert caught.value.kind == "unauthenticated"
    assert credentials.ready() == {}

    Vault(tmp_path, authority.url).write(await signed())
    assert credentials.ready() is None
    assert await credentials.renew("")
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_login_outlives_the_process(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await signed())

    credentials = made(authority, tmp_path)

    assert credentials.ready() is None
    assert await credentials.renew("")
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_token_that_is_refused_is_renewed_and_kept(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    before = credentials.ready()
    authority.tokens.clear()

    assert await credentials.renew(CHALLENGE)

    assert credentials.ready() != before
    again = made(authority, tmp_path)
    await again.renew("")
    assert again.ready() == credentials.ready()


@pytest.mark.parametrize(("without_mcp_headers", "left", "is_due"), [(3600, 30, True), (3600, 90, False), (50, 30, False), (50, 4, True)])
async def test_a_token_is_renewed_before_it_runs_out(
    authority: Authority, signed: SignIn, tmp_path: Path, without_mcp_headers: float, left: float, *, is_due: bool
) -> None:
    Vault(tmp_path, authority.url).write(aged(await signed(), left, without_mcp_headers=without_mcp_headers))
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    assert (credentials.ready() is None) is is_due
    assert await credentials.renew("")
    assert len(authority.asked("/token")) == (2 if is_due else 1)
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_token_that_is_still_good_is_shown_while_it_cannot_be_renewed(
    authority: Authority, signed: SignIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Vault(tmp_path, authority.url).write(aged(await signed(), 30))
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    assert credentials.ready() is None
    authority.statuses["/token"] = 503
    with caplog.at_level(logging.WARNING):
        assert await credentials.renew("")

    assert token_in(credentials.ready()) in authority.tokens
    assert "login_not_renewed upstream=shop" in caplog.text


async def test_a_server_that_cannot_be_reached_is_no_reason_to_sign_in_again(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    kept = await signed()
    Vault(tmp_path, authority.url).write(msgspec.structs.replace(kept, token_endpoint="http://127.0.0.1:9/token"))  # noqa: S106 - an address
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    with pytest.raises(LinkError) as caught:
        await credentials.renew(CHALLENGE)

    assert caught.value.kind == "unavailable"


async def test_a_login_that_was_ended_elsewhere_wants_a_person(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    shown = credentials.ready()
    authority.refresh_tokens.clear()

    with pytest.raises(LinkError, match="does not take the login any more"):
        await credentials.renew(CHALLENGE)

    assert credentials.ready() == shown  # so that it is seen when it is another


async def test_a_token_without_a_way_to_renew_is_shown_to_the_end(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    authority.given = {"refresh_token": None}
    Vault(tmp_path, authority.url).write(aged(await signed(), -5))
    credentials = made(authority, tmp_path)

    assert await credentials.renew("")
    assert credentials.ready() is not None
    with pytest.raises(LinkError, match="toolyard login shop"):
        await credentials.renew(CHALLENGE)


async def test_several_processes_do_not_use_a_refresh_token_twice(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await signed())
    several = [made(authority, tmp_path) for _ in range(4)]
    for credentials in several:
        await credentials.renew("")
    authority.tokens.clear()

    assert all(await asyncio.gather(*(credentials.renew(CHALLENGE) for credentials in several)))

    assert len([fields for fields in authority.asked("/token") if fields["grant_type"] == "refresh_token"]) == 1
    assert len({token_in(credentials.ready()) for credentials in several}) == 1


async def test_a_renewal_goes_on_though_nobody_waits_for_it(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    authority.tokens.clear()
    authority.release.clear()
    waiting = asyncio.create_task(credentials.renew(CHALLENGE))
    await until(lambda: authority.asked("/token")[1:])

    waiting.cancel()
    await asyncio.wait([waiting])
    authority.release.set()
    await credentials.close()

    assert waiting.cancelled()
    assert token_in(credentials.ready()) in authority.tokens
    kept = vault.read()
    assert kept is not None
    assert kept.token is not None
    assert kept.token.access_token in authority.tokens


async def test_a_yard_that_closes_waits_for_a_renewal(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    vault = Vault(folder_of(tmp_path, "shop"), authority.url)
    vault.write(await signed())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        authority.tokens.clear()
        authority.release.clear()
        call = asyncio.create_task(yard.call("shop__greet"))
        await until(lambda: authority.asked("/token")[1:])
        call.cancel()
        asyncio.get_running_loop().call_later(0.05, authority.release.set)

    kept = vault.read()
    assert kept is not None
    assert kept.token is not None
    assert kept.token.access_token in authority.tokens


async def test_one_that_was_refused_before_a_renewal_takes_what_it_brought(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    authority.tokens.clear()

    assert all(await asyncio.gather(*(credentials.renew(CHALLENGE) for _ in range(3))))

    assert len(authority.asked("/token")) == 2
    assert token_in(credentials.ready()) in authority.tokens


async def test_another_login_and_a_logout_are_noticed(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials = made(authority, tmp_path, beat=0)
    await credentials.renew("")
    first = credentials.ready()

    vault.write(await signed())
    assert credentials.ready() is None
    assert await credentials.renew("")
    second = credentials.ready()
    assert token_in(second) in authority.tokens
    assert second != first

    vault.forget()
    assert credentials.ready() is None
    assert await credentials.renew("")
    assert credentials.ready() == {}


async def test_what_is_kept_is_looked_at_once_a_beat(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials = made(authority, tmp_path, beat=3600)
    await credentials.renew("")
    assert credentials.ready() == credentials.ready()

    vault.forget()

    assert credentials.ready() is not None


async def test_a_yard_acts_for_whoever_signed_in_last_and_for_nobody_who_signed_out(
    authority: Authority, signed: SignIn, tmp_path: Path
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials, settings = made(authority, tmp_path, beat=0), UpstreamSettings(url=authority.url)
    upstream = Upstream("shop", settings, link=lambda: HttpLink("shop", settings, credentials), credentials=credentials)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        kept = await signed()
        vault.write(kept)
        assert (await yard.call("shop__greet")).success
        assert kept.token is not None
        assert authority.shown[-1] == ("tools/call", kept.token.access_token)

        vault.forget()
        answer = await yard.call("shop__greet")

    assert answer.error is not None
    assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("toolyard login shop",))
    assert authority.shown[-1][1] == ""


async def test_a_login_that_is_written_while_another_is_read_is_noticed(
    authority: Authority, signed: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    later = await signed()
    read = Vault.read

    def slowly(self: Vault) -> StoredLogin | None:
        kept = read(self)
        vault.write(later)
        return kept

    credentials = made(authority, tmp_path, beat=0)
    with monkeypatch.context() as patched:
        patched.setattr(Vault, "read", slowly)
        await credentials.renew("")
    assert credentials.ready() is None
    await credentials.renew("")

    assert later.token is not None
    assert token_in(credentials.ready()) == later.token.access_token


async def test_a_token_that_is_still_good_is_shown_while_another_cannot_be_read(
    authority: Authority, signed: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Vault) -> StoredLogin | None:
        raise LoginError("The keyring does not open.")

    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials = made(authority, tmp_path, beat=3600)
    await credentials.renew("")
    shown = credentials.ready()
    credentials = made(authority, tmp_path, beat=3600)
    await credentials.renew("")
    vault.write(await signed())
    monkeypatch.setattr(Vault, "read", closed)

    assert credentials.ready() is None
    assert await credentials.renew("")
    assert credentials.ready() == shown


PASSING: list[tuple[int, Any]] = [
    (429, {"error": "invalid_request"}),
    (429, b"Slow down."),
    (400, {"error": "temporarily_unavailable"}),
    (400, {"error": {"code": "rate_limited"}}),
    (200, b"<p>We will be back soon.</p>"),
    (200, b"x" * 2_000_000),
    (200, {"message": "We will be back soon."}),
    (503, {"error": "invalid_grant"}),
]
FINAL = [
    (400, {"error": code}) for code in ("invalid_grant", "invalid_client", "unauthorized_client", "bad_refresh_token", "login_required")
]


@pytest.mark.parametrize(
    ("answer", "trouble"), [(answer, "unavailable") for answer in PASSING] + [(answer, "unauthenticated") for answer in FINAL]
)
async def test_only_what_a_person_can_mend_wants_a_person(
    authority: Authority, signed: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: tuple[int, Any], trouble: str
) -> None:
    Vault(tmp_path, authority.url).write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    def answered(_: dict[str, str]) -> tuple[int, Any]:
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(authority, "token", answered)
        with pytest.raises(LinkError) as caught:
            await credentials.renew(CHALLENGE)

    assert caught.value.kind == trouble
    assert await credentials.renew(CHALLENGE)  # once it is well again
    assert token_in(credentials.ready()) in authority.tokens


async def test_what_more_is_wanted_is_noted_for_the_next_login(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await signed())
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    for _ in range(2):
        with pytest.raises(LinkError, match="It names 'write'"):
            await credentials.renew(MORE)

    kept = vault.read()
    assert kept is not None
    await signed(kept)
    assert authority.asked("/authorize")[-1]["scope"] == "read write"
    with pytest.raises(LinkError, match="asks for more"):
        await credentials.renew('Bearer error="insufficient_scope"')


async def test_a_client_gets_tokens_by_itself(authority: Authority, tmp_path: Path) -> None:
    credentials = made(authority, tmp_path, CLIENT)
    assert credentials.ready() == {}

    assert await credentials.renew(authority.challenge)
    first = credentials.ready()
    assert token_in(first) in authority.tokens
    assert await credentials.renew(MORE)
    assert authority.asked("/token")[-1]["scope"] == "read write"
    with pytest.raises(LinkError, match="'write'"):
        await credentials.renew(MORE)  # it was asked for, and did not help


async def test_what_signs_in_may_be_missing(authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("toolyard.providers.upstream.oauth.", "httpx2"))]:
        if name.rpartition(".")[2] in {"signin", "http", "discovery", "httpx2"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)

    with pytest.raises(LinkError, match=r"pip install 'toolyard\[login\]'"):
        await made(authority, tmp_path, CLIENT).renew(authority.challenge)


def test_a_defect_of_ours_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "toolyard.providers.upstream.oauth.signin", None)

    with pytest.raises(ModuleNotFoundError):
        load_signing()


async def test_who_says_already_who_calls_shows_no_login(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await signed())
    authority.tokens.clear()
    headers = {"authorization": f"Bearer {authority.grant()['access_token']}"}
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, headers=headers, pin="off"), state=tmp_path)

    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        assert (await yard.call("shop__greet")).success


async def test_a_yard_says_what_to_do_and_notices_that_it_was_done(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    vault = Vault(folder_of(tmp_path, "shop"), authority.url)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        assert upstream.status().state == "auth_needed"
        assert not upstream.supervisor.is_stale

        vault.write(await signed())
        assert upstream.supervisor.is_stale  # so it is looked at soon, though there is nothing yet to call
        await upstream.supervisor.refresh()
        assert upstream.status().state == "ready"
        assert (await yard.call("shop__greet")).success

        authority.tokens.clear()
        authority.refresh_tokens.clear()
        answer = await yard.call("shop__greet")
        assert answer.error is not None
        assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("toolyard login shop",))
        assert upstream.status().state == "auth_needed"

        vault.write(await signed())
        assert (await yard.call("shop__greet")).success


async def test_what_one_tool_may_not_do_keeps_nobody_from_the_others(authority: Authority, signed: SignIn, tmp_path: Path) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await signed())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    authority.wanted = {"read", "write"}
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        answer = await yard.call("shop__greet")
        assert answer.error is not None
        assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("toolyard login shop",))
        assert upstream.status().state == "ready"

        authority.wanted = {"read"}
        assert (await yard.call("shop__greet")).success


async def test_a_login_is_renewed_also_if_the_upstream_refuses_without_a_word(
    authority: Authority, signed: SignIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await signed())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    authority.challenge = ""
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        authority.tokens.clear()
        assert (await yard.call("shop__greet")).success

        authority.tokens.clear()
        authority.refresh_tokens.clear()
        with caplog.at_level(logging.WARNING):
            answer = await yard.call("shop__greet")

    assert answer.error is not None
    assert "'toolyard login shop'" in answer.error.message
    assert "upstream_changed upstream=shop state=auth_needed" in caplog.text


async def test_the_yard_greets_and_lists_as_itself_and_calls_as_whoever_calls(authority: Authority, tmp_path: Path) -> None:
    authority.tokens = {"yard": "read", "ada": "read"}
    ours = {"Authorization": "Bearer yard"}
    settings = UpstreamSettings(url=authority.url, headers=ours, forward_headers=("Authorization",), pin="off")
    upstream = make_upstream("shop", settings, state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()
        ada, eve = (Channel(forwarded={"authorization": f"Bearer {who}"}) for who in ("ada", "eve"))
        assert (await yard.call("shop__greet", channel=ada)).success
        answer = await yard.call("shop__greet", channel=eve)
        assert (await yard.call("shop__greet", channel=ada)).success
        assert upstream.status().state == "ready"

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame, answer.error.next_actions) == ("unauthenticated", "caller", ())
    assert [who for method, who in authority.shown if method == "tools/call"] == ["ada", "eve", "ada"]
    assert {who for method, who in authority.shown if method != "tools/call"} == {"yard"}


@pytest.mark.parametrize("era", ["2025", "2026"])
async def test_a_tool_that_says_wrongly_which_headers_it_wants_is_withheld_where_they_would_be_sent(
    authority: Authority, signed: SignIn, tmp_path: Path, era: Any
) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}
    authority.results["tools/list"] = {"tools": [TOOL, {**TOOL, "name": "wrong", "inputSchema": wrong}]}
    authority.results["server/discover"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await signed())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, era=era, pin="off"), state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.settled()

        assert [spec.name for spec in yard.list()] == (["shop__greet"] if era == "2026" else ["shop__greet", "shop__wrong"])
