"""A small MCP server whose tools have no hints: `silent_server.py TOOLS CALLS`.

TOOLS is a file with the list of its tools as JSON, read for each list, and CALLS gets a line for each call that runs.
"""

import json
import sys
from pathlib import Path
from typing import Any

TOOLS, CALLS = map(Path, sys.argv[1:3])
CAPABILITIES: dict[str, Any] = {"tools": {}, "resources": {}, "prompts": {}}
RESULTS: dict[str, Any] = {
    "ping": {},
    "resources/list": {"resources": []},
    "resources/templates/list": {"resourceTemplates": []},
    "prompts/list": {"prompts": []},
}


def answer(method: str, params: dict[str, Any]) -> Any:
    """Return the result of a request, or None if there is no such method."""
    if method == "initialize":
        server = {"name": "silent", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": server}
    if method == "tools/list":
        return {"tools": json.loads(TOOLS.read_text())}
    if method == "tools/call":
        with CALLS.open("a") as file:
            file.write(f"{params['name']} {json.dumps(params.get('arguments', {}), sort_keys=True)}\n")
        return {"content": [{"type": "text", "text": f"{params['name']} ran"}]}
    return RESULTS.get(method)


for line in sys.stdin:
    message = json.loads(line)
    if "id" in message:
        result = answer(message["method"], message.get("params", {}))
        said = {"error": {"code": -32601, "message": "No."}} if result is None else {"result": result}
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}) + "\n")
        sys.stdout.flush()
