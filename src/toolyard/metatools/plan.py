"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from toolyard.call import Arguments
from toolyard.envelope import encode
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.references import Reference, references
from toolyard.metatools.running import unwrapped
from toolyard.profile import Profile
from toolyard.schema import Issue, field_name
from toolyard.tools import InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Step"]

PREVIOUS: Final = "previous"
_CERTAIN: Final = frozenset({"missing", "extra_forbidden"})
"""What no result that is filled in later can put right."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One call of a chain, whose tool is known."""

    index: int
    id: str | None
    tool: Tool
    tool_id: str
    args: Arguments
    references: tuple[Reference, ...]
    coerced: tuple[str, ...]
    use_previous: bool = False
    group: str | None = None
    seconds: float | None = None


class Plan:
    """The steps of one chain, in stages: the steps of a stage run side by side."""

    def __init__(self, catalogue: Catalogue, profile: Profile, *, repair: bool) -> None:
        self.steps: list[Step] = []
        self._catalogue = catalogue
        self._profile = profile
        self._repair = repair
        self._issues: list[Issue] = []
        self._similar: list[str] = []
        self._named: dict[str, int] = {}

    def read(self, given: list[dict[str, Any]]) -> "Plan":
        """Take the steps in, and return the plan.

        Raises:
            ToolError: `invalid_input` with everything that is wrong with any of them.
        """
        for index, raw in enumerate(given):
            self._take(index, raw, given)
        if self._issues:
            first = self._issues[0]
            named = first.field.split(".")[1]
            more = f" {len(self._issues) - 1} more of it is wrong, too." if len(self._issues) > 1 else ""
            raise ToolError(
                "invalid_input",
                f"The chain cannot run, and nothing of it did: {first.message}{more}",
                hint="Mend what 'issues' names, then run the whole chain again.",
                next_actions=[f"describe_tool(tool_id={given[int(named)]['tool_id']!r})"],
                issues=self._issues,
                similar=self._similar,
                step_index=int(named),
            )
        return self

    def stages(self) -> list[list[Step]]:
        """Return the steps, those of one parallel group that follow each other together."""
        stages: list[list[Step]] = []
        for step in self.steps:
            if stages and step.group is not None and stages[-1][-1].group == step.group:
                stages[-1].append(step)
            else:
                stages.append([step])
        return stages

    def index_of(self, reference: Reference) -> int | None:
        """Return the step that a reference means, by its id or its place."""
        return self._named.get(reference.step) if isinstance(reference.step, str) else reference.step

    def _take(self, index: int, raw: dict[str, Any], given: list[dict[str, Any]]) -> None:
        found = tuple(references(raw.get("args", {})))
        before = len(self._issues)
        for reference in found:
            self._check_reference(index, reference, given)
        if raw.get("use_previous") and _stage_begin(index, given) == 0:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        identifier = raw.get("id")
        if identifier is not None and self._named.setdefault(identifier, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{identifier}'.")
        try:
            tool = self._catalogue.find(raw["tool_id"], self._profile)
        except ToolError as error:
            self._similar += [name for name in cast("list[str]", error.details.get("similar", [])) if name not in self._similar]
            meant = self._similar[0] if self._similar else None
            self._issues.append(Issue(f"steps.{index}.tool_id", "tool_not_found", error.message, did_you_mean=meant))
            return
        args, moved = raw.get("args", {}), ()
        open_places = [reference.at for reference in found]
        if raw.get("use_previous"):
            args = {**args, PREVIOUS: None}
            open_places.append((PREVIOUS,))
        if not open_places:
            args, moved = unwrapped(args, tool, repair=self._repair)
        self._check(index, tool, args, [field_name(place) for place in open_places])
        if len(self._issues) == before:
            step = Step(index=index, id=identifier, tool=tool, tool_id=raw["tool_id"], args=args, references=found, coerced=moved)
            self.steps.append(_with_options(step, raw))

    def _check_reference(self, index: int, reference: Reference, given: list[dict[str, Any]]) -> None:
        field = f"args.{field_name(reference.at)}"
        target = self.index_of(reference)
        if target is None:
            later = [number for number, raw in enumerate(given) if raw.get("id") == reference.step]
            if later and later[0] >= index:
                self._add(index, field, "later_step", f"'{reference.step}' is not before it.")
            else:
                self._add(index, field, "unknown_step", f"There is no step '{reference.step}'.")
        elif not 0 <= target < len(given):
            self._add(index, field, "unknown_step", f"There is no step {target}; the first one is 0.")
        elif target >= index:
            self._add(index, field, "later_step", f"Step {target} is not before it.")
        elif target >= _stage_begin(index, given):
            self._add(index, field, "same_group", f"Step {target} runs at the same time.")
        elif reference.pointer and not reference.pointer.startswith("/"):
            self._add(index, field, "unknown_path", "A path is empty or begins with '/'.")

    def _check(self, index: int, tool: Tool, args: Arguments, places: list[str]) -> None:
        """Note what is wrong with arguments: all of it, or where some are not known yet what they cannot change."""
        try:
            tool.check(encode(args))
        except InvalidArgumentsError as error:
            issues = error.issues
        else:
            return
        if not places:
            try:
                tool.mend(encode(args), issues, repair=self._repair)
            except ToolError:
                self._issues += [_moved(index, issue) for issue in issues]
            return
        self._issues += [_moved(index, issue) for issue in issues if issue.code in _CERTAIN and not _within(issue.field, places)]

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self._issues.append(Issue(f"steps.{index}.{field}", code, message))


def _with_options(step: Step, raw: Mapping[str, Any]) -> Step:
    return replace(step, use_previous=bool(raw.get("use_previous")), group=raw.get("parallel"), seconds=raw.get("timeout_s"))


def _stage_begin(index: int, given: list[dict[str, Any]]) -> int:
    """Return the first step of the group that a step is in, or the step itself."""
    group = given[index].get("parallel")
    while index and group is not None and given[index - 1].get("parallel") == group:
        index -= 1
    return index


def _moved(index: int, issue: Issue) -> Issue:
    return Issue(f"steps.{index}.args.{issue.field}", issue.code, issue.message, issue.expected, issue.did_you_mean)


def _within(field: str, places: list[str]) -> bool:
    return any(field == place or field.startswith(f"{place}.") for place in places) and field != PREVIOUS
