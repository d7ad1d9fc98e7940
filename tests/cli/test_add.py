"""`callyard add` and `callyard remove`: upstreams of 'callyard.toml' by hand."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callyard._internal.project import find_project, project_dir

Run = Callable[..., tuple[int, str, str]]

WRITTEN = '# Mine.\nstate_dir = "state"\n'


@pytest.fixture(autouse=True)
def file(write: Callable[..., Path]) -> Path:
    """Write a file with a comment and a setting into the folder of the test."""
    return write(WRITTEN, "callyard.toml")


def upstreams(path: str = "callyard.toml") -> dict[str, Any]:
    return tomllib.loads(Path(path).read_text()).get("upstreams", {})


def test_a_command_is_added_with_options_of_its_own(callyard: Run, file: Path) -> None:
    status, out, err = callyard("add", "git", "--env", "A=b=c", "--", "npx", "-y", "git", "--json", "--", "x")

    assert (status, out) == (0, "git\tnpx -y git --json -- x\n")
    assert upstreams() == {"git": {"command": "npx", "args": ["-y", "git", "--json", "--", "x"], "env": {"A": "b=c"}}}
    assert file.read_text().startswith(WRITTEN)
    assert "'callyard serve'" in err


def test_a_command_may_be_a_single_word(callyard: Run) -> None:
    callyard("add", "git", "--", "server")

    assert upstreams() == {"git": {"command": "server"}}


def test_an_address_is_added_with_its_headers(callyard: Run) -> None:
    status, _, err = callyard(
        "add", "web", "--url", "https://a/mcp", "--header", "Authorization: Bearer ${NOT_SET_HERE}", "--header", "X:y:z"
    )

    assert status == 0
    assert upstreams() == {
        "web": {"url": "https://a/mcp", "headers": {"Authorization": "Bearer ${NOT_SET_HERE}", "X": "y:z"}}
    }
    assert "Set the variable 'NOT_SET_HERE'" in err


def test_a_new_file_is_made_where_there_is_none(callyard: Run) -> None:
    assert callyard("add", "web", "--url", "https://a", "--config", "new.toml", "--quiet") == (
        0,
        "web\thttps://a\n",
        "",
    )
    assert upstreams("new.toml") == {"web": {"url": "https://a"}}


def test_a_secret_goes_to_a_file_and_goes_when_the_upstream_does(callyard: Run, file: Path) -> None:
    _, out, err = callyard("add", "git", "--env", "TOKEN=hunter2", "--", "npx")
    secret = project_dir(Path("state").absolute(), find_project(file)) / "secrets" / "git.TOKEN"
    assert secret.read_text() == "hunter2"
    assert str(secret) in err
    assert "hunter2" not in out + err + file.read_text()

    callyard("remove", "git")

    assert not secret.exists()
    assert file.read_text() == WRITTEN


def test_a_secret_that_is_kept_makes_the_file_private(callyard: Run, file: Path) -> None:
    _, _, err = callyard("add", "git", "--env", "TOKEN=hunter2", "--secrets", "keep", "--", "npx")

    assert "contains secrets" in err
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_secret_of_somebody_else_stays(callyard: Run) -> None:
    Path("mine").write_text("x")
    callyard("add", "git", "--env", "TOKEN=secretref:file:mine", "--", "npx")

    callyard("remove", "git")

    assert Path("mine").exists()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["git"], "either a command"),
        (["git", "--url", "https://a", "--", "npx"], "either a command"),
        (["git", "--"], "either a command"),
        (["git", "--url", "https://a", "--env", "A=b"], "'--env' goes with a command"),
        (["git", "--header", "A:b", "--", "npx"], "'--header' goes with '--url'"),
        (["git", "--env", "hunter2", "--", "npx"], "'NAME=VALUE'"),
        (["git", "--env", "=hunter2", "--", "npx"], "'NAME=VALUE'"),
        (["Git Hub", "--", "npx"], "'git-hub'"),
        (["metatools", "--", "npx"], "is reserved"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(callyard: Run, file: Path, arguments: list[str], why: str) -> None:
    status, out, err = callyard("add", *arguments)

    assert (status, out) == (2, "")
    assert why in err
    assert "hunter2" not in err
    assert file.read_text() == WRITTEN


@pytest.mark.parametrize("name", ["a-b", "a_b"])
def test_a_name_that_is_taken_is_refused(callyard: Run, name: str) -> None:
    callyard("add", "a-b", "--", "npx")

    status, _, err = callyard("add", name, "--", "uvx")

    assert status == 2
    assert "'callyard remove a-b'" in err


def test_a_file_that_has_all_upstreams_in_one_line_is_left_to_its_author(callyard: Run, file: Path) -> None:
    file.write_text('upstreams = {a = {command = "x"}}\n')

    assert "cannot be changed" in callyard("add", "b", "--", "npx")[2]
    assert "by hand" in callyard("remove", "a")[2]
    assert file.read_text() == 'upstreams = {a = {command = "x"}}\n'


def test_an_upstream_goes_and_comments_elsewhere_stay(callyard: Run, file: Path) -> None:
    file.write_text(
        '# Top.\n[upstreams.a]\ncommand = "x"\n[upstreams.a.env]\nB = "c"\n\n# About b.\n[upstreams.b]\ncommand = "y"\n'
    )

    status, out, err = callyard("remove", "a")

    assert (status, out) == (0, "a\n")
    assert "'a' is no longer" in err
    assert file.read_text() == '# Top.\n# About b.\n[upstreams.b]\ncommand = "y"\n'


def test_an_upstream_that_is_not_there_cannot_be_removed(callyard: Run) -> None:
    callyard("add", "github", "--", "npx")

    status, _, err = callyard("remove", "githib", "--quiet")

    assert status == 2
    assert "Did you mean 'github'?" in err
    assert callyard("remove", "github", "--quiet") == (0, "github\n", "")


def test_projects_side_by_side_have_secrets_of_their_own(
    callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "shared"))
    for project in ("a", "b"):
        (tmp_path / project).mkdir()
        monkeypatch.chdir(tmp_path / project)
        callyard("add", "gh", "--env", f"TOKEN=secret-of-{project}", "--", "npx")

    found = sorted(path.read_text() for path in (tmp_path / "shared").rglob("gh.TOKEN"))
    assert found == ["secret-of-a", "secret-of-b"]

    assert callyard("remove", "gh")[0] == 0

    assert [path.read_text() for path in (tmp_path / "shared").rglob("gh.TOKEN")] == ["secret-of-a"]


def test_another_secret_is_never_overwritten(callyard: Run, file: Path) -> None:
    callyard("add", "git", "--env", "TOKEN=first", "--", "npx")
    before = file.read_text()
    file.write_text(WRITTEN)  # somebody removes the table by hand, and may want it back
    callyard("add", "git", "--env", "TOKEN=second", "--", "npx")

    folder = project_dir(Path("state").absolute(), find_project(file)) / "secrets"
    assert sorted(path.read_text() for path in folder.iterdir()) == ["first", "second"]
    assert upstreams()["git"] != tomllib.loads(before)["upstreams"]["git"]

    file.write_text(WRITTEN)
    callyard("add", "git", "--env", "TOKEN=second", "--", "npx")
    assert len(list(folder.iterdir())) == 2


def test_a_secret_below_the_home_directory_is_referred_to_without_it(
    callyard: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    callyard("add", "git", "--env", "TOKEN=hunter2", "--", "npx")

    assert str(tmp_path) not in file.read_text()
    assert upstreams()["git"]["env"]["TOKEN"].startswith("${secretref:file:~/state/projects/")
    callyard("remove", "git")
    assert not list((tmp_path / "state").rglob("git.TOKEN"))


def test_a_state_directory_that_everybody_can_change_is_not_used(callyard: Run) -> None:
    Path("state").mkdir(mode=0o777)
    Path("state").chmod(0o777)
    status, _, err = callyard("add", "git", "--env", "TOKEN=hunter2", "--", "npx")

    assert (status, "Everybody can write" in err) == (2, True)
    assert upstreams() == {}
