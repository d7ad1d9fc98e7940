"""Reading answers: from what an upstream's tool answered to what a call returns."""

from typing import Any, Final, cast

import msgspec

from toolyard.asks import Ask
from toolyard.content import Foreign
from toolyard.envelope import Passed
from toolyard.errors import ToolError
from toolyard.providers.upstream.naming import with_our_uris
from toolyard.providers.upstream.troubles import refusal_of
from toolyard.wire.params import unreserved

__all__ = ["Answer", "asks_of", "passed_of", "read_answer"]

_NOTHING: Final = msgspec.Raw(b"")
_NULL: Final = b"null"
_ASKS: Final = frozenset({"elicitation/create", "sampling/createMessage", "roots/list"})


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


def read_answer(name: str, result: msgspec.Raw) -> Answer:
    """Return an answer as it was meant.

    Raises:
        ToolError: `upstream_error`, because it is none.
    """
    try:
        return _decode(result)
    except msgspec.DecodeError as error:
        raise ToolError("upstream_error", f"'{name}' answered with something that is no result: {error}.", upstream=name) from error


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
        if method not in _ASKS or not isinstance(params, dict):
            raise ToolError("upstream_error", f"'{name}' asks for '{method}', which is not known here.", upstream=name)
        asks[key] = Ask(method, cast("dict[str, Any]", params))
    return asks


def passed_of(name: str, answer: Answer, prefix: str) -> Passed:
    """Return a good answer, to be passed on as it is.

    Raises:
        ToolError: `upstream_error`, in the words of the tool, because it says that it failed.
    """
    raw: bytes | msgspec.Raw = answer.content
    decoded = msgspec.json.decode(raw)
    blocks = [cast("dict[str, Any]", block) for block in cast("list[object]", decoded) if isinstance(block, dict)] if decoded else []
    if prefix and b'"uri"' in bytes(raw):
        blocks = with_our_uris(prefix, blocks)
        raw = msgspec.json.encode(blocks)
    has_structured = bool(answer.structured_content) and bytes(answer.structured_content) != _NULL
    structured = msgspec.json.decode(answer.structured_content) if has_structured else None
    texts = [str(block.get("text", "")) for block in blocks if block.get("type") == "text"]
    if answer.is_error:
        raise refusal_of(name, "\n".join(texts), structured)
    others = tuple(Foreign(block) for block in blocks if block.get("type") != "text")
    parts = (b'{"content":', raw or b"[]", b',"structuredContent":' if has_structured else b"", answer.structured_content, b"}")
    return Passed(
        structured if has_structured else _data(blocks, texts, others),
        b"".join(parts if has_structured else (*parts[:2], b"}")),
        max(len(answer.structured_content), sum(map(len, texts))),
        others,
        unreserved(answer.meta) if answer.meta else {},
    )


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
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
