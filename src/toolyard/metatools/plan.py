"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Sequence
from typing import Annotated, Final, cast

import msgspec

from toolyard.call import Arguments
from toolyard.caller import FILLED, Nested
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.references import Reference, references
from toolyard.metatools.running import unwrapped
from toolyard.profile import Profile
from toolyard.schema import Issue, Schema, field_name, inlined, unexpected
from toolyard.tools import InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Planned", "Seconds", "Step"]

PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a chain, as it was asked for."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


class Planned(msgspec.Struct, gc=False):
    """A step that can run."""

    index: int
    step: Step
    tool: Tool
    references: list[Reference]
    how: Nested
    """With arguments that are checked already, if nothing of them comes from another step."""
    is_ready: bool
    """Whether nothing remains to be seen to before it runs."""


class Plan:
    """The steps of one chain, in stages: the steps of a stage run side by side."""

    def __init__(self, catalogue: Catalogue, profile: Profile, *, repair: bool) -> None:
        self.steps: Sequence[Step] = ()
        self.stages: list[list[Planned]] = []
        self._catalogue = catalogue
        self._profile = profile
        self._repair = repair
        self._issues: list[Issue] = []
        self._similar: list[str] = []
        self._named: dict[str, int] = {}
        self._first = 0
        """Where the stage begins that is read now."""

    def read(self, steps: Sequence[Step]) -> "Plan":
        """Take the steps in, and return the plan.

        Raises:
            ToolError: `invalid_input` with everything that is wrong with any of them.
        """
        self.steps = steps
        group = ""
        for index, step in enumerate(steps):
            beside = group and step.parallel == group
            if not beside:
                self._first, group = index, step.parallel
            planned = self._take(index, step)
            if planned is not None and beside and self.stages:
                self.stages[-1].append(planned)
            elif planned is not None:
                self.stages.append([planned])
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
            next_actions=[f"describe_tool(tool_id={self.steps[index].tool_id!r})"],
            issues=self._issues,
            similar=self._similar,
            step_index=index,
        )

    def _take(self, index: int, step: Step) -> Planned | None:
        args = step.args
        found = references(args)
        for reference in found:
            fault = self._resolve(index, reference)
            if fault is not None:
                self._issues.append(Issue(f"steps.{index}.args.{field_name(reference.at)}", *fault))
        if step.use_previous and self._first == 0:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if step.id and self._named.setdefault(step.id, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{step.id}'.")
        try:
            tool = self._catalogue.registry.find(step.tool_id, self._profile)
        except ToolError as error:
            self._miss(index, error)
            return None
        if found or step.use_previous:
            self._check_names(index, tool.spec.input_schema, {**args, PREVIOUS: None} if step.use_previous else args)
            return Planned(index, step, tool, found, FILLED, is_ready=False)
        return Planned(index, step, tool, found, self._checked(index, tool, args), not step.timeout_s)

    def _miss(self, index: int, error: ToolError) -> None:
        similar = cast("list[str]", error.details.get("similar", []))
        self._similar += [near for near in similar if near not in self._similar]
        meant = similar[0] if similar else None
        self._issues.append(Issue(f"steps.{index}.tool_id", "tool_not_found", error.message, did_you_mean=meant))

    def _resolve(self, index: int, reference: Reference) -> tuple[str, str] | None:
        """Find the step that a reference means, or return what is wrong with it, as a code and a sentence."""
        named = reference.step
        target = named if type(named) is int else self._named.get(cast("str", named))
        if target is not None and 0 <= target < self._first and reference.pointer[:1] in _POINTERS:
            reference.target = target
            return None
        return self._fault(index, reference, target)

    def _fault(self, index: int, reference: Reference, target: int | None) -> tuple[str, str]:
        named = reference.step
        if target is None:
            later = any(step.id == named for step in self.steps[index:])
            return ("later_step", f"'{named}' is not before it.") if later else _unknown(f"'{named}'")
        if not 0 <= target < len(self.steps):
            return _unknown(f"{target}; the first one is 0")
        if target >= index:
            return "later_step", f"Step {target} is not before it."
        if target >= self._first:
            return "same_group", f"Step {target} runs at the same time."
        return "unknown_path", "A path is empty or begins with '/'."

    def _checked(self, index: int, tool: Tool, args: Arguments) -> Nested:
        """Return arguments that fit, be it once they are put right, and note what is wrong with those that do not."""
        text = encode_plain(args)
        try:
            return Nested(filled=True, checked=tool.check(text), checked_by=tool.check)
        except InvalidArgumentsError as error:
            inner, moved = unwrapped(args, tool, repair=self._repair)
            if moved:
                return Nested(filled=True, checked=tool.check(encode_plain(inner)), checked_by=tool.check, coerced=moved)
            try:
                arguments, coerced = tool.mend(text, error.issues, repair=self._repair)
            except ToolError:
                self._issues += [_moved(index, issue) for issue in error.issues]
                return FILLED
            return Nested(filled=True, checked=arguments, checked_by=tool.check, coerced=coerced)

    def _check_names(self, index: int, schema: Schema, args: Arguments) -> None:
        """Note what no result that is filled in later can put right: arguments that are missing, and those that are not known."""
        known = schema.get("properties", {})
        for name in schema.get("required", ()):
            if name not in args:
                issue = Issue(name, "missing", f"'{name}' is required.", inlined(schema, known.get(name)))
                self._issues.append(_moved(index, issue))
        if schema.get("additionalProperties") is False:
            for name in args:
                if name not in known:
                    self._issues.append(_moved(index, unexpected((name,), list(known))))

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self._issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _moved(index: int, issue: Issue) -> Issue:
    return Issue(f"steps.{index}.args.{issue.field}", issue.code, issue.message, issue.expected, issue.did_you_mean)
