"""`toolyard call`: one call of one tool, through the funnel like any other."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from toolyard.cli.parser import Options
from toolyard.cli.targets import run_in_yard
from toolyard.cli.terminal import Painted, Part, Terminal
from toolyard.dispatch.call import Caller, Channel
from toolyard.dispatch.progress import Progress
from toolyard.launch.errors import DEFECT, LaunchError, exit_status
from toolyard.model.content import Block, ResourceLink, Text
from toolyard.model.envelope import Content, Envelope, Failure, encode
from toolyard.model.errors import ToolError
from toolyard.model.profile import Profile
from toolyard.model.schema import Schema, resolve, subschema
from toolyard.yard import Yard

__all__ = ["Given", "make_folder", "read_given", "run_call", "write_answer", "write_blocks", "write_envelope"]


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


_ENDINGS: Final = {"audio/flac": ".flac", "audio/ogg": ".ogg", "image/jpeg": ".jpg", "image/webp": ".webp"}


def make_folder(path: str) -> Path:
    """Return the folder, made if need be, so that a call is not run whose blocks cannot be kept.

    Raises:
        LaunchError: It cannot be made.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder '{path}' cannot be made: {error.strerror}.") from error
    return folder


def write_blocks(envelope: Envelope, folder: Path) -> Iterator[Path]:
    """Write each block of an envelope to a file, and yield where it is.

    Raises:
        LaunchError: One cannot be written.
    """
    for number, block in enumerate(envelope.content, start=1):
        if isinstance(block, ResourceLink):  # it holds nothing that a file could
            continue
        path = folder / f"{envelope.meta.call_id}-{number}{_ending(block)}"
        try:
            path.write_bytes(block.text.encode("utf-8", "replace") if isinstance(block, Text) else block.data)
        except OSError as error:
            raise LaunchError(f"The file '{path}' cannot be written: {error.strerror}.", status=DEFECT) from error
        yield path


def _ending(block: Block | Text) -> str:
    """Return the ending for a file, the same on every machine."""
    if isinstance(block, Text):
        return ".txt"
    kind = block.mime_type.partition(";")[0].strip().lower()
    return _ENDINGS.get(kind) or MimeTypes().guess_extension(kind) or ".bin"


_FORMS: Final = "Arguments are 'key=value' pairs, or one JSON object, or '-' for JSON from stdin."
_STDIN: Final = "-"
_DEPTH: Final = 16


@dataclass(frozen=True, slots=True)
class Given:
    """Arguments as they were written: a ready object, or pairs whose values are still text."""

    ready: Mapping[str, Any]
    pairs: Mapping[str, str]

    def names(self, key: str) -> bool:
        """Return whether there is a value for the key."""
        return key in self.ready or key in self.pairs

    def arguments(self, schema: Schema) -> dict[str, Any]:
        """Return the arguments, each value read as the schema says: text where it may be a string, otherwise JSON if it is."""
        return {**self.ready, **{key: _value(text, subschema(schema, (key,)), schema) for key, text in self.pairs.items()}}


def read_given(items: Sequence[str]) -> Given:
    """Return what was given.

    Raises:
        LaunchError: It is of no known form, or of several.
    """
    whole = [item for item in items if item == _STDIN or item.lstrip().startswith("{")]
    if not whole:
        return Given({}, _pairs(items))
    if len(items) > 1:
        raise LaunchError(f"The forms of arguments cannot be mixed. {_FORMS}")
    if whole[0] == _STDIN:
        return Given(_object(_stdin(), "What stdin holds"), {})
    return Given(_object(whole[0].encode("utf-8", "surrogateescape"), "The argument"), {})


def _stdin() -> bytes:
    """Return all that stdin holds; nothing if it is closed."""
    return b"" if sys.stdin is None else sys.stdin.buffer.read()


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise LaunchError(f"'{item}' is no argument. {_FORMS}")
        if key in pairs:
            raise LaunchError(f"The argument '{key}' is given twice.")
        pairs[key] = text
    return pairs


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{what} is no JSON: {str(error).removesuffix('.')}.") from error
    if not isinstance(found, dict):
        raise LaunchError(f"{what} is no JSON object.")
    return cast("dict[str, Any]", found)


def _value(text: str, schema: object, root: Schema) -> Any:
    if schema is not None and _allows_string(schema, root, _DEPTH):
        return text
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def _allows_string(schema: object, root: Schema, depth: int) -> bool:
    """Return whether a string can fit the schema; one nested too deep to tell counts as if it could."""
    node = resolve(root, schema)
    if not isinstance(node, dict) or depth == 0:
        return node is not False
    facts = cast("dict[str, Any]", node)
    kinds = facts.get("type", "string")
    if "string" not in ([kinds] if isinstance(kinds, str) else kinds):
        return False
    values = [facts["const"]] if "const" in facts else facts.get("enum", [""])
    if not any(isinstance(value, str) for value in values):
        return False
    choices = [facts[key] for key in ("anyOf", "oneOf") if key in facts]
    return all(any(_allows_string(choice, root, depth - 1) for choice in several) for several in choices) and all(
        _allows_string(part, root, depth - 1) for part in facts.get("allOf", ())
    )


_LEVELS: Final = logging.getLevelNamesMapping()
_ANYTHING: Final[Schema] = {}


def run_call(options: Options, terminal: Terminal) -> int:
    """Call a tool, print the envelope and return the status of its code."""
    given = read_given(options.arguments)
    if options.session is not None and given.names("session_id"):
        raise LaunchError("The session is given twice: with '--session' and as the argument 'session_id'.")
    folder = None if options.output is None else make_folder(options.output)
    work = partial(_call, options=options, terminal=terminal, given=given, folder=folder)
    return run_in_yard(options, terminal, work, tool=options.name, runs=True)


def write_envelope(options: Options, terminal: Terminal, envelope: Envelope) -> int:
    """Print an envelope as it was asked for, and return the status to exit with."""
    if options.json:
        terminal.write_json(envelope.to_json())
    else:
        write_answer(terminal, envelope, options.name)
    return exit_status(None if envelope.error is None else envelope.error.code)


async def _call(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal, given: Given, folder: Path | None) -> int:
    arguments = given.arguments(_input_schema(yard, options.name, profile))
    envelope = await yard.call(
        options.name, arguments, session=options.session, caller=Caller(profile=profile), channel=_door(options, terminal)
    )
    status = write_envelope(options, terminal, envelope)
    if folder is not None:
        for path in write_blocks(envelope, folder):
            if not options.quiet:
                terminal.say(f"Wrote '{path}'.")
    return status


def _input_schema(yard: Yard, name: str, profile: Profile) -> Schema:
    """Return how the tool's arguments are read; for one that is not there it does not matter, and the funnel says so."""
    try:
        return yard.registry.find(name, profile).spec.input_schema
    except ToolError:
        return _ANYTHING


def _door(options: Options, terminal: Terminal) -> Channel:
    least = logging.ERROR if options.quiet else logging.DEBUG if options.verbose else logging.INFO

    def log(level: str, text: str, facts: Mapping[str, object]) -> None:
        if _LEVELS.get(level.upper(), logging.INFO) >= least:
            terminal.say(" ".join([f"{level}:", text, *(f"{key}={value}" for key, value in facts.items())]))

    def show(note: Progress) -> None:
        terminal.show_progress(_progress_text(note))

    # a handle would end with the command, so a person gets the whole result
    return Channel(name="cli", progress=show, log=log, result_characters=sys.maxsize)


def _progress_text(note: Progress) -> str:
    total = "" if note.total is None else f"/{note.total:g}"
    return f"{note.done:g}{total} {note.text}".rstrip()
