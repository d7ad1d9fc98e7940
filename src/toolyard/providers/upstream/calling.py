"""Calling: the tools, resources and prompts of an upstream as ours, each with what runs it over there."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from toolyard.asks import unanswerable
from toolyard.call import Arguments, Call
from toolyard.caller import Door
from toolyard.envelope import Envelope, Passed
from toolyard.errors import ToolError
from toolyard.progress import Note
from toolyard.prompts import Prompt
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.naming import foreign_uri, with_our_uris
from toolyard.providers.upstream.peer import ALONE, Behalf
from toolyard.providers.upstream.reading import Answer, asks_of, passed_of, read_answer
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.providers.upstream.supervisor import Supervisor
from toolyard.providers.upstream.translating import ForeignTool, prefix_of
from toolyard.providers.upstream.troubles import failure_of, fault_of, no_result
from toolyard.resources import Resource
from toolyard.schema import Schema, SchemaValidator
from toolyard.spec import PromptSpec, ResourceSpec
from toolyard.tools import Check, Complete, InvalidArgumentsError, Tool, plain_of
from toolyard.uri_template import variables_of
from toolyard.wire.faults import Fault
from toolyard.wire.headers import param_headers, param_names
from toolyard.wire.params import LOG_LEVEL
from toolyard.wire.requests import NOTHING

__all__ = ["Calls"]

T = TypeVar("T", bound=msgspec.Struct)

_ROUNDS: Final = 20
"""How often an upstream may ask something before it answers."""
_ASKABLE: Final = frozenset({"elicitation", "sampling", "roots"})
_MISFIT: Final = "The upstream answered what its own output schema forbids."


class _Completion(msgspec.Struct):
    values: list[str] = []


class _Completed(msgspec.Struct):
    completion: _Completion = msgspec.field(default_factory=_Completion)


class _Contents(msgspec.Struct):
    contents: list[dict[str, Any]] | None = None


class _Made(msgspec.Struct):
    messages: list[dict[str, Any]] | None = None
    description: str | None = None


class Calls:
    """Makes what an upstream offers callable."""

    def __init__(self, name: str, settings: UpstreamSettings, supervisor: Supervisor) -> None:
        self._name = name
        self._settings = settings
        self._prefix = prefix_of(name, settings)
        self._supervisor = supervisor
        self._forwarded = tuple(header.lower() for header in settings.forward_headers)
        self._over_http = settings.carrier == "http"
        self._checks_outputs = settings.outputs == "warn"

    def tool(self, foreign: ForeignTool) -> Tool:
        """Return a tool that runs over there."""
        spec = foreign.spec
        headers = param_names(foreign.schema) if self._over_http else {}
        output = SchemaValidator(spec.output_schema) if spec.output_schema is not None and self._checks_outputs else None

        async def handler(call: Call) -> Passed:
            arguments = {**call.arguments, **foreign.fixed} if foreign.fixed else call.arguments
            beside = param_headers(headers, arguments) if headers else {}
            params = {"name": foreign.own, "arguments": arguments}
            behalf = self._behalf(call, beside)
            _, answer = await self._answered(call, "tools/call", params, name=foreign.own, behalf=behalf)
            if answer.is_error and behalf.unasked:
                raise unanswerable(behalf.unasked, stateless=call.door.stateless)
            passed = passed_of(self._name, answer, self._prefix)
            if output is not None and not output.fits(passed.data):
                call.warnings = (*call.warnings, _MISFIT)
            return passed

        return Tool(spec=spec, handler=handler, check=_check(spec.input_schema), may_return_none=True)

    def resource(self, spec: ResourceSpec, *, completes: bool) -> Resource:
        """Return a resource or a template that is read over there."""

        async def handler(call: Call) -> Envelope:
            uri = foreign_uri(self._prefix, call.name)
            result, _ = await self._answered(call, "resources/read", {"uri": uri}, name=uri, behalf=self._behalf(call))
            read = self._read(result, _Contents)
            return Envelope.ok({"contents": with_our_uris(self._prefix, read.contents or [])})

        reference = {"type": "ref/resource", "uri": foreign_uri(self._prefix, spec.uri)}
        return Resource.of(spec, handler, complete=self._completions(reference, variables_of(spec.uri)) if completes else None)

    def prompt(self, spec: PromptSpec, own: str, *, completes: bool) -> Prompt:
        """Return a prompt that is made over there."""

        async def handler(call: Call) -> Envelope:
            params = {"name": own, "arguments": call.arguments}
            result, _ = await self._answered(call, "prompts/get", params, name=own, behalf=self._behalf(call))
            made = self._read(result, _Made)
            messages = with_our_uris(self._prefix, made.messages or [])
            return Envelope.ok({"description": made.description or spec.description, "messages": messages})

        names = [argument.name for argument in spec.arguments]
        return Prompt.of(spec, handler, complete=self._completions({"type": "ref/prompt", "name": own}, names) if completes else None)

    def _completions(self, reference: Mapping[str, str], names: Sequence[str]) -> dict[str, Complete]:
        return {name: partial(self._complete, reference, name) for name in names}

    async def _complete(self, reference: Mapping[str, str], argument: str, value: str, settled: dict[str, str]) -> Sequence[str]:
        params: dict[str, Any] = {"ref": reference, "argument": {"name": argument, "value": value}}
        if settled:
            params["context"] = {"arguments": settled}
        try:
            result = await self._supervisor.request("completion/complete", params, name=None, behalf=ALONE, safe=True)
        except Fault as fault:
            raise fault_of(self._name, fault) from fault
        except LinkError as error:
            raise failure_of(self._name, error, self._settings) from error
        return self._read(result, _Completed).completion.values

    def _read(self, result: msgspec.Raw, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(result, type=kind)
        except msgspec.DecodeError as error:
            raise no_result(self._name, error) from error

    async def _answered(self, call: Call, method: str, params: dict[str, Any], *, name: str, behalf: Behalf) -> tuple[msgspec.Raw, Answer]:
        """Return what came of a request, after all that the upstream wanted to know first was asked.

        Raises:
            ToolError: It failed, or there is no end to what it wants to know.
        """
        wanted = params
        for _ in range(_ROUNDS):
            result = await self._sent(call, method, wanted, name=name, behalf=behalf)
            answer = read_answer(self._name, result)
            asks = asks_of(self._name, answer)
            if asks is None:
                return result, answer
            wanted = {**params, "inputResponses": dict(await call.ask_all(asks)) if asks else {}}
            if answer.request_state is not None:
                wanted["requestState"] = answer.request_state
        raise ToolError("upstream_error", f"'{self._name}' asked {_ROUNDS} times before it answered.", upstream=self._name)

    async def _sent(self, call: Call, method: str, params: dict[str, Any], *, name: str, behalf: Behalf) -> msgspec.Raw:
        began = time.monotonic()
        try:
            return await self._supervisor.request(method, params, name=name, behalf=behalf, safe=call.spec.safe)
        except Fault as fault:
            raise fault_of(self._name, fault) from fault
        except LinkError as error:
            raise failure_of(self._name, error, self._settings) from error
        except asyncio.CancelledError:
            if call.stopped == "timeout":
                call.at_fault = "upstream"
                if _had_its_time(call):
                    self._supervisor.time_out(began)
            raise

    def _behalf(self, call: Call, headers: Mapping[str, str] = NOTHING) -> Behalf:
        """Return how the upstream reaches whoever calls; of his headers it gets only those that its settings name."""
        door = call.door
        call.running = False  # what is not sent yet has done nothing
        passed_on = {name: door.forwarded[name] for name in self._forwarded if name in door.forwarded}
        return Behalf(
            owner=f"{call.caller.owner}:{call.caller.client}:{door.line}",  # two programs of one person are asked apart
            progress=None if door.progress is None else partial(_tell, call),
            log=partial(_say, call),
            sent=partial(_note_sent, call),
            ask=None if door.ask is None else call.ask_all,
            capabilities={name: {} for name in door.capabilities & _ASKABLE} if door.capabilities else {},
            meta=_beside(door),
            headers={**passed_on, **headers} if passed_on or headers else {},
        )


def _check(schema: Schema) -> Check:
    """Return the check that a foreign schema says; defaults are left to the upstream, which knows them."""
    validator = SchemaValidator(schema)

    def check(text: bytes) -> Arguments:
        arguments = plain_of(text)
        if not validator.fits(arguments):
            raise InvalidArgumentsError(validator.issues(arguments))
        return arguments

    return check


def _had_its_time(call: Call) -> bool:
    """Return whether a call had the time that its tool has; one that a caller cut short tells nothing of the upstream."""
    return not call.seconds or 0 < (call.spec.timeout or 0) <= call.seconds


def _beside(door: Door) -> dict[str, Any]:
    """Return what is said beside the params: what came along, and that the client wants to be told what is logged."""
    wants = {LOG_LEVEL: "debug"} if door.log is not None else {}
    return {**door.meta, **door.trace, **wants} if door.meta or door.trace or wants else wants


def _tell(call: Call, note: Note) -> None:
    call.progress(note.done, note.total, note.text)


def _note_sent(call: Call) -> None:
    call.running = True


def _say(call: Call, level: str, text: str) -> None:
    call.log(level, text)
