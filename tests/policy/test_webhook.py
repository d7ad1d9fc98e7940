"""A webhook is told of approvals, signed and again until it takes them; a decision point fails closed."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from table_tests import every_row

from callyard import Limits, Operation, Yard, tool
from callyard._internal.webhooks import signature
from callyard.launch.build import post_json
from callyard.policy.settings import Rule
from callyard.policy.webhook import HttpDecisionPoint, HttpWebhook

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))


class Service:
    """An HTTP server that answers with what it is given, and keeps what it is sent."""

    def __init__(self, answers: list[tuple[int, bytes]]) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self._answers = answers
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        self.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
        status, body = self._answers.pop(0)
        if status:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Service"]:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook?x=1"
        async with server:
            yield self


def make_tools(gone: list[str]) -> list[Any]:
    @tool(operation="destroy")
    async def delete(name: str) -> str:
        """Delete something."""
        gone.append(name)
        return f"deleted {name}"

    return [delete]


def governed(gone: list[str], **overrides: Any) -> Yard:
    yard = Yard(tools=make_tools(gone), rules=overrides.pop("yard_rules", ()), limits=Limits(approval_hold_s=10))
    yard.configure(origins={}, limits={}, **overrides)
    return yard


@pytest.mark.parametrize(
    ("answer", "ran"), [({"decision": "approve"}, True), ({"decision": "deny", "reason": "No."}, False)]
)
async def test_the_answer_of_the_webhook_may_be_the_decision(answer: dict[str, str], ran: bool) -> None:  # noqa: FBT001 - a parameter of a test
    gone: list[str] = []
    async with Service([(0, b""), (500, b""), (200, json.dumps(answer).encode())]).open() as service:
        webhook = HttpWebhook(service.url, "s3cret", post_json, waits=(0.0, 0.0))
        async with governed(gone, yard_rules=[ASK], webhook=webhook) as yard:
            envelope = await yard.call("delete", {"name": "a"})

    assert envelope.success is ran
    assert bool(gone) is ran
    assert len(service.requests) == 3
    for headers, body in service.requests:
        assert headers["callyard-signature"] == signature("s3cret", headers["callyard-timestamp"], body)
        card = json.loads(body)
        assert (card["type"], card["tool"], card["operation"]) == ("approval", "delete", "destroy")


@every_row("answer", [(200, b"fine"), (200, b'{"decision": "yes"}'), (200, b"[]"), (404, b'{"decision": "approve"}')])
async def test_any_other_answer_decides_nothing(answer: tuple[int, bytes]) -> None:
    gone: list[str] = []
    async with Service([answer]).open() as service:
        webhook = HttpWebhook(service.url, "s3cret", post_json)
        yard = governed(gone, yard_rules=[ASK], webhook=webhook)
        yard.limits.approval_hold_s = 0.3
        async with yard:
            envelope = await yard.call("delete", {"name": "a"})

    assert envelope.data["status"] == "approval_required"
    assert len(service.requests) == 1
    assert gone == []


@every_row(
    ("answer", "code"),
    [
        ((200, b'{"decision": "allow"}'), None),
        ((200, b'{"decision": "deny", "reason": "Closed."}'), "permission_denied"),
        ((200, b'{"decision": "perhaps"}'), "permission_denied"),
        ((200, b"x" * 100_000), "permission_denied"),
        ((500, b'{"decision": "allow"}'), "permission_denied"),
        ((0, b""), "permission_denied"),
    ],
)
async def test_a_decision_point_fails_closed(answer: tuple[int, bytes], code: str | None) -> None:
    gone: list[str] = []
    async with (
        Service([answer]).open() as service,
        governed(gone, decision_point=HttpDecisionPoint(service.url, post_json, seconds=5)) as yard,
    ):
        envelope = await yard.call("delete", {"name": "a"})

    assert (envelope.error.code if envelope.error else None) == code
    assert bool(gone) is (code is None)


async def test_a_decision_point_that_is_slow_or_away_denies() -> None:
    gone: list[str] = []

    async def never(url: str, body: bytes, headers: Any) -> tuple[int, bytes]:
        await asyncio.Event().wait()
        return 200, b'{"decision": "allow"}'

    async with governed(gone, decision_point=HttpDecisionPoint("http://127.0.0.1:1/", never, seconds=0.01)) as yard:
        slow = await yard.call("delete", {"name": "a"})
    async with governed(gone, decision_point=HttpDecisionPoint("http://127.0.0.1:1/", post_json, seconds=5)) as yard:
        away = await yard.call("delete", {"name": "a"})
        found = await yard.call("search_tools", {"query": "delete"})

    assert slow.error is not None
    assert away.error is not None
    assert {slow.error.code, away.error.code} == {"permission_denied"}
    assert found.success
    assert gone == []


async def test_a_decision_point_may_ask_and_rules_come_first() -> None:
    gone: list[str] = []
    async with Service([(200, b'{"decision": "ask"}')]).open() as service:
        point = HttpDecisionPoint(service.url, post_json, seconds=5)
        async with governed(gone, decision_point=point, rules=[Rule(decision="allow", tools=("nothing",))]) as yard:
            yard.limits.approval_hold_s = 0.01
            envelope = await yard.call("delete", {"name": "a"})

    assert envelope.data["status"] == "approval_required"
