"""Specs whose input schema is made when somebody first looks at it."""

from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import msgspec

from callyard import Yard
from callyard.dispatch.call import Call
from callyard.dispatch.tool import Tool
from callyard.model.envelope import encode
from callyard.model.spec import LazySchema, LazySpec, Operation
from callyard.providers import Publish

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "additionalProperties": False}


def lazy_schema(made: list[str], *, digest: str = "d1", fault: str = "") -> LazySchema:
    def make() -> dict[str, Any]:
        made.append(digest)
        return SCHEMA

    outline = {"properties": {"city": {"description": "the town"}}}
    return LazySchema(make, outline=outline, digest=digest, make_output=lambda: {"type": "string"}, fault=fault)


def spec_of(schema: LazySchema, name: str = "weather__show") -> LazySpec:
    return LazySpec.of(schema, name=name, description="Show the weather.", operation=Operation.QUERY, source="weather")


class Lazy:
    name = "weather"

    def __init__(self, *specs: LazySpec) -> None:
        self._specs = specs

    def open(self, publish: Publish) -> AbstractAsyncContextManager[None]:
        @asynccontextmanager
        async def opened() -> AsyncGenerator[None]:
            publish([Tool(spec=spec, handler=show, check=msgspec.json.decode) for spec in self._specs], foreign=True)
            yield

        return opened()


async def show(call: Call) -> object:
    return call.arguments


def test_a_schema_is_made_once_when_it_is_first_looked_at() -> None:
    made: list[str] = []
    spec = spec_of(lazy_schema(made))

    assert made == []
    assert spec.outline["properties"]["city"] == {"description": "the town"}
    assert spec.input_schema == SCHEMA
    assert spec.input_schema == SCHEMA
    assert made == ["d1"]
    assert spec.described_output == {"type": "string"}
    assert spec.output_schema is None


def test_json_of_a_lazy_spec_has_the_digest_and_makes_no_schema() -> None:
    made: list[str] = []
    spec = spec_of(lazy_schema(made))

    assert msgspec.json.decode(encode(spec))["input_schema"] == "d1"
    assert msgspec.structs.replace(spec, source="other").lazy == spec.lazy
    assert spec == spec_of(lazy_schema(made))
    assert spec != spec_of(lazy_schema(made, digest="d2"))
    assert hash(spec.lazy) == hash(lazy_schema(made))
    assert made == []


async def test_neither_publishing_nor_search_nor_a_short_list_makes_a_schema() -> None:
    made: list[str] = []
    specs = [spec_of(lazy_schema(made), f"weather__show_{number:04}") for number in range(2000)]
    async with Yard(providers=[Lazy(*specs)]) as yard:
        listed = yard.registry.list(yard.profile_of(None))
        found = await yard.call("search_tools", {"query": "weather of a town", "limit": 1})

        assert len(listed) < 10
        assert found.success
        assert len(made) <= 1


async def test_a_lazy_spec_with_a_fault_is_quarantined_and_the_others_are_published() -> None:
    made: list[str] = []
    wrong = spec_of(lazy_schema(made, fault="is wrong."), "weather__wrong")
    async with Yard(providers=[Lazy(spec_of(lazy_schema(made)), wrong)]) as yard:
        answer = await yard.call("weather__wrong")
        right = await yard.call("weather__show", {"city": "Bern"})

        assert answer.expect_error("tool_not_found").details["status"] == "quarantined"
        assert right.data == {"city": "Bern"}
