"""`toolyard search`: paragraphs for people, lines for programs, JSON for both."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from toolyard import Operation
from toolyard.cli.parser import make_parsers
from toolyard.cli.terminal import width_of

Run = Callable[..., tuple[int, str, str]]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., str]
Write = Callable[..., Path]

MANY = """
from toolyard import Yard

def make(number):
    def work(text: str, number: int = 0, flag: bool = False, others: list[str] | None = None) -> dict[str, int]:
        return {}
    work.__name__ = f"write_letter_{number}"
    work.__doc__ = "Write a letter to somebody, with all that a good letter has, and a signature below it, in ink."
    return work

yard = Yard("office", tools=[make(number) for number in range(8)])
"""


def test_programs_get_name_signature_and_why(shop: str, toolyard: Run) -> None:
    status, out, _ = toolyard("search", "show the newest orders", shop)

    name, signature, why = out.splitlines()[0].split("\t")
    assert status == 0
    assert name == "list_orders"
    assert signature == "list_orders(limit?: int, kind?: 'open'|'closed') -> list[int]"
    assert "'orders' in name" in why


def test_json_is_an_object(shop: str, toolyard: Run) -> None:
    _, out, _ = toolyard("search", "orders", shop, "--json", "--limit", "1")

    found = json.loads(out)
    assert [hit["name"] for hit in found["hits"]] == ["list_orders"]
    assert set(found["hits"][0]) == {"name", "signature", "description", "operation", "source", "why"}
    assert found["closest"] == []


def test_it_can_be_narrowed(shop: str, toolyard: Run) -> None:
    assert toolyard("search", "wipe", shop, "--operation", "query", "--json")[1].count('"wipe"') == 0
    assert toolyard("search", "wipe", shop, "--operation", "destroy", "--namespace", "shop")[1].startswith("wipe\t")
    assert toolyard("search", "wipe", shop, "--profile", "readers")[1] == ""


def test_an_unknown_namespace_is_refused_with_what_was_meant(shop: str, toolyard: Run) -> None:
    status, out, err = toolyard("search", "orders", shop, "--namespace", "shp")

    assert (status, out) == (2, "")
    assert "'shop'" in err


def test_where_no_namespace_is_near_those_there_are_are_named(shop: str, toolyard: Run) -> None:
    status, out, err = toolyard("search", "orders", shop, "--namespace", "zzzzz")

    assert (status, out) == (2, "")
    assert err == "toolyard: There is no namespace 'zzzzz'. Known: 'shop'.\n"


def test_where_nothing_fits_the_closest_namespaces_are_named(shop: str, toolyard: Run) -> None:
    status, out, err = toolyard("search", "sourdough fermentation", shop)

    assert (status, out) == (0, "")
    assert err == "Nothing fits 'sourdough fermentation'. The closest namespaces: 'shop'.\n"
    assert json.loads(toolyard("search", "sourdough fermentation", shop, "--json")[1])["closest"] == ["shop"]
    assert toolyard("search", "sourdough fermentation", shop, "--quiet") == (0, "", "")


def test_of_many_words_only_the_first_are_said_again(shop: str, toolyard: Run) -> None:
    status, _, err = toolyard("search", "sourdough " * 150, shop)

    assert (status, err.count("\n")) == (0, 1)
    assert len(err) < 400


def test_a_yard_without_tools_has_no_namespace_to_name(write: Write, toolyard: Run) -> None:
    write("from toolyard import Yard\nyard = Yard(metatools=False)\n")

    assert toolyard("search", "letters", "app.py") == (0, "", "Nothing fits 'letters'.\n")


def test_that_there_is_more_is_said(write: Write, toolyard: Run) -> None:
    write(MANY)

    assert toolyard("search", "letter", "app.py")[2] == "More tools fit; '--limit' shows up to 100.\n"
    assert toolyard("search", "letter", "app.py", "--limit", "100")[2] == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["search"],
        ["search", "  ", "shop.py"],
        ["search", "orders\x1b[31m", "shop.py"],
        ["search", "orders" * 2000, "shop.py"],
        ["search", "orders", "shop.py", "--limit", "0"],
        ["search", "orders", "shop.py", "--limit", "many"],
        ["search", "orders", "shop.py", "--limit", "101"],
        ["search", "orders", "shop.py", "--operation", "look"],
        ["search", "orders", "shop.py", "more"],
        ["search", "orders"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], shop: str, toolyard: Run) -> None:
    status, out, err = toolyard(*arguments)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_the_target_may_stand_in_the_file_of_settings(shop: str, write: Write, in_process: Process) -> None:
    write(f'target = "{shop}"\n', "toolyard.toml")

    done = in_process("search", "orders")

    assert (done.returncode, done.stdout.split("\t")[0]) == (0, "list_orders")


NONE_SUCH = "toolyard: There is no search strategy 'guessing'; there are 'bm25', 'hybrid', 'lexical'. It comes from '{}'.\n"


@pytest.mark.parametrize("command", [("search", "letters", "app.py"), ("call", "app.py", "write"), ("list", "app.py"), ("serve", "app.py")])
def test_a_search_that_cannot_be_had_is_one_sentence_of_every_command(command: tuple[str, ...], write: Write, in_process: Process) -> None:
    write("from toolyard import Yard\nyard = Yard()\n")

    by_variable = in_process(*command, TOOLYARD_SEARCH_STRATEGY="guessing")
    write('[search]\nstrategy = "guessing"\n', "toolyard.toml")
    by_file = in_process(*command)
    misspelt = in_process(*command, TOOLYARD_SEARCH_NAME_WEIGTH="5")

    assert (by_variable.returncode, by_variable.stdout, by_variable.stderr) == (2, "", NONE_SUCH.format("TOOLYARD_SEARCH_STRATEGY"))
    assert (by_file.returncode, by_file.stdout, by_file.stderr) == (2, "", NONE_SUCH.format("toolyard.toml"))
    assert (misspelt.returncode, misspelt.stdout, misspelt.stderr.count("\n")) == (2, "", 1)
    assert misspelt.stderr.endswith("Did you mean 'TOOLYARD_SEARCH_NAME_WEIGHT'?\n")


def test_a_yard_without_metatools_says_the_same_of_a_search_that_cannot_be_had(write: Write, in_process: Process) -> None:
    write("from toolyard import Yard\nyard = Yard(metatools=False)\n")

    done = in_process("search", "letters", "app.py", TOOLYARD_SEARCH_STRATEGY="guessing")

    assert (done.returncode, done.stdout, done.stderr) == (2, "", NONE_SUCH.format("TOOLYARD_SEARCH_STRATEGY"))


def test_a_strategy_of_the_code_that_cannot_be_had_comes_from_nowhere_else(write: Write, in_process: Process) -> None:
    write(
        "from toolyard import Yard\nfrom toolyard.search import SearchSettings\nyard = Yard(search=SearchSettings(strategy='guessing'))\n"
    )

    done = in_process("search", "letters", "app.py")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "toolyard: There is no search strategy 'guessing'; there are 'bm25', 'hybrid', 'lexical'.\n"


@pytest.mark.parametrize(("name", "place"), [("failing", "line 6"), ("deaf", "line 10"), ("empty", "")])
def test_a_strategy_that_fails_in_a_search_is_one_sentence(
    name: str, place: str, shop: str, bad_strategies: dict[str, str], in_process: Process
) -> None:
    done = in_process("search", "orders", shop, TOOLYARD_SEARCH_STRATEGY=name, **bad_strategies)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert place in done.stderr
    assert f"'{name}'" in done.stderr


@pytest.mark.parametrize("columns", [100, 72, 40])
def test_people_get_paragraphs_as_wide_as_the_terminal(columns: int, write: Write, in_terminal: Terminal) -> None:
    write(MANY)

    lines = in_terminal("search", "letter", "app.py", columns=columns, NO_COLOR="1").splitlines()

    assert lines[0].startswith("write_letter_0(text: str")
    assert lines.count("") == 4
    assert all(width_of(line) <= columns for line in lines[:-1])


def test_a_terminal_shows_the_name_in_bold(shop: str, in_terminal: Terminal) -> None:
    assert "\x1b[1mlist_orders\x1b[0m(limit?: int" in in_terminal("search", "orders", shop)


def test_the_operations_are_those_that_there_are() -> None:
    choices = next(action.choices for action in make_parsers().commands["search"].actions if action.dest == "operation")

    assert list(choices or ()) == list(Operation)
