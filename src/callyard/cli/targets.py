"""The yard of a command: read its settings, load its target, open it, and run the command in it."""

import asyncio
import logging
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stdout
from functools import partial, reduce
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec.structs import replace

from callyard._internal.files import find_state_dir
from callyard._internal.lazy import load
from callyard._internal.mask import mask_url
from callyard._internal.project import project_dir
from callyard.cli.terminal import Terminal
from callyard.config import CLIENT_FILES, Config
from callyard.config.convert import Location, parse_text
from callyard.config.settings import PREFIX
from callyard.dispatch.registry import AllowEval
from callyard.launch.build import apply_settings, find_profile, read_settings
from callyard.launch.errors import DEFECT, USAGE, LaunchError, exit_status, explain_cause, explain_refusal
from callyard.launch.signals import run
from callyard.metatools import METATOOL_NAMES
from callyard.model.errors import ToolError
from callyard.model.names import did_you_mean
from callyard.model.profile import EVERYTHING, METATOOLS, Profile
from callyard.monitor import log_sink
from callyard.providers.upstream.health import Supervised, supervised
from callyard.yard import Yard

if TYPE_CHECKING:
    from callyard.cli.parser import Options  # imports argparse

__all__ = [
    "KEY_VARIABLE",
    "UnreachableError",
    "Work",
    "config_from",
    "credentials_of",
    "load_target",
    "load_yard",
    "open_yard",
    "os_errors",
    "project_dir_of",
    "run_in_yard",
    "state_dir_of",
]


_FORMS: Final = "Write 'module:attr', 'file.py', 'file.py:attr', 'callyard.toml', a client's 'file.json' or a URL."
KEY_VARIABLE: Final = f"{PREFIX}KEY"
"""The environment variable with the API key for the server at a URL."""
_log = logging.getLogger(__name__)


class UnreachableError(LaunchError):
    """The server at the URL of a command cannot be used; the exit status is that of the failure's code."""

    def __init__(self, failure: ToolError) -> None:
        super().__init__(f"{failure.message} {failure.hint or ''}".rstrip(), status=exit_status(failure.code))
        self.failure = failure


class _Target(NamedTuple):
    """A file or a module, and the attribute that has the yard; empty if it is the only one."""

    module: str
    attribute: str
    is_file: bool


def config_from(options: "Options", terminal: Terminal, *, signs_in: bool = False) -> Config:
    """Return the settings of a command line, and write warnings; one that `signs_in` itself needs no other credentials.

    Raises:
        LaunchError: A setting is wrong.
    """
    target, path = options.target, options.config
    is_target = path is not None and (path.endswith(CLIENT_FILES) or "://" in path)
    if is_target and path is not None and not target:  # commands about an upstream have no TARGET
        target, path = path, None
    if target.endswith(".toml"):
        if path is not None:
            raise LaunchError(f"'{target}' and '{path}' are both files with settings. Name one of them.")
        target, path = "", target
    config = read_settings({**options.settings, **({"target": target} if target else {})}, terminal, path=path)
    return config if signs_in else _with_credentials(config, options)


def credentials_of(options: "Options") -> dict[str, str]:
    """Return the headers for the server at a URL: those of '--header', and the key of '--key' or CALLYARD_KEY.

    Raises:
        LaunchError: One has no name or no value.
    """
    headers: dict[str, str] = {}
    for text in options.header or ():
        name, colon, value = text.partition(":")
        if not name.strip() or not colon or not value.strip():
            raise LaunchError("A header is written as 'NAME:VALUE'.")
        headers[name.strip()] = value.strip()
    key = options.key or os.environ.get(KEY_VARIABLE, "").strip()
    if options.key or (key and not any(name.lower() in {"authorization", "x-api-key"} for name in headers)):
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _with_credentials(config: Config, options: "Options") -> Config:
    """Return the settings with the credentials of the command line for the URL that is the target.

    Raises:
        LaunchError: There are some, and the target is no URL.
    """
    headers = credentials_of(options)
    if not _is_url(config):
        if options.key or options.header:
            raise LaunchError("'--key' and '--header' are for a TARGET that is a URL.")
        return config
    upstreams = {
        name: entry._replace(settings=replace(entry.settings, headers={**entry.settings.headers, **headers}))
        for name, entry in config.upstreams.items()
    }
    return replace(config, upstreams=upstreams) if headers else config


def _is_url(config: Config) -> bool:
    return (config.settings.target or "").startswith(("http://", "https://"))


@contextmanager
def os_errors(problem: str, *, hint: str = "", status: int = USAGE) -> Generator[None]:
    """Turn an error of the system into `LaunchError`: the problem, the reason of the system, and a hint."""
    try:
        yield
    except OSError as error:
        raise LaunchError(f"{problem}: {error.strerror}. {hint}".rstrip(), status=status) from error


def state_dir_of(config: Config) -> Path:
    """Return the state directory of the settings.

    Raises:
        LaunchError: There is none.
    """
    with os_errors("The state directory cannot be used", hint="Set another with 'state_dir'."):
        return find_state_dir(config.settings.state_dir)


def project_dir_of(config: Config) -> Path:
    """Return the folder in the state directory that belongs to the project of the settings.

    Raises:
        LaunchError: There is none.
    """
    return project_dir(state_dir_of(config), config.project)


@contextmanager
def load_yard(config: Config) -> Generator[Yard]:
    """Load the yard of the target, or make an empty one for upstreams and packs; it is not opened.

    Raises:
        LaunchError: There is no yard.
    """
    if config.is_yard:
        yield Yard()
    elif config.settings.target is None:
        raise LaunchError(
            "There is no TARGET. Name a yard, or write 'target', 'upstreams', 'apis' or 'packs' into 'callyard.toml'."
        )
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
        return _load_file(target.module) if target.is_file else load(target.module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) and not target.is_file else None
        if missing is not None and f"{target.module}.".startswith(f"{missing}."):
            raise LaunchError(f"There is no module '{missing}'. {_FORMS}") from error
        _log.debug("load_failed target=%s", target.module, exc_info=error)
        raise LaunchError(f"'{target.module}' cannot be loaded: {explain_cause(error)}") from error


def _load_file(place: str) -> ModuleType:
    # the name by which it would be imported, unless another module has it
    name = Path(place).stem
    if name in sys.modules or name in sys.stdlib_module_names or not name.isidentifier():
        name = "_callyard_target"
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
    yards: dict[Yard, str] = {}
    for name, value in vars(module).items():
        if isinstance(value, Yard):
            yards.setdefault(value, name)
    if not yards:
        raise LaunchError(f"There is no 'Yard' at the top level of '{place}'. Make one with 'yard = Yard(tools=[…])'.")
    if len(yards) > 1:
        names = list(yards.values())
        listed = ", ".join(f"'{name}'" for name in names)
        raise LaunchError(f"There are {len(names)} yards in '{place}': {listed}. Name one, as in '{place}:{names[0]}'.")
    return next(iter(yards))


Work = Callable[[Yard, Profile, "Options", Terminal], Coroutine[Any, Any, int]]
"""Runs a command in an open yard for a profile, and returns the exit status."""
_TIMEOUT_S: Final = 120.0
_LISTING_S: Final = 2.0
"""How long a command that lists tools waits: one upstream that hangs must not hide the others."""
_SILENT_S: Final = 1.0
"""How long upstreams are waited for before the terminal says so."""


def run_in_yard(
    options: "Options",
    terminal: Terminal,
    work: Work,
    *,
    tool: str | None = None,
    runs: bool = False,
    lists: bool = False,
) -> int:
    """Load the target, open its yard as it would be served, run a command in it and return the exit status.

    What a module or a tool prints goes to stderr, so that stdout has only data. With `tool`, only the upstream that
    publishes it is waited for; a metatool that `runs` needs all of them. A command that `lists` tools waits at most two
    seconds, unless '--wait' is given. So does one for a tool that has not the name of an upstream in front.

    Raises:
        LaunchError: The target cannot be loaded, or its yard cannot be opened or closed.
    """
    config = config_from(options, terminal)
    with redirect_stdout(sys.stderr), load_yard(config) as yard:
        apply_settings(yard, config, terminal)
        url = config.settings.target if _is_url(config) else None
        is_unknown = tool is not None and tool not in METATOOL_NAMES and not _publishers(yard, tool)
        seconds = _LISTING_S if not options.wait and url is None and (lists or is_unknown) else _TIMEOUT_S
        deadline = time.monotonic() + seconds
        if url is None:
            wait = partial(_wait_for_upstreams, yard, terminal, tool=tool, runs=runs, deadline=deadline)
        else:
            wait = partial(_read_server, yard, terminal, url=url, deadline=deadline)
        return run(_run(yard, options, terminal, wait=wait, work=work))


def _publishers(yard: Yard, tool: str | None) -> list[Supervised]:
    """Return the upstreams and APIs whose prefix a tool has."""
    name = tool or ""
    known = supervised(yard.providers)
    return [upstream for upstream in known if upstream.prefix and name.startswith(f"{upstream.prefix}__")]


async def _wait_for_upstreams(yard: Yard, terminal: Terminal, *, tool: str | None, runs: bool, deadline: float) -> None:
    """Wait until upstreams have published their tools, and show which ones are waited for.

    Raises:
        LaunchError: Upstreams failed and the yard has no tools at all.
    """

    def is_published() -> bool:
        found = None if tool is None else yard.registry.get(tool)
        return found is not None and not (runs and found.spec.source == METATOOLS)

    def is_decided() -> bool:
        owners = _publishers(yard, tool)
        return is_published() or (bool(owners) and all(owner.is_settled for owner in owners))

    def show(names: Sequence[str]) -> None:
        terminal.show_progress(f"Waiting for {', '.join(repr(name) for name in names)} …")

    await yard.providers.wait_ready(min(_SILENT_S, deadline - time.monotonic()), enough=is_decided)
    await yard.providers.wait_ready(deadline - time.monotonic(), enough=is_decided, tell=show)
    terminal.clear()
    if is_published():
        return
    problems: list[str] = []
    late = {upstream.name for upstream in supervised(yard.providers) if not upstream.is_settled}
    for provider in yard.providers:
        reason = getattr(provider, "unavailable_reason", lambda: None)()  # which any provider may have
        if reason is None:
            continue
        problem = f"'{provider.name}' offers nothing for now. {reason}"
        problems.append(f"{problem} '--wait' waits until it answers." if provider.name in late else problem)
    sources = {spec.source for spec in yard.registry.visible(EVERYTHING)}
    if problems and tool is None and not yard.registry.unavailable(EVERYTHING) and not sources - {METATOOLS}:
        raise LaunchError(" ".join(problems))
    for problem in problems:
        terminal.inform(problem)


async def _read_server(yard: Yard, terminal: Terminal, *, url: str, deadline: float) -> None:
    """Read what the server at a URL, which is the target, offers to these credentials now.

    A stored catalogue may be outdated, or have been read with other credentials.

    Raises:
        UnreachableError: The server does not answer, or refuses the credentials.
    """
    from callyard.providers.upstream.provider import Upstream  # noqa: PLC0415 - most yards that are served have none

    [upstream] = [provider for provider in yard.providers if isinstance(provider, Upstream)]
    # otherwise opening the yard has read it, or failed to
    if not upstream.is_settled or upstream.supervisor.health.state in {"cold", "starting"}:
        reading = upstream.supervisor.start_refresh()
        await asyncio.wait([reading], timeout=_SILENT_S)
        if not reading.done():
            terminal.show_progress(f"Waiting for '{upstream.name}' …")
            await asyncio.wait([reading], timeout=deadline - time.monotonic())
            terminal.clear()
    status = upstream.status()
    if status.state != "ready":
        raise _unreachable(status.reason, url, is_refused=status.state == "auth_needed")


def _unreachable(problem: str, url: str, *, is_refused: bool) -> UnreachableError:
    """Return the error for a server at a URL that does not answer or refuses the credentials."""
    if is_refused:
        hint = f"Give a key with '--key' or {KEY_VARIABLE}, or sign in with 'callyard login URL'."
        return UnreachableError(ToolError("unauthenticated", problem, hint=hint, blame="caller", may_have_run=False))
    hint = f"Check that a server runs at '{mask_url(url)}', and try again."
    return UnreachableError(ToolError("upstream_unavailable", problem, hint=hint, may_have_run=False))


async def _run(
    yard: Yard, options: "Options", terminal: Terminal, *, wait: Callable[[], Awaitable[None]], work: Work
) -> int:
    status: int | None = None
    yard.registry.allow_eval = _allowed_eval(yard.registry.allow_eval, options.allow_eval)
    try:
        async with open_yard(yard, logged=options.verbose > 0):
            await wait()
            status = await work(yard, find_profile(yard, options.profile), options, terminal)
    except Exception as error:
        if status is None:
            raise
        _log.debug("close_failed yard=%s", yard.name, exc_info=error)
        message = f"The yard '{yard.name}' did not close cleanly: {explain_cause(error)}"
        raise LaunchError(message, status=DEFECT) from error
    return status


def _allowed_eval(configured: AllowEval, flag: bool | str) -> AllowEval:  # noqa: FBT001 - a switch that may have a value
    """Return where code may run: where the settings say, and where the flag says."""
    named: AllowEval = flag if isinstance(flag, bool) else parse_text(flag, AllowEval, Location("--allow-eval"))
    if named is True or configured is True:
        return True
    return (*(configured or ()), *(named or ())) or False


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
