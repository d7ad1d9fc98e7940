"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec

from toolyard.call import Arguments
from toolyard.envelope import encode
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.references import Reference, references
from toolyard.metatools.running import unwrapped
from toolyard.profile import Profile
from toolyard.schema import Issue, Schema, field_name, inlined, unexpected
from toolyard.tools import InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Step"]

PREVIOUS: Final = "previous"


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False):  # a struct, because a chain makes one for every step
    """One call of a chain, whose tool is known."""

    index: int
    tool: Tool
    tool_id: str
    args: Arguments
    id: str | None = None
    references: Sequence[Reference] = ()
    coerced: tuple[str, ...] = ()
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
        get = raw.get
        args, identifier, uses_previous = get("args", {}), get("id"), get("use_previous", False)
        found = references(args)
        before = len(self._issues)
        for reference in found:
            fault = self._fault(index, reference, given)
            if fault is not None:
                self._issues.append(Issue(f"steps.{index}.args.{field_name(reference.at)}", *fault))
        if uses_previous and _stage_begin(index, given) == 0:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if identifier is not None and self._named.setdefault(identifier, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{identifier}'.")
        tool = self._find(index, raw["tool_id"])
        if tool is None:
            return
        coerced: tuple[str, ...] = ()
        if found or uses_previous:
            args = {**args, PREVIOUS: None} if uses_previous else args
            self._issues += [_moved(index, issue) for issue in _certain(tool.spec.input_schema, args)]
        else:
            args, coerced = self._checked(index, tool, args)
        if len(self._issues) == before:
            step = Step(index=index, tool=tool, tool_id=raw["tool_id"], args=args, id=identifier, references=found, coerced=coerced,
                        use_previous=uses_previous, group=get("parallel"), seconds=get("timeout_s"))  # fmt: skip
            self.steps.append(step)

    def _find(self, index: int, name: str) -> Tool | None:
        try:
            return self._catalogue.find(name, self._profile)
        except ToolError as error:
            similar = cast("list[str]", error.details.get("similar", []))
            self._similar += [near for near in similar if near not in self._similar]
            meant = similar[0] if similar else None
            self._issues.append(Issue(f"steps.{index}.tool_id", "tool_not_found", error.message, did_you_mean=meant))
            return None

    def _fault(self, index: int, reference: Reference, given: list[dict[str, Any]]) -> tuple[str, str] | None:
        """Return what is wrong with a reference, as a code and a sentence."""
        target = self.index_of(reference)
        if target is None:
            later = any(raw.get("id") == reference.step for raw in given[index:])
            return ("later_step", f"'{reference.step}' is not before it.") if later else _unknown(f"'{reference.step}'")
        if not 0 <= target < len(given):
            return _unknown(f"{target}; the first one is 0")
        if target >= index:
            return "later_step", f"Step {target} is not before it."
        if given[index].get("parallel") is not None and target >= _stage_begin(index, given):
            return "same_group", f"Step {target} runs at the same time."
        if reference.pointer and not reference.pointer.startswith("/"):
            return "unknown_path", "A path is empty or begins with '/'."
        return None

    def _checked(self, index: int, tool: Tool, args: Arguments) -> tuple[Arguments, tuple[str, ...]]:
        """Return arguments that fit, or will once they are put right, and note what is wrong with those that do not."""
        text = encode(args)
        try:
            tool.check(text)
        except InvalidArgumentsError as error:
            inner, moved = unwrapped(args, tool, repair=self._repair)
            if moved:
                return inner, moved
            try:
                tool.mend(text, error.issues, repair=self._repair)
            except ToolError:
                self._issues += [_moved(index, issue) for issue in error.issues]
        return args, ()

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self._issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _stage_begin(index: int, given: list[dict[str, Any]]) -> int:
    """Return the first step of the group that a step is in, or the step itself."""
    group = given[index].get("parallel")
    while index and group is not None and given[index - 1].get("parallel") == group:
        index -= 1
    return index


def _moved(index: int, issue: Issue) -> Issue:
    return Issue(f"steps.{index}.args.{issue.field}", issue.code, issue.message, issue.expected, issue.did_you_mean)


def _certain(schema: Schema, args: Arguments) -> list[Issue]:
    """Return what no result that is filled in later can put right: arguments that are missing, and those that are not known."""
    known = schema.get("properties", {})
    required = schema.get("required", ())
    strict = schema.get("additionalProperties") is False
    if args.keys() >= set(required) and (not strict or args.keys() <= known.keys()):
        return []
    return [
        *(Issue(name, "missing", f"'{name}' is required.", inlined(schema, known.get(name))) for name in required if name not in args),
        *(unexpected((name,), list(known)) for name in args if strict and name not in known),
    ]
