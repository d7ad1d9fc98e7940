"""Requests of the newer era: each brings along what a server must know, so nothing is kept between them."""

import logging
from collections.abc import Mapping
from typing import Any, Final

from toolyard.caller import Caller
from toolyard.conversation.exchange import Exchange, Notify
from toolyard.conversation.front import Front
from toolyard.conversation.replies import reply
from toolyard.wire.calling import Calling
from toolyard.wire.faults import INTERNAL, INVALID_PARAMS, Fault
from toolyard.wire.messages import Message, encode_fault, encode_result
from toolyard.wire.params import CAPABILITIES, CLIENT, LEVELS, LOG_LEVEL, PROTOCOL_VERSION, version_of

__all__ = ["answer", "is_modern", "open_exchange"]

_METHODS: Final = frozenset({"server/discover", "subscriptions/listen"})
_log = logging.getLogger(__name__)


def is_modern(method: str | None, params: Any) -> bool:
    """Return whether a request is of the newer era: it says so, or asks for what only that has."""
    meta = params.meta
    return method in _METHODS or (meta is not None and PROTOCOL_VERSION in meta)


def open_exchange(
    front: Front, message: Message | Calling, params: Any, caller: Caller, *, notify: Notify | None, headers: Mapping[str, str]
) -> Exchange:
    """Return the exchange that a request of the newer era is.

    Raises:
        Fault: It does not say what it must.
    """
    meta: dict[str, Any] | None = params.meta
    version = version_of(meta)
    assert meta is not None  # noqa: S101 - 'version_of' has seen it
    exchange = Exchange(
        front=front,
        id=message.id,  # pyright: ignore[reportArgumentType] - a request has one
        answers=front.answers(version),
        caller=front.caller(caller, meta.get(CLIENT)),
        capabilities=meta[CAPABILITIES],
        meta=meta,
        headers=headers,
        notify=notify,
    )
    if LOG_LEVEL in meta:
        exchange.log_level = _level(meta[LOG_LEVEL])
    return exchange


async def answer(exchange: Exchange, method: str, params: Any) -> bytes:
    """Return the whole answer to a request whose exchange is open."""
    try:
        result = await reply(exchange, method, params)
    except Fault:
        raise
    except Exception:  # noqa: BLE001 - a defect of ours must not end the conversation
        _log.exception("request_failed method=%s", method)
        return encode_fault(exchange.id, Fault(INTERNAL, "The server could not answer; the reason is in its log."))
    return encode_result(exchange.id, result)


def _level(level: object) -> int:
    if level not in LEVELS:
        raise Fault(INVALID_PARAMS, f"There is no level {level!r}. Known: {', '.join(LEVELS)}.")
    return LEVELS.index(str(level))
