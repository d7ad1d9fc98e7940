"""A FastAPI app with forms, uploads and cookies, on a free port that it prints; it has an environment of its own."""

import socket
import sys
from typing import Annotated

import uvicorn
from fastapi import Cookie, FastAPI, File, Form, Header, HTTPException, Query, UploadFile
from pydantic import BaseModel, Field

app = FastAPI(title="Shop", version="1")


class Item(BaseModel):
    """A thing to sell."""

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
    """Read one item."""
    if item_id == 404:
        raise HTTPException(404, "No such item.")
    return {"id": item_id, "tag": tag, "session": session, "trace": x_trace}


@app.post("/items", status_code=201)
def create_item(item: Item) -> Item:
    """Create an item."""
    return item


@app.post("/login")
def log_in(user: Annotated[str, Form()], password: Annotated[str, Form()]) -> dict[str, str]:
    """Log in with a form."""
    return {"user": user, "length": str(len(password))}


@app.post("/upload")
async def upload(
    files: Annotated[list[UploadFile], File()],
    note: Annotated[str, Form()],
    small: Annotated[bytes | None, File()] = None,
) -> dict[str, object]:
    """Upload files."""
    contents = [(await one.read()).decode() for one in files]
    return {"files": [one.filename for one in files], "contents": contents, "note": note, "small": len(small or b"")}


if __name__ == "__main__":
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])
