"""The plan of a chain: its steps, parsed and checked as far as possible before the first one runs."""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast

import msgspec
from msgspec.structs import replace

from callyard.dispatch.call import Arguments, Call, InvokeOptions
from callyard.dispatch.results import DOLLAR, REF_KEY, RefResolver, at_pointer
from callyard.dispatch.tool import InvalidArgumentsError, Tool, check_by_schema
from callyard.metatools.chain import Step
from callyard.metatools.metatool import YardParts
from callyard.metatools.run import WRAPPERS, unwrap_arguments
from callyard.model.envelope import encode_unchecked
from callyard.model.errors import ToolError, shortened
from callyard.model.schema import MAX_ISSUES, Issue, Path, Schema, field_name, inline_references, unknown_field_issue
from callyard.model.simple_schema import fits_simple_schema

__all__ = ["PREVIOUS", "Plan", "PlannedStep", "resolve_references"]


_NOTHING: Final[Schema] = {}


def certain_issues(args: Arguments, tool: Tool, later: Collection[str | int], *, repair: bool) -> Sequence[Issue]:
    """Return the issues that arguments which come `later` cannot fix: missing, unknown and invalid ones."""
    schema = tool.spec.input_schema
    known: Schema = schema.get("properties", _NOTHING)
    required: Sequence[str] = schema.get("required", ())
    for name, value in args.items():
        if name not in later:
            inner = known.get(name)
            if type(inner) is not dict or not fits_simple_schema(cast("dict[str, Any]", inner), value):
                break
    else:
        if all(map(args.__contains__, required)) and all(map(known.__contains__, later)):
            return ()  # the usual case, without compiling a schema
    issues = [
        Issue(name, "missing", f"'{name}' is required.", inline_references(schema, known.get(name)))
        for name in required
        if name not in args
    ]
    if schema.get("additionalProperties") is False:
        issues += [unknown_field_issue((name,), list(known)) for name in args if name not in known]
    settled = {name: value for name, value in args.items() if name not in later and name in known}
    return [*issues, *unrepairable_issues(settled, _optional(tool), repair=repair)]


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


def _optional(tool: Tool) -> Tool:
    """Return the tool without required arguments, so that some can be checked without the others."""
    schema: Schema = {**tool.spec.input_schema, "required": []}
    return Tool(spec=replace(tool.spec, input_schema=schema), handler=tool.handler, check=check_by_schema(schema))


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


def reference_issues(error: ToolError) -> Sequence[Issue]:
    """Return the issues of a failure to resolve references to stored results.

    Raises:
        ToolError: The failure is another one.
    """
    if error.code != "invalid_input":
        raise error
    return [Issue(issue["field"], issue["code"], issue["message"]) for issue in cast("list[dict[str, str]]", error.details["issues"])]


def steps_in(args: Arguments) -> Sequence[Step]:
    """Return the steps in the arguments of a chain, or none if they are invalid: its own check reports that."""
    try:
        return msgspec.convert(args.get("steps"), list[Step])
    except msgspec.ValidationError:
        return ()


_FROM: Final = "$from"
_REFERENCE_DEPTH: Final = 128
_CONTAINERS: Final = frozenset({dict, list})
_STEP_TYPES: Final = frozenset({int, str})
_POINTER_TYPES: Final = frozenset({str, type(None)})
_WITH_PATH: Final = 2
_ROOM_HINT: Final = "Refer to the parts that the step needs, with 'path'."
_RUN_TOOLS: Final = ("run_tool", "call_tool")  # a tuple, because unhashable values are compared with it
CHAIN: Final = "run_chain"
"""The metatool whose steps resolve their references themselves."""


class Reference(msgspec.Struct, gc=False):
    """A `$from` reference to the result of another step."""

    step: str | int
    """The id or index of that step."""
    pointer: str
    at: Path
    """Where the reference is in the arguments."""
    target: int = 0
    """The index of that step, once it is resolved."""


def find_references(args: dict[str, Any], wrapper: object = None) -> Sequence[Reference]:
    """Return the references in arguments; `wrapper` is the name of the metatool whose arguments they are."""
    found: list[Reference] = []
    if wrapper is not None:
        _find_in_wrapper(args, wrapper, (), found)
        return found
    for key, value in args.items():
        if type(value) in _CONTAINERS:
            _find_in(value, (key,), found)
    return found


def resolve_references(
    args: dict[str, Any], references: Iterable[Reference], results: Sequence[Mapping[str, Any]], *, max_bytes: int
) -> dict[str, Any]:
    """Return the arguments with the `data` of earlier steps in place of the references to them.

    Raises:
        ToolError: `invalid_input` if a result has no such part, `too_large` if all parts together have too many bytes.
    """
    copies: dict[Path, Any] = {(): dict(args)}  # each container on the way to a reference is copied once
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
        container = copies[()]
        for length, part in enumerate(reference.at[:-1], start=1):
            here = reference.at[:length]
            if here not in copies:
                copies[here] = container[part] = container[part].copy()
            container = copies[here]
        container[reference.at[-1]] = value
    return copies[()]


def contains_steps(args: Mapping[str, Any], wrapper: object) -> bool:
    """Return whether arguments of a metatool literally contain the steps of a chain."""
    if wrapper == CHAIN:
        return type(args.get("steps")) is list
    inner = args.get("args") if wrapper in _RUN_TOOLS else None
    return type(inner) is dict and _FROM not in inner and contains_steps(cast("dict[str, Any]", inner), args.get("tool_id"))


def _part(result: Any, reference: Reference) -> Any:
    try:
        return at_pointer(result, reference.pointer)
    except LookupError:
        message = f"Step {reference.target} answered nothing at '{shortened(reference.pointer)}'."
        issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
        raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None


def _find_in_wrapper(args: Mapping[str, Any], wrapper: object, at: Path, found: list[Reference]) -> None:
    for key, value in args.items():
        if type(value) not in _CONTAINERS or (wrapper == CHAIN and key == "steps" and type(value) is list):
            continue
        if wrapper in _RUN_TOOLS and key == "args" and type(value) is dict and _FROM not in value:
            _find_in_wrapper(cast("dict[str, Any]", value), args.get("tool_id"), (*at, key), found)
        else:
            _find_in(value, (*at, key), found)


def _find_in(value: Any, at: Path, found: list[Reference]) -> None:
    if type(value) is list:
        pairs = enumerate(cast("list[Any]", value))
    else:
        step, size = value.get(_FROM), len(value)
        if type(step) in _STEP_TYPES and (size == 1 or (size == _WITH_PATH and type(value.get("path", size)) in _POINTER_TYPES)):
            found.append(Reference(step, value.get("path") or "", at))
            return
        pairs = cast("dict[str, Any]", value).items()
    if len(at) < _REFERENCE_DEPTH:
        for key, item in pairs:
            if type(item) in _CONTAINERS:
                _find_in(item, (*at, key), found)


PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")
_ISSUES_SHOWN: Final = 20
_LARGE_BYTES: Final = 64 * 1024
_ISSUES_EXPLAINED: Final = 5
_REPAIR_HINT: Final = "Mend what 'issues' names."
_DEPTH: Final = 16  # of metatools in metatools that are planned; fewer may run in each other


class PlannedStep(InvokeOptions, frozen=True, kw_only=True, gc=False):
    """A step that can run; its arguments are checked already, unless some come from another step."""

    refs_resolved: bool = True
    index: int
    step: Step
    """The step, with references to stored results resolved, unless an inner tool does that."""
    tool: Tool
    references: Sequence[Reference] = ()
    inner: Sequence[Tool] = ()
    """The tools that a metatool will run, as far as they are known."""


class Stage(msgspec.Struct, frozen=True):
    """Adjacent steps, which run in parallel or one after the other."""

    parallel: bool
    steps: list[PlannedStep]


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
        self.stages: list[Stage] = []
        self.issues: list[Issue] = []
        self._yard = yard
        self._call = call
        self._depth = depth
        """The number of metatools around this one."""
        self._ids: dict[str, int] = {}

    async def read(self, steps: Sequence[Step]) -> None:
        """Plan the steps.

        Raises:
            ToolError: `invalid_input` with the issues of all steps.
        """
        self.steps = steps
        stage, group, first = self._new_stage(""), "", 0
        for index, step in enumerate(steps):
            if step.parallel != group:
                stage, group, first = self._new_stage(step.parallel), step.parallel, index
            text = encode_unchecked(step.args)
            tool = self._find(index, step.tool_id, "tool_id")
            if tool is None or tool.wraps or step.use_previous or DOLLAR in text:
                planned = await self._plan_linked(index, step, tool, text, first=first if group else index)
                if planned is not None:
                    stage.append(planned)
            else:
                try:
                    checked = tool.check(text)
                    stage.append(PlannedStep(seconds=step.timeout_s, checked=checked, checked_by=tool, index=index, step=step, tool=tool))
                except InvalidArgumentsError as error:
                    stage.append(self._repaired(PlannedStep(index=index, step=step, tool=tool, seconds=step.timeout_s), error.issues))
            if step.id:
                self._register_id(index, step)
            if len(text) > _LARGE_BYTES:
                if len(self.issues) >= MAX_ISSUES:
                    self._is_cut = True
                    break
                await asyncio.sleep(0)  # so that other callers wait for one step and not for all
        if self.issues:
            raise self._refusal()

    def planned(self) -> Iterator[PlannedStep]:
        """Return all planned steps in order."""
        return (planned for stage in self.stages for planned in stage.steps)

    def suggest_describe(self, tool_id: str | None) -> list[str]:
        """Return the action that describes a tool, or finds one, if the caller has the metatool."""
        action = "search_tools(query=…)" if tool_id is None else f"describe_tool(tool_id={tool_id!r})"
        return self._yard.registry.available_actions(self._call.profile, action)

    def _new_stage(self, group: str) -> list[PlannedStep]:
        """Add a stage and return its steps; steps of a group run in parallel."""
        steps: list[PlannedStep] = []
        self.stages.append(Stage(bool(group), steps))
        return steps

    def _refusal(self) -> ToolError:
        first, more = self.issues[0], len(self.issues) - 1
        index = int(first.field.split(".")[1])
        number = f"At least {more}" if self._is_cut else f"{more}"
        rest = "" if not more else " One more thing is wrong." if more == 1 else f" {number} more things are wrong."
        return ToolError(
            "invalid_input",
            f"The chain cannot run, and nothing of it did: {first.message}{rest}",
            hint=f"{self.advice.hint if self.advice else _REPAIR_HINT} Then run the whole chain again.",
            next_actions=self.advice.next_actions if self.advice else self._advise(first, index),
            issues=[
                *self.issues[:_ISSUES_EXPLAINED],
                *(replace(issue, expected=None) for issue in self.issues[_ISSUES_EXPLAINED:_ISSUES_SHOWN]),
            ],
            similar=self.similar,
            step_index=index,
        )

    def _advise(self, first: Issue, index: int) -> Sequence[str]:
        tool_id = first.did_you_mean if first.code == "tool_not_found" else self.steps[index].tool_id
        return self.suggest_describe(tool_id) or [f"{CHAIN}(steps=…)"]

    def _add_reference_issues(self, index: int, error: ToolError, at: Path = ()) -> None:
        """Add the issues of references to stored results."""
        issues = reference_issues(error)
        if not self.issues:
            self.advice = error
        self.issues += [_at_step(index, issue, at) for issue in issues]

    def _register_id(self, index: int, step: Step) -> None:
        """Register the id of a step, by which later steps refer to it."""
        if self._ids.setdefault(step.id, index) != index:
            self._add(index, "id", "duplicate_id", f"Two steps have the id '{shortened(step.id)}'.")

    def _link_references(self, index: int, found: Sequence[Reference], first: int) -> None:
        """Set the target of each reference, or add an issue."""
        for reference in found:
            step = reference.step
            target = step if type(step) is int else self._target(cast("str", step))
            if target is not None and 0 <= target < first and reference.pointer[:1] in _POINTERS:
                reference.target = target
            else:
                self._add(index, f"args.{field_name(reference.at)}", *self._reference_fault(index, reference, target, first=first))
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
            return self._add_not_found(error, index, field)

    def _add_not_found(self, error: ToolError, index: int, field: str) -> None:
        """Add the issue of an unknown tool."""
        similar = cast("list[str]", error.details.get("similar", []))
        self.similar = list(dict.fromkeys((*self.similar, *similar)))
        meant = similar[0] if similar else None
        self.issues.append(Issue(f"steps.{index}.{field}", "tool_not_found", error.message, did_you_mean=meant))

    async def _plan_linked(self, index: int, step: Step, tool: Tool | None, text: bytes, *, first: int) -> PlannedStep | None:
        """Plan a step that refers to other steps or stored results, or that runs another tool."""
        wrapper = tool.spec.name if tool is not None and tool.wraps else None
        found = find_references(step.args, wrapper) if DOLLAR in text else ()
        self._link_references(index, found, first)
        if step.use_previous and not first:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if tool is None:
            return None
        is_linked = bool(found) or step.use_previous
        args = step.args
        fills = wrapper is None or (is_linked and not contains_steps(args, wrapper))  # an inner chain resolves the references of its steps
        if not self._call.options.refs_resolved and REF_KEY in text and fills:
            self._resolver = resolver = self._resolver or self._make_resolver()
            try:
                args = await resolver.resolve(args, tool.spec.input_schema)
                step = replace(step, args=args)
            except ToolError as error:
                self._add_reference_issues(index, error)
                return None
        resolved = fills or self._call.options.refs_resolved
        planned = PlannedStep(index=index, step=step, tool=tool, references=found, refs_resolved=resolved, seconds=step.timeout_s)
        if is_linked:
            later = {reference.at[0] for reference in found}
            if step.use_previous:
                args, later = {**args, PREVIOUS: None}, {*later, PREVIOUS}
            self.issues += [_at_step(index, issue) for issue in certain_issues(args, tool, later, repair=self._yard.limits.repair)]
        else:
            try:
                planned = replace(planned, checked=tool.check(encode_unchecked(args)), checked_by=tool)
            except InvalidArgumentsError as error:
                planned = self._repaired(planned, error.issues)
        if wrapper is None:
            return planned
        return replace(planned, inner=await self._plan_inner(index, planned.checked or args, wrapper, found=found))

    async def _plan_inner(self, index: int, args: Arguments, wrapper: str, *, found: Sequence[Reference], at: Path = ()) -> Sequence[Tool]:
        """Return the tools that a metatool step will run, and add the issues of their arguments that are certain already."""
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
        fill = None if self._call.options.refs_resolved else self._make_resolver
        try:
            issues = await call_issues(inner, tool, {path[0] for path in inside}, fill=fill, repair=self._yard.limits.repair)
        except ToolError as error:
            self._add_reference_issues(index, error, here)
        else:
            self.issues += [_at_step(index, issue, here) for issue in issues]
        return (tool,)

    async def _plan_inner_chain(self, index: int, args: Arguments, at: Path) -> Sequence[Tool]:
        """Plan an inner chain, whose steps refer only to each other."""
        steps = steps_in(args)
        depth = self._depth + len(at) + 1
        if not steps or depth > _DEPTH:
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
        """Return the code and message of an invalid reference."""
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
            checked = tool.check(encode_unchecked(inner)) if coerced else None
            if checked is None:
                repaired = tool.repair(encode_unchecked(args), issues, enabled=self._yard.limits.repair)
                checked, coerced = repaired.arguments, repaired.coerced
        except ToolError:
            self.issues += [_at_step(planned.index, issue) for issue in issues]
            return planned
        return replace(planned, checked=checked, checked_by=tool, coerced=coerced)

    def _make_resolver(self) -> RefResolver:
        return self._yard.dispatcher.results.resolver(self._call.caller.owner, self._call.profile)

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self.issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _at_step(index: int, issue: Issue, at: Path = ()) -> Issue:
    field = ".".join(("steps", str(index), "args", *map(str, at), issue.field))
    return replace(issue, field=field)
