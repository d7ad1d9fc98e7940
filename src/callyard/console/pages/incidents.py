"""The page 'Incidents': what is or was wrong, the silences, and the forms that silence.

Only people with a login see incidents, which name tools of every profile, and silence them.
"""

from typing import Any, Final

import msgspec

from callyard.console.page import PERIODS, Done, Page, View, visible
from callyard.model.errors import ToolError
from callyard.monitor.incidents import Incident, Silence

__all__ = ["IncidentsPage"]

_SHOWN: Final = 100


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An incident, as a person sees it."""

    incident: Incident
    text: str
    subject: str
    silence: Silence | None


class IncidentsPage(Page):
    """What the rules see wrong."""

    name = "incidents"

    @property
    def in_navigation(self) -> bool:
        """Return whether the server judges its calls."""
        return self.parts.incidents is not None

    async def context(self, view: View) -> dict[str, Any]:
        """Return the incidents, those that are open first."""
        incidents = self.parts.incidents
        if incidents is None:
            raise LookupError
        if not view.person.can_act:
            return {"rows": [], "silences": [], "periods": PERIODS}
        silences = await incidents.silences()
        found = sorted(await incidents.all(), key=lambda one: one.closed is not None)[:_SHOWN]
        return {"rows": [_row(one, silences) for one in found], "silences": silences, "periods": PERIODS}

    async def count(self) -> int:
        """Return how much this server sees wrong now."""
        return 0 if self.parts.incidents is None else len(self.parts.incidents.problems)

    async def act(self, view: View) -> Done:
        """Silence, or end a silence, in the name of the person."""
        incidents, form, by = self.parts.incidents, view.form, view.person.identity
        if incidents is None:
            raise LookupError
        pattern = form.get("pattern", "").strip()
        match view.path:
            case ("silence",):
                period = form.get("period", "")
                seconds = int(period) if period.isdecimal() else 0
                if seconds not in PERIODS:
                    raise ToolError("invalid_input", "There is no such time to silence something for.")
                await incidents.silence(pattern, by=by, seconds=seconds, reason=form.get("reason", ""))
                notice = f"Nobody is alerted of '{visible(pattern)}' for {PERIODS[seconds]}."
            case ("end",):
                await incidents.end_silence(pattern, by=by)
                notice = f"The silence of '{visible(pattern)}' has ended."
            case _:
                raise LookupError
        return Done(to=self.back(view), notice=notice)


def _row(incident: Incident, silences: list[Silence]) -> Row:
    return Row(
        incident=incident,
        text=visible(incident.problem.text),
        subject=visible(incident.problem.subject),
        silence=next((one for one in silences if one.covers(incident)), None),
    )
