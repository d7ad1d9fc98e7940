"""Greetings: the era of an upstream is found out once, whatever it does when it is asked for another."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from scripted import HANDSHAKE, MODERN, ScriptedLink

from toolyard.providers.upstream import handshake
from toolyard.providers.upstream.handshake import Handshake, ProbeLostError, negotiate
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.session import ClientSession
from toolyard.wire.messages import METHOD_NOT_FOUND, UNSUPPORTED_VERSION, Fault, Id


async def greeted(link: ScriptedLink, era: Any = "auto", known: str | None = None) -> Handshake:
    """Return what an upstream says of itself."""
    session = ClientSession("up", link, http=True, on_notification=lambda _method, _params: None, on_end=lambda _: None)
    await link.open(session)
    return await negotiate(session, link, era, last_version=known)


def methods(link: ScriptedLink) -> list[str]:
    """Return what it was asked."""
    return [message["method"] for message in link.sent]


async def test_an_upstream_of_the_newer_era_is_asked_once_and_shakes_no_hands() -> None:
    link = ScriptedLink(MODERN)
    told = await greeted(link)

    assert (told.version.name, told.server["name"], methods(link)) == ("2026-07-28", "scripted", ["server/discover"])


async def test_one_of_the_older_era_that_refuses_shakes_hands_and_is_listened_to() -> None:
    link = ScriptedLink(HANDSHAKE)
    told = await greeted(link)

    assert (told.version.name, told.instructions) == ("2025-11-25", "Be kind.")
    assert methods(link) == ["server/discover", "initialize", "notifications/initialized"]
    assert link.sent[1]["params"]["capabilities"] == {"elicitation": {}, "sampling": {}}
    assert link.headers[2] == {"MCP-Protocol-Version": "2025-11-25"}
    assert link.listens


@pytest.mark.parametrize(
    "refusal",
    [
        LinkError("refused", "400.", status=400),
        LinkError("session_lost", "404.", status=404),
        Fault(UNSUPPORTED_VERSION, "No.", {"supported": ["2025-06-18"]}),
        Fault(UNSUPPORTED_VERSION, "No.", "what?"),
        {"something": "else"},
        {"supportedVersions": ["2027-01-01"]},
    ],
)
async def test_whatever_else_it_answers_it_gets_a_handshake(refusal: Any) -> None:
    assert (await greeted(ScriptedLink({**HANDSHAKE, "server/discover": refusal}))).version.name == "2025-11-25"


async def test_one_that_refuses_our_version_and_names_it_is_asked_once_more() -> None:
    refusal = Fault(UNSUPPORTED_VERSION, "No.", {"supported": ["2026-07-28"]})
    answers: list[Any] = [refusal, MODERN["server/discover"]]

    def answer(_: object) -> Any:
        return answers.pop(0)

    link = ScriptedLink({"server/discover": answer})

    assert (await greeted(link)).version.name == "2026-07-28"
    assert methods(link) == ["server/discover", "server/discover"]
    assert (await greeted(ScriptedLink({**HANDSHAKE, "server/discover": refusal}))).version.name == "2025-11-25"


async def test_silence_means_the_older_era_after_a_short_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)

    assert (await greeted(ScriptedLink({**HANDSHAKE, "server/discover": None}))).version.name == "2025-11-25"


class Slow(ScriptedLink):
    """An upstream that was not there yet when it was asked, and then answers all at once, in this order."""

    def __init__(self, *answers: tuple[str, Any]) -> None:
        super().__init__({})
        self._answers = answers

    def send(self, message: bytes, request_id: Id | None, headers: Mapping[str, str]) -> None:
        """Remember a message; after the handshake answer."""
        super().send(message, request_id, headers)
        if self.sent[-1]["method"] == "initialize":
            for method, answer in self._answers:
                self.script[method] = answer
                asked = self.requests(method)[0]
                asyncio.get_running_loop().call_soon(super()._answer, asked["id"], asked)

    def _answer(self, request_id: Id, message: dict[str, Any]) -> None:
        """Say nothing yet."""


REFUSED = Fault(UNSUPPORTED_VERSION, "This connection speaks another era.")
UNKNOWN = Fault(METHOD_NOT_FOUND, "There is no such method.")


@pytest.mark.parametrize(
    ("answers", "version"),
    [
        ((("server/discover", MODERN["server/discover"]), ("initialize", REFUSED)), "2026-07-28"),
        ((("initialize", REFUSED), ("server/discover", MODERN["server/discover"])), "2026-07-28"),
        ((("server/discover", UNKNOWN), ("initialize", HANDSHAKE["initialize"])), "2025-11-25"),
        ((("initialize", HANDSHAKE["initialize"]),), "2025-11-25"),
    ],
)
async def test_one_that_starts_slowly_is_taken_at_its_word_whichever_era_it_is_of(
    answers: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    link = Slow(*answers)

    assert (await greeted(link)).version.name == version
    await asyncio.sleep(0)  # a turn of the loop, in which something could be cancelled
    assert "notifications/cancelled" not in methods(link)


async def test_one_that_starts_slowly_and_wants_neither_era_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    with pytest.raises(LinkError, match="speaks another era"):
        await greeted(Slow(("initialize", REFUSED)))


async def test_a_greeting_that_takes_too_long_leaves_nothing_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    link = Slow()
    asked = asyncio.create_task(greeted(link))
    await link.until(lambda: link.requests("initialize"))
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asyncio.sleep(0)  # a turn of the loop, in which what is left ends

    assert len(asyncio.all_tasks()) == 1


async def test_one_that_goes_away_when_asked_may_be_tried_with_a_handshake() -> None:
    with pytest.raises(ProbeLostError):
        await greeted(ScriptedLink({"server/discover": LinkError("lost", "Gone.", sent=True)}))


async def test_one_that_cannot_be_reached_is_told_so() -> None:
    with pytest.raises(LinkError, match="Nobody there"):
        await greeted(ScriptedLink({"server/discover": LinkError("unavailable", "Nobody there.")}))


@pytest.mark.parametrize(("known", "first"), [("2025-06-18", "initialize"), ("2026-07-28", "server/discover")])
async def test_what_is_known_from_last_time_spares_the_question(known: str, first: str) -> None:
    link = ScriptedLink({**HANDSHAKE, **MODERN})
    await greeted(link, known=known)

    assert methods(link)[0] == first


@pytest.mark.parametrize(
    "refusal",
    [LinkError("refused", "404.", status=404), LinkError("session_lost", "404.", status=404), LinkError("refused", "What?")],
)
async def test_one_that_went_back_to_the_older_era_gets_a_handshake(refusal: LinkError) -> None:
    link = ScriptedLink({**HANDSHAKE, "server/discover": refusal})

    assert (await greeted(link, known="2026-07-28")).version.name == "2025-11-25"
    with pytest.raises(LinkError, match=refusal.message):
        await greeted(ScriptedLink({**HANDSHAKE, "server/discover": refusal}), era="2026")


@pytest.mark.parametrize("trouble", [LinkError("refused", "Broken.", status=500), LinkError("unavailable", "Broken.")])
async def test_one_of_the_newer_era_that_is_broken_for_now_is_not_taken_for_an_older_one(trouble: LinkError) -> None:
    with pytest.raises(LinkError, match="Broken"):
        await greeted(ScriptedLink({**HANDSHAKE, "server/discover": trouble}), known="2026-07-28")


async def test_one_that_must_be_of_the_newer_era_and_is_not_fails() -> None:
    with pytest.raises(LinkError, match="does not speak 2026-07-28"):
        await greeted(ScriptedLink(HANDSHAKE), era="2026")


async def test_one_that_must_be_of_the_older_era_is_never_asked() -> None:
    link = ScriptedLink({**HANDSHAKE, **MODERN})
    await greeted(link, era="2025")

    assert methods(link)[0] == "initialize"


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ({"server/discover": Fault(UNSUPPORTED_VERSION, "No.", {"supported": ["2031-01-01"]})}, "only 2031-01-01"),
        ({**HANDSHAKE, "initialize": {"protocolVersion": "1999-01-01"}}, "speaks version '1999-01-01'"),
        ({**HANDSHAKE, "initialize": {"hello": "you"}}, "something else"),
        ({**HANDSHAKE, "initialize": Fault(-32000, "Go away.")}, r"refused the handshake: Go away \(-32000\)"),
    ],
)
async def test_one_that_speaks_no_version_of_ours_is_unavailable_and_the_reason_says_why(script: Any, said: str) -> None:
    with pytest.raises(LinkError, match=said) as caught:
        await greeted(ScriptedLink(script))
    assert caught.value.kind == "unavailable"
