"""What an upstream answers instead of an answer: each status is listener as what it means for the message."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from raw_servers import (
    Connect,
    Request,
    Serve,
    answers,
    failed_call,
    notification,
    request_message,
    result_message,
    until,
)

from callyard.providers.upstream.link import Credentials, LinkError


class FakeCredentials(Credentials):
    """Credentials with a list of tokens to renew."""

    def __init__(self, *tokens: str | None, fails: LinkError | None = None) -> None:
        self.tokens: list[str | None] = list(tokens)
        self.fails = fails
        self.challenges: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    def ready(self) -> Mapping[str, str] | None:
        """Return the current token."""
        token = self.tokens[0]
        return None if token is None else {"Authorization": f"Bearer {token}"}

    async def renew(self, challenge: str) -> bool:
        """Switch to the next token."""
        self.challenges.append(challenge)
        await self.go.wait()
        if self.fails is not None:
            raise self.fails
        self.tokens.pop(0)
        return bool(self.tokens) or self.tokens.append("none")  # pyright: ignore[reportReturnType] - nothing is no

    async def close(self) -> None:
        """Wait for nothing."""


def guarded(*good: str, status: int = 401, challenge: str = "Bearer scope=x") -> Any:
    """Return a behaviour that wants one of these tokens."""

    async def guard(request: Request) -> None:
        if request.headers.get("authorization", "").removeprefix("Bearer ") in good:
            await request.reply(200, result_message(request.id))
        else:
            await request.reply(status, b"Who are you?", www_authenticate=challenge)

    return guard


@pytest.mark.parametrize(
    ("status", "headers", "kind", "sent"),
    [
        (400, {}, "refused", False),
        (401, {"www_authenticate": "Bearer"}, "unauthenticated", False),
        (403, {}, "refused", False),
        (403, {"www_authenticate": "Bearer"}, "unauthenticated", False),
        (404, {}, "refused", False),
        (429, {}, "rate_limited", False),
        (500, {}, "refused", True),
        (502, {}, "refused", True),
        (503, {}, "unavailable", True),
        (503, {"retry_after": "7"}, "unavailable", False),
        (302, {"location": "/else"}, "refused", False),
        (302, {}, "refused", False),
        (202, {}, "refused", True),
    ],
)
async def test_a_status_tells_the_trouble_and_whether_the_message_may_have_been_processed(
    serve: Serve, connect: Connect, *, status: int, headers: dict[str, str], kind: str, sent: bool
) -> None:
    server = await serve(answers(b"  Because.  ", status, **headers))
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.kind, error.sent, error.status, error.text) == (kind, sent, status, "Because.")
    assert error.challenge == headers.get("www_authenticate", "")
    assert "'there'" in error.message


@pytest.mark.parametrize(("later", "goodbyes"), [(None, 0), ("stale", 1), ("good", 1)])
async def test_credentials_are_not_renewed_to_delete_a_session(
    serve: Serve, connect: Connect, later: str | None, goodbyes: int
) -> None:
    async def welcome(request: Request) -> None:
        if request.headers.get("authorization") == "Bearer good":
            await request.reply(
                200, result_message(request.id) if request.method == "POST" else b"", mcp_session_id="s"
            )
        else:
            await request.reply(401, b"", www_authenticate="Bearer")

    server = await serve(welcome)
    credentials = FakeCredentials("good")
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {})
    await listener.message(1)
    credentials.tokens = [later, "next"]

    await link.close()

    assert [request.method for request in server.requests] == ["POST"] + ["DELETE"] * goodbyes
    assert credentials.challenges == []


@pytest.mark.parametrize("body", [b'{"error":"no"}', b'{"error":{"message":"no"}}', b"[]", b"null"])
async def test_json_that_is_not_a_json_rpc_error_is_only_text(serve: Serve, connect: Connect, body: bytes) -> None:
    server = await serve(answers(body, 400))
    link, listener = await connect(server.url)

    assert (await failed_call(link, listener)).text == body.decode()


@pytest.mark.parametrize(
    ("value", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), ("", None), ("9" * 400, 86400.0), ("-3", None)]
)
async def test_retry_after_in_seconds_is_reported(
    serve: Serve, connect: Connect, value: str, seconds: float | None
) -> None:
    server = await serve(answers(b"", 429, retry_after=value))
    link, listener = await connect(server.url)

    assert (await failed_call(link, listener)).retry_after == seconds


@pytest.mark.parametrize(("minutes", "low", "high"), [(10, 500, 600), (-10, 0, 0)])
async def test_retry_after_as_a_date_is_reported(
    serve: Serve, connect: Connect, minutes: int, low: float, high: float
) -> None:
    server = await serve(
        answers(b"", 503, retry_after=format_datetime(datetime.now(UTC) + timedelta(minutes=minutes), usegmt=True))
    )
    link, listener = await connect(server.url)

    wait = (await failed_call(link, listener)).retry_after

    assert wait is not None
    assert low <= wait <= high


async def test_the_text_of_an_error_is_cut(serve: Serve, connect: Connect) -> None:
    async def endless(request: Request) -> None:
        await request.write(b"HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await request.write("é".encode() * 10_000)

    server = await serve(endless)
    link, listener = await connect(server.url)

    error = await failed_call(link, listener)

    assert (error.status, error.text) == (500, "é" * 500)


async def test_a_lost_session_is_reported_and_not_sent_again(serve: Serve, connect: Connect) -> None:
    async def forget(request: Request) -> None:
        named = request.headers.get("mcp-session-id")
        if request.method == "DELETE":
            await request.reply(405)
        elif named is None:
            await request.reply(200, result_message(request.id), mcp_session_id=f"s{request.id}")
        else:
            await request.reply(
                404, b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32001,"message":"Gone."}}' % request.id
            )

    server = await serve(forget)
    link, listener = await connect(server.url)
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    link.send(request_message(2), 2, {})
    link.send(request_message(3), 3, {})

    errors = [(await listener.next())[1] for _ in range(2)]
    link.send(request_message(4), 4, {})
    await listener.message(about=4)

    assert {(error.kind, error.sent, error.status) for error in errors} == {("session_lost", False, 404)}
    assert [request.headers.get("mcp-session-id") for request in server.requests] == [None, "s1", "s1", None]


async def test_credentials_are_renewed_once_for_all_messages_that_were_refused(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    credentials = FakeCredentials("old", "new")
    credentials.go.clear()
    link, listener = await connect(server.url, credentials=credentials)
    for number in (1, 2, 3):
        link.send(request_message(number), number, {})
    link.send(request_message(4), 4, {})
    link.send(notification(), None, {})
    await until(lambda: len(link._sender._awaiting_credentials) >= 5)
    link.drop(4)
    credentials.go.set()

    answered = {(await listener.next())[2] for _ in range(3)}

    assert answered == {1, 2, 3}
    assert credentials.challenges == ["Bearer scope=x"]
    assert listener.calls.empty()


async def test_a_late_refusal_uses_the_credentials_renewed_meanwhile(serve: Serve, connect: Connect) -> None:
    credentials = FakeCredentials("old", "new")

    async def late(request: Request) -> None:
        if request.headers["authorization"] == "Bearer old":
            credentials.tokens[:] = ["new"]
            await request.reply(401)
        else:
            await request.reply(200, result_message(request.id))

    server = await serve(late)
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {})

    await listener.message(about=1)
    assert credentials.challenges == []


async def test_renewed_credentials_that_are_refused_fail_the_message(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    credentials = FakeCredentials("old", "older")
    link, listener = await connect(server.url, credentials=credentials)

    assert (await failed_call(link, listener)).kind == "unauthenticated"
    assert (credentials.challenges, len(server.requests)) == (["Bearer scope=x"], 2)


async def test_a_message_dropped_before_it_is_sent_again_is_forgotten(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    link, listener = await connect(server.url)
    credentials = FakeCredentials("old", "new")
    link._sender._credentials = credentials
    handle_status = link._sender.handle_status

    def drop(exchange: Any) -> None:
        if exchange.request_id == 1:
            credentials.tokens[:] = ["new"]  # as if somebody had been quicker
        handle_status(exchange)
        link.drop(1)

    link._sender.handle_status = drop
    link.send(request_message(1), 1, {})
    await until(lambda: not link._requests)
    link.send(request_message(2), 2, {})
    await listener.message(about=2)

    assert [request.id for request in server.requests] == [1, 2]


async def test_a_message_dropped_while_its_refusal_is_final_hears_nothing(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    link, listener = await connect(server.url, credentials=FakeCredentials("old", "older"))
    handle_status = link._sender.handle_status

    def drop(exchange: Any) -> None:
        handle_status(exchange)
        if len(server.requests) == 2:
            link.drop(1)

    link._sender.handle_status = drop
    link.send(request_message(1), 1, {})
    await until(lambda: not link._requests)
    await link.close()

    assert listener.calls.empty()


async def test_closing_cancels_the_renewal_of_credentials(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    credentials = FakeCredentials("old", "new")
    credentials.go.clear()
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {})
    await until(lambda: credentials.challenges)

    await link.close()

    assert listener.calls.empty()
    assert len(server.requests) == 1


async def test_expired_credentials_are_renewed_before_anything_is_sent(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    credentials = FakeCredentials(None, "new")
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {})

    await listener.message(about=1)

    assert (credentials.challenges, len(server.requests)) == ([""], 1)


async def test_without_credentials_the_message_fails_unsent(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    link, listener = await connect(server.url, credentials=FakeCredentials(None, None))

    error = await failed_call(link, listener)

    assert (error.kind, error.sent, error.status, server.requests) == ("unauthenticated", False, None, [])


async def test_a_failed_renewal_reports_its_reason(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    credentials = FakeCredentials("old", fails=LinkError("unauthenticated", "Run 'callyard login there'."))
    link, listener = await connect(server.url, credentials=credentials)

    error = await failed_call(link, listener)

    assert (error.kind, error.message) == ("unauthenticated", "Run 'callyard login there'.")
    assert (error.status, error.challenge, error.text) == (401, "Bearer scope=x", "Who are you?")


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_of_a_caller_are_not_replaced_by_ours(serve: Serve, connect: Connect, status: int) -> None:
    server = await serve(guarded("ours", status=status))
    credentials = FakeCredentials("ours", "others")
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {"authorization": "Bearer theirs"})

    error = await listener.loss(1)

    assert (error.kind, error.status) == ("unauthenticated", status)
    assert error.message == "'there' refuses the credentials that were sent."
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer theirs"]
    assert credentials.challenges == []


async def test_credentials_are_renewed_after_a_401_without_a_challenge(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new", challenge=""))
    credentials = FakeCredentials("old", "new")
    link, listener = await connect(server.url, credentials=credentials)
    link.send(request_message(1), 1, {})

    await listener.message(about=1)

    assert credentials.challenges == ["Bearer"]


async def test_an_authorization_header_of_the_settings_counts_as_credentials(serve: Serve, connect: Connect) -> None:
    server = await serve(guarded("new"))
    link, listener = await connect(server.url, headers={"Authorization": "Bearer old"})
    assert "refuses the credentials" in (await failed_call(link, listener)).message

    link, listener = await connect(server.url)
    assert "requires credentials" in (await failed_call(link, listener)).message


async def test_further_challenges_are_answered_up_to_a_limit(serve: Serve, connect: Connect) -> None:
    async def more(request: Request) -> None:
        have = request.headers["authorization"].removeprefix("Bearer ")
        if have == "four":
            await request.reply(200, result_message(request.id))
        else:
            await request.reply(403, b"", www_authenticate=f"Bearer not {have}")

    server = await serve(more)
    link, listener = await connect(server.url, credentials=FakeCredentials("one", "two", "three", "four"))
    link.send(request_message(1), 1, {})
    await listener.message(about=1)
    link, listener = await connect(server.url, credentials=FakeCredentials("zero", "one", "two", "three", "four"))

    assert (await failed_call(link, listener)).challenge == "Bearer not three"


async def test_a_403_without_a_challenge_is_not_about_credentials(serve: Serve, connect: Connect) -> None:
    server = await serve(answers(b"Not you.", 403))
    credentials = FakeCredentials("one", "two")
    link, listener = await connect(server.url, credentials=credentials)

    error = await failed_call(link, listener)

    assert (error.kind, error.status, error.text) == ("refused", 403, "Not you.")
    assert credentials.challenges == [""]


@pytest.mark.parametrize(("status", "place"), [(307, "/mcp/"), (308, "/other?x=1"), (307, "/other")])
async def test_a_redirect_within_the_origin_is_followed(
    serve: Serve, connect: Connect, status: int, place: str
) -> None:
    async def point(request: Request) -> None:
        if request.target == place:
            await request.reply(200, result_message(request.id))
        else:
            await request.reply(status, b"", location=place)

    server = await serve(point)
    link, listener = await connect(server.url, credentials=FakeCredentials("token"))
    for number in (1, 2):
        link.send(request_message(number), number, {"X-Mine": "1"})
        await listener.message(about=number)

    remembered = status == 308 or place == "/mcp/"
    assert [request.target for request in server.requests] == [
        "/mcp",
        place,
        *([place] if remembered else ["/mcp", place]),
    ]
    last = server.requests[-1]
    assert (last.body, last.headers["authorization"], last.headers["x-mine"]) == (
        request_message(2),
        "Bearer token",
        "1",
    )


@pytest.mark.parametrize(
    "place",
    ["http://127.0.0.1:9/mcp", "https://{here}/mcp", "http://localhost/", "//evil.example/", "ftp://x", "http://[", ""],
)
async def test_a_redirect_to_another_origin_is_not_followed(serve: Serve, connect: Connect, place: str) -> None:
    server = await serve(answers(b"", 307, location=place))
    server.behaviour = answers(b"", 307, location=place.format(here=server.url.split("/")[2]))
    link, listener = await connect(server.url, credentials=FakeCredentials("token"))

    error = await failed_call(link, listener)

    assert (error.kind, error.status, error.sent) == ("refused", 307, False)
    assert len(server.requests) == (1 if place else 4)


async def test_a_redirect_loop_ends(serve: Serve, connect: Connect) -> None:
    server = await serve(answers(b"", 307, location="/round"))
    link, listener = await connect(server.url)

    assert (await failed_call(link, listener)).status == 307
    assert len(server.requests) == 4
