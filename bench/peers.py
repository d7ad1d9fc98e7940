"""The measured servers: Callyard, its peers, and the limits."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal, NamedTuple

from environments import BEFORE, is_ready, node_folder, python_of

__all__ = ["BEHIND", "GATEWAYS", "LIMIT", "OURS", "PEERS", "Peer", "absent"]

_SERVERS: Final = Path(__file__).resolve().parent / "servers"

OURS: Final = "callyard"
"""The peer that the others are compared with."""

LIMIT: Final = "limit"
"""The peer that does nothing but read and write."""


class Peer(NamedTuple):
    """A server program in an environment, and its features."""

    name: str
    label: str
    environment: str
    script: str
    options: tuple[str, ...] = ()
    eras: tuple[str, ...] = ("2025", "2026")
    transports: tuple[Literal["stdio", "http"], ...] = ("stdio", "http")
    answers: Literal["text", "envelope"] = "text"
    stream: str = ""
    """The path of an event stream that a client reads all the time, such as a page of a console."""

    def stdio(self, *more: str) -> list[str]:
        """Return the command that serves on stdin and stdout."""
        return [*self._program(), "--stdio", *self.options, *more]

    def http(self, mode: str, *more: str) -> list[str]:
        """Return the command that serves HTTP, with PORT as the placeholder for the port."""
        return [*self._program(), "--http", "PORT", "--mode", mode, *self.options, *more]

    def _program(self) -> list[str]:
        if self.environment == "tmcp":
            script = node_folder() / self.script
            shutil.copyfile(_SERVERS / self.script, script)  # node looks for packages next to the script
            return ["node", str(script)]
        return [python_of(self.environment), str(_SERVERS / self.script)]


PEERS: Final = {
    peer.name: peer
    for peer in (
        Peer(OURS, "Callyard", "callyard", "callyard_server.py", ("--shape", "envelope"), answers="envelope"),
        Peer("callyard-plain", "Callyard, plain tools", "callyard", "callyard_server.py", ("--shape", "plain")),
        Peer(
            "callyard-monitor",
            "Callyard, metrics, audit and access log, a console",
            "callyard",
            "callyard_server.py",
            ("--shape", "envelope", "--monitor"),
            transports=("http",),
            answers="envelope",
            stream="/console/live/",
        ),
        Peer("fastmcp", "FastMCP 4.1.4", "fastmcp", "fastmcp_server.py"),
        Peer("sdk", "MCP SDK 2.3.0, MCPServer", "sdk", "sdk_server.py"),
        Peer("sdk-low", "MCP SDK 2.3.0, low-level", "sdk", "sdk_lowlevel_server.py"),
        Peer("tmcp", "tmcp 1.20.0 on Node", "tmcp", "tmcp_server.mjs", eras=("2025",), transports=("stdio",)),
        Peer(LIMIT, "limit: a bare echo", "limits", "limit.py"),
    )
}

if BEFORE is not None:
    _SCRIPT: Final = str(BEFORE / "bench" / "servers" / "callyard_server.py")
    PEERS["before"] = Peer("before", "Callyard before", "before", _SCRIPT, ("--shape", "envelope"), answers="envelope")

BEHIND: Final = PEERS["callyard-plain"]
"""The server behind every gateway."""

GATEWAYS: Final = {
    peer.name: peer
    for peer in (
        Peer(OURS, "Callyard, one upstream", "callyard", "callyard_gateway.py"),
        Peer("fastmcp", "FastMCP 4.1.4, create_proxy", "fastmcp", "fastmcp_gateway.py"),
    )
}

if BEFORE is not None:
    GATEWAYS["before"] = Peer(
        "before", "Callyard before", "before", str(BEFORE / "bench" / "servers" / "callyard_gateway.py")
    )


def absent(peers: Sequence[Peer]) -> dict[str, str]:
    """Return the peers that cannot run here, with the reasons."""
    reasons = {peer.name: "It is not set up." for peer in peers if not is_ready(peer.environment)}
    ours = [peer.name for peer in peers if peer.environment == "callyard" and peer.name not in reasons]
    if ours:
        tried = subprocess.run(  # noqa: S603 - our own environment
            [python_of("callyard"), "-c", "from callyard import serve"], capture_output=True, check=False
        )
        reasons |= dict.fromkeys(ours, "This checkout has no 'callyard.serve'.") if tried.returncode else {}
    return reasons
