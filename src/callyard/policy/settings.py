"""Settings of the queue, the rates and the budgets. Everything is off by default."""

import math
from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

__all__ = ["BudgetSettings", "LoadSettings", "QueueSettings", "RateSettings"]

_MOST: Final = 10**12
"""Upper limit of every number, so that sums stay exact."""


def _check(settings: msgspec.Struct, section: str) -> None:
    """Check the numbers and tables of a section.

    Raises:
        ValueError: One is wrong.
    """
    for field in msgspec.structs.fields(settings):
        value: object = getattr(settings, field.name)
        numbers = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else [value]
        if field.type != tuple[str, ...]:
            whole = field.type in {int, dict[str, int]}
            for number in numbers:
                _check_number(number, f"The setting '{field.name}' of '[{section}]'", whole=whole)
        elif isinstance(value, str) or not all(isinstance(part, str) for part in cast("tuple[object, ...]", value)):
            raise ValueError(f"The setting '{field.name}' of '[{section}]' must be a list of texts.")


def _check_number(number: object, what: str, *, whole: bool) -> None:
    if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
        raise ValueError(f"{what} must be a {'whole ' if whole else ''}number.")  # noqa: TRY004 - every wrong setting is a ValueError
    if not math.isfinite(number) or not 0 <= number <= _MOST:
        raise ValueError(f"{what} must be a number from 0 to {_MOST}.")


def _is_set(settings: msgspec.Struct, fields: tuple[str, ...]) -> bool:
    return any(getattr(settings, name) for name in fields)


class QueueSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls run at one time in one process, and how many wait."""

    calls: int = 0
    """Calls that run at one time; 0 means no limit."""
    per_tool: int = 0
    """Calls of one tool that run at one time; 0 means no limit."""
    per_caller: int = 0
    """Calls of one caller that run at one time; 0 means no limit."""
    per_source: int = 0
    """Calls of the tools of one source, such as an upstream, that run at one time; 0 means no limit."""
    tools: dict[str, int] = {}
    """The number for tools whose name matches a pattern, in place of 'per_tool'; the first match counts."""
    sources: dict[str, int] = {}
    """The number for sources whose name matches a pattern, in place of 'per_source'; the first match counts."""
    waiting: int = 1000
    """Calls of each priority that may wait; further ones are refused."""
    background: tuple[str, ...] = ()
    """Patterns of tools whose calls have the priority 'background'."""

    def __post_init__(self) -> None:
        if not isinstance(cast("object", self.background), str):
            msgspec.structs.force_setattr(self, "background", tuple(self.background))
        _check(self, "queue")

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return _is_set(self, ("calls", "per_tool", "per_caller", "per_source", "tools", "sources"))


class RateSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often calls may come in one process. Calls inside other calls count, too."""

    calls: float = 0.0
    """Calls per minute of all callers together; 0 means no limit."""
    per_caller: float = 0.0
    """Calls per minute of one caller; 0 means no limit."""
    per_tool: float = 0.0
    """Calls per minute of one tool by one caller; 0 means no limit."""
    tools: dict[str, float] = {}
    """The number for tools whose name matches a pattern, in place of 'per_tool'; the first match counts."""
    burst: int = 10
    """Calls that may come at once, after a pause."""

    def __post_init__(self) -> None:
        _check(self, "rates")
        if self.burst < 1:
            raise ValueError("The setting 'burst' of '[rates]' must be at least 1.")

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return _is_set(self, ("calls", "per_caller", "per_tool", "tools"))


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many calls and estimated tokens of answers a session or caller has in a period."""

    session_calls: int = 0
    """Calls of one session, or of one conversation if a call has no session; 0 means no limit."""
    session_tokens: int = 0
    """Estimated tokens of the answers in one session or conversation; 0 means no limit."""
    caller_calls: int = 0
    """Calls of one caller; 0 means no limit."""
    caller_tokens: int = 0
    """Estimated tokens of the answers to one caller; 0 means no limit."""
    period: float = 86_400.0
    """Seconds after which all budgets start anew; a day starts at midnight UTC."""

    def __post_init__(self) -> None:
        _check(self, "budgets")
        if self.period < 1:
            raise ValueError("The setting 'period' of '[budgets]' must be at least 1.")

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return _is_set(self, ("session_calls", "session_tokens", "caller_calls", "caller_tokens"))


class LoadSettings(msgspec.Struct, frozen=True):
    """The settings of queue, rates and budgets."""

    queue: QueueSettings = QueueSettings()
    rates: RateSettings = RateSettings()
    budgets: BudgetSettings = BudgetSettings()

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return self.queue.is_set or self.rates.is_set or self.budgets.is_set

    def replaced(self, overrides: Mapping[str, Any]) -> "LoadSettings":
        """Return the settings with those of each section in `overrides` in their place.

        Raises:
            ValueError: A setting is wrong.
        """
        parts = msgspec.structs.asdict(self)
        return LoadSettings(
            **{name: type(part)(**{**msgspec.structs.asdict(part), **overrides.get(name, {})}) for name, part in parts.items()}
        )

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by its key, such as 'queue.calls'."""
        return {
            f"{name}.{key}": value
            for name, part in msgspec.structs.asdict(self).items()
            for key, value in msgspec.structs.asdict(part).items()
        }
