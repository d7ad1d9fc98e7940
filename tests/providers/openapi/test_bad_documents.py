"""Documents that are wrong, odd or hostile: each has a stated behaviour."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from api_server import Reply, document_of, opened, serving, write
from table_tests import every_row

from callyard import Yard
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.operations import ApiOperation, name_operations, operations_of
from callyard.providers.openapi.provider import Api
from callyard.providers.openapi.reading import DocumentError, parse
from callyard.providers.openapi.schema import input_schema
from callyard.providers.openapi.settings import ApiSettings
from callyard.providers.upstream.health import supervised

OK = {"operationId": "ok"}
GOOD = document_of({"/x": {"get": OK}}, servers=[{"url": "https://api.example"}])
BOMB = b"a: &a [x,x,x,x,x,x,x,x,x,x]\n" + b"\n".join(
    b"%c: &%c [%s]" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 10)) for n in range(9)
)


@every_row(
    "content",
    [
        b"",
        b"just words",
        b"[1, 2]",
        b"{",
        msgspec.json.encode(GOOD)[:-20],
        b"openapi: 3.1.0\npaths:\n  /x:\n   get: [",
        b"\xff\xfe\x00",
        b"<!doctype html><html>",
        b"\xef\xbb\xbf<html>",
        b"\x00\x01",
        b"[" * 100_000,
        b"a: " + b"[" * 5000,
        BOMB,
        b"a: &a\n  b: *a\n",
        b"a: !!python/object/apply:os.system ['true']",
        b"{}",
        b'{"openapi": "4.0.0", "paths": {}}',
        b'{"swagger": "1.2", "paths": {}}',
        b'{"openapi": "3.1.0"}',
        b'{"openapi": "3.1.0", "paths": 7}',
        msgspec.json.encode(document_of({"/x": {"get": OK}})),
        msgspec.json.encode(document_of({"/x": {"get": OK}}, servers=[{"url": "/v1"}])),
        msgspec.json.encode(document_of({"/x": {"get": OK}}, servers=[{"url": "https://{host}/"}])),
    ],
)
async def test_a_document_that_cannot_be_used_is_refused_with_one_sentence(content: bytes, tmp_path: Path) -> None:
    async with opened(tmp_path, content) as yard:
        [api] = supervised(yard.providers)
        status = api.status()
        answer = await yard.call("api__ok")

    assert status.state == "degraded"
    assert status.reason.endswith(".")
    assert len(status.reason) < 500
    assert answer.expect_error("tool_not_found")


async def test_a_document_that_is_gone_or_too_large_is_refused(tmp_path: Path) -> None:
    for settings in (
        {"document": str(tmp_path / "none.json")},
        {"document": write(tmp_path, GOOD), "document_bytes": 20},
    ):
        async with opened(tmp_path, **settings) as yard:
            [api] = supervised(yard.providers)
            assert api.status().state == "degraded"


def test_a_document_of_50_megabytes_is_read() -> None:
    filler = {f"S{number}": {"type": "string", "description": "x" * 1000} for number in range(50_000)}
    content = msgspec.json.encode({**GOOD, "components": {"schemas": filler}})
    assert len(content) > 50_000_000

    parsed, _ = parse(content, "api.json")

    assert len(list(operations_of(Document("/api.json", {"/api.json": parsed})))) == 1


@every_row("url", ["http://u:p@host/", "ftp://host", "http://[::1", "words"])
async def test_an_address_in_the_settings_that_is_none_stops_nothing_else(url: str, tmp_path: Path) -> None:
    async with opened(tmp_path, GOOD, base_url=url) as yard:
        [api] = supervised(yard.providers)
        assert api.status().state == "degraded"
    remote = Api("api", ApiSettings(document="http://u:p@host/x"), folder=tmp_path / "remote", interval=0.02)
    async with Yard(providers=[remote]):
        await remote.wait_ready()
        assert remote.status().state == "degraded"


async def test_relative_and_templated_servers_work_where_they_can(tmp_path: Path) -> None:
    operations = {"get": OK}
    async with serving() as api:
        host = f"127.0.0.1:{api.port}"
        templated = [{"url": "http://{host}/{v}", "variables": {"v": {"default": "v1"}}}]
        document = document_of({"/x": operations}, servers=templated)
        settings: dict[str, Any] = {"server_variables": {"host": host}, "private_addresses": True}
        async with opened(tmp_path, document, **settings) as yard:
            assert (await yard.call("api__ok")).success
        swagger = {"swagger": "2.0", "host": host, "basePath": "/v2", "schemes": ["http"], "paths": {"/x": operations}}
        async with opened(tmp_path, swagger, private_addresses=True) as yard:
            assert (await yard.call("api__ok")).success
        own = document_of(
            {"/x": {"get": {**OK, "servers": [{"url": f"http://{host}/own"}]}}}, servers=[{"url": "https://a.b"}]
        )
        async with opened(tmp_path, own, private_addresses=True) as yard:
            assert (await yard.call("api__ok")).success

    assert [one.target for one in api.received] == ["/v1/x", "/v2/x", "/own/x"]


WRONG: list[tuple[str, Any]] = [
    ("a dangling parameter", {"parameters": [{"$ref": "#/components/parameters/none"}]}),
    ("a circle of parameters", {"parameters": [{"$ref": "#/components/parameters/circle"}]}),
    ("a file that is missing", {"parameters": [{"$ref": "other.json#/p"}]}),
    ("a file above the folder", {"parameters": [{"$ref": "../secret.json#/p"}]}),
    ("an address", {"parameters": [{"$ref": "https://elsewhere.example/p.json"}]}),
    ("a dangling body", {"requestBody": {"$ref": "#/components/requestBodies/none"}}),
    ("an anchor", {"parameters": [{"$ref": "#anchor"}]}),
    ("a server without a value", {"servers": [{"url": "https://{x}/"}]}),
    ("a server that is none", {"servers": [{"url": "http://[::1"}, {"url": "ftp://x"}]}),
    ("a user in a server", {"servers": [{"url": "http://u:p@host/"}]}),
]


@every_row("what, operation", WRONG)
async def test_one_wrong_operation_is_quarantined_and_the_rest_are_published(
    what: str, operation: Any, tmp_path: Path
) -> None:
    (tmp_path.parent / "secret.json").write_text('{"p": {"name": "s", "in": "query"}}')
    circle: Any = {"parameters": {"circle": {"$ref": "#/components/parameters/circle"}}}
    document: dict[str, Any] = {**GOOD, "components": circle}
    document["paths"] = {"/x": {"get": OK}, "/y": {"get": {"operationId": "wrong", **operation}}}
    if what == "a server that is none":
        document["servers"] = []
        document["paths"]["/x"] = {"get": {**OK, "servers": [{"url": "https://api.example"}]}}
    async with opened(tmp_path, document) as yard:
        answer = await yard.call("api__wrong")
        names = [spec.name for spec in yard.registry.visible(yard.profile_of(None)) if spec.source == "api"]

    assert answer.expect_error("tool_not_found").details["status"] == "quarantined", what
    assert names == ["api__ok"]


async def test_a_wrong_schema_is_found_when_somebody_looks_and_then_quarantined(tmp_path: Path) -> None:
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/None"}}}}
    nested = {"content": {"application/json": {"schema": {"properties": {"a": {"$ref": "#/nowhere"}}}}}}
    document = {**GOOD, "paths": {"/y": {"post": {"operationId": "deep", "requestBody": nested}}, **GOOD["paths"]}}
    document["paths"]["/z"] = {"post": {"operationId": "wrong", "requestBody": body}}
    async with opened(tmp_path, document) as yard:
        withdrawn = asyncio.Event()
        yard.registry.watch(lambda change: withdrawn.set() if change.kind == "withdrawn" else None)
        first = await yard.call("api__deep", {"body": {"a": 1}})
        await asyncio.wait_for(withdrawn.wait(), 60)
        again = await yard.call("describe_tool", {"tool_id": "api__deep"})

    assert first.expect_error("tool_not_found").details["status"] == "quarantined"
    assert again.error is not None


def test_references_that_lead_in_a_circle_become_definitions() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/components/schemas/Node"}, "$ref": {"type": "string"}}}
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Node"}}}}
    document = document_of({"/x": {"post": {"requestBody": body}}}, components={"schemas": {"Node": node}})
    [operation] = operations_of(Document("/a.json", {"/a.json": document}))
    assert isinstance(operation, ApiOperation)

    schema = input_schema(operation)

    assert schema["properties"]["body"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["next"] == {"$ref": "#/$defs/Node"}
    assert schema["$defs"]["Node"]["properties"]["$ref"] == {"type": "string"}


async def test_files_below_the_folder_are_read_in_json_and_yaml(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "p.yaml").write_text("q:\n  name: q\n  in: query\n  schema: {$ref: 's.json#/S'}\n")
    (tmp_path / "parts" / "s.json").write_text('{"S": {"enum": ["a", "b"]}}')
    document = document_of({"/x": {"get": {**OK, "parameters": [{"$ref": "parts/p.yaml#/q"}]}}})
    async with serving() as api, opened(tmp_path, document, base_url=api.url) as yard:
        assert (await yard.call("api__ok", {"q": "a"})).success
        assert (await yard.call("api__ok", {"q": "c"})).expect_error("invalid_input")


async def test_a_folder_cannot_be_left_by_a_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside.json"
    outside.write_text('{"p": {"name": "s", "in": "query"}}')
    folder = tmp_path / "api"
    folder.mkdir()
    (folder / "link.json").symlink_to(outside)
    document = {**GOOD, "paths": {"/x": {"get": {**OK, "parameters": [{"$ref": "link.json#/p"}]}}}}
    async with opened(folder, document) as yard:
        assert (await yard.call("api__ok")).expect_error("tool_not_found")


YAML = b"""
openapi: 3.0.3
info: {title: T, version: 1.0}
servers: [{url: https://api.example}]
paths:
  /x:
    get:
      operationId: ok
      parameters:
        - name: no
          in: query
          schema: {type: string, enum: [no, yes, on, off, 012, 1_000, 2020-01-01, 0x1F]}
      responses:
        200: {description: fine}
x-more:
  no: 1
  yes: true
  ~: null
  1.50: .5
  ? [a, b]
  : 1e3
  merged: &base {a: 1}
  other: {<<: *base, b: 2}
"""


def test_yaml_has_json_s_types_only_and_keys_as_they_are_written() -> None:
    parsed, is_yaml = parse(YAML, "api.yaml")
    operation = parsed["paths"]["/x"]["get"]

    assert is_yaml
    assert operation["parameters"][0]["name"] == "no"
    assert operation["parameters"][0]["schema"]["enum"] == [
        "no",
        "yes",
        "on",
        "off",
        "012",
        "1_000",
        "2020-01-01",
        "0x1F",
    ]
    assert operation["responses"] == {"200": {"description": "fine"}}
    assert parsed["x-more"] == {
        "no": 1,
        "yes": True,
        "~": None,
        "1.50": 0.5,
        "['a', 'b']": 1000.0,
        "merged": {"a": 1},
        "other": {"a": 1, "b": 2},
    }


async def test_yaml_is_kept_as_json_for_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    document = write(tmp_path, YAML, "api.yaml")
    async with opened(tmp_path, document=document) as yard:
        assert yard.registry.get("api__ok") is not None
    monkeypatch.setitem(sys.modules, "yaml", None)
    async with opened(tmp_path, document=document) as yard:
        assert yard.registry.get("api__ok") is not None
    write(tmp_path, YAML + b"\n", "api.yaml")
    async with opened(tmp_path, document=document) as yard:
        [api] = supervised(yard.providers)
        assert "callyard[openapi]" in api.status().reason


def named(*operations: Any, longest: int = 48) -> list[str]:
    paths: dict[str, Any] = {}
    for path, method, operation in operations:
        paths.setdefault(path, {})[method] = operation
    found = [one for one in operations_of(Document("/a", {"/a": document_of(paths)})) if isinstance(one, ApiOperation)]
    return name_operations(found, "api", longest=longest)


def test_operations_are_named_by_id_else_by_method_and_path() -> None:
    assert named(
        ("/a", "get", {"operationId": "repos/list-forUser"}),
        ("/b", "get", {"operationId": "getHTTPStatus2"}),
        ("/pets/{petId}/toys", "get", {}),
        ("/c", "get", {"operationId": "café.show"}),
        ("/d", "get", {"operationId": "日本"}),
    ) == [
        "api__repos_list_for_user",
        "api__get_http_status2",
        "api__get_pets_pet_id_toys",
        "api__cafe_show",
        "api__get_d",
    ]


def test_of_a_duplicate_id_the_first_operation_has_the_name() -> None:
    assert named(
        ("/a", "get", {"operationId": "same"}),
        ("/b", "get", {"operationId": "same"}),
        ("/a_b", "get", {}),
        ("/a-b", "get", {}),
    ) == ["api__same", "api__get_b", "api__get_a_b", "api__get_a_b_3c8680"]


def test_a_name_that_is_too_long_is_cut_at_a_word_and_depends_on_no_other() -> None:
    long = ("/a/b", "get", {"operationId": "list_all_of_the_very_long_names_of_operations"})
    [alone] = named(long, longest=30)
    beside = named(("/z", "get", {"operationId": "list_all_of_the_very_long_names_of_others"}), long, longest=30)

    assert alone in beside
    assert len(alone) <= 30
    assert alone.startswith("api__list_all_of_the_")


async def test_arguments_called_body_and_session_id_reach_the_api(tmp_path: Path) -> None:
    parameters: list[Any] = [
        {"name": name, "in": "query", "schema": {"type": "string"}} for name in ("body", "session_id", "$top")
    ]
    parameters += [{"name": "id", "in": place, "required": True, "schema": {}} for place in ("path", "query", "header")]
    operation: dict[str, Any] = {
        **OK,
        "parameters": parameters,
        "requestBody": {"content": {"application/json": {"schema": {}}}},
    }
    async with (
        serving() as api,
        opened(tmp_path, document_of({"/x/{id}": {"post": operation}}), base_url=api.url) as yard,
    ):
        arguments = {
            "body_query": "b",
            "session_id": "s",
            "top": "1",
            "id": "p",
            "id_query": "q",
            "id_header": "h",
            "body": 5,
        }
        answer = await yard.call("api__ok", arguments)

    assert answer.success, answer.error
    assert api.last.target == "/x/p?body=b&session_id=s&%24top=1&id=q"
    assert api.last.headers["id"] == "h"
    assert api.last.body == b"5"


async def api_at(tmp_path: Path, url: str, **settings: Any) -> Api:
    return Api("api", ApiSettings(document=url, pin="off", **settings), folder=tmp_path / "api", interval=0.02)


@every_row(
    "reply",
    [
        Reply(404, b""),
        Reply(body=b"<html>", type="text/html"),
        Reply(302, b"", {"Location": "https://elsewhere.example/"}),
        Reply(body=b"x" * 5000),
        None,
    ],
)
async def test_a_document_url_that_is_gone_html_or_broken_is_a_reason_in_the_status(
    reply: Reply | None, tmp_path: Path
) -> None:
    async with serving(lambda _: reply) as server:
        api = await api_at(tmp_path, f"{server.url}/openapi.json", document_bytes=4000)
        async with Yard(providers=[api]):
            await api.wait_ready()

            assert api.status().state == "degraded"
            assert api.unavailable_reason()


async def test_a_document_url_that_is_slow_is_a_reason_in_the_status(tmp_path: Path) -> None:
    async def hang(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await stop.wait()
        writer.close()

    stop = asyncio.Event()
    server = await asyncio.start_server(hang, "127.0.0.1", 0)
    api = await api_at(tmp_path, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/", connect_seconds=0.1)
    async with Yard(providers=[api]):
        await api.wait_ready()
        assert api.status().state == "degraded"
    stop.set()
    server.close()


async def test_the_stored_document_serves_while_its_address_is_down(tmp_path: Path) -> None:
    document = document_of({"/x": {"get": {**OK, "parameters": [{"$ref": "parts.json#/q"}]}}})
    parts = {"q": {"name": "q", "in": "query", "schema": {"type": "integer"}}}

    def respond(request: Any) -> Reply:
        return Reply(body=msgspec.json.encode(parts if "parts" in request.target else document))

    async with serving(respond) as server:
        first = await api_at(tmp_path, f"{server.url}/openapi.json")
        async with Yard(providers=[first]) as yard:
            await first.wait_ready()
            assert (await yard.call("api__ok", {"q": 1})).success
        url = server.url
    again = await api_at(tmp_path, f"{url}/openapi.json")
    async with Yard(providers=[again]) as yard:
        await again.wait_ready()

        assert (await yard.call("api__ok", {"q": "x"})).expect_error("invalid_input")
        assert (await yard.call("api__ok", {"q": 1})).expect_error("upstream_unavailable")
        await again.refresh()
        assert yard.registry.get("api__ok") is not None
        assert again.status().state == "degraded"


def test_a_reference_to_another_host_is_an_error_with_the_reason() -> None:
    document = Document("https://a/x", {"https://a/x": GOOD}, refused={"https://b/y": "leads to another host"})

    with pytest.raises(DocumentError, match="another host"):
        document.resolve(document.root.child({"$ref": "https://b/y#/p"}))
