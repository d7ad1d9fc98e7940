"""Tasks of an upstream, by a script: how they fail over there."""

from pathlib import Path
from typing import Any

from scripted import MODERN, ScriptedLink
from table_tests import every_row

from callyard import Channel, Yard
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.wire.messages import Fault

EXTENSION = "io.modelcontextprotocol/tasks"


def scripted(tmp_path: Path, state: Any) -> Upstream:
    """Return an upstream whose tool is a task with this state."""
    offer: dict[str, Any] = {**MODERN["server/discover"], "capabilities": {"tools": {}, "extensions": {EXTENSION: {}}}}
    script: dict[str, Any] = {
        "server/discover": offer,
        "tools/list": {"tools": [{"name": "look"}]},
        "tools/call": {"resultType": "task", "taskId": "t1", "status": "working"},
        "tasks/get": state,
    }
    settings = UpstreamSettings(url="http://up.test/mcp", unannotated="allow")
    return Upstream("up", settings, link=lambda: ScriptedLink(script), folder=tmp_path, interval=0.01)


@every_row(
    ("state", "code", "blame"),
    [
        ({"status": "cancelled"}, "cancelled", "upstream"),
        ({"status": "failed", "error": {"code": -1, "message": "Broken."}}, "upstream_error", "upstream"),
        ({"status": "failed"}, "upstream_error", "upstream"),
        ({"status": "new to us"}, "upstream_error", "upstream"),
        ({"status": 7}, "upstream_error", "upstream"),
        (Fault(-32602, "There is no task."), "upstream_error", "upstream"),
    ],
)
async def test_a_task_that_fails_at_the_upstream_fails_here(tmp_path: Path, state: Any, code: str, blame: str) -> None:
    upstream = scripted(tmp_path / code / str(hash(str(state))), state)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        answer: Any = await yard.call("up__look", channel=Channel(name="test", capabilities=frozenset({"tasks"})))

    assert (answer.error.code, answer.error.blame) == (code, blame)
