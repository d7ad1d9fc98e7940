"""What is stored of upstreams: the lock and the catalogues, as commands read them without any server."""

from pathlib import Path
from typing import Final, NamedTuple

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.settings import settings_of_options
from toolyard.cli.terminal import Terminal
from toolyard.logline import is_word
from toolyard.providers.upstream.catalogue import folder_of, load
from toolyard.providers.upstream.definitions import Definitions, definitions_of
from toolyard.providers.upstream.lock import Locked, LockError, find_lock, parse_lock
from toolyard.schema import near_miss
from toolyard.state_dir import find_state_dir

__all__ = ["Stored", "read_stored"]

_UNKNOWN: Final = "What '{}' offers is not known on this machine. Serve it once, so that it is looked at."


class Stored(NamedTuple):
    """Where things are stored, what the lock says, the upstreams that are meant when none is named, and those that are not pinned."""

    lock: Path
    state: Path
    locked: Locked
    names: list[str]
    unpinned: frozenset[str]

    def offered(self, terminal: Terminal) -> dict[str, Definitions]:
        """Return what the upstreams that are meant offered when they were last looked at, and say of which that is not known."""
        found = {name: load(folder_of(self.state, name)) for name in self.names}
        for name, catalogue in found.items():
            if catalogue is None and not terminal.quiet:
                terminal.say(_UNKNOWN.format(name))
        return {name: definitions_of(catalogue) for name, catalogue in found.items() if catalogue is not None}

    def offered_by(self, name: str) -> Definitions:
        """Return what one upstream offered when it was last looked at.

        Raises:
            CommandError: That is not known.
        """
        catalogue = load(folder_of(self.state, name)) if _is_name(name) else None
        if catalogue is not None:
            return definitions_of(catalogue)
        if name in self.names:
            raise CommandError(_UNKNOWN.format(name))
        near = near_miss(name, sorted({*self.names, *_with_catalogue(self.state)}))
        meant = f" Did you mean '{near}'?" if near else ""
        raise CommandError(f"Nothing is known of an upstream '{name}'.{meant}")


def read_stored(options: Options, terminal: Terminal) -> Stored:
    """Find what is stored, by the settings.

    Raises:
        CommandError: The settings are wrong, or the lock cannot be read.
    """
    config = settings_of_options(options, terminal)
    try:
        state = find_state_dir(config.settings.state_dir)
        lock = find_lock(config.path, state)
        locked = parse_lock(lock, lock.read_bytes() if lock.exists() else b"")
    except LockError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"'{error.filename or 'The state directory'}' cannot be read: {error.strerror}.", status=DEFECT) from error
    used = {name: written.settings for name, written in config.upstreams.items() if written.settings.enabled}
    unpinned = frozenset(name for name, settings in used.items() if settings.pin == "off")
    return Stored(lock, state, locked, sorted(used) or sorted(locked) or _with_catalogue(state), unpinned)


def _is_name(name: str) -> bool:
    """Return whether a name stays inside the folder of the upstreams."""
    return is_word(name) and not name.startswith(".")


def _with_catalogue(state: Path) -> list[str]:
    """Return the upstreams that were looked at on this machine."""
    return sorted(path.parent.name for path in folder_of(state, "").glob("*/catalogue.json"))
