"""Why something failed, as our codes and reasons: told by the errors and call logs of Playwright."""

import re
from typing import Final

from playwright.async_api import Error
from playwright.async_api import TimeoutError as PlaywrightTimeout

from callyard import Reason, ToolError

__all__ = ["REASONS", "failure_of", "is_detached"]

REASONS: Final = {
    "browser_gone": Reason("not_running"),
    "dialog_open": Reason(details=("dialog",)),
    "download_started": Reason(details=("downloads",)),
    "element_covered": Reason(details=("by",)),
    "element_disabled": Reason(),
    "element_hidden": Reason(),
    "expectation_failed": Reason(details=("expected", "actual")),
    "host_not_allowed": Reason("permission_denied"),
    "hosts_required": Reason("permission_denied"),
    "in_use": Reason(),
    "launch_failed": Reason("upstream_unavailable"),
    "navigation_failed": Reason("upstream_error"),
    "no_browser": Reason("upstream_unavailable"),
    "no_dialog": Reason(),
    "page_crashed": Reason(),
    "page_hung": Reason("timeout"),
    "ref_gone": Reason("not_found", ("similar",)),
    "secret_not_allowed": Reason("permission_denied"),
    "tab_gone": Reason("not_found", ("tabs",)),
    "unknown_app": Reason("not_found", ("known",)),
    "unknown_file": Reason("not_found"),
    "wrong_element": Reason(),
}
"""Every reason of the pack."""

_COVER: Final = re.compile(r"- (<.*>.*?) intercepts pointer events")
_NET: Final = re.compile(r"net::ERR_(\w+)")


def is_detached(error: Error) -> bool:
    """Return whether the element was replaced before it was acted on."""
    text = error.message
    is_gone = "not attached" in text or "was detached" in text or "Execution context" in text
    return is_gone and not _was_performed(text)


def _was_performed(text: str) -> bool:
    """Return whether a call log says that the element was acted on; what hit another one is tried again."""
    return "performing" in text and "retrying" not in text.rpartition("performing")[2]


def failure_of(error: Error) -> ToolError:
    """Return an error of an action or a load as ours."""
    text = error.message
    covers = _COVER.findall(text)
    net = _NET.search(text)
    if covers and text.rindex("intercepts pointer") > max(text.rfind("not enabled"), text.rfind("not visible")):
        by = covers[-1][:200]
        message, hint = "Another element covers it.", "Close or move what covers it, then act again."
        failure = ToolError("state_error", message, hint=hint, reason="element_covered", by=by)
    elif "not enabled" in text or "not editable" in text:
        failure = ToolError("state_error", "The element is disabled.", reason="element_disabled")
    elif "not visible" in text or "outside of the viewport" in text or "is not stable" in text:
        failure = ToolError("state_error", "The element is hidden.", reason="element_hidden")
    elif "Download is starting" in text:
        failure = ToolError("state_error", "The address is a download.", reason="download_started")
    elif "interrupted by another navigation" in text or net is not None:
        why = net[1].lower().replace("_", " ") if net is not None else "another load began"
        failure = ToolError("upstream_error", f"The page does not load: {why}.", reason="navigation_failed")
    elif isinstance(error, PlaywrightTimeout):
        failure = ToolError("timeout", "The page does not answer.", reason="page_hung")
    else:
        first = text.partition("\n")[0].partition(": ")[2] or text.partition("\n")[0]
        failure = ToolError("state_error", f"The element does not take this: {first}.", reason="wrong_element")
    failure.may_have_run = _was_performed(text)
    return failure
