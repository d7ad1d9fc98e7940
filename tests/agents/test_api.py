"""The HTTP API over a real server, with a runtime that does what the test says."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from callyard import Yard, tool
from callyard.agents import AgentManager, AgentOptions, StreamEvent, TurnRequest
from callyard.agents.api import ROUTES, AgentApi, openapi_document
from callyard.agents.events import TextDelta
from callyard.config.settings import Serving
from callyard.dispatch.call import Caller
from callyard.launch.serve import serve_forever
from callyard.model.schema import SchemaValidator
from callyard.state.memory import MemoryStore
from callyard.state.store import StoreUnavailableError
from callyard.transports import Transport
from callyard.transports.auth import ApiKey, ApiKeys, digest_of
from callyard.transports.http.app import Mount

TIMEOUT = 60.0
KEYS = {name: f"cy_{name}" for name in ("ada", "bob", "olga")}
JSON = {"content-type": "application/json"}


@tool(operation="destroy")
def burn(what: str) -> str:
    """Burn something."""
    return f"burnt {what}"


class SickStore(MemoryStore):
    """A store that cannot be read while it is sick."""

    is_sick = False

    async def get(self, key: str) -> bytes | None:
        if self.is_sick:
            raise StoreUnavailableError("The disk is full.", reason="full")
        return await super().get(key)


class Part:
    """What `launch` mounts: the API and its manager."""

    def __init__(self, manager: AgentManager, api: AgentApi) -> None:
        self.manager, self._api = manager, api

    @property
    def mounts(self) -> dict[str, Mount]:
        return self._api.mounts

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[None]:
        async with self.manager:
            yield


class Clients:
    """A client for each key, and one without."""

    def __init__(self, url: str, manager: AgentManager) -> None:
        self.manager = manager
        self._url = url
        self._open: list[httpx2.AsyncClient] = []

    def of(self, name: str = "") -> httpx2.AsyncClient:
        headers = {"authorization": f"Bearer {KEYS[name]}"} if name else {}
        self._open.append(httpx2.AsyncClient(base_url=self._url, headers=headers, trust_env=False, timeout=TIMEOUT))
        return self._open[-1]

    async def close(self) -> None:
        for client in self._open:
            await client.aclose()


@pytest.fixture
def serving(runtime: Any, tmp_path: Path) -> Any:
    @asynccontextmanager
    async def serve(*, keys: bool = False, roots: list[Path] | None = None, **options: Any) -> AsyncGenerator[Clients]:
        yard = Yard("shop", tools=[burn], store=SickStore())
        yard.configure(origins={}, limits={}, operators=["key:olga"])
        manager = AgentManager(yard, runtime, AgentOptions(**options))
        part = Part(manager, AgentApi(manager, roots=roots or [tmp_path], keep_alive=0.05))
        listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        def ready(transport: Transport) -> None:
            listening.set_result(transport.info().address.removesuffix("/mcp"))

        authenticator = ApiKeys(ApiKey(name, digest_of(key)) for name, key in KEYS.items()) if keys else None
        settings = Serving(transport="http", port=0, shutdown_seconds=0.1)
        server = asyncio.ensure_future(serve_forever(yard, settings, authenticator, mounted=[part], ready=ready))
        async with asyncio.timeout(TIMEOUT):
            clients = Clients(await listening, manager)
            try:
                yield clients
            finally:
                await clients.close()
                server.cancel()
                await asyncio.gather(server, return_exceptions=True)

    return serve


async def new_session(client: httpx2.AsyncClient, **body: Any) -> str:
    response = await client.post("/api/sessions", json=body)
    assert response.status_code == 201, response.text
    return response.json()["id"]


async def read(response: httpx2.Response) -> AsyncIterator[dict[str, Any]]:
    event_id = ""
    async for line in response.aiter_lines():
        if line.startswith("id: "):
            event_id = line.removeprefix("id: ")
        if line.startswith("data: "):
            yield {"id": event_id, **json.loads(line.removeprefix("data: "))}


async def stream(
    client: httpx2.AsyncClient, session_id: str, content: str = "Go.", **body: Any
) -> AsyncIterator[dict[str, Any]]:
    async with client.stream(
        "POST", f"/api/sessions/{session_id}/messages", json={"content": content, **body}
    ) as response:
        assert response.status_code == 200
        assert response.headers["content-type"] == "text/event-stream"
        async for event in read(response):
            yield event


async def burn_tea(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
    decision = await request.permit("burn", {"what": "tea"}, tool_call_id="t1", source="yard")
    if decision.is_yes:
        envelope = await request.conversation.call("burn", {"what": "tea"}, meta={"claudecode/toolUseId": "t1"})
        yield TextDelta(text=str(envelope.data))
    else:
        yield TextDelta(text=decision.sentence())


async def wait_for_ever(_: TurnRequest) -> AsyncGenerator[StreamEvent]:
    yield TextDelta(text="I think.")
    await asyncio.Event().wait()


async def test_a_message_is_streamed_and_the_session_is_listed(serving: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        events = [event async for event in stream(client, session_id, "Say hello.")]
        listed = (await client.get("/api/sessions")).json()["sessions"]
        got = (await client.get(f"/api/sessions/{session_id}")).json()

    assert [(event["id"], event["type"]) for event in events] == [("1-1", "text_delta"), ("1-2", "done")]
    assert [(one["id"], one["title"], one["turns"]) for one in listed] == [(session_id, "Say hello.", 1)]
    assert (got["running"], got["interactions"]) == (False, [])


@pytest.mark.parametrize(("decision", "text"), [("approve", "burnt tea"), ("deny", "The person refused. Not now.")])
async def test_an_approval_is_decided_over_http(serving: Any, runtime: Any, decision: str, text: str) -> None:
    runtime.play = burn_tea
    async with serving() as clients:
        client = clients.of()
        events: list[dict[str, Any]] = []
        again: Any = None
        async for event in stream(client, await new_session(client)):
            events.append(event)
            if event["type"] == "approval_required":
                path = f"/api/interactions/{event['interaction_id']}/{decision}"
                assert (await client.post(path, json={"reason": "Not now."})).json()["decision"] == decision
                again = await client.post(path, json={})

    assert [event["text"] for event in events if event["type"] == "text_delta"] == [text]
    assert [event["type"] for event in events][:2] == ["approval_required", "approval_resolved"]
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")


async def test_a_question_is_answered_over_http(serving: Any, runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        form = {"type": "object", "properties": {"colour": {"type": "string"}}, "required": ["colour"]}
        decision = await request.ask("Which?", form, tool="ask", tool_call_id="t1")
        yield TextDelta(text=str(decision.content))

    runtime.play = play
    async with serving() as clients:
        client = clients.of()
        events: list[dict[str, Any]] = []
        wrong: Any = None
        async for event in stream(client, await new_session(client)):
            events.append(event)
            if event["type"] == "question":
                path = f"/api/interactions/{event['interaction_id']}/answer"
                wrong = await client.post(path, json={"content": {}})
                assert (await client.post(path, json={"content": {"colour": "red"}})).status_code == 200

    assert wrong.status_code == 400
    assert [event["text"] for event in events if event["type"] == "text_delta"] == ["{'colour': 'red'}"]


async def test_an_identity_never_sees_or_resolves_what_is_anothers(serving: Any, runtime: Any) -> None:
    runtime.play = burn_tea
    async with serving(keys=True) as clients:
        ada, bob = clients.of("ada"), clients.of("bob")
        session_id = await new_session(ada)
        seen: list[Any] = []
        refused: list[Any] = []
        unknown: Any = None
        async for event in stream(ada, session_id):
            if event["type"] == "approval_required":
                seen += [(await bob.get("/api/sessions")).json(), (await bob.get("/api/interactions")).json()]
                paths = [
                    ("GET", f"/api/sessions/{session_id}"),
                    ("DELETE", f"/api/sessions/{session_id}"),
                    ("GET", f"/api/sessions/{session_id}/events"),
                    ("GET", f"/api/sessions/{session_id}/messages"),
                    ("POST", f"/api/sessions/{session_id}/cancel"),
                    ("POST", f"/api/sessions/{session_id}/messages"),
                    ("POST", f"/api/interactions/{event['interaction_id']}/approve"),
                    ("POST", f"/api/interactions/{event['interaction_id']}/deny"),
                    ("POST", f"/api/interactions/{event['interaction_id']}/answer"),
                ]
                bodies: dict[str, Any] = {"messages": {"content": "x"}, "answer": {"content": {}}}
                refused = [
                    await bob.request(method, path, json=bodies.get(path.split("/")[-1], {})) for method, path in paths
                ]
                unknown = await bob.post("/api/interactions/i_none/approve", json={})
                await ada.post(f"/api/interactions/{event['interaction_id']}/approve", json={})

    assert seen == [{"sessions": []}, {"interactions": []}]
    assert {(one.status_code, one.json()["error"]["code"]) for one in refused} == {(404, "not_found")}
    theirs = unknown.text.replace("i_none", refused[-1].request.url.path.split("/")[3])
    assert [one.text for one in refused[-3:]] == [theirs] * 3


async def test_an_operator_sees_and_resolves_what_is_others_and_does_not_speak_for_them(
    serving: Any, runtime: Any
) -> None:
    runtime.play = burn_tea
    async with serving(keys=True) as clients:
        ada, olga = clients.of("ada"), clients.of("olga")
        session_id = await new_session(ada)
        events: list[dict[str, Any]] = []
        sessions: list[dict[str, Any]] = []
        message: Any = None
        deleted: Any = None
        async for event in stream(ada, session_id):
            events.append(event)
            if event["type"] == "approval_required":
                [listed] = (await olga.get("/api/interactions")).json()["interactions"]
                sessions = (await olga.get("/api/sessions")).json()["sessions"]
                message = await olga.post(f"/api/sessions/{session_id}/messages", json={"content": "x"})
                deleted = await olga.delete(f"/api/sessions/{session_id}")
                await olga.post(f"/api/interactions/{listed['interaction_id']}/approve", json={"reason": "Fine."})
        gate = clients.manager.yard.gate
        keys = await clients.manager.yard.store.keys("approval/")
        approvals = [await gate.approvals.get(key.removeprefix("approval/")) for key in keys]

    resolved = next(event for event in events if event["type"] == "approval_resolved")
    assert (resolved["by"], resolved["reason"], events[-1]["status"]) == ("key:olga", "Fine.", "completed")
    assert ([one["identity"] for one in sessions], message.status_code, deleted.status_code) == (["key:ada"], 404, 404)
    assert [approval.decided_by for approval in approvals] == ["client:key:olga"]


async def test_an_operator_cancels_a_turn_of_another(serving: Any, runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with serving(keys=True) as clients:
        ada, olga = clients.of("ada"), clients.of("olga")
        session_id = await new_session(ada)
        events: list[dict[str, Any]] = []
        cancelled: Any = None
        again: Any = None
        async for event in stream(ada, session_id):
            events.append(event)
            if event["type"] == "text_delta":
                cancelled = await olga.post(f"/api/sessions/{session_id}/cancel", json={})
                again = await olga.post(f"/api/sessions/{session_id}/cancel", json={})

    assert (cancelled.json(), again.json()) == ({"cancelled": True}, {"cancelled": False})
    assert [(event["type"], event.get("code"), event.get("status")) for event in events[1:]] == [
        ("error", "cancelled", None),
        ("done", None, "cancelled"),
    ]


async def test_credentials_are_needed_where_the_server_needs_them(serving: Any) -> None:
    async with serving(keys=True) as clients:
        responses = [await clients.of().request(route.method, route.path, json={}) for route in ROUTES]

    assert {response.status_code for response in responses} == {401}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({**JSON, "origin": "https://evil.example"}, 403),
        ({**JSON, "host": "evil.example"}, 421),
        ({"content-type": "Application/JSON; charset=utf-8"}, 201),
        ({**JSON, "origin": "http://localhost:3000"}, 403),
        ({**JSON, "origin": "null"}, 403),
        ({**JSON, "host": "localhost:3000", "origin": "http://localhost:3000"}, 201),
    ],
)
async def test_a_page_of_another_origin_cannot_use_it(serving: Any, headers: dict[str, str], status: int) -> None:
    async with serving() as clients:
        response = await clients.of().post("/api/sessions", content=b"{}", headers=headers)

    assert response.status_code == status


async def test_every_post_must_be_json(serving: Any) -> None:
    posts = [route for route in ROUTES if route.method == "POST"]
    async with serving() as clients:
        client = clients.of()
        responses = [
            await client.post(route.path, content=b"{}", headers={"content-type": "text/plain"}) for route in posts
        ]

    assert {response.status_code for response in responses} == {415}


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"{", 400, "invalid_input"),
        (b"[]", 400, "invalid_input"),
        (b'{"content": 1}', 400, "invalid_input"),
        (b"{}", 400, "invalid_input"),
        (b'{"content": "x", "colour": "red"}', 400, "invalid_input"),
        (b'{"content": "x", "permission_mode": "yolo"}', 400, "invalid_input"),
        (b'{"content": " "}', 400, "invalid_input"),
        (b'{"content": "\xff"}', 400, "invalid_input"),
        (b'{"content": "x", "permission_mode": "bypassPermissions"}', 403, "permission_denied"),
        (b'{"content": "x", "permission_mode": "acceptEdits"}', 403, "permission_denied"),
        (b'{"content": "x", "cwd": "/etc"}', 403, "permission_denied"),
    ],
)
async def test_a_wrong_message_has_a_clear_answer_and_starts_nothing(
    serving: Any, runtime: Any, body: bytes, status: int, code: str
) -> None:
    async with serving() as clients:
        client = clients.of()
        path = f"/api/sessions/{await new_session(client)}/messages"
        response = await client.post(path, content=body, headers=JSON)

    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert runtime.requests == []


async def test_a_caller_may_choose_a_stricter_mode(serving: Any, runtime: Any) -> None:
    async with serving(permission_mode="acceptEdits") as clients:
        client = clients.of()
        session_id = await new_session(client, permission_mode="plan", model="small")
        _ = [event async for event in stream(client, session_id)]
        _ = [event async for event in stream(client, session_id, permission_mode="acceptEdits", model="large")]

    assert [(request.permission_mode, request.model) for request in runtime.requests] == [
        ("plan", "small"),
        ("acceptEdits", "large"),
    ]


async def test_a_session_is_held_to_what_the_server_allows_now(serving: Any, runtime: Any, tmp_path: Path) -> None:
    async with serving() as clients:
        client = clients.of()
        (tmp_path / "inner").mkdir()
        loose, moved = await new_session(client), await new_session(client, cwd="inner")
        session = await clients.manager.sessions.get("local", loose)
        await clients.manager.sessions.save(
            session, permission_mode="bypassPermissions"
        )  # as an earlier server allowed it
        (tmp_path / "inner").rmdir()
        (tmp_path / "other").mkdir()
        (tmp_path / "inner").symlink_to(tmp_path / "other")
        responses = [
            await client.post(f"/api/sessions/{one}/messages", json={"content": "x"}) for one in (loose, moved)
        ]

    assert [(response.status_code, response.json()["error"]["code"]) for response in responses] == [
        (403, "permission_denied")
    ] * 2
    assert runtime.requests == []


async def test_a_second_message_is_refused_while_one_runs(serving: Any, runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        refused: Any = None
        async for event in stream(client, session_id):
            if event["type"] == "text_delta":
                refused = await client.post(f"/api/sessions/{session_id}/messages", json={"content": "x"})
                await client.post(f"/api/sessions/{session_id}/cancel", json={})

    assert (refused.status_code, refused.json()["error"]["details"]["reason"]) == (409, "turn_running")


async def test_an_unknown_session_is_not_made(serving: Any, runtime: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        responses = [
            await client.post("/api/sessions/none/messages", json={"content": "x"}),
            await client.get("/api/sessions/none"),
            await client.get("/api/sessions/none/events"),
            await client.delete("/api/sessions/none"),
            await client.post("/api/sessions/none/cancel", json={}),
        ]
        listed = (await client.get("/api/sessions")).json()

    assert {(one.status_code, one.json()["error"]["code"]) for one in responses} == {(404, "not_found")}
    assert (listed, runtime.requests) == ({"sessions": []}, [])


async def test_a_folder_is_confined_to_the_roots(serving: Any, runtime: Any, tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (root / "inner", outside):
        folder.mkdir(parents=True)
    (root / "file").touch()
    (root / "escape").symlink_to(outside)
    (root / "alias").symlink_to(root / "inner")
    refused = [
        "..",
        "/",
        str(outside),
        "escape",
        "inner/../../outside",
        "file",
        "none",
        "a\x00b",
        str(root) + "x",
        "~",
        "x" * 5000,
    ]
    allowed = {
        "": root,
        ".": root,
        "inner": root / "inner",
        "alias": root / "inner",
        str(root / "inner"): root / "inner",
    }
    async with serving(roots=[root]) as clients:
        client = clients.of()
        statuses = {cwd: (await client.post("/api/sessions", json={"cwd": cwd})).status_code for cwd in refused}
        folders = {cwd: (await client.post("/api/sessions", json={"cwd": cwd})).json()["cwd"] for cwd in allowed}
        session_id = await new_session(client)
        _ = [event async for event in stream(client, session_id, cwd=".")]
        moved = await client.post(f"/api/sessions/{session_id}/messages", json={"content": "x", "cwd": "inner"})

    assert statuses == dict.fromkeys(refused, 403)
    assert folders == {cwd: str(folder.resolve()) for cwd, folder in allowed.items()}
    assert ([request.cwd for request in runtime.requests], moved.status_code) == ([str(root.resolve())], 409)


async def test_a_runtime_without_folders_refuses_one(serving: Any, runtime: Any) -> None:
    runtime.has_folder = False
    async with serving() as clients:
        client = clients.of()
        refused = await client.post("/api/sessions", json={"cwd": "."})
        session = (await client.post("/api/sessions", json={})).json()

    assert (refused.status_code, session["cwd"]) == (501, None)


async def test_a_client_that_goes_away_reads_on_where_it_was(serving: Any, runtime: Any) -> None:
    runtime.play = burn_tea
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        async for event in stream(client, session_id):
            if event["type"] == "approval_required":
                break  # the connection is closed here, and the turn goes on
        [pending] = (await client.get(f"/api/sessions/{session_id}")).json()["interactions"]
        await client.post(f"/api/interactions/{pending['interaction_id']}/approve", json={})
        replies: list[list[str]] = []
        for last in ("", "1-1", "1-3", "9-2", "nonsense", "1-" + "9" * 99):
            async with client.stream(
                "GET", f"/api/sessions/{session_id}/events", headers={"last-event-id": last}
            ) as response:
                replies.append([event["id"] async for event in read(response)])

    whole = ["1-1", "1-2", "1-3", "1-4"]
    assert replies == [whole, whole[1:], whole[3:], whole, whole, []]


async def test_a_quiet_stream_is_kept_alive(serving: Any, runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        async with client.stream("POST", f"/api/sessions/{session_id}/messages", json={"content": "x"}) as response:
            lines = [line async for line in until_quiet(response)]

    assert lines[-1].startswith(":")


async def until_quiet(response: httpx2.Response) -> AsyncIterator[str]:
    async for line in response.aiter_lines():
        yield line
        if line.startswith(":"):
            return


async def test_events_of_a_session_without_turns_are_not_there(serving: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        response = await client.get(f"/api/sessions/{await new_session(client)}/events")

    assert (response.status_code, response.json()["error"]["details"]["reason"]) == (404, "no_turn")


async def test_a_deleted_session_ends_what_runs_in_it(serving: Any, runtime: Any) -> None:
    runtime.play = wait_for_ever
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        events: list[dict[str, Any]] = []
        deleted: Any = None
        async for event in stream(client, session_id):
            events.append(event)
            if event["type"] == "text_delta":
                deleted = await client.delete(f"/api/sessions/{session_id}")
        listed = (await client.get("/api/sessions")).json()

    assert (deleted.status_code, events[-1]["status"], listed) == (204, "cancelled", {"sessions": []})
    assert runtime.ended.is_set()


async def test_a_server_that_shuts_down_ends_its_streams_with_a_word(serving: Any, runtime: Any) -> None:
    runtime.play = wait_for_ever
    events: list[dict[str, Any]] = []
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        async for event in stream(client, session_id):
            events.append(event)
            if event["type"] == "text_delta":
                clients.manager.cancel_all()  # as the transport does when it shuts down

    assert [event["type"] for event in events] == ["text_delta", "error", "done"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("PUT", "/api/sessions", 405),
        ("GET", "/api/sessions/x/messages", 404),
        ("PUT", "/api/sessions/x/messages", 405),
        ("GET", "/api/sessions/x/y/z", 404),
        ("GET", "/api/interactions/x", 404),
        ("GET", "/api", 404),
        ("GET", "/api/openapi.json", 200),
        ("POST", "/api/openapi.json", 405),
    ],
)
async def test_a_missing_thing_has_its_status(serving: Any, method: str, path: str, status: int) -> None:
    async with serving() as clients:
        response = await clients.of().request(method, path, headers=JSON)

    assert response.status_code == status


async def test_messages_are_listed_also_those_before_a_turn(serving: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        for content in ("one", "two"):
            _ = [event async for event in stream(client, session_id, content)]
        path = f"/api/sessions/{session_id}/messages"
        listed, before = [(await client.get(path + query)).json()["messages"] for query in ("", "?before=2")]
        wrong = [(await client.get(f"{path}?before={text}")).status_code for text in ("x", "-1", "9" * 30)]

    assert [(one["role"], one["turn"], one["text"]) for one in listed] == [
        ("user", 1, "one"),
        ("agent", 1, "Hello."),
        ("user", 2, "two"),
        ("agent", 2, "Hello."),
    ]
    assert [event["type"] for event in listed[1]["events"]] == ["text_delta", "done"]
    assert (before, wrong) == (listed[:2], [400, 400, 400])


async def test_a_store_that_cannot_be_used_is_said_to_be_so(serving: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        session_id = await new_session(client)
        clients.manager.yard.store.is_sick = True
        response = await client.get(f"/api/sessions/{session_id}")

    assert (response.status_code, response.json()["error"]["details"]["reason"]) == (503, "store_unavailable")


async def test_a_caller_has_a_thousand_sessions_at_most(serving: Any) -> None:
    async with serving() as clients:
        client = clients.of()
        for number in range(1000):
            await clients.manager.sessions.create(Caller(), runtime="played", session_id=f"chat {number}")
        refused = await client.post("/api/sessions", json={})
        others = await clients.manager.sessions.create(Caller(identity="bob"), runtime="played")

    assert (refused.status_code, refused.json()["error"]["details"]["reason"], others.identity) == (
        503,
        "sessions_full",
        "bob",
    )


def test_the_openapi_document_has_every_route_event_and_reference() -> None:
    document = openapi_document("shop")
    text = json.dumps(document)
    operations = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    schemas = document["components"]["schemas"]

    assert operations == {(route.method, route.path) for route in ROUTES}
    assert {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]} <= set(schemas)
    mapping = schemas["StreamEvent"]["discriminator"]["mapping"]
    assert mapping == {type_of_class(one): f"#/components/schemas/{one.__name__}" for one in get_args(StreamEvent)}
    assert {one["$ref"] for one in schemas["StreamEvent"]["anyOf"]} == set(mapping.values())


def type_of_class(event: Any) -> str:
    return event.__struct_config__.tag


def test_the_openapi_document_has_a_schema_for_every_answer_and_names_the_credentials() -> None:
    document = openapi_document("shop")
    operations = {one["operationId"]: one for methods in document["paths"].values() for one in methods.values()}
    created = operations["create_session"]["responses"]["201"]["content"]["application/json"]["schema"]

    assert created == {"$ref": "#/components/schemas/Session"}
    assert {"id", "running", "cwd"} <= set(document["components"]["schemas"]["Session"]["required"])
    for name, operation in operations.items():
        assert {"400", "401", "403", "404", "409", "413", "415", "501", "503"} < set(operation["responses"])
        [success] = [answer for status, answer in operation["responses"].items() if status < "300"]
        assert ("content" in success) == (name != "delete_session")
    assert {next(iter(one), "") for one in document["security"]} == {"", *document["components"]["securitySchemes"]}


async def test_answers_fit_the_schemas_of_the_openapi_document(serving: Any, runtime: Any) -> None:
    async def play(request: TurnRequest) -> AsyncGenerator[StreamEvent]:
        await request.permit("burn", {"what": "tea"}, tool_call_id="t1", source="yard")
        yield TextDelta(text="Never.")

    runtime.play = play
    async with serving() as clients:
        client = clients.of()
        created = (await client.post("/api/sessions", json={})).json()
        sending = asyncio.create_task(client.post(f"/api/sessions/{created['id']}/messages", json={"content": "Go."}))
        while not (waiting := (await client.get("/api/interactions")).json())["interactions"]:
            pass
        answers = {
            "Session": created,
            "Sessions": (await client.get("/api/sessions")).json(),
            "SessionWithInteractions": (await client.get(f"/api/sessions/{created['id']}")).json(),
            "Waiting": waiting,
            "Messages": (await client.get(f"/api/sessions/{created['id']}/messages")).json(),
            "Failure": (await client.get("/api/sessions/none")).json(),
            "Settled": (
                await client.post(f"/api/interactions/{waiting['interactions'][0]['interaction_id']}/deny", json={})
            ).json(),
            "Cancelled": (await client.post(f"/api/sessions/{created['id']}/cancel", json={})).json(),
        }
        await sending

    schemas = openapi_document("shop")["components"]["schemas"]
    for name, answer in answers.items():
        whole = json.loads(json.dumps({**schemas[name], "$defs": schemas}).replace("#/components/schemas/", "#/$defs/"))
        assert SchemaValidator(whole).issues(answer) == []
        assert set(answer) == set(schemas[name]["properties"])
