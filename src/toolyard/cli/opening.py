"""Opening: a command's work inside the yard that its target names, closed afterwards whatever happens."""

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from toolyard.cli.cause import cause_of, refusal_of
from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.settings import apply_settings, named_profile, settings_of_options
from toolyard.cli.target import chosen
from toolyard.cli.terminal import Terminal
from toolyard.monitor import log_sink
from toolyard.profile import EVERYTHING, METATOOLS, Profile
from toolyard.providers import Telling
from toolyard.signals import run
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.parser import Options  # a program that serves a yard of its own parses nothing

__all__ = ["Work", "opened", "work_in_yard"]

Work = Callable[[Yard, Profile], Coroutine[Any, Any, int]]
"""What a command does with an open yard and the profile it was asked to take; it returns the exit status."""

_PATIENCE: Final = 120.0
_SILENCE: Final = 1.0
_log = logging.getLogger(__name__)


def work_in_yard(options: "Options", terminal: Terminal, work: Work, *, tool: str | None = None, runs: bool = False) -> int:
    """Load the target, open its yard as it would be served, work in it and return the exit status.

    What a module or a tool prints goes to stderr, so that stdout holds data alone. Who wants one tool waits for that one only; but
    whoever runs a tool about tools waits for all.

    Raises:
        CommandError: The target cannot be loaded, or its yard not be opened or closed.
    """
    config = settings_of_options(options, terminal)
    with redirect_stdout(sys.stderr), chosen(config) as yard:
        apply_settings(yard, config, terminal)
        settle = partial(_settle, yard, terminal, tool=tool, runs=runs)
        return run(_work(yard, options, settle=settle, work=work))


async def _settle(yard: Yard, terminal: Terminal, *, tool: str | None, runs: bool) -> None:
    """Wait for what upstreams publish, and say for whom if it takes a while.

    Raises:
        CommandError: They have nothing to offer, and nobody else has.
    """

    def is_there() -> bool:
        found = None if tool is None else yard.registry.named(tool)
        return found is not None and not (runs and found.spec.source == METATOOLS)

    def tell(names: Sequence[str]) -> None:
        terminal.show_progress(f"Waiting for {', '.join(repr(name) for name in names)} …")

    await yard.providers.settled(_SILENCE, enough=is_there)
    await yard.providers.settled(_PATIENCE, enough=is_there, tell=tell)
    terminal.clear()
    if is_there():
        return
    troubled = [(one.name, reason) for one in yard.providers if isinstance(one, Telling) and (reason := one.trouble()) is not None]
    said = [f"'{name}' offers nothing for now. {reason}" for name, reason in troubled]
    if said and tool is None and not _offers(yard):
        raise CommandError(" ".join(said))
    for sentence in said:
        if not terminal.quiet:
            terminal.say(sentence)


def _offers(yard: Yard) -> bool:
    """Return whether there is anything of its own in a yard, be it withheld."""
    return bool(yard.registry.withheld(EVERYTHING)) or any(spec.source != METATOOLS for spec in yard.registry.visible(EVERYTHING))


async def _work(yard: Yard, options: "Options", *, settle: Callable[[], Awaitable[None]], work: Work) -> int:
    status: int | None = None
    yard.registry.allow_eval = yard.registry.allow_eval or options.allow_eval
    try:
        async with opened(yard, logged=options.verbose > 0):
            await settle()
            status = await work(yard, named_profile(yard, options.profile))
    except Exception as error:
        if status is None:
            raise
        _log.debug("close_failed yard=%s", yard.name, exc_info=error)
        raise CommandError(f"The yard '{yard.name}' did not close well: {cause_of(error)}", status=DEFECT) from error
    return status


@asynccontextmanager
async def opened(yard: Yard, *, logged: bool) -> AsyncGenerator[None]:
    """Open a yard, and log every call in it if asked.

    Raises:
        CommandError: It cannot be opened.
    """
    async with AsyncExitStack() as stack:
        if logged:
            stack.callback(yard.add_sink(log_sink))
        try:
            await stack.enter_async_context(yard)
        except Exception as error:
            _log.debug("open_failed yard=%s", yard.name, exc_info=error)
            raise CommandError(refusal_of(error, yard)) from error
        yield
