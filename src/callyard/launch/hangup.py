"""SIGHUP while a server starts: it asks for a reload, so it must not end a server that cannot reload yet.

It imports little, because it must be there before the rest of the program is loaded.
"""

import os
import signal
import threading
from typing import Self

__all__ = ["Hangup"]


class Hangup:
    """Keeps SIGHUP from ending a program while it starts; what it asks for is done later.

    A terminal that is closed sends SIGHUP, too, and then the program ends as SIGTERM ends it.
    """

    def __init__(self) -> None:
        self._is_pending = False
        self._had_terminal = os.isatty(2)

    def __enter__(self) -> Self:
        """Hold SIGHUP, unless it is handled or ignored already."""
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self.note)
        return self

    def __exit__(self, *exc: object) -> None:
        """Let SIGHUP do what it did before."""
        self._restore()

    def note(self, *_: object) -> None:
        """Note that SIGHUP came."""
        if self._had_terminal and not os.isatty(2):
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self._is_pending = True

    def take(self) -> bool:
        """Return whether SIGHUP came since the last time."""
        is_pending, self._is_pending = self._is_pending, False
        return is_pending

    def release(self) -> None:
        """Let SIGHUP end the program as it ends others, also if it came already."""
        self._restore()
        if self._is_pending:
            os.kill(os.getpid(), signal.SIGHUP)

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGHUP) == self.note:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
