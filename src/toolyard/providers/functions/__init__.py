"""Plain Python functions as tools, resources and prompts."""

from toolyard.providers.functions.decorator import tool
from toolyard.providers.functions.prompts import prompt, prompt_from
from toolyard.providers.functions.provider import Functions, tool_from
from toolyard.providers.functions.resources import resource, resource_from

__all__ = ["Functions", "prompt", "prompt_from", "resource", "resource_from", "tool", "tool_from"]
