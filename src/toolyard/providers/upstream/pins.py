"""Pins: whether an upstream still offers what was accepted, and what of it must wait for somebody to look.

What is seen for the first time is accepted, unless the upstream's settings want to be asked. What changed afterwards is
withheld until somebody accepts it, so that a description cannot turn into an order unseen.
"""

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from threading import Thread
from typing import Final

import msgspec

from toolyard.logline import facts_of, is_word
from toolyard.providers.upstream.accepted import keep_accepted
from toolyard.providers.upstream.catalogue import Catalogue, folder_of
from toolyard.providers.upstream.definitions import Definition, Definitions, Key, definitions_of
from toolyard.providers.upstream.lock import LOCK, Locked, LockError, Pin, change_lock, parse_lock, pin_of
from toolyard.providers.upstream.settings import UpstreamSettings

__all__ = ["Judgement", "Pins", "accept", "changed_fields"]

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
    from toolyard.providers.upstream.scanning import scan  # noqa: PLC0415 - most starts see nothing new

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
