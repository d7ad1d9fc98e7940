"""`callyard call`, `code` and `runtime`: call a tool or run a program, and show what can run programs."""

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from mimetypes import MimeTypes
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from callyard.cli.parser import Options
from callyard.cli.targets import UnreachableError, Work, config_from, os_errors, run_in_yard, state_dir_of
from callyard.cli.terminal import Line, Painted, Terminal
from callyard.dispatch.call import Caller, Channel
from callyard.dispatch.progress import Progress
from callyard.jobs.job import ENDED
from callyard.launch.errors import DEFECT, WAITING, LaunchError, exit_status
from callyard.metatools.code import EXECUTE_CODE
from callyard.model.content import Block, ResourceLink, Text
from callyard.model.elicitation import APPROVAL_REQUIRED
from callyard.model.envelope import Content, Envelope, Failure, encode
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.model.schema import Schema, resolve, subschema
from callyard.policy.approvals import Approval
from callyard.providers.provider_set import StaticProvider
from callyard.providers.upstream.provider import Upstream
from callyard.runtimes.container import build_image, find_engine
from callyard.runtimes.runtime import Probe, RuntimeMissingError
from callyard.runtimes.selection import probe_all
from callyard.yard import Yard

__all__ = ["ArgumentInput", "read_arguments", "run_call", "run_code", "run_for_tool", "run_runtime", "write_envelope"]


def _lines(envelope: Envelope, tool: str) -> Iterator[Line]:
    """Yield an envelope as lines: outcome, warnings, then the data, or the error and what to do next."""
    meta = envelope.meta
    session = f", session {meta.session_id}" if meta.session_id else ""
    facts = f"{meta.elapsed_ms} ms, {meta.estimated_tokens} tokens{session}"
    outcome = Painted("ok", "good") if envelope.success else Painted("failed", "bad")
    if _waits(envelope):
        outcome = Painted("waits", "bold")
    yield (outcome, "  ", Painted(tool, "bold"), "  ", Painted(facts, "faint"))
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


def _error_lines(error: Failure) -> Iterator[Line]:
    yield (Painted(error.code, "bad"), f": {error.message}")
    details = dict(error.details)
    issues = details.pop("issues", None)
    for issue in cast("list[dict[str, Any]]", issues) if isinstance(issues, list) else ():
        if issue.get("message") != error.message:
            yield (f"  - {issue.get('message', '')}",)
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


def _write_blocks(envelope: Envelope, folder: Path) -> Iterator[Path]:
    for number, block in enumerate(envelope.content, start=1):
        if isinstance(block, ResourceLink):  # it has no content
            continue
        path = folder / f"{envelope.meta.call_id}-{number}{_suffix(block)}"
        with os_errors(f"The file '{path}' cannot be written", status=DEFECT):
            path.write_bytes(block.text.encode("utf-8", "replace") if isinstance(block, Text) else block.data)
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
        return key in self.values or key in self.pairs

    def parse(self, schema: Schema) -> dict[str, Any]:
        """Return the arguments; the value of a pair is text where the schema allows a string, and JSON elsewhere."""
        parsed = {key: _value(text, subschema(schema, (key,)), schema) for key, text in self.pairs.items()}
        return {**self.values, **parsed}


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
    if whole[0] == _STDIN:  # None if it is closed
        return ArgumentInput(_object(b"" if sys.stdin is None else sys.stdin.buffer.read(), "The input"), {})
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
    if schema is None or not _allows_string(schema, root, _DEPTH):
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return msgspec.json.decode(text.encode("utf-8", "surrogateescape"))
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
    parts: list[list[object]] = [facts[key] for key in ("anyOf", "oneOf") if key in facts]
    parts += [[part] for part in facts.get("allOf", ())]
    return all(any(_allows_string(choice, root, depth - 1) for choice in choices) for choices in parts)


_LEVELS: Final = logging.getLevelNamesMapping()
_RUN_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"tool_id": {"type": "string"}, "args": {"type": "object"}, "background": {"type": "boolean"}},
    "additionalProperties": False,
}
_WAIT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"job_id": {"type": "string"}, "timeout_s": {"type": "number"}},
    "additionalProperties": False,
}
_AT_SERVER: Final = frozenset({"read_result", "get_job", "wait_job", "cancel_job", "list_jobs"})
"""The metatools about results and jobs, which a server at a URL keeps."""
_LOOK_S: Final = 0.8
"""How often the progress of a job is shown; a longer wait would be logged as a slow call."""


def run_call(options: Options, terminal: Terminal) -> int:
    """Call a tool, print the envelope and return the exit status of its code."""
    arguments = read_arguments(options.arguments)
    if options.session is not None and "session_id" in arguments:
        raise LaunchError("The session is given twice: with '--session' and as the argument 'session_id'.")
    folder = None if options.output is None else Path(options.output)
    if folder is not None:  # before the call runs, so that no content block is lost
        with os_errors(f"The folder '{folder}' cannot be created"):
            folder.mkdir(parents=True, exist_ok=True)
    return run_for_tool(options, terminal, partial(_call, arguments=arguments, folder=folder), runs=True)


def run_for_tool(options: Options, terminal: Terminal, work: Work, *, runs: bool = False) -> int:
    """Run a command about one tool; if the server at its URL cannot be used, print that as the answer."""
    try:
        return run_in_yard(options, terminal, work, tool=options.name, runs=runs)
    except UnreachableError as error:
        return write_envelope(options, terminal, Envelope.fail(error.failure, tool_id=options.name))


def write_envelope(options: Options, terminal: Terminal, envelope: Envelope) -> int:
    """Print an envelope, as JSON with `--json`, and return the exit status."""
    if options.json:
        terminal.write_json(envelope.to_json())
    else:
        for line in _lines(envelope, options.name):
            terminal.write(*line)
    if _waits(envelope):
        return WAITING
    return exit_status(None if envelope.error is None else envelope.error.code)


def _status(envelope: Envelope) -> dict[str, Any]:
    """Return the data of an answer if they say how it goes on."""
    data = envelope.data
    known = isinstance(data, dict) and not {"job_id", "approval_id"}.isdisjoint(cast("dict[str, Any]", data))
    return cast("dict[str, Any]", data) if known and envelope.success else {}


def _waits(envelope: Envelope) -> bool:
    """Return whether a call waits for the approval of a person."""
    return _status(envelope).get("status") == APPROVAL_REQUIRED


async def _call(
    yard: Yard, profile: Profile, options: Options, terminal: Terminal, *, arguments: ArgumentInput, folder: Path | None
) -> int:
    schema: Schema = {}  # of an unknown tool, which the dispatcher refuses
    with suppress(ToolError):
        schema = yard.registry.find(options.name, profile).spec.input_schema
    values = arguments.parse(schema)
    if options.background:
        return write_envelope(options, terminal, await _start_job(yard, options, values))
    kept_there = await _metatool_at_server(yard, options, options.name, schema) if options.name in _AT_SERVER else None
    if kept_there is not None:
        return write_envelope(options, terminal, await kept_there(values))
    caller, channel = Caller(profile=profile), _channel(options, terminal)
    envelope = await yard.call(options.name, values, session=options.session, caller=caller, channel=channel)
    envelope = await _follow(yard, options, terminal, envelope)
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
    at_server = await _metatool_at_server(yard, options, "run_tool", _RUN_SCHEMA)
    if at_server is None:
        raise LaunchError(
            "'--background' needs the URL of a running server, which goes on with the job after this command."
        )
    args = values if options.session is None else {**values, "session_id": options.session}
    return await at_server({"tool_id": options.name, "args": args, "background": True})


async def _metatool_at_server(
    yard: Yard, options: Options, name: str, schema: dict[str, Any]
) -> Callable[[dict[str, Any]], Awaitable[Envelope]] | None:
    """Return a function that calls a metatool of the server at the URL, or None if the target is none."""
    remotes = [provider for provider in yard.providers if isinstance(provider, Upstream)]
    if "://" not in options.target or len(remotes) != 1:
        return None
    own_name = f"{name}_at_server"
    tool = remotes[0].unlisted_tool(name, schema, name=own_name)
    await yard.providers.add(StaticProvider("server", [tool], resources=[], prompts=[]))

    async def call(arguments: dict[str, Any]) -> Envelope:
        return await yard.call(own_name, arguments, channel=Channel(name="cli", result_characters=sys.maxsize))

    return call


async def _follow(yard: Yard, options: Options, terminal: Terminal, envelope: Envelope) -> Envelope:
    """Return the result of the job that a call became, once it has ended; else the answer as it is.

    A job at a server goes on without this command. One in this process ends with it, so it is waited for even if a
    person must decide first, where another process can do that.
    """
    status = _status(envelope)
    job_id = str(status.get("job_id", ""))
    if not job_id:
        return envelope
    at_server = await _metatool_at_server(yard, options, "wait_job", _WAIT_SCHEMA)
    look = at_server or partial(_look_here, yard)
    is_decided_elsewhere = at_server is None and yard.jobs.outlives_process
    if status.get("status") != "working" and not is_decided_elsewhere:
        return envelope
    seen = await look({"job_id": job_id, "timeout_s": 0})
    if not seen.success:  # it is no job of ours, although the data of the tool look like one
        return envelope
    terminal.inform(f"It is the job '{job_id}'.")
    shown: object = None
    try:
        while seen.success:
            progress = seen.data.get("progress")
            if progress is not None and progress != shown:
                shown = progress
                _show_progress(terminal, msgspec.convert(progress, Progress))
            if seen.data["status"] in ENDED:
                break
            seen = await look({"job_id": job_id, "timeout_s": _LOOK_S})
    except asyncio.CancelledError:
        goes_on = f"goes on at the server: 'callyard call {options.target} wait_job job_id={job_id}' waits for it"
        ends = "ends with this command, because no server runs it"
        terminal.say(f"The job '{job_id}' {ends if at_server is None else goes_on}.")
        raise
    if not seen.success:
        return seen
    result = Envelope.from_json(encode(seen.data["result"]))
    result.content = seen.content
    return result


async def _look_here(yard: Yard, arguments: dict[str, Any]) -> Envelope:
    """Answer as the metatool `wait_job` does, which a yard may do without."""
    try:
        job = await yard.jobs.wait(arguments["job_id"], None, seconds=arguments["timeout_s"])
    except ToolError as error:
        return Envelope.fail(error)
    result = await yard.jobs.result(job)
    if result is None:
        return Envelope.ok(job.view())
    return Envelope.ok({**job.view(), "result": msgspec.json.decode(result.to_json())}, content=result.content)


def _channel(options: Options, terminal: Terminal) -> Channel:
    minimum = logging.DEBUG if options.verbose else logging.INFO
    if options.quiet:
        minimum = logging.ERROR

    def log(level: str, text: str, facts: Mapping[str, object]) -> None:
        if _LEVELS.get(level.upper(), logging.INFO) >= minimum:
            shown = [f"{key}={value}" for key, value in facts.items()]
            terminal.say(" ".join([f"{level}:", text.rstrip("\n"), *shown]))

    # the whole result, because a handle would be gone when the command ends
    return Channel(name="cli", progress=partial(_show_progress, terminal), log=log, result_characters=sys.maxsize)


def _show_progress(terminal: Terminal, note: Progress) -> None:
    total = "" if note.total is None else f"/{note.total:g}"
    terminal.show_progress(f"{note.done:g}{total} {note.text}".rstrip())


def run_runtime(options: Options, terminal: Terminal) -> int:
    """List the backends, attack them, or build the image of the containers."""
    config = config_from(options, terminal)
    state_dir = str(state_dir_of(config))  # images and compiled modules belong to no project
    if options.name == "build":
        return asyncio.run(_build(terminal, state_dir))
    probes = asyncio.run(probe_all(config.settings.runtime, state_dir, attack=options.name == "probe"))
    if options.json:
        terminal.write_json(encode([msgspec.to_builtins(probe) for probe in probes]))
    else:
        for probe in probes:
            _write_probe(probe, terminal)
    return 0 if any(probe.available and probe.sandboxed for probe in probes) else exit_status("runtime_unavailable")


async def _build(terminal: Terminal, state_dir: str) -> int:
    try:
        engine = await find_engine()
        terminal.inform(f"Building the image of the guests with '{engine.program}' …")
        image = await build_image(engine, state_dir=state_dir)
    except RuntimeMissingError as error:
        raise LaunchError(f"{error} {error.install}".strip(), status=exit_status("runtime_unavailable")) from None
    terminal.write(image)
    return 0


def _write_probe(probe: Probe, terminal: Terminal) -> None:
    state = Painted("ready", "good") if probe.available else Painted("missing", "bad")
    kind = "" if probe.sandboxed else "  no sandbox: for development only"
    terminal.write(Painted(f"{probe.backend:<12}", "bold"), state, f"  {probe.version}{kind}".rstrip())
    if not probe.available:
        terminal.write(f"  {probe.reason} {probe.install}".rstrip())
    for limit, why in probe.unenforced.items():
        terminal.write(f"  not enforced: {limit} ({why})")
    if probe.canaries:
        terminal.write("  stopped: ", ", ".join(name for name, stopped in probe.canaries.items() if stopped))


def run_code(options: Options, terminal: Terminal) -> int:
    """Run a program against a yard with live output, print its value, and return the exit status of its code."""
    code = _read_program(options.file or _STDIN)
    options.settings = {**options.settings, "runtime.enabled": True}
    options.name = EXECUTE_CODE
    return run_in_yard(options, terminal, partial(_run_program, code=code), tool=EXECUTE_CODE, runs=True)


def _read_program(file: str) -> str:
    try:
        if file == _STDIN:
            return "" if sys.stdin is None else sys.stdin.read()
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"The program '{file}' cannot be read: {error}.") from None


async def _run_program(yard: Yard, profile: Profile, options: Options, terminal: Terminal, *, code: str) -> int:
    def tell(approval: Approval) -> None:
        command = f"callyard approvals approve {approval.id}"
        terminal.say(f"'{approval.card.tool}' waits for approval. Decide with '{command}', or 'deny'.")

    def log(_level: str, text: str, facts: Mapping[str, object]) -> None:
        # what the program prints, as it is; with '--json', stdout has the envelope alone
        write = terminal.say_text if options.json or facts.get("stream") != "out" else terminal.write_text
        write(text)

    # calls wait until a while after their approvals expire, because a program does not outlive this command
    yard.limits.approval_hold_s = yard.limits.approval_ttl_s + 60.0
    if yard.gate is not None:
        yard.gate.requests.on_wait = tell
    caller, channel = Caller(profile=profile), Channel(name="cli", log=log, result_characters=sys.maxsize)
    envelope = await yard.call(EXECUTE_CODE, {"code": code}, caller=caller, channel=channel)
    if options.json or envelope.error is not None or envelope.held:
        return write_envelope(options, terminal, envelope)
    value = envelope.data["value"]
    if value is not None:
        terminal.write(value if isinstance(value, str) else msgspec.json.format(encode(value), indent=2).decode())
    terminal.inform(f"{envelope.data['duration_ms']} ms in {envelope.data['runtime']['backend']}.")
    return 0
