"""Targets: how a yard is named, and what is said where there is none."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
Write = Callable[..., Path]

ONE = """
from callyard import Yard

def ping() -> str:
    '''Answer.'''
    return __name__

yard = Yard(tools=[ping])
"""
TWO = ONE + "\nother = Yard('other', tools=[ping])\nagain = other\n"


def test_a_file_with_one_yard_is_a_target(write: Write, callyard: Run) -> None:
    path = write(ONE)

    assert callyard("list", "app.py")[0] == 0
    assert callyard("list", str(path))[0] == 0


def test_an_attribute_of_a_file_is_a_target(write: Write, callyard: Run) -> None:
    write(TWO)

    status, out, _ = callyard("list", "app.py:other")

    assert (status, out) == (0, "ping\tcommand\tother\tAnswer.\n")


def test_an_attribute_of_a_module_in_this_folder_is_a_target(
    write: Write, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(ONE, "a_module_of_this_test.py")
    monkeypatch.delitem(sys.modules, "a_module_of_this_test", raising=False)

    assert callyard("list", "a_module_of_this_test:yard")[0] == 0


def test_a_dotted_attribute_is_a_target(write: Write, callyard: Run) -> None:
    write(f"{ONE}\nclass Holder:\n    inner = Yard('inner', tools=[ping])\n")

    assert callyard("list", "app.py:Holder.inner")[1] == "ping\tcommand\tinner\tAnswer.\n"


def test_a_module_beside_a_file_can_be_imported(
    write: Write, callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "inner").mkdir()
    write("TEXT = 'beside'\n", "inner/lies_beside.py")
    write("import lies_beside\nfrom callyard import Yard\nyard = Yard(lies_beside.TEXT)\n", "inner/app.py")
    monkeypatch.delitem(sys.modules, "lies_beside", raising=False)

    assert callyard("manifest", "inner/app.py")[0] == 0


def test_a_file_named_like_a_module_does_not_replace_it(write: Write, callyard: Run) -> None:
    write(ONE, "json.py")
    before = sys.modules["json"]

    status, out, _ = callyard("call", "json.py", "ping")

    assert status == 0
    assert out.splitlines()[-1] != "json"
    assert sys.modules["json"] is before


def test_several_yards_in_a_file_are_named(write: Write, callyard: Run) -> None:
    write(TWO)

    status, out, err = callyard("list", "app.py")

    assert (status, out) == (2, "")
    assert "'yard', 'other'." in err
    assert "'app.py:yard'" in err
    assert "again" not in err


@pytest.mark.parametrize(
    ("target", "named"),
    [
        ("app.py", "'app.py'"),
        ("missing.py", "'missing.py'"),
        ("missing.py:yard", "'missing.py'"),
        ("no_such_module:yard", "'no_such_module'"),
        ("no_such_module.inner:yard", "'no_such_module'"),
        ("app.py:nothing", "'nothing'"),
        ("app.py:nmber", "'number'"),
        ("app.py:number", "'int'"),
        ("app", "'app.py'"),
        ("elsewhere", "'elsewhere'"),
        ("app:", "'app:'"),
        (":yard", "':yard'"),
        ("", "TARGET"),
    ],
)
def test_a_target_that_is_none_is_one_line_and_status_2(target: str, named: str, write: Write, callyard: Run) -> None:
    write("number = 5\n")

    status, out, err = callyard("list", target)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert named in err


@pytest.mark.parametrize(
    ("text", "line", "kind"),
    [
        ("x = 1\ny = (\n", 2, "SyntaxError"),
        ("x = 1\n\n1 / 0\n", 3, "ZeroDivisionError"),
        ("import no_such_module\n", 1, "ModuleNotFoundError"),
        ("from callyard import Yard\nyard = Yard(packs=['nothing'])\n", 2, "PackError"),
        ("import sys\n\n\nsys.exit(3)\n", 4, "SystemExit"),
        ("import json\n\njson.loads('{')\n", 3, "JSONDecodeError"),
        ("raise ExceptionGroup('g', [ValueError('first.'), KeyError('second')])\n", 1, "ValueError"),
        ("raise ValueError\n", 1, "ValueError"),
    ],
)
def test_a_module_that_fails_is_named_with_file_line_and_cause(
    text: str, line: int, kind: str, write: Write, callyard: Run
) -> None:
    write(text)

    status, out, err = callyard("list", "app.py")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert kind in err
    assert f"'app.py', line {line}" in err
    assert err.endswith(".\n")
    assert ".." not in err


def test_the_place_is_that_of_the_module_which_failed(write: Write, callyard: Run) -> None:
    write("x = 1\n\nraise ValueError('here')\n", "fails_beside.py")
    write("import fails_beside\n")

    assert "'fails_beside.py', line 3: here." in callyard("list", "app.py")[2]


def test_the_place_of_a_file_elsewhere_is_its_whole_path(
    write: Write, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write("1 / 0\n")
    monkeypatch.chdir("/usr")

    assert f"'{path}', line 1" in callyard("list", str(path))[2]


def test_a_module_inside_one_that_is_no_package_is_named(write: Write, callyard: Run) -> None:
    write(ONE, "no_package.py")

    status, _, err = callyard("list", "no_package.inner:yard")

    assert status == 2
    assert "'no_package.inner'" in err


def test_a_module_that_failed_is_not_left_behind(write: Write, callyard: Run) -> None:
    write("1 / 0\n", "fails_when_loaded.py")

    callyard("list", "fails_when_loaded.py")

    assert "fails_when_loaded" not in sys.modules


def test_the_traceback_is_shown_to_those_who_ask_for_everything(write: Write, callyard: Run) -> None:
    write("1 / 0\n")

    assert "Traceback" in callyard("-vv", "list", "app.py")[2]


def test_a_tool_that_cannot_be_published_is_said_in_its_own_sentence(write: Write, callyard: Run) -> None:
    write("from callyard import Yard\ndef Wrong() -> None:\n    '''Be wrong.'''\nyard = Yard(tools=[Wrong])\n")

    status, out, err = callyard("list", "app.py")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "'Wrong'" in err


OPENS = """
from contextlib import asynccontextmanager
from callyard import Yard

def ping() -> int:
    '''Answer.'''
    return 1

@asynccontextmanager
async def lifespan(_):
    {before}
    yield
    {after}

yard = Yard(tools=[ping], lifespan=lifespan)
"""


def test_a_yard_that_cannot_be_opened_is_said_with_its_place(write: Write, callyard: Run) -> None:
    write(OPENS.format(before="raise ConnectionError('no database')", after="pass"))

    status, out, err = callyard("call", "app.py", "ping")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "ConnectionError in 'app.py', line 11: no database." in err


def test_a_question_of_somebody_ends_as_a_question(write: Write, callyard: Run) -> None:
    write(OPENS.format(before="raise ConnectionError('no database?')", after="pass"))

    assert callyard("call", "app.py", "ping")[2].endswith("line 11: no database?\n")


def test_a_yard_that_does_not_close_well_has_answered_before(write: Write, callyard: Run) -> None:
    write(OPENS.format(before="pass", after="raise ConnectionError('gone')"))

    status, out, err = callyard("call", "app.py", "ping", "--json")

    assert status == 1
    assert '"data":1' in out
    assert "'app.py', line 13: gone." in err


def test_the_output_of_a_module_does_not_mix_with_data(write: Write, callyard: Run) -> None:
    write(f"print('loading')\n{ONE}")

    assert callyard("list", "app.py") == (0, "ping\tcommand\tyard\tAnswer.\n", "loading\n")
