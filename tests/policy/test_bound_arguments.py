"""A person approves exactly what runs: arguments are judged, shown, bound and parsed as one JSON text."""

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, SecretStr, field_serializer
from table_tests import every_row

from callyard import Call, Caller, Envelope, Limits, Operation, ToolError, ToolSpec, Yard, prompt, resource, tool
from callyard.dispatch.arguments import with_defaults
from callyard.dispatch.call import Handler
from callyard.dispatch.results import at_pointer
from callyard.dispatch.tool import Tool
from callyard.policy.approvals import Approval, Approvals
from callyard.policy.settings import Predicate, Rule

LIMITS = Limits(approval_hold_s=0.001, approval_ttl_s=7200)
ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
Arguments = dict[str, Any]
WAYS: dict[str, Callable[[str, Arguments], tuple[str, Arguments]]] = {
    "direct": lambda name, args: (name, args),
    "run_tool": lambda name, args: ("run_tool", {"tool_id": name, "args": args}),
    "chain": lambda name, args: ("run_chain", {"steps": [{"tool_id": name, "args": args}]}),
    "job": lambda name, args: ("run_tool", {"tool_id": name, "args": args, "background": True}),
}


class Hidden(BaseModel):
    model_config = ConfigDict(populate_by_name=True)

    path: str = Field("none", exclude=True)
    secret: SecretStr = SecretStr("none")
    shown: str = Field("none", validation_alias=AliasChoices("target", "goal"))

    @field_serializer("shown")
    def never(self, _: str) -> str:
        return "the same"


def yard_of(*functions: Any, rules: Any = (ASK,), **options: Any) -> Yard:
    return Yard(tools=functions, rules=rules, limits=LIMITS, **options)


def approvals_of(yard: Yard) -> Approvals:
    assert yard.gate is not None
    return yard.gate.approvals


async def pending(yard: Yard) -> Approval:
    return (await approvals_of(yard).pending())[-1]


async def call(yard: Yard, way: str, name: str, args: Arguments) -> Envelope:
    tool_id, arguments = WAYS[way](name, args)
    answer = await yard.call(tool_id, arguments)
    data: Any = answer.data
    if isinstance(data, dict) and "job_id" in data:
        answer = await yard.call("wait_job", {"job_id": data["job_id"], "timeout_s": 0.01})
    return answer


@every_row(
    ("way", "other"),
    list(
        itertools.product(
            WAYS,
            [
                {"what": {"path": "/etc"}},
                {"what": {"secret": "b"}},
                {"what": {"target": "b"}},
                {"what": {"goal": "b"}},
                {"what": {"path": "/srv", "secret": "a", "target": "c"}},
            ],
        )
    ),
)
async def test_an_approval_is_for_what_the_serialiser_hides_too(way: str, other: Arguments) -> None:
    ran: list[str] = []

    @tool(operation="destroy")
    def wipe(what: Hidden) -> None:
        """Delete something."""
        ran.append(what.path + what.secret.get_secret_value() + what.shown)

    async with yard_of(wipe) as yard:
        allowed = {"what": {"path": "/srv", "secret": "a", "target": "b"}}
        await call(yard, "direct", "wipe", allowed)
        await approvals_of(yard).decide((await pending(yard)).id, "approve", by="user:test")

        await call(yard, way, "wipe", other)
        assert ran == []
        await call(yard, "direct", "wipe", {"what": {"goal": "b", "path": "/srv", "secret": "a"}})
        assert ran == ["/srvab"]


DENIED: list[tuple[str, object, Arguments]] = [
    ("/what/secret", "b", {"what": {"secret": "b"}}),
    ("/what/path", "none", {"what": {}}),
    ("/what/target", "b", {"what": {"goal": "b"}}),
    ("/what/target", "b", {"what": {"shown": "b"}}),
    ("/what/shown", "the same", {"what": {"goal": "b"}}),
    ("/to", "eve", {"to": "eve", "what": {}}),
    ("/to", "eve", {"recipient": "eve", "what": {}}),
    ("/receiver", "eve", {"to": "eve", "what": {}}),
    ("/count", 1, {"what": {}}),
    ("/count", 1, {"what": {}, "count": 1.0}),
    ("/tags", [1], {"what": {}, "tags": [1]}),
]


@every_row(
    ("way", "pointer", "value", "args"),
    [(way, *row) for way in WAYS for row in DENIED],
)
async def test_a_rule_that_denies_sees_every_name_value_and_default(
    way: str, pointer: str, value: object, args: Arguments
) -> None:
    ran: list[object] = []

    @tool
    def send(
        what: Hidden,
        receiver: Annotated[str, Field(validation_alias=AliasChoices("to", "recipient"))] = "bob",
        count: int = 1,
        tags: list[Any] | None = None,
    ) -> None:
        """Send something."""
        ran.append((what, receiver, count, tags))

    rule = Rule(decision="deny", when=(Predicate(pointer=pointer, equals=value),), tools=("send",))
    async with yard_of(send, rules=[rule]) as yard:
        await call(yard, way, "send", args)
        other = await call(yard, way, "send", {"what": {"path": "x", "target": "x"}, "to": "amy", "count": 2})

    if pointer == "/what/shown":  # the serialiser shows the same for all
        assert ran == []
    else:
        assert len(ran) == 1, other
        assert ran[0][1:3] == ("amy", 2)  # pyright: ignore[reportIndexIssue] - a tuple


@every_row(
    ("wanted", "given", "is_same"),
    [
        ([1], [True], False),
        (0, False, False),
        (1, True, False),
        ({"a": 1}, {"a": True}, False),
        (1, 1.0, True),
        (10**16, 1e16, True),
        (2**63, float(2**63), True),
        (2**53 + 1, float(2**53), False),
        ([1.0, {"a": 2}], [1, {"a": 2.0}], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ("1", 1, False),
    ],
)
async def test_a_rule_compares_json_and_not_objects_of_python(wanted: object, given: object, *, is_same: bool) -> None:
    @tool
    def send(value: Any) -> None:
        """Send something."""

    rule = Rule(decision="deny", when=(Predicate(pointer="/value", equals=wanted),), tools=("send",))
    async with yard_of(send, rules=[rule]) as yard:
        answer = await yard.call("send", {"value": given})

    assert answer.success is not is_same


async def test_a_rule_that_allows_must_match_the_text_and_the_checked_values() -> None:
    @tool(operation="destroy")
    def wipe(what: Hidden) -> None:
        """Delete something."""

    allows = [
        Rule(decision="allow", when=(Predicate(pointer="/what/shown", equals="the same"),)),
        Rule(decision="allow", when=(Predicate(pointer="/what/secret", equals="b"),)),
    ]
    for rule in allows:
        async with yard_of(wipe, rules=[rule, ASK]) as yard:
            held = await yard.call("wipe", {"what": {"secret": "b", "target": "x"}})
        assert held.data["status"] == "approval_required"


async def test_the_card_shows_the_text_and_what_the_tool_makes_of_it() -> None:
    @tool(operation="destroy")
    def wipe(what: Hidden, count: int = 3) -> None:
        """Delete something."""

    async with yard_of(wipe) as yard:
        await yard.call("wipe", {"what": {"path": "/etc", "goal": "b"}})
        card = (await pending(yard)).card

    shown, checked = json.loads(card.arguments), json.loads(card.checked)
    assert shown["what"]["path"] == "/etc"
    assert shown["what"]["target"] == "b"
    assert shown["count"] == 3
    assert checked["what"]["shown"] == "the same"


async def test_the_card_shows_simple_arguments_once() -> None:
    @tool(operation="destroy")
    def wipe(name: str, ratio: float = 1.0, limit: int | None = None) -> None:
        """Delete something."""

    async with yard_of(wipe) as yard:
        await yard.call("wipe", {"name": "a"})
        card = (await pending(yard)).card

    assert json.loads(card.arguments) == {"name": "a", "ratio": 1, "limit": None}
    assert card.checked == ""


@dataclass
class Order:
    name: str
    number: int = field(default_factory=itertools.count(100).__next__)


@every_row("way", ["direct", "run_tool", "chain"])
async def test_a_default_factory_runs_once_and_its_value_is_approved_and_handed_over(way: str) -> None:
    ran: list[tuple[int, int]] = []
    numbers = itertools.count(1)

    @tool(operation="destroy")
    def wipe(order: Order, key: Annotated[int, Field(default_factory=numbers.__next__)]) -> None:
        """Delete something."""
        ran.append((order.number, key))

    async with yard_of(wipe) as yard:
        await call(yard, way, "wipe", {"order": {"name": "a"}})
        asked = await pending(yard)
        shown = json.loads(asked.card.arguments)
        await approvals_of(yard).decide(asked.id, "approve", by="user:test")
        if not ran:  # a chain goes on by itself
            await call(yard, way, "wipe", {"order": {"name": "a"}})
        for _ in range(100):
            if ran:
                break
            await yard.call("list_jobs", {})

    assert ran == [(shown["order"]["number"], shown["key"])]


async def test_models_still_know_which_fields_were_given() -> None:
    given: list[set[str]] = []

    class Patch(BaseModel):
        name: str | None = None
        size: int = 3

    @tool(operation="destroy")
    def change(patch: Patch) -> None:
        """Change something."""
        given.append(patch.model_fields_set)

    async with yard_of(change) as yard:
        await yard.call("change", {"patch": {"name": "a"}})
        assert json.loads((await pending(yard)).card.arguments) == {"patch": {"name": "a", "size": 3}}
        await approvals_of(yard).decide((await pending(yard)).id, "approve", by="user:test")
        await yard.call("change", {"patch": {"name": "a"}})

    assert given == [{"name"}]


@pytest.mark.parametrize("decision", ["ask", "allow"])
async def test_middleware_cannot_change_objects_behind_their_json(decision: str) -> None:
    ran: list[str] = []

    @tool(operation="destroy")
    def wipe(what: Hidden, why: str) -> None:
        """Delete something."""
        ran.append(what.path)

    def change(handler: Handler) -> Handler:
        async def changed(call: Call) -> object:
            if "what" in call.arguments:
                call.arguments["what"].path = "/etc"
            return await handler(call)

        return changed

    allow = Rule(decision="allow", when=(Predicate(pointer="/why", equals="test"),))
    async with yard_of(wipe, rules=[ASK] if decision == "ask" else [allow, ASK], middleware=[change]) as yard:
        await yard.call("wipe", {"what": {"path": "/srv"}, "why": "test"})
        if decision == "ask":
            await approvals_of(yard).decide((await pending(yard)).id, "approve", by="user:test")
            await yard.call("wipe", {"what": {"path": "/srv"}, "why": "test"})

    assert ran == ["/srv"]


async def test_defaults_of_a_json_schema_are_judged_and_handed_over() -> None:
    seen: list[Arguments] = []

    async def send(call: Call) -> None:
        seen.append(dict(call.arguments))

    properties: Arguments = {
        "mode": {"type": "string", "default": "force"},
        "to": {"type": "object", "properties": {"host": {"type": "string", "default": "prod"}}},
    }
    spec = ToolSpec(
        name="send",
        description="Send something.",
        input_schema={"type": "object", "properties": properties, "additionalProperties": False},
        operation=Operation.COMMAND,
    )
    published = Tool.of(spec, send, may_return_none=True)
    for pointer, value in (("/mode", "force"), ("/to/host", "prod")):
        rule = Rule(decision="deny", when=(Predicate(pointer=pointer, equals=value),), tools=("send",))
        async with Yard(tools=[published], rules=[rule], limits=LIMITS) as yard:
            denied = await yard.call("send", {"to": {}})
            assert denied.error is not None
            assert denied.error.code == "permission_denied"
            assert (await yard.call("send", {"mode": "x", "to": {"host": "dev"}})).success
    assert seen == [{"mode": "x", "to": {"host": "dev"}}] * 2


MODE: Arguments = {"type": "object", "properties": {"mode": {"type": "string", "default": "force"}}}
HIDDEN_DEFAULTS: dict[str, tuple[Arguments, Arguments, str]] = {
    "beside a reference": ({"properties": {"to": {"$ref": "#/$defs/any", **MODE}}}, {"to": {}}, "/to/mode"),
    "beside a reference of the whole": ({"$ref": "#/$defs/any", **MODE}, {}, "/mode"),
    "of an anchor": ({"properties": {"to": {"$ref": "#mode"}}}, {"to": {}}, "/to/mode"),
    "of a dynamic reference": ({"properties": {"to": {"$dynamicRef": "#node"}}}, {"to": {}}, "/to/mode"),
    "of an absolute reference": (
        {"$id": "urn:x", "properties": {"to": {"$ref": "urn:x#/$defs/mode"}}},
        {"to": {}},
        "/to/mode",
    ),
    "of a condition": ({"if": {"required": ["a"]}, "then": MODE}, {"a": 1}, "/mode"),
    "of the other case": ({"if": {"required": ["a"]}, "else": MODE}, {}, "/mode"),
    "of another member": ({"dependentSchemas": {"a": MODE}}, {"a": 1}, "/mode"),
    "of a pattern of names": ({"patternProperties": {"^x": MODE}}, {"x1": {}}, "/x1/mode"),
    "of any other member": ({"additionalProperties": MODE}, {"b": {}}, "/b/mode"),
    "in what is included": ({"properties": {"mode": {"allOf": [{"$ref": "#/$defs/text"}]}}}, {}, "/mode"),
    "in a default": ({"properties": {"to": {**MODE, "default": {}}}}, {}, "/to/mode"),
    "in an item": ({"properties": {"to": {"items": MODE}}}, {"to": [{}]}, "/to/0/mode"),
    "in the first item": ({"properties": {"to": {"prefixItems": [MODE]}}}, {"to": [{}]}, "/to/0/mode"),
    "of a choice": ({"oneOf": [{"required": ["b"]}, MODE]}, {}, "/mode"),
}
PARTS = {
    "any": {"type": "object"},
    "mode": {"$anchor": "mode", **MODE},
    "node": {"$dynamicAnchor": "node", **MODE},
    "text": {"default": "force"},
}


@every_row("schema, given, pointer", HIDDEN_DEFAULTS.values(), ids=HIDDEN_DEFAULTS)
def test_a_default_is_found_wherever_a_schema_has_it(schema: Arguments, given: Arguments, pointer: str) -> None:
    filled: Any = with_defaults({"type": "object", "$defs": PARTS, **schema}, given)

    assert at_pointer(filled, pointer) == "force"


@every_row(
    "schema",
    [
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}], "default": {}},
        {"properties": {"a": {"$ref": "#/properties/a"}, "b": {"default": 1}}},
        {"properties": {"a": {"$ref": "#/nowhere"}, "b": {"$ref": "#nowhere"}, "c": {"default": 1}}},
    ],
)
def test_a_schema_that_leads_nowhere_or_back_fills_in_nothing_wrong(schema: Arguments) -> None:
    assert with_defaults({"type": "object", **schema}, {"a": {}})["a"] == {}


def test_a_schema_whose_defaults_never_end_denies() -> None:
    schema: Arguments = {"type": "object", "properties": {name: {"$ref": "#", "default": {}} for name in "abc"}}
    with pytest.raises(ToolError) as failure:
        with_defaults(schema, {})

    assert failure.value.details["reason"] == "not_comparable"


async def test_a_mounted_yard_judges_with_the_defaults_of_the_inner_one() -> None:
    ran: list[str] = []

    @tool
    def send(what: Hidden, mode: str = "force") -> None:
        """Send something."""
        ran.append(mode)

    for pointer, value in (("/mode", "force"), ("/what/path", "none")):
        rule = Rule(decision="deny", when=(Predicate(pointer=pointer, equals=value),), sources=("inner",))
        async with Yard(providers=[Yard("inner", tools=[send])], rules=[rule], limits=LIMITS) as yard:
            denied = await yard.call("send", {"what": {}})
            assert denied.error is not None, (pointer, denied)
            assert denied.error.code == "permission_denied"
            assert (await yard.call("send", {"what": {"path": "x"}, "mode": "soft"})).success
    assert ran == ["soft", "soft"]


async def test_an_approval_of_one_resource_reads_no_other() -> None:
    read: list[str] = []

    @resource("files://{path}")
    def files(path: str) -> str:
        """Return a file."""
        read.append(path)
        return path

    @resource("keys://all")
    def keys() -> str:
        """Return the keys."""
        read.append("keys")
        return "keys"

    rules = [Rule(decision="ask", tools=("files", "keys"))]
    async with Yard(resources=[files, keys], rules=rules, limits=LIMITS) as yard:
        await yard.read("files://a")
        asked = await pending(yard)
        assert asked.card.uri == "files://a"
        await approvals_of(yard).decide(asked.id, "approve", by="user:test")
        await yard.read("files://b")
        await yard.read("keys://all")
        assert read == []
        await yard.read("files://a")
        assert read == ["a"]


async def test_arguments_of_what_needs_a_decision_are_not_completed() -> None:
    asked: list[str] = []

    def names(value: str, _: dict[str, str]) -> list[str]:
        asked.append(value)
        return ["anna"]

    @prompt(complete={"name": names})
    def greet(name: str) -> str:
        """Greet."""
        return name

    conditional = (Predicate(pointer="/name", equals="anna"),)
    refused = [
        Rule(decision="ask", tools=("greet",)),
        Rule(decision="deny", tools=("greet",)),
        Rule(decision="deny", tools=("greet",), when=conditional),
    ]
    allowed = [
        Rule(decision="allow", tools=("greet",)),
        Rule(decision="deny", tools=("greet",), callers=("somebody",)),
        Rule(decision="deny", tools=("other",)),
    ]
    for rule in refused:
        async with Yard(prompts=[greet], rules=[rule], limits=LIMITS) as yard:
            with pytest.raises(ToolError) as failure:
                await yard.complete("prompt", "greet", argument="name", value="a")
            assert failure.value.code == "permission_denied"
            assert await approvals_of(yard).count() == 0
    assert asked == []
    for rule in allowed:
        async with Yard(prompts=[greet], rules=[rule], limits=LIMITS) as yard:
            assert await yard.complete("prompt", "greet", argument="name", value="a") == ["anna"]


async def test_arguments_are_not_completed_through_a_mounted_yard_whose_rules_refuse_it() -> None:
    asked: list[str] = []

    def names(value: str, _: dict[str, str]) -> list[str]:
        asked.append(value)
        return ["anna"]

    @prompt(complete={"name": names})
    def greet(name: str) -> str:
        """Greet."""
        return name

    @resource("people://{name}", complete={"name": names})
    def people(name: str) -> str:
        """Return a person."""
        return name

    rules = [Rule(decision="deny", tools=("greet", "people"), callers=("guest",))]
    inner = Yard("inner", prompts=[greet], resources=[people], rules=rules, limits=LIMITS)
    completions: list[tuple[Literal["prompt", "resource"], str]] = [
        ("prompt", "greet"),
        ("resource", "people://{name}"),
    ]
    async with Yard(providers=[inner]) as yard:
        for kind, name in completions:
            with pytest.raises(ToolError) as failure:
                await yard.complete(kind, name, argument="name", value="a", caller=Caller(identity="guest"))
            assert failure.value.details["reason"] == "completion_refused"
            assert asked == []
        for kind, name in completions:
            assert await yard.complete(kind, name, argument="name", value="a") == ["anna"]


async def test_an_approval_of_a_client_never_stands_in_for_an_operator() -> None:
    ran: list[str] = []

    @tool(operation="destroy")
    def wipe(name: str) -> None:
        """Delete something."""
        ran.append(name)

    async with yard_of(wipe) as yard:
        for name in ("approved", "granted", "granted for any"):
            await yard.call("wipe", {"name": name})
            asked = await pending(yard)
            approved = await approvals_of(yard).decide(asked.id, "approve", by="client:local")
            if name != "approved":
                is_any = name == "granted for any"
                await approvals_of(yard).grant(approved, seconds=60, any_arguments=is_any, by="client:local")
        gate = yard.gate
        assert gate is not None
        gate.use([Rule(decision="ask", operations=(Operation.DESTROY,), by="operator")], always_asks=False)
        for name in ("approved", "granted", "granted for any", "another"):
            assert (await yard.call("wipe", {"name": name})).data["status"] == "approval_required"

    assert ran == []


async def test_a_damaged_record_hides_no_other_approval() -> None:
    @tool(operation="destroy")
    def wipe(name: str) -> None:
        """Delete something."""

    async with yard_of(wipe) as yard:
        await yard.call("wipe", {"name": "a"})
        damaged = await pending(yard)
        await yard.call("wipe", {"name": "b"})
        await yard.store.put(f"approval/{damaged.id}", b"{")
        await yard.store.put("grant/x", b"[]")
        await yard.store.put("grant/y", b'{"id": "\xff"}')

        assert [json.loads(one.card.arguments) for one in await approvals_of(yard).pending()] == [{"name": "b"}]
        assert await approvals_of(yard).grants() == []
        with pytest.raises(ToolError) as failure:
            await approvals_of(yard).get(damaged.id)
        assert failure.value.details["reason"] == "damaged_record"
        await yard.store.put(f"approval/{damaged.id}", b'{"id": "\xff"}')
        assert len(await approvals_of(yard).pending()) == 1
        await yard.store.put(f"approval_by/{damaged.binding.key}", b"\xff")
        await yard.call("wipe", {"name": "a"})  # asks anew
        assert len(await approvals_of(yard).pending()) == 2
