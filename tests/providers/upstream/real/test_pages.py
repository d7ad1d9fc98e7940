"""Pages that a server of the official Python SDK wants opened, with the official client of both eras in front."""

import sys
from pathlib import Path
from typing import Any

import pytest
from fronts import NEW, OLD, in_front, opened, refusal
from mcp_types import ElicitResult

from callyard.providers.upstream.settings import UpstreamSettings

HERE = Path(__file__).parent
PAGES = UpstreamSettings(command=sys.executable, args=(str(HERE / "pages_server.py"),), era="2025")
both_eras = pytest.mark.parametrize("mode", [OLD, NEW])


@both_eras
async def test_a_call_that_is_refused_until_a_page_is_done_goes_on_when_the_upstream_says_so(
    tmp_path: Path, mode: str
) -> None:
    asked: list[Any] = []
    async with opened(tmp_path, up=PAGES) as (yard, _):

        async def open_page(_: Any, params: Any) -> ElicitResult:
            asked.append(params)
            assert (await yard.call("up__finish", {"key": "files"})).success
            return ElicitResult(action="accept")

        async with in_front(yard, mode, elicitation_callback=open_page) as client:
            answer: Any = await client.call_tool("up__files", {})

    assert answer.content[0].text == "a.txt"
    assert [(page.mode, page.url) for page in asked] == [("url", "https://login.example/start?for=files")]
    assert asked[0].message == "'up' asks to open a page at 'login.example': Sign in."


@both_eras
async def test_a_page_that_is_wanted_while_a_call_runs_is_shown_and_its_end_is_passed_on(
    tmp_path: Path, mode: str
) -> None:
    asked: list[Any] = []

    async def open_page(_: Any, params: Any) -> ElicitResult:
        asked.append(params)
        return ElicitResult(action="accept")

    received: list[Any] = []

    async def receive(message: Any) -> None:
        received.append(message)

    async with (
        opened(tmp_path, up=PAGES) as (yard, _),
        in_front(yard, mode, elicitation_callback=open_page, message_handler=receive) as client,
    ):
        answer: Any = await client.call_tool("up__pay", {})

    assert answer.content[0].text == "accept"
    assert [page.url for page in asked] == ["https://pay.example/7"]
    ended = [
        note.params.elicitation_id for note in received if "elicitation/complete" in str(getattr(note, "method", ""))
    ]
    assert ended == (["up.pay"] if mode == OLD else [])


@both_eras
async def test_a_person_may_refuse_and_a_client_without_pages_gets_the_address_in_a_sentence(
    tmp_path: Path, mode: str
) -> None:
    actions: list[Any] = ["decline", "cancel"]

    async def refuse(_: Any, __: Any) -> ElicitResult:
        return ElicitResult(action=actions.pop(0))

    async with opened(tmp_path, up=PAGES) as (yard, _):
        async with in_front(yard, mode, elicitation_callback=refuse) as client:
            refused: list[Any] = [(await client.call_tool("up__files", {})).structured_content for _ in range(2)]
        async with in_front(yard, mode) as client:
            waiting: Any = (await client.call_tool("up__files", {})).structured_content
            paying: Any = (await client.call_tool("up__pay", {})).structured_content
        in_library = refusal(await yard.call("up__pay", {"url": "javascript:alert(1)"}))

    assert [answer["error"]["code"] for answer in refused] == ["approval_denied", "cancelled"]
    assert [answer["error"]["may_have_run"] for answer in refused] == [False, False]
    for answer, url in ((waiting, "https://login.example/start?for=files"), (paying, "https://pay.example/7")):
        assert (answer["error"]["code"], answer["error"]["details"]["reason"]) == ("state_error", "url_required")
        assert url in answer["error"]["details"]["what_to_do"]
    assert in_library.code == "upstream_error"
