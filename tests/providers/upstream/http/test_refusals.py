"""What an upstream answers instead of an answer: each status is told as what it means for the message."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from raw_servers import Asked, Connect, Listening, Serve, note, plain, request, result

from toolyard.providers.upstream.link import LinkError


class Wallet:
    """Credentials that are renewed as they are told."""

    def __init__(self, *tokens: str | None, fails: LinkError | None = None) -> None:
        self.tokens: list[str | None] = list(tokens)
        self.fails = fails
        self.challenges: list[str] = []
        self.go = asyncio.Event()
        self.go.set()

    def ready(self) -> Mapping[str, str] | None:
        """Return the token of now."""
        token = self.tokens[0]
        return None if token is None else {"Authorization": f"Bearer {token}"}

    async def renew(self, challenge: str) -> bool:
        """Go on to the next token."""
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

    async def guard(asked: Asked) -> None:
        if asked.headers.get("authorization", "").removeprefix("Bearer ") in good:
            await asked.reply(200, result(asked.id))
        else:
            await asked.reply(status, b"Who are you?", www_authenticate=challenge)

    return guard


async def ask(sender: Any, told: Listening, number: int = 1) -> LinkError:
    sender.send(request(number), number, {})
    return await told.loss(number)


@pytest.mark.parametrize(
    ("status", "headers", "trouble", "sent"),
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
async def test_a_status_says_what_is_wrong_and_whether_the_message_may_have_been_acted_upon(
    raw: Serve, link: Connect, *, status: int, headers: dict[str, str], trouble: str, sent: bool
) -> None:
    server = await raw(plain(b"  Because.  ", status, **headers))
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.kind, error.sent, error.status, error.text) == (trouble, sent, status, "Because.")
    assert error.challenge == headers.get("www_authenticate", "")
    assert "'there'" in error.message


@pytest.mark.parametrize(("later", "goodbyes"), [(None, 0), ("stale", 1), ("good", 1)])
async def test_nobody_renews_credentials_to_say_goodbye(raw: Serve, link: Connect, later: str | None, goodbyes: int) -> None:
    async def welcome(asked: Asked) -> None:
        if asked.headers.get("authorization") == "Bearer good":
            await asked.reply(200, result(asked.id) if asked.method == "POST" else b"", mcp_session_id="s")
        else:
            await asked.reply(401, b"", www_authenticate="Bearer")

    server = await raw(welcome)
    wallet = Wallet("good")
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {})
    await told.message(1)
    wallet.tokens = [later, "next"]

    await sender.close()

    assert [asked.method for asked in server.asked] == ["POST"] + ["DELETE"] * goodbyes
    assert wallet.challenges == []


@pytest.mark.parametrize("body", [b'{"error":"no"}', b'{"error":{"message":"no"}}', b"[]", b"null"])
async def test_json_that_is_no_error_of_json_rpc_is_only_text(raw: Serve, link: Connect, body: bytes) -> None:
    server = await raw(plain(body, 400))
    sender, told = await link(server.url)

    assert (await ask(sender, told)).text == body.decode()


@pytest.mark.parametrize(("value", "seconds"), [("7", 7.0), ("0", 0.0), ("soon", None), ("", None), ("9" * 400, 86400.0), ("-3", None)])
async def test_how_long_it_wants_to_be_left_alone_is_told(raw: Serve, link: Connect, value: str, seconds: float | None) -> None:
    server = await raw(plain(b"", 429, retry_after=value))
    sender, told = await link(server.url)

    assert (await ask(sender, told)).retry_after == seconds


@pytest.mark.parametrize(("minutes", "low", "high"), [(10, 500, 600), (-10, 0, 0)])
async def test_a_date_says_it_too(raw: Serve, link: Connect, minutes: int, low: float, high: float) -> None:
    server = await raw(plain(b"", 503, retry_after=format_datetime(datetime.now(UTC) + timedelta(minutes=minutes), usegmt=True)))
    sender, told = await link(server.url)

    wait = (await ask(sender, told)).retry_after

    assert wait is not None
    assert low <= wait <= high


async def test_the_words_of_an_error_are_cut_however_long_it_is(raw: Serve, link: Connect) -> None:
    async def endless(asked: Asked) -> None:
        await asked.write(b"HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\n")
        while True:
            await asked.write("é".encode() * 10_000)

    server = await raw(endless)
    sender, told = await link(server.url)

    error = await ask(sender, told)

    assert (error.status, error.text) == (500, "é" * 500)


async def test_a_session_that_is_not_known_any_more_is_lost_and_not_named_again(raw: Serve, link: Connect) -> None:
    async def forget(asked: Asked) -> None:
        named = asked.headers.get("mcp-session-id")
        if asked.method == "DELETE":
            await asked.reply(405)
        elif named is None:
            await asked.reply(200, result(asked.id), mcp_session_id=f"s{asked.id}")
        else:
            await asked.reply(404, b'{"jsonrpc":"2.0","id":%d,"error":{"code":-32001,"message":"Gone."}}' % asked.id)

    server = await raw(forget)
    sender, told = await link(server.url)
    sender.send(request(1), 1, {})
    await told.message(about=1)
    sender.send(request(2), 2, {})
    sender.send(request(3), 3, {})

    errors = [(await told.next())[1] for _ in range(2)]
    sender.send(request(4), 4, {})
    await told.message(about=4)

    assert {(error.kind, error.sent, error.status) for error in errors} == {("session_lost", False, 404)}
    assert [asked.headers.get("mcp-session-id") for asked in server.asked] == [None, "s1", "s1", None]


async def test_credentials_are_renewed_once_for_all_messages_that_were_refused(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    wallet = Wallet("old", "new")
    wallet.go.clear()
    sender, told = await link(server.url, credentials=wallet)
    for number in (1, 2, 3):
        sender.send(request(number), number, {})
    sender.send(request(4), 4, {})
    sender.send(note(), None, {})
    async with asyncio.timeout(10):
        while len(sender._courier._unsent) < 5:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop
    sender.drop(4)
    wallet.go.set()

    answered = {(await told.next())[2] for _ in range(3)}

    assert answered == {1, 2, 3}
    assert wallet.challenges == ["Bearer scope=x"]
    assert told.told.empty()


async def test_who_comes_late_uses_what_was_renewed_meanwhile(raw: Serve, link: Connect) -> None:
    wallet = Wallet("old", "new")

    async def late(asked: Asked) -> None:
        if asked.headers["authorization"] == "Bearer old":
            wallet.tokens[:] = ["new"]
            await asked.reply(401)
        else:
            await asked.reply(200, result(asked.id))

    server = await raw(late)
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {})

    await told.message(about=1)
    assert wallet.challenges == []


async def test_credentials_that_are_no_better_end_the_message(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    wallet = Wallet("old", "older")
    sender, told = await link(server.url, credentials=wallet)

    assert (await ask(sender, told)).kind == "unauthenticated"
    assert (wallet.challenges, len(server.asked)) == (["Bearer scope=x"], 2)


async def test_a_message_that_is_dropped_before_it_is_sent_again_is_forgotten(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    sender, told = await link(server.url)
    wallet = Wallet("old", "new")
    sender._courier._credentials = wallet
    judge = sender._courier.judge

    def drop(exchange: Any) -> None:
        if exchange.request_id == 1:
            wallet.tokens[:] = ["new"]  # as if somebody had been quicker
        judge(exchange)
        sender.drop(1)

    sender._courier.judge = drop
    sender.send(request(1), 1, {})
    async with asyncio.timeout(10):
        while sender._waiting:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop
    sender.send(request(2), 2, {})
    await told.message(about=2)

    assert [asked.id for asked in server.asked] == [1, 2]


async def test_who_is_dropped_while_it_is_refused_for_good_is_told_nothing(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    sender, told = await link(server.url, credentials=Wallet("old", "older"))
    judge = sender._courier.judge

    def drop(exchange: Any) -> None:
        judge(exchange)
        if len(server.asked) == 2:
            sender.drop(1)

    sender._courier.judge = drop
    sender.send(request(1), 1, {})
    async with asyncio.timeout(10):
        while sender._waiting:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop
    await sender.close()

    assert told.told.empty()


async def test_closing_stops_getting_credentials(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    wallet = Wallet("old", "new")
    wallet.go.clear()
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {})
    async with asyncio.timeout(10):
        while not wallet.challenges:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)  # a turn of the loop

    await sender.close()

    assert told.told.empty()
    assert len(server.asked) == 1


async def test_credentials_that_ran_out_are_renewed_before_anything_is_sent(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    wallet = Wallet(None, "new")
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {})

    await told.message(about=1)

    assert (wallet.challenges, len(server.asked)) == ([""], 1)


async def test_credentials_that_are_never_there_end_the_message_unsent(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    sender, told = await link(server.url, credentials=Wallet(None, None))

    error = await ask(sender, told)

    assert (error.kind, error.sent, error.status, server.asked) == ("unauthenticated", False, None, [])


async def test_whoever_cannot_get_credentials_says_why(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    wallet = Wallet("old", fails=LinkError("unauthenticated", "Run 'toolyard login there'."))
    sender, told = await link(server.url, credentials=wallet)

    error = await ask(sender, told)

    assert (error.kind, error.message) == ("unauthenticated", "Run 'toolyard login there'.")
    assert (error.status, error.challenge, error.text) == (401, "Bearer scope=x", "Who are you?")


@pytest.mark.parametrize("status", [401, 403])
async def test_credentials_of_a_caller_are_not_replaced_by_ours(raw: Serve, link: Connect, status: int) -> None:
    server = await raw(guarded("ours", status=status))
    wallet = Wallet("ours", "others")
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {"authorization": "Bearer theirs"})

    error = await told.loss(1)

    assert (error.kind, error.status) == ("unauthenticated", status)
    assert error.message == "'there' refuses the credentials it was shown."
    assert [asked.headers["authorization"] for asked in server.asked] == ["Bearer theirs"]
    assert wallet.challenges == []


async def test_others_are_had_also_for_who_refuses_without_a_word(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new", challenge=""))
    wallet = Wallet("old", "new")
    sender, told = await link(server.url, credentials=wallet)
    sender.send(request(1), 1, {})

    await told.message(about=1)

    assert wallet.challenges == ["Bearer"]


async def test_a_header_of_the_settings_is_told_as_shown(raw: Serve, link: Connect) -> None:
    server = await raw(guarded("new"))
    sender, told = await link(server.url, headers={"Authorization": "Bearer old"})
    assert "refuses the credentials" in (await ask(sender, told)).message

    sender, told = await link(server.url)
    assert "wants credentials" in (await ask(sender, told)).message


async def test_a_further_challenge_is_met_too_but_not_without_end(raw: Serve, link: Connect) -> None:
    async def more(asked: Asked) -> None:
        have = asked.headers["authorization"].removeprefix("Bearer ")
        if have == "four":
            await asked.reply(200, result(asked.id))
        else:
            await asked.reply(403, b"", www_authenticate=f"Bearer not {have}")

    server = await raw(more)
    sender, told = await link(server.url, credentials=Wallet("one", "two", "three", "four"))
    sender.send(request(1), 1, {})
    await told.message(about=1)
    sender, told = await link(server.url, credentials=Wallet("zero", "one", "two", "three", "four"))

    assert (await ask(sender, told)).challenge == "Bearer not three"


async def test_a_plain_no_to_somebody_it_knows_is_no_want_of_credentials(raw: Serve, link: Connect) -> None:
    server = await raw(plain(b"Not you.", 403))
    wallet = Wallet("one", "two")
    sender, told = await link(server.url, credentials=wallet)

    error = await ask(sender, told)

    assert (error.kind, error.status, error.text) == ("refused", 403, "Not you.")
    assert wallet.challenges == [""]


@pytest.mark.parametrize(("status", "place"), [(307, "/mcp/"), (308, "/other?x=1"), (307, "/other")])
async def test_a_redirect_within_the_server_is_followed_with_everything(raw: Serve, link: Connect, status: int, place: str) -> None:
    async def point(asked: Asked) -> None:
        if asked.target == place:
            await asked.reply(200, result(asked.id))
        else:
            await asked.reply(status, b"", location=place)

    server = await raw(point)
    sender, told = await link(server.url, credentials=Wallet("token"))
    for number in (1, 2):
        sender.send(request(number), number, {"X-Mine": "1"})
        await told.message(about=number)

    remembered = status == 308 or place == "/mcp/"
    assert [asked.target for asked in server.asked] == ["/mcp", place, *([place] if remembered else ["/mcp", place])]
    last = server.asked[-1]
    assert (last.body, last.headers["authorization"], last.headers["x-mine"]) == (request(2), "Bearer token", "1")


@pytest.mark.parametrize(
    "place", ["http://127.0.0.1:9/mcp", "https://{here}/mcp", "http://localhost/", "//evil.example/", "ftp://x", "http://[", ""]
)
async def test_a_redirect_to_elsewhere_is_not_followed(raw: Serve, link: Connect, place: str) -> None:
    server = await raw(plain(b"", 307, location=place))
    server.behaviour = plain(b"", 307, location=place.format(here=server.url.split("/")[2]))
    sender, told = await link(server.url, credentials=Wallet("token"))

    error = await ask(sender, told)

    assert (error.kind, error.status, error.sent) == ("refused", 307, False)
    assert len(server.asked) == (1 if place else 4)


async def test_a_redirect_in_circles_ends(raw: Serve, link: Connect) -> None:
    server = await raw(plain(b"", 307, location="/round"))
    sender, told = await link(server.url)

    assert (await ask(sender, told)).status == 307
    assert len(server.asked) == 4
