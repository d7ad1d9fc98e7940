"""Programs that try to break out of a sandbox, exhaust it, or confuse the host.

`DENY`: it must fail, and `LEAK` must not be printed. `SAFE`: it may end well, without `LEAK`. `LIMIT`: a limit or an
error must stop it. `ALIVE`: anything, as long as the host lives and the next run works. `$CANARY` is a file of the
host, `$PORT` a listener on it. They are in 'attacks.txt', one on a line, with '~' for a line break; a line that starts
with '#' is a comment on the next one.
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


SNIPPETS: Final = {
    "$DRIVER": "next(thing for thing in __import__('gc').get_objects() if type(thing).__name__ == 'Driver')",
    "$FRAME": "(lambda body: __import__('os').write($DRIVER.pipe._outgoing, len(body).to_bytes(4, 'big') + body))",
    "$SYSCALL": "__import__('ctypes').CDLL(None, use_errno=True).syscall",
}
"""Shared parts of attacks: the driver they run in, raw frames to the host, and x86-64 system calls by number."""


def _fill(code: str) -> str:
    for name in ("$FRAME", "$DRIVER", "$SYSCALL"):
        code = code.replace(name, SNIPPETS[name])
    return code.replace("~", "\n")


def _read(table: str) -> list[Attack]:
    rows = (line.split(" ", 2) for line in table.strip().splitlines() if not line.startswith("#"))
    return [Attack(name, must, _fill(code)) for name, must, code in rows]  # pyright: ignore[reportArgumentType] - the table has only these words


ATTACKS: Final = _read(Path(__file__).with_name("attacks.txt").read_text())
GROUPS: Final = tuple(dict.fromkeys(attack.group for attack in ATTACKS))
