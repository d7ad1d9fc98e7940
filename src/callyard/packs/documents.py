"""The documents that agents read in-band: the guides, the manifest of a caller, and `llms.txt`."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from callyard.dispatch.registry import Registry
from callyard.model.profile import Profile

__all__ = ["DOCS", "MANIFEST", "Page", "llms_text", "manifest", "page_names", "pages", "read_page", "server_text"]

DOCS: Final = "callyard://docs/{page}"
MANIFEST: Final = "callyard://manifest"
_MOST_LISTED: Final = 100
_INDEX: Final = "index"
"""The page that lists the others."""
_PACKAGE: Final = Path(__file__).parent.parent
_FOLDERS: Final = (_PACKAGE / "guides", _PACKAGE.parent.parent / "docs" / "guides")
"""The guides in an installed package, and in a checkout."""
_LINK: Final = re.compile(r"\]\(([a-z][a-z0-9-]*)\.md(#[^)\s]*)?\)")
_LINKED: Final = re.compile(r"\[([^\]]*)\]\([^)]*\)")
_MARKUP: Final = re.compile(r"[`*]")
_HEAD: Final = """\
# Callyard

> Callyard puts every tool an agent uses behind one dispatcher: an MCP server to run and a Python library to import.
> Every answer is the same envelope, every failure has one code, and destructive calls wait for a person.
"""


class Page(msgspec.Struct, frozen=True):
    """One guide."""

    name: str
    title: str
    summary: str
    """Its first sentence."""
    text: str


@cache
def pages() -> Mapping[str, Page]:
    """Return the guides by name."""
    folder = next((folder for folder in _FOLDERS if folder.is_dir()), None)
    files = [] if folder is None else sorted(folder.glob("*.md"))
    return {file.stem: _page(file.stem, file.read_text(encoding="utf-8")) for file in files}


def _page(name: str, text: str) -> Page:
    head, *paragraphs = re.split(r"\n\s*\n", text.strip())
    prose = next((part for part in paragraphs if re.match(r"[A-Za-z`*\[]", part)), "")
    plain = " ".join(_MARKUP.sub("", _LINKED.sub(r"\1", prose)).split())
    sentence = re.split(r"(?<=[.!?:])\s", plain, maxsplit=1)[0].rstrip(":")
    return Page(name, head.removeprefix("# ").strip(), sentence, text)


def read_page(name: str) -> str | None:
    """Return a guide, with links to others that can be read in the same way; the index of all of them is one, too."""
    if name == _INDEX:
        return server_text()
    page = pages().get(name)
    return None if page is None else _LINK.sub(lambda link: f"]({DOCS.format(page=link[1])}{link[2] or ''})", page.text)


def page_names() -> list[str]:
    """Return the names of the pages that can be read."""
    return [_INDEX, *pages()]


def llms_text(link: Callable[[str], str], *sections: str) -> str:
    """Return `llms.txt`: what Callyard is, these sections, and a line for each guide with its link."""
    lines = [f"- [{page.title}]({link(page.name)}): {page.summary}" for page in pages().values()]
    return "\n".join([_HEAD, *(f"{section}\n" for section in sections), "## Guides\n", *lines, ""])


def server_text() -> str:
    """Return `llms.txt` of a server, which names nothing of its yard: everybody may read it."""
    return llms_text(
        lambda name: DOCS.format(page=name),
        "## This server\n\n"
        "- MCP clients connect to `/mcp`, by Streamable HTTP.\n"
        f"- Where the pack `system` is on, the resource `{MANIFEST}` lists what a caller has, and the guides below are "
        "resources.",
    )


def manifest(name: str, version: str, registry: Registry, profile: Profile) -> dict[str, Any]:
    """Return what exists for callers of a profile: how much of each source, and a line for each tool and resource.

    Where the list of tools would be too long for an agent, it has only those that the profile lists; the others are
    found by search. Of resources and prompts it has the first ones.
    """
    visible, is_meta = registry.visible(profile), registry.uses_meta_surface(profile)
    resources = (*registry.list_resources(profile), *registry.list_templates(profile))
    prompts = registry.list_prompts(profile)
    shown = registry.list(profile) if is_meta else visible
    return {
        "yard": name,
        "version": version,
        "profile": profile.name,
        "surface": "meta" if is_meta else "direct",
        "counts": {"tools": len(visible), "resources": len(resources), "prompts": len(prompts)},
        "sources": dict(Counter(spec.source for spec in visible)),
        "tools": [
            {"name": spec.name, "operation": spec.operation, "source": spec.source, "summary": spec.summary}
            for spec in shown
        ],
        "resources": [{"uri": spec.uri, "name": spec.name, "source": spec.source} for spec in resources[:_MOST_LISTED]],
        "prompts": [{"name": spec.name, "source": spec.source} for spec in prompts[:_MOST_LISTED]],
    }
