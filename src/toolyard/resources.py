"""A resource: a spec, and the query that reads it.

A template is a resource, too: the variables of its URI are the arguments of the query.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, cast

import msgspec

from toolyard.call import Handler
from toolyard.content import Block, Embedded, Text, block_of
from toolyard.envelope import encode
from toolyard.limits import Limits
from toolyard.schema import Schema
from toolyard.spec import PublishError, ResourceSpec
from toolyard.spec_checks import check_resource_spec
from toolyard.tools import Check, Complete, Tool, query_of, texts_of
from toolyard.uri_template import variables_of

__all__ = ["Resource", "check_resource", "contents_of"]

_BYTES: Final = (bytes, bytearray, memoryview)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A spec, the query that reads it, and what completes its variables."""

    spec: ResourceSpec
    query: Tool
    complete: Mapping[str, Complete] = field(default_factory=dict[str, Complete])

    @classmethod
    def of(
        cls,
        spec: ResourceSpec,
        handler: Handler,
        *,
        schema: Schema | None = None,
        check: Check | None = None,
        complete: Mapping[str, Complete] | None = None,
    ) -> Self:
        """Return a resource whose handler finds the URI in `call.name`; without a schema the variables are texts."""
        if schema is None:
            names = variables_of(spec.uri)
            schema = texts_of(names, required=names)
        query = query_of("resource", spec, handler, schema=schema, check=check)
        return cls(spec=spec, query=query, complete=complete or {})

    @property
    def keys(self) -> tuple[str, ...]:
        """Return what finds it: its URI."""
        return (self.spec.uri,)

    def under(self, source: str) -> Self:
        """Return the resource under the source that publishes it."""
        if self.spec.source == source:
            return self
        return replace(self, spec=msgspec.structs.replace(self.spec, source=source), query=self.query.under(source))


def check_resource(resource: Resource, limits: Limits, *, foreign: bool = False) -> None:
    """Check everything about a resource that can be wrong before it is read.

    Raises:
        PublishError: Something is.
    """
    spec = resource.spec
    check_resource_spec(spec, limits, foreign=foreign)
    for name in resource.complete:
        if name not in variables_of(spec.uri):
            raise PublishError(f"Resource '{spec.name}' completes '{name}', which is no variable of '{spec.uri}'.")


def contents_of(spec: ResourceSpec, uri: str, result: object) -> dict[str, Any]:
    """Return what was read in the words of MCP; only a list of blocks is several contents, any other is JSON.

    Raises:
        TypeError: It cannot be written.
    """
    parts: Sequence[object] = cast("Sequence[object]", result) if isinstance(result, list | tuple) else ()
    if not parts or not all(isinstance(part, Block | Text) for part in parts):
        parts = (cast("object", result),)
    return {"contents": [_content(spec, uri, part) for part in parts]}


def _content(spec: ResourceSpec, uri: str, part: object) -> dict[str, Any]:
    if isinstance(part, Embedded):
        return part.told()
    if isinstance(part, Block):
        return _blob(uri, part.mime_type, part.data)
    if isinstance(part, _BYTES):
        data = bytes(cast("bytes", part))
        return _blob(uri, spec.mime_type or block_of(data).mime_type, data)
    if isinstance(part, str | Text):
        return {"uri": uri, "mimeType": spec.mime_type or "text/plain", "text": part if isinstance(part, str) else part.text}
    return {"uri": uri, "mimeType": spec.mime_type or "application/json", "text": encode(part).decode()}


def _blob(uri: str, mime_type: str, data: bytes) -> dict[str, Any]:
    return {"uri": uri, "mimeType": mime_type, "blob": b64encode(data).decode()}
