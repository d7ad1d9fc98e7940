"""The page 'Chat': a conversation with an agent that has the yard's tools.

The page speaks to the HTTP API of agents, which `launch` hands in. A request passes with the login of the console in
place of credentials.
"""

from typing import Any

import msgspec

from callyard.console.form import defaults_of, make_form
from callyard.console.page import FRESH, HTML, Page, View, render
from callyard.transports.http.response import ResponseWriter

__all__ = ["Chat"]


class Chat(Page):
    """A conversation with an agent."""

    name = "chat"
    live_seconds = 0.0

    @property
    def in_navigation(self) -> bool:
        """Return whether the server runs agents."""
        return self.parts.agents is not None

    async def context(self, view: View) -> dict[str, Any]:
        """Return nothing: the script of the page asks the API."""
        return {"is_served": self.parts.agents is not None, "session": view.query.get("session", "")}

    async def answer(self, view: View, writer: ResponseWriter) -> bool:
        """Pass a request to the API of agents, or return the form of a question.

        Both need a login, because each person has sessions of their own.
        """
        if not view.path:
            return False
        if self.parts.agents is None or not view.person.can_act:
            raise LookupError
        if view.path == ("form",):
            try:  # the script of the page got the schema from the agent
                schema = msgspec.json.decode(view.form.get("schema", ""), type=dict[str, Any])
            except msgspec.DecodeError:
                raise LookupError from None
            form = render("chat_form.html", {"form": make_form(schema), "content": defaults_of(schema)})
            await writer.respond(200, form, (HTML, FRESH))
            return True
        if view.path[0] != "api":
            raise LookupError
        passed = msgspec.structs.replace(
            view.request, path="/".join(("/api", *view.path[1:])), caller=view.person.caller
        )
        await self.parts.agents.serve(passed, writer)
        return True
