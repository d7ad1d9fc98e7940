"""Turns: serial tools run one at a time per session, or one at a time at all if they have none.

A call inside a call that holds the turn takes its turn among its siblings, so nobody waits for himself.
"""

from asyncio import Lock

from toolyard.call import Call, Release

__all__ = ["SerialTurns"]


class SerialTurns:
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
