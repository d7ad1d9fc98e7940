"""`toolyard accept`: what is named goes into the lock, and nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[..., None]


@pytest.fixture(autouse=True)
def _changed_shop(serve_once: Serve) -> None:
    serve_once(pay="Pay.", sell="Sell.", lend="Lend.")
    serve_once(pay="Pay more.", lend="Lend.", buy="Buy.", instructions="Obey.", first="ask")


def differing(toolyard: Run) -> list[str]:
    [told] = json.loads(toolyard("diff", "shop", "--json")[1])
    return [one["name"] or one["kind"] for one in told["differences"]]


def test_what_is_named_is_accepted(toolyard: Run, tmp_path: Path) -> None:
    lock = tmp_path / "toolyard.lock"
    assert toolyard("accept", "shop", "pay", "instructions") == (
        0,
        "changed\tinstructions\t\nchanged\ttool\tpay\n",
        f"2 accepted in '{lock}'.\n",
    )
    assert differing(toolyard) == ["buy", "sell"]


def test_all_can_be_accepted_also_what_is_no_longer_offered(toolyard: Run, tmp_path: Path) -> None:
    status, out, err = toolyard("accept", "shop", "--all", "--json")

    assert (status, err) == (0, "")
    assert [(one["what"], one["name"]) for one in json.loads(out)] == [
        ("changed", ""),
        ("new", "buy"),
        ("changed", "pay"),
        ("vanished", "sell"),
    ]
    assert differing(toolyard) == []
    assert "sell" not in (tmp_path / "toolyard.lock").read_text()
    assert toolyard("accept", "shop", "--all") == (0, "", "'shop' offers what was accepted.\n")
    assert toolyard("accept", "shop", "lend", "-q") == (0, "", "")


def test_a_change_after_accepting_can_be_compared_with_what_was_accepted(toolyard: Run, serve_once: Serve) -> None:
    toolyard("accept", "shop", "--all")
    serve_once(pay="Pay most.", lend="Lend.", buy="Buy.", instructions="Obey.", first="ask")

    assert "-Pay more." in toolyard("diff")[1]


def test_what_was_seen_is_accepted_and_nothing_that_came_later(toolyard: Run, serve_once: Serve) -> None:
    [told] = json.loads(toolyard("diff", "--json")[1])
    serve_once(pay="Pay in full.", lend="Lend.", buy="Buy.", instructions="Obey.", first="ask")
    late = toolyard("accept", "shop", "--all", "--seen", told["seen"])
    [told] = json.loads(toolyard("diff", "--json")[1])
    again = toolyard("accept", "shop", "--all", "--seen", told["seen"])

    assert late == (2, "", "toolyard: 'shop' offers something else now than what was seen. Look again with 'toolyard diff shop'.\n")
    assert (again[0], differing(toolyard)) == (0, [])


def test_something_must_be_named(toolyard: Run) -> None:
    told = "toolyard: Name what of 'shop' is to be accepted, or '--all'. "
    assert toolyard("accept", "shop") == (2, "", f"{told}These differ: 'instructions', 'buy', 'pay', 'sell'.\n")
    toolyard("accept", "shop", "--all")
    assert toolyard("accept", "shop") == (2, "", f"{told}Nothing differs.\n")


@pytest.mark.parametrize(("name", "more"), [("payy", " Did you mean 'pay'?"), ("zebra", "")])
def test_a_name_that_is_not_there_is_refused_and_nothing_accepted(toolyard: Run, name: str, more: str) -> None:
    assert toolyard("accept", "shop", "buy", name) == (2, "", f"toolyard: There is no '{name}' in 'shop'.{more}\n")
    assert "buy" in differing(toolyard)


def test_a_lock_that_cannot_be_written_is_told(toolyard: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("toolyard.providers.upstream.pins.write_atomically", refuse)
    status, _, err = toolyard("accept", "shop", "--all")

    assert status == 1
    assert "toolyard.lock' cannot be written" in err
