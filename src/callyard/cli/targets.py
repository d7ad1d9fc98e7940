"""The yard of a command: read its settings, load its target, open it, and run the command in it."""

import logging
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stdout
from functools import partial, reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from callyard._internal.files import find_state_dir
from callyard._internal.project import project_dir
from callyard.cli.terminal import Terminal
from callyard.config import CLIENT_FILES, Config
from callyard.launch.build import apply_settings, find_profile, read_settings
from callyard.launch.errors import DEFECT, LaunchError, explain_cause, explain_refusal
from callyard.launch.signals import run
from callyard.metatools import METATOOL_NAMES
from callyard.model.names import did_you_mean
from callyard.model.profile import EVERYTHING, METATOOLS, Profile
from callyard.monitor import log_sink
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.cli.parser import Options  # imports argparse

__all__ = ["Work", "config_from", "load_target", "load_yard", "open_yard", "project_dir_of", "run_in_yard"]


_FORMS: Final = "Write 'module:attr', 'file.py', 'file.py:attr', 'callyard.toml', a client's 'file.json' or a URL."
_FALLBACK_NAME: Final = "_callyard_target"
_log = logging.getLogger(__name__)


class _Target(NamedTuple):
    """A file or a module, and the attribute that has the yard; empty if it is the only one."""

    module: str
    attribute: str
    is_file: bool


def config_from(options: "Options", terminal: Terminal) -> Config:
    """Return the settings of a command line, and write warnings.

    Raises:
        LaunchError: A setting is wrong.
    """
    target, path = options.target, options.config
    if not target and path is not None and (path.endswith(CLIENT_FILES) or "://" in path):  # commands about an upstream have no TARGET
        target, path = path, None
    if target.endswith(".toml"):
        if path is not None:
            raise LaunchError(f"'{target}' and '{path}' are both files with settings. Name one of them.")
        target, path = "", target
    return read_settings({**options.settings, **({"target": target} if target else {})}, terminal, path=path)


def project_dir_of(config: Config) -> Path:
    """Return the folder in the state directory that belongs to the project of the settings.

    Raises:
        LaunchError: There is none.
    """
    try:
        return project_dir(find_state_dir(config.settings.state_dir), config.project)
    except OSError as error:
        raise LaunchError(f"The state directory cannot be used: {error.strerror}. Set another with 'state_dir'.") from error


@contextmanager
def load_yard(config: Config) -> Generator[Yard]:
    """Load the yard of the target, or make an empty one for upstreams and packs; it is not opened.

    Raises:
        LaunchError: There is no yard.
    """
    if config.is_yard:
        yield Yard()
    elif config.settings.target is None:
        raise LaunchError("There is no TARGET. Name a yard, or write 'target', 'upstreams' or 'packs' into 'callyard.toml'.")
    else:
        with load_target(config.settings.target) as yard:
            yield yard


@contextmanager
def load_target(text: str) -> Generator[Yard]:
    """Load the yard that a target names; modules in its folder can be imported while the context is open.

    Raises:
        LaunchError: There is none; the message names the file or module and the cause.
    """
    target = _parse(text)
    folder = str(Path(target.module).resolve().parent if target.is_file else Path.cwd())
    sys.path.insert(0, folder)
    try:
        module = _load_module(target)
        yield _attribute(module, target) if target.attribute else _only_yard(module, target.module)
    finally:
        sys.path.remove(folder)


def _parse(text: str) -> _Target:
    if text.endswith(".py"):
        return _Target(text, "", is_file=True)
    module, _, attribute = text.rpartition(":")
    if module and attribute:
        return _Target(module, attribute, is_file=module.endswith(".py"))
    file = Path(f"{text}.py")
    meant = f" Did you mean '{file}'?" if text and file.is_file() else ""
    raise LaunchError(f"'{text}' names no yard. {_FORMS}{meant}")


def _load_module(target: _Target) -> ModuleType:
    if target.is_file and not Path(target.module).is_file():
        raise LaunchError(f"There is no file '{target.module}'.")
    try:
        return _load_file(target.module) if target.is_file else import_module(target.module)
    except ModuleNotFoundError as error:
        if not target.is_file and error.name is not None and f"{target.module}.".startswith(f"{error.name}."):
            raise LaunchError(f"There is no module '{error.name}'. {_FORMS}") from error
        raise _refusal(target.module, error) from error
    except (Exception, SystemExit) as error:
        raise _refusal(target.module, error) from error


def _refusal(place: str, error: BaseException) -> LaunchError:
    _log.debug("load_failed target=%s", place, exc_info=error)
    return LaunchError(f"'{place}' cannot be loaded: {explain_cause(error)}")


def _load_file(place: str) -> ModuleType:
    name = _name_of(place)
    spec = spec_from_file_location(name, Path(place).resolve())
    if spec is None or spec.loader is None:
        raise LaunchError(f"'{place}' is not a Python file.")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pydantic resolve annotations there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _name_of(place: str) -> str:
    """Return the name by which the file would be imported, unless another module has it."""
    stem = Path(place).stem
    taken = stem in sys.modules or stem in sys.stdlib_module_names
    return _FALLBACK_NAME if taken or not stem.isidentifier() else stem


def _attribute(module: ModuleType, target: _Target) -> Yard:
    try:
        found: object = reduce(getattr, target.attribute.split("."), module)
    except AttributeError as error:
        meant = did_you_mean(target.attribute, list(vars(module)))
        raise LaunchError(f"There is no '{target.attribute}' in '{target.module}'.{meant}") from error
    if not isinstance(found, Yard):
        raise LaunchError(f"'{target.attribute}' in '{target.module}' is a '{type(found).__name__}' and not a 'Yard'.")
    return found


def _only_yard(module: ModuleType, place: str) -> Yard:
    yards: dict[int, tuple[str, Yard]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Yard):
            yards.setdefault(id(value), (name, value))
    if not yards:
        raise LaunchError(f"There is no 'Yard' at the top level of '{place}'. Make one with 'yard = Yard(tools=[…])'.")
    if len(yards) > 1:
        names = [name for name, _ in yards.values()]
        listed = ", ".join(f"'{name}'" for name in names)
        raise LaunchError(f"There are {len(names)} yards in '{place}': {listed}. Name one, as in '{place}:{names[0]}'.")
    return next(iter(yards.values()))[1]


Work = Callable[[Yard, Profile], Coroutine[Any, Any, int]]
"""Runs a command in an open yard for a profile, and returns the exit status."""
_TIMEOUT_S: Final = 120.0
_LISTING_S: Final = 2.0
"""How long a command that lists tools waits: one upstream that hangs must not hide the others."""
_SILENT_S: Final = 1.0
"""How long upstreams are waited for before the terminal says so."""


def run_in_yard(
    options: "Options", terminal: Terminal, work: Work, *, tool: str | None = None, runs: bool = False, lists: bool = False
) -> int:
    """Load the target, open its yard as it would be served, run a command in it and return the exit status.

    What a module or a tool prints goes to stderr, so that stdout has only data. With `tool`, only the upstream that publishes it is
    waited for; a metatool that `runs` needs all of them. A command that `lists` tools waits at most two seconds, unless '--wait' is given.
    So does one for a tool that has not the name of an upstream in front.

    Raises:
        LaunchError: The target cannot be loaded, or its yard cannot be opened or closed.
    """
    config = config_from(options, terminal)
    with redirect_stdout(sys.stderr), load_yard(config) as yard:
        apply_settings(yard, config, terminal)
        is_short = not options.wait and (lists or (tool is not None and tool not in METATOOL_NAMES and not _publishers(yard, tool)))
        deadline = time.monotonic() + (_LISTING_S if is_short else _TIMEOUT_S)
        wait = partial(_wait_for_upstreams, yard, terminal, tool=tool, runs=runs, deadline=deadline)
        return run(_run(yard, options, wait=wait, work=work))


def _publishers(yard: Yard, tool: str) -> list[object]:
    """Return the upstreams whose prefix a tool has."""
    return [provider for provider in yard.providers if (prefix := getattr(provider, "prefix", "")) and tool.startswith(f"{prefix}__")]


async def _wait_for_upstreams(yard: Yard, terminal: Terminal, *, tool: str | None, runs: bool, deadline: float) -> None:
    """Wait until upstreams have published their tools, and show which ones are waited for.

    Raises:
        LaunchError: Upstreams failed and the yard has no tools at all.
    """

    def is_published() -> bool:
        found = None if tool is None else yard.registry.get(tool)
        return found is not None and not (runs and found.spec.source == METATOOLS)

    def is_decided() -> bool:
        owners = [] if tool is None else _publishers(yard, tool)
        return is_published() or (bool(owners) and all(getattr(owner, "is_settled", True) for owner in owners))

    def show(names: Sequence[str]) -> None:
        terminal.show_progress(f"Waiting for {', '.join(repr(name) for name in names)} …")

    await yard.providers.wait_ready(min(_SILENT_S, deadline - time.monotonic()), enough=is_decided)
    await yard.providers.wait_ready(deadline - time.monotonic(), enough=is_decided, tell=show)
    terminal.clear()
    if is_published():
        return
    problems = [
        f"'{provider.name}' offers nothing for now. {problem}"
        + ("" if getattr(provider, "is_settled", True) else " '--wait' waits until it answers.")
        for provider in yard.providers
        if (problem := getattr(provider, "unavailable_reason", lambda: None)()) is not None
    ]
    if problems and tool is None and not _has_tools(yard):
        raise LaunchError(" ".join(problems))
    for problem in problems:
        terminal.inform(problem)


def _has_tools(yard: Yard) -> bool:
    """Return whether a yard has tools besides the metatools, withheld ones included."""
    return bool(yard.registry.unavailable(EVERYTHING)) or any(spec.source != METATOOLS for spec in yard.registry.visible(EVERYTHING))


async def _run(yard: Yard, options: "Options", *, wait: Callable[[], Awaitable[None]], work: Work) -> int:
    status: int | None = None
    yard.registry.allow_eval = yard.registry.allow_eval or options.allow_eval
    try:
        async with open_yard(yard, logged=options.verbose > 0):
            await wait()
            status = await work(yard, find_profile(yard, options.profile))
    except Exception as error:
        if status is None:
            raise
        _log.debug("close_failed yard=%s", yard.name, exc_info=error)
        raise LaunchError(f"The yard '{yard.name}' did not close cleanly: {explain_cause(error)}", status=DEFECT) from error
    return status


@asynccontextmanager
async def open_yard(yard: Yard, *, logged: bool) -> AsyncGenerator[None]:
    """Open a yard; with `logged`, log every call in it.

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
            raise LaunchError(explain_refusal(error, yard)) from error
        yield
