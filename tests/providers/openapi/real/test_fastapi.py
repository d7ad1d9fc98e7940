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
# A text, because it runs in an environment of its own, whose packages ours does not have.
APP = """
import socket
import sys
from typing import Annotated

import uvicorn
from fastapi import Cookie, FastAPI, File, Form, Header, HTTPException, Query, UploadFile
from pydantic import BaseModel, Field

app = FastAPI(title="Shop", version="1")


class Item(BaseModel):
    name: str = Field(pattern="^[a-z]+$")
    price: float = Field(gt=0)
    tags: list[str] = []


@app.get("/items/{item_id}")
def read_item(
    item_id: int,
    tag: Annotated[list[str] | None, Query()] = None,
    session: Annotated[str | None, Cookie()] = None,
    x_trace: Annotated[str | None, Header()] = None,
) -> dict[str, object]:
    if item_id == 404:
        raise HTTPException(404, "No such item.")
    return {"id": item_id, "tag": tag, "session": session, "trace": x_trace}


@app.post("/items", status_code=201)
def create_item(item: Item) -> Item:
    return item


@app.post("/login")
def log_in(user: Annotated[str, Form()], password: Annotated[str, Form()]) -> dict[str, str]:
    return {"user": user, "length": str(len(password))}


@app.post("/upload")
async def upload(
    files: Annotated[list[UploadFile], File()],
    note: Annotated[str, Form()],
    small: Annotated[bytes | None, File()] = None,
) -> dict[str, object]:
    contents = [(await one.read()).decode() for one in files]
    return {"files": [one.filename for one in files], "contents": contents, "note": note, "small": len(small or b"")}


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sys.stdout.write(f"{listener.getsockname()[1]}\\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Generator[str]:
    """Run the app, and yield its address."""
    python = python_with(HERE / "fastapi.txt", what="FastAPI app")
    app = tmp_path_factory.mktemp("fastapi") / "app.py"
    app.write_text(APP)
    process = subprocess.Popen([python, app], stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own app
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
