"""Cards: what a person sees of a call before it runs, which is all of it.

Only configured secrets and what a schema marks as one are masked, with a length and a short hash, so that two can be
told apart. Nothing else is left out, and nothing can hide: invisible characters are shown as escapes.
"""

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from hashlib import blake2b
from typing import Any, Final, Literal, cast

import msgspec

from callyard._internal.mask import configured_secrets
from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.model.envelope import encode
from callyard.model.errors import ToolError
from callyard.model.schema import Schema, resolve

__all__ = ["Card", "Views", "make_card", "printable", "uri_of"]

Views = Sequence[Any]
"""The arguments of a call as JSON: as they are approved and, if that differs, as the handler sees them."""
_MAX_CHARACTERS: Final = 1_000_000
"""The longest arguments that a person may be asked to read."""
_NAME_CHARACTERS: Final = 200
_MARKUP: Final = frozenset("<>&`")
_BLANKS: Final = frozenset("\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0\U00016fe4\U0001d159")
"""Characters that count as letters or symbols, and look like nothing."""
_BRANCHES: Final = 4
"""How deep branches of a schema are looked at for marks."""
_MARKS: Final = 3
"""So many combining marks one after the other are writing; more of them cover what is around."""


class Card(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a person sees of a call.

    Apart from URI, arguments and identity, everything is from the registry and the rules.
    """

    tool: str
    title: str
    operation: str
    unsettled: bool = False
    """Whether nobody has said what the tool does, so that the operation is a guess."""
    source: str
    uri: str = ""
    """The resource that is read."""
    arguments: str
    """The arguments as JSON in one line, with secrets masked and invisible characters escaped."""
    checked: str = ""
    """What the handler makes of them, where that differs."""
    identity: str
    profile: str
    client: str = ""
    """The name that the client states; nothing verifies it."""
    why: str
    by: Literal["anyone", "operator"] = "anyone"

    def text(self) -> str:
        """Return the card in a few lines for a person."""
        asker = f"{self.identity} ({self.client})" if self.client else self.identity
        title = f" ({self.title})" if self.title != self.tool else ""
        uri = f"URI: {self.uri}\n" if self.uri else ""
        checked = f"As the tool sees them: {self.checked}\n" if self.checked else ""
        operation = "unknown" if self.unsettled else self.operation
        return (
            f"May '{self.tool}'{title} run?\nOperation: {operation}, of '{self.source}'\n{uri}"
            f"Arguments: {self.arguments}\n{checked}"
            f"Asked by: {asker}, profile '{self.profile}'\nWhy you are asked: {self.why}"
        )


def make_card(
    call: Call, *, tool: Tool, views: Views, why: str, by: Literal["anyone", "operator"], mask_key: bytes
) -> Card:
    """Return the card of a call.

    Raises:
        ToolError: `too_large` if nobody can be expected to read the arguments.
    """
    spec = tool.spec
    masked = _masked(tool, views, mask_key)
    arguments = printable(encode(masked[0]).decode())
    checked = printable(encode(masked[1]).decode()) if len(masked) > 1 else ""
    size = len(arguments)
    if size > _MAX_CHARACTERS:
        message = f"A person must approve the arguments of '{spec.name}', and cannot read {size:,} characters."
        raise ToolError("too_large", message, may_have_run=False, limit=_MAX_CHARACTERS)
    return Card(
        tool=spec.name,
        title=printable(spec.title or spec.name),
        operation=str(spec.operation),
        unsettled=spec.unsettled is not None,
        source=printable(spec.source),
        uri=printable(uri_of(call, tool)),
        arguments=arguments,
        checked="" if checked == arguments else checked,
        identity=printable(call.caller.identity, _NAME_CHARACTERS),
        profile=call.profile.name,
        client=printable(call.caller.client, _NAME_CHARACTERS),
        why=why,
        by=by,
    )


def uri_of(call: Call, tool: Tool) -> str:
    """Return the resource that a call reads: one template has many."""
    return call.name if tool.spec.kind == "resource" else ""


def printable(text: str, most: int = _MAX_CHARACTERS, *, markup: AbstractSet[str] = _MARKUP) -> str:
    """Return a text in which nothing can hide: characters that show nothing, and those of markup, are escaped."""
    text = text if len(text) <= most else f"{text[:most]}…"
    if text.isascii() and text.isprintable() and markup.isdisjoint(text):
        return text
    shown: list[str] = []
    marks = 0
    for char in text:
        marks = marks + 1 if unicodedata.combining(char) or unicodedata.category(char) in {"Mn", "Me"} else 0
        hides = not char.isprintable() or char in markup or char in _BLANKS or marks > _MARKS
        shown.append(_escaped(char) if hides or _is_selector(char) else char)
    return "".join(shown)


def _is_selector(char: str) -> bool:
    """Return whether a mark is never seen by itself: a joiner or a variation selector."""
    return (
        "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef" or char in "\u034f\u180b\u180c\u180d\u180f"
    )


def _escaped(char: str) -> str:
    """Return the escape of a character as JSON writes it."""
    units = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def _masked(tool: Tool, views: Views, key: bytes) -> Views:
    """Return arguments with the secrets masked that are configured or that the tool's schema marks."""
    schema = tool.spec.input_schema if tool.marks_secrets else {}
    text, known = encode(schema), configured_secrets()
    if not known and b'"writeOnly":true' not in text and b'"password"' not in text:
        return views
    masks = _Masks(key, known)
    return [masks.without_marked(view) for view in [masks.masked(schema, view) for view in views]]


class _Masks:
    """Masks the secrets of one card, and remembers the marked ones, which other views have in other places."""

    def __init__(self, key: bytes, known: Iterable[str]) -> None:
        self._key = key
        self._known = sorted(known, key=len, reverse=True)
        self._marked: dict[str, str] = {}

    def masked(self, root: Schema, view: Any) -> Any:
        """Return arguments with the secrets masked that are configured or that the schema marks."""
        return self._masked(root, root, view)

    def without_marked(self, view: Any) -> Any:
        """Return arguments without the texts that were marked in another place."""
        if isinstance(view, dict):
            return {name: self.without_marked(inner) for name, inner in cast("dict[str, Any]", view).items()}
        if isinstance(view, list):
            return [self.without_marked(item) for item in cast("list[Any]", view)]
        return self._marked.get(view, view) if isinstance(view, str) else view

    def _masked(self, root: Schema, schema: Any, value: Any) -> Any:
        nodes = list(_nodes(root, schema))
        if value is not None and any(map(_is_marked, nodes)):
            text = value if isinstance(value, str) else encode(value).decode()
            return self._marked.setdefault(text, self._mask(text))
        if isinstance(value, dict):
            members = cast("dict[str, Any]", value)
            return {
                self._text(name): self._masked(root, _member(nodes, name), inner) for name, inner in members.items()
            }
        if isinstance(value, list):
            inner = {"anyOf": [node["items"] for node in nodes if "items" in node]}
            return [self._masked(root, inner, item) for item in cast("list[Any]", value)]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        for secret in self._known:
            if secret in text:
                text = text.replace(secret, self._mask(secret))
        return text

    def _mask(self, secret: str) -> str:
        short = blake2b(secret.encode("utf-8", "surrogatepass"), key=self._key, digest_size=3).hexdigest()
        return f"*** ({len(secret)} characters, {short})"


def _is_marked(node: Mapping[str, Any]) -> bool:
    """Return whether a schema says that its values are secrets."""
    return node.get("writeOnly") is True or node.get("format") == "password"


def _nodes(root: Schema, schema: Any, depth: int = 0) -> Iterable[Mapping[str, Any]]:
    """Yield a schema and the branches of it, with references followed."""
    node = resolve(root, schema)
    if not isinstance(node, dict) or depth > _BRANCHES:
        return
    if isinstance(schema, dict):
        yield cast("dict[str, Any]", schema)  # what stands beside a reference counts, too
    yield cast("dict[str, Any]", node)
    for keyword in ("allOf", "anyOf", "oneOf"):
        for branch in cast("dict[str, Any]", node).get(keyword, ()):
            yield from _nodes(root, branch, depth + 1)


def _member(nodes: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return what the schemas of an object say of one member."""
    found = [node["properties"][name] for node in nodes if name in node.get("properties", {})]
    others = [node["additionalProperties"] for node in nodes if isinstance(node.get("additionalProperties"), dict)]
    return {"anyOf": found or others}
