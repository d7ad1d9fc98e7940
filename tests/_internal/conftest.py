"""What the tests of pipes share."""

import os
from collections.abc import Generator

import pytest


@pytest.fixture
def pipe() -> Generator[tuple[int, int]]:
    """Return both ends of a pipe, which are closed afterwards if the test did not."""
    source, sink = os.pipe()
    yield source, sink
    for descriptor in (source, sink):
        try:
            os.close(descriptor)
        except OSError:
            continue
