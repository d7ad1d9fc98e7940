"""Approvals in a store: single use, expiry, grants, and a store that is gone."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from callyard import Caller, Limits, MemoryStore, Operation, StoreUnavailableError, ToolError, Yard, resource, tool
from callyard.policy.approvals import Approval, Approvals
from callyard.policy.settings import Rule
from callyard.testing import FakeClock

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
SECRET = {"token": "t0p"}
QUICK = Limits(approval_hold_s=0.001)


def make_tools(gone: list[Any]) -> list[Any]:
    @tool(operation="destroy")
    async def delete(name: str, token: str = "") -> str:
        """Delete something."""
        gone.append((name, token))
        return f"deleted {name}"

    @tool(operation="query")
    async def look() -> int:
        """Look."""
        return 1

    return [delete, look]


class BrokenStore(MemoryStore):
    """A store that can be taken away."""

    is_gone = False

    async def get(self, key: str) -> bytes | None:
        """Return a value."""
        if self.is_gone:
            raise StoreUnavailableError("It is gone.", reason="gone")
        return await super().get(key)

    async def compare_and_set(
        self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
    ) -> bool:
        """Set a value."""
        if self.is_gone:
            raise StoreUnavailableError("It is gone.", reason="gone")
        return await super().compare_and_set(key, expected, value, ttl=ttl, durable=durable)


async def asked(yard: Yard, **arguments: Any) -> Approval:
    held = await yard.call("delete", arguments)
    return await Approvals(yard.store).get(held.data["approval_id"])


async def test_without_the_store_an_asked_call_is_refused_and_others_go_on() -> None:
    gone: list[Any] = []
    store = BrokenStore(max_bytes=10**6)
    async with Yard(tools=make_tools(gone), rules=[ASK], store=store, limits=QUICK) as yard:
        approval = await asked(yard, name="a")
        await Approvals(store).decide(approval.id, "approve", by="user:test")
        store.is_gone = True
        refused = [await yard.call("delete", {"name": "a"}), await yard.call("delete", {"name": "b"})]
        allowed = await yard.call("look")
        store.is_gone = False
        ran = await yard.call("delete", {"name": "a"})

    for answer in refused:
        assert answer.error is not None
        assert (answer.error.code, answer.error.details["reason"], answer.error.may_have_run) == (
            "overloaded",
            "store_unavailable",
            False,
        )
        assert answer.error.retryable
    assert allowed.data == 1
    assert ran.success
    assert gone == [("a", "")]


async def test_a_store_that_goes_between_decision_and_handler_keeps_the_approval() -> None:
    gone: list[Any] = []
    store = BrokenStore(max_bytes=10**6)

    def take_away(handler: Any) -> Any:
        async def run(call: Any) -> object:
            store.is_gone = call.spec.name == "delete" and not gone
            return await handler(call)

        return run

    async with Yard(tools=make_tools(gone), rules=[ASK], store=store, limits=QUICK, middleware=[take_away]) as yard:
        approval = await asked(yard, name="a")
        await Approvals(store).decide(approval.id, "approve", by="user:test")
        refused = await yard.call("delete", {"name": "a"})
        store.is_gone = False
        kept = await Approvals(store).get(approval.id)

    assert refused.error is not None
    assert (refused.error.code, refused.error.may_have_run) == ("overloaded", False)
    assert kept.status == "approved"
    assert gone == []


async def test_a_decision_and_its_use_wait_for_copies_of_the_store() -> None:
    noted: list[str] = []

    class Copied(MemoryStore):
        """A store that notes which approvals are written durably."""

        async def compare_and_set(
            self, key: str, expected: bytes | None, value: bytes, *, ttl: float | None = None, durable: bool = False
        ) -> bool:
            noted.extend([msgspec.json.decode(value)["status"]] if durable else [])
            return await super().compare_and_set(key, expected, value, ttl=ttl)

    gone: list[Any] = []
    async with Yard(tools=make_tools(gone), rules=[ASK], store=Copied(), limits=QUICK) as yard:
        approval = await asked(yard, name="a")
        await Approvals(yard.store).decide(approval.id, "approve", by="user:test")
        assert (await yard.call("delete", {"name": "a"})).success

    assert noted == ["approved", "spent"]


async def test_an_approval_expires_at_use_and_a_call_asks_anew() -> None:
    gone: list[Any] = []
    clock = FakeClock()
    async with Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK) as yard:
        assert yard.gate is not None
        approvals = yard.gate.approvals
        approvals.clock = clock
        held = await yard.call("delete", {"name": "a"})
        clock.advance(3599)
        await approvals.decide(held.data["approval_id"], "approve", by="user:test")
        clock.advance(1)
        again = await yard.call("delete", {"name": "a"})
        with pytest.raises(ToolError, match="expired"):
            await approvals.decide(held.data["approval_id"], "approve", by="user:test")

    assert again.data["status"] == "approval_required"
    assert again.data["approval_id"] != held.data["approval_id"]
    assert gone == []


async def test_a_decision_is_made_once_but_what_is_not_used_can_be_denied() -> None:
    gone: list[Any] = []
    async with Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK) as yard:
        approvals = Approvals(yard.store)
        approval = await asked(yard, name="a")
        await approvals.decide(approval.id, "approve", by="user:test")
        with pytest.raises(ToolError, match="already"):
            await approvals.decide(approval.id, "approve", by="user:test")
        await approvals.decide(approval.id, "deny", by="user:test")
        answer = await yard.call("delete", {"name": "a"})
        with pytest.raises(ToolError, match="no approval"):
            await approvals.decide("a_unknown", "approve", by="user:test")

    assert answer.error is not None
    assert answer.error.code == "approval_denied"
    assert gone == []


async def test_a_withdrawn_approval_is_expired_and_the_same_call_asks_anew() -> None:
    async with Yard(tools=make_tools([]), rules=[ASK], limits=QUICK) as yard:
        approvals = Approvals(yard.store)
        approval = await asked(yard, name="a")
        withdrawn = await approvals.decide(approval.id, "withdraw", by="expired")
        with pytest.raises(ToolError, match="already"):
            await approvals.decide(approval.id, "approve", by="user:test")
        again = await asked(yard, name="a")

    assert (withdrawn.status, again.status, again.id != approval.id) == ("expired", "pending", True)


async def test_a_grant_allows_the_same_call_until_it_ends_or_is_revoked() -> None:
    gone: list[Any] = []
    clock = FakeClock()
    async with Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK) as yard:
        assert yard.gate is not None
        approvals = yard.gate.approvals
        approvals.clock = clock
        approval = await approvals.get((await yard.call("delete", {"name": "a"})).data["approval_id"])
        exact = await approvals.grant(approval, seconds=60, any_arguments=False, by="user:test")
        same = [(await yard.call("delete", {"name": "a"})).success for _ in range(2)]
        other = await yard.call("delete", {"name": "b"})
        somebody = await yard.call("delete", {"name": "a"}, caller=Caller(identity="else"))
        assert [grant.id for grant in await approvals.grants()] == [exact.id]
        clock.advance(60)
        late = await yard.call("delete", {"name": "a"})
        wide = await approvals.grant(approval, seconds=60, any_arguments=True, by="user:test")
        any_name = await yard.call("delete", {"name": "c"})
        await approvals.revoke(wide.id, by="user:test")
        revoked = await yard.call("delete", {"name": "c"})
        with pytest.raises(ToolError):
            await approvals.revoke(wide.id, by="user:test")
        with pytest.raises(ToolError, match="days"):
            await approvals.grant(approval, seconds=10**9, any_arguments=True, by="user:test")

    assert same == [True, True]
    assert any_name.data == "deleted c"
    assert {answer.data["status"] for answer in (other, somebody, late, revoked)} == {"approval_required"}


async def test_too_many_pending_approvals_of_a_caller_are_refused() -> None:
    gone: list[Any] = []
    async with Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK) as yard:
        answers = await asyncio.gather(*(yard.call("delete", {"name": f"{number}"}) for number in range(110)))
        other = await yard.call("delete", {"name": "a"}, caller=Caller(identity="other"))

    refused = [answer.error.details["reason"] for answer in answers if answer.error is not None]
    assert set(refused) == {"approvals_full"}
    assert other.success


async def test_every_decision_is_a_line_of_the_audit_log(caplog: pytest.LogCaptureFixture) -> None:
    gone: list[Any] = []
    with caplog.at_level(logging.INFO, logger="callyard.audit"):
        async with Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK) as yard:
            approval = await asked(yard, name="a", **SECRET)
            await Approvals(yard.store).decide(approval.id, "approve", by="user:ada")
            await yard.call("delete", {"name": "a", "token": "t0p"})

    events = [record.getMessage() for record in caplog.records if record.name == "callyard.audit"]
    assert [event.split()[0] for event in events] == ["approval_asked", "approval_approved", "approval_spent"]
    assert all(f"id={approval.id} tool=delete" in event for event in events)
    assert "by=user:ada" in events[1]
    assert "t0p" not in str(events)
    assert "t0p" in approval.card.arguments


async def test_a_resource_that_needs_approval_is_refused_until_it_is_given() -> None:
    @resource("doc://secret")
    async def secret() -> str:
        """A secret."""
        return "text"

    rule = Rule(decision="ask", tools=("secret",))
    async with Yard(resources=[secret], rules=[rule], limits=QUICK) as yard:
        held = await yard.read("doc://secret")
        assert held.error is not None
        assert (held.error.code, held.error.details["reason"]) == ("approval_denied", "approval_required")
        await Approvals(yard.store).decide(str(held.error.details["approval_id"]), "approve", by="user:test")
        assert (await yard.read("doc://secret")).success


async def test_only_operators_decide_by_the_library_and_never_about_their_own_call() -> None:
    gone: list[Any] = []
    yard = Yard(tools=make_tools(gone), rules=[ASK], limits=QUICK)
    yard.configure(origins={}, limits={}, operators=["ops", "claim:role=operator"])
    async with yard:
        assert yard.gate is not None
        decide = yard.gate.decide
        approval = await asked(yard, name="a")
        with pytest.raises(ToolError, match="Only operators"):
            await decide(approval.id, "approve", caller=Caller(identity="guest", claims={"role": "user"}))
        decided = await decide(
            approval.id, "approve", caller=Caller(identity="x", claims={"role": ["user", "operator"]})
        )
        held = await yard.call("delete", {"name": "b"}, caller=Caller(identity="ops"))
        with pytest.raises(ToolError, match="their own"):
            await decide(held.data["approval_id"], "approve", caller=Caller(identity="ops"))

    assert (decided.status, decided.decided_by) == ("approved", "x")


async def test_a_yard_without_rules_has_no_gate_and_describe_tells_what_asks() -> None:
    gone: list[Any] = []
    async with Yard(tools=make_tools(gone)) as yard:
        assert yard.gate is None
        assert (await yard.call("delete", {"name": "a"})).success
    async with Yard(tools=make_tools(gone), rules=[ASK]) as yard:
        described = (await yard.call("describe_tool", {"tool_id": "delete"})).data
        harmless = (await yard.call("describe_tool", {"tool_id": "look"})).data

    assert described["needs_approval"] is True
    assert "needs_approval" not in harmless


async def test_a_card_hides_no_part_of_the_arguments() -> None:
    @tool(operation="destroy")
    async def delete_object(bucket: str, key: str, note: str = "") -> None:
        """Delete an object."""
        raise AssertionError

    query = "SELECT 1; " * 1900 + "DROP TABLE customers;"
    async with Yard(tools=[delete_object], rules=[ASK], limits=QUICK) as yard:
        held = [
            await yard.call("delete_object", {"bucket": "b", "key": "prod/x.db", "note": text})
            for text in (query, query * 3)
        ]
        whole, long = [await Approvals(yard.store).get(answer.data["approval_id"]) for answer in held]

    assert msgspec.json.decode(whole.card.arguments) == {"bucket": "b", "key": "prod/x.db", "note": query}
    assert query in whole.card.text()
    assert msgspec.json.decode(long.card.arguments)["note"] == query * 3
