"""Calls that look like an approved or allowed one and are another: in every way in, none of them runs."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
import pytest
from backends import require
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_serializer
from table_tests import every_row

from callyard import Call, Caller, Limits, RuntimeSettings, ToolError, ToolSpec, Yard, prompt, resource, tool
from callyard.dispatch.tool import Tool
from callyard.policy.approvals import Approvals
from callyard.policy.settings import Predicate, Rule
from callyard.providers.upstream.catalogue import folder_of
from callyard.providers.upstream.pins import Pins
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import Reshape, UpstreamSettings

if TYPE_CHECKING:
    from tests.providers.upstream.scripted import HANDSHAKE, ScriptedLink
else:
    from scripted import HANDSHAKE, ScriptedLink  # found by the path that pytest is given

Arguments = dict[str, Any]
LIMITS = Limits(approval_hold_s=0.001, jobs=10_000)
SANDBOX = RuntimeSettings(enabled=True, backend="bubblewrap")
PROGRAM = """
try:
    await call_tool(inputs["name"], inputs["args"])
except ToolError:
    pass
"""


def rule(decision: Literal["allow", "ask", "deny"], pointer: str = "", **test: Any) -> Rule:
    """Return a rule about the tool, perhaps for one value of an argument."""
    by = test.pop("by", "anyone")
    when = (Predicate(pointer=pointer, **test),) if test else ()
    return Rule(decision=decision, tools=("wipe", "touch", "files", "greet"), when=when, by=by)


ASK, BY_OPERATOR = rule("ask"), rule("ask", by="operator")


class Dodge(NamedTuple):
    """A call that must not run, and what a person approved before."""

    attempt: Arguments | str
    """Its arguments, as data or as JSON."""
    rules: tuple[Rule, ...] = (ASK,)
    approved: Arguments | None = None
    later: tuple[Rule, ...] | None = None
    """The rules at the time of the attempt, if they changed."""
    by: str = "user:test"
    grants: bool = False
    """Whether what was approved is granted for any arguments, too."""
    runs: bool = True
    """Whether it runs without rules."""


def denied(attempt: Arguments | str, pointer: str, value: Any = None, **test: Any) -> Dodge:
    """Return an attempt that a rule denies by a value that it hides."""
    return Dodge(attempt, (rule("deny", pointer, **(test or {"equals": value})),))


MODELS: dict[str, Dodge] = {
    "an excluded field": Dodge({"what": {"path": "/etc"}}, approved={"what": {"path": "/srv"}}),
    "a secret": Dodge({"what": {"secret": "b"}}, approved={"what": {"secret": "a"}}),
    "a serializer": Dodge({"what": {"target": "b"}}, approved={"what": {"target": "a"}}),
    "a secret that a rule denies": denied({"what": {"secret": "b"}}, "/what/secret", "b"),
    "another name of a field": denied({"what": {"goal": "b"}}, "/what/target", "b"),
    "the field's own name": denied({"what": {"shown": "b"}}, "/what/target", "b"),
    "another name of an argument": denied({"what": {}, "recipient": "eve"}, "/to", "eve"),
    "the published name": denied({"what": {}, "to": "eve"}, "/receiver", "eve"),
    "a nested default": denied({"what": {}}, "/what/path", "none"),
    "a default": denied({"what": {}}, "/count", 1),
    "an excluded field that no rule allows": Dodge(
        {"what": {"path": "/etc"}}, (rule("allow", "/what/shown", equals="the same"), rule("deny"))
    ),
}
SCHEMAS: dict[str, Dodge] = {
    "true for 1": Dodge({"tags": [True]}, approved={"tags": [1]}),
    "1 for true": Dodge({"tags": [1]}, approved={"tags": [True]}),
    "false for 0": Dodge({"tags": {"a": False}}, approved={"tags": {"a": 0}}),
    "0 for no number": Dodge({"tags": None}, approved={"tags": 0}),
    "a whole float": denied({"tags": 1.0}, "/tags", 1),
    "a large float": denied('{"tags": 1e16}', "/tags", 10**16),
    "a key twice": denied('{"tags": 1, "tags": 2}', "/tags", 2),
    "an escape": denied('{"mode": "\\u0066orce"}', "/mode", "force"),
    "a default left out": denied({}, "/mode", "force"),
    "a nested default left out": denied({"to": {}}, "/to/host", "prod"),
    "a default beside a reference": denied({"via": {}}, "/via/mode", "force"),
    "a default of a condition": denied({"tags": "all"}, "/deep", equals=True),
    "a default that only the text has": Dodge({}, (rule("allow", "/mode", equals="soft"), rule("deny"))),
    "a line break": denied({"mode": "rm\nx"}, "/mode", matches="rm.*"),
    "a carriage return": denied({"mode": "rm\rx"}, "/mode", matches="rm.*"),
    "a separator of lines": denied({"mode": "rm\u2028x"}, "/mode", matches="rm.*"),
    "a second line that no rule allows": Dodge(
        {"mode": "soft\nforce"}, (rule("allow", "/mode", matches="soft"), rule("deny"))
    ),
    "an empty last line": Dodge({"mode": "soft\n"}, (rule("allow", "/mode", matches="soft"), rule("deny"))),
    "text for a number": denied({"tags": "9"}, "/tags", less_than=5),
    "what a client approved": Dodge({}, approved={}, by="client:x", later=(BY_OPERATOR,)),
    "what a client's grant covers": Dodge({"tags": 2}, approved={}, by="client:x", grants=True, later=(BY_OPERATOR,)),
    "what a person approved before a rule denied": Dodge({}, approved={}, later=(rule("deny"),)),
}
OF_UPSTREAMS: dict[str, Dodge] = {
    "a hidden argument": Dodge({"force": False}, (), runs=False),
    "a fixed argument": Dodge({"limit": 9}, (), runs=False),
    "a fixed value": denied({}, "/limit", 3),
    "the default of a hidden argument": denied({}, "/force", equals=True),
}
UNSETTLED: dict[str, Dodge] = {
    "nobody said what it does": Dodge({}, ()),
    "a rule that allows what changes": Dodge({}, (Rule(decision="allow", operations=("command",)),)),  # pyright: ignore[reportArgumentType] - converted
    "a rule that allows what reads": Dodge({}, (Rule(decision="allow", operations=("query",)),)),  # pyright: ignore[reportArgumentType] - converted
    "another argument": Dodge({"name": "b"}, (), approved={"name": "a"}),
}


class Hidden(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    path: str = Field("none", exclude=True)
    secret: SecretStr = SecretStr("none")
    shown: str = Field("none", validation_alias=AliasChoices("target", "goal"))

    @field_serializer("shown")
    def never(self, _: str) -> str:
        return "the same"


HOST = {"type": "object", "properties": {"host": {"type": "string", "default": "prod"}}}
SCHEMA: Arguments = {
    "type": "object",
    "properties": {
        "mode": {"type": "string", "default": "force"},
        "tags": {},
        "to": HOST,
        "via": {"$ref": "#/$defs/any", "properties": {"mode": {"default": "force"}}},
        "deep": {"type": "boolean"},
    },
    "if": {"properties": {"tags": {"const": "all"}}, "required": ["tags"]},
    "then": {"properties": {"deep": {"default": True}}},
    "$defs": {"any": {"type": "object"}},
    "additionalProperties": False,
}
OPEN: Arguments = {
    "type": "object",
    "properties": {"force": {"type": "boolean", "default": True}, "limit": {"type": "integer"}, "tags": {}},
}


class Home:
    """Where the tool comes from, and what of it ran."""

    def __init__(self, folder: Path, family: str) -> None:
        self.ran: list[Any] = []
        self.folder = folder
        self.family = family

    def tools(self) -> list[Any]:
        if self.family == "models":

            @tool(operation="destroy")
            def wipe(
                what: Hidden,
                receiver: Annotated[str, Field(validation_alias=AliasChoices("to", "recipient"))] = "bob",
                count: int = 1,
            ) -> None:
                """Delete something."""
                self.ran.append((what, receiver, count))

            return [wipe]

        async def run(call: Call) -> None:
            self.ran.append(call.arguments)

        spec = ToolSpec(name="wipe", description="Delete.", input_schema=SCHEMA, operation="destroy")  # pyright: ignore[reportArgumentType] - converted
        return [Tool.of(spec, run, may_return_none=True)]

    def upstream(self) -> Upstream:
        schema = OPEN if self.family in {"of upstreams", "unsettled"} else SCHEMA
        hints = {"annotations": {"destructiveHint": True}} if self.family != "unsettled" else {}
        listed = {"name": "wipe", "description": "Delete.", "inputSchema": schema, **hints}

        def call(params: Arguments) -> Arguments:
            self.ran.append(params["arguments"])
            return {"content": []}

        script = {**HANDSHAKE, "tools/list": {"tools": [listed]}, "tools/call": call, **self.readables()}
        reshape = {"wipe": Reshape(hidden=("force",), fixed={"limit": 3})} if self.family == "of upstreams" else {}
        return Upstream(
            "gh",
            UpstreamSettings(command="gh", prefix="", reshape=reshape),
            link=lambda: ScriptedLink(script),
            folder=folder_of(self.folder, "gh"),
            pins=Pins(self.folder / "callyard.lock", state=self.folder),
        )

    def readables(self) -> Arguments:
        """Return the script of an upstream with a resource, a template and a prompt, which completes arguments."""

        def note(answer: Arguments) -> Callable[[Arguments], Arguments]:
            def run(params: Arguments) -> Arguments:
                self.ran.append(params)
                return answer

            return run

        return {
            "resources/list": {"resources": [{"uri": "keys://all", "name": "keys"}]},
            "resources/templates/list": {"resourceTemplates": [{"uriTemplate": "files://{path}", "name": "files"}]},
            "prompts/list": {"prompts": [{"name": "greet", "arguments": [{"name": "name"}]}]},
            "resources/read": note({"contents": []}),
            "prompts/get": note({"messages": []}),
            "completion/complete": note({"completion": {"values": ["a"]}}),
        }

    def own_readables(self) -> dict[str, Any]:
        def names(value: str, _: dict[str, str]) -> list[str]:
            self.ran.append(value)
            return ["a"]

        @resource("files://{path}", complete={"path": names})
        def files(path: str) -> str:
            """Return a file."""
            self.ran.append(path)
            return path

        @resource("keys://all")
        def keys() -> str:
            """Return the keys."""
            self.ran.append("keys")
            return "keys"

        @prompt(complete={"name": names})
        def greet(name: str = "") -> str:
            """Greet."""
            self.ran.append(name)
            return name

        return {"resources": [files, keys], "prompts": [greet]}


HOMES: dict[str, Callable[[Home], dict[str, Any]]] = {
    "own": lambda home: {"tools": home.tools()},
    "mounted": lambda home: {"providers": [Yard("inner", tools=home.tools())]},
    "upstream": lambda home: {"providers": [home.upstream()]},
    "mounted upstream": lambda home: {"providers": [Yard("inner", providers=[home.upstream()])]},
}
WAYS = ("direct", "run_tool", "chain", "job", "code")
FAMILIES = [
    *(("models", home, name, dodge) for home in ("own", "mounted") for name, dodge in MODELS.items()),
    *(("schemas", home, name, dodge) for home in HOMES for name, dodge in SCHEMAS.items()),
    *(
        (family, home, name, dodge)
        for family, dodges in (("of upstreams", OF_UPSTREAMS), ("unsettled", UNSETTLED))
        for home in ("upstream", "mounted upstream")
        for name, dodge in dodges.items()
    ),
]


@asynccontextmanager
async def target(home: Home, where: str, *, rules: tuple[Rule, ...]) -> AsyncGenerator[Yard]:
    yard = Yard(rules=rules, limits=LIMITS, runtime=SANDBOX, **HOMES[where](home))
    if home.family == "unsettled":
        yard.ask_before_destroy()
    async with yard:
        await yard.providers.wait_ready(60)
        for provider in yard.providers:
            if isinstance(provider, Yard):
                await provider.providers.wait_ready(60)
        yield yard


async def attempt(yard: Yard, way: str, arguments: Arguments | str, caller: Caller) -> None:
    """Make a call in one way, and wait for what it started."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    step = f'{{"tool_id": "wipe", "args": {text}}}'
    calls = {
        "direct": ("wipe", text),
        "run_tool": ("run_tool", step),
        "chain": ("run_chain", f'{{"steps": [{step}]}}'),
        "job": ("run_tool", f'{step[:-1]}, "background": true}}'),
        "code": ("execute_code", f'{{"code": {json.dumps(PROGRAM)}, "inputs": {{"name": "wipe", "args": {text}}}}}'),
    }
    name, whole = calls[way]
    answer = await yard.call(name, msgspec.Raw(whole.encode()), caller=caller)
    data: Any = answer.data
    if isinstance(data, dict) and "job_id" in data:
        await yard.call("wait_job", {"job_id": data["job_id"], "timeout_s": 0.1}, caller=caller)


def approvals_of(yard: Yard) -> Approvals:
    assert yard.gate is not None
    return yard.gate.approvals


async def prepare(yard: Yard, dodge: Dodge, caller: Caller) -> None:
    """Have approved what a person approved before, and change the rules."""
    if dodge.approved is None:
        return
    held = await yard.call("wipe", dodge.approved, caller=caller)
    approval = await approvals_of(yard).decide(held.data["approval_id"], "approve", by=dodge.by)
    if dodge.grants:
        await approvals_of(yard).grant(approval, seconds=60, any_arguments=True, by=dodge.by)


@every_row("family, where, name, dodge", FAMILIES, ids=lambda row: " ".join(row[:3]))
async def test_no_dodge_runs_in_any_way_in(
    family: str, where: str, name: str, dodge: Dodge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    await require("bubblewrap")
    home = Home(tmp_path_factory.mktemp("home"), family)
    async with target(home, where, rules=dodge.rules) as yard:
        for way in WAYS:
            caller = Caller(identity=way)
            if dodge.later is not None and yard.gate is not None:
                yard.gate.use(dodge.rules, always_asks=False)
            await prepare(yard, dodge, caller)
            if dodge.later is not None and yard.gate is not None:
                yard.gate.use(dodge.later, always_asks=False)
            await attempt(yard, way, dodge.attempt, caller)

    assert home.ran == [], name


@every_row("family, where, name, dodge", FAMILIES, ids=lambda row: " ".join(row[:3]))
async def test_without_rules_every_dodge_runs(
    family: str, where: str, name: str, dodge: Dodge, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"), "schemas" if family == "unsettled" else family)
    given = {} if family == "unsettled" else dodge.attempt
    async with target(home, where, rules=()) as yard:
        for way in WAYS[:3]:
            await attempt(yard, way, given, Caller(identity=way))

    assert len(home.ran) == (3 if dodge.runs else 0), name


@every_row("where", HOMES)
async def test_the_judged_and_approved_arguments_are_those_that_run(
    where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"), "schemas")
    given: Arguments = {"to": {}, "via": {}, "tags": [1.0]}
    whole = {"to": {"host": "prod"}, "via": {"mode": "force"}, "tags": [1], "mode": "force"}
    async with target(home, where, rules=(ASK,)) as yard:
        held = await yard.call("wipe", given)
        (approval,) = await approvals_of(yard).pending()
        await approvals_of(yard).decide(held.data["approval_id"], "approve", by="user:test")
        await yard.call("wipe", given)

    assert json.loads(approval.card.arguments) == whole
    assert home.ran == [whole]


READABLE_HOMES: dict[str, Callable[[Home], dict[str, Any]]] = {
    "own": lambda home: home.own_readables(),
    "mounted": lambda home: {"providers": [Yard("inner", **home.own_readables())]},
    "upstream": HOMES["upstream"],
    "mounted upstream": HOMES["mounted upstream"],
}
READABLE_RULES = {
    "ask": (Rule(decision="ask", tools=("files", "keys", "greet")),),
    "deny": (Rule(decision="deny", tools=("files", "keys", "greet")),),
    "an operator": (Rule(decision="ask", tools=("files", "keys", "greet"), by="operator"),),
    "some arguments": (
        rule("deny", "/path", matches=".*"),
        rule("deny", "/name", matches=".*"),
        Rule(decision="deny", tools=("keys",)),
    ),
}


@asynccontextmanager
async def readable(home: Home, where: str, rules: tuple[Rule, ...]) -> AsyncGenerator[Yard]:
    async with Yard(rules=rules, limits=LIMITS, **READABLE_HOMES[where](home)) as yard:
        await yard.providers.wait_ready(60)
        for provider in yard.providers:
            if isinstance(provider, Yard):
                await provider.providers.wait_ready(60)
        yield yard


async def complete_all(yard: Yard) -> int:
    """Ask for completions of every argument, and return how many were refused."""
    refused = 0
    kinds: list[tuple[Literal["prompt", "resource"], str, str]] = [
        ("prompt", "greet", "name"),
        ("resource", "files://{path}", "path"),
    ]
    for kind, name, argument in kinds:
        try:
            await yard.complete(kind, name, argument=argument, value="a")
        except ToolError as error:
            refused += error.code == "permission_denied"
    return refused


@every_row("where", READABLE_HOMES)
@every_row("rules", READABLE_RULES.values(), ids=READABLE_RULES)
async def test_no_resource_or_prompt_is_read_or_completed_where_a_rule_asks_or_denies(
    where: str, rules: tuple[Rule, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"), "schemas")
    async with readable(home, where, rules) as yard:
        for uri in ("files://a", "keys://all", "files://%61", "files://a%00", "FILES://a"):
            await yard.read(uri)
        for arguments in ({"name": "a"}, {"name": "a", "NAME": "b"}, {"name": ""}):
            await yard.prompt("greet", arguments)
        refused = await complete_all(yard)

    assert home.ran == []
    assert refused == 2


@every_row("where", READABLE_HOMES)
async def test_an_approval_of_one_resource_or_prompt_is_spent_on_no_other(
    where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"), "schemas")
    async with readable(home, where, READABLE_RULES["ask"]) as yard:
        await yard.read("files://a")
        await yard.prompt("greet", {"name": "a"})
        for approval in await approvals_of(yard).pending():
            await approvals_of(yard).decide(approval.id, "approve", by="user:test")
        for uri in ("files://b", "files://A", "files://a ", "keys://all", "files://%61", "files://a/../a"):
            await yard.read(uri)
        for arguments in ({"name": "b"}, {"name": "A"}, {}, {"name": "a "}):
            await yard.prompt("greet", arguments)
        await complete_all(yard)
        assert home.ran == []
        await yard.read("files://a")
        await yard.prompt("greet", {"name": "a"})

    assert len(home.ran) == 2


@every_row("where", READABLE_HOMES)
async def test_without_rules_resources_and_prompts_are_read_and_completed(
    where: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = Home(tmp_path_factory.mktemp("home"), "schemas")
    async with readable(home, where, ()) as yard:
        await yard.read("files://a")
        await yard.read("keys://all")
        await yard.prompt("greet", {"name": "a"})
        refused = await complete_all(yard)

    assert len(home.ran) == 5
    assert refused == 0
