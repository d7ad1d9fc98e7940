"""Calls of GitHub's operations, each request checked against the document by an independent server, Prism.

`CI_OPERATIONS=500` calls that many.
"""

import os
import socket
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from arguments import arguments_for
from documents import GITHUB, folder_of_packages, yard_with
from pinned_packages import NODE

from callyard.model.spec import ToolSpec

OPERATIONS = int(os.environ.get("CI_OPERATIONS", "100"))
REFUSALS = (
    "UNPROCESSABLE_ENTITY",
    "INVALID_CONTENT_TYPE",
    "NO_PATH_MATCHED",
    "METHOD_NOT_ALLOWED",
    "NO_SERVER",
    "UNAUTHORIZED",
)
START_S = 240.0


@contextmanager
def prism(folder: Path) -> Generator[str]:
    """Run Prism with GitHub's document, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = [folder / NODE, folder / "node_modules" / ".bin" / "prism", "mock", "-h", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen([*program, folder / GITHUB], stdout=subprocess.PIPE, text=True)  # noqa: S603 - the packages are pinned
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if "Prism is listening" in line:
                break
        else:
            pytest.fail("Prism ended before it listened.")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=60)


def chosen(specs: list[ToolSpec]) -> list[ToolSpec]:
    """Return as many operations as asked for, spread over all of them."""
    own = [spec for spec in specs if spec.source == "api"]
    return [own[number * len(own) // OPERATIONS] for number in range(OPERATIONS)]


async def test_prism_refuses_no_request_that_fits_the_schema(tmp_path: Path) -> None:
    folder = folder_of_packages()
    refused: list[Any] = []
    with prism(folder) as url:
        async with yard_with(folder / GITHUB, tmp_path, base_url=url) as yard:
            wrong = await yard.call("api__issues_list_for_repo", {"owner": "a", "repo": "b", "per_page": 10})
            for spec in chosen(yard.registry.visible(yard.profile_of(None))):
                arguments = arguments_for(spec.input_schema)
                answer = await yard.call(spec.name, arguments)
                text = answer.to_json().decode()
                is_ours = answer.error is not None and "status" not in answer.error.details
                if is_ours or any(f"errors#{name}" in text for name in REFUSALS):
                    refused.append((spec.name, arguments, text[-900:]))

    assert wrong.success, wrong.error
    assert refused == [], f"{len(refused)} of {OPERATIONS}"
