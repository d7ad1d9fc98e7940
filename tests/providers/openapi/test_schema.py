"""Schemas of documents translated to JSON Schema 2020-12."""

from typing import Any

from api_server import document_of
from table_tests import every_row

from callyard.model.schema import check_schema
from callyard.providers.openapi.digests import Digests
from callyard.providers.openapi.document import Document
from callyard.providers.openapi.operations import ApiOperation, operations_of
from callyard.providers.openapi.schema import FILE_SCHEMA, input_schema, outline_of, response_schema


def only_operation(document: dict[str, Any]) -> ApiOperation:
    [operation] = operations_of(Document("/a.json", {"/a.json": document}))
    assert isinstance(operation, ApiOperation)
    return operation


def translated(schema: Any, version: str = "3.0.3", **components: Any) -> Any:
    body = {"content": {"application/json": {"schema": schema}}}
    document = document_of({"/x": {"post": {"requestBody": body}}}, components={"schemas": components})
    made = input_schema(only_operation({**document, "openapi": version}))
    check_schema(made, max_bytes=1_000_000)
    return made["properties"]["body"]


@every_row(
    "schema, made",
    [
        ({"type": "string", "nullable": True}, {"type": ["string", "null"]}),
        ({"type": "string", "enum": ["a"], "nullable": True}, {"type": ["string", "null"], "enum": ["a", None]}),
        (
            {"allOf": [{"type": "string"}], "nullable": True},
            {"anyOf": [{"allOf": [{"type": "string"}]}, {"type": "null"}]},
        ),
        ({"nullable": True, "description": "any"}, {"description": "any"}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, {"type": "integer", "exclusiveMinimum": 1}),
        ({"type": "integer", "maximum": 9, "exclusiveMaximum": True}, {"type": "integer", "exclusiveMaximum": 9}),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": False}, {"type": "integer", "minimum": 1}),
        ({"type": "integer", "exclusiveMinimum": 3}, {"type": "integer", "exclusiveMinimum": 3}),
        ({"type": "integer", "minimum": "1", "maxLength": "x"}, {"type": "integer", "minimum": 1}),
        ({"type": "file"}, {"type": "string"}),
        ({"type": "any", "required": True}, {}),
        ({"type": ["string", "nonsense", "null"]}, {"type": ["string", "null"]}),
        ({"required": ["a", "a", 7]}, {"required": ["a"]}),
        ({"enum": []}, {}),
        ({"items": [{"type": "string"}, True]}, {"prefixItems": [{"type": "string"}, True]}),
        ({"items": {}, "uniqueItems": True, "maxItems": 3.0}, {"items": True, "uniqueItems": True, "maxItems": 3}),
        ({"multipleOf": 0.5}, {"multipleOf": 0.5}),
        ({"multipleOf": 0, "minLength": -1, "uniqueItems": "x"}, {}),
        ({"not": {"type": "string"}, "anyOf": [], "discriminator": {}}, {"not": {"type": "string"}}),
        ({"if": True, "dependentRequired": {"a": ["b"]}}, {"if": True, "dependentRequired": {"a": ["b"]}}),
        ({"additionalProperties": {}}, {"additionalProperties": True}),
        ({"additionalProperties": False}, {"additionalProperties": False}),
        (
            {"default": None, "const": 5, "title": "T", "format": "date"},
            {"default": None, "const": 5, "title": "T", "format": "date"},
        ),
        (
            {"type": "string", "pattern": r"\p{XDigit}\Z", "description": "A name."},
            {"type": "string", "description": r"A name. Not checked here: the pattern \p{XDigit}\Z."},
        ),
        ({"pattern": r"(a"}, {"description": "Not checked here: the pattern (a."}),
        ({"patternProperties": {"^x": {}, "(a": {}}}, {"patternProperties": {"^x": True}}),
        ("nonsense", True),
        (False, False),
    ],
)
def test_each_oddity_of_openapi_is_translated(schema: Any, made: Any) -> None:
    assert translated(schema) == made


def test_fields_that_only_the_api_writes_are_left_out_of_requests() -> None:
    fields = {"id": {"readOnly": True}, "name": {"type": "string"}}

    assert translated({"properties": fields, "required": ["id", "name"]}) == {
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }


def test_beside_a_reference_other_keywords_count_from_3_1_on() -> None:
    schema = {"$ref": "#/components/schemas/A", "description": "more"}

    assert translated(schema, A={"type": "string"}) == {"$ref": "#/$defs/A"}
    assert translated(schema, "3.1.0", A={"type": "string"}) == {"$ref": "#/$defs/A", "description": "more"}


def test_a_schema_that_nobody_can_read_is_left_open_at_the_end() -> None:
    parts = {
        f"S{n}": {"description": "x" * 2000, "properties": {"n": {"$ref": f"#/components/schemas/S{n + 1}"}}}
        for n in range(99)
    }
    body = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/S0"}}}}
    operation = only_operation(
        document_of({"/x": {"post": {"requestBody": body}}}, components={"schemas": {**parts, "S99": {}}})
    )
    made = input_schema(operation)

    assert made["$defs"]["S0"]["properties"]
    assert True in made["$defs"].values()
    assert len(str(made)) < 200_000


def test_a_response_schema_has_no_texts_and_all_it_refers_to() -> None:
    item = {"type": "object", "description": "long text", "properties": {"a": {"type": "string", "title": "T"}}}
    response = {
        "content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/I"}}}}
    }
    operation = only_operation(
        document_of({"/x": {"get": {"responses": {"404": {}, "200": response}}}}, components={"schemas": {"I": item}})
    )

    assert response_schema(operation) == {
        "type": "array",
        "items": {"$ref": "#/$defs/I"},
        "$defs": {"I": {"type": "object", "properties": {"a": {"type": "string"}}}},
    }
    assert response_schema(only_operation(document_of({"/x": {"get": {}}}))) is None
    dangling = {"200": {"$ref": "#/components/responses/none"}}
    assert response_schema(only_operation(document_of({"/x": {"get": {"responses": dangling}}}))) is None


SWAGGER: dict[str, Any] = {
    "swagger": "2.0",
    "host": "api.example",
    "consumes": ["application/json"],
    "paths": {
        "/x/{id}": {
            "parameters": [{"name": "id", "in": "path", "type": "integer", "required": True}],
            "post": {
                "parameters": [
                    {
                        "name": "tags",
                        "in": "query",
                        "type": "array",
                        "items": {"type": "string"},
                        "collectionFormat": "pipes",
                    },
                    {
                        "name": "all",
                        "in": "query",
                        "type": "array",
                        "items": {"type": "string"},
                        "collectionFormat": "multi",
                    },
                    {
                        "name": "b",
                        "in": "body",
                        "required": True,
                        "schema": {"$ref": "#/definitions/B"},
                        "description": "D",
                    },
                ],
                "responses": {"200": {"schema": {"$ref": "#/definitions/B"}}},
            },
        }
    },
    "definitions": {"B": {"type": "object", "properties": {"a": {"type": "string", "x-nullable": True}}}},
}


def test_swagger_is_upgraded_while_it_is_read() -> None:
    operation = only_operation(SWAGGER)
    made = input_schema(operation)
    styles = {one.name: (one.style, one.explode) for one in operation.parameters()}

    assert styles == {"id": ("simple", False), "tags": ("pipeDelimited", False), "all": ("form", True)}
    assert made["required"] == ["id", "body"]
    assert made["properties"]["tags"] == {"type": "array", "items": {"type": "string"}}
    assert made["$defs"]["B"]["properties"] == {"a": {"type": ["string", "null"]}}
    assert response_schema(operation) is not None
    assert outline_of(operation)["properties"]["body"] == {"properties": {"a": {}}}


def test_forms_of_swagger_become_a_body() -> None:
    fields: list[Any] = [
        {"name": "file", "in": "formData", "type": "file", "required": True},
        {"name": "note", "in": "formData", "type": "string"},
    ]
    paths = {"/x": {"post": {"parameters": fields}}}
    operation = only_operation({"swagger": "2.0", "host": "h", "paths": paths})
    body = operation.body()

    assert body is not None
    assert body.kind == "multipart"
    assert input_schema(operation)["properties"]["body"]["properties"] == {
        "file": FILE_SCHEMA,
        "note": {"type": "string"},
    }
    plain = only_operation(
        {"swagger": "2.0", "host": "h", "paths": {"/x": {"post": {"parameters": fields[1:]}}}}
    ).body()
    assert plain is not None
    assert plain.kind == "form"


def test_parameters_and_methods_beyond_3_0_are_read() -> None:
    parameters: list[Any] = [
        {"name": "filter", "in": "query", "content": {"application/json": {"schema": {"type": "object"}}}},
        {"name": "q", "in": "querystring", "content": {"application/x-www-form-urlencoded": {"schema": {}}}},
        {"name": "Authorization", "in": "header"},
        {"name": "gone", "in": "path"},
        {"name": "odd", "in": "elsewhere"},
    ]
    items: dict[str, Any] = {"query": {"parameters": parameters}, "additionalOperations": {"COPY": {}}}
    document = Document("/a", {"/a": {**document_of({"/x/{id}": items}), "openapi": "3.2.0"}})
    found = [one for one in operations_of(document) if isinstance(one, ApiOperation)]

    assert [one.method for one in found] == ["QUERY", "COPY"]
    assert [(one.argument, one.place) for one in found[0].parameters()] == [
        ("filter", "query"),
        ("q", "querystring"),
        ("id", "path"),
    ]


def digests(**components: Any) -> list[str]:
    def body(name: str) -> Any:
        return {"requestBody": {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}}}

    paths = {"/a": {"post": body("A")}, "/b": {"post": body("B")}, "/c": {"post": body("C")}}
    document = Document("/d", {"/d": document_of(paths, components={"schemas": components})})
    made = Digests(document)
    return [made.of(one) for one in operations_of(document) if isinstance(one, ApiOperation)]


def test_a_digest_changes_with_any_part_that_is_reached_and_with_no_other() -> None:
    def refer(name: str, **more: Any) -> Any:
        return {"properties": {"x": {"$ref": f"#/components/schemas/{name}"}}, **more}

    circle = {"A": refer("B"), "B": refer("A"), "C": {"type": "string"}}
    before = digests(**circle)
    inside = digests(**{**circle, "B": refer("A", title="new")})
    beside = digests(**{**circle, "C": {"type": "integer"}})

    assert before == digests(**dict(reversed(circle.items())))
    assert [old == new for old, new in zip(before, inside, strict=True)] == [False, False, True]
    assert [old == new for old, new in zip(before, beside, strict=True)] == [True, True, False]
    assert len(digests(A=refer("none"), B={}, C={})) == 3
