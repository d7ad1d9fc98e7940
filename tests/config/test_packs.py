"""Tables `[pack.NAME]`: read as they are, shown without texts, and refused where they are written in another way."""

from collections.abc import Callable
from pathlib import Path

import pytest
from table_tests import every_row

from callyard.config import ConfigError, read_config
from callyard.model.profile import pending_toolset

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_table_of_a_pack_is_kept_and_its_texts_are_not_shown(write: Write) -> None:
    write(
        'packs = ["page"]\n[pack.page]\nwidth = 3\ntoken = "hunter2"\n[pack.page.secrets]\na = "b"\n', "callyard.toml"
    )
    config = read_config(environment={})

    assert config.pack_tables["page"].values == {"width": 3, "token": "hunter2", "secrets": {"a": "b"}}
    assert {key: config.shown(key) for key in config.tables} == {
        "pack.page.width": 3,
        "pack.page.token": "…",
        "pack.page.secrets": "…",
    }
    assert config.origin("pack.page.width").kind == "file"


@every_row(
    ("text", "said"),
    [
        ("[packs.page]\nwidth = 3\n", "'[pack.page]'"),
        ("[packs]\n", "'[pack.NAME]'"),
        ("pack = 3\n", "'pack'"),
        ("pack = {page = 3}\n", "'pack.page'"),
        ('packs = ["page"]\n[profiles.a]\ntoolsets = ["other_reading"]\n', "'other_reading'"),
    ],
)
def test_a_wrong_table_is_refused_and_the_message_names_it(
    tmp_path_factory: pytest.TempPathFactory, text: str, said: str
) -> None:
    file = tmp_path_factory.mktemp("folder") / "callyard.toml"
    file.write_text(text)

    with pytest.raises(ConfigError) as caught:
        read_config(path=str(file), environment={})

    assert said in str(caught.value)


def test_a_profile_may_name_a_toolset_of_a_pack_which_holds_nothing_until_the_pack_is_open(write: Write) -> None:
    write('packs = ["page"]\n[profiles.a]\ntoolsets = ["page_reading"]\n', "callyard.toml")
    profile = read_config(environment={}).profiles["a"]

    assert profile.toolsets == (pending_toolset("page_reading"),)
    assert profile.pending == ["page_reading"]


def test_a_toolset_of_the_file_with_the_name_of_a_packs_is_the_one_of_the_file(write: Write) -> None:
    text = 'packs = ["page"]\n[toolsets.page_reading]\nnames = ["*"]\n[profiles.a]\ntoolsets = ["page_reading"]\n'
    write(text, "callyard.toml")

    assert read_config(environment={}).profiles["a"].pending == []


@every_row(
    ("text", "allowed"),
    [("true", True), ("on", True), ("false", False), ("page", ("page",)), ("page, other", ("page", "other"))],
)
def test_code_is_allowed_everywhere_nowhere_or_in_targets(text: str, allowed: object) -> None:
    assert read_config(environment={"CALLYARD_ALLOW_EVAL": text}).settings.allow_eval == allowed
    assert read_config({"allow_eval": text}, environment={}).settings.allow_eval == allowed
