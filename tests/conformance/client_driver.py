"""Makes a yard the client that the official suite judges: it has one upstream, the suite's server, and signs in with `toolyard login`.

The suite runs this program with the address of its server as the last argument, and says in the environment what is wanted.
"""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec

from toolyard import Yard
from toolyard.asks import Ask
from toolyard.caller import Door
from toolyard.providers.upstream.making import make_upstream
from toolyard.providers.upstream.provider import Upstream
from toolyard.providers.upstream.settings import Login, UpstreamSettings
from toolyard.spec import ToolSpec

NAME: Final = "judge"
DOCUMENT: Final = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document that the suite knows."""
SCENARIO: Final = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Final[Mapping[str, Any]] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
LOGINS: Final = 2
STUBS: Final[Mapping[str, Any]] = {"boolean": True, "integer": 0, "number": 0, "object": {}, "array": []}
BROWSER: Final = f"{sys.executable} -I {Path(__file__).with_name('browser.py')} %s"


def login_of(scenario: str, context: Mapping[str, Any]) -> Login:
    """Return how to sign in, from what the suite gives a client beforehand."""
    return Login(
        client_id=context.get("client_id"),
        client_secret=context.get("client_secret"),
        private_key=context.get("private_key_pem"),
        client_metadata_url=DOCUMENT if scenario == "auth/basic-cimd" else None,
        grant="client_credentials" if scenario.startswith("auth/client-credentials") else "authorization_code",
    )


async def sign_in(folder: Path) -> int:
    """Sign in as a person would."""
    command = (sys.executable, "-m", "toolyard", "login", NAME, "--timeout", "20", "--config", str(folder / "toolyard.toml"))
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "BROWSER": BROWSER})
    return await process.wait()


async def accept(asks: Mapping[str, Ask], _: object) -> dict[str, Any]:
    """Answer every question with its defaults."""
    fields = {key: ask.params.get("requestedSchema", {}).get("properties", {}) for key, ask in asks.items()}
    return {key: {"action": "accept", "content": {name: stub_of(rule) for name, rule in of.items()}} for key, of in fields.items()}


def stub_of(rule: Mapping[str, Any]) -> Any:
    """Return some value that fits a simple schema."""
    return rule.get("default", STUBS.get(rule.get("type", ""), "x"))


def calls_of(scenario: str, specs: Mapping[str, ToolSpec], context: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that a scenario wants to see; without a wish of its own, each tool once."""
    if "toolCalls" in context:
        return [(call["name"], call["arguments"]) for call in context["toolCalls"]]
    if scenario == "json-schema-2020-12-preservation":
        return [("json_schema_echo", {"schema": specs["json_schema_2020_12_tool"].input_schema})]
    if "add_numbers" in specs:
        return [("add_numbers", {"a": 5, "b": 3})]
    rules = {name: spec.input_schema.get("properties", {}) for name, spec in specs.items()}
    return [(name, {key: stub_of(rule) for key, rule in of.items()}) for name, of in rules.items()]


async def use(yard: Yard, upstream: Upstream) -> bool:
    """Make the calls that the scenario wants, and return whether a person must sign in first."""
    await upstream.supervisor.refresh()
    door = Door(name="judge", ask=accept)
    codes: set[str] = {upstream.status().state}
    for name, arguments in calls_of(SCENARIO, {spec.name: spec for spec in yard.list()}, CONTEXT):
        answer = await yard.call(name, arguments, door=door)
        sys.stderr.write(f"{name} {answer.error or answer.data}\n")
        codes.add("" if answer.error is None else answer.error.code)
    return bool({"auth_needed", "unauthenticated"} & codes)


async def main(url: str) -> int:
    """Use the suite's server, and sign in whenever that is wanted, but not for ever."""
    settings = UpstreamSettings(url=url, login=login_of(SCENARIO, CONTEXT), prefix="", pin="off")
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["TOOLYARD_STATE_DIR"] = str(folder / "state")
        (folder / "toolyard.toml").write_text(written(settings))
        upstream = make_upstream(NAME, settings, state=folder / "state")
        async with Yard("gateway", providers=[upstream], metatools=False) as yard:
            for _ in range(LOGINS):
                if not await use(yard, upstream):
                    return 0
                if await sign_in(folder):
                    return 1
            return int(await use(yard, upstream))


def written(settings: UpstreamSettings) -> str:
    """Return the settings as a file has them."""
    login = msgspec.structs.asdict(settings.login) if settings.login is not None else {}
    lines = [f"{name} = {json.dumps(value)}" for name, value in login.items() if value]
    return "\n".join([f"[upstreams.{NAME}]", f"url = {json.dumps(settings.url)}", f"[upstreams.{NAME}.login]", *lines])


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1])))
