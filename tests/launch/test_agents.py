"""The agents of a server, from settings: what is refused at the start, where no SDK is installed.

With one: tests/agents/sdks.
"""

from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard import Yard
from callyard.config import ConfigError, read_config
from callyard.launch.agents import Agents
from callyard.launch.errors import LaunchError

HTTP = {"serve.transport": "http"}


def agents_of(**settings: Any) -> Agents:
    return Agents(Yard("shop"), read_config({**HTTP, "agents.enabled": True, **settings}, environment={}))


@every_row(
    ("settings", "word"),
    [
        ({"serve.transport": "stdio"}, "--transport http"),
        ({"serve.workers": "2", "serve.stateless": True}, "one worker"),
        ({}, "callyard[claude]"),
        ({"agents.runtime": "openai"}, "callyard[openai]"),
        ({"agents.runtime": "openai", "agents.roots": "."}, "'agents.roots'"),
        ({"agents.runtime": "openai", "agents.tools": "Read"}, "'agents.tools'"),
    ],
)
def test_agents_that_cannot_be_served_are_refused_at_the_start(settings: dict[str, Any], word: str) -> None:
    with pytest.raises(LaunchError) as refused:
        agents_of(**settings)

    assert word in refused.value.message


@every_row(
    "settings",
    [
        {"agents.countdown_seconds": "0"},
        {"agents.countdown_seconds": "20", "agents.park_seconds": "10"},
        {"agents.turn_seconds": "-1"},
        {"agents.turns": "0"},
        {"agents.permission_mode": "yolo"},
        {"agents.runtime": "hal"},
        {"agents.setting_sources": "user,everywhere"},
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        read_config(settings, environment={})


def test_roots_are_relative_to_the_file_that_names_them(tmp_path: Path) -> None:
    (tmp_path / "callyard.toml").write_text('[agents]\nroots = ["work", "/srv", "~/mine"]\ncli_path = "bin/claude"\n')

    settings = read_config({}, path=str(tmp_path / "callyard.toml"), environment={}).settings.agents

    assert settings.roots == (str(tmp_path / "work"), "/srv", "~/mine")
    assert settings.cli_path == str(tmp_path / "bin/claude")


def test_lists_of_variables_are_separated_by_commas() -> None:
    settings = read_config(
        {}, environment={"CALLYARD_AGENTS_TOOLS": "Read, Grep", "CALLYARD_AGENTS_SETTING_SOURCES": "user,project"}
    ).settings

    assert (settings.agents.tools, settings.agents.setting_sources) == (("Read", "Grep"), ("user", "project"))
