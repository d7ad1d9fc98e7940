"""Configuration: which value wins, where it came from, and what is said of one that is wrong."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import text
from table_tests import every_row

from callyard.config import Config, ConfigError, Key, Origin, known_settings, read_config
from callyard.config.read import colliding_name, is_upstream_name, to_upstream_name
from callyard.config.settings import Serving
from callyard.model.limits import Limits

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write the file that is read by default, in the folder that the test runs in."""
    monkeypatch.chdir(tmp_path)

    def write_file(text: str, name: str = "callyard.toml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    return write_file


def read(given: dict[str, Any] | None = None, /, **environment: str) -> Config:
    return read_config(given or {}, environment=environment)


def refused(given: dict[str, Any] | None = None, /, **environment: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read(given, **environment)
    return str(refusal.value)


def test_without_anything_all_is_default(write: Write) -> None:
    config = read()

    assert config.settings.serve == Serving()
    assert config.settings.limits == Limits()
    assert config.settings.target is None
    assert config.path is None
    assert config.origins == {}
    assert str(config.origin("serve.port")) == "default"


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(write: Write) -> None:
    write("[serve]\nport = 1\nhost = 'file'\nsessions = 5\n")

    config = read({"serve.port": "3"}, CALLYARD_PORT="2", CALLYARD_HOST="environment")

    serving = config.settings.serve
    assert (serving.port, serving.host, serving.sessions, serving.workers) == (3, "environment", 5, 1)
    assert [str(config.origin(f"serve.{name}")) for name in ("port", "host", "sessions", "workers")] == [
        "flag --port",
        "environment CALLYARD_HOST",
        "file callyard.toml",
        "default",
    ]


@pytest.mark.parametrize(("key", "given", "wins"), [("serve.port", "8321", 8321), ("serve.stateless", False, False)])
def test_a_flag_that_says_what_is_the_default_still_wins(key: str, given: object, wins: object, write: Write) -> None:
    write("[serve]\nport = 1\nstateless = true\n")

    config = read({key: given}, CALLYARD_PORT="2", CALLYARD_STATELESS="yes")

    assert config.value(key) == wins
    assert config.origin(key).kind == "flag"


@every_row(
    ("text", "value"),
    [
        *((text, True) for text in ("1", "true", "yes", "on", "TRUE")),
        *((text, False) for text in ("0", "false", "no", "off", "Off")),
    ],
)
def test_true_and_false_have_words_in_the_environment(text: str, value: bool, write: Write) -> None:  # noqa: FBT001 - the value under test
    config = read(CALLYARD_JSON_RESPONSE=text)

    assert config.settings.serve.json_response is value
    assert config.origin("serve.json_response") == Origin("environment", "CALLYARD_JSON_RESPONSE")


def test_another_word_is_refused_and_the_variable_named(write: Write) -> None:
    assert "'CALLYARD_STATELESS'" in refused(CALLYARD_STATELESS="maybe")


def test_an_empty_variable_sets_nothing(write: Write) -> None:
    assert read(CALLYARD_PORT="", CALLYARD_STATELESS="").origins == {}


@every_row(
    ("variable", "text", "key", "value"),
    [
        ("CALLYARD_TARGET", "bank.py", "target", "bank.py"),
        ("CALLYARD_PROFILE", "readers", "profile", "readers"),
        ("CALLYARD_ALLOW_EVAL", "on", "allow_eval", True),
        ("CALLYARD_METATOOLS", "no", "metatools", False),
        ("CALLYARD_METATOOLS", "run_tool,learning", "metatools", ("run_tool", "learning")),
        ("CALLYARD_SEARCH_STRATEGY", "bm25", "search.strategy", "bm25"),
        ("CALLYARD_SEARCH_BM25_NAME_WEIGHT", "2", "search.bm25_name_weight", 2),
        ("CALLYARD_SESSION_TIMEOUT", "0.5", "serve.session_timeout", 0.5),
        ("CALLYARD_SOCKET", "/s", "serve.socket", "/s"),
        ("CALLYARD_ALLOWED_HOSTS", "a, b,", "serve.allowed_hosts", ("a", "b")),
        ("CALLYARD_LIMIT_SESSIONS", "3", "limits.sessions", 3),
        ("CALLYARD_LIMIT_REPAIR", "no", "limits.repair", False),
        ("CALLYARD_AUTH_AUDIENCE", "a,b", "auth.audience", ("a", "b")),
        ("CALLYARD_AUTH_PROFILES", '{"admin": "all"}', "auth.profiles", {"admin": "all"}),
        ("CALLYARD_AUTH_API_KEYS", '[{"name": "ci", "digest": "d"}]', "auth.api_keys", (Key(name="ci", digest="d"),)),
    ],
)
def test_every_kind_of_setting_has_a_variable(variable: str, text: str, key: str, value: object, write: Write) -> None:
    config = read(**{variable: text})

    assert config.value(key) == value
    assert config.origins == {key: Origin("environment", variable)}


def test_every_key_of_serving_and_limits_is_a_setting_with_a_variable_of_its_own() -> None:
    known = known_settings()
    variables = [setting.variable for setting in known.values()]

    assert {f"serve.{name}" for name in Serving.__struct_fields__} <= set(known)
    assert {f"limits.{name}" for name in Limits.__struct_fields__} <= set(known)
    assert len(variables) == len(set(variables))


def test_a_file_may_say_everything(write: Write) -> None:
    write("""
target = "bank.py:yard"
allow_eval = true
profile = "readers"
[serve]
allowed_origins = ["https://example.com"]
session_timeout = 5
[limits]
depth = 2
[auth]
api_keys = [{name = "ci", digest = "d", profile = "readers"}]
issuer = "https://example.com"
audience = "yard"
profiles = {admin = "all"}
""")
    config = read()

    assert (config.settings.target, config.settings.allow_eval, config.settings.profile) == (
        "bank.py:yard",
        True,
        "readers",
    )
    assert config.explicit("serve") == {"allowed_origins": ("https://example.com",), "session_timeout": 5.0}
    assert config.explicit("limits") == {"depth": 2}
    assert config.settings.auth.api_keys == (Key(name="ci", digest="d", profile="readers"),)
    assert config.settings.auth.audience == "yard"


@every_row(
    ("text", "key", "meant"),
    [
        ("[serve]\nprot = 1", "'serve.prot'", "'port'"),
        ("[sreve]\nport = 1", "'sreve'", "'serve'"),
        ("port = 1", "'port'", "'serve.port'"),
        ("[limits]\nallow_eval = true", "'limits.allow_eval'", "'allow_eval'"),
        ("[auth]\napi_keys = [{name = 'a', digest = 'b', profil = 'c'}]", "'auth.api_keys[0].profil'", "'profile'"),
    ],
)
def test_an_unknown_key_is_refused_with_what_was_probably_meant(text: str, key: str, meant: str, write: Write) -> None:
    write(text)
    said = refused()

    assert said.startswith(f"{key} in 'callyard.toml' ")
    assert f"Did you mean {meant}?" in said


def test_an_unknown_key_that_is_like_no_other_is_refused_with_those_that_are_known(write: Write) -> None:
    write("zzz = 1")

    assert (
        "Known: target, profile, allow_eval, shape, packs, metatools, state_dir, store, store_replicas, "
        "agents, alerts, apis, approvals, auth, budgets, limits, monitor, pack, policy, probe, profiles, queue, rates, "
        "rules, runtime, search, serve, toolsets, "
        "upstream_defaults, upstreams, watch." in refused()
    )


@every_row(
    ("text", "key", "meant"),
    [
        ("target = 1", "target", "text"),
        ("allow_eval = 'yes'", "allow_eval", "'true' or 'false'"),
        ("serve = 1", "serve", "section"),
        ("[serve]\nport = '1'", "serve.port", "a whole number"),
        ("[serve]\nport = true", "serve.port", "a whole number"),
        ("[serve]\nport = 1.5", "serve.port", "a whole number"),
        ("[serve]\nkeep_alive = 2026-01-01", "serve.keep_alive", "a number"),
        ("[serve]\nallowed_hosts = 'a'", "serve.allowed_hosts", "a list of texts"),
        ("[serve]\nallowed_hosts = [1]", "serve.allowed_hosts", "a list of texts"),
        ("[auth]\naudience = 1", "auth.audience", "text or a list of texts"),
        ("[auth]\nprofiles = {a = 1}", "auth.profiles", "a table of texts"),
        ("[auth]\napi_keys = 1", "auth.api_keys", "a list of tables"),
        ("[auth]\napi_keys = ['a']", "auth.api_keys[0]", "a table"),
        ("[auth]\napi_keys = [{name = 'a'}]", "auth.api_keys[0]", "'digest'"),
        ("[auth]\napi_keys = [{name = 1, digest = 'a'}]", "auth.api_keys[0].name", "text"),
    ],
)
def test_a_wrong_type_is_refused_with_key_and_file(text: str, key: str, meant: str, write: Write) -> None:
    write(text)
    said = refused()

    assert said.startswith(f"'{key}' in 'callyard.toml' ")
    assert meant in said


@every_row(
    ("given", "environment", "named"),
    [
        ({"serve.port": "many"}, {}, "'--port'"),
        ({"serve.session_timeout": "long"}, {}, "'--session-timeout'"),
        ({}, {"CALLYARD_WORKERS": "many"}, "'CALLYARD_WORKERS'"),
        ({}, {"CALLYARD_LIMIT_TIMEOUT": "long"}, "'CALLYARD_LIMIT_TIMEOUT'"),
        ({}, {"CALLYARD_AUTH_API_KEYS": "["}, "'CALLYARD_AUTH_API_KEYS'"),
        ({}, {"CALLYARD_AUTH_API_KEYS": '[{"name": "a"}]'}, "'CALLYARD_AUTH_API_KEYS[0]'"),
    ],
)
def test_a_wrong_text_is_refused_with_the_flag_or_variable(
    given: dict[str, str], environment: dict[str, str], named: str, write: Write
) -> None:
    assert refused(given, **environment).startswith(f"{named} ")


@pytest.mark.parametrize(
    ("text", "environment", "source"),
    [
        ("[serve]\nport = -1", {}, "'callyard.toml'"),
        ("", {"CALLYARD_LIMIT_TIMEOUT": "nan"}, "'CALLYARD_LIMIT_TIMEOUT'"),
        ("[serve]\ntls_cert = 'a'", {}, "'callyard.toml'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_with_where_it_came_from(
    text: str, environment: dict[str, str], source: str, write: Write
) -> None:
    write(text)

    assert source in refused(**environment)


def test_settings_that_contradict_each_other_are_refused(write: Write) -> None:
    assert "stateless" in refused({"serve.workers": "2"})
    assert read({"serve.workers": "2", "serve.stateless": True}).settings.serve.workers == 2


def test_the_flag_chooses_the_file_or_else_the_variable_or_else_it_is_the_one_here(write: Write) -> None:
    write("profile = 'here'")
    write("profile = 'flag'", "flag.toml")
    write("profile = 'variable'", "variable.toml")

    def profile(path: str | None, **environment: str) -> str | None:
        return read_config(path=path, environment=environment).settings.profile

    assert profile("flag.toml", CALLYARD_CONFIG="variable.toml") == "flag"
    assert profile(None, CALLYARD_CONFIG="variable.toml") == "variable"
    assert profile(None, CALLYARD_CONFIG="") == "here"


def test_paths_in_a_file_are_seen_from_the_file(write: Write) -> None:
    serve = "tls_cert = 'c.pem'\ntls_key = '/k.pem'\nsocket = 's'\nhost = 'h'"
    write(f"target = 'bank.py:yard'\nstate_dir = 'state'\n[serve]\n{serve}", "deep/callyard.toml")
    config = read_config(path="deep/callyard.toml", environment={"CALLYARD_SOCKET": "t"})

    serving = config.settings.serve
    assert (config.settings.target, config.settings.state_dir) == ("deep/bank.py:yard", "deep/state")
    assert (serving.tls_cert, serving.tls_key, serving.socket, serving.host) == ("deep/c.pem", "/k.pem", "t", "h")


def test_a_path_in_a_home_is_seen_from_nowhere_else(write: Write) -> None:
    write("state_dir = '~/state'")

    assert read().settings.state_dir == "~/state"


def test_a_module_in_a_file_is_no_path(write: Write) -> None:
    write("target = 'bank:yard'", "deep/callyard.toml")

    assert read_config(path="deep/callyard.toml", environment={}).settings.target == "bank:yard"


@pytest.mark.parametrize(("text", "said"), [(b"target = ", "TOML"), (b"\xff", "UTF-8")])
def test_a_file_that_cannot_be_understood_is_upstream_named(text: bytes, said: str, write: Write) -> None:
    write("").write_bytes(text)
    refusal = refused()

    assert "'callyard.toml'" in refusal
    assert said in refusal


def test_a_named_file_must_be_there(write: Write) -> None:
    assert "'nowhere.toml'" in refused(CALLYARD_CONFIG="nowhere.toml")


def test_settings_given_in_code_are_of_their_types(write: Write) -> None:
    config = read_config(
        {"serve.port": 1, "serve.allowed_hosts": ["a"], "serve.socket": None}, environment={}, origin="code"
    )

    assert config.settings.serve.allowed_hosts == ("a",)
    assert str(config.origin("serve.port")) == "code port"
    with pytest.raises(ConfigError, match="'port' must be a whole number"):
        read_config({"serve.port": "1"}, environment={}, origin="code")


def test_a_variable_similar_to_a_setting_is_reported_and_others_are_ignored(write: Write) -> None:
    config = read(CALLYARD_PROT="1", CALLYARD_LIMIT_TIMOUT="1", CALLYARD_SECRET="s", CALLYARD_BENCH="b", OTHER_PROT="1")  # noqa: S106 - no secret

    assert config.warnings == (
        "The variable 'CALLYARD_LIMIT_TIMOUT' sets nothing. Did you mean 'CALLYARD_LIMIT_TIMEOUT'?",
        "The variable 'CALLYARD_PROT' sets nothing. Did you mean 'CALLYARD_PORT'?",
    )


def test_a_variable_of_search_that_is_no_setting_is_refused_as_by_every_yard(write: Write) -> None:
    with pytest.raises(ConfigError, match="'CALLYARD_SEARCH_BM25_NAME_WEIGHT'"):
        read(CALLYARD_SEARCH_BM25_NAME_WEIGTH="5")


def test_the_environment_of_the_process_is_read_by_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_PORT", "77")

    assert read_config().settings.serve.port == 77


def test_reading_settings_loads_nothing_heavy(tmp_path: Path) -> None:
    code = "import sys; from callyard.config import read_config; read_config(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S603 - our own

    assert {"pydantic", "asyncio", "ssl"}.isdisjoint(done.stdout.split())


def test_an_empty_section_of_guards_is_refused_because_it_meant_one(tmp_path: Path) -> None:
    file = tmp_path / "callyard.toml"
    file.write_text("[auth]\n")

    with pytest.raises(ConfigError, match="is empty"):
        read_config(path=str(file), environment={})


@every_row("name", ["git", "my-git", "my_git", "2fa", "a-b_c"])
def test_small_letters_digits_and_single_joints_are_a_name(name: str) -> None:
    assert is_upstream_name(name)
    assert to_upstream_name(name) == name


@every_row("name", ["", "Git", "a__b", "-a", "a-", "a b", "é", "metatools", "system", "a.b", "a\n"])
def test_anything_else_is_none(name: str) -> None:
    assert not is_upstream_name(name)


@given(text())
def test_a_name_can_be_made_of_everything(written: str) -> None:
    assert is_upstream_name(to_upstream_name(written))
    assert to_upstream_name(to_upstream_name(written)) == to_upstream_name(written)


def test_names_that_differ_in_their_joints_alone_are_twins() -> None:
    assert colliding_name("a-b", ["a-b", "c", "a_b"]) == "a_b"
    assert colliding_name("a-b", ["a-b", "ab"]) is None


def test_the_project_is_the_folder_of_the_file_but_a_url_that_no_file_names_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    url = "https://a.example/mcp"
    assert read_config(environment={}).project == str(tmp_path)

    (tmp_path / "callyard.toml").write_text("")
    assert read_config({"target": "elsewhere/yard.py"}, environment={}).project == str(tmp_path)
    assert read_config({"target": url}, environment={}).project == url

    (tmp_path / "callyard.toml").write_text(f"target = '{url}'")
    assert read_config(environment={}).project == str(tmp_path)


def test_variables_of_metatools_mcp_set_nothing_and_say_so() -> None:
    assert read_config(environment={"CALLYARD_PORT": "5"}).warnings == ()
    [warning] = read_config(environment={"METATOOLS_PORT": "5", "METATOOLS_SEARCH_STRATEGY": "bm25"}).warnings
    assert "METATOOLS_PORT" in warning


def test_the_flags_of_tls_and_of_the_streamable_transport_are_read() -> None:
    flags = {"serve.transport": "streamable", "serve.tls": True, "serve.tls_cert": "c", "serve.tls_key": "k"}
    serving = read_config(flags, environment={}).settings.serve

    assert (serving.transport, serving.tls, serving.tls_cert) == ("http", True, "c")
    assert read_config({**flags, "serve.tls": False}, environment={}).settings.serve.certificate is None
    with pytest.raises(ConfigError):
        read_config({"serve.tls": True}, environment={})
