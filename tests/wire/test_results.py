import json
from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from table_tests import every_row

from callyard import Audio, Blob, Embedded, Envelope, Image, ResourceLink, Text, ToolError, tool
from callyard.model.content import to_mcp
from callyard.model.elicitation import ClientRequest
from callyard.model.envelope import Content, UpstreamResult
from callyard.model.spec import Operation, PromptSpec, ResourceSpec, ToolSpec
from callyard.providers.functions import Functions
from callyard.wire.params import SERVER
from callyard.wire.results import (
    ResultEncoder,
    Server,
    downgrade_block,
    prompt_item,
    resource_item,
    tool_item,
)
from callyard.wire.versions import VERSIONS, Version

SERVER_SAYS = Server("yard", "1")
OLDEST, EARLY, MIDDLE, LATE, NEW = VERSIONS.values()
EVERY = pytest.mark.parametrize("version", VERSIONS.values(), ids=lambda version: version.name)
JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-(2**53), 2**53), st.text(st.characters(exclude_categories=["Cs"]))
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)


def answers(version: Version) -> ResultEncoder:
    return ResultEncoder(version, SERVER_SAYS, ttl_ms=5000)


def spec_of(function: Any) -> ToolSpec:
    return Functions("f", [function]).tools()[0].spec


@EVERY
def test_a_result_of_the_newer_era_says_more(version: Version) -> None:
    plain, full, listed = (
        json.loads(answers(version).complete(b"{}")),
        json.loads(answers(version).complete(b'{"a":1}')),
        json.loads(answers(version).complete(b"{}", cacheable=True)),
    )
    more = {"resultType": "complete", "_meta": {SERVER: {"name": "yard", "version": "1"}}} if version.modern else {}

    assert plain == json.loads(answers(version).empty) == more
    assert full == {"a": 1, **more}
    assert listed == ({"ttlMs": 5000, "cacheScope": "private", **more} if version.modern else {})


@EVERY
@given(data=JSON)
def test_an_envelope_is_text_and_structured_content_alike(version: Version, data: Any) -> None:
    result = json.loads(answers(version).envelope(Envelope.ok(data)))

    assert json.loads(result["content"][0]["text"])["data"] == data
    assert result["isError"] is False
    if version.structured:
        assert result["structuredContent"] == json.loads(result["content"][0]["text"])
    else:
        assert "structuredContent" not in result


@EVERY
def test_a_failure_is_an_error_and_blocks_follow_the_envelope(version: Version) -> None:
    failed = json.loads(answers(version).envelope(Envelope.fail(ToolError("state_error", "No."))))
    painted = json.loads(answers(version).envelope(Envelope.ok("x", content=[Image(b"1")])))

    assert failed["isError"] is True
    assert json.loads(failed["content"][0]["text"])["error"]["code"] == "state_error"
    assert [block["type"] for block in painted["content"]] == ["text", "image"]


@EVERY
@given(data=JSON)
def test_a_plain_answer_is_its_data(version: Version, data: Any) -> None:
    result = json.loads(answers(version).plain(Envelope.ok(data)))

    text = result["content"][0]["text"]
    assert (text if isinstance(data, str) else json.loads(text)) == data
    assert ("structuredContent" in result) is (version.structured and isinstance(data, dict))
    assert result.get("structuredContent", data) == data


def test_a_plain_answer_of_blocks_is_those_blocks() -> None:
    result = json.loads(answers(LATE).plain(Envelope.ok(None, content=[Image(b"1")])))

    assert [block["type"] for block in result["content"]] == ["image"]
    assert "structuredContent" not in result


@EVERY
def test_a_result_of_an_upstream_is_passed_on_in_the_form_of_the_era(version: Version) -> None:
    envelope = Envelope.ok([1])
    envelope.passthrough = UpstreamResult(
        [1], b'{"content":[],"structuredContent":[1]}', 3, handshake_result=b'{"content":[]}'
    )
    result = json.loads(answers(version).plain(envelope))

    assert ("structuredContent" in result, result["isError"]) == (version.modern, False)


@EVERY
def test_an_output_schema_that_is_no_object_s_is_shown_to_clients_that_understand_it(version: Version) -> None:
    spec = ToolSpec(
        name="n",
        description="d",
        input_schema={},
        operation=Operation.QUERY,
        output_schema={"type": "array"},
        shape="plain",
    )

    assert ("outputSchema" in json.loads(tool_item(spec, version, schemas=True))) == version.modern


def test_a_handshake_is_answered_with_what_there_is() -> None:
    said = json.loads(answers(EARLY).initialize({"tools": {}}, "Be kind."))
    silent = json.loads(answers(EARLY).initialize({"tools": {}}, ""))

    assert said == {
        "protocolVersion": EARLY.name,
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "yard", "version": "1"},
        "instructions": "Be kind.",
    }
    assert "instructions" not in silent


def test_a_discovery_names_the_versions() -> None:
    said, silent = (
        json.loads(answers(NEW).discover({"tools": {}}, "Be kind.")),
        json.loads(answers(NEW).discover({}, "")),
    )

    assert (said["supportedVersions"], said["capabilities"], said["instructions"]) == (
        [NEW.name],
        {"tools": {}},
        "Be kind.",
    )
    assert said["ttlMs"] == 5000
    assert "instructions" not in silent


def test_a_list_says_where_it_goes_on() -> None:
    more, last = (json.loads(answers(LATE).page("tools", [b"1", b"2"], cursor)) for cursor in ("x", None))

    assert more == {"tools": [1, 2], "nextCursor": "x"}
    assert last == {"tools": [1, 2]}


def test_a_question_is_an_answer() -> None:
    result = json.loads(
        answers(NEW).input_required(
            {"who": ClientRequest.person("Who?", {"type": "object", "properties": {}}), "where": ClientRequest.roots()},
            "state",
        )
    )

    assert result["resultType"] == "input_required"
    assert result["requestState"] == "state"
    assert {key: request["method"] for key, request in result["inputRequests"].items()} == {
        "who": "elicitation/create",
        "where": "roots/list",
    }
    assert json.loads(answers(NEW).complete(b"{}", meta={"k": 5}))["_meta"] == {
        SERVER: {"name": "yard", "version": "1"},
        "k": 5,
    }


@EVERY
def test_a_tool_is_listed_with_what_the_version_knows(version: Version) -> None:
    @tool(operation="destroy", title="Wipe it")
    def wipe(name: str) -> int:
        """Wipe."""
        return 1

    item = json.loads(tool_item(spec_of(wipe), version, schemas=True))

    assert (item["name"], item["inputSchema"]["required"]) == ("wipe", ["name"])
    assert ("annotations" in item) is version.annotations
    assert ("title" in item) is ("outputSchema" in item) is version.structured
    assert "outputSchema" not in json.loads(tool_item(spec_of(wipe), version))


def test_the_output_schema_of_an_envelope_has_the_data_inside() -> None:
    @tool
    def count() -> int:
        """Count."""
        return 1

    @tool(shape="plain")
    def plain() -> dict[str, int]:
        """Count plainly."""
        return {}

    spec = spec_of(count)
    enveloped = json.loads(tool_item(spec, LATE, schemas=True))["outputSchema"]
    assert enveloped["required"] == ["success", "data", "error"]
    assert {"type": "integer"}.items() <= enveloped["properties"]["data"]["anyOf"][0].items()
    declared = replace(spec_of(plain), output_schema={"type": "object"})
    assert json.loads(tool_item(declared, LATE, schemas=True))["outputSchema"] == {"type": "object"}
    assert "outputSchema" not in json.loads(tool_item(spec_of(plain), LATE, schemas=True))


@EVERY
def test_a_resource_and_a_prompt_are_listed_with_what_there_is(version: Version) -> None:
    bare = ResourceSpec(uri="a://b", name="b")
    full = ResourceSpec(uri="a://b", name="b", title="B", description="It is b.", mime_type="x/y")
    title = {"title": "B"} if version.structured else {}

    assert json.loads(resource_item(bare, version)) == {"uri": "a://b", "name": "b"}
    assert json.loads(resource_item(full, version)) == {
        "uri": "a://b",
        "name": "b",
        **title,
        "description": "It is b.",
        "mimeType": "x/y",
    }
    assert json.loads(resource_item(replace(bare, uri="a://{b}"), version)) == {"uriTemplate": "a://{b}", "name": "b"}
    prompt = json.loads(prompt_item(PromptSpec(name="p", title="P"), version))
    assert (prompt["name"], prompt["arguments"], "title" in prompt) == ("p", [], version.structured)


@pytest.mark.parametrize(
    ("version", "kinds"),
    [("2024-11-05", ["text", "text"]), ("2025-03-26", ["audio", "text"]), ("2025-11-25", ["audio", "resource_link"])],
)
def test_blocks_that_came_later_are_text_for_older_clients_wherever_they_come_from(
    version: str, kinds: list[str]
) -> None:
    answers = ResultEncoder(VERSIONS[version], Server("s", "1"))
    sound = {"type": "audio", "data": "", "mimeType": "audio/wav"}
    link = {"type": "resource_link", "uri": "a://b", "name": "b"}
    envelope = Envelope.ok(None)
    envelope.passthrough = UpstreamResult(None, json.dumps({"content": [sound, link]}).encode(), 0)
    prompt = {
        "description": "",
        "messages": [{"role": "user", "content": sound}, {"role": "user", "content": link}, {"role": "user"}],
    }

    whole = json.loads(answers.plain(envelope))
    said = json.loads(answers.messages(prompt))

    assert [block["type"] for block in whole["content"]] == kinds
    assert [message["content"]["type"] for message in said["messages"][:2]] == kinds
    assert said["messages"][2] == {"role": "user"}


DATA = b64encode(b"abc").decode()


@every_row(
    ("block", "expected"),
    [
        (Text("hello"), {"type": "text", "text": "hello"}),
        (Image(b"abc"), {"type": "image", "data": DATA, "mimeType": "image/png"}),
        (Audio(b"abc", "audio/ogg"), {"type": "audio", "data": DATA, "mimeType": "audio/ogg"}),
        (
            Embedded("a://b", text="abc"),
            {"type": "resource", "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "abc"}},
        ),
        (
            Embedded("a://b", data=b"abc", mime_type="x/y"),
            {"type": "resource", "resource": {"uri": "a://b", "mimeType": "x/y", "blob": DATA}},
        ),
        (ResourceLink("a://b", "b"), {"type": "resource_link", "uri": "a://b", "name": "b"}),
        (
            ResourceLink("a://b", "b", title="B", description="It is b.", mime_type="x/y", size=3),
            {
                "type": "resource_link",
                "uri": "a://b",
                "name": "b",
                "title": "B",
                "description": "It is b.",
                "mimeType": "x/y",
                "size": 3,
            },
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_block_is_written_as_mcp_does(block: Content, expected: dict[str, object]) -> None:
    assert to_mcp(block) == expected


def test_bytes_that_have_no_uri_get_the_same_one_every_time() -> None:
    first, again, other = (to_mcp(Blob(data))["resource"] for data in (b"abc", b"abc", b"abd"))

    assert first == again
    assert first["uri"] != other["uri"]
    assert first["uri"].startswith("callyard://blob/")
    assert (first["mimeType"], first["blob"]) == ("application/octet-stream", DATA)


@every_row(
    ("version", "kinds"),
    [
        ("2024-11-05", ["text", "text", "image"]),
        ("2025-03-26", ["audio", "text", "image"]),
        ("2025-06-18", ["audio", "resource_link", "image"]),
        ("2026-07-28", ["audio", "resource_link", "image"]),
    ],
)
def test_a_block_that_a_version_does_not_have_is_sent_as_text(version: str, kinds: list[str]) -> None:
    blocks = [to_mcp(block) for block in (Audio(b"abc"), ResourceLink("a://b", "b"), Image(b"abc"))]
    downgraded = [downgrade_block(block, VERSIONS[version]) for block in blocks]

    assert [block["type"] for block in downgraded] == kinds
    assert all(
        "a://b" in block["text"] or "audio/wav" in block["text"] for block in downgraded if block["type"] == "text"
    )
