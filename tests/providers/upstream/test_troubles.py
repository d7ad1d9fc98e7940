"""Who is not let in by an upstream is told who can change that, and how."""

from typing import Any

import pytest

from toolyard.providers.upstream.calls import failure_of
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings


@pytest.mark.parametrize(
    ("settings", "blame", "named", "actions"),
    [
        ({}, "upstream", "'toolyard login shop'", ("toolyard login shop",)),
        ({"headers": {"AUTHORIZATION": "Bearer x"}}, "upstream", "'Authorization' in 'headers' of the upstream 'shop'", ()),
        ({"headers": {"X-Other": "x"}}, "upstream", "'toolyard login shop'", ("toolyard login shop",)),
        ({"forward_headers": ("X-Key",)}, "upstream", "'X-Key' of the caller goes with calls alone", ("toolyard login shop",)),
        ({"forward_headers": ("X-Key", "Authorization")}, "caller", "The 'Authorization' that came with the request", ()),
    ],
)
def test_a_refusal_names_what_would_change_it(settings: dict[str, Any], blame: str, named: str, actions: tuple[str, ...]) -> None:
    error = LinkError("unauthenticated", "It wants credentials.", status=401)
    error.of_caller = blame == "caller"

    failure = failure_of("shop", error, UpstreamSettings(url="https://shop.example/mcp", **settings))

    assert (failure.code, failure.blame, tuple(failure.next_actions)) == ("unauthenticated", blame, actions)
    assert named in (failure.hint or "")
    assert ("toolyard login" in (failure.hint or "")) is bool(actions)
