"""Every tool an agent uses, behind one dispatcher.

The public names are loaded when first used, so that importing the package costs next to nothing.
"""

from callyard import _version
from callyard._internal.lazy import load_names

TYPE_CHECKING = False  # as type checkers know it; `typing` itself is more than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from callyard._internal.programs import KeptProgram
    from callyard.config.settings import Serving
    from callyard.dispatch.call import Call, Caller, Channel, Handler, Limiter, Middleware, Policy, current_call
    from callyard.dispatch.outcome import Record, Sink
    from callyard.dispatch.resource import Prompt, Resource
    from callyard.dispatch.sessions import Session
    from callyard.dispatch.tool import Tool
    from callyard.launch.serve import serve
    from callyard.launch.signals import run
    from callyard.model.content import Audio, Blob, Embedded, Image, Message, ResourceLink, Text
    from callyard.model.elicitation import ClientRequest, Confirmation
    from callyard.model.envelope import Envelope
    from callyard.model.errors import CODES, ToolError
    from callyard.model.limits import Limits
    from callyard.model.profile import Profile, Surface, Toolset
    from callyard.model.spec import (
        EvalRule,
        Example,
        Operation,
        PromptArgument,
        PromptSpec,
        PublishError,
        Reason,
        ResourceSpec,
        ToolSpec,
    )
    from callyard.packs.pack import Needs, Pack, PackContext, PackError
    from callyard.policy.settings import BudgetSettings, Predicate, QueueSettings, RateSettings, Rule
    from callyard.providers import Provider, Publish
    from callyard.providers.functions import Functions, prompt, resource, tool
    from callyard.providers.upstream.provider import make_upstream
    from callyard.providers.upstream.settings import UpstreamSettings
    from callyard.runtimes.runtime import RuntimeSettings
    from callyard.search.settings import SearchSettings
    from callyard.state.memory import MemoryStore
    from callyard.state.redis import RedisStore
    from callyard.state.sqlite import SqliteStore
    from callyard.state.store import Lease, Store, StoreUnavailableError
    from callyard.transports.http import asgi
    from callyard.yard import Yard

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
    "KeptProgram",
    "Lease",
    "Limiter",
    "Limits",
    "MemoryStore",
    "Message",
    "Middleware",
    "Needs",
    "Operation",
    "Pack",
    "PackContext",
    "PackError",
    "Policy",
    "Predicate",
    "Profile",
    "Prompt",
    "PromptArgument",
    "PromptSpec",
    "Provider",
    "Publish",
    "PublishError",
    "QueueSettings",
    "RateSettings",
    "Reason",
    "Record",
    "RedisStore",
    "Resource",
    "ResourceLink",
    "ResourceSpec",
    "Rule",
    "RuntimeSettings",
    "SearchSettings",
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
    "_internal.programs": ("KeptProgram",),
    "config.settings": ("Serving",),
    "dispatch.call": ("Call", "Caller", "Channel", "Handler", "Limiter", "Middleware", "Policy", "current_call"),
    "dispatch.outcome": ("Record", "Sink"),
    "dispatch.resource": ("Prompt", "Resource"),
    "dispatch.sessions": ("Session",),
    "dispatch.tool": ("Tool",),
    "launch.serve": ("serve",),
    "launch.signals": ("run",),
    "model.content": ("Audio", "Blob", "Embedded", "Image", "Message", "ResourceLink", "Text"),
    "model.elicitation": ("ClientRequest", "Confirmation"),
    "model.envelope": ("Envelope",),
    "model.errors": ("CODES", "ToolError"),
    "model.limits": ("Limits",),
    "model.profile": ("Profile", "Surface", "Toolset"),
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
    "packs.pack": ("Needs", "Pack", "PackContext", "PackError"),
    "policy.settings": ("BudgetSettings", "Predicate", "QueueSettings", "RateSettings", "Rule"),
    "providers": ("Provider", "Publish"),
    "providers.functions": ("Functions", "prompt", "resource", "tool"),
    "providers.upstream.provider": ("make_upstream",),
    "providers.upstream.settings": ("UpstreamSettings",),
    "runtimes.runtime": ("RuntimeSettings",),
    "search.settings": ("SearchSettings",),
    "state.memory": ("MemoryStore",),
    "state.redis": ("RedisStore",),
    "state.sqlite": ("SqliteStore",),
    "state.store": ("Lease", "Store", "StoreUnavailableError"),
    "transports.http": ("asgi",),
    "yard": ("Yard",),
}
_load_name = load_names("callyard", _HOMES)

if not TYPE_CHECKING:  # a checker that saw it would accept every name

    def __getattr__(name: str) -> "Any":
        found = globals()[name] = _load_name(name)
        return found


def __dir__() -> list[str]:
    return sorted(__all__)
