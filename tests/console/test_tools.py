"""The page 'Tools': the list, the drawer of a tool, and the form that runs it in a real browser."""

import asyncio
import json
from base64 import b64decode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

import pytest
from playwright.async_api import Page, expect
from pydantic import BaseModel, Field

from callyard import Call, Example, Image, Limits, Rule, Yard, tool
from callyard.dispatch.tool import Tool, check_by_schema
from callyard.model.spec import Operation, ToolSpec
from callyard.providers import Publish

MARKUP = "<img src=x onerror=alert(1)>"
PAGE_BYTES = 200_000
ORDER = {
    "customer": "ada",
    "items": [{"sku": "mug", "count": 2}, {"sku": "cup", "count": 1}],
    "ship_to": {"city": "Berlin", "zip": "10115"},
    "size": "large",
    "gift": False,
    "note": "",
    "channels": ["sms"],
    "extra": {"a": [1, None]},
}


class Item(BaseModel):
    """An article and how many of it."""

    sku: str
    count: Annotated[int, Field(ge=1, le=99)] = 1


class Address(BaseModel):
    """Where to."""

    city: str
    zip: Annotated[str, Field(pattern=r"^\d{5}$")]


@tool(
    title="Place an order", tags=("sales",), reasons=("out_of_stock",), examples=[Example(ORDER, "Two articles", "o-1")]
)
async def place_order(  # noqa: PLR0917 - one argument for each kind of field
    customer: Annotated[str, Field(description="Who buys.")],
    items: list[Item],
    ship_to: Address,
    size: Literal["small", "large"] = "small",
    gift: bool = True,  # noqa: FBT001, FBT002 - the tool's signature
    note: str | None = None,
    discount: Annotated[float, Field(ge=0, le=0.5)] = 0.0,
    channels: list[Literal["email", "sms"]] | None = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Place an order."""
    facts = {
        "customer": customer,
        "items": [item.model_dump() for item in items],
        "ship_to": ship_to.model_dump(),
        "size": size,
    }
    return {**facts, "gift": gift, "note": note, "discount": discount, "channels": channels, "extra": extra}


@tool(operation="query", title=f"Echo {MARKUP}")
async def echo(text: str) -> str:
    """Answer with the <b>text</b>."""
    return f"{MARKUP} {text}"


@tool
async def read_pages(call: Call) -> str:
    """Read a few pages."""
    await call.progress(1, 4, f"page {MARKUP}")
    await call.log("warning", f"It is slow {MARKUP}")
    await asyncio.Event().wait()
    return "done"


@tool
async def paint(call: Call) -> Any:
    """Ask for a colour."""
    fields = {
        "colour": {"enum": ["red", "green"], "type": "string", "description": MARKUP},
        "sure": {"type": "boolean"},
    }
    return await call.ask(
        {"type": "object", "properties": fields, "required": ["colour", "sure"]}, f"Which colour? {MARKUP}"
    )


@tool(operation="destroy")
async def close_account(account: str) -> str:
    """Close an account for good."""
    return f"{account} is closed"


@tool(operation="query")
async def read_much() -> list[str]:
    """Answer with more than a page should hold."""
    return ["x" * 100 for _ in range(480)]


class Many:
    """Publishes ten thousand tools."""

    name = "many"

    @asynccontextmanager
    async def open(self, publish: Publish) -> AsyncGenerator[None]:
        """Publish them."""

        async def answer(_: Call) -> int:
            return 1

        def make(number: int) -> Tool:
            verb, noun = ("find", "close", "send")[number % 3], ("order", "invoice", "parcel", "account")[number % 4]
            properties = {noun: {"type": "string", "description": f"The {noun}."}}
            spec = ToolSpec(
                name=f"{verb}_{noun}_{number}",
                description=f"{verb.capitalize()} the {noun} of shop {number}.",
                input_schema={"type": "object", "properties": properties, "additionalProperties": False},
                operation=list(Operation)[number % 3],
                source=self.name,
            )
            return Tool(spec=spec, handler=answer, check=check_by_schema(spec.input_schema))

        publish([make(number) for number in range(10_000)])
        yield


def names_in(page: str) -> list[str]:
    return [part.partition("<")[0].partition(">")[2] for part in page.split('<a class="name"')[1:]]


async def run(served: Any, person: tuple[dict[str, str], str], name: str, arguments: str = "{}", **headers: str) -> Any:
    cookie, csrf = person
    form = {"csrf": csrf, "tool": name, "arguments": arguments, "back": "/console/tools"}
    return await served.client.post("/console/tools/run", data=form, headers={**cookie, **headers})


# Pages


async def test_the_list_shows_every_tool_with_its_operation_source_cost_and_counters(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, place_order, close_account])) as served:
        await served.call("echo", {"text": "x"})
        await served.call("echo", {})
        page = (await served.client.get("/console/tools")).text

    assert names_in(page) == ["close_account", "echo", "place_order"]
    assert "badge destroy" in page
    row = page.partition(">echo</a>")[2].partition("</tr>")[0]
    assert "/console/calls?tool=echo" in row
    assert 'data-label="Failed" class="figure"><span class="bad">1<' in row


async def test_the_list_can_be_searched_filtered_and_sorted(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, place_order, close_account])) as served:

        async def names(query: str) -> list[str]:
            return names_in((await served.client.get(f"/console/tools?{query}")).text)

        await served.call("echo", {"text": "x"})
        assert (await names("q=buy+something+for+a+customer"))[0] == "place_order"
        assert await names("operation=destroy") == ["close_account"]
        assert await names("operation=nonsense&page=x&sort=x") == ["close_account", "echo", "place_order"]
        assert await names("q=close&operation=query") == []
        assert (await names("sort=tokens"))[0] == "place_order"
        assert (await names("sort=calls"))[0] == "echo"
        assert "search_tools" in await names("source=metatools")


async def test_search_works_in_a_yard_without_metatools(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, place_order], metatools=False)) as served:
        assert names_in((await served.client.get("/console/tools?q=place+order")).text) == ["place_order"]


async def test_ten_thousand_tools_fit_in_small_pages(serve: Any) -> None:
    async with serve(Yard("shop", providers=[Many()])) as served:
        pages = [
            (await served.client.get(f"/console/tools?{query}", timeout=60)).text
            for query in ("", "page=200", "q=send+an+invoice", "sort=tokens")
        ]

    assert [len(names_in(page)) for page in pages] == [50, 50, 50, 50]
    assert max(map(len, pages)) < PAGE_BYTES
    assert all("invoice" in name for name in names_in(pages[2]))
    assert "10,000" in pages[0]


async def test_the_drawer_describes_a_tool_and_needs_no_scripts(serve: Any) -> None:
    async with serve(Yard("shop", tools=[place_order])) as served:
        page = (await served.client.get("/console/tools?open=place_order")).text
        whole = (await served.client.get("/console/tools/describe/place_order")).json()
        missing = await served.client.get("/console/tools?open=nothing")
        nowhere = await served.client.get("/console/tools/describe/nothing")

    drawer = page.partition('<aside class="drawer"')[2]
    for text in (
        "Place an order",
        "sales",
        "out_of_stock",
        "readOnlyHint",
        "Two articles",
        "async def place_order",
        "Input schema",
        "Output schema",
    ):
        assert text in drawer
    assert "place_order(customer: str, items: list[Item], ship_to: Address" in drawer
    assert whole["input_schema"]["required"] == ["customer", "items", "ship_to"]
    assert "There is no tool of this name." in missing.text
    assert nowhere.status_code == 404


async def test_texts_of_tools_show_as_text(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        person = await served.person()
        answered = await run(served, person, "echo", '{"text": "x"}')
        pages = [
            (await served.client.get(answered.headers["location"], headers=person[0])).text,
            (await served.client.get(f"/console/tools?q={MARKUP}&open={MARKUP}&source={MARKUP}")).text,
        ]

    assert all("<img src=x" not in page and "<b>text" not in page for page in pages)
    assert "&lt;img src=x" in pages[0]


async def test_a_run_needs_a_login_and_its_token(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        cookie, csrf = await served.person()
        form = {"tool": "echo", "arguments": '{"text": "x"}'}
        tries: list[tuple[dict[str, str], dict[str, str]]] = [
            ({}, {"csrf": csrf}),
            (cookie, {}),
            (cookie, {"csrf": "wrong"}),
            ({**cookie, "Origin": "https://evil.example"}, {"csrf": csrf}),
        ]
        statuses = [
            (await served.client.post("/console/tools/run", data={**form, **extra}, headers=headers)).status_code
            for headers, extra in tries
        ]
        page = (await served.client.get("/console/tools?open=echo")).text

    assert statuses == [403, 403, 403, 403]
    assert "/console/tools/run" not in page
    assert "log in" in page


async def test_without_scripts_a_run_leads_to_a_page_that_shows_it(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        person = await served.person()
        answered = await run(served, person, "echo", '{"text": "planted"}')
        page = await served.client.get(answered.headers["location"], headers=person[0])
        broken = await run(served, person, "echo", '{"txt": 1}')
        wrong = await served.client.get(broken.headers["location"], headers=person[0])

    assert answered.status_code == 303
    assert answered.headers["location"].startswith("/console/tools?")
    assert "planted" in page.text
    assert 'data-field="text"' in wrong.text


async def test_the_contents_of_a_run_are_shown_to_its_own_login_alone(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo, read_pages])) as served:
        ada, bob = await served.person(), await served.person()
        location = (await run(served, ada, "echo", '{"text": "planted"}')).headers["location"]
        run_id = location.partition("run=")[2].partition("&")[0]
        urls = [
            location,
            f"/console/tools/runs/{run_id}/envelope",
            f"/console/tools/runs/{run_id}/arguments",
            "/console/tools?open=echo",
            "/console/calls",
            "/console",
        ]
        everybody_else: list[dict[str, str]] = [{}, bob[0]]
        own = [(await served.client.get(url, headers=ada[0])).text for url in urls]
        others = [(await served.client.get(url, headers=headers)).text for url in urls for headers in everybody_else]
        cancelled = await served.client.post(
            f"/console/tools/runs/{run_id}/cancel", data={"csrf": bob[1]}, headers=bob[0]
        )

    assert all("planted" in page for page in own[:3])
    assert all("no longer kept, or it is of another login" in page for page in others[:2])
    assert not any("planted" in page for page in others)
    assert cancelled.status_code == 404


async def test_a_large_answer_is_cut_on_the_page_and_whole_in_a_file(serve: Any) -> None:
    async with serve(Yard("shop", tools=[read_much])) as served:
        person = await served.person()
        location = (await run(served, person, "read_much")).headers["location"]
        run_id = location.partition("run=")[2].partition("&")[0]
        page = (await served.client.get(location, headers=person[0])).text
        whole = (await served.client.get(f"/console/tools/runs/{run_id}/envelope", headers=person[0])).json()

    assert len(page) < PAGE_BYTES
    assert "characters</a>" in page
    assert len(whole["data"]) == 480


async def test_scripts_get_the_address_of_a_run_and_of_what_is_wrong(serve: Any) -> None:
    async with serve(Yard("shop", tools=[read_pages, paint])) as served:
        person = await served.person()
        headers = {**person[0], "Accept": "application/json"}
        started = (await run(served, person, "paint", Accept="application/json")).json()
        run_id = started["to"].partition("run=")[2].partition("&")[0]
        answers = [
            await served.client.post(
                f"/console/tools/runs/{run_id}/answer", data={"csrf": person[1], **fields}, headers=headers
            )
            for fields in (
                {},
                {"action": "accept", "content": "{"},
                {"action": "accept", "question": "none", "content": "{}"},
            )
        ]
        nothing = await served.client.post("/console/tools/dance", data={"csrf": person[1]}, headers=headers)

    assert started["to"].startswith("/console/tools?")
    assert [answer.status_code for answer in answers] == [409, 409, 409]
    assert all(answer.json()["message"] for answer in answers)
    assert nothing.status_code == 404


async def test_a_call_for_operators_says_that_another_person_decides(serve: Any) -> None:
    rule = Rule(decision="ask", tools=("close_account",), by="operator", reason="Accounts are dear.")
    async with serve(Yard("shop", tools=[close_account], rules=[rule])) as served:
        person = await served.person()
        location = (await run(served, person, "close_account", '{"account": "x"}')).headers["location"]
        page = (await served.client.get(location, headers=person[0])).text

    assert "Waits for approval" in page
    assert "Accounts are dear." in page
    assert "/console/approvals?open=a_" in page


async def test_a_call_that_goes_on_elsewhere_says_where(serve: Any) -> None:
    @tool(job="always")
    async def count() -> int:
        """Count in the background."""
        return 1

    rule = Rule(decision="ask", tools=("close_account",), by="operator")
    yard = Yard("shop", tools=[close_account, count], rules=[rule], limits=Limits(approval_hold_s=0))
    async with serve(yard) as served:
        person = await served.person()
        locations = [
            (await run(served, person, name, arguments)).headers["location"]
            for name, arguments in (("close_account", '{"account": "x"}'), ("count", "{}"))
        ]
        held, job = [(await served.client.get(location, headers=person[0])).text for location in locations]

    assert "/console/approvals?open=a_" in held
    assert "/console/jobs?open=" in job


# In a browser


async def open_tool(served: Any, look: Any, name: str, **options: Any) -> Page:
    page: Page = await look(served.login_to(f"tools?open={name}"), **options)
    await expect(page.locator("#run-form")).to_be_visible()
    return page


async def answer_in(page: Page) -> Any:
    await expect(page.locator("#run_result [data-over]")).to_be_visible()
    return json.loads(
        await page.evaluate(
            "async () => (await consoleFetch(document.querySelector('[data-copy-from]').dataset.copyFrom)).text()"
        )
    )


async def test_a_tool_is_run_from_its_form(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[place_order])) as served:
        page = await open_tool(served, look, "place_order")
        fields = page.locator("#run-form [data-fields]")
        await fields.locator("[data-name=customer] textarea").fill("ada")
        for sku in ("mug", "cup"):
            await fields.locator("[data-name=items] [data-add]").click()
            await fields.locator("[data-name=sku] textarea").last.fill(sku)
        await fields.locator("[data-name=items] [data-remove]").last.click()
        await fields.locator("[data-name=count] input").fill("3")
        await fields.locator("[data-name=city] textarea").fill("Köln")
        await fields.locator("[data-name=zip] textarea").fill("50667")
        await fields.locator("[data-name=size] select").select_option(label="large")
        await fields.locator("[data-name=gift] input").uncheck()
        await fields.locator("[data-name=discount] input").fill("0.25")
        await fields.locator("[data-name=channels] input").first.check()
        await page.locator("[data-start]").click()
        answer = await answer_in(page)
        address = page.url
        await page.reload()
        await expect(page.locator("[data-name=city] textarea")).to_have_value("Köln")

    assert answer["data"] == {
        "customer": "ada",
        "items": [{"sku": "mug", "count": 3}],
        "ship_to": {"city": "Köln", "zip": "50667"},
        "size": "large",
        "gift": False,
        "note": None,
        "discount": 0.25,
        "channels": ["email"],
        "extra": None,
    }
    assert "run=" in address


async def test_an_example_fills_the_form_and_comes_out_as_it_was(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[place_order])) as served:
        page = await open_tool(served, look, "place_order")
        await page.locator("[data-examples]").select_option(label="Two articles")
        await expect(page.locator("[data-name=sku] textarea")).to_have_count(2)
        await page.locator("[data-tab=json]").click()
        written = json.loads(await page.locator("#arguments").input_value())
        await page.locator("#arguments").fill('{"customer": "ada", "unknown": 1}')
        await page.locator("[data-tab=fields]").click()
        await expect(page.locator("[data-json-tab] .wrong")).to_be_visible()
        await expect(page.locator("[data-json-tab]")).to_be_visible()
        await page.locator("#arguments").fill('{"customer": "eve"}')
        await page.locator("[data-tab=fields]").click()
        await expect(page.locator("[data-name=customer] textarea")).to_have_value("eve")
        await expect(page.locator("[data-name=sku] textarea")).to_have_count(0)

    assert written == ORDER


async def test_invalid_input_marks_its_fields(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[place_order])) as served:
        page = await open_tool(served, look, "place_order")
        await page.locator("[data-examples]").select_option(label="Two articles")
        await page.locator("[data-name=zip] textarea").fill("no")
        await page.locator("[data-name=count] input").last.fill("100")
        await page.locator("[data-name=customer] textarea").fill("")
        await page.locator("[data-start]").click()
        await expect(page.locator("#run_result [data-over]")).to_be_visible()
        bad = page.locator(".field.bad:not(:has(.field.bad))")
        await expect(bad).to_have_count(3)
        assert sorted([str(await field.get_attribute("data-name")) for field in await bad.all()]) == [
            "count",
            "customer",
            "zip",
        ]
        await expect(page.locator("[data-items] > .field").first.locator(".bad")).to_have_count(0)
        await expect(page.locator("[data-name=customer] textarea")).to_have_attribute("aria-invalid", "true")
        await page.locator("[data-examples]").select_option(label="Two articles")
        await page.locator("[data-again]").click()
        await expect(page.locator("#run_result .ok").first).to_be_visible()
        await expect(page.locator(".field.bad")).to_have_count(0)
        await page.locator("[data-name=extra] textarea").fill("{")
        await page.locator("[data-start]").click()
        await expect(page.locator("[data-name=extra].bad .wrong")).to_be_visible()


async def test_a_run_shows_progress_and_log_lines_and_can_be_cancelled(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[read_pages])) as served:
        page = await open_tool(served, look, "read_pages")
        await page.locator("[data-start]").click()
        await expect(page.locator("#run_status progress")).to_have_attribute("max", "4")
        await expect(page.locator("#run_status .log")).to_contain_text(f"It is slow {MARKUP}")
        await page.reload()
        await expect(page.locator("#run_status")).to_contain_text(f"page {MARKUP}")
        await page.locator("#run_status button").click()
        await expect(page.locator("#run_result")).to_contain_text("cancelled")
        await expect(page.locator("[data-start]")).to_be_enabled()
        assert await page.locator("img[src=x]").count() == 0


async def test_a_question_is_answered_in_the_page(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[paint])) as served:
        page = await open_tool(served, look, "paint")
        await page.locator("[data-start]").click()
        question = page.locator("#run_question form")
        await expect(question).to_contain_text(f"Which colour? {MARKUP}")
        await question.locator("[data-name=colour] select").select_option(label="green")
        await question.locator("[data-name=sure] input").check()
        await question.get_by_role("button", name="Send").click()
        answer = await answer_in(page)
        await expect(question).to_have_count(0)

    assert answer["data"] == {"colour": "green", "sure": True}


@pytest.mark.parametrize(("button", "code"), [("Approve", None), ("Deny", "approval_denied")])
async def test_a_tool_that_destroys_is_approved_in_the_page(
    serve: Any, look: Any, button: str, code: str | None
) -> None:
    async with serve(Yard("shop", tools=[close_account])) as served:
        page = await open_tool(served, look, "close_account")
        await page.locator("[data-name=account] textarea").fill("savings")
        await page.keyboard.press("Enter")
        await expect(page.locator("#run_question")).to_contain_text("savings")
        await page.locator("#run_question").get_by_role("button", name=button).click()
        answer = await answer_in(page)

    assert (answer["error"] or {"code": None})["code"] == code
    assert answer["data"] == (None if code else "savings is closed")


@pytest.mark.parametrize("keys", ["Enter", "Control+Enter"])
async def test_enter_in_the_reason_of_an_approval_decides_nothing(serve: Any, look: Any, keys: str) -> None:
    async with serve(Yard("shop", tools=[close_account])) as served:
        page = await open_tool(served, look, "close_account")
        await page.locator("[data-name=account] textarea").fill("savings")
        await page.keyboard.press("Enter")
        await page.locator("#run_question [data-name=reason] textarea").fill("No, it is in use.")
        await page.keyboard.press(keys)
        await page.locator("#run_question").get_by_role("button", name="Deny").click()
        answer = await answer_in(page)

    assert answer["error"]["code"] == "approval_denied"


async def test_an_image_in_an_answer_is_shown(serve: Any, look: Any) -> None:
    pixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

    @tool(operation="query")
    async def draw() -> Image:
        """Draw a pixel."""
        return Image(b64decode(pixel))

    async with serve(Yard("shop", tools=[draw])) as served:
        page = await open_tool(served, look, "draw")
        await page.locator("[data-start]").click()
        picture = page.locator("#run_result img")
        await expect(picture).to_be_visible()

        assert await picture.evaluate("image => image.decode().then(() => image.naturalWidth)") == 1


async def test_texts_of_tools_run_no_script(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page = await open_tool(served, look, "echo")
        await page.locator("[data-name=text] textarea").fill(MARKUP)
        await page.locator("[data-start]").click()
        await expect(page.locator("#run_result .json")).to_contain_text(f"{MARKUP} {MARKUP}")
        assert await page.locator("img[src=x]").count() == 0
        await expect(page.locator(".drawer h1")).to_contain_text(MARKUP)


async def test_strange_names_of_arguments_are_kept(serve: Any, look: Any) -> None:
    names = {MARKUP: "1", "a.b": "2", "__proto__": "3", "x": "4"}

    class Strange:
        name = "strange"

        @asynccontextmanager
        async def open(self, publish: Publish) -> AsyncGenerator[None]:
            async def answer(call: Call) -> Any:
                return dict(call.arguments)

            schema: dict[str, Any] = {
                "type": "object",
                "properties": {name: {"type": "string"} for name in names},
                "additionalProperties": False,
            }
            spec = ToolSpec(name="odd", description="x", input_schema=schema, operation=Operation.QUERY)
            publish([Tool(spec=spec, handler=answer, check=check_by_schema(schema))])
            yield

    async with serve(Yard("shop", providers=[Strange()])) as served:
        page = await open_tool(served, look, "odd")
        for number, value in enumerate(names.values()):
            await page.locator("#run-form .field textarea").nth(number).fill(value)
        await page.locator("[data-start]").click()
        answer = await answer_in(page)

    assert answer["data"] == names


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_on_a_phone_nothing_scrolls_sideways(serve: Any, look: Any, scheme: str) -> None:
    wide = (
        "() => [document.documentElement, ...document.querySelectorAll('.drawer')]"
        ".every((part) => part.scrollWidth <= part.clientWidth)"
    )
    async with serve(Yard("shop", tools=[place_order, echo])) as served:
        page = await open_tool(served, look, "place_order", width=390, scheme=scheme)
        await page.locator("[data-examples]").select_option(label="Two articles")
        await page.locator("[data-start]").click()
        await expect(page.locator("#run_result [data-over]")).to_be_visible()
        assert await page.evaluate(wide)
        await page.locator("[data-close]").click()
        await expect(page.locator(".drawer")).to_have_count(0)
        assert await page.evaluate(wide)
        colour = await page.evaluate("() => getComputedStyle(document.body).backgroundColor")

    assert (colour == "rgb(15, 18, 23)") == (scheme == "dark")


async def test_the_keyboard_opens_a_tool_and_closes_it(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[place_order, echo])) as served:
        page: Page = await look(f"{served.base}/console/tools")
        await page.keyboard.press("j")
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator(".drawer h1")).to_contain_text("place_order")
        assert page.url.endswith("open=place_order")
        await page.keyboard.press("k")
        await page.keyboard.press("Enter")
        await expect(page.locator(".drawer h1")).to_contain_text("echo")
        await page.keyboard.press("Escape")
        await expect(page.locator(".drawer")).to_have_count(0)


async def test_the_name_of_a_source_is_not_broken(serve: Any, look: Any) -> None:
    async with serve(Yard("system", tools=[place_order, echo])) as served:
        page: Page = await look(f"{served.base}/console/tools", width=900)
        sizes = page.locator("td .source").first.evaluate(
            "e => e.getBoundingClientRect().height <= 1.6 * parseFloat(getComputedStyle(e).fontSize)"
        )

        assert await sizes


async def test_the_link_of_a_run_that_waits_leads_to_the_card_of_its_approval(serve: Any, look: Any) -> None:
    rule = Rule(decision="ask", tools=("close_account",), by="operator")
    yard = Yard("shop", tools=[close_account], rules=[rule], limits=Limits(approval_hold_s=0))
    async with serve(yard) as served:
        for number in range(8):
            await served.call("close_account", {"account": str(number)})
        page = await open_tool(served, look, "close_account")
        await page.locator("[data-name=account] textarea").fill("mine")
        await page.locator("[data-start]").click()
        await page.locator("#run").get_by_role("link", name="Approvals").click()
        card = page.get_by_role("article").filter(has_text="mine")
        await expect(card).to_be_in_viewport()


async def test_the_form_works_on_a_page_that_was_reached_by_links(serve: Any, look: Any) -> None:
    async with serve(Yard("shop", tools=[echo])) as served:
        page: Page = await look(served.login)
        await page.locator("#nav").get_by_text("Tools").click()
        await page.locator("table").get_by_text("echo", exact=True).click()
        await page.locator("[data-name=text] textarea").fill("x")
        await page.locator("[data-start]").click()
        await expect(page.locator("#run_result [data-over]")).to_be_visible()
        assert "run=" in page.url
