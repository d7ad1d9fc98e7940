"""Tools without hints: their calls wait for a person until one says what they do, and nobody else can say it."""

import json
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from scripted import HANDSHAKE, ScriptedLink, until
from table_tests import every_row

from callyard import Envelope, Limits, Yard
from callyard.model.errors import ToolError
from callyard.model.profile import EVERYTHING
from callyard.policy.settings import Rule
from callyard.providers.upstream.catalogue import folder_of, load
from callyard.providers.upstream.diff import compare
from callyard.providers.upstream.pins import Key, LockError, Pins, accept, definitions_of, parse_lock, settle
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.settings import Reshape, UpstreamSettings
from callyard.providers.upstream.unsettled import in_words, propose

LIMITS = Limits(approval_hold_s=0.001)
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}}


def listed(name: str, description: str = "Do it.", **hints: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "description": description, "inputSchema": SCHEMA}
    return {**found, "annotations": hints} if hints else found


class Silent:
    """An upstream whose tools a test may change, and the calls that reached it."""

    def __init__(self, folder: Path, *tools: dict[str, Any], name: str = "gh", **settings: Any) -> None:
        self.tools = list(tools) or [listed("touch")]
        self.ran: list[str] = []
        self.folder = folder
        self.lock = folder / "callyard.lock"
        self.pins = Pins(self.lock, state=folder)
        self.settings = UpstreamSettings(command=name, **settings)
        script: dict[str, Any] = {**HANDSHAKE, "tools/list": self._list, "tools/call": self._call}
        self.upstream = Upstream(
            name,
            self.settings,
            link=lambda: ScriptedLink(script),
            folder=folder_of(folder, name),
            pins=self.pins,
            interval=0.001,
        )

    def _list(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"tools": self.tools}

    def _call(self, params: dict[str, Any]) -> dict[str, Any]:
        self.ran.append(params["name"])
        return {"content": [{"type": "text", "text": "done"}]}

    async def change(self, *tools: dict[str, Any]) -> None:
        """Have the upstream list other tools, and read them."""
        self.tools = list(tools)
        await self.upstream.supervisor.refresh()

    async def settle(self, **operations: Any) -> None:
        """Settle tools as a person does who looks at them now."""
        seen = {tool.name: tool.hash for tool in self.upstream.unsettled()}
        await self.upstream.settle(operations, seen=seen, by="user:test")


@asynccontextmanager
async def yard_of(*silents: Silent, served: bool = True, **options: Any) -> AsyncGenerator[Yard]:
    yard = Yard(providers=[silent.upstream for silent in silents], limits=LIMITS, **options)
    if served:
        yard.ask_before_destroy()
    async with yard:
        for silent in silents:
            await silent.upstream.wait_ready()
        yield yard


def waits(answer: Envelope) -> bool:
    data: Any = answer.data
    return isinstance(data, dict) and cast("dict[str, Any]", data).get("status") == "approval_required"


def hints_of(yard: Yard, name: str) -> tuple[bool, bool]:
    tool = yard.registry.get(name)
    assert tool is not None
    hints = tool.spec.hints()
    return hints.read_only_hint, hints.destructive_hint


NO_HINTS: list[dict[str, Any]] = [
    {},
    {"title": "Touch"},
    {"idempotentHint": True, "openWorldHint": False},
    {"readOnlyHint": None, "destructiveHint": None},
    {"readOnlyHint": "true"},
    {"destructiveHint": 0},
]


@every_row("hints", NO_HINTS)
async def test_a_tool_without_hints_waits_for_a_person_in_a_served_yard_and_is_published_as_destructive(
    hints: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = Silent(tmp_path_factory.mktemp("silent"), listed("touch", **hints))
    async with yard_of(silent) as yard:
        answer = await yard.call("gh__touch")
        hints = hints_of(yard, "gh__touch")
        tool = yard.registry.get("gh__touch")

    assert waits(answer)
    assert hints == (False, True)
    assert tool is not None
    assert (tool.spec.operation, tool.spec.operation_assumed) == ("command", True)
    assert silent.ran == []


@every_row("hints, operation", [({"readOnlyHint": True}, "query"), ({"destructiveHint": False}, "command")])
async def test_a_tool_with_a_hint_is_what_its_upstream_says(
    hints: Any, operation: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = Silent(tmp_path_factory.mktemp("silent"), listed("touch", **hints))
    async with yard_of(silent) as yard:
        answer = await yard.call("gh__touch")
        tool = yard.registry.get("gh__touch")

    assert answer.success
    assert silent.ran == ["touch"]
    assert tool is not None
    assert (tool.spec.operation, tool.spec.operation_assumed) == (operation, False)
    assert silent.upstream.unsettled() == []


@every_row(
    "served, setting, asks",
    [
        (True, None, True),
        (True, "ask", True),
        (True, "allow", False),
        (False, None, False),
        (False, "ask", True),
        (False, "allow", False),
    ],
)
async def test_the_setting_decides_and_its_default_asks_where_the_yard_is_served(
    served: bool,  # noqa: FBT001 - a column of the table
    setting: Any,
    asks: bool,  # noqa: FBT001 - a column of the table
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    silent = Silent(tmp_path_factory.mktemp("silent"), unannotated=setting)
    async with yard_of(silent, served=served) as yard:
        answer = await yard.call("gh__touch")
        hints = hints_of(yard, "gh__touch")

    assert waits(answer) is asks
    assert silent.ran == ([] if asks else ["touch"])
    assert hints == (False, True)


async def test_an_upstream_that_is_added_to_an_open_yard_asks_from_its_first_call_on(tmp_path: Path) -> None:
    silent = Silent(tmp_path, unannotated="ask")
    async with Yard(limits=LIMITS) as yard:
        assert yard.gate is None
        await yard.providers.add(silent.upstream)
        await silent.upstream.wait_ready()
        answer = await yard.call("gh__touch")

    assert waits(answer)
    assert silent.ran == []


@every_row("operation, hints", [("query", (True, False)), ("command", (False, False)), ("destroy", (False, True))])
async def test_an_operation_that_a_person_settled_decides_and_is_published(
    operation: str, hints: tuple[bool, bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    silent = Silent(tmp_path_factory.mktemp("silent"))
    async with yard_of(silent) as yard:
        await silent.settle(touch=operation)
        answer = await yard.call("gh__touch")
        published, tool = hints_of(yard, "gh__touch"), yard.registry.get("gh__touch")

    assert published == hints
    assert tool is not None
    assert (tool.spec.operation, tool.spec.unsettled, tool.spec.operation_assumed) == (operation, None, False)
    assert waits(answer) is (operation == "destroy")
    assert silent.ran == ([] if operation == "destroy" else ["touch"])


async def test_a_settled_operation_is_in_the_lock_and_holds_after_a_restart(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)):
        await silent.settle(touch="command")
    pin = parse_lock(silent.lock, silent.lock.read_bytes())["gh"][Key("tool", "touch")]
    async with yard_of(again := Silent(tmp_path)) as yard:
        answer = await yard.call("gh__touch")

    assert pin.operation == "command"
    assert answer.success
    assert again.ran == ["touch"]


async def test_a_changed_definition_is_unsettled_also_when_somebody_accepts_it_and_when_it_comes_back(
    tmp_path: Path,
) -> None:
    async with yard_of(silent := Silent(tmp_path)) as yard:
        await silent.settle(touch="query")
        await silent.change(listed("touch", "Do something else."))
        withheld = await yard.call("gh__touch")
        compared = silent.upstream.compare()
        assert compared is not None
        await silent.upstream.accept([], seen=compared.seen)
        accepted = await yard.call("gh__touch")
        await silent.change(listed("touch"))
        compared = silent.upstream.compare()
        assert compared is not None
        await silent.upstream.accept([], seen=compared.seen)
        back = await yard.call("gh__touch")

    assert withheld.error is not None
    assert withheld.error.code == "tool_not_found"
    assert waits(accepted)
    assert waits(back)
    assert silent.ran == []


async def test_a_definition_that_was_away_for_a_while_and_is_the_same_is_still_settled(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)) as yard:
        await silent.settle(touch="query")
        await silent.change(listed("touch", "Do something else."))
        await silent.change(listed("touch"))
        answer = await yard.call("gh__touch")

    assert answer.success


@every_row("pin", ["warn", "off"])
async def test_a_changed_definition_is_unsettled_where_definitions_are_not_withheld(
    pin: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    async with yard_of(silent := Silent(tmp_path_factory.mktemp("silent"), pin=pin)) as yard:
        await silent.settle(touch="query")
        first = await yard.call("gh__touch")
        await silent.change(listed("touch", "Do something else."))
        second = await yard.call("gh__touch")
        hints = hints_of(yard, "gh__touch")

    assert first.success
    assert waits(second)
    assert hints == (False, True)
    assert silent.ran == ["touch"]


async def test_a_tool_that_hides_behind_a_second_one_of_its_name_is_unsettled(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, pin="warn")) as yard:
        await silent.settle(touch="query")
        await silent.change(listed("touch"), listed("touch", "The other one."))
        answer = await yard.call("gh__touch")

    assert waits(answer)


async def test_a_renamed_tool_is_another_one(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)) as yard:
        await silent.settle(touch="query")
        await silent.change(listed("touches"))
        answer = await yard.call("gh__touches")

    assert waits(answer)


async def test_another_upstream_and_another_project_are_not_settled_by_it(tmp_path: Path) -> None:
    one, other = Silent(tmp_path), Silent(tmp_path, name="other")
    async with yard_of(one, other) as yard:
        await one.settle(touch="query")
        answers = [await yard.call("gh__touch"), await yard.call("other__touch")]
    async with yard_of(elsewhere := Silent(tmp_path / "elsewhere")) as yard:
        answers.append(await yard.call("gh__touch"))

    assert [waits(answer) for answer in answers] == [False, True, True]
    assert other.ran == elsewhere.ran == []


async def test_a_tool_that_the_settings_rename_is_settled_under_the_name_of_its_upstream(tmp_path: Path) -> None:
    silent = Silent(tmp_path, reshape={"touch": Reshape(rename="feel")})
    async with yard_of(silent) as yard:
        before = await yard.call("gh__feel")
        shown = [(tool.name, tool.published) for tool in silent.upstream.unsettled()]
        await silent.settle(touch="query")
        after = await yard.call("gh__feel")

    assert shown == [("touch", "gh__feel")]
    assert waits(before)
    assert after.success


async def test_an_operation_in_the_settings_counts_as_settled_and_comes_before_the_lock(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)):
        await silent.settle(touch="query")
    reshape = {"to*": Reshape(operation="destroy"), "look": Reshape(operation="query")}
    silent = Silent(tmp_path, listed("touch"), listed("look"), reshape=reshape)
    async with yard_of(silent) as yard:
        await silent.upstream.supervisor.refresh()
        answers = [await yard.call("gh__touch"), await yard.call("gh__look")]
        hints = [hints_of(yard, "gh__touch"), hints_of(yard, "gh__look")]

    assert [waits(answer) for answer in answers] == [True, False]
    assert hints == [(False, True), (True, False)]
    assert silent.upstream.unsettled() == []


async def test_a_line_of_the_lock_counts_for_nothing_where_the_upstream_gives_a_hint(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, listed("touch", destructiveHint=True))) as yard:
        pin = parse_lock(silent.lock, silent.lock.read_bytes())["gh"][Key("tool", "touch")]
        text = silent.lock.read_text()
        changed = text.replace(f'"hash": "{pin.hash}"', f'"hash": "{pin.hash}", "operation": "query"')
        silent.lock.write_text(changed)
        await silent.upstream.supervisor.refresh()
        answer = await yard.call("gh__touch")

    assert changed != text
    assert waits(answer)
    assert silent.ran == []


async def test_a_running_yard_uses_what_another_process_settles_and_takes_back(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, pin="off")) as yard:
        catalogue = load(silent.folder / "upstreams" / "gh")
        assert catalogue is not None
        definition = definitions_of(catalogue)[Key("tool", "touch")]
        settle(silent.lock, "gh", [(definition, "query")], unpinned=True)
        await until(lambda: hints_of(yard, "gh__touch") == (True, False))
        settled = await yard.call("gh__touch")
        silent.lock.write_text("")
        await until(lambda: hints_of(yard, "gh__touch") == (False, True))
        taken_back = await yard.call("gh__touch")

    assert settled.success
    assert waits(taken_back)


async def test_a_person_settles_only_the_definitions_that_they_saw(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, pin="off")) as yard:
        seen = {tool.name: tool.hash for tool in silent.upstream.unsettled()}
        await silent.change(listed("touch", "Do something else."))
        with pytest.raises(ToolError) as changed:
            await silent.upstream.settle({"touch": "query"}, seen=seen, by="user:test")
        with pytest.raises(ToolError) as unknown:
            await silent.upstream.settle({"nothing": "query"}, seen={}, by="user:test")
        answer = await yard.call("gh__touch")

    assert {changed.value.details["reason"], unknown.value.details["reason"]} == {"changed_since"}
    assert waits(answer)


async def test_a_definition_that_nobody_accepted_cannot_be_settled(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, pin="warn")):
        await silent.change(listed("touch", "Do something else."))
        catalogue = load(silent.folder / "upstreams" / "gh")
        assert catalogue is not None
        assert silent.upstream.unsettled() == []
        with pytest.raises(LockError):
            settle(silent.lock, "gh", [(definitions_of(catalogue)[Key("tool", "touch")], "query")])


async def test_a_lock_that_cannot_be_read_settles_nothing(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, pin="warn")) as yard:
        await silent.settle(touch="query")
        silent.lock.write_text("<<<<<<< ours\n")
        await until(lambda: hints_of(yard, "gh__touch") == (False, True))
        answer = await yard.call("gh__touch")
        with pytest.raises(ToolError) as refused:
            await silent.upstream.settle({}, seen={}, by="user:test")

    assert waits(answer)
    assert refused.value.details["reason"] == "not_written"


RULES = [
    ("allow", {"operations": ("command",)}, True),
    ("allow", {"operations": ("command", "destroy")}, False),
    ("allow", {"tools": ("gh__*",)}, False),
    ("ask", {"operations": ("destroy",)}, True),
    ("ask", {"operations": ("query",)}, True),
]


@every_row("decision, conditions, asks", RULES)
async def test_a_rule_about_operations_takes_an_unsettled_tool_for_one_that_may_destroy(
    decision: Any,
    conditions: Any,
    asks: bool,  # noqa: FBT001 - a column of the table
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    silent = Silent(tmp_path_factory.mktemp("silent"))
    async with yard_of(silent, rules=[Rule(decision=decision, **conditions)]) as yard:
        answer = await yard.call("gh__touch")

    assert waits(answer) is asks
    assert answer.success


async def test_a_rule_that_denies_what_destroys_denies_an_unsettled_tool_and_one_for_operators_holds(
    tmp_path: Path,
) -> None:
    deny = Rule(decision="deny", operations=("destroy",))  # pyright: ignore[reportArgumentType] - converted
    async with yard_of(silent := Silent(tmp_path), rules=[deny]) as yard:
        denied = await yard.call("gh__touch")
        await silent.settle(touch="command")
        settled = await yard.call("gh__touch")
    ask = Rule(decision="ask", operations=("destroy",), by="operator")  # pyright: ignore[reportArgumentType] - converted
    async with yard_of(Silent(tmp_path / "other"), rules=[ask]) as yard:
        await yard.call("gh__touch")
        assert yard.gate is not None
        pending = await yard.gate.approvals.pending()

    assert denied.error is not None
    assert denied.error.code == "permission_denied"
    assert settled.success
    assert [one.card.by for one in pending] == ["operator"]


async def test_settling_ends_what_was_approved_and_granted_for_the_unsettled_tool(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)) as yard:
        assert yard.gate is not None
        approvals = yard.gate.approvals
        held = await yard.call("gh__touch")
        approval = await approvals.decide(held.data["approval_id"], "approve", by="user:test")
        await approvals.grant(approval, seconds=60, any_arguments=True, by="user:test")
        await silent.settle(touch="destroy")
        answer = await yard.call("gh__touch")

    assert approval.card.unsettled
    assert waits(answer)
    assert silent.ran == []


async def test_a_mounted_yard_asks_once_about_an_unsettled_tool(tmp_path: Path) -> None:
    for number, (setting, served) in enumerate([(None, True), ("ask", False), ("ask", True)]):
        silent = Silent(tmp_path / str(number), unannotated=setting)
        inner = Yard("inner", providers=[silent.upstream], limits=LIMITS)
        outer = Yard("outer", providers=[inner], limits=LIMITS)
        if served:
            outer.ask_before_destroy()
        async with outer:
            await silent.upstream.wait_ready()
            held = await outer.call("gh__touch")
            judge = outer if setting is None else inner
            assert waits(held)
            assert silent.ran == []
            assert judge.gate is not None
            await judge.gate.approvals.decide(held.data["approval_id"], "approve", by="user:test")
            answer = await outer.call("gh__touch")

        assert answer.success, answer
        assert silent.ran == ["touch"]


async def test_nothing_that_a_caller_reaches_settles_a_tool(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, listed("touch"), listed("settle"), listed("settle_tool"))) as yard:
        names = [spec.name for spec in yard.registry.visible(EVERYTHING) if spec.source != "gh"]
        for name in names:
            for arguments in ({}, {"name": "gh__touch", "operation": "query"}, {"tool_id": "gh__settle"}):
                await yard.call(name, arguments)
        for name in ("settle", "gh__settle", "gh__settle_tool", "accept"):
            await yard.call(name, {"tool": "touch", "operation": "query"})
        answer = await yard.call("gh__touch")

    assert waits(answer)
    assert silent.ran == []
    assert '"operation"' not in silent.lock.read_text()


async def test_a_difference_shows_nothing_of_what_is_settled(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path)):
        await silent.settle(touch="query")
        catalogue = load(silent.folder / "upstreams" / "gh")
        assert catalogue is not None
        definitions = definitions_of(catalogue)
        compared = compare("gh", definitions, silent.pins.accepted("gh"), folder=silent.folder)
        accept(silent.lock, "gh", definitions=definitions, keys=[], folder=silent.folder)

    assert compared.differences == []
    assert '"operation": "query"' in silent.lock.read_text()


def test_an_operation_of_the_lock_that_nobody_may_settle_is_refused(tmp_path: Path) -> None:
    line: dict[str, Any] = {
        "upstream": "gh",
        "kind": "tool",
        "name": "touch",
        "hash": "0",
        "fields": {},
        "operation": "eval",
    }
    with pytest.raises(LockError):
        parse_lock(tmp_path / "callyard.lock", json.dumps(line).encode())


def proposals() -> Iterator[tuple[str, str]]:
    yield from (
        (name, "query") for name in ("get_issue", "list-repos", "searchCode", "issue_read", "HTTPGet", "whoami")
    )
    yield from ((name, "destroy") for name in ("delete_repo", "read_and_delete", "repoRemove", "purge", "force_push"))
    yield from ((name, "command") for name in ("create_issue", "get_or_create", "run_query", "frobnicate", "", "42"))


@every_row("name, operation", proposals())
def test_a_name_proposes_an_operation(name: str, operation: str) -> None:
    assert propose(name) == operation


def test_proposals_are_counted_in_words() -> None:
    assert in_words(["query", "destroy", "query"]) == "2 read, 1 destroy"


async def test_the_number_of_unsettled_tools_is_in_the_status(tmp_path: Path) -> None:
    async with yard_of(silent := Silent(tmp_path, listed("touch"), listed("look"))):
        before = silent.upstream.status().unsettled
        await silent.settle(look="query")
        after = replace(silent.upstream.status(), since=0).unsettled

    assert (before, after) == (2, 1)
