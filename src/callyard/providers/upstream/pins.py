"""Pins: hashes of the accepted definitions of upstreams, in the file `callyard.lock`.

A definition that is seen for the first time is accepted, unless the upstream's settings say 'ask' or the scan has a
high finding. One that changes afterwards is withheld until somebody accepts it, so that a description cannot become a
prompt injection unnoticed.
"""

import fcntl
import json
import logging
import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, Protocol

import msgspec

from callyard._internal.converted import as_object
from callyard._internal.files import write_atomically
from callyard._internal.logfmt import is_identifier, log_fields
from callyard.model.envelope import encode, fingerprint
from callyard.model.spec import Operation
from callyard.providers.upstream import LOCK_FILE
from callyard.providers.upstream.catalogue import Catalogue, Item, folder_of
from callyard.wire.params import custom_meta

__all__ = [
    "Definition",
    "Definitions",
    "Key",
    "Keyed",
    "LockError",
    "Pin",
    "PinCheck",
    "PinSettings",
    "PinnedKind",
    "Pins",
    "PinsByUpstream",
    "Settled",
    "StoredDefinitions",
    "accept",
    "accepted_definition",
    "change_lock",
    "changed_fields",
    "definitions_of",
    "find_lock",
    "parse_lock",
    "pin_of",
    "read_accepted",
    "settle",
    "store_accepted",
]

PinnedKind = Literal["instructions", "prompt", "resource", "template", "tool"]
_NAMED_BY: Final[Mapping[PinnedKind, str]] = {
    "prompt": "name",
    "resource": "uri",
    "template": "uriTemplate",
    "tool": "name",
}
"""For each kind the field that names an item; all others are pinned, also those of newer versions of the protocol."""
_VOLATILE: Final = "lastModified"
_VOLATILE_FIELDS: Final[Mapping[PinnedKind, str]] = {"resource": "size", "template": "size"}
_FIELD_HASH_CHARACTERS: Final = 8
_STORED_FILE: Final = "accepted.json"
_STORED_LIMIT: Final = 5000
_LOCK_HEAD: Final = (
    "# What upstreams were accepted to offer, by hash. Written by Callyard; review it like code.\n"
    "# 'callyard diff' tells what an upstream changed since, and 'callyard accept' puts it here.\n"
)
_LOCK_MODE: Final = 0o644
_LOCK_ATTEMPTS: Final = 100
_LOCK_PAUSE_SECONDS: Final = 0.02
_UNREADABLE: Final = (
    f"'{LOCK_FILE}' cannot be read, so nothing can be compared with it; 'callyard diff {{}}' tells what is wrong."
)
_log = logging.getLogger(__name__)


class Key(NamedTuple):
    """The kind and name of a definition; the name is the upstream's own, or a URI."""

    kind: PinnedKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind} '{self.name}'" if self.name else self.kind


class Keyed(msgspec.Struct, frozen=True, dict=True):
    """Something about one item of an upstream."""

    kind: PinnedKind
    name: str

    @property
    def key(self) -> Key:
        """Return the kind and name of the item."""
        return Key(self.kind, self.name)


class Definition(Keyed, frozen=True):
    """The definition of one item of an upstream."""

    fields: dict[str, Any]
    """Its pinned fields, by their names in MCP."""

    @cached_property
    def hash(self) -> str:
        """Return the hash of the whole definition."""
        return fingerprint(self)

    def field_hashes(self) -> dict[str, str]:
        """Return a short hash for each field, to name the changed ones; nothing is decided by them."""
        return {name: fingerprint(value)[:_FIELD_HASH_CHARACTERS] for name, value in sorted(self.fields.items())}


Definitions = Mapping[Key, Definition]


def definitions_of(catalogue: Catalogue) -> Definitions:
    """Return everything in a catalogue that can be pinned."""
    definitions = {Key("instructions", ""): Definition("instructions", "", {"text": catalogue.instructions})}
    for kind, name_field in _NAMED_BY.items():
        items: tuple[Item, ...] = getattr(catalogue, f"{kind}s")
        for item in items:
            name = item.get(name_field)
            if isinstance(name, str) and name:  # anything else cannot be published
                key = Key(kind, name)
                pinned = _pinned_fields(kind, item)
                if key in definitions:
                    # which duplicate is published depends on their validity, so all of them are pinned
                    first = definitions[key].fields
                    pinned = {**first, "duplicates": [*first.get("duplicates", []), pinned]}
                definitions[key] = Definition(kind, name, pinned)
    return definitions


def _pinned_fields(kind: PinnedKind, item: Item) -> dict[str, Any]:
    """Return the fields of an item that are published, without those that change by themselves."""
    left_out = {_NAMED_BY[kind], _VOLATILE_FIELDS.get(kind), "_meta"}
    fields = {name: value for name, value in item.items() if name not in left_out and value is not None}
    if meta := custom_meta(as_object(item.get("_meta"))):
        fields["_meta"] = meta
    annotations = fields.get("annotations")
    if kind in {"resource", "template"} and isinstance(annotations, dict) and _VOLATILE in annotations:
        fields["annotations"] = {name: value for name, value in annotations.items() if name != _VOLATILE}  # pyright: ignore[reportUnknownVariableType] - it is any JSON
    return fields


StoredDefinitions = dict[str, msgspec.Raw]
"""Accepted definitions as JSON, by hash; they are stored so that a diff can show the old text."""


def read_accepted(folder: Path) -> StoredDefinitions:
    """Return the definitions that are stored in an upstream's folder; none if they cannot be read."""
    try:
        return msgspec.json.decode((folder / _STORED_FILE).read_bytes(), type=StoredDefinitions)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def accepted_definition(stored: StoredDefinitions, digest: str) -> Definition | None:
    """Return the stored definition with this hash, or None if it is missing or was altered."""
    try:
        definition = msgspec.json.decode(stored[digest], type=Definition)
    except (KeyError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return definition if definition.hash == digest else None


def store_accepted(folder: Path, definitions: Iterable[Definition]) -> None:
    """Store definitions in an upstream's folder; beyond a limit the oldest are dropped.

    Raises:
        OSError: They cannot be written.
    """
    stored = read_accepted(folder)
    missing = {one.hash: msgspec.Raw(encode(one)) for one in definitions if one.hash not in stored}
    if missing:
        write_atomically(folder / _STORED_FILE, encode(dict(list({**stored, **missing}.items())[-_STORED_LIMIT:])))


Settled = Literal["query", "command", "destroy"]
"""What a person may say that a tool does."""


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One line of the lock: the hash of an accepted definition, and short hashes of its fields."""

    upstream: str
    kind: PinnedKind
    name: str
    hash: str
    fields: dict[str, str]
    operation: Settled | None = None
    """What a person settled that the tool does with this definition, if its upstream does not say."""

    @property
    def key(self) -> Key:
        """Return the kind and name of its definition."""
        return Key(self.kind, self.name)


PinsByUpstream = Mapping[str, Mapping[Key, Pin]]


class PinSettings(Protocol):
    """The settings that decide about pins: those of an upstream, or of an API."""

    @property
    def pin(self) -> Literal["block", "warn", "off"]:
        """Return what happens to a definition that differs from the accepted one."""
        ...

    @property
    def first(self) -> Literal["trust", "ask"]:
        """Return whether a definition that is seen for the first time is accepted."""
        ...


class LockError(Exception):
    """The lock is invalid; the message names the file and the line."""


def find_lock(config: Path | None, state: Path) -> Path:
    """Return the path of the lock: beside the configuration file if there is one, else in the state directory."""
    return (state if config is None else config.absolute().parent) / LOCK_FILE


def pin_of(upstream: str, definition: Definition) -> Pin:
    """Return the line that accepts a definition."""
    return Pin(upstream, definition.kind, definition.name, definition.hash, definition.field_hashes())


def parse_lock(path: Path, content: bytes) -> PinsByUpstream:
    """Parse the content of a lock.

    Raises:
        LockError: It is invalid.
    """
    pins: dict[str, dict[Key, Pin]] = {}
    for number, line in enumerate(content.splitlines(), 1):
        if not line.strip() or line.startswith(b"#"):
            continue
        try:
            pin = msgspec.json.decode(line, type=Pin)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            sentence = f"Line {number} of '{path}' cannot be read. If it is left from a merge, put the file in order."
            raise LockError(sentence) from error
        if pins.setdefault(pin.upstream, {}).setdefault(pin.key, pin) != pin:
            place = f"Line {number} of '{path}'"
            raise LockError(f"{place} contradicts another about the {pin.key} of '{pin.upstream}'. Remove one of them.")
    return pins


def change_lock(path: Path, change: Callable[[PinsByUpstream], PinsByUpstream]) -> PinsByUpstream:
    """Change a lock, exclusively among processes, and return its new content.

    Raises:
        LockError: The lock is invalid, and was not changed.
        OSError: It cannot be written, or another process holds it too long.
    """
    with _exclusive(path) as (real_path, content):
        before = parse_lock(path, content)
        after = change(before)
        if after != before:
            write_atomically(real_path, _encode_lock(after), mode=_LOCK_MODE)
    return after


def _encode_lock(locked: PinsByUpstream) -> bytes:
    pins = sorted(
        (pin for pins in locked.values() for pin in pins.values()), key=lambda pin: (pin.upstream, pin.kind, pin.name)
    )
    return (_LOCK_HEAD + "".join(f"{json.dumps(msgspec.to_builtins(pin))}\n" for pin in pins)).encode()


@contextmanager
def _exclusive(path: Path) -> Generator[tuple[Path, bytes]]:
    """Lock a file, which is created if it is missing, and yield its real path and its content."""
    real_path = path.resolve()
    real_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for _ in range(_LOCK_ATTEMPTS):
        with os.fdopen(os.open(real_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _LOCK_MODE), "rb") as file:
            if _try_lock(file.fileno(), real_path):
                yield real_path, file.read()
                return
        time.sleep(_LOCK_PAUSE_SECONDS)  # a poll: a blocking flock has no timeout
    raise TimeoutError(f"Another process holds '{path}'. Try again when it has finished.")


def _try_lock(descriptor: int, path: Path) -> bool:
    """Lock an open file; return False if another process holds it, or has replaced it meanwhile."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


class PinCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing a catalogue with the lock."""

    withheld: Mapping[Key, str] = {}
    """What must not be published, with the reason as a sentence."""
    warned: Mapping[Key, str] = {}
    """What would be withheld if the upstream's settings did not say 'warn', with the same sentence."""
    accepted: tuple[Key, ...] = ()
    """What was seen for the first time, and accepted."""
    vanished: tuple[Key, ...] = ()
    """What was accepted once and is no longer listed; should it come back, it must be unchanged."""


class Pins:
    """Compares the catalogues of all upstreams with one lock."""

    def __init__(self, path: Path, *, state: Path) -> None:
        self.path: Final = path
        self._state = state
        self._file_version: object = None
        self._locked: PinsByUpstream | LockError = {}
        self._checked: dict[str, object] = {}
        """For each upstream the content of the lock at its last check."""
        self._unwritten: dict[str, dict[Key, Pin]] = {}
        self._logged: set[tuple[str, str]] = set()
        self._scanned: dict[tuple[str, str], str] = {}
        """The rule of a high finding, or nothing, by upstream and hash of a definition."""
        self._definitions: dict[str, tuple[Catalogue, Definitions]] = {}

    def check(self, name: str, catalogue: Catalogue, settings: PinSettings) -> PinCheck:
        """Compare a catalogue with the lock, and accept new definitions if the settings trust them."""
        if settings.pin == "off":
            self._read()  # what people settled is in it, too
            self._checked[name] = self._content_for(name)
            return PinCheck()
        definitions = self.definitions_of(name, catalogue)
        new: tuple[Key, ...] = ()
        self._read()
        if not isinstance(self._locked, LockError) and settings.first == "trust":
            known = self._pins(name)
            self.scan(name, [definition for key, definition in definitions.items() if key not in known])
            new = tuple(key for key, one in definitions.items() if key not in known and not self._finding(name, one))
            if new:
                self._accept_new(name, [definitions[key] for key in new])
        self._checked[name] = self._content_for(name)
        if isinstance(self._locked, LockError):
            if self._is_first("", str(self._locked)):
                _log.warning("lock_unreadable%s", log_fields({"path": self.path, "error": self._locked}))
            return _pin_check(dict.fromkeys(definitions, _UNREADABLE.format(name)), settings)
        pins = self._pins(name)
        whys = {key: _reason(name, one, pins.get(key), self._finding(name, one)) for key, one in definitions.items()}
        reasons = {key: why for key, why in whys.items() if why}
        self._store(name, [definition for key, definition in definitions.items() if key not in reasons])
        for key in reasons:
            if self._is_first(name, definitions[key].hash):
                facts = {"upstream": name, "kind": key.kind, "name": key.name or "-", "pin": settings.pin}
                _log.warning("definition_not_accepted%s", log_fields(facts))
        self.scan(name, [definitions[key] for key in reasons])
        accepted = tuple(key for key in new if key not in reasons)
        vanished = tuple(key for key in pins if key not in definitions)
        return _pin_check(reasons, settings, accepted=accepted, vanished=vanished)

    def unscanned(self, name: str, catalogue: Catalogue, settings: PinSettings) -> list[Definition]:
        """Return what is neither accepted nor scanned; `scan` it in a thread before `check`, as it may take long."""
        if settings.pin == "off":
            return []
        self._read()
        pins = self._pins(name)
        definitions = self.definitions_of(name, catalogue).items()
        new = [one for key, one in definitions if key not in pins or pins[key].hash != one.hash]
        return [definition for definition in new if (name, definition.hash) not in self._scanned]

    def changed(self, name: str) -> bool:
        """Return whether the lock changed for an upstream since its last check; cheap if the file did not change."""
        if name not in self._checked:
            return False
        self._read()
        now, then = self._content_for(name), self._checked[name]
        return now is not then and now != then

    def accepted(self, name: str) -> Mapping[Key, Pin]:
        """Return what was accepted of an upstream.

        Raises:
            LockError: The lock is invalid.
        """
        self._read()
        if isinstance(self._locked, LockError):
            raise self._locked
        return self._pins(name)

    def settled(self, name: str, catalogue: Catalogue) -> Mapping[str, Operation]:
        """Return what people said that tools do, by the upstream's own names, as the lock was at the last `check`.

        What was said of another definition does not count.
        """
        definitions, pins = self.definitions_of(name, catalogue), self._pins(name)
        return {
            key.name: Operation(pin.operation)
            for key, pin in pins.items()
            if key.kind == "tool" and pin.operation and key in definitions and definitions[key].hash == pin.hash
        }

    def _content_for(self, name: str) -> object:
        return str(self._locked) if isinstance(self._locked, LockError) else self._locked.get(name)

    def _pins(self, name: str) -> Mapping[Key, Pin]:
        pins = self._unwritten.get(name, {})
        return pins if isinstance(self._locked, LockError) else {**pins, **self._locked.get(name, {})}

    def _read(self) -> None:
        """Read the lock, unless the file is the same as before."""
        try:
            status = self.path.stat()
            file_version = (status.st_ino, status.st_size, status.st_mtime_ns)
            if file_version != self._file_version:
                self._file_version = file_version
                self._locked = parse_lock(self.path, self.path.read_bytes())
        except LockError as error:
            self._locked = error
        except FileNotFoundError:
            self._file_version, self._locked = None, {}
        except OSError as error:
            self._file_version, self._locked = None, LockError(f"'{self.path}' cannot be read: {error.strerror}.")

    def _accept_new(self, name: str, definitions: Iterable[Definition]) -> None:
        """Accept definitions; if the lock cannot be written they are accepted in this process only."""
        pins = {definition.key: pin_of(name, definition) for definition in definitions}
        try:
            self._locked = change_lock(self.path, lambda locked: {**locked, name: {**pins, **locked.get(name, {})}})
            self._file_version = None
        except LockError as error:
            self._file_version, self._locked = None, error
        except OSError as error:
            self._unwritten.setdefault(name, {}).update(pins)
            _log.warning("pins_unwritten%s", log_fields({"upstream": name, "path": self.path, "error": error}))

    def _store(self, name: str, definitions: Iterable[Definition]) -> None:
        try:
            store_accepted(folder_of(self._state, name), definitions)
        except OSError as error:  # a diff will show less, and nothing else is lost
            _log.debug("definitions_unkept%s", log_fields({"upstream": name, "error": error}))

    def _is_first(self, name: str, problem: str) -> bool:
        is_first = (name, problem) not in self._logged
        self._logged.add((name, problem))
        return is_first

    def _finding(self, name: str, definition: Definition) -> str:
        return self._scanned.get((name, definition.hash), "")

    def definitions_of(self, name: str, catalogue: Catalogue) -> Definitions:
        """Return the definitions of a catalogue; those of the last one are kept, because their hashes take a while."""
        known = self._definitions.get(name)
        if known is None or known[0] is not catalogue:
            known = self._definitions[name] = (catalogue, definitions_of(catalogue))
        return known[1]

    def scan(self, name: str, definitions: Iterable[Definition]) -> None:
        """Scan definitions that were not scanned before, and log the findings."""
        unseen = [definition for definition in definitions if (name, definition.hash) not in self._scanned]
        found = _high_findings(name, unseen) if unseen else {}
        self._scanned.update({(name, definition.hash): found.get(definition.key, "") for definition in unseen})


def accept(path: Path, name: str, *, definitions: Definitions, keys: Sequence[Key], folder: Path) -> None:
    """Pin the current definitions of these keys, and keep them in a folder for later comparisons.

    The pin of a key without a definition is removed.

    Raises:
        LockError: The lock is invalid.
        OSError: The lock, or the folder, cannot be written.
    """
    current = [definitions[key] for key in keys if key in definitions]

    def put(locked: PinsByUpstream) -> PinsByUpstream:
        others = {key: pin for key, pin in locked.get(name, {}).items() if key not in keys}
        return {**locked, name: {**others, **{one.key: pin_of(name, one) for one in current}}}

    change_lock(path, put)
    store_accepted(folder, current)


def settle(path: Path, name: str, settled: Sequence[tuple[Definition, Settled]], *, unpinned: bool = False) -> None:
    """Put into the lock what a person said that tools do.

    It counts for these definitions, which must be accepted, unless definitions of the upstream are not compared.

    Raises:
        LockError: The lock is invalid, or a definition is not the accepted one.
        OSError: The lock cannot be written.
    """

    def put(locked: PinsByUpstream) -> PinsByUpstream:
        pins = dict(locked.get(name, {}))
        for definition, operation in settled:
            pin = pins.get(definition.key)
            if not unpinned and (pin is None or pin.hash != definition.hash):
                reason = f"the {definition.key} of '{name}' is not accepted. Look at it with 'callyard diff {name}'"
                raise LockError(f"Nothing is settled: {reason}.")
            pins[definition.key] = msgspec.structs.replace(pin_of(name, definition), operation=operation)
        return {**locked, name: pins}

    change_lock(path, put)


def changed_fields(definition: Definition, pin: Pin) -> list[str]:
    """Return the fields in which a definition differs from the accepted one."""
    fields = definition.field_hashes()
    return sorted(name for name in {*fields, *pin.fields} if fields.get(name) != pin.fields.get(name))


def _high_findings(name: str, definitions: Iterable[Definition]) -> dict[Key, str]:
    from callyard.providers.upstream.scan import scan  # noqa: PLC0415 - it imports the definitions from here

    high: dict[Key, str] = {}
    for finding in scan(name, definitions):
        facts = {name: value or "-" for name, value in msgspec.structs.asdict(finding).items() if name != "excerpt"}
        level = logging.WARNING if finding.severity == "high" else logging.INFO
        _log.log(level, "suspicious_definition%s", log_fields(facts))
        if finding.severity == "high":
            high.setdefault(Key(finding.kind, finding.name), finding.rule)
    return high


def _reason(name: str, definition: Definition, pin: Pin | None, finding: str) -> str | None:
    if pin is not None and pin.hash == definition.hash:
        return None
    item = definition.name or definition.kind
    # Agents read this and shells may run it: a name that is more than one word, or an option, must not become part of
    # the command.
    argument = f" {item}" if is_identifier(item) and not item.startswith("-") else ""
    advice = f"Look at it with 'callyard diff {name}', then 'callyard accept {name}{argument}'."
    if pin is None and finding:
        return f"The scan found '{finding}' in it, and nobody has accepted it yet. {advice}"
    if pin is None:
        return f"Nobody has accepted it yet. {advice}"
    return f"Its upstream changed it since it was accepted ({', '.join(changed_fields(definition, pin))}). {advice}"


def _pin_check(
    reasons: Mapping[Key, str],
    settings: PinSettings,
    *,
    accepted: tuple[Key, ...] = (),
    vanished: tuple[Key, ...] = (),
) -> PinCheck:
    blocks = settings.pin == "block"
    return PinCheck(
        withheld=reasons if blocks else {}, warned={} if blocks else reasons, accepted=accepted, vanished=vanished
    )
