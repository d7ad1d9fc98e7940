"""Who may read the console and who may act: logins, requests of other sites, frames and other host names."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.async_api import Page, expect

from callyard import Profile, Serving, Yard, tool
from callyard.console.access import Access, Person
from callyard.dispatch.call import Caller
from callyard.transports.auth import Admitted, ApiKey, ApiKeys, digest_of
from callyard.transports.http.request import RefusedError, Request

OPERATOR, CALLER = "ty_operator", "ty_caller"
KEYS = f"""
[auth]
api_keys = [
  {{ name = "ada", digest = "{digest_of(OPERATOR)}", operator = true }},
  {{ name = "bot", digest = "{digest_of(CALLER)}" }},
]
"""


PUBLIC: Final = """
[serve]
public_url = "https://tools.example.com"
allowed_hosts = ["tools.example.com"]
"""
NARROW: Final = f"""
[auth]
api_keys = [{{ name = "ada", digest = "{digest_of(OPERATOR)}", operator = true, profile = "narrow" }}]
[profiles.narrow]
toolsets = ["reads"]
[toolsets.reads]
names = ["echo"]
"""


@tool(operation="command")
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


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
    assert {"HttpOnly", "SameSite=Lax", "Path=/console"} <= set(cookie.split("; "))
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
        forged = await served.client.get("/console", headers={"Cookie": "callyard-console=x; " + "callyard-1=y"})

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
    async with serve(shop(), PUBLIC) as served:
        assert (await served.client.get("/console", headers={"Host": "tools.example.com"})).status_code == 401


async def test_behind_a_proxy_with_tls_pages_of_the_public_address_are_the_own_ones(serve: Any) -> None:
    host = {"Host": "tools.example.com"}
    async with serve(shop(), PUBLIC) as served:
        response = await served.client.get(served.login, headers=host)
        cookie = response.headers["set-cookie"]
        served.client.cookies.clear()
        own = {**host, "Cookie": cookie.partition(";")[0]}
        csrf = (await served.client.get("/console", headers=own)).text.partition('data-csrf="')[2].partition('"')[0]
        plain, secure = [
            await served.client.post("/console/logout", data={"csrf": csrf}, headers={**own, "Origin": f"{scheme}://tools.example.com"})
            for scheme in ("http", "https")
        ]

    assert "Secure" in cookie.split("; ")
    assert (plain.status_code, secure.status_code) == (403, 303)


@pytest.mark.parametrize("other", ['a={"x":1}', "pref=dark mode", "callyard", "=", 'b="; c'])
async def test_a_strange_cookie_of_another_program_ends_no_login(serve: Any, other: str) -> None:
    async with serve(shop()) as served:
        cookie, _ = await served.person()
        pages = [
            (await served.client.get("/console", headers={"Cookie": text})).text
            for text in (f"{other}; {cookie['Cookie']}", f"{cookie['Cookie']};{other}")
        ]

    assert all("Log out" in page for page in pages)


async def test_an_operator_sees_and_runs_what_the_profile_of_the_key_has(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, pay]), NARROW) as served:
        login = await served.client.post("/console/login", data={"credentials": OPERATOR})
        cookie = {"Cookie": login.headers["set-cookie"].partition(";")[0]}
        served.client.cookies.clear()
        listed, searched, opened = [
            (await served.client.get(f"/console/tools{query}", headers=cookie)).text for query in ("", "?q=pay", "?open=pay")
        ]
        csrf = listed.partition('data-csrf="')[2].partition('"')[0]
        started = await served.client.post("/console/tools/run", data={"csrf": csrf, "tool": "pay", "arguments": "{}"}, headers=cookie)
        result = (await served.client.get(started.headers["location"], headers=cookie)).text
        whole = (await served.client.get("/console/tools", headers=(await served.person())[0])).text

    assert "tools?open=echo" in listed
    assert all("tools?open=pay" not in page for page in (listed, searched))
    assert "<b>1</b> tools" in listed
    assert 'id="run-form"' not in opened
    assert "paid" not in result
    assert "tools?open=pay" in whole


async def test_a_login_keeps_the_claims_of_its_credentials_and_lasts_no_longer() -> None:
    class Issuer:
        async def admit(self, authorization: str | None, api_key: str | None) -> Admitted:
            del authorization, api_key
            return Admitted(identity="ada", claims={"exp": time.time() + 60, "team": "red"})

        def protected_resource(self, resource: str) -> None:
            del resource

    def find_profile(_: str) -> Any:
        raise AssertionError

    access = Access(Serving(), Issuer(), is_operator=lambda caller: caller.claims["team"] == "red", find_profile=find_profile)
    request = Request(method="GET", path="/console", pairs=[], headers={b"host": b"localhost:1"})
    headers = await access.log_in_with_credentials(request, "token")
    assert headers is not None
    cookie = headers[0][1]
    request.headers[b"cookie"] = cookie.partition(b";")[0]
    person = access.person_of(request)

    assert isinstance(person, Person)
    assert person.caller == Caller(identity="ada", claims=person.caller.claims, scope=person.caller.scope, client="console")
    assert person.caller.claims["team"] == "red"
    assert 0 < int(cookie.partition(b"Max-Age=")[2].partition(b";")[0]) <= 60


async def test_a_login_whose_profile_is_gone_is_over_and_another_one_works() -> None:
    known = {"narrow": Profile(name="narrow")}

    def find_profile(name: str) -> Profile:
        if name not in known:
            raise RefusedError(404, "There is nothing here.")
        return known[name]

    keys = ApiKeys([ApiKey("ada", digest_of(OPERATOR), profile="narrow")])
    access = Access(Serving(), keys, is_operator=lambda _: True, find_profile=find_profile)
    request = Request(method="GET", path="/console", pairs=[], headers={b"host": b"localhost:1"})
    headers = await access.log_in_with_credentials(request, OPERATOR)
    assert headers is not None
    request.headers[b"cookie"] = headers[0][1].partition(b";")[0]
    before = access.person_of(request)
    known.clear()

    assert before is not None
    assert access.person_of(request) is None
    assert access.log_in_with_token(request, access.token) is not None


async def test_the_body_of_somebody_who_may_change_nothing_is_not_read(serve: Any) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    async with serve(shop()) as served:
        cookie, csrf = await served.person()
        stranger = await served.client.post("/console/logout", content=b"a=b&" * 5000, headers=form)
        fields = await served.client.post("/console/logout", content=f"csrf={csrf}&".encode() + b"a=b&" * 5000, headers={**form, **cookie})
        login = await served.client.post("/console/login", content=b"credentials=" + b"x" * 20_000, headers=form)

    assert (stranger.status_code, fields.status_code, login.status_code) == (403, 413, 413)


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


async def log_of_a_served_yard(folder: Path, settings: str) -> str:
    """Serve a yard without a terminal, and return the line of its log that says where the console is."""
    (folder / "callyard.toml").write_text(settings)
    (folder / "shop.py").write_text('from callyard import Yard\n\nyard = Yard("shop")\n')
    command = ["-c", "import sys; from callyard.cli import main; sys.exit(main())", "serve", "--transport", "http", "--port", "0"]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, "shop.py", cwd=folder, stdin=pipe, stderr=pipe)
    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            return await anext(line.decode() async for line in process.stderr if b" console" in line)
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("settings", [PUBLIC, KEYS])
def test_without_a_terminal_a_private_file_has_the_address_with_the_token_and_the_log_says_which(tmp_path: Path, settings: str) -> None:
    line = asyncio.run(log_of_a_served_yard(tmp_path, settings))
    file = Path(line.rpartition("file=")[2].strip().strip("'"))

    assert "token" not in line
    assert "/console?token=" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert (settings == PUBLIC) is file.read_text().startswith("https://tools.example.com/console?")


def test_without_a_terminal_or_a_state_directory_the_log_says_that_nobody_has_the_address(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory")

    line = asyncio.run(log_of_a_served_yard(tmp_path, 'state_dir = "state"\nstore = "memory"\n' + PUBLIC))

    assert "WARNING" in line
    assert "console_address_not_written" in line
    assert "token" not in line


# In a browser, which sends headers of its own


async def test_an_operator_logs_in_with_the_form_and_logs_out(serve: Any, look: Any) -> None:
    async with serve(shop(), KEYS) as served:
        page: Page = await look(f"{served.base}/console")
        await page.get_by_label("Token or key").fill(OPERATOR)
        await page.get_by_role("button", name="Log in").click()
        await expect(page.get_by_role("heading", name="Overview")).to_be_visible()
        await page.get_by_role("button", name="Log out").click()
        await expect(page.get_by_role("heading", name="Log in to shop")).to_be_visible()


async def test_a_tool_is_run_without_scripts(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        page: Page = await look(served.login.replace("/console?", "/console/tools?open=echo&"), scripts=False)
        await page.get_by_label("Arguments as JSON").fill('{"text": "731"}')
        await page.get_by_role("button", name="Run", exact=True).click()
        await expect(page.locator("#run_result")).to_contain_text("731")


@asynccontextmanager
async def another_site(link: str) -> AsyncGenerator[str]:
    """Serve a page of another site with a link, and return its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<a href='%s'>x</a>" % link.encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://localhost:{server.sockets[0].getsockname()[1]}/"


async def test_a_link_of_another_site_finds_the_person_logged_in(serve: Any, look: Any) -> None:
    async with serve(shop()) as served, another_site(f"{served.base}/console/calls") as site:
        page: Page = await look(served.login)
        await page.goto(site)
        await page.get_by_role("link").click()
        await expect(page.get_by_role("heading", name="Calls")).to_be_visible()
        await expect(page.get_by_role("button", name="Log out")).to_be_visible()
