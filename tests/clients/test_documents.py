"""Documents: JSON, TOML and YAML of clients, and what is said of those that cannot be read."""

import sys
from pathlib import Path

import pytest

from toolyard.client_configs.read import decode, parse, read_bytes
from toolyard.config import ConfigError


def refusal(text: str, name: str) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(text, Path(name))
    return str(refused.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", '\ufeff{"a": {"b": 1}, /* c */ }'),
        ("a.toml", "[a]\nb = 1"),
        ("a.yaml", "a:\n  b: 1"),
        ("a.yml", "{a: {b: 1}}"),
    ],
)
def test_a_document_is_read_as_its_name_tells(name: str, text: str) -> None:
    assert parse(text, Path(name)) == {"a": {"b": 1}}


def test_an_empty_file_of_json_says_nothing() -> None:
    assert parse(" \n", Path("a.json")) == {}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.json", '{\n "a": 1,\n "b" 2}', "line 3"),
        ("a.json", '{\n // one\n "a": [1,', "line 3"),
        ("a.toml", "a = 1\nb\n", "line 2"),
        ("a.yaml", "a: 1\nb: [", "line 2"),
    ],
)
def test_what_is_malformed_is_said_with_its_file_and_place(name: str, text: str, place: str) -> None:
    said = refusal(text, name)

    assert f"'{name}'" in said
    assert place in said
    assert said.count(".") == 2  # that of the name, and the end of the one sentence


def test_a_document_that_is_nested_too_deeply_is_refused() -> None:
    assert "deep" in refusal("[" * 100_000, "a.json")
    assert "TOML" in refusal("a = " + "[" * 100_000, "a.toml")
    assert "YAML" in refusal("[" * 10_000, "a.yaml")


def test_yaml_needs_a_reader_and_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)

    assert "pip install pyyaml" in refusal("a: 1", "a.yaml")


def test_a_file_that_is_not_there_is_nothing_and_one_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert read_bytes(tmp_path / "a.json") is None
    with pytest.raises(ConfigError, match="cannot be read"):
        read_bytes(tmp_path)
    with pytest.raises(ConfigError, match="UTF-8"):
        decode(b"\xff", tmp_path / "a.json")
