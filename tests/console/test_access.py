"""Who may read the console and who may act: logins, requests of other sites, frames and other host names."""

import re
from typing import Any

import pytest

from toolyard import Yard, tool
from toolyard.transports.auth import digest_of

OPERATOR, CALLER = "ty_operator", "ty_caller"
KEYS = f"""
[auth]
api_keys = [
  {{ name = "ada", digest = "{digest_of(OPERATOR)}", operator = true }},
  {{ name = "bot", digest = "{digest_of(CALLER)}" }},
]
"""


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


def shop() -> Yard:
    return Yard("shop", tools=[echo])


async def test_on_loopback_everybody_reads_and_nobody_changes_without_the_printed_address(serve: Any) -> None:
    async with serve(shop()) as served:
        page = await served.client.get("/console")
        change = await served.client.post("/console/logout", data={"csrf": ""})
        home = await served.client.get("/")

    assert page.status_code == 200
    assert 'data-csrf=""' in page.text
    assert "Log in" in page.text
    assert change.status_code == 403
    assert (home.status_code, home.headers["location"]) == (303, "/console")


async def test_the_printed_address_sets_a_cookie_once_and_leaves_no_token_in_the_url(serve: Any) -> None:
    async with serve(shop()) as served:
        response = await served.client.get(served.login)
        cookie = response.headers["set-cookie"]
        wrong = await served.client.get("/console?token=wrong")
        page = await served.client.get("/console", headers={"Cookie": cookie.partition(";")[0]})

    assert (response.status_code, response.headers["location"]) == (303, "/console")
    assert {"HttpOnly", "SameSite=Strict", "Path=/console"} <= set(cookie.split("; "))
    assert served.login.partition("token=")[2] not in page.text
    assert wrong.status_code == 403
    assert "set-cookie" not in wrong.headers
    assert "Log out" in page.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
    ],
)
async def test_another_site_cannot_change_anything_even_with_the_cookie_and_the_token(serve: Any, headers: dict[str, str]) -> None:
    async with serve(shop()) as served:
        cookie, csrf = await served.person()
        refused = await served.client.post("/console/logout", data={"csrf": csrf}, headers={**cookie, **headers})
        still = await served.client.get("/console", headers=cookie)
        own = await served.client.post("/console/logout", data={"csrf": csrf}, headers={**cookie, "Origin": served.base})

    assert refused.status_code == 403
    assert "Log out" in still.text
    assert own.status_code == 303


@pytest.mark.parametrize("token", ["", "x", "é"])
async def test_the_cookie_alone_changes_nothing(serve: Any, token: str) -> None:
    async with serve(shop()) as served:
        cookie, _ = await served.person()
        refused = await served.client.post("/console/logout", data={"csrf": token}, headers=cookie)

    assert refused.status_code == 403


async def test_a_page_that_somebody_read_without_a_login_helps_nobody_to_act(serve: Any) -> None:
    async with serve(shop()) as served:
        cookie, csrf = await served.person()
        page = await served.client.get("/console")
        without_cookie = await served.client.post("/console/logout", data={"csrf": csrf})
        logged_out = await served.client.post("/console/logout", data={"csrf": csrf}, headers=cookie)
        later = await served.client.post("/console/logout", data={"csrf": csrf}, headers=cookie)

    assert csrf not in page.text
    assert without_cookie.status_code == 403
    assert (logged_out.status_code, later.status_code) == (303, 403)


async def test_pages_cannot_be_framed_or_read_by_other_origins_and_run_no_scripts_but_their_own(serve: Any) -> None:
    async with serve(shop()) as served:
        page = await served.client.get("/console", headers={"Origin": "http://localhost:1234"})
        script = await served.client.get(re.findall(r'src="([^"]+console\.js[^"]*)"', page.text)[0])

    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert "access-control-allow-origin" not in page.headers
    assert "no-store" in page.headers["cache-control"]
    assert (script.status_code, "immutable" in script.headers["cache-control"]) == (200, True)
    assert not re.findall(r"<script(?![^>]*\bsrc=)|\son\w+=|\sstyle=", page.text)


@pytest.mark.parametrize("path", ["/", "/console", "/console/live", "/console/static/console.js", "/console/login"])
async def test_another_host_name_reaches_no_page(serve: Any, path: str) -> None:
    async with serve(shop()) as served:
        assert (await served.client.get(path, headers={"Host": "rebound.example"})).status_code == 421


async def test_where_callers_need_credentials_only_operators_read(serve: Any) -> None:
    async with serve(shop(), KEYS) as served:
        closed = await served.client.get("/console")
        with_key = await served.client.get("/console", headers={"Authorization": f"Bearer {OPERATOR}"})
        caller = await served.client.post("/console/login", data={"credentials": CALLER})
        wrong = await served.client.post("/console/login", data={"credentials": "é"})
        foreign = await served.client.post("/console/login", data={"credentials": OPERATOR}, headers={"Origin": "https://evil.example"})
        operator = await served.client.post("/console/login", data={"credentials": OPERATOR})
        cookie = {"Cookie": operator.headers["set-cookie"].partition(";")[0]}
        page = await served.client.get("/console", headers=cookie)
        forged = await served.client.get("/console", headers={"Cookie": "toolyard-console=x; " + "toolyard-1=y"})

    assert (closed.status_code, with_key.status_code) == (401, 401)
    assert "Busiest tools" not in closed.text
    assert (caller.status_code, wrong.status_code, foreign.status_code, forged.status_code) == (403, 403, 403, 401)
    assert operator.status_code == 303
    assert 'title="key:ada"' in page.text


async def test_the_token_opens_the_console_where_callers_need_credentials_too(serve: Any) -> None:
    async with serve(shop(), KEYS) as served:
        cookie, csrf = await served.person()

    assert cookie
    assert csrf


async def test_behind_a_proxy_nobody_reads_without_a_login(serve: Any) -> None:
    async with serve(shop(), '[serve]\npublic_url = "https://tools.example.com"\nallowed_hosts = ["tools.example.com"]\n') as served:
        assert (await served.client.get("/console", headers={"Host": "tools.example.com"})).status_code == 401


async def test_the_console_can_be_switched_off(serve: Any) -> None:
    async with serve(shop(), "[serve]\nconsole = false\n") as served:
        assert [(await served.client.get(path)).status_code for path in ("/", "/console")] == [404, 404]


@pytest.mark.parametrize(
    ("path", "status"),
    [("/console/nothing", 404), ("/console/static/../app.py", 404), ("/console/static/nothing.js", 404), ("/console/live/nothing", 404)],
)
async def test_what_is_not_there_is_answered_with_a_page(serve: Any, path: str, status: int) -> None:
    async with serve(shop()) as served:
        response = await served.client.get(path)

    assert response.status_code == status
    assert "content-security-policy" in response.headers


async def test_only_get_and_post_are_allowed(serve: Any) -> None:
    async with serve(shop()) as served:
        assert (await served.client.put("/console")).status_code == 405
