"""Answers of an upstream that is a yard, too: one envelope instead of two, and handles and jobs that work here.

A handle of the inner yard belongs to our connection, not to our caller. So a caller gets a handle of ours that leads to
it, and a job is named with its upstream.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from callyard._internal.converted import as_object
from callyard.dispatch.call import Call
from callyard.dispatch.run import run_of
from callyard.model.envelope import Envelope, UpstreamResult, encode

__all__ = ["adopt", "as_envelope", "envelope_in"]

_KEYS: Final = {"success", "data", "error", "_meta"}
_ID: Final = "c_"
_CLI: Final = "cli"
"""Calls of the command line reach the inner yard's metatools by its own names."""


def envelope_in(structured: object) -> Envelope | None:
    """Return the successful envelope of another yard, or None for any other structured content."""
    if as_object(structured).keys() != _KEYS:
        return None
    try:
        envelope = msgspec.convert(structured, Envelope)
    except msgspec.ValidationError:
        return None
    return envelope if envelope.success and envelope.meta.call_id.startswith(_ID) else None


async def as_envelope(call: Call, source: str, inner: Envelope, result: UpstreamResult) -> Envelope:
    """Return the answer of an inner yard as the answer of a call; clients of ours get one envelope, too."""
    data = await adopt(call, source, inner.data)
    answer = Envelope(success=True, data=data, meta=inner.meta)
    answer.content = result.content
    answer.passthrough = result if data is inner.data else _rewritten(inner, data, result)
    return answer


def _rewritten(inner: Envelope, data: object, result: UpstreamResult) -> UpstreamResult:
    text = encode({"success": True, "data": data, "error": None, "_meta": inner.meta})
    blocks = msgspec.json.decode(result.result)["content"]
    others = [block for block in blocks if block.get("type") != "text"]
    content = encode([{"type": "text", "text": text.decode()}, *others])
    whole = b'{"content":%b,"structuredContent":%b}' % (content, text)
    return UpstreamResult(data, whole, len(text), result.content, result.meta)


async def adopt(call: Call, source: str, data: Any) -> Any:
    """Return data with the handle and the job of an inner yard as they are named here."""
    if call.channel.name == _CLI:
        return data
    fields: Mapping[str, Any] = as_object(data)
    if fields.get("status") == "stored" and isinstance(fields.get("handle"), str):
        results, profile = run_of(call).funnel.results, call.profile
        handle = await results.keep_elsewhere(source, fields["handle"], call.caller.owner)
        read = " ".join(f"Read parts of it with {action}." for action in results.suggest_read(handle, profile))
        return {**fields, "handle": handle, "use": read}
    job_id = fields.get("job_id")
    if not isinstance(job_id, str):
        return data
    named = f"{source}:{job_id}"
    await run_of(call).funnel.results.note_elsewhere(named, call.caller.owner)
    changed: dict[str, Any] = {**fields, "job_id": named}
    if isinstance(fields.get("what_to_do"), str):
        changed["what_to_do"] = fields["what_to_do"].replace(job_id, named)
    result = as_object(fields.get("result"))
    if "data" in result:
        changed["result"] = {**result, "data": await adopt(call, source, result["data"])}
    return changed
