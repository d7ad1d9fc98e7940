"""Which runtime is chosen, and what happens when there is none."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
from backends import opened
from table_tests import every_row

from callyard import ToolError, Yard, asgi
from callyard.runtimes import selection
from callyard.runtimes.guest_runtime import GuestRuntime, Subprocess
from callyard.runtimes.runtime import RuntimeMissingError, RuntimeSettings
from callyard.runtimes.selection import Runtimes, canary_attacks, try_backend, unsafe_reason
from callyard.runtimes.wasm import Wasm


async def test_a_plain_process_does_not_stop_the_canary_attacks() -> None:
    runtime = GuestRuntime(Subprocess())
    await runtime.open()
    try:
        canaries = await canary_attacks(runtime)
    finally:
        await runtime.close()
    assert canaries == {"file": False, "network": False, "process": False, "loop": True}


async def test_a_sandbox_stops_the_canary_attacks() -> None:
    async with opened("bubblewrap") as runtime:
        assert all((await canary_attacks(runtime)).values())


class _Leaky(Subprocess):
    """A plain process that claims to be a sandbox."""

    async def probe(self) -> Any:
        import msgspec  # noqa: PLC0415 - only this test needs it

        return msgspec.structs.replace(await super().probe(), sandboxed=True)


async def test_a_backend_that_a_canary_escapes_from_is_not_offered() -> None:
    with pytest.raises(RuntimeMissingError, match="file"):
        await try_backend(GuestRuntime(_Leaky()))


@pytest.mark.parametrize("attack", [False, True])
async def test_a_sandbox_that_is_found_and_runs_nothing_is_missing(
    monkeypatch: pytest.MonkeyPatch, *, attack: bool
) -> None:
    class Found(_Leaky):
        async def open(self) -> None:
            raise RuntimeMissingError("It is found, and cannot be started.")

    def make(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> GuestRuntime:
        return GuestRuntime(Found())

    monkeypatch.setattr(selection, "make_runtime", make)
    probes = await selection.probe_all(RuntimeSettings(), None, attack=attack)

    assert [(probe.available, probe.reason) for probe in probes] == [
        (False, "It is found, and cannot be started.") for _ in probes
    ]


async def test_a_backend_that_is_cancelled_while_it_opens_is_closed() -> None:
    class Slow(Subprocess):
        is_closed = False

        async def open(self) -> None:
            opening.set()
            await asyncio.Event().wait()

        async def close(self) -> None:
            self.is_closed = True
            await super().close()

    opening, slow = asyncio.Event(), Slow()
    trying = asyncio.create_task(try_backend(GuestRuntime(slow)))
    await opening.wait()
    trying.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trying

    assert slow.is_closed


def make_missing(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> GuestRuntime:
    class Missing(Subprocess):
        async def open(self) -> None:
            raise RuntimeMissingError(f"{name} is not here.", install=f"Install {name}.")

    return GuestRuntime(Missing())


async def test_standard_fails_closed_and_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "make_runtime", make_missing)
    async with Runtimes(RuntimeSettings(enabled=True, wasm_enabled=True)).open() as runtimes:
        with pytest.raises(ToolError) as caught:
            await runtimes.selected()
    assert caught.value.code == "runtime_unavailable"
    assert list(caught.value.details["backends"]) == ["container", "bubblewrap", "wasm"]  # pyright: ignore[reportArgumentType, reportCallIssue] - details are objects
    assert caught.value.hint == "Install container. Or: Install bubblewrap. Or: Install wasm."


async def test_a_runtime_that_fails_to_close_is_logged_and_does_not_fail_the_yard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[str] = []

    def make(name: str, settings: RuntimeSettings, *, state_dir: str | None = None) -> GuestRuntime:
        class Closing(Subprocess):
            async def close(self) -> None:
                closed.append(name)
                await super().close()
                raise OSError

        return GuestRuntime(Closing())

    monkeypatch.setattr(selection, "make_runtime", make)
    async with Runtimes(RuntimeSettings(enabled=True, backend="bubblewrap")).open() as runtimes:
        await runtimes.selected()
    assert closed == ["bubblewrap"]
    assert "runtime_close_failed" in caplog.text


async def test_the_order_of_backends_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "make_runtime", make_missing)
    settings = RuntimeSettings(enabled=True, order=("wasm", "bubblewrap"), wasm_enabled=True)
    async with Runtimes(settings).open() as runtimes:
        with pytest.raises(ToolError) as caught:
            await runtimes.selected()
    assert list(caught.value.details["backends"]) == ["wasm", "bubblewrap"]  # pyright: ignore[reportArgumentType, reportCallIssue] - details are objects


async def test_wasm_is_left_out_where_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "make_runtime", make_missing)
    async with Runtimes(RuntimeSettings(enabled=True, wasm_enabled=False, wasm_path="x.wasm")).open() as runtimes:
        with pytest.raises(ToolError) as caught:
            await runtimes.selected()
    assert "wasm" not in caught.value.details["backends"]  # pyright: ignore[reportOperatorIssue] - details are objects


@pytest.mark.parametrize(
    "settings",
    [
        RuntimeSettings(enabled=True, order=("wasm",)),
        RuntimeSettings(enabled=True, order=("wasm",), wasm_enabled=False),
        RuntimeSettings(enabled=True, order=("wasm",), wasm_path="/no/such/file"),
    ],
)
async def test_without_any_backend_the_hint_says_what_to_do(settings: RuntimeSettings) -> None:
    async with Runtimes(settings).open() as runtimes:
        with pytest.raises(ToolError) as caught:
            await runtimes.selected()
    assert caught.value.code == "runtime_unavailable"
    assert "wasm" in (caught.value.hint or "")


def test_asgi_refuses_to_run_programs_without_a_sandbox() -> None:
    with pytest.raises(ValueError, match="allow_unsafe"):
        asgi(Yard(runtime=RuntimeSettings(enabled=True, profile="dev")))
    asgi(Yard(runtime=RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True)))
    asgi(Yard(runtime=RuntimeSettings(enabled=True)))


async def test_a_runtime_that_was_missing_is_looked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    real = selection.make_runtime
    monkeypatch.setattr(selection, "make_runtime", make_missing)
    async with Runtimes(RuntimeSettings(enabled=True, profile="dev", allow_unsafe=True)).open() as runtimes:
        with pytest.raises(ToolError):
            await runtimes.selected()
        monkeypatch.setattr(selection, "make_runtime", real)
        _, probe = await runtimes.selected()
    assert probe.backend == "subprocess"


@pytest.mark.parametrize(
    ("settings", "uid", "host", "refused"),
    [
        (RuntimeSettings(profile="dev"), 0, None, True),
        (RuntimeSettings(profile="dev"), 1000, None, False),
        (RuntimeSettings(profile="dev"), 1000, "127.0.0.1", False),
        (RuntimeSettings(profile="dev"), 1000, "127.8.9.10", False),
        (RuntimeSettings(profile="dev"), 1000, "[::1]", False),
        (RuntimeSettings(profile="dev"), 1000, "LocalHost", False),
        (RuntimeSettings(profile="dev"), 1000, "127.example.com", True),
        (RuntimeSettings(profile="dev"), 1000, "0.0.0.0", True),  # noqa: S104 - the address is the test
        (RuntimeSettings(profile="dev", allow_unsafe=True), 0, "0.0.0.0", False),  # noqa: S104 - the same
        (RuntimeSettings(profile="standard"), 0, "0.0.0.0", False),  # noqa: S104 - the same
    ],
)
def test_dev_is_refused_as_root_and_where_others_can_reach_it(
    monkeypatch: pytest.MonkeyPatch, settings: RuntimeSettings, uid: int, host: str | None, *, refused: bool
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert (unsafe_reason(settings, host=host) is not None) is refused


@every_row("wrong", [{"profile": "fast"}, {"backend": "qemu"}, {"order": ("qemu",)}, {"concurrency": 0}])
def test_wrong_settings_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="setting"):
        RuntimeSettings(**wrong)


async def test_a_wasm_file_with_an_unknown_digest_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "python.wasm"
    path.write_bytes(b"\0asm")
    probe = await Wasm(str(path), state_dir=str(tmp_path)).probe()
    assert not probe.available
    trusted = await Wasm(
        str(path), digest=__import__("hashlib").sha256(b"\0asm").hexdigest(), state_dir=str(tmp_path)
    ).probe()
    assert trusted.available


async def test_wasm_is_refused_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "win32")
    probe = await Wasm(None).probe()
    assert not probe.available
    assert "WSL" in probe.install
