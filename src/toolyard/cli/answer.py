"""Answers for people: an envelope as lines to read."""

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from toolyard.cli.terminal import Painted, Part, Terminal
from toolyard.content import ResourceLink, Text
from toolyard.envelope import Content, Envelope, Failure, encode

__all__ = ["write_answer"]

Line = tuple[Part, ...]


def write_answer(terminal: Terminal, envelope: Envelope, tool: str) -> None:
    """Write an envelope: how the call went, then its data, or why it failed and what to do next."""
    for line in _lines(envelope, tool):
        terminal.write(*line)


def _lines(envelope: Envelope, tool: str) -> Iterator[Line]:
    yield _first(envelope, tool)
    meta = envelope.meta
    for warning in meta.warnings:
        yield (Painted("Warning: ", "bold"), warning)
    if meta.coerced:
        yield (Painted("Put right: ", "bold"), ", ".join(meta.coerced))
    if envelope.error is not None:
        yield from _failure(envelope.error)
    if envelope.error is None or envelope.data is not None:
        yield (_pretty(envelope.data),)
    for number, block in enumerate(envelope.content, start=1):
        yield (Painted(f"Block {number}: ", "bold"), _described(block))


def _first(envelope: Envelope, tool: str) -> Line:
    meta = envelope.meta
    facts = f"{meta.elapsed_ms} ms, {meta.estimated_tokens} tokens"
    session = f", session {meta.session_id}" if meta.session_id else ""
    outcome = Painted("ok", "good") if envelope.success else Painted("failed", "bad")
    return (outcome, "  ", Painted(tool, "bold"), "  ", Painted(facts + session, "faint"))


def _failure(error: Failure) -> Iterator[Line]:
    yield (Painted(error.code, "bad"), f": {error.message}")
    details = dict(error.details)
    issues = details.pop("issues", None)
    if isinstance(issues, list):
        messages = [str(issue.get("message", "")) for issue in cast("list[dict[str, Any]]", issues)]
        yield from ((f"  - {message}",) for message in messages if message != error.message)
    if details:
        yield (Painted("Details: ", "bold"), encode(details).decode())
    if error.may_have_run:
        yield ("It may have run.",)
    yield (Painted("Hint: ", "bold"), error.hint)
    for action in error.next_actions:
        yield (Painted("Next: ", "bold"), action)


def _pretty(data: object) -> str:
    """Return data as people read it: text as it is, everything else as JSON with line breaks."""
    return data if isinstance(data, str) else msgspec.json.format(encode(data), indent=2).decode()


def _described(block: Content) -> str:
    if isinstance(block, ResourceLink):
        return f"link to {block.uri}"
    if isinstance(block, Text):
        return f"text, {len(block.text)} characters"
    return f"{block.kind} ({block.mime_type}), {len(block.data)} bytes"
