"""A webhook gets signed JSON with an idempotency key; a command gets it on its stdin."""

import json
import sys
from pathlib import Path

import pytest
from table_tests import every_row
from webhook_receivers import Receiver

from callyard._internal.webhooks import signature
from callyard.launch.build import post_json
from callyard.monitor.notifiers import CommandNotifier, Notice, NotifyError, Outbox, WebhookNotifier
from callyard.testing import FakeClock

NOTICE = Notice(type="alert", key="i_1-alert", at=1000.0, origin="shop", incident={"id": "i_1", "rule": "down"})


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
