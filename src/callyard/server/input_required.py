"""Questions as results: `input_required` of the 2026-07-28 era.

The client sends its request again with the answers and with a state that this server signed. The state names a detached call,
which waits meanwhile in this process.
"""

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import msgspec

from callyard._internal.signed_tokens import SignatureError, Signer
from callyard.dispatch.call import CallRequest
from callyard.dispatch.detached import DetachedCall, DetachedCalls, Questions
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Envelope
from callyard.model.errors import ToolError
from callyard.wire.messages import INVALID_PARAMS, Fault

if TYPE_CHECKING:
    from callyard.server.context import RequestContext

__all__ = ["InputRequest", "InputRequired"]

_PURPOSE: Final = "state of a request"


class InputRequest(msgspec.Struct, frozen=True):
    """The questions of a call to its client, and the state to send back with the answers."""

    asks: Mapping[str, ClientRequest]
    state: str


class InputRequired:
    """Starts the calls that may ask, and continues those whose state a request brings."""

    def __init__(self, calls: DetachedCalls, signer: Signer) -> None:
        self.calls = calls
        self._signer = signer

    async def run(self, request: CallRequest, context: "RequestContext", state: str | None) -> Envelope | InputRequest:
        """Start a call, or continue the one that the state names; return its answer or its next questions.

        Raises:
            Fault: The state is forged, expired, or of another request.
            ToolError: `state_error` if the call is gone and cannot be started again, `overloaded` if the store cannot be used.
        """
        if state is None:
            return await self._start(request, context)
        key, declared = self._verify(state, request)
        call = self.calls.get(key)
        if call is None or call.questions is None:
            if declared and await self.calls.mark_answered(key):
                return await self._start(request, context)
            raise _call_gone()
        if not call.questions.asks.keys() <= context.input_responses.keys():
            return self._input_request(call.questions)
        self.calls.remove(key)  # before anything is awaited: a second request at the same moment does not find the call
        if declared and not await self._is_first_answer(key, call):
            raise _call_gone()
        call.resume(context)
        return self._result(await call.outcome())

    async def _is_first_answer(self, key: str, call: DetachedCall) -> bool:
        """Mark that the declared questions of a call were answered; a call that must not go on, because it started again, is cancelled."""
        first = False
        try:
            first = await self.calls.mark_answered(key)
        finally:
            if not first:
                call.task.cancel()
        return first

    async def _start(self, request: CallRequest, context: "RequestContext") -> Envelope | InputRequest:
        return self._result(await self.calls.start(request, context).outcome())

    def _result(self, outcome: Envelope | Questions) -> Envelope | InputRequest:
        return outcome if isinstance(outcome, Envelope) else self._input_request(outcome)

    def _input_request(self, questions: Questions) -> InputRequest:
        state = [questions.key, questions.fingerprint, int(questions.expires_at), questions.declared]
        return InputRequest(questions.asks, self._signer.sign(_PURPOSE, state))

    def _verify(self, state: str, request: CallRequest) -> tuple[str, bool]:
        try:
            key, fingerprint, expires_at, declared = self._signer.verify(_PURPOSE, state)
        except SignatureError:
            raise Fault(INVALID_PARAMS, "The 'requestState' was not issued by this server.") from None
        if fingerprint != request.fingerprint():
            raise Fault(INVALID_PARAMS, "The 'requestState' belongs to another request.")
        if expires_at < time.time():
            raise Fault(INVALID_PARAMS, "The 'requestState' has expired.")
        return key, declared


def _call_gone() -> ToolError:
    return ToolError(
        "state_error",
        "The call that asked is gone: the server was started anew, or it was answered already.",
        hint="Look at the state first: the call may have run.",
        may_have_run=True,
        reason="call_gone",
    )
