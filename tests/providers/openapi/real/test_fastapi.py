"""A FastAPI app as tools: its document is fetched from it, and it checks what it is sent."""

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest
from pinned_packages import python_with

from callyard import Yard
from callyard.providers.openapi.provider import Api
from callyard.providers.openapi.settings import ApiSettings

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def shop() -> Generator[str]:
    """Run the app, and yield its address."""
    python = python_with(HERE / "fastapi.txt", what="FastAPI app")
    process = subprocess.Popen([python, HERE / "fastapi_app.py"], stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own app
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


async def test_a_fastapi_app_accepts_every_kind_of_argument(shop: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("from a file")
    settings = ApiSettings(document=f"{shop}/openapi.json", base_url=shop, files_root=str(tmp_path))
    api = Api("shop", settings, folder=tmp_path / "shop")
    async with Yard(providers=[api]) as yard:
        await api.wait_ready()
        assert api.status().state == "ready", api.status()
        names = sorted(spec.name for spec in yard.registry.visible(yard.profile_of(None)) if spec.source == "shop")
        read_item, create_item, log_in, upload = [
            next(name for name in names if part in name) for part in ("read_item", "create_item", "log_in", "upload")
        ]
        read = await yard.call(read_item, {"item_id": 7, "tag": ["a", "b c"], "session": "s1", "x-trace": "t"})
        made = await yard.call(create_item, {"body": {"name": "pen", "price": 1.5}})
        wrong = await yard.call(create_item, {"body": {"name": "PEN", "price": 1.5}})
        gone = await yard.call(read_item, {"item_id": 404})
        logged_in = await yard.call(log_in, {"body": {"user": "me & you", "password": "päss"}})
        files = [{"path": "a.txt"}, {"text": "from text", "name": "b.txt"}]
        sent = await yard.call(upload, {"body": {"files": files, "note": "n", "small": {"base64": "AAEC"}}})

    assert read.data == {"id": 7, "tag": ["a", "b c"], "session": "s1", "trace": "t"}
    assert made.data == {"name": "pen", "price": 1.5, "tags": []}
    assert wrong.expect_error("invalid_input").may_have_run is False
    assert gone.expect_error("not_found").message.endswith("No such item.")
    assert logged_in.data == {"user": "me & you", "length": "4"}
    assert sent.data == {"files": ["a.txt", "b.txt"], "contents": ["from a file", "from text"], "note": "n", "small": 3}
