import json
from pathlib import Path

import pytest

from callyard.cli import main

YARD = """
from callyard import Yard, tool

@tool(operation="eval")
async def evaluate(code: str) -> str:
    \"\"\"Evaluate.\"\"\"
    return code

@tool(operation="eval", eval_target="page")
async def in_page(code: str) -> str:
    \"\"\"Evaluate in the page.\"\"\"
    return code

async def numbers() -> list[int]:
    \"\"\"List many numbers.\"\"\"
    return list(range(20_000))

yard = Yard(tools=[evaluate, in_page, numbers])
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    path = tmp_path / "yard.py"
    path.write_text(YARD)
    return str(path)


def test_a_tool_that_runs_code_is_there_only_with_the_flag(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["call", target, "evaluate", "code=1 + 1"]) == 15
    assert "--allow-eval" in capsys.readouterr().out
    assert main(["call", target, "evaluate", "code=1 + 1", "--allow-eval"]) == 0
    assert main(["call", target, "evaluate", "code=import os", "--allow-eval"]) == 11


def test_the_flag_with_targets_allows_code_there_alone_whatever_its_place(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["call", "--allow-eval=page", target], ["call", target, "--allow-eval=other,page"]):
        assert main([*arguments, "in_page", "code=1"]) == 0
        assert main([*arguments, "evaluate", "code=1"]) == 15
    assert main(["call", target, "in_page", "code=1"]) == 15
    assert "--allow-eval=page" in capsys.readouterr().out
    assert main(["call", target, "evaluate", "code=1", "--allow-eval=true"]) == 0


def test_the_flag_adds_to_the_targets_of_the_settings(
    target: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CALLYARD_ALLOW_EVAL", "page")

    assert main(["call", target, "in_page", "code=1"]) == 0
    assert main(["call", target, "in_page", "code=1", "--allow-eval=other"]) == 0
    assert main(["config", target, "--allow-eval=other", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["allow_eval"]["value"] == ["other"]


def test_a_command_without_the_switch_refuses_its_value(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["upstreams", target, "--allow-eval=page"]) == 2
    assert "--allow-eval" in capsys.readouterr().err


def test_a_large_result_is_printed_whole_because_a_handle_would_end_with_the_command(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", target, "numbers", "--json"]) == 0
    assert "19999" in capsys.readouterr().out
