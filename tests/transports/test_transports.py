import sys

import pytest
import uvloop

from callyard.transports import fastest_loop


def test_a_server_runs_on_uvloop_where_it_is_installed() -> None:
    make = fastest_loop()
    assert make is not None
    loop = make()

    assert isinstance(loop, uvloop.Loop)
    loop.close()


def test_elsewhere_it_runs_on_the_loop_of_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "uvloop", None)

    assert fastest_loop() is None
