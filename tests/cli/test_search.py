"""`callyard search`: paragraphs for people, lines for programs, JSON for both."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard import Operation
from callyard.cli.parser import make_parsers
from callyard.cli.terminal import width_of

Run = Callable[..., tuple[int, str, str]]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., str]
Write = Callable[..., Path]
MANY = """
from callyard import Yard

def make(number):
    def work(text: str, number: int = 0, flag: bool = False, others: list[str] | None = None) -> dict[str, int]:
        return {}
    work.__name__ = f"write_letter_{number}"
    work.__doc__ = "Write a letter to somebody, with all that a good letter has, and a signature below it, in ink."
    return work

yard = Yard("office", tools=[make(number) for number in range(8)])
"""


def test_programs_get_name_signature_and_why(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("search", "show the newest orders", shop)

    name, signature, why = out.splitlines()[0].split("\t")
    assert status == 0
    assert name == "list_orders"
    assert signature == "list_orders(limit?: int, kind?: 'open'|'closed') -> list[int]"
    assert "'orders' in name" in why


def test_json_is_an_object(shop: str, callyard: Run) -> None:
    _, out, _ = callyard("search", "orders", shop, "--json", "--limit", "1")

    found = json.loads(out)
    assert [hit["name"] for hit in found["hits"]] == ["list_orders"]
    assert set(found["hits"][0]) == {"name", "signature", "description", "operation", "source", "why"}
    assert found["closest"] == []


def test_it_can_be_narrowed(shop: str, callyard: Run) -> None:
    assert callyard("search", "wipe", shop, "--operation", "query", "--json")[1].count('"wipe"') == 0
    assert callyard("search", "wipe", shop, "--operation", "destroy", "--namespace", "shop")[1].startswith("wipe\t")
    assert callyard("search", "wipe", shop, "--profile", "readers")[1] == ""


def test_an_unknown_namespace_is_refused_with_what_was_meant(shop: str, callyard: Run) -> None:
    status, out, err = callyard("search", "orders", shop, "--namespace", "shp")

    assert (status, out) == (2, "")
    assert "'shop'" in err


def test_where_no_namespace_is_near_those_there_are_are_named(shop: str, callyard: Run) -> None:
    status, out, err = callyard("search", "orders", shop, "--namespace", "zzzzz")

    assert (status, out) == (2, "")
    assert err == "callyard: There is no namespace 'zzzzz'. Known: 'shop'.\n"


def test_where_nothing_fits_the_closest_namespaces_are_named(shop: str, callyard: Run) -> None:
    status, out, err = callyard("search", "sourdough fermentation", shop)

    assert (status, out) == (0, "")
    assert err == "Nothing matches 'sourdough fermentation'. The closest namespaces: 'shop'.\n"
    assert json.loads(callyard("search", "sourdough fermentation", shop, "--json")[1])["closest"] == ["shop"]
    assert callyard("search", "sourdough fermentation", shop, "--quiet") == (0, "", "")


def test_of_many_words_only_the_first_are_said_again(shop: str, callyard: Run) -> None:
    status, _, err = callyard("search", "sourdough " * 150, shop)

    assert (status, err.count("\n")) == (0, 1)
    assert len(err) < 400


def test_a_yard_without_tools_has_no_namespace_to_name(write: Write, callyard: Run) -> None:
    write("from callyard import Yard\nyard = Yard(metatools=False)\n")

    assert callyard("search", "letters", "app.py") == (0, "", "Nothing matches 'letters'.\n")


def test_that_there_is_more_is_said(write: Write, callyard: Run) -> None:
    write(MANY)

    assert callyard("search", "letter", "app.py")[2] == "More tools match; '--limit' shows up to 100.\n"
    assert callyard("search", "letter", "app.py", "--limit", "100")[2] == ""


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
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], shop: str, callyard: Run) -> None:
    status, out, err = callyard(*arguments)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_the_target_may_stand_in_the_file_of_settings(shop: str, write: Write, in_process: Process) -> None:
    write(f'target = "{shop}"\n', "callyard.toml")

    done = in_process("search", "orders")

    assert (done.returncode, done.stdout.split("\t")[0]) == (0, "list_orders")


NONE_SUCH = (
    "callyard: There is no search strategy 'guessing'; there are 'bm25', 'hybrid', 'lexical'. It comes from '{}'.\n"
)


@pytest.mark.parametrize(
    "command", [("search", "letters", "app.py"), ("call", "app.py", "write"), ("list", "app.py"), ("serve", "app.py")]
)
def test_a_search_that_cannot_be_had_is_one_sentence_of_every_command(
    command: tuple[str, ...], write: Write, in_process: Process
) -> None:
    write("from callyard import Yard\nyard = Yard()\n")

    by_variable = in_process(*command, CALLYARD_SEARCH_STRATEGY="guessing")
    write('[search]\nstrategy = "guessing"\n', "callyard.toml")
    by_file = in_process(*command)
    misspelt = in_process(*command, CALLYARD_SEARCH_BM25_NAME_WEIGTH="5")

    assert (by_variable.returncode, by_variable.stdout, by_variable.stderr) == (
        2,
        "",
        NONE_SUCH.format("CALLYARD_SEARCH_STRATEGY"),
    )
    assert (by_file.returncode, by_file.stdout, by_file.stderr) == (2, "", NONE_SUCH.format("callyard.toml"))
    assert (misspelt.returncode, misspelt.stdout, misspelt.stderr.count("\n")) == (2, "", 1)
    assert misspelt.stderr.endswith("Did you mean 'CALLYARD_SEARCH_BM25_NAME_WEIGHT'?\n")


def test_a_yard_without_metatools_says_the_same_of_a_search_that_cannot_be_had(
    write: Write, in_process: Process
) -> None:
    write("from callyard import Yard\nyard = Yard(metatools=False)\n")

    done = in_process("search", "letters", "app.py", CALLYARD_SEARCH_STRATEGY="guessing")

    assert (done.returncode, done.stdout, done.stderr) == (2, "", NONE_SUCH.format("CALLYARD_SEARCH_STRATEGY"))


def test_a_strategy_of_the_code_that_cannot_be_had_comes_from_nowhere_else(write: Write, in_process: Process) -> None:
    write(
        "from callyard import Yard\nfrom callyard.search import SearchSettings\nyard = "
        "Yard(search=SearchSettings(strategy='guessing'))\n"
    )

    done = in_process("search", "letters", "app.py")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "callyard: There is no search strategy 'guessing'; there are 'bm25', 'hybrid', 'lexical'.\n"


@pytest.mark.parametrize(("name", "place"), [("failing", "line 6"), ("deaf", "line 10"), ("empty", "")])
def test_a_strategy_that_fails_in_a_search_is_one_sentence(
    name: str, place: str, shop: str, bad_strategies: dict[str, str], in_process: Process
) -> None:
    done = in_process("search", "orders", shop, CALLYARD_SEARCH_STRATEGY=name, **bad_strategies)

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
    choices = next(action.choices for action in make_parsers()[1]["search"].actions if action.dest == "operation")

    assert list(choices or ()) == list(Operation)


TOOLS = """
{"id": "w", "name": "get_weather", "namespace": "sky", "description": "Say what the weather will be."}
{"id": "b", "name":"list_bills", "description": "List bills.", "tags":null, "input_schema": {"type":"object"}, "more":1}
"""
QUERIES = """
{"id": "1", "query": "weather tomorrow", "relevant": ["w"]}
{"query": "my bills", "relevant": ["b"]}
"""
FILES = ("--tools", "tools.jsonl", "--queries", "queries.jsonl")


@pytest.fixture
def files(write: Write) -> None:
    write(TOOLS, "tools.jsonl")
    write(QUERIES, "queries.jsonl")


@pytest.mark.usefixtures("files")
def test_json_is_one_object_with_every_measure(in_process: Process) -> None:
    done = in_process("eval", "search", *FILES, "--json")

    measured = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert list(measured) == [
        "recall@1",
        "recall@5",
        "recall@10",
        "mrr@10",
        "ndcg@10",
        "build_s",
        "p50_ms",
        "p99_ms",
        "tools",
        "queries",
    ]
    assert (measured["recall@1"], measured["ndcg@10"], measured["tools"], measured["queries"]) == (1.0, 1.0, 2, 2)


@pytest.mark.usefixtures("files")
def test_without_json_there_is_a_line_for_each_measure(callyard: Run, in_terminal: Terminal) -> None:
    status, out, err = callyard("eval", "search", *FILES)

    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == ["recall@1\t1.0", "recall@5\t1.0"]
    assert "number of queries" in in_terminal("eval", "search", *FILES)


@pytest.mark.parametrize("strategy", ["lexical", "BM25", "hybrid"])
@pytest.mark.usefixtures("files")
def test_the_strategy_can_be_chosen(strategy: str, callyard: Run) -> None:
    status, out, _ = callyard("eval", "search", *FILES, "--strategy", strategy, "--json")

    assert status == 0
    assert json.loads(out)["recall@5"] == 1.0


@pytest.mark.usefixtures("files")
def test_the_strategy_of_the_environment_holds_unless_one_is_named(in_process: Process) -> None:
    by_variable = in_process("eval", "search", *FILES, CALLYARD_SEARCH_STRATEGY="guessing").stderr
    assert "'guessing'" in by_variable
    assert by_variable.endswith(" It comes from 'CALLYARD_SEARCH_STRATEGY'.\n")
    assert "comes from" not in in_process("eval", "search", *FILES, "--strategy", "guessing").stderr
    assert (
        in_process("eval", "search", *FILES, "--strategy", "bm25", CALLYARD_SEARCH_STRATEGY="guessing").returncode == 0
    )
    assert (
        "must be a whole number" in in_process("eval", "search", *FILES, CALLYARD_SEARCH_BM25_TAG_WEIGHT="much").stderr
    )


@pytest.mark.usefixtures("files")
def test_the_file_of_settings_counts_below_the_environment_and_the_flag(write: Write, in_process: Process) -> None:
    write('[search]\nstrategy = "guessing"\n', "callyard.toml")
    write("[search]\nbm25_name_weight = 101\n", "other.toml")
    write('[search]\nstrategy = "bm25"\nbm25_name_weight = 0\nbm25_description_weight = 0\n', "strict.toml")
    write('{"query": "weather of the bills and much else", "relevant": ["w"]}\n', "queries.jsonl")

    by_file = in_process("eval", "search", *FILES)
    by_other = in_process("eval", "search", *FILES, "--config", "other.toml")
    by_missing = in_process("eval", "search", *FILES, "--config", "nowhere.toml")
    strict = in_process("eval", "search", *FILES, "--json", "--config", "strict.toml")
    weight = {"CALLYARD_SEARCH_BM25_DESCRIPTION_WEIGHT": "1"}
    lenient = in_process("eval", "search", *FILES, "--json", "--config", "strict.toml", **weight)

    assert (by_file.returncode, by_file.stdout, by_file.stderr.count("\n")) == (2, "", 1)
    assert "'guessing'" in by_file.stderr
    assert by_file.stderr.endswith(" It comes from 'callyard.toml'.\n")
    assert [(done.returncode, done.stderr.count("\n")) for done in (by_other, by_missing)] == [(2, 1), (2, 1)]
    assert in_process("eval", "search", *FILES, CALLYARD_SEARCH_STRATEGY="lexical").returncode == 0
    assert in_process("eval", "search", *FILES, "--strategy", "bm25").returncode == 0
    assert (json.loads(strict.stdout)["recall@5"], json.loads(lenient.stdout)["recall@5"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["failing", "deaf", "empty"])
@pytest.mark.usefixtures("files")
def test_a_strategy_that_fails_is_one_sentence(name: str, bad_strategies: dict[str, str], in_process: Process) -> None:
    done = in_process("eval", "search", *FILES, "--strategy", name, **bad_strategies)

    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"'{name}'" in done.stderr


@pytest.mark.parametrize(
    ("tools", "queries", "said"),
    [
        (TOOLS + '{"id": "x"}\n', QUERIES, "The file 'tools.jsonl' cannot be used. Line 4 "),
        (TOOLS, QUERIES + "no JSON\n", "The file 'queries.jsonl' cannot be used. Line 4 "),
        (TOOLS, '{"query": "a", "relevant": "w"}', "The file 'queries.jsonl' cannot be used. Line 1 "),
        (TOOLS, QUERIES + '{"query": "a", "relevant": []}', "The file 'queries.jsonl' cannot be used. Line 4 "),
        (TOOLS + '{"id": "w", "name": "again"}', QUERIES, "The file 'tools.jsonl' cannot be used. Line 4 "),
        (TOOLS, "\n\n", "The file 'queries.jsonl' is empty."),
        ("", QUERIES, "The file 'tools.jsonl' is empty."),
    ],
)
def test_an_unreadable_line_is_named_with_its_file_and_number(
    tools: str, queries: str, said: str, write: Write, callyard: Run
) -> None:
    write(tools, "tools.jsonl")
    write(queries, "queries.jsonl")

    status, out, err = callyard("eval", "search", *FILES, "--json")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.usefixtures("files")
def test_files_that_begin_with_the_mark_of_an_editor_are_read(callyard: Run) -> None:
    for name in ("tools.jsonl", "queries.jsonl"):
        Path(name).write_text(Path(name).read_text(encoding="utf-8").lstrip(), encoding="utf-8-sig")

    assert callyard("eval", "search", *FILES, "--json")[0] == 0


@pytest.mark.parametrize(
    "line", [b'{"id": "\xff", "name": "a"}', b'{"id": "a", "name": "a", "input_schema": ' + b'{"a":' * 5000]
)
@pytest.mark.usefixtures("files")
def test_a_line_that_is_no_text_or_has_no_end_is_named_too(line: bytes, callyard: Run) -> None:
    Path("tools.jsonl").write_bytes(b"\n" + line)

    status, _, err = callyard("eval", "search", *FILES)

    assert status == 2
    assert "'tools.jsonl' cannot be used. Line 2 " in err


@pytest.mark.usefixtures("files")
def test_a_file_that_is_not_there_is_one_sentence(callyard: Run) -> None:
    assert (
        "The file 'nothing' cannot be read"
        in callyard("eval", "search", "--tools", "nothing", "--queries", "queries.jsonl")[2]
    )


@pytest.mark.usefixtures("files")
def test_tools_that_nobody_can_find_are_counted(write: Write, callyard: Run) -> None:
    write(QUERIES + '{"query": "a", "relevant": ["y", "z", "w"]}\n', "queries.jsonl")

    assert callyard("eval", "search", *FILES)[2] == "Relevant tools of queries that are not in 'tools.jsonl': 2.\n"
    assert callyard("eval", "search", *FILES, "--quiet")[2] == ""


@pytest.mark.parametrize(
    "arguments",
    [["eval"], ["eval", "search"], ["eval", "chains", *FILES], ["eval", "search", "--tools", "tools.jsonl"]],
)
@pytest.mark.usefixtures("files")
def test_wrong_usage_is_status_2(arguments: list[str], callyard: Run) -> None:
    assert callyard(*arguments)[:2] == (2, "")


def test_the_catalogue_of_the_demo_can_be_measured(callyard: Run) -> None:
    root = Path(__file__).parent.parent.parent
    tools, queries = root / "src" / "callyard" / "demo" / "catalogue.jsonl", root / "tests" / "demo" / "queries.jsonl"

    status, out, err = callyard("eval", "search", "--tools", str(tools), "--queries", str(queries), "--json")

    assert (status, err) == (0, "")
    assert json.loads(out)["tools"] >= 300
