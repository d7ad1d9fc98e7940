"""What an API document publishes: a spec for each operation, and the catalogue that its pins are made of."""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from callyard._internal.converted import as_object
from callyard.model.envelope import fingerprint
from callyard.model.profile import PINNED, UNLISTED
from callyard.model.spec import Annotations, LazySchema, LazySpec, Operation
from callyard.providers.openapi.digests import Digests
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.loading import Loaded
from callyard.providers.openapi.operations import ApiOperation, name_operations, operations_of, select
from callyard.providers.openapi.reading import DocumentError
from callyard.providers.openapi.schema import input_schema, outline_of, response_schema
from callyard.providers.openapi.settings import ApiSettings, Override
from callyard.providers.upstream.catalogue import Catalogue
from callyard.providers.upstream.http.client import Address, parse_address
from callyard.providers.upstream.link import LinkError

__all__ = ["ApiTool", "Published", "catalogue_of", "publish_operations"]

_QUERIES: Final = frozenset({"GET", "HEAD", "OPTIONS", "QUERY"})
_IDEMPOTENT: Final = frozenset({"PUT", "DELETE"})
_RESERVED_TAGS: Final = frozenset({PINNED, UNLISTED})
"""Tags that decide what is listed, which a document must not."""
_NO_SERVER: Final = "It names no server by its whole address. Set 'base_url' to the address of the API."
_DEPRECATED: Final = "The API says so."
Fault = Callable[[str, str], None]
"""Takes the name of a tool and why it cannot be used."""


class ApiTool(NamedTuple):
    """A tool that calls one operation."""

    spec: LazySpec
    operation: ApiOperation
    server: Address | None
    """Where the API is, for this operation; none if that cannot be used."""
    item: dict[str, Any]
    """Its definition, as pins know it."""


class Published(NamedTuple):
    """The tools of a document."""

    tools: list[ApiTool]


def publish_operations(
    name: str, settings: ApiSettings, document: Document, *, longest: int, fault: Fault
) -> Published:
    """Return the tools for the operations that the settings let through.

    `fault` is called when the schema of one cannot be made, once somebody looks at it.

    Raises:
        DocumentError: Nothing can be called.
    """
    found = list(operations_of(document))
    operations = [one for one in found if isinstance(one, ApiOperation)]
    names = name_operations(operations, name, longest=longest)
    maker = _Maker(name, settings, document, fault)
    tools = [
        maker.tool(operation, tool_name)
        for operation, tool_name in zip(operations, names, strict=True)
        if (settings.include == ("*",) or select(operation, tool_name, settings.include))
        and not (settings.exclude and select(operation, tool_name, settings.exclude))
    ]
    if tools and all(tool.server is None for tool in tools):
        raise DocumentError(maker.server_fault)
    return Published(tools)


class _Maker:
    def __init__(self, name: str, settings: ApiSettings, document: Document, fault: Fault) -> None:
        self._name = name
        self._settings = settings
        self._document = document
        self._fault = fault
        self._digests = Digests(document)
        self._addresses: dict[str, Address] = {}
        self.server_fault = _NO_SERVER
        try:
            self._default = (
                [settings.base_url] if settings.base_url else document.default_servers(settings.server_variables)
            )
        except DocumentError as error:
            self._default, self.server_fault = [], f"The document {error}."

    def tool(self, operation: ApiOperation, name: str) -> ApiTool:
        change = self._change(operation, name)
        server, outline, why = self._read(operation)
        digest = self._digests.of(operation)
        # an address of the configuration is no part of what the document says
        place = "" if server is None or self._settings.base_url else _url(server)
        request = f"{operation.method} {place}{operation.path}"
        kind = Operation(change.operation) if change.operation else _operation(operation)
        is_query = kind is Operation.QUERY
        is_idempotent = operation.method in _IDEMPOTENT if change.idempotent is None else change.idempotent

        def make() -> dict[str, Any]:
            try:
                return input_schema(operation)
            except (DocumentError, RecursionError) as error:
                schema.fault = f"{error}."
                self._fault(name, schema.fault)
                return {"type": "object", "properties": {}, "additionalProperties": False}

        schema = LazySchema(
            make, outline=outline, digest=digest, make_output=lambda: response_schema(operation), fault=why
        )
        spec = LazySpec.of(
            schema,
            name=name,
            description=operation.describe(),
            operation=kind,
            source=self._name,
            tags=(*((PINNED,) if change.pinned else ()), *(t for t in operation.tags if t not in _RESERVED_TAGS)),
            timeout=self._settings.call_seconds if change.timeout is None else change.timeout,
            idempotent=is_idempotent,
            deprecated=_DEPRECATED if operation.node.fields.get("deprecated") is True else None,
            annotations=Annotations(
                read_only_hint=is_query,
                destructive_hint=kind is Operation.DESTROY,
                idempotent_hint=is_idempotent or is_query,
                open_world_hint=True,
            ),
        )
        definition = {"request": request, "arguments": outline.get("properties", {}), "digest": digest}
        item = {"name": name, "description": spec.description, "inputSchema": definition}
        return ApiTool(spec, operation, server, item)

    def _change(self, operation: ApiOperation, name: str) -> Override:
        overrides = self._settings.overrides.items()
        return next((change for pattern, change in overrides if select(operation, name, (pattern,))), _UNCHANGED)

    def _read(self, operation: ApiOperation) -> tuple[Address | None, dict[str, Any], str]:
        """Return the server and the outline of an operation, or why it cannot be published."""
        server: Address | None = None
        try:
            own = [] if self._settings.base_url else operation.servers(self._settings.server_variables)
            url = next(iter(own or self._default), "")
            server = self._address(url) if url else None
            return server, outline_of(operation), "" if url else "has no server: 'base_url' must be set."
        except LinkError:
            return None, {}, "has a server whose address is no usable URL."
        except DocumentError as error:
            return server, {}, f"{error}."

    def _address(self, url: str) -> Address:
        if url not in self._addresses:
            self._addresses[url] = parse_address(self._name, url.partition("#")[0].partition("?")[0])
        return self._addresses[url]


_UNCHANGED: Final = Override()


def _operation(operation: ApiOperation) -> Operation:
    if operation.method in _QUERIES:
        return Operation.QUERY
    return Operation.DESTROY if operation.method == "DELETE" else Operation.COMMAND


def _url(address: Address) -> str:
    return f"{address.scheme}://{address.authority}{address.target.rstrip('/')}"


def catalogue_of(name: str, settings: ApiSettings, loaded: Loaded, published: Published) -> Catalogue:
    """Return what the document offers, in the form in which upstreams are compared with what was accepted."""
    info = as_object(loaded.document.root.fields.get("info"))
    return Catalogue(
        endpoint_hash=fingerprint([name, settings.document])[:16],
        seen=loaded.seen,
        version=loaded.document.version,
        server={"name": str(info.get("title") or name)[:200], "version": str(info.get("version", ""))[:200]},
        tools=tuple(tool.item for tool in published.tools),
    )
