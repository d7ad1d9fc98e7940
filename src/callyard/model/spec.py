"""Specs: tools, resources and prompts as data, and the checks that a spec must pass to be published.

It must not know handlers; those are in `dispatch/tool` and `dispatch/resource`.
"""

import re
from collections.abc import Callable
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal, cast

import msgspec

from callyard._internal.converted import Converted, Converters, as_tuple
from callyard._internal.logfmt import is_tool_name
from callyard.model.elicitation import Confirmation, check_form
from callyard.model.envelope import Digested, encode
from callyard.model.errors import CODES, CodeName
from callyard.model.limits import Limits
from callyard.model.schema import SchemaError, check_schema
from callyard.model.uri_template import check_uri

__all__ = [
    "UNKNOWN_TOOL",
    "Annotations",
    "AnySpec",
    "EvalRule",
    "Example",
    "Kind",
    "LazySchema",
    "LazySpec",
    "Metatool",
    "Operation",
    "PromptArgument",
    "PromptSpec",
    "PublishError",
    "Reason",
    "ResourceSpec",
    "ToolSpec",
    "check_prompt_spec",
    "check_resource_spec",
    "check_spec",
    "unknown_spec",
    "with_codes",
]


Kind = Literal["tool", "resource", "prompt"]
"""Kinds of things that a provider publishes."""


class PublishError(ValueError):
    """A tool, resource or prompt cannot be published; the message names it and the fault."""


class Operation(StrEnum):
    """What kind of effect a tool has."""

    QUERY = "query"
    COMMAND = "command"
    DESTROY = "destroy"
    EVAL = "eval"


_OPERATIONS: Final = frozenset(Operation)


class Example(msgspec.Struct, frozen=True, omit_defaults=True):
    """One example of a valid call."""

    arguments: dict[str, Any]
    title: str = ""
    result: Any = None


class Reason(msgspec.Struct, frozen=True):
    """A tool's own reason for failures: the code, and the keys of its details."""

    code: CodeName = "state_error"
    details: tuple[str, ...] = ()


_SPELLINGS: Final = {
    "python": "py python3 python2 cpython ipython",
    "javascript": "js ecmascript node nodejs node.js es6 mjs cjs jsx typescript ts",
    "sql": "postgres postgresql psql pgsql plpgsql mysql mariadb sqlite sqlite3 tsql t-sql mssql oracle plsql "
    "duckdb bigquery snowflake",
}
_LANGUAGES: Final = {
    spelling: language for language, others in _SPELLINGS.items() for spelling in (language, *others.split())
}
"""The languages that code is checked in, by each of their usual spellings."""


def _language(spelling: object) -> str:
    written = str(spelling).strip().lower()
    return _LANGUAGES.get(written, written)


class EvalRule(msgspec.Struct, frozen=True, metaclass=Converted):
    """Which argument of an eval tool is the payload, its language, and which rules apply.

    `host` is for code that runs in this process or in an application; `sandbox` for a runtime with rules of its own.
    """

    converters: ClassVar[Converters] = {"imports": as_tuple, "language": _language}
    argument: str
    language: str = "python"
    """`python`, `javascript` or `sql`, or a usual spelling such as `py`, `js` or `postgres`.

    A sandbox may have others.
    """
    rules: Literal["host", "sandbox"] = "host"
    imports: tuple[str, ...] = ()
    """Blocked modules that Python code may import all the same."""


class Annotations(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Hints for clients about a tool's effects; always explicit."""

    read_only_hint: bool
    destructive_hint: bool
    idempotent_hint: bool
    open_world_hint: bool


class Metatool(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a profile must know of a metatool to list and to deny it; profiles know no metatool by its name."""

    use: Literal["find", "call", "follow", "other"] = "other"
    """What it does with tools that are not listed; a short list needs one that finds them and one that calls them.

    One that follows jobs is listed where a tool is always a job.
    """
    alias_of: str = ""
    """Metatool that it is an alias of; a rule that denies that one denies the alias."""
    alias: str = ""
    """Its own alias; a rule that denies exactly this name denies the metatool."""


def _operation(name: object) -> object:
    """Return an operation by its name; another name stays, and is refused when the tool is published."""
    return Operation(name) if isinstance(name, str) and name in _OPERATIONS else name


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=Converted):
    """A tool as data."""

    converters: ClassVar[Converters] = {"operation": _operation, "tags": as_tuple, "aliases": as_tuple}
    name: str
    description: str
    input_schema: dict[str, Any]
    operation: Operation
    title: str | None = None
    output_schema: dict[str, Any] | None = None
    operation_assumed: bool = False
    unsettled: Literal["ask", "allow", "default"] | None = None
    """What happens to calls of an upstream's tool while nobody has said what it does, else None.

    By default a yard that asks before `destroy` asks about it, too.
    """
    eval: EvalRule | None = None
    requires_eval: bool = False
    eval_target: str = ""
    """Where the code runs, such as `page`, so that a yard can allow code there alone; empty is this process."""
    session: Literal["none", "optional", "required"] = "none"
    source: str = ""
    tags: tuple[str, ...] = ()
    examples: tuple[Example, ...] = ()
    reasons: dict[str, Reason] = {}
    confirmation: Confirmation | None = None
    timeout: float | None = None
    timeout_hint: str | None = None
    serial: bool = False
    priority: Literal["interactive", "background"] = "interactive"
    idempotent: bool = False
    job: Literal["optional", "always", "required"] | None = None
    """Whether calls become jobs: for clients with MCP's tasks, always, or only for such clients."""
    local: bool = False
    """Whether its work is bound to the machine of its process, so that no worker elsewhere runs its jobs."""
    aliases: tuple[str, ...] = ()
    deprecated: str | None = None
    shape: Literal["envelope", "plain"] = "envelope"
    annotations: Annotations | None = None
    extra: dict[str, Any] = {}
    """Further fields for lists in MCP's format, such as icons."""
    metatool: Metatool = Metatool()
    """Set by the provider of metatools, ignored for other tools."""
    kind: Kind = "tool"
    """What the call is for: reading a resource or making a prompt has a spec, too, which is never listed as a tool."""

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return the names that the rules of a profile match."""
        return (self.name, *self.aliases)

    @property
    def effect(self) -> str:
        """Return the operation in a word for people: 'unknown' while nobody has said it."""
        return str(self.operation) if self.unsettled is None else "unknown"

    @property
    def outline(self) -> dict[str, Any]:
        """Return the input schema, as far as it is known without making it."""
        return self.input_schema

    @property
    def described_output(self) -> dict[str, Any] | None:
        """Return the schema of results that descriptions show, whether results are checked against it or not."""
        return self.output_schema

    @property
    def summary(self) -> str:
        """Return the first line of the description."""
        return self.description.split("\n", 1)[0]

    @property
    def safe(self) -> bool:
        """Return whether running the tool twice does no harm."""
        return self.idempotent or self.operation is Operation.QUERY

    def codes(self) -> list[CodeName]:
        """Return the codes that the tool declares for its failures."""
        codes = {reason.code for reason in self.reasons.values()}
        if self.session != "none":
            codes.add("not_running")
        if self.operation is Operation.EVAL:
            codes.add("eval_blocked")
        return [code for code in CODES if code in codes]

    def hints(self) -> Annotations:
        """Return the annotations, by default those that follow from the operation."""
        if self.annotations is not None:
            return self.annotations
        query = self.operation is Operation.QUERY
        return Annotations(
            read_only_hint=query,
            destructive_hint=self.operation in {Operation.DESTROY, Operation.EVAL},
            idempotent_hint=self.safe,
            open_world_hint=False,
        )


class LazySchema(Digested):
    """An input schema that is made when somebody first looks at it; its outline and a digest are known before."""

    __slots__ = ("_made", "_make", "_make_output", "_output", "fault", "outline")

    def __init__(
        self,
        make: Callable[[], dict[str, Any]],
        *,
        outline: dict[str, Any],
        digest: str,
        make_output: Callable[[], dict[str, Any] | None] = lambda: None,
        fault: str = "",
    ) -> None:
        super().__init__(digest)
        self.outline = outline
        """The names of the arguments and their descriptions, for search."""
        self.fault = fault
        """Why the tool cannot be published; empty if it can."""
        self._make = make
        self._make_output = make_output
        self._made: dict[str, Any] | None = None
        self._output: tuple[dict[str, Any] | None] | None = None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazySchema) and (self.digest, self.fault) == (other.digest, other.fault)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def is_made(self) -> bool:
        """Return whether somebody looked at it."""
        return self._made is not None

    def made(self) -> dict[str, Any]:
        """Return the schema."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def output(self) -> dict[str, Any] | None:
        """Return the schema of results, which nothing is checked against."""
        if self._output is None:
            self._output = (self._make_output(),)
        return self._output[0]


class LazySpec(ToolSpec, frozen=True, kw_only=True, omit_defaults=True):
    """The spec of a tool whose input schema is made when first looked at; JSON of it has the digest instead."""

    # the field of the base holds the lazy schema, and this is what others read
    input_schema: ClassVar = property(lambda self: _lazy(self).made())  # type: ignore[assignment] - see above

    @classmethod
    def of(cls, schema: LazySchema, **fields: Any) -> "LazySpec":
        """Return a spec with this lazy schema and these other fields."""
        return cls(input_schema=cast("dict[str, Any]", schema), **fields)

    @property
    def lazy(self) -> LazySchema:
        """Return the schema that may not be made yet."""
        return _lazy(self)

    @property
    def outline(self) -> dict[str, Any]:
        """Return the names and descriptions of the arguments."""
        return _lazy(self).outline

    @property
    def described_output(self) -> dict[str, Any] | None:
        """Return the schema of results."""
        return _lazy(self).output()


def _lazy(spec: ToolSpec) -> LazySchema:
    return cast("Any", ToolSpec).input_schema.__get__(spec)


class ResourceSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=Converted):
    """A resource as data; with variables in its URI it is a resource template."""

    converters: ClassVar[Converters] = {"tags": as_tuple}
    uri: str
    name: str
    title: str | None = None
    description: str = ""
    mime_type: str | None = None
    size: int | None = None
    source: str = ""
    tags: tuple[str, ...] = ()
    annotations: dict[str, Any] | None = None
    """Audience and priority, in MCP's format."""
    extra: dict[str, Any] = {}
    """Further fields for lists, in MCP's format."""

    @property
    def is_template(self) -> bool:
        """Return whether its URI has variables."""
        return "{" in self.uri

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return the names that the rules of a profile match."""
        return (self.name, self.uri)


class PromptArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """One argument of a prompt; on the wire its value is a text."""

    name: str
    description: str = ""
    required: bool = False
    title: str | None = None


class PromptSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, metaclass=Converted):
    """A prompt as data."""

    converters: ClassVar[Converters] = {"tags": as_tuple}
    name: str
    title: str | None = None
    description: str = ""
    arguments: tuple[PromptArgument, ...] = ()
    source: str = ""
    tags: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    """Further fields for lists, in MCP's format."""

    @property
    def known_as(self) -> tuple[str, ...]:
        """Return the names that the rules of a profile match."""
        return (self.name,)


AnySpec = ToolSpec | ResourceSpec | PromptSpec
UNKNOWN_TOOL: Final = ToolSpec(name="?", description="?", input_schema={}, operation=Operation.QUERY)
"""Spec of a call until its tool is found."""


def unknown_spec(kind: Kind, name: str) -> ToolSpec:
    """Return the spec of a call to an unknown name; a name that is unsafe in logs becomes '?'."""
    return msgspec.structs.replace(UNKNOWN_TOOL, kind=kind, name=name if is_tool_name(str(name)) else "?")


def with_codes(spec: ToolSpec) -> ToolSpec:
    """Return the spec with its less common codes appended to the description."""
    codes = [code for code in spec.codes() if not CODES[code].common]
    return (
        msgspec.structs.replace(spec, description=f"{spec.description}\n\nMay answer with: {', '.join(codes)}.")
        if codes
        else spec
    )


_NAME: Final = re.compile(r"[a-z][a-z0-9_]*\Z")
_UPSTREAM_NAME: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_MAX_EXAMPLES: Final = 5


def _fault(spec: ToolSpec, text: str) -> PublishError:
    return PublishError(f"Tool '{spec.name}' {text}")


def check_spec(spec: ToolSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a tool that can be checked before its first call.

    Raises:
        PublishError: A check failed.
    """
    if spec.operation not in _OPERATIONS:
        operations = ", ".join(f"'{operation}'" for operation in Operation)
        raise _fault(spec, f"has the operation '{spec.operation}', which is none of {operations}.")
    _check_schemas(spec, limits, foreign=foreign)
    if spec.kind != "tool":
        raise _fault(spec, f"says that it is a {spec.kind}.")
    for name in spec.known_as:
        _check_name("tool", name, limits, foreign=foreign)
    if not spec.description.strip():
        raise _fault(spec, "has no description.")
    _check_eval(spec)
    try:
        if spec.confirmation is not None:
            check_form(spec.confirmation.schema, limits)
    except SchemaError as error:
        raise _fault(spec, f"has a question that cannot be asked: {error}.") from error
    if len(spec.examples) > _MAX_EXAMPLES:
        raise _fault(spec, f"has {len(spec.examples)} examples; at most {_MAX_EXAMPLES} are shown.")
    if spec.timeout is not None and not 0 <= spec.timeout < float("inf"):
        raise _fault(spec, f"has the timeout {spec.timeout}, which is no number of seconds.")


def check_resource_spec(spec: ResourceSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a resource or template that can be checked before it is read.

    Raises:
        PublishError: A check failed.
    """
    _check_types(spec, "resource")
    try:
        check_uri(spec.uri)
    except ValueError as error:
        raise PublishError(
            f"Resource '{spec.name}' has the URI '{spec.uri}', which cannot be served: {error}."
        ) from error
    if not spec.name.strip():
        raise PublishError(f"The resource '{spec.uri}' has no name.")
    if not foreign:  # resources of an upstream are found by URI, so any name will do
        _check_name("resource", spec.name, limits, foreign=False)


def check_prompt_spec(spec: PromptSpec, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a prompt that can be checked before it is used.

    Raises:
        PublishError: A check failed.
    """
    _check_types(spec, "prompt")
    _check_name("prompt", spec.name, limits, foreign=foreign)
    names = [argument.name for argument in spec.arguments]
    if len(set(names)) < len(names):
        raise PublishError(f"Prompt '{spec.name}' has two arguments with the same name.")


def _check_types(spec: ToolSpec | ResourceSpec | PromptSpec, kind: Kind) -> None:
    """Check every field against its type; msgspec does that only for decoded structs."""
    try:
        text = encode(spec)
    except TypeError as error:
        raise PublishError(f"{kind.capitalize()} '{spec.name}' cannot be written as JSON: {error}") from error
    try:
        msgspec.json.decode(text, type=type(spec))
    except msgspec.ValidationError as error:
        raise PublishError(f"{kind.capitalize()} '{spec.name}' has a wrong spec: {str(error).rstrip('.')}.") from error


def _check_name(kind: Kind, name: str, limits: Limits, *, foreign: bool) -> None:
    if not (_UPSTREAM_NAME if foreign else _NAME).match(name):
        raise PublishError(
            f"{kind.capitalize()} '{name}' must be named with small letters, digits and '_', a letter first."
        )
    if len(name) > limits.name_characters:
        most = f"at most {limits.name_characters} are published"
        raise PublishError(f"{kind.capitalize()} '{name}' has a name of {len(name)} characters; {most}.")


def _check_schemas(spec: ToolSpec, limits: Limits, *, foreign: bool) -> None:
    if isinstance(spec, LazySpec):  # to make and check its schema now would cost what laziness saves
        if spec.lazy.fault:
            raise _fault(spec, spec.lazy.fault)
        return
    if not isinstance(cast("object", spec.input_schema), dict):
        raise _fault(spec, "has an input schema that is no object.")
    for which, schema in (("input", spec.input_schema), ("output", spec.output_schema)):
        if schema is None:
            continue
        try:
            check_schema(schema, max_bytes=limits.schema_bytes)
        except SchemaError as error:
            raise _fault(spec, f"has a wrong {which} schema: {error}.") from error
    if spec.input_schema.get("type") != "object":
        raise _fault(spec, "has an input schema that is not of type 'object'.")
    if not foreign and spec.input_schema.get("additionalProperties") is not False:
        raise _fault(spec, "has an input schema without 'additionalProperties: false'.")
    _check_types(spec, "tool")


def _check_eval(spec: ToolSpec) -> None:
    if spec.eval_target and not (spec.requires_eval and _NAME.match(spec.eval_target)):
        raise _fault(spec, "has an eval target, so it must require the flag, and the target must be one small word.")
    if spec.operation is not Operation.EVAL:
        if spec.eval is not None:
            raise _fault(spec, "has an eval rule, so its operation must be 'eval'.")
        return
    if spec.eval is None:
        raise _fault(spec, "has the operation 'eval' and must name the argument that holds the code.")
    if spec.eval.rules != "sandbox" and spec.eval.language not in _SPELLINGS:
        known = ", ".join(f"'{language}'" for language in _SPELLINGS)
        raise _fault(spec, f"has the language '{spec.eval.language}', which cannot be checked. Known: {known}.")
    if not spec.requires_eval and spec.eval.rules != "sandbox":  # a sandbox protects the host in another way
        raise _fault(spec, "has the operation 'eval', so it must require the flag for it.")
    guarded = spec.input_schema.get("properties", {}).get(spec.eval.argument)
    if guarded is None or guarded.get("type") != "string":
        raise _fault(spec, f"has no argument '{spec.eval.argument}' of type 'string' to guard.")
