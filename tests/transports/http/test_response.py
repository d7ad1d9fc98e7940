"""A response by itself, under a server that is not ours: what it sends, and when it gives up."""

import asyncio
import json
from typing import Any

import pytest

from callyard import Serving
from callyard.transports.http.response import AsgiWriter, Response
from callyard.wire.params import LEVELS


class Client:
    """Both channels of ASGI: it notes what is sent, reads only while it may, and goes when it is told to."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.goes = asyncio.Event()
        self._said = False

    async def send(self, event: Any) -> None:
        await self.reads.wait()
        self.events.append(event)

    async def receive(self) -> Any:
        if not self._said:
            self._said = True
            return {"type": "http.request", "body": b""}
        await self.goes.wait()
        return {"type": "http.disconnect"}

    @property
    def body(self) -> bytes:
        return b"".join(event.get("body", b"") for event in self.events)


@pytest.fixture
async def client() -> Client:
    return Client()


def response_to(client: Client, *, streams: bool = True, **settings: Any) -> Response:
    serving = Serving(transport="http", **settings)
    return Response(AsgiWriter(client.receive, client.send), serving, streams=streams)


def message(number: int, size: int = 0) -> bytes:
    return json.dumps({"n": number, "x": "x" * size}).encode()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)  # a turn of the loop, not a wait


async def test_an_answer_that_comes_in_silence_is_json(client: Client) -> None:
    response = response_to(client)
    response.watch()
    await response.finish(message(1), 404)

    assert [event["type"] for event in client.events] == ["http.response.start", "http.response.body"]
    assert (client.events[0]["status"], client.body) == (404, message(1))
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_messages_that_come_while_others_are_written_follow_in_order(client: Client) -> None:
    response = response_to(client)
    response.notify(message(1))
    await turns()
    client.reads.clear()
    response.notify(message(2))
    await turns()
    response.notify(message(3))
    await turns()
    client.reads.set()
    await response.finish(message(4))

    found = [
        json.loads(line.removeprefix(b"data: "))["n"] for line in client.body.splitlines() if line.startswith(b"data: ")
    ]
    assert found == [1, 2, 3, 4]
    assert [event.get("more_body") for event in client.events][-1] is False


async def test_nothing_is_sent_after_the_answer(client: Client) -> None:
    response = response_to(client)
    await response.finish(message(1))
    response.notify(message(2))
    await turns()

    assert client.body == message(1)


async def test_unread_messages_are_dropped_beyond_a_bound_and_the_work_goes_on(client: Client) -> None:
    client.reads.clear()
    response = response_to(client, message_bytes=1000)

    async def work() -> None:
        response.watch()
        for number in range(20):
            response.notify(message(number, 100))
            await asyncio.sleep(0)  # a turn of the loop, not a wait

    task = asyncio.create_task(work())
    await asyncio.wait({task})
    kept = response.events.size if response.events else 0
    response.drop()
    await turns()

    assert not task.cancelled()
    assert not response.is_gone
    assert kept < 2000
    assert asyncio.all_tasks() == {asyncio.current_task()}


def messages_of(client: Client) -> list[Any]:
    return [json.loads(line.removeprefix(b"data: ")) for line in client.body.splitlines() if line.startswith(b"data: ")]


async def test_a_client_gets_the_number_of_dropped_messages_in_their_place(client: Client) -> None:
    response = response_to(client, message_bytes=1000)
    response.log_level = LEVELS.index("info")
    client.reads.clear()
    for number in range(20):
        response.notify(message(number, 100))
    client.reads.set()
    await turns()
    response.notify(message(20))
    response.notify(message(21, 2000))
    await response.finish(message(22))

    found = [said.get("n", said.get("params", {}).get("data", {}).get("dropped")) for said in messages_of(client)]
    notices = [said["params"]["level"] for said in messages_of(client) if "params" in said]
    assert found == [*range(8), 12, 20, 1, 22]
    assert notices == ["warning", "warning"]


async def test_a_dropped_message_that_is_too_long_is_reported_at_once(client: Client) -> None:
    response = response_to(client, message_bytes=1000)
    response.log_level = LEVELS.index("warning")
    response.notify(message(1, 2000))
    await turns()

    assert [said["params"]["data"]["dropped"] for said in messages_of(client)] == [1]
    response.drop()
    await turns()


@pytest.mark.parametrize("level", [None, LEVELS.index("error")])
async def test_a_client_without_warnings_gets_no_report_of_dropped_messages(client: Client, level: int | None) -> None:
    response = response_to(client, message_bytes=1000)
    response.log_level = level
    response.notify(message(1, 2000))
    response.notify(message(2))
    await response.finish(message(3))

    assert [said["n"] for said in messages_of(client)] == [2, 3]


async def test_a_client_that_goes_cancels_the_work_once_and_the_task_may_do_other_work(client: Client) -> None:
    response = response_to(client, streams=False)
    response.watch()
    asyncio.get_running_loop().call_later(0.1, client.goes.set)

    with pytest.raises(asyncio.CancelledError):
        await asyncio.sleep(10)  # it is interrupted; that it lasts is the failure
    response.drop()

    task = asyncio.current_task()
    assert response.is_gone
    assert task is not None
    assert task.cancelling() == 0
    assert client.events == []


async def test_a_dropped_response_of_a_connected_client_cancels_no_task(client: Client) -> None:
    response = response_to(client)
    response.notify(message(1))
    response.drop()
    await turns()

    assert not response.is_gone
    assert asyncio.all_tasks() == {asyncio.current_task()}
