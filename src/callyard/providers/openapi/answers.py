"""Translates an API's answers into data or failures, and finds the next page."""

import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast
from urllib.parse import parse_qs, urljoin, urlsplit

import msgspec

from callyard._internal.converted import as_list, as_object
from callyard._internal.mask import mask_text
from callyard.model.content import block_from_bytes
from callyard.model.errors import CodeName, ToolError
from callyard.providers.openapi.http import Answer
from callyard.providers.openapi.operations import Parameter
from callyard.providers.upstream.link import LinkError

__all__ = ["RUNS_NOTHING", "data_of", "failure_of", "link_failure", "next_page_of", "retry_after_ms"]

RUNS_NOTHING: Final = frozenset({400, 401, 403, 404, 405, 409, 410, 412, 415, 422, 429})
"""Statuses after which nothing happened at the API."""
_ERROR_STATUS: Final = 400
_REDIRECT_STATUS: Final = 300
_TEXT_CHARACTERS: Final = 2000
_MESSAGE_CHARACTERS: Final = 500
_CODES: Final[Mapping[int, CodeName]] = {
    400: "invalid_input",
    401: "unauthenticated",
    403: "permission_denied",
    404: "not_found",
    409: "state_error",
    410: "not_found",
    412: "state_error",
    422: "invalid_input",
    429: "rate_limited",
    503: "upstream_unavailable",
}
_RESETS: Final = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
_DAY_SECONDS: Final = 86_400.0
_EPOCH: Final = 1_000_000_000
"""A larger number of seconds is a time of the clock, and a smaller one a span."""
_MESSAGES: Final = ("message", "detail", "error_description", "error", "title", "msg", "reason", "description")


def data_of(answer: Answer) -> tuple[Any, str]:
    """Return the data of a success, and a warning if it is not what it says."""
    if not answer.body:
        return {"status": answer.status}, ""
    kind = answer.media_type
    is_json = kind.endswith(("/json", "+json")) or not kind
    if is_json:
        try:
            return msgspec.json.decode(answer.body), ""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            if kind:
                return _as_text(answer), f"The answer says that it is '{kind}', and is not."
    if kind.endswith(("/x-ndjson", "/jsonl", "/json-seq")) or kind.startswith("text/") or _is_text(kind):
        return _as_text(answer), ""
    block = block_from_bytes(answer.body)
    if kind and block.kind == "resource":
        block.mime_type = kind
    return block, ""


def _is_text(kind: str) -> bool:
    return kind.endswith(("xml", "yaml", "javascript", "graphql", "x-www-form-urlencoded"))


def _as_text(answer: Answer) -> str:
    match = re.search(r"charset=\"?([\w.-]+)", answer.header("content-type"), re.IGNORECASE)
    try:
        return answer.body.decode(match[1] if match else "utf-8", "replace")
    except LookupError:
        return answer.body.decode("utf-8", "replace")


def retry_after_ms(answer: Answer) -> int | None:
    """Return how long an API asks to wait: a span, a date, or the time at which its limit is reset."""
    asked = answer.header("retry-after")
    try:
        if asked:
            seconds = float(asked) if asked.isdecimal() else parsedate_to_datetime(asked).timestamp() - time.time()
            return _milliseconds(seconds)
        for name in _RESETS:
            text = answer.header(name).partition(",")[0].strip()
            if text:
                reset = float(text)
                return _milliseconds(reset - time.time() if reset > _EPOCH else reset)
    except (ValueError, OverflowError, TypeError):
        return None
    return None


def _milliseconds(seconds: float) -> int:
    return int(min(max(seconds, 0.0), _DAY_SECONDS) * 1000)


def _words_of(data: object, depth: int = 0) -> str:
    """Return the message in an API's error; most have one under one of a few names."""
    if isinstance(data, str):
        return data
    if isinstance(data, list):
        return "; ".join(filter(None, (_words_of(one, depth) for one in cast("list[object]", data)[:5])))
    fields = as_object(data)
    for name in _MESSAGES:
        words = _words_of(fields[name], depth + 1) if name in fields and depth < 4 else ""  # noqa: PLR2004 - deep enough
        if words:
            return words
    return _words_of(fields["errors"], depth + 1) if "errors" in fields and depth < 2 else ""  # noqa: PLR2004 - the same


def failure_of(name: str, answer: Answer, *, secrets: frozenset[str]) -> ToolError | None:
    """Return the failure that a status means, or None if it is a success."""
    status = answer.status
    if status < _REDIRECT_STATUS:
        return None
    code: CodeName = _CODES.get(status, "upstream_error")
    wait = retry_after_ms(answer)
    if status == 403 and (wait is not None or answer.header("x-ratelimit-remaining") == "0"):  # noqa: PLR2004 - some say so instead of 429
        has_limit = answer.header("retry-after") or answer.header("x-ratelimit-remaining") == "0"
        if has_limit:
            code = "rate_limited"
    found: object = data_of(answer)[0] if answer.body else ""
    data: Any = cast("object", found) if isinstance(found, str | dict | list) else ""
    words = mask_text(" ".join(_words_of(data).split())[:_MESSAGE_CHARACTERS], secrets).removesuffix(".")
    is_page = answer.media_type == "text/html"
    message = f"'{name}' answered with status {status}" + (f": {words}." if words and not is_page else ".")
    details: dict[str, Any] = {"upstream": name, "status": status}
    if data and not is_page:
        details["answer"] = _masked(data, secrets)
    if code in {"rate_limited", "upstream_unavailable"}:
        details["retry_after_ms"] = 1000 if wait is None else wait
    if code == "invalid_input":
        details["issues"] = []
    if answer.is_redirect:
        message = f"'{name}' redirects with status {status} to another place, where nothing is sent."
        details["location"] = mask_text(answer.header("location")[:_MESSAGE_CHARACTERS], secrets)
    return ToolError(
        code,
        message,
        blame=None if code == "invalid_input" else "upstream",
        may_have_run=status not in RUNS_NOTHING,
        **details,
    )


def _masked(data: Any, secrets: frozenset[str]) -> Any:
    """Return an API's error with our own credentials masked, cut to a useful length."""
    text = msgspec.json.encode(data).decode()
    if not any(secret in text for secret in secrets) and len(text) <= _TEXT_CHARACTERS:
        return data
    return mask_text(text[:_TEXT_CHARACTERS], secrets)


def link_failure(name: str, error: LinkError) -> ToolError:
    """Return the failure to get an answer at all."""
    if error.kind in {"unavailable", "lost", "session_lost"}:
        wait = 1000 if error.retry_after is None else int(error.retry_after * 1000)
        return ToolError(
            "upstream_unavailable", error.message, upstream=name, may_have_run=error.sent, retry_after_ms=wait
        )
    hint = None if error.sent else "Tell the operator of the yard: the request was not sent, and will not be."
    return ToolError("upstream_error", error.message, hint=hint, upstream=name, may_have_run=error.sent)


_CURSORS: Final = (
    *("next_cursor", "nextCursor", "next_page_token", "nextPageToken", "cursor", "after", "continue"),
    *("page_token", "pageToken", "starting_after", "next_page", "nextPage"),
)
_CURSOR_ARGUMENTS: Final = (
    *("cursor", "page_token", "pageToken", "after", "continue", "next_token", "nextToken", "starting_after", "page"),
)
_PLACES: Final = ("meta", "metadata", "response_metadata", "pagination", "paging", "page_info", "pageInfo", "cursors")
_LINK: Final = re.compile(r"<([^>]*)>\s*((?:;\s*[^,;]+)*)")


def next_page_of(
    answer: Answer, data: Any, parameters: list[Parameter], arguments: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments of a call for the next page, if the answer says that there is one."""
    queries = {one.name: one.argument for one in parameters if one.place == "query"}
    if not queries:
        return None
    address = _next_address(answer, data)
    if address:
        return _from_address(address, queries, parameters, arguments)
    found = _cursor_of(as_object(data))
    named = next((queries[name] for name in _CURSOR_ARGUMENTS if name in queries), None)
    if found is not None and named is not None and found != arguments.get(named):
        return {**arguments, named: found}
    return _by_offset(as_object(data), queries, arguments)


def _next_address(answer: Answer, data: Any) -> str:
    for linked, parameters in _LINK.findall(answer.header("link")):
        if re.search(r"\brel\s*=\s*\"?[^\"]*\bnext\b", parameters, re.IGNORECASE):
            return str(linked)
    fields = as_object(data)
    for place in (as_object(fields.get("links")), as_object(fields.get("_links")), fields):
        target: object = place.get("next") or place.get("@odata.nextLink") or place.get("next_url")
        inner: object = as_object(cast("object", target)).get("href")
        for address in (inner, target):
            if isinstance(address, str) and ("/" in address or "?" in address):
                return address
    return ""


def _from_address(
    address: str, queries: Mapping[str, str], parameters: list[Parameter], arguments: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the arguments that the query of an address says; the address itself is never called."""
    try:
        query = parse_qs(urlsplit(urljoin("https://api/", address)).query, keep_blank_values=True)
    except ValueError:
        return None
    kinds = {one.name: as_object(one.schema.value).get("type") for one in parameters}
    changed: dict[str, Any] = {}
    for name, values in query.items():
        if name in queries and len(values) == 1 and str(arguments.get(queries[name])) != values[0]:
            is_number = kinds.get(name) in {"integer", "number"} and re.fullmatch(r"-?\d{1,15}", values[0])
            changed[queries[name]] = int(values[0]) if is_number else values[0]
    return {**arguments, **changed} if changed else None


def _cursor_of(fields: Mapping[str, Any]) -> str | int | None:
    for place in (fields, *(as_object(fields.get(name)) for name in _PLACES)):
        inner = as_object(place.get("cursors"))
        for name in _CURSORS:
            value = place.get(name) or inner.get(name)
            if isinstance(value, str | int) and not isinstance(value, bool) and value:
                return value
    return None


def _by_offset(fields: Mapping[str, Any], queries: Mapping[str, str], arguments: Mapping[str, Any]) -> Any:
    """Return the next page of an API that counts items: an offset in the query, and a total in the answer."""
    total = next(
        (fields[name] for name in ("total", "count", "total_count") if isinstance(fields.get(name), int)), None
    )
    offset = next((queries[name] for name in ("offset", "skip", "start") if name in queries), None)
    items = next((found for found in map(as_list, fields.values()) if found), None)
    if total is None or offset is None or not items:
        return None
    at = arguments.get(offset, 0)
    following = (at if isinstance(at, int) else 0) + len(items)
    return {**arguments, offset: following} if following < total else None
