"""Writes the arguments of a call into a request: path, query, headers, cookies and body, in every style of OpenAPI."""

import os
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote, unquote

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.envelope import encode
from callyard.model.errors import ToolError, invalid_input
from callyard.providers.openapi.document import Document, Node
from callyard.providers.openapi.operations import BODY, Body, Parameter
from callyard.providers.openapi.reading import DocumentError
from callyard.providers.openapi.schema import is_file

__all__ = ["Files", "Parts", "body_of", "build", "write_parameter"]

_RESERVED: Final = ":/?#[]@!$&'()*+,;="
_UNRESERVED: Final = "-._~"
_BYTES: Final = "application/octet-stream"
_MAX_FILE_DEPTH: Final = 4
Escape = Callable[[str], str]
_SEPARATORS: Final = {"spaceDelimited": "%20", "pipeDelimited": "%7C", "tabDelimited": "%09"}


class Parts(msgspec.Struct):
    """The parts of a request that come from arguments."""

    path: str
    query: list[str] = []
    headers: dict[str, str] = {}
    cookies: list[str] = []
    body: bytes | None = None


class Files:
    """Reads the files that are uploaded, from one folder only."""

    def __init__(self, root: str | None, *, max_bytes: int) -> None:
        self._root = None if root is None else Path(root)
        self._max_bytes = max_bytes

    def read(self, value: Mapping[str, Any], field: str) -> tuple[bytes, str, str]:
        """Return the content of a file argument, its name and its media type.

        Raises:
            ToolError: `invalid_input` if it cannot be read, `too_large` if it is too long.
        """
        name, kind = str(value.get("name") or ""), str(value.get("type") or "")
        if "text" in value:
            text = value["text"]  # a handle may stand for any JSON
            content = text.encode("utf-8", "replace") if isinstance(text, str) else encode(text)
            kind = kind or ("text/plain; charset=utf-8" if isinstance(text, str) else "application/json")
        elif "base64" in value:
            try:
                content = b64decode(str(value["base64"]), validate=True)
            except (Base64Error, ValueError):
                raise invalid_input(f"'{field}.base64' is not base64.", field=f"{field}.base64") from None
        else:
            path = str(value.get("path") or "")
            content, name = self._read_path(path, f"{field}.path"), name or Path(path).name
        if len(content) > self._max_bytes:
            raise self._too_large(field)
        return content, name or "file", kind or _BYTES

    def _read_path(self, path: str, field: str) -> bytes:
        if self._root is None:
            message = "Files cannot be uploaded by their path, because no folder is configured for that."
            raise invalid_input(message, field=field, hint="Give the content as 'base64' or 'text'.")
        root = self._root.resolve()
        try:
            file = (root / path).resolve()
            if not file.is_relative_to(root) or not file.is_file():
                raise FileNotFoundError
            # opened without following a link that somebody put there meanwhile
            with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC), "rb") as opened:
                content = opened.read(self._max_bytes + 1)
        except (OSError, ValueError, RuntimeError):
            raise invalid_input(f"There is no file '{path[:200]}' in the folder for uploads.", field=field) from None
        if len(content) > self._max_bytes:
            raise self._too_large(field)
        return content

    def _too_large(self, field: str) -> ToolError:
        message = f"The file in '{field}' has more than {self._max_bytes} bytes."
        return ToolError("too_large", message, limit=self._max_bytes)


def _text(value: object) -> str:
    """Return a primitive value as it is written in a URL or header."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:  # noqa: PLR2004 - from there on floats have gaps
        return str(int(value))
    return encode(value).decode()


def _escape(text: str, *, reserved: bool = False) -> str:
    return quote(text, safe=f"{_UNRESERVED}{_RESERVED.replace('#', '')}%" if reserved else _UNRESERVED)


def write_parameter(parameter: Parameter, value: Any) -> list[tuple[str, str]]:
    """Return the names and texts of a parameter; those in URLs are escaped.

    Lists of `form` with `explode` give several pairs, everything else gives one.
    """
    if parameter.media_type:
        text = value if isinstance(value, str) and "json" not in parameter.media_type else encode(value).decode()
        return [(parameter.name, text if parameter.place == "header" else _escape(text))]
    escape = {"header": _identity, "cookie": _cookie}.get(parameter.place) if _is_verbatim(parameter) else None
    escape = escape or _escaping(parameter)
    name = escape(parameter.name) if parameter.place != "header" else parameter.name
    if parameter.place in {"query", "cookie"}:
        return _write_pairs(parameter, name, value, escape)
    return [(name, _write_simple(parameter, name, value, escape))]


def _identity(text: str) -> str:
    return text


def _cookie(text: str) -> str:
    """Return a text as it is, apart from what would begin another cookie."""
    return text.replace(";", "%3B")


def _is_verbatim(parameter: Parameter) -> bool:
    return parameter.place == "header" or parameter.style == "cookie"


def _escaping(parameter: Parameter) -> Escape:
    def escape(text: str) -> str:
        escaped = _escape(text, reserved=parameter.allow_reserved)
        return escaped.replace("?", "%3F") if parameter.place == "path" else escaped

    return escape


def _write_simple(parameter: Parameter, name: str, value: Any, escape: Escape) -> str:
    """Return a parameter of a path or a header: in the style 'simple', 'label' or 'matrix'."""
    explode, style = parameter.explode, parameter.style
    start = {"label": ".", "matrix": ";"}.get(style, "")
    if isinstance(value, list):
        items = [escape(_text(item)) for item in cast("list[Any]", value)]
        if style == "matrix":
            return "".join(f";{name}={item}" for item in items) if explode else f";{name}={','.join(items)}"
        between = "." if style == "label" and explode else _SEPARATORS.get(style, ",")
        return start + between.join(items)
    if isinstance(value, dict):
        pairs = [(escape(str(key)), escape(_text(one))) for key, one in cast("dict[str, Any]", value).items()]
        if explode:
            between = start or ","
            return start + between.join(f"{key}={one}" for key, one in pairs)
        flat = ",".join(part for pair in pairs for part in pair)
        return f";{name}={flat}" if style == "matrix" else start + flat
    text = escape(_text(value))
    if style == "matrix":
        return f";{name}={text}" if text else f";{name}"
    return start + text


def _write_pairs(parameter: Parameter, name: str, value: Any, escape: Escape) -> list[tuple[str, str]]:
    """Return a parameter of a query or a cookie."""
    if isinstance(value, list):
        items = [escape(_text(item)) for item in cast("list[Any]", value)]
        if parameter.explode:
            return [(name, item) for item in items]
        return [(name, _SEPARATORS.get(parameter.style, ",").join(items))]
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if parameter.style == "deepObject":
            return _deep(name, fields, escape)
        pairs = [(escape(str(key)), escape(_text(one))) for key, one in fields.items()]
        if parameter.explode:
            return pairs
        flat = _SEPARATORS.get(parameter.style, ",").join(part for pair in pairs for part in pair)
        return [(name, flat)]
    return [(name, escape(_text(value)))]


def _deep(name: str, fields: Mapping[str, Any], escape: Escape) -> list[tuple[str, str]]:
    """Return nested objects as APIs read them: `filter[by][name]=x`; the standard names one level only."""
    found: list[tuple[str, str]] = []
    for key, value in fields.items():
        inner = f"{name}[{escape(str(key))}]"
        if isinstance(value, dict):
            found += _deep(inner, cast("dict[str, Any]", value), escape)
        elif isinstance(value, list):
            found += [(inner, escape(_text(item))) for item in cast("list[Any]", value)]
        else:
            found.append((inner, escape(_text(value))))
    return found


def build(path: str, parameters: Sequence[Parameter], arguments: Mapping[str, Any]) -> Parts:
    """Return the path, query, headers and cookies that arguments make.

    Raises:
        ToolError: `invalid_input` if a value would lead to another path.
    """
    parts = Parts(path="")
    values: dict[str, str] = {}
    for parameter in parameters:
        if parameter.argument not in arguments:
            continue
        value = arguments[parameter.argument]
        if parameter.place == "path":
            values[parameter.name] = _path_value(parameter, value)
        elif parameter.place == "querystring":
            parts.query.append(_query_string(parameter, value))
        elif value is None and not parameter.allow_empty:
            continue  # nothing in a query or a header means null
        else:
            _add(parts, parameter, value)
    parts.path = _path_of(path, values)
    return parts


def _add(parts: Parts, parameter: Parameter, value: Any) -> None:
    pairs = write_parameter(parameter, value)
    if parameter.place == "header":
        parts.headers |= dict(pairs)
    elif parameter.place == "cookie":
        parts.cookies += [f"{name}={text}" for name, text in pairs]
    else:
        parts.query += [f"{name}={text}" for name, text in pairs]


def _path_value(parameter: Parameter, value: Any) -> str:
    text = write_parameter(parameter, value)[0][1]
    if not text:
        raise invalid_input(f"'{parameter.argument}' must not be empty.", field=parameter.argument)
    if any(part in {".", ".."} for part in unquote(text).replace("\\", "/").split("/")):
        raise invalid_input(f"'{parameter.argument}' would lead to another path.", field=parameter.argument)
    return text


def _path_of(template: str, values: Mapping[str, str]) -> str:
    path = ""
    rest = template
    while "{" in rest:
        literal, _, rest = rest.partition("{")
        name, _, rest = rest.partition("}")
        path += quote(literal, safe=f"{_UNRESERVED}/{_RESERVED.replace('?', '').replace('#', '')}%")
        path += values.get(name, "")
    literal, mark, query = rest.partition("?")  # some documents have a fixed query in a path
    path += quote(literal, safe=f"{_UNRESERVED}/{_RESERVED.replace('?', '').replace('#', '')}%")
    return f"{path}?{quote(query, safe=f'{_UNRESERVED}{_RESERVED}%')}" if mark else path


def _query_string(parameter: Parameter, value: object) -> str:
    if as_object(value) and "form" in parameter.media_type:
        return "&".join(_form_pairs(as_object(value), {}))
    return _escape(value if isinstance(value, str) else encode(value).decode())


def body_of(document: Document, body: Body, value: Any, files: Files) -> tuple[bytes, str]:
    """Return a body and its content type.

    Raises:
        ToolError: `invalid_input` or `too_large`, for a file.
    """
    if body.kind == "json":
        media_type = "application/json" if "*" in body.media_type else body.media_type
        return encode(value), media_type
    if body.kind == "text":
        return str(value).encode("utf-8", "replace"), body.media_type
    if body.kind == "bytes":
        content, _, kind = files.read(as_object(value), BODY)
        is_any = "*" in body.media_type
        return content, kind if is_any else body.media_type
    if body.kind == "form":
        return "&".join(_form_pairs(as_object(value), body.encoding)).encode(), body.media_type
    return _multipart(document, body, as_object(value), files)


def _form_pairs(value: Mapping[str, Any], encoding: Mapping[str, Any]) -> list[str]:
    found: list[str] = []
    for name, one in value.items():
        rules = as_object(encoding.get(name))
        is_deep = bool(as_object(one)) or _has_objects(one)
        if is_deep and "style" not in rules and "json" in _content_type(rules):
            found.append(f"{_escape(name)}={_escape(encode(one).decode())}")
            continue
        style = str(rules.get("style") or ("deepObject" if is_deep else "form"))
        explode = rules.get("explode", style in {"form", "deepObject"})
        parameter = Parameter(
            argument=name,
            name=name,
            place="query",
            schema=Node(True, ""),  # noqa: FBT003 - a schema
            required=False,
            style=style,
            explode=bool(explode),
        )
        values: Any = _indexed(one) if _has_objects(one) else one
        found += [f"{key}={text}" for key, text in write_parameter(parameter, values)]
    return found


def _content_type(rules: Mapping[str, Any]) -> str:
    return str(rules.get("contentType") or "")


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _has_objects(value: object) -> bool:
    return any(isinstance(item, dict | list) for item in as_list(value))


def _indexed(value: Any) -> dict[str, Any]:
    return {str(number): item for number, item in enumerate(as_list(value))}


def _multipart(document: Document, body: Body, value: Mapping[str, Any], files: Files) -> tuple[bytes, str]:
    boundary = f"callyard-{os.urandom(12).hex()}"
    properties = _properties(document, body.schema)
    pieces: list[bytes] = []
    for name, one in value.items():
        schema = properties.get(name)
        items = as_list(one) if _is_list(one) else [one]
        for item in items:
            pieces.append(f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'.encode())
            if schema is not None and as_object(item) and _holds_files(document, schema):
                content, file, kind = files.read(as_object(item), f"{BODY}.{name}")
                pieces.append(f'; filename="{_quoted(file)}"\r\nContent-Type: {_one_line(kind)}\r\n\r\n'.encode())
            else:
                content, kind = _part(item, _content_type(as_object(body.encoding.get(name))))
                pieces.append(f"\r\nContent-Type: {kind}\r\n\r\n".encode() if kind else b"\r\n\r\n")
            pieces += [content, b"\r\n"]
    pieces.append(f"--{boundary}--\r\n".encode())
    return b"".join(pieces), f"{body.media_type.partition(';')[0].strip()}; boundary={boundary}"


def _part(item: object, declared: str) -> tuple[bytes, str]:
    if as_object(item) or as_list(item) or "json" in declared:
        return encode(item), declared or "application/json"
    return _text(item).encode("utf-8", "replace"), declared.partition(",")[0] if "/" in declared else ""


def _properties(document: Document, schema: Node) -> dict[str, Node]:
    try:
        node = document.resolve(schema)
        parts = [node, *(document.resolve(node.child(one)) for one in as_list(node.fields.get("allOf")))]
    except DocumentError:
        return {}
    return {name: part.child(raw) for part in parts for name, raw in as_object(part.fields.get("properties")).items()}


def _holds_files(document: Document, schema: Node, depth: int = 0) -> bool:
    """Return whether a schema is that of a file, of a list of files, or of one of these or something else."""
    try:
        node = document.resolve(schema)
    except DocumentError:
        return False
    parts = [one for keyword in ("anyOf", "oneOf", "allOf") for one in as_list(node.fields.get(keyword))]
    parts += [node.fields["items"]] if "items" in node.fields else []
    is_deep = depth > _MAX_FILE_DEPTH
    return is_file(document, node) or (
        not is_deep and any(_holds_files(document, node.child(one), depth + 1) for one in parts)
    )


def _quoted(text: str) -> str:
    return _one_line(text).replace('"', "%22")


def _one_line(text: str) -> str:
    return text.replace("\r", "%0D").replace("\n", "%0A")
