"""Arguments written into requests: every style of parameters, forms, parts and files."""

from pathlib import Path
from typing import Any

import pytest
from api_server import Reply, document_of, opened, serving
from table_tests import every_row

from callyard.model.errors import ToolError
from callyard.providers.openapi.document import Node
from callyard.providers.openapi.operations import Parameter, Place
from callyard.providers.openapi.requests import Files, build, write_parameter

LIST = ["blue", "black", "brown"]
OBJECT = {"R": 100, "G": 200, "B": 150}
PATH, QUERY, HEADER, COOKIE = "path", "query", "header", "cookie"


def parameter(place: Any, style: str, *, explode: bool, **fields: Any) -> Parameter:
    schema = Node({}, "f")
    values: dict[str, Any] = {"argument": "color", "name": "color", "required": False, "schema": schema}
    values |= {"place": place, "style": style, "explode": explode, **fields}
    return Parameter(**values)


STYLES: list[tuple[str, str, bool, Any, str]] = [
    (PATH, "simple", False, "blue", "blue"),
    (PATH, "simple", True, "blue", "blue"),
    (PATH, "simple", False, LIST, "blue,black,brown"),
    (PATH, "simple", True, LIST, "blue,black,brown"),
    (PATH, "simple", False, OBJECT, "R,100,G,200,B,150"),
    (PATH, "simple", True, OBJECT, "R=100,G=200,B=150"),
    (PATH, "label", False, "blue", ".blue"),
    (PATH, "label", True, "blue", ".blue"),
    (PATH, "label", False, "", "."),
    (PATH, "label", False, LIST, ".blue,black,brown"),
    (PATH, "label", True, LIST, ".blue.black.brown"),
    (PATH, "label", False, OBJECT, ".R,100,G,200,B,150"),
    (PATH, "label", True, OBJECT, ".R=100.G=200.B=150"),
    (PATH, "matrix", False, "", ";color"),
    (PATH, "matrix", False, "blue", ";color=blue"),
    (PATH, "matrix", True, "blue", ";color=blue"),
    (PATH, "matrix", False, LIST, ";color=blue,black,brown"),
    (PATH, "matrix", True, LIST, ";color=blue;color=black;color=brown"),
    (PATH, "matrix", False, OBJECT, ";color=R,100,G,200,B,150"),
    (PATH, "matrix", True, OBJECT, ";R=100;G=200;B=150"),
    (QUERY, "form", False, "", "color="),
    (QUERY, "form", False, "blue", "color=blue"),
    (QUERY, "form", True, "blue", "color=blue"),
    (QUERY, "form", False, LIST, "color=blue,black,brown"),
    (QUERY, "form", True, LIST, "color=blue&color=black&color=brown"),
    (QUERY, "form", False, OBJECT, "color=R,100,G,200,B,150"),
    (QUERY, "form", True, OBJECT, "R=100&G=200&B=150"),
    (QUERY, "spaceDelimited", False, LIST, "color=blue%20black%20brown"),
    (QUERY, "spaceDelimited", False, OBJECT, "color=R%20100%20G%20200%20B%20150"),
    (QUERY, "spaceDelimited", True, LIST, "color=blue&color=black&color=brown"),
    (QUERY, "pipeDelimited", False, LIST, "color=blue%7Cblack%7Cbrown"),
    (QUERY, "pipeDelimited", False, OBJECT, "color=R%7C100%7CG%7C200%7CB%7C150"),
    (QUERY, "pipeDelimited", True, LIST, "color=blue&color=black&color=brown"),
    (QUERY, "tabDelimited", False, LIST, "color=blue%09black%09brown"),
    (QUERY, "deepObject", True, OBJECT, "color[R]=100&color[G]=200&color[B]=150"),
    (QUERY, "deepObject", True, {"a": {"b": 1}, "c": [1, 2]}, "color[a][b]=1&color[c]=1&color[c]=2"),
    (QUERY, "deepObject", True, LIST, "color=blue&color=black&color=brown"),
    (QUERY, "form", True, "a b/ü&=", "color=a%20b%2F%C3%BC%26%3D"),
    (QUERY, "form", True, True, "color=true"),
    (QUERY, "form", True, 5.0, "color=5"),
    (QUERY, "form", True, 0.5, "color=0.5"),
    (QUERY, "form", True, [], ""),
    (HEADER, "simple", False, "blue", "color=blue"),
    (HEADER, "simple", False, LIST, "color=blue,black,brown"),
    (HEADER, "simple", True, LIST, "color=blue,black,brown"),
    (HEADER, "simple", False, OBJECT, "color=R,100,G,200,B,150"),
    (HEADER, "simple", True, OBJECT, "color=R=100,G=200,B=150"),
    (COOKIE, "form", False, "blue", "color=blue"),
    (COOKIE, "form", True, "a b", "color=a%20b"),
    (COOKIE, "form", False, LIST, "color=blue,black,brown"),
    (COOKIE, "form", True, LIST, "color=blue&color=black&color=brown"),
    (COOKIE, "form", False, OBJECT, "color=R,100,G,200,B,150"),
    (COOKIE, "form", True, OBJECT, "R=100&G=200&B=150"),
    (COOKIE, "cookie", True, "a=b", "color=a=b"),
    (COOKIE, "cookie", True, LIST, "color=blue&color=black&color=brown"),
    (COOKIE, "cookie", False, LIST, "color=blue,black,brown"),
]


@every_row("place, style, explode, value, written", STYLES)
def test_every_style_is_written_as_the_standard_says(
    place: Place, style: str, *, explode: bool, value: Any, written: str
) -> None:
    pairs = write_parameter(parameter(place, style, explode=explode), value)
    text = pairs[0][1] if place == "path" else "&".join(f"{name}={one}" for name, one in pairs)

    assert text == written


def test_a_parameter_with_a_format_of_its_own_is_written_in_it() -> None:
    query = parameter("query", "form", explode=True, media_type="application/json")
    text = parameter("header", "simple", explode=True, media_type="text/plain")

    assert write_parameter(query, {"a": [1]}) == [("color", "%7B%22a%22%3A%5B1%5D%7D")]
    assert write_parameter(text, "a b") == [("color", "a b")]


def test_reserved_characters_stay_where_a_parameter_allows_them() -> None:
    reserved = parameter("query", "form", explode=True, allow_reserved=True)

    in_path = parameter("path", "simple", explode=False, allow_reserved=True)
    cookie = parameter("cookie", "cookie", explode=True)

    assert write_parameter(reserved, "a/b?c d#e") == [("color", "a/b?c%20d%23e")]
    assert write_parameter(in_path, "a/b?c#d") == [("color", "a/b%3Fc%23d")]
    assert write_parameter(cookie, "a; admin=1") == [("color", "a%3B admin=1")]


def test_null_is_left_out_of_queries_and_headers_unless_an_empty_value_is_allowed() -> None:
    plain = parameter("query", "form", explode=True)
    empty = parameter("query", "form", explode=True, allow_empty=True, argument="flag", name="flag")

    assert build("/x", [plain, empty], {"color": None, "flag": None}).query == ["flag="]


@every_row(
    "value",
    ["..", ".", "../admin", "a/../../b", "%2e%2e", "..%2f..", "..\\..", "%2E%2E/x", "x/%2e%2e", ""],
)
def test_a_path_argument_cannot_lead_to_another_path(value: str) -> None:
    one = parameter("path", "simple", explode=False, allow_reserved=True)

    with pytest.raises(ToolError) as raised:
        build("/items/{color}", [one], {"color": value})

    assert raised.value.code == "invalid_input"


def test_a_path_keeps_what_is_fixed_in_it_and_escapes_the_rest() -> None:
    one = parameter("path", "simple", explode=False)

    assert build("/a b/{color}:run", [one], {"color": "x/y?z#"}).path == "/a%20b/x%2Fy%3Fz%23:run"
    assert build("/a?b=c d", [], {}).path == "/a?b=c%20d"


def test_a_whole_query_string_is_one_argument() -> None:
    form = parameter("querystring", "", explode=False, media_type="application/x-www-form-urlencoded")
    text = parameter("querystring", "", explode=False, media_type="application/json", argument="text")

    assert build("/x", [form, text], {"color": {"a": 1, "b": [2, 3]}, "text": {"q": 1}}).query == [
        "a=1&b=2&b=3",
        "%7B%22q%22%3A1%7D",
    ]


def body_document(media_type: str, schema: Any, **media: Any) -> dict[str, Any]:
    body = {"content": {media_type: {"schema": schema, **media}}, "required": True}
    return document_of({"/x": {"post": {"operationId": "send", "requestBody": body}}})


async def sent(tmp_path: Path, document: Any, body: Any, **settings: Any) -> tuple[str, bytes]:
    async with serving(lambda _: Reply()) as api, opened(tmp_path, document, base_url=api.url, **settings) as yard:
        answer = await yard.call("api__send", {"body": body})
        assert answer.success, answer.error
        return api.last.headers["content-type"], api.last.body


FORM = {"type": "object", "properties": {"a": {"type": "string"}}}


@every_row(
    "media_type, media, body, kind, written",
    [
        ("application/json", {}, {"a": 1}, "application/json", b'{"a":1}'),
        ("application/vnd.x+json", {}, [1], "application/vnd.x+json", b"[1]"),
        ("*/*", {}, None, "application/json", b"null"),
        ("text/plain", {}, "hello", "text/plain", b"hello"),
        ("application/xml", {}, "<a/>", "application/xml", b"<a/>"),
        (
            "application/x-www-form-urlencoded",
            {},
            {"a": "b c", "l": [1, 2], "d": {"x": {"y": 1}}, "o": [{"p": 1}]},
            "application/x-www-form-urlencoded",
            b"a=b%20c&l=1&l=2&d[x][y]=1&o[0][p]=1",
        ),
        (
            "application/x-www-form-urlencoded",
            {"encoding": {"d": {"contentType": "application/json"}, "l": {"style": "pipeDelimited", "explode": False}}},
            {"d": {"x": 1}, "l": [1, 2]},
            "application/x-www-form-urlencoded",
            b"d=%7B%22x%22%3A1%7D&l=1%7C2",
        ),
        ("application/octet-stream", {}, {"base64": "AAE="}, "application/octet-stream", b"\0\1"),
        ("image/*", {}, {"text": "x", "type": "image/svg+xml"}, "image/svg+xml", b"x"),
    ],
)
async def test_every_kind_of_body_is_written(
    media_type: str, *, media: Any, body: Any, kind: str, written: bytes, tmp_path: Path
) -> None:
    assert await sent(tmp_path, body_document(media_type, {}, **media), body) == (kind, written)


async def test_files_are_sent_by_path_base64_or_text(tmp_path: Path) -> None:
    (tmp_path / "up").mkdir()
    (tmp_path / "up" / "a.txt").write_bytes(b"from disk")
    binary = {"type": "string", "format": "binary"}
    schema = {
        "type": "object",
        "properties": {"file": binary, "more": {"type": "array", "items": binary}, "meta": {"type": "object"}},
    }
    body = {
        "file": {"path": "a.txt"},
        "more": [{"base64": "AAE=", "name": 'b".bin', "type": "x/y"}, {"text": "hi"}],
        "meta": {"k": 1},
    }

    kind, content = await sent(
        tmp_path, body_document("multipart/form-data", schema), body, files_root=str(tmp_path / "up")
    )

    assert kind.startswith("multipart/form-data; boundary=")
    binary_type, text_type = b"application/octet-stream", b"text/plain; charset=utf-8"
    parts = content.split(b"--" + kind.partition("=")[2].encode())[1:-1]
    assert parts == [
        b'\r\nContent-Disposition: form-data; name="file"; filename="a.txt"\r\nContent-Type: %b\r\n\r\nfrom disk\r\n'
        % binary_type,
        b'\r\nContent-Disposition: form-data; name="more"; filename="b%22.bin"\r\nContent-Type: x/y\r\n\r\n\0\1\r\n',
        b'\r\nContent-Disposition: form-data; name="more"; filename="file"\r\nContent-Type: %b\r\n\r\nhi\r\n'
        % text_type,
        b'\r\nContent-Disposition: form-data; name="meta"\r\nContent-Type: application/json\r\n\r\n{"k":1}\r\n',
    ]


@every_row("value", [{"path": "../secret"}, {"path": "link"}, {"path": "missing"}, {"path": "."}, {"path": "a\0"}])
def test_no_file_outside_the_folder_for_uploads_is_read(value: Any, tmp_path: Path) -> None:
    root = tmp_path / "up"
    root.mkdir(exist_ok=True)
    (tmp_path / "secret").write_text("s")
    (root / "link").unlink(missing_ok=True)
    (root / "link").symlink_to(tmp_path / "secret")

    with pytest.raises(ToolError) as raised:
        Files(str(root), max_bytes=100).read(value, "body")

    assert raised.value.code == "invalid_input"


def test_a_stored_result_that_is_no_text_is_sent_as_its_json() -> None:
    files = Files(None, max_bytes=99)

    assert files.read({"text": {"a": [1]}}, "body") == (b'{"a":[1]}', "file", "application/json")
    assert files.read({"text": [1], "type": "text/x"}, "body") == (b"[1]", "file", "text/x")


def test_a_file_needs_a_folder_valid_base64_and_a_size_within_the_limit(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"12345")
    rows: list[tuple[Files, dict[str, Any], str]] = [
        (Files(None, max_bytes=9), {"path": "x"}, "invalid_input"),
        (Files(None, max_bytes=9), {"base64": "%"}, "invalid_input"),
        (Files(None, max_bytes=2), {"text": "abc"}, "too_large"),
        (Files(str(tmp_path), max_bytes=2), {"path": "big"}, "too_large"),
    ]
    for files, value, code in rows:
        with pytest.raises(ToolError) as raised:
            files.read(value, "body")
        assert raised.value.code == code
