from importlib.metadata import EntryPoint, EntryPoints

import pytest

from callyard.search import SearchSettings, StrategyError, make_index, strategy_names
from callyard.search.bm25 import Bm25
from callyard.search.index import ENTRY_POINTS
from callyard.search.lexical import Lexical
from callyard.search.semantic import load_encoder


def offer(monkeypatch: pytest.MonkeyPatch, **offered: str) -> None:
    points = EntryPoints(EntryPoint(name, value, ENTRY_POINTS) for name, value in offered.items())

    def installed(*, group: str) -> EntryPoints:
        return points.select(group=group)

    monkeypatch.setattr("importlib.metadata.entry_points", installed)


def test_the_default_is_lexical_and_capitals_do_not_matter() -> None:
    assert isinstance(make_index().strategy, Lexical)
    assert isinstance(make_index(SearchSettings(strategy=" Bm25 ")).strategy, Bm25)


def test_an_unknown_strategy_fails_at_once_and_names_those_that_are_there() -> None:
    with pytest.raises(StrategyError, match="'bm25', 'hybrid', 'lexical'"):
        make_index(SearchSettings(strategy="magic"))


def test_a_package_may_offer_a_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, Mine="callyard.search.bm25:Bm25")

    assert strategy_names() == ["bm25", "hybrid", "lexical", "mine"]
    assert isinstance(make_index(SearchSettings(strategy="MINE")).strategy, Bm25)


def test_an_offered_strategy_that_cannot_be_loaded_fails_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, mine="callyard.search.bm25:Nothing")

    with pytest.raises(StrategyError, match="'mine'"):
        make_index(SearchSettings(strategy="mine"))


class Half:
    """A strategy that cannot rank."""

    rank = None

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings

    def add(self, spec: object) -> None:
        """Take a tool in."""

    def remove(self, name: str) -> None:
        """Forget a tool."""

    def prepare(self) -> None:
        """Read what came."""


def nothing(settings: SearchSettings) -> None:
    """Make no strategy of the settings."""


def refusing(settings: SearchSettings) -> None:
    """Have no model."""
    raise RuntimeError("no\nmodel file")


def failing(settings: SearchSettings) -> None:
    """Say nothing."""
    raise RuntimeError


@pytest.mark.parametrize("name", ["Half", "nothing", "refusing", "failing", "ENTRY_POINTS"])
def test_an_offered_strategy_that_is_none_fails_at_once_with_a_sentence(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, mine=f"{__name__}:{name}")

    with pytest.raises(StrategyError, match=f"'mine' of '{__name__}:{name}' ") as caught:
        make_index(SearchSettings(strategy="mine"))

    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


def test_without_its_packages_the_hybrid_strategy_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.search.semantic.NEEDED", ("no_such_package_at_all",))
    load_encoder.cache_clear()
    with pytest.raises(StrategyError, match="'no_such_package_at_all'; install the extra 'semantic'"):
        make_index(SearchSettings(strategy="hybrid"))
