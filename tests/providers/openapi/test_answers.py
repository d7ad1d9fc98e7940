"""Answers of an API: as data, as content, as failures, and with the next page."""

import gzip
import time
import zlib
from email.utils import formatdate
from pathlib import Path
from typing import Any

from api_server import Received, Reply, document_of, opened, serving
from table_tests import every_row

from callyard.model.envelope import Envelope

QUERY = [
    {"name": name, "in": "query", "schema": {"type": kind}}
    for name, kind in (("page", "integer"), ("cursor", "string"), ("offset", "integer"), ("q", "string"))
]
DOCUMENT = document_of(
    {
        "/x": {
            "get": {"operationId": "list", "parameters": QUERY, "responses": {}},
            "post": {"operationId": "make"},
            "head": {"operationId": "look"},
            "put": {"operationId": "put"},
        }
    }
)


async def answered(tmp_path: Path, reply: Reply | None, tool: str = "list", **arguments: Any) -> Envelope:
    async with serving(lambda _: reply) as api, opened(tmp_path, DOCUMENT, base_url=api.url) as yard:
        return await yard.call(f"api__{tool}", arguments)


@every_row(
    "reply, data",
    [
        (Reply(body=b'{"a": [1]}'), {"a": [1]}),
        (Reply(body=b"[1, null]", type="application/vnd.x+json; charset=utf-8"), [1, None]),
        (Reply(body=b"null"), None),
        (Reply(204, b""), {"status": 204}),
        (Reply(202, b""), {"status": 202}),
        (Reply(body="Grüezi".encode("latin-1"), type="text/plain; charset=latin-1"), "Grüezi"),
        (Reply(body=b"x", type="text/plain; charset=nonsense"), "x"),
        (Reply(body=b"<a/>", type="application/xml"), "<a/>"),
        (Reply(body=b'{"a": 1}', type=""), {"a": 1}),
        (
            Reply(body=b"plain words", type=""),
            {"type": "resource", "mime_type": "application/octet-stream", "bytes": 11},
        ),
        (
            Reply(body=b"\x89PNG\r\n\x1a\n..", type="image/png"),
            {"type": "image", "mime_type": "image/png", "bytes": 10},
        ),
        (Reply(body=b"PK", type="application/zip"), {"type": "resource", "mime_type": "application/zip", "bytes": 2}),
        (Reply(body=gzip.compress(b'{"z": 1}'), headers={"Content-Encoding": "gzip"}), {"z": 1}),
        (Reply(body=zlib.compress(b'{"z": 2}'), headers={"Content-Encoding": "deflate"}), {"z": 2}),
    ],
)
async def test_a_success_is_data_or_a_block(reply: Reply, data: Any, tmp_path: Path) -> None:
    answer = await answered(tmp_path, reply)

    assert answer.success, answer.error
    assert answer.data == data


async def test_an_answer_that_is_not_what_it_says_is_text_with_a_warning(tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(body=b"<html>"))

    assert answer.data == "<html>"
    assert len(answer.meta.warnings) == 1


async def test_a_head_request_is_answered_without_a_body(tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(body=b'{"a": 1}'), "look")

    assert answer.data == {"status": 200}


@every_row(
    "status, code, blame, ran",
    [
        (400, "invalid_input", "caller", False),
        (401, "unauthenticated", "upstream", False),
        (402, "upstream_error", "upstream", True),
        (403, "permission_denied", "upstream", False),
        (404, "not_found", "upstream", False),
        (405, "upstream_error", "upstream", False),
        (409, "state_error", "upstream", False),
        (410, "not_found", "upstream", False),
        (412, "state_error", "upstream", False),
        (415, "upstream_error", "upstream", False),
        (418, "upstream_error", "upstream", True),
        (422, "invalid_input", "caller", False),
        (429, "rate_limited", "upstream", False),
        (500, "upstream_error", "upstream", True),
        (502, "upstream_error", "upstream", True),
        (503, "upstream_unavailable", "upstream", True),
        (304, "upstream_error", "upstream", True),
    ],
)
async def test_each_status_is_one_code(status: int, code: Any, *, blame: str, ran: bool, tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(status, b'{"message": "No such luck."}'), "make")
    error = answer.expect_error(code)

    assert (error.blame, error.may_have_run, error.details["status"]) == (blame, ran, status)
    assert status == 304 or "No such luck" in error.message


@every_row(
    "body",
    [
        b'{"error": {"message": "Too bad"}}',
        b'{"errors": [{"detail": "Too bad"}]}',
        b'{"detail": [{"msg": "Too bad"}]}',
        b'{"error_description": "Too bad"}',
        b'"Too bad"',
    ],
)
async def test_a_failure_has_the_words_of_the_api(body: bytes, tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(422, body))

    assert "Too bad" in answer.expect_error("invalid_input").message


@every_row(
    "headers, least, most",
    [
        ({"Retry-After": "7"}, 7000, 7000),
        ({"Retry-After": formatdate(time.time() + 7200, usegmt=True)}, 1_000_000, 7_200_000),
        ({"Retry-After": "soon"}, 1000, 1000),
        ({"X-RateLimit-Reset": str(int(time.time()) + 7200)}, 1_000_000, 7_200_000),
        ({"RateLimit-Reset": "30"}, 30_000, 30_000),
        ({}, 1000, 1000),
    ],
)
async def test_a_rate_limit_says_when_to_come_back(headers: Any, least: int, most: int, tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(429, b"", headers))

    assert least <= answer.expect_error("rate_limited").details["retry_after_ms"] <= most


async def test_a_403_of_a_used_up_limit_is_a_rate_limit(tmp_path: Path) -> None:
    answer = await answered(tmp_path, Reply(403, b"{}", {"X-RateLimit-Remaining": "0", "RateLimit-Reset": "30"}))

    assert answer.expect_error("rate_limited").details["retry_after_ms"] == 30_000


async def test_a_broken_connection_may_have_run_and_no_connection_has_not(tmp_path: Path) -> None:
    lost = await answered(tmp_path, None, "make")
    async with opened(tmp_path, DOCUMENT, base_url="http://127.0.0.1:9") as yard:
        refused = await yard.call("api__make")

    assert lost.expect_error("upstream_unavailable").may_have_run
    assert not refused.expect_error("upstream_unavailable").may_have_run


async def test_a_lost_connection_is_tried_again_where_that_does_no_harm(tmp_path: Path) -> None:
    def respond(request: Received) -> Reply | None:
        first = sum(one.method == request.method for one in api.received) == 1
        return None if first else Reply()

    async with serving(respond) as api, opened(tmp_path, DOCUMENT, base_url=api.url) as yard:
        assert (await yard.call("api__list")).success
        assert (await yard.call("api__put")).success
        assert (await yard.call("api__make")).expect_error("upstream_unavailable")


async def test_the_breaker_opens_after_three_failures_of_the_whole_api(tmp_path: Path) -> None:
    async with (
        serving(lambda _: Reply(503, b"", {"Retry-After": "60"})) as api,
        opened(tmp_path, DOCUMENT, base_url=api.url) as yard,
    ):
        for _ in range(5):
            answer = await yard.call("api__list")
            assert answer.expect_error("upstream_unavailable").details["retry_after_ms"] > 1000

    assert len(api.received) < 4


async def test_a_failure_of_one_operation_opens_no_breaker(tmp_path: Path) -> None:
    async with serving(lambda _: Reply(500)) as api, opened(tmp_path, DOCUMENT, base_url=api.url) as yard:
        for _ in range(5):
            (await yard.call("api__list")).expect_error("upstream_error")

    assert len(api.received) == 5


@every_row(
    "reply, arguments, following",
    [
        (
            Reply(headers={"Link": '<https://x/y?page=2&q=a>; rel="next", <https://x/y?page=9>; rel="last"'}),
            {"q": "a"},
            {"q": "a", "page": 2},
        ),
        (Reply(headers={"Link": "</y?page=3>; rel=next"}), {"page": 2}, {"page": 3}),
        (Reply(body=b'{"links": {"next": "/x?cursor=c2"}}'), {}, {"cursor": "c2"}),
        (Reply(body=b'{"_links": {"next": {"href": "/x?cursor=c2"}}}'), {}, {"cursor": "c2"}),
        (Reply(body=b'{"response_metadata": {"next_cursor": "c2"}}'), {"q": "a"}, {"q": "a", "cursor": "c2"}),
        (Reply(body=b'{"paging": {"cursors": {"after": "c3"}}}'), {}, {"cursor": "c3"}),
        (Reply(body=b'{"total": 5, "items": [1, 2]}'), {"offset": 2}, {"offset": 4}),
        (Reply(body=b'{"total": 4, "items": [1, 2]}'), {"offset": 2}, None),
        (Reply(body=b'{"next_cursor": "c2"}'), {"cursor": "c2"}, None),
        (Reply(body=b'{"next_cursor": ""}'), {}, None),
        (Reply(headers={"Link": "<https://x/y?other=2>; rel=next"}), {}, None),
        (Reply(body=b"[1]"), {}, None),
    ],
)
async def test_the_next_page_is_the_arguments_of_the_next_call(
    reply: Reply, arguments: Any, following: Any, tmp_path: Path
) -> None:
    answer = await answered(tmp_path, reply, **arguments)

    assert answer.success, answer.error
    assert answer.meta.next_page == following


async def test_the_next_page_is_there_behind_a_metatool(tmp_path: Path) -> None:
    async with (
        serving(lambda _: Reply(body=b'{"next_cursor": "c2"}')) as api,
        opened(tmp_path, DOCUMENT, base_url=api.url) as yard,
    ):
        answer = await yard.call("run_tool", {"tool_id": "api__list", "args": {}})

    assert answer.meta.next_page == {"cursor": "c2"}
