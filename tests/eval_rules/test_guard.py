import sys
from contextlib import suppress
from hashlib import sha256
from time import process_time
from typing import Any, NoReturn

import pytest

from callyard import Envelope, EvalRule, Limits, PublishError, ToolError, Yard, tool
from callyard.eval_rules.guard import BLOCKED_WORDS, guard
from callyard.eval_rules.javascript import javascript_refusal
from callyard.eval_rules.python import python_refusal
from callyard.eval_rules.sql import sql_refusal

HOST = EvalRule("code")
NOISE = 4 if "coverage" in sys.modules else 2  # measuring coverage takes as long as the code itself
"""How much longer than 250 ms a check may take here."""


def refused(payload: object, rule: EvalRule = HOST, limits: Limits | None = None) -> ToolError:
    with pytest.raises(ToolError) as caught:
        guard(payload, rule, "run", limits or Limits())
    return caught.value


def digest_of(code: str) -> str:
    return sha256(code.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def passes(payload: object, rule: EvalRule = HOST) -> bool:
    try:
        guard(payload, rule, "run", Limits())
    except ToolError:
        return False
    return True


def failure(answer: Envelope) -> Any:
    assert answer.error is not None
    return answer.error


HARMLESS = [
    "",
    "1 + 1",
    "x = [n * n for n in range(10)]\nprint(sum(x))",
    "import math\nfrom collections import Counter\nmath.sqrt(Counter('aab')['a'])",
    "class A:\n    def __len__(self):\n        return 1\nlen(A())",
    "getattr(x, 'name', None)",
    "setattr(x, 'name', 5)",
    "hasattr(x, 'name') and f.__name__",
    "'importing the operating system'",
    r"pattern = '\d+'",
    "'ü' * 3",
    "order.code + order.resource.http",
    "match x:\n    case Point(x=0): pass",
]


def test_harmless_python_passes() -> None:
    assert [code for code in HARMLESS if not passes(code)] == []


@pytest.mark.parametrize("language", ["python", "javascript", "sql", "ruby"])
def test_a_word_that_no_language_may_use_is_blocked_in_every_language(language: str) -> None:
    for word in BLOCKED_WORDS:
        for written in (word, word.upper(), word.replace(" ", "\t\n ")):
            error = refused(f"'{written}'", EvalRule("code", language))
            assert (error.code, error.details["kind"]) == ("eval_blocked", "word")


@pytest.mark.parametrize(
    ("language", "code"),
    [("javascript", "exec(compile(input))"), ("sql", "select process, eval from t"), ("python", "drop = table = 1")],
)
def test_the_words_of_one_language_mean_nothing_in_another(language: str, code: str) -> None:
    assert passes(code, EvalRule("code", language))


def test_a_language_without_rules_is_refused_even_if_it_was_never_published() -> None:
    assert refused("1", EvalRule("code", "ruby")).code == "eval_blocked"


@pytest.mark.parametrize(
    ("spelling", "code"),
    [
        ("py", "import os"),
        ("Python3", "import os"),
        ("js", "eval ('1')"),
        ("node", "eval ('1')"),
        ("ECMAScript", "eval ('1')"),
    ]
    + [(name, "drop/**/table x") for name in ("postgres", "PostgreSQL", "mysql", "sqlite", "tsql")],
)
def test_usual_spellings_of_a_language_have_its_rules(spelling: str, code: str) -> None:
    assert refused(code, EvalRule("code", spelling)).code == "eval_blocked"


@pytest.mark.parametrize("language", ["ruby", "", "pyhton"])
async def test_a_language_without_rules_fails_when_the_tool_is_published(language: str) -> None:
    @tool(operation="eval", eval=EvalRule("code", language))
    async def run(code: str) -> str:
        """Run code."""
        return code

    with pytest.raises(PublishError):
        async with Yard(tools=[run], allow_eval=True):
            pass


async def test_a_sandbox_may_have_any_language() -> None:
    @tool(operation="eval", eval=EvalRule("code", "lua", rules="sandbox"))
    async def run(code: str) -> str:
        """Run code."""
        return code

    async with Yard(tools=[run], allow_eval=True) as yard:
        assert (await yard.call("run", {"code": "os.exit()"})).success


BLOCKED = [
    "eval('1')",
    "exec('1')",
    "compile('1', '', 'eval')",
    "open('x')",
    "input()",
    "breakpoint()",
    "exit()",
    "quit()",
    "globals()",
    "vars()",
    "e = eval",
    "ｅｖａｌ('1')",  # noqa: RUF001 - Python reads it as eval
    "[open][0]('x')",
    "import os",
    "import os.path",
    "import math, sys",
    "import socket as s",
    "from os import path",
    "from os.path import join",
    "import shutil",
    "import signal",
    "import multiprocessing.pool",
    "import builtins",
    "from pty import spawn",
    "().__class__",
    "x.__dict__",
    "__file__",
    "__loader__",
    "def f(): return (1).__class__.__mro__",
    "lambda: eval",
    "@eval\ndef f(): ...",
    "getattr(x, '__class__')",
    "getattr(x, '__cl' + 'ass__')",
    "getattr(x, name)",
    "getattr(x, b'name')",
    "getattr(*[x, '__cl' 'ass__'])",
    "getattr(x, *['__cl' 'ass__'])",
    "getattr(x)",
    "setattr(x, f'{y}', 1)",
    "delattr(x, y)",
    "hasattr(x, y)",
    "g = getattr\ng(x, '__class__')",
    "list(map(getattr, [x], ['__class__']))",
    "import logging\nlogging.os",
    "from logging import os",
    "import xml.os",
    "from x import __loader__",
    "match x:\n    case object(__class__=c): pass",
]


def test_blocked_python_constructs_are_found_in_the_syntax_tree() -> None:
    wrong: list[str] = []
    for code in BLOCKED:
        error = refused(code)
        facts = (error.code, error.details["kind"], error.details["code_hash"])
        if facts != ("eval_blocked", "construct", digest_of(code)):
            wrong.append(code)

    assert wrong == []


BROKEN = ["def", "1 +", "print 'x'", "\x00", "(" * 10_000, "-" * 10_000 + "1", "x = '\ud800'"]


def test_code_that_does_not_parse_is_blocked() -> None:
    wrong: list[str] = []
    for code in BROKEN:
        error = refused(code)
        facts = (error.code, error.details["kind"], error.details["code_hash"])
        if facts != ("eval_blocked", "construct", digest_of(code)):
            wrong.append(code)

    assert wrong == []


@pytest.mark.parametrize(
    ("language", "code"), [("Python", "import os"), ("JavaScript", "require('child_process')"), ("SQL", "drop table x")]
)
def test_a_language_is_the_same_in_whatever_case(language: str, code: str) -> None:
    assert refused(code, EvalRule("code", language)).code == "eval_blocked"


def test_unknown_rules_are_those_of_the_host() -> None:
    rules: Any = "hots"

    assert refused("import os", EvalRule("code", rules=rules)).code == "eval_blocked"


def test_code_that_is_too_long_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def parse(_: str) -> NoReturn:
        pytest.fail("it was parsed")

    monkeypatch.setattr("ast.parse", parse)
    limits = Limits(eval_characters=20)

    for rule in (HOST, EvalRule("code", "javascript"), EvalRule("code", rules="sandbox")):
        error = refused("eval('" + "x" * 20 + "')", rule, limits)
        assert (error.code, error.details) == ("too_large", {"characters": 28, "limit": 20})


@pytest.mark.parametrize("language", ["python", "javascript", "sql"])
def test_code_of_too_many_words_and_marks_is_not_checked(language: str) -> None:
    error = refused("a;" * 20_000, EvalRule("code", language))

    assert (error.code, error.details) == ("too_large", {"tokens": 40_000, "limit": 20_000})
    guard("a;" * 20_000, EvalRule("code", language, rules="sandbox"), "run", Limits())


LONGEST: dict[str, tuple[str, str]] = {
    "fields of a text": ("python", "f'" + "{a}" * 6_600 + "'"),
    "comparisons": ("python", "a<b\n" * 4_900),
    "one long text": ("javascript", "'" + "\\x41" * 19_000 + "'"),
    "names in brackets": ("javascript", "let a=0;" + "[" * 48 + "a" + ",a" * 9_800 + "]" * 48),
    "names that depend on each other": ("javascript", ";".join(f"let a{i}=a{i + 1}" for i in range(3_900))),
    "assignments in each other": ("javascript", "let a=" + "a=" * 9_900 + "1"),
    "one name, often": ("javascript", "top.a;" * 4_900),
    "brackets without end": ("sql", "select " + "[" * 19_000 + "]"),
    "comments": ("javascript", "'\u2028';" + "//\n" * 6_600),
    "columns": ("sql", "select " + "a," * 9_900 + "a"),
}


def test_the_check_of_long_code_takes_less_than_a_quarter_of_a_second() -> None:
    slow: dict[str, float] = {}
    for name, (language, code) in LONGEST.items():
        began = process_time()
        with suppress(ToolError):
            guard(code, EvalRule("code", language), "run", Limits())
        if (spent := process_time() - began) >= 0.25 * NOISE:
            slow[name] = spent

    assert slow == {}


def test_long_code_takes_no_quadratic_time() -> None:
    """It ends at all: a quadratic check would take minutes, and the test's own timeout would fail it."""
    parts = ("a[k];", "a=", ".b", "f(", "`${", "x/[", "(", "/*a", "'a''", "a.prototype", "window ")
    for code in (part * (30_000 // len(part)) for part in parts):
        javascript_refusal(code)
        python_refusal(code)
        sql_refusal(code)


def test_the_longest_code_passes() -> None:
    guard("1" * 20, HOST, "run", Limits(eval_characters=20))


@pytest.mark.parametrize("code", ["import os", "rm -rf /", "eval('1')", "this ( is no python"])
def test_a_sandbox_brings_its_own_rules(code: str) -> None:
    assert passes(code, EvalRule("code", rules="sandbox"))


@pytest.mark.parametrize("payload", [None, 5, 2.5, True])
def test_a_payload_that_is_no_string_is_converted(payload: object) -> None:
    assert passes(payload)


@pytest.mark.parametrize("rule", [HOST, EvalRule("code", "javascript"), EvalRule("code", rules="sandbox")])
def test_allowed_code_is_audited_by_its_hash_and_never_by_its_text(
    rule: EvalRule, caplog: pytest.LogCaptureFixture
) -> None:
    code = "hunter2 = 5"
    guard(code, rule, "run", Limits())

    [record] = caplog.records
    assert (record.name, record.levelname) == ("callyard.audit", "WARNING")
    line = record.getMessage()
    assert sha256(code.encode()).hexdigest()[:16] in line
    assert "tool=run" in line
    assert f"characters={len(code)}" in line
    assert "hunter2" not in line


@pytest.mark.parametrize("code", ["hunter2 = eval('hunter2')", "'hunter2 rm -rf hunter2'", "hunter2 ("])
def test_blocked_code_appears_neither_in_the_audit_log_nor_in_the_answer(
    code: str, caplog: pytest.LogCaptureFixture
) -> None:
    error = refused(code)

    [record] = caplog.records
    assert (record.name, record.levelname) == ("callyard.audit", "WARNING")
    digest = sha256(code.encode()).hexdigest()[:16]
    assert digest in record.getMessage()
    assert error.details["code_hash"] == digest
    assert "hunter2" not in record.getMessage() + error.message + str(error.details)


def test_allowed_code_leaves_a_line_at_the_default_level(caplog: pytest.LogCaptureFixture) -> None:
    guard("1 + 1", HOST, "run", Limits())

    assert [record.getMessage().split()[:2] for record in caplog.records] == [["eval", "tool=run"]]


def test_the_guard_emits_no_syntax_warnings(recwarn: pytest.WarningsRecorder) -> None:
    guard("x = '\\d'\nassert (1, 'always true')\nx is 5", HOST, "run", Limits())

    assert len(recwarn) == 0


async def test_an_eval_tool_is_guarded_before_it_runs() -> None:
    ran: list[str] = []

    @tool(operation="eval", session="none")
    async def run(code: str) -> str:
        """Run code."""
        ran.append(code)
        return code

    async with Yard(tools=[run], allow_eval=True) as yard:
        good = await yard.call("run", {"code": "1 + 1"})
        bad = await yard.call("run", {"code": "import os"})

    assert (good.data, ran) == ("1 + 1", ["1 + 1"])
    assert failure(bad).code == "eval_blocked"
    assert failure(bad).may_have_run is False


async def test_the_guard_looks_at_the_argument_that_the_rule_names() -> None:
    @tool(operation="eval", eval=EvalRule("script", "javascript"))
    async def run(script: str, note: str = "") -> str:
        """Run a script."""
        return script

    async with Yard(tools=[run], allow_eval=True) as yard:
        good = await yard.call("run", {"script": "1", "note": "require('fs')"})
        bad = await yard.call("run", {"script": "require('fs')"})

    assert good.success
    assert failure(bad).code == "eval_blocked"


async def test_without_the_flag_an_eval_tool_is_gated() -> None:
    @tool(operation="eval")
    async def run(code: str) -> str:
        """Run code."""
        return code

    async with Yard(tools=[run]) as yard:
        answer = await yard.call("run", {"code": "1"})

    assert failure(answer).code == "tool_not_found"
    assert failure(answer).details["status"] == "gated"
