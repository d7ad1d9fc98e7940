import asyncio

from wired import until

from callyard.providers.upstream.intake import Intake, Share

COST_S = 0.0001


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Feed:
    """An intake whose portions cost time by their bytes, with everything that it passed on."""

    def __init__(self, *, byte_s: float = 0.0, share: Share | None = None) -> None:
        self.clock = Clock()
        self.byte_s = byte_s
        self.portions: list[bytes] = []
        self.rooms = 0
        self.is_awaited = False
        self.share = share or Share(self.clock)
        self.intake = Intake(self._take, self.share, on_room=self._room, clock=self.clock)

    def _take(self, portion: bytes) -> None:
        self.portions.append(portion)
        self.clock.now += len(portion) * self.byte_s
        if self.is_awaited:
            self.intake.forgive()

    def _room(self) -> None:
        self.rooms += 1

    @property
    def passed_on(self) -> bytes:
        return b"".join(self.portions)


async def test_little_data_are_passed_on_at_once() -> None:
    feed = Feed()
    feed.intake.feed(b"hello")

    assert feed.portions == [b"hello"]
    assert not feed.intake.is_full


async def test_one_turn_of_the_loop_takes_one_portion_and_others_have_turns_between() -> None:
    feed, turns = Feed(byte_s=0.0000005), 0
    feed.intake.feed(b"x" * 10_000)
    assert feed.intake.is_full
    while feed.intake.has_rest:
        portions = len(feed.portions)
        await asyncio.sleep(0)  # a turn of the loop, not a wait
        turns += 1
        assert len(feed.portions) <= portions + 1

    assert turns > 3
    assert feed.passed_on == b"x" * 10_000
    assert feed.rooms == 1


async def test_portions_grow_while_they_cost_little_and_shrink_while_they_cost_much() -> None:
    cheap, dear = Feed(), Feed(byte_s=COST_S)
    cheap.is_awaited = dear.is_awaited = True
    for feed in (cheap, dear):
        feed.intake.feed(b"x" * 1_000_000)
        await until(lambda feed=feed: len(feed.portions) > 8)

    assert len(cheap.portions[8]) == 64 * 1024
    assert len(dear.portions[8]) == 256


async def test_data_that_nobody_waits_for_stop_the_reading_until_their_share_of_the_time_allows_more() -> None:
    feed = Feed(byte_s=COST_S)
    feed.intake.feed(b"x" * 1000)  # takes 0.1 s of the processor, which is the share of 5 s

    assert feed.share.wait > 1
    assert feed.intake.is_full
    feed.clock.now += 60
    assert not feed.share.wait
    feed.intake.close()


async def test_data_that_somebody_waits_for_are_not_charged() -> None:
    feed = Feed(byte_s=COST_S)
    feed.is_awaited = True
    feed.intake.feed(b"x" * 1000)

    assert not feed.share.wait
    assert not feed.intake.is_full


async def test_data_that_cost_nothing_to_drop_are_not_read_without_end() -> None:
    feed = Feed()
    for _ in range(1000):
        if not feed.intake.is_full:
            feed.intake.feed(b"x")

    assert 100 < len(feed.portions) < 1000
    feed.intake.close()


async def test_all_connections_of_an_upstream_have_one_share() -> None:
    first = Feed(byte_s=COST_S)
    second = Feed(share=first.share)
    first.intake.feed(b"x" * 1000)
    second.intake.feed(b"x")

    assert second.portions == [b"x"]
    assert second.intake.is_full
    first.intake.close()
    second.intake.close()


async def test_the_rest_is_passed_on_at_the_end() -> None:
    feed = Feed(byte_s=COST_S)
    feed.intake.feed(b"x" * 5000)
    feed.intake.feed(b"y")
    feed.intake.flush()

    assert feed.passed_on == b"x" * 5000 + b"y"
    assert not feed.intake.is_full


async def test_a_closed_intake_passes_nothing_on_and_asks_for_nothing() -> None:
    feed = Feed(byte_s=COST_S)
    feed.intake.feed(b"x" * 5000)
    feed.intake.close()
    feed.intake.feed(b"y")
    feed.intake.flush()
    for _ in range(3):
        await asyncio.sleep(0)  # a turn of the loop, not a wait

    assert len(feed.portions) == 1
    assert (feed.rooms, feed.intake.is_full) == (0, False)


async def test_discarded_data_are_read_with_pauses_so_that_a_pipe_does_not_block_its_program() -> None:
    feed = Feed()
    feed.intake.discard()
    feed.intake.feed(b"x")
    assert feed.intake.is_full
    await until(lambda: feed.rooms == 1)

    assert not feed.portions
