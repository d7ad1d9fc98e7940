import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from callyard.testing import FakeClock
from callyard.transports.auth import IssuerUnreachableError, Refusal, Tokens
from callyard.transports.auth.jwks import Issuer

if TYPE_CHECKING:
    from tests.transports.auth.conftest import FakeIssuer

Make = Callable[..., Tokens]


async def test_keys_are_read_once_and_again_after_ten_minutes(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    tokens = make_tokens()
    for seconds in (0, 300, 299):
        clock.advance(seconds)
        await tokens.admit(issuer.bearer(jti=str(seconds)), None)
    assert issuer.asked == ["/keys"]

    clock.advance(1)
    await tokens.admit(issuer.bearer(jti="last"), None)

    assert issuer.asked == ["/keys"] * 2


async def test_an_issuer_that_hangs_delays_no_token_while_there_are_keys(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    tokens = make_tokens(deadline=60)
    await tokens.admit(issuer.bearer(), None)
    clock.advance(600)
    issuer.gate.clear()
    try:
        async with asyncio.timeout(60):
            admitted = [await tokens.admit(issuer.bearer(jti=str(number)), None) for number in range(50)]
    finally:
        issuer.gate.set()

    assert {caller.identity for caller in admitted} == {"ada"}


async def test_many_who_come_at_once_wait_for_one_answer(issuer: "FakeIssuer", make_tokens: Make) -> None:
    tokens = make_tokens()

    admitted = await asyncio.gather(*(tokens.admit(issuer.bearer(sub=f"s{number}"), None) for number in range(20)))

    assert [who.identity for who in admitted] == [f"s{number}" for number in range(20)]
    assert issuer.asked == ["/keys"]


async def test_one_who_goes_away_does_not_take_the_answer_from_the_others(
    issuer: "FakeIssuer", make_tokens: Make
) -> None:
    tokens = make_tokens()
    issuer.gate.clear()
    first, second = (asyncio.create_task(tokens.admit(issuer.bearer(sub=name), None)) for name in ("ada", "bob"))
    await asyncio.to_thread(issuer.arrived.wait)

    first.cancel()
    await asyncio.wait([first])
    issuer.gate.set()

    assert (await second).identity == "bob"
    assert issuer.asked == ["/keys"]


async def test_a_new_key_is_found_when_a_token_names_it(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock, public_jwk: Any
) -> None:
    tokens = make_tokens()
    await tokens.admit(issuer.bearer(), None)
    issuer.publish(public_jwk("EC", "two"))
    clock.advance(30)

    assert (await tokens.admit(issuer.bearer(kind="EC", kid="two"), None)).identity == "ada"
    assert issuer.asked == ["/keys"] * 2


async def test_a_key_that_was_withdrawn_ends_what_was_remembered_of_it(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock, public_jwk: Any
) -> None:
    tokens = make_tokens()
    old = issuer.bearer()
    await tokens.admit(old, None)
    issuer.publish(public_jwk("EC", "two"))
    clock.advance(30)
    await tokens.admit(issuer.bearer(kind="EC", kid="two"), None)

    with pytest.raises(Refusal):
        await tokens.admit(old, None)


async def test_a_flood_of_unknown_keys_asks_the_issuer_once(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    tokens = make_tokens()
    await tokens.admit(issuer.bearer(), None)
    clock.advance(30)
    issuer.asked.clear()

    flood = [
        tokens.admit(issuer.bearer(kid="other", header={"kid": f"made-up-{number}"}), None) for number in range(50)
    ]
    answers = await asyncio.gather(*flood, return_exceptions=True)
    for number in range(5):
        clock.advance(5)
        answers += await asyncio.gather(
            tokens.admit(issuer.bearer(kid="other", header={"kid": f"late-{number}"}), None), return_exceptions=True
        )

    assert {type(answer) for answer in answers} == {Refusal}
    assert issuer.asked == ["/keys"]


async def test_a_token_without_a_key_id_is_tried_with_every_key(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock, public_jwk: Any
) -> None:
    issuer.publish(public_jwk("RSA", "one"), public_jwk("RSA", "other"))
    tokens = make_tokens()
    assert (await tokens.admit(issuer.bearer(kid="other", header={}), None)).identity == "ada"

    issuer.publish(public_jwk("RSA", "third"))
    clock.advance(30)

    assert (await tokens.admit(issuer.bearer(kid="third", header={}), None)).identity == "ada"


async def test_the_last_keys_are_kept_while_the_issuer_is_down(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = make_tokens()
    await tokens.admit(issuer.bearer(), None)
    issuer.stop()
    clock.advance(3000)

    with caplog.at_level(logging.WARNING):
        for name in ("b", "c"):
            assert (await tokens.admit(issuer.bearer(sub=name), None)).identity == name

    assert len(caplog.records) == 1
    assert "issuer_unreachable" in caplog.text
    assert "reason=unreachable" in caplog.text


async def test_without_any_keys_nobody_is_refused_but_asked_to_come_later(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock
) -> None:
    issuer.answer("/keys", {}, status=500)
    tokens = make_tokens()
    with pytest.raises(IssuerUnreachableError):
        await tokens.admit(issuer.bearer(), None)
    with pytest.raises(IssuerUnreachableError) as unreachable:
        await tokens.admit(issuer.bearer(), None)
    assert unreachable.value.retry_after == 5
    assert "500" in unreachable.value.message
    assert issuer.asked == ["/keys"]

    issuer.answer("/keys", {"keys": []})
    clock.advance(5)

    with pytest.raises(Refusal):
        await tokens.admit(issuer.bearer(), None)


async def test_a_slow_issuer_is_not_waited_for(issuer: "FakeIssuer", make_tokens: Make) -> None:
    issuer.gate.clear()

    with pytest.raises(IssuerUnreachableError, match="too long"):
        await make_tokens(deadline=0.05).admit(issuer.bearer(), None)


async def test_an_issuer_that_answers_in_drops_is_not_waited_for_either() -> None:
    ended = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
        with suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b" ")
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()
        ended.set()

    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(IssuerUnreachableError, match="too long"):
            await Issuer(url, f"{url}/keys", algorithms=["RS256"], deadline=0.5, changed=lambda: None).keys()
        async with asyncio.timeout(60):
            await ended.wait()  # the connection is closed, too


async def test_a_reader_of_old_keys_gets_the_new_ones_without_a_request(
    issuer: "FakeIssuer", clock: FakeClock, public_jwk: Any
) -> None:
    changes: list[int] = []
    keys = Issuer(
        issuer.url, issuer.jwks, algorithms=["RS256"], deadline=5, changed=lambda: changes.append(1), clock=clock
    )
    old = await keys.keys()
    clock.advance(30)
    assert await keys.newer_than(old) is None
    issuer.publish(public_jwk("RSA", "other"))
    clock.advance(30)

    new = await keys.newer_than(old)

    assert new is not None
    assert new is await keys.newer_than(old)
    assert (len(issuer.asked), len(changes)) == (3, 2)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b" " * 300_000 + b"{}", "too large"),
        (b"<html>", "JSON"),
        (b"\xff\xfe", "JSON"),
        (b"[" * 100_000, "JSON"),
        (b"[]", "JSON"),
        (b"{}", "no set of keys"),
        (b'{"keys": {}}', "no set of keys"),
    ],
    ids=["oversized", "a page", "no text", "deep", "a list", "no keys", "keys that are no list"],
)
async def test_a_document_that_is_no_set_of_keys_is_not_taken(
    issuer: "FakeIssuer", make_tokens: Make, body: bytes, word: str
) -> None:
    issuer.answer("/keys", body)

    with pytest.raises(IssuerUnreachableError, match=word):
        await make_tokens().admit(issuer.bearer(), None)


async def test_an_issuer_cannot_send_us_elsewhere(issuer: "FakeIssuer", make_tokens: Make) -> None:
    issuer.redirect = f"{issuer.url}/elsewhere"
    issuer.answers["/elsewhere"] = issuer.answers["/keys"]
    issuer.answer("/keys", {}, status=302)

    with pytest.raises(IssuerUnreachableError, match="302"):
        await make_tokens().admit(issuer.bearer(), None)
    assert issuer.asked == ["/keys"]


async def test_a_proxy_is_not_used_for_this_machine(
    issuer: "FakeIssuer", make_tokens: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert (await make_tokens().admit(issuer.bearer(), None)).identity == "ada"


SERVER, OPENID = "/.well-known/oauth-authorization-server", "/.well-known/openid-configuration"


@pytest.mark.parametrize("place", [SERVER, OPENID])
async def test_an_issuer_says_itself_where_its_keys_are(issuer: "FakeIssuer", make_tokens: Make, place: str) -> None:
    issuer.answer(place, {"issuer": issuer.url, "jwks_uri": issuer.jwks})

    assert (await make_tokens(jwks=None).admit(issuer.bearer(), None)).identity == "ada"


@pytest.mark.parametrize("place", [f"{SERVER}/tenant", f"/tenant{SERVER}", f"/tenant{OPENID}"])
async def test_an_issuer_with_a_path_is_found_too(issuer: "FakeIssuer", clock: FakeClock, place: str) -> None:
    name = f"{issuer.url}/tenant/"
    issuer.answer(place, {"issuer": name, "jwks_uri": issuer.jwks})

    assert (await Tokens(name, "yard", clock=clock, wall=clock).admit(issuer.bearer(iss=name), None)).identity == "ada"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"issuer": "https://elsewhere.example"}, "another issuer"),
        ({"jwks_uri": "http://elsewhere.example/keys"}, "trusted"),
        ({"jwks_uri": "file:///etc/passwd"}, "trusted"),
        ({"jwks_uri": 7}, "trusted"),
    ],
)
async def test_metadata_that_cannot_be_trusted_is_not(
    issuer: "FakeIssuer", make_tokens: Make, change: dict[str, Any], word: str
) -> None:
    issuer.answer(OPENID, {"issuer": issuer.url, "jwks_uri": issuer.jwks, **change})

    with pytest.raises(IssuerUnreachableError, match=word):
        await make_tokens(jwks=None).admit(issuer.bearer(), None)
    assert "/keys" not in issuer.asked


async def test_keys_can_be_given_once_and_for_all(issuer: "FakeIssuer", make_tokens: Make, public_jwk: Any) -> None:
    tokens = make_tokens(jwks={"keys": [public_jwk("RSA", "one")]})

    assert (await tokens.admit(issuer.bearer(), None)).identity == "ada"
    with pytest.raises(Refusal):
        await tokens.admit(issuer.bearer(kid="other"), None)
    assert issuer.asked == []


async def test_no_log_or_message_repeats_a_token_or_a_claim(
    issuer: "FakeIssuer", make_tokens: Make, clock: FakeClock, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = make_tokens(scopes=["read"])
    wrong = [
        issuer.bearer(sub="private-name"),
        issuer.bearer(sub="private-name", scope="private-scope"),
        issuer.bearer(sub="private-name", exp=1),
        issuer.bearer(sub="private-name", aud="private-audience"),
        issuer.bearer(sub="private-name", kid="other", header={"kid": "private-kid", "crit": ["private"]}),
    ]
    with caplog.at_level(logging.DEBUG):
        refusals = await asyncio.gather(*(tokens.admit(header, None) for header in wrong), return_exceptions=True)
        issuer.stop()
        clock.advance(1000)
        refusals += await asyncio.gather(*(tokens.admit(header, None) for header in wrong), return_exceptions=True)

    said = caplog.text + "".join(
        f"{refusal} {refusal.challenge(None)} {refusal.__cause__}"
        for refusal in refusals
        if isinstance(refusal, Refusal)
    )
    assert len([refusal for refusal in refusals if isinstance(refusal, Refusal)]) == 10
    assert "private" not in said
    assert not any(header.split()[1][:40] in said for header in wrong)
