"""Signed requests to the services of operators: HMAC-SHA256 over the time and the body.

The HTTP client is passed in.
"""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from hashlib import sha256
from typing import Final

__all__ = ["Post", "post_signed", "signature"]

Post = Callable[[str, bytes, Mapping[str, str]], Awaitable[tuple[int, bytes]]]
"""Posts JSON to a URL with further headers; returns status and body, and raises `OSError` if there is no answer."""
_SECONDS: Final = 30.0


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Return the value of 'Callyard-Signature' for a body that is sent at a time."""
    return "sha256=" + hmac.new(secret.encode(), timestamp.encode() + b"." + body, sha256).hexdigest()


async def post_signed(
    post: Post, url: str, body: bytes, *, secret: str, headers: Mapping[str, str] | None = None
) -> tuple[int, bytes]:
    """Post a body with its time and signature; return status and body of the response, or 0 if there is none."""
    timestamp = str(int(time.time()))
    signed = {"Callyard-Timestamp": timestamp, "Callyard-Signature": signature(secret, timestamp, body)}
    try:
        async with asyncio.timeout(_SECONDS):
            return await post(url, body, {**signed, **(headers or {})})
    except (OSError, TimeoutError):
        return 0, b""
