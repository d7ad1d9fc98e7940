"""The program: commands, options, statuses and logs."""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from callyard import __version__

Run = Callable[..., tuple[int, str, str]]
Process = Callable[..., "subprocess.CompletedProcess[str]"]
Write = Callable[..., Path]

HEAVY = {"pydantic", "pydantic_core", "msgspec", "jsonschema_rs"}


def test_the_version_is_one_line(callyard: Run) -> None:
    assert callyard("version") == (0, f"callyard {__version__}\n", "")
    assert callyard("--version") == (0, f"callyard {__version__}\n", "")


def test_the_version_for_programs_names_python_too(callyard: Run) -> None:
    python = ".".join(str(part) for part in sys.version_info[:3])

    assert callyard("version", "--json") == (0, f'{{"callyard":"{__version__}","python":"{python}"}}\n', "")


@pytest.mark.parametrize("argument", ["version", "--version", "--help"])
def test_version_and_help_load_nothing_heavy(argument: str) -> None:
    code = f"import sys; from callyard.cli import main; main([{argument!r}]); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603 - our own

    assert HEAVY.isdisjoint(done.stdout.split())
    assert "asyncio" not in done.stdout.split()


def test_without_a_command_help_goes_to_stderr(callyard: Run) -> None:
    status, out, err = callyard()

    assert (status, out) == (2, "")
    assert all(command in err for command in ("list", "call", "describe", "manifest", "version"))


def test_help_that_was_asked_for_goes_to_stdout(callyard: Run) -> None:
    status, out, err = callyard("call", "--help")

    assert (status, err) == (0, "")
    assert "--session" in out


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["lst"], "'list'"),
        (["list", "shop.py", "--jsno"], "'--json'"),
        (["call", "shop.py", "echo", "--sesion=s_1"], "'--session'"),
        (["--qiet", "version"], "'--quiet'"),
    ],
)
def test_a_similar_name_is_suggested(arguments: list[str], meant: str, callyard: Run) -> None:
    status, out, err = callyard(*arguments)

    assert (status, out) == (2, "")
    assert meant in err


@pytest.mark.parametrize(
    "arguments",
    [
        ["frobnicate"],
        ["list"],
        ["list", "shop.py", "--ses"],
        ["list", "shop.py", "--js"],
        ["list", "shop.py", "more"],
        ["call", "shop.py"],
        ["call", "shop.py", "echo", "--session"],
        ["version", "--quiet", "-v"],
        ["-q", "version", "-v"],
        ["manifest", "shop.py", "--json", "--markdown"],
    ],
)
def test_wrong_usage_is_one_line_and_status_2(arguments: list[str], shop: str, callyard: Run) -> None:
    status, out, err = callyard(*arguments)

    assert (status, out) == (2, "")
    assert err.count("\n") == 1


def test_options_may_stand_between_arguments(shop: str, callyard: Run) -> None:
    status, out, _ = callyard("call", "--json", shop, "echo", "text=a", "-q", "number=2")

    assert status == 0
    assert '"text":"a","number":2' in out


@pytest.mark.parametrize("arguments", [["list", "shop.py"], ["manifest", "shop.py"], ["version"]])
def test_a_closed_pipe_is_no_traceback(arguments: list[str], shop: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = [
        sys.executable,
        "-c",
        "import sys; from callyard.cli import main; sys.exit(main())",
        *arguments,
        "--quiet",
    ]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, check=False)  # noqa: S603 - our own
    os.close(writer)

    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("option", ["--json", "--quiet"])
def test_without_a_stdout_a_command_still_runs(option: str, shop: str) -> None:
    code = "import os, sys; os.close(1); os.execv(sys.executable, [sys.executable, '-c', sys.argv[1], *sys.argv[2:]])"
    inner = "import sys; from callyard.cli import main; sys.exit(main())"
    program = [sys.executable, "-c", code, inner, "call", shop, "fail", "code=timeout", option]
    done = subprocess.run(program, stderr=subprocess.PIPE, check=False)  # noqa: S603 - our own

    assert (done.returncode, done.stderr) == (34, b"")


def test_json_is_ascii_where_the_encoding_knows_no_more(write: Write, in_process: Process) -> None:
    write("from callyard import Yard\ndef say() -> str:\n    '''Say.'''\n    return 'é…🙂'\nyard = Yard(tools=[say])\n")

    machine = in_process("call", "app.py", "say", "--json", PYTHONIOENCODING="ascii")
    human = in_process("call", "app.py", "say", PYTHONIOENCODING="ascii")

    assert '"data":"\\u00e9\\u2026\\ud83d\\ude42"' in machine.stdout
    assert human.stdout.splitlines()[1] == "\\xe9\\u2026\\U0001f642"


NOISY = """
import logging
from callyard import Yard
log = logging.getLogger("noisy")
def make() -> None:
    '''Make noise.'''
    log.debug("event n=1")
    log.info("event n=2")
    log.warning("event n=3\\nbroken")
    log.error("event n=4")
yard = Yard(tools=[make])
"""


def test_a_log_that_nobody_reads_fails_nothing(write: Write) -> None:
    write(NOISY)
    reader, writer = os.pipe()
    os.close(reader)
    program = [
        sys.executable,
        "-c",
        "import sys; from callyard.cli import main; sys.exit(main())",
        "call",
        "app.py",
        "make",
        "--json",
    ]
    done = subprocess.run(program, stdout=subprocess.PIPE, stderr=writer, check=False)  # noqa: S603 - our own
    os.close(writer)

    assert done.returncode == 0
    assert b'"success":true' in done.stdout


@pytest.mark.parametrize(
    ("options", "numbers"), [((), "34"), (("-v",), "234"), (("-vv",), "1234"), (("--quiet",), "4")]
)
def test_logs_go_to_stderr_at_the_level_asked_for(
    options: tuple[str, ...], numbers: str, write: Write, callyard: Run
) -> None:
    write(NOISY)

    status, out, err = callyard("call", "app.py", "make", *options)

    lines = [line.split(" ", 3) for line in err.splitlines() if " noisy " in line]
    assert status == 0
    assert "event" not in out
    assert [message[len("event n=")] for _, _, _, message in lines] == list(numbers)
    assert all(time.endswith("+00:00") and level in logging.getLevelNamesMapping() for time, level, _, _ in lines)


def test_a_log_line_that_cannot_be_written_fails_nothing(write: Write, in_process: Process) -> None:
    write(NOISY.replace('log.error("event n=4")', 'log.error("event n=%d", "four")'))

    assert in_process("call", "app.py", "make").returncode == 0


def test_a_verbose_call_logs_its_record(shop: str, callyard: Run) -> None:
    assert "call tool=list_orders code=ok" in callyard("-v", "call", shop, "list_orders")[2]
    assert "call tool=list_orders" not in callyard("call", shop, "list_orders")[2]


def test_logging_is_as_it_was_afterwards(shop: str, callyard: Run) -> None:
    root = logging.getLogger()
    before = (root.level, list(root.handlers))

    callyard("-vv", "list", shop)

    assert (root.level, list(root.handlers)) == before


def test_the_process_is_as_it_was_afterwards(shop: str, callyard: Run) -> None:
    before = (list(sys.path), sys.stdout, Path.cwd(), dict(os.environ))

    callyard("list", shop)

    assert (list(sys.path), sys.stdout, Path.cwd(), dict(os.environ)) == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize(
    "arguments", [["version"], ["demo"], ["list", "shop.py", "--json"], ["search", "orders", "shop.py"]]
)
@pytest.mark.usefixtures("shop")
def test_an_output_that_is_full_is_one_sentence(arguments: list[str]) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(  # noqa: S603 - our own
            [sys.executable, "-m", "callyard", *arguments], stdout=full, stderr=subprocess.PIPE, check=False
        )

    assert (done.returncode, done.stderr) == (1, b"callyard: The output cannot be written: No space left on device.\n")
