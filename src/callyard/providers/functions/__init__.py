"""Python functions as tools, resources and prompts.

Its files:

- `provider`: the provider of Python functions: the decorators `@tool`, `@resource` and `@prompt`, and what they
  publish
- `pydantic`: annotations that need pydantic for their schema and their check
- `schema`: input and output of a function: JSON Schemas and checks, made from its signature
- `signature`: what a function declares: its decorator's options, its docstring, its signature, and the handler that
  calls it
"""

from callyard.providers.functions.provider import (
    Functions,
    prompt,
    prompt_from,
    resource,
    resource_from,
    tool,
    tool_from,
)

__all__ = ["Functions", "prompt", "prompt_from", "resource", "resource_from", "tool", "tool_from"]
