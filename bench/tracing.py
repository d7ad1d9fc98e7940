"""Measure what tracing costs in CPU: calls over HTTP to a server without it, with 1 % of the calls, and with all.

The collector is a process of its own that drops what it gets. Rounds alternate, and the least of each is shown.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from typing import Final

from clock import cpu_seconds
from links import Connection, Replies, Shot
from load import drive
from protocol import FIRST_ID
from tables import as_table

_SECONDS: Final = 1.0
_ROUNDS: Final = 10
_SERVER: Final = """
from callyard import Yard, serve, tool
@tool(operation="query")
async def echo(text: str) -> str:
    'Answer with the text.'
    return text
serve(Yard("bench", tools=[echo]), transport="http", port={port}, metrics={metrics})
"""
_SINK: Final = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *args): pass
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Sink).serve_forever()
"""
_CASES: Final = {
    "without": {},
    "1 %": {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
    "all": {"OTEL_BSP_MAX_QUEUE_SIZE": "100000"},
}
_META: Final = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"'
_BODY: Final = (
    f'{{"jsonrpc":"2.0","id":{FIRST_ID},"method":"tools/call","params":{{"name":"echo","arguments":{{"text":"a"}},'
    f'{_META},"io.modelcontextprotocol/clientCapabilities":{{}}{{trace}}}}}}}}'
)
_TRACE: Final = ',"traceparent":"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"'


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def _wait_for(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=10).close()
        except ConnectionRefusedError:
            continue
        return


def _start(stack: ExitStack, code: str, port: int, environment: dict[str, str]) -> int:
    process = stack.enter_context(
        subprocess.Popen(  # noqa: S603 - our own program
            [sys.executable, "-c", code, str(port)],
            env={**os.environ, **environment},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    )
    stack.callback(process.terminate)
    _wait_for(port)
    return process.pid


def _shot(port: int, trace: str) -> Shot:
    body = _BODY.replace("{trace}", trace)
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"accept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\n"
        f"mcp-method: tools/call\r\nmcp-name: echo\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return Shot.of(head, body, '"isError":false')


def _microseconds(port: int, pid: int, trace: str) -> float:
    replies = Replies()
    shot = _shot(port, trace)
    links = [Connection(port, shots=[shot], numbers=count(FIRST_ID), replies=replies) for _ in range(8)]
    drive(list(links), replies, seconds=0.2, limit=0)
    replies.forget()
    before = cpu_seconds(pid)
    drive(list(links), replies, seconds=_SECONDS, limit=0)
    return (cpu_seconds(pid) - before) / replies.count * 1e6


def main() -> None:
    """Measure, and print a table."""
    with ExitStack() as stack:
        sink = _free_port()
        _start(stack, _SINK, sink, {})
        servers: dict[str, tuple[int, int]] = {}
        for name, environment in _CASES.items():
            port = _free_port()
            metrics = name != "without"
            on = {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink}"} if metrics else {}
            # the counts of /metrics are there in every case, because a server over HTTP has them by default
            servers[name] = (port, _start(stack, _SERVER.format(port=port, metrics=True), port, on))
        least = dict.fromkeys(servers, float("inf"))
        for _ in range(_ROUNDS):
            for name, (port, pid) in servers.items():
                trace = _TRACE if name == "all" else ""
                least[name] = min(least[name], _microseconds(port, pid, trace))
    rows = [[name, f"{found:.1f}", f"{found / least['without']:.2f}"] for name, found in least.items()]
    sys.stdout.write(as_table(("traced", "CPU us a call", "times"), rows) + "\n")
    sys.stdout.write(json.dumps(least) + "\n")


if __name__ == "__main__":
    main()
