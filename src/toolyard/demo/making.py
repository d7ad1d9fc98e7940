"""Making the yard of the demo: tools from the catalogue, with answers that are invented, written down or computed."""

from typing import Any, Final
from zlib import crc32

from toolyard.call import Call, Handler
from toolyard.demo.catalogue import Entry, read_catalogue
from toolyard.demo.invention import invent
from toolyard.demo.ledger import COMPUTED
from toolyard.envelope import encode_sorted
from toolyard.errors import ToolError
from toolyard.limits import Limits
from toolyard.providers.given import Given
from toolyard.schema import SchemaValidator
from toolyard.spec import Operation
from toolyard.tools import Tool, check_by_schema
from toolyard.yard import Yard

__all__ = ["make_yard"]

_TEXT: Final = {"type": "string"}
_FOUND: Final = {"type": "array", "items": {"type": "object", "properties": {"id": _TEXT, "title": _TEXT, "text": _TEXT}}}
_DONE: Final = {"type": "object", "properties": {"id": _TEXT, "text": _TEXT}}
"""What is answered by tools that do not say what they answer."""
_SEEDS: Final = 40
_SLOW: Final = 10.0
"""Seconds after which a call is warned of: on a busy machine the first search should not bring a warning into the story."""


def make_yard() -> Yard:
    """Return the yard of the demo, one provider for each namespace."""
    tools: dict[str, list[Tool]] = {}
    for entry in read_catalogue():
        tools.setdefault(entry.namespace, []).append(_tool(entry))
    providers = [Given(name, several, resources=(), prompts=()) for name, several in tools.items()]
    return Yard("demo", providers=providers, limits=Limits(slow=_SLOW))


def _tool(entry: Entry) -> Tool:
    fits = None if entry.output_schema is None else SchemaValidator(entry.output_schema).fits
    return Tool(spec=entry.spec(), handler=_handler(entry), check=check_by_schema(entry.input_schema), fits_output=fits)


def _handler(entry: Entry) -> Handler:
    computed = COMPUTED.get(entry.id)
    schema = entry.output_schema or (_FOUND if entry.operation is Operation.QUERY else _DONE)

    async def answer(call: Call) -> Any:
        given = call.arguments
        if computed is not None:
            return computed(given)
        made = invent(schema, given, rows=entry.rows, seed=crc32(encode_sorted(given)) % _SEEDS)
        canned = next((one for one in entry.canned if one.fits(given)), None)
        if canned is None:
            return made
        if canned.fails is not None:
            refusal = canned.fails
            code = entry.reasons[refusal.reason].code
            raise ToolError(code, refusal.message, reason=refusal.reason, may_have_run=False, **refusal.details)
        return {**made, **canned.data, **{name: given[name] for name in made if name in given}}

    return answer
