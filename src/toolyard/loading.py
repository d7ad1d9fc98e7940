"""Loading: modules that are imported when first used, in one go and without a search for garbage meanwhile."""

import gc
from importlib import import_module
from types import ModuleType

__all__ = ["load"]


def load(module: str) -> ModuleType:
    """Return a module; looking for garbage while many are loaded would find none and take a tenth of the time."""
    if not gc.isenabled() or gc.get_freeze_count():
        return import_module(module)
    gc.disable()
    try:
        return import_module(module)
    finally:
        gc.freeze()
        gc.unfreeze()  # what was loaded now counts as old, so that the next search does not begin with it
        gc.enable()
