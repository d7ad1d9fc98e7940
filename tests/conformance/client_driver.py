"""Makes a yard the client that the official suite judges, as people run it: `callyard serve` and `callyard login`.

The suite runs this program with the address of its server as the last argument, and says in the environment what is
wanted. With `--login-first` somebody signs in before anything is served; with `--address` there is no file of ours, but
only that address, and with `--client-file` that of a client.
"""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Literal

NAME: Final = "judge"
LOGIN_FIRST: Final = "--login-first"
ADDRESS: Final = "--address"
CLIENT_FILE: Final = "--client-file"
DOCUMENT: Final = "https://conformance-test.local/client-metadata.json"
"""The client id metadata document that the suite knows."""
SCENARIO: Final = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
CONTEXT: Final[Mapping[str, Any]] = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
GRANTS: Final = {
    "auth/client-credentials": "client_credentials",
    "auth/enterprise-managed": "identity_assertion",
}
"""Scenarios in which no person signs in."""
LOGINS: Final = 2
TIMEOUT: Final = 60.0
CALLYARD: Final = (sys.executable, "-m", "callyard")
LINE: Final = 4 * 1024 * 1024
STUBS: Final[Mapping[str, Any]] = {"boolean": True, "integer": 0, "number": 0, "object": {}, "array": []}
BROWSER: Final = f"{sys.executable} -I {Path(__file__).with_name('browser.py')} %s"
HELLO: Final[Mapping[str, Any]] = {
    "protocolVersion": "2025-11-25",
    "clientInfo": {"name": "judge", "version": "1"},
    "capabilities": {"elicitation": {}},
}


def configuration(url: str) -> str:
    """Return the file that somebody writes who was given what the suite gives a client beforehand."""
    login = {
        "client_id": CONTEXT.get("client_id"),
        "client_secret": CONTEXT.get("client_secret"),
        "private_key": CONTEXT.get("private_key_pem"),
        "issuer": CONTEXT.get("issuer"),
        "client_metadata_url": DOCUMENT if SCENARIO == "auth/basic-cimd" else None,
        "grant": next((grant for beginning, grant in GRANTS.items() if SCENARIO.startswith(beginning)), None),
    }
    upstream = {"url": url, "prefix": "", "pin": "off", "unannotated": "allow"}
    tables: dict[str, Mapping[str, str | None]] = {"": upstream, ".login": login}
    if "idp_issuer" in CONTEXT:
        tables[".login.identity"] = {name: CONTEXT[f"idp_{name}"] for name in ("issuer", "client_id", "id_token")}
    return "\n".join(line for name, settings in tables.items() for line in table(f"upstreams.{NAME}{name}", settings))


def table(name: str, settings: Mapping[str, str | None]) -> list[str]:
    """Return the lines of a table of the file."""
    return [
        f"[{name}]",
        *(f"{setting} = {json.dumps(value)}" for setting, value in settings.items() if value is not None),
    ]


class Served:
    """A server on pipes, with us as its client; what it logs is passed on."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._to, self._from, self._log = process.stdin, process.stdout, process.stderr
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.news = asyncio.Event()
        """Set when it says that its tools are others, or that it is not let in."""

    async def request(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the result of a request."""
        number = len(self._waiting)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self.send(id=number, method=method, params=params)
        return (await self._waiting[number])["result"]

    def send(self, **message: Any) -> None:
        """Send a message."""
        self._to.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def listen(self) -> None:
        """Take what it sends; questions are answered with their defaults."""
        async for line in self._from:
            message: dict[str, Any] = json.loads(line)
            if message.get("method") == "elicitation/create":
                fields = message["params"]["requestedSchema"]["properties"]
                self.send(
                    id=message["id"],
                    result={"action": "accept", "content": {name: stub_of(rule) for name, rule in fields.items()}},
                )
            elif message.get("method") == "notifications/tools/list_changed":
                self.news.set()
            elif "method" not in message:
                self._waiting[message["id"]].set_result(message)

    async def read_log(self) -> None:
        """Take what it logs."""
        async for line in self._log:
            sys.stderr.write(line.decode())
            if b"state=auth_needed" in line:
                self.news.set()


@asynccontextmanager
async def served(*arguments: str) -> AsyncGenerator[Served]:
    """Run `callyard serve`, and greet it."""
    command = (*CALLYARD, "serve", "-v", *arguments)
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, limit=LINE)
    server = Served(process)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(server.listen())
        tasks.create_task(server.read_log())
        await server.request("initialize", HELLO)
        server.send(method="notifications/initialized")
        yield server
        assert process.stdin is not None
        process.stdin.close()
    assert await process.wait() == 0


async def signed_in(*arguments: str) -> bool:
    """Sign in as a person would, and return whether that worked."""
    command = (*CALLYARD, "login", *arguments, "--timeout", str(TIMEOUT))
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, "BROWSER": BROWSER})
    return await process.wait() == 0


def stub_of(rule: Mapping[str, Any]) -> Any:
    """Return some value that fits a simple schema."""
    return rule.get("default", STUBS.get(rule.get("type", ""), "x"))


def calls_of(schemas: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """Return the calls that the scenario wants to see; without a wish of its own, each tool once."""
    if "toolCalls" in CONTEXT:
        return [(call["name"], call["arguments"]) for call in CONTEXT["toolCalls"]]
    if SCENARIO == "json-schema-2020-12-preservation":
        return [("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})]
    if "add_numbers" in schemas:
        return [("add_numbers", {"a": 5, "b": 3})]
    return [
        (name, {key: stub_of(rule) for key, rule in schema.get("properties", {}).items()})
        for name, schema in schemas.items()
    ]


async def use(server: Served) -> Literal["well", "refused", "nothing"]:
    """Make the calls that the scenario wants, and return the outcome; before a login there may be nothing to call."""
    listed = await server.request("tools/list", {})
    schemas = {tool["name"]: tool["inputSchema"] for tool in listed["tools"]}
    if not schemas and SCENARIO.startswith("auth/"):
        return "nothing"
    codes: set[str] = set()
    for name, arguments in calls_of(schemas):
        answer = await server.request("tools/call", {"name": name, "arguments": arguments})
        sys.stderr.write(f"{name} {answer}\n")
        codes.add(answer["structuredContent"]["error"]["code"] if answer.get("isError") else "")
    return "refused" if "unauthenticated" in codes else "well"


async def judged(serve: tuple[str, ...], login: tuple[str, ...], *, login_first: bool) -> bool:
    """Use the suite's server, sign in whenever that is wanted, but not for ever, and return whether all went well."""
    if login_first and not await signed_in(*login):
        return False
    async with served(*serve) as server:
        for _ in range(LOGINS):
            went = await use(server)
            if went == "well":
                return True
            server.news.clear()
            if not await signed_in(*login):
                return False
            if went == "nothing":
                await server.news.wait()
        return await use(server) == "well"


def arguments_of(url: str, folder: Path, ways: Collection[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return what `callyard serve` and `callyard login` are told."""
    if ADDRESS in ways:
        return (url,), (url,)
    if CLIENT_FILE in ways:
        path = folder / "mcp.json"
        path.write_text(json.dumps({"mcpServers": {NAME: {"url": url}}}))
        return (str(path),), (NAME, "--config", str(path))
    (folder / "callyard.toml").write_text(configuration(url))
    file = ("--config", str(folder / "callyard.toml"))
    return file, (NAME, *file)


async def main(url: str, ways: Collection[str]) -> int:
    """Be judged, in a folder of our own."""
    with TemporaryDirectory() as name:
        os.environ["CALLYARD_STATE_DIR"] = str(Path(name) / "state")
        serve, login = arguments_of(url, Path(name), ways)
        async with asyncio.timeout(TIMEOUT):
            return int(not await judged(serve, login, login_first=LOGIN_FIRST in ways))


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[-1], sys.argv[1:-1])))
