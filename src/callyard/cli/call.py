"""`callyard call`: call one tool, through the dispatcher like any other call."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard.cli.parser import Options
from callyard.cli.targets import run_in_yard
from callyard.cli.terminal import Line, Painted, Terminal
from callyard.dispatch.call import Caller, Channel
from callyard.dispatch.progress import Progress
from callyard.launch.errors import DEFECT, LaunchError, exit_status
from callyard.model.content import Block, ResourceLink, Text
from callyard.model.envelope import Content, Envelope, Failure, encode
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.model.schema import Schema, resolve, subschema
from callyard.providers.provider_set import StaticProvider
from callyard.providers.upstream.provider import Upstream
from callyard.yard import Yard

__all__ = ["ArgumentInput", "read_arguments", "run_call", "write_envelope"]


def _lines(envelope: Envelope, tool: str) -> Iterator[Line]:
    """Yield an envelope as lines: outcome, warnings, then the data, or the error and what to do next."""
    yield _first_line(envelope, tool)
    meta = envelope.meta
    for warning in meta.warnings:
        yield (Painted("Warning: ", "bold"), warning)
    if meta.coerced:
        yield (Painted("Corrected: ", "bold"), ", ".join(meta.coerced))
    if envelope.error is not None:
        yield from _error_lines(envelope.error)
    if envelope.error is None or envelope.data is not None:
        data = envelope.data
        yield (data if isinstance(data, str) else msgspec.json.format(encode(data), indent=2).decode(),)
    for number, block in enumerate(envelope.content, start=1):
        yield (Painted(f"Block {number}: ", "bold"), _describe_block(block))


def _first_line(envelope: Envelope, tool: str) -> Line:
    meta = envelope.meta
    facts = f"{meta.elapsed_ms} ms, {meta.estimated_tokens} tokens"
    session = f", session {meta.session_id}" if meta.session_id else ""
    outcome = Painted("ok", "good") if envelope.success else Painted("failed", "bad")
    return (outcome, "  ", Painted(tool, "bold"), "  ", Painted(facts + session, "faint"))


def _error_lines(error: Failure) -> Iterator[Line]:
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


def _describe_block(block: Content) -> str:
    if isinstance(block, ResourceLink):
        return f"link to {block.uri}"
    if isinstance(block, Text):
        return f"text, {len(block.text)} characters"
    return f"{block.kind} ({block.mime_type}), {len(block.data)} bytes"


_SUFFIXES: Final = {"audio/flac": ".flac", "audio/ogg": ".ogg", "image/jpeg": ".jpg", "image/webp": ".webp"}


def _make_folder(path: str) -> Path:
    """Create the folder for content blocks before the call runs, so that no block is lost."""
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(f"The folder '{path}' cannot be created: {error.strerror}.") from error
    return folder


def _write_blocks(envelope: Envelope, folder: Path) -> Iterator[Path]:
    """Write each content block of an envelope to a file, and yield its path."""
    for number, block in enumerate(envelope.content, start=1):
        if isinstance(block, ResourceLink):  # it has no content
            continue
        path = folder / f"{envelope.meta.call_id}-{number}{_suffix(block)}"
        try:
            path.write_bytes(block.text.encode("utf-8", "replace") if isinstance(block, Text) else block.data)
        except OSError as error:
            raise LaunchError(f"The file '{path}' cannot be written: {error.strerror}.", status=DEFECT) from error
        yield path


def _suffix(block: Block | Text) -> str:
    """Return the suffix of a block's file, from Python's own table, so that it is the same on every machine."""
    if isinstance(block, Text):
        return ".txt"
    kind = block.mime_type.partition(";")[0].strip().lower()
    return _SUFFIXES.get(kind) or MimeTypes().guess_extension(kind) or ".bin"


_FORMS: Final = "Arguments are 'key=value' pairs, or one JSON object, or '-' for JSON from stdin."
_STDIN: Final = "-"
_DEPTH: Final = 16
"""How deep a schema is searched for a string; it may refer to itself."""


class ArgumentInput(msgspec.Struct, frozen=True):
    """Arguments of the command line: a JSON object, or pairs whose values are still text."""

    values: Mapping[str, Any]
    pairs: Mapping[str, str]

    def __contains__(self, key: str) -> bool:
        """Return whether there is a value for the key."""
        return key in self.values or key in self.pairs

    def parse(self, schema: Schema) -> dict[str, Any]:
        """Return the arguments; the value of a pair stays text where the schema allows a string, and is parsed as JSON elsewhere."""
        return {**self.values, **{key: _value(text, subschema(schema, (key,)), schema) for key, text in self.pairs.items()}}


def read_arguments(items: Sequence[str]) -> ArgumentInput:
    """Return the arguments of the command line.

    Raises:
        LaunchError: They have no valid form, or several.
    """
    whole = [item for item in items if item == _STDIN or item.lstrip().startswith("{")]
    if not whole:
        return ArgumentInput({}, _pairs(items))
    if len(items) > 1:
        raise LaunchError(f"The forms of arguments cannot be mixed. {_FORMS}")
    if whole[0] == _STDIN:
        text = b"" if sys.stdin is None else sys.stdin.buffer.read()  # None if it is closed
        return ArgumentInput(_object(text, "The input"), {})
    return ArgumentInput(_object(whole[0].encode("utf-8", "surrogateescape"), "The argument"), {})


def _pairs(items: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not key or not equals:
            raise LaunchError(f"'{item}' is not an argument. {_FORMS}")
        if key in pairs:
            raise LaunchError(f"The argument '{key}' is given twice.")
        pairs[key] = text
    return pairs


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LaunchError(f"{what} is not JSON: {str(error).removesuffix('.')}.") from error
    if not isinstance(value, dict):
        raise LaunchError(f"{what} is not a JSON object.")
    return cast("dict[str, Any]", value)


def _value(text: str, schema: object, root: Schema) -> Any:
    if schema is not None and _allows_string(schema, root, _DEPTH):
        return text
    try:
        return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return text


def _allows_string(schema: object, root: Schema, depth: int) -> bool:
    """Return whether a schema allows a string; one that is nested too deep counts as if it did."""
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
_RUN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"tool_id": {"type": "string"}, "args": {"type": "object"}, "background": {"type": "boolean"}},
    "additionalProperties": False,
}


def run_call(options: Options, terminal: Terminal) -> int:
    """Call a tool, print the envelope and return the exit status of its code."""
    arguments = read_arguments(options.arguments)
    if options.session is not None and "session_id" in arguments:
        raise LaunchError("The session is given twice: with '--session' and as the argument 'session_id'.")
    folder = None if options.output is None else _make_folder(options.output)
    work = partial(_call, options=options, terminal=terminal, arguments=arguments, folder=folder)
    return run_in_yard(options, terminal, work, tool=options.name, runs=True)


def write_envelope(options: Options, terminal: Terminal, envelope: Envelope) -> int:
    """Print an envelope, as JSON with `--json`, and return the exit status."""
    if options.json:
        terminal.write_json(envelope.to_json())
    else:
        for line in _lines(envelope, options.name):
            terminal.write(*line)
    return exit_status(None if envelope.error is None else envelope.error.code)


async def _call(
    yard: Yard, profile: Profile, *, options: Options, terminal: Terminal, arguments: ArgumentInput, folder: Path | None
) -> int:
    values = arguments.parse(_input_schema(yard, options.name, profile))
    if options.background:
        return write_envelope(options, terminal, await _start_job(yard, options, values))
    envelope = await yard.call(
        options.name, values, session=options.session, caller=Caller(profile=profile), channel=_channel(options, terminal)
    )
    status = write_envelope(options, terminal, envelope)
    if folder is not None:
        for path in _write_blocks(envelope, folder):
            terminal.inform(f"Wrote '{path}'.")
    return status


async def _start_job(yard: Yard, options: Options, values: dict[str, Any]) -> Envelope:
    """Start a job at the server that the target names, and return its first answer.

    Raises:
        LaunchError: The target is no URL: the process of this command ends, and its jobs with it.
    """
    remotes = [provider for provider in yard.providers if isinstance(provider, Upstream)]
    if "://" not in options.target or len(remotes) != 1:
        raise LaunchError("'--background' needs the URL of a running server, which goes on with the job after this command.")
    tool = remotes[0].unlisted_tool("run_tool", _RUN_SCHEMA, name="run_at_server")
    await yard.providers.add(StaticProvider("server", [tool], resources=[], prompts=[]))
    args = values if options.session is None else {**values, "session_id": options.session}
    answer = await yard.call("run_at_server", {"tool_id": options.name, "args": args, "background": True})
    inner = cast("dict[str, Any]", answer.data) if answer.success and isinstance(answer.data, dict) else {}
    return Envelope.from_json(encode(inner)) if "success" in inner else answer  # the envelope of the other yard


def _input_schema(yard: Yard, name: str, profile: Profile) -> Schema:
    """Return the input schema of a tool; empty for an unknown tool, which the dispatcher refuses."""
    try:
        return yard.registry.find(name, profile).spec.input_schema
    except ToolError:
        return {}


def _channel(options: Options, terminal: Terminal) -> Channel:
    minimum = logging.ERROR if options.quiet else logging.DEBUG if options.verbose else logging.INFO

    def log(level: str, text: str, facts: Mapping[str, object]) -> None:
        if _LEVELS.get(level.upper(), logging.INFO) >= minimum:
            terminal.say(" ".join([f"{level}:", text.rstrip("\n"), *(f"{key}={value}" for key, value in facts.items())]))

    def show(note: Progress) -> None:
        terminal.show_progress(_progress_text(note))

    # the whole result, because a handle would be gone when the command ends
    return Channel(name="cli", progress=show, log=log, result_characters=sys.maxsize)


def _progress_text(note: Progress) -> str:
    total = "" if note.total is None else f"/{note.total:g}"
    return f"{note.done:g}{total} {note.text}".rstrip()
