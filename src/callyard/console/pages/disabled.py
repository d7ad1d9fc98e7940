"""The page 'Disabled': what operators disabled, what that covers here, and the forms that disable and enable.

Only people with a login disable and enable, and see who did it and why; others see what is disabled and until when.
"""

from typing import Any, Final

import msgspec

from callyard.console.page import PERIODS, Done, Page, View, visible
from callyard.model.errors import ToolError
from callyard.model.profile import Profile
from callyard.model.switch import Switch

__all__ = ["DisabledPage"]

_TOOLS: Final = 20


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What is disabled, as a person sees it."""

    switch: Switch
    target: str
    reason: str
    tools: list[str]
    """The first tools of this server that it covers."""
    more: int
    """How many more there are."""


class DisabledPage(Page):
    """What operators disabled."""

    name = "disabled"

    async def context(self, view: View) -> dict[str, Any]:
        """Return what is disabled, sorted by name."""
        profile = self.profile_of(view)
        rows = [self._row(switch, profile) for switch in self.yard.switches.active]
        return {"rows": rows, "periods": PERIODS, "target": view.query.get("target", "")}

    async def count(self) -> int:
        """Return how much is disabled."""
        return len(self.yard.switches.active)

    async def act(self, view: View) -> Done:
        """Disable or enable in the name of the person."""
        form, by = view.form, view.person.identity
        target = form.get("target", "").strip()
        match view.path:
            case ("disable",):
                period = form.get("period", "")
                seconds = int(period) if period.isdecimal() else 0
                if period and seconds not in PERIODS:
                    raise ToolError("invalid_input", "There is no such time to disable something for.")
                reason = form.get("reason", "")
                switch = await self.yard.switches.disable(target, by=by, reason=reason, seconds=seconds or None)
                notice = f"'{visible(target)}' is disabled{f' until {switch.end}' if switch.end else ''}."
            case ("enable",):
                await self.yard.switches.enable(target, by=by)
                notice = f"'{visible(target)}' is enabled."
            case _:
                raise LookupError
        return Done(to=self.back(view), notice=notice)

    def _row(self, switch: Switch, profile: Profile) -> Row:
        disabled = [one for one in self.yard.registry.unavailable(profile) if one.status == "disabled"]
        tools = [one.spec.name for one in disabled if switch.covers(one.spec)]
        return Row(
            switch=switch,
            target=visible(switch.target),
            reason=visible(switch.reason),
            tools=tools[:_TOOLS],
            more=max(len(tools) - _TOOLS, 0),
        )
