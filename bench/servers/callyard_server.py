"""Callyard's server: one yard with the measured tools."""

import logging
from typing import Any

from contract import Start, functions, parse

import callyard
from callyard import Limits, Profile, Surface, Yard, tool

_ROOM = 16 * 1024 * 1024
"""Characters an answer may have: the tools answer with more than a default yard sends in one piece."""


def main(start: Start) -> None:
    logging.getLogger("callyard.calls").setLevel(logging.WARNING)
    mark = tool(shape=start.shape)
    yard = Yard(
        "bench",
        tools=[mark(function) for function in functions(start.tools)],
        profile=Profile(name="everything", surface=Surface.DIRECT),
        limits=Limits(result_characters=_ROOM),
    )
    page = start.page or start.tools
    if start.stdio:
        callyard.serve(yard, transport="stdio", page_size=page)
        return
    how: dict[str, Any] = {"stateless": True, "json_response": True} if start.stateless else {}
    from tempfile import TemporaryDirectory  # noqa: PLC0415 - its half megabyte is not the measured server's

    with TemporaryDirectory() as folder:
        how |= {"metrics": start.monitor, "console": start.monitor}
        if start.monitor:
            how |= {"audit_log": f"{folder}/audit.jsonl", "access_log": f"{folder}/access.jsonl"}
        callyard.serve(yard, transport="http", host="127.0.0.1", port=start.port, page_size=page, **how)


if __name__ == "__main__":
    main(parse())
