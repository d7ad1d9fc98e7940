"""Pages that an upstream wants a person to open: elicitation by URL, of both eras.

An upstream of the older era may refuse a request until a page is done. Then the client is asked to open it, and the
request is sent again when the upstream says that it is done. Nothing here opens an address.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from callyard.dispatch.call import Call
from callyard.dispatch.run import is_first, run_of
from callyard.model.elicitation import ClientRequest, check_accepted, host_of, url_required
from callyard.model.errors import ToolError
from callyard.wire.messages import URL_REQUIRED, Fault

__all__ = ["OpenPages", "page_request", "send_after_pages"]

_PAGES: Final = 10
_ROUNDS: Final = 5
"""How often one call may be refused with new pages."""
_WAIT_SECONDS: Final = 600.0
_FIRST_PAUSE: Final = 15.0
"""When a request is tried again for the first time without word from the upstream, which need not send any."""
_ID_CHARACTERS: Final = 200


class _Required(msgspec.Struct):
    elicitations: list[dict[str, Any]] = []


class _Completed(msgspec.Struct, rename="camel"):
    elicitation_id: str = ""


class OpenPages:
    """Who wants to know when a page of one upstream is done, by the upstream's id of it."""

    def __init__(self, name: str) -> None:
        self._prefix = f"{name}."
        self._watchers: dict[str, list[Callable[[], None]]] = {}

    def watch(self, pages: Mapping[str, ClientRequest], done: Callable[[str], None]) -> Callable[[], None]:
        """Call `done` with our id of each page that is done; return what ends that."""
        ids = [str(page.params["elicitationId"]) for page in pages.values()]
        watched = [(page_id.removeprefix(self._prefix), partial(done, page_id)) for page_id in ids]
        for page_id, watcher in watched:
            self._watchers.setdefault(page_id, []).append(watcher)

        def end() -> None:
            for page_id, watcher in watched:
                self._watchers[page_id].remove(watcher)
                if not self._watchers[page_id]:
                    del self._watchers[page_id]

        return end

    def complete(self, params: msgspec.Raw) -> None:
        """Take the upstream's word that a page is done."""
        try:
            page_id = msgspec.json.decode(params, type=_Completed).elicitation_id
        except msgspec.DecodeError:
            return
        for watcher in tuple(self._watchers.get(page_id, ())):
            watcher()


def page_request(name: str, params: Mapping[str, Any]) -> ClientRequest:
    """Return an upstream's request to open a page; the person sees who asks, and at which host the page is.

    Raises:
        ToolError: `upstream_error` if the address is none that a person may be asked to open.
    """
    url, page_id = params.get("url"), params.get("elicitationId")
    host = host_of(url)
    if not host:
        message = f"'{name}' asks to open an address that is no plain 'http' or 'https' one."
        raise ToolError("upstream_error", message, upstream=name)
    text = f"'{name}' asks to open a page at '{host}': {params.get('message') or ''}"
    known = page_id[:_ID_CHARACTERS] if isinstance(page_id, str) else ""
    return ClientRequest.page(str(url), text, elicitation_id=f"{name}.{known}" if known else "")


def _pages_of(name: str, fault: Fault) -> dict[str, ClientRequest]:
    """Return the pages that an upstream requires.

    Raises:
        ToolError: `upstream_error` if it names none, or an address that nobody may be asked to open.
    """
    try:
        required = msgspec.convert(fault.data, _Required).elicitations
    except msgspec.ValidationError:
        required = []
    if not 0 < len(required) <= _PAGES:
        message = f"'{name}' requires pages to be opened, and names none, or more than {_PAGES}."
        raise ToolError("upstream_error", message, may_have_run=False, upstream=name)
    return {f"page{number}": page_request(name, params) for number, params in enumerate(required, start=1)}


async def send_after_pages(
    call: Call, name: str, fault: Fault, *, again: Callable[[], Awaitable[msgspec.Raw]], pages: OpenPages
) -> msgspec.Raw:
    """Have the client open the pages that an upstream requires, and send its request again when they are done.

    Raises:
        Fault: The upstream refuses the request for another reason.
        ToolError: The client cannot show pages, the person does not agree, or the pages were not done in time.
    """
    for _ in range(_ROUNDS):
        asks = _pages_of(name, fault)
        call.may_have_run = False  # it was refused
        visit = _Visit(call, asks, again)
        end = pages.watch(asks, visit.page_done)
        try:
            results = await call.ask_all(asks, declared=is_first(run_of(call)))
            for result in results.values():
                check_accepted(result)
            run = run_of(call)
            found = await run.wait_for(run.question("elicitation"), visit.send_until_accepted)
        finally:
            end()
        if not isinstance(found, Fault):
            return found
        fault = found
    raise url_required(_pages_of(name, fault).values(), f"and '{name}' has asked for pages {_ROUNDS} times")


class _Visit:
    """The pages of one call that a person agreed to open."""

    def __init__(
        self, call: Call, asks: Mapping[str, ClientRequest], again: Callable[[], Awaitable[msgspec.Raw]]
    ) -> None:
        self._call = call
        self._again = again
        self._asks = asks
        self._missing = {str(page.params["elicitationId"]) for page in asks.values()}
        self._done = asyncio.Event()

    def page_done(self, page_id: str) -> None:
        """Take note that a page is done, and tell the client."""
        self._missing.discard(page_id)
        if self._call.channel.page_done is not None:
            self._call.channel.page_done(page_id)
        if not self._missing:
            self._done.set()

    async def send_until_accepted(self) -> msgspec.Raw | Fault:
        """Send the request again once the pages are done, or now and then; return its result, or the next fault.

        Raises:
            ToolError: `state_error` with the addresses, if the pages were not done in time.
        """
        deadline, pause = time.monotonic() + _WAIT_SECONDS, _FIRST_PAUSE
        while (left := deadline - time.monotonic()) > 0:
            try:
                async with asyncio.timeout(min(pause, left)):
                    await self._done.wait()
            except TimeoutError:
                pause *= 2
            try:
                return await self._again()
            except Fault as fault:
                if fault.code != URL_REQUIRED:
                    raise
                self._call.may_have_run = False
                if self._done.is_set():
                    return fault
        raise url_required(self._asks.values(), "and it was not done in time")
