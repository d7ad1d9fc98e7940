"""The chat page with a real agent SDK, a scripted model and a real browser."""

import os
import re
import subprocess
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from pinned_packages import python_with
from playwright.async_api import Page, expect

from toolyard import Yard, tool
from toolyard.agents import AgentManager, StreamEvent, TurnRequest
from toolyard.agents.api import AgentApi
from toolyard.agents.events import TextDelta
from toolyard.testing.models import ScriptedAnthropic, ScriptedModel, ToolUse

ROOT = Path(__file__).parent.parent.parent
BURN = "mcp__yard__burn"
Play = Callable[[TurnRequest], AsyncGenerator[StreamEvent]]
TARGET = '''
from toolyard import Yard, tool

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


@contextmanager
def agents_served(tmp_path: Path, model: ScriptedModel) -> Generator[str]:
    """Serve a yard with agents of the Claude Agent SDK, which talk to a scripted model, and yield the address that logs in."""
    python = python_with(ROOT / "tests" / "inject" / "agents.txt", what="Claude Agent SDK")
    (tmp_path / "hall.py").write_text(TARGET)
    home = {"HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state"), "CLAUDE_CONFIG_DIR": str(tmp_path / "claude")}
    keys = {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"}
    environment = {**os.environ, **home, **keys, "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "toolyard", "serve", "hall.py", "--transport", "http", "--port", "0", "--agents"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603 - our own program
        try:
            lines = list[str]()
            for line in server.stderr or ():
                lines.append(line)
                found = re.search(r"console address=(\S+)", line)
                if found is not None:
                    yield found[1]
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
        page: Page = await look(login.replace("/console?", "/console/chat?"))
        await page.get_by_label("Message").fill("Burn the letters.")
        await page.keyboard.press("Enter")
        await expect(page.get_by_text("Burn the letters.", exact=True)).to_be_visible()
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
    with ScriptedAnthropic([ToolUse(BURN, {"what": "the house"}), "I leave it."]) as model, agents_served(tmp_path, model) as login:
        page: Page = await look(login.replace("/console?", "/console/chat?"), width=390, scheme="dark")
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
async def played(serve: Any, play: Play) -> AsyncGenerator[str]:
    """Serve agents whose turns a function plays, and yield the address of the chat."""
    yard = Yard("hall", tools=[echo])
    manager = AgentManager(yard, PlayedRuntime(play))
    async with serve(yard, agents=AgentApi(manager).serve) as served, manager:
        yield served.login.replace("/console?", "/console/chat?")


async def send(page: Page, text: str) -> None:
    await page.get_by_label("Message").fill(text)
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


async def test_a_server_without_agents_has_no_chat_and_says_how_to_get_one(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        overview = await served.client.get("/console")
        page = await served.client.get("/console/chat")
        api = await served.client.get("/console/chat/api/sessions")

    assert 'href="/console/chat"' not in overview.text
    assert "toolyard serve --transport http --agents" in page.text
    assert api.status_code == 404
