from table_tests import every_row

from callyard.wire.versions import HANDSHAKE, LATEST, LATEST_HANDSHAKE, MODERN, VERSIONS, negotiated


@every_row("name", HANDSHAKE)
def test_a_handshake_ends_with_the_version_that_is_wanted(name: str) -> None:
    assert negotiated(name) is VERSIONS[name]


@every_row("wanted", ["2026-07-28", "1999-01-01", "", 5, None, ["2025-11-25"], {}])
def test_a_handshake_that_wants_something_else_ends_with_the_newest_that_has_one(wanted: object) -> None:
    assert negotiated(wanted) is LATEST_HANDSHAKE


def test_the_eras_are_apart() -> None:
    assert (*HANDSHAKE, *MODERN) == tuple(VERSIONS)
    assert LATEST.name == MODERN[-1]
    for version in VERSIONS.values():
        assert ("initialize" in version.methods) is not version.modern
        assert ("server/discover" in version.methods) is version.modern
        assert "tools/call" in version.methods


def test_only_early_versions_have_batches() -> None:
    assert [name for name, version in VERSIONS.items() if version.batches] == ["2024-11-05", "2025-03-26"]
