"""Schemas that fit the client: each rule, the clients that are under it, and calls that are checked as before."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from table_tests import every_row

from callyard import Tool, ToolSpec, Yard
from callyard.model.spec import Operation
from callyard.server.client_schemas import RULES, fitted, providers_for

if TYPE_CHECKING:
    from tests.server.conftest import Meet

    from callyard import Call
    from callyard.model.schema import Schema

MODERN = "2026-07-28"
STRING = {"type": "string"}


def root(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@every_row(
    ("client", "providers"),
    [
        ("claude-code", ("anthropic",)),
        ("Claude Desktop", ("anthropic",)),
        ("codex-mcp-client", ("openai",)),
        ("gemini-cli-mcp-client", ("gemini",)),
        ("cursor-vscode", ("openai", "anthropic", "gemini")),
        ("Visual Studio Code - Insiders", ("copilot", "openai", "anthropic", "gemini")),
        ("github-copilot-developer", ("copilot", "openai", "anthropic", "gemini")),
        ("somebody", ()),
        ("", ()),
    ],
)
def test_the_name_of_a_client_says_whose_rules_it_is_under(client: str, providers: tuple[str, ...]) -> None:
    assert providers_for(client) == providers


CASES: list[tuple[str, Any, Any]] = [
    ("anthropic", root(a=STRING), root(a=STRING)),
    ("anthropic", True, True),
    (
        "anthropic",
        {**root(a=STRING, b=STRING), "required": ["a"], "oneOf": [{"required": ["b"]}, {"required": ["b", "c"]}]},
        {**root(a=STRING, b=STRING), "required": ["a", "b"]},
    ),
    (
        "anthropic",
        {"type": "object", "anyOf": [root(k={"const": 1}), root(k={"const": 2}), root(k={"const": 1}), root(k=True)]},
        root(k={"anyOf": [{"const": 1}, {"const": 2}]}),
    ),
    (
        "anthropic",
        {"allOf": [{"$ref": "#/$defs/A"}, root(b=STRING)], "$defs": {"A": {**root(a=STRING), "required": ["a"]}}},
        {"$defs": {"A": {**root(a=STRING), "required": ["a"]}}, **root(a=STRING, b=STRING), "required": ["a"]},
    ),
    (
        "anthropic",
        {**root(**{"filter[x]": STRING, "n" * 65: STRING, "a": STRING}), "required": ["a", "filter[x]"]},
        {
            **root(a=STRING),
            "required": ["a"],
            "description": f"Also takes 'filter[x]', '{'n' * 65}', which 'describe_tool' shows.",
        },
    ),
    (
        "anthropic",
        {**root(**{"$top": STRING}), "required": ["$top"], "description": "Pages."},
        {**root(), "description": "Pages. Also takes '$top', which 'describe_tool' shows."},
    ),
    ("openai", {"type": "object", "not": {}}, root()),
    (
        "openai",
        root(a={"type": "array"}, b={"type": ["array", "null"]}, c={"anyOf": [{"type": "array"}, True]}),
        root(
            a={"type": "array", "items": {}},
            b={"type": ["array", "null"], "items": {}},
            c={"anyOf": [{"type": "array", "items": {}}, True]},
        ),
    ),
    ("copilot", root(a={"type": "array", "items": {"type": "array"}}), None),
    ("gemini", root(a={"type": ["string", "null"], "format": "uri"}), root(a=STRING)),
    ("gemini", root(a={**STRING, "format": "date-time"}, b={}), root(a={**STRING, "format": "date-time"}, b=STRING)),
    (
        "gemini",
        root(a={"type": ["string", "integer"], "description": "Either.", "minLength": 1}),
        root(a={"description": "Either.", "anyOf": [{**STRING, "minLength": 1}, {"type": "integer"}]}),
    ),
    ("gemini", root(a={"anyOf": [STRING, {"type": "null"}], "title": "A"}), root(a={**STRING, "title": "A"})),
    ("gemini", root(a={"oneOf": [STRING, {"type": "integer"}]}), root(a={"anyOf": [STRING, {"type": "integer"}]})),
    ("gemini", root(a={"const": "x"}, b={"enum": [1, 2]}), root(a={**STRING, "enum": ["x"]}, b={"type": "integer"})),
    ("gemini", root(a={"items": True}), root(a={"type": "array", "items": STRING})),
    ("gemini", root(a={"properties": {}, "required": ["x"]}), root(a=root())),
    (
        "gemini",
        root(a={"allOf": [{**root(x=STRING), "required": ["x"]}, {**root(y=STRING), "required": ["y"]}]}),
        root(a={**root(y=STRING, x=STRING), "required": ["x", "y"]}),
    ),
    (
        "gemini",
        {**root(n={"$ref": "#/$defs/N"}), "$defs": {"N": root(next={"$ref": "#/$defs/N"})}, "required": ["n", "z"]},
        {**root(n=root(next=root())), "required": ["n"]},
    ),
]


@every_row(("provider", "schema", "shown"), CASES)
def test_each_rule_shows_what_its_provider_accepts(provider: Any, schema: Any, shown: Any) -> None:
    found = fitted(schema, (provider,))

    if shown is None:
        assert found == root(a={"type": "array", "items": {"type": "array", "items": {}}})
    else:
        assert found == shown
    if shown == schema:
        assert found is schema


def test_a_schema_without_end_has_one_for_gemini() -> None:
    deep: dict[str, Any] = STRING
    for _ in range(200):
        deep = {"type": "array", "items": deep}

    shown: Schema = fitted(root(a=deep), ("gemini", "openai"))
    depth, node = 0, shown["properties"]["a"]
    while node.get("type") == "array":
        depth, node = depth + 1, node["items"]
    assert 10 < depth < 200


def test_every_rule_is_in_the_guide_with_its_source_and_date() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "mcp.md").read_text(encoding="utf-8")

    assert [rule for rule in RULES if f"| {rule.name} | [{rule.date}]({rule.source}) |" not in guide] == []


@pytest.mark.parametrize("era", ["2025-11-25", MODERN])
async def test_a_client_lists_what_it_accepts_and_calls_are_checked_by_the_original(meet: "Meet", era: str) -> None:
    closed = {**root(a=STRING, b=STRING), "additionalProperties": False}
    schema = {**closed, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}

    async def run(call: "Call") -> str:
        return str(call.arguments)

    spec = ToolSpec(name="pick", description="Pick.", input_schema=schema, operation=Operation.QUERY)
    client = {"io.modelcontextprotocol/clientInfo": {"name": "claude-code", "version": "1"}}
    async with meet(Yard(tools=[Tool.of(spec, run)]), era=era) as peer:
        if era != MODERN:
            other = await peer.ask("tools/list")
            assert "anyOf" in tool_of(other)["inputSchema"]
            handshake = {
                "protocolVersion": era,
                "capabilities": {},
                "clientInfo": {"name": "claude-code", "version": "1"},
            }
            await peer.ask("initialize", handshake)
        listed = tool_of(await peer.ask("tools/list", {}, client if era == MODERN else None))["inputSchema"]
        refused = await peer.ask("tools/call", {"name": "pick", "arguments": {}})
        described = await peer.yard.call("describe_tool", {"tool_id": "pick"})

    assert listed == closed
    assert refused["result"]["structuredContent"]["error"]["code"] == "invalid_input"
    assert described.data["input_schema"]["anyOf"] == schema["anyOf"]


def tool_of(answer: dict[str, Any]) -> dict[str, Any]:
    return next(tool for tool in answer["result"]["tools"] if tool["name"] == "pick")
