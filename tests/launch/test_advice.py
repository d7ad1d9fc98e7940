"""What a server says at its start about tools that nobody has settled, and about rules that match nothing."""

import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SERVER = Path(__file__).parents[1] / "providers" / "upstream" / "servers" / "silent_server.py"
SERVE = "import sys; from callyard.cli import main; sys.exit(main())"
RULES = '[[rules]]\ndecision = "deny"\ntools = ["wipe_everything"]\n'


@pytest.fixture
def file(write: Callable[..., Path], tmp_path: Path) -> Path:
    """Write a 'callyard.toml' with a server whose tools have no hints, and a rule that matches none."""
    tools = [{"name": name, "description": name, "inputSchema": {"type": "object"}} for name in ("look", "touch")]
    (tmp_path / "tools.json").write_text(json.dumps(tools))
    arguments = ["-I", str(SERVER), str(tmp_path / "tools.json"), str(tmp_path / "calls")]
    table = f"[upstreams.gh]\ncommand = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}\n"
    return write(f'state_dir = "state"\n{RULES}{table}', "callyard.toml")


def change(file: Path, old: str, new: str, *, name: str = "callyard.toml") -> None:
    """Change a text in the file, or give it another name."""
    text = file.read_text().replace(old, new, 1)
    file.unlink()
    file.with_name(name).write_text(text)


@pytest.mark.usefixtures("file")
async def test_the_start_prints_one_line_with_the_command_and_one_for_each_rule_that_matches_nothing(
    program: Any, tmp_path: Path
) -> None:
    server = await program(SERVE, "serve", "--transport", "stdio")
    rule = await server.said(b"wipe_everything")
    line = await server.said(b"callyard settle")
    _, out, rest = await server.end()

    assert b"Rule 1" in rule
    assert b"2 of 'gh'" in line
    assert (out, b"callyard settle" in rest) == (b"", False)
    assert '"operation"' not in (tmp_path / "callyard.lock").read_text()


@pytest.mark.usefixtures("file")
async def test_of_several_workers_one_prints_it(program: Any) -> None:
    server = await program(
        SERVE, "serve", "--transport", "http", "--port", "0", "--workers", "2", "--stateless", "--no-console"
    )
    await server.said(b"callyard settle")
    server.process.send_signal(signal.SIGTERM)
    _, _, rest = await server.end()

    assert b"callyard settle" not in rest


async def test_the_command_names_another_file(program: Any, file: Path) -> None:
    change(file, "", "", name="other.toml")
    server = await program(SERVE, "serve", "--transport", "stdio", "other.toml")

    assert b"callyard settle --config" in await server.said(b"callyard settle")


async def test_nothing_is_said_where_nobody_is_asked(program: Any, file: Path) -> None:
    change(file, "[upstreams.gh]", '[upstreams.broken]\ncommand = "false"\n[upstreams.gh]\nunannotated = "allow"')
    server = await program(SERVE, "serve", "--transport", "stdio")
    rule = await server.said(b"wipe_everything")
    _, _, rest = await server.end()

    assert b"'broken'" in rule  # its tools are not known, so the rule may be right
    assert b"callyard settle" not in rest
