"""The console below a path of a proxy: every link, form, stream and cookie stays below it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, expect

from callyard import Yard, tool


@tool(operation="query")
async def echo(text: str) -> str:
    """Answer with the text."""
    return text


@tool(operation="destroy")
async def wipe(place: str) -> str:
    """Wipe a place."""
    return f"wiped {place}"


class Proxy:
    """A proxy that serves one server below '/tools', and nothing else."""

    def __init__(self) -> None:
        self.url = ""
        self.target = 0
        """The port of the server."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, path, rest = head.split(b" ", 2)
            if not path.startswith(b"/tools/"):
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
                return
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
            line, _, fields = rest.partition(b"\r\n")
            kept = b"\r\n".join(one for one in fields.split(b"\r\n") if not one.lower().startswith(b"connection:"))
            to_server.write(b"%s %s %s\r\nConnection: close\r\n%s" % (method, path[len(b"/tools") :], line, kept))
            await asyncio.gather(_copy(reader, to_server), _copy(from_server, writer))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Proxy"]:
        """Listen while the context is open."""
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.ensure_future(self._serve(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/tools"
        try:
            yield self
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def test_below_a_path_of_a_proxy_every_link_form_stream_and_cookie_stays_there(serve: Any, look: Any) -> None:
    async with Proxy().open() as proxy:
        settings = {"serve.public_url": proxy.url}
        hold = "[limits]\napproval_hold_s = 0\n"
        async with serve(Yard("shop", tools=[echo, wipe]), hold, **settings) as served:
            proxy.target = int(served.base.rpartition(":")[2])
            await served.call("wipe", {"place": "moon"})
            page: Page = await look(f"{proxy.url}/console")
            asked: list[str] = []
            page.on("request", lambda request: asked.append(request.url))
            await page.get_by_label("Token").fill(served.login.partition("#token=")[2])
            await page.get_by_role("button", name="Log in").click()
            await expect(page.locator("#state")).to_have_text("Running")
            names = ("Tools", "Calls", "Jobs", "Sessions", "Upstreams", "Disabled", "Runtimes", "Settings", "Approvals")
            for name in names:
                await page.locator("#nav").get_by_role("link", name=name).click()
                await expect(page.get_by_role("heading", name=name, level=1)).to_be_visible()
            await served.call("wipe", {"place": "mars"})
            await expect(page.get_by_role("article")).to_have_count(2)  # by the stream
            await page.get_by_role("article").first.get_by_role("button", name="Deny").click()
            await expect(page.get_by_text("Denied.")).to_be_visible()
            await page.goto(f"{proxy.url}/console/tools?open=echo")
            await page.locator("[data-name=text] textarea").fill("731")
            await page.locator("[data-start]").click()
            await expect(page.locator("#run_result")).to_contain_text("731")
            links: list[str] = await page.eval_on_selector_all(
                "a[href], link[href]", "all => all.map((one) => one.href)"
            )
            forms: list[str] = await page.eval_on_selector_all("form", "all => all.map((one) => one.action)")
            cookies = await page.context.cookies()
            await page.get_by_role("button", name="Log out").click()
            await expect(page.get_by_role("heading", name="Log in to shop")).to_be_visible()
            home = await served.client.get("/")

    outside = [url for url in (*asked, *links, *forms) if not url.startswith(f"{proxy.url}/console")]
    assert outside == []
    assert [cookie.get("path") for cookie in cookies] == ["/tools/console"]
    assert home.headers["location"] == "/tools/console"


async def test_the_printed_address_has_the_path(serve: Any) -> None:
    async with serve(Yard("shop", tools=[echo]), **{"serve.public_url": "https://host.example/tools/"}) as served:
        page = await served.client.post(
            "/console/login",
            data={"credentials": served.login.partition("#token=")[2]},
            headers={"Accept": "application/json"},
        )

    assert "Path=/tools/console" in page.headers["set-cookie"].split("; ")
