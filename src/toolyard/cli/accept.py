"""`toolyard accept`: takes what an upstream offers now into the lock, so that it is published."""

from collections.abc import Iterable, Sequence

from toolyard.cli.exits import DEFECT, CommandError
from toolyard.cli.parser import Options
from toolyard.cli.stored import Stored, read_stored
from toolyard.cli.terminal import Terminal
from toolyard.envelope import encode
from toolyard.providers.upstream.accepted import keep_accepted, read_accepted
from toolyard.providers.upstream.catalogue import folder_of
from toolyard.providers.upstream.characters import visible
from toolyard.providers.upstream.definitions import Definitions, Key
from toolyard.providers.upstream.differing import Difference, differences, seen_of
from toolyard.providers.upstream.lock import LockError
from toolyard.providers.upstream.pins import accept
from toolyard.schema import near_miss

__all__ = ["run"]


def run(options: Options, terminal: Terminal) -> int:
    """Accept what is named, or all, and print what that was."""
    stored = read_stored(options, terminal)
    name = options.name
    definitions = stored.offered_by(name)
    folder = folder_of(stored.state, name)
    found = differences(definitions, stored.locked.get(name, {}), read_accepted(folder))
    if options.seen is not None and options.seen != seen_of(found, definitions):
        raise CommandError(f"'{name}' offers something else now than what was seen. Look again with 'toolyard diff {name}'.")
    wanted = found if options.all else _named(options.arguments, found, definitions, upstream=name)
    _accept(stored, name, definitions=definitions, keys=[one.key for one in wanted])
    if options.json:
        terminal.write_json(encode([{"kind": one.kind, "name": one.name, "what": one.what} for one in wanted]))
        return 0
    for one in wanted:
        terminal.write(f"{one.what}\t{one.kind}\t{visible(one.name)}")
    if not terminal.quiet:
        terminal.say(f"{len(wanted)} accepted in '{stored.lock}'." if wanted else f"'{name}' offers what was accepted.")
    return 0


def _accept(stored: Stored, name: str, *, definitions: Definitions, keys: Iterable[Key]) -> None:
    keys = list(keys)
    try:
        accept(stored.lock, name, definitions=definitions, keys=keys)
        keep_accepted(folder_of(stored.state, name), [definitions[key] for key in keys if key in definitions])
    except (LockError, OSError) as error:
        raise CommandError(f"'{stored.lock}' cannot be written: {error}", status=DEFECT) from error


def _named(names: Sequence[str], found: Sequence[Difference], definitions: Definitions, *, upstream: str) -> list[Difference]:
    """Return the differences of the names.

    Raises:
        CommandError: None is named, or there is nothing of a name.
    """
    if not names:
        listed = ", ".join(f"'{visible(_name(one.key))}'" for one in found)
        differing = f"These differ: {listed}." if found else "Nothing differs."
        raise CommandError(f"Name what of '{upstream}' is to be accepted, or '--all'. {differing}")
    known = {_name(key) for key in definitions} | {_name(one.key) for one in found}
    for name in names:
        if name not in known:
            near = near_miss(name, sorted(known))
            meant = f" Did you mean '{near}'?" if near else ""
            raise CommandError(f"There is no '{name}' in '{upstream}'.{meant}")
    return [one for one in found if _name(one.key) in names]


def _name(key: Key) -> str:
    return key.name or key.kind
