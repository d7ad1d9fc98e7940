"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Sequence
from typing import Annotated, Any, Final, cast

import msgspec

from toolyard.call import Arguments
from toolyard.caller import Nested
from toolyard.envelope import encode_plain
from toolyard.errors import ToolError
from toolyard.metatools.catalogue import Catalogue
from toolyard.metatools.references import Reference, references
from toolyard.metatools.running import unwrapped
from toolyard.profile import Profile
from toolyard.schema import Issue, Schema, field_name, inlined, unexpected
from toolyard.tools import Checked, InvalidArgumentsError, Tool

__all__ = ["PREVIOUS", "Plan", "Planned", "Seconds", "Step"]

PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")
_NOTHING: Final[Schema] = {}

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a chain, as it was asked for."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


class Planned(Nested, frozen=True, kw_only=True, gc=False):
    """A step that can run, and how: with arguments that are checked already, if nothing of them comes from another step."""

    filled: bool = True
    index: int
    step: Step
    tool: Tool
    references: Sequence[Reference] = ()


class Plan:
    """The steps of one chain, in stages: one step each, or several that run side by side."""

    def __init__(self, catalogue: Catalogue, profile: Profile, *, repair: bool) -> None:
        self.steps: Sequence[Step] = ()
        self.stages: list[Planned | list[Planned]] = []
        self._registry = catalogue.registry
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
        find, profile = self._registry.find, self._profile
        stage: list[Any] = self.stages
        group = ""
        for index, step in enumerate(steps):
            if not group or step.parallel != group:
                self._first, group, stage = index, step.parallel, self.stages
                if group:
                    stage = []
                    self.stages.append(stage)
            text = encode_plain(step.args)
            found = references(step.args) if b"$" in text else ()
            if found or step.id or step.use_previous:
                self._link(index, step, found)
            try:
                tool = find(step.tool_id, profile)
            except ToolError as error:
                self._miss(index, error)
                continue
            if found or step.use_previous:
                self._check_names(index, tool.spec.input_schema, step)
                stage.append(Planned(index=index, step=step, tool=tool, references=found))
                continue
            coerced: tuple[str, ...] = ()
            try:
                checked = tool.check(text)
            except InvalidArgumentsError as error:
                checked, coerced = self._mended(index, tool, step.args, error.issues)
            stage.append(Planned(index=index, step=step, tool=tool, checked=checked, checked_by=tool, coerced=coerced))
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
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{step.id}'.")

    def _miss(self, index: int, error: ToolError) -> None:
        similar = cast("list[str]", error.details.get("similar", []))
        self._similar += [near for near in similar if near not in self._similar]
        meant = similar[0] if similar else None
        self._issues.append(Issue(f"steps.{index}.tool_id", "tool_not_found", error.message, did_you_mean=meant))

    def _fault(self, index: int, reference: Reference, target: int | None) -> tuple[str, str]:
        """Return what is wrong with a reference, as a code and a sentence."""
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

    def _mended(self, index: int, tool: Tool, args: Arguments, issues: list[Issue]) -> Checked:
        """Return arguments once they are put right, or note what is wrong with them."""
        inner, moved = unwrapped(args, tool, repair=self._repair)
        if moved:
            return Checked(tool.check(encode_plain(inner)), moved)
        try:
            return tool.mend(encode_plain(args), issues, repair=self._repair)
        except ToolError:
            self._issues += [_moved(index, issue) for issue in issues]
            return Checked(args, ())

    def _check_names(self, index: int, schema: Schema, step: Step) -> None:
        """Note what no result that is filled in later can put right: arguments that are missing, and those that are not known."""
        args = {**step.args, PREVIOUS: None} if step.use_previous else step.args
        known: Schema = schema.get("properties", _NOTHING)
        required: Sequence[str] = schema.get("required", ())
        is_open = schema.get("additionalProperties") is not False
        for name in required:
            if name not in args:
                issue = Issue(name, "missing", f"'{name}' is required.", inlined(schema, known.get(name)))
                self._issues.append(_moved(index, issue))
        for name in args:
            if not is_open and name not in known:
                self._issues.append(_moved(index, unexpected((name,), list(known))))

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self._issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _moved(index: int, issue: Issue) -> Issue:
    return Issue(f"steps.{index}.args.{issue.field}", issue.code, issue.message, issue.expected, issue.did_you_mean)
