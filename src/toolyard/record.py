"""Records: one finished call without its contents, and where records go."""

from collections.abc import Callable

import msgspec

from toolyard.errors import CodeName
from toolyard.spec import Kind

__all__ = ["Record", "Sink"]


class Record(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One finished call: never an argument, never a result."""

    call_id: str
    tool: str
    """The name of what was called: a tool, a resource or a prompt."""
    started: float
    """Seconds since the epoch."""
    elapsed_ms: float
    code: CodeName | None = None
    """Why it failed, if it did."""
    source: str = ""
    operation: str = ""
    parent_id: str | None = None
    depth: int = 0
    session_id: str | None = None
    identity: str = ""
    scope: str = ""
    profile: str = ""
    door: str = ""
    trace_id: str | None = None
    may_have_run: bool = False
    estimated_tokens: int = 0
    kind: Kind = "tool"
    """What was called."""

    @property
    def success(self) -> bool:
        """Return whether the call went well."""
        return self.code is None


Sink = Callable[[Record], None]
"""Takes every record; it must be quick, and its failures are logged and go no further."""
