"""`callyard import`: what clients have, brought into 'callyard.toml'."""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE, Popen
from typing import IO, Any

import pytest
import yaml

from callyard._internal.project import find_project, project_dir
from callyard.client_configs.clients import CLIENTS, Environment
from callyard.config import read_config

Run = Callable[..., tuple[int, str, str]]
CLAUDE = {
    "mcpServers": {
        "github": {"command": "npx", "args": ["-y", "gh"], "env": {"GITHUB_TOKEN": "ghp_hunter2", "LEVEL": "debug"}},
        "callyard": {"command": "python", "args": ["-m", "callyard", "serve"]},
    }
}
CURSOR = {
    "mcpServers": {
        "github": {"url": "https://gh/mcp", "headers": {"Authorization": "Bearer ${GH}"}},
        "Web Search": {"url": "https://web"},
    }
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home with the files of three clients; the test runs in a project beside it."""
    for variable in (
        "XDG_CONFIG_HOME",
        "XDG_STATE_HOME",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "CALLYARD_STATE_DIR",
        "CALLYARD_CONFIG",
        "GH",
    ):
        monkeypatch.delenv(variable, raising=False)
    home, project = tmp_path / "home", tmp_path / "project"
    (home / ".cursor").mkdir(parents=True)
    project.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(project)
    (home / ".claude.json").write_text(json.dumps(CLAUDE))
    (home / ".cursor" / "mcp.json").write_text(json.dumps(CURSOR))
    return home


def upstreams(path: str = "callyard.toml") -> dict[str, Any]:
    return tomllib.loads(Path(path).read_text())["upstreams"]


def test_every_entry_that_is_found_is_listed_and_written(home: Path, callyard: Run) -> None:
    status, out, err = callyard("import")

    assert status == 0
    assert [line.split("\t")[:3] for line in out.splitlines()] == [
        ["claude-code", "github", "added"],
        ["claude-code", "callyard", "left out"],
        ["cursor", "github-cursor", "renamed"],
        ["cursor", "web-search", "added"],
    ]
    assert list(upstreams()) == ["github", "github-cursor", "web-search"]
    assert list(read_config(environment={}).upstreams) == list(upstreams())
    assert "'GH'" in err
    assert "None was started" in err


SERVER = """
import os
from callyard import serve, Yard

def word() -> str:
    \"\"\"Tell the secret.\"\"\"
    return os.environ["SECRET_WORD"]

serve(Yard("word", tools=[word]))
"""
REQUESTS: list[tuple[str, dict[str, Any]]] = [
    ("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}),
    ("tools/list", {}),
    ("tools/call", {"name": "riddle__word", "arguments": {}}),
]


def test_a_server_of_one_client_reaches_another_through_callyard(home: Path, callyard: Run) -> None:
    Path("server.py").write_text(SERVER)
    program = {
        "command": sys.executable,
        "args": [str(Path("server.py").absolute())],
        "env": {"SECRET_WORD": "hunter2"},
    }
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": {"riddle": program}}))
    callyard("import", "--from", "cursor")
    callyard("connect", "claude-code", "--project")
    ours = json.loads(Path(".mcp.json").read_text())["mcpServers"]["callyard"]

    answers: list[dict[str, Any]] = []
    with Popen([ours["command"], *ours["args"]], stdin=PIPE, stdout=PIPE, cwd=home, text=True) as client:  # noqa: S603 - our own
        assert client.stdin is not None
        assert client.stdout is not None
        for number, (method, params) in enumerate(REQUESTS):
            client.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}) + "\n")
            client.stdin.flush()
            answers.append(_answer_to(number, client.stdout))
        client.stdin.close()

    assert [tool["name"] for tool in answers[1]["result"]["tools"]] == ["riddle__word"]
    assert "hunter2" in json.dumps(answers[2]["result"]["content"])


def _answer_to(number: int, lines: IO[str]) -> dict[str, Any]:
    return next(message for message in map(json.loads, lines) if message.get("id") == number)


def test_secrets_go_to_files_of_their_own_and_are_never_shown(home: Path, callyard: Run) -> None:
    _, out, err = callyard("import", "-v")
    file = project_dir(home / ".local/state/callyard", find_project()) / "secrets" / "github.GITHUB_TOKEN"

    assert "hunter2" not in out + err + Path("callyard.toml").read_text()
    assert upstreams()["github"]["env"] == {
        "GITHUB_TOKEN": f"${{secretref:file:~/{file.relative_to(home)}}}",
        "LEVEL": "debug",
    }
    assert file.read_text() == "ghp_hunter2"
    assert file.stat().st_mode & 0o777 == 0o600
    settled = read_config(environment={}).upstreams["github"].resolve({}, print)
    assert settled.env["GITHUB_TOKEN"] == "ghp_hunter2"  # noqa: S105 - invented


def test_secrets_inside_arguments_reach_the_server_and_nobody_else(home: Path, callyard: Run) -> None:
    arguments = [
        "-y",
        "mcp-remote",
        "https://a/mcp",
        "--header",
        "Authorization: Bearer hunter2",
        "-e",
        "API_KEY=hunter2",
    ]
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"remote": {"command": "npx", "args": arguments}}}))

    _, out, err = callyard("import", "-v", "--from", "claude-code")
    _, facts, _ = callyard("import", "--dry-run", "--json")
    _, shown, _ = callyard("config")

    assert "npx -y mcp-remote https://a/mcp --header Authorization: … -e API_KEY=…" in out
    assert "hunter2" not in out + err + facts + shown + Path("callyard.toml").read_text()
    assert read_config(environment={}).upstreams["remote"].resolve({}, print).args == tuple(arguments)
    assert "there already" in callyard("import", "--from", "claude-code")[1]


def test_secrets_may_become_variables(home: Path, callyard: Run) -> None:
    _, out, err = callyard("import", "github", "--from", "claude-code", "--secrets", "env")

    assert upstreams()["github"]["env"]["GITHUB_TOKEN"] == "${GITHUB_TOKEN}"  # noqa: S105 - a reference
    assert "Set the variable 'GITHUB_TOKEN'" in err
    assert "hunter2" not in out + err


def test_secrets_may_stay_and_make_the_file_private(home: Path, callyard: Run) -> None:
    Path("callyard.toml").touch(mode=0o644)
    _, out, err = callyard("import", "--secrets", "keep")

    assert upstreams()["github"]["env"]["GITHUB_TOKEN"] == "ghp_hunter2"  # noqa: S105 - invented
    assert Path("callyard.toml").stat().st_mode & 0o777 == 0o600
    assert "contains secrets" in err
    assert "hunter2" not in out + err


def test_the_servers_of_every_client_are_found_at_once(home: Path, callyard: Run) -> None:
    environment = Environment(sys.platform, {}, home, Path.cwd())
    for client in CLIENTS.values():
        path = environment.path(client.user[0])
        path.parent.mkdir(parents=True, exist_ok=True)
        entry = {"command": "npx", "args": [client.name], "cmd": "npx", "type": "stdio"}
        document = {client.section[0]: {f"of-{client.name}": entry}}
        path.write_text(
            '[mcp_servers.of-codex]\ncommand = "npx"\nargs = ["codex"]\n'
            if path.suffix == ".toml"
            else json.dumps(document)
        )

    status, _, err = callyard("import")

    assert status == 0, err
    assert upstreams().keys() == {f"of-{name}" for name in CLIENTS}
    assert {name: table["args"] for name, table in upstreams().items()} == {f"of-{name}": [name] for name in CLIENTS}


def test_a_dry_run_writes_nothing(home: Path, callyard: Run) -> None:
    status, out, err = callyard("import", "--dry-run")

    assert status == 0
    assert "web-search" in out
    assert "Nothing was written" in err
    assert not Path("callyard.toml").exists()
    assert not (home / ".local").exists()


def test_an_import_keeps_the_file_as_it_is_and_a_second_import_adds_nothing(home: Path, callyard: Run) -> None:
    written = '# Mine.\n[upstreams.own]  # here\ncommand = "x"\n'
    Path("callyard.toml").write_text(written)
    callyard("import")
    once = Path("callyard.toml").read_text()

    status, out, err = callyard("import")

    assert once.startswith(written)
    assert Path("callyard.toml").read_text() == once
    assert status == 0
    assert out.count("there already") == 3
    assert "nothing to add" in err


def test_one_file_that_is_malformed_stops_nothing_else(home: Path, callyard: Run) -> None:
    (home / ".claude.json").write_text('{"mcpServers":\n {"a": }}')

    status, out, err = callyard("import", "--quiet")

    assert status == 1
    assert "web-search" in out
    assert f"'{home / '.claude.json'}'" in err
    assert "line 2" in err
    assert err.count("\n") == 1


def test_a_client_and_names_can_be_chosen(home: Path, callyard: Run) -> None:
    callyard("import", "--from", "cursor", "Web Search")

    assert list(upstreams()) == ["web-search"]


def test_a_name_that_no_client_has_is_refused(home: Path, callyard: Run) -> None:
    status, _, err = callyard("import", "githib")

    assert status == 2
    assert "Did you mean 'github'?" in err


def test_a_client_that_is_not_known_is_refused(home: Path, callyard: Run) -> None:
    status, _, err = callyard("import", "--from", "cursr")

    assert status == 2
    assert "Did you mean 'cursor'?" in err


def test_a_file_can_be_named_and_so_can_the_one_that_is_written(home: Path, callyard: Run) -> None:
    Path("some.json").write_text('{"servers": {"a": {"command": "x"}}}')
    Path("other.toml").write_text('[mcp_servers.b]\ncommand = "y"\n')

    callyard("import", "--file", "some.json", "--to", "mine.toml")
    callyard("import", "--file", "other.toml", "--from", "codex", "--to", "mine.toml")

    assert upstreams("mine.toml") == {"a": {"command": "x"}, "b": {"command": "y"}}
    assert callyard("import", "--file", "missing.json")[0] == 1


def test_where_nothing_is_found_that_is_said(home: Path, callyard: Run) -> None:
    status, out, err = callyard("import", "--from", "zed")

    assert (status, out) == (0, "")
    assert "No client's file was found" in err


def test_programs_get_all_of_it_as_an_object(home: Path, callyard: Run) -> None:
    (home / ".cursor" / "mcp.json").write_text("{")
    status, out, _ = callyard("import", "--json")
    facts = json.loads(out)

    assert status == 1
    assert facts["written"] == "callyard.toml"
    assert len(facts["failures"]) == 1
    assert facts["servers"][0] == {
        "client": "claude-code",
        "file": str(home / ".claude.json"),
        "server": "github",
        "name": "github",
        "status": "added",
        "why": "",
        "reached_by": "npx -y gh",
        "variables": [],
    }
    assert json.loads(callyard("import", "--json")[1])["written"] is None


def test_people_get_a_table_with_a_heading_for_each_file(home: Path, in_terminal: Callable[..., str]) -> None:
    Path(home / ".mcp.json").write_text('{"mcpServers": {"only": {"command": "x"}}}')
    shown = in_terminal("import", "--dry-run", HOME=str(home))
    assert "Claude Code" in shown
    assert "web-search" in shown

    assert "File" in in_terminal("import", "--dry-run", "--file", str(home / ".mcp.json"), HOME=str(home))


@pytest.mark.parametrize(
    ("text", "why"),
    [("upstreams = {}\n", "cannot be changed"), ("a = ", "not TOML"), ("upstrems = 1\n", "not known")],
)
def test_a_file_that_cannot_be_added_to_is_left_as_it_is(home: Path, callyard: Run, text: str, why: str) -> None:
    Path("callyard.toml").write_text(text)

    status, _, err = callyard("import")

    assert status == 2
    assert why in err
    assert Path("callyard.toml").read_text() == text


def test_a_file_that_cannot_be_written_is_named(home: Path, callyard: Run) -> None:
    Path("taken").touch()

    status, _, err = callyard("import", "--to", "taken/callyard.toml")

    assert status in {1, 2}
    assert "taken" in err


def test_a_full_disk_is_reported(home: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes, *, mode: int = 0) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("callyard._internal.files.write_atomically", full)

    status, _, err = callyard("import")

    assert status == 1
    assert "No space left" in err


def test_without_a_place_for_secrets_there_is_nothing_to_do(
    home: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nowhere(given: object = None) -> Path:
        raise OSError(2, "There is no home directory")

    monkeypatch.setattr("callyard.cli.config.find_state_dir", nowhere)

    assert "Set one with 'state_dir'" in callyard("import")[2]


def test_only_toml_is_written(home: Path, callyard: Run) -> None:
    assert "'mcp.json' is not a '.toml' file" in callyard("import", "--to", "mcp.json")[2]


def test_without_a_home_nothing_can_be_looked_for(home: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError

    monkeypatch.setattr(Path, "home", no_home)

    status, _, err = callyard("import", "--to", "a.toml")

    assert status == 2
    assert "home" in err


WRITTEN = '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x", "env": {"TOKEN": "hunter2"}}\n  }\n}\n'


@pytest.fixture
def mcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return Cursor's file in a home; the test runs in a folder with a 'callyard.toml'."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("CALLYARD_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "callyard.toml").touch()
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(WRITTEN)
    return path


def entry(path: Path, name: str = "callyard") -> dict[str, object]:
    text = "".join(line for line in path.read_text().splitlines() if "//" not in line or "://" in line)
    return json.loads(text)["mcpServers"][name]


def test_the_change_is_shown_made_and_can_be_undone(mcp: Path, callyard: Run) -> None:
    status, out, err = callyard("connect", "cursor")

    assert status == 0
    assert '+    "callyard": {' in out
    assert "hunter2" not in out + err
    assert entry(mcp) == {
        "command": sys.executable,
        "args": ["-m", "callyard", "serve", str(Path.cwd() / "callyard.toml")],
    }
    assert "// mine" in mcp.read_text()
    (backup,) = mcp.parent.glob("mcp.json.callyard-backup-*")
    assert str(backup) in err
    assert backup.read_text() == WRITTEN

    status, out, err = callyard("connect", "cursor", "--undo")

    assert status == 0
    assert '-    "callyard": {' in out
    assert mcp.read_text() == WRITTEN
    assert not backup.exists()


def test_a_dry_run_shows_the_change_alone(mcp: Path, callyard: Run) -> None:
    status, out, err = callyard("connect", "cursor", "--dry-run")

    assert status == 0
    assert '+    "callyard": {' in out
    assert "Nothing was written" in err
    assert mcp.read_text() == WRITTEN


def test_a_second_time_changes_nothing(mcp: Path, callyard: Run) -> None:
    callyard("connect", "cursor")
    status, out, err = callyard("connect", "cursor")

    assert (status, out) == (0, "")
    assert "needs no change" in err
    assert len(list(mcp.parent.iterdir())) == 2


def test_an_address_takes_the_place_of_a_program(mcp: Path, callyard: Run) -> None:
    callyard("connect", "cursor", "--url", "http://127.0.0.1:8321/mcp", "--name", "yard", "--quiet")

    assert entry(mcp, "yard") == {"url": "http://127.0.0.1:8321/mcp"}


def test_the_file_of_the_folder_can_be_written_instead(mcp: Path, callyard: Run) -> None:
    callyard("connect", "claude-code", "--project")

    assert entry(Path(".mcp.json"))["command"] == sys.executable


@pytest.mark.parametrize(
    ("target", "served"),
    [
        ("app.py", "{here}/app.py"),
        ("app.py:yard", "{here}/app.py:yard"),
        ("https://a/mcp", "https://a/mcp"),
        ("package.module:yard", "package.module:yard"),
    ],
)
def test_a_target_is_written_so_that_it_is_found_from_anywhere(
    mcp: Path, callyard: Run, target: str, served: str
) -> None:
    Path("app.py").touch()
    _, _, err = callyard("connect", "cursor", target)

    assert entry(mcp)["args"] == ["-m", "callyard", "serve", served.format(here=Path.cwd())]
    assert ("is a module" in err) is (target == "package.module:yard")
    assert "is a module" not in callyard("connect", "cursor", target, "--quiet")[2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["cursr"], "Did you mean 'cursor'?"),
        (["windsurf", "--project"], "Leave '--project' out"),
        (["cursor", "missing.py"], "no file 'missing.py'"),
        (["cursor", "x.py", "--url", "http://a"], "either"),
        (["claude-desktop", "--url", "http://a"], "callyard connect claude-desktop http://a"),
        (["cursor", "--name", "a"], "another server 'a'"),
        (["cursor", "--undo"], "nothing to undo"),
        (["goose", "--undo"], "by hand"),
    ],
)
def test_an_impossible_connection_is_refused_in_one_sentence(
    mcp: Path, callyard: Run, arguments: list[str], why: str
) -> None:
    status, out, err = callyard("connect", *arguments)

    assert (status, out) == (2, "")
    assert why in err
    assert mcp.read_text() == WRITTEN


def test_the_file_that_the_environment_names_is_the_usual_one(
    mcp: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("other.toml").touch()
    monkeypatch.setenv("CALLYARD_CONFIG", "other.toml")

    callyard("connect", "cursor")

    assert entry(mcp)["args"] == ["-m", "callyard", "serve", str(Path.cwd() / "other.toml")]


@pytest.mark.parametrize("target", ["", "callyard.toml", "app.py"])
def test_a_client_that_starts_the_server_speaks_stdio_whatever_the_file_says(
    mcp: Path, callyard: Run, target: str
) -> None:
    Path("app.py").touch()
    Path("callyard.toml").write_text("[serve]\ntransport = 'http'\n")

    assert callyard("connect", "cursor", *filter(None, [target]))[0] == 0

    served = Path.cwd() / (target or "callyard.toml")
    assert entry(mcp)["args"] == ["-m", "callyard", "serve", str(served), "--transport", "stdio"]


def test_the_credentials_for_a_url_reach_the_client_and_are_not_shown(
    mcp: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, err = callyard(
        "connect", "cursor", "--url", "http://a/mcp", "--key", "cy_ada", "--header", "X-Team: red"
    )

    assert (status, "cy_ada" in out + err) == (0, False)
    assert entry(mcp) == {"url": "http://a/mcp", "headers": {"X-Team": "red", "Authorization": "Bearer cy_ada"}}

    monkeypatch.setenv("CALLYARD_KEY", "cy_eve")
    status, out, err = callyard("connect", "cursor", "http://a/mcp", "--header", "X-Team: red")

    assert (status, "cy_eve" in out + err) == (0, False)
    assert entry(mcp)["env"] == {"CALLYARD_KEY": "cy_eve"}
    assert entry(mcp)["args"] == ["-m", "callyard", "serve", "http://a/mcp", "--header", "X-Team: red"]
    assert callyard("connect", "cursor")[0] == 0
    assert "env" not in entry(mcp)
    assert callyard("connect", "cursor", "--key", "cy_ada")[0] == 2


def test_the_lines_that_differ_are_shown_and_one_around_them(mcp: Path, callyard: Run) -> None:
    mcp.write_text('{\n  "mcpServers": {\n    "a": {"args": ["--token",\n      "hunter2"]}\n  },\n  "z": 1\n}\n')

    _, out, _ = callyard("connect", "cursor", "--url", "http://a/mcp")
    _, undone, _ = callyard("connect", "cursor", "--undo")

    assert out.splitlines()[0] == f"{mcp}, line 4"
    assert out.count("\n+") == 4
    assert out.count("\n-") == 1
    assert undone.count("\n-") == 4
    assert undone.count("\n+") == 1


def test_a_new_file_is_shown_whole(mcp: Path, callyard: Run) -> None:
    mcp.unlink()

    _, out, _ = callyard("connect", "cursor", "--url", "http://a/mcp", "--dry-run")

    assert [line[:1] for line in out.splitlines()[1:]] == ["+"] * 7


def test_without_a_target_there_must_be_a_file(mcp: Path, callyard: Run) -> None:
    Path("callyard.toml").unlink()

    status, _, err = callyard("connect", "cursor")

    assert status == 2
    assert "callyard import" in err


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        ("goose", ".config/goose/config.yaml", None),
        (
            "goose",
            ".config/goose/config.yaml",
            "GOOSE_MODE: auto\nextensions:\n    # mine\n    a:\n        type: builtin\nz: 1\n",
        ),
        ("continue", ".continue/config.yaml", "name: x\nmcpServers:\n- name: a\n  command: b\n"),
    ],
)
def test_a_yaml_entry_is_shown_ready_to_be_pasted_and_no_file_is_written(
    mcp: Path, callyard: Run, client: str, file: str, text: str | None
) -> None:
    path = mcp.parent.parent / file
    if text is not None:
        path.parent.mkdir(parents=True)
        path.write_text(text)
    status, out, err = callyard("connect", client, "--url", "http://127.0.0.1:8321/mcp")
    place = re.search(r"below line (\d+)", err)
    lines = (text or "").splitlines()
    lines[int(place[1]) if place else 0 : 0] = out.splitlines()
    document = yaml.safe_load("\n".join(lines))

    assert (status, "is YAML" in err, path.is_file()) == (1, True, text is not None)
    assert text is None or path.read_text() == text
    if client == "goose":
        assert document["extensions"]["callyard"]["uri"] == "http://127.0.0.1:8321/mcp"
        assert list(document["extensions"])[1:] == (["a"] if text else [])
    else:
        assert [server["name"] for server in document["mcpServers"]] == ["callyard", "a"]


def test_a_yaml_file_that_cannot_be_read_is_reported_in_one_sentence(mcp: Path, callyard: Run) -> None:
    path = mcp.parent.parent / ".continue" / "config.yaml"
    path.parent.mkdir()
    path.write_bytes(b"\xff")

    status, out, err = callyard("connect", "continue")

    assert (status, out, "UTF-8" in err) == (2, "", True)


def test_a_concurrent_write_of_the_client_is_not_lost(
    mcp: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slowly(before: str, after: str) -> tuple[int, list[str]]:
        mcp.write_text("{}")
        return 1, []

    monkeypatch.setattr("callyard.cli.clients.excerpt", slowly)

    status, _, err = callyard("connect", "cursor")

    assert status == 1
    assert "changed by another program" in err
    assert mcp.read_text() == "{}"
    assert list(mcp.parent.iterdir()) == [mcp]


def test_a_file_that_cannot_be_written_is_named_in_connect(
    mcp: Path, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes, *, mode: int = 0) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("callyard._internal.files.write_atomically", full)

    status, _, err = callyard("connect", "cursor")

    assert status == 1
    assert "No space left" in err
    assert mcp.read_text() == WRITTEN
