import gc
import sys
from collections.abc import Generator

import pytest

from callyard._internal.lazy import load
from callyard.model import errors


@pytest.fixture(autouse=True)
def collector() -> Generator[None]:
    """Put the collector back to what it is at first, which a server that ran in this process may have changed."""
    gc.unfreeze()
    yield
    gc.unfreeze()
    gc.enable()


def test_loading_leaves_the_collector_at_work_and_every_object_to_it() -> None:
    assert load("callyard.model.errors") is errors
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_the_collector_stays_on_while_a_module_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []

    class Finder:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            seen.append(gc.isenabled())

    monkeypatch.setattr(sys, "meta_path", [Finder()])
    with pytest.raises(ModuleNotFoundError):
        load("nothing_of_ours")

    assert seen == [True]
    assert gc.isenabled()


def test_loading_leaves_alone_a_collector_that_is_off() -> None:
    gc.disable()
    load("callyard.model.errors")

    assert not gc.isenabled()


def test_loading_leaves_alone_what_a_program_has_frozen() -> None:
    gc.freeze()
    load("callyard.model.errors")

    assert gc.isenabled()
    assert gc.get_freeze_count()
