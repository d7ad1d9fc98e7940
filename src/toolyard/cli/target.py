"""Targets: from 'module:attr', a file or an address to the yard that is meant.

It loads a yard and does not open it.
"""

import logging
import sys
from collections.abc import Generator
from contextlib import contextmanager
from functools import reduce
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Final, NamedTuple

from toolyard.cli.cause import cause_of
from toolyard.cli.exits import CommandError
from toolyard.config import FOREIGN, Config
from toolyard.schema import near_miss
from toolyard.yard import Yard

__all__ = ["chosen", "file_of", "loaded"]

_FORMS: Final = "Write 'module:attr', 'file.py', 'file.py:attr', 'toolyard.toml', a client's 'file.json' or an address."
_FILES: Final = (".py", ".toml", *FOREIGN)
_OTHER_NAME: Final = "_toolyard_target"
_log = logging.getLogger(__name__)


class _Target(NamedTuple):
    """Where a yard is: a file or a module, and the attribute if it was named."""

    place: str
    attribute: str
    is_file: bool


@contextmanager
def chosen(config: Config) -> Generator[Yard]:
    """Return the yard that the settings name: the one of their target, or an empty one for their upstreams and packs.

    Raises:
        CommandError: There is none.
    """
    if config.is_yard:
        yield Yard()
    elif config.settings.target is None:
        raise CommandError("There is no TARGET: name a yard, or write 'target', 'upstreams' or 'packs' into 'toolyard.toml'.")
    else:
        with loaded(config.settings.target) as yard:
            yield yard


@contextmanager
def loaded(text: str) -> Generator[Yard]:
    """Load the yard that a target names; meanwhile, what lies beside it can be imported.

    Raises:
        CommandError: There is none; the sentence names the file or module and the cause.
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
    raise CommandError(f"'{text}' names no yard. {_FORMS}{meant}")


def _load(target: _Target) -> ModuleType:
    if target.is_file and not Path(target.place).is_file():
        raise CommandError(f"There is no file '{target.place}'.")
    try:
        return _load_file(target.place) if target.is_file else import_module(target.place)
    except ModuleNotFoundError as error:
        if not target.is_file and error.name is not None and f"{target.place}.".startswith(f"{error.name}."):
            raise CommandError(f"There is no module '{error.name}'. {_FORMS}") from error
        raise _refusal(target.place, error) from error
    except (Exception, SystemExit) as error:
        raise _refusal(target.place, error) from error


def _refusal(place: str, error: BaseException) -> CommandError:
    _log.debug("load_failed target=%s", place, exc_info=error)
    return CommandError(f"'{place}' cannot be loaded: {cause_of(error)}")


def _load_file(place: str) -> ModuleType:
    name = _name_of(place)
    spec = spec_from_file_location(name, Path(place).resolve())
    if spec is None or spec.loader is None:
        raise CommandError(f"'{place}' is no Python file.")
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
        near = near_miss(target.attribute, list(vars(module)))
        meant = f" Did you mean '{near}'?" if near else ""
        raise CommandError(f"There is no '{target.attribute}' in '{target.place}'.{meant}") from error
    if not isinstance(found, Yard):
        raise CommandError(f"'{target.attribute}' in '{target.place}' is of type '{type(found).__name__}' and no 'Yard'.")
    return found


def _only(module: ModuleType, place: str) -> Yard:
    yards: dict[int, tuple[str, Yard]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Yard):
            yards.setdefault(id(value), (name, value))
    if not yards:
        raise CommandError(f"There is no 'Yard' at the top of '{place}'. One is made with 'yard = Yard(tools=[…])'.")
    if len(yards) > 1:
        names = [name for name, _ in yards.values()]
        listed = ", ".join(f"'{name}'" for name in names)
        raise CommandError(f"There are {len(names)} yards in '{place}': {listed}. Name one, as in '{place}:{names[0]}'.")
    return next(iter(yards.values()))[1]
