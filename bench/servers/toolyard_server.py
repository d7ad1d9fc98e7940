"""Toolyard's server: one yard with the measured tools."""

import http.client
import logging
import threading
import time
from tempfile import TemporaryDirectory
from typing import Any

from contract import Start, functions, parse

import toolyard
from toolyard import Limits, Profile, Surface, Yard, tool

_ROOM = 16 * 1024 * 1024
"""Characters an answer may have: the tools answer with more than a default yard sends in one piece."""


def main(start: Start) -> None:
    logging.getLogger("toolyard.calls").setLevel(logging.WARNING)
    mark = tool(shape=start.shape)
    yard = Yard(
        "bench",
        tools=[mark(function) for function in functions(start.tools)],
        profile=Profile(name="everything", surface=Surface.DIRECT),
        limits=Limits(result_characters=_ROOM),
    )
    page = start.page or start.tools
    if start.stdio:
        toolyard.serve(yard, transport="stdio", page_size=page)
        return
    how: dict[str, Any] = {"stateless": True, "json_response": True} if start.stateless else {}
    with TemporaryDirectory() as folder:
        how |= {"metrics": start.monitor, "console": start.monitor}
        if start.monitor:
            how |= {"audit_log": f"{folder}/audit.jsonl", "access_log": f"{folder}/access.jsonl"}
            threading.Thread(target=_watch, args=(start.port,), daemon=True).start()
        toolyard.serve(yard, transport="http", host="127.0.0.1", port=start.port, page_size=page, **how)


def _watch(port: int) -> None:
    """Read the live overview of the console, as a browser does; its own CPU time counts, too."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        try:
            connection.request("GET", "/console/live/", headers={"Accept": "text/event-stream"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise RuntimeError(f"The console answers with {response.status}.")
            while response.read1():
                pass
        except OSError:  # the server starts, or ends
            time.sleep(0.05)
        finally:
            connection.close()


if __name__ == "__main__":
    main(parse())
