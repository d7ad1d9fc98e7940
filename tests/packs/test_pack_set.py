"""Packs of a yard: found by entry point, opened closed on every failure, described, and changed while it is open."""

import asyncio
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec
import pytest
from fake_packages import PAGE, Install, install, installing
from pydantic import BaseModel, model_validator
from table_tests import every_row

from callyard import (
    Call,
    EvalRule,
    Functions,
    Needs,
    Pack,
    PackContext,
    PackError,
    Profile,
    Publish,
    Reason,
    Session,
    Tool,
    Toolset,
    Yard,
    prompt,
    resource,
    tool,
)
from callyard._internal.mask import configured_secrets
from callyard._version import VERSION
from callyard.config.packs import pack_tables_of_code, read_pack_tables
from callyard.model.profile import pending_toolset
from callyard.packs import provider as provider_module

__all__ = ["install"]


@tool(name="page_read", operation="query")
def read() -> str:
    """Read the page."""
    return "text"


def giving(provider: Any) -> Callable[[PackContext], Any]:
    """Return the function of a pack that makes always the same provider."""
    return lambda _: provider


def page(*functions: Any, **fields: Any) -> Pack:
    """Return a pack `page` with some tools."""
    options: dict[str, Any] = {"name": "page", "make": giving(Functions("page", functions or [read])), **fields}
    return Pack(**options)


class FakeProvider:
    """A provider of a pack that notes when it is open."""

    def __init__(self, events: list[str], *, name: str = "page", fails: Exception | None = None) -> None:
        self.name = name
        self._events = events
        self._fails = fails

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        if self._fails is not None:
            raise self._fails
        self._events.append(f"{self.name} opened")
        yield
        self._events.append(f"{self.name} closed")


def names(yard: Yard) -> list[str]:
    return [spec.name for spec in yard.list()]


async def refusal(*packs: str | Pack, **options: Any) -> str:
    """Return why a yard with these packs does not open."""
    with pytest.raises(PackError) as caught:
        async with Yard(packs=packs, **options):
            raise AssertionError
    return str(caught.value)


async def test_a_pack_that_is_named_publishes_its_tools_under_its_name(install: Install) -> None:
    install("page")

    async with Yard(packs=["page"]) as yard:
        answer = await yard.call("page_read")
        spec = yard.list()[0]

    assert (answer.data, spec.name, spec.source) == ("text", "page_read", "page")


async def test_a_pack_that_nobody_named_is_not_imported(install: Install) -> None:
    install("page", "raise SystemExit('imported')")
    install("other", PAGE.replace("page", "other"))

    async with Yard(packs=["other"]) as yard:
        assert names(yard) == ["other_read"]

    assert "callyard_page" not in sys.modules


async def test_a_pack_object_is_used_as_it_is() -> None:
    async with Yard(packs=[page()]) as yard:
        assert names(yard) == ["page_read"]


async def test_each_yard_gets_a_provider_of_its_own() -> None:
    made: list[Functions] = []

    def make(_: PackContext) -> Functions:
        made.append(Functions("page", [read]))
        return made[-1]

    pack = page(make=make)
    async with Yard(packs=[pack]), Yard(packs=[pack]):
        assert len({id(one) for one in made}) == 2


@every_row(
    ("source", "entry_point", "said"),
    [
        ("import nothing_of_that_name", "", "'callyard-page'"),
        ("raise SystemExit(3)", "", "SystemExit"),
        ("PACK = 3", "", "'int'"),
        ("", "", "PACK"),
        (PAGE.replace('Pack(name="page"', 'Pack(name="pages"'), "", "'pages'"),
        (PAGE.replace('Pack(name="page"', 'Pack(requires=">=99", name="page"'), "", ">=99"),
        (PAGE.replace('Pack(name="page"', 'Pack(requires="newest", name="page"'), "", "newest"),
        (PAGE.replace("page_read", "read"), "", "'page_'"),
        (PAGE.replace('operation="query"', 'operation="query", reasons=("gone",)'), "", "'gone'"),
        (PAGE.replace("[read]", "[read, read]"), "", "page_read"),
        (PAGE.replace('operation="query"', 'operation="query", requires_eval=True, eval_target="tab"'), "", "'tab'"),
        (PAGE.replace('Functions("page", [read])', "None"), "", "NoneType"),
        (PAGE.replace('Functions("page", [read])', "1 / 0"), "", "ZeroDivisionError"),
        (PAGE.replace("[read]", "[1]"), "", "page"),
        (PAGE.replace('Pack(name="page"', 'Pack(shown=("size",), name="page"'), "", "'size'"),
    ],
)
async def test_a_pack_that_is_wrong_does_not_open_and_the_sentence_names_it_and_its_package(
    tmp_path_factory: pytest.TempPathFactory, source: str, entry_point: str, said: str
) -> None:
    with installing(tmp_path_factory.mktemp("pack")) as install_package:
        install_package("page", source, entry_point=entry_point)
        sentence = await refusal("page")

    assert "'page'" in sentence
    assert "'callyard-page'" in sentence
    assert said in sentence
    assert "\n" not in sentence


@every_row(
    "pack",
    [
        page(name="Page"),
        page(name="my_page"),
        page(name="system"),
        page(make=None),
        page(toolsets=Toolset(name="reading")),
        page(needs=Needs(eval_targets=("The Page",))),
        page(config=dataclass(type("Settings", (), {"__annotations__": {"secrets": dict[str, str]}}))),
    ],
    ids=repr,
)
def test_a_wrong_pack_object_is_refused_at_once(pack: Pack) -> None:
    with pytest.raises(PackError):
        Yard(packs=[pack])


def test_an_unknown_pack_is_refused_at_once_with_what_was_meant(install: Install) -> None:
    install("page")

    with pytest.raises(PackError, match=r"'pge'.*'page'"):
        Yard(packs=["pge"])


def test_two_packages_with_one_pack_are_refused_with_both_names(install: Install) -> None:
    install("page")
    install("page", package="other-page")

    with pytest.raises(PackError, match=r"'callyard-page'.*'other-page'|'other-page'.*'callyard-page'"):
        Yard(packs=["page"])


async def test_a_range_that_has_this_version_is_met() -> None:
    async with Yard(packs=[page(requires=f">={VERSION},<99")]) as yard:
        assert names(yard) == ["page_read"]


async def test_a_missing_required_program_is_named_and_an_optional_one_is_not_needed() -> None:
    sentence = await refusal(page(needs=Needs(programs=("no-such-program",), optional=("nor-this",))))

    assert "'no-such-program'" in sentence
    assert "nor-this" not in sentence
    async with Yard(packs=[page(needs=Needs(programs=("sh",), optional=("nor-this",)))]) as yard:
        assert names(yard) == ["page_read"]


async def test_open_packs_close_in_reverse_order_when_a_later_one_fails() -> None:
    events: list[str] = []
    one = Pack(name="one", make=lambda _: FakeProvider(events, name="one"))
    two = Pack(name="two", make=lambda _: FakeProvider(events, name="two"))
    bad = Pack(name="bad", make=lambda _: FakeProvider(events, name="bad", fails=OSError("no display")))

    sentence = await refusal(one, two, bad)

    assert events == ["one opened", "two opened", "two closed", "one closed"]
    assert "'bad'" in sentence
    assert "no display" in sentence


async def test_a_pack_that_does_not_open_in_time_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callyard.packs.pack_set.OPEN_S", 0.01)

    class Slow:
        name = "page"

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            await asyncio.Event().wait()
            yield

    assert provider_module.OPEN_S == 30
    assert "'page'" in await refusal(page(make=giving(Slow())))


async def test_the_first_failure_of_a_group_is_the_reason() -> None:
    group = ExceptionGroup("several", [ExceptionGroup("inner", [OSError("no display")]), ValueError("other")])

    sentence = await refusal(page(make=giving(FakeProvider([], fails=group))))

    assert "no display" in sentence
    assert "several" not in sentence


async def test_a_secret_in_a_shown_field_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_LOGIN", "correct horse")
    settings = {"page": {"browser": "as correct horse", "secrets": {"login": "secretref:env:PAGE_LOGIN"}}}
    async with Yard(packs=["system", page(config=Size, shown=("browser",))], pack_settings=settings) as yard:
        shown = (await yard.call("list_packs")).data[1]["settings"]

    assert shown == {"browser": "as ***"}


async def test_a_pack_without_tools_is_shown_to_whoever_has_its_resources() -> None:
    @resource("page://text", name="page_text")
    def text() -> str:
        """Show the text."""
        return "text"

    pack = page(make=giving(Functions("page", resources=[text])))
    few = Profile(name="few", toolsets=(Toolset(name="own", names=("page_text", "list_packs")),))
    async with Yard(packs=["system", pack], profile=few) as yard:
        answer = await yard.call("list_packs")

    assert [fact["name"] for fact in answer.data] == ["system", "page"]


async def test_a_timeout_of_the_pack_itself_is_its_own_failure() -> None:
    failing = page(make=giving(FakeProvider([], fails=TimeoutError("the driver"))))

    assert "the driver" in await refusal(failing)


async def test_a_tool_of_the_yard_with_the_name_of_a_packs_tool_is_a_failure() -> None:
    assert "page_read" in await refusal(page(), tools=[read])


async def test_nothing_of_a_pack_is_quarantined() -> None:
    class Foreign:
        name = "page"

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            publish([Tool.of(msgspec.structs.replace(made.spec, input_schema={}), made.handler)], foreign=True)
            yield

    made = Functions("page", [read]).tools()[0]

    assert "page_read" in await refusal(page(make=giving(Foreign())))


class Size(msgspec.Struct):
    """A configuration."""

    width: int = 800
    browser: str = ""


class Mode(msgspec.Struct):
    """A configuration with a choice."""

    mode: Literal["light", "dark"] = "light"


class SizeModel(BaseModel):
    """The same as a model."""

    width: int = 800
    browser: str = ""


@dataclass
class SizeClass:
    """The same as a dataclass."""

    width: int = 800
    browser: str = ""


@every_row("kind", [Size, SizeModel, SizeClass])
async def test_the_configuration_is_of_the_declared_type_and_only_shown_fields_are_shown(kind: type) -> None:
    given: list[Any] = []

    def make(context: PackContext) -> Functions:
        given.append(context.config)
        return Functions("page", [read])

    settings = {"page": {"width": 640, "browser": "hidden"}}
    pack = page(make=make, config=kind, shown="width")
    async with Yard(packs=["system", pack], pack_settings=settings) as yard:
        answer = await yard.call("list_packs")

    assert (given[0].width, given[0].browser, type(given[0])) == (640, "hidden", kind)
    assert answer.data[1]["settings"] == {"width": 640}
    assert "hidden" not in str(answer.data)


@every_row(
    ("kind", "settings", "said"),
    [
        (Size, {"widht": 1}, "'width'"),
        (SizeModel, {"widht": 1}, "'width'"),
        (SizeClass, {"widht": 1}, "'width'"),
        (None, {"width": 1}, "pack.page.width"),
        (Size, {"width": "hunter2"}, "width"),
        (SizeModel, {"width": "hunter2"}, "width"),
        (Mode, {"mode": "hunter2"}, "mode"),
        (Size, {"browser": "secretref:env:NO_SUCH_SECRET"}, "NO_SUCH_SECRET"),
        (Size, {"secrets": {"login": "secretref:env:NO_SUCH_SECRET"}}, "NO_SUCH_SECRET"),
        (Size, {"secrets": "hunter2"}, "pack.page.secrets"),
    ],
)
async def test_a_wrong_configuration_fails_with_its_place_and_without_its_value(
    kind: type | None, settings: dict[str, Any], said: str
) -> None:
    sentence = await refusal(page(config=kind), pack_settings={"page": settings})

    assert said in sentence
    assert "hunter2" not in sentence


async def test_references_are_filled_in_wherever_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nested(msgspec.Struct):
        urls: list[str]
        headers: dict[str, str]

    monkeypatch.setenv("HOST", "example.com")
    given: list[Any] = []

    def make(context: PackContext) -> Functions:
        given.append(context.config)
        return Functions("page", [read])

    settings = {"page": {"urls": ["https://${HOST}"], "headers": {"Origin": "${HOST}"}}}
    async with Yard(packs=[page(make=make, config=Nested)], pack_settings=settings):
        assert given == [Nested(["https://example.com"], {"Origin": "example.com"})]


async def test_a_model_that_refuses_a_combination_says_why() -> None:
    class Checked(BaseModel):
        width: int = 800

        @model_validator(mode="after")
        def check(self) -> "Checked":
            raise ValueError("It is too wide.")

    class Broken:
        model_fields: ClassVar[dict[str, Any]] = {}

        @classmethod
        def model_validate(cls, _: object) -> None:
            raise ValueError("hunter2")

    assert "too wide" in await refusal(page(config=Checked))
    sentence = await refusal(page(config=Broken))
    assert "ValueError" in sentence
    assert "hunter2" not in sentence


async def test_a_pack_notifies_of_updates_and_sees_subscriptions() -> None:
    publishes: list[Publish] = []
    seen: list[set[str]] = []
    updated: list[str] = []

    @resource("page://text", name="page_text")
    def text() -> str:
        """Show the text."""
        return "text"

    class Watching(FakeProvider):
        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            publishes.append(publish)
            publish((), resources=Functions("page", resources=[text]).resources())
            stop = publish.watch_subscriptions(lambda uris: seen.append(set(uris)))
            yield
            stop()

    async with Yard(packs=[page(make=giving(Watching([])))]) as yard:
        yard.registry.watch_updates(updated.append)
        yard.registry.subscribe(["page://text"], yard.profile)
        publishes[0].updated("page://text")

    assert seen == [set(), {"page://text"}]
    assert updated == ["page://text"]


def test_a_table_of_a_pack_that_is_not_named_is_refused_with_what_was_meant() -> None:
    with pytest.raises(PackError, match=r"pack\.pge.*'page'"):
        Yard(packs=[page()], pack_settings={"pge": {}})
    with pytest.raises(PackError, match=r"pack\.system"):
        Yard(packs=["system"], pack_settings={"system": {"a": 1}})


async def test_secrets_are_resolved_named_and_masked_in_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGE_LOGIN", "correct horse")
    contexts: list[PackContext] = []

    def make(context: PackContext) -> Functions:
        contexts.append(context)
        raise OSError(f"cannot sign in with {context.secret('login')}")

    secrets = {"login": "secretref:env:PAGE_LOGIN", "literal": "battery staple"}
    sentence = await refusal(page(make=make), pack_settings={"page": {"secrets": secrets}})

    assert contexts[0].secrets == ["literal", "login"]
    assert contexts[0].secret("literal") == "battery staple"
    assert "correct horse" not in sentence
    assert {"correct horse", "battery staple"} <= configured_secrets()
    with pytest.raises(LookupError, match=r"'logins'.*'login'"):
        contexts[0].secret("logins")


async def test_the_folder_of_a_pack_is_its_own_and_private(tmp_path: Path) -> None:
    contexts: dict[str, PackContext] = {}

    def keep(context: PackContext) -> FakeProvider:
        contexts[context.name] = context
        return FakeProvider([], name=context.name)

    packs = [Pack(name="one", make=keep), Pack(name="two", make=keep)]
    async with Yard(packs=packs, state_dir=str(tmp_path)):
        folders = [context.folder() for context in contexts.values()]

    assert len(set(folders)) == 2
    assert all(folder.is_relative_to(tmp_path) and folder.stat().st_mode & 0o777 == 0o700 for folder in folders)


async def test_a_path_of_a_pack_is_relative_to_the_file_of_its_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = read_pack_tables({"pack": {"page": {}}}, tmp_path / "callyard.toml")
    contexts: list[PackContext] = []

    def keep(context: PackContext) -> FakeProvider:
        contexts.append(context)
        return FakeProvider([], name=context.name)

    monkeypatch.setenv("HOME", "/home/somebody")
    yard = Yard(packs=[Pack(name="page", make=keep)])
    yard.packs.configure((), tables, project=None)
    async with yard:
        pass
    paths = [contexts[0].path(text) for text in ("photos", "~/photos", "/photos")]

    assert paths == [tmp_path / "photos", Path("/home/somebody/photos"), Path("/photos")]


async def test_a_program_of_a_pack_ends_with_the_pack() -> None:
    codes: list[Callable[[], int | None]] = []

    class Driver:
        name = "page"

        def __init__(self, context: PackContext) -> None:
            self._context = context

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            async with self._context.keep_program(["cat"]) as program:
                program.stdin.write(b"ready\n")
                assert await program.stdout.readline() == b"ready\n"
                codes.append(lambda: program.exit_code)
                yield

    async with Yard(packs=[page(make=Driver)]):
        assert codes[0]() is None

    assert codes[0]() is not None


async def test_a_tool_of_a_pack_stores_a_result_and_takes_it_by_its_handle() -> None:
    @tool(name="page_take")
    async def take(call: Call) -> str:
        """Take a picture."""
        return await call.store({"pixels": [1, 2, 3]})

    @tool(name="page_count")
    async def count(call: Call, handle: str) -> int:
        """Count the pixels of a picture."""
        return len((await call.stored(handle))["pixels"])

    @tool(name="page_same")
    def same(picture: dict[str, list[int]]) -> int:
        """Count the pixels of a picture that is given by reference."""
        return len(picture["pixels"])

    async with Yard(packs=[page(take, count, same)]) as yard:
        handle = (await yard.call("page_take")).data
        counted = await yard.call("page_count", {"handle": handle})
        referred = await yard.call("page_same", {"picture": {"$ref": handle}})
        unknown = await yard.call("page_count", {"handle": "r_999"})

    assert (counted.data, referred.data) == (3, 3)
    assert unknown.error is not None
    assert unknown.error.code == "not_found"


async def test_the_sessions_of_a_pack_end_before_the_pack_closes_and_others_go_on() -> None:
    events: list[str] = []

    @tool(name="page_launch")
    async def launch(call: Call) -> str:
        """Launch a browser."""
        session = call.start_session(kind="browser")
        session.on_end(lambda: events.append("session ended"))
        return session.id

    @tool
    async def begin(call: Call) -> str:
        """Begin another session."""
        return call.start_session().id

    @tool(name="page_use", operation="query")
    def use(session: Session) -> str:
        """Use a session."""
        return session.source

    class Launching(FakeProvider):
        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            async with super().open(publish):
                publish(Functions("page", [launch, use]).tools())
                yield

    pack = page(make=giving(Launching(events)))
    yard = Yard(tools=[begin], packs=[pack])
    async with yard:
        mine = (await yard.call("page_launch")).data
        other = (await yard.call("begin")).data
        used = await yard.call("page_use", session=mine)
        await yard.providers.remove("page")
        left = [session.id for session in yard.sessions.all()]

    assert used.data == "page"
    assert events == ["page opened", "session ended", "page closed"]
    assert left == [other]


@every_row(
    ("allowed", "available"),
    [
        (False, []),
        (True, ["page_eval", "page_other", "page_own"]),
        (["page"], ["page_eval"]),
        ("page", ["page_eval"]),
        (("page", "other"), ["page_eval", "page_other"]),
        ((), []),
    ],
)
async def test_code_may_run_only_in_the_targets_that_are_allowed(allowed: Any, available: list[str]) -> None:
    rule = EvalRule("code", "javascript")

    @tool(name="page_eval", operation="eval", eval=rule, eval_target="page")
    def run_in_page(code: str) -> str:
        """Run code in the page."""
        return code

    @tool(name="page_other", operation="eval", eval=rule, eval_target="other")
    def run_elsewhere(code: str) -> str:
        """Run code elsewhere."""
        return code

    @tool(name="page_own", operation="eval", eval=rule)
    def run_here(code: str) -> str:
        """Run code in this process."""
        return code

    pack = page(run_in_page, run_elsewhere, run_here, needs=Needs(eval_targets=("page", "other")))
    async with Yard(packs=["system", pack], allow_eval=allowed, metatools=False) as yard:
        found = [name for name in names(yard) if name.startswith("page_")]
        facts = (await yard.call("list_packs")).data[1]
        answer = await yard.call("page_eval", {"code": "1"})

    states = {state["name"]: state["state"] for state in facts["tools"]}
    assert found == available
    assert states == {name: "available" if name in available else "gated" for name in states}
    assert facts["eval_targets"][0] == {"name": "page", "allowed": "page_eval" in available}
    assert answer.success is ("page_eval" in available)


async def test_list_packs_shows_what_a_pack_is_and_needs(install: Install) -> None:
    install(
        "page",
        PAGE.replace('operation="query"', 'operation="query", reasons=("gone",)')
        .replace(
            'Pack(name="page"',
            'Pack(reasons={"gone": Reason()}, needs=Needs(programs=("/bin/sh",), optional=("nor-this",)), name="page"',
        )
        .replace("Functions, Pack,", "Functions, Needs, Pack, Reason,"),
        version="4.5",
    )

    async with Yard(packs=["system", "page"]) as yard:
        system, facts = (await yard.call("list_packs")).data

    assert (system["name"], system["version"], system["state"]) == ("system", VERSION, "open")
    assert {"name": "ping", "state": "available", "reason": ""} in system["tools"]
    assert facts == {
        "name": "page",
        "version": "4.5",
        "state": "open",
        "tools": [{"name": "page_read", "state": "available", "reason": ""}],
        "reasons": {"gone": "state_error"},
        "programs": [
            {"name": "sh", "required": True, "found": True},
            {"name": "nor-this", "required": False, "found": False},
        ],
        "eval_targets": [],
        "settings": {},
    }


async def test_list_packs_hides_a_pack_of_which_the_caller_has_nothing() -> None:
    few = Profile(name="few", toolsets=(Toolset(name="own", sources=("system",)),))

    async with Yard(packs=["system", page()], profile=few) as yard:
        answer = await yard.call("list_packs")

    assert [fact["name"] for fact in answer.data] == ["system"]


async def test_a_pack_brings_resources_prompts_and_toolsets() -> None:
    @resource("page://text", name="page_text")
    def text() -> str:
        """Show the text."""
        return "text"

    @prompt(name="page_summary")
    def summary() -> str:
        """Ask for a summary."""
        return "Summarise the page."

    class Everything(FakeProvider):
        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            made = Functions("page", [read], resources=[text], prompts=[summary])
            async with made.open(publish):
                yield

    reading = Toolset(name="page_reading", names=("page_read",))
    pack = page(make=giving(Everything([])), toolsets=reading)
    pending = Profile(name="readers", toolsets=(pending_toolset("page_reading"),))
    async with Yard(packs=["system", pack], profiles=[pending], metatools=False) as yard:
        contents = await yard.read("page://text")
        prompts = [spec.name for spec in yard.list_prompts()]
        listed = [spec.name for spec in yard.list("readers")]

    assert contents.success
    assert prompts == ["page_summary"]
    assert listed == ["page_read"]


async def test_a_toolset_that_no_pack_has_is_refused_with_what_was_meant() -> None:
    pack = page(toolsets=Toolset(name="page_reading", names=("page_read",)))
    wrong = Profile(name="readers", toolsets=(pending_toolset("page_readng"),))

    assert "'page_reading'" in await refusal(pack, profiles=[wrong])


def facts(yard: Yard) -> dict[str, str]:
    """Return the states of the packs."""
    return {fact["name"]: fact["state"] for fact in yard.packs.describe(yard, yard.profile)}


async def test_packs_are_added_changed_and_removed_while_the_yard_is_open(install: Install) -> None:
    install(
        "page",
        PAGE.replace('name="page",', 'name="page", config=Size,').replace(
            "PACK =", "import msgspec\n    class Size(msgspec.Struct):\n        width: int = 1\n    PACK ="
        ),
    )
    install("other", PAGE.replace("page", "other"))

    async with Yard(packs=[Pack(name="fixed", make=lambda _: FakeProvider([], name="fixed"))]) as yard:
        added = await yard.packs.change(yard, ["page", "other"], {})
        same = await yard.packs.change(yard, ["page", "other"], {})
        restarted = await yard.packs.change(yard, ["page"], pack_tables_of_code({"page": {"width": 2}}))
        left = names(yard)

    assert (added.added, added.problems) == (["page", "other"], [])
    assert (same.added, same.restarted, same.removed) == ([], [], [])
    assert (restarted.restarted, restarted.removed) == (["page"], ["other"])
    assert left == ["page_read"]


async def test_a_pack_whose_secret_has_another_value_is_restarted(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("page")
    tables = pack_tables_of_code({"page": {"secrets": {"login": "secretref:env:PAGE_LOGIN"}}})
    monkeypatch.setenv("PAGE_LOGIN", "correct horse")
    async with Yard() as yard:
        await yard.packs.change(yard, ["page"], tables)
        same = await yard.packs.change(yard, ["page"], tables)
        monkeypatch.setenv("PAGE_LOGIN", "battery staple")
        other = await yard.packs.change(yard, ["page"], tables)
        monkeypatch.delenv("PAGE_LOGIN")
        gone = await yard.packs.change(yard, ["page"], tables)
        left = facts(yard)

    assert (same.restarted, other.restarted) == ([], ["page"])
    assert (gone.restarted, len(gone.problems), left) == ([], 1, {"page": "failed"})


async def test_a_change_that_fails_fails_only_its_pack_which_is_tried_again(install: Install) -> None:
    install(
        "page",
        PAGE.replace('Pack(name="page"', 'Pack(needs=Needs(programs="no-such"), name="page"').replace(
            "Functions, Pack,", "Functions, Needs, Pack,"
        ),
    )

    async with Yard(packs=[Pack(name="fixed", make=lambda _: FakeProvider([], name="fixed"))]) as yard:
        failed = await yard.packs.change(yard, ["page"], {})
        during = facts(yard)
        again = await yard.packs.change(yard, ["page"], {})
        with pytest.raises(PackError):
            await yard.packs.change(yard, ["page"], pack_tables_of_code({"nothing": {}}))
        after = facts(yard)
        missing = await yard.packs.change(yard, ["page", "nothing"], {})
        gone = await yard.packs.change(yard, [], {})

    assert (failed.added, len(failed.problems)) == ([], 1)
    assert during == after == {"fixed": "open", "page": "failed"}
    assert len(again.problems) == 1
    assert ("'nothing'" in missing.problems[-1], len(missing.problems)) == (True, 2)
    assert gone.removed == ["page", "nothing"]


async def test_a_pack_that_does_not_close_cleanly_is_a_problem_of_that_pack(install: Install) -> None:
    install(
        "page",
        PAGE.replace('Functions("page", [read])', "Bad()").replace(
            "PACK =",
            "class Bad:\n        name = 'page'\n        @asynccontextmanager\n        async def open(self, publish):\n"
            "            yield\n            raise OSError('stuck')\n    PACK =",
        ),
    )

    async with Yard() as yard:
        await yard.packs.change(yard, ["page"], {})
        closed = await yard.packs.change(yard, [], {})

    assert closed.removed == ["page"]
    assert len(closed.problems) == 1


async def test_a_pack_may_say_that_it_is_not_ready_and_give_instructions_but_passes_no_headers_on() -> None:
    class Talking(FakeProvider):
        instructions = "Read the page first."
        forward_headers = ("authorization",)

    async with Yard(packs=[page(make=giving(Talking([])))]) as yard:
        text = yard.instructions_for(yard.profile)
        headers = yard.providers.forward_headers

    assert "Read the page first." in text
    assert headers == []


def test_the_text_of_a_pack_is_its_name_alone() -> None:
    assert repr(page(reasons={"gone": Reason()})) == "<Pack 'page'>"
