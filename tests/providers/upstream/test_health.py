"""A breaker forgives a little, then keeps callers away, longer each time, and lets one try for all."""

from toolyard.providers.upstream.health import Breaker


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def __call__(self) -> float:
        """Return the time that was set."""
        return self.now


def broken(clock: Clock, times: int) -> Breaker:
    """Return a breaker that saw so many failures in a row."""
    breaker = Breaker(clock)
    for _ in range(times):
        clock.now += 0.001
        breaker.fail(clock.now)
    return breaker


def test_one_failure_keeps_nobody_away() -> None:
    assert broken(Clock(), 1).admit() == 0


def test_the_third_failure_in_a_row_keeps_callers_away_for_about_a_second() -> None:
    clock = Clock()
    breaker = broken(clock, 3)

    assert 0.5 <= breaker.admit() <= 1.0
    clock.now += 1.1
    assert breaker.admit() == 0


def test_every_further_failure_keeps_them_away_twice_as_long_up_to_a_minute() -> None:
    assert 4 <= broken(Clock(), 6).wait <= 8
    assert 30 <= broken(Clock(), 40).wait <= 60


def test_what_was_under_way_together_counts_once() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(50):
        breaker.fail(clock.now - 1)

    assert breaker.failures == 1


def test_after_the_wait_one_tries_for_all() -> None:
    clock = Clock()
    breaker = broken(clock, 3)
    clock.now += 2

    assert breaker.admit() == 0
    assert breaker.admit() > 0
    breaker.succeed()
    assert (breaker.admit(), breaker.admit(), breaker.failures) == (0, 0, 0)


def test_whoever_gives_up_trying_lets_the_next_one_try() -> None:
    clock = Clock()
    breaker = broken(clock, 3)
    clock.now += 2

    assert breaker.admit() == 0
    breaker.abandon()
    assert breaker.admit() == 0


def test_an_upstream_that_names_a_time_is_left_alone_for_as_long() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.fail(clock.now, retry_after=30)

    assert breaker.wait == 30
    breaker.reset()
    assert breaker.admit() == 0
