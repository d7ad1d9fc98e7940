"""The server that misbehaves does so as it is told, or tests that use it prove nothing."""

from pathlib import Path

import pytest
from wired import Wired, until


@pytest.mark.parametrize(("era", "greeted"), [("both", [True, True]), ("2025", [True, False]), ("2026", [False, True])])
async def test_it_speaks_the_configured_eras(tmp_path: Path, era: str, greeted: list[bool]) -> None:
    async with Wired(tmp_path, "well", era) as wired:
        answers = [await wired.ask("initialize"), await wired.ask("server/discover")]

    assert ["result" in answer for answer in answers] == greeted


async def test_it_changes_its_tools_and_says_so_in_both_eras(tmp_path: Path) -> None:
    async with Wired(tmp_path, "changes_tools") as wired:
        await wired.call("echo", text="")
        assert (
            wired.listener.messages[0]
            == b'{"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {}}'
        )
        listened = wired.send("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        await wired.call("echo", text="")
        received = [message for message in wired.listener.messages if b'subscriptionId": %d' % listened in message]
        assert [b"acknowledged" in message for message in received] == [True, False]
        names = [tool["name"] for tool in (await wired.ask("tools/list"))["result"]["tools"]]

    assert names[-2:] == ["new_1", "new_2"]


async def test_some_of_its_schemas_are_bad(tmp_path: Path) -> None:
    async with Wired(tmp_path, "bad_schema") as wired:
        tools = (await wired.ask("tools/list"))["result"]["tools"]

    assert [tool["name"] for tool in tools][:6] == [
        "echo",
        "bad_type",
        "no_schema",
        "bad_pattern",
        "not_an_object",
        "note",
    ]


@pytest.mark.parametrize("mode", ["hangs_midcall", "garbage_midcall"])
async def test_it_completes_the_handshake_and_answers_no_call(tmp_path: Path, mode: str) -> None:
    async with Wired(tmp_path, mode) as wired:
        await wired.ask("initialize")
        wired.send("tools/call", {"name": "echo"})
        if mode == "hangs_midcall":
            await wired.ask("ping")
        else:
            await until(lambda: "not json at all" in wired.logged)

    assert 2 not in wired.answers


async def test_a_mode_that_fails_says_so(tmp_path: Path) -> None:
    async with Wired(tmp_path, "slow_start", "both", "0.05") as wired:
        answer = await wired.ask("tools/call", {"name": "fail"})
        wired.send("tools/call", {"name": "hang"})
        wired.send("no/such/method")
        await until(lambda: 3 in wired.answers)

    assert answer["result"] == {"content": [{"type": "text", "text": "It did not work."}], "isError": True}
    assert wired.answers[3]["error"]["code"] == -32601
    assert 2 not in wired.answers


async def test_an_unknown_mode_is_refused(tmp_path: Path) -> None:
    async with Wired(tmp_path, "politely") as wired:
        assert (await wired.end()).private == "There is no mode 'politely'."
