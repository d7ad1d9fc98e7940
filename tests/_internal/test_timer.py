import asyncio

from callyard._internal.timer import SharedTimers


class Item:
    """Something that expires."""

    def __init__(self) -> None:
        self.expired = asyncio.Event()


def timers() -> SharedTimers[Item]:
    return SharedTimers[Item](asyncio.get_running_loop(), lambda item: item.expired.set())


async def test_items_expire_once_and_are_forgotten() -> None:
    shared = timers()
    first, second = Item(), Item()
    waiting = shared.start(first, 0.01)
    shared.start(second, 0.01)
    await first.expired.wait()
    await second.expired.wait()

    assert not waiting


async def test_an_item_with_more_time_left_expires_later() -> None:
    shared = timers()
    first, second = Item(), Item()
    shared.start(first, 0.01)
    shared.start(second, 0.01)[second] += 0.02
    await second.expired.wait()

    assert first.expired.is_set()


async def test_an_item_that_removed_itself_does_not_expire_and_later_ones_do() -> None:
    shared = timers()
    gone, first, later = Item(), Item(), Item()
    waiting = shared.start(gone, 0.01)
    shared.start(first, 0.01)
    waiting.pop(gone)
    await first.expired.wait()
    shared.start(later, 0.01)
    await later.expired.wait()

    assert not gone.expired.is_set()


async def test_a_delay_of_nothing_expires_in_the_next_turn_of_the_loop() -> None:
    item = Item()
    timers().start(item, 0.0)
    await item.expired.wait()


async def test_removing_an_item_says_how_long_it_had_left() -> None:
    shared = timers()
    item = Item()
    shared.start(item, 60)
    left = shared.remove(item)

    assert left is not None
    assert 50 < left <= 60
    assert shared.remove(item) is None


async def test_nothing_expires_after_closing() -> None:
    shared = timers()
    item = Item()
    shared.start(item, 0.0)
    shared.close()
    await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert not item.expired.is_set()
