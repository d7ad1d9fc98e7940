"""The documents that agents read in-band: the guides, the manifest of a caller, and `llms.txt`."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from table_tests import every_row

from callyard import Caller, Functions, Profile, Tool, Toolset, Yard, tool
from callyard._version import VERSION
from callyard.packs import documents
from callyard.packs.documents import page_names, pages, read_page, server_text

ROOT = Path(__file__).parent.parent.parent
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))


@tool(operation="destroy")
def wipe() -> None:
    """Delete everything."""


@tool(operation="query")
def greet() -> str:
    """Greet somebody."""
    return "Hello."


@every_row("guide", GUIDES, ids=lambda guide: guide.name)
async def test_every_guide_is_a_resource_with_a_title_and_a_summary(guide: Path) -> None:
    page = pages()[guide.stem]
    async with Yard(packs=["system"]) as yard:
        answer = await yard.read(f"callyard://docs/{guide.stem}")

    contents = answer.data["contents"][0]
    assert contents["text"].splitlines()[0] == f"# {page.title}"
    assert contents["mimeType"] == "text/markdown"
    assert page.summary
    assert "](" not in page.summary


async def test_the_index_lists_every_page_and_links_lead_to_pages() -> None:
    async with Yard(packs=["system"]) as yard:
        answer = await yard.read("callyard://docs/index")
        linked = await yard.read("callyard://docs/limits")
        completed = await yard.complete("resource", "callyard://docs/{page}", argument="page", value="met")

    text = answer.data["contents"][0]["text"]
    assert all(f"(callyard://docs/{guide.stem})" in text for guide in GUIDES)
    assert "](callyard://docs/" in linked.data["contents"][0]["text"]
    assert completed == ["metatools"]


async def test_a_page_that_does_not_exist_is_not_found_with_what_was_meant() -> None:
    async with Yard(packs=["system"]) as yard:
        answer = await yard.read("callyard://docs/metatool")

    assert answer.error is not None
    assert (answer.error.code, answer.error.details["similar"]) == ("not_found", ["metatools"])


async def test_the_manifest_is_what_the_caller_has() -> None:
    few = Profile(name="few", toolsets=(Toolset(name="queries", operations=("query",)),))  # pyright: ignore[reportArgumentType] - converted
    async with Yard("shop", tools=[wipe, greet], packs=["system"], profiles=[few], metatools=False) as yard:
        whole = await manifest_of(yard)
        part = await manifest_of(yard, Caller(profile=yard.profile_of("few")))

    assert (whole["yard"], whole["version"], whole["profile"], whole["surface"]) == (
        "shop",
        VERSION,
        "everything",
        "direct",
    )
    assert {"name": "wipe", "operation": "destroy", "source": "shop", "summary": "Delete everything."} in whole["tools"]
    assert "wipe" not in json.dumps(part)
    assert "greet" in json.dumps(part)
    assert "callyard://docs/{page}" in [resource["uri"] for resource in whole["resources"]]


async def test_the_manifest_of_a_large_yard_is_short() -> None:
    def numbered(number: int) -> Tool:
        return Tool.of(msgspec.structs.replace(made.spec, name=f"greet_{number}"), made.handler)

    made = Functions("shop", [greet]).tools()[0]
    async with Yard("shop", tools=[numbered(number) for number in range(500)], packs=["system"]) as yard:
        found = await manifest_of(yard)

    assert found["surface"] == "meta"
    assert found["sources"]["shop"] == 500
    assert found["counts"]["tools"] >= 500
    assert len(found["tools"]) < 20


async def manifest_of(yard: Yard, caller: Caller | None = None) -> dict[str, Any]:
    """Return the manifest that a caller reads."""
    answer = await yard.read("callyard://manifest", caller=caller)
    return json.loads(answer.data["contents"][0]["text"])


async def test_a_yard_without_the_pack_has_no_documents() -> None:
    async with Yard(tools=[greet]) as yard:
        answer = await yard.read("callyard://docs/index")

    assert not answer.success


def test_an_installation_without_guides_has_an_empty_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(documents, "_FOLDERS", (tmp_path / "nothing",))
    pages.cache_clear()
    try:
        assert page_names() == ["index"]
        assert read_page("metatools") is None
        assert "## Guides" in server_text()
    finally:
        pages.cache_clear()


def test_the_text_for_models_in_the_repository_leads_to_files_that_exist() -> None:
    text = (ROOT / "llms.txt").read_text()
    links = [part.partition(")")[0] for part in text.split("](")[1:]]

    assert len(links) > len(GUIDES)
    assert [link for link in links if not (ROOT / link).is_file()] == []


def test_the_description_for_the_registry_is_of_this_version_and_the_readme_names_it() -> None:
    description = json.loads((ROOT / "server.json").read_text())
    [package] = description["packages"]

    assert (description["version"], package["version"]) == (VERSION, VERSION)
    assert (package["identifier"], package["transport"]) == ("callyard", {"type": "stdio"})
    assert len(description["description"]) <= 100
    assert f"mcp-name: {description['name']}" in (ROOT / "README.md").read_text()
