"""Programs that try to break out of a sandbox, exhaust it, or confuse the host.

`DENY`: it must fail, and `LEAK` must not be printed. `SAFE`: it may end well, without `LEAK`. `LIMIT`: a limit or an error must stop it.
`ALIVE`: anything, as long as the host lives and the next run works. `$CANARY` is a file of the host, `$PORT` a listener on it.
They are in 'attacks.txt', one on a line, with '~' for a line break.
"""

from pathlib import Path
from typing import Final, Literal, NamedTuple

__all__ = ["ATTACKS", "GROUPS", "Attack"]

Must = Literal["DENY", "SAFE", "LIMIT", "ALIVE"]


class Attack(NamedTuple):
    name: str
    must: Must
    code: str

    @property
    def group(self) -> str:
        return self.name.split("-", maxsplit=1)[0]


def _read(table: str) -> list[Attack]:
    rows = (line.split(" ", 2) for line in table.strip().splitlines())
    return [Attack(name, must, code.replace("~", "\n")) for name, must, code in rows]  # pyright: ignore[reportArgumentType] - the table has only these words


ATTACKS: Final = _read(Path(__file__).with_name("attacks.txt").read_text())
GROUPS: Final = tuple(dict.fromkeys(attack.group for attack in ATTACKS))
