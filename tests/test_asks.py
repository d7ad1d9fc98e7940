from typing import Any

import pytest

from toolyard.asks import Ask, Question, content_of, unanswerable
from toolyard.errors import ToolError

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASK = Ask.person("Who?", SCHEMA)


def test_a_person_is_asked_with_a_form() -> None:
    assert Ask("elicitation/create", {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}) == ASK


def test_a_model_is_asked_with_a_message() -> None:
    plain, told = Ask.model("Think.", max_tokens=5), Ask.model("Think.", max_tokens=5, system="Be brief.")

    assert plain.params == {"messages": [{"role": "user", "content": {"type": "text", "text": "Think."}}], "maxTokens": 5}
    assert told.params["systemPrompt"] == "Be brief."


def test_a_client_is_asked_for_its_folders() -> None:
    assert Ask.roots() == Ask("roots/list", {})


@pytest.mark.parametrize(("ask", "capability"), [(ASK, "elicitation"), (Ask.model("x", max_tokens=1), "sampling"), (Ask.roots(), "roots")])
def test_every_ask_needs_a_capability(ask: Ask, capability: str) -> None:
    assert ask.capability == capability


def test_a_question_has_a_key() -> None:
    assert Question("Who?", SCHEMA).key == "answer"


def test_what_a_client_lacks_is_named() -> None:
    asks = {"a": ASK, "b": Ask.roots(), "c": Ask.roots()}

    assert unanswerable(asks).details["capabilities"] == ["elicitation", "roots"]
    assert unanswerable(asks, {"roots"}).details["capabilities"] == ["elicitation"]
    assert unanswerable(asks).code == "not_supported"


def test_what_a_person_filled_in_is_returned() -> None:
    assert content_of(ASK, {"action": "accept", "content": {"name": "Ada"}}) == {"name": "Ada"}
    assert content_of(Ask.person("Sure?", {"type": "object"}), {"action": "accept"}) == {}


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({"action": "decline"}, "approval_denied"),
        ({"action": "decline", "content": {"name": "Ada"}}, "approval_denied"),
        ({"action": "cancel"}, "cancelled"),
        ({"action": "other"}, "cancelled"),
        ({"action": 5}, "cancelled"),
        ({}, "cancelled"),
        ({"content": {"name": "Ada"}}, "cancelled"),
        ({"action": "accept"}, "invalid_input"),
        ({"action": "accept", "content": None}, "invalid_input"),
        ({"action": "accept", "content": "Ada"}, "invalid_input"),
        ({"action": "accept", "content": {"name": 5}}, "invalid_input"),
    ],
)
def test_anything_else_is_no_answer(result: dict[str, Any], code: str) -> None:
    with pytest.raises(ToolError) as caught:
        content_of(ASK, result)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("told", "form", "url"),
    [
        ({}, None, "elicitation.url"),
        (None, None, "elicitation.url"),
        ({"form": {}}, None, "elicitation.url"),
        ({"url": {}}, "elicitation.form", None),
        ({"form": {}, "url": {}}, None, None),
    ],
)
def test_a_person_can_be_asked_in_the_modes_that_the_client_names(told: Any, form: str | None, url: str | None) -> None:
    link = Ask("elicitation/create", {"mode": "url", "message": "Look.", "url": "https://example.com"})

    assert (ASK.lacking({"elicitation": told}), link.lacking({"elicitation": told})) == (form, url)
    assert Ask.roots().lacking({"roots": told}) is None


def test_a_client_that_lacks_nothing_is_told_that_there_is_no_way() -> None:
    error = unanswerable({"a": ASK}, {"elicitation"})

    assert error.code == "not_supported"
    assert "capabilities" not in error.details
