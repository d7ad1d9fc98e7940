"""The circuit breaker opens after three failures, for longer each time, and lets one call probe.

A reason for people has no secrets.
"""

import logging
from collections.abc import Mapping

import pytest

from callyard.providers.upstream.health import Breaker, Health
from callyard.providers.upstream.link import Credentials, LinkError, LinkErrorKind
from callyard.providers.upstream.settings import Identity, Login, Reshape, UpstreamSettings


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


class Token(Credentials):
    """Credentials with an access token."""

    def ready(self) -> Mapping[str, str]:
        return {"Authorization": "Bearer access-hunter2"}

    async def renew(self, challenge: str) -> bool:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("kind", ["unavailable", "unauthenticated", "lost"])
def test_the_reason_for_a_state_holds_neither_the_secrets_of_the_settings_nor_our_tokens(
    caplog: pytest.LogCaptureFixture, kind: LinkErrorKind
) -> None:
    caplog.set_level(logging.DEBUG)
    settings = UpstreamSettings(
        url="https://u:url-hunter2@h/mcp?key=query-hunter2",
        headers={"X-Custom": "header-hunter2"},
        reshape={"t": Reshape(fixed={"api_key": "fixed-hunter2"})},
        login=Login(
            client_secret="login-hunter2",  # noqa: S106 - planted to be looked for
            grant="identity_assertion",
            identity=Identity(
                issuer="https://i",
                client_id="c",
                client_secret="identity-hunter2",  # noqa: S106 - the same
                id_token="id-hunter2",  # noqa: S106 - the same
            ),
        ),
    )
    health = Health("web", Token(), clock=Clock(), changed=lambda: None, secrets=settings.secrets())
    text = (
        "Refused: access-hunter2 url-hunter2 header-hunter2 fixed-hunter2 "
        "login-hunter2 identity-hunter2 id-hunter2 token=other-hunter2"
    )

    health.fail(0.0, LinkError(kind, text, private=f"first line\nlast line: {text}"), own_request=True)

    assert health.last_error.startswith("Refused: *** *** ***")
    assert "hunter2" not in health.last_error + health.reason + caplog.text
    assert ("last line" in health.last_error) is (kind != "lost")


def test_the_secrets_of_a_program_are_in_its_variables_and_arguments() -> None:
    settings = UpstreamSettings(
        command="x",
        args=("--verbose", "--token", "a-hunter2", "--api-key=b-hunter2", "plain"),
        env={"KEY": "c-hunter2", "MODE": "fast"},
    )

    assert {"a-hunter2", "b-hunter2", "c-hunter2"} <= settings.secrets()
    assert settings.secrets().isdisjoint({"--verbose", "--token", "plain", "fast"})
