"""Two processes that edit one image, and are killed again and again."""

import json
import os
import random
import selectors
import subprocess
import sys
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

from callyard_darkroom.images import Images
from callyard_darkroom.state import decode
from darkroom_yards import draw, open_yard

EDITS = int(os.environ.get("EDITS", "100"))
WORKER = Path(__file__).parent / "support" / "edit_worker.py"
KILL_AFTER = (3, 16)


def _start(photographs: Path, state: Path, seed: int) -> "subprocess.Popen[str]":
    command = [sys.executable, str(WORKER), str(photographs), str(state), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)  # noqa: S603 - our own program


def _answered(photographs: Path, state: Path) -> list[dict[str, Any]]:
    """Return what two processes were answered, each of which is killed after a few answers and started anew."""
    chance = random.Random(28)  # noqa: S311 - no secret
    answers: list[dict[str, Any]] = []
    left: dict[IO[str], int] = {}
    processes: dict[IO[str], subprocess.Popen[str]] = {}
    with selectors.DefaultSelector() as selector:

        def start() -> None:
            process = _start(photographs, state, len(answers) * 2 + len(processes))
            assert process.stdout is not None
            processes[process.stdout], left[process.stdout] = process, chance.randint(*KILL_AFTER)
            selector.register(process.stdout, selectors.EVENT_READ)

        def kill(stream: IO[str]) -> None:
            selector.unregister(stream)
            process = processes.pop(stream)
            process.kill()
            answers.extend(_complete(stream))
            process.wait()
            stream.close()

        try:
            start()
            start()
            while len(answers) < EDITS:
                for key, _ in selector.select():
                    stream: Any = key.fileobj
                    line = stream.readline()
                    assert line, "A worker ended by itself."
                    answers.append(json.loads(line))
                    left[stream] -= 1
                    if left[stream] <= 0:
                        kill(stream)
                        start()
        finally:
            for stream in list(processes):
                kill(stream)
    return answers


def _complete(stream: IO[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.read().splitlines(keepends=True) if line.endswith("\n")]


async def test_every_answered_edit_survives_kills_of_two_processes(tmp_path: Path) -> None:
    photographs, state = tmp_path / "photographs", tmp_path / "state"
    photographs.mkdir()
    draw(photographs / "a.tif", 32, 24)
    async with open_yard(photographs, state) as call:
        await call("ingest", path="a.tif")
    answers = _answered(photographs, state)
    image = Images([photographs]).open("a.tif")
    log = image.versions.log()[::-1]
    logged = {line["hash"] for line in log}
    objects = {f"{path.parent.name}{path.name}": path for path in (image.versions.folder / "objects").glob("*/*")}

    assert len(answers) >= EDITS
    assert [answer for answer in answers if answer["kind"] == "failed"] == []
    for answer in answers:
        digest = answer.get("snapshot_hash") or answer["hash"]
        assert digest in logged
        state_then = decode(image.versions.read(digest))
        assert "state_after" not in answer or answer["state_after"]["entry_count"] == len(state_then.entries)
    assert [name for name, path in objects.items() if sha256(path.read_bytes()).hexdigest() != name] == []
    moves = [line for line in log if line["op"] != "tag"]
    assert [line for before, line in pairwise(moves) if line["parent"] != before["hash"]] == []
    assert image.versions.head().hash in objects
    assert set(image.versions.names("heads").values()) | set(image.versions.names("tags").values()) <= set(objects)
    for name, digest in {**image.versions.names("heads"), **image.versions.names("tags")}.items():
        assert image.versions.resolve(name) == digest
    tags = {answer["tag"]: answer["hash"] for answer in answers if answer["kind"] == "tag"}
    assert tags.items() <= image.versions.names("tags").items()
    async with open_yard(photographs, state) as call:
        await call("checkout", image="a.tif", ref="main")
        last = await call("reset", image="a.tif")
    assert last.data["state_after"]["entry_count"] == 0
    assert image.record.baseline == last.data["snapshot_hash"]
