"""The same messages to the official SDK's server and to ours: every difference has a class and a reason.

A difference is written as one line: where and which message, what differs, what the SDK says, what we say.
"""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, cast

import httpx2
import pytest

HERE = Path(__file__).parent
CORPUS: list[dict[str, Any]] = json.loads((HERE / "corpus.json").read_text())
OPENINGS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
NEW = OPENINGS[-1]
META = {
    "io.modelcontextprotocol/protocolVersion": NEW,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "twin", "version": "1"},
}
ROUNDS = 3
ROUNDS_OF_A_REQUEST = 300
"""A request with a slow handler is answered later than the requests behind it, and some are dropped for good."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
"""Nobody measures what these processes cover: it would take most of their time."""
Answers = dict[str, list[dict[str, Any]]]


def bytes_of(entry: dict[str, Any]) -> bytes:
    return (entry["raw"] if "raw" in entry else json.dumps(entry["message"])).encode()


def entries_of(opening: str) -> list[dict[str, Any]]:
    return [entry for entry in CORPUS if entry["opening"] == opening]


def hello(opening: str) -> dict[str, Any]:
    params = {"protocolVersion": opening, "capabilities": {}, "clientInfo": {"name": "twin", "version": "1"}}
    return {"jsonrpc": "2.0", "id": "hello", "method": "initialize", "params": params}


def id_in(data: bytes) -> object:
    """Return the id of a request, or None for everything else."""
    with suppress(ValueError):
        message: Any = json.loads(data)
        return cast("dict[str, Any]", message).get("id") if isinstance(message, dict) and "method" in message else None
    return None


class Pipe:
    """A server on stdio.

    What a message is answered with is what comes before the answers to a few requests behind it, or to many while a
    request is not answered.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._number = 0

    def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data + b"\n")

    async def answers(self, data: bytes, opening: str) -> list[dict[str, Any]]:
        self.write(data)
        heard: list[dict[str, Any]] = []
        request_id = id_in(data)
        for number in range(ROUNDS_OF_A_REQUEST):
            is_answered = request_id is None or any(message.get("id") == request_id for message in heard)
            if number >= ROUNDS and is_answered:
                break
            self._number += 1
            mine = f"round-{self._number}"
            last = {"method": "server/discover", "params": {"_meta": META}} if opening == NEW else {"method": "ping"}
            self.write(json.dumps({"jsonrpc": "2.0", "id": mine, **last}).encode())
            while True:
                assert self._process.stdout is not None
                line = await self._process.stdout.readline()
                if line.startswith(b"{") and json.loads(line).get("id") == mine:
                    break
                heard.append(json.loads(line))
        return heard


@asynccontextmanager
async def pipe_to(program: Path) -> AsyncGenerator[Pipe]:
    pipes: dict[str, Any] = {
        "stdin": asyncio.subprocess.PIPE,
        "stdout": asyncio.subprocess.PIPE,
        "stderr": asyncio.subprocess.DEVNULL,
    }
    process = await asyncio.create_subprocess_exec(sys.executable, program, "{}", limit=2**22, env=ENVIRONMENT, **pipes)
    try:
        async with asyncio.timeout(60):
            yield Pipe(process)
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await process.wait()


async def by_stdio(program: Path, opening: str) -> Answers:
    async with pipe_to(program) as pipe:
        found: Answers = {}
        if opening != NEW:
            (found["hello"],) = [await pipe.answers(json.dumps(hello(opening)).encode(), opening)]
            pipe.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}')
        for entry in entries_of(opening):
            found[entry["name"]] = await pipe.answers(bytes_of(entry), opening)
        return found


def headers_of(entry: dict[str, Any], opening: str, session: str | None) -> dict[str, str]:
    """Return what a client of that version would say about the message in headers."""
    headers = {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "mcp-protocol-version": opening,
    }
    if session is not None:
        headers["mcp-session-id"] = session
    message = entry.get("message", {})
    params: Any = message.get("params")
    if opening == NEW and isinstance(params, dict):
        given = cast("dict[str, Any]", params)
        headers["mcp-method"] = str(message.get("method"))
        headers["mcp-protocol-version"] = str(
            given.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion", NEW)
        )
        if "name" in given or "uri" in given:
            headers["mcp-name"] = str(given.get("name", given.get("uri")))
    return headers


def heard_in(response: httpx2.Response) -> list[dict[str, Any]]:
    """Return the messages of a response, as JSON or as a stream, with its status."""
    body = response.text
    if response.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line.removeprefix("data:").strip() for line in body.splitlines() if line.startswith("data:")]
        return [{"status": response.status_code}, *(json.loads(line) for line in lines if line)]
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return [{"status": response.status_code}, *([json.loads(body)] if body and is_json else [])]


async def by_http(url: str, opening: str) -> Answers:
    async with httpx2.AsyncClient(timeout=60) as client:
        found: Answers = {}
        session: str | None = None
        if opening != NEW:
            opened = await client.post(url, json=hello(opening), headers=headers_of({}, opening, None))
            session = opened.headers["mcp-session-id"]
            found["hello"] = heard_in(opened)
        for entry in entries_of(opening):
            headers = headers_of(entry, opening, session)
            found[entry["name"]] = heard_in(await client.post(url, content=bytes_of(entry), headers=headers))
        return found


def normal(message: Any) -> Any:
    """Return an answer without what no two servers have the same: texts of faults, names, times."""
    if not isinstance(message, dict):
        return message
    given = cast("dict[str, Any]", message)
    if "error" in given:
        return {"id": given.get("id"), "is": f"error {given['error']['code']}"}
    if "result" not in given:
        return given
    kept = {key: value for key, value in cast("dict[str, Any]", given["result"]).items() if key != "_meta"}
    for key in ("tools", "resources", "resourceTemplates", "prompts"):
        if isinstance(kept.get(key), list):
            kept[key] = {str(item["name"]): item for item in kept[key] if item["name"] in SHARED}
    return {"id": given.get("id"), "is": "result", **(_called(kept) if "isError" in kept else kept)}


def _called(result: dict[str, Any]) -> dict[str, Any]:
    """Return what a tool answered, out of our envelope or out of the SDK's wrapping of what is no object."""
    content = cast("list[dict[str, Any]]", result.pop("content"))
    data = result.pop("structuredContent", None)
    envelope = _envelope(content)
    if envelope is not None:
        return {
            **result,
            "envelope": True,
            "data": envelope["data"],
            "code": envelope["error"] and envelope["error"]["code"],
            "content": content[1:],
        }
    if data is None:
        return {**result, "content": content}
    return {**result, "data": data["result"] if data.keys() == {"result"} else data}


def _envelope(content: list[dict[str, Any]]) -> dict[str, Any] | None:
    text = content[0].get("text", "") if content else ""
    return json.loads(text) if text.startswith('{"success"') else None


SHARED = {"add", "echo", "plain", "paint", "fail", "all_notes", "note_of", "review", "remember"}


def flat(value: Any, path: str = "") -> dict[str, str]:
    """Return a value as its leaves, by path."""
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(str(key), inner) for key, inner in cast("dict[str, Any]", value).items()]
    elif isinstance(value, list):
        items = [(str(index), inner) for index, inner in enumerate(cast("list[Any]", value))]
    if not items:
        return {path: json.dumps(value, ensure_ascii=False)}
    return {
        inner_path: leaf
        for key, inner in items
        for inner_path, leaf in flat(inner, f"{path}.{key}" if path else key).items()
    }


def flattened(messages: list[dict[str, Any]]) -> dict[str, str]:
    return flat([normal(one) for one in messages]) if messages else {"0.is": '"nothing"'}


def differences(where: str, theirs: Answers, ours: Answers) -> list[str]:
    found: list[str] = []
    for name in ours:
        left, right = flattened(theirs[name]), flattened(ours[name])
        for path in sorted(left.keys() | right.keys()):
            is_other = left.get("0.is") != right.get("0.is") or left.get("1.is") != right.get("1.is")
            if left.get(path) != right.get(path) and (not is_other or path.endswith((".is", ".status"))):
                found.append(f"{where} | {name} | {path} | {left.get(path, '-')} | {right.get(path, '-')}")
    return found


BOTH, STDIO, HTTP = ("stdio", "http"), ("stdio",), ("http",)
OLDER = "(2024-11-05|2025-03-26)"

CLASSES: list[tuple[str, tuple[str, ...], str]] = [
    (r"\.(envelope|code) \| - \|", BOTH, "Our tools answer with the envelope, which has a code."),
    (
        r"\| \d\.content(\.0\.(text|type))? \| .* \| (-|\[\])$",
        BOTH,
        "The SDK says in a text what our envelope says in its fields.",
    ),
    (r"\| call of a picture \| \d\.data \| - \|", BOTH, "The envelope has data beside the blocks."),
    (r"\.data \| - \| null$", BOTH, "A failed call has an envelope, whose data are null."),
    (
        r"call with an extra argument \| \d\.(data|isError) ",
        BOTH,
        "An argument that a tool does not have is refused, not dropped.",
    ),
    (
        r"call with a list for arguments \| \d\.(is|status) ",
        BOTH,
        "Arguments of a wrong kind are invalid input, which an agent can read.",
    ),
    (r"additionalProperties \| - \| false$", BOTH, "Our schemas say that other arguments are refused."),
    (
        r"chema\.(.*\.)?title \| \"[^\"]*\" \| -$",
        BOTH,
        "Our schemas leave out titles that repeat the name: they cost tokens.",
    ),
    (r"tags\.default \| null \| -$", BOTH, "A default of null says nothing that the schema does not."),
    (r"\.outputSchema", BOTH, "Output schemas are listed only if a setting says so: they cost tokens."),
    (r"tools\.fail\.annotations\..*Hint \| - \| false$", BOTH, "Our tools always say what they do to the world."),
    (r"\.arguments\.1\.required \| false \| -$", BOTH, "What is not required is not said to be so."),
    (
        r"note_of\.mimeType \| \"text/plain\" \| -$",
        BOTH,
        "A template without a type may stand for contents of many types.",
    ),
    (
        r"capabilities\.(logging|.*\.listChanged|resources\.subscribe|extensions\.io\.modelcontextprotocol/tasks) ",
        BOTH,
        "We tell of changes and log in both eras; the SDK's server does not.",
    ),
    (
        r"\| (set the level|subscribe|unsubscribe) \| \d\.is \| \"error -32601\" \| \"result\"",
        BOTH,
        "What we advertise we answer.",
    ),
    (r"\| \d\.instructions \| ", BOTH, "Our instructions say how to work here, in three sentences."),
    (r"\.ttlMs \| 0 \| 60000$", BOTH, "Lists may be kept for a minute, a setting."),
    (
        r"\| unknown cursor \| \d\.(is|status) ",
        BOTH,
        "A cursor that we did not give out is refused, as the specification asks.",
    ),
    (
        r"\| (unknown prompt|prompt without a needed argument) \| \d\.(is|status) ",
        BOTH,
        "A wrong prompt is the client's fault, not ours.",
    ),
    (r"\| 0\.is \| \"nothing\" \| \"error -32(600|700)\"", STDIO, "What is malformed is answered, never dropped."),
    (
        r"\| 1\.is \| \"error -32602\" \| \"error -32600\"",
        HTTP,
        "What is no request is an invalid request, not invalid params.",
    ),
    (
        r"half a surrogate \| 1\.is \| \"error -32700\" \|",
        HTTP,
        "A request that can be read but for half a character is answered by its id.",
    ),
    (
        r" for an id \| (0\.status \| 202 \| 400|1\.is \| - \| \"error -32600\")$",
        HTTP,
        "A request whose id is none is no notification.",
    ),
    (rf"{OLDER} .*\.(title|annotations\.\w+) \| .* \| -$", BOTH, "A client is sent only what its version knows."),
    (r"2025-03-26 \| a batch \|", BOTH, "A version that has batches gets them answered."),
    (
        r"no version in _meta \| 0\.is \| \"error -32602\" \| \"error -32600\"",
        STDIO,
        "Without a version a request on a pipe is of the older era.",
    ),
    (
        r"number for (a name|the version in _meta) \| 1\.is \| \"error -32020\"",
        HTTP,
        "We look at the params first, the SDK at the headers.",
    ),
]


@pytest.mark.parametrize("channel", BOTH)
async def test_every_difference_to_the_official_server_has_a_reason(
    channel: str, url_of: Callable[..., str], twin_url: Callable[[], str]
) -> None:
    async def compare(opening: str) -> list[str]:
        if channel == "stdio":
            theirs, ours = await asyncio.gather(
                *(by_stdio(HERE / name, opening) for name in ("sdk_twin.py", "yard_for_clients.py"))
            )
        else:
            theirs, ours = await asyncio.gather(by_http(twin_url(), opening), by_http(url_of(), opening))
        return differences(f"{channel} {opening}", theirs, ours)

    found = [line for lines in await asyncio.gather(*map(compare, OPENINGS)) for line in lines]

    unexplained = [line for line in found if not any(re.search(pattern, line) for pattern, _, _ in CLASSES)]
    assert not unexplained, "\n".join(unexplained)
    seen = [
        pattern
        for pattern, channels, _ in CLASSES
        if channel in channels and any(re.search(pattern, line) for line in found)
    ]
    assert seen == [pattern for pattern, channels, _ in CLASSES if channel in channels]


def test_there_are_enough_messages_and_each_has_a_name_of_its_own() -> None:
    names = [(entry["opening"], entry["name"]) for entry in CORPUS]
    assert len(names) == len(set(names))
    assert len(names) >= 60
    assert {entry["opening"] for entry in CORPUS} == set(OPENINGS)
