"""A small MCP server on stdin and stdout that misbehaves as it is told: `bad_server.py MODE [ERA [AMOUNT]]`.

MODE is one of `MODES`, ERA is '2025', '2026' or 'both', and AMOUNT is seconds for 'slow_start' and bytes for
'huge_line'. Whatever the mode, the tool 'die' ends the process with exit code 3, 'hang' is never answered, and 'pid'
tells the process. It imports nothing but the standard library, and little of that, so that it starts quickly.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any, Final

MODES: Final = (
    "well",
    "bad_schema",
    "schema_bombs",
    "changes_tools",
    "closes_stdout",
    "dies_midcall",
    "drips",
    "exits_at_once",
    "floods_stderr",
    "garbage",
    "garbage_midcall",
    "half_line",
    "hangs_midcall",
    "huge_line",
    "ignores_sigterm",
    "never_answers",
    "never_reads",
    "slow_start",
    "spawns_grandchild",
    "stray_prints",
)
SERVER: Final = {"name": "bad", "version": "1.0"}
TEXT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}
NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}
BAD_PATTERN: Final = {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}}
SERVER_INFO: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION: Final = "io.modelcontextprotocol/subscriptionId"
GARBAGE: Final = (
    "not json at all",
    '{"jsonrpc": "2.0", "id":',
    "[1, 2",
    '"text"',
    "7",
    "{'jsonrpc': '2.0'}",
    "\x00\x01",
)

Message = dict[str, Any]


def tool(name: str, description: str, schema: Message, **hints: bool) -> Message:
    return {
        "name": name,
        "description": description,
        "inputSchema": schema,
        **({"annotations": hints} if hints else {}),
    }


class Server:
    """Answers requests one after the other."""

    def __init__(self, mode: str, era: str, amount: float) -> None:
        self.mode = mode
        self.era = era
        self.amount = amount
        self.modern = False
        self.grandchild = 0
        self.calls = 0
        self.subscription: object = None
        self.tools = [
            tool("echo", "Say a text again.", TEXT, readOnlyHint=True),
            tool("note", "Keep a text.", TEXT),
            tool("wipe", "Delete everything.", NOTHING, destructiveHint=True),
            tool("fail", "Fail with a text.", NOTHING),
            tool("pid", "Tell the process.", NOTHING, readOnlyHint=True),
            tool("grandchild", "Tell the process that this one started.", NOTHING, readOnlyHint=True),
            tool("environment", "Tell the names of the variables.", NOTHING, readOnlyHint=True),
            tool("hang", "Never answer.", NOTHING),
            tool("die", "End the process.", NOTHING),
        ]
        if mode == "schema_bombs":
            levels = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)} | {
                "d40": {"type": "object"}
            }
            bomb = {"type": "object", "$defs": levels, "$ref": "#/$defs/d0"}
            self.tools.append(tool("compiles_for_ever", "Has a bomb.", {**bomb, "unevaluatedProperties": False}))
            self.tools.append(tool("validates_for_ever", "Has a bomb.", bomb))
        if mode == "bad_schema":
            self.tools[1:1] = [
                tool("bad_type", "Has a type that there is not.", {"type": "objekt"}),
                {"name": "no_schema", "description": "Has no schema."},
                tool(
                    "bad_pattern",
                    "Has a pattern that is none.",
                    {"type": "object", "properties": {"a": {"type": "string", "pattern": "("}}},
                ),
                tool("not_an_object", "Takes no object.", {"type": "string"}),
            ]

    def begin(self) -> None:
        """Do what the mode does before anything is read."""
        begin: dict[str, Callable[[], None]] = {
            "closes_stdout": lambda: os.close(1),
            "exits_at_once": lambda: end("There is no key in 'API_KEY'."),
            "floods_stderr": flood,
            "ignores_sigterm": lambda: void(signal.signal(signal.SIGTERM, signal.SIG_IGN)),
            "never_reads": wait_for_ever,
            "slow_start": lambda: time.sleep(self.amount),  # what the mode is there for
            "spawns_grandchild": self.spawn,
            "stray_prints": lambda: write("Welcome to the bad server!\n\n  ____\n"),
        }
        begin.get(self.mode, lambda: None)()

    def spawn(self) -> None:
        """Start a process that outlives this one and does not listen to it."""
        code = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('', flush=True); signal.pause()"
        ready, written = os.pipe()
        actions = [(os.POSIX_SPAWN_DUP2, written, 1), (os.POSIX_SPAWN_CLOSE, written)]
        self.grandchild = os.posix_spawn(
            sys.executable, [sys.executable, "-I", "-S", "-c", code], os.environ, file_actions=actions
        )
        os.read(ready, 1)

    def take(self, message: Message) -> None:
        """Answer one message."""
        method = message.get("method", "")
        if "id" not in message or self.mode == "never_answers":
            return
        if method == "subscriptions/listen":
            self.listen(message["id"], message["params"]["notifications"])
        elif method == "tools/call":
            self.calls += 1
            self.call(message["id"], message["params"])
        else:
            self.answer(message["id"], self.result(method, message.get("params") or {}))

    def result(self, method: str, params: Message) -> Message | None:
        """Return what a request that is no call is answered with, or nothing for a method that there is not."""
        capabilities = {"tools": {"listChanged": True}}
        if method == "initialize" and self.era != "2026":
            return {
                "protocolVersion": params.get("protocolVersion", "2025-11-25"),
                "capabilities": capabilities,
                "serverInfo": SERVER,
            }
        if method == "server/discover" and self.era != "2025":
            self.modern = True
            return {"supportedVersions": ["2026-07-28"], "capabilities": capabilities, "instructions": "Call 'echo'."}
        if method == "tools/list":
            return {"tools": self.tools}
        return {} if method == "ping" else None

    def listen(self, request_id: object, wanted: Message) -> None:
        """Keep a subscription, as the newer era has it."""
        self.subscription = request_id
        self.tell("notifications/subscriptions/acknowledged", {"notifications": wanted})

    def call(self, request_id: object, params: Message) -> None:
        """Answer a call, or do what the mode does instead."""
        name: str = params["name"]
        arguments: Message = params.get("arguments") or {}
        if name == "hang" or self.mode == "hangs_midcall":
            return
        if name == "die" or self.mode == "dies_midcall":
            end("RuntimeError: The bad server was told to die.")
        if self.mode == "changes_tools":
            self.tools.append(tool(f"new_{self.calls}", "Was not there before.", NOTHING))
            self.tell("notifications/tools/list_changed", {})
        if self.mode == "huge_line":
            arguments = {"text": "x" * int(self.amount or 32 * 1024 * 1024)}
        texts = {
            "echo": arguments.get("text", ""),
            "pid": str(os.getpid()),
            "grandchild": str(self.grandchild),
            "environment": " ".join(sorted(os.environ)),
            "fail": "It did not work.",
        }
        text = texts.get(name, "Done.")
        self.answer(request_id, {"content": [{"type": "text", "text": text}], "isError": name == "fail"})

    def tell(self, method: str, params: Message) -> None:
        """Send a notification, on the subscription if there is one."""
        if self.subscription is not None:
            params = {**params, "_meta": {SUBSCRIPTION: self.subscription}}
        write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}) + "\n")

    def answer(self, request_id: object, result: Message | None) -> None:
        """Send an answer, in the shape of the era that is spoken and as the mode has it."""
        said: Message = {"jsonrpc": "2.0", "id": request_id}
        if result is None:
            said["error"] = {"code": -32601, "message": "There is no such method."}
        elif self.modern:
            said["result"] = {
                "ttlMs": 0,
                "cacheScope": "private",
                **result,
                "resultType": "complete",
                "_meta": {SERVER_INFO: SERVER},
            }
        else:
            said["result"] = result
        line = json.dumps(said) + "\n"
        if self.mode == "garbage" or (self.mode == "garbage_midcall" and self.calls):
            line = "\n".join(GARBAGE) + "\n"
        elif self.mode == "stray_prints":
            line = f"About to answer {request_id}.\n{line}{{not json}}\n"
        elif self.mode == "half_line" and self.calls:
            write(line[: len(line) // 2])
            sys.exit(0)
        if self.mode == "drips":
            for character in line:
                write(character)
        else:
            write(line)


def write(text: str) -> None:
    """Write to stdout, however often that takes."""
    left = memoryview(text.encode())
    while left:
        left = left[os.write(1, left) :]


def end(words: str) -> None:
    """Say something on stderr and exit."""
    sys.stderr.write(words + "\n")
    sys.exit(3)


def flood() -> None:
    """Write to stderr for ever, beside everything else."""
    from threading import Thread  # noqa: PLC0415 - the others start without it

    def pour() -> None:
        while True:
            os.write(2, (b"A flood of words that nobody will read." * 20 + b"\n") * 80)

    Thread(target=pour, daemon=True).start()


def void(_: object) -> None:
    """Return nothing."""


def wait_for_ever() -> None:
    """Do nothing until a signal ends the process."""
    while True:
        signal.pause()


def main() -> None:
    given = sys.argv[1:4]
    mode, era, amount = [*given, *("well", "both", "0")[len(given) :]]
    if mode not in MODES:
        sys.exit(f"There is no mode '{mode}'.")
    server = Server(mode, era, float(amount))
    server.begin()
    while line := sys.stdin.buffer.readline():
        server.take(json.loads(line))
    if mode == "ignores_sigterm":
        wait_for_ever()


if __name__ == "__main__":
    main()
