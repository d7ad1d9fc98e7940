"""Every tool an agent uses, behind one dispatcher.

The public names are loaded when first used, so that importing the package costs next to nothing.
"""

from toolyard import _version
from toolyard.loading import load

TYPE_CHECKING = False  # as type checkers know it; `typing` itself is more than all the rest here
if TYPE_CHECKING:
    from typing import Any

    from toolyard.asks import Ask, Question
    from toolyard.call import Call, Handler, Middleware, current_call
    from toolyard.caller import Caller, Door
    from toolyard.cli.serve import serve
    from toolyard.content import Audio, Blob, Embedded, Image, Message, ResourceLink, Text
    from toolyard.envelope import Envelope
    from toolyard.errors import CODES, ToolError
    from toolyard.limits import Limits
    from toolyard.profile import Profile, Surface, Toolset
    from toolyard.prompts import Prompt
    from toolyard.providers import Provider
    from toolyard.providers.functions import Functions, prompt, resource, tool
    from toolyard.providers.upstream.making import make_upstream
    from toolyard.providers.upstream.settings import UpstreamSettings
    from toolyard.record import Record, Sink
    from toolyard.resources import Resource
    from toolyard.serving import Serving
    from toolyard.session import Session
    from toolyard.signals import run
    from toolyard.spec import EvalRule, Example, Operation, PromptArgument, PromptSpec, PublishError, Reason, ResourceSpec, ToolSpec
    from toolyard.store import Store
    from toolyard.tools import Tool
    from toolyard.transports.http import asgi
    from toolyard.yard import Yard

__version__ = _version.VERSION

__all__ = [
    "CODES",
    "Ask",
    "Audio",
    "Blob",
    "Call",
    "Caller",
    "Door",
    "Embedded",
    "Envelope",
    "EvalRule",
    "Example",
    "Functions",
    "Handler",
    "Image",
    "Limits",
    "Message",
    "Middleware",
    "Operation",
    "Profile",
    "Prompt",
    "PromptArgument",
    "PromptSpec",
    "Provider",
    "PublishError",
    "Question",
    "Reason",
    "Record",
    "Resource",
    "ResourceLink",
    "ResourceSpec",
    "Serving",
    "Session",
    "Sink",
    "Store",
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
    "asks": ("Ask", "Question"),
    "call": ("Call", "Handler", "Middleware", "current_call"),
    "caller": ("Caller", "Door"),
    "content": ("Audio", "Blob", "Embedded", "Image", "Message", "ResourceLink", "Text"),
    "envelope": ("Envelope",),
    "errors": ("CODES", "ToolError"),
    "limits": ("Limits",),
    "profile": ("Profile", "Surface", "Toolset"),
    "prompts": ("Prompt",),
    "providers": ("Provider",),
    "providers.functions": ("Functions", "prompt", "resource", "tool"),
    "providers.upstream.making": ("make_upstream",),
    "providers.upstream.settings": ("UpstreamSettings",),
    "record": ("Record", "Sink"),
    "resources": ("Resource",),
    "serving": ("Serving",),
    "session": ("Session",),
    "signals": ("run",),
    "spec": ("EvalRule", "Example", "Operation", "PromptArgument", "PromptSpec", "PublishError", "Reason", "ResourceSpec", "ToolSpec"),
    "store": ("Store",),
    "tools": ("Tool",),
    "cli.serve": ("serve",),
    "transports.http": ("asgi",),
    "yard": ("Yard",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> "Any":
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'toolyard' has no attribute '{name}'")
    found = globals()[name] = getattr(load(f"toolyard.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
