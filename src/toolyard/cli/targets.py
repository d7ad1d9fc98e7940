"""Targets: from 'module:attr', a file or an address to the yard that is meant.

It loads a yard and does not open it.
"""

import logging
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stdout
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from toolyard.cli.terminal import Terminal
from toolyard.config import FOREIGN, Config
from toolyard.launch.build import apply_settings, named_profile, read_settings
from toolyard.launch.errors import DEFECT, LaunchError, cause_of, refusal_of
from toolyard.launch.signals import run
from toolyard.model.names import did_you_mean
from toolyard.model.profile import EVERYTHING, METATOOLS, Profile
from toolyard.monitor import log_sink
from toolyard.providers import Telling
from toolyard.yard import Yard

if TYPE_CHECKING:
    from toolyard.cli.parser import Options  # a program that serves a yard of its own parses nothing

__all__ = ["Work", "chosen", "file_of", "loaded", "opened", "settings_of_options", "work_in_yard"]


_FORMS: Final = "Write 'module:attr', 'file.py', 'file.py:attr', 'toolyard.toml', a client's 'file.json' or an address."
_FILES: Final = (".py", ".toml", *FOREIGN)
_OTHER_NAME: Final = "_toolyard_target"
_log = logging.getLogger(__name__)


class _Target(NamedTuple):
    """Where a yard is: a file or a module, and the attribute if it was named."""

    place: str
    attribute: str
    is_file: bool


def settings_of_options(options: "Options", terminal: Terminal) -> Config:
    """Return the settings of a command line, and say which variables are probably misspelt.

    Raises:
        LaunchError: One is wrong.
    """
    target, path = options.target, options.config
    if target.endswith(".toml"):
        if path is not None:
            raise LaunchError(f"'{target}' is a file with settings, and so is '{path}'. Name one of them.")
        target, path = "", target
    return read_settings({**options.given, **({"target": target} if target else {})}, terminal, path=path)


@contextmanager
def chosen(config: Config) -> Generator[Yard]:
    """Return the yard that the settings name: the one of their target, or an empty one for their upstreams and packs.

    Raises:
        LaunchError: There is none.
    """
    if config.is_yard:
        yield Yard()
    elif config.settings.target is None:
        raise LaunchError("There is no TARGET: name a yard, or write 'target', 'upstreams' or 'packs' into 'toolyard.toml'.")
    else:
        with loaded(config.settings.target) as yard:
            yield yard


@contextmanager
def loaded(text: str) -> Generator[Yard]:
    """Load the yard that a target names; meanwhile, what lies beside it can be imported.

    Raises:
        LaunchError: There is none; the sentence names the file or module and the cause.
    """
    target = _read(text)
    folder = str(Path(target.place).resolve().parent if target.is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = _load(target)
        yield _named(module, target) if target.attribute else _only(module, target.place)
    finally:
        sys.path.remove(folder)


def file_of(text: str) -> Path | None:
    """Return the file that a target names, or nothing if it names a module or an address."""
    place = text if text.endswith(_FILES) else text.rpartition(":")[0]
    return Path(place) if place.endswith(_FILES) and "://" not in text else None


def _read(text: str) -> _Target:
    if text.endswith(".py"):
        return _Target(text, "", is_file=True)
    place, _, attribute = text.rpartition(":")
    if place and attribute:
        return _Target(place, attribute, is_file=place.endswith(".py"))
    beside = Path(f"{text}.py")
    meant = f" Did you mean '{beside}'?" if text and beside.is_file() else ""
    raise LaunchError(f"'{text}' names no yard. {_FORMS}{meant}")


def _load(target: _Target) -> ModuleType:
    if target.is_file and not Path(target.place).is_file():
        raise LaunchError(f"There is no file '{target.place}'.")
    try:
        return _load_file(target.place) if target.is_file else import_module(target.place)
    except ModuleNotFoundError as error:
        if not target.is_file and error.name is not None and f"{target.place}.".startswith(f"{error.name}."):
            raise LaunchError(f"There is no module '{error.name}'. {_FORMS}") from error
        raise _refusal(target.place, error) from error
    except (Exception, SystemExit) as error:
        raise _refusal(target.place, error) from error


def _refusal(place: str, error: BaseException) -> LaunchError:
    _log.debug("load_failed target=%s", place, exc_info=error)
    return LaunchError(f"'{place}' cannot be loaded: {cause_of(error)}")


def _load_file(place: str) -> ModuleType:
    name = _name_of(place)
    spec = spec_from_file_location(name, Path(place).resolve())
    if spec is None or spec.loader is None:
        raise LaunchError(f"'{place}' is no Python file.")
    module = module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses and pydantic look for what annotations name
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name_of(place: str) -> str:
    """Return the name that the file would be imported by, unless that is somebody else's."""
    stem = Path(place).stem
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return _OTHER_NAME if taken or not stem.isidentifier() else stem


def _named(module: ModuleType, target: _Target) -> Yard:
    try:
        found: object = reduce(getattr, target.attribute.split("."), module)
    except AttributeError as error:
        suggestion = did_you_mean(target.attribute, vars(module))
        raise LaunchError(f"There is no '{target.attribute}' in '{target.place}'.{suggestion}") from error
    if not isinstance(found, Yard):
        raise LaunchError(f"'{target.attribute}' in '{target.place}' is of type '{type(found).__name__}' and no 'Yard'.")
    return found


def _only(module: ModuleType, place: str) -> Yard:
    yards: dict[int, tuple[str, Yard]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Yard):
            yards.setdefault(id(value), (name, value))
    if not yards:
        raise LaunchError(f"There is no 'Yard' at the top of '{place}'. One is made with 'yard = Yard(tools=[…])'.")
    if len(yards) > 1:
        names = [name for name, _ in yards.values()]
        listed = ", ".join(f"'{name}'" for name in names)
        raise LaunchError(f"There are {len(names)} yards in '{place}': {listed}. Name one, as in '{place}:{names[0]}'.")
    return next(iter(yards.values()))[1]


Work = Callable[[Yard, Profile], Coroutine[Any, Any, int]]
"""What a command does with an open yard and the profile it was asked to take; it returns the exit status."""
_PATIENCE: Final = 120.0
_SILENCE: Final = 1.0


def work_in_yard(options: "Options", terminal: Terminal, work: Work, *, tool: str | None = None, runs: bool = False) -> int:
    """Load the target, open its yard as it would be served, work in it and return the exit status.

    What a module or a tool prints goes to stderr, so that stdout holds data alone. Who wants one tool waits for that one only; but
    whoever runs a tool about tools waits for all.

    Raises:
        LaunchError: The target cannot be loaded, or its yard not be opened or closed.
    """
    config = settings_of_options(options, terminal)
    with redirect_stdout(sys.stderr), chosen(config) as yard:
        apply_settings(yard, config, terminal)
        settle = partial(_settle, yard, terminal, tool=tool, runs=runs)
        return run(_work(yard, options, settle=settle, work=work))


async def _settle(yard: Yard, terminal: Terminal, *, tool: str | None, runs: bool) -> None:
    """Wait for what upstreams publish, and say for whom if it takes a while.

    Raises:
        LaunchError: They have nothing to offer, and nobody else has.
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
        raise LaunchError(" ".join(said))
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
        raise LaunchError(f"The yard '{yard.name}' did not close well: {cause_of(error)}", status=DEFECT) from error
    return status


@asynccontextmanager
async def opened(yard: Yard, *, logged: bool) -> AsyncGenerator[None]:
    """Open a yard, and log every call in it if asked.

    Raises:
        LaunchError: It cannot be opened.
    """
    async with AsyncExitStack() as stack:
        if logged:
            stack.callback(yard.add_sink(log_sink))
        try:
            await stack.enter_async_context(yard)
        except Exception as error:
            _log.debug("open_failed yard=%s", yard.name, exc_info=error)
            raise LaunchError(refusal_of(error, yard)) from error
        yield
