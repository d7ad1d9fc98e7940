"""A session matches responses with requests and client requests with calls, and survives invalid messages."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from scripted import ScriptedLink

from callyard.dispatch.progress import Progress
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError
from callyard.providers.upstream import session as session_module
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import NO_CALLER, CallContext, ClientSession
from callyard.wire.messages import Fault
from callyard.wire.params import Client, Requests
from callyard.wire.versions import LATEST, LATEST_HANDSHAKE

OLD = Requests(LATEST_HANDSHAKE, Client("test", "1"))
NEW = Requests(LATEST, Client("test", "1"))


class Callbacks:
    """Records what a session reports to its owner."""

    def __init__(self) -> None:
        self.methods: list[str] = []
        self.errors: list[LinkError] = []

    def notify(self, method: str, _params: msgspec.Raw) -> None:
        self.methods.append(method)


async def open_session(link: ScriptedLink, *, http: bool = False) -> tuple[ClientSession, Callbacks]:
    """Return a session over a link that is open."""
    callbacks = Callbacks()
    session = ClientSession("up", link, http=http, on_notification=callbacks.notify, on_end=callbacks.errors.append)
    session.requests = OLD
    await link.open(session)
    return session, callbacks


async def test_a_response_reaches_its_request_as_json() -> None:
    def echo(params: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"echo": params["name"]}

    link = ScriptedLink({"tools/call": echo})
    session, _ = await open_session(link)

    first, second = await asyncio.gather(*(session.request(OLD, "tools/call", {"name": name}) for name in "ab"))

    assert (bytes(first), bytes(second)) == (b'{"echo":"a"}', b'{"echo":"b"}')


async def test_a_json_rpc_error_keeps_its_code_message_and_data() -> None:
    session, _ = await open_session(ScriptedLink({"x": Fault(-32050, "Quota.", {"retry": 3})}))

    with pytest.raises(Fault) as caught:
        await session.request(OLD, "x", {})
    assert (caught.value.code, caught.value.message, caught.value.data) == (-32050, "Quota.", {"retry": 3})


async def test_an_invalid_error_object_is_still_an_error() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked = asyncio.create_task(session.request(OLD, "x", {}))
    await link.until(lambda: link.sent)
    session.receive(b'{"jsonrpc":"2.0","id":1,"error":"no"}', None)

    with pytest.raises(Fault):
        await asked


async def test_a_modern_request_has_version_client_and_capabilities_in_body_and_headers() -> None:
    link = ScriptedLink({"tools/call": {}})
    session, _ = await open_session(link)
    context = CallContext(capabilities={"elicitation": {}}, meta={"traceparent": "00-1"}, headers={"Mcp-Param-A": "1"})

    await session.request(NEW, "tools/call", {"name": "add"}, name="größe", context=context)

    assert link.sent[0]["params"]["_meta"] == {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}},
        "traceparent": "00-1",
    }
    assert link.headers[0] == {
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tools/call",
        "Mcp-Name": "=?base64?Z3LDtsOfZQ==?=",
        "Mcp-Param-A": "1",
    }


async def test_progress_and_log_messages_reach_the_call() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    notes: list[Progress] = []
    lines: list[tuple[str, str]] = []
    context = CallContext(owner="me", progress=notes.append, log=lambda level, text: lines.append((level, text)))
    asked = asyncio.create_task(session.request(OLD, "x", {}, context=context))
    await link.until(lambda: link.sent)

    link.notify("notifications/progress", {"progressToken": 1, "progress": 2, "total": 4, "message": "half"})
    link.notify("notifications/progress", {"progressToken": 99, "progress": 2})
    link.notify("notifications/progress", {"progressToken": {}})
    link.notify("notifications/message", {"level": "warning", "data": "careful"})
    link.notify("notifications/message", {"level": "info", "data": {"a": 1}}, about=1)
    session.lose(1, LinkError("lost", "Gone."))

    with pytest.raises(LinkError):
        await asked
    assert notes == [Progress(2, 4, "half")]
    assert lines == [("warning", "careful"), ("info", '{"a":1}')]
    assert link.sent[0]["params"]["_meta"] == {"progressToken": 1}


async def test_cancelling_the_wait_cancels_the_request() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked = asyncio.create_task(session.request(OLD, "x", {}))
    await link.until(lambda: link.sent)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    assert link.dropped == [1]
    assert link.sent[1]["params"]["requestId"] == 1
    session.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}', None)  # too late, and no harm


async def test_over_modern_http_closing_the_connection_is_the_cancellation() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link, http=True)
    session.requests = NEW
    asked = asyncio.create_task(session.request(NEW, "x", {}))
    await link.until(lambda: link.sent)
    asked.cancel()
    await asyncio.gather(asked, return_exceptions=True)

    assert (link.dropped, len(link.sent)) == ([1], 1)


async def test_a_link_that_ends_fails_all_requests_and_is_reported_once() -> None:
    link = ScriptedLink({"x": None})
    session, callbacks = await open_session(link)
    asked = [asyncio.create_task(session.request(OLD, "x", {})) for _ in range(3)]
    await link.until(lambda: len(link.sent) == 3)
    session.end(LinkError("lost", "It died.", sent=True))

    results = await asyncio.gather(*asked, return_exceptions=True)
    assert [str(result) for result in results] == ["It died."] * 3
    assert len(callbacks.errors) == 1


async def test_closing_fails_pending_requests() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked = asyncio.create_task(session.request(OLD, "x", {}))
    await link.until(lambda: link.sent)
    await session.drain(0.01)

    with pytest.raises(LinkError, match="'up' was stopped"):
        await asked
    assert not link.is_open
    await session.drain(0.01)


async def test_invalid_messages_are_ignored_and_other_notifications_go_to_the_owner() -> None:
    link = ScriptedLink({})
    session, callbacks = await open_session(link)
    session.receive(b"{", None)
    session.receive(b'{"jsonrpc":"2.0","id":77,"result":{}}', None)
    link.notify("notifications/message", {"data": "to nobody"})
    link.notify("notifications/tools/list_changed")

    assert callbacks.methods == ["notifications/tools/list_changed"]


async def test_a_ping_is_answered_and_a_request_about_no_call_is_refused() -> None:
    link = ScriptedLink({})
    await open_session(link)
    link.ask("p", "ping")
    link.ask("q", "roots/list")

    assert link.sent[0] == {"jsonrpc": "2.0", "id": "p", "result": {}}
    assert link.sent[1]["error"]["code"] == -32601


def answering(answer: Mapping[str, Any] | ToolError, asked: list[ClientRequest]) -> Any:
    """Return what answers every question the same, and remembers what was asked."""

    async def ask(asks: Mapping[str, ClientRequest]) -> Mapping[str, Any]:
        asked.append(asks["answer"])
        if isinstance(answer, ToolError):
            raise answer
        return {"answer": answer}

    return ask


async def test_the_folders_of_a_client_are_asked_for_only_where_that_is_configured() -> None:
    asked: list[ClientRequest] = []
    ask = answering({"roots": []}, asked)
    for is_allowed in (False, True):
        link = ScriptedLink({"x": None})
        session, _ = await open_session(link)
        context = CallContext(owner="me", ask=ask, has_roots=is_allowed)
        waiting = asyncio.create_task(session.request(OLD, "x", {}, context=context))
        await link.until(lambda link=link: link.sent)
        link.ask(5, "roots/list", {}, about=1)
        await link.until(lambda link=link: len(link.sent) > 1)
        waiting.cancel()

        assert link.sent[1].get("error", {}).get("code") == (None if is_allowed else -32601)
        assert len(asked) == is_allowed


@pytest.mark.parametrize("about", [1, None])
async def test_a_client_request_reaches_the_client_of_its_call_and_the_answer_the_upstream(about: int | None) -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked: list[ClientRequest] = []
    context = CallContext(owner="me", ask=answering({"action": "accept", "content": {"name": "Bo"}}, asked))
    waiting = asyncio.create_task(session.request(OLD, "x", {}, context=context))
    await link.until(lambda: link.sent)
    link.ask(5, "elicitation/create", {"message": "Who?"}, about=about)
    await link.until(lambda: len(link.sent) > 1)

    assert asked == [ClientRequest("elicitation/create", {"message": "'up' asks: Who?"})]
    assert link.sent[1] == {"jsonrpc": "2.0", "id": 5, "result": {"action": "accept", "content": {"name": "Bo"}}}
    waiting.cancel()


async def test_all_messages_about_a_call_have_the_callers_headers() -> None:
    async def answer(_: object) -> Mapping[str, Any]:
        return {"answer": {"action": "decline"}}

    link = ScriptedLink({"tools/call": None})
    session, _ = await open_session(link)
    context = CallContext(owner="a", ask=answer, headers={"authorization": "Bearer a", "Mcp-Param-A": "1"})
    task = asyncio.create_task(session.request(OLD, "tools/call", {}, context=context))
    await link.until(lambda: link.sent)
    link.ask(5, "elicitation/create", {}, about=1)
    await link.until(lambda: len(link.sent) == 2)
    link.ask(6, "ping")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)

    assert [message.get("method", message.get("id")) for message in link.sent] == [
        "tools/call",
        5,
        6,
        "notifications/cancelled",
    ]
    shown = [headers.get("authorization") for headers in link.headers]
    assert shown == ["Bearer a", "Bearer a", None, "Bearer a"]
    assert ["Mcp-Param-A" in headers for headers in link.headers] == [True, False, False, False]


async def test_a_client_request_that_may_be_about_two_owners_is_refused() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked: list[ClientRequest] = []
    contexts = [CallContext(owner=owner, ask=answering({"action": "accept"}, asked)) for owner in ("me", "you")]
    waiting = [asyncio.create_task(session.request(OLD, "x", {}, context=context)) for context in contexts]
    await link.until(lambda: len(link.sent) == 2)
    link.ask(5, "elicitation/create", {})
    link.ask(6, "elicitation/create", {}, about=99)

    assert [message["error"]["code"] for message in link.sent[2:]] == [-32601, -32601]
    assert asked == []
    for task in waiting:
        task.cancel()


@pytest.mark.parametrize(("code", "error_code"), [("not_supported", -32601), ("timeout", -32603)])
async def test_a_client_request_that_fails_is_answered_with_an_error(code: Any, error_code: int) -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    context = CallContext(owner="me", ask=answering(ToolError(code, "No."), []))
    waiting = asyncio.create_task(session.request(OLD, "x", {}, context=context))
    await link.until(lambda: link.sent)
    link.ask(5, "elicitation/create", {})
    await link.until(lambda: len(link.sent) > 1)

    assert link.sent[1]["error"]["code"] == error_code
    waiting.cancel()


async def asking_for_ever(
    session: ClientSession, link: ScriptedLink
) -> tuple["asyncio.Task[msgspec.Raw]", asyncio.Event]:
    """Return a request whose upstream asked what nobody answers, and what tells that the question is over."""
    started, over = asyncio.Event(), asyncio.Event()

    async def ask(_: Mapping[str, ClientRequest]) -> Mapping[str, Any]:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            over.set()
        return {}

    waiting = asyncio.create_task(session.request(OLD, "x", {}, context=CallContext(owner="me", ask=ask)))
    await link.until(lambda: link.sent)
    link.ask(5, "elicitation/create", {})
    await started.wait()
    return waiting, over


async def test_an_upstream_may_cancel_its_request() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    waiting, over = await asking_for_ever(session, link)
    link.notify("notifications/cancelled", {"requestId": 77})
    link.notify("notifications/cancelled", {})
    link.notify("notifications/cancelled", {"requestId": 5})
    await over.wait()
    waiting.cancel()


async def test_client_requests_end_with_the_link() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    waiting, over = await asking_for_ever(session, link)
    session.end(LinkError("lost", "It died."))
    await over.wait()
    await asyncio.gather(waiting, return_exceptions=True)


async def test_requests_without_a_caller_have_no_client() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    waiting = asyncio.create_task(session.request(OLD, "x", {}, context=NO_CALLER))
    await link.until(lambda: link.sent)
    link.ask(5, "elicitation/create", {})

    assert link.sent[1]["error"]["code"] == -32601
    waiting.cancel()


@pytest.mark.parametrize("about", [1, None])
async def test_an_invalid_message_fails_the_request_it_answers(about: int | None) -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    asked = asyncio.create_task(session.request(OLD, "x", {}))
    await link.until(lambda: link.sent)
    session.receive(b'{"jsonrpc":"1.0","id":1,"result":' + b"[" * 5 + b"]" * 5 + b"}", about)

    with pytest.raises(LinkError, match="invalid message"):
        await asked


async def test_a_late_response_is_awaited_once_and_any_other_is_not() -> None:
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    waiting = asyncio.create_task(session.request(OLD, "x", {}))
    await link.until(lambda: link.sent)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    late = b'{"jsonrpc":"2.0","id":1,"result":{}}'

    assert [session.receive(late, None) for _ in range(2)] == ["awaited", "message"]
    assert session.receive(b'{"jsonrpc":"2.0","id":99,"result":{}}', None) == "message"
    assert session.receive(b"[]", None) == "invalid"


async def test_cancelled_requests_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_module, "_GIVEN_UP", 1)
    link = ScriptedLink({"x": None})
    session, _ = await open_session(link)
    waiting = [asyncio.create_task(session.request(OLD, "x", {})) for _ in range(2)]
    await link.until(lambda: len(link.sent) == 2)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)

    answers = [session.receive(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % number, None) for number in (1, 2)]
    assert answers == ["message", "awaited"]


async def test_a_flood_of_invalid_messages_is_none_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    session, _ = await open_session(ScriptedLink({}))
    for _ in range(100):
        session.receive(b"{}", None)

    assert len([record for record in caplog.records if "upstream_says_nonsense" in record.message]) == 10
