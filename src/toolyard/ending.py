"""The end of a call: its answer is stamped, its one record goes to the sinks, and a slow one is warned of."""

import logging
import re
import time
from collections.abc import Sequence
from typing import Final

from toolyard.call import Call
from toolyard.caller import Caller, Door
from toolyard.envelope import Envelope, Meta, estimate_tokens
from toolyard.fit import Fitted
from toolyard.profile import Profile
from toolyard.record import Record, Sink

__all__ = ["Ending"]

_SPEAKABLE: Final = re.compile(r"[A-Za-z0-9_.:-]{1,128}\Z")
_log = logging.getLogger(__name__)


class Ending:
    """Knows of a call what is needed to end it, from before it is admitted."""

    __slots__ = ("_caller", "_door", "_name", "_parent", "_profile", "_started", "call", "call_id")

    def __init__(self, call_id: str, name: str, *, caller: Caller, profile: Profile, door: Door, parent: Call | None) -> None:
        self.call_id = call_id
        self.call: Call | None = None
        self._name = name
        self._caller = caller
        self._profile = profile
        self._door = door
        self._parent = parent
        self._started = time.perf_counter()

    @property
    def tool(self) -> str:
        """Return the tool's name, or what may be repeated of a name that is none."""
        if self.call is not None:
            return self.call.spec.name
        return self._name if _SPEAKABLE.match(str(self._name)) else "?"

    def end(self, fitted: Fitted, sinks: Sequence[Sink], *, slow: float) -> Envelope:
        """Return the stamped answer, having recorded the call."""
        elapsed = time.perf_counter() - self._started
        data, error, content, encoded = fitted
        call = self.call
        session_id = None if call is None else call.session_id
        tokens = estimate_tokens(data, error, None if encoded is None else encoded.characters)
        coerced, warnings = (call.coerced, call.warnings) if call is not None else ((), ())
        meta = Meta(self.call_id, int(elapsed * 1000), tokens, session_id, coerced, warnings)
        answer = Envelope(error is None, data, error, meta)
        if content:
            answer.beside(content)
        if sinks:
            self._record(answer, elapsed, sinks)
        if elapsed > slow:
            code = error.code if error is not None else "ok"
            _log.warning("slow tool=%s ms=%d code=%s id=%s", self.tool, elapsed * 1000, code, self.call_id)
        return answer

    def _record(self, answer: Envelope, elapsed: float, sinks: Sequence[Sink]) -> None:
        call, error = self.call, answer.error
        record = Record(
            self.call_id,
            self.tool,
            time.time() - elapsed,
            elapsed * 1000,
            None if error is None else error.code,
            "" if call is None else call.spec.source,
            "" if call is None else call.spec.operation,
            None if self._parent is None else self._parent.id,
            0 if self._parent is None else self._parent.depth + 1,
            answer.meta.session_id,
            self._caller.identity,
            self._caller.scope,
            self._profile.name,
            self._door.name,
            self._door.trace_id,
            call is not None and call.running if error is None else error.may_have_run,
            answer.meta.estimated_tokens,
        )
        for sink in sinks:
            try:
                sink(record)
            except Exception:  # noqa: BLE001 - a sink may raise anything, and must not fail the call
                _log.exception("sink_failed id=%s", self.call_id)
