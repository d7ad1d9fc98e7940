from typing import Any

from table_tests import every_row
from ticket_tools import ask, failure, made

from callyard import Caller, Limits, Profile, Toolset, Yard
from callyard.dispatch.call import Channel
from callyard.model.envelope import encode
from callyard.testing import FakeClock

KEEP = made("keep", properties={"it": {}})
ITEMS = [{"n": number, "name": f"name {number}"} for number in range(300)]


async def stored(yard: Yard, value: Any) -> str:
    answer = await yard.call("keep", {"it": value})
    assert "read_result" in answer.data["use"]
    return answer.data["handle"]


def small() -> Yard:
    return Yard(tools=[KEEP], limits=Limits(result_characters=1500))


async def test_a_list_is_read_item_by_item() -> None:
    async with small() as yard:
        handle = await stored(yard, ITEMS)
        first = await ask(yard, "read_result", handle=handle, path="/it", limit=2)
        one = await ask(yard, "read_result", handle=handle, path="/it/7/name")
        seen: list[Any] = []
        offset = 0
        while True:
            part = await ask(yard, "read_result", handle=handle, path="/it", offset=offset)
            seen += part["value"]
            if "next_offset" not in part:
                break
            offset = part["next_offset"]

    assert (first["value"], first["total"], first["next_offset"]) == (ITEMS[:2], 300, 2)
    assert (one["type"], one["value"]) == ("string", "name 7")
    assert seen == ITEMS


async def test_an_object_is_read_entry_by_entry_and_a_text_character_by_character() -> None:
    async with small() as yard:
        entries = await stored(yard, {f"key{number}": number for number in range(200)})
        text = await stored(yard, "abc" * 2000)
        part = await ask(yard, "read_result", handle=entries, path="/it", offset=1, limit=2)
        piece = await ask(yard, "read_result", handle=text, path="/it", offset=3, limit=4)
        number = await ask(yard, "read_result", handle=entries, path="/it/key9")

    assert (part["type"], part["value"], part["next_offset"]) == ("object", {"key1": 1, "key2": 2}, 3)
    assert (piece["value"], piece["total"], piece["next_offset"]) == ("abca", 6000, 7)
    assert (number["type"], number["value"]) == ("integer", 9)


async def test_only_what_holds_a_text_is_read() -> None:
    log = "\n".join(f"line {number} {'ERROR' if number % 50 == 0 else 'ok'}" for number in range(200))
    async with small() as yard:
        items, lines = await stored(yard, ITEMS), await stored(yard, log)
        found = await ask(yard, "read_result", handle=items, path="/it", grep="NAME 29")
        errors = await ask(yard, "read_result", handle=lines, path="/it", grep="error", offset=1, limit=2)
        pattern = await ask(yard, "read_result", handle=lines, path="/it", grep="(a+)+$")

    assert [item["n"] for item in found["value"]] == [29, *range(290, 300)]
    assert (errors["value"], errors["matches"], errors["next_offset"]) == (
        ["51: line 50 ERROR", "101: line 100 ERROR"],
        4,
        3,
    )
    assert (pattern["value"], pattern["matches"]) == ([], 0)


async def test_an_item_that_is_too_long_is_shown_as_its_shape() -> None:
    async with small() as yard:
        handle = await stored(yard, [{"text": "x" * 5000}, 2])
        part = await ask(yard, "read_result", handle=handle, path="/it")
        last = await ask(yard, "read_result", handle=handle, path="/it", offset=part["next_offset"])

    assert part["value"] == []
    assert part["too_long"]["shape"]["properties"]["text"] == {"type": "string", "length": 5000}
    assert last["value"] == [2]


@every_row(
    ("arguments", "code"),
    [
        ({}, "invalid_input"),
        ({"handle": "r_999"}, "not_found"),
        ({"handle": "../r_1"}, "not_found"),
        ({"path": "/nope"}, "invalid_input"),
        ({"path": "/" + "n" * 100_000}, "invalid_input"),
        ({"path": "it"}, "invalid_input"),
        ({"offset": -1}, "invalid_input"),
        ({"limit": 0}, "invalid_input"),
        ({"limit": 10**9}, "invalid_input"),
        ({"grep": ""}, "invalid_input"),
        ({"grep": "x" * 201}, "invalid_input"),
    ],
    ids=lambda given: str(given)[:20],
)
async def test_an_impossible_read_is_refused_with_a_hint(arguments: dict[str, Any], code: str) -> None:
    async with small() as yard:
        handle = await stored(yard, ITEMS)
        error = failure(await yard.call("read_result", {"handle": handle, **arguments} if arguments else {}))

    assert (error.code, error.may_have_run) == (code, False)
    assert error.hint
    assert len(encode(error)) < 2000


async def test_a_result_is_there_for_its_owner_alone_and_for_a_while() -> None:
    clock = FakeClock()
    async with Yard(tools=[KEEP], limits=Limits(result_characters=100, stored_seconds=10), clock=clock) as yard:
        handle = await stored(yard, ITEMS)
        foreign = failure(await yard.call("read_result", {"handle": handle}, caller=Caller(identity="eve")))
        scoped = failure(await yard.call("read_result", {"handle": handle}, caller=Caller(scope="another")))
        assert (await yard.call("read_result", {"handle": handle, "path": "/it/0/n"})).success
        clock.advance(11)
        expired = failure(await yard.call("read_result", {"handle": handle}))

    assert (foreign.code, scoped.code, expired.code) == ("not_found", "not_found", "not_found")
    assert expired.hint
    assert foreign.next_actions == scoped.next_actions == expired.next_actions != ()


async def test_a_reference_to_nothing_is_refused_with_what_to_do() -> None:
    async with Yard(tools=[KEEP]) as yard:
        direct = failure(await yard.call("keep", {"it": {"$ref": "r_99"}}))
        wrapped = failure(await yard.call("run_tool", {"tool_id": "keep", "args": {"it": {"$ref": "r_99"}}}))
        chained = failure(
            await yard.call("run_chain", {"steps": [{"tool_id": "keep", "args": {"it": {"$ref": "r_99"}}}]})
        )

    for error in (direct, wrapped, chained):
        assert (error.code, error.may_have_run) == ("invalid_input", False)
        assert error.next_actions


async def test_a_profile_without_the_tool_gets_no_hint_of_it() -> None:
    blind = Caller(profile=Profile(name="blind", toolsets=(Toolset(name="blind", deny=("read_result",)),)))
    async with Yard(tools=[KEEP], limits=Limits(result_characters=100)) as yard:
        answer = await yard.call("keep", {"it": ITEMS}, caller=blind)
        wrong = failure(
            await yard.call("keep", {"it": {"$ref": answer.data["handle"], "path": "/nowhere"}}, caller=blind)
        )

    assert "read_result" not in answer.data["use"]
    assert (wrong.code, wrong.next_actions) == ("invalid_input", ())


async def test_without_the_tool_the_answer_does_not_name_it() -> None:
    async with Yard(tools=[KEEP], limits=Limits(result_characters=100), metatools=False) as yard:
        answer = await yard.call("keep", {"it": ITEMS})

    assert "read_result" not in answer.data["use"]


@every_row("offset", [300, 2**63 - 1, 10**19, 10**30, 1e300])
@every_row(
    "value", [ITEMS, {f"key{number}": number for number in range(300)}, "abc" * 2000], ids=["list", "object", "text"]
)
async def test_there_is_nothing_past_the_end_however_far(value: Any, offset: float) -> None:
    async with small() as yard:
        handle = await stored(yard, value)
        part = await ask(yard, "read_result", handle=handle, path="/it", offset=offset * 20)

    assert not part["value"]
    assert "next_offset" not in part


SIZES = [90, 150, 2000]
CASES: dict[str, Any] = {
    "control characters": "\x01" * 1000,
    "a text of three bytes a letter": "語" * 3000,
    "mixed text": 'plain text \x01\x02\\"\n語' * 300,
    "a list": ITEMS[:90],
    "items that are too long": [{f"k{number}": [number] * 90 for number in range(30)} for _ in range(5)],
    "an object": {f"key{number}": "\x02" * number for number in range(60)},
    "entries that are too long": {"k" * 400: "x" * 3000, "short": 1},
}


@every_row("size", SIZES)
@every_row("case", CASES)
@every_row("grep", [None, "1"])
async def test_a_read_fits_an_answer_and_goes_on_or_says_that_nothing_fits(
    case: str, size: int, grep: str | None
) -> None:
    given: dict[str, Any] = {"path": "/it", "limit": 50_000, **({} if grep is None else {"grep": grep})}
    async with Yard(tools=[KEEP], limits=Limits(result_characters=size)) as yard:
        handle = await stored(yard, CASES[case])
        offset: int | None = 0
        steps = 0
        while offset is not None:
            answer = await yard.call("read_result", {"handle": handle, "offset": offset, **given})
            steps += 1
            if not answer.success:
                assert (failure(answer).code, size < 400) == ("too_large", True)
                return
            assert "status" not in answer.data
            assert len(encode(answer.data).decode()) <= size
            following = answer.data.get("next_offset")
            assert following is None or following > offset
            offset = following

    assert steps < 4000


async def test_every_character_is_read_however_it_is_written() -> None:
    text = CASES["mixed text"]
    async with Yard(tools=[KEEP], limits=Limits(result_characters=300)) as yard:
        handle = await stored(yard, text)
        read, offset = "", 0
        while True:
            part = await ask(yard, "read_result", handle=handle, path="/it", offset=offset, limit=20_000)
            read += part["value"]
            if "next_offset" not in part:
                break
            offset = part["next_offset"]

    assert read == text


async def test_an_entry_that_is_too_long_is_shown_as_its_shape() -> None:
    async with small() as yard:
        handle = await stored(yard, {"long": "x" * 5000, "short": 1})
        part = await ask(yard, "read_result", handle=handle, path="/it")
        last = await ask(yard, "read_result", handle=handle, path="/it", offset=part["next_offset"])

    assert part["too_long"] == {
        "offset": 0,
        "shape": {"type": "object", "properties": {"long": {"type": "string", "length": 5000}}},
    }
    assert last["value"] == {"short": 1}


async def test_where_nothing_fits_the_answer_says_so_and_stores_nothing() -> None:
    async with Yard(tools=[KEEP], limits=Limits(result_characters=1)) as yard:
        handle = await stored(yard, "abc")
        error = failure(await yard.call("read_result", {"handle": handle}))
        following = await stored(yard, "abc")

    assert (error.code, error.details["limit"]) == ("too_large", 1)
    assert (handle, following) == ("r_1", "r_2")


ROWS: list[Any] = [
    {"q": 'say "hi" C:\\dir\nnext \x01', "n": 7},
    {"q": "tab\there", "n": 8},
    'a "quoted" text',
    *range(600),
]


@every_row(
    ("grep", "matches"),
    [
        ('say "hi"', [ROWS[0]]),
        ("C:\\DIR", [ROWS[0]]),
        ("dir\nnext", [ROWS[0]]),
        ("\x01", [ROWS[0]]),
        ('"quoted"', [ROWS[2]]),
        ('"n":8', [ROWS[1]]),
        ("\\n", []),
        ("ttt", []),
    ],
    ids=repr,
)
async def test_a_text_is_found_as_it_is_however_json_writes_it(grep: str, matches: list[Any]) -> None:
    async with small() as yard:
        handle = await stored(yard, ROWS)
        found = await ask(yard, "read_result", handle=handle, path="/it", grep=grep)

    assert (found["value"], found["matches"]) == (matches, len(matches))


@every_row("more", [{"grep": "9"}, {"offset": 1}, {"grep": "9", "offset": 1}], ids=str)
@every_row("path", ["/it/0/n", "/it/3"])
async def test_a_single_value_is_not_searched_or_cut(path: str, more: dict[str, Any]) -> None:
    async with small() as yard:
        handle = await stored(yard, ROWS)
        error = failure(await yard.call("read_result", {"handle": handle, "path": path, **more}))
        whole = await ask(yard, "read_result", handle=handle, path=path, offset=0, limit=5)

    assert (error.code, error.may_have_run, error.details["issues"][0]["field"]) == (
        "invalid_input",
        False,
        next(iter(more)),
    )
    assert error.next_actions == (f"read_result(handle='{handle}', path='{path}')",)
    assert whole["total"] == 1


async def test_a_text_is_searched_line_by_line() -> None:
    async with small() as yard:
        handle = await stored(yard, ROWS)
        error = failure(await yard.call("read_result", {"handle": handle, "path": "/it/0/q", "grep": "dir\nnext"}))
        line = await ask(yard, "read_result", handle=handle, path="/it/0/q", grep="dir")

    assert (error.code, error.details["issues"][0]["field"]) == ("invalid_input", "grep")
    assert line["matches"] == 1


@every_row(
    ("value", "path", "near"),
    [
        (ITEMS, "/items/0", "/0"),
        (ITEMS, "/0/nmae", "/0/name"),
        (ITEMS, "/0/zzz", "/0/n"),
        (ITEMS, "/0/n/deeper", "/0/n"),
        (ITEMS, "0/name", "/0/name"),
        (ITEMS, "/" + "9" * 500, "/0"),
        ({"a/b~c": ["x" * 2000]}, "/a/b~c", "/a~1b~0c"),
        ({"a": {}, "text": "x" * 2000}, "/a/b", "/a"),
        ({"k" * 250: "x" * 2000}, "/k", None),
        ({"k" * 150: {"m" * 150: "x" * 2000}}, f"/{'k' * 150}/{'m' * 150}/deeper", f"/{'k' * 150}"),
        ("x" * 2000, "/0", None),
    ],
    ids=lambda given: str(given)[:20],
)
async def test_a_path_that_leads_nowhere_is_answered_with_one_that_the_result_has(
    value: Any, path: str, near: str | None
) -> None:
    whole = made("whole", properties={"value": {}})

    async def handler(call: Any) -> object:
        return call.arguments["value"]

    tools = [type(whole)(spec=whole.spec, handler=handler, check=whole.check), KEEP]
    async with Yard(tools=tools, limits=Limits(result_characters=1500)) as yard:
        handle = (await yard.call("whole", {"value": value})).data["handle"]
        read = failure(await yard.call("read_result", {"handle": handle, "path": path}))
        passed = failure(await yard.call("keep", {"it": {"$ref": handle, "path": path}}))
        followed = await yard.call("read_result", {"handle": handle, "path": near or ""})

    assert read.hint == passed.hint
    assert f"'{near}'" in read.hint if near else "'/" not in read.hint
    assert followed.success
    assert read.next_actions == passed.next_actions == (f"read_result(handle='{handle}')",)
    assert read.details["shape"] == passed.details["shape"]


async def test_a_wrong_path_sends_nobody_to_a_reader_that_is_not_there() -> None:
    async with Yard(tools=[KEEP], limits=Limits(result_characters=100), metatools=False) as yard:
        await yard.call("keep", {"it": ITEMS})
        error = failure(await yard.call("keep", {"it": {"$ref": "r_1", "path": "/its"}}))

    assert (error.next_actions, "'/it'" in error.hint) == ((), True)


STATED = [400, 1000]


@every_row("stated", STATED)
@every_row("case", CASES)
@every_row("wrapped", [False, True])
async def test_a_client_that_states_a_size_reads_no_more_than_that(case: str, stated: int, *, wrapped: bool) -> None:
    channel = Channel(name="small", result_characters=stated)
    async with Yard(tools=[KEEP]) as yard:
        summary = await yard.call("keep", {"it": CASES[case]}, channel=channel)
        assert summary.data["status"] == "stored"
        assert len(summary.to_json().decode()) <= stated
        offset: int | None = 0
        while offset is not None:
            given: dict[str, Any] = {
                "handle": summary.data["handle"],
                "path": "/it",
                "offset": offset,
                "limit": "50000",
            }
            answer = await (
                yard.call("run_tool", {"tool_id": "read_result", **given}, channel=channel)
                if wrapped
                else yard.call("read_result", given, channel=channel)
            )
            assert answer.success, answer.error
            assert "status" not in answer.data
            assert len(answer.to_json().decode()) <= stated
            offset = answer.data.get("next_offset")


async def test_a_client_with_a_tiny_result_limit_gets_too_large() -> None:
    async with Yard(tools=[KEEP]) as yard:
        handle = (await yard.call("keep", {"it": ITEMS}, channel=Channel(name="tiny", result_characters=50))).data[
            "handle"
        ]
        error = failure(
            await yard.call("read_result", {"handle": handle}, channel=Channel(name="tiny", result_characters=50))
        )

    assert (error.code, error.details["limit"], "result_characters" in error.hint) == ("too_large", 50, False)
