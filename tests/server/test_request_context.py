import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from callyard import Yard
from callyard.config.settings import Serving
from callyard.dispatch.call import ANYONE
from callyard.dispatch.progress import Progress
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError
from callyard.server import RequestContext, ServerContext
from callyard.server.input_required import check_asks
from callyard.wire.versions import LATEST, LATEST_HANDSHAKE, VERSIONS, Version

TRACE = "00-" + "a" * 32 + "-" + "b" * 16 + "-01"


@pytest.fixture
async def server() -> AsyncGenerator[ServerContext]:
    async with Yard() as yard:
        known = ServerContext(yard, Serving(), channel="test")
        yield known
        known.close()


def ignore(_: bytes) -> None:
    """Say nothing."""


def context_of(server: ServerContext, **given: Any) -> RequestContext:
    version: Version = given.pop("version", LATEST)
    capabilities: dict[str, Any] = given.pop("capabilities", {})
    return RequestContext(
        server=server, id=1, encoder=server.encoders[version.name], caller=ANYONE, capabilities=capabilities, **given
    )


def said_by(given: dict[str, Any]) -> list[Any]:
    said: list[Any] = []

    def notify(message: bytes) -> None:
        said.append(json.loads(message))

    given["notify"] = notify
    return said


async def test_a_request_that_says_nothing_has_the_default_channel(server: ServerContext) -> None:
    quiet = context_of(server, meta={"io.modelcontextprotocol/protocolVersion": "x"}, notify=ignore)

    assert quiet.channel() is server.default_channel
    assert context_of(server, meta={"progressToken": 1}).channel() is server.default_channel


@pytest.mark.parametrize(
    "given",
    [
        {"meta": {"progressToken": 1}, "notify": ignore},
        {"log_level": 1, "notify": ignore},
        {"headers": {"x-tenant": "a"}},
        {"meta": {"traceparent": TRACE}},
        {"meta": {"mine": 1}},
    ],
    ids=["progress", "log", "headers", "trace", "meta"],
)
async def test_a_request_with_metadata_has_a_channel_of_its_own(server: ServerContext, given: dict[str, Any]) -> None:
    channel = context_of(server, **given).channel()

    assert channel is not server.default_channel
    assert channel.name == "test"
    assert (channel.progress is not None) is ("progressToken" in given.get("meta", {}))
    assert (channel.log is not None) is ("log_level" in given)
    assert channel.forwarded == given.get("headers", {})
    assert channel.headers == {}  # no setting names one that handlers may see


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (TRACE, "a" * 32),
        ("00-" + "a" * 31 + "-b-01", None),
        ("", None),
        ("00-abc", None),
        (5, None),
        (TRACE + "-more", "a" * 32),
        ("00-" + "x" * 32 + "-" + "b" * 16 + "-01", None),
        ("00-" + "0" * 32 + "-" + "b" * 16 + "-01", None),
        ("00-" + "a" * 31 + "\n-" + "b" * 16 + "-01", None),
        (TRACE + "\n", None),
    ],
)
async def test_the_trace_of_a_request_is_passed_on(server: ServerContext, trace: object, expected: str | None) -> None:
    channel = context_of(server, meta={"traceparent": trace, "tracestate": "x=1", "mine": 2}).channel()

    assert channel.trace == {"traceparent": str(trace), "tracestate": "x=1"}
    assert channel.trace_id == expected
    assert channel.meta == {"mine": 2}


async def test_a_client_can_be_asked_by_an_answer_in_the_newer_era_alone(server: ServerContext) -> None:
    able: dict[str, Any] = {"elicitation": {}}

    assert context_of(server, capabilities=able).may_ask
    assert not context_of(server, capabilities={"other": {}}).may_ask
    assert not context_of(server, capabilities=able, version=LATEST_HANDSHAKE).may_ask


async def test_progress_says_what_there_is_to_say(server: ServerContext) -> None:
    given: dict[str, Any] = {"meta": {"progressToken": "t"}}
    said = said_by(given)
    context = context_of(server, **given)
    context.progress(Progress(1, None, ""))
    context.progress(Progress(2, 4, "half"))
    context_of(server, version=VERSIONS["2024-11-05"], **given).progress(Progress(3, 4, "more"))
    context_of(server, **{**given, "meta": {}}).progress(Progress(4, 4, "unheard"))
    context_of(server, meta={"progressToken": "t"}).progress(Progress(4, 4, "unheard"))

    assert [message["params"] for message in said] == [
        {"progressToken": "t", "progress": 1},
        {"progressToken": "t", "progress": 2, "total": 4, "message": "half"},
        {"progressToken": "t", "progress": 3, "total": 4},
    ]


async def test_a_log_line_is_sent_from_its_level_on(server: ServerContext) -> None:
    given: dict[str, Any] = {"log_level": 3}
    said = said_by(given)
    context = context_of(server, **given)
    context.log("info", "unheard", {})
    context.log("warning", "heard", {})
    context.log("error", "heard", {"a": 1})
    context.log("loud", "an info, then", {})
    context_of(server, notify=given["notify"]).log("error", "unheard", {})

    assert [(message["params"]["level"], message["params"]["data"]) for message in said] == [
        ("warning", "heard"),
        ("error", {"message": "heard", "a": 1}),
    ]


async def test_messages_after_another_request_took_over_go_to_it(server: ServerContext) -> None:
    first_given: dict[str, Any] = {"meta": {"progressToken": "old"}}
    second_given: dict[str, Any] = {"meta": {"progressToken": "new"}, "log_level": 0}
    first_said, second_said = said_by(first_given), said_by(second_given)
    context = context_of(server, **first_given)
    context.continue_as(context_of(server, **second_given))
    context.progress(Progress(1, None, ""))
    context.log("info", "words", {})

    assert first_said == []
    assert [message["method"] for message in second_said] == ["notifications/progress", "notifications/message"]


def test_a_question_that_the_client_does_not_support_is_named() -> None:
    check_asks({"a": ClientRequest.roots()}, {"roots": {}})
    with pytest.raises(ToolError) as caught:
        check_asks({"a": ClientRequest.roots(), "b": ClientRequest.model("x", max_tokens=1)}, {"roots": {}})
    assert caught.value.code == "not_supported"
    assert "sampling" in str(caught.value.details)


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (500, 500),
        (49_999, 49_999),
        (50_000, None),
        (10**9, None),
        (0, None),
        (-5, None),
        (True, None),
        ("500", None),
        (5.0, None),
    ],
)
async def test_the_size_that_a_client_states_holds_where_it_is_the_smaller_one(
    server: ServerContext, stated: object, expected: int | None
) -> None:
    assert context_of(server, meta={"anthropic/maxResultSizeChars": stated}).channel().result_characters == expected
    assert context_of(server, meta={"mine": 1}).channel().result_characters is None


def test_a_question_that_is_no_json_is_refused() -> None:
    with pytest.raises(ToolError) as caught:
        check_asks({"a": ClientRequest("elicitation/create", {"message": object()})}, {"elicitation": {}})
    assert caught.value.code == "internal_error"
