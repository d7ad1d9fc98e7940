"""The plan of a chain: its steps, parsed and checked as far as possible before the first one runs."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Annotated, Any, Final, cast

import msgspec
from msgspec.structs import replace

from callyard.dispatch.call import Arguments, Call, InvokeOptions
from callyard.dispatch.results import DOLLAR, REF_KEY, RefResolver, at_pointer
from callyard.dispatch.run import run_of
from callyard.dispatch.tool import InvalidArgumentsError, Tool, check_by_schema
from callyard.metatools.metatool import YardParts
from callyard.metatools.run import WRAPPERS, unwrap_arguments
from callyard.model.envelope import encode_unchecked
from callyard.model.errors import ToolError, shortened
from callyard.model.schema import MAX_ISSUES, Issue, Path, Schema, field_name, inline_references, unknown_field_issue
from callyard.model.simple_schema import fits_simple_schema

__all__ = ["PREVIOUS", "Plan", "PlannedStep", "Seconds", "Step", "resolve_references"]

Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One step of a chain, as the caller wrote it."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


def certain_issues(args: Arguments, tool: Tool, later: Collection[str | int], *, repair: bool) -> Sequence[Issue]:
    """Return the issues that arguments which come `later` cannot fix: missing, unknown and invalid ones."""
    schema = tool.spec.input_schema
    known: Schema = schema.get("properties", {})
    required: Sequence[str] = schema.get("required", ())
    names = {*args, *required, *later}
    settled = {name: value for name, value in args.items() if name not in later and name in known}
    if names <= known.keys() and args.keys() >= {*required} and _fit(settled, known):
        return ()  # the usual case, without compiling a schema
    issues = [
        Issue(name, "missing", f"'{name}' is required.", inline_references(schema, known.get(name)))
        for name in required
        if name not in args
    ]
    if schema.get("additionalProperties") is False:
        issues += [unknown_field_issue((name,), list(known)) for name in args if name not in known]
    optional: Schema = {**schema, "required": []}  # so that some arguments can be checked without the others
    partly = Tool(spec=replace(tool.spec, input_schema=optional), handler=tool.handler, check=check_by_schema(optional))
    return [*issues, *unrepairable_issues(settled, partly, repair=repair)]


def _fit(args: Arguments, known: Schema) -> bool:
    return all(isinstance(known[name], dict) and fits_simple_schema(known[name], args[name]) for name in args)


def unrepairable_issues(args: Arguments, tool: Tool, *, repair: bool) -> Sequence[Issue]:
    """Return the issues that are left after the repair of arguments."""
    text = encode_unchecked(args)
    try:
        tool.check(text)
    except InvalidArgumentsError as error:
        try:
            tool.repair(text, error.issues, enabled=repair)
        except ToolError:
            return error.issues
    return ()


async def call_issues(
    args: Arguments, tool: Tool, later: Collection[str | int], *, fill: Callable[[], RefResolver] | None, repair: bool
) -> Sequence[Issue]:
    """Return the issues of a call that neither repair nor arguments that come `later` fix.

    Raises:
        ToolError: A reference to a stored result leads nowhere.
    """
    if fill is not None and REF_KEY in encode_unchecked(args):
        args = await fill().resolve(args, tool.spec.input_schema)
    if later:
        return () if repair and not WRAPPERS.isdisjoint(args) else certain_issues(args, tool, later, repair=repair)
    args, _ = unwrap_arguments(args, tool, repair=repair)
    return unrepairable_issues(args, tool, repair=repair)


_FROM: Final = "$from"
_REFERENCE_DEPTH: Final = 128
_STEP_TYPES: Final = frozenset({int, str})
_POINTER_TYPES: Final = frozenset({str, type(None)})
_ROOM_HINT: Final = "Refer to the parts that the step needs, with 'path'."
_RUN_TOOLS: Final = ("run_tool", "call_tool")  # a tuple, because unhashable values are compared with it
CHAIN: Final = "run_chain"
"""The metatool whose steps resolve their references themselves."""


class Reference(msgspec.Struct, gc=False):
    """A `$from` reference to the result of another step."""

    step: str | int
    pointer: str
    at: Path
    """Where the reference is in the arguments."""
    target: int = 0
    """The index of that step, once it is resolved."""


def find_references(args: Mapping[str, Any], wrapper: object = None, at: Path = ()) -> Iterator[Reference]:
    """Yield the references in arguments; `wrapper` is the name of the metatool whose arguments they are."""
    for key, value in args.items():
        if wrapper == CHAIN and key == "steps" and type(value) is list:
            continue
        if wrapper in _RUN_TOOLS and key == "args" and type(value) is dict and _FROM not in value:
            yield from find_references(cast("dict[str, Any]", value), args.get("tool_id"), (*at, key))
        else:
            yield from _find_in(value, (*at, key))


def resolve_references(
    args: dict[str, Any], references: Iterable[Reference], results: Sequence[Mapping[str, Any]], *, max_bytes: int
) -> dict[str, Any]:
    """Return the arguments with the `data` of earlier steps in place of the references to them.

    Raises:
        ToolError: `invalid_input` if a result has no such part, `too_large` if all parts together have too many bytes.
    """
    filled: dict[str, Any] = msgspec.json.decode(encode_unchecked(args))  # a copy
    sizes: dict[tuple[int, str], int] = {}
    left = max_bytes
    for reference in references:
        value, source = results[reference.target]["data"], (reference.target, reference.pointer)
        if reference.pointer:
            value = _part(value, reference)
        if source not in sizes:
            sizes[source] = len(encode_unchecked(value))
        left -= sizes[source]
        if left < 0:
            message = f"The results that the arguments refer to have more than {max_bytes} bytes together."
            raise ToolError("too_large", message, hint=_ROOM_HINT, may_have_run=False, limit=max_bytes)
        container: Any = filled
        for part in reference.at[:-1]:
            container = container[part]
        container[reference.at[-1]] = value
    return filled


def contains_steps(args: Mapping[str, Any], wrapper: object) -> bool:
    """Return whether arguments of a metatool literally contain the steps of a chain."""
    if wrapper == CHAIN:
        return type(args.get("steps")) is list
    inner = args.get("args") if wrapper in _RUN_TOOLS else None
    return (
        type(inner) is dict
        and _FROM not in inner
        and contains_steps(cast("dict[str, Any]", inner), args.get("tool_id"))
    )


def _part(result: Any, reference: Reference) -> Any:
    try:
        return at_pointer(result, reference.pointer)
    except LookupError:
        message = f"Step {reference.target} answered nothing at '{shortened(reference.pointer)}'."
        issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
        raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None


def _find_in(value: Any, at: Path) -> Iterator[Reference]:
    if isinstance(value, list):
        pairs = enumerate(cast("list[Any]", value))
    elif isinstance(value, dict):
        rest = dict(cast("dict[str, Any]", value))
        step = rest.pop(_FROM, None)
        path = rest.get("path")
        if type(step) in _STEP_TYPES and rest.keys() <= {"path"} and type(path) in _POINTER_TYPES:
            yield Reference(step, path or "", at)
            return
        pairs = cast("dict[str, Any]", value).items()
    else:
        return
    if len(at) < _REFERENCE_DEPTH:
        for key, item in pairs:
            yield from _find_in(item, (*at, key))


PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")
_ISSUES_SHOWN: Final = 20
_LARGE_BYTES: Final = 64 * 1024
_ISSUES_EXPLAINED: Final = 5
_REPAIR_HINT: Final = "Mend what 'issues' names."
_DEPTH: Final = 16  # of metatools in metatools that are planned; fewer may run in each other


class PlannedStep(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A step that can run; its arguments are checked already, unless some come from another step."""

    options: InvokeOptions
    """How the step is called: with its checked arguments, and with its timeout."""
    index: int
    step: Step
    """The step, with references to stored results resolved, unless an inner tool does that."""
    tool: Tool
    references: Sequence[Reference] = ()
    inner: Sequence[Tool] = ()
    """The tools that a metatool will run, as far as they are known."""

    @property
    def checked(self) -> Arguments | None:
        """Return the checked arguments, if all of them are known."""
        return self.options.checked

    def with_checked(self, checked: Arguments, text: bytes, coerced: tuple[str, ...] = ()) -> "PlannedStep":
        """Return the step with checked arguments, the same as JSON, and which of them were repaired."""
        options = replace(self.options, checked=checked, checked_by=self.tool, text=text, coerced=coerced)
        return replace(self, options=options)


class Plan:
    """The steps of one chain, in stages."""

    steps: Sequence[Step] = ()
    similar: Sequence[str] = ()
    """Names that may have been meant by unknown ones."""
    advice: ToolError | None = None
    """The failure with the hint for the first issue, if that is a reference to a stored result."""
    _resolver: RefResolver | None = None
    _is_cut: bool = False
    """Whether the search for issues ended early."""

    def __init__(self, yard: YardParts, call: Call, *, depth: int = 0) -> None:
        self.stages: list[list[PlannedStep]] = []
        """One step each, or adjacent ones that run side by side."""
        self.issues: list[Issue] = []
        self._yard = yard
        self._call = call
        self._refs_resolved = run_of(call).options.refs_resolved
        self._depth = depth
        """The number of metatools around this one."""
        self._ids: dict[str, int] = {}

    async def read(self, steps: Sequence[Step]) -> None:
        """Plan the steps.

        Raises:
            ToolError: `invalid_input` with the issues of all steps.
        """
        self.steps = steps
        group, first = "", 0
        for index, step in enumerate(steps):
            if not step.parallel or step.parallel != group:
                group, first = step.parallel, index
                self.stages.append([])
            text = encode_unchecked(step.args)
            planned = await self._plan_step(index, step, text, first=first)
            if planned is not None:
                self.stages[-1].append(planned)
            if step.id and self._ids.setdefault(step.id, index) != index:
                self._add(index, "id", "duplicate_id", f"Two steps have the id '{shortened(step.id)}'.")
            if len(text) > _LARGE_BYTES:
                if len(self.issues) >= MAX_ISSUES:
                    self._is_cut = True
                    break
                await asyncio.sleep(0)  # so that other callers wait for one step and not for all
        if self.issues:
            raise self._refusal()

    def planned(self) -> Iterator[PlannedStep]:
        """Return all planned steps in order."""
        return chain.from_iterable(self.stages)

    def suggest_describe(self, tool_id: str | None) -> list[str]:
        """Return the action that describes a tool, or finds one, if the caller has the metatool."""
        action = "search_tools(query=…)" if tool_id is None else f"describe_tool(tool_id={tool_id!r})"
        return self._yard.registry.available_actions(self._call.profile, action)

    def _refusal(self) -> ToolError:
        first, more = self.issues[0], len(self.issues) - 1
        index = int(first.field.split(".")[1])
        rest = " One more thing is wrong." if more == 1 else ""
        if more > 1:
            rest = f" {'At least ' if self._is_cut else ''}{more} more things are wrong."
        unexplained = [replace(issue, expected=None) for issue in self.issues[_ISSUES_EXPLAINED:_ISSUES_SHOWN]]
        return ToolError(
            "invalid_input",
            f"The chain cannot run, and nothing of it did: {first.message}{rest}",
            hint=f"{self.advice.hint if self.advice else _REPAIR_HINT} Then run the whole chain again.",
            next_actions=self.advice.next_actions if self.advice else self._advise(first, index),
            issues=[*self.issues[:_ISSUES_EXPLAINED], *unexplained],
            similar=self.similar,
            step_index=index,
        )

    def _advise(self, first: Issue, index: int) -> Sequence[str]:
        tool_id = first.did_you_mean if first.code == "tool_not_found" else self.steps[index].tool_id
        return self.suggest_describe(tool_id) or [f"{CHAIN}(steps=…)"]

    def _add_reference_issues(self, index: int, error: ToolError, at: Path = ()) -> None:
        if error.code != "invalid_input":  # not about references to stored results
            raise error
        if not self.issues:
            self.advice = error
        for issue in cast("list[dict[str, str]]", error.details["issues"]):
            self.issues.append(_at_step(index, Issue(issue["field"], issue["code"], issue["message"]), at))

    def _link_references(self, index: int, found: Sequence[Reference], first: int) -> None:
        """Set the target of each reference, or add an issue."""
        for reference in found:
            step = reference.step
            target = step if type(step) is int else self._target(cast("str", step))
            if target is not None and 0 <= target < first and reference.pointer[:1] in _POINTERS:
                reference.target = target
            else:
                code, message = self._reference_fault(index, reference, target, first=first)
                self._add(index, f"args.{field_name(reference.at)}", code, message)
                if len(self.issues) >= MAX_ISSUES:
                    self._is_cut = True
                    return

    def _target(self, step: str) -> int | None:
        """Return the index of the step that a text refers to: an id, or an index as text."""
        target = self._ids.get(step)
        return int(step) if target is None and step.isdecimal() and len(step) < len("100") else target

    def _find(self, index: int, name: str, field: str) -> Tool | None:
        try:
            return self._yard.registry.find(name, self._call.profile)
        except ToolError as error:
            similar = cast("list[str]", error.details.get("similar", []))
            self.similar = list(dict.fromkeys((*self.similar, *similar)))
            meant = similar[0] if similar else None
            self.issues.append(Issue(f"steps.{index}.{field}", "tool_not_found", error.message, did_you_mean=meant))
            return None

    async def _plan_step(self, index: int, step: Step, text: bytes, *, first: int) -> PlannedStep | None:
        """Plan a step, which may refer to other steps before the `first` of its stage, and to stored results."""
        tool = self._find(index, step.tool_id, "tool_id")
        wrapper = tool.spec.name if tool is not None and tool.wraps else None
        found = list(find_references(step.args, wrapper)) if DOLLAR in text else []
        self._link_references(index, found, first)
        if step.use_previous and not first:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if tool is None:
            return None
        is_linked = bool(found) or step.use_previous
        args = step.args
        # an inner chain resolves the references of its steps
        fills = wrapper is None or (is_linked and not contains_steps(args, wrapper))
        if not self._refs_resolved and REF_KEY in text and fills:
            self._resolver = self._resolver or self._make_resolver()
            try:
                args = await self._resolver.resolve(args, tool.spec.input_schema)
                step = replace(step, args=args)
            except ToolError as error:
                self._add_reference_issues(index, error)
                return None
        options = InvokeOptions(seconds=step.timeout_s, refs_resolved=fills or self._refs_resolved)
        planned = PlannedStep(index=index, step=step, tool=tool, references=found, options=options)
        if is_linked:
            later = {reference.at[0] for reference in found}
            if step.use_previous:
                args, later = {**args, PREVIOUS: None}, {*later, PREVIOUS}
            issues = certain_issues(args, tool, later, repair=self._yard.limits.repair)
            self.issues += [_at_step(index, issue) for issue in issues]
        else:
            try:
                given = encode_unchecked(args)
                planned = planned.with_checked(tool.check(given), given)
            except InvalidArgumentsError as error:
                planned = self._repaired(planned, error.issues)
        if wrapper is None:
            return planned
        return replace(planned, inner=await self._plan_inner(index, planned.checked or args, wrapper, found=found))

    async def _plan_inner(
        self, index: int, args: Arguments, wrapper: str, *, found: Sequence[Reference], at: Path = ()
    ) -> Sequence[Tool]:
        """Return the tools that a metatool step will run; add the certain issues of their arguments."""
        if wrapper == CHAIN:
            return await self._plan_inner_chain(index, args, at)
        name, inner, here = args.get("tool_id"), args.get("args", {}), (*at, "args")
        tool = self._find(index, name, f"args.{field_name((*at, 'tool_id'))}") if isinstance(name, str) else None
        if tool is None:
            return ()
        inside = [reference.at[len(here) :] for reference in found if reference.at[: len(here)] == here]
        if not isinstance(inner, dict) or () in inside or self._depth + len(here) > _DEPTH:
            return (tool,)
        inner = cast("Arguments", inner)
        if tool.wraps:
            return (tool, *await self._plan_inner(index, inner, tool.spec.name, found=found, at=here))
        fill = None if self._refs_resolved else self._make_resolver
        later = {path[0] for path in inside}
        try:
            issues = await call_issues(inner, tool, later, fill=fill, repair=self._yard.limits.repair)
        except ToolError as error:
            self._add_reference_issues(index, error, here)
        else:
            self.issues += [_at_step(index, issue, here) for issue in issues]
        return (tool,)

    async def _plan_inner_chain(self, index: int, args: Arguments, at: Path) -> Sequence[Tool]:
        depth = self._depth + len(at) + 1
        try:
            steps = msgspec.convert(args.get("steps"), list[Step])
        except msgspec.ValidationError:  # its own check reports that
            return ()
        if depth > _DEPTH:
            return ()
        plan = Plan(self._yard, self._call, depth=depth)
        try:
            await plan.read(steps)
        except ToolError as error:
            if not plan.issues:
                raise error from None
        self.advice = self.advice or (None if self.issues else plan.advice)
        self.issues += [_at_step(index, issue, at) for issue in plan.issues]
        self.similar = list(dict.fromkeys((*self.similar, *plan.similar)))
        return [tool for planned in plan.planned() for tool in (planned.tool, *planned.inner)]

    def _reference_fault(self, index: int, reference: Reference, target: int | None, *, first: int) -> tuple[str, str]:
        step = shortened(str(reference.step))
        if target is None:
            is_later = any(other.id == reference.step for other in self.steps[index:])
            return ("later_step", f"'{step}' is not before it.") if is_later else _unknown(f"'{step}'")
        if not 0 <= target < len(self.steps):
            return _unknown(f"{target}; the first one is 0")
        if target >= index:
            return "later_step", f"Step {target} is not before it."
        if target >= first:
            return "same_group", f"Step {target} runs at the same time."
        return "unknown_path", "A path is empty or begins with '/'."

    def _repaired(self, planned: PlannedStep, issues: list[Issue]) -> PlannedStep:
        """Return a step with its arguments repaired, or add their issues."""
        tool, args = planned.tool, planned.step.args
        inner, coerced = unwrap_arguments(args, tool, repair=self._yard.limits.repair)
        try:
            text = encode_unchecked(inner if coerced else args)
            checked = tool.check(text) if coerced else None
            if checked is None:
                repaired = tool.repair(text, issues, enabled=self._yard.limits.repair)
                checked, text, coerced = repaired.arguments, repaired.text, repaired.coerced
        except ToolError:
            self.issues += [_at_step(planned.index, issue) for issue in issues]
            return planned
        return planned.with_checked(checked, text, coerced)

    def _make_resolver(self) -> RefResolver:
        return self._yard.dispatcher.results.resolver(self._call.caller.owner, self._call.profile)

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self.issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _at_step(index: int, issue: Issue, at: Path = ()) -> Issue:
    return replace(issue, field=".".join(("steps", str(index), "args", *map(str, at), issue.field)))
