"""`callyard packs`: what is installed and named here, or open at a running server."""

import asyncio
import json
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fake_packages import PAGE, Install, install
from table_tests import every_row

from callyard import Serving, Yard
from callyard._version import VERSION
from callyard.cli import main
from callyard.launch.errors import exit_status
from callyard.launch.mounts import VARIABLE, ServerFacts
from callyard.launch.serve import serve_forever

__all__ = ["install"]

Write = Callable[..., Path]
TOKEN = "a-token-of-the-test"  # noqa: S105 - no real one
FIRST_PARTY = [path.parent.name for path in (Path(__file__).parents[2] / "packs").glob("*/pyproject.toml")]
"""Packs of this repository, which are installed beside it."""
NEEDY = PAGE.replace("Functions, Pack,", "Functions, Needs, Pack,").replace(
    'Pack(name="page"',
    'Pack(needs=Needs(programs="no-such", optional="nor-this", eval_targets=("page",)), name="page"',
)


@pytest.fixture(autouse=True)
def in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Generator[str]:
    """Serve a yard with the pack `system` in a thread, and yield the URL of its endpoint."""
    monkeypatch.setenv(VARIABLE, TOKEN)
    addresses: list[str] = []
    is_ready = threading.Event()
    loops: list[tuple[asyncio.AbstractEventLoop, asyncio.Task[None]]] = []

    def ready(address: str) -> None:
        addresses.append(address)
        is_ready.set()

    async def serving() -> None:
        yard = Yard(packs=["system"])
        task = asyncio.ensure_future(
            serve_forever(
                yard,
                Serving(transport="http", port=0),
                mounted=[ServerFacts(yard, TOKEN, is_authenticated=False)],
                ready=lambda transport: ready(transport.info().address),
            )
        )
        loops.append((asyncio.get_running_loop(), task))
        await asyncio.gather(task, return_exceptions=True)

    thread = threading.Thread(target=lambda: asyncio.run(serving()))
    thread.start()
    assert is_ready.wait(60)
    yield addresses[0]
    loop, task = loops[0]
    loop.call_soon_threadsafe(task.cancel)
    thread.join()


def test_packs_are_installed_ready_or_failed_and_only_named_ones_are_imported(
    install: Install, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    install("page", package="callyard-page", version="2.1")
    install("idle", "raise SystemExit(3)")
    write('packs = ["page", "nothing", "system"]\n[pack.page]\nwidth = 3\ntoken = "hunter2"\n', "callyard.toml")
    status = main(["packs", "--json"])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    assert status == 1
    assert {name: row["state"] for name, row in rows.items() if name not in FIRST_PARTY} == {
        "page": "failed",
        "nothing": "failed",
        "idle": "installed",
        "system": "ready",
    }
    assert "pack.page.width" in rows["page"]["reason"]
    assert "'nothing'" in rows["nothing"]["reason"]
    assert (rows["page"]["package"], rows["page"]["version"]) == ("callyard-page", "2.1")
    assert (rows["system"]["package"], rows["system"]["version"]) == ("callyard", VERSION)
    assert "hunter2" not in json.dumps(rows)


def test_a_missing_program_and_a_gated_target_are_shown(
    install: Install, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    install("page", NEEDY)
    write('packs = ["page"]\n', "callyard.toml")
    status = main(["packs", "callyard.toml"])
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    lines = [line for line in lines if line[0] not in FIRST_PARTY]

    assert status == 1
    assert [line[:4] for line in lines] == [
        ["page", "failed", "1.2", "callyard-page"],
        ["system", "installed", VERSION, "callyard"],
    ]
    assert all(word in lines[0][4] for word in ("'no-such'", "'nor-this'", "--allow-eval=page"))


def test_a_pack_that_is_ready_is_shown_in_a_table(
    install: Install, write: Write, in_terminal: Callable[..., str], tmp_path: Path
) -> None:
    install("page")
    write('packs = ["page"]\nallow_eval = ["page"]\n', "callyard.toml")
    text = in_terminal("packs", PYTHONPATH=str(tmp_path / "site"))

    assert "ready" in text
    assert "callyard-page" in text


def test_the_packs_of_a_running_server_come_from_its_api(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    for url in (server, server.removesuffix("/mcp")):
        assert main(["packs", url, "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)

        assert (row["name"], row["state"], row["version"]) == ("system", "open", VERSION)


def test_a_wrong_key_is_refused(server: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", server, "--key", "wrong-key"]) == exit_status("unauthenticated")
    assert "--key" in capsys.readouterr().err


@every_row(
    ("url", "code"),
    [("http://127.0.0.1:1/mcp", "upstream_unavailable"), ("http://nothing.invalid/mcp", "upstream_unavailable")],
)
def test_a_server_that_is_not_there_has_a_status_of_its_own(url: str, code: str) -> None:
    assert main(["packs", url]) == exit_status(code)  # pyright: ignore[reportArgumentType] - a name of the table


def test_an_address_that_has_no_packs_is_no_server(server: str) -> None:
    assert main(["packs", f"{server.removesuffix('/mcp')}/elsewhere"]) == exit_status("upstream_error")


def test_an_answer_that_is_no_list_of_packs_is_an_error_of_the_server(
    server: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(*_: object, **__: object) -> tuple[int, bytes]:
        return 200, b"<html>"

    monkeypatch.setattr("callyard.cli.packs.get_json", answer)

    assert main(["packs", server]) == exit_status("upstream_error")


def test_a_target_that_is_a_yard_is_refused_because_nothing_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["packs", "bank.py"]) == 2
    assert "callyard.toml" in capsys.readouterr().err
