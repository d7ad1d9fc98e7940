"""The load generator: a process that sends requests to a server, checks every reply, and reports latencies.

It reads one plan as JSON from stdin and prints one result. The loop is closed: a connection, or a slot in flight on a
pipe, sends its next request after the last reply. It uses sockets and pipes directly, so that the server is the slower
side.
"""

import json
import os
import resource
import select
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any, Final

from clock import cpu_seconds, memory_kb
from links import Connection, Link, Pipe, Replies, Shot

__all__ = ["drive"]

_PATIENCE: Final = 60.0
"""Seconds without any reply after which a server counts as stuck."""


def drive(links: list[Link], replies: Replies, *, seconds: float, limit: int) -> None:
    """Send requests for so long, or so many if that is not zero, and wait for all replies."""
    poll = select.epoll()
    by_fd: dict[int, Link] = {}
    for link in links:
        for fd, events in link.watched():
            poll.register(fd, events)
            by_fd[fd] = link
    end = time.perf_counter() + seconds
    left = limit or sys.maxsize
    for link in links:
        left -= link.send(min(left, link.room))
    while replies.open:
        ready = poll.poll(_PATIENCE)
        if not ready:
            raise TimeoutError(f"No reply for {_PATIENCE:.0f} seconds.")
        more = time.perf_counter() < end or limit > 0
        for fd, events in ready:
            link = by_fd[fd]
            answered = link.ready(events)
            if answered and more and left:
                left -= link.send(min(left, answered))
    poll.close()


def _links(plan: dict[str, Any], numbers: Iterator[int], replies: Replies) -> list[Link]:
    shots = [Shot.of(message["head"], message["body"], message["expect"]) for message in plan["messages"]]
    if plan["transport"] == "stdio":
        return [Pipe(plan["write"], plan["read"], room=plan["width"], shots=shots, numbers=numbers, replies=replies)]
    return [Connection(plan["port"], shots=shots, numbers=numbers, replies=replies) for _ in range(plan["width"])]


def _run(plan: dict[str, Any]) -> dict[str, Any]:
    os.sched_setaffinity(0, {plan["core"]})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, hard), hard))
    replies = Replies()
    numbers = count(plan["first"])
    links = _links(plan, numbers, replies)
    if plan["warm"]:
        drive(links, replies, seconds=plan["warm"], limit=0)
        replies.forget()
    below = plan["below"]
    cpu, own, started = cpu_seconds(plan["pid"], below=below), time.process_time(), time.perf_counter()
    drive(links, replies, seconds=plan["seconds"], limit=plan["count"])
    took = time.perf_counter() - started
    return {
        **replies.summary(),
        "next": next(numbers),
        "seconds": took,
        "cpu_us": (cpu_seconds(plan["pid"], below=below) - cpu) / max(1, replies.count) * 1e6,
        "rate": replies.count / took,
        "generator": (time.process_time() - own) / took,
        "rss_kb": memory_kb(plan["pid"]),
        "peak_kb": memory_kb(plan["pid"], "VmHWM"),
    }


def main() -> int:
    try:
        result = _run(json.load(sys.stdin))
    except OSError as error:  # the server hangs, or is gone
        result = {"fault": str(error) or type(error).__name__}
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
