"""A yard behind a yard: one envelope, and handles and jobs that lead to the inner yard."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from fronts import NEW, OLD, in_front, opened, refusal

from callyard import Caller, Yard
from callyard.metatools.provider import Metatools
from callyard.providers.upstream.inner_yard import envelope_in
from callyard.providers.upstream.settings import UpstreamSettings

INNER = UpstreamSettings(command=sys.executable, args=(str(Path(__file__).parent / "yard_server.py"),))
EVE = Caller(identity="eve")


def of_yard(data: Any, **changes: Any) -> dict[str, Any]:
    meta = {"call_id": "c_1", "elapsed_ms": 1, "estimated_tokens": 1}
    return {"success": True, "data": data, "error": None, "_meta": meta, **changes}


def test_only_the_successful_envelope_of_a_yard_is_one() -> None:
    found = envelope_in(of_yard({"a": 1}))

    assert found is not None
    assert found.data == {"a": 1}
    others: list[Any] = [
        None,
        [],
        {"success": True, "data": 1},
        {**of_yard(1), "more": 1},
        of_yard(1, _meta={"call_id": "c_1"}),
        of_yard(1, _meta={"call_id": "other", "elapsed_ms": 1, "estimated_tokens": 1}),
        of_yard(1, success=False),
    ]
    assert [envelope_in(other) for other in others] == [None] * len(others)


async def with_metatools(yard: Yard) -> None:
    await yard.providers.add(Metatools(yard, ["read_result", "get_job", "wait_job", "cancel_job"]), gives_way=True)


async def test_answers_handles_and_jobs_of_an_inner_yard_work_here(tmp_path: Path) -> None:
    async with opened(tmp_path, up=INNER) as (yard, _):
        await with_metatools(yard)
        plain = await yard.call("up__small")
        failed = await yard.call("up__fails")
        stored: Any = (await yard.call("up__big")).data
        part: Any = (await yard.call("read_result", {"handle": stored["handle"], "offset": 5, "limit": 3})).data
        stranger = refusal(await yard.call("read_result", {"handle": stored["handle"]}, caller=EVE))
        passed_on = refusal(await yard.call("up__small", {"x": {"$ref": stored["handle"]}}))
        job: Any = (await yard.call("up__slow")).data
        ended: Any = (await yard.call("wait_job", {"job_id": job["job_id"]})).data
        looked: Any = (await yard.call("get_job", {"job_id": job["job_id"]})).data
        cancelled: Any = (await yard.call("cancel_job", {"job_id": job["job_id"]})).data
        guessed = refusal(await yard.call("wait_job", {"job_id": job["job_id"]}, caller=EVE))
        made_up = refusal(await yard.call("wait_job", {"job_id": "up:j_1"}))
        await yard.providers.remove("up")
        gone = refusal(await yard.call("get_job", {"job_id": job["job_id"]}))

    assert plain.data == {"a": 1}
    assert (refusal(failed).code, failed.data) == ("not_found", {"left": 1})
    assert stored["handle"] in stored["use"]
    assert (part["value"], part["handle"]) == ([5, 6, 7], stored["handle"])
    assert (stranger.code, passed_on.code) == ("not_found", "not_supported")
    assert job["job_id"].startswith("up:j_")
    assert job["job_id"] in job["what_to_do"]
    assert {ended["result"]["data"], looked["result"]["data"], cancelled["status"]} == {"done", "completed"}
    assert (guessed.code, made_up.code, gone.code) == ("not_found", "not_found", "not_found")


@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_a_client_gets_one_envelope_whose_handle_is_ours(tmp_path: Path, mode: str) -> None:
    async with opened(tmp_path, up=INNER) as (yard, _):
        await with_metatools(yard)
        async with in_front(yard, mode) as client:
            small: Any = await client.call_tool("up__small", {})
            big: Any = await client.call_tool("up__big", {})
            handle = big.structured_content["data"]["handle"]
            part: Any = await client.call_tool("read_result", {"handle": handle, "limit": 2})

    assert small.structured_content["data"] == {"a": 1}
    assert json.loads(big.content[0].text) == big.structured_content
    assert part.structured_content["data"]["value"] == [0, 1]
