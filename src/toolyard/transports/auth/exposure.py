"""Exposure: nobody serves the network without a guard."""

from toolyard.transports.auth.address import is_loopback
from toolyard.transports.auth.guard import Guard

__all__ = ["check_exposure"]


def check_exposure(host: str | None, guard: Guard | None) -> None:
    """Check that a host may be served with this guard; no host is a Unix socket, which is local.

    Raises:
        ValueError: Others can reach the host, and nothing guards it.
    """
    if guard is not None or host is None or is_loopback(host):
        return
    raise ValueError(
        f"'{host}' can be reached from other machines, and without authentication it is not served: "
        "add an '[auth]' section with 'api_keys' (made with 'toolyard key NAME') or with 'issuer' and 'audience', "
        "or serve '127.0.0.1'."
    )
