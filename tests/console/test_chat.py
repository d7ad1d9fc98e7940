"""The chat page with a real agent SDK, a scripted model and a real browser."""

import asyncio
import os
import re
import subprocess
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from pinned_packages import python_with
from playwright.async_api import Page, Route, expect

from callyard import Yard, tool
from callyard.agents import AgentManager, StreamEvent, TurnRequest
from callyard.agents.api import AgentApi
from callyard.agents.events import TextDelta, ToolCallStart, ToolProgress, ToolResult, type_of
from callyard.testing.models import ScriptedAnthropic, ScriptedModel, ToolUse

ROOT = Path(__file__).parent.parent.parent
BURN = "mcp__yard__burn"
APPROVE_ALL = """async () => {
    const token = document.getElementById("main").dataset.csrf;
    const headers = { "X-CSRF-Token": token, "Content-Type": "application/json" };
    const { interactions } = await (await consoleFetch("/console/chat/api/interactions")).json();
    for (const one of interactions) {
        const url = `/console/chat/api/interactions/${one.interaction_id}/approve`;
        await consoleFetch(url, { method: "POST", headers, body: "{}" });
    }
}"""
Play = Callable[[TurnRequest], AsyncGenerator[StreamEvent]]
TARGET = '''
from callyard import Yard, tool

@tool(operation="destroy")
def burn(what: str) -> str:
    """Burn something."""
    return f"burnt {what}"

yard = Yard("hall", tools=[burn])
'''


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool(operation="destroy")
async def wipe(text: str) -> str:
    """Delete something."""
    return text


@contextmanager
def agents_served(tmp_path: Path, model: ScriptedModel) -> Generator[str]:
    """Serve a yard with agents of the Claude Agent SDK and a scripted model, and yield the address of the chat."""
    python = python_with(ROOT / "tests" / "inject" / "agents.txt", what="Claude Agent SDK")
    (tmp_path / "hall.py").write_text(TARGET)
    home = {
        "HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "CLAUDE_CONFIG_DIR": str(tmp_path / "claude"),
    }
    keys = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    token = {"CALLYARD_CONSOLE_TOKEN": "a-token-of-the-test"}
    environment = {**os.environ, **home, **keys, **token, "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "callyard", "serve", "hall.py", "--transport", "http", "--port", "0", "--agents"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own program
        try:
            lines = list[str]()
            for line in server.stderr or ():
                lines.append(line)
                found = re.search(r"console address=(\S+)", line)
                if found is not None:
                    yield f"{found[1]}/chat#token=a-token-of-the-test"
                    break
            else:
                raise AssertionError("".join(lines))
        finally:
            server.terminate()
            server.communicate()


async def test_a_message_leads_to_a_tool_call_an_approval_card_and_the_result(tmp_path: Path, look: Any) -> None:
    with (
        ScriptedAnthropic([["I burn it.", ToolUse(BURN, {"what": "the <b>letters</b>"})], "They are gone."]) as model,
        agents_served(tmp_path, model) as login,
    ):
        page: Page = await look(login)
        await page.get_by_label("Message").fill("Burn the letters.")
        await page.keyboard.press("Enter")
        await expect(page.locator(".said.mine")).to_have_text("Burn the letters.")
        await expect(page.get_by_text("I burn it.")).to_be_visible(timeout=60_000)
        await expect(page.locator(".card.ask")).to_contain_text("the <b>letters</b>")
        await page.reload()
        await expect(page.locator(".card.ask")).to_contain_text("burn")
        await page.get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("They are gone.")).to_be_visible(timeout=60_000)
        await expect(page.locator(".card.ask")).to_have_count(0)
        await page.locator("details.tool summary").click()
        await expect(page.locator("details.tool")).to_contain_text("burnt the <b>letters</b>")
        await page.reload()
        await expect(page.get_by_text("They are gone.")).to_be_visible()
        await expect(page.locator(".talks li")).to_have_count(1)

    assert [result.envelope.data for result in model.results] == ["burnt the <b>letters</b>"]


async def test_a_denied_call_is_not_run_and_the_agent_reads_the_reason(tmp_path: Path, look: Any) -> None:
    with (
        ScriptedAnthropic([ToolUse(BURN, {"what": "the house"}), "I leave it."]) as model,
        agents_served(tmp_path, model) as login,
    ):
        page: Page = await look(login, width=390, scheme="dark")
        await page.get_by_label("Message").fill("Burn the house.")
        await page.get_by_role("button", name="Send").click()
        await page.get_by_placeholder("Reason").fill("People live in it.", timeout=60_000)
        await page.get_by_role("button", name="Deny").click()
        await expect(page.get_by_text("I leave it.")).to_be_visible(timeout=60_000)
        widths: Any = await page.evaluate("[document.documentElement.scrollWidth, innerWidth]")

    assert "People live in it." in model.results[0].text
    assert widths[0] <= widths[1]


class PlayedRuntime:
    """A runtime whose turns are played by a function of the test."""

    name = "played"
    has_folder = False

    def __init__(self, play: Play) -> None:
        self._play = play

    def check(self) -> None:
        """Be there."""

    def check_servers(self, names: Iterable[str]) -> None:
        """Take any."""

    async def forget(self, sdk_session_id: str) -> None:
        """Keep nothing."""

    async def run(self, request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        async for event in self._play(request):
            yield event


@asynccontextmanager
async def played(
    serve: Any, play: Play, api: type[AgentApi] = AgentApi, *, store: str = "memory"
) -> AsyncGenerator[str]:
    """Serve agents whose turns a function plays, and yield the address of the chat."""
    yard = Yard("hall", tools=[echo])
    manager = AgentManager(yard, PlayedRuntime(play))
    async with serve(yard, f'store = "{store}"', agents=api(manager, roots=())) as served, manager:
        yield served.login_to("chat")


async def send(page: Page, text: str) -> None:
    await page.get_by_role("textbox", name="Message").fill(text)
    await page.keyboard.press("Enter")


async def ask_to_burn(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
    """Ask whether the house may burn, and say what came of it."""
    decision = await request.permit("burn", {"what": "the house"}, tool_call_id="t1", source="agent")
    yield TextDelta(text=f"The person {decision.outcome} it. {decision.reason}")


async def test_enter_in_the_reason_of_a_card_decides_nothing(serve: Any, look: Any) -> None:
    async with played(serve, ask_to_burn) as address:
        page: Page = await look(address)
        await send(page, "Burn the house.")
        await page.get_by_placeholder("Reason").fill("People live in it.")
        await page.keyboard.press("Enter")
        await page.get_by_role("button", name="Deny").click()

        await expect(page.get_by_text("The person denied it. People live in it.")).to_be_visible()


async def test_a_conversation_goes_on_in_its_own_view_only(serve: Any, look: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        if request.content != "Message A":
            yield TextDelta(text="Answer of B.")
            return
        await request.permit("burn", {"what": "first"}, tool_call_id="t1", source="agent")
        yield TextDelta(text="Secret of A.")
        decision = await request.permit("burn", {"what": "second"}, tool_call_id="t2", source="agent")
        yield TextDelta(text=f"A is over: {decision.outcome}.")

    async with played(serve, play) as address:
        page: Page = await look(address)
        await send(page, "Message B")
        await expect(page.get_by_text("Answer of B.")).to_be_visible()
        await page.get_by_role("button", name="New conversation").click()
        await page.wait_for_url("**/console/chat")
        await send(page, "Message A")
        await expect(page.locator(".card.ask")).to_contain_text("first")
        await page.locator(".talks a", has_text="Message B").click()
        await expect(page.get_by_text("Answer of B.")).to_be_visible()
        await page.evaluate(APPROVE_ALL)
        await send(page, "Another for B")
        await expect(page.get_by_text("Answer of B.")).to_have_count(2)
        seen = await page.locator(".messages").inner_text()
        await page.locator(".talks a", has_text="Message A").click()
        await expect(page.get_by_text("Secret of A.")).to_have_count(1)
        await page.locator(".card.ask", has_text="second").get_by_role("button", name="Approve").click()
        await expect(page.get_by_text("A is over: approved.")).to_be_visible()
        await page.reload()
        await expect(page.get_by_text("A is over: approved.")).to_have_count(1)
        await expect(page.locator(".card.ask")).to_have_count(0)

    assert "A." not in seen
    assert "second" not in seen


async def test_a_question_has_the_form_of_its_schema(serve: Any, look: Any) -> None:
    colours = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
    sizes = {"type": "array", "items": {"anyOf": [{"const": "s", "title": "Small"}, {"const": "l", "title": "Large"}]}}
    fields = {
        "colour": {"type": "string", "oneOf": colours, "default": "g"},
        "sizes": sizes,
        "count": {"type": "integer", "minimum": 2},
    }
    answers: list[Any] = []

    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        form = {"type": "object", "properties": fields, "required": ["count"]}
        decision = await request.ask("Which ones?", form, tool="shop", tool_call_id="t1")
        answers.append(decision.content)
        yield TextDelta(text="Thank you.")

    async with played(serve, play) as address:
        page: Page = await look(address)
        await send(page, "Buy some.")
        card = page.locator(".card.ask")
        await expect(card.get_by_label("colour")).to_have_value('"g"')
        await card.get_by_label("colour").select_option("Red")
        await card.get_by_label("Large").check()
        await card.get_by_label("count").fill("1")
        await card.get_by_role("button", name="Answer").click()
        await expect(card.locator(".notice")).to_be_visible()
        await card.get_by_label("count").fill("2")
        await card.get_by_role("button", name="Answer").click()
        await expect(page.get_by_text("Thank you.")).to_be_visible()

    assert answers == [{"colour": "r", "sizes": ["l"], "count": 2}]


async def test_a_turn_that_ends_while_nobody_looks_is_shown_afterwards(serve: Any, look: Any) -> None:
    go_on = asyncio.Event()

    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text="Wait. ")
        await go_on.wait()
        yield TextDelta(text="That was all.")

    async with played(serve, play) as address:
        page: Page = await look(address)
        await send(page, "Tell me more.")
        await expect(page.get_by_text("Wait.")).to_be_visible()
        conversation = page.url
        await page.goto("about:blank")
        go_on.set()
        await page.goto(conversation)
        await expect(page.get_by_text("Wait. That was all.")).to_have_count(1)
        other: Page = await look(address)  # another browser
        await other.goto(conversation)
        await expect(other.get_by_text("Wait. That was all.")).to_have_count(1)
        await expect(other.locator(".said.mine")).to_have_text("Tell me more.")


async def test_a_lost_connection_is_taken_up_where_it_ended(serve: Any, look: Any) -> None:
    go_on, cut = asyncio.Event(), asyncio.Event()

    async def play(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text="Before. ")
        await go_on.wait()
        yield TextDelta(text="After.")

    class CutApi(AgentApi):
        async def serve(self, request: Any, writer: Any) -> None:
            answering = asyncio.ensure_future(super().serve(request, writer))
            cutting = asyncio.ensure_future(
                cut.wait() if request.path.endswith("/messages") else asyncio.Event().wait()
            )
            await asyncio.wait([answering, cutting], return_when=asyncio.FIRST_COMPLETED)
            if cutting.done():
                answering.cancel()
                await writer.write(b"", last=True)
                go_on.set()
            cutting.cancel()

    async with played(serve, play, CutApi) as address:
        page: Page = await look(address)
        await send(page, "Go on.")
        await expect(page.get_by_text("Before.")).to_be_visible()
        cut.set()
        await expect(page.get_by_text("Before. After.")).to_have_count(1)
        await expect(page.locator(".compose .primary")).to_be_enabled()


async def test_the_whole_conversation_is_shown_again_from_the_store_of_a_killed_server(
    serve: Any, look: Any, tmp_path: Path
) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text=f"Answer to {request.content} ")
        yield ToolCallStart(tool_call_id="t1", tool="echo")
        yield ToolProgress(tool_call_id="t1", done=1, total=2, text="halfway")
        if request.content == "two":
            await asyncio.Event().wait()
        yield ToolResult(tool_call_id="t1", tool="echo", text="{}")

    file, killed = tmp_path / "store", tmp_path / "killed"
    async with played(serve, play, store=f"sqlite:{file}") as address:
        page: Page = await look(address)
        await send(page, "one")
        await expect(page.get_by_text("Answer to one")).to_be_visible()
        await expect(page.locator(".compose .primary")).to_be_enabled()
        await send(page, "two")
        await expect(page.get_by_text("running: 1 of 2 halfway")).to_be_visible()
        place = page.url.partition("/console/")[2]
        await copy_once_it_has(file, killed, b"Answer to two")  # as the kill of the server would leave it
    async with played(serve, play, store=f"sqlite:{killed}") as address:
        page = await look(address)
        await page.goto(f"{address.partition('/console/')[0]}/console/{place}")
        await expect(page.get_by_text("Answer to one")).to_have_count(1)
        await expect(page.get_by_text("Answer to two")).to_have_count(1)
        await expect(page.locator(".said.mine")).to_have_text(["one", "two"])


async def copy_once_it_has(file: Path, copy: Path, text: bytes) -> None:
    """Copy the file of a store with its log once it has a text."""
    async with asyncio.timeout(60):
        while True:
            for part in ("", "-wal"):
                copy.with_name(copy.name + part).write_bytes(file.with_name(file.name + part).read_bytes())
            if text in copy.with_name(f"{copy.name}-wal").read_bytes():
                return
            await asyncio.sleep(0.01)  # not a wait for so long, but a look so often


async def test_earlier_messages_are_shown_when_somebody_asks_for_them(serve: Any, look: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        yield TextDelta(text=f"Answer to {request.content}.")

    async with played(serve, play) as address:
        page: Page = await look(address)
        await send(page, "message 0")
        await expect(page.get_by_text("Answer to message 0.")).to_be_visible()
        await page.evaluate(
            """async () => {
            const session = new URLSearchParams(location.search).get("session");
            const token = document.getElementById("main").dataset.csrf;
            const headers = { "X-CSRF-Token": token, "Content-Type": "application/json" };
            for (let number = 1; number <= 101; number++) {
                const body = JSON.stringify({ content: `message ${number}` });
                const place = `/console/chat/api/sessions/${session}/messages`;
                await (await consoleFetch(place, { method: "POST", headers, body })).text();
            }
        }"""
        )
        await page.reload()
        await expect(page.get_by_text("Answer to message 101.")).to_be_visible()
        await expect(page.get_by_text("Answer to message 0.")).to_have_count(0)
        await page.get_by_role("button", name="Show earlier messages").click()
        await expect(page.get_by_text("Answer to message 0.")).to_have_count(1)
        await expect(page.locator(".said.mine")).to_have_count(102)


async def test_the_approvals_page_and_its_badge_show_each_wait_of_an_agent(serve: Any, look: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        first = await request.permit("burn", {"what": "the house"}, tool_call_id="t1", source="agent")
        asked = await request.ask("Which one?", {"type": "object", "properties": {}}, tool="shop", tool_call_id="t2")
        yield TextDelta(text=f"{first.outcome}: {first.reason} {asked.outcome}.")

    async with played(serve, play) as address:
        page: Page = await look(address)
        await send(page, "Burn the house.")
        await expect(page.locator(".card.ask")).to_be_visible()
        other: Page = await look(address.replace("chat", "approvals"))
        card = other.locator(".card.approval")
        await expect(card).to_contain_text("the house")
        await expect(other.locator("nav a", has_text="Approvals")).to_contain_text("1")
        await card.get_by_placeholder("Reason").fill("Fine.")
        await card.get_by_role("button", name="Approve").click()
        await expect(card).to_contain_text("Which one?")
        await expect(card.get_by_role("button", name="Approve")).to_have_count(0)
        await card.get_by_role("button", name="Decline").click()
        await expect(card).to_have_count(0)
        await expect(page.get_by_text("approved: Fine. declined.")).to_be_visible()


async def test_an_approval_of_the_yard_that_an_agent_waits_for_is_one_card_and_its_contents_need_a_login(
    serve: Any,
) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        permitted = await request.permit("echo", {"text": "the secret"}, tool_call_id="t1", source="yard")
        answer = await request.conversation.call("wipe", {"text": "it"}, meta={"openai/toolCallId": "t2"})
        yield TextDelta(text=f"{permitted.outcome} {answer.data}")

    yard = Yard("hall", tools=[echo, wipe])
    manager = AgentManager(yard, PlayedRuntime(play))
    api = AgentApi(manager, roots=())
    async with serve(yard, agents=api) as served, manager, asyncio.timeout(60):
        turn = await manager.start_turn("chat", "Go.")
        events = turn.events()
        [asked] = [event async for event in until(events, "approval_required")]
        person = await served.person()
        stranger = (await served.client.get("/console/approvals")).text
        seen = (await served.client.get("/console/approvals", headers=person[0])).text
        fields = {"csrf": person[1], "decision": "approve"}
        place = f"/console/approvals/agent/{asked.interaction_id}"
        ids = [place.rpartition("/")[2], "/agent/", "Approve"]
        wrong = await served.client.post(place, data={**fields, "decision": "maybe"}, headers=person[0])
        await served.client.post(place, data=fields, headers=person[0])
        twice = await served.client.post(place, data=fields, headers=person[0])
        [_] = [event async for event in until(events, "approval_required")]
        waiting, cards = api.waiting(), (await served.client.get("/console/approvals", headers=person[0])).text
        turn.cancel("client")
        await turn.wait()

    assert ["the secret" in stranger, "echo" in stranger, "the secret" in seen] == [False, True, True]
    assert [text in stranger for text in ids] == [False, False, False]
    assert [wrong.status_code, "bad=1" in twice.headers["location"]] == [404, True]
    assert (waiting, cards.count('class="card approval pending"')) == ([], 1)


async def until(events: AsyncIterator[StreamEvent], kind: str) -> AsyncGenerator[Any]:
    """Yield the next event of a kind."""
    async for event in events:
        if type_of(event) == kind:
            yield event
            return


@pytest.mark.parametrize("fault", ["refused", "unreachable"])
async def test_a_conversation_that_cannot_be_deleted_says_why(serve: Any, look: Any, fault: str) -> None:
    async def refuse(route: Route) -> None:
        if route.request.method != "DELETE":
            await route.continue_()
        elif fault == "refused":
            await route.fulfill(status=503, json={"error": {"message": "The store is full."}})
        else:
            await route.abort()

    async with played(serve, ask_to_burn) as address:
        page: Page = await look(address)
        await send(page, "Burn the house.")
        await expect(page.locator(".talks li")).to_have_count(1)
        await page.route("**/chat/api/sessions/*", refuse)
        await page.get_by_role("button", name="Delete the conversation").click()
        await expect(page.locator(".notice.bad")).to_be_visible()


async def test_a_form_is_made_for_a_schema_alone(serve: Any) -> None:
    async with played(serve, ask_to_burn) as address, httpx2.AsyncClient(trust_env=False) as client:
        base = address.partition("/console")[0]
        token = {"credentials": address.partition("#token=")[2]}
        login = await client.post(f"{base}/console/login", data=token, headers={"Accept": "application/json"})
        client.cookies.clear()
        cookie = {"Cookie": login.headers["set-cookie"].partition(";")[0]}
        person = {**cookie, "X-Console-Secret": login.json()["secret"]}
        page = await client.get(f"{base}/console/chat", headers=person)
        csrf = page.text.partition('data-csrf="')[2].partition('"')[0]

        async def form_of(schema: str, **headers: str) -> int:
            return (
                await client.post(f"{base}/console/chat/form", data={"csrf": csrf, "schema": schema}, headers=headers)
            ).status_code

        statuses = [await form_of("{}", **person), await form_of("[", **person)]
        statuses += [await form_of("{}", **cookie), await form_of("{}")]
        assert statuses == [200, 404, 403, 403]


async def test_a_server_without_agents_has_no_chat_and_says_how_to_get_one(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        overview = await served.client.get("/console")
        page = await served.client.get("/console/chat")
        api = await served.client.get("/console/chat/api/sessions")

    assert 'href="/console/chat"' not in overview.text
    assert "callyard serve --transport http --agents" in page.text
    assert api.status_code == 404
