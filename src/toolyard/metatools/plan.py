"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Sequence
from typing import Any, Final, cast

from msgspec.structs import replace

from toolyard.call import Arguments
from toolyard.caller import Nested
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError, shortened
from toolyard.metatools.beside import issues_beside
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.references import Reference, inner_tools, references
from toolyard.metatools.running import unwrapped
from toolyard.metatools.steps import Step
from toolyard.profile import Profile
from toolyard.results import REFERENCE, Filling
from toolyard.schema import Issue, field_name
from toolyard.tools import InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Planned"]

PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")


class Planned(Nested, frozen=True, kw_only=True, gc=False):
    """A step that can run, and how: with arguments that are checked already, if nothing of them comes from another step."""

    filled: bool = True
    index: int
    step: Step
    tool: Tool
    args: Arguments
    """What it is given, with stored results in their places unless a tool that it runs sees to that."""
    references: Sequence[Reference] = ()
    inner: Sequence[Tool] = ()
    """The tools that it runs, as far as they are known beforehand."""

    @property
    def given(self) -> Arguments:
        """Return its arguments, with a place for each that will come from another step."""
        return {**self.args, PREVIOUS: None} if self.step.use_previous else self.args

    @property
    def taken(self) -> set[str | int]:
        """Return which arguments come from another step, be it in part."""
        taken = {reference.at[0] for reference in self.references}
        return {*taken, PREVIOUS} if self.step.use_previous else taken


class Plan:
    """The steps of one chain, in stages: one step each, or several that run side by side."""

    def __init__(self, catalogue: Catalogue, profile: Profile, *, filling: Filling | None, repair: bool) -> None:
        self.steps: Sequence[Step] = ()
        self.stages: list[Planned | list[Planned]] = []
        self._catalogue = catalogue
        self._profile = profile
        self._filling = filling
        self._repair = repair
        self._issues: list[Issue] = []
        self._similar: list[str] = []
        self._named: dict[str, int] = {}
        self._first = 0
        """Where the stage begins that is read now."""

    async def read(self, steps: Sequence[Step]) -> "Plan":
        """Take the steps in, and return the plan.

        Raises:
            ToolError: `invalid_input` with everything that is wrong with any of them.
        """
        self.steps = steps
        stage: list[Any] = self.stages
        group = ""
        for index, step in enumerate(steps):
            if not group or step.parallel != group:
                self._first, group, stage = index, step.parallel, self.stages
                if group:
                    stage = []
                    self.stages.append(stage)
            text = encode_plain(step.args)
            tool = self._find(index, step.tool_id, "tool_id")
            if b"$" in text or step.use_previous or step.id or tool is None or tool.wraps:
                planned = await self._look_closely(index, step, tool, text)
                if planned is not None:
                    stage.append(planned)
                continue
            try:
                checked = tool.check(text)
                stage.append(Planned(index=index, step=step, tool=tool, args=step.args, checked=checked, checked_by=tool))
            except InvalidArgumentsError as error:
                stage.append(self._mended(Planned(index=index, step=step, tool=tool, args=step.args), error.issues))
        if self._issues:
            raise self._refusal()
        return self

    def _refusal(self) -> ToolError:
        first = self._issues[0]
        index = int(first.field.split(".")[1])
        more = f" {len(self._issues) - 1} more of it is wrong, too." if len(self._issues) > 1 else ""
        return ToolError(
            "invalid_input",
            f"The chain cannot run, and nothing of it did: {first.message}{more}",
            hint="Mend what 'issues' names, then run the whole chain again.",
            next_actions=self.look_up(first.did_you_mean if first.code == "tool_not_found" else self.steps[index].tool_id),
            issues=self._issues,
            similar=self._similar,
            step_index=index,
        )

    def look_up(self, tool_id: str | None) -> list[str]:
        """Return how to learn of a tool, or to find one, by tools that the caller has."""
        action = "search_tools(query=…)" if tool_id is None else f"describe_tool(tool_id={tool_id!r})"
        return self._catalogue.offered(self._profile, action)

    def _link(self, index: int, step: Step, found: Sequence[Reference]) -> None:
        """Find what a step refers to, and let others refer to it."""
        for reference in found:
            named = reference.step
            target = named if type(named) is int else self._named.get(cast("str", named))
            if target is not None and 0 <= target < self._first and reference.pointer[:1] in _POINTERS:
                reference.target = target
            else:
                at = f"steps.{index}.args.{field_name(reference.at)}"
                self._issues.append(Issue(at, *self._fault(index, reference, target)))
        if step.use_previous and self._first == 0:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if step.id and self._named.setdefault(step.id, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{shortened(step.id)}'.")

    def _find(self, index: int, name: str, field: str) -> Tool | None:
        try:
            return self._catalogue.registry.find(name, self._profile)
        except ToolError as error:
            similar = cast("list[str]", error.details.get("similar", []))
            self._similar += [near for near in similar if near not in self._similar]
            meant = similar[0] if similar else None
            self._issues.append(Issue(f"steps.{index}.{field}", "tool_not_found", error.message, did_you_mean=meant))
            return None

    async def _look_closely(self, index: int, step: Step, tool: Tool | None, text: bytes) -> Planned | None:
        """Plan a step that has to do with other steps, with stored results or with other tools."""
        wrapper = tool.spec.name if tool is not None and tool.wraps else None
        found = references(step.args, wrapper) if b"$" in text else ()
        self._link(index, step, found)
        if tool is None:
            return None
        is_linked = bool(found) or step.use_previous
        args = step.args
        if self._filling is not None and REFERENCE in text and (is_linked or not tool.wraps):
            try:
                args = await self._filling.fill_in(args, tool.spec.input_schema)
            except ToolError as error:
                self._issues += [Issue(f"steps.{index}.args.{one['field']}", one["code"], one["message"]) for one in _issues_of(error)]
                return None
        filled = is_linked or not tool.wraps or self._filling is None
        planned = Planned(
            index=index, step=step, tool=tool, args=args, references=found, inner=self._inner(index, args, wrapper), filled=filled
        )
        if is_linked:
            for issue in issues_beside(planned.given, tool, planned.taken, repair=self._repair):
                self._issues.append(_moved(index, issue))
            return planned
        try:
            return replace(planned, checked=tool.check(encode_plain(args)), checked_by=tool)
        except InvalidArgumentsError as error:
            return self._mended(planned, error.issues)

    def _fault(self, index: int, reference: Reference, target: int | None) -> tuple[str, str]:
        """Return what is wrong with a reference, as a code and a sentence."""
        named = reference.step
        if target is None:
            later = any(step.id == named for step in self.steps[index:])
            return ("later_step", f"'{shortened(str(named))}' is not before it.") if later else _unknown(f"'{shortened(str(named))}'")
        if not 0 <= target < len(self.steps):
            return _unknown(f"{target}; the first one is 0")
        if target >= index:
            return "later_step", f"Step {target} is not before it."
        if target >= self._first:
            return "same_group", f"Step {target} runs at the same time."
        return "unknown_path", "A path is empty or begins with '/'."

    def _inner(self, index: int, args: Arguments, wrapper: str | None) -> Sequence[Tool]:
        """Return the tools that a step will run by a metatool, and note those that are none."""
        if wrapper is None:
            return ()
        named = (self._find(index, name, f"args.{field_name(at)}") for at, name in inner_tools(args, wrapper))
        return [one for one in named if one is not None]

    def _mended(self, planned: Planned, issues: list[Issue]) -> Planned:
        """Return a step with its arguments put right, or note what is wrong with them."""
        tool, args = planned.tool, planned.args
        inner, coerced = unwrapped(args, tool, repair=self._repair)
        try:
            checked = tool.check(encode_plain(inner)) if coerced else None
            if checked is None:
                checked, coerced = tool.mend(encode_plain(args), issues, repair=self._repair)
        except ToolError:
            self._issues += [_moved(planned.index, issue) for issue in issues]
            return planned
        return replace(planned, checked=checked, checked_by=tool, coerced=coerced)

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self._issues.append(Issue(f"steps.{index}.{field}", code, message))


def _issues_of(error: ToolError) -> list[dict[str, str]]:
    """Return what is wrong with references to stored results.

    Raises:
        ToolError: It is something else.
    """
    if error.code != "invalid_input":
        raise error
    return cast("list[dict[str, str]]", error.details["issues"])


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _moved(index: int, issue: Issue) -> Issue:
    return Issue(f"steps.{index}.args.{issue.field}", issue.code, issue.message, issue.expected, issue.did_you_mean)
