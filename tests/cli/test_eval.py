"""`toolyard eval search`: one object of measures, or a table, and errors that name file and line."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., tuple[int, str, str]]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Terminal = Callable[..., str]
Write = Callable[..., Path]

TOOLS = """
{"id": "w", "name": "get_weather", "namespace": "sky", "description": "Say what the weather will be."}
{"id": "b", "name": "list_bills", "description": "List bills.", "tags": null, "input_schema": {"type": "object"}, "more": 1}
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
    assert list(measured) == ["recall@1", "recall@5", "recall@10", "mrr@10", "ndcg@10", "build_s", "p50_ms", "p99_ms", "tools", "queries"]
    assert (measured["recall@1"], measured["ndcg@10"], measured["tools"], measured["queries"]) == (1.0, 1.0, 2, 2)


@pytest.mark.usefixtures("files")
def test_without_json_there_is_a_line_for_each_measure(toolyard: Run, in_terminal: Terminal) -> None:
    status, out, err = toolyard("eval", "search", *FILES)

    assert (status, err) == (0, "")
    assert out.splitlines()[:2] == ["recall@1\t1.0", "recall@5\t1.0"]
    assert "questions asked" in in_terminal("eval", "search", *FILES)


@pytest.mark.parametrize("strategy", ["lexical", "BM25", "hybrid"])
@pytest.mark.usefixtures("files")
def test_the_strategy_can_be_chosen(strategy: str, toolyard: Run) -> None:
    status, out, _ = toolyard("eval", "search", *FILES, "--strategy", strategy, "--json")

    assert status == 0
    assert json.loads(out)["recall@5"] == 1.0


@pytest.mark.usefixtures("files")
def test_the_strategy_of_the_environment_holds_unless_one_is_named(in_process: Process) -> None:
    by_variable = in_process("eval", "search", *FILES, TOOLYARD_SEARCH_STRATEGY="guessing").stderr
    assert "'guessing'" in by_variable
    assert by_variable.endswith(" It comes from 'TOOLYARD_SEARCH_STRATEGY'.\n")
    assert "comes from" not in in_process("eval", "search", *FILES, "--strategy", "guessing").stderr
    assert in_process("eval", "search", *FILES, "--strategy", "bm25", TOOLYARD_SEARCH_STRATEGY="guessing").returncode == 0
    assert "must be a number" in in_process("eval", "search", *FILES, TOOLYARD_SEARCH_FIT="much").stderr


@pytest.mark.usefixtures("files")
def test_the_file_of_settings_counts_below_the_environment_and_the_flag(write: Write, in_process: Process) -> None:
    write('[search]\nstrategy = "guessing"\n', "toolyard.toml")
    write("[search]\nfit = 2\n", "other.toml")
    write("[search]\nfit = 1.0\n", "strict.toml")
    write('{"query": "weather of the bills and much else", "relevant": ["w"]}\n', "queries.jsonl")

    by_file = in_process("eval", "search", *FILES)
    by_other = in_process("eval", "search", *FILES, "--config", "other.toml")
    by_missing = in_process("eval", "search", *FILES, "--config", "nowhere.toml")
    strict = in_process("eval", "search", *FILES, "--json", "--config", "strict.toml")
    lenient = in_process("eval", "search", *FILES, "--json", "--config", "strict.toml", TOOLYARD_SEARCH_FIT="0")

    assert (by_file.returncode, by_file.stdout, by_file.stderr.count("\n")) == (2, "", 1)
    assert "'guessing'" in by_file.stderr
    assert by_file.stderr.endswith(" It comes from 'toolyard.toml'.\n")
    assert [(done.returncode, done.stderr.count("\n")) for done in (by_other, by_missing)] == [(2, 1), (2, 1)]
    assert in_process("eval", "search", *FILES, TOOLYARD_SEARCH_STRATEGY="lexical").returncode == 0
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
def test_what_cannot_be_read_is_named_with_file_and_line(tools: str, queries: str, said: str, write: Write, toolyard: Run) -> None:
    write(tools, "tools.jsonl")
    write(queries, "queries.jsonl")

    status, out, err = toolyard("eval", "search", *FILES, "--json")

    assert (status, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.usefixtures("files")
def test_files_that_begin_with_the_mark_of_an_editor_are_read(toolyard: Run) -> None:
    for name in ("tools.jsonl", "queries.jsonl"):
        Path(name).write_text(Path(name).read_text(encoding="utf-8").lstrip(), encoding="utf-8-sig")

    assert toolyard("eval", "search", *FILES, "--json")[0] == 0


@pytest.mark.parametrize("line", [b'{"id": "\xff", "name": "a"}', b'{"id": "a", "name": "a", "input_schema": ' + b'{"a":' * 5000])
@pytest.mark.usefixtures("files")
def test_a_line_that_is_no_text_or_has_no_end_is_named_too(line: bytes, toolyard: Run) -> None:
    Path("tools.jsonl").write_bytes(b"\n" + line)

    status, _, err = toolyard("eval", "search", *FILES)

    assert status == 2
    assert "'tools.jsonl' cannot be used. Line 2 " in err


@pytest.mark.usefixtures("files")
def test_a_file_that_is_not_there_is_one_sentence(toolyard: Run) -> None:
    assert "The file 'nothing' cannot be read" in toolyard("eval", "search", "--tools", "nothing", "--queries", "queries.jsonl")[2]


@pytest.mark.usefixtures("files")
def test_tools_that_nobody_can_find_are_counted(write: Write, toolyard: Run) -> None:
    write(QUERIES + '{"query": "a", "relevant": ["y", "z", "w"]}\n', "queries.jsonl")

    assert toolyard("eval", "search", *FILES)[2] == "Tools that questions ask for and that are not in 'tools.jsonl': 2.\n"
    assert toolyard("eval", "search", *FILES, "--quiet")[2] == ""


@pytest.mark.parametrize(
    "arguments", [["eval"], ["eval", "search"], ["eval", "chains", *FILES], ["eval", "search", "--tools", "tools.jsonl"]]
)
@pytest.mark.usefixtures("files")
def test_wrong_usage_is_status_2(arguments: list[str], toolyard: Run) -> None:
    assert toolyard(*arguments)[:2] == (2, "")


def test_the_catalogue_of_the_demo_can_be_measured(toolyard: Run) -> None:
    root = Path(__file__).parent.parent.parent
    tools, queries = root / "src" / "toolyard" / "demo" / "catalogue.jsonl", root / "tests" / "demo" / "queries.jsonl"

    status, out, err = toolyard("eval", "search", "--tools", str(tools), "--queries", str(queries), "--json")

    assert (status, err) == (0, "")
    assert json.loads(out)["tools"] >= 300
