"""Troubles: what a status of HTTP means for the message it answers, and which messages a body holds."""

import time
from typing import Any, Final, cast

import msgspec

from toolyard.providers.upstream.http.exchange import Exchange
from toolyard.providers.upstream.link import LinkError
from toolyard.wire.faults import Fault
from toolyard.wire.messages import Id, decode_batch

__all__ = ["fault_in", "frame_of", "messages_in", "seconds_of", "trouble_of", "unauthenticated"]

_NOT_FOUND: Final = 404
_TOO_MANY: Final = 429
_UNAVAILABLE: Final = 503
_SERVER: Final = 500
_MOVED: Final = frozenset({301, 302, 303, 307, 308})
_CLIENT: Final = 400
_DAY: Final = 86400.0


class _Frame(msgspec.Struct, gc=False):
    """As much of a message as tells which answer it is."""

    id: Any = None
    method: Any = None


_decode_frame: Final = msgspec.json.Decoder(_Frame).decode
_decode: Final = msgspec.json.Decoder().decode


def frame_of(data: bytes) -> tuple[bool, Any]:
    """Return whether this is a message at all, and the id that it answers, if it is an answer."""
    try:
        frame = _decode_frame(data)
    except (msgspec.DecodeError, RecursionError):
        return False, None
    return True, frame.id if frame.method is None else None


def messages_in(data: bytes) -> list[bytes]:
    """Return the messages of a body or an event: one, or those of a batch."""
    if data[:1] == b"{":
        return [data]
    try:
        return decode_batch(data) or [data]
    except Fault:
        return []


def fault_in(body: bytes, request_id: Id) -> bytes | None:
    """Return the error of JSON-RPC that a body is, as the answer to a request, whether or not it says to which."""
    try:
        found: Any = _decode(body)
    except (msgspec.DecodeError, RecursionError):
        return None
    error = cast("dict[str, Any]", found).get("error") if isinstance(found, dict) else None
    if not isinstance(error, dict) or not isinstance(cast("dict[str, Any]", error).get("code"), int):
        return None
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "error": error})


def unauthenticated(exchange: Exchange, *, shown: bool) -> LinkError:
    """Return that the upstream does not let us in with what we show, or without anything."""
    sentence = f"'{exchange.name}' refuses the credentials it was shown." if shown else f"'{exchange.name}' wants credentials."
    challenge = exchange.header(b"www-authenticate")
    return LinkError("unauthenticated", sentence, status=exchange.status or None, text=exchange.text, challenge=challenge)


def trouble_of(exchange: Exchange) -> LinkError:
    """Return what is wrong, by the status and the headers of a response that is no answer and asks for no credentials."""
    status, name = exchange.status, exchange.name
    if status == _NOT_FOUND and exchange.session is not None:
        return LinkError("session_lost", f"'{name}' has forgotten the session.", status=status, text=exchange.text)
    if status in {_TOO_MANY, _UNAVAILABLE}:
        return _asked_to_wait(exchange)
    if status in _MOVED:
        place = exchange.header(b"location")
        sentence = f"'{name}' has moved to '{place[:200]}', which is not followed; change its address." if place else ""
        return LinkError("refused", sentence or f"'{name}' says that it moved, but not where to.", status=status, text=exchange.text)
    sentence = f"'{name}' answered with status {status}." if status >= _CLIENT else f"'{name}' gave no answer, but status {status}."
    return LinkError("refused", sentence, status=status, text=exchange.text, sent=status >= _SERVER or status < _CLIENT)


def _asked_to_wait(exchange: Exchange) -> LinkError:
    status, name = exchange.status, exchange.name
    wait = seconds_of(exchange.header(b"retry-after"))
    if status == _TOO_MANY:
        return LinkError("rate_limited", f"'{name}' is called too often.", status=status, text=exchange.text, retry_after=wait)
    # Some proxies say so of servers that they lost while those were at work; who names a time refuses on purpose.
    sentence = f"'{name}' is not available now."
    return LinkError("unavailable", sentence, sent=wait is None, status=status, text=exchange.text, retry_after=wait)


def seconds_of(value: str) -> float | None:
    """Return how long the header 'Retry-After' asks to wait: it names seconds or a date; a day is the most that is believed."""
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - only where somebody asks to be left alone

    try:
        seconds = float(value) if value.isdecimal() else parsedate_to_datetime(value).timestamp() - time.time()
        return min(max(seconds, 0.0), _DAY)
    except (ValueError, OverflowError):
        return None
