"""Every tool an agent uses, behind one dispatcher.

The public names are loaded when first used, so that importing the package costs next to nothing.
"""

from toolyard import _version
from toolyard._internal.lazy import load_names

TYPE_CHECKING = False  # as type checkers know it; `typing` itself is more than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from toolyard.config.settings import Serving
    from toolyard.dispatch.call import Call, Caller, Channel, Handler, Middleware, current_call
    from toolyard.dispatch.outcome import Record, Sink
    from toolyard.dispatch.resource import Prompt, Resource
    from toolyard.dispatch.sessions import Session
    from toolyard.dispatch.tool import Tool
    from toolyard.launch.serve import serve
    from toolyard.launch.signals import run
    from toolyard.model.content import Audio, Blob, Embedded, Image, Message, ResourceLink, Text
    from toolyard.model.elicitation import ClientRequest, Confirmation
    from toolyard.model.envelope import Envelope
    from toolyard.model.errors import CODES, ToolError
    from toolyard.model.limits import Limits
    from toolyard.model.profile import Profile, Surface, Toolset
    from toolyard.model.rule import Predicate, Rule
    from toolyard.model.spec import EvalRule, Example, Operation, PromptArgument, PromptSpec, PublishError, Reason, ResourceSpec, ToolSpec
    from toolyard.policy.settings import BudgetSettings, QueueSettings, RateSettings
    from toolyard.providers import Provider
    from toolyard.providers.functions import Functions, prompt, resource, tool
    from toolyard.providers.upstream.provider import make_upstream
    from toolyard.providers.upstream.settings import UpstreamSettings
    from toolyard.runtimes.settings import RuntimeSettings
    from toolyard.state.memory import MemoryStore
    from toolyard.state.sqlite import SqliteStore
    from toolyard.state.store import Lease, Store, StoreUnavailableError
    from toolyard.transports.http import asgi
    from toolyard.yard import Yard

__version__ = _version.VERSION

__all__ = [
    "CODES",
    "Audio",
    "Blob",
    "BudgetSettings",
    "Call",
    "Caller",
    "Channel",
    "ClientRequest",
    "Confirmation",
    "Embedded",
    "Envelope",
    "EvalRule",
    "Example",
    "Functions",
    "Handler",
    "Image",
    "Lease",
    "Limits",
    "MemoryStore",
    "Message",
    "Middleware",
    "Operation",
    "Predicate",
    "Profile",
    "Prompt",
    "PromptArgument",
    "PromptSpec",
    "Provider",
    "PublishError",
    "QueueSettings",
    "RateSettings",
    "Reason",
    "Record",
    "Resource",
    "ResourceLink",
    "ResourceSpec",
    "Rule",
    "RuntimeSettings",
    "Serving",
    "Session",
    "Sink",
    "SqliteStore",
    "Store",
    "StoreUnavailableError",
    "Surface",
    "Text",
    "Tool",
    "ToolError",
    "ToolSpec",
    "Toolset",
    "UpstreamSettings",
    "Yard",
    "__version__",
    "asgi",
    "current_call",
    "make_upstream",
    "prompt",
    "resource",
    "run",
    "serve",
    "tool",
]

_HOMES = {
    "config.settings": ("Serving",),
    "dispatch.call": (
        "Call",
        "Caller",
        "Channel",
        "Handler",
        "Middleware",
        "current_call",
    ),
    "dispatch.outcome": (
        "Record",
        "Sink",
    ),
    "dispatch.resource": (
        "Prompt",
        "Resource",
    ),
    "dispatch.sessions": ("Session",),
    "dispatch.tool": ("Tool",),
    "launch.serve": ("serve",),
    "launch.signals": ("run",),
    "model.content": (
        "Audio",
        "Blob",
        "Embedded",
        "Image",
        "Message",
        "ResourceLink",
        "Text",
    ),
    "model.elicitation": (
        "ClientRequest",
        "Confirmation",
    ),
    "model.envelope": ("Envelope",),
    "model.errors": (
        "CODES",
        "ToolError",
    ),
    "model.limits": ("Limits",),
    "model.profile": (
        "Profile",
        "Surface",
        "Toolset",
    ),
    "model.rule": (
        "Predicate",
        "Rule",
    ),
    "model.spec": (
        "EvalRule",
        "Example",
        "Operation",
        "PromptArgument",
        "PromptSpec",
        "PublishError",
        "Reason",
        "ResourceSpec",
        "ToolSpec",
    ),
    "policy.settings": (
        "BudgetSettings",
        "QueueSettings",
        "RateSettings",
    ),
    "providers": ("Provider",),
    "providers.functions": (
        "Functions",
        "prompt",
        "resource",
        "tool",
    ),
    "providers.upstream.provider": ("make_upstream",),
    "providers.upstream.settings": ("UpstreamSettings",),
    "runtimes.settings": ("RuntimeSettings",),
    "state.memory": ("MemoryStore",),
    "state.sqlite": ("SqliteStore",),
    "state.store": (
        "Lease",
        "Store",
        "StoreUnavailableError",
    ),
    "transports.http": ("asgi",),
    "yard": ("Yard",),
}
_load_name = load_names("toolyard", _HOMES)

if not TYPE_CHECKING:  # a checker that saw it would accept every name

    def __getattr__(name: str) -> "Any":
        found = globals()[name] = _load_name(name)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
