"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, cast

from msgspec.structs import replace

from toolyard.call import Arguments, Call
from toolyard.caller import Nested
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError, shortened
from toolyard.metatools.beside import issues_beside
from toolyard.metatools.inside import issues_of_call, misled, steps_in
from toolyard.metatools.references import CHAIN, Place, Reference, holds_steps, references
from toolyard.metatools.running import unwrapped
from toolyard.metatools.steps import Step
from toolyard.metatools.subject import Subject
from toolyard.results import MARK, REFERENCE, Filling
from toolyard.schema import Issue, field_name
from toolyard.tools import InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Planned", "Stage"]

PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")
_TOLD: Final = 20
_EXPLAINED: Final = 5
_MEND: Final = "Mend what 'issues' names."
_DEPTH: Final = 16  # of metatools in metatools; fewer may run in each other


class Planned(Nested, frozen=True, kw_only=True, gc=False):
    """A step that can run, and how: with arguments that are checked already, if nothing of them comes from another step."""

    filled: bool = True
    index: int
    step: Step
    """As it was asked for, with stored results in their places unless a tool that it runs sees to that."""
    tool: Tool
    references: Sequence[Reference] = ()
    inner: Sequence[Tool] = ()
    """The tools that it runs, as far as they are known beforehand."""


class Stage(NamedTuple):
    """Neighbours among the steps, which run side by side or one after the other."""

    together: bool
    steps: list[Planned]


class Plan:
    """The steps of one chain, in stages."""

    steps: Sequence[Step] = ()
    similar: Sequence[str] = ()
    """Names that may have been meant by those that are nobody's."""
    advice: ToolError | None = None
    """What says what to do about the first thing that is wrong, if that is a reference to a stored result."""
    _filling: Filling | None = None

    def __init__(self, subject: Subject, call: Call, *, depth: int = 0) -> None:
        self.stages: list[Stage] = []
        self.issues: list[Issue] = []
        """What is wrong with the steps."""
        self._subject = subject
        self._call = call
        self._depth = depth
        """How many metatools this one is inside of."""
        self._named: dict[str, int] = {}

    async def read(self, steps: Sequence[Step]) -> None:
        """Take the steps in.

        Raises:
            ToolError: `invalid_input` with everything that is wrong with any of them.
        """
        self.steps = steps
        stage, group, first = self._begin(""), "", 0
        for index, step in enumerate(steps):
            if step.parallel != group:
                stage, group, first = self._begin(step.parallel), step.parallel, index
            text = encode_plain(step.args)
            tool = self._find(index, step.tool_id, "tool_id")
            if tool is None or tool.wraps or step.use_previous or MARK in text:
                planned = await self._look_closely(index, step, tool, text, first=first if group else index)
                if planned is not None:
                    stage.append(planned)
            else:
                try:
                    checked = tool.check(text)
                    stage.append(Planned(seconds=step.timeout_s, checked=checked, checked_by=tool, index=index, step=step, tool=tool))
                except InvalidArgumentsError as error:
                    stage.append(self._mended(Planned(index=index, step=step, tool=tool, seconds=step.timeout_s), error.issues))
            if step.id:
                self._name(index, step)
        if self.issues:
            raise self._refusal()

    def planned(self) -> Iterator[Planned]:
        """Return all that can run, in its order."""
        return (planned for stage in self.stages for planned in stage.steps)

    def look_up(self, tool_id: str | None) -> list[str]:
        """Return how to learn of a tool, or to find one, by tools that the caller has."""
        action = "search_tools(query=…)" if tool_id is None else f"describe_tool(tool_id={tool_id!r})"
        return self._subject.registry.offered(self._call.profile, action)

    def _begin(self, group: str) -> list[Planned]:
        """Begin with steps that run side by side, or with some that do not."""
        steps: list[Planned] = []
        self.stages.append(Stage(bool(group), steps))
        return steps

    def _refusal(self) -> ToolError:
        first, more = self.issues[0], len(self.issues) - 1
        index = int(first.field.split(".")[1])
        rest = "" if not more else " One more thing is wrong." if more == 1 else f" {more} more things are wrong."
        return ToolError(
            "invalid_input",
            f"The chain cannot run, and nothing of it did: {first.message}{rest}",
            hint=f"{self.advice.hint if self.advice else _MEND} Then run the whole chain again.",
            next_actions=self.advice.next_actions if self.advice else self._advise(first, index),
            issues=[
                *self.issues[:_EXPLAINED],
                *(Issue(one.field, one.code, one.message, None, one.did_you_mean) for one in self.issues[_EXPLAINED:_TOLD]),
            ],
            similar=self.similar,
            step_index=index,
        )

    def _advise(self, first: Issue, index: int) -> Sequence[str]:
        tool_id = first.did_you_mean if first.code == "tool_not_found" else self.steps[index].tool_id
        return self.look_up(tool_id) or [f"{CHAIN}(steps=…)"]

    def _mislead(self, index: int, error: ToolError, at: Place = ()) -> None:
        """Note that a reference to a stored result leads nowhere."""
        issues = misled(error)
        if not self.issues:
            self.advice = error
        self.issues += [_moved(index, issue, at) for issue in issues]

    def _name(self, index: int, step: Step) -> None:
        """Let later steps refer to a step by its id."""
        if self._named.setdefault(step.id, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{shortened(step.id)}'.")

    def _link(self, index: int, found: Sequence[Reference], first: int) -> None:
        """Find what a step refers to."""
        for reference in found:
            named = reference.step
            target = named if type(named) is int else self._target(cast("str", named))
            if target is not None and 0 <= target < first and reference.pointer[:1] in _POINTERS:
                reference.target = target
            else:
                self._add(index, f"args.{field_name(reference.at)}", *self._fault(index, reference, target, first=first))

    def _target(self, named: str) -> int | None:
        """Return which step is meant by a text: an id, or an index that is no id."""
        target = self._named.get(named)
        return int(named) if target is None and named.isdecimal() and len(named) < len("100") else target

    def _find(self, index: int, name: str, field: str) -> Tool | None:
        try:
            return self._subject.registry.find(name, self._call.profile)
        except ToolError as error:
            return self._miss(error, index, field)

    def _miss(self, error: ToolError, index: int, field: str) -> None:
        """Note that there is no tool of some name."""
        similar = cast("list[str]", error.details.get("similar", []))
        self.similar = list(dict.fromkeys((*self.similar, *similar)))
        meant = similar[0] if similar else None
        self.issues.append(Issue(f"steps.{index}.{field}", "tool_not_found", error.message, did_you_mean=meant))

    async def _look_closely(self, index: int, step: Step, tool: Tool | None, text: bytes, *, first: int) -> Planned | None:
        """Plan a step that has to do with other steps, with stored results or with other tools."""
        wrapper = tool.spec.name if tool is not None and tool.wraps else None
        found = references(step.args, wrapper) if MARK in text else ()
        self._link(index, found, first)
        if step.use_previous and not first:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if tool is None:
            return None
        is_linked = bool(found) or step.use_previous
        args = step.args
        fills = wrapper is None or (is_linked and not holds_steps(args, wrapper))  # what steps of its own refer to is a chain's affair
        if not self._call.filled and REFERENCE in text and fills:
            self._filling = filling = self._filling or self._fill()
            try:
                args = await filling.fill_in(args, tool.spec.input_schema)
                step = replace(step, args=args)
            except ToolError as error:
                self._mislead(index, error)
                return None
        filled = fills or self._call.filled
        planned = Planned(index=index, step=step, tool=tool, references=found, filled=filled, seconds=step.timeout_s)
        if is_linked:
            taken = {reference.at[0] for reference in found}
            if step.use_previous:
                args, taken = {**args, PREVIOUS: None}, {*taken, PREVIOUS}
            self.issues += [_moved(index, issue) for issue in issues_beside(args, tool, taken, repair=self._subject.limits.repair)]
        else:
            try:
                planned = replace(planned, checked=tool.check(encode_plain(args)), checked_by=tool)
            except InvalidArgumentsError as error:
                planned = self._mended(planned, error.issues)
        if wrapper is None:
            return planned
        return replace(planned, inner=await self._look_inside(index, planned.checked or args, wrapper, found=found))

    async def _look_inside(
        self, index: int, args: Arguments, wrapper: str, *, found: Sequence[Reference], at: Place = ()
    ) -> Sequence[Tool]:
        """Return the tools that a step will run by a metatool, having noted what is wrong with them, as far as that is known already."""
        if wrapper == CHAIN:
            return await self._look_into_chain(index, args, at)
        name, inner, here = args.get("tool_id"), args.get("args", {}), (*at, "args")
        tool = self._find(index, name, f"args.{field_name((*at, 'tool_id'))}") if isinstance(name, str) else None
        if tool is None:
            return ()
        inside = [reference.at[len(here) :] for reference in found if reference.at[: len(here)] == here]
        if not isinstance(inner, dict) or () in inside or self._depth + len(here) > _DEPTH:
            return (tool,)
        inner = cast("Arguments", inner)
        if tool.wraps:
            return (tool, *await self._look_inside(index, inner, tool.spec.name, found=found, at=here))
        fill = None if self._call.filled else self._fill
        try:
            issues = await issues_of_call(inner, tool, {one[0] for one in inside}, fill=fill, repair=self._subject.limits.repair)
        except ToolError as error:
            self._mislead(index, error, here)
        else:
            self.issues += [_moved(index, issue, here) for issue in issues]
        return (tool,)

    async def _look_into_chain(self, index: int, args: Arguments, at: Place) -> Sequence[Tool]:
        """Plan a chain inside the chain, whose steps refer to each other and to nobody outside."""
        steps = steps_in(args)
        depth = self._depth + len(at) + 1
        if not steps or depth > _DEPTH:
            return ()
        plan = Plan(self._subject, self._call, depth=depth)
        try:
            await plan.read(steps)
        except ToolError as error:
            if not plan.issues:
                raise error from None
        self.advice = self.advice or (None if self.issues else plan.advice)
        self.issues += [_moved(index, issue, at) for issue in plan.issues]
        self.similar = list(dict.fromkeys((*self.similar, *plan.similar)))
        return [tool for one in plan.planned() for tool in (one.tool, *one.inner)]

    def _fault(self, index: int, reference: Reference, target: int | None, *, first: int) -> tuple[str, str]:
        """Return what is wrong with a reference, as a code and a sentence."""
        named = reference.step
        if target is None:
            later = any(step.id == named for step in self.steps[index:])
            return ("later_step", f"'{shortened(str(named))}' is not before it.") if later else _unknown(f"'{shortened(str(named))}'")
        if not 0 <= target < len(self.steps):
            return _unknown(f"{target}; the first one is 0")
        if target >= index:
            return "later_step", f"Step {target} is not before it."
        if target >= first:
            return "same_group", f"Step {target} runs at the same time."
        return "unknown_path", "A path is empty or begins with '/'."

    def _mended(self, planned: Planned, issues: list[Issue]) -> Planned:
        """Return a step with its arguments put right, or note what is wrong with them."""
        tool, args = planned.tool, planned.step.args
        inner, coerced = unwrapped(args, tool, repair=self._subject.limits.repair)
        try:
            checked = tool.check(encode_plain(inner)) if coerced else None
            if checked is None:
                checked, coerced = tool.mend(encode_plain(args), issues, repair=self._subject.limits.repair)
        except ToolError:
            self.issues += [_moved(planned.index, issue) for issue in issues]
            return planned
        return replace(planned, checked=checked, checked_by=tool, coerced=coerced)

    def _fill(self) -> Filling:
        return self._subject.dispatcher.results.filling(self._call.caller.owner, self._call.profile)

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self.issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _moved(index: int, issue: Issue, at: Place = ()) -> Issue:
    field = ".".join(("steps", str(index), "args", *map(str, at), issue.field))
    return Issue(field, issue.code, issue.message, issue.expected, issue.did_you_mean)
