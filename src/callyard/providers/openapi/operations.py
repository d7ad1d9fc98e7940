"""The operations of an API document: their names, texts, parameters and bodies.

Swagger 2.0 is upgraded here, one operation at a time, so that everything behind knows OpenAPI 3 only.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from hashlib import sha256
from typing import Any, Final, Literal, cast
from unicodedata import normalize

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard.model.profile import matches_any
from callyard.providers.openapi.document import Document, Node
from callyard.providers.openapi.reading import DocumentError

__all__ = ["BODY", "ApiOperation", "Body", "Parameter", "Place", "name_operations", "operations_of", "select"]

BODY: Final = "body"
"""The argument that holds the body of a request."""
Place = Literal["path", "query", "header", "cookie", "querystring"]
_PLACES: Final[tuple[Place, ...]] = ("path", "query", "header", "cookie", "querystring")
_METHODS: Final = ("get", "put", "post", "delete", "options", "head", "patch", "query")
_IGNORED_HEADERS: Final = frozenset({"accept", "content-type", "authorization"})
_DEFAULT_STYLES: Final = {"path": "simple", "header": "simple", "query": "form", "cookie": "form", "querystring": ""}
_STYLES: Final[Mapping[str, frozenset[str]]] = {
    "path": frozenset({"simple", "label", "matrix"}),
    "query": frozenset({"form", "spaceDelimited", "pipeDelimited", "deepObject"}),
    "header": frozenset({"simple"}),
    "cookie": frozenset({"form", "cookie"}),
    "querystring": frozenset({""}),
}
_COLLECTIONS: Final = {
    "csv": ("", False),
    "ssv": ("spaceDelimited", False),
    "pipes": ("pipeDelimited", False),
    "multi": ("", True),
    "tsv": ("tabDelimited", False),
}
_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_HASH_CHARACTERS: Final = 6
_TAG: Final = "tag:"
_ARGUMENT: Final = re.compile(r"[^A-Za-z0-9_.-]+")
_ARGUMENT_CHARACTERS: Final = 64
_TEXT_CHARACTERS: Final = 1000
_TEMPLATE: Final = re.compile(r"\{([^{}]*)\}")


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter of an operation, in the terms of OpenAPI 3."""

    argument: str
    """The name of the tool's argument."""
    name: str
    place: Place
    schema: Node
    required: bool
    style: str
    explode: bool
    allow_reserved: bool = False
    media_type: str = ""
    """The format of its value, if it is written as a document of its own."""
    description: str = ""
    allow_empty: bool = False


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """The body of a request, in the format that is sent."""

    media_type: str
    schema: Node
    required: bool
    encoding: Mapping[str, Any]
    description: str = ""

    @property
    def kind(self) -> Literal["json", "form", "multipart", "text", "bytes"]:
        """Return how it is written."""
        base = self.media_type.partition(";")[0].strip().lower()
        if base == _MULTIPART or base.startswith("multipart/"):
            return "multipart"
        if base == _FORM:
            return "form"
        if base.endswith(("/json", "+json")) or base == "*/*":
            return "json"
        is_text = base.startswith("text/") or base.endswith(("/xml", "+xml", "/yaml", "/graphql"))
        return "text" if is_text else "bytes"


_KIND_ORDER: Final = ("json", "multipart", "form", "text", "bytes")


class ApiOperation:
    """One operation: a method at a path."""

    def __init__(self, document: Document, path: str, method: str, *, item: Node, node: Node) -> None:
        self.document = document
        self.path = path
        self.method = method.upper()
        self.item = item
        self.node = node
        raw_id = node.fields.get("operationId")
        self.id = raw_id if isinstance(raw_id, str) else ""

    @property
    def request(self) -> str:
        """Return the method and the path."""
        return f"{self.method} {self.path}"

    @property
    def tags(self) -> tuple[str, ...]:
        """Return its tags."""
        return tuple(tag for tag in as_list(self.node.fields.get("tags")) if isinstance(tag, str) and tag)

    @property
    def title(self) -> str:
        """Return its summary on one line."""
        return " ".join(str(self.node.fields.get("summary") or "").split())[:_TEXT_CHARACTERS]

    def describe(self) -> str:
        """Return its summary, the first paragraph of its description, and its method and path."""
        text = self.node.fields.get("description")
        text = text.strip() if isinstance(text, str) else ""
        paragraph = " ".join(re.split(r"\n\s*\n", text, maxsplit=1)[0].split())[:_TEXT_CHARACTERS]
        parts = [self.title, "" if paragraph == self.title else paragraph, self.request]
        return "\n\n".join(part for part in parts if part)

    @cached_property
    def _raw_parameters(self) -> list[Node]:
        """Return the parameters, resolved; those of the operation replace those of the path."""
        found: dict[tuple[object, object], Node] = {}
        for owner in (self.item, self.node):
            for raw in as_list(owner.fields.get("parameters")):
                node = self.document.resolve(owner.child(raw))
                if isinstance(node.fields.get("name"), str):
                    found[node.fields["name"], node.fields.get("in")] = node
        return list(found.values())

    def parameters(self) -> list[Parameter]:
        """Return the parameters that a caller can set, each with an argument of its own.

        Raises:
            DocumentError: A parameter cannot be read.
        """
        wanted: dict[tuple[str, Place], Node] = {}
        for node in self._raw_parameters:
            name, place = node.fields["name"], cast("Place", node.fields.get("in"))
            if place not in _PLACES or (place == "header" and name.lower() in _IGNORED_HEADERS):
                continue
            if place == "path" and f"{{{name}}}" not in self.path:
                continue
            wanted[name, place] = node
        for name in _TEMPLATE.findall(self.path):
            if (name, "path") not in wanted:  # many documents forget to declare one
                wanted[name, "path"] = self.node.child({"name": name, "in": "path", "schema": {"type": "string"}})
        arguments = _argument_names(list(wanted), reserved={BODY} if self.has_body else set())
        return [self._parameter(node, name, place, arguments[name, place]) for (name, place), node in wanted.items()]

    def _parameter(self, node: Node, name: str, place: Place, argument: str) -> Parameter:
        fields = node.fields
        style, explode, media_type = fields.get("style"), fields.get("explode"), ""
        schema: Any = fields.get("schema", {})
        if self.document.is_swagger:
            schema = _swagger_schema(fields)
            style, explode = _COLLECTIONS.get(str(fields.get("collectionFormat", "csv")), ("", False))
        elif as_object(fields.get("content")):
            media_type, media = next(iter(as_object(fields["content"]).items()))
            schema = as_object(media).get("schema", {})
        known = {*_STYLES[place], "tabDelimited"} if self.document.is_swagger else _STYLES[place]
        style = style if isinstance(style, str) and style in known else _DEFAULT_STYLES[place]
        text = fields.get("description")
        return Parameter(
            argument=argument,
            name=name,
            place=place,
            schema=node.child(schema),
            required=place == "path" or fields.get("required") is True,
            style=style,
            explode=explode if isinstance(explode, bool) else style in {"form", "cookie", "deepObject"},
            allow_reserved=fields.get("allowReserved") is True,
            media_type=media_type,
            description=text.strip() if isinstance(text, str) else "",
            allow_empty=fields.get("allowEmptyValue") is True,
        )

    @property
    def has_body(self) -> bool:
        """Return whether a request may have a body."""
        if not self.document.is_swagger:
            return "requestBody" in self.node.fields
        return any(node.fields.get("in") in {"body", "formData"} for node in self._raw_parameters)

    def body(self) -> Body | None:
        """Return the body of a request, in the format that suits an agent best.

        Raises:
            DocumentError: It cannot be read.
        """
        if self.document.is_swagger:
            return self._swagger_body()
        if "requestBody" not in self.node.fields:
            return None
        node = self.document.resolve(self.node.child(self.node.fields["requestBody"]))
        text = node.fields.get("description")
        bodies = [
            Body(
                media_type=media_type,
                schema=node.child(as_object(media).get("schema", {})),
                required=node.fields.get("required") is True,
                encoding=as_object(as_object(media).get("encoding")),
                description=text.strip() if isinstance(text, str) else "",
            )
            for media_type, media in as_object(node.fields.get("content")).items()
        ]
        return min(bodies, key=lambda body: _KIND_ORDER.index(body.kind), default=None)

    def _swagger_body(self) -> Body | None:
        nodes = [node for node in self._raw_parameters if node.fields.get("in") in {"body", "formData"}]
        if not nodes:
            return None
        consumed = self.node.fields.get("consumes", self.document.root.fields.get("consumes"))
        consumes = [kind for kind in as_list(consumed) if isinstance(kind, str)]
        bodies = [node for node in nodes if node.fields.get("in") == "body"]
        if bodies:
            node, text = bodies[0], bodies[0].fields.get("description")
            schema = node.child(node.fields.get("schema", {}))
            options = [
                Body(
                    media_type=kind,
                    schema=schema,
                    required=node.fields.get("required") is True,
                    encoding={},
                    description=text.strip() if isinstance(text, str) else "",
                )
                for kind in consumes or ["application/json"]
            ]
            return min(options, key=lambda body: _KIND_ORDER.index(body.kind))
        properties = {node.fields["name"]: _swagger_schema(node.fields) for node in nodes}
        required = [node.fields["name"] for node in nodes if node.fields.get("required") is True]
        has_file = any(node.fields.get("type") == "file" for node in nodes)
        is_multipart = has_file or (_MULTIPART in consumes and _FORM not in consumes)
        encoding = {
            node.fields["name"]: {"style": style or "form", "explode": explode}
            for node in nodes
            for style, explode in [_COLLECTIONS.get(str(node.fields.get("collectionFormat", "csv")), ("", False))]
        }
        return Body(
            media_type=_MULTIPART if is_multipart else _FORM,
            schema=nodes[0].child({"type": "object", "properties": properties, "required": required}),
            required=bool(required),
            encoding=encoding,
        )

    def responses(self) -> Iterator[tuple[str, str, Node]]:
        """Return the status, the format and the schema of each response that is declared for a success.

        Raises:
            DocumentError: One cannot be read.
        """
        for status, raw in as_object(self.node.fields.get("responses")).items():
            if not str(status).startswith("2") and status != "default":
                continue
            node = self.document.resolve(self.node.child(raw))
            if self.document.is_swagger and "schema" in node.fields:
                yield str(status), "application/json", node.child(node.fields["schema"])
            for media_type, media in as_object(node.fields.get("content")).items():
                if "schema" in as_object(media):
                    yield str(status), media_type, node.child(as_object(media)["schema"])

    def security(self) -> list[dict[str, list[str]]] | None:
        """Return its alternatives of security requirements; None if the document says nothing."""
        for fields in (self.node.fields, self.document.root.fields):
            if isinstance(fields.get("security"), list):
                return [as_object(one) for one in as_list(fields["security"])]
        return None

    def servers(self, variables: Mapping[str, str]) -> list[str]:
        """Return the URLs of its own servers, if it has any.

        Raises:
            DocumentError: A variable of one has no value.
        """
        for fields in (self.node.fields, self.item.fields):
            servers = [one for one in as_list(fields.get("servers")) if "url" in as_object(one)]
            if servers and not self.document.is_swagger:
                return self.document.servers(servers, variables)
        return []


def _swagger_schema(fields: Mapping[str, Any]) -> dict[str, Any]:
    left_out = {"name", "in", "required", "description", "collectionFormat", "allowEmptyValue"}
    return {key: value for key, value in fields.items() if key not in left_out and not key.startswith("x-")}


def _argument_names(wanted: Sequence[tuple[str, Place]], *, reserved: set[str]) -> dict[tuple[str, Place], str]:
    """Return the argument for each parameter: its name; where that is taken, with its place behind it."""
    found: dict[tuple[str, Place], str] = {}
    taken = set(reserved)
    for name, place in sorted(wanted, key=lambda one: (_PLACES.index(one[1]), wanted.index(one))):
        plain = _ARGUMENT.sub("_", name).strip("_")[:_ARGUMENT_CHARACTERS] or place
        digest = sha256(f"{place} {name}".encode()).hexdigest()[:_HASH_CHARACTERS]
        options = (plain, f"{plain}_{place}"[:_ARGUMENT_CHARACTERS], f"{plain[:40]}_{place}_{digest}")
        found[name, place] = next(option for option in options if option not in taken)
        taken.add(found[name, place])
    return found


def operations_of(document: Document) -> Iterator[ApiOperation | tuple[str, str]]:
    """Return the operations of a document, or the path of one that cannot be read, and why."""
    for path, raw in document.paths():
        try:
            item = document.resolve(raw)
        except DocumentError as error:
            yield path, str(error)
            continue
        extra = {name.lower(): value for name, value in as_object(item.fields.get("additionalOperations")).items()}
        for method in (*_METHODS, *extra):
            value = extra.get(method, item.fields.get(method))
            if isinstance(value, dict) and re.fullmatch(r"[a-z-]+", method):
                yield ApiOperation(document, path, method, item=item, node=item.child(value))


def name_operations(operations: Sequence[ApiOperation], prefix: str, *, longest: int) -> list[str]:
    """Return a name for each operation, which depends on no other unless two of them have one id."""
    taken: set[str] = set()
    names: list[str] = []
    for operation in operations:
        by_path = f"{operation.method}_{_TEMPLATE.sub(lambda match: match[1], operation.path)}"
        options = (_snake(operation.id), _snake(by_path), f"{_snake(by_path)}_{_digest(operation)}")
        fitted = (_fitted(f"{prefix}__{option}", operation, longest) for option in options if option)
        name = next((name for name in fitted if name not in taken), f"{prefix}__{_digest(operation)}")
        taken.add(name)
        names.append(name)
    return names


def _snake(text: str) -> str:
    plain = normalize("NFKD", text).encode("ascii", "ignore").decode()
    split = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", plain)
    split = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", split)
    return re.sub(r"[^a-z0-9]+", "_", split.lower()).strip("_")


def _digest(operation: ApiOperation) -> str:
    return sha256(operation.request.encode("utf-8", "replace")).hexdigest()[:_HASH_CHARACTERS]


def _fitted(name: str, operation: ApiOperation, longest: int) -> str:
    """Return a name that is short enough: cut at a word, with a hash of method and path."""
    if len(name) <= longest:
        return name
    room = longest - _HASH_CHARACTERS - 1
    cut = name[: room + 1].rpartition("_")[0]
    return f"{cut if len(cut) > room // 2 else name[:room]}_{_digest(operation)}"


def select(operation: ApiOperation, name: str, patterns: Sequence[str]) -> bool:
    """Return whether one of the patterns names an operation: its id, name, tag, path or method."""
    of_tags = tuple(pattern.removeprefix(_TAG) for pattern in patterns if pattern.startswith(_TAG))
    others = tuple(pattern for pattern in patterns if not pattern.startswith(_TAG))
    subjects = [operation.id, name, operation.path, operation.method, operation.request]
    return any(matches_any(tag, of_tags) for tag in operation.tags) or any(
        matches_any(subject, others) for subject in subjects if subject
    )
