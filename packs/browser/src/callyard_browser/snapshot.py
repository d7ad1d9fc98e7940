"""Snapshots of pages as data: Playwright's text parsed into nodes, written compactly, cut and compared.

Pure functions: nothing here knows a browser.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct, field

__all__ = ["Line", "Node", "Snapshot", "changes_between", "cut", "parse"]

_ACTIONABLE: Final = frozenset(
    {
        *("button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox"),
        *("menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox"),
        "treeitem",
    }
)
"""Roles of what can be acted on."""
_WRAPPERS: Final = frozenset({"generic", "rowgroup", "none", "presentation"})
_INLINE: Final = frozenset({"row", "listitem"})
_SHOWN_STATES: Final = ("checked", "disabled", "expanded", "pressed", "selected", "invalid", "level")
_KEY: Final = re.compile(r'([a-zA-Z]+)( "(?:[^"\\]|\\.)*")?((?: \[[^\]]*\])*)')
_ATTRIBUTE: Final = re.compile(r"\[([^\]=]+)(?:=([^\]]*))?\]")
_MOST_INLINE: Final = 10
_LONGEST_TEXT: Final = 300
_LONGEST_ROW: Final = 500
_REF: Final = re.compile(r" \[\w+\]")


class Node(Struct):
    """One element of a page, or one text in it."""

    depth: int
    role: str
    name: str = ""
    states: dict[str, str] = field(default_factory=dict[str, str])
    ref: str = ""
    text: str = ""
    url: str = ""
    row: str = ""
    """The text of the row or item of a list that it is in."""
    end: int = 0
    """The number of the first node after this one that is not inside it."""

    @property
    def can_act(self) -> bool:
        """Return whether it is something to act on."""
        return bool(self.ref) and (self.role in _ACTIONABLE or "cursor" in self.states)

    @property
    def label(self) -> str:
        """Return the name, or the text of what has none."""
        return self.name or self.text

    def described(self) -> str:
        """Return role, name, states, ref and text in one line."""
        parts = [self.role]
        if self.name:
            parts.append(json.dumps(_shortened(self.name), ensure_ascii=False))
        for state in _SHOWN_STATES:
            if state in self.states:
                value = self.states[state]
                parts.append(f"{state}={value}" if value else state)
        if self.can_act:
            parts.append(f"[{self.ref}]")
        head = " ".join(parts)
        return f"{head}: {_shortened(self.text)}" if self.text else head


class Line(Struct, frozen=True):
    """One line of a compact snapshot."""

    key: str
    """The ref of the element that it is about, or the text."""
    depth: int
    text: str


class Snapshot:
    """A whole page at one moment."""

    def __init__(self, nodes: Sequence[Node], *, id: str = "", url: str = "") -> None:  # noqa: A002 - its id
        self.id = id
        self.url = url
        self.nodes = nodes
        self.by_ref = {node.ref: node for node in nodes if node.ref}
        self._lines: list[Line] | None = None

    @property
    def lines(self) -> list[Line]:
        """Return the compact lines of the whole."""
        if self._lines is None:
            self._lines = list(_lines(self.nodes, 0, len(self.nodes), 0))
        return self._lines

    def lines_of(self, ref: str) -> list[Line]:
        """Return the compact lines of one element and what is inside it."""
        start = next(number for number, node in enumerate(self.nodes) if node.ref == ref)
        return list(_lines(self.nodes, start, self.nodes[start].end, 0))

    def alike(self, role: str, label: str) -> list[Node]:
        """Return the elements with a role and a name."""
        return [node for node in self.nodes if node.ref and node.role == role and node.label == label]

    def similar(self, role: str, label: str, limit: int = 3) -> list[str]:
        """Return lines of elements that resemble one that is gone."""
        words = set(label.lower().split())

        def score(node: Node) -> int:
            return 2 * (node.role == role) + len(words & set(node.label.lower().split()))

        scored = [(score(node), -number) for number, node in enumerate(self.nodes) if node.can_act]
        best = sorted(scored, reverse=True)[:limit]
        return [self.nodes[-number].described() for points, number in best if points]


def parse(text: str) -> list[Node]:
    """Return the nodes of an aria snapshot of Playwright."""
    nodes: list[Node] = []
    open_nodes: list[Node] = []
    for line in text.splitlines():
        content = line.lstrip(" ")
        depth = (len(line) - len(content)) // 2
        if not content.startswith("- "):
            continue
        while open_nodes and open_nodes[-1].depth >= depth:
            open_nodes.pop().end = len(nodes)
        parent = open_nodes[-1] if open_nodes else None
        node = _node(content[2:], depth, parent)
        if node is not None:
            nodes.append(node)
            open_nodes.append(node)
    for node in open_nodes:
        node.end = len(nodes)
    _tell_rows(nodes)
    return nodes


def _tell_rows(nodes: Sequence[Node]) -> None:
    """Give each element in a row or an item of a list the text of that, which tells it from others of its name."""
    rows = [(number, node.end) for number, node in enumerate(nodes) if node.role in _INLINE]
    for start, end in rows:
        inside = nodes[start:end]
        row = " ".join(node.label for node in inside if node.label)[:_LONGEST_ROW]
        for node in inside:
            node.row = row


def _node(content: str, depth: int, parent: Node | None) -> Node | None:
    """Return the node of a line; a property or a plain text becomes part of its parent, where that has none."""
    if content.startswith("/"):
        name, _, value = content.partition(": ")
        if name == "/url" and parent is not None:
            parent.url = _unquoted(value)
        return None
    if content.startswith("text: "):
        return Node(depth, "text", text=_unquoted(content[6:]))
    key, value = _split(content)
    match = _KEY.match(key)
    if match is None:
        return Node(depth, "text", text=_unquoted(content))
    states = {name: value or "" for name, value in _ATTRIBUTE.findall(match[3])}
    name = _unquoted(match[2][1:]) if match[2] else ""
    return Node(depth, match[1], name=name, ref=states.pop("ref", ""), states=states, text=_unquoted(value))


def _split(content: str) -> tuple[str, str]:
    """Return the key and the value of a line of YAML."""
    if content.startswith("'"):
        end = 1
        while end < len(content) and (content[end] != "'" or content[end : end + 2] == "''"):
            end += 2 if content[end] == "'" else 1
        return content[1:end].replace("''", "'"), content[end + 1 :].removeprefix(":").strip()
    match = _KEY.match(content)
    end = match.end() if match is not None else 0
    return content[:end], content[end:].removeprefix(":").strip()


def _unquoted(value: str) -> str:
    if value.startswith('"') and value.endswith('"') and len(value) > 1:
        try:
            return str(json.loads(re.sub(r"\\x([0-9a-f]{2})", r"\\u00\1", value), strict=False))
        except ValueError:
            return value[1:-1]
    if value.startswith("'") and value.endswith("'") and len(value) > 1:
        return value[1:-1].replace("''", "'")
    return value


def _lines(nodes: Sequence[Node], start: int, end: int, depth: int) -> Iterator[Line]:
    number = start
    while number < end:
        node = nodes[number]
        is_wrapper = node.role in _WRAPPERS and not node.can_act and not node.name
        if is_wrapper and not node.text:
            yield from _lines(nodes, number + 1, node.end, depth)
        elif is_wrapper or node.role == "text":
            yield Line(node.ref or node.text, depth, _shortened(node.text))
            yield from _lines(nodes, number + 1, node.end, depth)
        elif node.role in _INLINE and (leaves := _leaves(nodes, number)) is not None:
            joined = " | ".join(leaves)
            yield Line(node.ref, depth, f"{node.described()}: {joined}" if joined else node.described())
        elif node.role == "cell" and not node.text:
            if node.name:
                yield Line(node.ref, depth, _shortened(node.name))
            yield from _lines(nodes, number + 1, node.end, depth)
        else:
            yield Line(node.ref or node.described(), depth, node.described())
            yield from _lines(nodes, number + 1, node.end, depth + 1)
        number = node.end


def _leaves(nodes: Sequence[Node], number: int) -> list[str] | None:
    """Return what is inside a row or an item of a list, if it fits into one line."""
    found: list[str] = []
    for node in nodes[number + 1 : nodes[number].end]:
        if node.role in _INLINE or node.role in {"table", "list", "heading"}:
            return None
        is_plain = not node.can_act and node.role in {"cell", "text", "generic", "gridcell", "paragraph"}
        shown = _shortened(node.label) if is_plain else node.described()
        if shown:
            found.append(shown)
        if len(found) > _MOST_INLINE:
            return None
    return found


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]}…"


def cut(lines: Sequence[str], max_tokens: int) -> tuple[str, int]:
    """Return the first lines that fit into a number of tokens, and how many were left out."""
    room = max_tokens * 4
    for number, line in enumerate(lines):
        room -= len(json.dumps(line, ensure_ascii=False)) - 1
        if room < 0:
            return "\n".join(lines[:number]), len(lines) - number
    return "\n".join(lines), 0


def changes_between(old: Snapshot, new: Snapshot) -> list[str]:
    """Return what changed as lines: `+` is new, `~` has changed, `-` is gone.

    What was rendered anew and reads the same is no change, although its refs are new.
    """
    before = {line.key: line for line in old.lines}
    after = {line.key for line in new.lines}
    gone = [line for line in old.lines if line.key not in after]
    added = [line for line in new.lines if line.key not in before]
    same = Counter(_plain(line) for line in gone) & Counter(_plain(line) for line in added)
    left = Counter(same)
    changed: list[str] = []
    for line in new.lines:
        known = before.get(line.key)
        if known is None:
            if left[_plain(line)] > 0:
                left[_plain(line)] -= 1
            else:
                changed.append(f"+ {line.text}")
        elif known.text != line.text:
            changed.append(f"~ {line.text}")
    for line in gone:
        if same[_plain(line)] > 0:
            same[_plain(line)] -= 1
        else:
            changed.append(f"- {_plain(line)}")
    return changed


def _plain(line: Line) -> str:
    return _REF.sub("", line.text)
