"""What a client needs to follow a job: the metatools in its list, and the first answer."""

import ast
from typing import Any

from table_tests import every_row

from callyard import Profile, Surface, Yard, tool
from callyard.model.profile import EVERYTHING, Toolset

DIRECT, META = Profile(name="direct", surface=Surface.DIRECT), Profile(name="meta", surface=Surface.META)
FEW = Profile(name="few", toolsets=(Toolset(name="few", names=("add", "rebuild"), deny=("*_job",)),))


@tool(operation="command", job="always")
async def rebuild() -> str:
    """Build the index anew."""
    return "rebuilt"


@tool(operation="command", job="optional")
async def add() -> int:
    """Add two numbers."""
    return 2


def followed(answer: Any) -> tuple[str, dict[str, Any]]:
    """Return the call that the first answer of a job tells its client to make."""
    text = answer.data["what_to_do"]
    call = ast.parse(text[text.index("Call ") + 5 : text.index(")") + 1], mode="eval").body
    assert isinstance(call, ast.Call)
    assert isinstance(call.func, ast.Name)
    return call.func.id, {str(one.arg): ast.literal_eval(one.value) for one in call.keywords}


FOLLOWING = ("get_job", "wait_job")


@every_row("profile, listed", [(EVERYTHING, FOLLOWING), (DIRECT, FOLLOWING), (FEW, ())])
async def test_the_metatools_that_follow_jobs_are_listed_where_a_tool_is_always_one(
    profile: Profile, listed: tuple[str, ...]
) -> None:
    async with Yard(tools=[rebuild, add]) as yard:
        names = {spec.name for spec in yard.list(profile)}

    assert names == {"add", "rebuild", *listed}


async def test_a_short_list_has_them_too_and_a_list_without_such_a_tool_has_none() -> None:
    async with Yard(tools=[rebuild]) as yard, Yard(tools=[add]) as other:
        short = {spec.name for spec in yard.list(META)}
        without = {spec.name for spec in (*other.list(META), *other.list(DIRECT))}

    assert short >= {*FOLLOWING, "run_tool"}
    assert without.isdisjoint(FOLLOWING)


@every_row("profile, metatool", [(EVERYTHING, "wait_job"), (META, "run_tool")])
async def test_the_first_answer_names_the_call_that_waits_for_the_result(profile: Profile, metatool: str) -> None:
    tools = [rebuild, add] if profile is EVERYTHING else [add]
    async with Yard(tools=tools, profile=profile) as yard:
        args: dict[str, Any] = {"tool_id": "add", "background": True}
        first = await (yard.call("rebuild") if profile is EVERYTHING else yard.call("run_tool", args))
        name, arguments = followed(first)
        job = (await yard.call(name, arguments)).data

    assert name == metatool
    assert (job["status"], job["result"]["success"]) == ("completed", True)


async def test_the_first_answer_names_no_tool_that_is_not_there() -> None:
    async with Yard(tools=[rebuild], metatools=False) as yard:
        answer = await yard.call("rebuild")

    assert answer.data.keys() == {"status", "job_id", "poll_after_ms"}
