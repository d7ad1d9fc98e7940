"""How often an upstream is looked at: soon after it says that it changed, and ever later while it does not stop saying so."""

from toolyard.providers.upstream.supervisor import Restraint


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def look(restraint: Restraint, clock: Clock, *, seconds: float = 0.0, quiet: float = 0.0) -> float:
    """Return the pause before the next look, after one that took so long and was followed by silence."""
    began = clock.now
    clock.now += seconds
    restraint.looked(began)
    clock.now += quiet
    return restraint.pause()


def test_what_says_once_that_it_changed_is_looked_at_soon() -> None:
    clock = Clock()
    restraint = Restraint(clock)

    assert restraint.pause() == 0.3
    assert [look(restraint, clock, quiet=5) for _ in range(3)] == [0.3, 0.3, 0.3]


def test_what_never_stops_saying_so_is_looked_at_ever_later_up_to_a_bound() -> None:
    clock = Clock()
    restraint = Restraint(clock)
    pauses = [look(restraint, clock) for _ in range(12)]

    assert pauses[:4] == [0.3, 0.6, 1.2, 2.4]
    assert pauses[-1] == 30


def test_what_calmed_down_is_looked_at_soon_again() -> None:
    clock = Clock()
    restraint = Restraint(clock)
    for _ in range(4):
        look(restraint, clock)

    assert look(restraint, clock, quiet=5) == 0.3


def test_what_takes_long_to_look_at_and_does_not_calm_down_is_left_alone_for_a_multiple_of_that() -> None:
    clock = Clock()
    restraint = Restraint(clock)

    assert [look(restraint, clock, seconds=20) for _ in range(3)] == [0.3, 80, 80]
    assert look(restraint, clock, quiet=160) == 0.3
