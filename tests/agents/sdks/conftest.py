"""What the tests with real SDKs share: a yard, a scripted model, and a manager whose runtime talks to that model.

They run in an environment that has the SDKs: `test_sdks.py`, one folder up, starts them.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from callyard import Call, Yard, tool
from callyard.agents import AgentManager, AgentOptions, StreamEvent
from callyard.agents.claude import ClaudeRuntime
from callyard.agents.events import ApprovalRequired, Question, type_of
from callyard.agents.openai import OpenAIRuntime
from callyard.inject.claude import claude_tool_name
from callyard.state.memory import MemoryStore
from callyard.testing import FakeSink
from callyard.testing.models import ScriptedAnthropic, ScriptedModel, ScriptedOpenAI, Turn

sys.path.insert(0, str(Path(__file__).parent))

TIMEOUT = 60.0
Decide = Callable[[AgentManager, ApprovalRequired | Question], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sdk", default="claude", help="The runtime to test.")


@pytest.fixture
def sdk(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--sdk"))


@pytest.fixture
def name_of(sdk: str) -> Callable[[str], str]:
    def claude_name(tool: str) -> str:
        return claude_tool_name(tool, "yard_system") if tool == "get_session_count" else claude_tool_name(tool)

    return claude_name if sdk == "claude" else str


@dataclass
class Tools:
    """A tool for each behaviour, and what they did."""

    burnt: list[str] = field(default_factory=list)
    started: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    both: asyncio.Barrier = field(default_factory=lambda: asyncio.Barrier(2))

    @tool(operation="destroy")
    def burn(self, what: str, call: Call, count: int = 1) -> str:
        """Burn something."""
        self.burnt.append(what)
        return f"burnt {what} {count}"

    @tool(operation="query")
    def look(self) -> str:
        """Look around."""
        return "nothing"

    @tool(operation="query")
    async def march(self, call: Call) -> str:
        """Walk one half of the way."""
        await call.progress(1, 2, "half")
        return "arrived"

    @tool(operation="query")
    async def wait(self) -> None:
        """Wait until somebody cancels it."""
        self.started.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.stopped.set()

    @tool(operation="command")
    async def paint(self, call: Call) -> str:
        """Paint, in a colour that the person chooses."""
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
        return "painted " + (await call.ask(schema, "Which colour?"))["colour"]

    @tool(operation="command")
    def open_cart(self, call: Call) -> str:
        """Open a cart, which is a session."""
        return call.start_session(kind="cart").kind

    @tool(operation="query")
    def archive(self) -> list[str]:
        """Return a long list, which becomes a handle."""
        return [f"order {number}" for number in range(5000)]

    @tool(operation="query")
    def count(self, items: list[str]) -> int:
        """Count items."""
        return len(items)

    @tool(operation="query")
    async def meet(self) -> None:
        """Wait until two calls are here."""
        await self.both.wait()


@dataclass
class Host:
    """A manager whose runtime talks to a scripted model."""

    manager: AgentManager
    model: ScriptedModel
    tools: Tools
    sink: FakeSink
    home: Path

    async def send(
        self, content: str = "Go.", *, session: str = "chat", decide: Decide | None = None, **options: Any
    ) -> list[Any]:
        """Send a message and return its events; `decide` decides about what a person is asked."""
        events: list[Any] = []
        async with asyncio.timeout(TIMEOUT):
            async for event in self.manager.send_message(session, content, **options):
                events.append(event)
                if isinstance(event, ApprovalRequired | Question) and decide is not None:
                    decide(self.manager, event)
        return events


def back(body: dict[str, Any]) -> list[Turn]:
    """Return a script that answers every turn with the same word."""
    return ["Back."] * 9


def approve(manager: AgentManager, event: ApprovalRequired | Question) -> None:
    manager.interactions.decide(event.interaction_id, approve=True, by="local")


def deny(manager: AgentManager, event: ApprovalRequired | Question) -> None:
    manager.interactions.decide(event.interaction_id, approve=False, by="local", reason="Not on a Sunday.")


def of_type(events: Sequence[StreamEvent], kind: str) -> list[Any]:
    return [event for event in events if type_of(event) == kind]


def make_runtime(sdk: str, model: ScriptedModel, home: Path, **options: Any) -> Any:
    """Return a runtime that talks to a scripted model."""
    if sdk == "openai":
        agents, openai = import_module("agents"), import_module("openai")
        client = openai.AsyncOpenAI(base_url=model.url, api_key="none", max_retries=0)
        return OpenAIRuntime(agents.OpenAIResponsesModel("scripted", client))
    claude = import_module("claude_agent_sdk")
    environment = {
        "ANTHROPIC_BASE_URL": model.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CONFIG_DIR": str(home / "config"),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "0",
        "IS_SANDBOX": "1",  # the CLI refuses root to bypass permissions otherwise
    }
    base = {"tools": ["AskUserQuestion"], "setting_sources": [], "env": environment, "cwd": str(home)}
    environment.update(options.pop("env", {}))
    return ClaudeRuntime(claude.ClaudeAgentOptions(**{**base, **options}))


@pytest.fixture
def hosting(sdk: str, tmp_path: Path) -> Any:
    """Return a context manager that runs a manager with a script."""

    @asynccontextmanager
    async def host(
        script: Sequence[Turn] | ScriptedModel,
        *,
        store: Any = None,
        yard: Any = None,
        runtime: Any = None,
        **options: Any,
    ) -> AsyncGenerator[Host]:
        tools, sink = Tools(), FakeSink()
        scripted = ScriptedOpenAI if sdk == "openai" else ScriptedAnthropic
        settings: dict[str, Any] = {
            "packs": ["system"],
            "sinks": [sink],
            "store": store or MemoryStore(),
            **(yard or {}),
        }
        async with Yard("shop", tools=[tools], **settings) as opened:
            with script if isinstance(script, ScriptedModel) else scripted(script) as model:
                running = make_runtime(sdk, model, tmp_path, **(runtime or {}))
                async with AgentManager(opened, running, AgentOptions(**options)) as manager:
                    yield Host(manager, model, tools, sink, tmp_path)

    return host


def children(parent: int | None = None) -> Iterator[int]:
    """Yield the processes that a process started and that still run; by default those of this one."""
    wanted = str(os.getpid() if parent is None else parent)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if fields[1] == wanted and fields[0] != "Z":
                yield int(entry.name)


def running() -> Iterator[int]:
    """Yield every process."""
    yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
