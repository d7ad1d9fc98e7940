"""Secrets: recognised, hidden and kept elsewhere."""

import stat
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard.client_configs.secrets import (
    MASK,
    SecretStorage,
    extract_secrets,
    is_secret,
    mask_excerpt,
    mask_table,
    store_secrets,
)
from callyard.config.convert import Location, References

TABLE: dict[str, Any] = {
    "command": "npx",
    "args": [
        "-y",
        "x",
        "--api-key",
        "hunter1",
        "--token=hunter2",
        "--port=80",
        "postgres://me:hunter3@host/db",
        "sk-hunter4",
        5,
    ],
    "env": {"GITHUB_TOKEN": "hunter5", "LEVEL": "debug", "URL": "https://a/?api_key=hunter6&page=2", "NUMBER": 7},
    "headers": {"Authorization": "Bearer hunter7"},
    "url": "https://me:hunter8@a/mcp?token=hunter9&b=c",
}


def extract(
    storage: SecretStorage, folder: Path = Path("/state/secrets"), **fields: Any
) -> tuple[dict[str, Any], dict[str, str]]:
    return extract_secrets("git", fields or TABLE, storage=storage, folder=folder, variables={})


@every_row(
    ("name", "text"),
    [
        ("GITHUB_TOKEN", "a"),
        ("api-key", "a"),
        ("X-Api-Key", "a"),
        ("DB_PASSWORD", "a"),
        ("KEY", "a"),
        ("", "ghp_abc"),
        ("", "Bearer a"),
        ("", "a1" * 16),
    ],
)
def test_a_secret_is_recognised_by_its_name_or_form(name: str, text: str) -> None:
    assert is_secret(name, text)


@every_row(
    ("name", "text"),
    [
        ("TOKEN", ""),
        ("TOKEN", "${TOKEN}"),
        ("TOKEN", "secretref:env:TOKEN"),
        ("KEYBOARD", "qwertz"),
        ("MONKEY", "a"),
        ("LEVEL", "debug"),
        ("", "@modelcontextprotocol/server-filesystem"),
        ("", "/a/long/path/with-words/and/no/digits/in/it"),
    ],
)
def test_other_values_are_not_secrets(name: str, text: str) -> None:
    assert not is_secret(name, text)


def test_a_masked_table_has_no_secrets() -> None:
    assert "hunter" not in str(mask_table(TABLE))
    assert mask_table(TABLE)["env"] == dict.fromkeys(TABLE["env"], MASK)
    assert mask_table({"url": "https://a/mcp?b=c", "args": ["--port=80"]}) == {
        "url": "https://a/mcp?b=c",
        "args": ["--port=80"],
    }


@pytest.mark.parametrize("storage", ["file", "env"])
def test_extracted_secrets_are_not_in_the_table(storage: SecretStorage) -> None:
    table, secrets = extract(storage)

    assert "hunter" not in str(table)
    assert len(secrets) == 9
    assert table["env"]["LEVEL"] == "debug"
    assert table["env"]["NUMBER"] == 7
    assert table["args"][:3] == ["-y", "x", "--api-key"]
    assert table["args"][5] == "--port=80"


def test_a_table_with_secrets_in_files_resolves_to_the_original(tmp_path: Path) -> None:
    table, secrets = extract("file", tmp_path / "secrets")
    store_secrets(secrets)
    warnings: list[str] = []
    look = References(variables={}, folder=tmp_path, warn=warnings.append)

    found = {
        field: {key: look.resolve(text, Location("x")) for key, text in table[field].items() if isinstance(text, str)}
        for field in ("env", "headers")
    }

    assert found["env"] == {key: text for key, text in TABLE["env"].items() if isinstance(text, str)}
    assert found["headers"] == TABLE["headers"]
    assert look.resolve(table["url"], Location("x")) == TABLE["url"]
    assert [look.resolve(text, Location("x")) for text in table["args"][:-1]] == TABLE["args"][:-1]
    assert warnings == []
    assert {stat.S_IMODE(Path(file).stat().st_mode) for file in secrets} == {0o600}


def test_a_table_with_secrets_in_variables_resolves_to_the_original() -> None:
    table, secrets = extract("env")
    look = References(variables=secrets, folder=Path(), warn=print)

    assert look.resolve(table["url"], Location("x")) == TABLE["url"]
    assert table["env"]["GITHUB_TOKEN"] == "${GITHUB_TOKEN}"  # noqa: S105 - a reference
    assert table["headers"]["Authorization"] == "${GIT_AUTHORIZATION}"


def test_two_upstreams_with_different_secrets_of_one_name_get_two_variables() -> None:
    taken: dict[str, str] = {}
    texts = [
        extract_secrets(name, {"env": {"TOKEN": secret}}, storage="env", folder=Path(), variables=taken).table["env"][
            "TOKEN"
        ]
        for name, secret in (("a", "1"), ("2b", "2"), ("c", "1"))
    ]

    assert texts == ["${TOKEN}", "${_2B_TOKEN}", "${TOKEN}"]


ARGUMENTS = [
    ["--header", "Authorization: Bearer hunter1"],
    ["--header", "Authorization:hunter1"],
    ["--header=Authorization: Bearer hunter1"],
    ['--header="X-Api-Key: hunter1"'],
    ["-H", "X-Api-Key: hunter1 "],
    ["-HAuthorization: Bearer hunter1"],
    ["-e", "GITHUB_TOKEN=ghp_hunter1"],
    ["-e", "LEVEL=ghp_hunter1"],
    ["-eAPI_KEY=hunter1"],
    ["--env=API_KEY=hunter1"],
    ["--env", "API_KEY=hunter1=="],
    ["--env", "DATABASE_URL=postgres://me:hunter1@host/db"],
    ["--option", "https://me:hunter1@host TOKEN=hunter2"],
    ["-c", "export TOKEN=hunter1; npx server"],
    ["--config", '{"page": 1, "token": "hunter1"}'],
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
@pytest.mark.parametrize("storage", ["file", "env"])
def test_secrets_inside_arguments_are_extracted_and_resolve_to_the_original(
    arguments: list[str], storage: SecretStorage, tmp_path: Path
) -> None:
    table, secrets = extract(storage, tmp_path, args=arguments)
    if storage == "file":
        store_secrets(secrets)
    look = References(variables=secrets, folder=tmp_path, warn=print)

    assert "hunter" not in str(table) + str(mask_table({"args": arguments}))
    assert [look.resolve(text, Location("x")) for text in table["args"]] == arguments
    assert extract(storage, **table) == (table, {})


def test_a_secret_inside_a_variable_is_extracted() -> None:
    table, secrets = extract("env", env={"HEADERS": '{"Authorization": "Bearer hunter1"}'})

    assert table == {"env": {"HEADERS": '{"Authorization": "${GIT_HEADERS_AUTHORIZATION}'}}
    assert secrets == {"GIT_HEADERS_AUTHORIZATION": 'Bearer hunter1"}'}


@every_row(
    "arguments",
    [
        ["--token=${TOKEN}", "server"],
        ["--header", "Authorization: Bearer ${TOKEN}"],
        ["--header", "Authorization:${AUTHORIZATION}"],
        ["secretref:file:/secrets/token"],
        ["-v", "/home/me/.token:/data", "ghcr.io/a/token-server:latest", "mcp/git@sha256:" + "0a" * 32],
        ["--mount", "type=bind,src=/home/me/authors,dst=/data"],
        ["http://localhost/mcp/1/which/is/a/long/address"],
        ["-e", "LEVEL=debug", "-e", "TOKEN"],
        ["--token", "--port=80"],
    ],
)
def test_arguments_without_secrets_stay_as_they_are(arguments: list[str]) -> None:
    assert extract("file", args=arguments) == ({"args": arguments}, {})
    assert mask_table({"args": arguments}) == {"args": arguments}


def test_secrets_that_stay_in_the_table_are_counted() -> None:
    table, secrets = extract("keep")

    assert table == TABLE
    assert len(secrets) == 9


def test_a_table_without_secrets_does_not_change() -> None:
    assert extract("file", command="npx") == ({"command": "npx"}, {})


@every_row(
    ("line", "shown"),
    [
        ('"GITHUB_TOKEN": "hunter1", "a": "b"', '"GITHUB_TOKEN": "…", "a": "b"'),
        ("TOKEN = 'hunter1'", "TOKEN = '…'"),
        ('args = ["--token", "hunter1", "--page", "x"]', 'args = ["--token", "…", "--page", "x"]'),
        ('"url": "https://a/?key=hunter1"', '"url": "https://a/?key=…"'),
        ('["sk-hunter1"]', '["…"]'),
        ('["--header", "Authorization: Bearer hunter1"]', '["--header", "Authorization: …"]'),
        ('"API_KEY": "-hunter1", "a": "b"', '"API_KEY": "…", "a": "b"'),
        ('["-e", "API_KEY=hunter1", "image"]', '["-e", "API_KEY=…", "image"]'),
        ('"A": "{\\"Authorization\\": \\"Bearer hunter1\\"}"', '"A": "{\\"Authorization\\": \\"…"'),
        ('["--token=hunter1", "--page=2"]', '["--token=…", "--page=2"]'),
        ('"args": [\n  "--token",\n  "hunter1"\n]', '"args": [\n  "--token",\n  "…"\n]'),
        ('"a": "it\'s \\"b\\""', '"a": "it\'s \\"b\\""'),
    ],
)
def test_secrets_in_a_line_of_a_file_are_masked(line: str, shown: str) -> None:
    assert mask_excerpt(line) == shown


def test_a_file_with_another_secret_or_one_that_cannot_be_read_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "git.TOKEN").write_bytes(b"\xff")
    table = {"env": {"TOKEN": "first", "MY.TOKEN": "a", "MY_TOKEN": "b"}}
    found = extract_secrets("git", table, storage="file", folder=tmp_path, variables={})

    assert {Path(path).name: text for path, text in found.secrets.items()} == {
        "git.TOKEN-2": "first",
        "git.MY_TOKEN": "a",
        "git.MY_TOKEN-2": "b",
    }
    store_secrets(found.secrets)
    with pytest.raises(FileExistsError):
        store_secrets({str(tmp_path / "git.MY_TOKEN"): "c"})
    assert (tmp_path / "git.MY_TOKEN").read_text() == "a"
