"""The circuit breaker opens after three failures, for longer each time, and lets one call probe."""

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


def test_one_failure_does_not_open_the_breaker() -> None:
    assert broken(Clock(), 1).admit() == 0


def test_the_third_failure_in_a_row_opens_the_breaker_for_about_a_second() -> None:
    clock = Clock()
    breaker = broken(clock, 3)

    assert 0.5 <= breaker.admit() <= 1.0
    clock.now += 1.1
    assert breaker.admit() == 0


def test_every_further_failure_doubles_the_wait_up_to_a_minute() -> None:
    assert 4 <= broken(Clock(), 6).wait <= 8
    assert 30 <= broken(Clock(), 40).wait <= 60


def test_concurrent_failures_count_once() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(50):
        breaker.fail(clock.now - 1)

    assert breaker.failures == 1


def test_after_the_wait_one_call_probes() -> None:
    clock = Clock()
    breaker = broken(clock, 3)
    clock.now += 2

    assert breaker.admit() == 0
    assert breaker.admit() > 0
    breaker.succeed()
    assert (breaker.admit(), breaker.admit(), breaker.failures) == (0, 0, 0)


def test_an_abandoned_probe_lets_the_next_call_probe() -> None:
    clock = Clock()
    breaker = broken(clock, 3)
    clock.now += 2

    assert breaker.admit() == 0
    breaker.abandon()
    assert breaker.admit() == 0


def test_retry_after_opens_the_breaker_for_that_long() -> None:
    clock = Clock()
    breaker = Breaker(clock)
    breaker.fail(clock.now, retry_after=30)

    assert breaker.wait == 30
    breaker.reset()
    assert breaker.admit() == 0
