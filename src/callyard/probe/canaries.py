"""The canary calls of a probe: which may be made, and what their outcomes mean."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from callyard._internal.converted import as_object
from callyard.config.probes import Canary
from callyard.model.errors import ToolError
from callyard.model.schema import SchemaValidator
from callyard.probe.codes import ProbeCodeName
from callyard.probe.report import Failure, shown
from callyard.providers.upstream.calls import decode_answer, result_of
from callyard.providers.upstream.catalogue import Item
from callyard.providers.upstream.handshake import Connection
from callyard.providers.upstream.link import LinkError
from callyard.providers.upstream.session import CallContext
from callyard.wire.headers import param_headers, param_names
from callyard.wire.messages import INVALID_PARAMS, METHOD_NOT_FOUND, Fault

__all__ = ["by_name", "check_canary"]

_REJECTED: Final = re.compile(
    r"validation error|input validation|invalid (?:arguments?|params|parameters|input)|-32602|schema", re.IGNORECASE
)
"""How servers say in an `isError` result that the arguments do not fit."""
_UNKNOWN: Final = re.compile(r"(?:unknown tool|tool .{0,200}not found|no such tool)", re.IGNORECASE)
_BAD_ARGUMENTS: Final = frozenset({"invalid_input"})
_NO_TOOL: Final = frozenset({"tool_not_found"})


async def check_canary(
    connection: Connection,
    canary: Canary,
    tools: Mapping[str, Item],
    *,
    slow_seconds: float,
    of_link: Callable[[LinkError], tuple[ProbeCodeName, str]],
) -> tuple[list[Failure], list[str]]:
    """Make a canary call, and return failures and warnings; `of_link` explains a lost connection."""
    item = tools.get(canary.tool)
    if item is None:
        return [_failure("missing_tool", canary, f"There is no tool '{shown(canary.tool)}'.")], []
    is_query = as_object(item.get("annotations")).get("readOnlyHint") is True
    if not (canary.allow or is_query):
        reason = "its upstream does not say that it only reads. Write 'allow = true' if it may be called."
        return [], [f"The canary '{shown(canary.tool)}' was not called: {reason}"]
    started = time.monotonic()
    actual, own_code, message = await _call(connection, canary, as_object(item.get("inputSchema")), of_link=of_link)
    if canary.code not in {actual, own_code}:
        if actual == "ok":
            actual, message = "tool_error", f"It succeeded, and '{canary.code}' was expected."
        return [_failure(actual, canary, message)], []
    if time.monotonic() - started > slow_seconds:
        return [_failure("slow", canary, f"It took more than {slow_seconds:g} seconds.")], []
    return [], []


def _failure(code: Any, canary: Canary, message: str) -> Failure:
    return Failure("canaries", code, shown(message), canary.tool)


async def _call(
    connection: Connection,
    canary: Canary,
    schema: Mapping[str, Any],
    *,
    of_link: Callable[[LinkError], tuple[ProbeCodeName, str]],
) -> tuple[str, str, str]:
    """Return the code of a probe or 'ok', the server's own code if it has one, and a sentence."""
    misfit = _misfit(schema, canary.arguments)
    if misfit:
        return "rejects_arguments", "", misfit
    try:
        async with asyncio.timeout(canary.seconds):
            return await _outcome(connection, canary, schema)
    except TimeoutError:
        return "hung", "", f"It did not answer within {canary.seconds:g} seconds."
    except LinkError as error:
        code, message = of_link(error)
        return code, "", message


async def _outcome(connection: Connection, canary: Canary, schema: Mapping[str, Any]) -> tuple[str, str, str]:
    """Make the call, and return the same.

    Raises:
        LinkError: The connection is lost, or the call is refused.
    """
    context = CallContext(headers=param_headers(param_names(schema), canary.arguments))
    params = {"name": canary.tool, "arguments": canary.arguments}
    name = connection.session.name
    try:
        raw = await connection.request("tools/call", params, name=canary.tool, context=context)
        answer = decode_answer(name, raw)
        if answer.result_type == "input_required":
            return "tool_error", "input_required", "It asks for input before it runs."
        result_of(name, answer, "")
    except Fault as fault:
        return _code_of_fault(fault), str(fault.code), fault.message
    except ToolError as error:
        return _code_of_failure(error), error.code, error.message
    return "ok", "", ""


def _misfit(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str:
    """Return why arguments do not fit the listed schema, or an empty text."""
    try:
        issues = SchemaValidator(schema).issues(arguments) if schema else []
    except ValueError as error:
        return f"The schema cannot be used: {error}"
    if not issues:
        return ""
    places = ", ".join(f"'{issue.field}'" for issue in issues)
    return f"Its arguments do not fit the listed schema at {places}."


def _code_of_fault(fault: Fault) -> ProbeCodeName:
    if _UNKNOWN.search(fault.message):
        return "missing_tool"
    if fault.code == INVALID_PARAMS:
        return "rejects_arguments"
    return "protocol" if fault.code == METHOD_NOT_FOUND else "tool_error"


def _code_of_failure(error: ToolError) -> ProbeCodeName:
    """Return the code of a failure that a tool reports, by its own code or by its words."""
    if error.code in _NO_TOOL or (error.code == "upstream_error" and _UNKNOWN.search(error.message)):
        return "missing_tool"
    if error.code in _BAD_ARGUMENTS or (error.code == "upstream_error" and _REJECTED.search(error.message)):
        return "rejects_arguments"
    return "tool_error"


def by_name(tools: tuple[Item, ...]) -> dict[str, Item]:
    """Return tools by name; items without a name are left out."""
    return {item["name"]: item for item in tools if isinstance(item.get("name"), str)}
