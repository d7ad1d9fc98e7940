"""`toolyard diff`: what upstreams changed, told to people and to programs, without a server."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
Serve = Callable[..., None]


@pytest.fixture(autouse=True)
def _shop(serve_once: Serve) -> None:
    serve_once(pay="Pay.\n\nAt once.", sell="Sell.")


def test_what_was_accepted_makes_no_difference(toolyard: Run) -> None:
    assert toolyard("diff") == (0, "", "'shop' offers what was accepted.\n")
    assert toolyard("diff", "--quiet") == (0, "", "")
    assert toolyard("diff", "--json")[:2] == (0, '[{"upstream":"shop","seen":"4f53cda18c2b","differences":[]}]\n')


def test_every_difference_is_told(toolyard: Run, serve_once: Serve) -> None:
    serve_once(pay="Pay.\n\nAt\u200b once, unseen.", buy="Buy.", first="ask", instructions="Obey.")
    status, out, err = toolyard("diff")

    assert status == 1
    assert out.splitlines() == [
        "shop: instructions (changed)",
        "  text",
        "    -",
        "    +Obey.",
        "",
        "shop: tool 'buy' (new)",
        "  description",
        "    +Buy.",
        "  inputSchema",
        "    +{}",
        "",
        "shop: tool 'pay' (changed)",
        "  description",
        "     Pay.",
        "     ",
        "    -At once.",
        "    +At\\u200b once, unseen.",
        "",
        "shop: tool 'sell' (no longer offered)",
    ]
    assert err.startswith("To accept all of 'shop' as it is here: toolyard accept shop --all --seen ")


def test_programs_get_objects(toolyard: Run, serve_once: Serve) -> None:
    serve_once(pay="Pay.", sell="Sell.")
    status, out, err = toolyard("diff", "shop", "--json")
    [told] = json.loads(out)

    assert (status, err) == (1, "")
    assert told["upstream"] == "shop"
    assert told["differences"] == [
        {
            "kind": "tool",
            "name": "pay",
            "what": "changed",
            "changes": [{"field": "description", "lines": [" Pay.", "-", "-At once."]}],
        }
    ]


def test_on_a_terminal_there_are_colours(in_terminal: Callable[..., str], serve_once: Serve) -> None:
    serve_once(pay="Pay.", sell="Sell.")
    told = in_terminal("diff", "shop")

    assert "\x1b[1mshop: tool 'pay'\x1b[0m (changed)" in told
    assert "\x1b[31m-At once.\x1b[0m" in told


def test_without_the_accepted_words_the_fields_are_told(toolyard: Run, serve_once: Serve, tmp_path: Path) -> None:
    serve_once(pay="Pay later.", sell="Sell.")
    (tmp_path / "state" / "upstreams" / "shop" / "accepted.json").unlink()
    status, out, _ = toolyard("diff")

    assert status == 1
    assert out.splitlines()[1:] == ["  description changed; what was accepted is not kept on this machine"]


def test_an_upstream_that_nobody_looked_at_here_is_said(toolyard: Run, serve_once: Serve, tmp_path: Path) -> None:
    serve_once("bank", lend="Lend.")
    (tmp_path / "state" / "upstreams" / "bank" / "catalogue.json").unlink()

    unknown = "What 'bank' offers is not known on this machine. Serve it once, so that it is looked at.\n"
    assert toolyard("diff") == (0, "", f"{unknown}'shop' offers what was accepted.\n")
    assert toolyard("diff", "-q") == (0, "", "")
    assert toolyard("diff", "bank") == (2, "", f"toolyard: {unknown}")


@pytest.mark.parametrize(("name", "more"), [("shup", " Did you mean 'shop'?"), ("zebra", ""), ("../upstreams/shop", ""), (".", "")])
def test_an_upstream_that_is_not_known_is_refused(toolyard: Run, name: str, more: str) -> None:
    assert toolyard("diff", name) == (2, "", f"toolyard: Nothing is known of an upstream '{name}'.{more}\n")


def test_without_a_lock_all_that_were_looked_at_are_new(toolyard: Run, tmp_path: Path) -> None:
    (tmp_path / "toolyard.lock").unlink()
    status, out, err = toolyard("diff")

    assert (status, out) == (1, "shop: instructions (new)\nshop: tool 'pay' (new)\nshop: tool 'sell' (new)\n")
    assert err == "Nothing of 'shop' was accepted yet. 'toolyard diff shop' shows all of it.\n"
    assert "    +Sell.\n" in toolyard("diff", "shop")[1]


def test_a_lock_that_cannot_be_understood_is_named(toolyard: Run, tmp_path: Path) -> None:
    path = tmp_path / "toolyard.lock"
    path.write_text("<<<<<<< HEAD\n")
    status, _, err = toolyard("diff")

    assert status == 2
    assert err.startswith(f"toolyard: Line 1 of '{path}' cannot be read.")
    path.unlink()
    path.mkdir()
    assert toolyard("diff") == (1, "", f"toolyard: '{path}' cannot be read: Is a directory.\n")


def test_only_upstreams_that_are_configured_and_pinned_are_meant(toolyard: Run, serve_once: Serve, write: Callable[..., Path]) -> None:
    serve_once("bank", lend="Lend.")
    serve_once("club", join="Join.", first="ask")
    tables = (
        "[upstreams.shop]\ncommand = 'a'",
        "[upstreams.bank]\ncommand = 'b'\nenabled = false",
        "[upstreams.club]\ncommand='c'\npin='off'",
    )
    write("\n".join(("state_dir = 'state'", *tables)), "toolyard.toml")

    assert toolyard("diff") == (0, "", "'shop' offers what was accepted.\n")
    assert toolyard("diff", "club")[0] == 1
    assert toolyard("scan")[2] == "0 findings in 5 definitions.\n"
