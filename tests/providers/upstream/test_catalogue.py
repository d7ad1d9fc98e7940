"""Published names and URIs are unique, and what upstreams list is kept word for word."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from table_tests import every_row

from callyard.model.profile import PINNED
from callyard.providers.upstream.catalogue import (
    Catalogue,
    UpstreamTool,
    prompts_of,
    publish_uris,
    published_names,
    published_uri,
    resources_of,
    tools_of,
    upstream_uri,
)
from callyard.providers.upstream.settings import Login, Reshape, UpstreamSettings


def test_characters_outside_the_allowed_set_become_underscores() -> None:
    assert published_names("git", ["createIssue", "repo.read", "a b"], longest=48) == {
        "createIssue": "git__createIssue",
        "repo.read": "git__repo_read",
        "a b": "git__a_b",
    }


def test_without_a_prefix_names_stay_as_they_are() -> None:
    assert published_names("", ["add"], longest=48) == {"add": "add"}


def test_of_two_names_that_collide_the_changed_one_gets_a_hash() -> None:
    named = published_names("x", ["a_b", "a.b"], longest=48)

    assert named["a_b"] == "x__a_b"
    assert re.fullmatch("x__a_b_[0-9a-f]{6}", named["a.b"])


@given(st.lists(st.text(min_size=1, max_size=90), unique=True, max_size=20))
def test_published_names_are_short_and_unique(own: list[str]) -> None:
    named = published_names("upstream", own, longest=48)

    assert len(set(named.values())) == len(own)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,48}", name) for name in named.values())


@given(
    st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    st.from_regex(r"[a-z]{1,8}://[a-z/{}]{0,20}", fullmatch=True),
)
def test_a_published_uri_is_translated_back_unchanged(prefix: str, uri: str) -> None:
    ours = published_uri(prefix, uri)

    assert upstream_uri(prefix, ours) == uri
    assert re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", ours)


def test_uris_in_content_and_messages_become_the_published_ones() -> None:
    prompt = {
        "messages": [{"role": "user", "content": {"type": "resource", "resource": {"uri": "a://1", "text": "uri"}}}],
        "other": {"uri": 5},
    }

    assert publish_uris("up", prompt)["messages"][0]["content"]["resource"] == {"uri": "up+a://1", "text": "uri"}
    assert publish_uris("up", [{"type": "resource_link", "uri": "b://2"}]) == [
        {"type": "resource_link", "uri": "up+b://2"}
    ]


AT = UpstreamSettings(url="http://up.test")


def translated(item: dict[str, Any], settings: UpstreamSettings = AT) -> UpstreamTool:
    """Return one tool of an upstream as ours."""
    catalogue = Catalogue(endpoint_hash="", seen=0, version="2025-11-25", tools=({"name": "add", **item},))
    return tools_of("up", catalogue, settings, longest=48)[0]


@every_row(
    ("said", "operation", "hints"),
    [
        ({"readOnlyHint": True}, "query", (True, False, False, True)),
        ({"destructiveHint": True}, "destroy", (False, True, False, True)),
        ({"destructiveHint": False, "idempotentHint": True}, "command", (False, False, True, True)),
        ({}, "command", (False, True, False, True)),
        ("nonsense", "command", (False, True, False, True)),
    ],
)
def test_the_operation_follows_from_the_annotations(said: Any, operation: str, hints: tuple[bool, ...]) -> None:
    spec = translated({"description": "Adds.", "annotations": said}).spec
    kept = spec.hints()

    assert spec.operation == operation
    assert (kept.read_only_hint, kept.destructive_hint, kept.idempotent_hint, kept.open_world_hint) == hints


def test_a_missing_description_is_replaced_by_the_title_or_name() -> None:
    assert translated({}).spec.description == "add"
    assert translated({"annotations": {"title": "Add"}, "description": " "}).spec.description == "Add"


def test_a_schema_without_a_type_gets_the_type_object() -> None:
    assert translated({"inputSchema": {}}).spec.input_schema == {"type": "object"}
    assert translated({}).spec.input_schema == {"type": "object"}
    assert translated({"inputSchema": "?"}).spec.input_schema == "?"


def test_other_fields_are_published_without_reserved_meta_keys() -> None:
    icons = [{"src": "data:image/png;base64,"}]
    meta = {"vendor/a": 1, "io.modelcontextprotocol/b": 2}

    assert translated({"icons": icons, "_meta": meta, "outputSchema": {"type": "object"}}).spec.extra == {
        "icons": icons,
        "_meta": {"vendor/a": 1},
    }


def test_hidden_and_fixed_arguments_are_not_in_the_schema() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {}, "b": {}, "c": {}}, "required": ["a", "b", "c"]}
    reshape = {
        "a*": Reshape(
            fixed={"a": 1}, hidden=("b",), operation="destroy", timeout=3, pinned=True, title="Plus", idempotent=True
        )
    }
    found = translated({"inputSchema": schema}, UpstreamSettings(url="http://up.test", reshape=reshape))

    assert (found.spec.input_schema["properties"], found.spec.input_schema["required"]) == ({"c": {}}, ["c"])
    assert (found.fixed, found.spec.timeout, found.spec.tags, found.spec.title) == ({"a": 1}, 3, (PINNED,), "Plus")
    assert found.spec.hints().destructive_hint
    assert translated(
        {"inputSchema": {"type": "object"}}, UpstreamSettings(url="http://x", reshape=reshape)
    ).spec.input_schema == {"type": "object"}


def test_resources_templates_and_prompts_are_published() -> None:
    catalogue = Catalogue(
        endpoint_hash="",
        seen=0,
        version="2025-11-25",
        tools=({"name": 5}, {"name": "x"}, {"name": "x"}),
        resources=({"uri": "a://b", "name": "b", "size": 3, "annotations": {"priority": 1}}, {"name": "no uri"}),
        templates=({"uriTemplate": "a://{c}", "mimeType": "text/plain"},),
        prompts=({"name": "ask", "arguments": [{"name": "who", "required": True}, "junk"]}, {"name": "bare"}),
    )
    resources = resources_of("up", catalogue, AT)
    prompts = prompts_of("up", catalogue, AT, longest=48)

    assert [(spec.uri, spec.name, spec.size) for spec in resources] == [
        ("up+a://b", "b", 3),
        ("up+a://{c}", "up+a://{c}", None),
    ]
    assert resources[0].extra == {"annotations": {"priority": 1}}
    assert [(spec.name, own, [argument.name for argument in spec.arguments]) for spec, own in prompts] == [
        ("up__ask", "ask", ["who", ""]),
        ("up__bare", "bare", []),
    ]
    assert [tool.upstream_name for tool in tools_of("up", catalogue, AT, longest=48)] == ["x"]


@every_row(
    "wrong",
    [
        {},
        {"command": "a", "url": "http://b"},
        {"command": "a", "transport": "http"},
        {"url": "http://b", "transport": "stdio"},
        {"url": "http://b", "call_seconds": -1},
        {"url": "http://b", "connect_seconds": 0},
        {"url": "http://b", "in_flight": 0},
    ],
)
def test_settings_that_contradict_themselves_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\.$"):
        UpstreamSettings(**wrong)


def test_the_repr_of_settings_contains_no_secrets() -> None:
    assert repr(UpstreamSettings(command="run", env={"TOKEN": "s3cret"})) == "<UpstreamSettings stdio>"
    assert repr(Login(client_secret="s3cret")) == "<Login authorization_code>"  # noqa: S106 - no password, but what must not be shown


def test_items_without_a_name_of_their_own_are_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    catalogue = Catalogue(
        endpoint_hash="", seen=0, version="2025-11-25", tools=({"name": "add"}, {"name": "add"}, {}, {"name": 7})
    )
    tools = tools_of("up", catalogue, AT, longest=48)

    assert [tool.upstream_name for tool in tools] == ["add"]
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["count=3"]
