"""The handshake: the era of an upstream is found, whatever it answers to the probe."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest
from scripted import HANDSHAKE, MODERN, ScriptedLink
from table_tests import every_row

from callyard.providers.upstream import handshake
from callyard.providers.upstream.handshake import Handshake, ProbeLostError, negotiate
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import CLIENT_CAPABILITIES, ClientSession
from callyard.wire.messages import METHOD_NOT_FOUND, UNSUPPORTED_VERSION, Fault, Id


async def negotiated(link: ScriptedLink, era: Any = "auto", last_version: str | None = None) -> Handshake:
    """Return the handshake with an upstream."""
    session = ClientSession("up", link, http=True, on_notification=lambda _method, _params: None, on_end=lambda _: None)
    await link.open(session)
    return await negotiate(session, link, era, last_version=last_version)


def methods(link: ScriptedLink) -> list[str]:
    """Return the methods that were sent."""
    return [message["method"] for message in link.sent]


async def test_a_modern_upstream_is_discovered_with_one_request() -> None:
    link = ScriptedLink(MODERN)
    result = await negotiated(link)

    assert (result.version.name, result.server["name"], methods(link)) == (
        "2026-07-28",
        "scripted",
        ["server/discover"],
    )


async def test_an_older_upstream_gets_a_handshake_and_an_open_stream() -> None:
    link = ScriptedLink(HANDSHAKE)
    result = await negotiated(link)

    assert (result.version.name, result.instructions) == ("2025-11-25", "Be kind.")
    assert methods(link) == ["server/discover", "initialize", "notifications/initialized"]
    assert link.sent[1]["params"]["capabilities"] == CLIENT_CAPABILITIES
    assert link.headers[2] == {"MCP-Protocol-Version": "2025-11-25"}
    assert link.listens


@every_row(
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
async def test_any_other_answer_to_the_discovery_leads_to_a_handshake(refusal: Any) -> None:
    assert (await negotiated(ScriptedLink({**HANDSHAKE, "server/discover": refusal}))).version.name == "2025-11-25"


async def test_a_refusal_that_lists_our_version_is_retried_once() -> None:
    refusal = Fault(UNSUPPORTED_VERSION, "No.", {"supported": ["2026-07-28"]})
    answers: list[Any] = [refusal, MODERN["server/discover"]]

    def answer(_: object) -> Any:
        return answers.pop(0)

    link = ScriptedLink({"server/discover": answer})

    assert (await negotiated(link)).version.name == "2026-07-28"
    assert methods(link) == ["server/discover", "server/discover"]
    assert (await negotiated(ScriptedLink({**HANDSHAKE, "server/discover": refusal}))).version.name == "2025-11-25"


async def test_no_answer_to_the_discovery_leads_to_a_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)

    assert (await negotiated(ScriptedLink({**HANDSHAKE, "server/discover": None}))).version.name == "2025-11-25"


class Slow(ScriptedLink):
    """An upstream that starts slowly, and then answers all requests at once, in this order."""

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
async def test_an_upstream_that_starts_slowly_may_be_of_either_era(
    answers: Any, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    link = Slow(*answers)

    assert (await negotiated(link)).version.name == version
    await asyncio.sleep(0)  # a turn of the loop, in which something could be cancelled
    assert "notifications/cancelled" not in methods(link)


async def test_an_upstream_that_starts_slowly_and_refuses_both_eras_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    with pytest.raises(LinkError, match="refused the handshake") as caught:
        await negotiated(Slow(("initialize", REFUSED)))
    assert "speaks another era" in caught.value.private


async def test_a_cancelled_handshake_leaves_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "PROBE_SECONDS", 0.01)
    link = Slow()
    asked = asyncio.create_task(negotiated(link))
    await link.until(lambda: link.requests("initialize"))
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)
    await asyncio.sleep(0)  # a turn of the loop, in which what is left ends

    assert len(asyncio.all_tasks()) == 1


async def test_a_link_that_is_lost_on_the_discovery_raises_its_own_error() -> None:
    with pytest.raises(ProbeLostError):
        await negotiated(ScriptedLink({"server/discover": LinkError("lost", "Gone.", sent=True)}))


async def test_an_unreachable_upstream_is_unavailable() -> None:
    with pytest.raises(LinkError, match="Nobody there"):
        await negotiated(ScriptedLink({"server/discover": LinkError("unavailable", "Nobody there.")}))


@pytest.mark.parametrize(("last_version", "first"), [("2025-06-18", "initialize"), ("2026-07-28", "server/discover")])
async def test_the_last_version_saves_the_probe(last_version: str, first: str) -> None:
    link = ScriptedLink({**HANDSHAKE, **MODERN})
    await negotiated(link, last_version=last_version)

    assert methods(link)[0] == first


@pytest.mark.parametrize(
    "refusal",
    [
        LinkError("refused", "404.", status=404),
        LinkError("session_lost", "404.", status=404),
        LinkError("refused", "What?"),
    ],
)
async def test_an_upstream_that_went_back_to_the_older_era_gets_a_handshake(refusal: LinkError) -> None:
    link = ScriptedLink({**HANDSHAKE, "server/discover": refusal})

    assert (await negotiated(link, last_version="2026-07-28")).version.name == "2025-11-25"
    with pytest.raises(LinkError, match=refusal.message):
        await negotiated(ScriptedLink({**HANDSHAKE, "server/discover": refusal}), era="2026")


@pytest.mark.parametrize("trouble", [LinkError("refused", "Broken.", status=500), LinkError("unavailable", "Broken.")])
async def test_a_failing_modern_upstream_is_not_mistaken_for_an_older_one(trouble: LinkError) -> None:
    with pytest.raises(LinkError, match="Broken"):
        await negotiated(ScriptedLink({**HANDSHAKE, "server/discover": trouble}), last_version="2026-07-28")


async def test_a_required_modern_era_that_is_not_spoken_fails() -> None:
    with pytest.raises(LinkError, match="does not speak 2026-07-28"):
        await negotiated(ScriptedLink(HANDSHAKE), era="2026")


async def test_a_required_older_era_is_never_probed() -> None:
    link = ScriptedLink({**HANDSHAKE, **MODERN})
    await negotiated(link, era="2025")

    assert methods(link)[0] == "initialize"


@every_row(
    ("script", "message"),
    [
        ({"server/discover": Fault(UNSUPPORTED_VERSION, "No.", {"supported": ["2031-01-01"]})}, "only 2031-01-01"),
        ({**HANDSHAKE, "initialize": {"protocolVersion": "1999-01-01"}}, "speaks version '1999-01-01'"),
        ({**HANDSHAKE, "initialize": {"hello": "you"}}, "something else"),
        ({**HANDSHAKE, "initialize": Fault(-32000, "Go away.")}, r"refused the handshake \(-32000\)"),
    ],
)
async def test_an_upstream_without_a_common_version_is_unavailable(script: Any, message: str) -> None:
    with pytest.raises(LinkError, match=message) as caught:
        await negotiated(ScriptedLink(script))
    assert caught.value.kind == "unavailable"
