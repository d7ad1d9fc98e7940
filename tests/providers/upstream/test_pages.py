"""Pages that upstreams want a person to open, by a script: what an upstream may get wrong, and what clients lack."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest
from scripted import HANDSHAKE, MODERN, ScriptedLink
from table_tests import every_row

from callyard import Call, Channel, ClientRequest, Yard, tool
from callyard.model.elicitation import host_of
from callyard.providers.upstream import pages
from callyard.providers.upstream.pages import OpenPages
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import UpstreamSettings
from callyard.testing import connect
from callyard.wire.messages import URL_REQUIRED, Fault

PAGE = {"mode": "url", "url": "https://login.example/a", "message": "Sign in.", "elicitationId": "one"}


@every_row(
    ("url", "host"),
    [
        ("https://login.example/a?b=c#d", "login.example"),
        ("HTTP://Login.Example:8080", "login.example"),
        ("http://[::1]:9/x", "[::1]"),
        ("https://my_service/x", "my_service"),
        ("javascript:alert(1)", ""),
        ("file:///etc/passwd", ""),
        ("https://bank.example@evil.example/", ""),
        ("https://bank.example\\@evil.example/", ""),
        ("https://bank.example /", ""),
        ("https://b\u0430nk.example/", ""),
        ("https://x.example/\u202eabc", ""),
        ("https:///x", ""),
        ("https://x.example/" + "a" * 9000, ""),
        (None, ""),
    ],
)
def test_only_plain_http_addresses_may_be_shown_to_a_person(url: object, host: str) -> None:
    assert host_of(url) == host


class Refusing:
    """An upstream that refuses its tool with pages, one set after another, and then answers."""

    def __init__(self, *data: Any) -> None:
        self.data = list(data)
        self.link = ScriptedLink({**HANDSHAKE, "tools/list": {"tools": [{"name": "look"}]}, "tools/call": self.answer})

    def answer(self, _: Any) -> Any:
        if self.data:
            return Fault(URL_REQUIRED, "Open a page.", self.data.pop(0))
        return {"content": [{"type": "text", "text": "seen"}]}

    def complete(self, page_id: object) -> None:
        self.link.notify("notifications/elicitation/complete", {"elicitationId": page_id})


async def call(upstream: Refusing, tmp_path: Path, *, completes: tuple[object, ...] = ()) -> tuple[Any, list[str]]:
    """Return the answer of a call whose person agrees to every page, and the addresses that were shown."""
    shown: list[str] = []

    async def ask(asks: Mapping[str, ClientRequest], _: object) -> Mapping[str, Any]:
        shown.extend(page.params["url"] for page in asks.values())
        for page_id in completes:
            upstream.complete(page_id)
        return {key: {"action": "accept"} for key in asks}

    settings = UpstreamSettings(url="http://up.test/mcp")
    provider = Upstream("up", settings, link=lambda: upstream.link, folder=tmp_path, interval=0.01)
    async with Yard("gate", providers=[provider], metatools=False) as yard:
        await provider.wait_ready()
        return await yard.call("up__look", channel=Channel(name="test", ask=ask)), shown


async def test_an_upstream_that_names_no_page_or_a_wrong_one_is_at_fault(tmp_path: Path) -> None:
    wrong: list[Any] = [
        None,
        {"elicitations": []},
        {"elicitations": [PAGE] * 11},
        {"elicitations": [{"url": "file:///etc"}]},
    ]
    for number, data in enumerate(wrong):
        answer, shown = await call(Refusing(data), tmp_path / str(number))
        assert (answer.error.code, shown) == ("upstream_error", [])


async def test_a_second_page_after_the_first_is_shown_too_but_not_for_ever(tmp_path: Path) -> None:
    second = {**PAGE, "url": "https://login.example/b", "elicitationId": "two"}
    both = Refusing({"elicitations": [PAGE]}, {"elicitations": [second]})
    answer, shown = await call(both, tmp_path / "a", completes=("one", "two", "unknown", None))
    assert (answer.data, shown) == ("seen", ["https://login.example/a", "https://login.example/b"])

    endless = Refusing(*[{"elicitations": [PAGE]}] * 9)
    answer, shown = await call(endless, tmp_path / "b", completes=("one",))
    assert (answer.error.details["reason"], len(shown)) == ("url_required", 5)


async def test_a_request_is_tried_again_without_word_from_the_upstream_until_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_FIRST_PAUSE", 0.001)
    silent = Refusing({"elicitations": [PAGE]}, {"elicitations": [{**PAGE, "elicitationId": "new"}]})
    answer, shown = await call(silent, tmp_path / "a")
    assert (answer.data, shown) == ("seen", ["https://login.example/a"])

    monkeypatch.setattr(pages, "_WAIT_SECONDS", 0.001)
    late, _ = await call(Refusing(*[{"elicitations": [PAGE]}] * 1000), tmp_path / "b")
    assert late.error.details["reason"] == "url_required"
    assert late.error.may_have_run is False


async def test_another_refusal_after_a_page_is_passed_on(tmp_path: Path) -> None:
    upstream = Refusing({"elicitations": [PAGE]})
    first = upstream.answer

    def answer(params: Any) -> Any:
        return first(params) if upstream.data else Fault(-32000, "No.")

    upstream.link.script["tools/call"] = answer
    answered, _ = await call(upstream, tmp_path, completes=("one",))

    assert (answered.error.code, answered.error.details["upstream_code"]) == ("upstream_error", -32000)


async def test_a_newer_upstream_may_ask_for_a_page_although_the_client_has_none(tmp_path: Path) -> None:
    wanted = {"page": {"method": "elicitation/create", "params": {**PAGE, "url": "https://x.example/"}}}
    required = {"resultType": "input_required", "inputRequests": wanted}
    link = ScriptedLink({**MODERN, "tools/list": {"tools": [{"name": "look"}]}, "tools/call": required})
    settings = UpstreamSettings(url="http://up.test/mcp")
    provider = Upstream("up", settings, link=lambda: link, folder=tmp_path, interval=0.01)
    async with Yard("gate", providers=[provider], metatools=False) as yard:
        await provider.wait_ready()
        answer: Any = await yard.call("up__look")

    declared = link.requests("tools/call")[0]["params"]["_meta"]["io.modelcontextprotocol/clientCapabilities"]
    assert declared == {"elicitation": {"url": {}}}
    assert (answer.error.code, "https://x.example/" in answer.error.details["what_to_do"]) == ("state_error", True)


def test_a_completion_that_cannot_be_read_is_ignored() -> None:
    heard: list[str] = []
    watched = OpenPages("up")
    page = {"a": ClientRequest.page("https://x.example/", "", elicitation_id="up.1")}
    first, second = (watched.watch(page, heard.append) for _ in range(2))
    watched.complete(msgspec.Raw(b"[]"))
    watched.complete(msgspec.Raw(b'{"elicitationId":"1"}'))
    second()
    watched.complete(msgspec.Raw(b'{"elicitationId":"1"}'))
    first()
    watched.complete(msgspec.Raw(b'{"elicitationId":"1"}'))

    assert heard == ["up.1"] * 3


async def test_an_own_tool_asks_to_open_a_page() -> None:
    @tool(operation="command")
    async def sign_in(call: Call, url: str) -> str:
        """Have the person sign in."""
        await call.ask_url(url, "Sign in.")
        return "agreed"

    async with connect(Yard(tools=[sign_in]), answers=[{}]) as client:
        assert (await client.call("sign_in", url="https://x.example/")).data == "agreed"
        wrong = await client.call("sign_in", url="ftp://x.example/")
        alone: Any = await client.yard.call("sign_in", {"url": "https://x.example/"})

    assert wrong.error is not None
    assert (wrong.error.code, client.questions) == ("internal_error", ["Sign in."])
    assert (alone.error.code, alone.error.details["reason"]) == ("state_error", "url_required")
