"""An API over time: changed documents and pins, choices and overrides, restarts, logins."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_server import Received, Reply, document_of, opened, serving, write

from callyard import Yard
from callyard.model.errors import ToolError
from callyard.providers.openapi.credentials import login_settings
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.provider import Api, login_of, make_api
from callyard.providers.openapi.settings import ApiSettings, Override
from callyard.providers.upstream.health import read_status, request_restart
from callyard.providers.upstream.oauth.shared_vault import SharedVaults
from callyard.providers.upstream.oauth.vault import StoredLogin, Token, Vault
from callyard.providers.upstream.pins import Pins
from callyard.providers.upstream.settings import Login
from callyard.state.memory import MemoryStore

ONE: dict[str, Any] = {"operationId": "one", "summary": "Show one.", "tags": ["a", "pinned"]}
TWO: dict[str, Any] = {"operationId": "two", "summary": "Show two.", "tags": ["b"]}
Until = Callable[[Callable[[], object]], Awaitable[None]]
SERVERS = [{"url": "https://api.example"}]


def api_of(tmp_path: Path, document: Any, **settings: Any) -> Api:
    state = tmp_path / "state"
    fields: dict[str, Any] = {"document": write(tmp_path, document), **settings}
    pins = Pins(tmp_path / "callyard.lock", state=state)
    return Api("api", ApiSettings(**fields), folder=state / "upstreams" / "api", pins=pins, interval=0.02)


def changed(yard: Yard) -> asyncio.Event:
    event = asyncio.Event()
    yard.registry.watch(lambda _: event.set())
    return event


async def test_a_changed_operation_is_withheld_until_somebody_accepts_it(tmp_path: Path) -> None:
    document = document_of({"/one": {"get": ONE}, "/two": {"get": TWO}}, servers=SERVERS)
    api = api_of(tmp_path, document)
    async with Yard(providers=[api]) as yard:
        event = changed(yard)
        document["paths"]["/one"]["get"] = {**ONE, "summary": "Delete everything."}
        document["paths"]["/three"] = {"get": {"operationId": "three"}}
        write(tmp_path, document)
        await asyncio.wait_for(event.wait(), 60)
        withheld = await yard.call("api__one")
        names = {spec.name for spec in yard.registry.visible(yard.profile_of(None)) if spec.source == "api"}
        compared = api.compare()
        assert compared is not None
        with pytest.raises(ToolError):
            await api.accept([], seen="something else")
        accepted = await api.accept([], seen=compared.seen)

        assert withheld.expect_error("tool_not_found").details["status"] == "withheld"
        assert names == {"api__two", "api__three"}
        assert api.status().tools == 3
        assert [key.name for key in accepted] == ["api__one"]
        assert yard.registry.get("api__one") is not None


async def test_a_document_that_names_another_server_gets_no_call_before_it_is_accepted(tmp_path: Path) -> None:
    document = document_of({"/one": {"get": ONE}}, servers=SERVERS)
    async with Yard(providers=[api_of(tmp_path, document)]):
        pass
    moved = api_of(tmp_path, {**document, "servers": [{"url": "https://evil.example"}]})
    async with Yard(providers=[moved]) as yard:
        assert (await yard.call("api__one")).expect_error("tool_not_found").details["status"] == "withheld"


async def test_a_new_version_that_cannot_be_read_leaves_what_is_published(tmp_path: Path, until: Until) -> None:
    api = api_of(tmp_path, document_of({"/one": {"get": ONE}}, servers=SERVERS))
    async with Yard(providers=[api]) as yard:
        write(tmp_path, b"{half")
        await until(lambda: api.status().state == "degraded")
        assert yard.registry.get("api__one") is not None
        write(tmp_path, document_of({"/two": {"get": TWO}}, servers=SERVERS))
        await until(lambda: yard.registry.get("api__two"))

        assert api.status().state == "ready"
        stored = read_status(tmp_path / "state" / "upstreams" / "api")
        assert stored is not None


async def test_another_process_can_ask_for_a_restart(tmp_path: Path, until: Until) -> None:
    api = api_of(tmp_path, document_of({"/one": {"get": ONE}}, servers=SERVERS))
    async with Yard(providers=[api]) as yard:
        api.health.set_state("degraded", "for a test")
        request_restart(tmp_path / "state" / "upstreams" / "api")
        await until(lambda: api.status().state == "ready")
        await api.restart()

        assert yard.registry.get("api__one") is not None


async def names_with(tmp_path: Path, **settings: Any) -> list[str]:
    document = document_of({"/one": {"get": ONE, "delete": {}}, "/two": {"get": TWO}}, servers=SERVERS)
    async with opened(tmp_path, document, **settings) as yard:
        return sorted(spec.name for spec in yard.registry.visible(yard.profile_of(None)) if spec.source == "api")


async def test_operations_are_chosen_by_id_tag_path_and_method(tmp_path: Path) -> None:
    assert await names_with(tmp_path, include=("tag:a",)) == ["api__one"]
    assert await names_with(tmp_path, include=("/one",)) == ["api__delete_one", "api__one"]
    assert await names_with(tmp_path, include=("GET",), exclude=("t*",)) == ["api__one"]
    assert await names_with(tmp_path, include=("DELETE /*", "api__two")) == ["api__delete_one", "api__two"]
    assert await names_with(tmp_path, exclude=("*",)) == []


async def test_overrides_change_what_a_method_says(tmp_path: Path) -> None:
    change = Override(operation="command", idempotent=True, timeout=3, pinned=True)
    document = document_of({"/one": {"get": {**ONE, "deprecated": True}, "put": {}}}, servers=SERVERS)
    async with opened(tmp_path, document, overrides={"tag:a": change}) as yard:
        found = {spec.name: spec for spec in yard.registry.visible(yard.profile_of(None))}
        one, put = found["api__one"], found["api__put_one"]

    assert (str(one.operation), one.idempotent, one.timeout, one.tags) == ("command", True, 3, ("pinned", "a"))
    assert one.deprecated
    assert (str(put.operation), put.idempotent, put.hints().open_world_hint) == ("command", True, True)


async def test_an_api_with_a_problem_in_its_settings_says_so(tmp_path: Path) -> None:
    document = write(tmp_path, document_of({"/one": {"get": ONE}}))
    api = make_api("api", ApiSettings(document=document), state=tmp_path, problem="A variable is missing.")
    async with Yard(providers=[api]):
        assert api.is_settled
        assert api.unavailable_reason()
        assert api.compare() is None
        assert api.resolved.problem
        assert repr(api.settings) == "<ApiSettings>"


FLOWS = {
    "authorizationCode": {"authorizationUrl": "https://auth.example/ask", "tokenUrl": "https://auth.example/token"},
    "clientCredentials": {"tokenUrl": "https://auth.example/machine"},
}
OAUTH = {"oauth": {"type": "oauth2", "flows": FLOWS}, "key": {"type": "apiKey"}}


def test_a_login_uses_the_addresses_that_the_document_names() -> None:
    document = Document("/a", {"/a": document_of({}, components={"securitySchemes": OAUTH})})
    swagger = {"oauth": {"type": "oauth2", "flow": "application", "tokenUrl": "https://auth.example/old"}}
    old = Document("/a", {"/a": {"swagger": "2.0", "paths": {}, "securityDefinitions": swagger}})

    def token_url(document: Document, **login: Any) -> str | None:
        settings = login_settings("api", ApiSettings(document="d", login=Login(**login)), document)
        return settings.login and settings.login.token_url

    assert token_url(document) == "https://auth.example/token"
    assert token_url(document, grant="client_credentials") == "https://auth.example/machine"
    assert token_url(old, grant="client_credentials") == "https://auth.example/old"
    assert token_url(document, token_url="https://own.example/") == "https://own.example/"  # noqa: S106 - an address
    assert token_url(old) is None


async def test_a_stored_login_is_sent_and_a_missing_one_names_the_command(tmp_path: Path) -> None:
    document = document_of({"/one": {"get": ONE}}, components={"securitySchemes": OAUTH}, security=[{"oauth": []}])
    async with serving() as server:
        api = api_of(tmp_path, document, base_url=f"{server.url}/", login=Login(client_id="c"), pin="off")
        folder = tmp_path / "state" / "upstreams" / "api"
        async with Yard(providers=[api]) as yard:
            missing = await yard.call("api__one")
            settings = await login_of("api", api.settings, folder)
            vault = Vault(folder, settings.url or "")
            token = Token(access_token="t0ken-of-a-login", issued=0)  # noqa: S106 - not one
            async with vault.locked():
                await asyncio.to_thread(vault.write, StoredLogin(url=settings.url or "", token=token))
            await api.restart()
            sent = await yard.call("api__one")

    assert missing.expect_error("unauthenticated").hint == "Run 'callyard login api'."
    assert sent.success, sent.error
    assert [one.headers.get("authorization") for one in server.received] == ["Bearer t0ken-of-a-login"]


async def test_a_login_in_a_shared_store_is_sent_by_another_machine(tmp_path: Path) -> None:
    document = document_of({"/one": {"get": ONE}}, components={"securitySchemes": OAUTH}, security=[{"oauth": []}])
    vaults = SharedVaults(MemoryStore(), b"a random text")
    async with serving() as server:
        settings = api_of(tmp_path, document, base_url=f"{server.url}/", login=Login(client_id="c"), pin="off").settings
        url = (await login_of("api", settings, tmp_path)).url or ""
        vault = vaults("api", url, tmp_path)
        await vault.load()
        await vault.save(StoredLogin(url=url, token=Token(access_token="t0ken-of-a-login", issued=0)))  # noqa: S106 - not one
        async with Yard(providers=[make_api("api", settings, state=tmp_path / "here", vaults=vaults)]) as yard:
            sent = await yard.call("api__one")

    assert sent.success, sent.error
    assert [one.headers.get("authorization") for one in server.received] == ["Bearer t0ken-of-a-login"]


async def test_client_credentials_get_a_token_by_themselves_and_a_new_one_when_it_is_refused(tmp_path: Path) -> None:
    tokens = iter(["first-token", "second-token"])

    def respond(request: Received) -> Reply:
        if request.target == "/token":
            answer = {"access_token": next(tokens), "token_type": "Bearer", "expires_in": 3600}
            return Reply(body=msgspec.json.encode(answer))
        return Reply(401) if "first" in request.headers.get("authorization", "") else Reply()

    async with serving(respond) as server:
        flows = {"clientCredentials": {"tokenUrl": f"{server.url}/token"}}
        schemes = {"oauth": {"type": "oauth2", "flows": flows}}
        document = document_of(
            {"/one": {"get": ONE}}, components={"securitySchemes": schemes}, security=[{"oauth": []}]
        )
        login = Login(client_id="me", client_secret="planted-client-secret", grant="client_credentials")  # noqa: S106 - planted
        async with opened(tmp_path, document, base_url=f"{server.url}/", login=login) as yard:
            answer = await yard.call("api__one")

    assert answer.success, answer.error
    assert [one.target for one in server.received] == ["/token", "/one", "/token", "/one"]


async def test_a_call_that_runs_out_of_time_is_the_api_s_fault_and_may_have_run(tmp_path: Path) -> None:
    reached = asyncio.Event()

    async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        reached.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    document = document_of({"/one": {"get": ONE, "post": {"operationId": "make"}}})
    patient = {"one": Override(timeout=600)}
    async with opened(tmp_path, document, base_url=url, call_seconds=0.2, overrides=patient) as yard:
        late = await yard.call("api__make")
        reached.clear()
        stopped = asyncio.create_task(yard.call("api__one"))
        await asyncio.wait_for(reached.wait(), 60)
        stopped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stopped
    server.close()

    error = late.expect_error("timeout")
    assert (error.blame, error.may_have_run) == ("upstream", True)


async def test_files_on_another_host_and_missing_ones_are_not_read(tmp_path: Path) -> None:
    parameters = [{"$ref": "https://elsewhere.example/p.json#/p"}]
    document = document_of(
        {"/one": {"get": ONE}, "/two": {"get": {**TWO, "parameters": parameters}}, "/x": {"$ref": "none.json#/x"}},
        servers=[{"url": "/v1"}],
    )

    def respond(request: Received) -> Reply:
        return Reply(404) if "none" in request.target else Reply(body=msgspec.json.encode(document))

    async with serving(respond) as server, opened(tmp_path, document=f"{server.url}/d/api.json") as yard:
        one = await yard.call("api__one")
        two = await yard.call("api__two")

    assert one.success, one.error
    assert "another host" in two.expect_error("tool_not_found").message
    assert server.received[-1].target == "/v1/one"
