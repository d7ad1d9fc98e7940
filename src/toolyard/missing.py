"""Missing tools: what is said of a name that finds none, and which other tools somebody may be sent to."""

from collections.abc import Mapping

from toolyard.errors import ToolError
from toolyard.profile import METATOOLS, Profile
from toolyard.table import Table
from toolyard.tools import Tool

__all__ = ["offered", "tool_not_found"]


def offered(tools: Mapping[str, Tool], profile: Profile, *actions: str) -> list[str]:
    """Return those of the actions whose metatools there are for the profile, so that nobody is sent to one that is not."""
    there = {action: tools.get(action.partition("(")[0]) for action in actions}
    return [action for action, tool in there.items() if tool is not None and tool.spec.source == METATOOLS and profile.allows(tool.spec)]


def tool_not_found(table: Table[Tool], name: str, profile: Profile, *, again: str) -> ToolError:
    """Return the failure to find a tool for the profile; `again` is what to do with a name that may have been meant, as a format."""
    held = table.held(name, profile)
    if held is not None:
        return ToolError(
            "tool_not_found",
            f"'{name}' is {held.status}. {held.reason}",
            hint="Use another tool, or ask whoever runs the yard.",
            status=held.status,
            similar=[],
        )
    near = table.near(name, profile)
    similar = [one for one in near if table.things[one].spec.source != METATOOLS] or near
    actions, hint = [again.format(closest) for closest in similar[:1]], None
    if not similar:
        actions = offered(table.things, profile, "search_tools(query=…)")
        hint = "Search for what you want to do." if actions else "Look through the list of tools: none has a name like it."
    return ToolError("tool_not_found", "There is no tool of that name.", hint=hint, next_actions=actions, similar=similar[:5])
