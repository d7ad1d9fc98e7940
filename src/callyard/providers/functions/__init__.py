"""Python functions as tools, resources and prompts."""

from callyard.providers.functions.decorators import prompt, prompt_from, resource, resource_from, tool
from callyard.providers.functions.provider import Functions, tool_from

__all__ = ["Functions", "prompt", "prompt_from", "resource", "resource_from", "tool", "tool_from"]
