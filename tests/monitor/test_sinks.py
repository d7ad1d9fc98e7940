import logging

import pytest

from callyard import Yard, tool
from callyard.monitor import Ring, log_sink


@tool
def one() -> int:
    """Return one."""
    return 1


async def test_the_ring_keeps_the_last_records() -> None:
    ring = Ring(2)
    async with Yard(tools=[one], sinks=[ring]) as yard:
        ids = [(await yard.call("one")).meta.call_id for _ in range(3)]

    assert [record.call_id for record in ring.records] == ids[1:]


@pytest.mark.parametrize(("level", "count"), [(logging.INFO, 1), (logging.WARNING, 0)])
async def test_a_call_is_one_line_of_the_log_if_the_log_wants_it(caplog: pytest.LogCaptureFixture, level: int, count: int) -> None:
    caplog.set_level(level, logger="callyard.calls")
    async with Yard(tools=[one], sinks=[log_sink]) as yard:
        await yard.call("one")

    lines = [record.message for record in caplog.records if record.name == "callyard.calls"]
    assert [line.startswith("call tool=one code=ok ") for line in lines] == [True] * count
