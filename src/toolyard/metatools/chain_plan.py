"""The plan of a chain: its steps, checked as far as they can be before the first one runs."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from toolyard.dispatch.call import Arguments, Call, InvokeOptions
from toolyard.dispatch.results import DOLLAR, REF_KEY, RefResolver, at_pointer
from toolyard.dispatch.tool import Check, InvalidArgumentsError, Tool, check_by_schema
from toolyard.metatools.metatool import TEXT, Subject, fields, outcome
from toolyard.metatools.run import WRAPPERS, unwrapped
from toolyard.model.envelope import encode_unchecked
from toolyard.model.errors import ToolError, shortened
from toolyard.model.schema import Issue, Schema, field_name, fits_simple_schema, inline_references, unknown_field_issue

__all__ = [
    "ANSWERS",
    "CHAIN",
    "PREVIOUS",
    "TAKES",
    "Place",
    "Plan",
    "Planned",
    "Reference",
    "Stage",
    "Step",
    "filled",
    "holds_steps",
    "issues_beside",
    "issues_left",
    "issues_of_call",
    "make_check",
    "misled",
    "references",
    "steps_in",
]


_NOTHING: Final[Schema] = {}


def issues_beside(args: Arguments, tool: Tool, later: Collection[str | int], *, repair: bool) -> Sequence[Issue]:
    """Return what nothing can put right that comes later: arguments that are missing, not known, or wrong in themselves."""
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
            return ()  # as a rule
    issues = [
        Issue(name, "missing", f"'{name}' is required.", inline_references(schema, known.get(name)))
        for name in required
        if name not in args
    ]
    if schema.get("additionalProperties") is False:
        issues += [unknown_field_issue((name,), list(known)) for name in args if name not in known]
    settled = {name: value for name, value in args.items() if name not in later and name in known}
    return [*issues, *issues_left(settled, _optional(tool), repair=repair)]


def issues_left(args: Arguments, tool: Tool, *, repair: bool) -> Sequence[Issue]:
    """Return what is wrong with arguments even if all is put right that can be."""
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
    """Return a tool that needs none of its arguments, so that some can be judged without the others."""
    schema: Schema = {**tool.spec.input_schema, "required": []}
    return Tool(spec=msgspec.structs.replace(tool.spec, input_schema=schema), handler=tool.handler, check=check_by_schema(schema))


Seconds = Annotated[float, msgspec.Meta(gt=0, le=3600)]
_STEPS: Final = 32
_SECONDS: Final[dict[str, Any]] = {"type": "number", "exclusiveMinimum": 0, "maximum": 3600}
_FLAG: Final[dict[str, Any]] = {"type": "boolean"}
_INTEGER: Final[dict[str, Any]] = {"type": "integer"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": TEXT}
_STEP: Final = fields(
    "tool_id",
    id=TEXT,
    tool_id=TEXT,
    args={"type": "object", "description": 'A value {"$from": step id or index, "path": JSON pointer} takes an earlier result.'},
    use_previous={**_FLAG, "description": "Passes the result before it as 'previous'."},
    parallel={**TEXT, "description": "Neighbours of the same group run side by side."},
    timeout_s=_SECONDS,
)
TAKES: Final = fields(
    "steps",
    steps={"type": "array", "minItems": 1, "maxItems": _STEPS, "items": _STEP},
    timeout_s={**_SECONDS, "description": "For the whole chain."},
    final_only={**_FLAG, "description": "Answers only with the last result."},
    dry_run={**_FLAG, "description": "Only checks, and shows the plan."},
)
_RESULT: Final = outcome("step tool_id data", step=_INTEGER, id=TEXT, tool_id=TEXT, data={}, coerced=_TEXTS, warnings=_TEXTS)
_PLANNED: Final = outcome(
    "step tool_id operation stage needs_approval",
    step=_INTEGER,
    id=TEXT,
    tool_id=TEXT,
    operation=TEXT,
    stage=_INTEGER,
    needs_approval={"type": ["boolean", "null"]},
    waits_for={"type": "array", "items": _INTEGER},
)
ANSWERS: Final = outcome(
    "",
    results={"type": "array", "items": _RESULT},
    final={},
    plan={"type": "array", "items": _PLANNED},
    status=TEXT,
    step_index=_INTEGER,
    pending={},
    also_pending={"type": "array", "items": outcome("step_index pending", step_index=_INTEGER, pending={})},
    partial={"type": "array", "items": outcome("step data", step=_INTEGER, data={})},
)


class Step(msgspec.Struct, frozen=True, kw_only=True, gc=False, forbid_unknown_fields=True, omit_defaults=True):
    """One call of a chain, as it was asked for."""

    tool_id: str
    args: Arguments = {}
    id: str = ""
    use_previous: bool = False
    parallel: str = ""
    timeout_s: Seconds = 0.0


class _Given(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The arguments, as they are read in one go where nothing is wrong with them."""

    steps: Annotated[list[Step], msgspec.Meta(min_length=1, max_length=_STEPS)]
    timeout_s: Seconds = 0.0
    final_only: bool = False
    dry_run: bool = False


def make_check() -> Check:
    """Return the check that the schema says, which reads steps as what they are; the schema itself tells what is wrong."""
    decode = msgspec.json.Decoder(_Given).decode
    by_schema = check_by_schema(TAKES)

    def check(text: bytes) -> Arguments:
        try:
            given = decode(text)
        except msgspec.ValidationError:
            return msgspec.structs.asdict(msgspec.convert(by_schema(text), _Given))
        return msgspec.structs.asdict(given)

    return check


async def issues_of_call(
    args: Arguments, tool: Tool, later: Collection[str | int], *, fill: Callable[[], RefResolver] | None, repair: bool
) -> Sequence[Issue]:
    """Return what is wrong with the arguments of a call, of which some may come later, even if all is put right that can be.

    Raises:
        ToolError: A reference to a stored result leads nowhere.
    """
    if fill is not None and REF_KEY in encode_unchecked(args):
        args = await fill().resolve(args, tool.spec.input_schema)
    if later:
        return () if repair and not WRAPPERS.isdisjoint(args) else issues_beside(args, tool, later, repair=repair)
    args, _ = unwrapped(args, tool, repair=repair)
    return issues_left(args, tool, repair=repair)


def misled(error: ToolError) -> Sequence[Issue]:
    """Return what is wrong with references to stored results.

    Raises:
        ToolError: It is something else.
    """
    if error.code != "invalid_input":
        raise error
    return [Issue(one["field"], one["code"], one["message"]) for one in cast("list[dict[str, str]]", error.details["issues"])]


def steps_in(args: Arguments) -> Sequence[Step]:
    """Return the steps of a chain that are given as arguments, or none if they are none, which whoever takes them says."""
    try:
        return msgspec.convert(args.get("steps"), list[Step])
    except msgspec.ValidationError:
        return ()


_FROM: Final = "$from"
_REFERENCE_DEPTH: Final = 128
_CONTAINERS: Final = frozenset({dict, list})
_NAMES: Final = frozenset({int, str})
_POINTER_TYPES: Final = frozenset({str, type(None)})
_BOTH: Final = 2
_RUNS: Final = ("run_tool", "call_tool")  # no set: what is looked for may be anything
CHAIN: Final = "run_chain"
"""The metatool whose steps are its own affair."""
Place = tuple[str | int, ...]


class Reference(msgspec.Struct, gc=False):
    """Which step a place takes the result of, which part of it, and where the place is."""

    step: str | int
    pointer: str
    at: Place
    target: int = 0
    """The place of that step, once it is known."""


def references(args: dict[str, Any], wrapper: object = None) -> Sequence[Reference]:
    """Return the references in arguments, which may be those of the metatool of that name."""
    found: list[Reference] = []
    if wrapper is not None:
        _gather(args, wrapper, (), found)
        return found
    for key, value in args.items():
        if type(value) in _CONTAINERS:
            _collect(value, (key,), found)
    return found


def filled(args: dict[str, Any], found: Iterable[Reference], told: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the arguments with what the steps before answered, which is told of each as its `data`, in the places that refer to it.

    Raises:
        ToolError: `invalid_input` if one answered nothing there.
    """
    resolver: dict[Any, Any] = dict(args)
    for reference in found:
        value = told[reference.target]["data"]
        if reference.pointer:
            value = _part(value, reference)
        at = reference.at
        resolver[at[0]] = value if len(at) == 1 else _with(resolver[at[0]], at[1:], value)
    return resolver


def holds_steps(args: Mapping[str, Any], wrapper: object) -> bool:
    """Return whether arguments of the metatool of that name are those of a chain, or run one, whose steps stand there as they are."""
    if wrapper == CHAIN:
        return type(args.get("steps")) is list
    inner = args.get("args") if wrapper in _RUNS else None
    return type(inner) is dict and _FROM not in inner and holds_steps(cast("dict[str, Any]", inner), args.get("tool_id"))


def _part(result: Any, reference: Reference) -> Any:
    try:
        return at_pointer(result, reference.pointer)
    except LookupError:
        message = f"Step {reference.target} answered nothing at '{shortened(reference.pointer)}'."
        issue = {"field": ".".join(map(str, reference.at)), "code": "unknown_path", "message": message}
        raise ToolError("invalid_input", message, may_have_run=False, issues=[issue]) from None


def _gather(args: Mapping[str, Any], wrapper: object, at: Place, found: list[Reference]) -> None:
    for key, value in args.items():
        if type(value) not in _CONTAINERS or (wrapper == CHAIN and key == "steps" and type(value) is list):
            continue
        if wrapper in _RUNS and key == "args" and type(value) is dict and _FROM not in value:
            _gather(cast("dict[str, Any]", value), args.get("tool_id"), (*at, key), found)
        else:
            _collect(value, (*at, key), found)


def _collect(value: Any, at: Place, found: list[Reference]) -> None:
    if type(value) is list:
        pairs = enumerate(cast("list[Any]", value))
    else:
        step, size = value.get(_FROM), len(value)
        if type(step) in _NAMES and (size == 1 or (size == _BOTH and type(value.get("path", size)) in _POINTER_TYPES)):
            found.append(Reference(step, value.get("path") or "", at))
            return
        pairs = cast("dict[str, Any]", value).items()
    if len(at) < _REFERENCE_DEPTH:
        for key, item in pairs:
            if type(item) in _CONTAINERS:
                _collect(item, (*at, key), found)


def _with(container: Any, path: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a container with something else in one place."""
    copied = container.copy()
    copied[path[0]] = _with(container[path[0]], path[1:], value) if len(path) > 1 else value
    return copied


PREVIOUS: Final = "previous"
_POINTERS: Final = ("", "/")
_TOLD: Final = 20
_EXPLAINED: Final = 5
_MEND: Final = "Mend what 'issues' names."
_DEPTH: Final = 16  # of metatools in metatools; fewer may run in each other


class Planned(InvokeOptions, frozen=True, kw_only=True, gc=False):
    """A step that can run, and how: with arguments that are checked already, if nothing of them comes from another step."""

    refs_resolved: bool = True
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
    _filling: RefResolver | None = None

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
            text = encode_unchecked(step.args)
            tool = self._find(index, step.tool_id, "tool_id")
            if tool is None or tool.wraps or step.use_previous or DOLLAR in text:
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
        return self._subject.registry.available_actions(self._call.profile, action)

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
        found = references(step.args, wrapper) if DOLLAR in text else ()
        self._link(index, found, first)
        if step.use_previous and not first:
            self._add(index, "use_previous", "no_previous", "There is no step before it.")
        if tool is None:
            return None
        is_linked = bool(found) or step.use_previous
        args = step.args
        fills = wrapper is None or (is_linked and not holds_steps(args, wrapper))  # what steps of its own refer to is a chain's affair
        if not self._call.options.refs_resolved and REF_KEY in text and fills:
            self._filling = resolver = self._filling or self._fill()
            try:
                args = await resolver.resolve(args, tool.spec.input_schema)
                step = replace(step, args=args)
            except ToolError as error:
                self._mislead(index, error)
                return None
        filled = fills or self._call.options.refs_resolved
        planned = Planned(index=index, step=step, tool=tool, references=found, refs_resolved=filled, seconds=step.timeout_s)
        if is_linked:
            taken = {reference.at[0] for reference in found}
            if step.use_previous:
                args, taken = {**args, PREVIOUS: None}, {*taken, PREVIOUS}
            self.issues += [_moved(index, issue) for issue in issues_beside(args, tool, taken, repair=self._subject.limits.repair)]
        else:
            try:
                planned = replace(planned, checked=tool.check(encode_unchecked(args)), checked_by=tool)
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
        fill = None if self._call.options.refs_resolved else self._fill
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
            checked = tool.check(encode_unchecked(inner)) if coerced else None
            if checked is None:
                checked, coerced = tool.repair(encode_unchecked(args), issues, enabled=self._subject.limits.repair)
        except ToolError:
            self.issues += [_moved(planned.index, issue) for issue in issues]
            return planned
        return replace(planned, checked=checked, checked_by=tool, coerced=coerced)

    def _fill(self) -> RefResolver:
        return self._subject.dispatcher.results.resolver(self._call.caller.owner, self._call.profile)

    def _add(self, index: int, field: str, code: str, message: str) -> None:
        self.issues.append(Issue(f"steps.{index}.{field}", code, message))


def _unknown(step: str) -> tuple[str, str]:
    return "unknown_step", f"There is no step {step}."


def _moved(index: int, issue: Issue, at: Place = ()) -> Issue:
    field = ".".join(("steps", str(index), "args", *map(str, at), issue.field))
    return Issue(field, issue.code, issue.message, issue.expected, issue.did_you_mean)
