"""A webhook gets signed JSON with an idempotency key; a command gets it on its stdin."""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from table_tests import every_row

from callyard._internal.webhooks import signature
from callyard.launch.build import post_json
from callyard.monitor.notifiers import CommandNotifier, Notice, NotifyError, Outbox, WebhookNotifier
from callyard.testing import FakeClock

NOTICE = Notice(type="alert", key="i_1-alert", at=1000.0, origin="shop", incident={"id": "i_1", "rule": "down"})


class Receiver:
    """An HTTP server that answers with a status, and keeps what it is sent."""

    def __init__(self, status: int) -> None:
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.status = status
        self.url = ""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")[1:-2]
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
        self.requests.append((headers, await reader.readexactly(int(headers["content-length"]))))
        if self.status:
            writer.write(b"HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n" % self.status)
        writer.close()

    @asynccontextmanager
    async def open(self) -> AsyncGenerator["Receiver"]:
        server = await asyncio.start_server(self.handle, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        async with server:
            yield self


async def test_a_webhook_gets_signed_json_with_an_idempotency_key() -> None:
    async with Receiver(204).open() as receiver:
        await WebhookNotifier(receiver.url, "s3cret", post_json).notify(NOTICE)
    ((headers, body),) = receiver.requests

    assert headers["callyard-signature"] == signature("s3cret", headers["callyard-timestamp"], body)
    assert headers["idempotency-key"] == "i_1-alert"
    incident = {"id": "i_1", "rule": "down"}
    expected = {"type": "alert", "key": "i_1-alert", "at": 1000.0, "origin": "shop", "incident": incident}
    assert json.loads(body) == expected


@every_row(("status", "refused"), [(0, False), (302, False), (400, True), (401, True), (429, False), (503, False)])
async def test_a_webhook_that_takes_nothing_is_tried_again(status: int, *, refused: bool) -> None:
    async with Receiver(status).open() as receiver:
        with pytest.raises(NotifyError) as failure:
            await WebhookNotifier(receiver.url, "s3cret", post_json).notify(NOTICE)

    assert failure.value.is_refused is refused


async def test_a_command_gets_the_notice_on_its_stdin(tmp_path: Path) -> None:
    script = "import sys; print('x' * 1_000_000); open(sys.argv[1], 'w').write(sys.stdin.read())"
    await CommandNotifier([sys.executable, "-c", script, str(tmp_path / "notice")]).notify(NOTICE)

    assert json.loads((tmp_path / "notice").read_text())["incident"]["id"] == "i_1"


@every_row(
    ("command", "seconds"),
    [(["false"], 30.0), (["/no/such/program"], 30.0), (["sleep", "1000"], 0.05)],
)
async def test_a_command_that_fails_is_tried_again(command: list[str], seconds: float) -> None:
    with pytest.raises(NotifyError) as failure:
        await CommandNotifier(command, seconds=seconds).notify(NOTICE)

    assert not failure.value.is_refused


async def test_a_command_need_not_read() -> None:
    await CommandNotifier(["true"]).notify(NOTICE)


async def test_a_notifier_that_fails_in_any_way_is_tried_again_after_a_while() -> None:
    class Broken:
        name = "broken"
        calls = 0

        async def notify(self, notice: Notice) -> None:
            self.calls += 1
            raise RuntimeError(notice.key)

    clock, notifier = FakeClock(), Broken()
    outbox = Outbox(notifier, clock)
    for expected in (1, 1, 2):
        assert await outbox.send(NOTICE) == "later"
        assert notifier.calls == expected
        clock.advance(0.6)
