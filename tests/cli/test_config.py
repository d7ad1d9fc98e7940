"""`callyard config`: what is in effect, and where it came from."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard.config import known_settings, read_config
from callyard.transports.auth import ApiKey, ApiKeys, digest_of

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]
FILE = """
target = "shop.py"
[serve]
host = "::1"
[auth]
api_keys = [{name = "ci", digest = "sha256:abc", profile = "readers"}]
scopes = ["a"]
"""


@pytest.fixture(autouse=True)
def file(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_LIMIT_DEPTH", "2")
    write(FILE, "callyard.toml")


def test_every_setting_is_listed_with_its_value_and_origin(callyard: Run) -> None:
    status, out, err = callyard("config", "--port", "8321", "--no-stateless")
    rows = [line.split("\t") for line in out.splitlines()]

    assert (status, err) == (0, "")
    assert [key for key, _, _ in rows] == list(known_settings())
    assert ["target", "shop.py", "file callyard.toml"] in rows
    assert ["serve.host", "::1", "file callyard.toml"] in rows
    assert ["serve.port", "8321", "flag --port"] in rows
    assert ["serve.stateless", "false", "flag --no-stateless"] in rows
    assert ["limits.depth", "2", "environment CALLYARD_LIMIT_DEPTH"] in rows
    assert ["serve.socket", "-", "default"] in rows
    assert ["auth.scopes", '["a"]', "file callyard.toml"] in rows


def test_digests_are_not_shown(callyard: Run) -> None:
    shown = callyard("config")[1] + callyard("config", "--json")[1]

    assert "abc" not in shown
    assert '{"name":"ci","digest":"…","profile":"readers","profiles":[],"operator":false}' in shown


def test_programs_get_an_object(callyard: Run) -> None:
    status, out, _ = callyard("config", "other.py", "--json")
    shown = json.loads(out)

    assert status == 0
    assert shown["target"] == {"value": "other.py", "from": "flag", "name": "TARGET"}
    assert shown["limits.depth"] == {"value": 2, "from": "environment", "name": "CALLYARD_LIMIT_DEPTH"}
    assert shown["serve.workers"] == {"value": 1, "from": "default", "name": ""}


def test_people_get_a_table_in_which_what_is_set_stands_out(in_terminal: Callable[..., str]) -> None:
    shown = in_terminal("config", columns=120)

    assert "\x1b[1mserve.host" in shown
    assert "\x1b[2mserve.port" in shown


def test_a_wrong_setting_is_one_sentence(callyard: Run, write: Write) -> None:
    write("[serve]\nprot = 1", "other.toml")
    status, out, err = callyard("config", "--config", "other.toml")

    assert (status, out) == (2, "")
    assert err == "callyard: 'serve.prot' in 'other.toml' is not known. Did you mean 'port'?\n"


def test_a_misspelt_variable_is_reported_unless_quiet(callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_PROT", "1")

    assert callyard("config")[2] == "The variable 'CALLYARD_PROT' sets nothing. Did you mean 'CALLYARD_PORT'?\n"
    assert callyard("config", "--quiet")[2] == ""


def test_upstreams_profiles_and_toolsets_are_listed_without_possible_secrets(callyard: Run, write: Write) -> None:
    write(
        """
packs = ["system"]
[toolsets.reading]
operations = ["query"]
[profiles.readers]
toolsets = ["reading"]
[upstreams.git]
command = "npx"
args = ["-y", "${SERVER}"]
env = {TOKEN = "hush-1"}
[upstreams.git.reshape.push]
operation = "destroy"
fixed = {key = "hush-2"}
[upstreams.web]
url = "https://hush-3@a.example/mcp?key=hush-4"
headers = {Authorization = "Bearer hush-5"}
login = {client_id = "us", client_secret = "hush-6"}
[upstreams.work]
url = "https://b.example/mcp"
login.grant = "identity_assertion"
login.identity = {issuer = "https://i.example", client_id = "us", client_secret = "hush-7", id_token = "hush-8"}
""",
        "other.toml",
    )
    status, out, _ = callyard("config", "other.toml")
    shown = callyard("config", "other.toml", "--json")[1]
    rows = [line.split("\t") for line in out.splitlines()]

    identity = '{"issuer":"https://i.example","client_id":"us","client_secret":"…","id_token":"…"}'
    assert status == 0
    assert "hush" not in out + shown
    assert ["packs", '["system"]', "file other.toml"] in rows
    assert rows[-11:] == [
        [key, value, "file other.toml"]
        for key, value in (
            ("profiles.readers.toolsets", '["reading"]'),
            ("toolsets.reading.operations", '["query"]'),
            ("upstreams.git.command", "npx"),
            ("upstreams.git.args", '["-y","${SERVER}"]'),
            ("upstreams.git.env", '{"TOKEN":"…"}'),
            ("upstreams.git.reshape", '{"push":{"fixed":{"key":"…"},"operation":"destroy"}}'),
            ("upstreams.web.url", "https://…@a.example/mcp?key=…"),
            ("upstreams.web.headers", '{"Authorization":"…"}'),
            ("upstreams.web.login", '{"client_id":"us","client_secret":"…","grant":"authorization_code"}'),
            ("upstreams.work.url", "https://b.example/mcp"),
            ("upstreams.work.login", f'{{"grant":"identity_assertion","identity":{identity}}}'),
        )
    ]


def test_upstreams_of_a_client_are_listed_with_its_file(callyard: Run, write: Write) -> None:
    write('{"mcpServers": {"Git": {"command": "npx", "env": {"TOKEN": "hush"}}}}', "mcp.json")
    status, out, err = callyard("config", "mcp.json")

    assert (status, err) == (0, "'mcpServers.Git' in 'mcp.json' is named 'git' here.\n")
    assert "upstreams.git.command\tnpx\tfile mcp.json\n" in out


def test_an_address_is_listed_as_the_target(callyard: Run) -> None:
    out = callyard("config", "https://a.example/mcp")[1]

    assert "upstreams.a-example.url\thttps://a.example/mcp\tflag TARGET\n" in out


def test_the_key_alone_goes_to_stdout_and_its_line_to_stderr(callyard: Run) -> None:
    status, out, err = callyard("key", "ci")

    assert status == 0
    assert out.startswith("cy_")
    assert out.count("\n") == 1
    assert tomllib.loads(err[err.index("[auth]") :]) == {
        "auth": {"api_keys": [{"name": "ci", "digest": digest_of(out.strip())}]}
    }


def test_two_keys_are_never_the_same(callyard: Run) -> None:
    assert callyard("key", "ci")[1] != callyard("key", "ci")[1]


async def test_the_line_lets_the_key_in(callyard: Run, tmp_path: Path) -> None:
    _, out, _ = callyard("key", "ci", "--profile", 'the "readers"', "--json")
    made = json.loads(out)
    (tmp_path / "callyard.toml").write_text(f"[auth]\n{made['line']}\n")
    (key,) = read_config(path=str(tmp_path / "callyard.toml"), environment={}).settings.auth.api_keys

    admitted = await ApiKeys([ApiKey(key.name, key.digest, key.profile)]).admit(f"Bearer {made['key']}", None)

    assert (admitted.identity, admitted.profile) == ("key:ci", 'the "readers"')
    assert made == {
        "key": made["key"],
        "name": "ci",
        "digest": key.digest,
        "profile": 'the "readers"',
        "line": made["line"],
    }


@pytest.mark.parametrize("name", ["a b", "", "a\nb"])
def test_a_name_is_one_word(name: str, callyard: Run) -> None:
    status, out, err = callyard("key", name)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_the_urls_of_services_are_listed_without_possible_secrets(callyard: Run, write: Write) -> None:
    text = """
[approvals]
webhook = "https://hooks.example.com/services/hunter2?a=hunter2"
webhook_secret = "hunter2"
[policy]
url = "https://ada:hunter2@decide.example.com/hunter2"
[upstreams.files]
command = "files"
args = ["--root", "/srv", "--api-key", "hunter2", "--token=hunter2"]
"""
    write(f"{FILE}{text}", "callyard.toml")

    status, out, _ = callyard("config")

    assert status == 0
    assert "hunter2" not in out
    assert "approvals.webhook\thttps://hooks.example.com/***\t" in out
    assert "policy.url\thttps://decide.example.com/***\t" in out
    assert '["--root","/srv","--api-key","…","--token=…"]' in out
