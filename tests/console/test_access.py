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
from callyard.transports.auth import Admitted, ApiKey, ApiKeys, ReplaceableAuthenticator, digest_of
from callyard.transports.http.request import RefusedError, Request

OPERATOR, CALLER = "cy_operator", "cy_caller"
KEYS = f"""
[auth]
api_keys = [
  {{ name = "ada", digest = "{digest_of(OPERATOR)}", operator = true }},
  {{ name = "bot", digest = "{digest_of(CALLER)}" }},
]
"""


NOT_HELD: Final = "[limits]\napproval_hold_s = 0\n"
PUBLIC: Final = """
[serve]
public_url = "https://tools.example.com"
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


@tool(operation="destroy")
async def wipe(place: str) -> str:
    """Wipe a place."""
    return f"wiped {place}"


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


async def test_a_login_sets_a_cookie_and_answers_with_a_secret_that_no_page_has(serve: Any) -> None:
    async with serve(shop()) as served:
        response = await served.log_in()
        cookie, secret = response.headers["set-cookie"], response.json()["secret"]
        wrong = await served.log_in("wrong")
        whole = {"Cookie": cookie.partition(";")[0], "X-Console-Secret": secret}
        pages = [(await served.client.get("/console", headers=whole)).text]
        pages += [(await served.client.get("/console/tools", headers={"Cookie": whole["Cookie"]})).text]

    assert {"HttpOnly", "SameSite=Lax", "Path=/console"} <= set(cookie.split("; "))
    assert secret not in cookie
    assert not [page for page in pages if secret in page or served.login.partition("token=")[2] in page]
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (403, False)
    assert ["Log out" in page for page in pages] == [True, False]


async def test_the_token_is_in_the_fragment_of_the_printed_address_and_in_no_request_but_the_login(serve: Any) -> None:
    async with serve(shop()) as served:
        address, _, fragment = served.login.partition("#")
        old = await served.client.get(f"{address}?{fragment}")

    assert fragment.startswith("token=")
    assert "set-cookie" not in old.headers


async def test_with_the_cookie_alone_nobody_sees_contents_or_changes_anything(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, wipe]), NOT_HELD) as served:
        person, csrf = await served.person()
        await served.call("wipe", {"place": "moon-731"})
        started = await served.client.post(
            "/console/tools/run",
            data={"csrf": csrf, "tool": "echo", "arguments": '{"text": "said-731"}'},
            headers=person,
        )
        run = started.headers["location"]
        approvals = (await served.client.get("/console/approvals", headers=person)).text
        approval_id = re.findall(r"approvals/decide/(\w+)", approvals)[0]
        changes = ("logout", f"approvals/decide/{approval_id}", "tools/run", "chat/api/sessions")
        cookie = {"Cookie": person["Cookie"]}
        for headers in (cookie, {**person, "X-Console-Secret": csrf}, {**person, "Cookie": "x=1"}):
            paths = [run, "/console/approvals", f"/console/approvals?open={approval_id}", "/console/jobs", "/console"]
            pages = [(await served.client.get(path, headers=headers)).text for path in paths]
            statuses = {
                path: (
                    await served.client.post(
                        f"/console/{path}", data={"csrf": csrf, "decision": "approve", "tool": "echo"}, headers=headers
                    )
                ).status_code
                for path in changes
            }
            assert statuses == dict.fromkeys(changes, 403)
            assert not [page for page in pages if "731" in page or csrf in page or approval_id in page]
            assert "wipe" in pages[1]  # the list may rest on the cookie
        whole = (await served.client.get(run, headers=person)).text

    assert "moon-731" in approvals
    assert "said-731" in whole


async def test_a_live_stream_with_the_cookie_alone_has_no_contents(serve: Any) -> None:
    async with serve(Yard("shop", tools=[wipe]), NOT_HELD) as served:
        person, _ = await served.person()
        await served.call("wipe", {"place": "moon-731"})
        blocks: list[str] = []
        for headers in (person, {"Cookie": person["Cookie"]}):
            async with served.client.stream("GET", "/console/live/approvals", headers=headers) as stream:
                blocks.append(await anext(line async for line in stream.aiter_lines() if line.startswith("data:")))

    assert ["731" in block for block in blocks] == [True, False]


async def test_a_notice_in_an_address_is_not_shown_and_one_of_the_server_is_for_its_login_alone(serve: Any) -> None:
    text = "Your password expired"
    nobody: dict[str, str] = {}
    async with serve(Yard("shop", tools=[wipe]), NOT_HELD) as served:
        person, csrf = await served.person()
        other, _ = await served.person()
        await served.call("wipe", {"place": "x"})
        page = (await served.client.get("/console/approvals", headers=person)).text
        approval_id = re.findall(r"approvals/decide/(\w+)", page)[0]
        done = await served.client.post(
            f"/console/approvals/decide/{approval_id}", data={"csrf": csrf, "decision": "deny"}, headers=person
        )
        forged = [await served.client.get(f"/console?notice={text}", headers=headers) for headers in (person, nobody)]
        own, others = [
            (await served.client.get(done.headers["location"], headers=headers)).text for headers in (person, other)
        ]

    assert not [page for page in forged if text in page.text]
    assert [re.findall(r'role="status">(Denied\.)<', page) for page in (own, others)] == [["Denied."], []]


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
async def test_another_site_cannot_change_anything_even_with_the_cookie_and_the_token(
    serve: Any, headers: dict[str, str]
) -> None:
    async with serve(shop()) as served:
        cookie, csrf = await served.person()
        refused = await served.client.post("/console/logout", data={"csrf": csrf}, headers={**cookie, **headers})
        still = await served.client.get("/console", headers=cookie)
        own = await served.client.post(
            "/console/logout", data={"csrf": csrf}, headers={**cookie, "Origin": served.base}
        )

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
        foreign = await served.client.get("/console", headers={"Origin": "http://localhost:1234"})
        page = await served.client.get("/console")
        script = await served.client.get(re.findall(r'src="([^"]+console\.js[^"]*)"', page.text)[0])

    policy = page.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert page.headers["x-frame-options"] == "DENY"
    assert (foreign.status_code, "access-control-allow-origin" in foreign.headers) == (403, False)
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
        foreign = await served.client.post(
            "/console/login", data={"credentials": OPERATOR}, headers={"Origin": "https://evil.example"}
        )
        operator = await served.client.post("/console/login", data={"credentials": OPERATOR})
        served.client.cookies.clear()
        person, _ = await served.person(OPERATOR)
        page = await served.client.get("/console", headers=person)
        reader = await served.client.get("/console", headers={"Cookie": person["Cookie"]})
        forged = await served.client.get("/console", headers={"Cookie": "callyard-console=x; " + "callyard-1=y"})

    assert (closed.status_code, with_key.status_code) == (401, 401)
    assert "Busiest tools" not in closed.text
    assert (caller.status_code, wrong.status_code, foreign.status_code, forged.status_code) == (403, 403, 403, 401)
    assert operator.status_code == 303
    assert 'title="key:ada"' in page.text
    assert ("Busiest tools" in reader.text, "Log out" in reader.text) == (True, False)


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
        response = await served.log_in(**host)
        cookie = response.headers["set-cookie"]
        own = {**host, "Cookie": cookie.partition(";")[0], "X-Console-Secret": response.json()["secret"]}
        csrf = (await served.client.get("/console", headers=own)).text.partition('data-csrf="')[2].partition('"')[0]
        plain, secure = [
            await served.client.post(
                "/console/logout", data={"csrf": csrf}, headers={**own, "Origin": f"{scheme}://tools.example.com"}
            )
            for scheme in ("http", "https")
        ]

    assert "Secure" in cookie.split("; ")
    assert (plain.status_code, secure.status_code) == (403, 303)


@pytest.mark.parametrize("other", ['a={"x":1}', "pref=dark mode", "callyard", "=", 'b="; c'])
async def test_a_strange_cookie_of_another_program_ends_no_login(serve: Any, other: str) -> None:
    async with serve(shop()) as served:
        cookie, _ = await served.person()
        pages = [
            (await served.client.get("/console", headers={**cookie, "Cookie": text})).text
            for text in (f"{other}; {cookie['Cookie']}", f"{cookie['Cookie']};{other}")
        ]

    assert all("Log out" in page for page in pages)


async def test_an_operator_sees_and_runs_what_the_profile_of_the_key_has(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, pay]), NARROW) as served:
        cookie, _ = await served.person(OPERATOR)
        listed, searched, opened = [
            (await served.client.get(f"/console/tools{query}", headers=cookie)).text
            for query in ("", "?q=pay", "?open=pay")
        ]
        csrf = listed.partition('data-csrf="')[2].partition('"')[0]
        started = await served.client.post(
            "/console/tools/run", data={"csrf": csrf, "tool": "pay", "arguments": "{}"}, headers=cookie
        )
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

    access = Access(
        Serving(), Issuer(), is_operator=lambda caller: caller.claims["team"] == "red", find_profile=find_profile
    )
    request = Request(method="GET", path="/console", pairs=[], headers={b"host": b"localhost:1"})
    login = await access.log_in_with_credentials(request, "token")
    assert login is not None
    cookie = login.headers[0][1]
    request.headers |= {b"cookie": cookie.partition(b";")[0], b"x-console-secret": login.secret.encode()}
    person = access.person_of(request)

    assert isinstance(person, Person)
    assert person.caller == Caller(
        identity="ada", claims=person.caller.claims, scope=person.caller.scope, client="console"
    )
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
    login = await access.log_in_with_credentials(request, OPERATOR)
    assert login is not None
    request.headers[b"cookie"] = login.headers[0][1].partition(b";")[0]
    before = access.person_of(request)
    known.clear()

    assert before is not None
    assert access.person_of(request) is None
    assert access.log_in_with_token(request, access.token) is not None


async def test_a_login_with_a_key_ends_when_the_key_is_revoked_and_others_go_on() -> None:
    def find_profile(_: str) -> Any:
        raise AssertionError

    keys = {name: ApiKey("ada", digest_of(f"cy_{name}")) for name in ("old", "new")}
    authenticator = ReplaceableAuthenticator(ApiKeys(keys.values()))
    access = Access(Serving(), authenticator, is_operator=lambda _: True, find_profile=find_profile)
    requests = {
        name: Request(method="GET", path="/console", pairs=[], headers={b"host": b"localhost:1"}) for name in keys
    }
    for name, request in requests.items():
        login = await access.log_in_with_credentials(request, f"cy_{name}")
        assert login is not None
        request.headers[b"cookie"] = login.headers[0][1].partition(b";")[0]

    await authenticator.replace(ApiKeys([keys["new"]]), only_keys=True)

    assert access.person_of(requests["old"]) is None
    assert access.person_of(requests["new"]) is not None


async def test_the_body_of_somebody_who_may_change_nothing_is_not_read(serve: Any) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    async with serve(shop()) as served:
        cookie, csrf = await served.person()
        stranger = await served.client.post("/console/logout", content=b"a=b&" * 5000, headers=form)
        fields = await served.client.post(
            "/console/logout", content=f"csrf={csrf}&".encode() + b"a=b&" * 5000, headers={**form, **cookie}
        )
        login = await served.client.post("/console/login", content=b"credentials=" + b"x" * 20_000, headers=form)

    assert (stranger.status_code, fields.status_code, login.status_code) == (403, 413, 413)


async def test_the_console_can_be_switched_off(serve: Any) -> None:
    async with serve(shop(), "[serve]\nconsole = false\n") as served:
        assert [(await served.client.get(path)).status_code for path in ("/", "/console")] == [404, 404]


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/console/nothing", 404),
        ("/console/static/../app.py", 404),
        ("/console/static/nothing.js", 404),
        ("/console/live/nothing", 404),
    ],
)
async def test_a_missing_path_is_answered_with_a_page(serve: Any, path: str, status: int) -> None:
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
    command = [
        "-c",
        "import sys; from callyard.cli import main; sys.exit(main())",
        "serve",
        "--transport",
        "http",
        "--port",
        "0",
    ]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, "shop.py", cwd=folder, stdin=pipe, stderr=pipe
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            return await anext(
                line.decode() async for line in process.stderr if re.search(rb" console[ _]address", line)
            )
    finally:
        process.kill()
        await process.wait()


@pytest.mark.parametrize("settings", ["", PUBLIC, KEYS])
def test_without_a_terminal_a_private_file_has_the_address_with_the_token_and_the_log_says_which(
    tmp_path: Path, settings: str
) -> None:
    line = asyncio.run(log_of_a_served_yard(tmp_path, settings))
    file = Path(line.rpartition("file=")[2].strip().strip("'"))

    assert "token" not in line
    assert "/console#token=" in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    assert (settings == PUBLIC) is file.read_text().startswith("https://tools.example.com/console#")


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


async def test_without_scripts_a_login_reads_lists_and_no_contents(serve: Any, look: Any) -> None:
    async with serve(shop(), KEYS) as served:
        page: Page = await look(f"{served.base}/console", scripts=False)
        await page.get_by_label("Token or key").fill(OPERATOR)
        await page.get_by_role("button", name="Log in").click()
        await page.goto(f"{served.base}/console/tools?open=echo")
        await expect(page.locator(".drawer h1")).to_contain_text("echo")
        await expect(page.locator("#run-form")).to_have_count(0)


async def test_the_printed_address_logs_in_once_and_a_wrong_token_says_so(serve: Any, look: Any) -> None:
    async with serve(shop()) as served:
        page: Page = await look(served.login_to("tools?open=echo"))
        assert page.url == f"{served.base}/console/tools?open=echo"
        await expect(page.locator("#run-form")).to_be_visible()
        await page.reload()
        await expect(page.locator("#run-form")).to_be_visible()
        await page.evaluate("location.hash = 'token=wrong'")
        await expect(page.get_by_role("alert")).to_contain_text("not the token")


@asynccontextmanager
async def another_site(link: str) -> AsyncGenerator[str]:
    """Serve a page of another site with a link, and return its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\r\n<a href='%s'>x</a>" % link.encode()
        )
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
