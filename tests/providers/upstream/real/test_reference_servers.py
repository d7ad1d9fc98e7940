"""The reference servers for files, memory and thinking as upstreams: what agents use them for works through a yard."""

from pathlib import Path
from typing import Any

from fronts import NEW, OLD, in_front, opened, refusal

from callyard.model.spec import Operation


async def test_files_are_written_read_and_refused(tmp_path: Path, reference: Any) -> None:
    folder = tmp_path / "files"
    folder.mkdir()
    path = str(folder / "note.txt")
    async with opened(tmp_path / "state", files=reference("filesystem", str(folder))) as (yard, _):
        operations = {spec.name: spec.operation for spec in yard.list()}
        written = await yard.call("files__write_file", {"path": path, "content": "Water the plants."})
        read = await yard.call("files__read_text_file", {"path": path})
        error = refusal(await yard.call("files__read_text_file", {"path": "/etc/hostname"}))
        async with in_front(yard, NEW) as client:
            plain: Any = await client.call_tool("files__read_text_file", {"path": path})
            refused: Any = await client.call_tool("files__read_text_file", {"path": "/etc/hostname"})

    assert (operations["files__read_text_file"], operations["files__write_file"]) == (
        Operation.QUERY,
        Operation.DESTROY,
    )
    assert (written.success, (folder / "note.txt").read_text()) == (True, "Water the plants.")
    assert (read.data, read.meta.warnings) == ({"content": "Water the plants."}, ())
    assert (error.code, error.blame, error.details["upstream"]) == ("upstream_error", "upstream", "files")
    assert "Access denied" in error.details["text"]
    assert (plain.content[0].text, plain.structured_content) == ("Water the plants.", {"content": "Water the plants."})
    assert (refused.is_error, refused.structured_content["error"]["details"]["text"]) == (True, error.details["text"])


async def test_the_memory_server_outlives_its_process(tmp_path: Path, reference: Any) -> None:
    ada = {"name": "Ada", "entityType": "person", "observations": ["Likes tea."]}
    settings = reference("memory", env={"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")})
    async with opened(tmp_path / "state", memory=settings) as (yard, upstreams):
        made = await yard.call("memory__create_entities", {"entities": [ada]})
        await upstreams["memory"].restart()
        async with in_front(yard, OLD) as client:
            found: Any = await client.call_tool("memory__search_nodes", {"query": "tea"})

    assert made.data == {"entities": [ada]}
    assert found.structured_content == {"entities": [ada], "relations": []}


async def test_the_thinking_server_keeps_its_state_between_calls(tmp_path: Path, reference: Any) -> None:
    thought = {"thought": "Boil water.", "nextThoughtNeeded": True, "totalThoughts": 2}
    async with opened(tmp_path, think=reference("sequential-thinking")) as (yard, _):
        for number in (1, 2):
            answer: Any = await yard.call("think__sequentialthinking", {**thought, "thoughtNumber": number})

            assert answer.data["thoughtHistoryLength"] == number
        assert refusal(await yard.call("think__sequentialthinking", {"thought": "?"})).code == "invalid_input"
