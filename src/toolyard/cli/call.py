"""`toolyard call`: one call of one tool, through the funnel like any other."""

import logging
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Final

from toolyard.caller import Caller, Door
from toolyard.cli.answer import write_answer
from toolyard.cli.blocks import make_folder, write_blocks
from toolyard.cli.exits import CommandError, status_of
from toolyard.cli.given import Given, read_given
from toolyard.cli.opening import work_in_yard
from toolyard.cli.parser import Options
from toolyard.cli.terminal import Terminal
from toolyard.envelope import Envelope
from toolyard.errors import ToolError
from toolyard.profile import Profile
from toolyard.progress import Note
from toolyard.schema import Schema
from toolyard.yard import Yard

__all__ = ["run", "write_envelope"]

_LEVELS: Final = logging.getLevelNamesMapping()
_ANYTHING: Final[Schema] = {}


def run(options: Options, terminal: Terminal) -> int:
    """Call a tool, print the envelope and return the status of its code."""
    given = read_given(options.arguments)
    if options.session is not None and given.names("session_id"):
        raise CommandError("The session is given twice: with '--session' and as the argument 'session_id'.")
    folder = None if options.output is None else make_folder(options.output)
    work = partial(_call, options=options, terminal=terminal, given=given, folder=folder)
    return work_in_yard(options, terminal, work, tool=options.name, runs=True)


def write_envelope(options: Options, terminal: Terminal, envelope: Envelope) -> int:
    """Print an envelope as it was asked for, and return the status to exit with."""
    if options.json:
        terminal.write_json(envelope.to_json())
    else:
        write_answer(terminal, envelope, options.name)
    return status_of(None if envelope.error is None else envelope.error.code)


async def _call(yard: Yard, profile: Profile, *, options: Options, terminal: Terminal, given: Given, folder: Path | None) -> int:
    arguments = given.arguments(_input_schema(yard, options.name, profile))
    envelope = await yard.call(
        options.name, arguments, session=options.session, caller=Caller(profile=profile), door=_door(options, terminal)
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


def _door(options: Options, terminal: Terminal) -> Door:
    least = logging.ERROR if options.quiet else logging.DEBUG if options.verbose else logging.INFO

    def log(level: str, text: str, facts: Mapping[str, object]) -> None:
        if _LEVELS.get(level.upper(), logging.INFO) >= least:
            terminal.say(" ".join([f"{level}:", text, *(f"{key}={value}" for key, value in facts.items())]))

    def show(note: Note) -> None:
        terminal.show_progress(_progress_text(note))

    # a handle would end with the command, so a person gets the whole result
    return Door(name="cli", progress=show, log=log, result_characters=sys.maxsize)


def _progress_text(note: Note) -> str:
    total = "" if note.total is None else f"/{note.total:g}"
    return f"{note.done:g}{total} {note.text}".rstrip()
