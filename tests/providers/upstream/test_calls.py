"""Answers of upstreams are passed on unchanged, and become the data of an envelope."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted import MODERN, ScriptedLink
from table_tests import every_row

from callyard import Channel, ClientRequest, Limits, Predicate, Rule, Yard
from callyard.model.content import UpstreamBlock
from callyard.model.errors import ToolError
from callyard.providers.upstream.calls import client_requests_of, decode_answer, link_failure_of, result_of
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import Reshape, UpstreamSettings
from callyard.wire.params import CAPABILITIES

IMAGE = {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png", "annotations": {"audience": ["user"]}}


def answer(**fields: Any) -> Any:
    """Return an answer as it came."""
    return decode_answer("up", msgspec.Raw(msgspec.json.encode(fields)))


def text(*texts: str) -> list[dict[str, Any]]:
    """Return texts as blocks."""
    return [{"type": "text", "text": one} for one in texts]


@every_row(
    ("fields", "data"),
    [
        ({"content": text("hello")}, "hello"),
        ({"content": text('{"a": 1}')}, {"a": 1}),
        ({"content": text("[1, 2]")}, [1, 2]),
        ({"content": text("[sic] not JSON")}, "[sic] not JSON"),
        ({"content": []}, None),
        ({}, None),
        ({"content": None}, None),
        ({"content": text("{}"), "structuredContent": {"b": 2}}, {"b": 2}),
        ({"content": text("x"), "structuredContent": None}, "x"),
        ({"content": text("a", "b")}, text("a", "b")),
        ({"content": [*text("a"), IMAGE]}, [*text("a"), {"type": "image", "mime_type": "image/png", "bytes": 5}]),
    ],
)
def test_data_is_the_structured_content_or_the_only_text_or_a_list_of_blocks(
    fields: dict[str, Any], data: object
) -> None:
    assert result_of("up", answer(**fields), "").data == data


def test_a_result_is_passed_on_unchanged_with_its_other_blocks() -> None:
    came = {
        "content": [*text("a"), IMAGE],
        "structuredContent": {"n": 1},
        "_meta": {"vendor/x": 1, "io.modelcontextprotocol/y": 2},
    }
    passed = result_of("up", answer(**came, isError=False, resultType="complete"), "")

    assert msgspec.json.decode(passed.result) == {"content": came["content"], "structuredContent": {"n": 1}}
    assert [block.raw for block in passed.content if isinstance(block, UpstreamBlock)] == [IMAGE]
    assert passed.meta == {"vendor/x": 1}


def test_structured_content_that_is_no_object_becomes_text_for_older_clients() -> None:
    both = result_of("up", answer(content=text("one"), structuredContent=[1]), "").handshake_result
    alone = result_of("up", answer(structuredContent=[1]), "").handshake_result

    assert (msgspec.json.decode(both), msgspec.json.decode(alone)) == (
        {"content": text("one")},
        {"content": text("[1]")},
    )
    assert result_of("up", answer(content=text("one"), structuredContent={"a": 1}), "").handshake_result == b""


def test_uris_of_resources_in_content_become_the_published_ones() -> None:
    link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
    embedded = {"type": "resource", "resource": {"uri": "file:///b", "text": "b", "mimeType": "text/plain"}}
    passed = result_of("up", answer(content=[link, embedded]), "up")

    assert [block["uri"] for block in passed.data] == ["up+file:///a", "up+file:///b"]
    assert b"up+file:///b" in passed.result


def test_a_failure_keeps_its_text_and_its_structured_content() -> None:
    with pytest.raises(ToolError, match="No such repository") as caught:
        result_of(
            "up", answer(content=text("No such repository."), structuredContent={"status": 404}, isError=True), ""
        )

    assert caught.value.code == "upstream_error"
    assert caught.value.details == {"upstream": "up", "text": "No such repository.", "structured": {"status": 404}}


def test_a_failure_without_a_text_says_that() -> None:
    with pytest.raises(ToolError, match="'up' reports a failure without a text"):
        result_of("up", answer(isError=True), "")


def test_a_failure_of_another_yard_keeps_its_code() -> None:
    error = {
        "code": "not_found",
        "message": "There is no order 7.",
        "details": {"kind": "order"},
        "recoverable": True,
        "retryable": False,
    }
    error |= {"blame": "caller", "may_have_run": False, "http": 404, "hint": "Look again."}
    envelope = {
        "success": False,
        "data": None,
        "error": error,
        "_meta": {"call_id": "c", "elapsed_ms": 1, "estimated_tokens": 1},
    }
    with pytest.raises(ToolError) as caught:
        result_of("up", answer(isError=True, structuredContent=envelope), "")

    assert (caught.value.code, caught.value.may_have_run, caught.value.hint) == ("not_found", False, "Look again.")
    assert caught.value.details == {"upstream": "up", "kind": "order"}


def test_an_invalid_result_is_an_upstream_error() -> None:
    with pytest.raises(ToolError, match="invalid result"):
        decode_answer("up", msgspec.Raw(b'{"isError": "perhaps"}'))


def test_required_input_is_decoded_and_an_unknown_method_is_an_error() -> None:
    wanted = {"who": {"method": "elicitation/create", "params": {"message": "Who?"}}, "where": {"method": "roots/list"}}
    asks = client_requests_of("up", answer(resultType="input_required", inputRequests=wanted))

    assert asks is not None
    assert {key: ask.method for key, ask in asks.items()} == {"who": "elicitation/create", "where": "roots/list"}
    assert asks["who"].params["message"] == "'up' asks: Who?"
    assert client_requests_of("up", answer(resultType="input_required")) == {}
    assert client_requests_of("up", answer()) is None
    with pytest.raises(ToolError, match="asks for 'tools/call'"):
        client_requests_of("up", answer(resultType="input_required", inputRequests={"x": {"method": "tools/call"}}))


def test_an_invalid_block_is_passed_on_and_has_no_bytes() -> None:
    passed = result_of("up", answer(content=[{"type": "image", "data": "a", "mimeType": "image/png"}, "junk"]), "")

    assert passed.data == [{"type": "image", "mime_type": "image/png", "bytes": 0}]


@every_row(
    ("settings", "blame", "named", "actions"),
    [
        ({}, "upstream", "'callyard login shop'", ("callyard login shop",)),
        (
            {"headers": {"AUTHORIZATION": "Bearer x"}},
            "upstream",
            "'Authorization' in 'headers' of the upstream 'shop'",
            (),
        ),
        ({"headers": {"X-Other": "x"}}, "upstream", "'callyard login shop'", ("callyard login shop",)),
        (
            {"forward_headers": ("X-Key",)},
            "upstream",
            "'X-Key' of the caller goes with calls alone",
            ("callyard login shop",),
        ),
        (
            {"forward_headers": ("X-Key", "Authorization")},
            "caller",
            "The 'Authorization' that came with the request",
            (),
        ),
    ],
)
def test_refused_credentials_say_who_can_provide_others(
    settings: dict[str, Any], blame: str, named: str, actions: tuple[str, ...]
) -> None:
    error = LinkError("unauthenticated", "It wants credentials.", status=401)
    error.caller_credentials = blame == "caller"

    failure = link_failure_of("shop", error, UpstreamSettings(url="https://shop.example/mcp", **settings))

    assert (failure.code, failure.blame, tuple(failure.next_actions)) == ("unauthenticated", blame, actions)
    assert named in (failure.hint or "")
    assert ("callyard login" in (failure.hint or "")) is bool(actions)


async def test_an_upstream_is_sent_the_arguments_that_were_judged(tmp_path: Path) -> None:
    properties = {
        "mode": {"type": "string", "default": "force"},
        "region": {"type": "string", "default": "eu"},
        "key": {"type": "string"},
        "count": {"type": "integer", "default": "no number"},
    }
    listed = {"tools": [{"name": "send", "inputSchema": {"type": "object", "properties": properties}}]}
    link = ScriptedLink({**MODERN, "tools/list": listed, "tools/call": {"content": []}})
    settings = UpstreamSettings(
        url="http://up.test/mcp", reshape={"send": Reshape(hidden=("region",), fixed={"key": "fixed"})}
    )
    upstream = Upstream("up", settings, link=lambda: link, folder=tmp_path, interval=0.01)
    whole = {"mode": "force", "region": "eu", "key": "fixed"}
    denies = [
        Rule(decision="deny", when=(Predicate(pointer=f"/{name}", equals=value),)) for name, value in whole.items()
    ]
    for rules in [[rule] for rule in denies] + [[Rule(decision="ask", tools=("up__send",))]]:
        async with Yard(
            "gate", providers=[upstream], metatools=False, rules=rules, limits=Limits(approval_hold_s=0.001)
        ) as yard:
            assert yard.gate is not None
            await upstream.wait_ready()
            answer = await yard.call("up__send", {})
            if rules[0].decision == "deny":
                assert answer.error is not None
                assert answer.error.code == "permission_denied"
                continue
            asked = (await yard.gate.approvals.pending())[-1]
            assert json.loads(asked.card.arguments) == whole
            await yard.gate.approvals.decide(asked.id, "approve", by="user:test")
            assert (await yard.call("up__send", {})).success
    sent = [message["params"]["arguments"] for message in link.sent if message["method"] == "tools/call"]
    assert sent == [whole]


CALLER_META: dict[str, Any] = {
    **dict.fromkeys(("traceparent", "tracestate", "baggage"), "00-1"),
    "callyard/timeout_ms": 30_000,
    "com.example/tenant": "acme",
    "secret": "s",
}


async def sent_upstream(tmp_path: Path, **settings: Any) -> tuple[dict[str, Any], Any]:
    """Return the `_meta` that an upstream gets of a caller's call, and the answer to that when it asks for roots."""
    wanted = {"where": {"method": "roots/list"}}

    def answer_call(params: dict[str, Any]) -> dict[str, Any]:
        given = params.get("inputResponses")
        if given is None:
            return {"resultType": "input_required", "inputRequests": wanted}
        return {"resultType": "complete", "content": text(given["where"]["roots"][0]["uri"])}

    link = ScriptedLink({**MODERN, "tools/list": {"tools": [{"name": "look"}]}, "tools/call": answer_call})
    options = UpstreamSettings(url="http://up.test/mcp", **settings)
    upstream = Upstream("up", options, link=lambda: link, folder=tmp_path, interval=0.01)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()

        async def ask(asks: Mapping[str, ClientRequest], _: object) -> Mapping[str, Any]:
            return {key: {"roots": [{"uri": "file:///home/me"}]} for key in asks}

        trace = {key: CALLER_META[key] for key in ("traceparent", "tracestate", "baggage")}
        meta = {key: value for key, value in CALLER_META.items() if key not in trace}
        channel = Channel(name="test", ask=ask, capabilities=frozenset({"roots"}), meta=meta, trace=trace)
        answer = await yard.call("up__look", channel=channel)
    calls = [message for message in link.sent if message.get("method") == "tools/call"]
    return calls[0]["params"]["_meta"], answer


async def test_meta_and_folders_of_callers_are_passed_on_only_where_that_is_configured(tmp_path: Path) -> None:
    meta, refused = await sent_upstream(tmp_path / "a")
    assert {key for key in meta if key in CALLER_META} == {"traceparent", "tracestate"}
    assert "roots" not in meta[CAPABILITIES]
    assert refused.error.code == "upstream_error"

    meta, answered = await sent_upstream(tmp_path / "b", forward_meta=("com.example/*", "baggage"), forward_roots=True)
    assert {key for key in meta if key in CALLER_META} == {"traceparent", "tracestate", "baggage", "com.example/tenant"}
    assert "roots" in meta[CAPABILITIES]
    assert answered.data == "file:///home/me"
