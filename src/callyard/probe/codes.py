"""The codes of a probe: each failure that it tells apart, with an exit status and what to do."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

__all__ = ["PROBE_CODES", "ProbeCode", "ProbeCodeName"]

ProbeCodeName = Literal[
    "dns",
    "refused",
    "unreachable",
    "tls_expired",
    "tls_invalid",
    "not_started",
    "exited",
    "redirected",
    "auth",
    "overloaded",
    "http_error",
    "not_mcp",
    "initialize",
    "version",
    "protocol",
    "timeout",
    "list",
    "missing_tool",
    "changed",
    "rejects_arguments",
    "tool_error",
    "hung",
    "slow",
]


class ProbeCode(NamedTuple):
    """One failure: its exit status, its meaning, and what to do about it."""

    exit: int
    meaning: str
    advice: str


PROBE_CODES: Final[Mapping[ProbeCodeName, ProbeCode]] = {
    "dns": ProbeCode(40, "The host name has no address.", "Check the host in the URL, and the name server."),
    "refused": ProbeCode(41, "The host refuses connections at this port.", "Start the server, or correct the port."),
    "unreachable": ProbeCode(42, "No connection comes about.", "Check the network, the firewall and the address."),
    "tls_expired": ProbeCode(43, "The certificate has expired.", "Renew the certificate of the server."),
    "tls_invalid": ProbeCode(
        44,
        "The certificate is not trusted, is for another host, or TLS fails.",
        "Correct the certificate, or trust its authority with SSL_CERT_FILE.",
    ),
    "not_started": ProbeCode(
        45, "The program cannot be started.", "Install the program, or correct 'command' and 'cwd'."
    ),
    "exited": ProbeCode(46, "The program ended at its start or during the probe.", "Read what it wrote to stderr."),
    "redirected": ProbeCode(
        47, "The server redirects to another place, which is not followed.", "Use the new URL if you trust it."
    ),
    "auth": ProbeCode(
        48,
        "The server requires credentials, or does not accept those it got.",
        "Sign in with 'callyard login', or correct the header.",
    ),
    "overloaded": ProbeCode(49, "The server has no room now (429 or 503).", "Wait as long as it asks, and probe less."),
    "http_error": ProbeCode(50, "The server answers with another HTTP error.", "Check the path, and the server's log."),
    "not_mcp": ProbeCode(
        51, "Something answers that does not speak MCP.", "Check the path in the URL, or the program."
    ),
    "initialize": ProbeCode(
        52, "The server answers the handshake with a JSON-RPC error.", "Read the error and the server's log."
    ),
    "version": ProbeCode(53, "There is no common version of the protocol.", "Update the server or Callyard."),
    "protocol": ProbeCode(54, "An answer breaks the protocol, or breaks off.", "Report it to the server's authors."),
    "timeout": ProbeCode(55, "No answer came in time, before a tool was called.", "See whether the server hangs."),
    "list": ProbeCode(56, "The tools cannot be listed to the end.", "Read the server's log."),
    "missing_tool": ProbeCode(
        57, "A tool is gone that the pin, a canary or 'tools' names.", "Bring it back, or correct the name."
    ),
    "changed": ProbeCode(
        58, "A definition changed so that callers break.", "Look with 'callyard diff', then 'callyard accept'."
    ),
    "rejects_arguments": ProbeCode(
        59, "A tool rejects the arguments of its canary.", "Compare the canary with the schema of the tool."
    ),
    "tool_error": ProbeCode(60, "A canary failed, or had another outcome.", "Read the error and the server's log."),
    "hung": ProbeCode(61, "A canary did not answer in time.", "See where the handler of the tool waits."),
    "slow": ProbeCode(62, "A step or a canary took too long.", "See what the server waits for."),
}
