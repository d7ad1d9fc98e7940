"""`toolyard connect`: Toolyard in a client's file, and out again."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

Run = Callable[..., tuple[int, str, str]]

WRITTEN = '{\n  // mine\n  "mcpServers": {\n    "a": {"command": "x", "env": {"TOKEN": "hunter2"}}\n  }\n}\n'


@pytest.fixture
def mcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return Cursor's file in a home; the test runs in a folder with a 'toolyard.toml'."""
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("TOOLYARD_CONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    project = tmp_path / "project"
    project.mkdir()
    monkeypatch.chdir(project)
    (project / "toolyard.toml").touch()
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    path.write_text(WRITTEN)
    return path


def entry(path: Path, name: str = "toolyard") -> dict[str, object]:
    text = "".join(line for line in path.read_text().splitlines() if "//" not in line or "://" in line)
    return json.loads(text)["mcpServers"][name]


def test_the_change_is_shown_made_and_can_be_undone(mcp: Path, toolyard: Run) -> None:
    status, out, err = toolyard("connect", "cursor")

    assert status == 0
    assert '+    "toolyard": {' in out
    assert "hunter2" not in out + err
    assert entry(mcp) == {"command": sys.executable, "args": ["-m", "toolyard", "serve", str(Path.cwd() / "toolyard.toml")]}
    assert "// mine" in mcp.read_text()
    (backup,) = mcp.parent.glob("mcp.json.toolyard-backup-*")
    assert str(backup) in err
    assert backup.read_text() == WRITTEN

    status, out, err = toolyard("connect", "cursor", "--undo")

    assert status == 0
    assert '-    "toolyard": {' in out
    assert mcp.read_text() == WRITTEN
    assert not backup.exists()


def test_a_dry_run_shows_the_change_alone(mcp: Path, toolyard: Run) -> None:
    status, out, err = toolyard("connect", "cursor", "--dry-run")

    assert status == 0
    assert '+    "toolyard": {' in out
    assert "Nothing was written" in err
    assert mcp.read_text() == WRITTEN


def test_a_second_time_changes_nothing(mcp: Path, toolyard: Run) -> None:
    toolyard("connect", "cursor")
    status, out, err = toolyard("connect", "cursor")

    assert (status, out) == (0, "")
    assert "already" in err
    assert len(list(mcp.parent.iterdir())) == 2


def test_an_address_takes_the_place_of_a_program(mcp: Path, toolyard: Run) -> None:
    toolyard("connect", "cursor", "--url", "http://127.0.0.1:8321/mcp", "--name", "yard", "--quiet")

    assert entry(mcp, "yard") == {"url": "http://127.0.0.1:8321/mcp"}


def test_the_file_of_the_folder_can_be_written_instead(mcp: Path, toolyard: Run) -> None:
    toolyard("connect", "claude-code", "--project")

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
def test_a_target_is_written_so_that_it_is_found_from_anywhere(mcp: Path, toolyard: Run, target: str, served: str) -> None:
    Path("app.py").touch()
    _, _, err = toolyard("connect", "cursor", target)

    assert entry(mcp)["args"] == ["-m", "toolyard", "serve", served.format(here=Path.cwd())]
    assert ("is a module" in err) is (target == "package.module:yard")
    assert "is a module" not in toolyard("connect", "cursor", target, "--quiet")[2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["cursr"], "Did you mean 'cursor'?"),
        (["windsurf", "--project"], "Leave '--project' out"),
        (["cursor", "missing.py"], "no file 'missing.py'"),
        (["cursor", "x.py", "--url", "http://a"], "either"),
        (["claude-desktop", "--url", "http://a"], "toolyard connect claude-desktop http://a"),
        (["cursor", "--name", "a"], "another server 'a'"),
        (["cursor", "--undo"], "nothing to undo"),
        (["goose", "--undo"], "by hand"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_sentence(mcp: Path, toolyard: Run, arguments: list[str], why: str) -> None:
    status, out, err = toolyard("connect", *arguments)

    assert (status, out) == (2, "")
    assert why in err
    assert mcp.read_text() == WRITTEN


def test_the_file_that_the_environment_names_is_the_usual_one(mcp: Path, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("other.toml").touch()
    monkeypatch.setenv("TOOLYARD_CONFIG", "other.toml")

    toolyard("connect", "cursor")

    assert entry(mcp)["args"] == ["-m", "toolyard", "serve", str(Path.cwd() / "other.toml")]


def test_the_lines_that_differ_are_shown_and_one_around_them(mcp: Path, toolyard: Run) -> None:
    mcp.write_text('{\n  "mcpServers": {\n    "a": {"args": ["--token",\n      "hunter2"]}\n  },\n  "z": 1\n}\n')

    _, out, _ = toolyard("connect", "cursor", "--url", "http://a/mcp")
    _, undone, _ = toolyard("connect", "cursor", "--undo")

    assert out.splitlines()[0] == f"{mcp}, line 4"
    assert out.count("\n+") == 4
    assert out.count("\n-") == 1
    assert undone.count("\n-") == 4
    assert undone.count("\n+") == 1


def test_a_new_file_is_shown_whole(mcp: Path, toolyard: Run) -> None:
    mcp.unlink()

    _, out, _ = toolyard("connect", "cursor", "--url", "http://a/mcp", "--dry-run")

    assert [line[:1] for line in out.splitlines()[1:]] == ["+"] * 7


def test_without_a_target_there_must_be_a_file(mcp: Path, toolyard: Run) -> None:
    Path("toolyard.toml").unlink()

    status, _, err = toolyard("connect", "cursor")

    assert status == 2
    assert "toolyard import" in err


@pytest.mark.parametrize(
    ("client", "file", "text"),
    [
        ("goose", ".config/goose/config.yaml", None),
        ("goose", ".config/goose/config.yaml", "GOOSE_MODE: auto\nextensions:\n    # mine\n    a:\n        type: builtin\nz: 1\n"),
        ("continue", ".continue/config.yaml", "name: x\nmcpServers:\n- name: a\n  command: b\n"),
    ],
)
def test_what_yaml_needs_is_shown_as_it_can_be_pasted_and_nothing_is_written(
    mcp: Path, toolyard: Run, client: str, file: str, text: str | None
) -> None:
    path = mcp.parent.parent / file
    if text is not None:
        path.parent.mkdir(parents=True)
        path.write_text(text)
    status, out, err = toolyard("connect", client, "--url", "http://127.0.0.1:8321/mcp")
    place = re.search(r"below line (\d+)", err)
    lines = (text or "").splitlines()
    lines[int(place[1]) if place else 0 : 0] = out.splitlines()
    document = yaml.safe_load("\n".join(lines))

    assert (status, "is YAML" in err, path.is_file()) == (1, True, text is not None)
    assert text is None or path.read_text() == text
    if client == "goose":
        assert document["extensions"]["toolyard"]["uri"] == "http://127.0.0.1:8321/mcp"
        assert list(document["extensions"])[1:] == (["a"] if text else [])
    else:
        assert [server["name"] for server in document["mcpServers"]] == ["toolyard", "a"]


def test_a_file_in_yaml_that_cannot_be_read_is_told_in_one_sentence(mcp: Path, toolyard: Run) -> None:
    path = mcp.parent.parent / ".continue" / "config.yaml"
    path.parent.mkdir()
    path.write_bytes(b"\xff")

    status, out, err = toolyard("connect", "continue")

    assert (status, out, "UTF-8" in err) == (2, "", True)


def test_what_a_client_writes_in_the_same_moment_is_not_lost(mcp: Path, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(before: str, after: str) -> tuple[int, list[str]]:
        mcp.write_text("{}")
        return 1, []

    monkeypatch.setattr("toolyard.cli.clients.excerpt", slowly)

    status, _, err = toolyard("connect", "cursor")

    assert status == 1
    assert "changed by somebody else" in err
    assert mcp.read_text() == "{}"
    assert list(mcp.parent.iterdir()) == [mcp]


def test_a_file_that_cannot_be_written_is_named(mcp: Path, toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, content: bytes, *, mode: int = 0) -> None:
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr("toolyard._internal.files.write_atomically", full)

    status, _, err = toolyard("connect", "cursor")

    assert status == 1
    assert "No space left" in err
    assert mcp.read_text() == WRITTEN
