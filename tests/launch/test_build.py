"""What files and variables say, laid upon a yard."""

from collections.abc import Callable
from pathlib import Path

import pytest

from callyard import Yard
from callyard.cli.terminal import Terminal
from callyard.config import ConfigError, read_config
from callyard.launch.build import apply_settings
from callyard.launch.errors import LaunchError
from callyard.search import SearchSettings
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore

Write = Callable[..., Path]


def laid(yard: Yard, path: Path, **environment: str) -> Yard:
    apply_settings(yard, read_config(path=str(path), environment=environment), Terminal())
    return yard


async def test_a_file_says_how_tools_are_found_and_which_metatools_there_are(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("metatools = ['search_tools', 'run_tool']\n[search]\nstrategy = 'BM25'\nbm25_name_weight = 9\n")
    own = SearchSettings(bm25_name_weight=1, bm25_tag_weight=7)
    yard = laid(Yard(search=own), path, CALLYARD_SEARCH_BM25_QUERY_WORDS="5")

    async with yard:
        names = {spec.name for spec in yard.registry.visible(yard.profile)}
        shown = yard.settings()

    search = yard.search
    assert (search.strategy, search.bm25_name_weight, search.bm25_tag_weight) == ("bm25", 9, 7)
    assert search.bm25_query_words == 5
    assert names == {"search_tools", "run_tool", "call_tool"}
    assert shown["search.strategy"] == {"value": "bm25", "from": f"file {path}"}
    assert shown["metatools"] == {"value": ["search_tools", "run_tool"], "from": f"file {path}"}


async def test_metatools_can_be_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("metatools = false\n")
    async with laid(Yard(), path) as yard:
        assert yard.registry.visible(yard.profile) == []
        assert yard.settings()["metatools"]["value"] is False
    assert Yard().settings()["metatools"] == {"value": True, "from": "default"}


def test_a_metatool_that_is_none_is_refused_with_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("metatools = ['run_tols']\n")
    with pytest.raises(LaunchError, match="'run_tool'"):
        laid(Yard(), path)
    path.write_text("metatools = ['zzz']\n")
    with pytest.raises(LaunchError, match="Known: search_tools"):
        laid(Yard(), path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[search]\nbm25_name_wait = 1\n", "bm25_name_weight"),
        ("[search]\nbm25_name_weight = 'much'\n", "a whole number"),
        ("[search]\nbm25_name_weight = 101\n", "at most 100"),
        ("search = 1\n", "section"),
        ("metatools = 5\n", "a list of texts"),
    ],
)
def test_settings_that_make_no_sense_are_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read_config(path=str(path), environment={})


async def test_a_strategy_that_is_none_keeps_the_yard_from_opening(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("[search]\nstrategy = 'guessing'\n")
    with pytest.raises(ValueError, match="'guessing'"):
        async with laid(Yard(), path):
            raise AssertionError


def test_serving_with_a_strategy_that_is_none_ends_with_one_sentence(
    shop: str, callyard: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLYARD_SEARCH_STRATEGY", "guessing")
    status, _, err = callyard("serve", shop)

    assert status == 2
    assert "'guessing'" in err
    assert "Traceback" not in err


def served(yard: Yard, path: Path | None = None, **settings: str) -> Yard:
    config = read_config(settings, path=None if path is None else str(path), environment={})
    apply_settings(yard, config, Terminal(), serves=True)
    return yard


def file_of(yard: Yard) -> Path:
    assert isinstance(yard.store, SqliteStore)
    return yard.store.path


def test_a_served_yard_has_the_store_of_its_project_and_any_other_a_store_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("state_dir = 'state'\n")

    assert file_of(served(Yard(), path)).is_relative_to(tmp_path / "state" / "projects")
    assert isinstance(laid(Yard(), path).store, MemoryStore)
    assert not laid(Yard(), path).has_store
    assert not Yard().has_store


def test_one_folder_is_one_project_whatever_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    by_folder = file_of(served(Yard()))
    by_target = file_of(served(Yard(), target="shop.py"))
    (tmp_path / "one" / "callyard.toml").touch()
    by_settings = file_of(served(Yard(), tmp_path / "one" / "callyard.toml"))
    monkeypatch.chdir(tmp_path)

    assert by_folder == by_target == by_settings == file_of(served(Yard(), target="one/shop.py:yard"))
    assert by_folder != file_of(served(Yard(), target="two/shop.py"))


def test_a_path_of_a_store_in_a_file_is_relative_to_that_file(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("store = 'sqlite:data/store.db'\n")
    assert file_of(laid(Yard(), path)) == tmp_path / "data" / "store.db"
    path.write_text("store = 'sqlite:~/store.db'\n")
    assert file_of(laid(Yard(), path)) == Path.home() / "store.db"
    path.write_text("store = 'sqlite'\n")
    assert file_of(laid(Yard(), path)) == file_of(served(Yard(), path))


def test_a_store_in_the_settings_comes_before_that_of_the_code_and_the_default_after_it(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text("")
    own = MemoryStore()

    assert served(Yard(store=own), path).store is own
    assert laid(Yard(store=own), path, CALLYARD_STORE=f"sqlite:{tmp_path}/store.db").store is not own
    assert isinstance(served(Yard(), path, store="memory").store, MemoryStore)


@pytest.mark.parametrize("store", ["redis", "sqlite:", "sqlite3", "memory:", ":x"])
def test_a_store_that_does_not_exist_is_refused(tmp_path: Path, store: str) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(f"store = '{store}'\n")
    with pytest.raises(LaunchError, match="Write 'memory', 'sqlite', 'sqlite:PATH'"):
        laid(Yard(), path)


def test_without_a_home_the_default_store_is_in_memory_and_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def homeless(_: object) -> Path:
        raise OSError(2, "There is no home directory")

    monkeypatch.setattr("callyard.launch.build.find_state_dir", homeless)
    path = tmp_path / "callyard.toml"
    path.write_text("")

    assert isinstance(served(Yard(), path).store, MemoryStore)
    assert "store_in_memory" in caplog.text
    with pytest.raises(LaunchError, match="no home"):
        served(Yard(), path, store="sqlite")
