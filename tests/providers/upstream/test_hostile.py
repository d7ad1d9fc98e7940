"""What an upstream says may be wrong in every place: it hurts nobody but itself."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import pytest
from scripted import HANDSHAKE, MODERN, Script, ScriptedLink
from table_tests import every_row
from test_provider import until
from test_supervisor import TOOLS, Bench

from callyard import Yard
from callyard.model.content import MAX_BLOCKS
from callyard.model.elicitation import ClientRequest
from callyard.model.errors import ToolError
from callyard.providers.upstream import catalogue as catalogue_module
from callyard.providers.upstream.calls import client_requests_of, decode_answer, result_of
from callyard.providers.upstream.health import Status, read_status, write_status
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.provider import Upstream
from callyard.providers.upstream.session import CallContext, ClientSession
from callyard.providers.upstream.settings import Reshape, UpstreamSettings
from callyard.wire.params import Client, Requests
from callyard.wire.versions import LATEST_HANDSHAKE

JUNK: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    1.5,
    "",
    "\x00\n",
    "x" * 5000,
    [],
    [1],
    [["a"]],
    [None],
    {},
    {"a": {"b": []}},
)
OLD: Final = Requests(LATEST_HANDSHAKE, Client("test", "1"))
GOOD: Final = {"name": "good", "inputSchema": {"type": "object"}}
RAW: Final = (b'{"content":[{"type":"text","text":"a","n":1e999}]}', b'{"content":[],"structuredContent":{"n":1e999}}')


def answer(raw: bytes) -> Any:
    """Return what becomes of an answer."""
    read = decode_answer("up", msgspec.Raw(raw))
    client_requests_of("up", read)
    return result_of("up", read, "up")


class _Content(msgspec.Struct):
    content: list[dict[str, Any]]


def is_well_formed(said: bytes) -> bool:
    """Return whether content is a list of blocks, as every client expects."""
    try:
        msgspec.json.decode(said, type=_Content)
    except msgspec.ValidationError:
        return False
    return True


BLOCKS: Final = [
    {key: junk} for key in ("type", "text", "data", "mimeType", "resource", "uri", "annotations") for junk in JUNK
]
ANSWERS: Final[list[dict[str, Any]]] = [
    *(
        {key: junk}
        for key in ("content", "structuredContent", "isError", "_meta", "inputRequests", "requestState")
        for junk in JUNK
    ),
    *({"content": [block]} for block in BLOCKS),
    *(
        {"content": [{"type": kind, **block}]}
        for kind in ("text", "image", "resource", "resource_link")
        for block in BLOCKS
    ),
    *(
        {"resultType": "input_required", "inputRequests": {"a": {key: junk}}}
        for key in ("method", "params")
        for junk in JUNK
    ),
    *({"isError": True, "content": [{"type": "text", "text": junk}], "structuredContent": junk} for junk in JUNK),
]


def test_every_answer_becomes_a_result_or_an_upstream_error() -> None:
    wrong: list[Any] = []
    for raw in (*map(msgspec.json.encode, ANSWERS), *RAW):
        try:
            passed = answer(raw)
        except ToolError as error:
            if error.code != "upstream_error":
                wrong.append((raw, error))
        except Exception as error:  # noqa: BLE001 - any other is the defect that is looked for
            wrong.append((raw, error))
        else:
            if not is_well_formed(passed.result):
                wrong.append((raw, passed.result))

    assert wrong == []


def test_json_that_is_nested_too_deeply_stays_a_text() -> None:
    for deep in ("[" * 100_000, "[" * 400 + "]" * 400):
        assert answer(msgspec.json.encode({"content": [{"type": "text", "text": deep}]})).data == deep


def scripted(script: Script, state: Path, **settings: Any) -> Upstream:
    """Return an upstream that answers as its script says."""
    wanted = UpstreamSettings(url="http://up.test/mcp", **settings)
    return Upstream("up", wanted, link=lambda: ScriptedLink({**MODERN, **script}), folder=state, interval=0.01)


async def listed(script: Script, **settings: Any) -> tuple[list[str], Any]:
    """Return the names of the tools that are published, and how the upstream is."""
    with TemporaryDirectory() as state:
        upstream = scripted(script, Path(state), **settings)
        async with Yard("gate", providers=[upstream], metatools=False) as yard, asyncio.timeout(60):
            await upstream.wait_ready()
            return [spec.name for spec in yard.list()], upstream.status()


async def test_valid_items_are_published_whatever_else_is_listed() -> None:
    fields = (
        "name",
        "title",
        "description",
        "inputSchema",
        "outputSchema",
        "annotations",
        "_meta",
        "icons",
        "execution",
    )
    tools = [{**GOOD, "name": f"t{key}{number}", key: junk} for key in fields for number, junk in enumerate(JUNK)]
    inner = ("properties", "required", "type", "$defs", "additionalProperties")
    tools += [
        {**GOOD, "name": f"i{key}{number}", "inputSchema": {"type": "object", "properties": {"a": {}}, key: junk}}
        for key in inner
        for number, junk in enumerate(JUNK)
    ]
    resources = [
        {"uri": f"a://{key}{number}", "name": "n", key: junk}
        for key in ("uri", "name", "mimeType", "size")
        for number, junk in enumerate(JUNK)
    ]
    templates = [
        {"uriTemplate": uri, "name": "n"} for uri in (*JUNK, "a://{", "a://{x", "a://}{", "a://{+x}{x}{x*}{?q}")
    ]
    prompts = [{"name": f"p{number}", "arguments": junk} for number, junk in enumerate(JUNK)]
    prompts += [
        {"name": f"q{key}{number}", "arguments": [{"name": "a", key: junk}]}
        for key in ("name", "title", "description", "required")
        for number, junk in enumerate(JUNK)
    ]
    script = {
        "tools/list": {"tools": [*tools, GOOD]},
        "resources/list": {"resources": resources},
        "resources/templates/list": {"resourceTemplates": templates},
        "prompts/list": {"prompts": prompts},
    }
    names, status = await listed(script, reshape={"*": Reshape(hidden=("a",), fixed={"b": 1})})

    assert "up__good" in names
    assert (status.state, status.last_error) == ("ready", "")


async def test_tools_renamed_to_the_same_name_do_not_affect_others() -> None:
    tools = [GOOD, {**GOOD, "name": "a1"}, {**GOOD, "name": "a2"}]

    names, _ = await listed({"tools/list": {"tools": tools}}, reshape={"a*": Reshape(rename="same")})

    assert names == ["up__good", "up__same"]


@pytest.mark.parametrize("server", ["a name", ["x"], 5])
async def test_an_upstream_with_an_invalid_description_is_still_maintained(tmp_path: Path, server: Any) -> None:
    discovered = {**MODERN["server/discover"], "_meta": {"io.modelcontextprotocol/serverInfo": server}}
    upstream = scripted({"server/discover": discovered, **TOOLS}, tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False), asyncio.timeout(60):
        await upstream.wait_ready()
        await until(lambda: (kept := read_status(tmp_path)) is not None and kept.state == "ready")

        assert upstream.status().server == ""


async def test_a_very_long_reason_is_cut(tmp_path: Path) -> None:
    upstream = scripted({"tools/list": LinkError("unavailable", "x" * 1_000_000)}, tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False):
        await upstream.wait_ready()

        assert len(upstream.status().reason) < 2000


@pytest.mark.parametrize("bound", ["_ITEMS", "_BYTES"])
async def test_a_list_over_the_limit_is_an_error(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalogue_module, bound, 10)
    page = iter(range(1000))

    def endless(_: Mapping[str, Any]) -> Any:
        return {"tools": [GOOD] * 4, "nextCursor": str(next(page))}

    bench = Bench({**MODERN, "tools/list": endless})
    async with bench.opened() as supervisor:
        await supervisor.refresh()

        assert len(bench.links[0].requests("tools/list")) <= 3
        assert "more than" in supervisor.health.reason


@pytest.mark.parametrize(("count", "code"), [(MAX_BLOCKS, None), (MAX_BLOCKS + 1, "too_large")])
async def test_an_answer_has_at_most_as_many_blocks_as_are_sent(count: int, code: str | None) -> None:
    block = b'{"type":"text","text":""}'
    raw = b'{"content":[' + b",".join([block] * count) + b"]}"
    if code is None:
        answer(raw)
        return
    with pytest.raises(ToolError) as caught:
        answer(raw)

    assert (caught.value.code, caught.value.blame, caught.value.details["limit"]) == (code, "upstream", MAX_BLOCKS)


async def test_numbers_out_of_range_do_no_harm() -> None:
    bench = Bench({**HANDSHAKE, **TOOLS, "tools/call": None})
    async with bench.opened() as supervisor:
        await supervisor.refresh()
        link = bench.links[0]
        asked = asyncio.create_task(
            supervisor.request("tools/call", {}, name=None, context=CallContext(owner="a"), safe=False)
        )
        await link.until(lambda: link.requests("tools/call"))
        for method in (
            "notifications/resources/updated",
            "notifications/progress",
            "notifications/message",
            "notifications/cancelled",
        ):
            link.listener.receive(
                b'{"jsonrpc":"2.0","method":"%b","params":{"uri":1e999,"n":1e999}}' % method.encode(), None
            )
        link.listener.receive(b'{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{"n":1e999}}', None)
        number = link.requests("tools/call")[0]["id"]
        link.listener.receive(b'{"jsonrpc":"2.0","id":%d,"result":{},"error":null}' % number, None)

        assert bytes(await asked) == b"{}"
        assert [message["error"]["code"] for message in link.sent if "error" in message] == [-32600]


def ignore(*_: object) -> None:
    """Take no note."""


async def asking_session(
    link: ScriptedLink, put: list[Mapping[str, ClientRequest]]
) -> tuple[ClientSession, "asyncio.Task[msgspec.Raw]"]:
    """Return a session with a request under way, whose questions are put and never answered."""
    session = ClientSession("up", link, http=False, on_notification=ignore, on_end=ignore)
    session.requests = OLD
    await link.open(session)

    async def ask(asks: Mapping[str, ClientRequest]) -> Mapping[str, Any]:
        put.append(asks)
        try:
            return await asyncio.Event().wait() and {}
        finally:
            put.remove(asks)

    asked = asyncio.create_task(session.request(OLD, "tools/call", {}, context=CallContext(owner="a", ask=ask)))
    await link.until(lambda: link.sent)
    return session, asked


async def test_open_client_requests_are_limited_and_end_with_their_call() -> None:
    link = ScriptedLink({"tools/call": None})
    put: list[Mapping[str, ClientRequest]] = []
    session, asked = await asking_session(link, put)
    for number in range(500):
        link.ask(number, "elicitation/create", {"message": "?", "n": number})
        link.ask(number, "elicitation/create", {"message": "?", "n": -number})
    await asyncio.sleep(0)  # a turn of the loop, not a wait
    assert len(put) == 100

    session.receive(b'{"jsonrpc":"2.0","id":1,"result":{}}', None)
    await asked
    for _ in range(3):
        await asyncio.sleep(0)  # a turn of the loop, not a wait
    assert put == []


async def test_the_request_initialize_is_never_cancelled() -> None:
    link = ScriptedLink({"initialize": None})
    session = ClientSession("up", link, http=False, on_notification=ignore, on_end=ignore)
    await link.open(session)
    initializing = asyncio.create_task(session.initialize(OLD))
    await link.until(lambda: link.sent)
    initializing.cancel()
    await asyncio.gather(initializing, return_exceptions=True)

    assert [message["method"] for message in link.sent] == ["initialize"]


async def test_invalid_completions_are_an_upstream_error(tmp_path: Path) -> None:
    prompts = {"prompts/list": {"prompts": [{"name": "p", "arguments": [{"name": "a"}]}]}}
    upstream = scripted({**TOOLS, **prompts, "completion/complete": {"completion": {"values": [1]}}}, tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        with pytest.raises(ToolError) as caught:
            await yard.complete("prompt", "up__p", argument="a", value="")

        assert caught.value.code == "upstream_error"


@every_row("result", [b'{"contents":5}', b'{"contents":[1]}', b'{"contents":[{"uri":"a://b","n":1e999}]}', b"[]"])
async def test_an_invalid_resource_is_an_upstream_error(tmp_path: Path, result: bytes) -> None:
    upstream = scripted(
        {
            **TOOLS,
            "resources/list": {"resources": [{"uri": "a://b", "name": "b"}]},
            "resources/read": msgspec.Raw(result),
        },
        tmp_path,
    )
    async with Yard("gate", providers=[upstream], metatools=False) as yard:
        await upstream.wait_ready()
        answered = await yard.read("up+a://b")

        assert answered.error is not None
        assert answered.error.code == "upstream_error"


async def test_a_yard_that_ends_does_not_overwrite_the_status_of_a_running_one(tmp_path: Path) -> None:
    upstream = scripted(TOOLS, tmp_path)
    async with Yard("gate", providers=[upstream], metatools=False), asyncio.timeout(60):
        await upstream.wait_ready()
        await until(lambda: read_status(tmp_path) is not None)
        write_status(tmp_path, Status(name="up", state="stopped", pid=1))
        await until(lambda: read_status(tmp_path) is not None)
        write_status(tmp_path, Status(name="up", state="ready", pid=1))  # another yard, which runs on

    assert read_status(tmp_path) == Status(name="up", state="ready", pid=1)
