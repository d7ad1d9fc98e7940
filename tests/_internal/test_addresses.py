from table_tests import every_row

from callyard._internal.addresses import is_loopback


@every_row("host", ["127.0.0.1", "127.8.9.10", "::1", "[::1]", "localhost", "LocalHost", "::ffff:127.0.0.1"])
def test_only_this_machine_reaches_a_loopback_host(host: str) -> None:
    assert is_loopback(host)


@every_row(
    "host",
    ["", "0.0.0.0", "::", "192.168.1.4", "127.1", "127.example.com", "localhost.example.org", "a.localhost"],  # noqa: S104 - the address is the test
)
def test_other_machines_may_reach_every_other_host(host: str) -> None:
    assert not is_loopback(host)
