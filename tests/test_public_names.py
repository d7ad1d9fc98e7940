"""The public names: each is documented, and each can be used as the documents say."""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import callyard
from callyard import Call, Operation, Tool, ToolSpec, Yard, asgi, serve
from callyard.config import ConfigError
from callyard.config.settings import Serving, known_settings
from callyard.testing import connect
from callyard.transports.memory import Memory

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
SPEC = ToolSpec(
    name="add",
    description="Add numbers.",
    input_schema={
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}}, "start": {"default": 0}},
        "required": ["numbers"],
        "additionalProperties": False,
    },
    output_schema={"type": "integer", "minimum": 0},
    operation=Operation.QUERY,
)


async def add(call: Call) -> int:
    return call.arguments["start"] + sum(call.arguments["numbers"])


def test_the_page_of_public_names_and_the_package_name_the_same() -> None:
    listed = PAGE.partition("## Beside these")[0]
    own = re.sub(r"### The parameters of a yard.*?(?=\n## )", "", listed, flags=re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \|", own, re.MULTILINE)

    assert sorted(rows) == sorted(callyard.__all__)


def test_the_modules_beside_the_package_have_the_names_that_the_page_lists() -> None:
    beside = PAGE.partition("## Beside these")[2]
    paths = re.findall(r"`(callyard(?:\.\w+)+)`", beside)

    assert paths
    assert [path for path in paths if not _exists(path)] == []


def _exists(path: str) -> bool:
    module, _, name = path.rpartition(".")
    found: Any = __import__(module, fromlist=[name])
    return hasattr(found, name)


def test_an_editor_shows_every_setting_that_serve_takes() -> None:
    expected = {
        setting.name
        for setting in known_settings().values()
        if setting.section in {"", "serve", "monitor"} and setting.key != "target"
    }
    parameters = inspect.signature(serve).parameters

    assert set(parameters) == {"yard", "config", "authenticator", *expected}
    assert all(parameter.annotation is not parameter.empty for parameter in parameters.values())


def test_an_editor_shows_every_setting_that_asgi_takes_with_its_default() -> None:
    parameters = dict(inspect.signature(asgi).parameters)
    del parameters["yard"], parameters["authenticator"]

    assert {name: parameter.default for name, parameter in parameters.items()} == {
        name: getattr(Serving(), name) for name in parameters
    }


async def test_a_tool_is_made_of_a_json_schema_and_a_handler() -> None:
    async with connect(Yard(tools=[Tool.of(SPEC, add)])) as client:
        good = await client.call("add", numbers=[1, 2])
        wrong = await client.call("add", numbers=["x"])
        below = await client.call("add", numbers=[-5])

    assert good.data == 3
    assert wrong.error is not None
    assert (wrong.error.code, wrong.error.details["issues"][0]["field"]) == ("invalid_input", "numbers.0")
    assert below.error is not None
    assert below.error.code == "invalid_output"


async def test_an_mcp_client_sees_the_json_schema_of_a_tool_and_its_answers() -> None:
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    memory = Memory(Serving())

    async def ask(number: int, method: str, **params: Any) -> Any:
        message: dict[str, Any] = {
            "jsonrpc": "2.0",
            "id": number,
            "method": method,
            "params": {**params, "_meta": meta},
        }
        memory.send(json.dumps(message).encode())
        return json.loads(await memory.received.get())["result"]

    async with Yard(tools=[Tool.of(SPEC, add)], metatools=False) as yard, memory.open(yard):
        listed = await ask(1, "tools/list")
        good = await ask(2, "tools/call", name="add", arguments={"numbers": [1, 2], "start": 4})
        wrong = await ask(3, "tools/call", name="add", arguments={"number": [1]})

    assert [item["inputSchema"] for item in listed["tools"]] == [SPEC.input_schema]
    assert good["structuredContent"]["data"] == 7
    assert wrong["structuredContent"]["error"]["code"] == "invalid_input"


async def test_a_gateway_is_one_line(tmp_path: Path) -> None:
    bank = {"command": sys.executable, "args": ["-m", "callyard", "serve", str(ROOT / "examples" / "bank.py")]}

    async with connect(Yard(upstreams={"bank": bank}, state_dir=str(tmp_path))) as client:
        await client.yard.providers.wait_ready(60)
        answer = await client.call("bank__get_balance", account="savings")

    assert answer.success


def test_an_unknown_key_of_an_upstream_is_refused_with_what_was_meant() -> None:
    with pytest.raises(ConfigError, match=r"'upstreams\.gh\.comand' is not known\. Did you mean 'command'\?"):
        Yard(upstreams={"gh": {"comand": "gh-mcp"}})


@pytest.mark.parametrize("upstreams", [{"G H": {"command": "a"}}, {"a-b": {"command": "a"}, "a_b": {"command": "b"}}])
def test_an_upstream_of_code_is_named_as_one_of_a_file(upstreams: Any) -> None:
    with pytest.raises(ConfigError):
        Yard(upstreams=upstreams)


def test_an_upstream_and_a_provider_cannot_share_a_name() -> None:
    with pytest.raises(ValueError, match="Two providers are named 'yard'"):
        Yard(tools=[Tool.of(SPEC, add)], upstreams={"yard": {"command": "a"}})


async def test_an_upstream_that_is_switched_off_is_not_used(tmp_path: Path) -> None:
    off = {"url": "http://127.0.0.1:1", "enabled": False}

    async with Yard(upstreams={"off": off}, state_dir=str(tmp_path)) as yard:
        assert "off" not in [provider.name for provider in yard.providers]


async def test_a_missing_variable_makes_only_its_own_upstream_unusable(tmp_path: Path) -> None:
    lost = {"url": "http://127.0.0.1:1", "headers": {"X-Key": "${NO_SUCH_VARIABLE_HERE}"}}

    async with Yard(upstreams={"lost": lost}, state_dir=str(tmp_path)) as yard:
        problems = [getattr(provider, "problem", "") for provider in yard.providers]

    assert len([problem for problem in problems if "NO_SUCH_VARIABLE_HERE" in problem]) == 1
