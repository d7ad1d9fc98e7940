"""Sick upstreams hurt no others: three of twenty hang and two are dead; a served yard lists all and calls the rest."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final

import anyio
from mcp import Client, StdioServerParameters
from msgspec.structs import replace

from callyard._internal.project import find_project, project_dir
from callyard.providers.upstream.catalogue import Catalogue, endpoint_hash, folder_of, save
from callyard.providers.upstream.settings import UpstreamSettings

BAD: Final = Path(__file__).parent.parent / "servers" / "bad_server.py"
ECHO: Final = {"name": "echo", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}}
FOR_EVER: Final = 600.0


def bad(mode: str) -> UpstreamSettings:
    """Return the settings of a server that may take for ever to greet, as the mode has it."""
    return UpstreamSettings(command=sys.executable, args=("-I", "-S", str(BAD), mode), connect_seconds=FOR_EVER)


HEALTHY: Final = {f"well{number}": bad("well") for number in range(15)}
HUNG: Final = {f"hung{number}": bad("never_answers") for number in range(3)}
DEAD: Final = {
    "gone": UpstreamSettings(command="no-such-program-anywhere"),
    "shut": UpstreamSettings(url="http://127.0.0.1:1/mcp"),
}


def write(folder: Path) -> None:
    """Write a file with all of them and an old listing of each, so that all are listed anew at the start."""
    lines = ["metatools = false"]
    for name, settings in {**HEALTHY, **HUNG, **DEAD}.items():
        reached = {"url": settings.url} if settings.url else {"command": settings.command, "args": list(settings.args)}
        lines += [f"[upstreams.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in reached.items())]
        lines += [
            f"connect_seconds = {FOR_EVER}",
            f"list_seconds = {FOR_EVER}",
            'pin = "off"',
        ]  # what was seen is less than what is there
        there = (
            settings if settings.url else replace(settings, cwd=str(folder))
        )  # a command of a file runs in the file's folder
        kept = Catalogue(
            endpoint_hash=endpoint_hash(there), seen=time.time() - 10**6, version="2026-07-28", tools=(ECHO,)
        )
        save(folder_of(project_dir(folder / "state", find_project(folder / "callyard.toml")), name), kept)
    (folder / "callyard.toml").write_text("\n".join(lines))


def served(folder: Path) -> StdioServerParameters:
    """Return the command that serves that file."""
    environment = {**os.environ, "CALLYARD_STATE_DIR": str(folder / "state")}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "callyard", "serve", str(folder / "callyard.toml")],
        env=environment,
        cwd=str(folder),
    )


async def test_lists_and_calls_do_not_wait_for_broken_upstreams(tmp_path: Path) -> None:
    write(tmp_path)
    answers: dict[str, Any] = {}
    listed: set[str] = set()

    with anyio.fail_after(60):  # far less than those that hang would take
        async with Client(served(tmp_path), mode="2026-07-28") as client, anyio.create_task_group() as group:
            listed |= {tool.name for tool in (await client.list_tools()).tools}

            async def call(name: str) -> None:
                answers[name] = await client.call_tool(f"{name}__echo", {"text": name})

            for name in HUNG:
                group.start_soon(call, name)
            async with anyio.create_task_group() as others:
                for name in (*HEALTHY, *DEAD):
                    others.start_soon(call, name)
            group.cancel_scope.cancel()

    assert listed >= {f"{name}__echo" for name in (*HEALTHY, *HUNG, *DEAD)}
    assert set(answers) == {*HEALTHY, *DEAD}
    assert [answers[name].content[0].text for name in HEALTHY] == list(HEALTHY)
    assert {answers[name].structured_content["error"]["code"] for name in DEAD} == {"upstream_unavailable"}
    assert not any(answers[name].structured_content["error"]["may_have_run"] for name in DEAD)
