"""Settings of what a call must pass: rules, queue, rates and budgets. Everything is off by default."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal, cast

import msgspec

from callyard._internal.converted import Converted, Converters, as_tuple
from callyard.model.profile import METATOOLS, Toolset
from callyard.model.spec import Operation, ToolSpec

__all__ = [
    "ASK_BEFORE_DESTROY",
    "BudgetSettings",
    "Decision",
    "LoadSettings",
    "Predicate",
    "QueueSettings",
    "RateSettings",
    "Rule",
]

_MOST: Final = 10**12
"""Upper limit of every number, so that sums stay exact."""


class _Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Converted):
    """The settings of one section of the file."""

    section: ClassVar[str]
    limits: ClassVar[tuple[str, ...]]
    """The settings that switch it on."""
    at_least_one: ClassVar[str] = ""
    """The setting that must be at least 1."""
    converters: ClassVar[Converters] = {}

    def __post_init__(self) -> None:
        for field in msgspec.structs.fields(self):
            what = f"The setting '{field.name}' of '[{self.section}]'"
            value: Any = getattr(self, field.name)
            if field.type == tuple[str, ...]:
                _check_texts(value, what)
            else:
                numbers = cast("Mapping[str, object]", value).values() if isinstance(value, Mapping) else [value]
                for number in numbers:
                    _check_number(number, what, whole=field.type in {int, dict[str, int]})
        if self.at_least_one and getattr(self, self.at_least_one) < 1:
            raise ValueError(f"The setting '{self.at_least_one}' of '[{self.section}]' must be at least 1.")

    @property
    def is_set(self) -> bool:
        """Return whether there is any limit."""
        return any(getattr(self, name) for name in self.limits)


def _check_texts(value: Any, what: str) -> None:
    if not isinstance(value, tuple) or not all(isinstance(part, str) for part in cast("tuple[object, ...]", value)):
        raise ValueError(f"{what} must be a list of texts.")


def _check_number(number: object, what: str, *, whole: bool) -> None:
    if isinstance(number, bool) or not isinstance(number, int if whole else int | float):
        raise ValueError(f"{what} must be a {'whole ' if whole else ''}number.")  # noqa: TRY004 - every wrong setting is a ValueError
    if not math.isfinite(number) or not 0 <= number <= _MOST:
        raise ValueError(f"{what} must be a number from 0 to {_MOST}.")


def _as_tuple_of_texts(value: Any) -> Any:
    """Return a sequence as a tuple; a text alone stays, and is refused."""
    return value if isinstance(value, str) else tuple(value)


class QueueSettings(_Section, frozen=True, kw_only=True):
    """How many calls run at one time in one process, and how many wait."""

    section: ClassVar = "queue"
    limits: ClassVar = ("calls", "per_tool", "per_caller", "per_source", "tools", "sources")
    converters: ClassVar[Converters] = {"background": _as_tuple_of_texts}
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


class RateSettings(_Section, frozen=True, kw_only=True):
    """How often calls may come in one process, or with a store in Redis in all. Calls inside other calls count, too."""

    section: ClassVar = "rates"
    limits: ClassVar = ("calls", "per_caller", "per_tool", "tools")
    at_least_one: ClassVar = "burst"
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


class BudgetSettings(_Section, frozen=True, kw_only=True):
    """How many calls and estimated tokens of answers a session or caller has in a period."""

    section: ClassVar = "budgets"
    limits: ClassVar = ("session_calls", "session_tokens", "caller_calls", "caller_tokens")
    at_least_one: ClassVar = "period"
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
            **{
                name: type(part)(**{**msgspec.structs.asdict(part), **overrides.get(name, {})})
                for name, part in parts.items()
            }
        )

    def as_dict(self) -> dict[str, Any]:
        """Return every setting by its key, such as 'queue.calls'."""
        return {
            f"{name}.{key}": value
            for name, part in msgspec.structs.asdict(self).items()
            for key, value in msgspec.structs.asdict(part).items()
        }


Decision = Literal["allow", "ask", "deny"]
_TESTS: Final = ("equals", "matches", "less_than", "in")
_LISTS: Final = ("operations", "tools", "tags", "sources", "callers", "when")


class Predicate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename={"in_": "in"}):
    """A test of one argument. A value that is absent or null passes no test."""

    pointer: str
    """The JSON pointer of the value in the arguments, such as '/amount'."""
    equals: Any = None
    """Passes if the value is this one."""
    matches: str | None = None
    """Passes if the whole text matches this regular expression, which has no look-around and no back-references."""
    less_than: float | None = None
    """Passes if the number is below this one; a value that is no number denies the call."""
    in_: tuple[Any, ...] | None = None
    """Passes if the value is one of these."""

    def __post_init__(self) -> None:
        if self.pointer and not self.pointer.startswith("/"):
            raise ValueError(f"The pointer '{self.pointer}' must start with '/'.")
        if sum(test is not None for test in (self.equals, self.matches, self.less_than, self.in_)) != 1:
            raise ValueError(f"The predicate for '{self.pointer}' needs exactly one of {', '.join(map(repr, _TESTS))}.")

    def __str__(self) -> str:
        """Return the test in words."""
        if self.matches is not None:
            return f"'{self.pointer}' matches '{self.matches}'"
        if self.less_than is not None:
            return f"'{self.pointer}' is less than {self.less_than:g}"
        shown = msgspec.json.encode(self.equals if self.in_ is None else self.in_).decode()
        return f"'{self.pointer}' {'is' if self.in_ is None else 'is one of'} {shown}"


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=Converted):
    """A decision about the calls that it matches: those that fit each of its conditions.

    A rule without conditions matches all.

    A condition fits if one of its entries does. Metatools reach no more than their callers may, so a rule matches one
    only if it has its name in `tools`, or 'metatools' in `sources`.
    """

    converters: ClassVar[Converters] = dict.fromkeys(_LISTS, as_tuple)
    decision: Decision
    """'allow', 'ask' (a person must approve) or 'deny'."""
    operations: tuple[Operation, ...] = ()
    """Operations of tools."""
    tools: tuple[str, ...] = ()
    """Patterns of names of tools, former names included."""
    tags: tuple[str, ...] = ()
    """Tags of tools."""
    sources: tuple[str, ...] = ()
    """Patterns of names of providers."""
    callers: tuple[str, ...] = ()
    """Patterns of identities of callers."""
    when: tuple[Predicate, ...] = ()
    """Tests of the arguments, all of which must pass."""
    by: Literal["anyone", "operator"] = "anyone"
    """Who may approve: also the person at the caller's client ('anyone'), or only an operator."""
    reason: str = ""
    """Why, in a sentence for people."""
    profile: str = ""
    """The only profile that the rule is for; such rules come before those for all."""

    def __post_init__(self) -> None:
        if self.decision not in {"allow", "ask", "deny"}:
            raise ValueError(f"There is no decision '{self.decision}'. Known: 'allow', 'ask', 'deny'.")
        for operation in self.operations:
            Operation(operation)

    def matches_tool(self, spec: ToolSpec) -> bool:
        """Return whether the rule matches some calls of a tool."""
        if spec.source == METATOOLS:
            return METATOOLS in self.sources or not {spec.name, spec.metatool.alias, spec.metatool.alias_of}.isdisjoint(
                self.tools
            )
        own = Toolset(name="rule", names=self.tools, tags=self.tags, sources=self.sources, operations=self.operations)
        return own.holds(spec)

    def __str__(self) -> str:
        """Return the rule in words."""
        lists = [(name, getattr(self, name)) for name in _LISTS if name != "when"]
        parts = [f"{name} {', '.join(map(str, values))}" for name, values in lists if values]
        parts += [str(predicate) for predicate in self.when]
        return f"{self.decision} {'; '.join(parts) or 'every call'}"


ASK_BEFORE_DESTROY: Final = Rule(
    decision="ask",
    operations=(Operation.DESTROY,),
    reason="The tool deletes or overwrites something, and that cannot be undone.",
)
"""The last rule of a served yard."""
