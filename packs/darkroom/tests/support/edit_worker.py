"""A process that makes random edits of one image through a yard, and prints each one that was answered."""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

from darkroom_yards import Answer, open_yard


async def _edit(call: Any, chance: random.Random) -> tuple[str, Answer]:
    name = f"n{chance.getrandbits(60):x}"
    kind = chance.choices(["apply", "checkout", "branch", "reset", "tag", "detach"], [60, 10, 8, 10, 6, 6])[0]
    state = await call("get_state", image="a.tif")
    branches: list[str] = list(state.data["branches"])
    if kind == "checkout" or state.data["branch"] is None:
        return "checkout", await call("checkout", image="a.tif", ref=chance.choice(branches))
    if kind == "branch":
        return kind, await call("branch", image="a.tif", name=name)
    if kind == "reset":
        return kind, await call("reset", image="a.tif")
    if kind == "tag":
        return kind, await call("tag", image="a.tif", name=name)
    if kind == "detach":
        return kind, await call("checkout", image="a.tif", ref=state.data["state_after"]["head_hash"])
    values = {"amount": round(chance.uniform(-1, 1), 6)}
    return kind, await call("apply_primitive", image="a.tif", primitive="warmth", values=values)


async def main(photographs: str, state: str, seed: str) -> None:
    chance = random.Random(seed)  # noqa: S311 - no secret
    async with open_yard(Path(photographs), Path(state)) as call:
        while True:
            kind, answer = await _edit(call, chance)
            if not answer.code:
                print(json.dumps({"kind": kind, **answer.data}), flush=True)  # noqa: T201 - the test reads it
            elif answer.reason not in {"detached_head", "ref_exists"} and answer.code != "too_large":
                print(json.dumps({"kind": "failed", "code": answer.code, "reason": answer.reason}), flush=True)  # noqa: T201 - the same


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
