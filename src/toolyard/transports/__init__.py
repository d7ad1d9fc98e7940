"""Transports: ways in from outside the process, and `serve`, which opens one."""

from toolyard.transports.address import Address, Transport
from toolyard.transports.opening import make_transport, serve, serve_forever

__all__ = ["Address", "Transport", "make_transport", "serve", "serve_forever"]
