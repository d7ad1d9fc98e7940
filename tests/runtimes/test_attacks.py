"""Every attack on every sandboxed backend: none succeeds, the host stays up, and the next run works."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks import ATTACKS, GROUPS, Attack
from backends import FULL, SANDBOXED, answer, opened

from toolyard.runtimes.runtime import RunLimits, RunResult, Runtime

SLOW = {"container": 10, "wasm": 10}
"""Backends that take long for each run: one attack in so many is tried, unless all are asked for."""
LIMITS = RunLimits(seconds=1.5, output_bytes=1 << 20, calls=1000)


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setenv("SECRET_CANARY", "LEAK")
    path = tmp_path / "CANARY"
    path.write_text("LEAK CANARY-SECRET")
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=_greet, args=(server,), daemon=True)
        thread.start()
        yield str(path), server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def _greet(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.sendall(b"LEAK LEAK")


def chosen(backend: str, group: str) -> list[Attack]:
    attacks = [attack for attack in ATTACKS if attack.group == group]
    return attacks if FULL or backend not in SLOW else attacks[:: SLOW[backend]]


def verdict(attack: Attack, result: RunResult) -> str | None:
    """Return what is wrong with the result of an attack."""
    failure = result.failure
    if "LEAK" in result.stdout or "LEAK" in result.stderr or "LEAK" in str(result.value):
        return f"leaked: {result.stdout[:200]} {result.stderr[:200]}"
    if attack.must in ("DENY", "LIMIT") and failure is None:
        return f"ended well with {str(result.value)[:100]}"
    return None


def untouched(path: str) -> bool:
    return Path(path).read_text() == "LEAK CANARY-SECRET" and Path("/dev/null").exists()


async def attempt(runtime: Runtime, attack: Attack, path: str, port: int) -> str | None:
    code = attack.code.replace("$CANARY", path).replace("$PORT", str(port))
    result = await runtime.run(code, None, LIMITS, answer)
    wrong = verdict(attack, result)
    after = await runtime.run("1 + 1", None, RunLimits(seconds=20), answer)
    if after.value != 2:
        wrong = f"{wrong or ''} the next run failed: {after.failure}"
    again = await runtime.run(code, None, LIMITS, answer) if attack.group == "state" else None
    return wrong or (verdict(attack, again) if again is not None else None)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("backend", SANDBOXED)
async def test_no_attack_succeeds(backend: str, group: str, canary: tuple[str, int]) -> None:
    async with opened(backend) as runtime:
        for attack in chosen(backend, group):
            wrong = await attempt(runtime, attack, *canary)
            assert wrong is None, f"{backend}: {attack.name} {wrong}\n{attack.code}"
    assert untouched(canary[0])
