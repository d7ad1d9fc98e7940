"""Measurements of servers in their own processes, over pipes and sockets."""

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

from command import Command, Options, Report
from environments import cache
from findings import Column, Probe, measure, report
from peers import BEHIND, GATEWAYS, LIMIT, OURS, PEERS, Peer, absent
from processes import HttpServer, Server, ServerError, StdioServer
from protocol import Message, call, listing

__all__ = ["WIRE"]

S = TypeVar("S", bound=Server)

_WIDTHS: Final = (1, 32)
_MANY: Final = 10_000
_PAGE: Final = 1_000
_SLOW: Final = 1_000
_MEGABYTE: Final = 1_000_000
_WARM: Final = 0.05
_SUM: Final = {"text": '"3"', "envelope": '"data":3'}
_LOADED: Final = (
    Column("CPU us", "cpu_us"),
    Column("requests/s", "rate", digits=0),
    Column("p50 us", "p50_us", digits=0),
    Column("p99 us", "p99_us", digits=0),
    Column("RSS MB", "rss_kb", 1024, 0),
)

Probes = dict[tuple[str, str], tuple[str, Probe]]


def http(options: Options) -> Report:
    """CPU time of a server for one call over HTTP."""
    peers, skipped = _choose(options, "http")
    probes: Probes = {}
    with ExitStack() as stack:
        for mode in ("json", "default"):
            for peer in peers:
                started = _up(
                    stack,
                    peer,
                    skipped,
                    lambda peer=peer, mode=mode: HttpServer(f"{peer.name}-{mode}", peer.http(mode)),
                )
                for server, era, width in product(started, _spoken(options, peer), _WIDTHS):
                    title = f"{mode}, {era}, {_counted(width, 'connection')}"
                    probes[title, peer.name] = (
                        peer.label,
                        _loading(server, [_add(peer)], era, width=width, seconds=options.seconds),
                    )
        return report("http", measure(_in_order(probes), options.rounds), _LOADED, skipped=skipped)


def stdio(options: Options) -> Report:
    """CPU time of a server for one call over stdio."""
    peers, skipped = _choose(options, "stdio")
    probes: Probes = {}
    with ExitStack() as stack:
        for peer in peers:
            for server, era in _heard(stack, peer, skipped, transport="stdio", eras=_spoken(options, peer)):
                for width in _WIDTHS:
                    probe = _loading(server, [_add(peer)], era, width=width, seconds=options.seconds)
                    probes[f"{era}, {width} in flight", peer.name] = peer.label, probe
        return report("stdio", measure(_in_order(probes), options.rounds), _LOADED, skipped=skipped)


def proxy(options: Options) -> Report:
    """CPU time of a gateway for one call over HTTP."""
    gateways, skipped = _choose(options, "http", GATEWAYS)
    probes: Probes = {}
    with ExitStack() as stack:
        for behind in _up(stack, BEHIND, skipped, lambda: HttpServer("behind", BEHIND.http("json"))):
            for gateway, (way, more) in product(
                gateways, {"HTTP": ("--up-http", behind.url), "stdio": ("--up-stdio", *BEHIND.stdio())}.items()
            ):
                command = gateway.http("json", *more)
                for server in _up(stack, gateway, skipped, lambda way=way, command=command: _gateway(way, command)):
                    server.wait_for_tool("add_sync")
                    for era, width in product(_spoken(options, gateway), _WIDTHS):
                        title = f"{way} upstream, {era}, {_counted(width, 'connection')}"
                        probe = _loading(server, [_add(gateway)], era, width=width, seconds=options.seconds)
                        probes[title, gateway.name] = gateway.label, probe
        return report("proxy", measure(_in_order(probes), options.rounds), _LOADED, skipped=skipped)


def many(options: Options) -> Report:
    """CPU time of a server for its list of 10,000 tools over HTTP."""
    peers, skipped = _choose(options, "http")
    probes: Probes = {}
    columns = (
        Column("CPU ms a list", "list_us", 1e3, 2),
        Column("requests", "pages", digits=0),
        Column("MB", "list_bytes", _MEGABYTE, 2),
        Column("p50 ms a request", "p50_us", 1e3, 2),
        Column("RSS MB", "rss_kb", 1024, 0),
    )
    _reply().unlink(missing_ok=True)
    with ExitStack() as stack:
        for peer in _listing_peers(peers):
            more = ("--tools", str(_MANY), *(("--reply", str(_reply())) if peer.name == LIMIT else ()))
            for server in _up(
                stack, peer, skipped, lambda peer=peer, more=more: HttpServer(peer.name, peer.http("json", *more))
            ):
                for era in _spoken(options, peer):
                    pages = _walk(server, era)
                    probes[f"{_MANY:,} tools, {era}", peer.name] = (
                        peer.label,
                        _walking(server, pages, era, seconds=options.seconds),
                    )
                if peer.name == "callyard-whole" or not _reply().exists():
                    _reply().write_text(server.ask(listing(""), "2026"))
        return report("list", measure(_in_order(probes), options.rounds), columns, skipped=skipped, tools=_MANY)


def cold(options: Options) -> Report:
    """Time from the start of a process to its first list of tools, over stdio."""
    peers, skipped = _choose(options, "stdio")
    probes: Probes = {}

    def probe(peer: Peer, era: str) -> dict[str, Any]:
        with StdioServer(peer.name, peer.stdio()) as server:
            try:
                server.open(era)
                server.ask(listing(_SUM["text"] if peer.name == LIMIT else "add_sync"), era)
            except (OSError, ServerError) as error:
                return {"fault": str(error)}
            wall = time.perf_counter() - server.started
            return {"wall_ms": wall * 1e3, "cpu_ms": server.cpu_seconds() * 1e3, "rss_kb": server.memory_kb()}

    for peer in _starting_peers(peers):
        for era in _spoken(options, peer):
            probes[era, peer.name] = peer.label, lambda peer=peer, era=era: probe(peer, era)
    columns = (
        Column("wall ms", "wall_ms", digits=0),
        Column("CPU ms", "cpu_ms", digits=0),
        Column("RSS MB", "rss_kb", 1024, 0),
    )
    for _, once in probes.values():
        once()  # compiles what is not compiled yet
    return report("cold", measure(_in_order(probes), options.rounds), columns, skipped=skipped)


def large(options: Options) -> Report:
    """CPU time of a server for a call with an argument, or a result, of a megabyte."""
    probes: Probes = {}
    skipped: dict[str, str] = {}
    columns = (
        Column("CPU ms", "cpu_us", 1e3, 2),
        Column("p50 ms", "p50_us", 1e3, 2),
        Column("RSS MB", "rss_kb", 1024, 0),
    )
    messages = {
        "argument": call("measure", {"text": "word " * (_MEGABYTE // 5)}, str(_MEGABYTE)),
        "result": call("blob", {"size": _MEGABYTE}, "." * 1000),
    }
    with ExitStack() as stack:
        for transport in ("http", "stdio"):
            peers, missing = _choose(options, transport)
            skipped |= missing
            for peer in peers:
                for server, era in _heard(stack, peer, skipped, transport=transport, eras=_spoken(options, peer)):
                    for what, message in messages.items():
                        probe = _loading(server, [message], era, width=1, seconds=options.seconds)
                        probes[f"{what}, {transport}, {era}", peer.name] = peer.label, probe
        return report("large", measure(_in_order(probes), options.rounds), columns, skipped=skipped)


def slow(options: Options) -> Report:
    """The cost of 1,000 calls at once that take a second each, over HTTP; every round has a new server."""
    peers, skipped = _choose(options, "http")
    probes: Probes = {}
    message = call("slow", {"seconds": 1.0}, "awake")

    def probe(peer: Peer, era: str) -> dict[str, Any]:
        with HttpServer(peer.name, peer.http("json")) as server:
            try:
                server.wait()
                server.ask(_add(peer), era)
                before = server.memory_kb()
                found = server.load([message], era, width=_SLOW, count=_SLOW)
            except (OSError, ServerError) as error:
                return {"fault": str(error)}
            return found | {"before_kb": before, "cpu_all": found.get("cpu_us", 0) * found.get("requests", 0)}

    for peer in peers:
        for era in _spoken(options, peer):
            probes[f"{_SLOW:,} calls, {era}", peer.name] = peer.label, lambda peer=peer, era=era: probe(peer, era)
    columns = (
        Column("CPU s", "cpu_all", 1e6, 2),
        Column("wall s", "seconds", digits=2),
        Column("p99 s", "p99_us", 1e6, 2),
        Column("RSS MB before", "before_kb", 1024, 0),
        Column("at most", "peak_kb", 1024, 0),
    )
    return report("slow", measure(_in_order(probes), options.rounds), columns, skipped=skipped, calls=_SLOW)


WIRE: Final[dict[str, tuple[Command, int]]] = {
    "http": (http, 5),
    "stdio": (stdio, 5),
    "proxy": (proxy, 5),
    "list": (many, 3),
    "cold": (cold, 5),
    "large": (large, 5),
    "slow": (slow, 3),
}
"""The commands that measure servers, and how many rounds each has unless told otherwise."""


def _choose(options: Options, transport: str, of: Mapping[str, Peer] = PEERS) -> tuple[list[Peer], dict[str, str]]:
    """Return the selected peers that support the transport and can run here, and why the others cannot."""
    wanted = [
        peer
        for peer in of.values()
        if transport in peer.transports and (not options.peers or peer.name in options.peers)
    ]
    missing = absent(wanted)
    return [peer for peer in wanted if peer.name not in missing], missing


def _spoken(options: Options, peer: Peer) -> list[str]:
    return [era for era in options.eras if era in peer.eras]


def _up(stack: ExitStack, peer: Peer, skipped: dict[str, str], make: Callable[[], S], era: str = "") -> tuple[S, ...]:
    """Start a server for all rounds and return it; if it cannot start, it is skipped."""
    print(f"starting {peer.name}", file=sys.stderr)
    server = stack.enter_context(make())
    try:
        if isinstance(server, HttpServer):
            server.wait()
            if peer.stream:
                server.read_stream(peer.stream)
        elif isinstance(server, StdioServer):
            server.open(era)
    except (OSError, ServerError) as error:
        skipped[peer.name] = str(error)
        return ()
    return (server,)


def _heard(
    stack: ExitStack, peer: Peer, skipped: dict[str, str], *, transport: str, eras: Sequence[str]
) -> Iterator[tuple[Server, str]]:
    """Start the servers of a peer for these eras: over HTTP one for all, on stdio one for each."""
    if transport == "http":
        yield from product(_up(stack, peer, skipped, lambda: HttpServer(peer.name, peer.http("json"))), eras)
    else:
        for era in eras:
            yield from product(_up(stack, peer, skipped, lambda: StdioServer(peer.name, peer.stdio()), era), [era])


def _gateway(way: str, command: Sequence[str]) -> HttpServer:
    return HttpServer(
        f"gateway-{way}", command, below=False
    )  # an upstream on stdio is a child of its gateway, and does not count


def _add(peer: Peer) -> Message:
    return call("add", {"a": 1, "b": 2}, _SUM[peer.answers])


def _loading(server: Server, messages: Sequence[Message], era: str, *, width: int, seconds: float) -> Probe:
    def probe() -> dict[str, Any]:
        try:
            return server.load(messages, era, width=width, seconds=seconds, warm=_WARM)
        except (OSError, ServerError) as error:
            return {"fault": str(error)}

    return probe


def _walking(server: HttpServer, pages: Sequence[Message], era: str, *, seconds: float) -> Probe:
    once = _loading(server, pages, era, width=1, seconds=seconds)

    def probe() -> dict[str, Any]:
        found = once()
        whole = {
            "list_us": found.get("cpu_us", 0) * len(pages),
            "list_bytes": found.get("bytes", 0) * len(pages),
            "pages": len(pages),
        }
        return found | whole

    return probe


def _listing_peers(peers: Iterable[Peer]) -> list[Peer]:
    """Return the peers with ours twice, in pages and in one page.

    The limit is last, because it repeats another's answer.
    """
    ours = PEERS[OURS]
    paged = ours._replace(label=f"Callyard, pages of {_PAGE:,}", options=(*ours.options, "--page", str(_PAGE)))
    whole = ours._replace(name="callyard-whole", label="Callyard, one page")
    plain = "callyard-plain"
    return [row for peer in peers if peer.name != plain for row in ((paged, whole) if peer.name == OURS else (peer,))]


def _starting_peers(peers: Iterable[Peer]) -> list[Peer]:
    """Return the peers with ours twice, with functions and with ready-made tools."""
    ours = PEERS[OURS]
    ready = ours._replace(
        name="callyard-ready", label="Callyard, ready-made tools", script="callyard_ready_server.py", options=()
    )
    return [
        row
        for peer in peers
        if peer.name != "callyard-plain"
        for row in ((peer, ready) if peer.name == OURS else (peer,))
    ]


def _walk(server: HttpServer, era: str) -> list[Message]:
    """Return the requests that fetch the whole list, one for each page."""
    pages: list[Message] = []
    cursor = ""
    while True:
        result = json.loads(server.ask(listing("", cursor), era))["result"]
        last = result["tools"][-1]["name"]
        pages.append(listing(last, cursor))
        cursor = result.get("nextCursor") or ""
        if not cursor:
            return pages


def _reply() -> Path:
    """Return the file with the list that the limit repeats: ours, or else that of the first peer."""
    return cache() / "reply.json"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _in_order(probes: Probes) -> Probes:
    """Return the probes cell by cell, each with its peers in the order of the table."""
    cells = list(dict.fromkeys(cell for cell, _ in probes))
    return {key: probes[key] for cell in cells for key in probes if key[0] == cell}
