"""From settings to the targets of probes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from callyard._internal.files import find_state_dir
from callyard._internal.project import project_dir
from callyard.config import Config
from callyard.config.probes import ProbeTable
from callyard.launch.build import make_vaults, resolve_upstreams
from callyard.launch.errors import LaunchError, as_launch_error
from callyard.launch.notices import Notices
from callyard.model.names import did_you_mean
from callyard.probe import Target
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.pins import LockError, find_lock, parse_lock
from callyard.providers.upstream.settings import ResolvedUpstream, UpstreamSettings

__all__ = ["probe_targets", "program_target", "served_target"]

_PROGRAM: Final = "program"


def probe_targets(config: Config, notices: Notices, *, name: str = "", pin: Path | None = None) -> list[Target]:
    """Return the enabled upstreams of the settings as targets, or the one of that name.

    Raises:
        LaunchError: There is none, a table belongs to no upstream, or the state directory or `pin` cannot be used.
    """
    for table in config.probes:
        if table not in config.upstreams and config.settings.target is None:
            meant = did_you_mean(table, list(config.upstreams))
            raise LaunchError(f"The table '[probe.{table}]' belongs to no upstream.{meant}")
    if name and name not in config.upstreams:
        raise LaunchError(f"There is no upstream '{name}'.{did_you_mean(name, list(config.upstreams))}")
    resolved = resolve_upstreams(config, notices)
    if name:
        resolved = {name: resolved[name]} if name in resolved else {}
    if not resolved:
        raise LaunchError("There is nothing to probe. Name an upstream, a URL, or a program after '--'.")
    return [_target(config, known, one, config.probes.get(known, ProbeTable()), pin) for known, one in resolved.items()]


def program_target(config: Config, command: Sequence[str], *, pin: Path | None = None) -> Target:
    """Return a program as a target.

    Raises:
        LaunchError: The state directory or `pin` cannot be used.
    """
    settings = UpstreamSettings(command=command[0], args=tuple(command[1:]))
    return _target(config, _PROGRAM, ResolvedUpstream(settings), ProbeTable(), pin)


def served_target(config: Config, yard: str, *, pin: Path | None = None) -> Target:
    """Return a yard as a target, served over stdio by a program of its own.

    Raises:
        LaunchError: The state directory or `pin` cannot be used.
    """
    return program_target(config, [sys.executable, "-m", "callyard", "serve", yard, "--transport", "stdio"], pin=pin)


def _target(config: Config, name: str, resolved: ResolvedUpstream, checks: ProbeTable, pin: Path | None) -> Target:
    try:
        state = project_dir(find_state_dir(config.settings.state_dir), config.project)
    except OSError as error:
        reason = f"The state directory cannot be used: {error.strerror}."
        raise LaunchError(f"{reason} Set another with 'state_dir'.") from error
    target = Target(
        name=name,
        settings=resolved.settings,
        folder=folder_of(state, name),
        checks=checks,
        lock=find_lock(config.path, state) if pin is None else pin,
        problem=resolved.problem,
        vaults=make_vaults(config) if resolved.settings.url is not None else None,
    )
    return target if pin is None else replace(target, pinned_as=_pinned_as(name, pin))


def _pinned_as(name: str, pin: Path) -> str:
    """Return the upstream of a lock whose definitions are meant: that of the name, or the only one."""
    try:
        with as_launch_error(LockError):
            locked = parse_lock(pin, pin.read_bytes())
    except OSError as error:
        raise LaunchError(f"'{pin}' cannot be read: {error.strerror}.") from error
    if name not in locked and len(locked) != 1:
        raise LaunchError(f"'{pin}' has no definitions of '{name}'.")
    return name if name in locked else next(iter(locked))
