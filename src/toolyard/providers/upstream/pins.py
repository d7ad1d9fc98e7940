"""Pins: whether an upstream still offers what was accepted, and what of it must wait for somebody to look.

What is seen for the first time is accepted, unless the upstream's settings want to be asked. What changed afterwards is
withheld until somebody accepts it, so that a description cannot turn into an order unseen.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from threading import Thread
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import msgspec

from toolyard._internal.files import write_atomically
from toolyard._internal.logfmt import facts_of, is_word
from toolyard.model.envelope import encode, fingerprint
from toolyard.providers.upstream.catalogue import Catalogue, Item, folder_of
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = [
    "LOCK",
    "Definition",
    "Definitions",
    "Judgement",
    "Kept",
    "Key",
    "LockError",
    "Locked",
    "Pin",
    "PinnedKind",
    "Pins",
    "accept",
    "accepted_definition",
    "change_lock",
    "changed_fields",
    "definitions_of",
    "find_lock",
    "keep_accepted",
    "parse_lock",
    "pin_of",
    "read_accepted",
]


PinnedKind = Literal["instructions", "prompt", "resource", "template", "tool"]
"""What can be pinned; the instructions are there once, and have no name."""
_SHORT: Final = 8
_LISTED: Final = ("name", "title", "description", "mimeType", "annotations")
_FIELDS: Final[Mapping[PinnedKind, tuple[str, ...]]] = MappingProxyType(
    {
        "prompt": ("title", "description", "arguments"),
        "resource": _LISTED,
        "template": _LISTED,
        "tool": ("title", "description", "inputSchema", "outputSchema", "annotations"),
    }
)
_NAMED_BY: Final[Mapping[PinnedKind, str]] = MappingProxyType(
    {
        "prompt": "name",
        "resource": "uri",
        "template": "uriTemplate",
        "tool": "name",
    }
)
_VOLATILE: Final = "lastModified"


class Key(NamedTuple):
    """What a definition is of: the name is the upstream's own, or a URI."""

    kind: PinnedKind
    name: str

    def __str__(self) -> str:
        """Return it as sentences have it."""
        return f"{self.kind} '{self.name}'" if self.name else self.kind


class Definition(msgspec.Struct, frozen=True, dict=True):
    """What an upstream says of one thing it has."""

    kind: PinnedKind
    name: str
    fields: dict[str, Any]
    """The fields that are pinned and there, in the words of MCP."""

    @property
    def key(self) -> Key:
        """Return what it is of."""
        return Key(self.kind, self.name)

    @cached_property
    def hash(self) -> str:
        """Return what stands for all of it."""
        return fingerprint(self)

    def field_hashes(self) -> dict[str, str]:
        """Return what tells which fields changed; short, because nothing is decided by it."""
        return {name: fingerprint(value)[:_SHORT] for name, value in sorted(self.fields.items())}


Definitions = Mapping[Key, Definition]


def definitions_of(catalogue: Catalogue) -> Definitions:
    """Return everything in a catalogue that can be pinned."""
    found = {Key("instructions", ""): Definition("instructions", "", {"text": catalogue.instructions})}
    listed: tuple[tuple[PinnedKind, Iterable[Item]], ...] = (
        ("prompt", catalogue.prompts),
        ("resource", catalogue.resources),
        ("template", catalogue.templates),
        ("tool", catalogue.tools),
    )
    for kind, items in listed:
        for item in items:
            name = item.get(_NAMED_BY[kind])
            if isinstance(name, str) and name:  # anything else cannot be published
                one = Definition(kind, name, _fields(kind, item))
                found[one.key] = _joined(found[one.key], one) if one.key in found else one
    return found


def _fields(kind: PinnedKind, item: Item) -> dict[str, Any]:
    fields = {name: item[name] for name in _FIELDS[kind] if item.get(name) is not None}
    notes = fields.get("annotations")
    if kind in {"resource", "template"} and isinstance(notes, dict) and _VOLATILE in notes:
        fields["annotations"] = {name: note for name, note in notes.items() if name != _VOLATILE}  # pyright: ignore[reportUnknownVariableType] - it is any JSON
    return fields


def _joined(first: Definition, other: Definition) -> Definition:
    """Return two definitions of one name as one, because which of them is published depends on what else is wrong with them."""
    others = [*first.fields.get("duplicates", []), other.fields]
    return Definition(first.kind, first.name, {**first.fields, "duplicates": others})


Kept = dict[str, msgspec.Raw]
"""Definitions as JSON, by hash."""
_KEPT: Final = 5000
_FILE: Final = "accepted.json"
_TABLE: Final = msgspec.json.Decoder(Kept)
_ONE: Final = msgspec.json.Decoder(Definition)


def read_accepted(folder: Path) -> Kept:
    """Return the definitions that are kept in the folder of an upstream, by hash and not looked at; none if they cannot be read."""
    try:
        return _TABLE.decode((folder / _FILE).read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def accepted_definition(kept: Kept, wanted: str) -> Definition | None:
    """Return the definition that a hash stands for, if it is kept and is still that one."""
    try:
        found = _ONE.decode(kept[wanted])
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return found if found.hash == wanted else None


def keep_accepted(folder: Path, definitions: Iterable[Definition]) -> None:
    """Keep definitions in the folder of an upstream; of very many the oldest are forgotten.

    Raises:
        OSError: They cannot be written.
    """
    kept = read_accepted(folder)
    missing = {one.hash: msgspec.Raw(encode(one)) for one in definitions if one.hash not in kept}
    if missing:
        newest = list({**kept, **missing}.items())[-_KEPT:]
        write_atomically(folder / _FILE, encode(dict(newest)))


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


_UNREADABLE: Final = f"'{LOCK}' cannot be read, so nothing can be compared with it; 'toolyard diff {{}}' tells what is wrong."
_log = logging.getLogger(__name__)


class Judgement(msgspec.Struct, frozen=True, kw_only=True):
    """What of a catalogue may be published, and what happened to the rest."""

    withheld: Mapping[Key, str] = {}
    """What must not be published, with the sentence that says why."""
    warned: Mapping[Key, str] = {}
    """What would be withheld if the upstream's settings did not say 'warn', with the same sentence."""
    accepted: tuple[Key, ...] = ()
    """What was seen for the first time, and accepted."""
    vanished: tuple[Key, ...] = ()
    """What was accepted once and is no longer offered; should it come back, it must be as it was."""


class Pins:
    """Judges the catalogues of all upstreams by one lock."""

    def __init__(self, path: Path, *, state: Path) -> None:
        self.path: Final = path
        self._state = state
        self._stamp: object = None
        self._locked: Locked | LockError = {}
        self._judged: dict[str, object] = {}
        self._unwritten: dict[str, dict[Key, Pin]] = {}
        self._told: set[tuple[str, str]] = set()
        self._scanned: set[tuple[str, str]] = set()

    def judge(self, name: str, catalogue: Catalogue, settings: UpstreamSettings) -> Judgement:
        """Compare what an upstream offers with what was accepted, and accept what is new if it is trusted."""
        if settings.pin == "off":
            return Judgement()
        definitions = definitions_of(catalogue)
        trusted: tuple[Key, ...] = ()
        locked = self._read()
        if not isinstance(locked, LockError) and settings.first == "trust":
            known = self._pins(name)
            trusted = tuple(key for key in definitions if key not in known)
            locked = self._trust(name, [definitions[key] for key in trusted]) if trusted else locked
        self._judged[name] = self._about(name)
        if isinstance(locked, LockError):
            self._complain(locked)
            return _sentenced(dict.fromkeys(definitions, _UNREADABLE.format(name)), settings)
        pins = self._pins(name)
        reasons = {key: reason for key, one in definitions.items() if (reason := _reason(name, one, pins.get(key)))}
        self._keep(name, [one for key, one in definitions.items() if key not in reasons])
        self._tell(name, definitions, reasons, settings)
        self._scan(name, [definitions[key] for key in {**dict.fromkeys(trusted), **reasons}])
        vanished = tuple(key for key in pins if key not in definitions)
        return _sentenced(reasons, settings, accepted=tuple(key for key in trusted if key not in reasons), vanished=vanished)

    def changed(self, name: str) -> bool:
        """Return whether the lock says something else of an upstream than when it was judged; costs next to nothing if it does not."""
        if name not in self._judged:  # nobody compares it
            return False
        self._read()
        now, then = self._about(name), self._judged[name]
        return now is not then and now != then

    def _about(self, name: str) -> object:
        return str(self._locked) if isinstance(self._locked, LockError) else self._locked.get(name)

    def _pins(self, name: str) -> Mapping[Key, Pin]:
        pins = dict(self._unwritten.get(name, {}))
        return pins if isinstance(self._locked, LockError) else {**pins, **self._locked.get(name, {})}

    def _read(self) -> Locked | LockError:
        """Return what the lock says, which is read again only if it is another file than before."""
        try:
            status = self.path.stat()
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            if stamp != self._stamp:
                self._locked = _understood(self.path)
                self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._locked = None, {}
        except OSError as error:
            self._stamp, self._locked = None, LockError(f"'{self.path}' cannot be read: {error.strerror}.")
        return self._locked

    def _trust(self, name: str, definitions: Iterable[Definition]) -> Locked | LockError:
        """Accept what is seen for the first time; where that cannot be written it holds as long as this process."""
        pins = {one.key: pin_of(name, one) for one in definitions}
        try:
            self._locked = change_lock(self.path, lambda locked: {**locked, name: {**pins, **locked.get(name, {})}})
            self._stamp = None
        except LockError as error:
            self._stamp, self._locked = None, error
        except OSError as error:
            self._unwritten.setdefault(name, {}).update(pins)
            _log.warning("pins_unwritten%s", facts_of({"upstream": name, "path": self.path, "error": error}))
        return self._locked

    def _keep(self, name: str, definitions: Iterable[Definition]) -> None:
        try:
            keep_accepted(folder_of(self._state, name), definitions)
        except OSError as error:  # only comparisons will tell less
            _log.debug("definitions_unkept%s", facts_of({"upstream": name, "error": error}))

    def _complain(self, error: LockError) -> None:
        """Log what is wrong with the lock, once."""
        mark = ("", str(error))
        if mark not in self._told:
            self._told.add(mark)
            _log.warning("lock_unreadable%s", facts_of({"path": self.path, "error": error}))

    def _scan(self, name: str, definitions: Iterable[Definition]) -> None:
        """Look through definitions that were not seen before, beside everything else, because many take a while."""
        unseen = [one for one in definitions if (name, one.hash) not in self._scanned]
        self._scanned.update((name, one.hash) for one in unseen)
        if unseen:
            Thread(target=_log_findings, args=(name, unseen), name=f"toolyard-scan-{name}", daemon=True).start()

    def _tell(self, name: str, definitions: Definitions, reasons: Mapping[Key, str], settings: UpstreamSettings) -> None:
        """Log what differs, once."""
        for key in reasons:
            mark = (name, definitions[key].hash)
            if mark not in self._told:
                self._told.add(mark)
                facts = {"upstream": name, "kind": key.kind, "name": key.name or "-", "pin": settings.pin}
                _log.warning("definition_not_accepted%s", facts_of(facts))


def accept(path: Path, name: str, *, definitions: Definitions, keys: Iterable[Key]) -> None:
    """Put definitions into the lock as they are now; one that is no longer offered is taken out.

    Raises:
        LockError: The lock cannot be understood.
        OSError: The lock cannot be written.
    """
    wanted = frozenset(keys)
    now = {key: pin_of(name, definitions[key]) for key in wanted if key in definitions}

    def put(locked: Locked) -> Locked:
        rest = {key: pin for key, pin in locked.get(name, {}).items() if key not in wanted}
        return {**locked, name: {**rest, **now}}

    change_lock(path, put)


def changed_fields(definition: Definition, pin: Pin) -> list[str]:
    """Return the fields in which a definition differs from the accepted one."""
    fields = definition.field_hashes()
    return sorted(name for name in {*fields, *pin.fields} if fields.get(name) != pin.fields.get(name))


def _log_findings(name: str, definitions: Iterable[Definition]) -> None:
    from toolyard.providers.upstream.scan import scan  # noqa: PLC0415 - most starts see nothing new

    for one in scan(name, definitions):
        facts = {
            "upstream": name,
            "kind": one.kind,
            "name": one.name or "-",
            "field": one.field,
            "rule": one.rule,
            "severity": one.severity,
        }
        _log.log(logging.WARNING if one.severity == "high" else logging.INFO, "suspicious_definition%s", facts_of(facts))


def _understood(path: Path) -> Locked | LockError:
    try:
        return parse_lock(path, path.read_bytes())
    except LockError as error:
        return error


def _reason(name: str, definition: Definition, pin: Pin | None) -> str | None:
    """Return why a definition cannot pass, if so."""
    if pin is not None and pin.hash == definition.hash:
        return None
    wanted = definition.name or definition.kind
    plain = is_word(wanted) and not wanted.startswith("-")  # agents read this and shells may run it, so a name must not be more than one
    look = f"Look at it with 'toolyard diff {name}', then 'toolyard accept {name}{f' {wanted}' if plain else ''}'."
    if pin is None:
        return f"Nobody has accepted it yet. {look}"
    return f"Its upstream changed it since it was accepted ({', '.join(changed_fields(definition, pin))}). {look}"


def _sentenced(
    reasons: Mapping[Key, str], settings: UpstreamSettings, *, accepted: tuple[Key, ...] = (), vanished: tuple[Key, ...] = ()
) -> Judgement:
    blocks = settings.pin == "block"
    return Judgement(
        withheld=reasons if blocks else {},
        warned={} if blocks else reasons,
        accepted=accepted,
        vanished=vanished,
    )
