import pytest

from toolyard.transports.auth import ApiKey, ApiKeys, check_exposure, digest_of

LOCAL = ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1", None]
OPEN = ["0.0.0.0", "::", "", "192.168.1.4", "example.org", "localhost.example.org", "127.1", "::ffff:10.0.0.1"]  # noqa: S104 - that they are refused


@pytest.mark.parametrize("host", LOCAL)
def test_a_host_of_this_machine_needs_no_guard(host: str | None) -> None:
    check_exposure(host, None)


@pytest.mark.parametrize("host", OPEN)
def test_a_host_that_others_reach_is_not_served_without_a_guard(host: str) -> None:
    with pytest.raises(ValueError, match="auth") as refused:
        check_exposure(host, None)

    for word in ("[auth]", "api_keys", "toolyard key NAME", "issuer", "audience"):
        assert word in str(refused.value)


@pytest.mark.parametrize("host", OPEN)
def test_a_host_with_a_guard_is_served(host: str) -> None:
    check_exposure(host, ApiKeys([ApiKey("ci", digest_of("a"))]))
