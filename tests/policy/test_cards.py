"""A card shows all of a call: only configured and marked secrets are masked, and nothing hides."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, SecretStr
from table_tests import every_row

from callyard import Envelope, Limits, Operation, Yard, tool
from callyard._internal.mask import remember_secret
from callyard.dispatch.call import Channel
from callyard.model.elicitation import ClientRequest
from callyard.policy.approvals import Approval
from callyard.policy.cards import printable
from callyard.policy.settings import Rule

ASK = Rule(decision="ask", operations=(Operation.DESTROY,))
LIMITS = Limits(approval_hold_s=0.001)


class Login(BaseModel):
    user: str
    password: SecretStr
    pin: str = Field("0000", json_schema_extra={"writeOnly": True})


@tool(operation="destroy")
def run(command: str = "", values: dict[str, Any] | None = None) -> None:
    """Run a command."""


@tool(operation="destroy")
def login(who: Login, again: str = "") -> None:
    """Log in."""


async def held(name: str, arguments: dict[str, Any]) -> tuple[Envelope, list[Approval]]:
    async with Yard(tools=[run, login], rules=[ASK], limits=LIMITS) as yard:
        answer = await yard.call(name, arguments)
        assert yard.gate is not None
        return answer, await yard.gate.approvals.pending()


async def card_of(name: str, arguments: dict[str, Any]) -> Any:
    _, pending = await held(name, arguments)
    return pending[0].card


@every_row(
    "arguments",
    [
        {"command": 'TOKEN="$(rm -r x)" deploy'},
        {"command": "curl https://user:pass@host/x"},
        {"command": "Authorization: Bearer abcdefghijkl"},
        {"values": {"/home/ada/.ssh/authorized_keys": "ssh-rsa AAAA"}},
        {"values": {"auth": "none", "pin": "1234", "cookie_policy": "off", "password": "x", "key": "k"}},
        {"command": "sk-proj-1234567890abcdef"},
        {"command": "a" * 300_000},
    ],
)
async def test_names_and_forms_mask_nothing_on_a_card(arguments: dict[str, Any]) -> None:
    card = await card_of("run", arguments)

    shown = json.loads(card.arguments)
    assert {name: shown[name] for name in arguments} == arguments


async def test_deep_values_are_shown_whole() -> None:
    value: Any = "the bottom"
    for _ in range(150):
        value = [value]

    card = await card_of("run", {"values": {"a": value}})

    assert "the bottom" in card.arguments


async def test_marked_and_configured_secrets_are_masked_and_can_be_distinguished() -> None:
    remember_secret("correct horse battery")
    first = await card_of(
        "login", {"who": {"user": "anna", "password": "hunter22", "pin": "1234"}, "again": "hunter22"}
    )
    shown = json.loads(first.arguments)

    assert "hunter22" not in first.arguments + first.checked
    assert "1234" not in first.arguments + first.checked
    assert shown["who"]["user"] == "anna"
    assert shown["who"]["password"].startswith("*** (8 characters, ")
    configured = await card_of("run", {"command": "say 'correct horse battery' twice"})
    assert "horse" not in configured.arguments
    assert "say '*** (21 characters, " in json.loads(configured.arguments)["command"]

    async with Yard(tools=[login], rules=[ASK], limits=LIMITS) as yard:
        assert yard.gate is not None
        for password in ("hunter22", "hunter23"):
            await yard.call("login", {"who": {"user": "anna", "password": password}})
        one, other = [
            json.loads(each.card.arguments)["who"]["password"] for each in await yard.gate.approvals.pending()
        ]
    assert one != other
    assert one[:18] == other[:18]


@every_row(
    ("text", "shown"),
    [
        ("a\u200bb", "a\\u200bb"),
        ("a\u202eb", "a\\u202eb"),
        ("a\u3164b", "a\\u3164b"),
        ("a\u2800b", "a\\u2800b"),
        ("a\u00a0b", "a\\u00a0b"),
        ("a\u115fb", "a\\u115fb"),
        ("a\ufe0fb", "a\\ufe0fb"),
        ("a\u180fb", "a\\u180fb"),
        ("a\U00016fe4b", "a\\ud81b\\udfe4b"),
        ("a\U000e0041b", "a\\udb40\\udc41b"),
        ("a\nb", "a\\u000ab"),
        ("a\u2028b", "a\\u2028b"),
        ("<b>&`", "\\u003cb\\u003e\\u0026\\u0060"),
        ("a" + "\u0301" * 5, "a" + "\u0301" * 3 + "\\u0301" * 2),
        ("e\u0301l\u00e8ve, \u0e17\u0e35\u0e48, \u4e2d\u6587", "e\u0301l\u00e8ve, \u0e17\u0e35\u0e48, \u4e2d\u6587"),
    ],
)
def test_characters_that_show_nothing_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


async def test_arguments_that_nobody_can_read_are_refused() -> None:
    answer, pending = await held("run", {"command": "a" * 1_000_001})

    assert answer.error is not None
    assert (answer.error.code, pending) == ("too_large", [])


async def test_a_card_that_no_form_shows_whole_is_not_elicited() -> None:
    asked: list[str] = []

    async def ask(asks: Mapping[str, ClientRequest], _: object) -> dict[str, Any]:
        asked.extend(request.params["message"] for request in asks.values())
        return {key: {"action": "accept", "content": {}} for key in asks}

    channel = Channel(ask=ask, capabilities=frozenset({"elicitation"}))
    async with Yard(tools=[run], rules=[ASK], limits=LIMITS) as yard:
        short = await yard.call("run", {"command": "a"}, channel=channel)
        long = await yard.call("run", {"command": "a" * 5000}, channel=channel)

    assert (short.success, short.data) == (True, None)
    assert long.data["status"] == "approval_required"
    assert len(asked) == 1
