"""Tables: what was worked out before, so that it need not be again."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

__all__ = ["Table"]

_CACHED: Final = 20_000
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


class Table(dict[_Key, _Value], Generic[_Key, _Value]):
    """What was worked out before; it forgets everything when it has become too large."""

    __slots__ = ("_work_out",)

    def __init__(self, work_out: Callable[[_Key], _Value]) -> None:
        super().__init__()
        self._work_out = work_out

    def __missing__(self, key: _Key) -> _Value:
        if len(self) >= _CACHED:
            self.clear()
        found = self[key] = self._work_out(key)
        return found
