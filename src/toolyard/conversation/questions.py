"""Questions: what a client of the older era is asked while its own request stays open, and the answers it owes."""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from itertools import count
from typing import Any, Final, cast

import msgspec

from toolyard.asks import Ask
from toolyard.conversation.exchange import Notify
from toolyard.errors import ToolError
from toolyard.wire.messages import Id, Message, encode_notification, encode_request
from toolyard.wire.versions import Version

__all__ = ["Questions"]

_WORDS: Final = 2000
_DETAILS: Final = 20_000
_UNPUT: Final = "Tell the person that the client could not put the question."
_log = logging.getLogger(__name__)


class Questions:
    """What one client was asked and has not answered yet."""

    def __init__(self, seconds: float) -> None:
        self.on_ask: Callable[[], None] = lambda: None
        """Called when the client is asked something, so that its answer is read."""
        self._seconds = seconds
        self._asked: dict[Id, asyncio.Future[Any]] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._asked)

    async def put(self, asks: Mapping[str, Ask], notify: Notify, *, version: Version | None) -> Mapping[str, Any]:
        """Ask the client all that at once, and wait for every answer.

        Raises:
            ToolError: `timeout` if nobody answered in time.
        """
        questions = {f"ask-{next(self._numbers)}": ask for ask in asks.values()}
        written = [_written(number, ask, version) for number, ask in questions.items()]
        loop = asyncio.get_running_loop()
        waiting: dict[Id, asyncio.Future[Any]] = {number: loop.create_future() for number in questions}
        self._asked.update(waiting)
        try:
            for question in written:
                notify(question)
            self.on_ask()
            async with asyncio.timeout(self._seconds):
                results = await asyncio.gather(*waiting.values())
        except TimeoutError:
            raise ToolError("timeout", "Nobody answered the question in time.", blame="caller") from None
        finally:
            self._drop(waiting, notify)
        return dict(zip(asks, results, strict=True))

    def settle(self, message: Message) -> None:
        """Take the client's answer to something it was asked."""
        future = self._asked.pop(message.id, None) if isinstance(message.id, int | str) else None
        if future is None or future.done():
            _log.debug("response_dropped id=%s", message.id)
        else:
            _settle(future, message)

    def cancel_all(self) -> None:
        """Wait for no answer any more."""
        for future in self._asked.values():
            future.cancel()

    def _drop(self, waiting: "dict[Id, asyncio.Future[Any]]", notify: Notify) -> None:
        """Wait no longer for these, and tell the client of those that nobody answered."""
        for number, future in waiting.items():
            self._asked.pop(number, None)
            if not future.done():
                future.cancel()
            if future.cancelled():
                notify(encode_notification("notifications/cancelled", {"requestId": number, "reason": "The call is over."}))


def _written(number: Id, ask: Ask, version: Version | None) -> bytes:
    params = ask.params
    if version is not None and not version.modes:
        params = {key: value for key, value in params.items() if key != "mode"}
    return encode_request(number, ask.method, params)


def _settle(future: "asyncio.Future[Any]", message: Message) -> None:
    """Hand on what the client answered, or that it was no answer."""
    if message.error and bytes(message.error) != b"null":  # which some write beside a result
        future.set_exception(_refusal(_decoded(message.error)))
    elif isinstance(result := _decoded(message.result), dict):
        future.set_result(result)
    else:
        sentence = "The client answered the question with something that is no object."
        future.set_exception(ToolError("upstream_error", sentence, hint=_UNPUT, blame="caller"))


def _refusal(error: object) -> ToolError:
    """Return the failure that a client's JSON-RPC error is, with its own code and words."""
    said = cast("dict[str, object]", error) if isinstance(error, dict) else {}
    text = str(said.get("message") or "")
    words = text[:_WORDS].strip().removesuffix(".")
    message = "The client answered the question with an error" + (f": {words}." if words else ".")
    return ToolError("upstream_error", message, hint=_UNPUT, blame="caller", client_code=said.get("code"), text=text[:_DETAILS])


def _decoded(raw: msgspec.Raw) -> object:
    """Return what a client said, or nothing if it cannot be read."""
    with suppress(msgspec.DecodeError, RecursionError):
        return msgspec.json.decode(raw)
    return None
