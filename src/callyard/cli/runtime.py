"""`callyard runtime` and `callyard code`: what can run programs here, and a program against a yard."""

import asyncio
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from callyard._internal.files import find_state_dir
from callyard.cli.call import write_envelope
from callyard.cli.parser import Options
from callyard.cli.targets import config_from, run_in_yard
from callyard.cli.terminal import Painted, Terminal
from callyard.dispatch.call import Caller, Channel
from callyard.launch.errors import LaunchError, exit_status
from callyard.metatools.code import EXECUTE_CODE
from callyard.model.envelope import encode
from callyard.model.profile import Profile
from callyard.policy.approvals import Approval
from callyard.runtimes.container import build_image, find_engine
from callyard.runtimes.runtime import Probe, RuntimeMissingError
from callyard.runtimes.selection import probe_all
from callyard.yard import Yard

__all__ = ["run_code", "run_runtime"]

_STDIN: Final = "-"
_MARGIN_S: Final = 60.0
"""How much longer a call waits than its approval lives, so that it always sees the end of it."""
_UNAVAILABLE: Final = exit_status("runtime_unavailable")


def run_runtime(options: Options, terminal: Terminal) -> int:
    """List the backends, attack them, or build the image of the containers."""
    config = config_from(options, terminal)
    try:
        state_dir = str(find_state_dir(config.settings.state_dir))  # images and compiled modules belong to no project
    except OSError as error:
        raise LaunchError(f"The state directory cannot be used: {error.strerror}. Set another with 'state_dir'.") from error
    if options.name == "build":
        return asyncio.run(_build(terminal, state_dir))
    probes = asyncio.run(probe_all(config.settings.runtime, state_dir, attack=options.name == "probe"))
    if options.json:
        terminal.write_json(encode([msgspec.to_builtins(probe) for probe in probes]))
    else:
        for probe in probes:
            _write_probe(probe, terminal)
    return 0 if any(probe.available and probe.sandboxed for probe in probes) else _UNAVAILABLE


async def _build(terminal: Terminal, state_dir: str) -> int:
    try:
        engine = await find_engine()
        terminal.inform(f"Building the image of the guests with '{engine.program}' …")
        image = await build_image(engine, state_dir=state_dir)
    except RuntimeMissingError as error:
        raise LaunchError(f"{error} {error.install}".strip(), status=_UNAVAILABLE) from None
    terminal.write(image)
    return 0


def _write_probe(probe: Probe, terminal: Terminal) -> None:
    state = Painted("ready", "good") if probe.available else Painted("missing", "bad")
    kind = "" if probe.sandboxed else "  no sandbox: for development only"
    terminal.write(Painted(f"{probe.backend:<12}", "bold"), state, f"  {probe.version}{kind}".rstrip())
    if not probe.available:
        terminal.write(f"  {probe.reason} {probe.install}".rstrip())
    for limit, why in probe.unenforced.items():
        terminal.write(f"  not enforced: {limit} ({why})")
    if probe.canaries:
        terminal.write("  stopped: ", ", ".join(name for name, stopped in probe.canaries.items() if stopped))


def run_code(options: Options, terminal: Terminal) -> int:
    """Run a program against a yard with live output, print its value, and return the exit status of its code."""
    code = _read(options.file or _STDIN)
    options.settings = {**options.settings, "runtime.enabled": True}
    options.name = EXECUTE_CODE
    return run_in_yard(options, terminal, partial(_run, code=code, options=options, terminal=terminal), tool=EXECUTE_CODE, runs=True)


def _read(file: str) -> str:
    try:
        if file == _STDIN:
            return "" if sys.stdin is None else sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"The program '{file}' cannot be read: {error}.") from None


async def _run(yard: Yard, profile: Profile, *, code: str, options: Options, terminal: Terminal) -> int:
    _wait_for_people(yard, terminal)
    envelope = await yard.call(EXECUTE_CODE, {"code": code}, caller=Caller(profile=profile), channel=_channel(options, terminal))
    if options.json or envelope.error is not None or envelope.held:
        return write_envelope(options, terminal, envelope)
    value = envelope.data["value"]
    if value is not None:
        terminal.write(value if isinstance(value, str) else msgspec.json.format(encode(value), indent=2).decode())
    terminal.inform(f"{envelope.data['duration_ms']} ms in {envelope.data['runtime']['backend']}.")
    return 0


def _wait_for_people(yard: Yard, terminal: Terminal) -> None:
    """Let calls wait here until their approvals expire, and say so: a program would not outlive this command as a job."""

    def tell(approval: Approval) -> None:
        terminal.say(f"'{approval.card.tool}' waits for approval. Decide with 'callyard approvals approve {approval.id}', or 'deny'.")

    yard.limits.approval_hold_s = yard.limits.approval_ttl_s + _MARGIN_S
    if yard.gate is not None:
        yard.gate.requests.on_wait = tell


def _channel(options: Options, terminal: Terminal) -> Channel:
    """Return a channel that writes what the program prints as it is; with `--json`, stdout has the envelope alone."""

    def log(_level: str, text: str, facts: Mapping[str, object]) -> None:
        (terminal.say_text if options.json or facts.get("stream") != "out" else terminal.write_text)(text)

    return Channel(name="cli", log=log, result_characters=sys.maxsize)
