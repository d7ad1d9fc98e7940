"""Transports: ways in from outside the process, and what opens one."""

from toolyard.transports.address import Address, Transport
from toolyard.transports.opening import NotOpenedError, make_transport, run_server, serve_forever

__all__ = ["Address", "NotOpenedError", "Transport", "make_transport", "run_server", "serve_forever"]
