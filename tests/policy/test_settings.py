from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from table_tests import every_row

from callyard import BudgetSettings, QueueSettings, RateSettings, Yard, tool
from callyard.cli.terminal import Terminal
from callyard.config import ConfigError, read_config
from callyard.launch.build import apply_settings
from callyard.launch.errors import LaunchError
from callyard.model.elicitation import OWN_REASONS, RefusalReason

FILE = """
[queue]
calls = 4
sources = { slow = 1 }
background = ["report_*"]

[rates]
per_caller = 60
tools = { add = 30 }
burst = 1

[budgets]
caller_calls = 100
"""


@tool(operation="query")
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@every_row(
    "make",
    [
        lambda: QueueSettings(calls=-1),
        lambda: QueueSettings(calls=True),
        lambda: QueueSettings(per_tool=1.5),  # pyright: ignore[reportArgumentType] - what a file could say
        lambda: QueueSettings(tools={"a": -1}),
        lambda: QueueSettings(background="report_*"),  # pyright: ignore[reportArgumentType] - the same
        lambda: QueueSettings(background=[1]),  # pyright: ignore[reportArgumentType] - the same
        lambda: RateSettings(per_caller=float("nan")),
        lambda: RateSettings(per_caller=float("inf")),
        lambda: RateSettings(calls="60"),  # pyright: ignore[reportArgumentType] - the same
        lambda: RateSettings(burst=0),
        lambda: BudgetSettings(caller_calls=10**15),
        lambda: BudgetSettings(period=0),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(make: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="setting"):
        make()


async def test_a_file_and_the_environment_set_the_limits_of_calls(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(FILE)
    yard = Yard(tools=[add], queue=QueueSettings(per_tool=3))
    environment = {"CALLYARD_QUEUE_WAITING": "7", "CALLYARD_RATES_TOOLS": '{"add": 20}'}
    apply_settings(yard, read_config(path=str(path), environment=environment), Terminal(), serves=True)
    async with yard:
        shown = yard.settings()
        codes = [
            answer.error and answer.error.code
            for answer in [await yard.call("add", {"a": 1, "b": 2}) for _ in range(2)]
        ]

    assert shown["queue.calls"] == {"value": 4, "from": f"file {path}"}
    assert shown["queue.per_tool"] == {"value": 3, "from": "code"}
    assert shown["queue.waiting"] == {"value": 7, "from": "environment CALLYARD_QUEUE_WAITING"}
    assert shown["rates.tools"]["value"] == {"add": 20}
    assert shown["budgets.caller_tokens"] == {"value": 0, "from": "default"}
    assert codes == [None, "rate_limited"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[queue]\ncals = 1", "'calls'"),
        ("[queue]\ncalls = '1'", "'queue.calls'"),
        ("[rates]\nburst = 0", "'burst'"),
        ("[budgets]\ncaller_calls = -1", "'caller_calls'"),
        ("[quue]\ncalls = 1", "'queue'"),
    ],
)
def test_a_wrong_setting_in_a_file_is_refused_and_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(text)
    with pytest.raises((ConfigError, LaunchError), match=said):
        apply_settings(Yard(), read_config(path=str(path), environment={}), Terminal(), serves=True)


async def test_a_command_that_calls_a_tool_has_no_limits_of_calls(tmp_path: Path) -> None:
    path = tmp_path / "callyard.toml"
    path.write_text(FILE)
    yard = Yard(tools=[add])
    apply_settings(yard, read_config(path=str(path), environment={}), Terminal())
    async with yard:
        assert not yard.dispatcher.admission.limiters
        assert yard.settings()["queue.calls"] == {"value": 0, "from": "default"}


def test_no_tool_need_declare_the_reasons_of_refusals() -> None:
    assert set(get_args(RefusalReason)) <= OWN_REASONS
