"""What a server says about its rules and upstreams once they are known: what a person should correct or settle."""

import os
import shlex
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from callyard._internal.tasks import background_task
from callyard.config import Config
from callyard.config.read import FILE
from callyard.launch.notices import Notices
from callyard.model.profile import EVERYTHING
from callyard.policy.rules import unmatched
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.transports.http.app import Mount  # servers over stdio start sooner without

__all__ = ["Advice", "rule_warnings", "unsettled_line"]

_READY_S: Final = 86_400.0


class Advice:
    """A part of a server that says once, in one process, what a person should correct or settle."""

    mounts: Mapping[str, "Mount"] = {}

    def __init__(self, yard: Yard, config: Config, notices: Notices) -> None:
        self._yard = yard
        self._config = config
        self._notices = notices
        self._turn, writer = os.pipe()  # the worker that takes the byte speaks for all
        os.write(writer, b"1")
        os.close(writer)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        """Say it in the background, because slow upstreams must not delay the first answer."""
        async with background_task(self._say()):
            yield

    async def _say(self) -> None:
        await self._yard.providers.wait_ready(_READY_S)
        if not self._is_first():
            return
        for sentence in rule_warnings(self._yard):
            self._notices.inform(sentence)
        line = unsettled_line(self._yard, self._config)
        if line:
            self._notices.inform(line)

    def _is_first(self) -> bool:
        with suppress(OSError):  # it is closed
            return os.read(self._turn, 1) == b"1"
        return False

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._turn)


def rule_warnings(yard: Yard) -> Iterator[str]:
    """Yield a sentence for each rule that names no known tool."""
    late = [one.name for one in yard.providers if getattr(one, "unavailable_reason", lambda: None)() is not None]
    doubt = f" The tools of {_listed(late)} are not known yet." if late else ""
    rules = () if yard.gate is None else yard.gate.rules
    for sentence in unmatched(rules, yard.registry.all_specs()):
        yield f"{sentence}{doubt}"


def unsettled_line(yard: Yard, config: Config) -> str:
    """Return how many tools wait for a person because nobody has said what they do, or nothing if none does."""
    gate = yard.gate
    if gate is None:
        return ""
    asks = config.settings.serve.ask_before_destroy
    specs = [spec for spec in yard.registry.visible(EVERYTHING) if gate.asks_what_it_does(spec, asks=asks)]
    if not specs:
        return ""
    sources = sorted(spec.source for spec in specs)
    counts = [f"{len(list(group))} of '{source}'" for source, group in groupby(sources)]
    is_default = config.path is None or config.path.absolute() == Path(FILE).absolute()
    file = "" if is_default else f" --config {shlex.quote(str(config.path))}"
    return (
        f"Nobody has said what these tools do, so their calls wait for a person: {', '.join(counts)}. "
        f"Settle them with 'callyard settle{file}'."
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"'{name}'" for name in names)
