"""Fixtures of the browser pack."""

from collections.abc import Iterator

import pytest
from page_server import Site, serve_site


@pytest.fixture
def site() -> Iterator[Site]:
    with serve_site() as served:
        yield served
