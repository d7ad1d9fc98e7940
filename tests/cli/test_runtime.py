"""`callyard runtime` and `callyard code`: what can run programs here, and a program against a yard."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from backends import require

from callyard.launch.errors import USAGE, exit_status

Run = Callable[..., tuple[int, str, str]]
DEV = ("--runtime-profile", "dev", "--runtime-allow-unsafe", "--allow-eval")


@pytest.fixture
def bubblewrap() -> None:
    asyncio.run(require("bubblewrap"))


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    def write(code: str) -> str:
        path = tmp_path / "program.py"
        path.write_text(code, encoding="utf-8")
        return str(path)

    return write


def test_a_program_runs_against_a_yard_and_prints_its_value_last(
    shop: str, callyard: Run, program: Callable[[str], str]
) -> None:
    status, out, _ = callyard("code", program("print('first')\nlen(await tools.shop.list_orders())"), shop, *DEV)
    first, value = out.splitlines()
    assert (status, first) == (0, "first")
    assert value.isdigit()


PRINTS = """
print('x' * 600_000)
print('a', end='', flush=True)
await call_tool('search_tools', {'query': 'orders'})
print('b\\n\\n')
print('end', end='')
"""


@pytest.mark.parametrize("flags", [(), ("--json",)])
def test_the_output_of_a_program_is_written_unchanged(
    flags: tuple[str, ...], shop: str, callyard: Run, program: Callable[[str], str]
) -> None:
    _, out, error = callyard("code", program(PRINTS), shop, *DEV, *flags)
    printed = "x" * 600_000 + "\nab\n\n\nend"
    assert printed in error if flags else printed == out


def test_the_value_is_on_a_line_of_its_own(shop: str, callyard: Run, program: Callable[[str], str]) -> None:
    _, out, _ = callyard("code", program("print('a', end='')\n5"), shop, *DEV)
    assert out == "a\n5\n"


def test_control_characters_of_a_program_do_not_reach_the_terminal(
    shop: str, callyard: Run, program: Callable[[str], str]
) -> None:
    _, out, error = callyard(
        "code", program("import sys\nprint('\\x1b[31m')\nprint('\\x1b]0;x\\x07', file=sys.stderr)"), shop, *DEV
    )
    assert "\x1b" not in out
    assert "\x1b" not in error


def test_the_envelope_alone_is_on_stdout_with_json(shop: str, callyard: Run, program: Callable[[str], str]) -> None:
    status, out, error = callyard("code", program("print('live')\n{'a': 1}"), shop, *DEV, "--json")
    assert status == 0
    assert json.loads(out)["data"]["value"] == {"a": 1}
    assert "live" in error


def test_a_mistake_in_a_program_has_its_exit_status_and_line(
    shop: str, callyard: Run, program: Callable[[str], str]
) -> None:
    status, out, _ = callyard("code", program("1\n1 / 0"), shop, *DEV, "--json")
    assert status == exit_status("code_error")
    assert json.loads(out)["error"]["details"]["line"] == 2


def test_a_program_that_is_not_there_is_refused(shop: str, callyard: Run) -> None:
    status, _, error = callyard("code", "no/such/file.py", shop)
    assert status == USAGE
    assert "no/such/file.py" in error


@pytest.mark.usefixtures("bubblewrap")
def test_the_sandbox_is_chosen_by_a_flag(shop: str, callyard: Run, program: Callable[[str], str]) -> None:
    status, out, _ = callyard("code", program("1 + 1"), shop, "--runtime-backend", "bubblewrap", "--json")
    assert status == 0
    assert json.loads(out)["data"]["runtime"]["backend"] == "bubblewrap"


def test_an_unknown_backend_is_refused(shop: str, callyard: Run, program: Callable[[str], str]) -> None:
    status, _, _ = callyard("code", program("1"), shop, "--runtime-backend", "qemu")
    assert status == USAGE


def test_every_backend_is_listed_with_the_reason_it_is_missing(
    callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path))
    status, out, _ = callyard("runtime", "list", "--json")
    probes = {probe["backend"]: probe for probe in json.loads(out)}
    assert status == exit_status("runtime_unavailable")
    assert list(probes) == ["container", "bubblewrap", "wasm", "subprocess"]
    assert [name for name, probe in probes.items() if probe["available"]] == ["subprocess"]
    assert all(probe["reason"] and probe["install"] for probe in probes.values() if not probe["available"])
    status, text, _ = callyard("runtime", "list")
    assert [line.split()[0] for line in text.splitlines() if not line.startswith(" ")] == list(probes)


def test_an_image_is_not_built_without_an_engine(
    callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path))
    status, _, _ = callyard("runtime", "build")
    assert status == exit_status("runtime_unavailable")


@pytest.mark.usefixtures("bubblewrap")
def test_a_probe_attacks_the_sandboxes(callyard: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path))
    status, out, _ = callyard("runtime", "probe", "--json")
    found = next(probe for probe in json.loads(out) if probe["backend"] == "bubblewrap")
    assert status == 0
    assert found["canaries"] == {"file": True, "network": True, "process": True, "loop": True}
    assert "stopped: file" in callyard("runtime", "probe")[1]


@pytest.mark.parametrize("arguments", [["--host", "0.0.0.0"], []])  # noqa: S104 - the address is the test
def test_a_server_is_not_started_where_programs_would_run_without_a_sandbox(
    arguments: list[str], shop: str, callyard: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000 if arguments else 0)
    flags = ("--runtime-enabled", "--runtime-profile", "dev", "--allow-eval", "--transport", "http", "--port", "0")
    status, _, error = callyard("serve", shop, *flags, *arguments)
    assert status == USAGE
    assert "allow_unsafe" in error


YARD = """
from callyard import Yard, tool

@tool(operation="destroy")
async def wipe(name: str) -> str:
    \"\"\"Delete something.\"\"\"
    return f"wiped {name}"

yard = Yard("bin", tools=[wipe])
"""
SETTINGS = """
target = "bin.py"
[runtime]
profile = "dev"
allow_unsafe = true
[limits]
approval_ttl_s = %s
[[rules]]
decision = "ask"
operations = ["destroy"]
"""
COMMAND = [sys.executable, "-m", "callyard"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose rule asks before its tool deletes something."""
    monkeypatch.setenv("CALLYARD_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "bin.py").write_text(YARD)
    (tmp_path / "p.py").write_text("print('before')\nresult = await tools.bin.wipe(name='a')\nprint('after')")
    return tmp_path


def test_a_program_in_a_shell_waits_for_an_approval_and_says_how_to_decide(project: Path) -> None:
    (project / "callyard.toml").write_text(SETTINGS % 600)
    with subprocess.Popen(  # noqa: S603 - our own program
        [*COMMAND, "code", "p.py", "--allow-eval"],
        cwd=project,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stderr is not None
        notice = next(line for line in running.stderr if "waits for approval" in line)
        approval_id = notice.partition("approve ")[2].partition("'")[0]
        subprocess.run([*COMMAND, "approvals", "approve", approval_id], cwd=project, check=True, capture_output=True)  # noqa: S603 - our own
        out, _ = running.communicate()
    assert (running.returncode, out.splitlines()) == (0, ["before", "after", "wiped a"])


def test_an_approval_that_expires_is_denied_to_a_program_in_a_shell(project: Path) -> None:
    (project / "callyard.toml").write_text(SETTINGS % 1)
    done = subprocess.run(  # noqa: S603 - our own program
        [*COMMAND, "code", "p.py", "--allow-eval", "--json"], cwd=project, check=False, capture_output=True, text=True
    )
    error = json.loads(done.stdout)["error"]
    assert (error["code"], error["details"]["tool_error"]["code"]) == ("code_error", "approval_denied")
