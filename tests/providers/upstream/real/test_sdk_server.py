"""A server of the official Python SDK as an upstream, in both eras, with callers of both eras at once."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest
from fronts import NEW, OLD, in_front, opened, refusal
from mcp_types import ElicitResult, Implementation

every_way = pytest.mark.parametrize(
    ("carrier", "era"), [(carrier, era) for carrier in ("stdio", "http") for era in ("2025", "2026")]
)


class Person:
    """Whoever is asked: what for, and what is answered, after something else if there is something to wait for."""

    def __init__(self, name: str, before: anyio.Event | None = None) -> None:
        self.asked: list[str] = []
        self.was_asked = anyio.Event()
        self.before = before
        self._name = name

    async def __call__(self, context: Any, params: Any) -> ElicitResult:
        self.asked.append(params.message)
        self.was_asked.set()
        if self.before is not None:
            await self.before.wait()
        return ElicitResult(action="accept", content={"name": self._name})


@every_way
async def test_everything_it_offers_is_used_through_the_library(
    tmp_path: Path, sdk: Any, carrier: str, era: str
) -> None:
    async with opened(tmp_path, shed=sdk(carrier, era=era)) as (yard, upstreams):
        added = await yard.call("shed__add", {"a": 2, "b": 3})
        failed = refusal(await yard.call("shed__fail", {"text": "No luck."}))
        read: Any = await yard.read("shed+notes://all")
        noted: Any = await yard.read("shed+notes://monday")
        made: Any = await yard.prompt("shed__review", {"topic": "tea"})

        assert upstreams["shed"].status().version.startswith(era)
        assert upstreams["shed"].instructions == "Use 'add' to add."
        assert (added.success, added.data) == (True, {"result": 5})
        assert (failed.code, "No luck." in failed.details["text"]) == ("upstream_error", True)
        assert [part["text"] for part in read.data["contents"]] == ["Water the plants."]
        assert [(part["uri"], part["text"]) for part in noted.data["contents"]] == [
            ("shed+notes://monday", "Note of monday.")
        ]
        assert made.data["messages"][0]["content"]["text"] == "Review tea."


@pytest.mark.parametrize(("carrier", "era"), [("stdio", "2026"), ("http", "2025"), ("http", "2026")])
async def test_two_callers_are_asked_at_once_and_each_gets_its_own_question(
    tmp_path: Path, sdk: Any, carrier: str, era: str
) -> None:
    ada, bob = Person("Ada"), Person("Bob")
    ada.before, bob.before = bob.was_asked, ada.was_asked
    said: dict[str, str] = {}

    async def greet(client: Any, greeting: str) -> None:
        said[greeting] = (await client.call_tool("shed__greet", {"greeting": greeting})).content[0].text

    async with (
        opened(tmp_path, shed=sdk(carrier, era=era)) as (yard, _),
        in_front(yard, OLD, identity="ada", elicitation_callback=ada) as older,
        in_front(yard, NEW, identity="bob", elicitation_callback=bob) as newer,
        anyio.create_task_group() as group,
    ):
        group.start_soon(greet, older, "Hello")
        group.start_soon(greet, newer, "Welcome")

    assert said == {"Hello": "Hello Ada", "Welcome": "Welcome Bob"}
    assert (ada.asked, bob.asked) == (["'shed' asks: Hello: who is there?"], ["'shed' asks: Welcome: who is there?"])


@pytest.mark.parametrize(("first", "second"), [(OLD, NEW), (NEW, OLD)])
@pytest.mark.parametrize("identity", ["bob", "ada"])
async def test_an_elicitation_without_a_request_is_refused_while_it_is_ambiguous(
    tmp_path: Path, sdk: Any, first: str, second: str, identity: str
) -> None:
    answered = anyio.Event()
    ada, bob = Person("Ada", answered), Person("Bob")
    said: list[str] = []

    async def greet(client: Any) -> None:
        said.append((await client.call_tool("shed__greet", {"greeting": "Hello"})).content[0].text)

    other: dict[str, Any] = (
        {"client_info": Implementation(name="another", version="1")} if identity == "ada" and first == OLD else {}
    )
    async with (
        opened(tmp_path, shed=sdk("stdio", era="2025")) as (yard, _),
        in_front(yard, first, identity="ada", elicitation_callback=ada) as one,
        in_front(yard, second, identity=identity, elicitation_callback=bob, **other) as two,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(greet, one)
            await ada.was_asked.wait()
            assert (await two.call_tool("shed__greet", {"greeting": "Welcome"})).is_error
            answered.set()
        alone: Any = await two.call_tool("shed__greet", {"greeting": "Welcome"})

    assert (said, alone.content[0].text) == (["Hello Ada"], "Welcome Bob")
    assert (ada.asked, bob.asked) == (["'shed' asks: Hello: who is there?"], ["'shed' asks: Welcome: who is there?"])


@every_way
async def test_progress_reaches_only_its_caller(tmp_path: Path, sdk: Any, carrier: str, era: str) -> None:
    progressed: dict[str, list[str | None]] = {"ada": [], "bob": []}

    async def step(client: Any, name: str) -> None:
        async def hear(progress: float, total: float | None, message: str | None) -> None:
            progressed[name].append(message)

        answer = await client.call_tool("shed__step", {"word": name, "count": 3}, progress_callback=hear)
        assert answer.content[0].text == name

    async with (
        opened(tmp_path, shed=sdk(carrier, era=era)) as (yard, _),
        in_front(yard, OLD, identity="ada") as older,
        in_front(yard, NEW, identity="bob") as newer,
        anyio.create_task_group() as group,
    ):
        group.start_soon(step, older, "ada")
        group.start_soon(step, newer, "bob")

    assert progressed == {name: [f"{name} {number}" for number in (1, 2, 3)] for name in ("ada", "bob")}


@every_way
async def test_a_cancelled_call_is_cancelled_upstream_and_no_other(
    tmp_path: Path, sdk: Any, carrier: str, era: str
) -> None:
    keys = {OLD: uuid4().hex, NEW: uuid4().hex}
    scopes = {OLD: anyio.CancelScope(), NEW: anyio.CancelScope()}

    async def wait(client: Any, mode: str) -> None:
        with scopes[mode]:
            await client.call_tool("shed__wait_for_ever", {"key": keys[mode]})

    async with (
        opened(tmp_path, shed=sdk(carrier, era=era)) as (yard, _),
        in_front(yard, OLD, identity="ada") as older,
        in_front(yard, NEW, identity="bob") as newer,
        anyio.create_task_group() as group,
    ):
        group.start_soon(wait, older, OLD)
        group.start_soon(wait, newer, NEW)
        for mode in (OLD, NEW):
            assert (await yard.call("shed__was_started", {"key": keys[mode]})).success
        left = 2
        for mode in (OLD, NEW):
            scopes[mode].cancel()
            assert (await yard.call("shed__was_stopped", {"key": keys[mode]})).success
            left -= 1
            assert yard.calls_in_flight == left
