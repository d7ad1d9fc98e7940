"""Loading: much that is made in one go, without a search for garbage meanwhile; above all modules when they are first used."""

import gc
from importlib import import_module
from types import ModuleType

__all__ = ["PausedCollection", "load"]


class PausedCollection:
    """Keeps Python from looking for garbage while much is made that stays; what was made counts as old afterwards.

    A search would find none and take a tenth of the time, or a fifth. A collector that is off, or has frozen something, is left alone.
    """

    __slots__ = ("_paused",)

    def __enter__(self) -> None:
        self._paused = gc.isenabled() and not gc.get_freeze_count()
        if self._paused:
            gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._paused:
            gc.freeze()
            gc.unfreeze()  # what was made now counts as old, so that the next search does not begin with it
            gc.enable()


def load(module: str) -> ModuleType:
    """Return a module, loaded with all that it loads in one go."""
    with PausedCollection():
        return import_module(module)
