"""Upstreams: as files and addresses name them, and with everything they refer to."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard.config import Config, ConfigError, read_config
from callyard.config.upstreams import ClientFile, parse_json, read_client_file, read_document
from callyard.providers.upstream.settings import Identity, Login, Reshape, UpstreamSettings


def read(path: Path, text: str, target: str | None = None) -> Config:
    (path / "callyard.toml").write_text(text)
    return read_config({} if target is None else {"target": target}, path=str(path / "callyard.toml"), environment={})


def refused(path: Path, text: str) -> str:
    with pytest.raises(ConfigError) as refusal:
        read(path, text)
    return str(refusal.value)


def settled(config: Config, name: str = "git", /, **variables: str) -> UpstreamSettings:
    warnings: list[str] = []
    found = config.upstreams[name].resolve(variables, warnings.append)
    assert warnings == []
    return found


def test_a_file_may_say_everything_of_an_upstream(tmp_path: Path) -> None:
    text = """
[upstreams.git]
command = "npx"
args = ["-y", "git"]
env = {A = "b"}
tools = ["list_*"]
without = ["list_all"]
idle_seconds = 5
pin = "warn"
[upstreams.git.login]
scopes = ["read"]
[upstreams.git.reshape.list_files]
rename = "files"
fixed = {depth = 1, deep = {x = [1]}}
hidden = ["all"]
operation = "query"
"""
    config = read(tmp_path, text)

    assert config.upstreams["git"].settings == UpstreamSettings(
        command="npx",
        args=("-y", "git"),
        env={"A": "b"},
        tools=("list_*",),
        without=("list_all",),
        idle_seconds=5.0,
        pin="warn",
        login=Login(scopes=("read",)),
        reshape={
            "list_files": Reshape(
                rename="files", fixed={"depth": 1, "deep": {"x": [1]}}, hidden=("all",), operation="query"
            )
        },
    )
    assert str(config.origin("upstreams.git.pin")) == f"file {tmp_path}/callyard.toml"
    assert config.is_yard


@every_row(
    ("text", "said"),
    [
        ("[upstreams.git]\ncomand = 'a'", "'upstreams.git.comand' in '{}' is not known. Did you mean 'command'?"),
        ("[upstreams.git]\ncommand = 1", "'upstreams.git.command' in '{}' must be text."),
        (
            "[upstreams.git]\ncommand = 'a'\npin = 'of'",
            "'upstreams.git.pin' in '{}' must be one of 'block', 'warn', 'off'.",
        ),
        (
            "[upstreams.git]\ncommand = 'a'\ntransport = 'ws'",
            "'upstreams.git.transport' in '{}' must be one of 'stdio', 'http', 'sse'.",
        ),
        ("[upstreams.git]\ncommand = 'a'\nlogin = 1", "'upstreams.git.login' in '{}' must be a table."),
        (
            "[upstreams.git]\ncommand = 'a'\n[upstreams.git.login]\nscope = 1",
            "'upstreams.git.login.scope' in '{}' is not known.",
        ),
        ("[upstreams.git]\ncommand = 'a'\nreshape = 1", "'upstreams.git.reshape' in '{}' must be a table."),
        (
            "[upstreams.git]\ncommand = 'a'\n[upstreams.git.reshape.x]\nrenam = 'b'",
            "'upstreams.git.reshape.x.renam' in '{}' is not known. Did you mean 'rename'?",
        ),
        (
            "[upstreams.git]\ncommand = 'a'\n[upstreams.git.reshape.x]\nfixed = 'b'",
            "'upstreams.git.reshape.x.fixed' in '{}' must be a table.",
        ),
        ("[upstreams.git]\n", "'upstreams.git' in '{}' makes no sense: An upstream has either a 'command' or a 'url'."),
        ("[upstreams]\ngit = 1", "'upstreams.git' in '{}' must be a table."),
        ("upstreams = 1", "'upstreams' in '{}' must be a table."),
        ("[upstreams.'My Git']\ncommand = 'a'", "'upstreams.My Git' in '{}' needs another name"),
        ("[upstreams.system]\ncommand = 'a'", "'upstreams.system' in '{}' needs another name: 'system' is reserved."),
        (
            "[upstreams.a-b]\ncommand = 'a'\n[upstreams.a_b]\ncommand = 'a'",
            "'upstreams.a_b' in '{}' and 'upstreams.a-b' would",
        ),
        (
            "[upstream_defaults]\nidle_second = 1",
            "'upstream_defaults.idle_second' in '{}' is not known. Did you mean 'idle_seconds'?",
        ),
        ("[upstream_defaults]\nurl = 'a'", "'upstream_defaults.url' in '{}' cannot be a default"),
        ("[upstrems.git]\ncommand = 'a'", "'upstrems' in '{}' is not known. Did you mean 'upstreams'?"),
    ],
)
def test_a_wrong_upstream_is_refused_with_its_key_and_the_file(text: str, said: str, tmp_path: Path) -> None:
    assert refused(tmp_path, text).startswith(said.format(tmp_path / "callyard.toml"))


def test_defaults_of_upstreams_are_written_once(tmp_path: Path) -> None:
    text = (
        "[upstream_defaults]\nidle_seconds = 5\npin = 'off'\n"
        "[upstreams.a]\ncommand = 'a'\n[upstreams.b]\ncommand = 'b'\npin = 'warn'"
    )
    config = read(tmp_path, text)

    assert [(one.settings.idle_seconds, one.settings.pin) for one in config.upstreams.values()] == [
        (5, "off"),
        (5, "warn"),
    ]


@every_row(
    ("text", "variables", "found"),
    [
        ("plain $A {A} $(A)", {}, "plain $A {A} $(A)"),
        ("${A}", {"A": "1"}, "1"),
        ("${A}", {"A": ""}, ""),
        ("x${A}y${B}", {"A": "1", "B": "${A}"}, "x1y${A}"),
        ("${env:A}", {"A": "1"}, "1"),
        ("${A:-2}", {}, "2"),
        ("${A:-2}", {"A": ""}, "2"),
        ("${A:-2}", {"A": "1"}, "1"),
        ("${A:-}", {}, ""),
        ("${env:A:-b c}", {}, "b c"),
        ("$${A}", {}, "${A}"),
        ("${1} ${A:?x}", {}, "${1} ${A:?x}"),
        ("secretref:env:A", {"A": "1"}, "1"),
        ("Bearer ${secretref:env:A}", {"A": "1"}, "Bearer 1"),
    ],
)
def test_variables_are_looked_up(text: str, variables: dict[str, str], found: str, tmp_path: Path) -> None:
    config = read(tmp_path, f"[upstreams.git]\ncommand = 'a'\nenv = {{X = '{text}'}}")

    assert settled(config, **variables).env == {"X": found}


def test_variables_are_looked_up_wherever_an_upstream_is_reached_and_nowhere_else(tmp_path: Path) -> None:
    text = """
[upstreams.git]
command = "${V}"
args = ["-x", "${V}"]
cwd = "${V}"
prefix = "${V}"
[upstreams.web]
url = "https://${V}"
headers = {"${V}" = "${V}"}
[upstreams.web.login]
client_id = "${V}"
client_secret = "${V}"
client_metadata_url = "${V}"
scopes = ["${V}"]
issuer = "${V}"
grant = "identity_assertion"
[upstreams.web.login.identity]
issuer = "${V}"
client_id = "${V}"
client_secret = "${V}"
id_token = "${V}"
"""
    config = read(tmp_path, text)
    git, web = settled(config, V="1"), settled(config, "web", V="1")

    assert (git.command, git.args, git.cwd, git.prefix) == ("1", ("-x", "1"), str(tmp_path / "1"), "${V}")
    assert (web.url, web.headers) == ("https://1", {"${V}": "1"})
    identity = Identity(issuer="1", client_id="1", client_secret="1", id_token="1")  # noqa: S106 - no secret
    client: dict[str, Any] = {"client_id": "1", "client_secret": "1", "client_metadata_url": "1"}
    assert web.login == Login(**client, scopes=("1",), issuer="1", grant="identity_assertion", identity=identity)


@every_row(
    ("line", "key", "said"),
    [
        ("command = '${A}'", "command", "needs the variable 'A', which is not set."),
        ("command = 'a'\nargs = ['b', '${env:A}']", "args[1]", "needs the variable 'A'"),
        ("command = 'a'\nenv = {X = '${A}'}", "env.X", "needs the variable 'A'"),
        ("url = 'a'\nheaders = {X = '${A}'}", "headers.X", "needs the variable 'A'"),
        ("url = 'a'\nlogin = {client_secret = '${A}'}", "login.client_secret", "needs the variable 'A'"),
        (
            (
                "url = 'a'\nlogin = {grant = 'identity_assertion', identity = {issuer = 'i', client_id = 'c', "
                "id_token = '${A}'}}"
            ),
            "login.identity.id_token",
            "needs the variable 'A'",
        ),
        ("command = 'a'\nenv = {X = '${input:token}'}", "env.X", "refers to '${input:token}'"),
        (
            "command = 'a'\nenv = {X = 'secretref:env:A'}",
            "env.X",
            "needs the secret 'secretref:env:A': the variable is not set.",
        ),
        (
            "command = 'a'\nenv = {X = 'secretref:env:EMPTY'}",
            "env.X",
            "needs the secret 'secretref:env:EMPTY', which is empty.",
        ),
        (
            "command = 'a'\nenv = {X = 'secretref:file:no'}",
            "env.X",
            "needs the secret 'secretref:file:no': the file cannot be read",
        ),
        (
            "command = 'a'\nenv = {X = 'secretref:file:odd'}",
            "env.X",
            "needs the secret 'secretref:file:odd': the file is not UTF-8",
        ),
        ("command = 'a'\nenv = {X = 'secretref:safe:A'}", "env.X", "refers to a secret in an unknown form."),
        ("command = 'a'\nenv = {X = 'secretref:env'}", "env.X", "refers to a secret in an unknown form."),
        (
            "command = 'a'\nenv = {X = 'secretref:keyring:A'}",
            "env.X",
            "needs the secret 'secretref:keyring:A': it is written",
        ),
    ],
)
def test_a_failed_lookup_is_refused_with_key_and_file(line: str, key: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "odd").write_bytes(b"\xff")
    config = read(tmp_path, f"[upstreams.git]\n{line}")

    with pytest.raises(ConfigError) as refusal:
        settled(config, EMPTY="")
    assert str(refusal.value).startswith(f"'upstreams.git.{key}' in '{tmp_path}/callyard.toml' {said}")


def test_a_secret_in_a_file_is_read_beside_the_one_that_refers_to_it(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush\n")
    (tmp_path / "token").chmod(0o600)
    config = read(tmp_path, "[upstreams.git]\ncommand = 'a'\nenv = {X = 'secretref:file:${NAME}'}")

    assert settled(config, NAME="token").env == {"X": "hush"}


def test_a_secret_that_everybody_can_read_is_warned_of_without_its_value(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hush")
    (tmp_path / "token").chmod(0o644)
    config = read(tmp_path, "[upstreams.git]\ncommand = 'a'\nenv = {X = 'secretref:file:token'}")
    warnings: list[str] = []
    found = config.upstreams["git"].resolve({}, warnings.append)

    assert len(warnings) == 1
    assert "hush" not in f"{warnings} {found!r}"


class Keyring:
    """A keyring with one secret, which breaks when it is asked for another."""

    @staticmethod
    def get_password(service: str, user: str) -> str | None:
        if service == "broken":
            raise OSError("hush")
        return "hush" if (service, user) == ("a/b", "c") else None


def test_a_secret_in_the_keyring_is_had_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def has(reference: str) -> dict[str, str]:
        return settled(
            read(tmp_path, f"[upstreams.git]\ncommand = 'a'\nenv = {{X = 'secretref:keyring:{reference}'}}")
        ).env

    monkeypatch.setitem(sys.modules, "keyring", Keyring)
    assert has("a/b/c") == {"X": "hush"}
    with pytest.raises(ConfigError, match="add it with 'keyring set a c'"):
        has("a/c")
    with pytest.raises(ConfigError, match="cannot be opened: OSError") as refusal:
        has("broken/c")
    assert "hush" not in str(refusal.value)
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(ConfigError, match="pip install keyring"):
        has("a/c")


@pytest.mark.parametrize(("line", "cwd"), [("", "."), ("cwd = 'deep'", "deep"), ("cwd = '/'", "/")])
def test_a_program_of_our_own_file_runs_beside_it(line: str, cwd: str, tmp_path: Path) -> None:
    config = read(tmp_path, f"[upstreams.git]\ncommand = 'a'\n{line}")

    assert settled(config).cwd == str(tmp_path / cwd)


def test_a_clients_file_is_a_target_and_takes_the_place_of_our_own_upstreams(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text(
        '{"mcpServers": {"Git": {"command": "${V}"}, "off": {"command": "b", "disabled": true}}}'
    )
    config = read(tmp_path, "[upstreams.other]\ncommand = 'a'\n[limits]\ndepth = 2", target=str(tmp_path / "mcp.json"))

    assert config.settings.limits.depth == 2
    assert {name: one.settings.enabled for name, one in config.upstreams.items()} == {"git": True, "off": False}
    assert settled(config, V="a").cwd is None
    assert config.is_yard
    assert list(config.files) == [tmp_path / "callyard.toml", tmp_path / "mcp.json"]
    assert all(config.files.values())
    assert config.warnings == (f"'mcpServers.Git' in '{tmp_path}/mcp.json' is named 'git' here.",)
    with pytest.raises(ConfigError, match=r"^'mcpServers.Git.command' in '.*mcp.json' needs the variable 'V'"):
        settled(config)


def test_a_clients_file_that_our_own_names_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "mcp.jsonc").write_text('{"servers": {"git": {"command": "a"}}}')

    assert list(read(tmp_path, "target = 'mcp.jsonc'").upstreams) == ["git"]


@every_row(
    ("address", "name"),
    [
        ("https://mcp.example.com/mcp", "mcp-example-com"),
        ("http://localhost:8000/x.json", "localhost"),
        ("http://[::1]:80/", "1"),
        ("https://hush:hush@a.b", "a-b"),
    ],
)
def test_an_address_is_a_target_whose_tools_keep_their_names(address: str, name: str, tmp_path: Path) -> None:
    config = read(tmp_path, "", target=address)

    assert {name: one.settings for name, one in config.upstreams.items()} == {
        name: UpstreamSettings(url=address, prefix="")
    }
    assert settled(config, name).url == address
    assert config.is_yard
    assert "hush" not in str(config.tables)


@pytest.mark.parametrize("address", ["https://", "https://[", "http:///x"])
def test_an_address_without_a_host_is_refused(address: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        read(tmp_path, "", target=address)


def test_an_upstream_is_never_shown_with_what_may_be_secret(tmp_path: Path) -> None:
    config = read(tmp_path, "[upstreams.git]\ncommand = 'a'\nenv = {X = '${V}'}")

    assert "hush" not in repr(settled(config, V="hush"))


@pytest.mark.parametrize(
    ("text", "target", "is_yard"), [("", None, False), ("packs = ['system']", None, True), ("", "bank.py", False)]
)
def test_without_upstreams_and_packs_there_is_no_yard(text: str, target: Any, is_yard: bool, tmp_path: Path) -> None:  # noqa: FBT001 - the value under test
    assert read(tmp_path, text, target=target).is_yard is is_yard


def read_entries(*entries: tuple[str, Any], section: str = "mcpServers") -> ClientFile:
    return read_document({section: dict(entries)}, "mcp.json")


def one(entry: dict[str, Any]) -> dict[str, Any]:
    return read_entries(("git", entry)).upstreams["git"]


def refused_entries(document: object) -> str:
    with pytest.raises(ConfigError) as refusal:
        read_document(document, "mcp.json")
    return str(refusal.value)


def test_a_program_keeps_what_it_is_started_with() -> None:
    entry = {"command": "npx", "args": ["-y", "x"], "env": {"TOKEN": "${TOKEN}"}, "cwd": "/tmp"}  # noqa: S108 - a text

    assert one(entry) == entry


def test_an_address_keeps_its_headers() -> None:
    assert one({"url": "https://a/mcp", "headers": {"X": "${Y}"}}) == {"url": "https://a/mcp", "headers": {"X": "${Y}"}}


@every_row(
    ("kind", "carrier"),
    [
        ("http", "http"),
        ("streamable-http", "http"),
        ("streamableHttp", "http"),
        ("streamable_http", "http"),
        ("sse", "sse"),
        ("SSE", "sse"),
    ],
)
@every_row("key", ["type", "transport"])
def test_every_word_for_a_transport_is_understood(key: str, kind: str, carrier: str) -> None:
    assert one({key: kind, "url": "https://a"}) == {"url": "https://a", "transport": carrier}


@pytest.mark.parametrize("key", ["url", "httpUrl", "serverUrl"])
def test_every_word_for_an_address_is_understood(key: str) -> None:
    assert one({key: "https://a"}) == {"url": "https://a"}


def test_a_server_with_both_a_program_and_an_address_is_what_its_type_says() -> None:
    both = {"command": "npx", "url": "https://a"}

    assert one({**both, "type": "stdio"}) == {"command": "npx"}
    assert one({**both, "type": "http"}) == {"url": "https://a", "transport": "http"}
    assert one(both) == {"url": "https://a"}


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "local", "command": ["npx", "-y"], "args": ["x"]},
        {"command": {"path": "npx", "args": ["-y", "x"]}},
        {"command": "npx", "args": ["-y", "x"], "cwd": None},
    ],
)
def test_programs_are_written_in_several_ways(entry: dict[str, Any]) -> None:
    assert one(entry) == {"command": "npx", "args": ["-y", "x"]}


def test_numbers_and_switches_among_variables_become_text() -> None:
    assert one({"command": "a", "env": {"PORT": 1, "RATE": 0.5, "ON": True, "T": "t"}})["env"] == {
        "PORT": "1",
        "RATE": "0.5",
        "ON": "true",
        "T": "t",
    }


@pytest.mark.parametrize("switch", [{"disabled": True}, {"enabled": False}])
def test_a_server_that_is_switched_off_stays_so(switch: dict[str, bool]) -> None:
    assert one({"command": "a", **switch}) == {"command": "a", "enabled": False}


def test_a_server_that_is_switched_on_is_used() -> None:
    assert one({"command": "a", "disabled": False, "enabled": True}) == {"command": "a"}


def test_settings_of_the_client_alone_are_ignored_and_ours_win() -> None:
    entry = {
        "command": "a",
        "autoApprove": ["x"],
        "timeout": 5,
        "callyard": {"call_seconds": 3, "enabled": True},
        "disabled": True,
    }

    assert one(entry) == {"command": "a", "call_seconds": 3, "enabled": True}


def test_a_setting_of_ours_that_is_not_known_is_refused_with_what_was_meant() -> None:
    said = refused_entries({"mcpServers": {"git": {"command": "a", "callyard": {"prefx": ""}}}})

    assert said == "'mcpServers.git.callyard.prefx' in 'mcp.json' is not known. Did you mean 'prefix'?"
    assert "'mcpServers.git.callyard' in 'mcp.json' must be a table." in refused_entries(
        {"mcpServers": {"git": {"command": "a", "callyard": 1}}}
    )


@every_row(
    ("document", "place"),
    [
        ({"mcpServers": {"git": {"command": "a"}}, "other": 1}, "mcpServers.git"),
        ({"servers": {"git": {"command": "a"}}, "inputs": []}, "servers.git"),
        ({"mcp": {"servers": {"git": {"command": "a"}}}}, "mcp.servers.git"),
        ({"mcp_servers": {"git": {"command": "a"}}, "mcp": 1}, "mcp_servers.git"),
        ({"context_servers": {"git": {"command": "a"}}}, "context_servers.git"),
        ({"git": {"command": "a"}}, "git"),
    ],
)
def test_servers_stand_where_each_client_has_them(document: object, place: str) -> None:
    found = read_document(document, "mcp.json")

    assert found.upstreams == {"git": {"command": "a"}}
    assert str(found.locations["git"]) == f"'{place}' in 'mcp.json'"


@every_row("document", [[], 1, {}, {"a": 1}, {"a": {"b": 1}}, {"mcpServers": 1}])
def test_a_document_without_servers_is_refused(document: object) -> None:
    assert "'mcp.json'" in refused_entries(document)


def test_a_section_without_servers_is_read() -> None:
    assert read_document({"mcpServers": {}}, "mcp.json") == ClientFile({}, {}, ())


@every_row("entry", [{"type": "ws", "url": "ws://a"}, {"type": "stdio"}, {}, "text"])
def test_an_unusable_entry_is_left_out_with_a_warning(entry: object) -> None:
    found = read_entries(("odd", entry), ("git", {"command": "a"}))

    assert list(found.upstreams) == ["git"]
    assert found.warnings[0].startswith("'mcpServers.odd' in 'mcp.json' is left out: ")


@every_row(
    ("theirs", "name"),
    [
        ("My Git", "my-git"),
        ("GitHub", "github"),
        ("a__b", "a-b"),
        ("io.github/x_y", "io-github-x_y"),
        ("-x_ ", "x"),
        ("Étude", "etude"),
        ("system", "system-upstream"),
        ("天気", "bc79d8-upstream"),
    ],
)
def test_an_invalid_name_becomes_a_valid_one_with_a_warning(theirs: str, name: str) -> None:
    found = read_entries((theirs, {"command": "a"}))

    assert list(found.upstreams) == [name]
    assert found.warnings == (f"'mcpServers.{theirs}' in 'mcp.json' is named '{name}' here.",)


@pytest.mark.parametrize(("first", "second"), [("My Git", "my-git"), ("a-b", "a_b"), ("Git", "GIT")])
def test_two_that_would_have_one_name_are_refused_and_both_are_named(first: str, second: str) -> None:
    said = refused_entries({"mcpServers": {first: {"command": "a"}, second: {"command": "a"}}})

    assert f"'mcpServers.{first}'" in said
    assert f"'mcpServers.{second}' in 'mcp.json'" in said


def test_comments_and_trailing_commas_are_allowed(tmp_path: Path) -> None:
    file = tmp_path / "mcp.jsonc"
    text = """\ufeff// a comment
    {"mcpServers": { /* another,
      one */ "git": {"command": "a//b", "args": ["/*x*/", ",]", "\\\\", "q\\"//",],},},}"""
    file.write_text(text, encoding="utf-8")

    assert read_client_file(file).upstreams == {"git": {"command": "a//b", "args": ["/*x*/", ",]", "\\", 'q"//']}}


def test_a_plain_file_is_read_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"git": {"url": "https://a//b"}}}))

    assert read_client_file(file).upstreams == {"git": {"url": "https://a//b"}}


@pytest.mark.parametrize(("content", "said"), [(b'{"a', "is not JSON"), (b"\xff", "UTF-8"), (None, "cannot be read")])
def test_a_file_that_cannot_be_understood_is_named(content: bytes | None, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mcp.json"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(ConfigError, match=said) as refusal:
        read_client_file(file)
    assert str(file) in str(refusal.value)


def test_a_long_text_without_an_end_is_refused_at_once() -> None:
    with pytest.raises(ConfigError):
        parse_json('{"a": "' + '\\"' * 200_000, "mcp.json")
    with pytest.raises(ConfigError):
        parse_json("/*" * 200_000, "mcp.json")


def test_a_server_at_a_url_is_used_without_the_apis_of_the_file(tmp_path: Path) -> None:
    text = "[apis.shop]\ndocument = 'shop.json'"

    assert list(read(tmp_path, text).apis) == ["shop"]
    assert read(tmp_path, text, target="http://127.0.0.1:1/mcp").apis == {}
