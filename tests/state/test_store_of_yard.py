"""The store of a yard: what survives a restart, what needs it, and what goes on without it."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from table_tests import every_row

from callyard import Call, Caller, Envelope, Limits, Session, Store, ToolError, Yard, tool
from callyard.state import sqlite_file
from callyard.state.memory import MemoryStore
from callyard.state.sqlite import SqliteStore
from callyard.state.store import StoreUnavailableError
from callyard.testing import FakeClock

LIMITS = Limits(result_characters=100)
UNAVAILABLE = {"reason": "store_unavailable", "retry_after_ms": 1000}
BROKEN = {"reason": "store_unavailable"}
"""The details of a failure after which a person must mend the store."""


@tool(operation="query")
async def large() -> str:
    """Return a large result."""
    return "x" * 1000


@tool(operation="command")
async def change() -> str:
    """Change something and return a large result."""
    return "x" * 1000


@tool(operation="query")
async def small(text: str = "a") -> int:
    """Return a small result."""
    return len(text)


@tool(operation="command")
async def start_basket(call: Call) -> str:
    """Start a basket."""
    return call.start_session(kind="basket").id


@tool(operation="command")
async def add(item: str, session: Session) -> list[str]:
    """Put an item into the basket."""
    session.data.setdefault("items", []).append(item)
    return session.data["items"]


@tool(operation="command")
async def keep_object(session: Session) -> None:
    """Keep a live object."""
    session.state["object"] = object()


@tool(operation="command", session="required")
async def leave(call: Call) -> bool:
    """Leave the basket."""
    return await call.end_session()


@tool(operation="command")
async def spoil(session: Session) -> None:
    """Keep what is no JSON."""
    session.data["object"] = object()


@tool(operation="query")
async def shapeless() -> Any:
    """Return something."""
    return {"name": "x"}


@tool(operation="query")
async def fail() -> None:
    """Fail."""
    raise ToolError("not_found", "There is nothing.")


TOOLS = (shapeless, fail, large, change, small, start_basket, add, keep_object, leave, spoil)


class CountingStore(MemoryStore):
    """Counts how often each method is used."""

    def __init__(self) -> None:
        super().__init__()
        self.used: Counter[str] = Counter()

    def __getattribute__(self, name: str) -> Any:
        if name in {
            "get",
            "put",
            "compare_and_set",
            "delete",
            "count",
            "acquire",
            "renew",
            "release",
            "publish",
            "subscribe",
        }:
            self.used[name] += 1
        return super().__getattribute__(name)

    async def keys(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return keys; an open yard looks once a second for what operators disabled, which belongs to no call."""
        if prefix != "disabled/":
            self.used["keys"] += 1
        return await super().keys(prefix, after=after, limit=limit)


def broken(tmp_path: Path) -> SqliteStore:
    path = tmp_path / "broken.db"
    path.write_bytes(b"no database" * 1000)
    return SqliteStore(path)


def store_in(tmp_path: Path) -> SqliteStore:
    return SqliteStore(tmp_path / "store.db")


@asynccontextmanager
async def opened(store: Store, *, limits: Limits = LIMITS, **options: Any) -> AsyncGenerator[Yard]:
    async with Yard(tools=TOOLS, store=store, limits=limits, **options) as yard:
        yield yard


@asynccontextmanager
async def without_store(tmp_path: Path) -> AsyncGenerator[Yard]:
    """Open a yard as `callyard serve` does, with a default store that cannot be used."""
    yard = Yard(tools=TOOLS)
    yard.configure(origins={}, limits=LIMITS.as_dict(), default_store=broken(tmp_path))
    async with yard:
        yield yard


def failure_of(answer: Envelope) -> tuple[str, dict[str, Any]]:
    assert answer.error is not None
    return answer.error.code, answer.error.details


async def test_a_handle_survives_a_restart_and_its_number_is_not_given_again(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as yard:
        first = (await yard.call("large")).data["handle"]
    async with opened(store_in(tmp_path)) as yard:
        assert (await yard.call("small", {"text": {"$ref": first}})).data == 1000
        assert (await yard.call("large")).data["handle"] != first


async def test_two_yards_on_one_file_see_each_others_results_and_give_no_handle_twice(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as one, opened(store_in(tmp_path)) as other:
        answers = await asyncio.gather(*(yard.call("large") for yard in (one, other) * 10))
        handles = {answer.data["handle"] for answer in answers}

        assert len(handles) == 20
        for handle in handles:
            assert (await other.call("small", {"text": {"$ref": handle}})).data == 1000


async def test_tokens_survive_a_restart_even_if_the_state_directory_is_lost(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path), state_dir=str(tmp_path / "one")) as yard:
        token = yard.signer.sign("test", [1])
    async with opened(store_in(tmp_path), state_dir=str(tmp_path / "two")) as yard:
        assert yard.signer.verify("test", token) == [1]


async def test_the_secret_of_the_environment_is_used_and_never_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CALLYARD_SECRET", "from the environment")
    store = store_in(tmp_path)
    async with opened(store) as yard:
        token = yard.signer.sign("test", [1])
        assert await store.get("signing_key") is None
    async with Yard() as yard:
        assert yard.signer.verify("test", token) == [1]


@pytest.mark.parametrize("secret", ["", "from the environment"])
async def test_a_store_that_was_asked_for_and_is_new_must_be_writable_when_the_yard_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: str
) -> None:
    def on_network(_: str) -> bool:
        return True

    monkeypatch.setenv("CALLYARD_SECRET", secret)
    monkeypatch.setattr(sqlite_file, "is_network", on_network)

    with pytest.raises(StoreUnavailableError) as caught:
        async with opened(store_in(tmp_path)):
            raise AssertionError

    assert caught.value.reason == "network_file_system"


async def test_a_yard_that_stores_nothing_makes_no_file_of_its_default_store_and_signs_as_the_next_one(
    tmp_path: Path,
) -> None:
    tokens: list[str] = []
    for _ in range(2):
        yard = Yard(tools=TOOLS, state_dir=str(tmp_path / "state"))
        yard.configure(origins={}, limits=LIMITS.as_dict(), default_store=store_in(tmp_path))
        async with yard:
            assert (await yard.call("small")).data == 1
            assert (await yard.call("read_result", {"handle": "r_1"})).success is False
            tokens.append(yard.signer.sign("test", [1]))

    assert tokens[0] == tokens[1]
    assert not (tmp_path / "store.db").exists()


async def test_a_default_store_is_made_by_the_first_result_that_needs_it(tmp_path: Path) -> None:
    yard = Yard(tools=TOOLS)
    yard.configure(origins={}, limits=LIMITS.as_dict(), default_store=store_in(tmp_path))
    async with yard:
        handle = (await yard.call("large")).data["handle"]
    async with opened(store_in(tmp_path)) as other:
        assert (await other.call("small", {"text": {"$ref": handle}})).data == 1000


async def test_a_call_that_stores_nothing_does_not_touch_the_store() -> None:
    store = CountingStore()
    async with opened(store, limits=Limits()) as yard:
        for _ in range(10):  # learned outputs are read in the background
            await asyncio.sleep(0)
        assert store.used["keys"] == 1
        session = (await yard.call("start_basket")).data
        store.used.clear()
        for arguments in ({}, {"text": "b"}, {"text": 1}, {"nonsense": 1}):
            await yard.call("small", arguments)
        await yard.call("run_tool", {"tool_id": "small", "args": {}})
        await yard.call("describe_tool", {"tool_id": "small"})
        await yard.call("keep_object", {"session_id": session})
        await yard.call("no_such_tool")

        assert store.used == Counter()


async def test_a_store_that_was_asked_for_must_work_when_the_yard_opens(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        async with opened(broken(tmp_path)):
            raise AssertionError

    assert caught.value.reason == "corrupt"


async def test_without_its_default_store_a_yard_opens_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with without_store(tmp_path) as yard:
        assert (await yard.call("small")).data == 1

    events = {record.getMessage().split()[0] for record in caplog.records}
    assert {"store_unavailable", "yard_without_store"} <= events


class Sick(MemoryStore):
    """A store that fails for a reason."""

    def __init__(self, reason: str) -> None:
        super().__init__(max_bytes=10**6)
        self._reason = reason

    async def _fail(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailableError("Away.", reason=self._reason)

    get = put = compare_and_set = count = _fail


async def answers_with(store: Store) -> list[Envelope]:
    """Return the answers of calls that need the store: a query, a command, a reference, and reading a handle."""
    yard = Yard(tools=TOOLS)
    yard.configure(origins={}, limits=LIMITS.as_dict(), default_store=store)
    async with yard:
        return [
            await yard.call("large"),
            await yard.call("change"),
            await yard.call("small", {"text": {"$ref": "r_1"}}),
            await yard.call("read_result", {"handle": "r_1"}),
        ]


@every_row("reason", ["full", "locked", "io_error"])
async def test_a_call_that_needs_the_store_can_be_repeated_if_the_store_may_recover(reason: str) -> None:
    answers = await answers_with(Sick(reason))

    assert [failure_of(answer) for answer in answers] == [("overloaded", UNAVAILABLE)] * 4
    errors = [answer.error for answer in answers[:3] if answer.error is not None]
    assert [(error.may_have_run, error.retryable) for error in errors] == [(True, True), (True, False), (False, True)]


@every_row("reason", ["read_only", "not_writable", "corrupt", "not_a_store", "newer_version", "network_file_system"])
async def test_a_store_that_only_a_person_can_mend_is_nothing_to_wait_for(reason: str) -> None:
    answers = await answers_with(Sick(reason))

    assert [failure_of(answer) for answer in answers] == [("state_error", BROKEN)] * 4
    errors = [answer.error for answer in answers[:3] if answer.error is not None]
    assert [(error.may_have_run, error.retryable) for error in errors] == [(True, False), (True, False), (False, False)]
    assert {error.blame for error in errors} == {"yard"}


@pytest.mark.parametrize("store", ["sqlite:store.db", Path("store.db")])
def test_a_text_in_place_of_a_store_is_refused_when_the_yard_is_made(store: Any) -> None:
    with pytest.raises(TypeError, match="SqliteStore"):
        Yard(store=store)


async def test_a_failure_keeps_its_code_when_its_partial_result_cannot_be_stored(tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [{"tool_id": "large", "args": {}}, {"tool_id": "fail", "args": {}}]
    async with without_store(tmp_path) as yard:
        answer = await yard.call("run_chain", {"steps": steps})

    assert failure_of(answer)[0] == "chain_step_failed"
    assert answer.data["status"] == "too_large"


async def test_the_data_of_a_session_survive_a_restart(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as yard:
        basket = (await yard.call("start_basket")).data
        await yard.call("add", {"item": "bread"})
    async with opened(store_in(tmp_path)) as yard:
        assert (await yard.call("add", {"item": "milk", "session_id": basket})).data == ["bread", "milk"]
    async with opened(store_in(tmp_path)) as yard:
        answer = await yard.call("add", {"item": "jam"})  # the only one of the caller
        assert (answer.data, answer.meta.session_id) == (["bread", "milk", "jam"], basket)


async def test_a_stored_session_belongs_to_its_owner(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as yard:
        basket = (await yard.call("start_basket", caller=Caller(identity="ada"))).data
        await yard.call("add", {"item": "bread"}, caller=Caller(identity="ada"))
    async with opened(store_in(tmp_path)) as yard:
        for caller in (Caller(identity="bea"), Caller(identity="ada", scope="other")):
            for arguments in ({"item": "milk", "session_id": basket}, {"item": "milk"}):
                assert failure_of(await yard.call("add", arguments, caller=caller))[0] == "not_running"


async def test_of_several_stored_sessions_one_must_be_named(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as yard:
        baskets = [(await yard.call("start_basket")).data for _ in range(2)]
        for basket in baskets:
            await yard.call("add", {"item": "bread", "session_id": basket})
    async with opened(store_in(tmp_path)) as yard:
        code, details = failure_of(await yard.call("add", {"item": "milk"}))

    assert (code, sorted(details["available_sessions"])) == ("invalid_input", sorted(baskets))


async def test_a_session_with_live_objects_is_not_running_in_another_process(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as one, opened(store_in(tmp_path)) as other:
        basket = (await one.call("start_basket")).data
        await one.call("keep_object")
        await one.call("add", {"item": "bread"})

        named = await other.call("add", {"item": "milk", "session_id": basket})
        unnamed = await other.call("add", {"item": "milk"})
        assert (await one.call("add", {"item": "milk"})).data == ["bread", "milk"]

    assert failure_of(named) == ("not_running", {"reason": "not_here", "session_id": basket, "available_sessions": []})
    assert failure_of(unnamed)[0] == "not_running"


async def test_a_session_that_one_process_ended_is_not_running_in_another(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as one, opened(store_in(tmp_path)) as other:
        basket = (await one.call("start_basket")).data
        for yard in (one, other):
            await yard.call("add", {"item": "bread", "session_id": basket})
        await other.call("leave", {"session_id": basket})

        assert failure_of(await one.call("add", {"item": "milk", "session_id": basket}))[0] == "not_running"


async def test_two_processes_share_the_data_of_a_session_and_no_change_is_lost(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as one, opened(store_in(tmp_path)) as other:
        basket = (await one.call("start_basket")).data
        await one.call("add", {"item": "0", "session_id": basket})
        answers = [await yard.call("add", {"item": "1", "session_id": basket}) for yard in (one, other) * 3]
        at_once = await asyncio.gather(
            *(yard.call("add", {"item": "2", "session_id": basket}) for yard in (one, other) * 3)
        )
        items = (await other.call("add", {"item": "3", "session_id": basket})).data

    assert answers[-1].data == ["0"] + ["1"] * 6
    refused = [failure_of(answer) for answer in at_once if answer.error is not None]
    assert all(code == "state_error" and details["reason"] == "session_changed" for code, details in refused)
    assert items.count("2") >= sum(answer.error is None for answer in at_once)


async def test_an_ended_or_idle_session_is_gone_from_the_store(tmp_path: Path) -> None:
    clock, store = FakeClock(), store_in(tmp_path)
    async with opened(store, clock=clock) as yard:
        for _ in range(2):
            await yard.call("start_basket")
        first, second = yard.sessions.ids(Caller().owner)
        for basket in (first, second):
            await yard.call("add", {"item": "bread", "session_id": basket})
        assert len(await store.keys("session/")) == 2

        await yard.call("leave", {"session_id": first})
        assert len(await store.keys("session/")) == 1
        clock.advance(LIMITS.session_idle + 1)
        await yard.sessions.sweep()
        assert await store.keys("session/") == []
        assert failure_of(await yard.call("add", {"item": "milk", "session_id": second}))[0] == "not_running"


async def test_a_session_in_use_does_not_expire_in_the_store() -> None:
    clock = FakeClock()
    store = MemoryStore(clock=clock)
    async with opened(store, clock=clock) as yard:
        basket = (await yard.call("start_basket")).data
        await yard.call("add", {"item": "bread", "session_id": basket})
        for _ in range(5):
            clock.advance(LIMITS.session_idle * 0.6)
            await yard.call("keep_object", {"session_id": basket})

        assert len(await store.keys("session/")) == 1


async def test_data_that_cannot_be_stored_fail_the_call(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path), limits=Limits(stored_bytes=100)) as yard:
        basket = (await yard.call("start_basket")).data
        large = await yard.call("add", {"item": "x" * 200, "session_id": basket})
        other = (await yard.call("start_basket")).data
        no_json = await yard.call("spoil", {"session_id": other})

    assert [failure_of(answer)[0] for answer in (large, no_json)] == ["too_large", "internal_error"]


async def test_data_of_a_session_that_the_store_does_not_take_fail_the_call(tmp_path: Path) -> None:
    async with without_store(tmp_path) as yard:
        basket = (await yard.call("start_basket")).data
        saved = await yard.call("add", {"item": "bread", "session_id": basket})
        unknown = await yard.call("add", {"item": "bread", "session_id": "s_unknown"})
        assert (await yard.call("leave", {"session_id": basket})).data is True

    assert [failure_of(answer) for answer in (saved, unknown)] == [("state_error", BROKEN)] * 2


async def test_without_a_store_session_data_live_as_long_as_the_process() -> None:
    async with Yard(tools=TOOLS) as yard:
        await yard.call("start_basket")
        await yard.call("add", {"item": "bread"})

        assert (await yard.call("add", {"item": "milk"})).data == ["bread", "milk"]


async def test_learnt_output_survives_a_restart(tmp_path: Path) -> None:
    async with opened(store_in(tmp_path)) as yard:
        for _ in range(3):
            await yard.call("shapeless")
    async with opened(store_in(tmp_path), limits=Limits()) as yard:
        async with asyncio.timeout(60):  # it is read in the background
            while (described := (await yard.call("describe_tool", {"tool_id": "shapeless"})).data).get(
                "learnt_output"
            ) is None:
                await yard.store.get("a")

    assert described["learnt_output"]["schema"]["required"] == ["name"]
