"""A yard with something of everything that a client can want of a server, to be served on stdio or over HTTP.

    python yard_for_clients.py '{"transport": "http", "port": 0}'

Over HTTP the address that it listens on is the first line of stdout.
"""

import asyncio
import json
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from callyard import (
    Call,
    ClientRequest,
    Confirmation,
    Embedded,
    Envelope,
    Image,
    Message,
    ResourceLink,
    Serving,
    Text,
    ToolError,
    Yard,
    prompt,
    resource,
    run,
    tool,
)
from callyard.launch.serve import serve_forever
from callyard.providers import Publish
from callyard.providers.functions import Functions
from callyard.transports import Transport

__all__ = ["PIXEL", "make_yard"]

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360000000000500017a5eab3f0000000049454e44ae426082"
)
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
DAYS = {"monday": "Water the plants.", "tuesday": "Repot the fern."}


@tool(operation="query", title="Add two numbers")
async def add(a: int, b: int = 1) -> int:
    """Add two integers."""
    return a + b


@tool(operation="query")
async def echo(text: str, tags: list[str] | None = None) -> dict[str, Any]:
    """Return what was given."""
    return {"text": text, "tags": tags or []}


@tool(operation="query", shape="plain")
async def plain(text: str) -> str:
    """Return the text as it is."""
    return text


@tool(operation="query")
async def paint() -> Envelope:
    """Return a picture, a text, a link and a page."""
    blocks = [
        Image(PIXEL),
        Text("A pixel."),
        ResourceLink("notes://all", "all"),
        Embedded(uri="notes://monday", text=DAYS["monday"]),
    ]
    return Envelope.ok("painted", content=blocks)


@tool
async def step(call: Call, count: int = 3) -> str:
    """Take steps, and tell of each."""
    for number in range(1, count + 1):
        call.progress(number, count, f"step {number}")
        call.log("debug", "looked", number=number)
        call.log("warning", "stepped", number=number)
    return "done"


@tool
async def greet(call: Call) -> str:
    """Greet the person."""
    return f"Hello {(await call.ask(NAME, 'Who is there?', key='who'))['name']}"


@tool(confirmation=Confirmation("Who is there?", NAME, "who"))
async def greet_first(call: Call) -> str:
    """Greet the person, who is asked before anything happens."""
    return f"Hello {(call.confirmation or {})['name']}"


@tool
async def consult(call: Call) -> dict[str, Any]:
    """Ask the person, the model and the client at once."""
    asks = {
        "who": ClientRequest.person("Who?", NAME),
        "what": ClientRequest.model("What?", max_tokens=10),
        "where": ClientRequest.roots(),
    }
    return dict(await call.ask_all(asks))


@tool
async def fail(code: str = "state_error") -> None:
    """Fail with a code."""
    raise ToolError(code, "It cannot be done.")  # pyright: ignore[reportArgumentType] - a test says which


@tool
async def crash() -> None:
    """Fail as nobody meant it."""
    raise RuntimeError


@resource("notes://all", mime_type="text/markdown", title="All notes")
async def all_notes() -> str:
    """Return every note as one page."""
    return "\n".join(DAYS.values())


@resource("notes://pixel")
async def pixel() -> Image:
    """Return a picture."""
    return Image(PIXEL)


def days(value: str, settled: dict[str, str]) -> list[str]:
    """Return the days that begin so."""
    return [day for day in DAYS if day.startswith(value)]


@resource("notes://days/{day}", complete={"day": days})
async def note_of(day: str) -> str:
    """Return the note of a day."""
    if day not in DAYS:
        raise ToolError("not_found", f"There is no note of '{day}'.")
    return DAYS[day]


@prompt(
    title="Review a text",
    complete={"tone": lambda value, _: [tone for tone in ("kind", "keen") if tone.startswith(value)]},
)
async def review(text: str, tone: str = "kind") -> list[Message]:
    """Ask for a review."""
    return [Message("user", f"Be {tone}: {text}"), Message("user", Image(PIXEL)), Message("assistant", "I will.")]


@prompt
async def remember() -> str:
    """Ask for what was said before."""
    return "What did I say?"


@prompt
async def introduce(call: Call) -> str:
    """Ask the person for a name first."""
    return f"I am {(await call.ask(NAME, 'Who is there?', key='who'))['name']}"


class Waiting:
    """Calls that wait until they are stopped, and who asks whether they were."""

    def __init__(self) -> None:
        self._started: dict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._stopped: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    @tool
    async def wait_for_ever(self, key: str, call: Call) -> str:
        """Wait until somebody stops the call."""
        call.progress(1, 2, "waiting")
        self._started[key].set()
        try:
            return str(await asyncio.Event().wait())
        finally:
            self._stopped[key].set()

    @tool
    async def hang_up(self, key: str, call: Call) -> str:
        """Let go of the connection half-way, and wait to be told to go on."""
        call.progress(1, 2, "before")
        call.hang_up()
        await self._started[key].wait()
        call.progress(2, 2, "after")
        return "done"

    @tool
    async def go_on(self, key: str) -> None:
        """Let the call of that key go on."""
        self._started[key].set()

    @tool(operation="query")
    async def was_started(self, key: str) -> bool:
        """Wait until the call of that key is there."""
        return await self._started[key].wait()

    @tool(operation="query")
    async def was_stopped(self, key: str) -> bool:
        """Wait until the call of that key was stopped."""
        return await self._stopped[key].wait()


class Growing:
    """Publishes more when it is told to."""

    name = "growing"

    def __init__(self) -> None:
        self._names: list[str] = []
        self._publish: Publish | None = None

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish nothing yet."""
        self._publish = publish
        self._names.clear()
        yield

    @tool
    async def learn(self, name: str) -> None:
        """Publish a tool, a resource and a prompt of that name."""
        self._names.append(name)
        made = [self._make(known) for known in self._names]
        functions = Functions(
            self.name,
            [one for one, _, _ in made],
            resources=[one for _, one, _ in made],
            prompts=[one for _, _, one in made],
        )
        assert self._publish is not None
        async with functions.open(self._publish):
            pass

    @tool
    async def touch(self, uri: str) -> None:
        """Say that a resource changed."""
        assert self._publish is not None
        self._publish.updated(uri)

    def _make(self, name: str) -> tuple[object, object, object]:
        def learned() -> str:
            """Return what was learned."""
            return name

        return tool(name=name)(learned), resource(f"learned://{name}")(learned), prompt(name=name)(learned)


def make_yard() -> Yard:
    """Return the yard, not open yet."""
    growing = Growing()
    tools = [
        add,
        echo,
        plain,
        paint,
        step,
        greet,
        greet_first,
        consult,
        fail,
        crash,
        Waiting(),
        growing.learn,
        growing.touch,
    ]
    return Yard(
        "shed",
        tools=tools,
        resources=[all_notes, pixel, note_of],
        prompts=[review, remember, introduce],
        providers=[growing],
        version="1.2.3",
        instructions="Use 'add' to add.",
    )


def _say(transport: Transport) -> None:
    if transport.name != "stdio":
        sys.stdout.write(transport.info().address + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    settings: dict[str, Any] = json.loads(sys.argv[1]) if len(sys.argv) > 1 else {}
    run(serve_forever(make_yard(), Serving(**settings), ready=_say))
