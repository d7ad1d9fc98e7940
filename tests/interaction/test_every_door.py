"""The same call gets the same answer, whatever the door."""

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from toolyard import Yard
from toolyard.testing import connect

HERE = Path(__file__).parent / "yard_for_every_door.py"
_spec = importlib.util.spec_from_file_location("yard_for_every_door", HERE)
assert _spec is not None
assert _spec.loader is not None
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)
TOOLS: list[Any] = _module.TOOLS

Answer = dict[str, Any]


async def by_the_library(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard:
        return json.loads((await yard.call(name, arguments)).to_json())


async def by_a_test_client(name: str, arguments: dict[str, Any]) -> Answer:
    async with connect(Yard(tools=TOOLS)) as client:
        return json.loads((await client.call(name, **arguments)).to_json())


async def by_another_tool(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard(tools=TOOLS) as yard:
        return json.loads((await yard.call("pass_on", {"name": name, "arguments": arguments})).to_json())


async def by_a_yard_around_it(name: str, arguments: dict[str, Any]) -> Answer:
    async with Yard("outer", providers=[Yard("inner", tools=TOOLS)]) as yard:
        return json.loads((await yard.call(name, arguments)).to_json())


async def by_the_command_line(name: str, arguments: dict[str, Any]) -> Answer:
    command = [sys.executable, "-m", "toolyard", "call", str(HERE), name, json.dumps(arguments), "--json", "--quiet"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=False)
    return json.loads(done.stdout)


DOORS = [by_the_library, by_a_test_client, by_another_tool, by_a_yard_around_it, by_the_command_line]
CALLS: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "a good call": ("add", {"a": 1, "b": 2}, None),
    "a call with a default": ("add", {"a": 1}, None),
    "a number as text": ("add", {"a": "1"}, None),
    "a wrong argument": ("add", {"a": 1, "bb": 2}, "invalid_input"),
    "several wrong arguments": ("add", {"x": [1]}, "invalid_input"),
    "a tool that is not there": ("ad", {}, "tool_not_found"),
    "a failure of the tool's own": ("refuse", {}, "state_error"),
    "a defect": ("break_down", {}, "internal_error"),
    "a deadline": ("wait", {}, "timeout"),
    "a session that is not there": ("look", {"session_id": "s_1"}, "not_running"),
    "no session": ("look", {}, "not_running"),
    "a broken promise": ("say_nothing", {}, "invalid_output"),
}


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.__name__)
@pytest.mark.parametrize("what", CALLS)
async def test_the_same_call_gets_the_same_answer_by_every_door(
    what: str, door: Callable[[str, dict[str, Any]], Awaitable[Answer]]
) -> None:
    name, arguments, code = CALLS[what]
    expected, answer = await by_the_library(name, arguments), await door(name, arguments)

    assert (answer["error"]["code"] if answer["error"] else None) == code
    assert {key: answer[key] for key in ("success", "data", "error")} == {key: expected[key] for key in ("success", "data", "error")}
    assert answer["_meta"]["estimated_tokens"] == expected["_meta"]["estimated_tokens"]
    assert answer["_meta"].get("coerced") == expected["_meta"].get("coerced")
    assert "hunter2" not in json.dumps(answer)
