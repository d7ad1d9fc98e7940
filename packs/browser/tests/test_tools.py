import asyncio
import json
import os
from pathlib import Path
from typing import Any

from callyard_browser import PACK
from callyard_browser.processes import users_of
from page_server import Site, failure, needs_chromium, open_browser

from callyard import Caller, Image, Yard
from callyard.testing import connect

pytestmark = needs_chromium

FORM = """<script>function tell(text) { document.querySelector('output').textContent = text }</script>
<form onsubmit="event.preventDefault(); tell('sent ' + this.n.value)"><label>Name <input name=n></label>
<label>Size <select name=s><option value=s>Small<option value=l>Large</select></label>
<label><input type=checkbox name=c> Agree</label> <label>File <input type=file multiple onchange="
  document.querySelector('output').textContent = [...this.files].map(file => file.name + file.size).join()"></label>
<button>Send</button></form><output>nothing</output>
<div role=button tabindex=0 style="position:absolute; top:300px" aria-label=Card
  onmousedown="document.querySelector('output').textContent = 'down'"
  onmouseenter="document.title = 'hovered'">Card</div>
<div role=button tabindex=0 style="position:absolute; top:400px" aria-label=Bin
  onmouseup="document.querySelector('output').textContent += ' dropped'">Bin</div>"""


def tokens(value: Any) -> int:
    """Return how many tokens a value takes, as answers count them."""
    return -(-len(json.dumps(value, separators=(",", ":"), ensure_ascii=False)) // 4)


async def test_the_tools_cost_at_most_3800_tokens_in_a_list(tmp_path: Path) -> None:
    async with connect(Yard(packs=[PACK], state_dir=str(tmp_path))) as client:
        specs = [spec for spec in client.list() if spec.name.startswith("browser_")]
    items = [
        {
            "name": spec.name,
            "description": spec.description,
            "inputSchema": spec.input_schema,
            "annotations": dict.fromkeys(("readOnlyHint", "destructiveHint", "idempotentHint", "openWorldHint"), True),
        }
        for spec in specs
    ]

    assert len(specs) == 29
    assert tokens(items) <= 3800


async def test_a_task_on_300_rows_costs_at_most_3600_tokens(site: Site, tmp_path: Path) -> None:
    rows = "".join(
        f"<tr><td>{number}<td>Order {number}<td><a href='#{number}'>Open {number}</a>"
        f"<td><button onclick=\"this.textContent = 'Deleted {number}'\">Delete {number}</button>"
        for number in range(300)
    )
    url = site.page(f"<h1>Orders</h1><input aria-label=Search><table>{rows}</table>")
    spent = 0
    async with open_browser(tmp_path) as browser:
        await browser.launch()
        await browser.do("navigate", to=url)
        ids: list[str] = []
        for tool, arguments in (
            ("snapshot", {}),
            ("click", {"name": "Delete 3"}),
            ("snapshot", {"since": ""}),
            ("click", {"name": "Delete 4"}),
            ("expect_text", {"contains": "Deleted 4"}),
        ):
            given: dict[str, Any] = dict(arguments)
            if "name" in given:
                given = {"ref": await browser.ref(arguments["name"], "button")}
            if "since" in given:
                given = {"since": ids[-1]}
            answer = await browser.try_to(tool, **given)
            assert answer.success
            ids += [answer.data["snapshot"]] if "snapshot" in answer.data else []
            spent += tokens({"success": True, "data": answer.data, "error": None})

    assert spent <= 3600


async def test_forms_are_filled_and_each_action_says_what_changed(site: Site, tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("abc")
    (tmp_path / "outside.txt").write_text("secret")
    (files / "link.txt").symlink_to(tmp_path / "outside.txt")
    url = site.page(FORM)
    async with open_browser(tmp_path, files_root=str(files)) as browser:
        await browser.launch(url)
        name, size, agree = await browser.ref("Name"), await browser.ref("Size"), await browser.ref("Agree", "checkbox")
        filled = await browser.do("fill", ref=name, text="Ada", submit=True)
        form = await browser.do(
            "fill_form",
            fields=[{"ref": name, "value": "Grace"}, {"ref": size, "value": "Large"}, {"ref": agree, "value": "true"}],
        )
        selected = await browser.do("select_option", ref=size, values=["s"])
        unchecked = await browser.do("check", ref=agree, checked=False)
        await browser.do("type", text="!", ref=name)
        pressed = await browser.do("press", keys=["Enter"], ref=name)
        uploaded = await browser.do("upload", ref=await browser.ref("File", "button"), paths=["a.txt"])
        refused = [
            await browser.try_to("upload", ref=name, paths=[path])
            for path in ("../outside.txt", "link.txt", "none.txt", "/etc/passwd", ".")
        ]
        hovered = await browser.do("hover", ref=await browser.ref("Card"))
        title = (await browser.do("status"))["tabs"][0]["title"]
        dragged = await browser.do("drag", ref=await browser.ref("Card"), to=await browser.ref("Bin"))
        wrong = [
            await browser.try_to("fill_form", fields=[{"ref": name}]),
            await browser.try_to("fill_form", fields=[{"ref": name, "value": "x"}, {"ref": "e999", "value": "y"}]),
            await browser.try_to("check", ref=name),
            await browser.try_to("press", keys=["Nokey"]),
        ]
        state = await browser.do("get_state", ref=name)

    assert "sent Ada" in filled["changed"]
    assert '"Name" [' in form["changed"]
    assert "checked" in form["changed"]
    assert "Small" in selected["changed"]
    assert "Agree" in unchecked["changed"]
    assert "sent " in pressed["changed"]
    assert "a.txt3" in uploaded["changed"]
    assert {failure(answer) for answer in refused} == {("not_found", "unknown_file")}
    assert "changed" in hovered
    assert title == "hovered"
    assert "down dropped" in dragged["changed"]
    assert [failure(answer)[0] for answer in wrong] == ["invalid_input", "not_found", "state_error", "state_error"]
    assert "Grace" in state["value"]
    assert state["editable"]


async def test_a_failed_action_says_why(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<button disabled>Off</button><button id=h>Hidden</button>"
        "<button style='position:fixed; top:200px'>Under</button>"
        "<div id=veil style='position:fixed; inset:100px 0 0 0'>A veil</div>"
        "<script>addEventListener('keydown', () => document.getElementById('h').style.visibility = 'hidden')</script>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        off, under, hidden = [await browser.ref(name) for name in ("Off", "Under", "Hidden")]
        disabled = await browser.try_to("click", ref=off)
        covered = await browser.try_to("click", ref=under)
        await browser.do("press", keys=["a"])
        gone = await browser.try_to("click", ref=hidden)
        nowhere = await browser.try_to("navigate", to="http://127.0.0.1:9/")
        status = await browser.do("navigate", to=site.url + "/missing")

    assert failure(disabled) == ("state_error", "element_disabled")
    assert failure(covered) == ("state_error", "element_covered")
    assert covered.error is not None
    assert "veil" in str(covered.error.details["by"])
    assert failure(gone)[1] in {"element_hidden", "ref_gone"}
    assert failure(nowhere) == ("upstream_error", "navigation_failed")
    assert status["http_status"] == 404


async def test_expectations_wait_until_they_hold_or_say_what_there_is(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<ul><li>one<li>two</ul><label><input type=checkbox checked>On</label><p>Loading</p>"
        "<script>setTimeout(() => { document.querySelector('p').textContent = 'Done 42'; "
        "location.hash = 'ready' }, 300)</script>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        box = await browser.ref("On", "checkbox")
        held = [
            await browser.try_to(tool, timeout_s=30, **arguments)
            for tool, arguments in (
                *(("expect_text", {"contains": "Done"}), ("expect_text", {"matches": "Done [0-9]+"})),
                *(
                    ("expect_text", {"contains": "Loading", "absent": True}),
                    ("expect_text", {"ref": box, "equals": ""}),
                )[:1],
                ("expect_url", {"matches": "#ready$"}),
                ("expect_count", {"role": "listitem", "at_least": 2, "at_most": 2}),
                ("expect_state", {"ref": box, "state": {"checked": True, "enabled": True}}),
                ("expect_snapshot", {"pattern": "- list:\n  - listitem: one"}),
            )
        ]
        failed = [
            await browser.try_to(tool, timeout_s=0.2, **arguments)
            for tool, arguments in (
                *(("expect_text", {"equals": "Nothing"}), ("expect_url", {"contains": "elsewhere"})),
                *(("expect_count", {"role": "button"}), ("expect_state", {"ref": box, "state": {"checked": False}})),
                ("expect_snapshot", {"pattern": "- button"}),
            )
        ]
        wrong = [
            await browser.try_to("expect_text", **arguments)
            for arguments in ({}, {"contains": "a", "equals": "b"}, {"matches": "(?<=a)b("})
        ]

    assert [answer.error for answer in held if not answer.success] == []
    assert {failure(answer) for answer in failed} == {("state_error", "expectation_failed")}
    assert all({"expected", "actual"} <= set(answer.error.details) for answer in failed if answer.error)
    assert {failure(answer)[0] for answer in wrong} == {"invalid_input"}


async def test_an_element_that_goes_is_absent_and_one_that_does_not_come_back_is_named(
    site: Site, tmp_path: Path
) -> None:
    url = site.page("<button>Stay</button><button onclick='setTimeout(() => this.remove(), 200)'>Leave</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        leave = await browser.ref("Leave", "button")
        await browser.do("click", ref=leave)
        absent = await browser.try_to("expect_text", ref=leave, contains="Leave", absent=True, timeout_s=30)
        there = await browser.try_to("expect_text", ref=leave, contains="Leave", timeout_s=0.2)

    assert absent.success, absent.error
    assert failure(there) == ("not_found", "ref_gone")


async def test_a_password_shows_in_nothing_that_a_page_makes_of_it(site: Site, tmp_path: Path) -> None:
    url = site.page(
        "<label>Key<input type=password></label><p></p>"
        "<button onclick=\"const f = document.querySelector('input'), v = f.value; "
        "for (let n = 0; n < 500; n++) { f.value = 'other-' + n; f.dispatchEvent(new Event('input')) } "
        "f.value = v + '!'; document.querySelector('p').textContent = v\">Show</button>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        await browser.do("fill", ref=await browser.ref("Key", "textbox"), text="Hunter2-secret")
        shown = str(await browser.do("click", ref=await browser.ref("Show", "button")))
        shown += str(await browser.do("read_text")) + str(await browser.do("snapshot"))

    assert "Hunter2-secret" not in shown
    assert "***" in shown


async def test_pictures_texts_frames_and_the_console_are_read(site: Site, tmp_path: Path) -> None:
    site.page("<button onclick=\"this.textContent = 'Pressed'\">Inner</button>", "/frame")
    url = site.page(
        "<p>outer text</p><iframe src=/frame></iframe><script>console.warn('careful'); "
        "setTimeout(() => { throw new Error('broken') })</script>" + "<p>line</p>" * 3000
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        pictures = [
            await browser.try_to("screenshot", **arguments)
            for arguments in ({}, {"ref": await browser.ref("Inner", "button")})
        ]
        text = await browser.do("read_text")
        inner = await browser.do("read_text", ref=await browser.ref("Inner", "button"))
        pressed = await browser.do("click", ref=await browser.ref("Inner", "button"))
        part = await browser.do("snapshot", ref=await browser.ref("Pressed", "button"))
        warnings = await browser.do("console", level="warning")
        errors = await browser.do("console", match="broken")
        later = await browser.do("console", since=errors["lines"][-1]["id"])
        missing = await browser.try_to("network", request=99999)

    assert all(isinstance(picture.content[0], Image) for picture in pictures)
    assert text["text"].startswith("outer text")
    assert text["whole"].startswith("r_")
    assert inner == {"text": "Inner"}
    assert "Pressed" in pressed["changed"]
    assert part["page"].startswith('button "Pressed"')
    assert warnings["lines"][0]["text"] == "careful"
    assert errors["count"] == 1
    assert not [line for line in later["lines"] if "broken" in line["text"]]
    assert failure(missing)[0] == "not_found"


async def test_refs_of_a_frame_that_loads_another_page_do_not_hit_it(site: Site, tmp_path: Path) -> None:
    site.page("<button>One</button>", "/one")
    site.page("<button onclick=\"document.title = 'hit'\">Two</button>", "/two")
    url = site.page(
        "<iframe src=/one></iframe><button onclick=\"document.querySelector('iframe').src = '/two'\">Load</button>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        await browser.do("expect_count", role="button", name="One", timeout_s=30)
        one = await browser.ref("One")
        await browser.do("click", ref=await browser.ref("Load"))
        await browser.do("expect_count", role="button", name="Two", timeout_s=30)
        two = await browser.ref("Two")
        old = await browser.try_to("click", ref=one)
        await browser.do("click", ref=two)

    assert one != two
    assert failure(old) == ("not_found", "ref_gone")


async def test_a_download_becomes_a_handle_that_can_be_uploaded(site: Site, tmp_path: Path) -> None:
    site.put("/file", b"a,b\n1,2\n", Content_Disposition="attachment; filename=table.csv")
    url = site.page(
        "<a href=/file>Get</a><input type=file aria-label=File "
        "onchange=\"document.querySelector('p').textContent = this.files[0].name + this.files[0].size\"><p>none</p>"
    )
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        got = await browser.do("click", ref=await browser.ref("Get"))
        downloads = got.get("downloads", [])
        while not downloads or "handle" not in downloads[0]:
            downloads = (await browser.do("status")).get("downloads", [])
        uploaded = await browser.do("upload", ref=await browser.ref("File"), paths=[downloads[0]["handle"]])
        loaded = await browser.try_to("navigate", to=site.url + "/file")
        wrong = await browser.try_to("upload", ref=await browser.ref("File"), paths=["r_999"])

    assert downloads[0]["file"] == "table.csv"
    assert downloads[0]["bytes"] == 8
    assert "table.csv8" in uploaded["changed"]
    assert failure(loaded) == ("state_error", "download_started")
    assert failure(wrong)[0] == "not_found"


async def test_code_runs_in_the_page_only_where_it_is_allowed(site: Site, tmp_path: Path) -> None:
    url = site.page("<button>Go</button>")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        gated = await browser.try_to("eval", code="1 + 1")
    async with open_browser(tmp_path, allow_eval=True) as browser:
        await browser.launch(url)
        result = await browser.do("eval", code="1 + 1")
        name = await browser.do("eval", code="element => element.textContent", ref=await browser.ref("Go"))
        blocked = await browser.try_to("eval", code="eval('1')")
        raised = await browser.try_to("eval", code="nothing.at.all")

    assert failure(gated)[0] == "tool_not_found"
    assert result == {"result": 2}
    assert name == {"result": "Go"}
    assert failure(blocked)[0] == "eval_blocked"
    assert failure(raised)[0] == "state_error"


async def test_going_back_and_tabs_and_sessions_keep_apart(site: Site, tmp_path: Path) -> None:
    url = site.page("<a href=/next target=_blank>Other</a><button>Go</button>")
    site.page("<button>Go</button>", "/next")
    async with open_browser(tmp_path) as browser:
        await browser.launch(url)
        first = await browser.ref("Go")
        opened = await browser.do("click", ref=await browser.ref("Other"))
        await browser.do("select_tab", tab="t2")
        await browser.do("expect_count", role="button", timeout_s=30)
        second = await browser.ref("Go")
        wrong_tab = await browser.try_to("click", ref=first)
        await browser.do("click", ref=second)
        await browser.do("stop", tab="t2")
        await browser.do("navigate", to=site.url + "/next")
        back = await browser.do("navigate", to="back")
        forward = await browser.do("navigate", to="forward")
        reloaded = await browser.do("navigate", to="reload")
        stale = await browser.try_to("click", ref=first)
        other = await browser.do("launch")
        ambiguous = await browser.client.call("browser_status")
        alone = await browser.do("stop", session_id=other["session_id"])
        stopped = await browser.do("stop", tab="t1")
        no_tab = await browser.try_to("snapshot")

    assert opened["opened_tabs"] == ["t2"]
    assert second.startswith("t2")
    assert failure(wrong_tab) == failure(stale) == ("not_found", "ref_gone")
    assert back["url"].endswith("/")
    assert forward["url"].endswith("/next")
    assert reloaded["url"].endswith("/next")
    assert failure(ambiguous)[0] == "invalid_input"
    assert alone == {"stopped": True}
    assert stopped["tabs"] == []
    assert failure(no_tab) == ("not_found", "tab_gone")


async def test_apps_end_with_their_session_and_attached_browsers_run_on(site: Site, tmp_path: Path) -> None:
    command = ["chromium", "--headless", "--user-data-dir={profile}", "about:blank"]
    if os.geteuid() == 0:
        command.insert(1, "--no-sandbox")
    url = site.page("<button>Go</button>")
    apps = {"shop": {"command": command}, "broken": {"command": ["false"]}, "none": {"command": ["no-such-program"]}}
    async with open_browser(tmp_path, apps=apps) as browser:
        launched = await browser.launch(app="shop")
        shown = await browser.do("navigate", to=url)
        status = await browser.do("status")
        stopped = await browser.do("stop")
        left = users_of(tmp_path)
        failed = [await browser.try_to("launch", app=app) for app in ("broken", "none", "unknown")]

    assert launched["tab"] == "t1"
    assert 'button "Go"' in shown["page"]
    assert status["kind"] == "app"
    assert stopped == {"stopped": True}
    assert left == set()
    assert [failure(answer) for answer in failed] == [
        ("upstream_unavailable", "launch_failed"),
        ("upstream_unavailable", "launch_failed"),
        ("not_found", "unknown_app"),
    ]


async def test_callers_with_credentials_need_hosts(tmp_path: Path) -> None:
    yard = Yard(packs=[PACK], state_dir=str(tmp_path))
    async with connect(yard, caller=Caller(identity="ada")) as client:
        answer = await client.call("browser_launch")

    assert failure(answer) == ("permission_denied", "hosts_required")


async def test_an_attached_browser_runs_on_and_belongs_to_one_session(site: Site, tmp_path: Path) -> None:
    options = ["--headless", "--remote-debugging-port=0", f"--user-data-dir={tmp_path / 'own'}", "about:blank"]
    options += ["--no-sandbox"] if os.geteuid() == 0 else []
    own = await asyncio.create_subprocess_exec("chromium", *options, stderr=asyncio.subprocess.PIPE)
    try:
        address = await debug_address(own)
        port = address.rpartition(":")[2].partition("/")[0]
        attach = {"mine": {"url": f"http://127.0.0.1:{port}", "unconfined": True}}
        nobody = {"url": "http://127.0.0.1:9", "unconfined": True}
        async with open_browser(tmp_path / "yard", attach={**attach, "nobody": nobody}) as browser:
            attached = await browser.do("attach", endpoint="mine")
            second = await browser.try_to("attach", endpoint="mine")
            unknown = await browser.try_to("attach", endpoint="http://127.0.0.1:9222")
            dead = await browser.try_to("attach", endpoint="nobody")
            browser.session_id = attached["session_id"]
            shown = await browser.do("navigate", to=site.page("<button>Go</button>"))
            await browser.do("stop")
            again = await browser.do("attach", endpoint="mine")
            await browser.do("stop", session_id=again["session_id"])
        runs_on = own.returncode is None
    finally:
        own.kill()
        await own.communicate()

    assert failure(second) == ("state_error", "in_use")
    assert failure(unknown) == ("not_found", "unknown_app")
    assert failure(dead) == ("upstream_unavailable", "launch_failed")
    assert 'button "Go"' in shown["page"]
    assert runs_on


async def debug_address(program: asyncio.subprocess.Process) -> str:
    assert program.stderr is not None
    async with asyncio.timeout(60):
        async for line in program.stderr:
            if b"DevTools listening on " in line:
                return line.decode().strip().rpartition(" ")[2]
    raise AssertionError
