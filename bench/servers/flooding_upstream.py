"""An MCP server that floods its client after the handshake: `flooding_upstream.py FLOOD [PORT]`, over HTTP with a port.

It imports nothing but the standard library.
"""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

NOTIFICATION = json.dumps(
    {"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": "x", "level": "info"}}
)
LARGE = json.dumps({"jsonrpc": "2.0", "method": "notifications/message", "params": {"data": ["x" * 60] * 100_000}})
FLOODS = {
    "lines": "y\n" * 999 + NOTIFICATION + "\n",
    "blank lines": "\n" * 999 + NOTIFICATION + "\n",
    "notifications": (NOTIFICATION + "\n") * 500,
    "large notifications": LARGE + "\n",
    "events": "data: x\n\n" * 5000,
    "comments": ":\n" * 20_000,
}


def answer_to(message: Any) -> Any:
    """Return the response to a message, or None."""
    result: dict[str, Any]
    if message.get("method") == "initialize":
        info = {"name": "flood", "version": "1"}
        result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
    elif message.get("method") == "tools/list":
        result = {"tools": []}
    else:
        fault = {"code": -32601, "message": "No such method."}
        return {"jsonrpc": "2.0", "id": message["id"], "error": fault} if "id" in message else None
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}


class Handler(BaseHTTPRequestHandler):
    """Answers posts with JSON, and floods the stream."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Answer a message."""
        answer = answer_to(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        body = b"" if answer is None else json.dumps(answer).encode()
        self.send_response(200 if body else 202)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Flood the stream."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        flood = FLOODS[sys.argv[1]].encode()
        while True:
            self.wfile.write(flood)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the signature of the standard library
        """Write nothing."""


def main() -> None:
    """Serve one client, and flood it once it has listed the tools."""
    if len(sys.argv) > 2:
        ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
    for line in sys.stdin:
        message = json.loads(line)
        answer = answer_to(message)
        if answer is not None:
            print(json.dumps(answer), flush=True)
        if message.get("method") == "tools/list":
            break
    stream = 2 if sys.argv[1] == "stderr" else 1
    flood = FLOODS["lines" if sys.argv[1] == "stderr" else sys.argv[1]].encode()
    while True:
        os.write(stream, flood)


if __name__ == "__main__":
    main()
