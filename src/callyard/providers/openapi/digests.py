"""Digests of operations with everything that they refer to, so that a change of a shared part is noticed.

Parts that refer to each other in a circle have one digest together. Each part is read once for all operations.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

import msgspec

from callyard.providers.openapi.document import Document, Node
from callyard.providers.openapi.operations import ApiOperation
from callyard.providers.openapi.reading import DocumentError

__all__ = ["Digests"]

_REFERENCE: Final = re.compile(rb'"\$ref":"((?:[^"\\]|\\.)*)"')
_CHARACTERS: Final = 32
_encode: Final = msgspec.json.Encoder(order="deterministic").encode
Key = tuple[str, str]


class Digests:
    """The digests of one document's parts."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._digests: dict[Key, bytes] = {}
        self._own: dict[Key, tuple[bytes, list[Key]]] = {}

    def of(self, operation: ApiOperation) -> str:
        """Return the digest of an operation's request: its parameters, body and servers."""
        fields, item = operation.node.fields, operation.item.fields
        parts: Any = [
            operation.request,
            [fields.get("parameters"), item.get("parameters"), fields.get("requestBody"), fields.get("consumes")],
            [fields.get("servers"), item.get("servers"), fields.get("security")],
        ]
        own, children = self._read(parts, operation.node)
        return self._combined(own, children).hex()[:_CHARACTERS]

    def _read(self, value: Any, place: Node) -> tuple[bytes, list[Key]]:
        """Return the digest of a value's own text, and the parts that it refers to."""
        text = _encode(value)
        keys: list[Key] = []
        for match in sorted(set(_REFERENCE.findall(text))):
            with suppress(DocumentError):  # one that leads nowhere is told when somebody needs it
                target = self._document.follow(place, msgspec.json.decode(b'"' + match + b'"', type=str))
                keys.append((target.file, target.pointer))
        return sha256(text).digest(), keys

    def _combined(self, own: bytes, children: Iterable[Key]) -> bytes:
        digest = sha256(own)
        for key in children:
            digest.update(self._digest_of(key))
        return digest.digest()

    def _node_of(self, key: Key) -> tuple[bytes, list[Key]]:
        if key not in self._own:
            file, pointer = key
            target = self._document.follow(Node(None, file), f"#{quote(pointer)}")
            self._own[key] = self._read(target.value, target)
        return self._own[key]

    def _digest_of(self, start: Key) -> bytes:
        """Return the digest of a part: Tarjan's algorithm finds the circles, without recursion."""
        if start in self._digests:
            return self._digests[start]
        order: dict[Key, int] = {start: 0}
        low: dict[Key, int] = {start: 0}
        stack: list[Key] = [start]
        on_stack = {start}
        work = [(start, iter(self._node_of(start)[1]))]
        while work:
            key, children = work[-1]
            child = next(children, None)
            if child is not None:
                if child in self._digests:
                    continue
                if child not in order:
                    order[child] = low[child] = len(order)
                    stack.append(child)
                    on_stack.add(child)
                    work.append((child, iter(self._node_of(child)[1])))
                elif child in on_stack:
                    low[key] = min(low[key], order[child])
                continue
            work.pop()
            if work:
                low[work[-1][0]] = min(low[work[-1][0]], low[key])
            if low[key] == order[key]:
                self._close(key, stack, on_stack)
        return self._digests[start]

    def _close(self, key: Key, stack: list[Key], on_stack: set[Key]) -> None:
        """Give all parts of a circle one digest; most are a circle of one."""
        circle: list[Key] = []
        while not circle or circle[-1] != key:
            circle.append(stack.pop())
            on_stack.discard(circle[-1])
        digest = sha256()
        members = set(circle)
        for member in sorted(circle):
            own, children = self._node_of(member)
            digest.update(own)
            for child in children:
                if child not in members:
                    digest.update(self._digests[child])
        self._digests.update(dict.fromkeys(circle, digest.digest()))
