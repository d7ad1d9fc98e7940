"""APIs as tools: what is published of a document, and how calls reach the API."""

from pathlib import Path

import msgspec
from api_server import Reply, document_of, opened, serving

PETS = document_of(
    {
        "/pets/{petId}": {
            "get": {
                "operationId": "showPetById",
                "summary": "Show a pet.",
                "description": "With its owner.\n\nMore text.",
                "tags": ["pets"],
                "parameters": [{"name": "petId", "in": "path", "required": True, "schema": {"type": "integer"}}],
                "responses": {"200": {"description": "ok"}},
            },
            "delete": {
                "parameters": [{"name": "petId", "in": "path", "required": True, "schema": {"type": "integer"}}]
            },
        },
        "/pets": {
            "post": {
                "operationId": "createPet",
                "requestBody": {
                    "required": True,
                    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Pet"}}},
                },
            }
        },
    },
    components={
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "name"],
                "properties": {"id": {"type": "integer", "readOnly": True}, "name": {"type": "string"}},
            }
        }
    },
)


async def test_each_operation_becomes_a_tool_that_calls_it(tmp_path: Path) -> None:
    async with (
        serving(lambda _: Reply(body=b'{"name": "Rex"}')) as api,
        opened(tmp_path, PETS, base_url=f"{api.url}/v1") as yard,
    ):
        shown = await yard.call("api__show_pet_by_id", {"petId": 7})
        made = await yard.call("api__create_pet", {"body": {"name": "Rex"}})
        gone = await yard.call("api__delete_pets_pet_id", {"petId": 7})
        wrong = await yard.call("api__create_pet", {"body": {}})
        spec = yard.registry.find("api__show_pet_by_id", yard.profile_of(None)).spec

    assert shown.data == {"name": "Rex"}
    assert made.success
    assert gone.success
    assert wrong.expect_error("invalid_input")
    assert [(one.method, one.target) for one in api.received] == [
        ("GET", "/v1/pets/7"),
        ("POST", "/v1/pets"),
        ("DELETE", "/v1/pets/7"),
    ]
    assert msgspec.json.decode(api.received[1].body) == {"name": "Rex"}
    assert spec.description == "Show a pet.\n\nWith its owner.\n\nGET /pets/{petId}"
    assert spec.tags == ("pets",)
    assert str(spec.operation) == "query"
