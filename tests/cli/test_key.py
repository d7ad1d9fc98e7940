"""`toolyard key`: a key that is shown once, and the line that lets it in."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from toolyard.config import read_config
from toolyard.transports.auth import ApiKey, ApiKeys, digest_of

Run = Callable[..., tuple[int, str, str]]


def test_the_key_alone_goes_to_stdout_and_its_line_to_stderr(toolyard: Run) -> None:
    status, out, err = toolyard("key", "ci")

    assert status == 0
    assert out.startswith("ty_")
    assert out.count("\n") == 1
    assert tomllib.loads(err[err.index("[auth]") :]) == {"auth": {"api_keys": [{"name": "ci", "digest": digest_of(out.strip())}]}}


def test_two_keys_are_never_the_same(toolyard: Run) -> None:
    assert toolyard("key", "ci")[1] != toolyard("key", "ci")[1]


async def test_the_line_lets_the_key_in(toolyard: Run, tmp_path: Path) -> None:
    _, out, _ = toolyard("key", "ci", "--profile", 'the "readers"', "--json")
    made = json.loads(out)
    (tmp_path / "toolyard.toml").write_text(f"[auth]\n{made['line']}\n")
    (key,) = read_config(path=str(tmp_path / "toolyard.toml"), environment={}).settings.auth.api_keys

    admitted = await ApiKeys([ApiKey(key.name, key.digest, key.profile)]).admit(f"Bearer {made['key']}", None)

    assert (admitted.identity, admitted.profile) == ("key:ci", 'the "readers"')
    assert made == {"key": made["key"], "name": "ci", "digest": key.digest, "profile": 'the "readers"', "line": made["line"]}


@pytest.mark.parametrize("name", ["a b", "", "a\nb"])
def test_a_name_is_one_word(name: str, toolyard: Run) -> None:
    status, out, err = toolyard("key", name)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1
