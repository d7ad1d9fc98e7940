"""Profiles and toolsets of a file: read into what a yard takes."""

from pathlib import Path

import pytest
from table_tests import every_row

from callyard import Operation, Profile, Surface, Toolset
from callyard.config import Config, ConfigError, read_config


def read(path: Path, text: str) -> Config:
    (path / "callyard.toml").write_text(text)
    return read_config(path=str(path / "callyard.toml"), environment={})


def test_a_profile_has_the_toolsets_that_it_names(tmp_path: Path) -> None:
    text = """
[toolsets.reading]
operations = ["query"]
deny = ["secret_*"]
description = "What only tells."
[toolsets.git]
sources = ["git"]
[profiles.readers]
toolsets = ["reading", "git"]
surface = "meta"
pins = ["git__*"]
description = "For guests."
[profiles.all]
"""
    config = read(tmp_path, text)
    reading = Toolset(name="reading", operations=(Operation.QUERY,), deny=("secret_*",), description="What only tells.")
    readers = Profile(
        name="readers",
        toolsets=(reading, Toolset(name="git", sources=("git",))),
        surface=Surface.META,
        pins=("git__*",),
        description="For guests.",
    )

    assert config.profiles == {"readers": readers, "all": Profile(name="all")}
    assert config.value("profiles.readers.surface") == "meta"
    assert not config.is_yard


@every_row(
    ("text", "said"),
    [
        ("[profiles.a]\ntoolset = ['b']", "'profiles.a.toolset' in '{}' is not known. Did you mean 'toolsets'?"),
        (
            "[profiles.a]\ntoolsets = ['b']",
            "'profiles.a.toolsets[0]' in '{}' names the toolset 'b', which does not exist. Known: none.",
        ),
        (
            "[toolsets.c]\n[profiles.a]\ntoolsets = ['b']",
            "'profiles.a.toolsets[0]' in '{}' names the toolset 'b', which does not exist.",
        ),
        (
            "[toolsets.b]\n[profiles.a]\ntoolsets = ['b', 'b']",
            "'profiles.a.toolsets[1]' in '{}' names the toolset 'b' twice.",
        ),
        ("[profiles.a]\nsurface = 'all'", "'profiles.a.surface' in '{}' must be one of 'direct', 'meta', 'auto'."),
        ("[toolsets.a]\nname = 'b'", "'toolsets.a.name' in '{}' is not known. Did you mean 'names'?"),
        ("[toolsets.a]\nnames = 'b'", "'toolsets.a.names' in '{}' must be a list of texts."),
        (
            "[toolsets.a]\noperations = 'query'",
            "'toolsets.a.operations' in '{}' must be a list of these: 'query', 'command', 'destroy', 'eval'.",
        ),
        (
            "[toolsets.a]\noperations = ['read']",
            "'toolsets.a.operations[0]' in '{}' must be one of 'query', 'command', 'destroy', 'eval'.",
        ),
        ("[toolsets]\na = 1", "'toolsets.a' in '{}' must be a table."),
        ("profiles = 1", "'profiles' in '{}' must be a table."),
    ],
)
def test_a_wrong_profile_is_refused_with_its_key_and_the_file(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refusal:
        read(tmp_path, text)

    assert str(refusal.value).startswith(said.format(tmp_path / "callyard.toml"))
