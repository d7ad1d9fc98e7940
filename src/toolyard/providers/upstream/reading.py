"""Reading answers: from what an upstream's tool answered to what a call returns."""

from typing import Any, Final, cast

import msgspec

from toolyard.asks import ASK_METHODS, Ask
from toolyard.content import Foreign
from toolyard.envelope import Passed
from toolyard.errors import ToolError
from toolyard.providers.upstream.naming import with_our_uris
from toolyard.providers.upstream.troubles import no_result, refusal_of
from toolyard.wire.faults import Fault
from toolyard.wire.messages import check_depth
from toolyard.wire.params import unreserved

__all__ = ["Answer", "asks_of", "passed_of", "read_answer"]

_NOTHING: Final = msgspec.Raw(b"")
_NULL: Final = b"null"
_WORDS: Final = 200


class Answer(msgspec.Struct, rename="camel", kw_only=True):
    """What an upstream answered a call, a reading or a prompt with; what is passed on stays JSON."""

    content: msgspec.Raw = msgspec.Raw(b"[]")
    structured_content: msgspec.Raw = _NOTHING
    is_error: bool | None = None
    result_type: str | None = None
    input_requests: dict[str, dict[str, Any]] | None = None
    request_state: str | None = None
    meta: dict[str, Any] | None = msgspec.field(default=None, name="_meta")


_decode: Final = msgspec.json.Decoder(Answer).decode
_decode_blocks: Final = msgspec.json.Decoder(list[Any]).decode


def read_answer(name: str, result: msgspec.Raw) -> Answer:
    """Return an answer as it was meant.

    Raises:
        ToolError: `upstream_error`, because it is none.
    """
    try:
        return _decode(result)
    except msgspec.DecodeError as error:
        raise no_result(name, error) from error


def asks_of(name: str, answer: Answer) -> dict[str, Ask] | None:
    """Return what an upstream wants to know first, or nothing if it is done.

    Raises:
        ToolError: `upstream_error`, because it asks what nobody knows how to ask.
    """
    if answer.result_type != "input_required":
        return None
    asks: dict[str, Ask] = {}
    for key, wanted in (answer.input_requests or {}).items():
        method: Any = wanted.get("method")
        params: Any = wanted.get("params") or {}
        if str(method) not in ASK_METHODS or not isinstance(params, dict):
            raise ToolError("upstream_error", f"'{name}' asks for '{str(method)[:_WORDS]}', which is not known here.", upstream=name)
        asks[key] = Ask(method, cast("dict[str, Any]", params))
    return asks


def passed_of(name: str, answer: Answer, prefix: str) -> Passed:
    """Return a good answer, to be passed on as it is.

    Raises:
        ToolError: `upstream_error`, in the words of the tool, because it says that it failed.
    """
    raw: bytes | msgspec.Raw = answer.content if answer.content and bytes(answer.content) != _NULL else b"[]"
    has_structured = bool(answer.structured_content) and bytes(answer.structured_content) != _NULL
    try:
        told = _decode_blocks(raw)
        structured = msgspec.json.decode(answer.structured_content) if has_structured else None
    except msgspec.DecodeError as error:
        raise no_result(name, error) from error
    blocks = [cast("dict[str, Any]", block) for block in told if isinstance(block, dict)]
    if (prefix and b'"uri"' in bytes(raw)) or len(blocks) < len(told):  # what is no block at all no client could read
        blocks = with_our_uris(prefix, blocks)
        raw = msgspec.json.encode(blocks)
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.is_error:
        raise refusal_of(name, "\n".join(texts), structured)
    others = tuple(Foreign(block) for block in blocks if block.get("type") != "text")
    parts = (b'{"content":', raw, b',"structuredContent":' if has_structured else b"", answer.structured_content, b"}")
    return Passed(
        structured if has_structured else _data(blocks, texts, others),
        b"".join(parts if has_structured else (*parts[:2], b"}")),
        max(len(answer.structured_content), sum(map(len, texts))),
        others,
        unreserved(answer.meta) if answer.meta else {},
        b"" if not has_structured or isinstance(structured, dict) else _unstructured(raw, blocks, answer.structured_content),
    )


def _unstructured(raw: bytes | msgspec.Raw, blocks: list[dict[str, Any]], structured: msgspec.Raw) -> bytes:
    """Return an answer as content alone: in the older era only an object may be structured content."""
    told = raw if blocks else msgspec.json.encode([{"type": "text", "text": bytes(structured).decode()}])
    return b'{"content":%b}' % bytes(told)


def _data(blocks: list[dict[str, Any]], texts: list[str], others: tuple[Foreign, ...]) -> Any:
    """Return what an envelope says of content that has no structure: one text, read as JSON if it is; or what each block is."""
    if not blocks:
        return None
    if len(texts) == 1 and not others:
        return _parsed(texts[0])
    return [block if block.get("type") == "text" else Foreign(block).describe() for block in blocks]


def _parsed(text: str) -> Any:
    if text[:1] not in {"{", "["}:
        return text
    try:
        check_depth(text.encode())
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, Fault):
        return text
