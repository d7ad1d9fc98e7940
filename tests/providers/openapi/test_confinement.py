"""Nothing leaves the origins of an API, and no credential comes back or goes elsewhere."""

import asyncio
import gzip
import logging
import socket
from pathlib import Path
from typing import Any

import pytest
from api_server import Received, Reply, basic, document_of, opened, serving
from table_tests import every_row

from callyard import Caller
from callyard._internal.addresses import is_public
from callyard.dispatch.call import Channel
from callyard.providers.openapi.http import ApiHttp, Request, is_written_private
from callyard.providers.upstream.health import supervised
from callyard.providers.upstream.http.client import Address, parse_address
from callyard.providers.upstream.link import LinkError

ITEM: dict[str, Any] = {"name": "id", "in": "path", "required": True, "schema": {}}
DOCUMENT = document_of(
    {
        "/items/{id}": {"get": {"operationId": "read", "parameters": [ITEM]}},
        "/items": {"post": {"operationId": "make"}, "get": {"operationId": "list"}},
    }
)


@every_row(
    "address, public",
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),  # noqa: S104 - refused, not bound
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("ff02::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("::ffff:169.254.169.254", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b::808:808", True),
        ("2002:7f00:1::", False),
        ("2002:a9fe:a9fe::1", False),
        ("2001:0:0:0:0:0:80ff:fffe", False),
        ("nonsense", False),
    ],
)
def test_only_addresses_of_the_public_network_are_public(address: str, *, public: bool) -> None:
    assert is_public(address) is public


@every_row(
    "host",
    [
        *(
            "127.0.0.1",
            "localhost",
            "127.1",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "0",
            "[::1]",
            "[::ffff:127.0.0.1]",
        ),
        *("[::ffff:7f00:1]", "[0:0:0:0:0:0:0:1]", "[::]", "169.254.169.254", "10.0.0.1", "[fe80::1]", "[fd00::1]"),
        *("[64:ff9b::7f00:1]", "[2002:7f00:1::]", "127.0.0.1.", "LOCALHOST"),
    ],
)
async def test_no_form_of_a_private_address_in_a_document_is_reached(host: str, tmp_path: Path) -> None:
    async with serving() as api:
        servers = [{"url": f"http://{host}:{api.port}"}]
        async with opened(tmp_path, {**DOCUMENT, "servers": servers}, connect_seconds=5.0) as yard:
            answer = await yard.call("api__list")

    assert answer.error is not None
    assert answer.error.code in {"upstream_error", "upstream_unavailable", "tool_not_found"}
    assert not answer.error.may_have_run
    assert api.received == []


@every_row(
    "url",
    [
        *("http://user:pass@127.0.0.1:{}", "http://127.0.0.1:{}@evil.example", "http://127.0.0.1%00.example:{}"),
        *(
            "http://127.0.0.1\\@evil.example:{}",
            "file:///etc/passwd",
            "gopher://127.0.0.1:{}",
            "//127.0.0.1:{}",
            "http://",
        ),
        *("http://[::1", "http://exa mple:{}", "ftp://127.0.0.1:{}", "javascript:alert(1)"),
    ],
)
async def test_no_odd_server_of_a_document_is_reached(url: str, tmp_path: Path) -> None:
    async with serving() as api:
        document = {**DOCUMENT, "servers": [{"url": url.format(api.port)}]}
        async with opened(tmp_path, document, connect_seconds=5.0) as yard:
            answer = await yard.call("api__list")

    assert answer.error is not None
    assert api.received == []


@every_row(
    "location",
    [
        *(
            "http://127.0.0.1:{other}/x",
            "//127.0.0.1:{other}/x",
            "https://127.0.0.1:{own}/x",
            "http://localhost:{own}/x",
        ),
        *("http://user@127.0.0.1:{own}/x", "http://127.0.0.1:{own}@127.0.0.1:{other}/", "http:\\\\127.0.0.1:{other}"),
        *("file:///etc/passwd", "http://[::1]:{own}/", "ftp://127.0.0.1:{own}/", "http://127.1:{own}/x", "data:,x"),
        *(
            "http://127.0.0.1.:{own}/x",
            "http://0x7f000001:{own}/",
            "///127.0.0.1:{other}",
            "http://127.0.0.1:{own}#@x:{other}",
        ),
    ],
)
async def test_a_redirect_elsewhere_is_not_followed(location: str, tmp_path: Path) -> None:
    async with serving() as other, serving() as api:
        target = location.format(own=api.port, other=other.port)

        def respond(request: Received) -> Reply:
            return Reply(302, b"", {"Location": target}) if "items" in request.target else Reply()

        api.respond = respond
        secret = {"headers": {"Authorization": "Bearer planted-secret"}}
        async with opened(tmp_path, DOCUMENT, base_url=api.url, **secret) as yard:
            answer = await yard.call("api__list")

    assert other.received == []
    if not answer.success:
        assert answer.expect_error("upstream_error").details["status"] == 302
    assert all(one.headers["host"] == f"127.0.0.1:{api.port}" for one in api.received)


async def test_a_redirect_on_the_origin_is_followed_and_five_are_the_most(tmp_path: Path) -> None:
    def respond(request: Received) -> Reply:
        if request.target == "/items":
            return Reply(303, b"", {"Location": "/found"})
        return Reply(body=b'"here"') if request.target == "/found" else Reply(307, b"", {"Location": request.target})

    async with serving(respond) as api, opened(tmp_path, DOCUMENT, base_url=api.url) as yard:
        made = await yard.call("api__make")
        turning = await yard.call("api__read", {"id": "1"})

    assert made.data == "here"
    assert [(one.method, one.target) for one in api.received[:2]] == [("POST", "/items"), ("GET", "/found")]
    assert turning.expect_error("upstream_error")
    assert len(api.received) == 7


async def test_a_name_is_resolved_once_and_its_address_is_checked_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [["93.184.216.34"], ["127.0.0.1"]]
    loop = asyncio.get_running_loop()
    connected: list[str] = []

    async def resolve(host: str, port: int, **_: Any) -> Any:
        found = answers.pop(0)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    async def connect(_: Any, host: str, port: int, **options: Any) -> Any:
        connected.append(host)
        raise ConnectionRefusedError

    monkeypatch.setattr(loop, "getaddrinfo", resolve)
    monkeypatch.setattr(loop, "create_connection", connect)
    http = ApiHttp("api", limit=1, connect_seconds=5, max_bytes=10, private=False)
    request = Request(method="GET", address=parse_address("api", "http://rebinding.example/"), headers={})
    with pytest.raises(LinkError):
        await http.send(request)
    with pytest.raises(LinkError) as refused:
        await http.send(request)
    await http.close()

    assert connected == ["93.184.216.34"]
    assert refused.value.kind == "refused"


async def test_a_name_with_one_private_address_is_refused_altogether(monkeypatch: pytest.MonkeyPatch) -> None:
    async def resolve(host: str, port: int, **_: Any) -> Any:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("93.184.216.34", "10.0.0.1")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    http = ApiHttp("api", limit=1, connect_seconds=5, max_bytes=10, private=False)
    with pytest.raises(LinkError) as refused:
        await http.send(Request(method="GET", address=parse_address("api", "http://mixed.example/"), headers={}))
    await http.close()

    assert refused.value.kind == "refused"


async def test_a_private_address_is_reached_where_the_settings_allow_it(tmp_path: Path) -> None:
    async with serving() as api:
        document = {**DOCUMENT, "servers": [{"url": f"http://localhost:{api.port}"}]}
        async with opened(tmp_path, document, private_addresses=True) as yard:
            allowed = await yard.call("api__list")

    assert allowed.success


@every_row(
    "url, private",
    [
        ("http://localhost/", True),
        ("http://127.0.0.1", True),
        ("http://10.1.1.1", True),
        ("http://[::1]/", True),
        ("http://8.8.8.8", False),
        ("http://example.com", False),
    ],
)
def test_an_address_in_the_settings_says_itself_whether_it_is_private(url: str, *, private: bool) -> None:
    assert is_written_private(url) is private


@every_row(
    "reply",
    [
        Reply(body=b"x" * 2000, type="text/plain"),
        Reply(body=gzip.compress(b"x" * 1_000_000), headers={"Content-Encoding": "gzip"}),
        Reply(body=b"x", headers={"Content-Encoding": "br"}),
        Reply(body=b"x", headers={"Content-Encoding": "gzip"}),
    ],
)
async def test_an_answer_has_bounds_also_after_decompression(reply: Reply, tmp_path: Path) -> None:
    async with (
        serving(lambda _: reply) as api,
        opened(tmp_path, DOCUMENT, base_url=api.url, answer_bytes=1500) as yard,
    ):
        answer = await yard.call("api__make")

    assert answer.expect_error("upstream_error").may_have_run


@every_row("value", ["a\r\nX-Evil: 1", "a\nb", "a\0b"])
async def test_no_header_can_be_smuggled_in(value: str, tmp_path: Path) -> None:
    header = {"name": "X-Tag", "in": "header", "schema": {"type": "string"}}
    document = document_of({"/x": {"get": {"operationId": "tag", "parameters": [header]}}})
    async with serving() as api, opened(tmp_path, document, base_url=api.url) as yard:
        answer = await yard.call("api__tag", {"X-Tag": value})

    assert answer.error is not None
    assert api.received == []


def test_the_headers_of_the_client_cannot_be_set() -> None:
    address = Address(scheme="http", host="h", port=80, target="/")
    request = Request(method="GET", address=address, headers={"Host": "evil", "Content-Length": "9", "X": "y"})

    assert request.encode().count(b"\r\n") == 6
    assert b"evil" not in request.encode()


SECRET = "planted-s3cret/with=signs"  # noqa: S105 - planted, to be found
SCHEMES: dict[str, Any] = {
    "key": {"type": "apiKey", "in": "header", "name": "X-Key"},
    "query": {"type": "apiKey", "in": "query", "name": "key"},
    "cookie": {"type": "apiKey", "in": "cookie", "name": "sid"},
    "basic": {"type": "http", "scheme": "basic"},
    "bearer": {"type": "http", "scheme": "bearer"},
    "digest": {"type": "http", "scheme": "Custom"},
    "oauth": {"type": "oauth2", "flows": {}},
}


def secured(security: Any, schemes: Any = SCHEMES, **fields: Any) -> dict[str, Any]:
    parameters: list[Any] = [
        {"name": "key", "in": "query", "schema": {}},
        {"name": "sid", "in": "cookie", "schema": {}},
    ]
    operation: dict[str, Any] = {
        "operationId": "list",
        "parameters": parameters,
        **({} if security is None else {"security": security}),
    }
    return document_of({"/items": {"get": operation}}, components={"securitySchemes": schemes}, **fields)


PLACES: list[tuple[Any, Any, str, str | None]] = [
    ([{"key": []}], {"key": SECRET}, "x-key", SECRET),
    ([{"basic": []}], {"basic": f"me:{SECRET}"}, "authorization", basic(f"me:{SECRET}")),
    ([{"bearer": []}], {"bearer": SECRET}, "authorization", f"Bearer {SECRET}"),
    ([{"digest": []}], {"digest": SECRET}, "authorization", f"Custom {SECRET}"),
    ([{"oauth": ["read"]}], {"oauth": SECRET}, "authorization", f"Bearer {SECRET}"),
    ([{"cookie": []}], {"cookie": SECRET}, "cookie", f"sid={SECRET}"),
    ([{"query": []}], {"query": SECRET}, "", "/items?key=planted-s3cret%2Fwith%3Dsigns"),
    ([{"key": [], "bearer": []}], {"key": SECRET}, "x-key", None),
    ([{"basic": []}, {"key": []}], {"key": SECRET}, "x-key", SECRET),
    ([], {"key": SECRET}, "x-key", None),
    ([{}], {"key": SECRET}, "x-key", None),
    ([{}, {"key": []}], {"key": SECRET}, "x-key", SECRET),
    (None, {"key": SECRET}, "x-key", SECRET),
    ([{"key": []}], {"unknown": SECRET}, "x-key", None),
]


@every_row("security, credentials, where, value", PLACES)
async def test_a_credential_goes_where_its_scheme_says(
    security: Any, credentials: Any, *, where: str, value: str | None, tmp_path: Path
) -> None:
    async with (
        serving() as api,
        opened(tmp_path, secured(security), base_url=api.url, credentials=credentials) as yard,
    ):
        assert (await yard.call("api__list", {"key": "mine", "sid": "mine"} if value else {})).success

    assert (api.last.headers.get(where) if where else api.last.target) == value


async def test_a_planted_credential_appears_in_no_answer_log_list_or_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[str] = []

    def respond(request: Received) -> Reply:
        said = " ".join([request.target, *request.headers.values()])
        body = b'{"message": "%s", "again": ["%s"]}' % (said.encode(), said.encode())
        return Reply(
            statuses[len(api.received) % len(statuses)], body, {"Link": f"<https://x{request.target}&page=2>; rel=next"}
        )

    statuses = [200, 400, 401, 403, 404, 409, 429, 500, 302, 503]
    credentials = {"query": SECRET, "basic": f"me:{SECRET}"}
    security: list[Any] = [{"query": [], "basic": []}]
    async with (
        serving(respond) as api,
        opened(tmp_path, secured(security), base_url=api.url, credentials=credentials) as yard,
    ):
        seen += [(await yard.call("api__list")).to_json().decode() for _ in statuses]
        seen.append((await yard.call("api__list", {"wrong": 1})).to_json().decode())
        seen.append(
            (await yard.call("describe_tool", {"tool_id": "api__list", "detail_level": "full"})).to_json().decode()
        )
        seen += [str(spec) for spec in yard.registry.list(yard.profile_of(None))]
    seen.append(caplog.text)
    seen += [path.read_text() for path in (tmp_path / "state").rglob("*") if path.is_file()]

    encoded = basic(f"me:{SECRET}").partition(" ")[2]
    assert any(
        SECRET in one.headers.get("authorization", "") or encoded in one.headers.get("authorization", "")
        for one in api.received
    )
    for text in seen:
        assert SECRET not in text
        assert encoded not in text
        assert "planted-s3cret%2Fwith%3Dsigns" not in text


async def test_a_caller_s_headers_are_sent_only_where_the_settings_name_them(tmp_path: Path) -> None:
    channel = Channel(forwarded={"authorization": "Bearer of-the-caller"})
    async with serving() as api:
        for names in ((), ("Authorization",)):
            async with opened(tmp_path, DOCUMENT, base_url=api.url, forward_headers=names) as yard:
                await yard.call("api__list", caller=Caller(), channel=channel)

    assert [one.headers.get("authorization") for one in api.received] == [None, "Bearer of-the-caller"]


async def test_a_refusal_without_credentials_names_the_setting(tmp_path: Path) -> None:
    async with (
        serving(lambda _: Reply(401)) as api,
        opened(tmp_path, secured([{"key": []}]), base_url=api.url) as yard,
    ):
        error = (await yard.call("api__list")).expect_error("unauthenticated")
        [provider] = supervised(yard.providers)

        assert "credentials.basic" in error.hint
        assert provider.status().state == "auth_needed"
