"""An API document: its files, the references in and between them, its version and its servers.

References are followed when somebody asks, and nothing is resolved ahead.
"""

import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast
from urllib.parse import unquote, urljoin, urlsplit

from callyard._internal.converted import as_list, as_object
from callyard.providers.openapi.reading import DocumentError

__all__ = ["Document", "Node", "join_location"]

_MAX_REFERENCES: Final = 32
_VERSIONS: Final = re.compile(r"3\.[012](?:\.|$)")
_VARIABLE: Final = re.compile(r"\{([^{}]*)\}")


class Node(NamedTuple):
    """A value in a document, the file that it is in, and how it is reached."""

    value: Any
    file: str
    pointer: str = ""
    """The JSON pointer in the file, if a reference led there."""

    def child(self, value: Any) -> "Node":
        """Return a value that is written in the same file."""
        return Node(value, self.file)

    @property
    def fields(self) -> dict[str, Any]:
        """Return the value as an object, which is empty if it is something else."""
        return as_object(self.value)


def join_location(base: str, reference: str) -> str:
    """Return the location of a file that another refers to: a URL, or an absolute path."""
    if "://" in base:
        return urljoin(base, reference)
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), unquote(reference)))


class Document:
    """The files of one API document; the first one is the document itself."""

    def __init__(self, location: str, files: Mapping[str, Any], *, refused: Mapping[str, str] | None = None) -> None:
        self.location = location
        self._files = files
        self._refused = refused or {}
        """Files that it refers to and that were not read, and why."""
        self.root = Node(as_object(files[location]), location)
        self.version = self._find_version()

    def _find_version(self) -> str:
        fields = self.root.fields
        if str(fields.get("swagger", "")).startswith("2"):
            return "2.0"
        version = fields.get("openapi")
        if isinstance(version, str | float) and _VERSIONS.match(str(version)):
            return str(version)[:3]
        if "swagger" in fields or "openapi" in fields:
            named = str(version or fields.get("swagger"))[:20]
            raise DocumentError(f"It is written in version '{named}'; OpenAPI 3.0, 3.1, 3.2 and Swagger 2.0 are read.")
        raise DocumentError("It is no OpenAPI document: it has neither 'openapi' nor 'swagger'.")

    @property
    def is_swagger(self) -> bool:
        """Return whether it is written in Swagger 2.0."""
        return self.version == "2.0"

    def follow(self, node: Node, reference: str) -> Node:
        """Return the value that a reference in a node's file leads to.

        Raises:
            DocumentError: It leads nowhere, or to a file that must not be read.
        """
        place, _, fragment = reference.partition("#")
        file = join_location(node.file, place) if place else node.file
        if file not in self._files:
            why = self._refused.get(file, "leads to a file that was not found")
            raise DocumentError(f"has a reference '{reference[:200]}' that {why}")
        value: object = self._files[file]
        pointer = unquote(fragment) if "%" in fragment else fragment
        for part in pointer.split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~") if "~" in part else part
            fields, items = as_object(value), as_list(value)
            if key in fields:
                value = fields[key]
            elif key.isdecimal() and int(key) < len(items):
                value = items[int(key)]
            else:
                raise DocumentError(f"has a reference '{reference[:200]}' that leads nowhere")
        if pointer and not pointer.startswith("/"):
            raise DocumentError(f"has a reference '{reference[:200]}' to an anchor, which is not supported")
        return Node(value, file, pointer)

    def resolve(self, node: Node) -> Node:
        """Return what a node means, after following references.

        Raises:
            DocumentError: A reference leads nowhere, or back to itself.
        """
        for _ in range(_MAX_REFERENCES):
            reference = node.fields.get("$ref")
            if not isinstance(reference, str):
                return node
            node = self.follow(node, reference)
        raise DocumentError("has a reference that leads back to itself")

    def paths(self) -> Iterator[tuple[str, Node]]:
        """Return the path items, unresolved.

        Raises:
            DocumentError: There are none.
        """
        paths: object = self.root.fields.get("paths")
        if not isinstance(paths, dict):
            if "webhooks" in self.root.fields or "components" in self.root.fields:
                return
            raise DocumentError("It has no 'paths', so there is nothing to call.")
        for path, item in as_object(cast("object", paths)).items():
            if path.startswith("/"):
                yield path, self.root.child(item)

    def components(self, kind: str) -> dict[str, Any]:
        """Return the components of a kind by name, such as 'securitySchemes'."""
        if self.is_swagger:
            return as_object(self.root.fields.get({"securitySchemes": "securityDefinitions"}.get(kind, kind)))
        return as_object(as_object(self.root.fields.get("components")).get(kind))

    def servers(self, servers: object, variables: Mapping[str, str]) -> list[str]:
        """Return the absolute URLs of a list of servers, of which there may be none.

        Raises:
            DocumentError: A variable of the first has no value.
        """
        found: list[str] = []
        for server in map(as_object, as_list(servers)):
            known = as_object(server.get("variables"))

            def value_of(match: re.Match[str], known: dict[str, Any] = known) -> str:
                name = match[1]
                value = variables.get(name, as_object(known.get(name)).get("default"))
                if value is None:
                    raise DocumentError(f"has a server with the variable '{name}', which 'server_variables' must set")
                return str(value)

            written = _VARIABLE.sub(value_of, str(server["url"]))
            with suppress(ValueError):  # a URL that is none
                url = urljoin(self.location if "://" in self.location else "", written)
                if urlsplit(url).scheme in {"http", "https"}:
                    found.append(url)
        return found

    def default_servers(self, variables: Mapping[str, str]) -> list[str]:
        """Return the absolute URLs of the document's servers.

        Raises:
            DocumentError: A variable has no value.
        """
        fields = self.root.fields
        if not self.is_swagger:
            servers = [server for server in as_list(fields.get("servers")) if "url" in as_object(server)]
            return self.servers(servers or [{"url": "/"}], variables)
        here = urlsplit(self.location)
        host = str(fields.get("host") or here.netloc)
        schemes = [str(scheme) for scheme in as_list(fields.get("schemes"))]
        scheme = next((one for one in ("https", "http") if one in schemes), here.scheme or "https")
        if not host or "/" in host:
            return []
        base = str(fields.get("basePath") or "/")
        return [f"{scheme if scheme in {'http', 'https'} else 'https'}://{host}/{base.lstrip('/')}"]
