"""Status: how an upstream is, as people and programs are told; also what of it is kept for commands that ask later."""

from typing import Literal

import msgspec

__all__ = ["State", "Status"]

State = Literal["cold", "starting", "ready", "degraded", "backing_off", "auth_needed", "stopped"]


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """How one upstream is, and why."""

    name: str
    state: State
    reason: str = ""
    since: float = 0.0
    """When it came to be so, in seconds of the wall clock."""
    server: str = ""
    """What it calls itself."""
    version: str = ""
    """The version of the protocol it speaks."""
    tools: int = 0
    resources: int = 0
    prompts: int = 0
    withheld: int = 0
    """Things that it has and that are not published."""
    calls: int = 0
    failures: int = 0
    latency_ms: float | None = None
    """What a call took lately, on average."""
    last_error: str = ""
    retry_at: float | None = None
    """When it may be tried again, in seconds of the wall clock."""
    seen: float | None = None
    """When what it offers was last looked at."""
    pid: int = 0
    """The yard that says so."""
