from typing import Any

import pytest
from table_tests import every_row

from callyard.model.elicitation import ClientRequest, Confirmation, check_form, form_content, unsupported_by_client
from callyard.model.errors import ToolError
from callyard.model.schema import SchemaError

SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
ASK = ClientRequest.person("Who?", SCHEMA)


def test_a_person_is_asked_with_a_form() -> None:
    assert ClientRequest("elicitation/create", {"mode": "form", "message": "Who?", "requestedSchema": SCHEMA}) == ASK


def test_a_model_is_asked_with_a_message() -> None:
    plain, declared = (
        ClientRequest.model("Think.", max_tokens=5),
        ClientRequest.model("Think.", max_tokens=5, system="Be brief."),
    )

    assert plain.params == {
        "messages": [{"role": "user", "content": {"type": "text", "text": "Think."}}],
        "maxTokens": 5,
    }
    assert declared.params["systemPrompt"] == "Be brief."


def test_a_client_is_asked_for_its_folders() -> None:
    assert ClientRequest.roots() == ClientRequest("roots/list", {})


@pytest.mark.parametrize(
    ("ask", "capability"),
    [(ASK, "elicitation"), (ClientRequest.model("x", max_tokens=1), "sampling"), (ClientRequest.roots(), "roots")],
)
def test_every_ask_needs_a_capability(ask: ClientRequest, capability: str) -> None:
    assert ask.capability == capability


def test_a_question_has_a_key() -> None:
    assert Confirmation("Who?", SCHEMA).key == "answer"


def test_missing_capabilities_of_a_client_are_named() -> None:
    asks = {"a": ASK, "b": ClientRequest.roots(), "c": ClientRequest.roots()}

    assert unsupported_by_client(asks).details["capabilities"] == ["elicitation", "roots"]
    assert unsupported_by_client(asks, {"roots"}).details["capabilities"] == ["elicitation"]
    assert unsupported_by_client(asks).code == "not_supported"


def test_the_content_of_an_accepted_form_is_returned() -> None:
    assert form_content(ASK, {"action": "accept", "content": {"name": "Ada"}}) == {"name": "Ada"}
    assert form_content(ClientRequest.person("Sure?", {"type": "object", "properties": {}}), {"action": "accept"}) == {}


@every_row(
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
        form_content(ASK, result)
    assert caught.value.code == code


@every_row(
    ("declared", "form", "url"),
    [
        ({}, None, "elicitation.url"),
        (None, None, "elicitation.url"),
        ({"form": {}}, None, "elicitation.url"),
        ({"url": {}}, "elicitation.form", None),
        ({"form": {}, "url": {}}, None, None),
    ],
)
def test_a_person_can_be_asked_in_the_modes_that_the_client_names(
    declared: Any, form: str | None, url: str | None
) -> None:
    link = ClientRequest("elicitation/create", {"mode": "url", "message": "Look.", "url": "https://example.com"})

    assert (ASK.missing_capability({"elicitation": declared}), link.missing_capability({"elicitation": declared})) == (
        form,
        url,
    )
    assert ClientRequest.roots().missing_capability({"roots": declared}) is None


def test_a_client_with_every_capability_gets_not_supported_without_a_list() -> None:
    error = unsupported_by_client({"a": ASK}, {"elicitation"})

    assert error.code == "not_supported"
    assert "capabilities" not in error.details


def test_a_handshake_client_of_a_stateless_server_gets_that_reason() -> None:
    error = unsupported_by_client({"a": ASK}, stateless=True)

    assert (error.code, error.details) == ("not_supported", {})
    assert "stateless" in error.message


def form(**fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields}


@every_row(
    "schema",
    [
        form(),
        {**form(a={"type": "string", "minLength": 1}), "required": ["a"], "additionalProperties": False},
        form(a={"type": "integer", "minimum": 1}, b={"type": "number"}, c={"type": "boolean", "default": True}),
        *(form(a={"type": "string", "format": known}) for known in ("date", "date-time", "email", "uri")),
        form(a={"type": "string", "enum": ["x", "y"], "enumNames": ["X", "Y"]}),
        form(a={"type": "string", "oneOf": [{"const": "x", "title": "X"}]}),
        form(a={"type": "array", "items": {"type": "string", "enum": ["x", "y"]}, "minItems": 1}),
        form(a={"type": "array", "items": {"anyOf": [{"const": "x", "title": "X"}]}}),
    ],
)
def test_a_form_has_plain_fields(schema: dict[str, Any]) -> None:
    check_form(schema)

    assert ClientRequest.person("Who?", schema).params["requestedSchema"] == schema


@every_row(
    "schema",
    [
        None,
        {},
        {"type": "array"},
        {"type": "object"},
        {"type": "object", "properties": []},
        form(a=True),
        form(a={}),
        form(a={"type": "nonsense"}),
        form(a={"type": ["string", "null"]}),
        form(a={"type": "object", "properties": {"b": {"type": "string"}}}),
        form(a={"type": "array"}),
        form(a={"type": "array", "items": {"type": "string"}}),
        form(a={"type": "array", "items": {"anyOf": [{"type": "string"}]}}),
        form(a={"type": "string", "format": "uuid"}),
        form(a={"type": "string", "enum": [1]}),
        form(a={"type": "string", "oneOf": ["x"]}),
        form(a={"type": "string", "pattern": "("}),
        form(a={"type": "string", "default": object()}),
    ],
)
def test_nobody_is_asked_with_what_is_no_form(schema: Any) -> None:
    with pytest.raises(SchemaError):
        check_form(schema)
    with pytest.raises(ToolError) as caught:
        ClientRequest.person("Who?", schema)

    assert (caught.value.code, caught.value.blame) == ("internal_error", "tool")
