"""The lock: a file that says which definitions of which upstreams were accepted, one line for each, so that it merges well.

It is for people to review. Lines are JSON in ASCII, so that no character in a name can hide or pass for another.
"""

import fcntl
import os
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from toolyard.providers.upstream.definitions import Definition, Key, PinnedKind
from toolyard.state_dir import write_atomically

__all__ = ["LOCK", "LockError", "Locked", "Pin", "change_lock", "find_lock", "parse_lock", "pin_of"]

LOCK: Final = "toolyard.lock"
"""The name of the file."""

_HEAD: Final = (
    "# What upstreams were accepted to offer, by hash. Written by Toolyard; review it like code.\n"
    "# 'toolyard diff' tells what an upstream changed since, and 'toolyard accept' puts it here.\n"
)
_MODE: Final = 0o644
_TRIES: Final = 100
_PAUSE: Final = 0.02


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One line: the hash of a definition that was accepted, and short ones of its fields."""

    upstream: str
    kind: PinnedKind
    name: str
    hash: str
    fields: dict[str, str]

    @property
    def key(self) -> Key:
        """Return what it is of."""
        return Key(self.kind, self.name)


Locked = Mapping[str, Mapping[Key, Pin]]
"""The lines of a lock, by upstream."""

_LINES: Final = msgspec.json.Decoder(Pin)


class LockError(Exception):
    """The lock cannot be understood; the sentence names the file and the line."""


def find_lock(config: Path | None, state: Path) -> Path:
    """Return where the lock is: beside the configuration file if there is one, else in the state directory."""
    return (state if config is None else config.absolute().parent) / LOCK


def pin_of(upstream: str, definition: Definition) -> Pin:
    """Return the line that accepts a definition."""
    return Pin(upstream, definition.kind, definition.name, definition.hash, definition.field_hashes())


def parse_lock(path: Path, content: bytes) -> Locked:
    """Return what a lock says.

    Raises:
        LockError: It cannot be understood.
    """
    found: dict[str, dict[Key, Pin]] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            pin = _LINES.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise LockError(f"Line {number} of '{path}' cannot be read. If it is left from a merge, put the file in order.") from error
        known = found.setdefault(pin.upstream, {}).setdefault(pin.key, pin)
        if known != pin:
            raise LockError(f"Line {number} of '{path}' contradicts another about the {pin.key} of '{pin.upstream}'. Remove one of them.")
    return found


def change_lock(path: Path, change: Callable[[Locked], Locked]) -> Locked:
    """Change what a lock says, with nobody else changing it meanwhile; return what it says then.

    Raises:
        LockError: It cannot be understood, and was left as it is.
        OSError: It cannot be written, or others keep it to themselves for too long.
    """
    with _kept(path) as (real, content):
        before = parse_lock(path, content)
        after = change(before)
        if after != before:
            write_atomically(real, _written(after), mode=_MODE)
    return after


def _written(locked: Locked) -> bytes:
    import json  # noqa: PLC0415 - most starts only read

    pins = sorted((pin for pins in locked.values() for pin in pins.values()), key=lambda pin: (pin.upstream, pin.kind, pin.name))
    return (_HEAD + "".join(f"{json.dumps(msgspec.to_builtins(pin))}\n" for pin in pins)).encode()


@contextmanager
def _kept(path: Path) -> Generator[tuple[Path, bytes]]:
    """Keep others from changing a file, which is made if it is missing, and tell where it really is and what is in it."""
    real = path.resolve()
    real.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_TRIES):
        with os.fdopen(os.open(real, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE), "rb") as file:
            if _taken(file.fileno(), real):
                yield real, file.read()
                return
        time.sleep(_PAUSE)  # whoever has it tells nobody when he lets go
    raise TimeoutError(f"Another process keeps '{path}' to itself.")


def _taken(number: int, path: Path) -> bool:
    """Take an open file for ourselves; it is not ours if somebody has it, or has put another in its place."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(number), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
