"""The notes of a yard: written, read, listed, and no more than configured."""

from pathlib import Path

from callyard_notes import PACK

from callyard import Yard
from callyard.testing import connect


async def test_a_note_is_written_and_read_and_listed(tmp_path: Path) -> None:
    async with connect(Yard(packs=[PACK], state_dir=str(tmp_path))) as client:
        written = await client.call("notes_write", title="milk", text="two bottles")
        read = await client.call("notes_read", title="milk")
        listed = await client.call("notes_list")

    assert (written.data, read.data, listed.data) == (1, "two bottles", ["milk"])


async def test_no_more_notes_are_kept_than_configured(tmp_path: Path) -> None:
    yard = Yard(packs=[PACK], pack_settings={"notes": {"most": 1}}, state_dir=str(tmp_path))
    async with connect(yard) as client:
        await client.call("notes_write", title="one", text="1")
        again = await client.call("notes_write", title="one", text="2")
        second = await client.call("notes_write", title="two", text="2")

    assert again.success
    assert second.error is not None
    assert second.error.details["reason"] == "full"


async def test_a_title_is_no_path_and_a_missing_note_is_not_found(tmp_path: Path) -> None:
    async with connect(Yard(packs=[PACK], state_dir=str(tmp_path))) as client:
        outside = await client.call("notes_read", title="../secret")
        missing = await client.call("notes_read", title="nothing")

    assert outside.error is not None
    assert outside.error.code == "invalid_input"
    assert missing.error is not None
    assert missing.error.code == "not_found"
