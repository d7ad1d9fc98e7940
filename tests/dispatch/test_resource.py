import asyncio
import inspect
import json
import threading
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import pytest
from table_tests import every_row

from callyard import (
    Audio,
    Call,
    Caller,
    Embedded,
    Envelope,
    Image,
    Limits,
    Message,
    Profile,
    Prompt,
    PromptArgument,
    PromptSpec,
    PublishError,
    Resource,
    ResourceLink,
    ResourceSpec,
    Session,
    Text,
    ToolError,
    Toolset,
    Yard,
    prompt,
    resource,
    tool,
)
from callyard.dispatch.call import CallRequest, Handler
from callyard.model.errors import CodeName
from callyard.model.profile import EVERYTHING
from callyard.testing import FakeProvider, FakeSink, connect

PNG = b"\x89PNG\r\n\x1a\nrest"


@resource("notes://today")
def today() -> str:
    """Return what is to do today."""
    return "Water the plants."


@resource("notes://{day}/text")
async def of_day(day: date) -> str:
    """Return what was to do on a day."""
    return f"It was {day:%A}."


async def read(function: Callable[..., Any], uri: str, **options: Any) -> Envelope:
    async with Yard(resources=[function], **options) as yard:
        return await yard.read(uri)


@dataclass
class Weather:
    degrees: int


@every_row(
    ("result", "mime_type", "content"),
    [
        ("hello", "text/plain", {"text": "hello"}),
        (Text("hello"), "text/plain", {"text": "hello"}),
        ({"a": [1]}, "application/json", {"text": '{"a":[1]}'}),
        ([1, "two"], "application/json", {"text": '[1,"two"]'}),
        ([], "application/json", {"text": "[]"}),
        (Weather(3), "application/json", {"text": '{"degrees":3}'}),
        (7, "application/json", {"text": "7"}),
        (b"\x00\x01", "application/octet-stream", {"blob": b64encode(b"\x00\x01").decode()}),
        (PNG, "image/png", {"blob": b64encode(PNG).decode()}),
        (Audio(b"abc", "audio/ogg"), "audio/ogg", {"blob": b64encode(b"abc").decode()}),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_result_of_a_function_becomes_contents(
    result: object, mime_type: str, content: dict[str, str]
) -> None:
    @resource("a://b")
    async def give() -> Any:
        return result

    answer = await read(give, "a://b")

    assert answer.data == {"contents": [{"uri": "a://b", "mimeType": mime_type, **content}]}
    assert answer.content == ()


@pytest.mark.parametrize("result", ["# hello", b"# hello", {"a": 1}], ids=["text", "bytes", "data"])
async def test_a_declared_mime_type_wins(result: object) -> None:
    @resource("a://b", mime_type="text/markdown")
    async def give() -> Any:
        return result

    answer = await read(give, "a://b")

    assert answer.data["contents"][0]["mimeType"] == "text/markdown"


async def test_several_blocks_are_several_contents() -> None:
    @resource("a://b")
    async def give() -> Any:
        return [Embedded("a://b/1", text="one"), Embedded("a://b/2", data=b"two"), Image(b"three")]

    answer = await read(give, "a://b")

    assert [part["uri"] for part in answer.data["contents"]] == ["a://b/1", "a://b/2", "a://b"]
    assert answer.data["contents"][0] == {"uri": "a://b/1", "mimeType": "text/plain", "text": "one"}


@every_row(
    "result", [None, object(), ResourceLink("a://c", "c"), {"picture": Image(b"x")}], ids=lambda one: type(one).__name__
)
async def test_a_result_that_is_no_content_is_the_tools_fault(result: object) -> None:
    @resource("a://b")
    async def give() -> Any:
        return result

    answer = await read(give, "a://b")

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame, answer.error.tool_id) == ("invalid_output", "tool", "give")


async def test_contents_that_are_too_long_are_refused_and_never_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    @resource("a://b")
    async def give() -> str:
        return "x" * 1000

    limits = Limits(result_characters=10)
    whole = await read(give, "a://b", limits=limits)
    monkeypatch.setattr("callyard.dispatch.outcome._READ_BYTES", 500)
    refused = await read(give, "a://b", limits=limits)

    assert len(whole.data["contents"][0]["text"]) == 1000
    assert refused.error is not None
    assert refused.error.code == "too_large"


async def test_variables_are_converted_as_the_annotations_say() -> None:
    @resource("a://{number}/{flag}/{kind}/{+rest}")
    async def give(number: int, flag: bool, kind: str, rest: str, extra: float = 0.5) -> Any:  # noqa: FBT001 - a URI has no keywords
        return [number, flag, kind, rest, extra]

    answer = await read(give, "a://5/true/7/x/y%20z", limits=Limits(repair=False))

    assert json.loads(answer.data["contents"][0]["text"]) == [5, True, "7", "x/y z", 0.5]
    assert answer.meta.coerced == ()


async def test_a_variable_that_does_not_fit_is_an_invalid_input() -> None:
    answer = await read(of_day, "notes://someday/text")

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert [issue["field"] for issue in answer.error.details["issues"]] == ["day"]


async def test_a_rich_annotation_reads_its_text() -> None:
    answer = await read(of_day, "notes://2026-11-16/text")

    assert answer.data["contents"][0]["text"] == "It was Monday."


async def test_a_uri_of_its_own_beats_a_template_and_the_more_exact_template_the_other() -> None:
    def template(uri: str, name: str) -> Any:
        @resource(uri, name=name)
        async def give(x: str) -> str:
            return f"{name} {x}"

        return give

    @resource("a://one/text")
    async def exact() -> str:
        return "exact"

    options = [template("a://{+x}", "any"), template("a://{x}/text", "text"), exact]
    async with Yard(resources=options) as yard:
        texts = [
            (await yard.read(uri)).data["contents"][0]["text"]
            for uri in ("a://one/text", "a://two/text", "a://two/other")
        ]

    assert texts == ["exact", "text two", "any two/other"]


async def test_an_unknown_uri_is_not_found() -> None:
    sink = FakeSink()
    answer = await read(today, "notes://tomorrow; rm", sinks=[sink])

    assert answer.error is not None
    assert (answer.error.code, answer.error.may_have_run) == ("not_found", False)
    assert answer.error.details == {"reason": "unknown_uri", "uri": "notes://tomorrow; rm"}
    assert [(record.tool, record.kind, record.code) for record in sink.records] == [("?", "resource", "not_found")]


async def test_a_template_is_no_resource_of_its_own() -> None:
    answer = await read(of_day, "notes://{day}/text")

    assert answer.error is not None
    assert answer.error.code == "invalid_input"


async def test_a_reading_leaves_one_record_of_its_kind() -> None:
    sink = FakeSink()
    answer = await read(today, "notes://today", sinks=[sink])

    [record] = sink.records
    assert (record.kind, record.tool, record.source, record.operation) == ("resource", "today", "yard", "query")
    assert record.call_id == answer.meta.call_id
    assert "plants" not in repr(record)


async def test_reading_passes_the_whole_funnel() -> None:
    seen: list[str] = []

    def noting(handler: Handler) -> Handler:
        async def noted(call: Call) -> object:
            seen.append(f"middleware {call.name} {call.spec.kind}")
            return await handler(call)

        return noted

    async def decide(call: Call) -> Envelope | None:
        seen.append(f"policy {call.tool}")
        return Envelope.ok({"status": "approval_required"}) if call.caller.identity == "guest" else None

    async with Yard(resources=[today], middleware=[noting], policies=[decide]) as yard:
        await yard.read("notes://today")
        held = await yard.read("notes://today", caller=Caller(identity="guest"))

    assert seen == ["policy today", "middleware notes://today resource", "policy today"]
    assert held.data == {"status": "approval_required"}


async def test_a_reading_that_takes_too_long_is_stopped() -> None:
    @resource("a://b")
    async def give() -> str:
        await asyncio.Event().wait()
        raise AssertionError

    answer = await read(give, "a://b", limits=Limits(timeout=0.01))

    assert answer.error is not None
    assert (answer.error.code, answer.error.retryable) == ("timeout", True)


async def test_a_failure_of_the_function_is_the_usual_answer() -> None:
    @resource("a://b")
    def give() -> str:
        raise ToolError("upstream_unavailable", "The shelf is empty.")

    @resource("a://c")
    def burst() -> str:
        raise ZeroDivisionError

    async with Yard(resources=[give, burst]) as yard:
        answers = [await yard.read(uri) for uri in ("a://b", "a://c")]

    assert [answer.error and answer.error.code for answer in answers] == ["upstream_unavailable", "internal_error"]


async def test_a_reading_can_be_cancelled_and_is_recorded() -> None:
    started = asyncio.Event()
    sink = FakeSink()

    @resource("a://b")
    async def give() -> str:
        started.set()
        await asyncio.Event().wait()
        raise AssertionError

    async with Yard(resources=[give], sinks=[sink]) as yard:
        reading = asyncio.create_task(yard.read("a://b"))
        await started.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    assert sink.codes == ["cancelled"]


async def test_a_resource_may_take_the_call_and_ask() -> None:
    @resource("a://b")
    async def give(call: Call) -> Any:
        return {"uri": call.name, **await call.ask({"type": "object", "properties": {}}, "Which?")}

    async with connect(Yard(resources=[give]), answers=[{"x": 1}]) as client:
        answer = await client.read("a://b")

    assert client.questions == ["Which?"]
    assert json.loads(answer.data["contents"][0]["text"]) == {"uri": "a://b", "x": 1}


async def test_a_closed_yard_reads_nothing() -> None:
    yard = Yard(resources=[today])
    async with yard:
        dispatcher = yard.dispatcher

    answer = await dispatcher.dispatch(CallRequest("notes://today", kind="resource"))

    assert answer.error is not None
    assert answer.error.code == "overloaded"


async def test_resources_and_templates_are_listed_apart_and_are_no_tools() -> None:
    async with Yard(resources=[today, of_day]) as yard:
        assert [spec.uri for spec in yard.list_resources()] == ["notes://today"]
        assert [spec.uri for spec in yard.list_templates()] == ["notes://{day}/text"]
        assert yard.list() == []
        answer = await yard.call("today")

    assert answer.error is not None
    assert answer.error.code == "tool_not_found"


async def test_a_spec_says_what_the_decorator_and_the_function_say() -> None:
    @resource("a://b", name="bee", title="Bee", mime_type="x/y", description="Hum.", tags="small")
    def give() -> str:
        raise AssertionError

    async with Yard(resources=[give, today]) as yard:
        named, plain = yard.list_resources()

    assert named == ResourceSpec(
        uri="a://b", name="bee", title="Bee", mime_type="x/y", description="Hum.", tags=("small",), source="yard"
    )
    assert (plain.name, plain.description, plain.mime_type) == ("today", "Return what is to do today.", None)


@every_row(
    ("toolset", "there"),
    [
        (Toolset(name="t"), ["notes://today", "notes://2026-11-16/text"]),
        (Toolset(name="t", deny=("today",)), ["notes://2026-11-16/text"]),
        (Toolset(name="t", deny=("notes://t*",)), ["notes://2026-11-16/text"]),
        (Toolset(name="t", deny=("notes://{*",)), ["notes://today"]),
        (Toolset(name="t", deny=("notes://2026*",)), ["notes://today"]),
        (Toolset(name="t", names=("of_*",)), ["notes://2026-11-16/text"]),
        (Toolset(name="t", names=("notes://*",)), ["notes://today", "notes://2026-11-16/text"]),
        (Toolset(name="t", sources=("elsewhere",)), []),
        (Toolset(name="t", tags=("small",)), []),
        (
            Toolset(name="t", operations=("destroy",), deny_operations=("query",)),  # pyright: ignore[reportArgumentType] - text does, too
            ["notes://today", "notes://2026-11-16/text"],
        ),
    ],
    ids=str,
)
async def test_a_resource_that_a_profile_denies_does_not_exist(toolset: Toolset, there: list[str]) -> None:
    caller = Caller(profile=Profile(name="p", toolsets=(toolset,)))
    async with Yard(resources=[today, of_day]) as yard:
        answers = {uri: await yard.read(uri, caller=caller) for uri in ("notes://today", "notes://2026-11-16/text")}

    assert [uri for uri, answer in answers.items() if answer.success] == there
    codes = {answer.error.code for answer in answers.values() if answer.error is not None}
    assert codes <= {"not_found"}


async def test_a_denial_cannot_be_bypassed_by_encoding_the_uri() -> None:
    @resource("files:///{+path}")
    async def file(path: str) -> str:
        return path

    profile = Profile(name="p", toolsets=(Toolset(name="t", deny=("files:///secret*",)),))
    async with Yard(resources=[file], profile=profile) as yard:
        answers = [await yard.read(f"files:///{path}") for path in ("open", "secret", "%73ecret")]

    assert [answer.success for answer in answers] == [True, False, False]


@every_row(
    ("uri", "parameters", "why"),
    [
        ("a://{x}", {}, "variable 'x'"),
        ("a://b", {"x": str}, "parameter 'x'"),
        ("a://{x}", {"x": str, "session": Session}, "session"),
        ("a b", {}, "scheme"),
        ("a://{?x}", {}, "not supported"),
    ],
)
async def test_a_wrong_resource_is_refused_when_it_is_published(uri: str, parameters: dict[str, Any], why: str) -> None:
    async def give(**_: Any) -> None:
        raise AssertionError

    give.__signature__ = _signature(parameters)  # pyright: ignore[reportFunctionMemberAccess] - what a signature is read from
    with pytest.raises(PublishError, match=why):
        await read(resource(uri)(give), uri)


def _signature(parameters: dict[str, Any]) -> Any:
    kinds = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind) for name, kind in parameters.items()
    ]
    return inspect.Signature(kinds)


async def test_a_decorated_function_must_be_passed_as_its_own_kind() -> None:
    @tool
    def act() -> None:
        raise AssertionError

    def plain() -> str:
        raise AssertionError

    for options, why in (
        ({"tools": [today]}, "'@resource'"),
        ({"resources": [act]}, "'@tool'"),
        ({"resources": [plain]}, "no URI"),
        ({"prompts": [today]}, "'@resource'"),
        ({"resources": [object()]}, "'@resource'"),
    ):
        with pytest.raises(PublishError, match=why):
            async with Yard(**options):  # pyright: ignore[reportArgumentType] - the wrong ones are the point
                raise AssertionError


def test_the_decorator_needs_a_uri() -> None:
    with pytest.raises(TypeError, match="URI"):
        resource(today)  # pyright: ignore[reportArgumentType, reportCallIssue] - that is the point


async def test_two_resources_of_one_uri_or_a_name_that_is_no_word_are_refused() -> None:
    @resource("a://b", name="Not A Word")
    def give() -> str:
        raise AssertionError

    with pytest.raises(PublishError, match="small letters"):
        await read(give, "a://b")
    with pytest.raises(PublishError, match="notes://today"):
        async with Yard(resources=[today, today]):
            raise AssertionError


async def test_a_completion_must_be_of_a_variable() -> None:
    @resource("a://{x}", complete={"y": lambda _, __: []})
    def give(x: str) -> str:
        raise AssertionError

    with pytest.raises(PublishError, match="'y'"):
        await read(give, "a://b")


async def test_the_methods_of_an_object_are_resources() -> None:
    class Shelf:
        def __init__(self) -> None:
            self.books = ["Emma"]

        @resource("shelf://books")
        def books_on_it(self) -> list[str]:
            """Return the books."""
            return self.books

        @tool
        def add(self) -> None:
            raise AssertionError

    async with Yard(resources=[Shelf()]) as yard:
        answer = await yard.read("shelf://books")
        assert yard.list() == []

    assert json.loads(answer.data["contents"][0]["text"]) == ["Emma"]


async def test_a_resource_can_be_made_without_a_decorator_and_a_foreign_one_may_have_any_name() -> None:
    async def handler(call: Call) -> str:
        return f"{call.tool}: {call.arguments}"

    spec = ResourceSpec(uri="up://{id}", name="The thing, by id")
    made = Resource.of(spec, handler)
    provider = FakeProvider("up")
    async with Yard(providers=[provider]) as yard:
        yard.registry.publish("other", resources=[made], foreign=True)
        answer = await yard.read("up://7")

    assert answer.data["contents"][0]["text"] == "The_thing_by_id: {'id': '7'}"


async def test_a_yard_in_a_yard_shows_its_resources_and_both_funnels_are_passed() -> None:
    sink, outer_sink = FakeSink(), FakeSink()
    inner = Yard("inner", resources=[today, of_day], sinks=[sink])
    async with Yard("outer", providers=[inner], sinks=[outer_sink]) as yard:
        answers = [await yard.read(uri) for uri in ("notes://today", "notes://2026-11-16/text", "notes://x/text")]

    assert [answer.success for answer in answers] == [True, True, False]
    assert answers[1].data["contents"][0]["text"] == "It was Monday."
    assert [record.kind for record in (*sink.records, *outer_sink.records)] == ["resource"] * 6
    assert [record.source for record in outer_sink.records] == ["inner"] * 3


async def test_a_subscription_reaches_the_provider_through_a_yard_in_a_yard() -> None:
    provider = FakeProvider("up", resources=[today, of_day])
    async with Yard("outer", providers=[Yard("inner", providers=[provider])]) as yard:
        first = yard.registry.subscribe(["notes://today", "notes://2026-11-16/text", "notes://"], EVERYTHING)
        assert first.sources == {"notes://today": "inner", "notes://2026-11-16/text": "inner"}
        second = yard.registry.subscribe(["notes://today"], EVERYTHING)
        assert provider.subscribed == {"notes://today", "notes://2026-11-16/text"}
        yard.registry.subscriptions.remove(first.sources)
        assert provider.subscribed == {"notes://today"}
        yard.registry.subscriptions.remove(second.sources)
        assert provider.subscribed == set()
        yard.registry.subscribe(["notes://today"], EVERYTHING)
    assert provider.subscribed == set()


async def test_a_yard_in_a_yard_is_not_subscribed_to_withdrawn_resources() -> None:
    provider = FakeProvider("up", resources=[today])
    inner = Yard("inner", providers=[provider])
    async with Yard("outer") as yard:
        await yard.providers.add(inner)
        yard.registry.subscribe(["notes://today"], EVERYTHING)
        await yard.providers.remove("inner")
        provider.change()
        await yard.providers.add(inner)

        assert (provider.is_open, provider.subscribed) == (True, set())


async def test_watchers_are_notified_when_the_content_of_a_resource_changes() -> None:
    updates: list[str] = []
    provider = FakeProvider("up", resources=[today])
    inner = Yard("inner", providers=[provider])
    async with Yard("outer", providers=[inner]) as yard:
        stop = yard.registry.watch_updates(updates.append)
        yard.notify_updated("a://b")
        provider.update("notes://today")
        await asyncio.to_thread(yard.notify_updated, "a://c")
        await asyncio.to_thread(lambda: None)
        stop()
        yard.notify_updated("a://d")
    provider.update("a://e")

    assert updates == ["a://b", "notes://today", "a://c"]


CITIES = ("Berlin", "Bern", "Rome")
DENIED = Caller(profile=Profile(name="p", toolsets=(Toolset(name="t", deny=("*",)),)))


def cities(value: str, context: dict[str, str]) -> list[str]:
    return [city for city in CITIES if city.startswith(value) and context.get("country", "") in ("", city)]


async def many(value: str, context: dict[str, str]) -> Sequence[str]:
    return [f"{value}{number}" for number in range(500)]


async def for_ever(value: str, context: dict[str, str]) -> Sequence[str]:
    await asyncio.Event().wait()
    raise AssertionError


def burst(value: str, context: dict[str, str]) -> Sequence[str]:
    raise ZeroDivisionError


def refuse(value: str, context: dict[str, str]) -> Sequence[str]:
    raise ToolError("upstream_unavailable", "No.")


@resource("w://{country}/{city}", complete={"city": cities})
def weather(country: str, city: str) -> str:
    """Return the weather."""
    raise AssertionError


@prompt(complete={"many": many, "for_ever": for_ever, "burst": burst, "refuse": refuse})
def travel(many: str, for_ever: str, burst: str, refuse: str, free: str) -> str:
    """Plan a journey."""
    raise AssertionError


def yard(**options: object) -> Yard:
    return Yard(resources=[weather], prompts=[travel], **options)  # pyright: ignore[reportArgumentType] - limits alone


async def test_a_completion_gets_the_other_arguments() -> None:
    async with yard() as open_yard:
        free = await open_yard.complete("resource", "w://{country}/{city}", argument="city", value="Ber")
        context = await open_yard.complete(
            "resource", "w://{country}/{city}", argument="city", value="Ber", arguments={"country": "Bern"}
        )

    assert (free, context) == (["Berlin", "Bern"], ["Bern"])


async def test_a_completion_returns_at_most_a_hundred_values_and_none_without_a_function() -> None:
    async with yard() as open_yard:
        found = await open_yard.complete("prompt", "travel", argument="many", value="x")
        none = await open_yard.complete("prompt", "travel", argument="free", value="x")

    assert (len(found), found[99], none) == (100, "x99", [])


async def test_a_sync_completion_runs_in_a_thread() -> None:
    threads: list[str] = []

    def note(value: str, context: dict[str, str]) -> list[str]:
        threads.append(threading.current_thread().name)
        return []

    @prompt(complete={"x": note})
    def say(x: str) -> str:
        raise AssertionError

    async with Yard(prompts=[say]) as open_yard:
        await open_yard.complete("prompt", "say", argument="x", value="")

    assert threads[0].startswith("callyard-")


async def test_a_completion_may_return_an_awaitable() -> None:
    @prompt(complete={"x": partial(many)})
    def say(x: str) -> str:
        raise AssertionError

    async with Yard(prompts=[say]) as open_yard:
        assert len(await open_yard.complete("prompt", "say", argument="x", value="")) == 100


@every_row(
    ("kind", "name", "argument", "code"),
    [
        ("prompt", "no_such", "many", "not_found"),
        ("prompt", "travel", "no_such", "not_found"),
        ("resource", "w://{x}", "x", "not_found"),
        ("resource", "w://{country}/{city}", "x", "not_found"),
        ("prompt", "travel", "burst", "internal_error"),
        ("prompt", "travel", "refuse", "upstream_unavailable"),
        ("prompt", "travel", "for_ever", "timeout"),
    ],
)
async def test_a_failed_completion_has_a_code(kind: str, name: str, argument: str, code: CodeName) -> None:
    async with yard(limits=Limits(timeout=0.01 if code == "timeout" else 10)) as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete(kind, name, argument=argument, value="x")  # pyright: ignore[reportArgumentType] - one of the two

    assert caught.value.code == code


@pytest.mark.parametrize(("kind", "name"), [("prompt", "travel"), ("resource", "w://{country}/{city}")])
async def test_a_name_that_a_profile_denies_is_not_completed(kind: str, name: str) -> None:
    async with yard() as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete(kind, name, argument="city", value="", caller=DENIED)  # pyright: ignore[reportArgumentType] - one of the two

    assert caught.value.code == "not_found"


async def test_a_yard_in_a_yard_completes() -> None:
    async with Yard("outer", providers=[yard(name="inner")]) as open_yard:
        found = await open_yard.complete("resource", "w://{country}/{city}", argument="city", value="R")

    assert found == ["Rome"]


async def test_a_lone_surrogate_is_a_defect_of_the_completion() -> None:
    def halve(value: str, context: dict[str, str]) -> list[str]:
        return [f"{value}\ud800"]

    @prompt(complete={"half": halve})
    def words(half: str) -> str:
        """Return words."""
        raise AssertionError(half)

    async with Yard(prompts=[words]) as open_yard:
        with pytest.raises(ToolError) as caught:
            await open_yard.complete("prompt", "words", argument="half", value="a")

    assert (caught.value.code, caught.value.blame) == ("internal_error", "tool")
    assert str(caught.value.details["call_id"]).startswith("c_")


@prompt
def greet(who: str, times: int = 1) -> str:
    """Greet somebody.

    Args:
        who: Whom to greet.
    """
    return f"Greet {who} {times} times."


async def ask(function: Any, arguments: dict[str, Any] | None = None, **options: Any) -> Envelope:
    async with Yard(prompts=[function], **options) as yard:
        return await yard.prompt("greet" if function is greet else function.__name__, arguments)


def text(role: str, said: str) -> dict[str, Any]:
    return {"role": role, "content": {"type": "text", "text": said}}


@every_row(
    ("result", "messages"),
    [
        ("hello", [text("user", "hello")]),
        (Text("hello"), [text("user", "hello")]),
        (Message("assistant", "hello"), [text("assistant", "hello")]),
        (["one", Message("assistant", Text("two"))], [text("user", "one"), text("assistant", "two")]),
        ((), []),
        (Image(b""), [{"role": "user", "content": {"type": "image", "data": "", "mimeType": "image/png"}}]),
        (
            ResourceLink("a://b", "b"),
            [{"role": "user", "content": {"type": "resource_link", "uri": "a://b", "name": "b"}}],
        ),
        (
            Embedded("a://b", text="x"),
            [
                {
                    "role": "user",
                    "content": {
                        "type": "resource",
                        "resource": {"uri": "a://b", "mimeType": "text/plain", "text": "x"},
                    },
                }
            ],
        ),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_the_result_of_a_function_becomes_messages(result: object, messages: list[Any]) -> None:
    @prompt
    async def say() -> Any:
        """Say it."""
        return result

    answer = await ask(say)

    assert answer.data == {"description": "Say it.", "messages": messages}
    assert answer.content == ()


@every_row("result", [None, 7, {"role": "user"}, [["nested"]]], ids=str)
async def test_a_result_that_is_no_message_is_the_tools_fault(result: object) -> None:
    @prompt
    async def say() -> Any:
        return result

    answer = await ask(say)

    assert answer.error is not None
    assert (answer.error.code, answer.error.blame) == ("invalid_output", "tool")


def test_a_message_needs_a_role_and_content() -> None:
    with pytest.raises(ValueError, match="system"):
        Message("system", "hello")  # pyright: ignore[reportArgumentType] - that is the point
    with pytest.raises(TypeError, match="dict"):
        Message("user", {})  # pyright: ignore[reportArgumentType] - that is the point


async def test_arguments_come_as_texts_and_are_converted() -> None:
    answer = await ask(greet, {"who": "5", "times": "3"}, limits=Limits(repair=False))

    assert answer.data["messages"] == [text("user", "Greet 5 3 times.")]
    assert answer.meta.coerced == ()


@pytest.mark.parametrize(
    ("arguments", "field", "code"),
    [
        ({}, "who", "missing"),
        ({"who": "a", "whom": "b"}, "whom", "extra_forbidden"),
        ({"who": "a", "times": "often"}, "times", "int_type"),
    ],
)
async def test_arguments_that_do_not_fit_are_an_invalid_input(arguments: dict[str, Any], field: str, code: str) -> None:
    answer = await ask(greet, arguments)

    assert answer.error is not None
    assert answer.error.code == "invalid_input"
    assert [(issue["field"], issue["code"]) for issue in answer.error.details["issues"]] == [(field, code)]


async def test_a_spec_says_what_the_signature_and_the_docstring_say() -> None:
    @prompt(name="hi", title="Hi", description="Say hi.", tags=["small"])
    def other() -> str:
        raise AssertionError

    async with Yard(prompts=[greet, other]) as yard:
        first, second = yard.list_prompts()

    assert first == PromptSpec(
        name="greet",
        description="Greet somebody.",
        arguments=(PromptArgument("who", "Whom to greet.", required=True), PromptArgument("times")),
        source="yard",
    )
    assert second == PromptSpec(name="hi", title="Hi", description="Say hi.", tags=("small",), source="yard")


async def test_a_plain_function_is_a_prompt_and_the_methods_of_an_object_are() -> None:
    def hello() -> str:
        return "plain"

    class Phrases:
        @prompt
        def bye(self) -> str:
            return "method"

    async with Yard(prompts=[hello, Phrases()]) as yard:
        answers = [await yard.prompt(name) for name in ("hello", "bye")]

    assert [answer.data["messages"][0]["content"]["text"] for answer in answers] == ["plain", "method"]


async def test_an_unknown_prompt_is_not_found_and_similar_ones_are_named() -> None:
    sink = FakeSink()
    async with Yard(prompts=[greet], sinks=[sink]) as yard:
        answer = await yard.prompt("gret", {"who": "a"})

    assert answer.error is not None
    assert answer.error.code == "not_found"
    assert answer.error.details == {"reason": "unknown_prompt", "name": "gret", "similar": ["greet"]}
    assert [(record.tool, record.kind) for record in sink.records] == [("gret", "prompt")]


async def test_a_prompt_leaves_one_record_of_its_kind() -> None:
    sink = FakeSink()
    await ask(greet, {"who": "secret"}, sinks=[sink])

    [record] = sink.records
    assert (record.kind, record.tool, record.code) == ("prompt", "greet", None)
    assert "secret" not in repr(record)


async def test_a_prompt_that_a_profile_denies_does_not_exist() -> None:
    caller = Caller(profile=Profile(name="p", toolsets=(Toolset(name="t", deny=("gr*",)),)))
    async with Yard(prompts=[greet]) as yard:
        answer = await yard.prompt("greet", {"who": "a"}, caller=caller)
        assert yard.list_prompts(caller.profile) == []

    assert answer.error is not None
    assert answer.error.code == "not_found"
    assert answer.error.details["similar"] == []


async def test_a_prompt_may_take_the_call_and_ask() -> None:
    @prompt
    async def say(call: Call) -> str:
        return (await call.ask({"type": "object", "properties": {}}, "What?"))["what"]

    async with connect(Yard(prompts=[say]), answers=[{"what": "this"}]) as client:
        answer = await client.prompt("say")

    assert answer.data["messages"] == [text("user", "this")]


async def test_a_prompt_that_is_too_long_is_not_cut() -> None:
    @prompt
    async def say() -> str:
        return "x" * 1000

    answer = await ask(say, limits=Limits(result_characters=10))

    assert len(answer.data["messages"][0]["content"]["text"]) == 1000


async def test_a_wrong_prompt_is_refused_when_it_is_published() -> None:
    def talk(session: Session) -> str:
        raise AssertionError

    @prompt(complete={"y": lambda _, __: []})
    def say(x: str) -> str:
        raise AssertionError

    @prompt(name="No Word")
    def no_word() -> str:
        raise AssertionError

    for function, why in ((talk, "session"), (say, "'y'"), (no_word, "small letters"), (lambda: "x", "lambda")):
        with pytest.raises(PublishError, match=why):
            await ask(function)
    with pytest.raises(TypeError, match="'title'"):
        prompt(titel="Hi")  # pyright: ignore[reportCallIssue] - that is the point


async def test_an_invalid_prompt_of_a_foreign_source_is_quarantined() -> None:
    async def handler(call: Call) -> str:
        return str(call.arguments)

    twice = (PromptArgument("a"), PromptArgument("a"))
    good = PromptSpec(name="Good-one", arguments=(PromptArgument("a", required=True), PromptArgument("b")))
    wrong = PromptSpec(name="wrong", arguments=twice)
    async with Yard() as yard:
        yard.registry.publish("up", prompts=[Prompt.of(good, handler), Prompt.of(wrong, handler)], foreign=True)
        answer = await yard.prompt("Good-one", {"a": "1"})
        missing = await yard.prompt("wrong")

    assert answer.data["messages"] == [text("user", "{'a': '1'}")]
    assert missing.error is not None
    assert missing.error.message.startswith("'wrong' is quarantined.")


async def test_a_yard_in_a_yard_shows_its_prompts() -> None:
    inner = Yard("inner", prompts=[greet])
    async with Yard("outer", providers=[inner]) as yard:
        good = await yard.prompt("greet", {"who": "Ann", "times": "2"})
        wrong = await yard.prompt("greet", {})

    assert good.data["messages"] == [text("user", "Greet Ann 2 times.")]
    assert wrong.error is not None
    assert wrong.error.code == "invalid_input"
