"""What files and variables say, laid upon a yard."""

from collections.abc import Callable
from pathlib import Path

import pytest

from toolyard import Yard
from toolyard.cli.terminal import Terminal
from toolyard.config import ConfigError, read_config
from toolyard.launch.build import apply_settings
from toolyard.launch.errors import LaunchError
from toolyard.search import SearchSettings

Write = Callable[..., Path]


def laid(yard: Yard, path: Path, **environment: str) -> Yard:
    apply_settings(yard, read_config(path=str(path), environment=environment), Terminal())
    return yard


async def test_a_file_says_how_tools_are_found_and_which_metatools_there_are(tmp_path: Path) -> None:
    path = tmp_path / "toolyard.toml"
    path.write_text("metatools = ['search_tools', 'run_tool']\n[search]\nstrategy = 'BM25'\nname_weight = 9.0\n")
    yard = laid(Yard(search=SearchSettings(name_weight=1.0, tag_weight=7.0)), path, TOOLYARD_SEARCH_FIT="0.5")

    async with yard:
        names = {spec.name for spec in yard.registry.visible(yard.profile)}
        told = yard.settings()

    search = yard.search
    assert (search.strategy, search.name_weight, search.tag_weight, search.fit) == ("bm25", 9.0, 7.0, 0.5)
    assert names == {"search_tools", "run_tool", "call_tool"}
    assert told["search.strategy"] == {"value": "bm25", "from": f"file {path}"}
    assert told["metatools"] == {"value": ["search_tools", "run_tool"], "from": f"file {path}"}


async def test_metatools_can_be_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "toolyard.toml"
    path.write_text("metatools = false\n")
    async with laid(Yard(), path) as yard:
        assert yard.registry.visible(yard.profile) == []
        assert yard.settings()["metatools"]["value"] is False
    assert Yard().settings()["metatools"] == {"value": True, "from": "default"}


def test_a_metatool_that_is_none_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "toolyard.toml"
    path.write_text("metatools = ['run_tols']\n")
    with pytest.raises(LaunchError, match="'run_tool'"):
        laid(Yard(), path)
    path.write_text("metatools = ['zzz']\n")
    with pytest.raises(LaunchError, match="Known: search_tools"):
        laid(Yard(), path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[search]\nname_wait = 1.0\n", "name_weight"),
        ("[search]\nname_weight = 'much'\n", "a number"),
        ("[search]\nfit = 2.0\n", "between 0 and 1"),
        ("search = 1\n", "section"),
        ("metatools = 5\n", "a list of texts"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "toolyard.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(path=str(path), environment={})


async def test_a_strategy_that_is_none_keeps_the_yard_from_opening(tmp_path: Path) -> None:
    path = tmp_path / "toolyard.toml"
    path.write_text("[search]\nstrategy = 'guessing'\n")
    with pytest.raises(ValueError, match="'guessing'"):
        async with laid(Yard(), path):
            raise AssertionError


def test_serving_with_a_strategy_that_is_none_ends_with_one_sentence(
    shop: str, toolyard: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLYARD_SEARCH_STRATEGY", "guessing")
    status, _, err = toolyard("serve", shop)

    assert status == 2
    assert "'guessing'" in err
    assert "Traceback" not in err
