"""Troubles: what went wrong with an upstream, as an answer can say it."""

from typing import Any, Final, cast

import msgspec

from toolyard.envelope import Envelope, Failure
from toolyard.errors import ToolError
from toolyard.providers.upstream.link import LinkError
from toolyard.providers.upstream.settings import UpstreamSettings
from toolyard.wire.faults import INVALID_PARAMS, INVALID_REQUEST, METHOD_NOT_FOUND, MISSING_CAPABILITY, Fault

__all__ = ["failure_of", "fault_of", "no_result", "refusal_of"]

_UNHEARD: Final = frozenset({INVALID_REQUEST, METHOD_NOT_FOUND, INVALID_PARAMS})
_SERVER_ERROR: Final = 500
_WORDS: Final = 2000
_DETAILS: Final = 20_000


def failure_of(name: str, error: LinkError, settings: UpstreamSettings) -> ToolError:
    """Return the failure that a link's trouble is."""
    details: dict[str, Any] = {"upstream": name}
    if error.status is not None:
        details["status"] = error.status
    if error.text:
        details["text"] = error.text[:_DETAILS]
    if error.retry_after is not None:
        details["retry_after_ms"] = round(error.retry_after * 1000)
    if error.trouble == "unauthenticated":
        return _not_let_in(name, error, settings, details)
    if error.trouble == "rate_limited":
        return ToolError("rate_limited", error.message, blame="upstream", **details)
    if error.trouble == "refused":
        ran = error.sent and (error.status or 0) >= _SERVER_ERROR
        return ToolError("upstream_error", error.message, may_have_run=ran, **details)
    return ToolError("upstream_unavailable", error.message, may_have_run=error.sent, **details)


def _not_let_in(name: str, error: LinkError, settings: UpstreamSettings, details: dict[str, Any]) -> ToolError:
    """Return that an upstream wants other credentials, and who can give it some, and how."""
    if error.of_caller:
        hint = f"The 'Authorization' that came with the request is passed on to '{name}': send one that it accepts."
        return ToolError("unauthenticated", error.message, hint=hint, blame="caller", **details)
    command, actions = f"toolyard login {name}", [f"toolyard login {name}"]
    setting = f"'headers' of the upstream '{name}'"
    if settings.authorizes:
        hint, actions = f"Ask whoever runs the yard to change 'Authorization' in {setting}.", []
    elif settings.forward_headers:
        named = ", ".join(f"'{header}'" for header in settings.forward_headers)
        hint = (
            f"{named} of the caller goes with calls alone. For the rest the yard needs credentials of its own: '{command}', or {setting}."
        )
    else:
        hint = f"Ask whoever runs the yard to sign in: '{command}'."
    return ToolError("unauthenticated", error.message, hint=hint, next_actions=actions, blame="upstream", **details)


def fault_of(name: str, fault: Fault) -> ToolError:
    """Return the failure that an upstream's JSON-RPC error is, with its own code and words."""
    details: dict[str, Any] = {"upstream": name, "upstream_code": fault.code, "text": fault.message[:_DETAILS]}
    if fault.data is not None:
        details["upstream_data"] = fault.data
    said = fault.message.strip()[:_WORDS].removesuffix(".") or "no words"
    if fault.code == MISSING_CAPABILITY:
        return ToolError("not_supported", f"{said}.", capabilities=_required(fault.data), **details)
    return ToolError("upstream_error", f"'{name}' answered with an error: {said}.", may_have_run=fault.code not in _UNHEARD, **details)


def no_result(name: str, error: Exception) -> ToolError:
    """Return the failure of an upstream that answered with what is no answer to the request."""
    return ToolError("upstream_error", f"'{name}' answered with something that is no result: {error}.", upstream=name)


def _required(data: object) -> list[str]:
    required = cast("dict[str, object]", data).get("requiredCapabilities") if isinstance(data, dict) else None
    return list(cast("dict[str, object]", required)) if isinstance(required, dict) else []


def refusal_of(name: str, text: str, structured: object) -> ToolError:
    """Return the failure that an upstream's tool said its result is, with its own words; another yard's keeps its code."""
    told = _envelope_of(structured)
    if told is not None:
        error = ToolError(told.code, told.message, hint=told.hint, next_actions=told.next_actions, blame=told.blame)
        error.may_have_run = told.may_have_run
        error.details = {"upstream": name, **told.details}
        return error
    details: dict[str, Any] = {"upstream": name, "text": text[:_DETAILS]}
    if structured is not None:
        details["structured"] = structured
    return ToolError("upstream_error", text.strip()[:_WORDS] or f"'{name}' says that it failed, and no more.", **details)


def _envelope_of(structured: object) -> Failure | None:
    """Return why a call of another yard failed, if this is the answer of one."""
    try:
        return msgspec.convert(structured, Envelope).error if isinstance(structured, dict) else None
    except msgspec.ValidationError:
        return None
