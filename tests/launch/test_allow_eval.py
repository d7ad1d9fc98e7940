from pathlib import Path

import pytest

from callyard.cli import main

YARD = """
from callyard import Yard, tool

@tool(operation="eval")
async def evaluate(code: str) -> str:
    \"\"\"Evaluate.\"\"\"
    return code

async def numbers() -> list[int]:
    \"\"\"List many numbers.\"\"\"
    return list(range(20_000))

yard = Yard(tools=[evaluate, numbers])
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


def test_a_large_result_is_printed_whole_because_a_handle_would_end_with_the_command(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["call", target, "numbers", "--json"]) == 0
    assert "19999" in capsys.readouterr().out
