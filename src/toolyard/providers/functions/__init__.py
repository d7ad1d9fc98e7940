"""Plain Python functions as tools."""

from toolyard.providers.functions.decorator import tool
from toolyard.providers.functions.provider import Functions, tool_from

__all__ = ["Functions", "tool", "tool_from"]
