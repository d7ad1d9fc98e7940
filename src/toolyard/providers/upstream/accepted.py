"""What was accepted, word for word: the definitions behind the hashes in the lock, kept in the state directory for comparison.

Nothing is decided by it. Where it is missing, as on another machine, a comparison only tells which fields changed.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from toolyard.envelope import encode
from toolyard.providers.upstream.definitions import Definition
from toolyard.state_dir import write_atomically

__all__ = ["Kept", "accepted_definition", "keep_accepted", "read_accepted"]

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
