"""Admission: what a call must pass between its arguments being right and its handler running.

The policy decides, a declared question is asked, and a turn is waited for. While a person answers, turns are given back.
"""

import logging
from asyncio import Lock
from collections.abc import Awaitable
from typing import Any, TypeVar

from toolyard.dispatch.call import Call, Limit, Policy, Release
from toolyard.dispatch.deadlines import Deadlines
from toolyard.model.elicitation import ClientRequest, Confirmation, form_content
from toolyard.model.envelope import Envelope
from toolyard.model.errors import ToolError

__all__ = ["Admission", "SerialLocks"]


class SerialLocks:
    """One lock for each session in which a serial tool runs or waits."""

    def __init__(self) -> None:
        self._locks: dict[str, tuple[Lock, list[Call]]] = {}

    def __len__(self) -> int:
        return len(self._locks)

    async def __call__(self, call: Call) -> Release:
        """Wait until no other call has the turn."""
        key = self._key(call)
        lock, users = self._locks.setdefault(key, (Lock(), []))
        users.append(call)

        def leave() -> None:
            users.remove(call)
            if not users:
                self._locks.pop(key, None)

        try:
            await lock.acquire()
        except BaseException:
            leave()
            raise

        def release() -> None:
            lock.release()
            leave()

        return release

    def _key(self, call: Call) -> str:
        own = _place(call)
        ancestor = call.parent
        while ancestor is not None:
            if ancestor.spec.serial and _place(ancestor) == own:
                return f"{own} in {ancestor.id}"
            ancestor = ancestor.parent
        return own


def _place(call: Call) -> str:
    return f"session {call.session.id}" if call.session is not None else f"tool {call.spec.name}"


T = TypeVar("T")
_log = logging.getLogger(__name__)


class Admission:
    """The policy and the turns of one yard."""

    def __init__(self, decide: Policy | None, turn: Limit | None, deadlines: Deadlines) -> None:
        self.serial_turns = SerialLocks()
        self.has_policy = decide is not None or turn is not None
        self.can_hold = decide is not None
        """Whether somebody decides about each call, and so may hold it for a person."""
        self._decide = decide
        self._turn = turn
        self._deadlines = deadlines

    async def admit(self, call: Call) -> Envelope | None:
        """Ask the policy, then the question that the tool declares, and wait for a turn; the policy's own answer is returned."""
        held = await self._ask_policy(call, self._decide) if self._decide is not None else None
        if held is not None:
            return held
        question = call.spec.confirmation
        if question is not None:
            call.confirmation = await self._put(question, call)
        await self._take_turns(call)
        return None

    async def wait_aside(self, call: Call, answer: Awaitable[T]) -> T:
        """Wait for somebody outside: meanwhile no deadline runs, and others may have the turns of the call and of those it is in."""
        line = [call]
        while (parent := line[-1].parent) is not None and parent.funnel is call.funnel:
            line.append(parent)
        if parent is not None:  # of a yard around this one, which has deadlines and turns of its own
            answer = parent.funnel.wait_aside(parent, answer)
        with self._deadlines.paused(line):
            held = [one for one in reversed(line) if one.releases]
            for one in held:
                one.give_back()
                one.releases = ()
            result = await answer
            for one in held:
                await self._take_turns(one)
        return result

    async def _put(self, question: Confirmation, call: Call) -> dict[str, Any]:
        """Return what is answered to the question that a tool declares, which a yard around this one has put already if it has the tool."""
        parent = call.parent
        if parent is not None and parent.is_proxy and parent.spec.confirmation == question:
            return parent.confirmation
        ask = ClientRequest.person(question.text, question.schema)
        return form_content(ask, (await call.ask_all({question.key: ask}, declared=_is_first(call)))[question.key])

    async def _take_turns(self, call: Call) -> None:
        for turn in (self.serial_turns if call.spec.serial else None, self._turn):
            if turn is not None:
                call.releases = (*call.releases, await turn(call))

    async def _ask_policy(self, call: Call, decide: Policy) -> Envelope | None:
        try:
            return await decide(call)
        except ToolError:
            raise
        except Exception:  # noqa: BLE001 - whatever a policy raises denies
            _log.exception("policy_failed tool=%s id=%s", call.spec.name, call.id)
            raise ToolError("permission_denied", "The policy could not decide, so the call is denied.") from None


def _is_first(call: Call) -> bool:
    """Return whether nothing happened before a call, so that whoever came in with it can begin anew without doing something twice."""
    parent = call.parent
    return parent is None or (parent.is_proxy and _is_first(parent))
