"""Services that take part in decisions: a webhook that receives approvals, and a decision point that judges calls.

What is sent is signed with HMAC-SHA256 over the time and the body. Neither can be called from outside. The HTTP client
is passed in.
"""

import asyncio
import logging
import os
from typing import Any, Final, Literal

import msgspec

from callyard._internal.converted import as_object
from callyard._internal.webhooks import Post, post_signed
from callyard.dispatch.call import Call
from callyard.dispatch.run import run_of
from callyard.model.envelope import encode
from callyard.policy.approvals import Approval
from callyard.policy.cards import Views, make_card
from callyard.policy.rules import Verdict

__all__ = ["HttpDecisionPoint", "HttpWebhook"]

_WAITS_S: Final = (1.0, 5.0, 25.0, 125.0)
_OK: Final = range(200, 300)
_CLIENT_ERROR: Final = range(400, 500)
_log = logging.getLogger(__name__)


class HttpWebhook:
    """Sends each new approval to a URL, up to five times until it is taken."""

    def __init__(self, url: str, secret: str, post: Post, *, waits: tuple[float, ...] = _WAITS_S) -> None:
        self._url = url
        self._secret = secret
        self._post = post
        self._waits = waits

    async def __call__(self, approval: Approval) -> tuple[Literal["approve", "deny"], str] | None:
        """Return the decision and its reason, if the answer has one."""
        body = encode({"type": "approval", **approval.view()})
        for attempt, seconds in enumerate((*self._waits, 0.0), 1):
            status, text = await post_signed(self._post, self._url, body, secret=self._secret)
            if status in _OK:
                return _decision(text)
            _log.warning("webhook_refused id=%s status=%d attempt=%d", approval.id, status, attempt)
            if status in _CLIENT_ERROR:
                return None
            await asyncio.sleep(seconds)
        return None


def _decision(text: bytes) -> tuple[Literal["approve", "deny"], str] | None:
    answer = _object(text)
    decision = answer.get("decision")
    return (decision, _reason(answer)) if decision in ("approve", "deny") else None


def _reason(answer: dict[str, Any]) -> str:
    return str(answer.get("reason") or "")[:500]


def _object(text: bytes) -> dict[str, Any]:
    try:
        return as_object(msgspec.json.decode(text))
    except (msgspec.DecodeError, RecursionError):
        return {}


class HttpDecisionPoint:
    """Asks a URL about calls: it answers `{"decision": "allow" | "ask" | "deny", "reason": …}`.

    Anything else denies.
    """

    def __init__(self, url: str, post: Post, *, seconds: float) -> None:
        self._url = url
        self._post = post
        self._seconds = seconds
        self._mask_key = os.urandom(32)

    async def __call__(self, call: Call, views: Views) -> Verdict:
        """Return the verdict about a call."""
        tool = run_of(call).tool
        assert tool is not None  # noqa: S101 - it is found before it is judged
        card = make_card(
            call, tool=tool, views=views, why="No rule decides about it.", by="anyone", mask_key=self._mask_key
        )
        try:
            async with asyncio.timeout(self._seconds):
                status, text = await self._post(self._url, encode({"type": "call", **msgspec.to_builtins(card)}), {})
        except (OSError, TimeoutError):
            status, text = 0, b""
        answer = _object(text) if status in _OK else {}
        decision, reason = answer.get("decision"), _reason(answer)
        if decision in ("allow", "ask", "deny"):
            return Verdict(decision, None, reason or f"The decision point says '{decision}'.")
        _log.warning("decision_point_failed tool=%s status=%d id=%s", call.spec.name, status, call.id)
        return Verdict("deny", None, "The decision point does not answer.")
