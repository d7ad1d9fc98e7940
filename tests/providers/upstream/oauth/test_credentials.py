"""Whoever signed in once is let in until somebody signs out: tokens are renewed, stored and noticed."""

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

from callyard import Yard
from callyard.dispatch.call import Channel
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.http.link import HttpLink
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.oauth.credentials import OAuthCredentials, load_signin
from callyard.providers.upstream.oauth.vault import LoginError, StoredLogin, Vault
from callyard.providers.upstream.provider import Upstream, make_upstream
from callyard.providers.upstream.settings import Login, UpstreamSettings

CHALLENGE = 'Bearer error="invalid_token"'
MORE = 'Bearer error="insufficient_scope", scope="write"'
CLIENT = Login(grant="client_credentials", client_id="me", client_secret="s")  # noqa: S106 - no secret


def made(authority: Authority, folder: Path, login: Login | None = None, *, poll_s: float = 1.0) -> OAuthCredentials:
    settings = UpstreamSettings(url=authority.url, login=login)
    return OAuthCredentials("shop", settings, Vault(folder, authority.url), poll_s=poll_s)


def aged(stored: StoredLogin, left: float, *, lifetime: float = 3600) -> StoredLogin:
    """Return a login whose token expires in so many seconds."""
    assert stored.token is not None
    expires = time.time() + left
    return msgspec.structs.replace(
        stored, token=msgspec.structs.replace(stored.token, expires=expires, issued=expires - lifetime)
    )


def token_in(headers: Any) -> str:
    return headers["Authorization"].removeprefix("Bearer ")


async def test_without_a_login_no_header_is_sent_until_somebody_signs_in(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    credentials = made(authority, tmp_path)
    assert credentials.ready() == {}

    with pytest.raises(LinkError, match="callyard login shop") as caught:
        await credentials.renew(authority.challenge)
    assert caught.value.kind == "unauthenticated"
    assert credentials.ready() == {}

    Vault(tmp_path, authority.url).write(await log_in())
    assert credentials.ready() is None
    assert await credentials.renew("")
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_login_outlives_the_process(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await log_in())

    credentials = made(authority, tmp_path)

    assert credentials.ready() is None
    assert await credentials.renew("")
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_refused_token_is_renewed_and_stored(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await log_in())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    before = credentials.ready()
    authority.tokens.clear()

    assert await credentials.renew(CHALLENGE)

    assert credentials.ready() != before
    again = made(authority, tmp_path)
    await again.renew("")
    assert again.ready() == credentials.ready()


@pytest.mark.parametrize(
    ("lifetime", "left", "is_due"), [(3600, 30, True), (3600, 90, False), (50, 30, False), (50, 4, True)]
)
async def test_a_token_is_renewed_before_it_expires(
    authority: Authority, log_in: SignIn, tmp_path: Path, lifetime: float, left: float, *, is_due: bool
) -> None:
    Vault(tmp_path, authority.url).write(aged(await log_in(), left, lifetime=lifetime))
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    assert (credentials.ready() is None) is is_due
    assert await credentials.renew("")
    assert len(authority.asked("/token")) == (2 if is_due else 1)
    assert token_in(credentials.ready()) in authority.tokens


async def test_a_valid_token_is_used_while_its_renewal_fails(
    authority: Authority, log_in: SignIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Vault(tmp_path, authority.url).write(aged(await log_in(), 30))
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    assert credentials.ready() is None
    authority.statuses["/token"] = 503
    with caplog.at_level(logging.WARNING):
        assert await credentials.renew("")

    assert token_in(credentials.ready()) in authority.tokens
    assert "login_not_renewed upstream=shop" in caplog.text


async def test_an_unreachable_server_does_not_require_a_new_login(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    stored = await log_in()
    Vault(tmp_path, authority.url).write(msgspec.structs.replace(stored, token_endpoint="http://127.0.0.1:9/token"))  # noqa: S106 - an address
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    with pytest.raises(LinkError) as caught:
        await credentials.renew(CHALLENGE)

    assert caught.value.kind == "unavailable"


async def test_a_revoked_login_requires_a_person(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    Vault(tmp_path, authority.url).write(await log_in())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    shown = credentials.ready()
    authority.refresh_tokens.clear()

    with pytest.raises(LinkError, match="does not accept the login any more"):
        await credentials.renew(CHALLENGE)

    assert credentials.ready() == shown  # so that it is seen when it is another


async def test_a_token_without_a_refresh_token_is_used_until_it_is_refused(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    authority.given = {"refresh_token": None}
    Vault(tmp_path, authority.url).write(aged(await log_in(), -5))
    credentials = made(authority, tmp_path)

    assert await credentials.renew("")
    assert credentials.ready() is not None
    with pytest.raises(LinkError, match="callyard login shop"):
        await credentials.renew(CHALLENGE)


async def test_several_processes_do_not_use_a_refresh_token_twice(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    Vault(tmp_path, authority.url).write(await log_in())
    several = [made(authority, tmp_path) for _ in range(4)]
    for credentials in several:
        await credentials.renew("")
    authority.tokens.clear()

    assert all(await asyncio.gather(*(credentials.renew(CHALLENGE) for credentials in several)))

    assert len([fields for fields in authority.asked("/token") if fields["grant_type"] == "refresh_token"]) == 1
    assert len({token_in(credentials.ready()) for credentials in several}) == 1


async def test_a_renewal_survives_the_cancellation_of_its_caller(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
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
    stored = vault.read()
    assert stored is not None
    assert stored.token is not None
    assert stored.token.access_token in authority.tokens


async def test_closing_a_yard_waits_for_a_renewal(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    vault = Vault(folder_of(tmp_path, "shop"), authority.url)
    vault.write(await log_in())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        authority.tokens.clear()
        authority.release.clear()
        call = asyncio.create_task(yard.call("shop__greet"))
        await until(lambda: authority.asked("/token")[1:])
        call.cancel()
        asyncio.get_running_loop().call_later(0.05, authority.release.set)

    stored = vault.read()
    assert stored is not None
    assert stored.token is not None
    assert stored.token.access_token in authority.tokens


async def test_a_request_refused_before_a_renewal_uses_the_renewed_token(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    Vault(tmp_path, authority.url).write(await log_in())
    credentials = made(authority, tmp_path)
    await credentials.renew("")
    authority.tokens.clear()

    assert all(await asyncio.gather(*(credentials.renew(CHALLENGE) for _ in range(3))))

    assert len(authority.asked("/token")) == 2
    assert token_in(credentials.ready()) in authority.tokens


async def test_another_login_and_a_logout_are_noticed(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    credentials = made(authority, tmp_path, poll_s=0)
    await credentials.renew("")
    first = credentials.ready()

    vault.write(await log_in())
    assert credentials.ready() is None
    assert await credentials.renew("")
    second = credentials.ready()
    assert token_in(second) in authority.tokens
    assert second != first

    vault.forget()
    assert credentials.ready() is None
    assert await credentials.renew("")
    assert credentials.ready() == {}


async def test_the_vault_is_polled_at_an_interval(authority: Authority, log_in: SignIn, tmp_path: Path) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    credentials = made(authority, tmp_path, poll_s=3600)
    await credentials.renew("")
    assert credentials.ready() == credentials.ready()

    vault.forget()

    assert credentials.ready() is not None


async def test_a_yard_uses_the_last_login_and_none_after_a_logout(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    credentials, settings = made(authority, tmp_path, poll_s=0), UpstreamSettings(url=authority.url)
    upstream = Upstream(
        "shop",
        settings,
        link=lambda: HttpLink("shop", settings, credentials),
        folder=tmp_path / "shop",
        credentials=credentials,
    )
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        stored = await log_in()
        vault.write(stored)
        assert (await yard.call("shop__greet")).success
        assert stored.token is not None
        assert authority.shown[-1] == ("tools/call", stored.token.access_token)

        vault.forget()
        answer = await yard.call("shop__greet")

    assert answer.error is not None
    assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("callyard login shop",))
    assert authority.shown[-1][1] == ""


async def test_a_login_written_during_a_read_is_noticed(
    authority: Authority, log_in: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    later = await log_in()
    read = Vault.read

    def slowly(self: Vault) -> StoredLogin | None:
        stored = read(self)
        vault.write(later)
        return stored

    credentials = made(authority, tmp_path, poll_s=0)
    with monkeypatch.context() as patched:
        patched.setattr(Vault, "read", slowly)
        await credentials.renew("")
    assert credentials.ready() is None
    await credentials.renew("")

    assert later.token is not None
    assert token_in(credentials.ready()) == later.token.access_token


async def test_a_valid_token_is_used_while_the_vault_cannot_be_read(
    authority: Authority, log_in: SignIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(_: Vault) -> StoredLogin | None:
        raise LoginError("The keyring does not open.")

    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    credentials = made(authority, tmp_path, poll_s=3600)
    await credentials.renew("")
    shown = credentials.ready()
    credentials = made(authority, tmp_path, poll_s=3600)
    await credentials.renew("")
    vault.write(await log_in())
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
    (400, {"error": code})
    for code in ("invalid_grant", "invalid_client", "unauthorized_client", "bad_refresh_token", "login_required")
]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [(answer, "unavailable") for answer in PASSING] + [(answer, "unauthenticated") for answer in FINAL],
)
async def test_only_final_errors_require_a_person(
    authority: Authority,
    log_in: SignIn,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    answer: tuple[int, Any],
    kind: str,
) -> None:
    Vault(tmp_path, authority.url).write(await log_in())
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    def answered(_: dict[str, str]) -> tuple[int, Any]:
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(authority, "token", answered)
        with pytest.raises(LinkError) as caught:
            await credentials.renew(CHALLENGE)

    assert caught.value.kind == kind
    assert await credentials.renew(CHALLENGE)  # once it is well again
    assert token_in(credentials.ready()) in authority.tokens


async def test_the_missing_scope_is_stored_for_the_next_login(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    vault = Vault(tmp_path, authority.url)
    vault.write(await log_in())
    credentials = made(authority, tmp_path)
    await credentials.renew("")

    for _ in range(2):
        with pytest.raises(LinkError, match="It needs 'write'"):
            await credentials.renew(MORE)

    stored = vault.read()
    assert stored is not None
    await log_in(stored)
    assert authority.asked("/authorize")[-1]["scope"] == "read write"
    with pytest.raises(LinkError, match="callyard login shop"):
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


async def test_missing_packages_are_reported(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith(("callyard.providers.upstream.oauth.", "httpx2"))]:
        if name.rpartition(".")[2] in {"signin", "servers", "httpx2"}:
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "httpx2", None)

    with pytest.raises(LinkError, match=r"pip install 'callyard\[login\]'"):
        await made(authority, tmp_path, CLIENT).renew(authority.challenge)


def test_a_defect_of_ours_is_not_taken_for_a_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "callyard.providers.upstream.oauth.signin", None)

    with pytest.raises(ModuleNotFoundError):
        load_signin()


async def test_an_authorization_header_of_the_settings_replaces_the_login(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await log_in())
    authority.tokens.clear()
    headers = {"authorization": f"Bearer {authority.grant()['access_token']}"}
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, headers=headers, pin="off"), state=tmp_path)

    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        assert (await yard.call("shop__greet")).success


async def test_a_yard_names_the_command_and_notices_the_login(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    vault = Vault(folder_of(tmp_path, "shop"), authority.url)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        assert upstream.status().state == "auth_needed"
        assert not upstream.supervisor.is_stale

        vault.write(await log_in())
        assert upstream.supervisor.is_stale  # so it is looked at soon, though there is nothing yet to call
        await upstream.supervisor.refresh()
        assert upstream.status().state == "ready"
        assert (await yard.call("shop__greet")).success

        authority.tokens.clear()
        authority.refresh_tokens.clear()
        answer = await yard.call("shop__greet")
        assert answer.error is not None
        assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("callyard login shop",))
        assert upstream.status().state == "auth_needed"

        vault.write(await log_in())
        assert (await yard.call("shop__greet")).success


async def test_a_missing_scope_for_one_tool_does_not_affect_the_others(
    authority: Authority, log_in: SignIn, tmp_path: Path
) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await log_in())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    authority.wanted = {"read", "write"}
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        answer = await yard.call("shop__greet")
        assert answer.error is not None
        assert (answer.error.code, answer.error.next_actions) == ("unauthenticated", ("callyard login shop",))
        assert upstream.status().state == "ready"

        authority.wanted = {"read"}
        assert (await yard.call("shop__greet")).success


async def test_a_login_is_renewed_after_a_refusal_without_a_challenge(
    authority: Authority, log_in: SignIn, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await log_in())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, pin="off"), state=tmp_path)
    authority.challenge = ""
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        authority.tokens.clear()
        assert (await yard.call("shop__greet")).success

        authority.tokens.clear()
        authority.refresh_tokens.clear()
        with caplog.at_level(logging.WARNING):
            answer = await yard.call("shop__greet")

    assert answer.error is not None
    assert "'callyard login shop'" in answer.error.message
    assert "upstream_changed upstream=shop state=auth_needed" in caplog.text


async def test_the_handshake_and_lists_use_the_yards_credentials_and_calls_the_callers(
    authority: Authority, tmp_path: Path
) -> None:
    authority.tokens = {"yard": "read", "ada": "read"}
    ours = {"Authorization": "Bearer yard"}
    settings = UpstreamSettings(url=authority.url, headers=ours, forward_headers=("Authorization",), pin="off")
    upstream = make_upstream("shop", settings, state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
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
async def test_a_tool_with_invalid_header_names_is_withheld_over_http(
    authority: Authority, log_in: SignIn, tmp_path: Path, era: Any
) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "a b"}}}
    authority.results["tools/list"] = {"tools": [TOOL, {**TOOL, "name": "wrong", "inputSchema": wrong}]}
    authority.results["server/discover"] = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
    Vault(folder_of(tmp_path, "shop"), authority.url).write(await log_in())
    upstream = make_upstream("shop", UpstreamSettings(url=authority.url, era=era, pin="off"), state=tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()

        assert [spec.name for spec in yard.list()] == (
            ["shop__greet"] if era == "2026" else ["shop__greet", "shop__wrong"]
        )
