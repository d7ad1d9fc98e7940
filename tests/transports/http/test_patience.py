"""Responses that are held back together: each is let go when its own time is up, and none that left."""

import asyncio

from toolyard.transports.http.response import Patience


class Waiting:
    """Something that is held back."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    def start_stream(self) -> None:
        self.let_go.set()


async def test_whoever_waits_for_too_long_is_let_go_once_and_forgotten() -> None:
    patience = Patience(0.01)
    first, second = Waiting(), Waiting()
    patience.hold(first)
    patience.hold(second)
    await first.let_go.wait()
    await second.let_go.wait()

    assert not patience.waiting


async def test_whoever_has_more_time_left_is_looked_after_again() -> None:
    patience = Patience(0.01)
    first, second = Waiting(), Waiting()
    patience.hold(first)
    patience.hold(second)
    patience.waiting[second] += 0.02
    await second.let_go.wait()

    assert first.let_go.is_set()


async def test_whoever_left_is_not_let_go_and_the_next_one_is_waited_for_again() -> None:
    patience = Patience(0.01)
    gone, first, later = Waiting(), Waiting(), Waiting()
    patience.hold(gone)
    patience.hold(first)
    patience.waiting.pop(gone)
    await first.let_go.wait()
    patience.hold(later)
    await later.let_go.wait()

    assert not gone.let_go.is_set()
